"""FL5: environment variables."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.fleet.comparison import Comparison
from cudriver.fleet.result import Finding, Share
from cudriver.fleet.stacks import VARIABLE
from cudriver.stack.model import NOTE, WARNING

# What the dynamic loader and Python search by.
SEARCHED = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE")
UNSET = "not set"


def _apart(facts: Comparison, name: str, *, by_job: bool = False) -> tuple[list[Share], bool]:
    """A variable's values, and whether they differ within a job."""
    split = facts.split(lambda stack: stack.first(VARIABLE, name) or UNSET, by_job=by_job)
    return (split.shares, bool(split.jobs)) if split is not None else ([], False)


def _differing(facts: Comparison) -> list[str]:
    return [name for kind, name in facts.differing if kind == VARIABLE]


def fl501(facts: Comparison) -> Iterator[Finding]:
    """Variables that change what is loaded."""
    for name in _differing(facts):
        shares, _ = _apart(facts, name)
        if name in SEARCHED and shares:
            yield Finding(
                "FL501",
                WARNING,
                f"{name} differs",
                "it decides which files are loaded: other nodes may load other libraries",
                shares,
                [f"Set {name} in one place for all nodes, or not at all."],
            )


def fl502(facts: Comparison) -> Iterator[Finding]:
    """NCCL's variables."""
    for name in _differing(facts):
        shares, within = _apart(facts, name, by_job=True)
        if name.startswith(("NCCL_", "TORCH_NCCL_")) and shares:
            yield Finding(
                "FL502",
                WARNING if within else NOTE,
                f"{name} differs" + (" within a job" if within else ""),
                "most of NCCL's settings must be the same on all ranks, or a collective hangs"
                if within
                else "jobs that are compared may run at other speeds",
                shares,
                ["Let the launcher export it to all ranks: mpirun -x, srun --export."] * within,
            )


def fl503(facts: Comparison) -> Iterator[Finding]:
    """Other variables that matter to CUDA."""
    for name in _differing(facts):
        shares, _ = _apart(facts, name)
        if name not in SEARCHED and not name.startswith(("NCCL_", "TORCH_NCCL_")) and shares:
            why = "CUDA or a framework may work in another way there"
            yield Finding("FL503", NOTE, f"{name} differs", why, shares)


RULES = {"FL501": fl501, "FL502": fl502, "FL503": fl503}

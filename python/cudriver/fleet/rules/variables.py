"""FL5: environment variables."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.fleet.comparison import FINDINGS_KEPT, Comparison
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


def _differing(facts: Comparison, *, nccl: bool) -> list[str]:
    """The names of NCCL's variables that differ, or of those that are in no other rule."""
    names = [name for kind, name in facts.differing if kind == VARIABLE and name not in SEARCHED]
    return [name for name in names if name.startswith(("NCCL_", "TORCH_NCCL_")) is nccl]


def fl501(facts: Comparison) -> Iterator[Finding]:
    """Variables that change what is loaded."""
    for name in SEARCHED:
        shares, _ = _apart(facts, name)
        if shares:
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
    names = _differing(facts, nccl=True)
    for name in names[:FINDINGS_KEPT]:
        shares, within = _apart(facts, name, by_job=True)
        if shares:
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
    yield from _rest("FL502", WARNING, names, "whether within a job was not looked at")


def fl503(facts: Comparison) -> Iterator[Finding]:
    """Other variables that matter to CUDA."""
    why = "CUDA or a framework may work in another way there"
    names = _differing(facts, nccl=False)
    for name in names[:FINDINGS_KEPT]:
        shares, _ = _apart(facts, name)
        if shares:
            yield Finding("FL503", NOTE, f"{name} differs", why, shares)
    yield from _rest("FL503", NOTE, names, why)


def _rest(rule: str, severity: str, names: list[str], why: str) -> Iterator[Finding]:
    """Variables that are only counted."""
    count = len(names) - FINDINGS_KEPT
    if count > 0:
        title = f"{count:,} more variable{'s differ' if count > 1 else ' differs'}"
        yield Finding(rule, severity, title, why)


RULES = {"FL501": fl501, "FL502": fl502, "FL503": fl503}

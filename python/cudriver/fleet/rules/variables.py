"""FL5: environment variables."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.fleet.comparison import FINDINGS_KEPT, Comparison
from cudriver.fleet.result import Finding, Share, finding
from cudriver.fleet.stacks import VARIABLE
from cudriver.stack.facts import NOTE, WARNING

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
            why = "it decides which files are loaded: other nodes may load other libraries"
            line = f"Set {name} in one place for all nodes, or not at all."
            yield finding(WARNING, f"{name} differs", why, shares, line)


def fl502(facts: Comparison) -> Iterator[Finding]:
    """NCCL's variables."""
    names = _differing(facts, nccl=True)
    for name in names[:FINDINGS_KEPT]:
        shares, within = _apart(facts, name, by_job=True)
        if shares and within:
            why = "most of NCCL's settings must be the same on all ranks, or a collective hangs"
            line = "Let the launcher export it to all ranks: mpirun -x, srun --export."
            yield finding(WARNING, f"{name} differs within a job", why, shares, line)
        elif shares:
            why = "jobs that are compared may run at other speeds"
            yield finding(NOTE, f"{name} differs", why, shares)
    yield from _rest(WARNING, names, "whether within a job was not looked at")


def fl503(facts: Comparison) -> Iterator[Finding]:
    """Other variables that matter to CUDA."""
    why = "CUDA or a framework may work in another way there"
    names = _differing(facts, nccl=False)
    for name in names[:FINDINGS_KEPT]:
        shares, _ = _apart(facts, name)
        if shares:
            yield finding(NOTE, f"{name} differs", why, shares)
    yield from _rest(NOTE, names, why)


def _rest(severity: str, names: list[str], why: str) -> Iterator[Finding]:
    """Variables that are only counted."""
    count = len(names) - FINDINGS_KEPT
    if count > 0:
        title = f"{count:,} more variable{'s differ' if count > 1 else ' differs'}"
        yield finding(severity, title, why)

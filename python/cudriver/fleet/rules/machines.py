"""FL1: drivers and GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.fleet.comparison import FINDINGS_KEPT, Comparison, listed
from cudriver.fleet.result import Finding, finding
from cudriver.fleet.stacks import BUILT_FOR, CAPABILITIES, CUDA, DRIVER, FRAMEWORK, GPUS, Stack
from cudriver.stack.facts import ERROR, NOTE, WARNING, Framework
from cudriver.stack.fixes.pairs import runs
from cudriver.stack.rules.cu5 import with_ptx
from cudriver.stack.versions import cut, minor

NO_DRIVER = "none"
CAPABILITIES_COMPARED = 32  # with each build of a job; there are half as many so far
WITHOUT_CODE = "it fails there: no kernel image is available for execution on the device"
PLATFORMS = ("x86_64", "aarch64")  # a report does not tell which


def release(stack: Stack) -> str | None:
    """The driver's release; None where there is no driver."""
    told = stack.first(DRIVER)
    return None if told == NO_DRIVER else told


def fl101(facts: Comparison) -> Iterator[Finding]:
    """Drivers of several branches."""
    split = facts.split(lambda stack: cut(release(stack), 1))
    if split is not None:
        branches = listed([f"R{share.value}" for share in split.shares])
        title = f"drivers of {len(split.shares)} branches: {branches}"
        why = "a branch decides which CUDA runs: what the newer one runs the older may not"
        line = "Install one driver branch on all nodes, the one that most of them have."
        yield finding(WARNING, title, why, split.shares, line)


def fl102(facts: Comparison) -> Iterator[Finding]:
    """Drivers of one branch, at several patch levels."""
    split = facts.split(release)
    branches = [cut(share.value, 1) for share in split.shares] if split is not None else []
    if split is not None and len(branches) > len(set(branches)):
        why = "patch levels of a branch run the same CUDA; they differ in fixes"
        yield finding(NOTE, f"drivers at {len(branches)} patch levels", why, split.shares)


def fl103(facts: Comparison) -> Iterator[Finding]:
    """GPUs of several architectures, and a build that lacks code for one of them."""
    split = facts.split(_capabilities)
    if split is None:
        return
    bare: dict[tuple[str, str], tuple[set[str], set[Stack]]] = {}  # the jobs, and the stacks
    most = 0
    for job, stacks in facts.jobs.items():
        present = sorted({c for stack in stacks for c in _known(stack)})
        most = max(most, len(present))
        for stack in stacks if len(present) > 1 else ():
            for name, (archs, *_) in stack.of_kind(BUILT_FOR):
                for capability in present[:CAPABILITIES_COMPARED]:
                    if not covered(stack, name, archs, capability):
                        jobs, builds = bare.setdefault((name, capability), (set(), set()))
                        jobs.add(job)
                        builds.add(stack)
    found = sorted(bare.items())
    for (name, capability), (jobs, builds) in found[:FINDINGS_KEPT]:
        there = [stack for stack in facts.stacks if capability in _known(stack)]
        title = f"GPUs of compute capability {capability} among others, and a {name} without code "
        evidence = [
            facts.share(f"GPU of compute capability {capability}", there, jobs),
            facts.share(f"{name} without code for it", builds, jobs),
        ]
        line = f"Install a build of {name} for all of these GPUs, or keep the job on one kind."
        yield finding(ERROR, f"{title}for them", WITHOUT_CODE, evidence, line)
    if found[FINDINGS_KEPT:]:
        count = len(found) - FINDINGS_KEPT
        yield finding(ERROR, f"{count:,} more builds without code for GPUs", WITHOUT_CODE)
    elif most > CAPABILITIES_COMPARED:
        why = f"builds were compared with the first {CAPABILITIES_COMPARED} of them"
        yield finding(WARNING, f"GPUs of {most:,} compute capabilities in a job", why)


def _known(stack: Stack) -> list[str]:
    """The compute capabilities of its GPUs that are two numbers. Of others nothing is known."""
    return [each for each in (_capabilities(stack) or "").split() if minor(each)]


def _capabilities(stack: Stack) -> str | None:
    return stack.says(GPUS, "", CAPABILITIES) or None


def covered(stack: Stack, name: str, archs: str, capability: str) -> bool:
    """Whether a framework has code for a GPU, or PTX that its driver compiles."""
    build = Framework(
        name,
        stack.first(FRAMEWORK, name) or "",
        cuda=stack.says(FRAMEWORK, name, CUDA),
        archs=archs.split(),
    )
    return any(runs(capability, with_ptx(build, platform)) for platform in PLATFORMS)


def fl104(facts: Comparison) -> Iterator[Finding]:
    """Nodes with other GPUs, or another number of them."""
    split = facts.split(lambda stack: stack.first(GPUS))
    if split is None:
        return
    if len({_count(share.value) for share in split.shares}) > 1:
        why = "a GPU may have fallen off its bus, or be kept from this node's container"
        line = "On the nodes with fewer: look for Xid errors with `sudo dmesg | grep -i xid`."
        yield finding(WARNING, "nodes with different numbers of GPUs", why, split.shares, line)
    else:
        why = "the slowest GPU sets the pace of a job; results may differ in the last bits"
        yield finding(NOTE, "nodes with different GPUs", why, split.shares)


def _count(value: str) -> int:
    """The GPUs in "4 x NVIDIA H200; 2 x NVIDIA L4"."""
    numbers = (part.partition(" x ")[0] for part in value.split("; "))
    return sum(int(number) for number in numbers if number.isdigit() and len(number) < 9)


def fl105(facts: Comparison) -> Iterator[Finding]:
    """Nodes without a driver, among others that have one."""
    split = facts.split(lambda stack: "none" if release(stack) is None else "a driver")
    if split is not None:
        without = [share for share in split.shares if share.value == "none"]
        why = "nothing that needs a GPU runs there; a login node may be meant to have none"
        line = "Load or install the driver there, or leave these nodes out."
        title = "nodes without a driver, among others that have one"
        yield finding(WARNING, title, why, without, line)

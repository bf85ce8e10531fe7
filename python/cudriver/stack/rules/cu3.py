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
    Distribution,
    Evidence,
    Facts,
    FileFault,
    Finding,
    Framework,
    Library,
    LoadFault,
)
from cudriver.stack.names import describe, is_cuda_library, split
from cudriver.stack.rules import fix
from cudriver.stack.versions import cut, minor

DRIVER_LIBRARIES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libcuda.so",
    "libnvcuvid.so.1",
    "libnvidia-encode.so.1",
)
FAMILIES = ("cublas", "cufft", "cusolver", "npp")


def _said(library: Library) -> Evidence:
    version = library.version or "unknown version"
    return library.version_evidence or Evidence(library.path, None, version)


def _file(library: Library) -> Evidence:
    by = library.found_by if library.found_by.startswith("preload") else f"by {library.found_by}"
    return Evidence(library.path, None, f"{library.version or 'unknown version'}, {by}")


def pinned(facts: Facts, family: str, soname: str = "") -> tuple[Distribution, str] | None:
    """The installed wheel of a library family, and the version that a framework pins of it. With a
    SONAME only a wheel of its CUDA major.
    """
    for dist in facts.distributions:
        for requirement in dist.requires:
            stem = re.sub(r"-cu\d+\Z", "", requirement.name)
            match = re.match(r"==\s*([0-9][0-9.]*?)(?:\.\*)?\Z", requirement.specifier)
            fits = _wheel_of(family) == stem and _same_major(requirement.name, soname)
            if match and not requirement.extra and fits:
                installed = facts.distribution(requirement.name)
                if installed:
                    return installed, match[1]
    return None


def _wheel_of(family: str) -> str | None:
    from cudriver.stack.tables import table

    for row in table("libraries")["libraries"].values():
        if row["family"] == family:
            wheel: str = row["wheel"]
            return wheel
    return None


def back_to_pin(facts: Facts, soname: str, path: str | None = None) -> list[str]:
    """The command that puts a library's pinned wheel in place, or the owner of a file."""
    env = facts.environment
    family = describe(split(soname)[0]).get("family", "")
    found = pinned(facts, family, soname)
    if found:
        dist, version = found
        tool = fix.installer(env, dist)
        return [fix.install(env, f"{dist.name}=={version}", by=tool, again=True, alone=True)]
    owner = owner_of(facts, path) if path else None
    if owner:
        return [fix.reinstall(facts, owner)]
    wheel = _wheel_of(family)
    for candidate in facts.distributions:
        same = wheel and re.fullmatch(rf"{wheel}(-cu\d+)?", candidate.name)
        if same and _same_major(candidate.name, soname):
            return [fix.reinstall(facts, candidate)]
    if env.kind == "conda":
        conda = describe(split(soname)[0]).get("conda")
        return [fix.install(env, conda)] if conda else []
    return []


def owner_of(facts: Facts, path: str) -> Distribution | None:
    """The distribution that provides a library in use."""
    for library in facts.libraries:
        if path in (library.path, library.real_path) and library.provided_by:
            return facts.distribution(library.provided_by.split(" ")[0])
    for framework in facts.frameworks:
        if framework.distribution and framework.path and path.startswith(framework.path + "/"):
            return facts.distribution(framework.distribution)
    return None


def leak(facts: Facts, library: Library) -> list[str]:
    """What stops a library from coming in from outside."""
    return leak_of(facts, library.path, library.real_path)


def leak_of(facts: Facts, *paths: str) -> list[str]:
    """What takes a file out of the variable that brings it in; [] where none does."""
    variables = facts.environment.variables
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH"):
        value = variables.get(name, "")
        entries = [p for p in value.replace(" ", ":").split(":") if p]
        hits = []
        for entry in entries:
            plain = os.path.normpath(entry)
            beside = plain in paths or plain in (os.path.dirname(path) for path in paths)
            below = any(path.startswith(f"{plain}/") for path in paths)
            if beside or (name == "PYTHONPATH" and below):
                hits.append(entry.rstrip("/"))
        if hits:
            return [fix.without(name, value, hits)]
    return []


def caused_by(fault: LoadFault, file: FileFault) -> bool:
    """Whether what the loader says follows from what is wrong with a file."""
    if file.what == "missing":
        return fault.kind == "not found" and fault.name == os.path.basename(file.file)
    return fault.kind in ("symbol", "version", "abort") and file.file in (
        fault.library,
        os.path.normpath(fault.provider or ""),
    )


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
        mend: list[str] = []
        if library:
            evidence = [_file(library), *evidence]
            mend = (leak(facts, library) if library.origin == "system" else []) or back_to_pin(
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
            mend,
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
        harmless = own.version is not None and f"{library.version}.".startswith(f"{own.version}.")
        users = [f for f in facts.frameworks if library.path in f.loads]
        variable = library.found_by.startswith("LD_")
        if users and not variable and not any(f.modelled for f in users):
            harmless = True  # they may load their own before
        gone = own.rule == GONE
        instead = f"instead of its own {own.version or 'copy'}" + (
            ", which is gone" if gone else ""
        )
        yield Finding(
            "CU302",
            NOTE if harmless and not gone else WARNING,
            f"{library.soname} comes from outside the environment: "
            f"{library.version or 'an unknown version'} {instead}",
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
        if (fault.library, fault.name) in seen or _told_by_record(facts, fault):
            continue
        if fault.lazy and re.match(r"cu[A-Z]", fault.name):
            continue  # the driver's: older ones lack what newer libraries call where it is there
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
            [fault.rescue] if fault.rescue else _symbol_mend(facts, fault, provider),
            fault.framework or fault.library,
            provider.path if provider else None,
        )


def _told_by_record(facts: Facts, fault: LoadFault) -> bool:
    """Whether a file that is not as its package brought it is the cause: CU404 speaks of it."""
    return any(caused_by(fault, file) for file in facts.file_faults if file.what != "shared")


def proof(facts: Facts, fault: LoadFault) -> list[Evidence]:
    """What the fault puts an end to, for whom, and which imports end with it."""
    framework = facts.framework(fault.framework) if fault.framework else None
    if framework is None or not framework.modelled:
        return []
    name = framework.module or framework.name
    ends = {IMPORT: f"import {name} ends here", USE: f"{name} cannot use CUDA without it"}
    where = framework.path or name
    found = [Evidence(where, None, ends[fault.means])] if fault.means in ends else []
    if fault.means == IMPORT:
        blocked = [f for f in facts.frameworks if f.blocked == framework.name]
        found += [
            Evidence(f.path or f.name, None, f"import {f.module} ends with it") for f in blocked
        ]
    return found


def _symbol_mend(facts: Facts, fault: LoadFault, provider: Library | None) -> list[str]:
    """Stop the leak, or go back to the pinned provider, or build the extension for this PyTorch."""
    stranger = leak_of(facts, os.path.normpath(fault.provider)) if fault.provider else []
    if stranger:
        return stranger
    if provider is not None:
        # Python's own path may lead out of the environment, the loader's to a system's library.
        mend = (
            leak_of(facts, provider.path, provider.real_path)
            or _newer(facts, fault, provider)
            or back_to_pin(facts, provider.soname, provider.path)
        )
        if mend:
            return mend
    owner = owner_of(facts, fault.library)
    if provider is None and re.match(r"_ZN?K?(?:S[a-z])?\d*.*(?:c10|at|torch|caffe2)", fault.name):
        framework = facts.framework(fault.framework) if fault.framework else None
        name = fault.framework if fault.framework not in (None, "torch") else None
        dist = facts.distribution((framework.distribution if framework else name) or "")
        dist = dist if name else owner
        if dist and dist.name in fix.KIN:
            return [fix.kin(facts, dist.name)]
        if dist:
            # A wheel built for another PyTorch: only one built for this one helps.
            tool = fix.installer(facts.environment, dist)
            name = fix.name_of(dist, tool)
            command = fix.install(facts.environment, name, by=tool, again=True, alone=True)
            return (
                [f"{command} --no-cache-dir --no-build-isolation --no-binary {dist.name}"]
                if tool == "pip"
                else [command]
            )
    cuda = [n for n in (fault.provider or "", fault.name) if is_cuda_library(os.path.basename(n))]
    if cuda:
        mend = back_to_pin(facts, os.path.basename(cuda[0]))
        if mend:
            return mend
    guess = _family_of_symbol(fault.name)
    if guess:
        mend = back_to_pin(facts, guess)
        if mend:
            return mend
    return [fix.reinstall(facts, owner)] if owner else []


def _major_for(facts: Facts, framework: Framework) -> str:
    """The CUDA major to install for: the framework's, that of NVIDIA's Python bindings here, the
    driver's, else the newest.
    """
    bindings = facts.distribution("cuda-bindings")
    for version in (framework.cuda, bindings.version if bindings else None, facts.driver.cuda):
        if version and (cut(version, 1) or "") in ("11", "12", "13"):
            return cut(version, 1) or ""
    return "13"


def _newer(facts: Facts, fault: LoadFault, provider: Library) -> list[str]:
    """The provider's wheel in a version for the CUDA that asks. Where nothing pins it, the one that
    is there is what was installed, and to install it again is in vain.
    """
    name = (provider.provided_by or "").split(" ")[0]
    dist = facts.distribution(name)
    if dist is None or dist.kind == "conda" or pinned(facts, provider.family):
        return []
    tool = fix.installer(facts.environment, dist)
    asking = next((x for x in facts.libraries if fault.library in (x.path, x.real_path)), None)
    release = cut(asking.cuda, 2) if asking is not None else None
    if provider.family in ("nvjitlink", "nvrtc", "cudart") and release and "." in release:
        return [fix.install(facts.environment, f"{name}>={release}", by=tool, alone=True)]
    return [fix.install(facts.environment, name, by=tool, upgrade=True, alone=True)]


def _family_of_symbol(symbol: str) -> str | None:
    """The library that a function's name belongs to, by its prefix."""
    prefixes = (
        ("__nvJitLink", "libnvJitLink.so"),
        ("nvJitLink", "libnvJitLink.so"),
        ("nccl", "libnccl.so"),
        ("cublasLt", "libcublasLt.so"),
        ("cublas", "libcublas.so"),
        ("cudnn", "libcudnn.so"),
        ("cusparseLt", "libcusparseLt.so"),
        ("cusparse", "libcusparse.so"),
        ("cusolver", "libcusolver.so"),
        ("cufft", "libcufft.so"),
        ("curand", "libcurand.so"),
        ("nvrtc", "libnvrtc.so"),
        ("nvshmem", "libnvshmem_host.so"),
        ("cupti", "libcupti.so"),
        ("cuda", "libcudart.so"),
    )
    return next((library for prefix, library in prefixes if symbol.startswith(prefix)), None)


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
        mend = leak(facts, outside) if outside else back_to_pin(facts, main.soname)
        shown = fatal or strange[0]
        eight = main.soname.endswith(".so.8")  # whose parts nobody has tried
        yield Finding(
            "CU304",
            ERROR if fatal else WARNING if eight else NOTE,
            f"cuDNN is of two versions: {main.soname} {main.version}, {shown.soname} "
            f"{shown.version}",
            [_file(x) for x in parts],
            _ends_in(shown),
            mend,
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


def other_major(facts: Facts, fault: LoadFault) -> bool:
    """A missing library of another CUDA major than that of the PyTorch which its package is used
    with: CU403 speaks of it.
    """
    torch = facts.framework("torch")
    framework = facts.framework(fault.framework) if fault.framework else None
    wanted = _cuda_major(fault.name)
    built = cut(torch.cuda, 1) if torch and torch.cuda else None
    if framework is None or "torch" not in framework.after:
        return False
    return wanted is not None and built is not None and wanted != built


def _cuda_major(soname: str) -> str | None:
    """ "12" for libcudart.so.12; None where the SONAME does not tell."""
    match = re.match(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink|cupti)\.so\.(\d+)", soname)
    return match[1] if match else None


def cu305(facts: Facts) -> Iterator[Finding]:
    """A needed library that is nowhere; those of one package with one mend are one finding."""
    seen = set()
    groups: dict[tuple[object, ...], list[LoadFault]] = {}
    mends: dict[str, list[str]] = {}
    for fault in _missing(facts):
        name = fault.name
        if (fault.framework, name) in seen or re.match(r"libcudnn_|libnvrtc-builtins", name):
            continue  # the latter are opened by SONAME: CU304 and CU306
        if fault.means not in (IMPORT, USE) and not is_cuda_library(name):
            continue
        if other_major(facts, fault) or _told_by_record(facts, fault):
            continue
        seen.add((fault.framework, name))
        mends[name] = _library_mend(facts, fault)
        same = [line.replace(name, "\0") for line in mends[name]] or [name]
        groups.setdefault((fault.framework, fault.severity, *same), []).append(fault)
    for faults in groups.values():
        yield _nowhere(facts, faults, mends[faults[0].name])


def _nowhere(facts: Facts, faults: list[LoadFault], mend: list[str]) -> Finding:
    first, names = faults[0], [fault.name for fault in faults]
    if first.means == SPARE:
        title = f"{first.framework} finds none of its CUDA libraries and runs on the CPU"
    elif first.rescue is not None:
        title = f"{first.framework} does not find {', '.join(names)} by itself"
    elif len(faults) > 1:
        title = f"{len(faults)} libraries that {first.framework} needs are nowhere: "
        title += ", ".join(names)
    else:
        framework = facts.framework(first.framework) if first.framework else None
        itself = framework is not None and first.library == framework.path
        who = first.framework if itself else os.path.basename(first.library)
        title = f"{first.name}, which {who} needs, is nowhere"
    return Finding(
        "CU305",
        first.severity,
        title,
        [Evidence(fault.library, None, f"needs {fault.name}") for fault in faults]
        + _searched(facts, names)
        + proof(facts, first),
        first.text,
        [line.replace(first.name, ", ".join(names)) for line in mend],
        first.framework or first.library,
    )


def _library_mend(facts: Facts, fault: LoadFault) -> list[str]:
    """What a program can do before, the extra that brings the libraries, the pinned wheel."""
    if fault.rescue is not None:
        return [fault.rescue]
    framework = facts.framework(fault.framework) if fault.framework else None
    if framework and framework.extra and not _brought(facts, fault.name):
        mend = _with_extra(facts, framework)
        if mend:
            return [mend]
    return back_to_pin(facts, fault.name) or _owner_mend(facts, fault)


def _brought(facts: Facts, soname: str) -> bool:
    """Whether a wheel of that library's is there, so that its files are not."""
    wheel = describe(split(soname)[0]).get("wheel")
    return any(
        re.sub(r"-cu\d+\Z", "", dist.name) == wheel and _same_major(dist.name, soname)
        for dist in facts.distributions
    )


def _same_major(wheel: str, soname: str) -> bool:
    """Whether a wheel may have the library: nvidia-cublas-cu12 has no libcublas.so.13."""
    wanted = _wheel_with(soname) if soname else None
    return wanted is None or wheel == wanted or not wheel.startswith("nvidia-")


def _with_extra(facts: Facts, framework: Framework) -> str | None:
    """The command that installs a framework with the extra that brings its CUDA libraries."""
    name = "jax" if framework.name == "jax" else framework.distribution
    dist = facts.distribution(name) if name else None
    if dist is None or fix.installer(facts.environment, dist) in fix.CONDA:
        return None
    extra = framework.extra.replace("{major}", _major_for(facts, framework))
    wanted = f"{dist.name}[{extra}]=={dist.version}"
    return fix.install(facts.environment, wanted, by=fix.installer(facts.environment, dist))


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


def _owner_mend(facts: Facts, fault: LoadFault) -> list[str]:
    owner = owner_of(facts, fault.library)
    if owner is None and fault.framework:
        framework = facts.framework(fault.framework)
        name = framework.distribution if framework else None
        owner = facts.distribution(name or fault.framework)
    if owner is None:
        return []
    tool = fix.installer(facts.environment, owner)
    if tool not in fix.CONDA and not _requires(owner, fault.name):
        extra = _requires(owner, fault.name, extras=True)
        if extra:
            wanted = f"{owner.name}[{extra}]=={owner.version}"
            return [fix.install(facts.environment, wanted, by=tool)]
        wheel = _wheel_with(fault.name)
        if wheel and _looks_into_wheels(facts, fault):
            return [fix.install(facts.environment, wheel, by=tool)]
        if describe(split(fault.name)[0]):  # its package brings no such library: again is in vain
            return [
                f"{owner.name} leaves {fault.name} to the system: install what is missing from "
                "NVIDIA's repository, or import a framework that brings it before."
            ]
    index = None
    local = re.search(r"\+(cu\d+)\Z", owner.version)
    if local and owner.name.startswith("torch"):
        index = f"{fix.INDEX}/{local[1]}"
    wanted = f"{fix.name_of(owner, tool)}=={owner.version}"
    return [fix.install(facts.environment, wanted, by=tool, index=index, again=True)]


def _wheel_with(soname: str) -> str | None:
    """NVIDIA's wheel of a library: nvidia-cublas-cu12 for libcublas.so.12, nvidia-cublas for .13.
    None where the SONAME does not tell the CUDA major.
    """
    row = describe(split(soname)[0])
    majors = [m for m, name in (row.get("sonames") or {}).items() if name == soname]
    if len(majors) != 1 or "wheel" not in row:
        return None
    stem: str = row["wheel"]
    return stem if int(majors[0]) >= 13 else f"{stem}-cu{majors[0]}"


def _requires(owner: Distribution, soname: str, extras: bool = False) -> str | None:
    """The requirement by which a package gets a library's wheel, directly or by cuda-toolkit[...];
    with extras the name of the extra that it counts in: "ctk" of cupy-cuda13x.
    """
    row = describe(split(soname)[0])
    part = row.get("component") or row.get("family")
    for requirement in owner.requires:
        stem = re.sub(r"-cu\d+\Z", "", requirement.name)
        through = requirement.name == "cuda-toolkit" and part in requirement.extras
        if bool(requirement.extra) is extras and (stem == row.get("wheel") or through):
            return requirement.extra or requirement.name
    return None


def _looks_into_wheels(facts: Facts, fault: LoadFault) -> bool:
    """Whether what needs a library looks for it among NVIDIA's wheels."""
    if any(f.name == fault.framework and f.finds_wheels for f in facts.frameworks):
        return True
    failed = (r for r in facts.resolutions if r.soname == fault.name and r.path is None)
    return any("/nvidia/" in folder for r in failed for folder in r.searched)


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

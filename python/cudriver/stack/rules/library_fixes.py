"""What fixes a library: its pinned wheel, an extra, or less in a variable that lets one in."""

from __future__ import annotations

import os
import re

from cudriver.stack.model import Distribution, Facts, Framework, Library, LoadFault
from cudriver.stack.names import describe, is_cuda_library, split
from cudriver.stack.rules import fix
from cudriver.stack.tables import driver_floor, table
from cudriver.stack.versions import cut, minor

DRIVER_CALL = r"cu(?!File)[A-Z]"  # a function of libcuda; cuFile's are like it


def pinned(facts: Facts, family: str, soname: str = "") -> tuple[Distribution, str] | None:
    """The installed wheel of a library family, and the version that a framework pins of it. With a
    SONAME only a wheel of its CUDA major.
    """
    wheel = _wheel_of(family)
    for dist in facts.distributions:
        for requirement in dist.requires:
            stem = re.sub(r"-cu\d+\Z", "", requirement.name)
            if requirement.extra or stem != wheel or not _same_major(requirement.name, soname):
                continue
            match = re.match(r"==\s*([0-9][0-9.]*?)(?:\.\*)?\Z", requirement.specifier)
            if match:
                installed = facts.distribution(requirement.name)
                if installed:
                    return installed, match[1]
    return None


def _wheel_of(family: str) -> str | None:
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


def symbol_fix(facts: Facts, fault: LoadFault, provider: Library | None) -> list[str]:
    """Stop the leak, restore the pinned provider, or build the extension for this PyTorch. If the
    driver is older than the framework's CUDA, only a newer driver has the function.
    """
    stranger = leak_of(facts, os.path.normpath(fault.provider)) if fault.provider else []
    if stranger:
        return stranger
    if re.match(DRIVER_CALL, fault.name):
        asking = facts.framework(fault.framework) if fault.framework else None
        version = cut(asking.cuda, 2) if asking else None
        asked, offered = minor(version), minor(facts.driver.cuda)
        if asked is None or offered is None or offered < asked:
            floor = fix.driver_branch(version) or driver_floor(version)
            return [fix.driver_package(facts.driver, floor)]
    if provider is not None:
        # Python's own path may lead out of the environment, the loader's to a system's library.
        fixes = (
            leak_of(facts, provider.path, provider.real_path)
            or _newer(facts, fault, provider)
            or back_to_pin(facts, provider.soname, provider.path)
        )
        if fixes:
            return fixes
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
        fixes = back_to_pin(facts, os.path.basename(cuda[0]))
        if fixes:
            return fixes
    guess = family_of_symbol(fault.name)
    if guess:
        leaks = (leak(facts, x) for x in facts.libraries if x.soname.startswith(guess))
        fixes = next(filter(None, leaks), []) or back_to_pin(facts, guess)
        if fixes:
            return fixes
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


def family_of_symbol(symbol: str) -> str | None:
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


def library_fix(facts: Facts, fault: LoadFault) -> list[str]:
    """What a program can do before, the extra that brings the libraries, the pinned wheel."""
    if fault.rescue is not None:
        return [fault.rescue]
    framework = facts.framework(fault.framework) if fault.framework else None
    if framework and framework.extra and not _brought(facts, fault.name):
        fixes = _with_extra(facts, framework)
        if fixes:
            return [fixes]
    return back_to_pin(facts, fault.name) or _owner_fix(facts, fault)


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


def _owner_fix(facts: Facts, fault: LoadFault) -> list[str]:
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
        if wheel and looks_into_wheels(facts, fault):
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


def wheel_brings(wheel: str, version: str, soname: str) -> bool:
    """Whether a wheel of NVIDIA's of that release has a library of that SONAME."""
    row = describe(split(soname)[0])
    stem = re.sub(r"-cu\d+\Z", "", wheel)
    cuda = wheel[len(stem) + 3 :]
    if stem not in (row.get("wheel"), row.get("conda")):
        return False
    listed = (row.get("sonames") or {}).get(cuda or "13")
    if listed is not None:
        return bool(listed == soname)
    return row["family"] != "cudnn" or split(soname)[1] == cut(version, 1)


def looks_into_wheels(facts: Facts, fault: LoadFault) -> bool:
    """Whether what needs a library looks for it among NVIDIA's wheels."""
    if any(f.name == fault.framework and f.finds_wheels for f in facts.frameworks):
        return True
    failed = (r for r in facts.resolutions if r.soname == fault.name and r.path is None)
    return any("/nvidia/" in folder for r in failed for folder in r.searched)

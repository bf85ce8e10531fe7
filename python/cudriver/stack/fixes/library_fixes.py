"""What fixes a library: its pinned wheel, an extra, or less in a variable that lets one in."""

from __future__ import annotations

import os
import re

from cudriver.stack.command import Command
from cudriver.stack.facts import Distribution, Facts, Framework, Library, LoadFault, Requirement
from cudriver.stack.fixes import fix
from cudriver.stack.names import (
    DRIVER_CALL,
    is_cuda_library,
    library_of,
    majors_of,
    row_of,
    split,
    unsuffixed,
)
from cudriver.stack.tables import driver_floor, table
from cudriver.stack.text import quote
from cudriver.stack.versions import cut, minor


def pinned(facts: Facts, soname: str) -> tuple[Distribution, str] | None:
    """The installed wheel of a library, and the version that a framework pins of it."""
    wheel = row_of(soname).get("wheel")
    for dist in facts.distributions:
        for requirement in dist.requires:
            name = requirement.name
            if requirement.extra or unsuffixed(name) != wheel or not _same_major(name, soname):
                continue
            match = re.match(r"==\s*([0-9][0-9.]*?)(?:\.\*)?\Z", requirement.specifier)
            installed = facts.distribution(name)
            if match and installed:
                return installed, match[1]
    return None


def back_to_pin(facts: Facts, soname: str, path: str | None = None) -> list[str]:
    """The command that puts a library's pinned wheel in place, or the owner of a file."""
    env, row, found = facts.environment, row_of(soname), pinned(facts, soname)
    if found:
        dist, version = found
        return [fix.install(env, f"{dist.name}=={version}", of=dist, again=True, alone=True)]
    wheel, owner = row.get("wheel"), owner_of(facts, path)
    same = (d for d in facts.distributions if wheel and unsuffixed(d.name) == wheel)
    owner = owner or next((d for d in same if _same_major(d.name, soname)), None)
    if owner:
        return [fix.reinstall(facts, owner)]
    conda = row.get("conda") if env.kind == "conda" else None
    return [fix.install(env, conda)] if conda else []


def owner_of(facts: Facts, path: str | None) -> Distribution | None:
    """The distribution that provides a library in use."""
    if path is None:
        return None
    for library in facts.libraries:
        if path in (library.path, library.real_path) and library.provided_by:
            return facts.distribution(library.owner)
    for framework in facts.frameworks:
        if framework.distribution and framework.path and path.startswith(framework.path + "/"):
            return facts.distribution(framework.distribution)
    return None


def leak(facts: Facts, library: Library) -> list[str]:
    """What stops a library from coming in from outside, from a folder further back as well."""
    own = facts.environment.prefix.rstrip("/") + "/"
    behind = [x.path for x in library.shadowed if not x.path.startswith(own)]
    return leak_of(facts, library.path, library.real_path, *behind)


def leak_of(facts: Facts, *paths: str) -> list[str]:
    """What takes a file out of the variable that brings it in; [] where none does, or where the
    folder has packages that are nowhere else: somebody put them there to be used.
    """
    env, variables = facts.environment, facts.environment.variables
    meant = {dist.location for dist in facts.distributions if not dist.hides}
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH"):
        value = variables.get(name, "")
        hits = []
        for entry in fix.entries(name, value):
            plain = os.path.normpath(entry)
            beside = plain in paths or plain in (os.path.dirname(path) for path in paths)
            # A file of the environment, or of a nearer folder of its path, does not need this one.
            nearer = tuple(f"{folder}/" for folder in env.inside(plain))
            below = name == "PYTHONPATH" and any(
                path.startswith(f"{plain}/") and not path.startswith(nearer) for path in paths
            )
            if (beside or below) and (name != "PYTHONPATH" or plain not in meant):
                hits.append(entry.rstrip("/"))
        if hits:
            return [fix.without(name, value, hits)]
    return []


def symbol_fix(facts: Facts, fault: LoadFault, provider: Library | None) -> list[str]:
    """Stop the leak, get another driver, restore the pinned provider, build the extension for this
    PyTorch, restore the library that the name tells, or whoever asks.
    """
    owner = owner_of(facts, fault.library)
    if fault.name.startswith("GLIBC_"):
        who = owner.name if owner else fault.framework or fault.library
        return [
            f"the system's C library is older than {fault.name}: use an older release of {who}, "
            "one that is built here from its source, or a newer Linux."
        ]
    return (
        (leak_of(facts, os.path.normpath(fault.provider)) if fault.provider else [])
        or _other_driver(facts, fault)
        # Python's own path may lead out of the environment, the loader's to a system's library.
        or (leak(facts, provider) if provider else _for_torch(facts, fault))
        or (_newer(facts, fault, provider) if provider else [])
        or (back_to_pin(facts, provider.soname, provider.path) if provider else [])
        or _by_name(facts, fault)
        or ([fix.reinstall(facts, owner)] if owner else [])
    )


def _other_driver(facts: Facts, fault: LoadFault) -> list[str]:
    """A newer driver, for a function that only that has."""
    if not re.match(DRIVER_CALL, fault.name):
        return []
    asking = facts.framework(fault.framework)
    version = cut(asking.cuda, 2) if asking else None
    asked, offered = minor(version), minor(facts.driver.cuda)
    if asked and offered and offered >= asked:
        return []
    floor = fix.driver_branch(version) or driver_floor(version)
    return [fix.driver_package(facts, floor)]


def _for_torch(facts: Facts, fault: LoadFault) -> list[str]:
    """A build for this PyTorch, where a function of PyTorch's is missing."""
    if not re.match(r"_ZN?K?(?:S[a-z])?\d*.*(?:c10|at|torch|caffe2)", fault.name):
        return []
    own = fault.framework in (None, "torch")
    dist = owner_of(facts, fault.library) if own else _asking(facts, fault)
    if dist is None:
        return []
    if dist.name in fix.KIN:
        return [fix.kin(facts, dist.name)]
    tool = fix.installer(facts.environment, dist)
    name = fix.name_of(dist, tool)
    command = fix.install(facts.environment, name, of=dist, again=True, alone=True)
    built = f" --no-cache-dir --no-build-isolation --no-binary {quote(dist.name)}"
    return [Command(command + built) if tool == "pip" else command]


def _by_name(facts: Facts, fault: LoadFault) -> list[str]:
    """The library that should have the function, by the name of either."""
    names = map(os.path.basename, (fault.provider or "", fault.name))
    fixes = back_to_pin(facts, next(filter(is_cuda_library, names), ""))
    guess = library_of(fault.name)
    if fixes or not guess:
        return fixes
    leaks = (leak(facts, x) for x in facts.libraries if x.soname.startswith(guess))
    return next(filter(None, leaks), []) or back_to_pin(facts, guess)


def _newer(facts: Facts, fault: LoadFault, provider: Library) -> list[str]:
    """The provider's wheel in a version for the CUDA that asks. Where nothing pins it, the one that
    is there is what was installed, and to install it again is in vain.
    """
    dist, env = facts.distribution(provider.owner), facts.environment
    if dist is None or dist.kind == "conda" or pinned(facts, provider.soname):
        return []
    asking = next((x for x in facts.libraries if fault.library in (x.path, x.real_path)), None)
    release = cut(asking.cuda, 2) if asking is not None else None
    if provider.family in ("nvjitlink", "nvrtc", "cudart") and release and "." in release:
        return [fix.install(env, f"{dist.name}>={release}", of=dist, alone=True)]
    return [fix.install(env, dist.name, of=dist, upgrade=True, alone=True)]


def library_fix(facts: Facts, fault: LoadFault) -> list[str]:
    """What a program can do before, the extra that brings the libraries, the pinned wheel."""
    if fault.rescue is not None:
        return [fault.rescue]
    if apart := elsewhere(facts, fault):
        wanted, of = f"{apart.name}=={apart.version}", _beside(facts, fault, _asking(facts, fault))
        return [fix.install(facts.environment, wanted, of=of, again=True, alone=True)]
    framework, wheel = facts.framework(fault.framework), row_of(fault.name).get("wheel")
    same = (d.name for d in facts.distributions if unsuffixed(d.name) == wheel)
    if framework and framework.extra and not any(_same_major(n, fault.name) for n in same):
        fixes = _with_extra(facts, framework, fault)
        if fixes:
            return [fixes]
    return back_to_pin(facts, fault.name) or _owner_fix(facts, fault)


def elsewhere(facts: Facts, fault: LoadFault) -> Distribution | None:
    """The wheel that has a library, in a folder that is not searched for the fault's file."""
    owner, env = _asking(facts, fault), facts.environment
    wheels = (d for d in facts.distributions if wheel_brings(d.name, d.version, fault.name))
    same = (d for d in wheels if owner and d.kind == owner.kind)
    apart = (d for d in same if owner and (d.location != owner.location or fix.outside(env, d)))
    return next(apart, None)


def _beside(facts: Facts, fault: LoadFault, owner: Distribution | None) -> Distribution | None:
    """The package whose folder gets what it lacks; None: the environment's own, as cuda-pathfinder
    does not look into PYTHONPATH.
    """
    places = (f for x in facts.missing if x.soname == fault.name for f in x.searched)
    if owner is None or any(folder.startswith(f"{owner.location}/") for folder in places):
        return owner
    framework = facts.framework(fault.framework)
    finds = framework is not None and framework.finds_wheels
    return None if finds and fix.outside(facts.environment, owner) else owner


def _asking(facts: Facts, fault: LoadFault) -> Distribution | None:
    framework = facts.framework(fault.framework)
    return facts.distribution(framework.distribution if framework else fault.framework)


def _same_major(wheel: str, soname: str) -> bool:
    """Whether a wheel may have the library: nvidia-cublas-cu12 has no libcublas.so.13."""
    wanted = _wheel_with(soname) if soname else None
    return wanted is None or wheel == wanted or not wheel.startswith("nvidia-")


def _with_extra(facts: Facts, framework: Framework, fault: LoadFault) -> str | None:
    """The command that installs a framework with the extra that brings its CUDA libraries."""
    dist = facts.distribution("jax" if framework.name == "jax" else framework.distribution)
    if dist is None or fix.installer(facts.environment, dist) in fix.CONDA:
        return None
    # For the framework's CUDA, that of NVIDIA's Python bindings, the driver's, else the newest.
    bindings = facts.distribution("cuda-bindings")
    versions = (framework.cuda, bindings.version if bindings else None, facts.driver.cuda)
    majors = (m for m in (cut(version, 1) for version in versions) if m in ("11", "12", "13"))
    extra = framework.extra.replace("{major}", next(majors, "13"))
    of = _beside(facts, fault, dist)
    return fix.install(facts.environment, f"{dist.name}[{extra}]=={dist.version}", of=of)


def _owner_fix(facts: Facts, fault: LoadFault) -> list[str]:
    env, owner = facts.environment, owner_of(facts, fault.library) or _asking(facts, fault)
    owner = owner or facts.distribution(fault.framework)
    if owner is None:
        return []
    if fix.installer(env, owner) not in fix.CONDA and not _requires(owner, fault.name):
        extra, wheel = _requires(owner, fault.name, extras=True), _wheel_with(fault.name)
        if extra:
            of = _beside(facts, fault, owner)
            return [fix.install(env, f"{owner.name}[{extra}]=={owner.version}", of=of)]
        if wheel and looks_into_wheels(facts, fault):
            return [fix.install(env, wheel, of=_beside(facts, fault, owner))]
        if row_of(fault.name):  # its package brings no such library: again is in vain
            return [
                f"{owner.name} leaves such libraries to the system: install what is missing from "
                "NVIDIA's repository, or import a framework that brings it before."
            ]
    return [fix.reinstall(facts, owner, alone=False)]


def _wheel_with(soname: str) -> str | None:
    """NVIDIA's wheel of a library: nvidia-cublas-cu12 for libcublas.so.12, nvidia-cublas for .13.
    None where the SONAME does not tell the CUDA major.
    """
    stem, majors = row_of(soname).get("wheel"), majors_of(soname)
    if stem is None or len(majors) != 1:
        return None
    return str(stem) if int(majors[0]) >= 13 else f"{stem}-cu{majors[0]}"


def _requires(owner: Distribution, soname: str, extras: bool = False) -> str | None:
    """The requirement by which a package gets a library's wheel, directly or by cuda-toolkit[...];
    with extras the name of the extra that it counts in: "ctk" of cupy-cuda13x.
    """
    row = row_of(soname)
    part = row.get("component") or row.get("family")
    for requirement in owner.requires:
        stem = unsuffixed(requirement.name)
        through = requirement.name == "cuda-toolkit" and part in requirement.extras
        if bool(requirement.extra) is extras and (stem == row.get("wheel") or through):
            return requirement.extra or requirement.name
    return None


def toolkit_wheels(needed: Requirement) -> list[str]:
    """The wheels that cuda-toolkit[...] brings."""
    major = next((m for m in ("11", "12") if re.match(rf"[=~]=\s*{m}\b", needed.specifier)), None)
    rows = table("libraries")["libraries"].values()
    by = ((r, {r.get("component"), "all", *r.get("with", ())}) for r in rows if "wheel" in r)
    parts = (r for r, names in by if names & {*needed.extras})
    return list(dict.fromkeys(r["wheel"] + (f"-cu{major}" if major else "") for r in parts))


def wheel_brings(wheel: str, version: str, soname: str) -> bool:
    """Whether a wheel of NVIDIA's of that release has a library of that SONAME."""
    row = row_of(soname)
    stem = unsuffixed(wheel)
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
    missing = (x for x in facts.missing if x.soname == fault.name)
    return any("/nvidia/" in folder for x in missing for folder in x.searched)

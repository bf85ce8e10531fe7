"""CUDA toolkits: the system's, those inside the environment, and which one a build takes."""

from __future__ import annotations

import os
import re

from cudriver.stack.elf.parts import section
from cudriver.stack.facts import Distribution, Environment, Evidence
from cudriver.stack.machine.compilers import host_limits, search_path, which
from cudriver.stack.machine_facts import NvccChoice, Toolkit
from cudriver.stack.names import split
from cudriver.stack.record import put
from cudriver.stack.roots.asked import Asked
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.tables import table, toolkit_of
from cudriver.stack.versions import cut, from_code, major, numbers

DEFAULT_HOME = "/usr/local/cuda"
STATED_LIMIT = 1 << 20  # bytes of a file that states a version
NVCC_LIMIT = 128 << 20
_NVCC_SAYS = rb"Cuda compilation tools, release (\d+\.\d+), V(\d+\.\d+\.\d+)"
_JSON = r'"%s"\s*:\s*\{[^{}]*"version"\s*:\s*"(\d+\.\d+[^"]*)"'
_MACRO = r"^[ \t]*#[ \t]*define[ \t]+%s[ \t]+(\d{4,6})\b"
# What states a toolkit's version, and the expression for it.
_STATED = (
    ("{path}/version.json", _JSON % "cuda"),
    ("{path}/version.txt", r"CUDA Version (\d+(?:\.\d+)+)"),
    ("{headers}/cuda.h", _MACRO % "CUDA_VERSION"),
    ("{headers}/cuda_runtime_api.h", _MACRO % "CUDART_VERSION"),
)
_TARGETS = ("x86_64-linux", "sbsa-linux", "aarch64-linux")


def system(asked: Asked) -> list[Toolkit]:
    """Toolkits outside any environment. One that is reached by several names is listed once."""
    root, found = asked.root, dict[str, Toolkit]()
    for path, why in _candidates(asked):
        if not root.is_dir(path):
            continue
        try:
            true = root.resolve(path)
        except (OSError, ValueError):
            continue
        # A CUDA_HOME that is a conda environment or lies in site-packages is that environment's.
        inside = root.is_dir(f"{true}/conda-meta") or "/site-packages/" in true
        if inside or true in ("/", "/usr", "/usr/local"):
            continue
        if true not in found:
            toolkit = directory(root, true)
            if toolkit is None:
                continue
            found[true] = toolkit
        if why:
            found[true].chosen_by.append(why)
    return list(found.values())


def _candidates(asked: Asked) -> list[tuple[str, str]]:
    root, variables = asked.root, asked.variables
    every: list[tuple[str, str]] = []
    for name in ("CUDA_HOME", "CUDA_PATH"):
        value = variables.get(name, "")
        if value.startswith("/"):
            every.append((os.path.normpath(value), name))
    nvcc = which(root, "nvcc", search_path(variables, None))
    if nvcc:
        every.append((home_of(root, nvcc), "PATH"))
    every.append((DEFAULT_HOME, DEFAULT_HOME))
    for pattern in table("toolkits")["places"]:
        every += [(path, "") for path in root.glob("", pattern, folders=True)]
    return every


def home_of(root: Root, nvcc: str) -> str:
    """The toolkit that an nvcc belongs to: links followed, and a wrapper script's exec."""
    true = root.resolve(nvcc)
    head = root.raw(true, 4096)
    if head.startswith(b"#!"):
        match = re.search(rb"^\s*exec\s+[\"']?(/[^\s\"']+/nvcc)\b", head, re.MULTILINE)
        if match:
            true = root.resolve(match[1].decode("utf-8", "replace"))
    return os.path.dirname(os.path.dirname(true))


def directory(root: Root, path: str) -> Toolkit | None:
    """The toolkit in a folder, or None where there is nothing of one."""
    folders = (
        f"{path}/{name}" for name in ("lib64", "lib", *(f"targets/{t}/lib" for t in _TARGETS))
    )
    files = [f"{folder}/{n}" for folder in folders for n in root.names(folder) if ".so" in n]
    libraries = [f for f in files if os.path.basename(f).startswith(("libcu", "libnv"))]
    headers, nvcc = _headers(root, path), f"{path}/bin/nvcc"
    nvcc = nvcc if root.is_file(nvcc) else ""
    telling = _STATED if headers else _STATED[:2]
    known = (_states(root, f.format(path=path, headers=headers), says) for f, says in telling)
    stated = next(filter(None, known), None) or _of_cudart(libraries)
    compiler = _states(root, f"{path}/version.json", _JSON % "cuda_nvcc", quiet=True)
    release = compiler.value if compiler else None
    if nvcc and release is None:
        release, compiler = nvcc_release(root, nvcc)
        stated = stated or compiler
    named = re.search(r"cuda-?(\d+\.\d+)\Z", path)
    if stated is None and named and (libraries or nvcc or headers):
        stated = Evidence(path, None, named[1])
    if not (nvcc or headers or stated):
        return None
    version = stated.value if stated else None
    toolkit = Toolkit("system", "directory", version, path, stated, nvcc or None, release, headers)
    host_limits(root, toolkit)
    return toolkit


def _headers(root: Root, path: str) -> str | None:
    names = ("include", *(f"targets/{t}/include" for t in _TARGETS))
    folders = (f"{path}/{name}" for name in names)
    return next((folder for folder in folders if root.is_file(f"{folder}/cuda.h")), None)


def _states(root: Root, file: str, pattern: str, quiet: bool = False) -> Evidence | None:
    """What a file says of a version, if it is there."""
    if not root.exists(file):
        return None
    text = root.text(file, STATED_LIMIT)
    match = re.search(pattern, text, re.MULTILINE) if text is not None else None
    if text is None or match is None:
        if not quiet:
            root.note(file, "cannot be read" if text is None else "states no version")
        return None
    version = match[1] if "." in match[1] else from_code(int(match[1]))
    return Evidence.found(file, text, match, version)


def _of_cudart(libraries: list[str]) -> Evidence | None:
    """The version in libcudart's file name."""
    for file in libraries:
        stem, number = split(os.path.basename(file))
        if stem == "libcudart" and len(numbers(number) or ()) == 3:
            return Evidence(file, None, cut(number, 2) or "")
    return None


def nvcc_release(root: Root, nvcc: str) -> tuple[str | None, Evidence | None]:
    """What `nvcc --version` would say, from the text inside the program."""
    wrapped = f"{home_of(root, nvcc)}/bin/nvcc"
    true = root.resolve(wrapped if root.is_file(wrapped) else nvcc)
    text = section(root, true, ".rodata", NVCC_LIMIT)
    at = text.find(b"Cuda compilation tools, release ")
    match = re.match(_NVCC_SAYS, text[at : at + 200]) if at >= 0 else None
    if match is None:
        return None, None
    return match[2].decode(), Evidence(true, None, match[1].decode())


def inside(root: Root, env: Environment, distributions: list[Distribution]) -> list[Toolkit]:
    """The toolkits that an environment's packages make up: one a CUDA major."""
    found = []
    by_name = {d.name: d for d in distributions}
    if env.kind == "conda":
        toolkit = _conda(env, by_name)
        if toolkit:
            found.append(_fill(root, toolkit, [env.prefix], by_name.get("cuda-nvcc")))
    for suffix in ("", "-cu13", "-cu12", "-cu11"):
        dist = by_name.get(f"nvidia-cuda-runtime{suffix}")
        if dist is None or dist.kind == "conda" or dist.version.startswith("0.0"):
            continue
        found.append(_wheels(root, dist, by_name, suffix))
    return found


def _fill(
    root: Root, toolkit: Toolkit, folders: list[str], compiler: Distribution | None
) -> Toolkit:
    """The nvcc and the headers that lie in these folders. compiler: the package of nvcc."""
    for folder in folders:
        if root.is_file(f"{folder}/bin/nvcc"):
            nvcc = f"{folder}/bin/nvcc"
            version = nvcc_release(root, nvcc)[0] or (compiler.version if compiler else None)
            put(toolkit, nvcc=nvcc, nvcc_version=version)
        put(toolkit, headers=toolkit.headers or _headers(root, folder))
    host_limits(root, toolkit)
    return toolkit


def _conda(env: Environment, by_name: dict[str, Distribution]) -> Toolkit | None:
    names = ("cuda-toolkit", "cudatoolkit", "cuda-cudart", "cuda-nvcc", "cuda-version")
    parts = [by_name[n] for n in names if n in by_name and by_name[n].kind == "conda"]
    if not parts or (len(parts) == 1 and parts[0].name == "cuda-version"):
        return None
    dist = parts[0]
    version: str | None = dist.version
    if dist.name in ("cuda-cudart", "cuda-nvcc"):
        version = toolkit_of(dist.name[5:], dist.version) or cut(dist.version, 2)
    return Toolkit("environment", "conda", version, env.prefix, dist.evidence)


def _wheels(
    root: Root, dist: Distribution, by_name: dict[str, Distribution], suffix: str
) -> Toolkit:
    meta = by_name.get("cuda-toolkit")
    if meta and meta.kind != "conda" and not suffix and major(meta.version) == major(dist.version):
        version: str | None = meta.version
        evidence = meta.evidence
    else:
        version = toolkit_of("cudart", dist.version) or cut(dist.version, 2)
        evidence = dist.evidence
    base = f"{dist.location}/nvidia"
    joined = f"{base}/cu{major(dist.version)}"
    path = joined if root.is_dir(joined) else base
    toolkit = Toolkit("environment", "wheels", version, path, evidence)
    folders = [joined, f"{base}/cuda_nvcc", f"{base}/cuda_runtime"]
    return _fill(root, toolkit, folders, by_name.get(f"nvidia-cuda-nvcc{suffix}"))


def choice(asked: Asked, env: Environment, toolkits: list[Toolkit]) -> NvccChoice:
    """CUDA_HOME as torch.utils.cpp_extension works it out."""
    root, variables = asked.root, asked.variables
    by = next(filter(variables.get, ("CUDA_HOME", "CUDA_PATH")), None)
    if by is not None:
        home = variables[by]
    elif nvcc := which(root, "nvcc", search_path(variables, env.prefix)):
        home, by = os.path.dirname(os.path.dirname(nvcc)), "PATH"
    elif root.exists(DEFAULT_HOME):
        home, by = DEFAULT_HOME, "default"
    else:
        return NvccChoice()
    nvcc = os.path.join(home, "bin", "nvcc")
    if not (nvcc.startswith("/") and root.is_file(nvcc)):
        return NvccChoice(home, by, nvcc)
    true = home_of(root, nvcc)
    known = (kit for kit in toolkits if kit.nvcc and kit.nvcc_version)
    kit = next((kit for kit in known if home_of(root, kit.nvcc or "") == true), None)
    if kit is None:
        version, evidence = nvcc_release(root, nvcc)
    else:
        version, evidence = kit.nvcc_version, Evidence(kit.nvcc or "", None, kit.nvcc_version or "")
    return NvccChoice(home, by, nvcc, True, version, evidence)

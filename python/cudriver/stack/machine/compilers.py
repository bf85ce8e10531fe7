"""Compilers: those on PATH, the one that nvcc would run, and the newest that a toolkit accepts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from cudriver.stack.facts import Environment, Evidence
from cudriver.stack.machine_facts import HostCompiler, Toolkit
from cudriver.stack.record import put
from cudriver.stack.roots.asked import Asked
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.versions import numbers

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HEADER_LIMIT = 256 << 10  # bytes of a toolkit's header
_VERSION = re.compile(r"\d+(\.\d+)*")


def search_path(variables: Mapping[str, str], prefix: str | None) -> list[str]:
    """PATH as it is with the environment activated: its bin first."""
    folders = [f for f in variables.get("PATH", DEFAULT_PATH).split(":") if f.startswith("/")]
    if prefix and f"{prefix}/bin" not in folders and prefix not in ("/", "/usr"):
        folders.insert(0, f"{prefix}/bin")
    return folders


def which(root: Root, name: str, folders: list[str]) -> str | None:
    """The first executable of this name."""
    for folder in folders:
        path = os.path.join(folder, name)
        try:
            status = root.stat(path)
        except (OSError, ValueError):
            continue
        if status.st_mode & 0o170000 == 0o100000 and status.st_mode & 0o111:
            return path
    return None


def host_compiler(asked: Asked, env: Environment) -> HostCompiler | None:
    """The compiler that nvcc would run: NVCC_CCBIN, else gcc on PATH."""
    root, variables = asked.root, asked.variables
    folders = search_path(variables, env.prefix)
    stated = variables.get("NVCC_CCBIN", "")
    if stated:
        path = stated if "/" in stated else which(root, stated, folders)
        if path and root.is_dir(path):
            path = which(root, "gcc", [path]) or which(root, "g++", [path])
        why = "NVCC_CCBIN"
    else:
        path, why = which(root, "gcc", folders), "PATH"
        wrapper = variables.get("CXX", "")
        if env.kind == "conda" and "conda" in os.path.basename(wrapper):
            path, why = (wrapper if "/" in wrapper else which(root, wrapper, folders)), "CXX"
        elif env.kind == "conda":
            own = root.glob(env.prefix, "bin/*-conda-linux-gnu-g++")
            if own:
                path, why = own[0], "conda"
    if not path or not root.exists(path):
        return None
    true = root.resolve(path)
    kind = "clang" if "clang" in os.path.basename(true) else "gcc"
    return HostCompiler(path, compiler_version(root, true), kind, why)


def compiler_version(root: Root, true: str) -> str | None:
    """From the program's name (gcc-12), else from its private folder (lib/gcc/TRIPLE/12)."""
    name = os.path.basename(true)
    _, dash, last = name.rpartition("-")
    if dash and numbers(last):
        return last
    llvm = re.search(r"/llvm-(\d+)/", true) if "/llvm-" in true else None
    if llvm:
        return llvm[1]
    triple = re.match(r"(.+?)-(?:gcc|g\+\+|cc|c\+\+)\Z", name)
    top = os.path.dirname(os.path.dirname(true))
    for folder in (f"{top}/lib/gcc", f"{top}/lib64/gcc", f"{top}/libexec/gcc"):
        for target in root.names(folder):
            if triple and target != triple[1]:
                continue
            versions = [*filter(_VERSION.fullmatch, root.names(f"{folder}/{target}"))]
            if len(versions) == 1:
                return versions[0]
    return None


def host_limits(root: Root, toolkit: Toolkit) -> None:
    """The newest host compilers that crt/host_config.h accepts."""
    if toolkit.headers is None:
        return
    file = f"{toolkit.headers}/crt/host_config.h"
    text = root.text(file, HEADER_LIMIT) if root.exists(file) else None
    if text is None:
        return
    gcc = re.search(r"^[ \t]*#[ \t]*if\s+__GNUC__\s*>\s*(\d+)", text, re.MULTILINE)
    if gcc:
        evidence = Evidence.found(file, text, gcc)
        put(toolkit, host_compiler_limit=int(gcc[1]), host_compiler_evidence=evidence)
    clang = re.search(r"__clang_major__\s*(>=?)\s*(\d+)\)", text)
    if clang:
        put(toolkit, clang_limit=int(clang[2]) - (clang[1] == ">="))

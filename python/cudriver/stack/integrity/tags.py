"""Wheels that are built for another Python, or for another machine, than those that are here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cudriver.stack.elf.parts import section
from cudriver.stack.facts import FOREIGN, Environment, Evidence, FileFault
from cudriver.stack.integrity.listed import Wheels
from cudriver.stack.loader.files import machine_at
from cudriver.stack.loader.glibc import PLATFORMS
from cudriver.stack.loader.search import Loader

# What pybind11 writes into a module, which asks for the Python that it was compiled with.
_ASKS = "Python version mismatch: module was compiled for Python "
_LIMIT = 64 << 20  # bytes of constants
_NATIVE = re.compile(r'^"?([^",\n]+\.(?:so|pyd)),', re.MULTILINE)


def foreign(loader: Loader, env: Environment, wheels: Wheels) -> Iterator[FileFault]:
    """Those whose tags do not fit, and of which a file proves it."""
    root = loader.root
    for dist, raw in wheels if env.python and env.libc and env.platform != "unknown" else ():
        native = b".so," in raw or b".pyd," in raw
        text = (root.text(f"{dist.path}/WHEEL", 1 << 16) or "") if native else ""
        tags = [*re.finditer(r"^Tag:[ \t]*(\S+)", text, re.MULTILINE)]
        if not tags or dist.installer == "conda" or any(takes(env, tag[1]) for tag in tags):
            continue
        built = re.match(r"cp3(\d+)-cp3\1t?-", tags[0][1])
        minor = int(built[1]) if built else env.minor
        names = _NATIVE.findall(os.fsdecode(raw))
        file, says = _proof(loader, env, dist.location, names), ""
        if file is None and minor != env.minor:
            mine = (f"{dist.location}/{name}" for name in names)
            asks = (f for f in mine if _ASKS.encode() in section(root, f, ".rodata", _LIMIT))
            file, says = next(asks, None), f"{_ASKS}3.{minor}"
        if file is not None:
            evidence = Evidence.found(f"{dist.path}/WHEEL", text, tags[0])
            yield FileFault(dist.name, file, FOREIGN, evidence, why=tags[0][1], says=says)


def takes(env: Environment, tag: str) -> bool:
    """Whether this Python takes a wheel of such a tag, be it of a newer C library."""
    pythons, abis, platforms = (part.split(".") for part in (f"{tag}--").split("-")[:3])
    own = any(_is_for(env, python, abi) for python in pythons for abi in abis)
    libc = "musl" if env.libc == "musl" else "many"
    mine = re.compile(rf"any|(?:linux|{libc}linux[0-9_]+)_{env.platform}")
    return own and any(map(mine.fullmatch, platforms))


def _is_for(env: Environment, python: str, abi: str) -> bool:
    stated = re.fullmatch(r"(?:py|cp)(\d)(\d*)", python)
    if stated is None or stated[1] != env.abi[:1]:
        return False
    minor = int(stated[2] or 0)
    if abi in ("none", "abi3", "abi3t"):
        return minor <= env.minor and (abi != "abi3" or not env.abi.endswith("t"))
    return minor == env.minor and abi.rstrip("mud") == f"cp{env.abi}"


def _proof(loader: Loader, env: Environment, site: str, names: list[str]) -> str | None:
    """Of a wheel's own libraries one that this Python cannot load, where none fits."""
    named = [name for name in names if ".cpython-" in name or name.endswith(".pyd")]
    if any(name.endswith(env.extensions[0]) for name in named):
        return None
    if named:
        return f"{site}/{min(named, key=lambda name: name.count('/'))}"
    for path in (f"{site}/{name}" for name in names[:1]):
        machine = machine_at(loader.root, path)
        if machine is not None and PLATFORMS.get(machine, "unknown") != env.platform:
            return path
    return None

"""Byte code that Python takes for a source and that ends too early: the import ends there, too."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudriver import _elf
from cudriver.stack.facts import DAMAGED, Environment, Evidence, FileFault
from cudriver.stack.integrity.listed import Wheels, paths, top_modules
from cudriver.stack.loader.search import Loader

MOST = 8 << 20  # bytes that one check reads of it; SciPy, scikit-learn and XGBoost have 2 MB
HEADER = 16
# What it begins with, by Python's minor version. `_elf.cut_short` knows no others.
_MAGIC = {11: 3495, 12: 3531, 13: 3571, 14: 3627, 15: 3666}
_ELSEWHERE = {"PYTHONPYCACHEPREFIX", "PYTHONOPTIMIZE"}  # with these other files are read


def cut_short(loader: Loader, env: Environment, wheels: Wheels, every: bool) -> Iterator[FileFault]:
    """The byte code beside what an import runs first, in its folder; every: of all folders."""
    root, ending, left = loader.root, f".cpython-3{env.minor}.pyc", MOST
    elsewhere = any(env.variables.get(name) not in (None, "", "0") for name in _ELSEWHERE)
    for dist, raw in () if elsewhere else wheels:
        first = {f"{dist.location}/{name}" for name in top_modules(raw)}
        modules = {path for path in (paths(dist, raw) if every else first) if path.endswith(".py")}
        for folder in sorted({os.path.dirname(path) for path in modules}):
            for name in root.names(f"{folder}/__pycache__"):
                source = f"{folder}/{name.removesuffix(ending)}.py"
                alone = folder == dist.location and source not in modules  # of somebody else
                if not name.endswith(ending) or alone:
                    continue
                file = f"{folder}/__pycache__/{name}"
                data = root.raw(file, left)
                left -= 0 if every else len(data)
                if left <= 0:
                    return
                taken = is_for(env, data) and _made_of(data, *root.regular(source))
                taken = taken and len(data) < MOST  # else it was not read to its end
                says = _elf.cut_short(data[HEADER:]) if taken else None
                if says is not None:
                    evidence, why = Evidence(file, None, f"is taken for {source}"), "ends too early"
                    proven = source in first
                    yield FileFault(dist.name, file, DAMAGED, evidence, [], why, says, proven)


def is_for(env: Environment, data: bytes) -> bool:
    """Whether it begins as that of this Python does."""
    magic = _MAGIC.get(env.minor, -1)
    return len(data) >= HEADER and data[:4] == (magic & 0xFFFF).to_bytes(2, "little") + b"\r\n"


def _made_of(data: bytes, size: int | None, time: int) -> bool:
    """Whether it is of a source as that is now, or Python does not ask. One that a hash compares is
    not looked at.
    """
    flags, stamp = int.from_bytes(data[4:8], "little"), (time // 1_000_000_000, size or 0)
    written = b"".join((number & 0xFFFFFFFF).to_bytes(4, "little") for number in stamp)
    return size is not None and (flags == 1 or (flags == 0 and data[8:HEADER] == written))

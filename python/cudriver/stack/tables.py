"""The tables in data/, read when first asked for and kept."""

from __future__ import annotations

import os
from functools import cache

from cudriver.stack.record import Any
from cudriver.stack.versions import cut, major

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")


@cache
def table(name: str) -> dict[str, Any]:
    """One table, as data/NAME.json has it. (importlib.resources takes 35 ms to import.)"""
    import json

    with open(os.path.join(FOLDER, f"{name}.json"), encoding="utf-8") as file:
        loaded: dict[str, Any] = json.load(file)
    return loaded


def matters(name: str, group: str = "cuda") -> bool:
    """Whether a distribution of this (normalised) name is of a group of packages.json: "cuda", what
    has to do with CUDA; "conda", the same of a conda package; "other", "parts", "pinned", ...
    """
    names, stems = _group(group)
    return name in names or name.startswith(stems)


@cache
def _group(name: str) -> tuple[frozenset[str], tuple[str, ...]]:
    row = table("packages")[name]
    return frozenset(row.get("names", ())), tuple(row.get("stems", ()))


def driver_cuda(release: str | None) -> str | None:
    """The newest CUDA that a driver release offers: "580.95.05" gives "13.0"."""
    branch = major(release)
    if branch is None or not 300 <= branch < 2000:
        return None
    rows = (row["cuda"] for row in reversed(table("driver")["branches"]) if row["branch"] <= branch)
    return next(rows, None)


def driver_floor(cuda: str | None) -> str | None:
    """The oldest driver release on which libraries of this CUDA run: its major's from 11 on,
    before that its own.
    """
    wanted = major(cuda)
    if wanted is not None and wanted < 11:
        rows = (r for r in table("driver")["toolkits"] if cut(r["toolkit"], 2) == cut(cuda, 2))
        return min((row["driver"] for row in rows), default=None)
    rows = (row for row in table("driver")["floors"] if row["cuda_major"] == wanted)
    return next((str(row["linux"]) for row in rows), None)


def toolkit_of(component: str, version: str | None) -> str | None:
    """The toolkit release that a component's version belongs to: ("cudart", "12.8.90") is "12.8.1".

    Where several releases share the component, the part that they share: "13.1". None: unknown.
    """
    if not version:
        return None
    known = ((name, parts.get(component)) for name, parts in table("toolkits")["releases"].items())
    releases = [name for name, listed in known if listed and _same(listed, version)]
    if len(releases) <= 1:
        return releases[0] if releases else None
    shared = {".".join(r.split(".")[:2]) for r in releases}
    return shared.pop() if len(shared) == 1 else None


def _same(listed: str, version: str) -> bool:
    """Equal, or equal as far as the shorter one goes: binaries tell fewer numbers than packages."""
    short, long = (listed, version) if len(listed) < len(version) else (version, listed)
    return (long + ".").startswith(short + ".") and short.count(".") >= 2

"""What is compiled when a program starts: by which packages, and what of their tools is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudriver.stack.facts import Distribution, Environment, Evidence
from cudriver.stack.machine.compilers import search_path, which
from cudriver.stack.machine.toolkits import home_of, nvcc_release
from cudriver.stack.machine_facts import Lacking, NvccChoice
from cudriver.stack.record import Any
from cudriver.stack.roots.asked import Asked
from cudriver.stack.tables import table
from cudriver.stack.versions import cut, satisfies


def users(distributions: list[Distribution], nvcc: NvccChoice, tool: str) -> list[Distribution]:
    """The packages that compile with a tool when they start."""
    known, found = table("compiling")["packages"], []
    mine = [dist for dist in distributions if dist.name in known]
    there = {d.name: d.version for d in distributions} if mine else {}
    for dist in mine:
        row = known[dist.name]
        idle = (n for n, v in row.get("idle", {}).items() if n in there and satisfies(there[n], v))
        unused = any(idle) and (not nvcc.exists or nvcc.chosen_by == "default")
        if tool in row["uses"] and not unused and there.keys().isdisjoint(row.get("built", ())):
            found.append(dist)
    return found


def lacking(
    asked: Asked, env: Environment, distributions: list[Distribution], nvcc: NvccChoice
) -> Iterator[Lacking]:
    """The tools that packages here compile with, and that are not there."""
    look = _Look(asked, env, nvcc)
    for tool, row in table("compiling")["tools"].items():
        by = [dist.name for dist in users(distributions, nvcc, tool)]
        if by and (looked := look.in_vain(tool, row)):
            yield Lacking(tool, by, looked, look.elsewhere(tool))


class _Look:
    def __init__(self, asked: Asked, env: Environment, nvcc: NvccChoice) -> None:
        self.root, self.variables = asked.root, asked.variables
        self.env, self.nvcc = env, nvcc

    def in_vain(self, tool: str, row: dict[str, Any]) -> list[str]:
        """Where a tool was looked for; nothing where it is there, or where nobody can tell."""
        root, env = self.root, self.env
        if "programs" in row:
            folders = search_path(self.variables, env.prefix)
            conda = env.kind == "conda" and root.glob(env.prefix, "bin/*-conda-linux-gnu-c*")
            stated = conda or self.variables.get(row.get("variable", ""))
            there = stated or any(which(root, name, folders) for name in row["programs"])
            return [] if there else folders
        if "folder" in row:
            return self._cache(row)
        if tool == "Python.h":  # a Python that is not the system's brings its own
            folders = [f"/usr/include/python{cut(env.python, 2)}"]
            return [] if env.base_prefix != "/usr" or self._any(folders, tool) else folders
        return self._header(tool)

    def _cache(self, row: dict[str, Any]) -> list[str]:
        """The folder that cannot be written, and after it the one that would be made in it."""
        given = self.variables.get
        home = given(row.get("home", "HOME")) or given("HOME", "")
        stated = next(filter(None, map(given, row["moved"])), None)
        place = folder = stated or (row["folder"].replace("~", home) if home else "")
        while not self.root.is_dir(place) and place not in ("", "/"):
            place = os.path.dirname(place)
        there = self.root.host and place.startswith("/") and self.root.is_dir(place)
        return [] if not there or os.access(place, os.W_OK) else [*dict.fromkeys((place, folder))]

    def _header(self, file: str) -> list[str]:
        """Where nvcc looks for a header that it does not find."""
        given = self.variables.get
        flags = given("NVCC_PREPEND_FLAGS", "") + given("NVCC_APPEND_FLAGS", "")
        if not self.nvcc.exists or "-I" in flags:
            return []
        # nvcc looks beside itself, wherever the link or the script that starts it lies.
        beside = home_of(self.root, self.nvcc.nvcc or "")
        folders = []
        for home in dict.fromkeys([beside, os.path.normpath(self.nvcc.home or "/")]):
            folders.append(f"{home}/include")
            folders += self.root.glob(home, "targets/*/include", folders=True)
        for name in ("CPATH", "CPLUS_INCLUDE_PATH"):
            folders += filter(None, given(name, "").split(":"))
        return [] if self._any(folders, file) else folders

    def _any(self, folders: list[str], file: str) -> bool:
        return any(self.root.exists(f"{folder}/{file}") for folder in folders)

    def elsewhere(self, file: str) -> str | None:
        """The folder of a header among NVIDIA's wheels."""
        pattern = f"nvidia/*/include/{file}"
        found = (path for site in self.env.site_packages for path in self.root.glob(site, pattern))
        return next(map(os.path.dirname, found), None)


def ptxas(asked: Asked, distributions: list[Distribution], nvcc: NvccChoice) -> list[Evidence]:
    """Triton's own assemblers, where something starts it and no variable names another."""
    triton = next((d for d in distributions if d.name == "triton"), None)
    stated = {"TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"} & asked.variables.keys()
    if triton is None or stated or not users(distributions, nvcc, "ptxas"):
        return []
    folder = f"{triton.location}/triton/backends/nvidia/bin"
    files = filter(asked.root.is_file, (f"{folder}/ptxas", f"{folder}/ptxas-blackwell"))
    known = ((file, nvcc_release(asked.root, file)[0]) for file in files)
    return [Evidence(file, None, version) for file, version in known if version]

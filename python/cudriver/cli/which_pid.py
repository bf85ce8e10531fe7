"""`cudriver which --pid`: what a running process has mapped, beside what it should have."""

from __future__ import annotations

import os

from cudriver import _elf
from cudriver.stack.names import is_cuda_library, split
from cudriver.stack.roots.asked import from_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.facts import Library

PROC = "/proc"


class Running:
    """A process: its root, its environment's folder, its variables, and the CUDA libraries that it
    has mapped, each with the name by which others ask for it.
    """

    def __init__(self, pid: int) -> None:
        """Raises OSError where there is no such process, or it is another user's."""
        self._folder = f"{PROC}/{pid}"
        mounts = os.readlink(f"{self._folder}/ns/mnt")
        own = mounts == os.readlink(f"{PROC}/self/ns/mnt")
        self.root: str = "/" if own else f"{self._folder}/root"  # of a container
        pairs = map(os.fsdecode, _read(f"{self._folder}/environ").split(b"\0"))
        variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        self.variables: dict[str, str] = from_here(variables, os.readlink(f"{self._folder}/cwd"))
        named = self.variables.get("VIRTUAL_ENV") or self.variables.get("CONDA_PREFIX")
        self.prefix: str = self._program() or named or os.readlink(f"{self._folder}/exe")
        self.mapped: dict[str, str] = {}
        for line in os.fsdecode(_read(f"{self._folder}/maps")).split("\n"):
            path = line[line.find("/") :] if "/" in line else ""
            if ".so" in os.path.basename(path) and path not in self.mapped:
                self.mapped[path] = self._soname(path)
        self.mapped = {p: name for p, name in self.mapped.items() if is_cuda_library(name)}

    def _program(self) -> str | None:
        """The path by which the program was started, if that is in an environment's bin."""
        named = os.fsdecode(_read(f"{self._folder}/cmdline").split(b"\0")[0])
        if "/" not in named:
            return None
        path = os.path.normpath(os.path.join(os.readlink(f"{self._folder}/cwd"), named))
        there = os.path.lexists(f"{self._folder}/root{path}")  # it may have changed its folder
        return path if there and os.path.basename(os.path.dirname(path)) == "bin" else None

    def _soname(self, path: str) -> str:
        """By which name others ask for a mapped file; that of the file where it tells none."""
        try:
            name = _elf.ElfFile(f"{self._folder}/root{path}", path).soname
        except (OSError, _elf.ElfError):
            name = None
        return name or os.path.basename(path.removesuffix(" (deleted)"))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def compare(
    mapped: dict[str, str], libraries: list[Library]
) -> list[tuple[str, str, Library | None]]:
    """Each mapped file with what it is, "as found", "another" or "not expected", and the library
    of its name that the environment's files give.
    """
    rows: list[tuple[str, str, Library | None]] = []
    for path, name in mapped.items():
        same = next((x for x in libraries if path in (x.path, x.real_path)), None)
        other = next((x for x in libraries if split(x.soname)[0] == split(name)[0]), None)
        what = "as found" if same else "another" if other else "not expected"
        rows.append((path, what, same or other))
    return rows

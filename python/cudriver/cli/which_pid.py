"""`cudriver which --pid`: what a running process has mapped, beside what it should have."""

from __future__ import annotations

import os

from cudriver.stack.names import is_cuda_library, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.model import Library

PROC = "/proc"


class Running:
    """A process: its environment's folder, its variables, and the CUDA libraries it has mapped."""

    def __init__(self, pid: int) -> None:
        """Raises OSError where there is no such process, or it is another user's."""
        folder = f"{PROC}/{pid}"
        program = os.fsdecode(_read(f"{folder}/cmdline").split(b"\0")[0])
        pairs = map(os.fsdecode, _read(f"{folder}/environ").split(b"\0"))
        self.variables: dict[str, str] = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        named = self.variables.get("VIRTUAL_ENV") or self.variables.get("CONDA_PREFIX")
        in_bin = program.startswith("/") and os.path.basename(os.path.dirname(program)) == "bin"
        self.prefix: str = program if in_bin else named or os.readlink(f"{folder}/exe")
        self.mapped: list[str] = []
        for line in os.fsdecode(_read(f"{folder}/maps")).split("\n"):
            path = line[line.find("/") :] if "/" in line else ""
            if is_cuda_library(os.path.basename(path.removesuffix(" (deleted)"))):
                self.mapped += [path] * (path not in self.mapped)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def compare(mapped: list[str], libraries: list[Library]) -> list[tuple[str, str, Library | None]]:
    """Each mapped file with what it is, "as found", "another" or "not expected", and the library
    of its name that the environment's files give.
    """
    rows: list[tuple[str, str, Library | None]] = []
    for path in mapped:
        same = next((x for x in libraries if path in (x.path, x.real_path)), None)
        stem = split(os.path.basename(path))[0]
        other = next((x for x in libraries if split(x.soname)[0] == stem), None)
        what = "as found" if same else "another" if other else "not expected"
        rows.append((path, what, same or other))
    return rows

"""What a check is asked for: where, with which variables, and what is assumed of the machine."""

from __future__ import annotations

import os
import re
import sys

from cudriver.stack.machine_facts import Driver
from cudriver.stack.record import Record, but, fresh
from cudriver.stack.roots.rootfs import Root


class Asked(Record, frozen=True):
    """What was asked for, parsed once. It is handed down, and nobody changes it."""

    root: Root
    prefix: str  # the environment's folder, inside the root
    variables: dict[str, str]  # of the programs there, made absolute by `from_here`
    probe: bool = True  # whether the driver may be asked, in a child
    assumed: Driver | None = None  # stands in for this machine's driver, or for its GPUs alone
    started: str = ""  # the folder that programs are started in; "": it makes no difference
    by: str = ""  # how the folder came to be meant, where nobody named it: "by VIRTUAL_ENV"
    match: str | None = None  # --match: "system"
    match_level: str = "minor"  # "major", "minor", "exact"
    needs: list[str] = fresh(list)  # --needs: names of what is to use CUDA
    expects: list[str] = fresh(list)  # --expect: requirements, "torch==2.8.0+cu128"

    @property
    def assumes(self) -> bool:
        """Whether a driver is assumed, not its GPUs alone."""
        return self.assumed is not None and self.assumed.release is not None

    def at(self, prefix: str | None) -> Asked:
        """The same of the environment in another folder. Raises NotADirectoryError."""
        where = inspected(self.root, prefix)
        return but(self, prefix=where, by=self.by if where == self.prefix else "")


def working_folder(tree: Root) -> str:
    """The folder that a program is started in: the caller's, and / in another root."""
    try:
        return os.getcwd() if tree.host else "/"
    except OSError:  # it was removed
        return "/"


def from_here(variables: dict[str, str], folder: str) -> dict[str, str]:
    """The variables with what ld.so and Python take from the working folder made absolute: relative
    and empty entries of LD_LIBRARY_PATH and PYTHONPATH, and files of LD_PRELOAD.
    """

    def absolute(entry: str) -> str:
        whole = entry.startswith(("/", "$"))
        return entry if whole else os.path.normpath(os.path.join(folder, entry))

    value = variables.get("PYTHONPATH", "")
    if value:
        entries = (os.path.normpath(os.path.join(folder, entry)) for entry in value.split(":"))
        variables["PYTHONPATH"] = ":".join(entries)
    value = variables.get("LD_LIBRARY_PATH", "")
    if value:
        variables["LD_LIBRARY_PATH"] = ":".join(map(absolute, re.split("[:;]", value)))
    value = variables.get("LD_PRELOAD", "")
    if "/" in value:
        names = re.split("[ :]", value)
        variables["LD_PRELOAD"] = ":".join(absolute(n) if "/" in n else n for n in names if n)
    return variables


def inspected(tree: Root, prefix: str | None) -> str:
    """The folder to inspect. An interpreter's path stands for its environment.

    Raises NotADirectoryError.
    """
    if prefix is None:
        prefix = sys.prefix if tree.host else "/usr"
    if not prefix:
        raise NotADirectoryError("an empty path is not a folder")
    inside = "/" + os.fspath(prefix).lstrip("/")
    path = os.path.abspath(prefix) if tree.host else os.path.normpath(inside)
    if tree.is_file(path) and os.path.basename(os.path.dirname(path)) == "bin":
        path = os.path.dirname(os.path.dirname(path))
    if not tree.is_dir(path):
        where = "" if tree.host else f" in {tree.path}"
        raise NotADirectoryError(f"{prefix} is not a folder{where}")
    return path

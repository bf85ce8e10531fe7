"""Prints which functions and files of the C core a warm call passes: make passes.

The core is built without optimisation and with -finstrument-functions. Counted are functions of
cext/ that the calling thread enters in any of a few calls, and the .c files in which they lie.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import cudriver as cu
from cudriver import _core

ROUNDS = 5


def entered(hook: ctypes.CDLL, call: Callable[[], object], trace: Path) -> set[str]:
    """The offsets of the core's functions that a call enters."""
    hook.passes_begin()
    kept = call()
    hook.passes_end(str(trace).encode())
    del kept
    lines = [line.rsplit(" ", 1) for line in trace.read_text().splitlines()]
    return {offset for library, offset in lines if Path(library).name == Path(_core.__file__).name}


def functions(offsets: set[str]) -> list[tuple[str, str]]:
    """The file, below cext/, and the name of each function; none of Python's and NumPy's."""
    command = ["addr2line", "-f", "-e", _core.__file__, *sorted(offsets)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    places = zip(lines[1::2], lines[::2], strict=True)
    found = {(path.split(":")[0].partition("/cext/")[2], name) for path, name in places}
    return sorted(pair for pair in found if pair[0] and not pair[1].lstrip("_").startswith("Py"))


def main() -> None:
    hook = ctypes.CDLL(None)
    host = np.ones(64 << 20, np.uint8)
    there = cu.device_empty(host.shape, host.dtype)
    calls: dict[str, Callable[[], object]] = {
        "copy(there, array)": lambda: cu.copy(there, host),
        "copy_async(there, array, None).wait()": lambda: cu.copy_async(there, host, None).wait(),
        "pinned_empty(1 << 20, np.uint8)": lambda: cu.pinned_empty(1 << 20, np.uint8),
    }
    with tempfile.TemporaryDirectory() as folder:
        for title, call in calls.items():
            for _ in range(ROUNDS):
                call()
            offsets: set[str] = set()
            for _ in range(ROUNDS):
                offsets |= entered(hook, call, Path(folder, "trace"))
            found = functions(offsets)
            files = {path for path, _ in found if path.endswith(".c")}
            print(f"{title}: {len(found)} functions in {len(files)} files")
            if "--list" in sys.argv:
                print("".join(f"  {path}  {name}\n" for path, name in found), end="")


if __name__ == "__main__":
    main()

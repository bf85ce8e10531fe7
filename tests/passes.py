"""Prints which functions and files of the C core a warm call passes, and fails above the bounds:
make passes.

The core is built without optimisation and with -finstrument-functions. Counted are functions of
cext/ that the calling thread enters, and the .c files in which they lie. Who packs which piece, and
who waits, differs from call to call: of several the middle one counts, by its number of functions.
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

WARM = 5
ROUNDS = 15


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
    # A copy of a header's function, in the file that was compiled with it.
    inline = {name for path, name in found if path.endswith(".h")}
    return sorted(
        (path, name)
        for path, name in found
        if path
        and not name.lstrip("_").startswith("Py")
        and not (path.endswith(".c") and name in inline)
    )


def main() -> None:
    hook = ctypes.CDLL(None)
    # Copied within the 50 ms after which a call asks for signals.
    host = np.ones(16 << 20, np.uint8)
    there = cu.device_empty(host.shape, host.dtype)
    # A call, and the functions and files that it may pass.
    calls: dict[str, tuple[Callable[[], object], int, int]] = {
        "copy(there, array)": (lambda: cu.copy(there, host), 101, 19),
        "copy_async(there, array, None).wait()": (
            lambda: cu.copy_async(there, host, None).wait(),
            137,
            22,
        ),
        "pinned_empty(1 << 20, np.uint8)": (lambda: cu.pinned_empty(1 << 20, np.uint8), 22, 7),
    }
    longer = False
    with tempfile.TemporaryDirectory() as folder:
        for title, (call, most, most_files) in calls.items():
            for _ in range(WARM):
                call()
            offsets = [entered(hook, call, Path(folder, "trace")) for _ in range(ROUNDS)]
            found = sorted(map(functions, offsets), key=len)[ROUNDS // 2]
            files = {path for path, _ in found if path.endswith(".c")}
            longer |= len(found) > most or len(files) > most_files
            print(
                f"{title}: {len(found)} functions in {len(files)} files "
                f"(at most {most} in {most_files})"
            )
            if "--list" in sys.argv:
                print("".join(f"  {path}  {name}\n" for path, name in found), end="")
    if longer:
        sys.exit("a call has become longer: make passes ARGS=--list names what it passes")


if __name__ == "__main__":
    main()

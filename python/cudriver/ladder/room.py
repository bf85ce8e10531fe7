"""How much memory there is for the arrays, and what to do where it does not suffice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cudriver.ladder.result import show_size

KIB = 1 << 10
#: Bytes of the smallest array that is measured.
SMALLEST = 4 * KIB

T = TypeVar("T")


def host_room() -> int | None:
    """Bytes that this process may still take of the host's memory: what the system has available,
    and what the control group (a container's limit) leaves. Linux would grant more, and then kill
    the process that uses it. None where /proc does not say."""
    rooms = []
    meminfo = read_numbers("/proc/meminfo")
    if "MemAvailable:" in meminfo:
        rooms.append(meminfo["MemAvailable:"] * KIB)
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no such group, or "max"
        pass
    else:
        stat = read_numbers("/sys/fs/cgroup/memory.stat")
        rooms.append(max(limit - stat.get("anon", 0) - stat.get("shmem", 0), 0))
    return min(rooms, default=None)


def read_numbers(path: str) -> dict[str, int]:
    """The lines `name number ...` of a file; nothing where it cannot be read."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {w[0]: int(w[1]) for w in words if len(w) > 1 and w[1].isdigit()}


def shrinking(size: int, make: Callable[[int], T]) -> tuple[T, str | None]:
    """What `make` makes of `size` bytes, or of a half, a quarter ... where memory runs out; and,
    in that case, what to say about it."""
    asked, why = size, ""
    while True:
        try:
            made = make(size)
        except MemoryError as error:  # cu.OutOfMemoryError is one
            half = size // 2 & -16
            if half < SMALLEST:
                raise
            size, why = half, why or str(error)
        else:
            note = f"No memory for {show_size(asked)} ({why}): measured with {show_size(size)}."
            return made, note if size != asked else None

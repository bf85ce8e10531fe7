"""How long others wait while memory is page-locked and copied: `cudriver bench --neighbours`."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import cudriver as cu
from cudriver.ladder.result import number, show_size
from cudriver.ladder.room import shrinking

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALL = 64 << 10  # bytes of the small copy
PAUSE = 0.0005  # seconds between two calls of one that waits
IDLE = 0.2  # seconds of the row in which nothing happens
ROWS = "rows"  # of the report
WAITS = ("process", "thread", "copy")

EXPLAINED = """\
Another process and another thread ask for the device's free memory
(cuMemGetInfo), as a health check does. pieces=True of cu.pinned_empty, cu.pin
and cu.SharedMemory registers memory in pieces; other libraries cannot copy
across the border of two."""


def measure(device: cu.Device, size: int, rounds: int) -> dict[str, Any]:
    """The longest wait of each beside each kind of work, in seconds, and the median of what that
    took; None on the simulated driver, which no two processes share.
    """
    with warnings.catch_warnings(record=True) as told, device.primary_context():
        warnings.simplefilter("always", RuntimeWarning)
        (used, rows), note = shrinking(size, lambda most: (most, _rows(device, most, rounds)))
    simulated = cu.driver_is_simulated()
    if simulated:
        rows = [{**row, **dict.fromkeys(("seconds", *WAITS))} for row in rows]
    said = [note or "", *(str(warning.message) for warning in told)]
    return {
        "schema": 1,
        "device": device.name,
        "simulated": simulated,
        "size": used,
        "small_copy": SMALL,
        "rounds": rounds,
        "notes": [text for text in dict.fromkeys(said) if text],
        "rows": rows,
    }


def _rows(device: cu.Device, size: int, rounds: int) -> list[dict[str, Any]]:
    """What happens, what it took, how long others waited, and whether the bytes are right."""
    locked, copied = [], []
    with Neighbours(device) as others:
        there = cu.device_empty(size, np.uint8)
        idle = {"what": "nothing", **others.beside(lambda: sleep(IDLE), 1), "seconds": None}
        for name, pieces in (("at once", False), ("in pieces", True)):
            here = _Array(size, pieces)
            waits = others.beside(here.lock, rounds, here.unlock)
            locked.append({"what": f"page-locked {name}", **waits})
            assert here.array is not None
            here.array[...] = 1 + pieces
            waits = others.beside(partial(cu.copy, there, here.array), rounds)
            right = bool((there.to_numpy() == 1 + pieces).all())
            copied.append({"what": f"copied, locked {name}", **waits, "verified": right})
            here.unlock()
    return [idle, *locked, *copied]


class _Array:
    """Memory that is page-locked anew each time."""

    def __init__(self, size: int, pieces: bool) -> None:
        self.size, self.pieces = size, pieces
        self.array: NDArray[np.uint8] | None = None

    def lock(self) -> None:
        self.array = cu.pinned_empty(self.size, np.uint8, pieces=self.pieces)

    def unlock(self) -> None:
        self.array = None
        cu.trim_host_memory()


class Neighbours:
    """Another process, another thread and small copies, each of which notes its longest wait."""

    def __init__(self, device: cu.Device) -> None:
        self.device = device
        self.longest: dict[str, float] = {}
        words = [sys.executable, "-m", "cudriver.ladder.neighbours", device.uuid]
        environ = {**os.environ, "CUDRIVER_LIBRARY": cu.driver_path()}
        self.process = subprocess.Popen(
            words,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is this process's; the other ends with its input
        )

    def __enter__(self) -> Self:
        try:
            self.hear()  # it is ready
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.communicate()  # the end of its input

    def hear(self) -> float:
        """The next number from the other process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise OSError(f"the other process ended with status {self.process.wait()}")
        return float(line)

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def beside(
        self, work: Callable[[], object], rounds: int, before: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """The median of the seconds of some work, and the longest waits meanwhile."""
        small, there = cu.pinned_zeros(SMALL, np.uint8), cu.device_empty(SMALL, np.uint8)
        calls = {"thread": self.device.memory_info, "copy": lambda: cu.copy(there, small)}
        seconds, waits = [], dict.fromkeys(WAITS, 0.0)
        for _ in range(rounds):
            before()
            over, found = threading.Event(), dict.fromkeys(calls, 0.0)
            threads = [
                threading.Thread(target=_watch, args=(name, call, found, over))
                for name, call in calls.items()
            ]
            self.say()
            for thread in threads:
                thread.start()
            try:
                sleep(10 * PAUSE)  # all have begun
                begin = perf_counter()
                work()
                seconds.append(perf_counter() - begin)
            finally:
                over.set()
                for thread in threads:
                    thread.join()
                self.say()
                found["process"] = self.hear()
            waits = {name: max(waits[name], found[name]) for name in WAITS}
        return {"seconds": median(seconds), **waits}


def _watch(
    name: str, call: Callable[[], object], found: dict[str, float], over: threading.Event
) -> None:
    while not over.is_set():
        begin = perf_counter()
        call()
        found[name] = max(found[name], perf_counter() - begin)
        sleep(PAUSE)


def lines(report: dict[str, Any]) -> list[str]:
    """The report as text."""
    size, small = show_size(report["size"]), show_size(report["small_copy"])
    found = [
        f"Longest wait of others, ms, while {size} are page-locked and copied",
        report["device"],
        "",
        f"  {'':28}{'':>9}  {'another':>8}  {'another':>8}  {'a copy':>9}",
        f"  {'':28}{'in all':>9}  {'process':>8}  {'thread':>8}  {'of ' + small:>9}",
    ]
    for row in report["rows"]:
        values = (row["seconds"], *(row[name] for name in WAITS))
        shown = ["-" if value is None else number(value * 1e3) for value in values]
        wrong = "" if row.get("verified", True) else "  WRONG BYTES"
        found.append(
            f"  {row['what']:28}{shown[0]:>9}  {shown[1]:>8}  {shown[2]:>8}  {shown[3]:>9}{wrong}"
        )
    if report["simulated"]:
        found.append("simulated driver: no GPU takes part, so no times are given")
    return [*found, "", *report["notes"], EXPLAINED]


def _ask(uuid: str) -> None:
    """The other process: a byte of input begins a round, the next ends it."""
    device = cu.Device(uuid)
    device.memory_info()  # makes the context
    os.write(1, b"0\n")
    while os.read(0, 1):
        longest = 0.0
        while not select.select([0], [], [], PAUSE)[0]:
            begin = perf_counter()
            device.memory_info()
            longest = max(longest, perf_counter() - begin)
        if os.read(0, 1):
            os.write(1, b"%r\n" % longest)


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # nobody listens any more
        _ask(sys.argv[1])

"""Every path on every size against the driver's own calls, made from C."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, KIB, MIB, Bench, address, size_name
from benchmarks.measure import DRIVER, OURS, Part, Row, Work, times_as_fast

PATHS = ("plain up", "plain down", "pinned up", "pinned down", "on the device")
NAME = "any size, 4 KiB to 4 GiB, any path"
FLOOR = 0.97
PAUSE_S = 0.002


def sizes(bench: Bench) -> Row:
    """4 KiB to 4 GiB by fours; a part that falls below the floor is measured once more, longer, and
    the second measurement counts."""
    row = Row(NAME, "never below 0.97 of the driver's own")
    chosen = [
        4 * KIB << (2 * step)
        for step in range(11)
        if 4 * KIB << (2 * step) <= min(bench.most, GIB if bench.quick else 4 * GIB)
    ]
    for path in PATHS:
        for size in chosen:
            row.parts.append(_part(bench, path, size))
    return row


def _part(bench: Bench, path: str, size: int) -> Part:
    calls = max(1, min(64, 64 * MIB // size))  # a sample of some tenths of a millisecond at least
    part = Part(
        f"{path}, {size_name(size)}",
        size,
        goals=[times_as_fast(FLOOR, DRIVER)],
        effort={"rounds": 21 if size <= 16 * MIB else 9, "budget": 0.06, "again": True},
        verify=bench.verifier(bench.plain(size)),
    )
    direct = bench.driver

    def work(ours: bool) -> Work:
        there = cu.device_empty(size, np.uint8)
        pointer = there.pointer
        if path == "on the device":
            source = cu.device_empty(size, np.uint8)
            cu.copy(source, bench.plain(size))
            origin = source.pointer
            if ours:
                return Work(lambda: cu.copy(there, source), pointer=lambda: pointer, calls=calls)
            return Work(
                lambda: None,
                timer=lambda: direct.copy_device(pointer, origin, size, calls),
                pointer=lambda: pointer,
                keep=(there, source),
            )
        up, pinned = path.endswith("up"), path.startswith("pinned")
        if up:
            host = bench.pinned(size) if pinned else bench.plain(size)
        else:
            host = bench.pinned(size) if pinned else bench.out(size)
            cu.copy(there, bench.plain(size))
        if ours:
            run: Callable[[], None] = (
                (lambda: cu.copy(there, host)) if up else (lambda: cu.copy(host, there))
            )
            return Work(
                run,
                pointer=(lambda: pointer) if up else None,
                out=None if up else host,
                calls=calls,
            )
        place = address(host)
        timer: Callable[[], float] = (
            (lambda: direct.copy_async(up, pointer, place, size, True, calls))
            if pinned
            else (lambda: direct.copy(up, pointer, place, size, calls))
        )
        return Work(
            lambda: None,
            timer=timer,
            pointer=(lambda: pointer) if up else None,
            out=None if up else host,
            keep=(there,),
        )

    part.add(OURS, lambda: work(True))
    part.add(DRIVER, lambda: work(False))
    return part


def alone(bench: Bench) -> Row:
    """One copy after a pause, when threads and device have gone to sleep."""
    row = Row("one plain copy alone, after a pause of 2 ms", "")
    direct = bench.driver
    for label, up in (("up", True), ("down", False)):
        for mebibytes in (1, 2, 4, 16, 64):
            size = mebibytes * MIB
            part = Part(
                f"{label}, {mebibytes} MiB",
                size,
                effort={"rounds": 21, "budget": 0.1},
                verify=bench.verifier(bench.plain(size)),
            )

            def work(ours: bool, up: bool = up, size: int = size) -> Work:
                there = cu.device_empty(size, np.uint8)
                host = bench.plain(size) if up else bench.out(size)
                cu.copy(there, bench.plain(size))
                place, pointer = address(host), there.pointer
                made = Work(
                    (lambda: cu.copy(there, host)) if up else (lambda: cu.copy(host, there)),
                    before=lambda: time.sleep(PAUSE_S),
                    pointer=(lambda: pointer) if up else None,
                    out=None if up else host,
                    keep=(there,),
                )
                if not ours:
                    made.timer = lambda: direct.copy(up, pointer, place, size)
                return made

            part.add(OURS, lambda work=work: work(True))
            part.add(DRIVER, lambda work=work: work(False))
            row.parts.append(part)
    return row

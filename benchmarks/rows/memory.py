"""Page-locked memory: for the first time, from the pool, and by NumPy itself."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, MIB, Bench
from benchmarks.measure import (
    DRIVER,
    NUMPY,
    OURS,
    Part,
    Work,
    at_least_rate,
    at_most,
    times_as_fast,
)

CALLS = 1000  # in a row, where one takes microseconds


def first_time(bench: Bench) -> list[Part]:
    """Nothing of it comes from a pool: ours is emptied before each sample, the peers' after it."""
    wanted = 2 * GIB
    size = bench.size(wanted // 4 if bench.quick else wanted)
    goals = [at_least_rate(20), times_as_fast(10, DRIVER)]
    effort = {"rounds": 3, "least": 2, "long": 0.9}
    part = Part(bench.label("", wanted, size), size, goals, warm=False, effort=effort)
    held: list[Any] = []

    def empty() -> None:
        held.clear()
        cu.trim_host_memory()

    def ours() -> Work:
        def run() -> None:
            held.append(cu.pinned_empty(size, np.uint8))

        return Work(run, before=empty, after=empty, how="pinned_empty, the pool trimmed")

    def driver() -> Work:
        place = ctypes.c_uint64(0)
        calls = [("cuMemHostAlloc", ctypes.addressof(place), size, 0)]
        timer = bench.driver.timer(calls, after=[("cuMemFreeHost", place)])
        return Work(timer, timer=timer, how="cuMemHostAlloc", keep=(place,))

    part.add(OURS, ours)
    part.add(DRIVER, driver)
    bench.offer(part, lambda peer: peer.page_lock(size))
    return [part]


def from_pool(bench: Bench) -> list[Part]:
    parts = []
    for wanted, label in ((MIB, "1 MiB"), (GIB, "1 GiB")):
        size = bench.size(wanted)
        part = Part(bench.label(label, wanted), goals=[at_most(1.0e-6)], effort={"long": 0.3})
        part.add(OURS, partial(Work, partial(cu.pinned_empty, size, np.uint8), calls=CALLS))
        part.add(NUMPY, partial(Work, partial(np.empty, size, np.uint8), calls=CALLS))
        bench.offer(part, lambda peer, n=size: Work(peer.pinned_array(n), calls=CALLS))
        parts.append(part)
    return parts


def inside_numpy(bench: Bench) -> list[Part]:
    """np.empty of 1 MiB, whose memory is used again and again, page-locked and not."""
    part = Part("1 MiB", goals=[times_as_fast(1 / 1.5, NUMPY)])

    def plain() -> Work:
        return Work(lambda: np.empty(MIB, np.uint8), calls=CALLS, how="np.empty")

    def ours() -> Work:
        work = plain()

        def timer() -> float:
            with cu.pinned_numpy():
                return work.seconds()

        return Work(work.run, timer=timer, how="np.empty inside pinned_numpy()")

    part.add(OURS, ours)
    part.add(NUMPY, plain)
    return [part]

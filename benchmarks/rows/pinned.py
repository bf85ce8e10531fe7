"""Page-locked memory: for the first time, from the pool, and by NumPy itself."""

from __future__ import annotations

from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, MIB, Bench
from benchmarks.measure import DRIVER, OURS, Part, Row, Work, at_least_rate, at_most, times_as_fast

NUMPY = "NumPy"


def first_time(bench: Bench) -> Row:
    """Nothing of it comes from a pool: ours is emptied before each round, the peers' after it."""
    row = Row("page-locked 2 GiB, first time", ">= 20 GB/s, >= 10x cuMemHostAlloc")
    wanted = 2 * GIB
    size = bench.size(wanted // 4 if bench.quick else wanted)
    label = "" if size == wanted else bench.label("2 GiB", wanted)
    if bench.quick and size == wanted // 4:
        label = "2 GiB as 512 MiB"
    part = Part(
        label,
        size,
        goals=[at_least_rate(20), times_as_fast(10, DRIVER)],
        warm=False,
        effort={"rounds": 3, "least": 2, "long": 0.9},
    )
    held: list[Any] = []

    def empty() -> None:
        held.clear()
        cu.trim_host_memory()

    part.add(
        OURS,
        lambda: Work(
            lambda: held.append(cu.pinned_empty(size, np.uint8)),
            before=empty,
            after=empty,
            how="pinned_empty, the pool trimmed",
        ),
    )
    direct = bench.driver
    part.add(
        DRIVER,
        lambda: Work(lambda: None, timer=lambda: direct.host_alloc(size), how="cuMemHostAlloc"),
    )
    bench.offer(part, lambda peer: peer.page_lock(size))
    row.parts.append(part)
    return row


def from_pool(bench: Bench) -> Row:
    row = Row("page-locked array from the pool, 1 MiB and 1 GiB", "<= 1.0 us", anywhere=True)
    for wanted, label in ((MIB, "1 MiB"), (GIB, "1 GiB")):
        size = bench.size(wanted)
        part = Part(bench.label(label, wanted), goals=[at_most(1.0e-6)], effort={"long": 0.3})

        def ours(size: int = size) -> Work:
            return Work(lambda: cu.pinned_empty(size, np.uint8), calls=0, how="pinned_empty")

        def numpy(size: int = size) -> Work:
            return Work(lambda: np.empty(size, np.uint8), calls=0, how="np.empty, pageable")

        part.add(OURS, ours)
        part.add(NUMPY, numpy)
        bench.offer(part, lambda peer, size=size: Work(peer.pinned_array(size), calls=0))
        row.parts.append(part)
    return row


def inside_numpy(bench: Bench) -> Row:
    """np.empty of 1 MiB, whose memory is used again and again, page-locked and not."""
    row = Row("np.empty inside `pinned_numpy()`, reuse", "<= 1.5x plain np.empty", anywhere=True)
    part = Part("1 MiB", goals=[times_as_fast(1 / 1.5, NUMPY)])

    def plain() -> Work:
        return Work(lambda: np.empty(MIB, np.uint8), calls=0, how="np.empty")

    def ours() -> Work:
        work = plain()

        def timer() -> float:
            with cu.pinned_numpy():
                return work.seconds()

        return Work(work.run, timer=timer, how="np.empty inside pinned_numpy()")

    part.add(OURS, ours)
    part.add(NUMPY, plain)
    row.parts.append(part)
    return row

"""What single calls cost."""

from __future__ import annotations

import ctypes

import numpy as np

import cudriver as cu
from benchmarks.bench import KIB, MIB, Bench
from benchmarks.measure import DRIVER, OURS, Part, Work, at_most

POOL = "driver, pool"
CALLS = 1000  # in a row, where one takes microseconds
ISSUES = 200  # small copies in a row: fewer than a stream's queue holds


def asynchronous(bench: Bench) -> list[Part]:
    """A copy that is issued and then waited for; the wait is not counted."""
    size, path = bench.size(256 * MIB), "plain up"
    label = bench.label("", 256 * MIB)
    part = Part(label, unit="ms", goals=[at_most(0.1e-3)], verify=bench.verify)
    part.add(OURS, lambda: bench.issue(path, size))
    part.add(DRIVER, lambda: bench.direct(path, size, wait=False))
    bench.offer(part, lambda peer: peer.issued(bench.plain(size)))
    return [part]


def small_issue(bench: Bench) -> list[Part]:
    """Copies of 4 KiB of page-locked memory, many in a row; the wait is not counted."""
    size, path = 4 * KIB, "pinned up"
    part = Part("", goals=[at_most(2.60e-6)], verify=bench.verify)
    part.add(OURS, lambda: bench.issue(path, size, calls=ISSUES))
    part.add(DRIVER, lambda: bench.direct(path, size, calls=ISSUES, wait=False))
    bench.offer(part, lambda peer: peer.issued(bench.plain(size), pinned=True, calls=ISSUES))
    return [part]


def device_memory(bench: Bench) -> list[Part]:
    part = Part("", goals=[at_most(1.2e-6)])

    def driver() -> Work:
        place = ctypes.c_uint64(0)
        calls = [("cuMemAlloc_v2", ctypes.addressof(place), MIB), ("cuMemFree_v2", place)]
        timer = bench.driver.timer(calls, 20)
        return Work(timer, timer=timer, how="cuMemAlloc, cuMemFree")

    def pool() -> Work:
        place, pool, stream = ctypes.c_uint64(0), bench.driver.pool(), bench.driver.stream()
        take = ("cuMemAllocFromPoolAsync", ctypes.addressof(place), MIB, pool, stream)
        wait = ("cuStreamSynchronize", stream)
        timer = bench.driver.timer([take, ("cuMemFreeAsync", place, stream)], 1000, [wait])
        return Work(timer, timer=timer, how="cuMemAllocFromPoolAsync, cuMemFreeAsync")

    part.add(OURS, lambda: Work(lambda: cu.device_empty(MIB, np.uint8), calls=CALLS))
    part.add(DRIVER, driver)
    part.add(POOL, pool)
    bench.offer(part, lambda peer: Work(peer.device_memory(MIB), calls=CALLS))
    return [part]


def to_device(bench: Bench) -> list[Part]:
    """A new array on the device with the numbers of one on the host."""
    part = Part("", goals=[at_most(11e-6)])
    host = bench.plain(4000).view(np.float32)
    part.add(OURS, lambda: Work(lambda: cu.to_device(host), calls=CALLS, how="to_device"))
    bench.offer(part, lambda peer: Work(peer.to_device(host), calls=CALLS))
    return [part]


def push_pop(bench: Bench) -> list[Part]:
    """A context that is entered and left."""
    part = Part("", goals=[at_most(0.25e-6)])
    context = cu.Device(0).primary_context()

    def ours() -> None:
        with context:
            pass

    def driver() -> Work:
        popped = ctypes.c_uint64(0)
        push = ("cuCtxPushCurrent_v2", bench.driver.context(0))
        pop = ("cuCtxPopCurrent_v2", ctypes.addressof(popped))
        timer = bench.driver.timer([push, pop], 5000)
        return Work(timer, timer=timer, keep=(popped,))

    part.add(OURS, lambda: Work(ours, calls=CALLS, how="with ctx: pass"))
    part.add(DRIVER, driver)
    bench.offer(part, lambda peer: Work(peer.push_pop(), calls=CALLS))
    return [part]

"""What single calls cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.bench import KIB, MIB, Bench, address
from benchmarks.measure import DRIVER, OURS, Part, Row, Work, at_most

POOL = "driver, pool"
ISSUES = 200  # small copies in a row: fewer than a stream's queue holds


def asynchronous(bench: Bench) -> Row:
    """A copy that is issued and then waited for: the call, and the whole."""
    row = Row(
        "asynchronous copy of a plain 256 MiB array: time until the call returns", "<= 0.1 ms"
    )
    wanted = 256 * MIB
    size = bench.size(wanted)
    returns = Part(bench.label("call", wanted), unit="ms", goals=[at_most(0.1e-3)])
    done = Part(bench.label("until done", wanted), unit="ms")
    host = bench.plain(size)

    def ours() -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, stream = cu.device_empty(size, np.uint8), cu.Stream()
        pending: list[cu.Transfer] = []

        def issue() -> None:
            pending.append(cu.copy_async(there, host, stream))

        def wait() -> None:
            pending.pop().wait()

        return issue, wait

    def driver() -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, stream, direct = cu.device_empty(size, np.uint8), bench.driver.stream(), bench.driver
        source = address(host)
        return (
            lambda: direct.issue(True, there.pointer, source, size, stream),
            lambda: direct.call("cuStreamSynchronize", stream),
        )

    def timed(whole: bool, make: Callable[[], Any]) -> Work:
        issue, wait = make()

        def timer() -> float:
            begin = time.perf_counter()
            issue()
            returned = time.perf_counter() - begin
            wait()
            return time.perf_counter() - begin if whole else returned

        return Work(issue, timer=timer)

    for part, whole in ((returns, False), (done, True)):
        part.add(OURS, lambda whole=whole: timed(whole, ours))
        part.add(DRIVER, lambda whole=whole: timed(whole, driver))
        bench.offer(part, lambda peer, whole=whole: timed(whole, lambda: peer.issue(host)))
        row.parts.append(part)
    return row


def small_issue(bench: Bench) -> Row:
    """Asynchronous copies of 4 KiB of page-locked memory, many in a row; the wait is not counted."""
    row = Row("4 KiB asynchronous copy, issue cost", "<= 2.60 us, taking arrays")
    part = Part("", goals=[at_most(2.60e-6)])
    direct = bench.driver

    def ours() -> Work:
        host, there = cu.pinned_empty(4 * KIB, np.uint8), cu.device_empty(4 * KIB, np.uint8)
        stream = cu.Stream()
        return Work(
            lambda: cu.copy_async(there, host, stream),
            after=stream.synchronize,
            calls=ISSUES,
            how="copy_async of arrays",
        )

    def driver() -> Work:
        host, there = cu.pinned_empty(4 * KIB, np.uint8), cu.device_empty(4 * KIB, np.uint8)
        pointer, source = there.pointer, address(host)
        return Work(
            lambda: None,
            timer=lambda: direct.copy_async(True, pointer, source, 4 * KIB, False, ISSUES),
            how=f"cuMemcpyHtoDAsync from {direct.loops}",
            keep=(host, there),
        )

    def theirs(peer: Any) -> Work:
        issue, wait = peer.small_issue(4 * KIB)
        return Work(issue, after=wait, calls=ISSUES)

    part.add(OURS, ours)
    part.add(DRIVER, driver)
    bench.offer(part, theirs)
    row.parts.append(part)
    return row


def device_memory(bench: Bench) -> Row:
    row = Row("device allocate + free, 1 MiB", "<= 1.2 us")
    part = Part("", goals=[at_most(1.2e-6)])
    direct = bench.driver
    part.add(OURS, lambda: Work(lambda: cu.device_empty(MIB, np.uint8), calls=0))
    part.add(DRIVER, lambda: Work(lambda: None, timer=lambda: direct.alloc(MIB, 20)))
    part.add(POOL, lambda: Work(lambda: None, timer=lambda: direct.pool_alloc(MIB, 1000)))
    bench.offer(part, lambda peer: Work(peer.device_memory(MIB), calls=0))
    row.parts.append(part)
    return row


def push_pop(bench: Bench) -> Row:
    """A context that is entered and left."""
    row = Row("context push + pop", "<= 0.25 us with `with ctx:`")
    part = Part("", goals=[at_most(0.25e-6)])
    direct = bench.driver

    def ours() -> Work:
        context = cu.Device(0).primary_context()

        def timer() -> float:
            repeat = range(5000)
            begin = time.perf_counter()
            for _ in repeat:
                with context:
                    pass
            return (time.perf_counter() - begin) / len(repeat)

        return Work(lambda: None, timer=timer, how="with ctx: pass", keep=(context,))

    part.add(OURS, ours)
    part.add(DRIVER, lambda: Work(lambda: None, timer=lambda: direct.push_pop(5000)))
    bench.offer(part, lambda peer: Work(peer.push_pop(), calls=0))
    row.parts.append(part)
    return row

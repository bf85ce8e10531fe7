"""What single calls cost."""

from __future__ import annotations

import time

import numpy as np

import cudriver as cu
from benchmarks.bench import KIB, MIB, Bench, address
from benchmarks.measure import DRIVER, OURS, Part, Row, Work, at_most
from benchmarks.peers import Peer

POOL = "driver, pool"
ISSUES = 200  # small copies in a row: fewer than a stream's queue holds


def asynchronous(bench: Bench) -> Row:
    """A copy that is issued and then waited for: the call, and the whole."""
    row = Row(
        "asynchronous copy of a plain 256 MiB array: time until the call returns", "<= 0.1 ms"
    )
    wanted = 256 * MIB
    size = bench.size(wanted)
    host = bench.plain(size)
    verify = bench.verifier(host)
    returns = Part(bench.label("call", wanted), unit="ms", goals=[at_most(0.1e-3)], verify=verify)
    done = Part(bench.label("until done", wanted), unit="ms", verify=verify)

    def ours() -> Work:
        there, stream = cu.device_empty(size, np.uint8), cu.Stream()
        pending: list[cu.Transfer] = []
        return Work(
            lambda: pending.append(cu.copy_async(there, host, stream)),
            after=lambda: pending.pop().wait(),
            pointer=lambda: there.pointer,
            how="copy_async",
        )

    def driver() -> Work:
        there, stream, direct = cu.device_empty(size, np.uint8), bench.driver.stream(), bench.driver
        pointer, source = there.pointer, address(host)
        return Work(
            lambda: direct.issue(True, pointer, source, size, stream),
            after=lambda: direct.call("cuStreamSynchronize", stream),
            pointer=lambda: there.pointer,
            how="cuMemcpyHtoDAsync by ctypes",
        )

    for part, whole in ((returns, False), (done, True)):
        part.add(OURS, lambda whole=whole: _issued(ours(), whole))
        part.add(DRIVER, lambda whole=whole: _issued(driver(), whole))
        bench.offer(part, lambda peer, whole=whole: _issued(peer.issue(host), whole))
        row.parts.append(part)
    return row


def _issued(work: Work, whole: bool) -> Work:
    """A copy that `run` issues and `after` waits for: timed to the call's return, or to the end."""
    issue, before, wait = work.run, work.before, work.after
    assert wait is not None

    def timer() -> float:
        if before is not None:
            before()
        begin = time.perf_counter()
        issue()
        returned = time.perf_counter() - begin
        wait()
        return time.perf_counter() - begin if whole else returned

    work.before = work.after = None
    work.timer = timer
    return work


def small_issue(bench: Bench) -> Row:
    """Copies of 4 KiB of page-locked memory, many in a row; the wait is not counted."""
    row = Row("4 KiB asynchronous copy, issue cost", "<= 2.60 us, taking arrays")
    plain = bench.plain(4 * KIB)
    part = Part("", goals=[at_most(2.60e-6)], verify=bench.verifier(plain))
    direct = bench.driver

    def ours() -> Work:
        host, there = cu.pinned_array(plain), cu.device_empty(4 * KIB, np.uint8)
        stream = cu.Stream()
        return Work(
            lambda: cu.copy_async(there, host, stream),
            after=stream.synchronize,
            calls=ISSUES,
            pointer=lambda: there.pointer,
            how="copy_async of arrays",
        )

    def driver() -> Work:
        host, there = cu.pinned_array(plain), cu.device_empty(4 * KIB, np.uint8)
        pointer, source = there.pointer, address(host)
        return Work(
            lambda: None,
            timer=lambda: direct.copy_async(True, pointer, source, 4 * KIB, False, ISSUES),
            pointer=lambda: pointer,
            how=f"cuMemcpyHtoDAsync from {direct.loops}",
            keep=(host, there),
        )

    def theirs(peer: Peer) -> Work:
        work = peer.small_issue(plain)
        work.calls = ISSUES
        return work

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

"""Two directions at once, two GPUs at once, from GPU to GPU; copies while a GPU computes, or while
memory is page-locked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, KIB, Bench
from benchmarks.measure import (
    OURS,
    PINNED,
    Part,
    Skip,
    Work,
    at_least_rate,
    at_most,
    times_as_fast,
)
from benchmarks.peers.base import Peer, first_time
from benchmarks.rows.calls import pytorch

ALONE = "computation alone"
IN_ONE = "pinned_empty, in one piece"
COMPUTE_S, BATCHES = 0.0776, 8
BATCH = (64, 3, 224, 224)  # float32: 36.8 MiB


def at_once(works: Sequence[Work]) -> Work:
    """All of them, a thread each. Returns, or raises, when all are done."""

    def run() -> None:
        with ThreadPoolExecutor(len(works)) as pool:
            for future in [pool.submit(work.run) for work in works]:
                future.result()

    return Work(run, targets=sum((work.targets for work in works), ()), how="a thread each")


def issued_together(works: Sequence[Work], how: str) -> Work:
    """All are issued, in one thread, and then waited for. Each work's `after` waits."""

    def run() -> None:
        for work in works:
            work.run()
        for work in works:
            assert work.after is not None
            work.after()

    return Work(run, targets=sum((work.targets for work in works), ()), how=how)


def in_threads(bench: Bench, share: float, make: Callable[[Peer, bool], list[Work]]) -> list[Part]:
    """Two copies of 1 GiB, a thread each, held to a share of the rate of the bus. `make` is told
    whether host memory is to be page-locked."""
    nbytes = 2 * bench.size(GIB)
    part = Part(bench.label("2 x 1 GiB", 2 * GIB, nbytes), nbytes, [times_as_fast(share, PINNED)])
    part.makers[PINNED] = lambda: at_once(make(bench.driver, True))
    return bench.offer(part, lambda who: at_once(make(who, False)))


def both_ways(bench: Bench) -> list[Part]:
    """An array up and another down, as large."""

    def make(who: Peer, pinned: bool) -> list[Work]:
        size = bench.size(GIB)
        host, out = bench.host(size, pinned), bench.out(size, pinned)
        return [who.up(host, stream=who.stream()), who.down(host, out, stream=who.stream())]

    return in_threads(bench, 0.75, make)


def two_devices(bench: Bench) -> list[Part]:
    """A plain array to each of two GPUs."""
    if cu.device_count() < 2:
        raise Skip("one GPU")

    def make(who: Peer, pinned: bool) -> list[Work]:
        halves = np.split(bench.host(2 * bench.size(GIB), pinned), 2)
        return [who.up(half, n, stream=who.stream(n)) for n, half in enumerate(halves)]

    return in_threads(bench, 0.85, make)


def across(bench: Bench) -> list[Part]:
    """From GPU 0 to GPU 1; and the same with as many bytes the other way, at once."""
    if cu.device_count() < 2:
        raise Skip("one GPU")
    size = bench.size(GIB)
    to = np.split(bench.host(2 * size), 2)  # the bytes of each GPU
    one = Part(bench.label("one way", GIB), size, [times_as_fast(1.0)])

    def rate(part: Part) -> float | None:
        mine, single = part.median(), one.median()
        return 2 * single / mine / 1.7 if mine and single else None

    def pair(who: Peer) -> Work:
        works = [who.across(to[n], 1 - n, n, wait=False) for n in (1, 0)]
        return issued_together(works, "two asynchronous copies")

    both = Part(bench.label("both ways", GIB), 2 * size, [rate])
    return bench.offer(one, lambda who: who.across(to[1], 0, 1)) + bench.offer(both, pair)


def later(size: int) -> Work:
    """New memory that a thread page-locks, until it has."""

    def take() -> object:
        pinning = cu.pinned_empty_async(size, np.uint8)
        pinning.wait()
        return pinning

    return first_time(take, cu.trim_host_memory, "pinned_empty_async")


def page_locking(bench: Bench) -> list[Part]:
    """New memory that a thread page-locks: the rate, and how long others' copies wait for it."""
    wanted = 32 * GIB
    size = min(wanted // 8 if bench.quick else wanted, 8 * bench.most)
    effort = {"rounds": 3, "least": 2, "long": 4.0}

    def ours() -> Work:
        return later(size)

    def one_piece() -> Work:
        return bench.ours.page_lock(size)

    def waits(work: Work) -> Work:
        """The longest copy of another thread, instead of the time."""
        host, there = bench.host(64 * KIB, pinned=True), cu.device_empty(64 * KIB, np.uint8)

        def run() -> float:
            over, longest = threading.Event(), 0.0

            def copies() -> None:
                nonlocal longest
                while not over.is_set():
                    begin = time.perf_counter()
                    cu.copy(there, host)
                    longest = max(longest, time.perf_counter() - begin)

            other = threading.Thread(target=copies)
            other.start()
            try:
                work.run()
            finally:
                over.set()
                other.join()
            return longest

        return Work(run, before=work.before, after=work.after, timed=True, how=work.how)

    goals = [at_least_rate(25), times_as_fast(0.85, IN_ONE)]
    rate = Part(bench.label("", wanted, size), size, goals, warm=False, effort=effort)
    wait = Part(
        bench.label("wait", wanted, size), 0, [at_most(5e-3)], "ms", warm=False, effort=effort
    )
    rate.makers = {OURS: ours, IN_ONE: one_piece}
    wait.makers = {OURS: lambda: waits(ours()), IN_ONE: lambda: waits(one_piece())}
    return [rate, wait]


def feeding(bench: Bench) -> list[Part]:
    """Plain batches that are copied while the GPU multiplies matrices for PyTorch."""
    torch = pytorch(bench)
    part = Part("", goals=[times_as_fast(1 / 1.02, ALONE)], unit="ms")
    compute, finish = torch.computing(COMPUTE_S), torch.wait()
    hosts = np.split(bench.host(BATCHES * bench.size(4 * int(np.prod(BATCH)))), BATCHES)

    def works(who: Peer, copy: Callable[..., Work]) -> Work:
        stream = who.stream()
        copies = [copy(host, stream=stream, wait=False) for host in hosts]
        return issued_together([Work(compute, after=finish), *copies], copies[0].how)

    part.makers[OURS] = lambda: works(bench.ours, bench.ours.up)
    part.makers[ALONE] = lambda: Work(lambda: (compute(), finish()))
    part.makers[torch.name] = lambda: [works(torch, torch.up), works(torch, torch.pinned_each)]
    return [part]

"""Two directions at once, two GPUs at once, from GPU to GPU, and copies while a GPU computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, Bench
from benchmarks.measure import OURS, PINNED, Part, Skip, Work, times_as_fast
from benchmarks.peers.base import Peer
from benchmarks.rows.calls import pytorch

ALONE = "computation alone"
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

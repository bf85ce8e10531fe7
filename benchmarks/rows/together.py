"""Two directions at once, two GPUs at once, from GPU to GPU, and copies while a GPU computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, Bench, at_once, issued_together
from benchmarks.measure import DRIVER, OURS, PINNED, Part, Skip, Work, times_as_fast
from benchmarks.peers.base import Peer

IN_THREADS = "a copy in each of two threads"
ALONE = "computation alone"
COMPUTE_S, BATCHES = 0.0776, 8
BATCH = (64, 3, 224, 224)  # float32: 36.8 MiB


def both_ways(bench: Bench) -> list[Part]:
    """An array up and another down, as large, in two threads."""
    size, ways = bench.size(GIB), ("up", "down")
    part = _threads_part(bench, 2 * size, 0.75)

    def theirs(peer: Peer) -> Work:
        host, out = bench.plain(size), bench.out(size)
        up = peer.up(host, stream=peer.stream())
        return at_once([up, peer.down(host, out, stream=peer.stream())], IN_THREADS)

    def direct(kind: str) -> Work:
        works = [bench.direct(f"{kind} {way}", size, thread=n) for n, way in enumerate(ways, 1)]
        return at_once(works, IN_THREADS)

    part.add(OURS, lambda: at_once([bench.ours(f"plain {w}", size) for w in ways], IN_THREADS))
    part.add(PINNED, lambda: direct("pinned"))
    part.add(DRIVER, lambda: direct("plain"))
    bench.offer(part, theirs)
    return [part]


def two_devices(bench: Bench) -> list[Part]:
    """A plain array to each of two GPUs, in two threads."""
    if cu.device_count() < 2:
        raise Skip("one GPU")
    size = bench.size(GIB)
    part = _threads_part(bench, 2 * size, 0.85)

    def to_both(make: Callable[[int], Work]) -> Work:
        return at_once([make(0), make(1)], IN_THREADS)

    def theirs(peer: Peer, number: int) -> Work:
        host = bench.plain(2 * size)[number * size :][:size]
        return peer.up(host, number=number, stream=peer.stream(number))

    part.add(OURS, lambda: to_both(lambda n: bench.ours("plain up", size, n)))
    part.add(PINNED, lambda: to_both(lambda n: bench.direct("pinned up", size, n, thread=1)))
    part.add(DRIVER, lambda: to_both(lambda n: bench.direct("plain up", size, n, thread=1)))
    bench.offer(part, lambda peer: to_both(lambda n: theirs(peer, n)))
    return [part]


def _threads_part(bench: Bench, nbytes: int, share: float) -> Part:
    goals = [times_as_fast(share, PINNED)]
    return Part(bench.label("2 x 1 GiB", 2 * GIB, nbytes), nbytes, goals, verify=bench.verify)


def across(bench: Bench) -> list[Part]:
    """From GPU 0 to GPU 1; and the same with as many bytes the other way, at once."""
    if cu.device_count() < 2:
        raise Skip("one GPU")
    size = bench.size(GIB)
    host = bench.plain(2 * size)[size:]  # the bytes of GPU 1
    one = Part(bench.label("one way", GIB), size, [times_as_fast(1.0)], verify=bench.verify)
    both = Part(bench.label("both ways", GIB), 2 * size, verify=bench.verify)

    def rate(part: Part) -> float | None:
        mine, single = part.median(), one.median()
        return 2 * single / mine / 1.7 if mine and single else None

    def pair(make: Callable[[int], Work]) -> Work:
        return issued_together([make(1), make(0)], "two asynchronous copies")

    both.goals.append(rate)
    one.add(OURS, lambda: bench.ours("across", size, 1))
    one.add(DRIVER, lambda: bench.direct("across", size, 1))
    bench.offer(one, lambda peer: issued_together([peer.across(host)], peer.way))
    both.add(OURS, lambda: pair(lambda n: bench.issue("across", size, n)))
    both.add(DRIVER, lambda: pair(lambda n: bench.direct("across", size, n, wait=False)))
    bench.offer(both, lambda peer: pair(lambda n: peer.across(host, n)))
    return [one, both]


def feeding(bench: Bench) -> list[Part]:
    """Plain batches that are copied while the GPU multiplies matrices for PyTorch."""
    torch = next((peer for peer in bench.peers if peer.name == "PyTorch"), None)
    if torch is None:
        raise Skip("needs PyTorch")
    part = Part("", goals=[times_as_fast(1 / 1.02, ALONE)], unit="ms", verify=bench.verify)
    compute, finish = torch.computing(COMPUTE_S), torch.wait()
    nbytes = bench.size(4 * int(np.prod(BATCH)))
    hosts = [bench.plain(BATCHES * nbytes)[n * nbytes :][:nbytes] for n in range(BATCHES)]

    def while_computing(copies: list[Work], how: str) -> Work:
        return issued_together([Work(compute, after=finish), *copies], how)

    def ours() -> Work:
        stream = cu.Stream()
        ends = [(cu.device_empty(nbytes, np.uint8), host) for host in hosts]
        works = [bench.copy_async(there, host, stream, host) for there, host in ends]
        return while_computing(works, "copy_async")

    def theirs() -> list[Work]:
        stream = torch.stream()
        return [
            while_computing([torch.issued(host, stream=stream) for host in hosts], torch.way),
            while_computing([torch.pinned_each(host, stream) for host in hosts], "pin_memory each"),
        ]

    part.add(OURS, ours)
    part.add(ALONE, lambda: Work(lambda: (compute(), finish())))
    part.add(torch.name, theirs)
    return [part]

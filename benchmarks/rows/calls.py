"""What single calls cost: copies that are issued, memory, contexts, DLPack."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, KIB, MIB, Bench, size_name
from benchmarks.measure import (
    DRIVER,
    NUMPY,
    OURS,
    Array,
    Call,
    Part,
    Skip,
    Work,
    at_least_rate,
    at_most,
    times_as_fast,
)
from benchmarks.peers.base import Peer
from benchmarks.peers.driver import POOL
from benchmarks.peers.ours import Lent

CALLS = 1000  # in a row, where one takes microseconds
ISSUES = 200  # small copies in a row: fewer than a stream's queue holds
LEAST = 1 / 1.2  # not slower than the fastest by more than a fifth


# Bytes of ordinary memory, and the seconds in which a copy on a stream has read them.
READ = {4 * KIB: 10e-6, MIB: 0.1e-3, 4 * 64 * 3 * 224 * 224: 1.2e-3, 256 * MIB: 8e-3}


def _read(bench: Bench, wanted: int) -> Part:
    label = bench.label(size_name(wanted), wanted)
    return Part(label, unit="us" if wanted < MIB else "ms", goals=[at_most(READ[wanted])])


def reading(bench: Bench) -> list[Part]:
    """A copy that is issued and then waited for; the wait is not counted."""
    parts = []
    for wanted in READ:
        host = bench.host(bench.size(wanted))
        parts += bench.offer(_read(bench, wanted), lambda who, h=host: who.up(h, wait=False))
    return parts


def _busy(bench: Bench, stream: cu.Stream, seconds: float) -> Call:
    """Copies on the device, which a call issues and the stream does for so long."""
    source = cu.device_zeros(bench.size(256 * MIB), np.uint8)
    target = cu.device_empty_like(source)

    def issue(count: int) -> None:
        for _ in range(count):
            cu.copy_async(target, source, stream)

    issue(4)
    stream.synchronize()
    begin = time.perf_counter()
    issue(16)
    stream.synchronize()
    return partial(issue, max(1, round(16 * seconds / (time.perf_counter() - begin))))


def reading_busy(bench: Bench) -> list[Part]:
    """The same behind 50 ms of copies on the device, which are on the stream."""
    torch = next((peer for peer in bench.peers if peer.name == "PyTorch"), None)
    stream: Any = None if torch is None else torch.current()
    ours = cu.Stream() if torch is None else cu.Stream.from_handle(stream.cuda_stream or 1)
    busy, parts = _busy(bench, ours, 0.05), []

    def works(who: Peer, host: Array, on: Any) -> Work:
        # Small ones several in a row: one alone, after a wait, finds the caches cold.
        calls = max(1, min(16, 8 * MIB // host.nbytes))
        return replace(who.up(host, wait=False, stream=on, calls=calls), before=busy)

    for wanted in READ:
        host, part = bench.host(bench.size(wanted)), _read(bench, wanted)
        for who in (bench.ours, bench.driver):
            part.makers[who.name] = partial(works, who, host, ours)
        if torch is not None:
            part.makers[torch.name] = partial(works, torch, host, stream)
        parts.append(part)
    return parts


def borrowing(bench: Bench) -> list[Part]:
    """A copy whose source is read later."""
    host = bench.host(bench.size(256 * MIB))
    part = Part(bench.label("", 256 * MIB), unit="ms", goals=[at_most(0.3e-3)])
    part.makers[OURS] = lambda: Lent().up(host, wait=False)
    return [part]


def small_issue(bench: Bench) -> list[Part]:
    """Copies of 4 KiB of page-locked memory, many in a row; the wait is not counted."""
    host = bench.host(4 * KIB, pinned=True)
    part = Part("", goals=[at_most(2.60e-6)])
    return bench.offer(part, lambda who: who.up(host, wait=False, calls=ISSUES))


def to_device(bench: Bench) -> list[Part]:
    """A new array on the device with the numbers of one on the host."""
    part = Part("", goals=[at_most(11e-6)], calls=CALLS)
    host = bench.host(4000).view(np.float32)
    return bench.offer(part, lambda who: who.to_device(host))


def push_pop(bench: Bench) -> list[Part]:
    """A context that is entered and left."""
    part = Part("", goals=[at_most(0.25e-6)], calls=CALLS)
    return bench.offer(part, lambda who: who.push_pop())


# --- memory ---------------------------------------------------------------------------------------


def device_memory(bench: Bench) -> list[Part]:
    part = Part("", goals=[at_most(1.2e-6)], calls=CALLS)
    bench.offer(part, lambda who: who.device_memory(MIB))
    part.makers[POOL] = lambda: bench.driver.pool_memory(MIB)
    return [part]


def first_time(bench: Bench) -> list[Part]:
    """Page-locked memory of which nothing comes from a pool."""
    wanted = 2 * GIB
    size = bench.size(wanted // 4 if bench.quick else wanted)
    goals = [at_least_rate(20), times_as_fast(10, DRIVER)]
    effort = {"rounds": 3, "least": 2, "long": 0.9}
    part = Part(bench.label("", wanted, size), size, goals, warm=False, effort=effort)
    return bench.offer(part, lambda who: who.page_lock(size))


def from_pool(bench: Bench) -> list[Part]:
    """Page-locked arrays that are made and given back again and again."""

    def part(label: str, wanted: int) -> list[Part]:
        size, label = bench.size(wanted), bench.label(label, wanted)
        made = Part(label, goals=[at_most(1.0e-6)], calls=CALLS, effort={"long": 0.3})
        made.makers[NUMPY] = lambda: partial(np.empty, size, np.uint8)
        return bench.offer(made, lambda who: who.pinned_array(size))

    return part("1 MiB", MIB) + part("1 GiB", GIB)


def inside_numpy(bench: Bench) -> list[Part]:
    """np.empty of 1 MiB, whose memory is used again and again, page-locked and not."""
    part = Part("1 MiB", goals=[times_as_fast(1 / 1.5, NUMPY)])
    plain = Work(lambda: np.empty(MIB, np.uint8), calls=CALLS, how="np.empty")

    def timer() -> float:
        with cu.pinned_numpy():
            return plain.seconds()

    part.makers[OURS] = lambda: Work(timer, timed=True, how="np.empty inside pinned_numpy()")
    part.makers[NUMPY] = lambda: plain
    return [part]


# --- arrays of other libraries --------------------------------------------------------------------


def pytorch(bench: Bench) -> Any:
    for peer in bench.peers:
        if peer.name == "PyTorch":
            return peer
    raise Skip("needs PyTorch")


def matrix(bench: Bench) -> Array:
    return bench.host(4 * KIB).view(np.float32).reshape(32, 32)


def lent(bench: Bench) -> list[Part]:
    """A tensor of PyTorch over an array of ours, or of a peer's."""
    torch, like = pytorch(bench), matrix(bench)
    part = Part("", goals=[times_as_fast(LEAST)], calls=CALLS)
    return bench.offer(part, lambda who: torch.takes(who.lender(like)))


def taken(bench: Bench) -> list[Part]:
    """An array of ours, or of a peer's, over a tensor of PyTorch, ordered with its stream: with
    address, shape, strides and type, which a view may read late."""
    torch = pytorch(bench)
    tensor = torch.device(matrix(bench))
    part = Part("", goals=[times_as_fast(LEAST)], calls=CALLS)
    # PyTorch itself takes nothing: the tensor is its own.
    return bench.offer(part, lambda who: who.nothing() if who is torch else who.takes(tensor))


def copied_into(bench: Bench) -> list[Part]:
    """As the row of small copies, with a tensor of PyTorch as our destination, and as cuda-core's:
    its own Buffer has neither shape nor type. The bytes alone (cuda-bindings) are not judged."""
    host = bench.host(4 * KIB, pinned=True)
    tensor = pytorch(bench).device(host)
    part = Part("", goals=[times_as_fast(LEAST, "PyTorch", "CuPy", "cuda-core")])
    return bench.offer(part, lambda who: who.issued_into(tensor, host, ISSUES))

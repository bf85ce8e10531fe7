"""Blocks of a cache between host and device, as vLLM's benchmark of them describes: vllm#48936."""

from __future__ import annotations

from functools import partial

import numpy as np

import cudriver as cu
from benchmarks.bench import KIB, MIB, Bench, size_name
from benchmarks.measure import OURS, Part, Skip, Work, times_as_fast
from benchmarks.peers.base import Peer
from benchmarks.rows.calls import pytorch

STRATEGIES = ("naive", "batch", "swap", "Triton")
SIZES = [KIB << step for step in range(2, 11, 2)]  # 4 KiB to 1 MiB
MEMORY, IN_A_ROW = 256 * MIB, 64 * MIB  # bytes of a cache, and of the copies that make a sample
MOST = 4096  # blocks of a call


def copy(bench: Bench, size: int, up: bool, who: Peer) -> Work:
    """Blocks from anywhere to anywhere, so many calls in a row, and the wait for all."""
    host = bench.host(bench.size(MEMORY), pinned=True).reshape(-1, size)
    rng, count = np.random.default_rng(1), min(MOST, len(host))
    of, to = rng.permutation(len(host))[:count], rng.permutation(count)
    out = None if up else bench.out(count * size, pinned=True).reshape(-1, size)
    return who.rows(host, of, to, out, max(1, bench.size(IN_A_ROW) // (count * size)))


def strategies(bench: Bench) -> dict[str, Peer]:
    """What the benchmark compares, each written anew."""
    pytorch(bench)
    try:
        from benchmarks.peers.blocks import Batch, Naive, Triton
    except ImportError:
        raise Skip("needs Triton") from None
    peers = Naive(), Batch(cu.driver_path()), bench.driver, Triton()
    return dict(zip(STRATEGIES, peers, strict=True))


def row(bench: Bench) -> list[Part]:
    others, parts = strategies(bench), []
    for size in (each for each in SIZES if each <= bench.size(MEMORY)):
        count = min(MOST, bench.size(MEMORY) // size)
        times = max(1, bench.size(IN_A_ROW) // (count * size))
        for up in (True, False):
            label, wanted = f"{size_name(size)} {'up' if up else 'down'}", min(MOST * size, MEMORY)
            label = bench.label(label, wanted, count * size)
            part = Part(label, times * count * size, [times_as_fast(1.0, *STRATEGIES)])
            for name, who in {OURS: bench.ours, **others}.items():
                part.makers[name] = partial(copy, bench, size, up, who)
            parts.append(part)
    return parts

"""Arrays that pass from one library to another without a copy, and copies into another's array."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.bench import KIB, Bench
from benchmarks.measure import OURS, Array, Part, Skip, Work, times_as_fast
from benchmarks.peers.base import Peer
from benchmarks.rows.calls import CALLS, ISSUES

LEAST = 1 / 1.2  # not slower than the fastest by more than a fifth


def pytorch(bench: Bench) -> Any:
    for peer in bench.peers:
        if peer.name == "PyTorch":
            return peer
    raise Skip("needs PyTorch")


def matrix(bench: Bench) -> Array:
    return bench.plain(4 * KIB).view(np.float32).reshape(32, 32)


def lent(bench: Bench) -> list[Part]:
    """A tensor of PyTorch over an array of ours, or of a peer's."""
    take, like = pytorch(bench).takes, matrix(bench)

    def work(lender: Any) -> Work:
        return Work(take(lender), calls=CALLS, how=f"torch.from_dlpack({type(lender).__name__})")

    part = Part("", goals=[times_as_fast(LEAST)])
    part.add(OURS, lambda: work(cu.device_empty(like.shape, like.dtype)))
    bench.offer(part, lambda peer: work(peer.lender(like)))
    return [part]


def taken(bench: Bench) -> list[Part]:
    """An array of ours, or of a peer's, over a tensor of PyTorch, ordered with its stream: with
    address, shape, strides and type, which a view may read late."""
    tensor = pytorch(bench).device(matrix(bench))

    def ours() -> Any:
        array = cu.from_dlpack(tensor)
        return array.pointer, array.shape, array.strides, array.dtype

    part = Part("", goals=[times_as_fast(LEAST)])
    part.add(OURS, lambda: Work(ours, calls=CALLS, how="from_dlpack"))
    bench.offer(part, lambda peer: others(peer, partial(peer.takes, tensor)))
    return [part]


def others(peer: Peer, make: Callable[[], Callable[[], Any]]) -> Work:
    if peer.name == "PyTorch":
        raise NotImplementedError  # the tensor is its own
    return Work(make(), calls=CALLS, how="from_dlpack")


def copied_into(bench: Bench) -> list[Part]:
    """As the row of small copies, with a tensor of PyTorch as our destination, and as cuda-core's:
    its own Buffer has neither shape nor type. The bytes alone (cuda-bindings) are not judged."""
    size, torch = 4 * KIB, pytorch(bench)
    source, tensor, stream = bench.pinned(size), torch.device(bench.plain(size)), cu.Stream()
    part = Part("", goals=[times_as_fast(LEAST, "PyTorch", "CuPy", "cuda-core")])
    part.verify = bench.verify

    def ours() -> Work:
        work = bench.copy_async(cu.from_dlpack(tensor), source, stream, bench.plain(size), ISSUES)
        work.run = partial(cu.copy_async, tensor, source, stream)
        return work

    part.add(OURS, ours)
    bench.offer(part, lambda peer: peer.issued_into(tensor, bench.plain(size), ISSUES))
    return [part]

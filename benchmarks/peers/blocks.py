"""Block copies as vLLM's benchmark of them describes (vllm#48936): naive, batch and Triton.

Its fourth, swap, is a loop of asynchronous copies in C, as `Driver` does it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from benchmarks.measure import Array, Call, Work
from benchmarks.peers.base import Copy
from benchmarks.peers.driver import Driver
from benchmarks.peers.with_torch import Torch

ANY_ORDER = 3  # CU_MEMCPY_SRC_ACCESS_ORDER_ANY: nobody writes the sources meanwhile
CHUNK = 1024  # words of 8 bytes that a program moves at a time


class Naive(Torch):
    """A tensor's copy for each block."""

    rows_way = "Tensor.copy_ of each"

    def rows_issue(self, target: Any, source: Any, to: Array, of: Array, width: int) -> Call:
        pairs = list(zip((to // width).tolist(), (of // width).tolist(), strict=True))

        def run() -> None:
            for there, here in pairs:
                target[there].copy_(source[here], non_blocking=True)

        return run


class Batch(Driver):
    """One call of the driver for all blocks, with addresses that are ready."""

    def rows_work(self, copy: Copy, to: Array, of: Array, width: int, times: int) -> Work:
        stream = self.own
        _, there, here, *_ = self._call(copy.target, copy.source, stream.handle)
        targets, sources = (there + to).astype(np.uint64), (here + of).astype(np.uint64)
        sizes = np.full(len(to), width, np.uint64)
        attributes = (ctypes.c_uint32 * 6)(ANY_ORDER)  # for all from `first` on, without hints
        first, failed = ctypes.c_size_t(0), ctypes.c_size_t(0)
        lists = [each.ctypes.data for each in (targets, sources, sizes)]
        places = [ctypes.byref(each) for each in (attributes, first)]

        def run() -> None:
            for _ in range(times):
                self.call("cuMemcpyBatchAsync", *lists, len(to), *places, 1,
                          ctypes.byref(failed), stream.handle)  # fmt: skip
            stream.synchronize()

        keep = (copy.target, copy.source, targets, sources, sizes, attributes, first, failed)
        return Work(run, targets=(copy.written,), how="cuMemcpyBatchAsync", keep=keep)


def move(target, source, to, of, words, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program for each block. All are addresses, which the compiler takes as integers."""
    block, lane = tl.program_id(0), tl.arange(0, size)
    into = target + tl.load(to.to(tl.pointer_type(tl.int64)) + block)
    out_of = source + tl.load(of.to(tl.pointer_type(tl.int64)) + block)
    write, read = into.to(tl.pointer_type(tl.int64)), out_of.to(tl.pointer_type(tl.int64))
    for begin in range(0, words, size):
        inside = begin + lane < words
        taken = tl.load(read + begin + lane, mask=inside)
        tl.store(write + begin + lane, taken, mask=inside)


class Triton(Torch):
    """A kernel that reads and writes the host's memory over the bus."""

    rows_way = "a kernel of Triton's, a program for each block"
    kernel = staticmethod(triton.jit(move))

    def rows_issue(self, target: Any, source: Any, to: Array, of: Array, width: int) -> Call:
        grid, kernel, words = (len(to),), self.kernel, width // 8
        ends = target.data_ptr(), source.data_ptr()
        offsets = torch.from_numpy(np.stack([to, of])).pin_memory()

        def run() -> None:
            there = offsets.to("cuda", non_blocking=True)
            kernel[grid](*ends, *(row.data_ptr() for row in there), words, size=min(CHUNK, words))

        return run

"""cudriver itself."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.measure import OURS, Array, Call, Target, Work
from benchmarks.peers.base import Copy, Peer, View, first_time


class Own(Peer):
    """With memory and streams of cudriver."""

    def device(self, like: Array, number: int = 0) -> Any:
        return cu.device_empty(like.shape, like.dtype, device=number)

    def pointer(self, there: Any) -> int:
        return int(there.pointer)

    def host(self, array: Array) -> Any:
        return array

    def locked(self, like: Array) -> tuple[Any, Array]:
        return like, like

    def stream(self, number: int = 0) -> Any:
        return cu.Stream(device=number)


class Ours(Own):
    name = OURS
    lent = False  # whether asynchronous copies may read their sources later
    lender = Own.device

    def copy(self, copy: Copy) -> Work:
        target, source = copy.target, copy.source
        if copy.wait:
            plan = cu.explain_copy(target, source)
            return copy.work(lambda: cu.copy(target, source), f"copy: {plan.staging or plan.path}")
        stream = copy.stream or cu.Stream()
        after = stream.synchronize
        lent = self.lent
        issue = lambda: cu.copy_async(target, source, stream, borrow=lent)  # noqa: E731
        return copy.work(issue, "copy_async", after)

    rows_way = "copy_rows"

    def rows_issue(self, target: Any, source: Any, to: Array, of: Array, width: int) -> Call:
        rows, source_rows, stream = to // width, of // width, self.rows_stream
        return lambda: cu.copy_rows_async(target, source, rows, source_rows, stream=stream)

    def wait(self, stream: Any = None) -> Call:
        return self.rows_stream.synchronize

    @cached_property
    def rows_stream(self) -> cu.Stream:
        return cu.Stream()

    def many(self, host: Array) -> Work:
        """Each row of page-locked memory to a row of device memory, issued."""
        there, stream = self.device(host), cu.Stream()
        pairs = [there[i] for i in range(len(host))], list(host)
        copy = Copy(there, host, Target(host, pointer=there.pointer))
        issue = lambda: cu.copy_many_async(*pairs, stream=stream)  # noqa: E731
        return copy.work(issue, "copy_many", stream.synchronize)

    def issued_into(self, tensor: Any, host: Array, calls: int) -> Work:
        written = Target(host, pointer=cu.from_dlpack(tensor).pointer)
        return self.copy(Copy(tensor, host, written, wait=False, calls=calls))

    def strided_up(self, base: Array, view: View) -> Work:
        return self.up(view(base))

    def strided_down(self, base: Array, view: View, out: Array) -> Work:
        return self.down(np.ascontiguousarray(view(base)), out)

    def page_lock(self, nbytes: int) -> Work:
        how = "pinned_empty, the pool trimmed"
        return first_time(self.pinned_array(nbytes), cu.trim_host_memory, how)

    def pinned_array(self, nbytes: int) -> Call:
        return partial(cu.pinned_empty, nbytes, np.uint8)

    def device_memory(self, nbytes: int) -> Call:
        return lambda: cu.device_empty(nbytes, np.uint8)

    def to_device(self, host: Array) -> Call:
        return lambda: cu.to_device(host)

    def push_pop(self) -> Call:
        context = cu.Device(0).primary_context()

        def call() -> None:
            with context:
                pass

        return call

    def takes(self, lender: Any) -> Call:
        def call() -> Any:
            array = cu.from_dlpack(lender)
            return array.pointer, array.shape, array.strides, array.dtype

        return call


class Lent(Ours):
    lent = True

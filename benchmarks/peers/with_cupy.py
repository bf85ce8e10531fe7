from __future__ import annotations

from typing import Any

import cupy
import cupyx
import numpy as np

from benchmarks.measure import Array, Call, Work
from benchmarks.peers.base import Peer, first_time


class CuPy(Peer):
    name = "CuPy"
    way = "ndarray.set, ndarray.get(out=)"
    views = True

    def __init__(self) -> None:
        cupy.empty(1, np.uint8)
        self.version = cupy.__version__

    def device(self, like: Array, number: int = 0) -> Any:
        with cupy.cuda.Device(number):
            return cupy.empty(like.shape, like.dtype)

    lender = device

    def pointer(self, there: Any) -> int:
        return int(there.data.ptr)

    def host(self, array: Array) -> Any:
        return array

    def locked(self, like: Array) -> tuple[Any, Array]:
        made = cupyx.empty_pinned(like.shape, like.dtype)
        return made, made

    def stream(self, number: int = 0) -> Any:
        with cupy.cuda.Device(number):
            return cupy.cuda.Stream(non_blocking=True)

    def issue(self, target: Any, source: Any, stream: Any = None) -> Call:
        if isinstance(target, np.ndarray):
            return lambda: source.get(stream=stream, out=target, blocking=False)
        if isinstance(source, np.ndarray):
            return lambda: target.set(source, stream=stream)
        copy, origin, nbytes = target.data.copy_from_device_async, source.data, source.nbytes
        return lambda: copy(origin, nbytes, stream)

    def wait(self, stream: Any = None) -> Call:
        chosen = cupy.cuda.get_current_stream() if stream is None else stream
        return chosen.synchronize  # type: ignore[no-any-return]

    def page_lock(self, nbytes: int) -> Work:
        pool = cupy.cuda.PinnedMemoryPool()  # one of its own: nothing else is freed
        how = "PinnedMemoryPool.malloc"
        return first_time(lambda: pool.malloc(nbytes), pool.free_all_blocks, how)

    def pinned_array(self, nbytes: int) -> Call:
        return lambda: cupyx.empty_pinned(nbytes, np.uint8)

    def device_memory(self, nbytes: int) -> Call:
        return lambda: cupy.empty(nbytes, np.uint8)

    def to_device(self, host: Array) -> Call:
        return lambda: cupy.asarray(host)

    def takes(self, lender: Any) -> Call:
        def call() -> Any:
            array = cupy.from_dlpack(lender)
            return array.data.ptr, array.shape, array.strides, array.dtype

        return call

    def contiguous(self, shown: Array) -> Any:
        return np.ascontiguousarray(shown)

    def assign(self, there: Any, view: Any) -> None:
        there[...] = view

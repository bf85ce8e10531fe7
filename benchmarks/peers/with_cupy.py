from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import cupyx
import numpy as np

from benchmarks.measure import Work
from benchmarks.peers.base import Array, Peer, View, device_address


class CuPy(Peer):
    name = "CuPy"

    def __init__(self) -> None:
        if cupy.cuda.runtime.getDeviceCount() < 1:
            raise RuntimeError("no device")
        cupy.empty(1, np.uint8)
        self.version = cupy.__version__

    @staticmethod
    def sync() -> None:
        cupy.cuda.get_current_stream().synchronize()

    def _up(self, host: Array, how: str) -> Work:
        there = cupy.empty(host.shape, host.dtype)

        def run() -> None:
            there.set(host)
            self.sync()

        return Work(run, pointer=lambda: device_address(there), keep=(host,), how=how)

    def _down(self, host: Array, out: Array, how: str) -> Work:
        there = cupy.asarray(host)
        self.sync()
        return Work(lambda: there.get(out=out), out=out, how=how)

    def up(self, host: Array) -> Work:
        return self._up(host, "ndarray.set")

    def down(self, host: Array, out: Array) -> Work:
        return self._down(host, out, "ndarray.get(out=)")

    def pinned_up(self, host: Array) -> Work:
        locked = cupyx.empty_pinned(host.shape, host.dtype)
        locked[...] = host
        return self._up(locked, "cupyx.empty_pinned, ndarray.set")

    def pinned_down(self, host: Array) -> Work:
        out = cupyx.empty_pinned(host.shape, host.dtype)
        return self._down(host, out, "cupyx.empty_pinned, ndarray.get(out=)")

    def strided_up(self, base: Array, view: View) -> Work | list[Work]:
        there = cupy.empty(view(base).shape, base.dtype)
        whole = cupy.empty(base.shape, base.dtype)

        def on_device() -> None:
            whole.set(base)
            there[...] = view(whole)
            self.sync()

        def by_numpy() -> None:
            there.set(np.ascontiguousarray(view(base)))
            self.sync()

        def pointer() -> int:
            return device_address(there)

        ways = [Work(on_device, pointer=pointer, how="all of it sent, copied on the GPU")]
        if view(base).strides[-1] <= 2 * base.itemsize:  # a transpose by NumPy takes seconds
            ways.append(Work(by_numpy, pointer=pointer, how="packed by NumPy, ndarray.set"))
        return ways

    def strided_down(self, base: Array, view: View, out: Array) -> Work | list[Work]:
        there = cupy.asarray(np.ascontiguousarray(view(base)))
        buffer = np.empty(out.shape, out.dtype)

        def run() -> None:
            there.get(out=buffer)
            out[...] = buffer

        return Work(run, out=out, how="ndarray.get, then NumPy's assignment")

    def both_ways(self, host: Array, out: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, source = cupy.empty(host.shape, host.dtype), cupy.asarray(host)
        self.sync()
        streams = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)

        def up() -> None:
            there.set(host, stream=streams[0])
            streams[0].synchronize()

        def down() -> None:
            source.get(stream=streams[1], out=out)
            streams[1].synchronize()

        return up, down

    def to_devices(self, hosts: list[Array]) -> list[Callable[[], Any]]:
        def copy(number: int, host: Array) -> Callable[[], None]:
            with cupy.cuda.Device(number):
                there = cupy.empty(host.shape, host.dtype)

            def run() -> None:
                with cupy.cuda.Device(number):
                    there.set(host)
                    self.sync()

            return run

        return [copy(number, host) for number, host in enumerate(hosts)]

    def across(self, host: Array) -> Work:
        with cupy.cuda.Device(0):
            source = cupy.asarray(host)
            self.sync()
        with cupy.cuda.Device(1):
            there = cupy.empty(host.shape, host.dtype)

        def run() -> None:
            with cupy.cuda.Device(1):
                there.data.copy_from_device_async(source.data, host.nbytes)
                self.sync()

        return Work(run, pointer=lambda: device_address(there), how="MemoryPointer.copy_from_device")

    def issue(self, host: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, stream = cupy.empty(host.shape, host.dtype), cupy.cuda.Stream(non_blocking=True)
        return lambda: there.set(host, stream=stream), stream.synchronize

    def small_issue(self, nbytes: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        locked, there = cupyx.zeros_pinned(nbytes, np.uint8), cupy.empty(nbytes, np.uint8)
        stream = cupy.cuda.Stream(non_blocking=True)
        return lambda: there.set(locked, stream=stream), stream.synchronize

    def page_lock(self, nbytes: int) -> Work:
        pool = cupy.cuda.PinnedMemoryPool()  # one of its own: nothing else is freed
        held: list[Any] = []

        def after() -> None:
            held.clear()
            pool.free_all_blocks()

        return Work(
            lambda: held.append(pool.malloc(nbytes)), after=after, how="PinnedMemoryPool.malloc"
        )

    def pinned_array(self, nbytes: int) -> Callable[[], Any]:
        return lambda: cupyx.empty_pinned(nbytes, np.uint8)

    def device_memory(self, nbytes: int) -> Callable[[], Any]:
        return lambda: cupy.empty(nbytes, np.uint8)

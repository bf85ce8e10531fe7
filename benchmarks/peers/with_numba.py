from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numba import cuda

from benchmarks.measure import Work
from benchmarks.peers.base import Array, Peer, View, device_address


class Numba(Peer):
    name = "numba-cuda"

    def __init__(self) -> None:
        cuda.device_array(1, np.uint8)
        try:
            self.version = version("numba-cuda")
        except PackageNotFoundError:
            self.version = version("numba") + " (numba)"
        warnings.filterwarnings("ignore", module="numba")

    def _up(self, host: Array, how: str) -> Work:
        there = cuda.device_array(host.shape, host.dtype)

        def run() -> None:
            there.copy_to_device(host)
            cuda.synchronize()

        return Work(run, pointer=lambda: device_address(there), keep=(host,), how=how)

    def _down(self, host: Array, out: Array, how: str) -> Work:
        there = cuda.to_device(host)
        cuda.synchronize()
        return Work(lambda: there.copy_to_host(out), out=out, how=how)

    def up(self, host: Array) -> Work:
        return self._up(host, "copy_to_device")

    def down(self, host: Array, out: Array) -> Work:
        return self._down(host, out, "copy_to_host")

    def pinned_up(self, host: Array) -> Work:
        locked = cuda.pinned_array(host.shape, host.dtype)
        locked[...] = host
        return self._up(locked, "pinned_array, copy_to_device")

    def pinned_down(self, host: Array) -> Work:
        out = cuda.pinned_array(host.shape, host.dtype)
        return self._down(host, out, "pinned_array, copy_to_host")

    def strided_up(self, base: Array, view: View) -> Work | list[Work]:
        shown = view(base)
        if shown.strides[-1] > 2 * base.itemsize:
            raise NotImplementedError  # a transpose packed by NumPy takes seconds
        there = cuda.device_array(shown.shape, shown.dtype)

        def run() -> None:
            there.copy_to_device(np.ascontiguousarray(shown))
            cuda.synchronize()

        how = "packed by NumPy, copy_to_device"
        return Work(run, pointer=lambda: device_address(there), how=how)

    def strided_down(self, base: Array, view: View, out: Array) -> Work | list[Work]:
        there = cuda.to_device(np.ascontiguousarray(view(base)))
        buffer = np.empty(out.shape, out.dtype)

        def run() -> None:
            there.copy_to_host(buffer)
            out[...] = buffer

        return Work(run, out=out, how="copy_to_host, then NumPy's assignment")

    def issue(self, host: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, stream = cuda.device_array(host.shape, host.dtype), cuda.stream()
        return lambda: there.copy_to_device(host, stream=stream), stream.synchronize

    def small_issue(self, nbytes: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        locked, there = cuda.pinned_array(nbytes, np.uint8), cuda.device_array(nbytes, np.uint8)
        stream = cuda.stream()
        return lambda: there.copy_to_device(locked, stream=stream), stream.synchronize

    def page_lock(self, nbytes: int) -> Work:
        held: list[Any] = []

        def after() -> None:
            held.clear()
            cuda.current_context().deallocations.clear()

        return Work(
            lambda: held.append(cuda.pinned_array(nbytes, np.uint8)), after=after, how="pinned_array"
        )

    def pinned_array(self, nbytes: int) -> Callable[[], Any]:
        return lambda: cuda.pinned_array(nbytes, np.uint8)

    def device_memory(self, nbytes: int) -> Callable[[], Any]:
        return lambda: cuda.device_array(nbytes, np.uint8)

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

import pycuda
import pycuda.driver as driver
import pycuda.tools as tools
import numpy as np

from benchmarks.measure import Work
from benchmarks.peers.base import Array, Peer


class PyCuda(Peer):
    name = "PyCUDA"

    def __init__(self) -> None:
        driver.init()
        self.context = driver.Device(0).retain_primary_context()
        self.context.push()
        atexit.register(self.context.pop)
        self.version = pycuda.VERSION_TEXT

    def _up(self, host: Array, how: str) -> Work:
        there = driver.mem_alloc(host.nbytes)

        def run() -> None:
            driver.memcpy_htod(there, host)
            driver.Context.synchronize()

        return Work(run, pointer=lambda: int(there), keep=(host,), how=how)

    def _down(self, host: Array, out: Array, how: str) -> Work:
        there = driver.mem_alloc(host.nbytes)
        driver.memcpy_htod(there, host)
        return Work(lambda: driver.memcpy_dtoh(out, there), out=out, how=how)

    def up(self, host: Array) -> Work:
        return self._up(host, "memcpy_htod")

    def down(self, host: Array, out: Array) -> Work:
        return self._down(host, out, "memcpy_dtoh")

    def pinned_up(self, host: Array) -> Work:
        locked = driver.pagelocked_empty(host.shape, host.dtype)
        locked[...] = host
        return self._up(locked, "pagelocked_empty, memcpy_htod")

    def pinned_down(self, host: Array) -> Work:
        out = driver.pagelocked_empty(host.shape, host.dtype)
        return self._down(host, out, "pagelocked_empty, memcpy_dtoh")

    def issue(self, host: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, stream = driver.mem_alloc(host.nbytes), driver.Stream()
        return lambda: driver.memcpy_htod_async(there, host, stream), stream.synchronize

    def small_issue(self, nbytes: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        locked = driver.pagelocked_empty(nbytes, np.uint8)
        there, stream = driver.mem_alloc(nbytes), driver.Stream()
        return lambda: driver.memcpy_htod_async(there, locked, stream), stream.synchronize

    def page_lock(self, nbytes: int) -> Work:
        held: list[Any] = []
        return Work(
            lambda: held.append(driver.pagelocked_empty(nbytes, np.uint8)),
            after=held.clear,
            how="pagelocked_empty",
        )

    def pinned_array(self, nbytes: int) -> Callable[[], Any]:
        pool = tools.PageLockedMemoryPool()
        return lambda: pool.allocate((nbytes,), np.uint8)

    def device_memory(self, nbytes: int) -> Callable[[], Any]:
        pool = tools.DeviceMemoryPool()
        return lambda: pool.allocate(nbytes)

    def push_pop(self) -> Callable[[], Any]:
        context = self.context

        def call() -> None:
            context.push()
            context.pop()

        return call

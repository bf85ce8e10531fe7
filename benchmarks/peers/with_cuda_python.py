from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from cuda.bindings import driver

from benchmarks.measure import Work
from benchmarks.peers.base import Array, Peer, View


def called(answer: tuple[Any, ...]) -> Any:
    """The result of a call of cuda-bindings; an exception where its code is not 0."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(answer[0]))
    return answer[1] if len(answer) == 2 else answer[1:]


def at(array: Array) -> int:
    return int(array.ctypes.data)


class Bindings(Peer):
    name = "cuda-bindings"

    def __init__(self) -> None:
        called(driver.cuInit(0))
        self.version = version("cuda-bindings")
        self.contexts = {0: called(driver.cuDevicePrimaryCtxRetain(0))}
        called(driver.cuCtxSetCurrent(self.contexts[0]))
        self.stream = self._stream()

    @staticmethod
    def _stream() -> Any:
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return called(driver.cuStreamCreateWithPriority(flags, 0))

    def _there(self, nbytes: int) -> Any:
        return Owned(called(driver.cuMemAlloc(nbytes)), driver.cuMemFree)

    def _locked(self, nbytes: int) -> Any:
        return Owned(called(driver.cuMemHostAlloc(nbytes, 0)), driver.cuMemFreeHost)

    def up(self, host: Array) -> Work:
        there, source, nbytes = self._there(host.nbytes), at(host), host.nbytes

        def run() -> None:
            called(driver.cuMemcpyHtoD(there.value, source, nbytes))
            called(driver.cuStreamSynchronize(0))

        return Work(run, pointer=there.address, keep=(host, there), how="cuMemcpyHtoD")

    def down(self, host: Array, out: Array) -> Work:
        there, target, nbytes = self._there(host.nbytes), at(out), host.nbytes
        called(driver.cuMemcpyHtoD(there.value, at(host), nbytes))
        return Work(
            lambda: called(driver.cuMemcpyDtoH(target, there.value, nbytes)),
            out=out,
            keep=(there,),
            how="cuMemcpyDtoH",
        )

    def _wait(self) -> None:
        called(driver.cuStreamSynchronize(self.stream))

    def pinned_up(self, host: Array) -> Work:
        there, locked = self._there(host.nbytes), self._locked(host.nbytes)
        nbytes, stream, source = host.nbytes, self.stream, locked.address()
        ctypes.memmove(source, at(host), nbytes)

        def run() -> None:
            called(driver.cuMemcpyHtoDAsync(there.value, source, nbytes, stream))
            self._wait()

        return Work(run, pointer=there.address, keep=(there, locked), how="cuMemcpyHtoDAsync")

    def pinned_down(self, host: Array) -> Work:
        there, locked = self._there(host.nbytes), self._locked(host.nbytes)
        nbytes, stream, target = host.nbytes, self.stream, locked.address()
        called(driver.cuMemcpyHtoD(there.value, at(host), nbytes))
        out = np.frombuffer((ctypes.c_ubyte * nbytes).from_address(target), np.uint8)

        def run() -> None:
            called(driver.cuMemcpyDtoHAsync(target, there.value, nbytes, stream))
            self._wait()

        return Work(run, out=out, keep=(there, locked), how="cuMemcpyDtoHAsync")

    def strided_up(self, base: Array, view: View) -> Work | list[Work]:
        shown = view(base)
        if shown.strides[-1] > 2 * base.itemsize:
            raise NotImplementedError  # a transpose packed by NumPy takes seconds
        there, nbytes = self._there(shown.nbytes), shown.nbytes

        def run() -> None:
            packed = np.ascontiguousarray(shown)
            called(driver.cuMemcpyHtoD(there.value, at(packed), nbytes))
            called(driver.cuStreamSynchronize(0))

        return Work(run, pointer=there.address, keep=(there,), how="packed by NumPy, cuMemcpyHtoD")

    def issue(self, host: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, source, nbytes = self._there(host.nbytes), at(host), host.nbytes
        stream, kept = self.stream, (there, host)

        def call(kept: Any = kept) -> None:
            called(driver.cuMemcpyHtoDAsync(there.value, source, nbytes, stream))

        return call, self._wait

    def small_issue(self, nbytes: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, locked = self._there(nbytes), self._locked(nbytes)
        ends = (there.value, locked.address(), nbytes, self.stream)
        copy = driver.cuMemcpyHtoDAsync

        def call(kept: Any = (there, locked)) -> None:
            copy(*ends)

        return call, self._wait

    def page_lock(self, nbytes: int) -> Work:
        held: list[Any] = []
        return Work(
            lambda: held.append(self._locked(nbytes)), after=held.clear, how="cuMemHostAlloc"
        )

    def device_memory(self, nbytes: int) -> Callable[[], Any]:
        pool = called(driver.cuDeviceGetDefaultMemPool(0))
        keep = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        called(driver.cuMemPoolSetAttribute(pool, keep, driver.cuuint64_t(nbytes * 4)))
        stream, take, give = self.stream, driver.cuMemAllocAsync, driver.cuMemFreeAsync

        def call() -> None:
            give(take(nbytes, stream)[1], stream)

        return call

    def push_pop(self) -> Callable[[], Any]:
        context, push, pop = self.contexts[0], driver.cuCtxPushCurrent, driver.cuCtxPopCurrent

        def call() -> None:
            push(context)
            pop()

        return call

    def _across(self, nbytes: int) -> list[Any]:
        """[(context, memory, stream) of GPU 0, the same of GPU 1]"""
        if 1 not in self.contexts:
            self.contexts[1] = called(driver.cuDevicePrimaryCtxRetain(1))
        ends = []
        for number in (0, 1):
            called(driver.cuCtxSetCurrent(self.contexts[number]))
            ends.append((self.contexts[number], self._there(nbytes), self._stream()))
        called(driver.cuCtxSetCurrent(self.contexts[0]))
        return ends

    def across(self, host: Array) -> Work:
        one, two = self._across(host.nbytes)
        called(driver.cuMemcpyHtoD(one[1].value, at(host), host.nbytes))

        def run() -> None:
            called(
                driver.cuMemcpyPeerAsync(
                    two[1].value, two[0], one[1].value, one[0], host.nbytes, one[2]
                )
            )
            called(driver.cuStreamSynchronize(one[2]))

        return Work(run, pointer=two[1].address, keep=(one, two), how="cuMemcpyPeerAsync")


class Owned:
    """A handle that is given back with its owner; the context must be current."""

    def __init__(self, value: Any, give_back: Callable[[Any], Any]) -> None:
        self.value, self._give_back = value, give_back

    def address(self) -> int:
        return int(self.value)

    def __del__(self) -> None:
        self._give_back(self.value)


class Core(Peer):
    name = "cuda-core"

    def __init__(self) -> None:
        import cuda.core as core

        self.version = version("cuda-core")
        self.core = core
        self.device = core.Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()

    def _of(self, array: Array) -> Any:
        return self.core.Buffer.from_handle(at(array), array.nbytes, owner=array)

    def _there(self, nbytes: int) -> Any:
        buffer = self.device.allocate(nbytes, stream=self.stream)
        self.stream.sync()
        return buffer

    def _copy(self, target: Any, source: Any, **more: Any) -> Work:
        stream = self.stream

        def run() -> None:
            target.copy_from(source, stream=stream)
            stream.sync()

        return Work(run, keep=(target, source), how="Buffer.copy_from", **more)

    def _filled(self, host: Array) -> Any:
        there = self._there(host.nbytes)
        there.copy_from(self._of(host), stream=self.stream)
        self.stream.sync()
        return there

    def _locked(self, nbytes: int) -> Any:
        return self.core.LegacyPinnedMemoryResource().allocate(nbytes)

    def up(self, host: Array) -> Work:
        there = self._there(host.nbytes)
        return self._copy(there, self._of(host), pointer=lambda: int(there.handle))

    def down(self, host: Array, out: Array) -> Work:
        return self._copy(self._of(out), self._filled(host), out=out)

    def pinned_up(self, host: Array) -> Work:
        there, locked = self._there(host.nbytes), self._locked(host.nbytes)
        ctypes.memmove(int(locked.handle), at(host), host.nbytes)
        return self._copy(there, locked, pointer=lambda: int(there.handle))

    def pinned_down(self, host: Array) -> Work:
        locked = self._locked(host.nbytes)
        memory = (ctypes.c_ubyte * host.nbytes).from_address(int(locked.handle))
        return self._copy(locked, self._filled(host), out=np.frombuffer(memory, np.uint8))

    def issue(self, host: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, source, stream = self._there(host.nbytes), self._of(host), self.stream
        return lambda: there.copy_from(source, stream=stream), stream.sync

    def small_issue(self, nbytes: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, locked, stream = self._there(nbytes), self._locked(nbytes), self.stream
        return lambda: there.copy_from(locked, stream=stream), stream.sync

    def page_lock(self, nbytes: int) -> Work:
        held: list[Any] = []

        def after() -> None:
            held.pop().close()

        return Work(
            lambda: held.append(self._locked(nbytes)),
            after=after,
            how="LegacyPinnedMemoryResource.allocate",
        )

    def pinned_array(self, nbytes: int) -> Callable[[], Any]:
        resource, stream = self.core.PinnedMemoryResource(), self.stream
        return lambda: resource.allocate(nbytes, stream=stream).close()

    def device_memory(self, nbytes: int) -> Callable[[], Any]:
        allocate, stream = self.device.memory_resource.allocate, self.stream
        return lambda: allocate(nbytes, stream=stream).close()

    def across(self, host: Array) -> Work:
        source = self._filled(host)
        other = self.core.Device(1)
        other.set_current()
        stream = other.create_stream()
        there = other.allocate(host.nbytes, stream=stream)
        stream.sync()
        self.device.set_current()
        mine = self.stream

        def run() -> None:
            there.copy_from(source, stream=mine)
            mine.sync()

        return Work(run, pointer=lambda: int(there.handle), keep=(source,), how="Buffer.copy_from")

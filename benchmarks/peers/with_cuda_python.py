from __future__ import annotations

import ctypes
from importlib.metadata import version
from typing import Any

import numpy as np
from cuda.bindings import driver

from benchmarks.measure import Array, Call, Target, Work
from benchmarks.peers.base import Copy, Peer, first_time
from benchmarks.peers.ours import Own


def called(answer: tuple[Any, ...]) -> Any:
    """The result of a call of cuda-bindings. Raises where its code is not 0."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(answer[0]))
    return answer[1] if len(answer) == 2 else answer[1:]


class Bindings(Own):
    """Memory is cudriver's: only the calls are measured."""

    name = "cuda-bindings"
    stream = Peer.nothing
    way = "cuMemcpyHtoDAsync, cuMemcpyDtoHAsync"

    def __init__(self) -> None:
        called(driver.cuInit(0))
        self.version = version("cuda-bindings")
        self.context = called(driver.cuDevicePrimaryCtxRetain(0))
        called(driver.cuCtxSetCurrent(self.context))
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.own = called(driver.cuStreamCreateWithPriority(flags, 0))

    def issue(self, target: Any, source: Any, stream: Any = None) -> Call:
        nbytes, own = target.nbytes, self.own
        if isinstance(source, np.ndarray):
            there, here = driver.CUdeviceptr(target.pointer), source.ctypes.data
            return lambda: driver.cuMemcpyHtoDAsync(there, here, nbytes, own)
        there, here = driver.CUdeviceptr(source.pointer), target.ctypes.data
        return lambda: driver.cuMemcpyDtoHAsync(here, there, nbytes, own)

    def wait(self, stream: Any = None) -> Call:
        own = self.own
        return lambda: called(driver.cuStreamSynchronize(own))

    def device_memory(self, nbytes: int) -> Call:
        pool = called(driver.cuDeviceGetDefaultMemPool(0))
        keep = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        called(driver.cuMemPoolSetAttribute(pool, keep, driver.cuuint64_t(nbytes * 4)))
        stream, take, give = self.own, driver.cuMemAllocAsync, driver.cuMemFreeAsync

        def call() -> None:
            give(take(nbytes, stream)[1], stream)

        return call

    def push_pop(self) -> Call:
        context, push, pop = self.context, driver.cuCtxPushCurrent, driver.cuCtxPopCurrent

        def call() -> None:
            push(context)
            pop()

        return call


class Core(Peer):
    name = "cuda-core"
    way = "Buffer.copy_from"

    def __init__(self) -> None:
        import cuda.core as core
        from cuda.core.utils import StridedMemoryView

        self.version = version("cuda-core")
        self.core, self.view = core, StridedMemoryView
        self.gpu = core.Device(0)
        self.gpu.set_current()
        self.own = self.gpu.create_stream()

    def device(self, like: Array, number: int = 0) -> Any:
        buffer = self.gpu.allocate(like.nbytes, stream=self.own)
        self.own.sync()
        return buffer

    def pointer(self, there: Any) -> int:
        return int(there.handle)

    def host(self, array: Array) -> Any:
        return self.core.Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array)

    def locked(self, like: Array) -> tuple[Any, Array]:
        made = self.core.LegacyPinnedMemoryResource().allocate(like.nbytes)
        memory = (ctypes.c_ubyte * like.nbytes).from_address(int(made.handle))
        return made, np.frombuffer(memory, like.dtype).reshape(like.shape)

    def stream(self, number: int = 0) -> Any:
        if number:
            raise NotImplementedError  # its memory here is the first GPU's
        return self.gpu.create_stream()

    def issue(self, target: Any, source: Any, stream: Any = None) -> Call:
        own = stream or self.own
        return lambda: target.copy_from(source, stream=own)

    def wait(self, stream: Any = None) -> Call:
        return (stream or self.own).sync  # type: ignore[no-any-return]

    rows_way = "utils.copy_batch"

    def rows_issue(self, target: Any, source: Any, to: Array, of: Array, width: int) -> Call:
        from cuda.core import utils  # copy_batch is new in 1.2

        batch, own, at = utils.copy_batch, self.own, self.core.Buffer.from_handle
        there, here = (
            [at(int(end.handle) + i, width, owner=end) for i in rows.tolist()]
            for end, rows in ((target, to), (source, of))
        )
        return lambda: batch(own, here, there)

    def pinned_pool(self) -> Any:
        return self.core.PinnedMemoryResource(self.core.PinnedMemoryResourceOptions())

    def page_lock(self, nbytes: int) -> Work:
        own = self.own

        def take() -> Any:
            pool = self.pinned_pool()
            made = pool.allocate(nbytes, stream=own)
            own.sync()
            return made, pool

        return first_time(take, own.sync, "PinnedMemoryResource, a new one each time")

    def pinned_array(self, nbytes: int) -> Call:
        allocate, own = self.pinned_pool().allocate, self.own
        return lambda: allocate(nbytes, stream=own).close()

    def device_memory(self, nbytes: int) -> Call:
        allocate, stream = self.gpu.memory_resource.allocate, self.own
        return lambda: allocate(nbytes, stream=stream).close()

    def lender(self, like: Array) -> Any:
        return self.view.from_buffer(self.device(like), like.shape, dtype=like.dtype)

    def takes(self, lender: Any) -> Call:
        memory_view = self.view

        def call() -> Any:
            view = memory_view.from_dlpack(lender, stream_ptr=0)
            return view.ptr, view.shape, view.strides, view.dtype

        return call

    def issued_into(self, tensor: Any, host: Array, calls: int) -> Work:
        source, stream = self.source(host), self.gpu.default_stream
        buffer_at, memory_view = self.core.Buffer.from_handle, self.view
        shape, kind = host.shape, host.dtype

        def run() -> None:
            view = memory_view.from_dlpack(tensor, stream_ptr=0)
            if view.shape != shape or view.dtype != kind:
                raise ValueError(f"the tensor is {view.dtype} of {view.shape}")
            buffer_at(view.ptr, host.nbytes, owner=tensor).copy_from(source, stream=stream)

        copy = Copy(tensor, source, Target(host, pointer=tensor.data_ptr()), calls=calls)
        how = "StridedMemoryView.from_dlpack, Buffer.copy_from"
        return copy.work(run, how, after=stream.sync)

"""The libraries that share arrays with us: how each makes, shows, fills and orders its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import cudriver as cu
from interop.library import Library, NotHere

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX: not most of the memory

INCREASE = """extern "C" __global__ void increase(float *items, int size)
    { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < size) items[i] += 1; }"""
NO_DEVICE = "it has no device memory"


class NumPy(Library):
    name = "NumPy"
    lacks = dict.fromkeys(("device", "interface", "streams", "graphs", "kernels"), NO_DEVICE)

    def host_array(self, model: np.ndarray) -> Any:
        return model.copy()

    def pointer(self, array: Any) -> int:
        return int(array.ctypes.data)

    def numpy(self, array: Any, stream: Any = None) -> np.ndarray:
        return np.asarray(array)


class PyTorch(Library):
    name, modules = "PyTorch", ("torch",)
    torch: Any

    def open_device(self) -> None:
        if not self.torch.cuda.is_available():
            raise NotHere("PyTorch has no CUDA device here")
        super().open_device()

    def host_array(self, model: np.ndarray) -> Any:
        return self.torch.tensor(model)

    def device_array(self, model: np.ndarray, stream: Any = None) -> Any:
        with self.on(stream):
            return self.torch.tensor(model, device="cuda")

    def device_object(self) -> Any:
        return self.torch.device("cuda:0")

    def pointer(self, array: Any) -> int:
        return int(array.data_ptr())

    def numpy(self, array: Any, stream: Any = None) -> np.ndarray:
        if array.is_cuda and stream is None:
            self.torch.cuda.synchronize()
        with self.on(stream):
            return np.asarray(array.detach().cpu())

    def take(self, lender: Any, stream: Any = None) -> Any:
        with self.on(stream):
            return self.torch.from_dlpack(lender)

    def take_interface(self, lender: Any) -> Any:
        return self.torch.as_tensor(lender, device="cuda")

    def fill(self, array: Any, value: float, stream: Any = None) -> None:
        with self.on(stream):
            array.fill_(value)

    def increase(self, lender: Any) -> None:
        tensor = self.take(lender)
        tensor += 1
        self.torch.cuda.synchronize()

    def used(self) -> int:
        return int(self.torch.cuda.memory_allocated())

    def stream(self) -> Any:
        return self.torch.cuda.Stream()

    def handle(self, stream: Any) -> int:
        return int(stream.cuda_stream)

    def wrap(self, stream: cu.Stream) -> Any:
        return self.torch.cuda.ExternalStream(stream.handle)

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if stream is None else self.torch.cuda.stream(stream)

    def record(self, stream: Any) -> Any:
        return stream.record_event()

    def capture(self, work: Callable[[Any], object]) -> Callable[[], None]:
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            work(self.torch.cuda.current_stream())

        def launch() -> None:
            graph.replay()
            self.torch.cuda.synchronize()

        return launch


class CuPy(Library):
    name, modules = "CuPy", ("cupy",)
    lacks = {"host": "its host arrays are NumPy's"}  # noqa: RUF012
    cupy: Any

    def open_device(self) -> None:
        try:
            self.cupy.cuda.runtime.getDeviceCount()
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise NotHere(f"CuPy sees no device here: {error}") from error
        super().open_device()

    def device_array(self, model: np.ndarray, stream: Any = None) -> Any:
        with self.on(stream):
            return self.cupy.array(model)

    def device_object(self) -> Any:
        return self.cupy.cuda.Device(0)

    def pointer(self, array: Any) -> int:
        return int(array.data.ptr)

    def numpy(self, array: Any, stream: Any = None) -> np.ndarray:
        if stream is None:
            self.cupy.cuda.Device().synchronize()
        return np.asarray(self.cupy.asnumpy(array, stream))

    def take(self, lender: Any, stream: Any = None) -> Any:
        with self.on(stream):
            return self.cupy.from_dlpack(lender)

    def take_interface(self, lender: Any) -> Any:
        return self.cupy.asarray(lender)

    def fill(self, array: Any, value: float, stream: Any = None) -> None:
        with self.on(stream):
            array.fill(value)

    def increase(self, lender: Any) -> None:
        kernel = self.cupy.RawKernel(INCREASE, "increase")
        kernel((lender.size // 64 + 1,), (64,), (self.cupy.asarray(lender), np.int32(lender.size)))
        self.cupy.cuda.Device().synchronize()

    def used(self) -> int:
        return int(self.cupy.get_default_memory_pool().used_bytes())

    def stream(self) -> Any:
        return self.cupy.cuda.Stream(non_blocking=True)

    def handle(self, stream: Any) -> int:
        return int(stream.ptr)

    def wrap(self, stream: cu.Stream) -> Any:
        return self.cupy.cuda.ExternalStream(stream.handle)

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if stream is None else stream

    def record(self, stream: Any) -> Any:
        return stream.record()

    def capture(self, work: Callable[[Any], object]) -> Callable[[], None]:
        stream = self.stream()
        with stream:
            stream.begin_capture()
            work(stream)
            graph = stream.end_capture()

        def launch() -> None:
            graph.launch(stream)
            stream.synchronize()

        return launch


class JAX(Library):
    name, modules = "JAX", ("jax", "jax.dlpack")
    lacks = dict.fromkeys(
        ("streams", "graphs"), "its streams and graphs are hidden from its users"
    ) | {"kernels": "its functions write into no array that exists", "writing": "it is immutable"}
    jax: Any
    dlpack: Any

    def on_platform(self, platform: str) -> Any:
        try:
            return self.jax.devices(platform)[0]
        except RuntimeError as error:
            raise NotHere(f"JAX has no {platform} here") from error

    def open_device(self) -> None:
        self.on_platform("gpu")
        super().open_device()

    def host_array(self, model: np.ndarray) -> Any:
        array = self.jax.device_put(model.copy(), self.on_platform("cpu"))
        return array.block_until_ready()

    def device_array(self, model: np.ndarray, stream: Any = None) -> Any:
        return self.jax.device_put(model, self.on_platform("gpu")).block_until_ready()

    def device_object(self) -> Any:
        return self.on_platform("gpu")

    def pointer(self, array: Any) -> int:
        return int(array.unsafe_buffer_pointer())

    def numpy(self, array: Any, stream: Any = None) -> np.ndarray:
        return np.asarray(array)

    def take(self, lender: Any, stream: Any = None) -> Any:
        return self.dlpack.from_dlpack(lender)

    def take_interface(self, lender: Any) -> Any:
        return self.jax.numpy.asarray(lender)

    def used(self) -> int:
        return int(self.on_platform("gpu").memory_stats()["bytes_in_use"])

    def stream(self) -> Any:
        return None

    def pending(self, model: np.ndarray, value: float, stream: Any) -> Any:
        """Products of matrices, for a delay: their sum is positive, which JAX cannot know."""
        like, numbers = self.jax.numpy.asarray(model), self.jax.numpy

        @self.jax.jit
        def work(square: Any) -> Any:
            last = self.jax.lax.fori_loop(0, 50, lambda _, now: now @ square / 4096, square)
            return numbers.full_like(like, value) + numbers.minimum(last.sum(), 0)

        square = numbers.ones((4096, 4096), numbers.float32)
        work(square).block_until_ready()  # compiled
        return work(square)


class Numba(Library):
    name, modules = "Numba", ("numba.cuda",)
    lacks = {  # noqa: RUF012
        "host": "its host arrays are NumPy's",
        "DLPack": "it has no DLPack",
        "graphs": "it has no graphs",
    }
    cuda: Any

    def open_device(self) -> None:
        if not self.cuda.is_available():
            raise NotHere("Numba has no CUDA device here")
        self.cuda.select_device(0)
        super().open_device()

    def device_array(self, model: np.ndarray, stream: Any = None) -> Any:
        return self.cuda.to_device(model, stream=stream or 0)

    def device_object(self) -> Any:
        return self.cuda.gpus[0]

    def pointer(self, array: Any) -> int:
        return int(array.__cuda_array_interface__["data"][0])

    def numpy(self, array: Any, stream: Any = None) -> np.ndarray:
        if stream is None:
            self.cuda.synchronize()
        found = array.copy_to_host(stream=stream or 0)
        self.cuda.synchronize()
        return np.asarray(found)

    def take_interface(self, lender: Any) -> Any:
        return self.cuda.as_cuda_array(lender)

    def fill(self, array: Any, value: float, stream: Any = None) -> None:
        source = self.cuda.pinned_array(array.shape, np.float32)
        source[:] = value
        array.copy_to_device(source, stream=stream or 0)
        self.filled = source  # until the next one

    def increase(self, lender: Any) -> None:
        cuda = self.cuda

        def increase(items):
            i = cuda.grid(1)
            if i < items.size:
                items[i] += 1

        try:
            kernel = cuda.jit("void(float32[::1])")(increase)
        except AttributeError as error:
            if "row_stack" not in str(error):
                raise
            raise NotImplementedError("its compiler needs NumPy before 2.5") from error
        kernel[lender.size // 64 + 1, 64](lender)
        self.cuda.synchronize()

    def stream(self) -> Any:
        return self.cuda.stream()

    def handle(self, stream: Any) -> int:
        value = stream.handle
        return int(getattr(value, "value", value) or 0)

    def wrap(self, stream: cu.Stream) -> Any:
        return self.cuda.external_stream(stream.handle)

    def record(self, stream: Any) -> Any:
        event = self.cuda.event(timing=False)
        event.record(stream)
        return event


class CudaCore(Library):
    name, modules = "cuda-core", ("cuda.core", "cuda.core.utils")
    lacks = {  # noqa: RUF012
        "host": "its page-locked Buffers have neither shape nor type",
        "current stream": "a Buffer does not know on which stream it is used",
    }
    core: Any
    utils: Any

    def open_device(self) -> None:
        super().open_device()
        try:
            self.gpu = self.core.Device(0)
            self.gpu.set_current()
        except Exception as error:
            raise NotHere(f"cuda-core sees no device here: {error}") from error

    def pinned(self, nbytes: int) -> Any:
        """(a page-locked Buffer, its bytes as an array)"""
        host = self.core.LegacyPinnedMemoryResource().allocate(nbytes)
        return host, np.from_dlpack(host).view(np.uint8)

    def device_array(self, model: np.ndarray, stream: Any = None) -> Any:
        stream = stream or self.gpu.default_stream
        host, items = self.pinned(model.nbytes)
        items[:] = np.ascontiguousarray(model).reshape(-1).view(np.uint8)
        buffer = self.gpu.allocate(model.nbytes, stream=stream)
        buffer.copy_from(host, stream=stream)
        stream.sync()
        return self.utils.StridedMemoryView.from_buffer(buffer, model.shape, dtype=model.dtype)

    def device_object(self) -> Any:
        return self.core.Device(0)

    def pointer(self, array: Any) -> int:
        return int(array.ptr)

    def numpy(self, array: Any, stream: Any = None) -> np.ndarray:
        found = np.empty(array.shape, array.dtype)
        host, items = self.pinned(found.nbytes)
        with cu.Device(0).primary_context() as context:
            if stream is None:
                context.synchronize()
        stream = stream or self.gpu.default_stream
        host.copy_from(self.buffer(array), stream=stream)
        stream.sync()
        found.reshape(-1).view(np.uint8)[:] = items
        return found

    def buffer(self, array: Any) -> Any:
        nbytes = array.size * array.dtype.itemsize
        return self.core.Buffer.from_handle(array.ptr, nbytes, owner=array)

    def take(self, lender: Any, stream: Any = None) -> Any:
        handle = -1 if stream is None else self.handle(stream)
        return self.utils.StridedMemoryView.from_dlpack(lender, stream_ptr=handle)

    def take_interface(self, lender: Any) -> Any:
        return self.utils.StridedMemoryView.from_cuda_array_interface(lender, stream_ptr=-1)

    def fill(self, array: Any, value: float, stream: Any = None) -> None:
        stream = stream or self.gpu.default_stream
        self.buffer(array).fill(np.float32(value).tobytes(), stream=stream)

    def increase(self, lender: Any) -> None:
        options = self.core.ProgramOptions(std="c++17", arch=f"sm_{self.gpu.arch}")
        program = self.core.Program(INCREASE, "c++", options).compile("cubin")
        config = self.core.LaunchConfig(grid=lender.size // 64 + 1, block=64)
        stream, size = self.gpu.create_stream(), np.int32(lender.size)
        kernel = program.get_kernel("increase")
        self.core.launch(stream, config, kernel, lender.pointer, size)
        stream.sync()

    def stream(self) -> Any:
        return self.gpu.create_stream()

    def handle(self, stream: Any) -> int:
        return int(stream.handle)

    def wrap(self, stream: cu.Stream) -> Any:
        return self.gpu.create_stream(stream)

    def record(self, stream: Any) -> Any:
        return stream.record()

    def capture(self, work: Callable[[Any], object]) -> Callable[[], None]:
        if cu.driver_is_simulated():
            raise NotHere("the simulated driver has no cuStreamGetCaptureInfo_v3")
        stream = self.stream()
        builder = stream.create_graph_builder().begin_building()
        work(builder.stream)
        graph = builder.end_building().complete()

        def launch() -> None:
            graph.launch(stream)
            stream.sync()

        return launch


LIBRARIES = [kind() for kind in (NumPy, PyTorch, CuPy, JAX, Numba, CudaCore)]

"""What the package does, as short functions: the fault sweep and the leak tests run each of them.

A scenario takes the package, may fail with any exception of a call that failed, and leaves nothing
behind either way. `COVERS` names the public names and methods that it is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import mmap
import pickle
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

Scenario = Callable[[Any], None]
SCENARIOS: dict[str, tuple[Scenario, frozenset[str]]] = {}
MIDDLE = 1 << 12
STAGED = 3 << 20


def covers(*names: str) -> Callable[[Scenario], Scenario]:
    def register(function: Scenario) -> Scenario:
        SCENARIOS[function.__name__] = function, frozenset(names)
        return function

    return register


@covers(
    "init", "is_available", "driver_version", "driver_path", "driver_is_simulated", "use_driver",
    "error_names",
)  # fmt: skip
def the_driver(cu: Any) -> None:
    cu.init()
    cu.is_available()
    str(cu.driver_version())
    cu.driver_path()
    cu.driver_is_simulated()
    cu.errors.error_names()
    with contextlib.suppress(cu.CudaError):
        cu.use_driver("sim")


@covers(
    "Device", "devices", "device_count", "Device.name", "Device.uuid", "Device.pci_bus_id",
    "Device.total_memory", "Device.multiprocessor_count", "Device.compute_capability",
    "Device.ordinal", "Device.can_access_peer",
)  # fmt: skip
def the_devices(cu: Any) -> None:
    assert cu.device_count() == len(cu.devices())
    device = cu.Device(0)
    repr(device), hash(device), device.ordinal
    cu.Device(device.uuid)
    cu.Device(device.pci_bus_id), cu.Device("cuda"), cu.Device("cuda:0")
    cu.Device(SimpleNamespace(type="cuda", index=0)), cu.Device(SimpleNamespace(device_id=0))
    device.name, device.total_memory, device.multiprocessor_count, device.compute_capability
    device.can_access_peer(cu.device_count() - 1)


@covers("Device.attributes")
def the_attributes(cu: Any) -> None:
    assert len(cu.Device(0).attributes) > 100


@covers(
    "Context", "Context.push", "Context.pop", "Context.close", "Context.__enter__",
    "Context.__exit__", "Context.synchronize", "Context.memory_info", "Context.device",
    "Context.closed", "Context.is_primary", "Context.handle", "Context.exists", "Context.flags",
    "ContextFlags", "current_context", "context_stack", "memory_info", "synchronize",
    "Device.memory_info",
)  # fmt: skip
def a_manual_context(cu: Any) -> None:
    context = cu.Context(0, flags=cu.ContextFlags.SCHED_YIELD)
    with context:
        context.push()
        try:
            assert cu.current_context() is context
            assert context in cu.context_stack()
            cu.memory_info()
        finally:
            context.pop()
    context.synchronize()
    context.memory_info()
    cu.synchronize(0)
    assert cu.Device(0).memory_info().free > 0
    context.device, context.closed, context.is_primary, context.handle, context.exists
    context.flags
    context.close()


@covers(
    "Context.limits", "Context.cache_config", "Context.stream_priority_range",
    "Context.api_version",
)  # fmt: skip
def a_contexts_settings(cu: Any) -> None:
    context = cu.Context()
    context.limits["stack_size"] = context.limits["stack_size"]
    repr(context.limits), list(context.limits), len(context.limits)
    context.limits.keys(), context.limits.items()
    context.cache_config = "l1"
    context.cache_config, context.stream_priority_range, context.api_version


@covers("Device.primary_context", "Device.reset_primary_context")
def a_primary_context(cu: Any) -> None:
    device = cu.Device(cu.device_count() - 1)
    context = device.primary_context(flags=0)
    with context:
        array, stream, event = cu.device_zeros(10), cu.Stream(), cu.Event()
        event.record(stream)
    context.exists, context.flags
    del array, stream, event
    if device.ordinal > 0:
        device.reset_primary_context()
    context.close()


@covers(
    "Stream", "Stream.synchronize", "Stream.record", "Stream.wait", "Stream.close", "Stream.done",
    "Stream.__cuda_stream__", "Stream.__enter__", "Stream.__exit__", "Stream.handle",
    "Stream.priority", "Stream.closed", "Stream.context", "Stream.device",
)  # fmt: skip
def two_streams(cu: Any) -> None:
    first, second = cu.Stream(), cu.Stream(priority=-1)
    array = cu.device_empty(MIDDLE)
    with first:
        array.fill(1)
    second.wait(first)
    second.wait(first.record())
    array.fill(2, stream=second)
    first.done, second.synchronize()
    repr(first), first.handle, first.priority, first.closed, first.context, first.device
    first.__cuda_stream__()
    first.close()


@covers("Stream.from_handle", "Stream.wait")
def a_stream_from_a_handle(cu: Any) -> None:
    theirs, ours, event = cu.Stream(), cu.Stream(), cu.Event()
    stream = cu.Stream.from_handle(theirs.handle)
    array = cu.device_empty(MIDDLE)
    with stream:
        array.fill(1)
    event.record(stream)
    ours.wait(SimpleNamespace(cuda_event=event.handle))
    ours.wait(SimpleNamespace(cuda_stream=theirs.handle))
    stream.synchronize()
    ours.synchronize()
    stream.close()
    cu.Stream.from_handle(SimpleNamespace(cuda_stream=theirs.handle))


@covers("to_device", "copy_async", "DeviceArray.fill", "Event.record")
def a_stream_of_another_library(cu: Any) -> None:
    device = cu.device_count() - 1
    stream, event = cu.Stream(device=device), cu.Event(device=device)
    theirs = SimpleNamespace(cuda_stream=stream.handle)
    array = cu.to_device(np.arange(MIDDLE), stream=theirs)
    array.fill(1, stream=theirs)
    assert array.to_numpy(stream=theirs).all()
    back = np.zeros(MIDDLE, array.dtype)
    transfer = cu.copy_async(back, array, theirs)
    try:
        event.record(theirs)
    finally:
        transfer.wait()
    assert back.all()


@covers(
    "Event", "Event.record", "Event.wait", "Event.synchronize", "Event.elapsed_time",
    "Event.close", "Event.done", "Event.timing", "Event.handle", "Event.closed", "Event.context",
)  # fmt: skip
def two_events(cu: Any) -> None:
    stream = cu.Stream()
    first, second = cu.Event(timing=True).record(stream), cu.Event(timing=True)
    second.record(stream)
    second.wait(stream)
    second.synchronize()
    assert second.done
    assert first.elapsed_time(second) >= 0
    repr(first), first.timing, first.handle, first.closed, first.context
    first.close()


@covers(
    "pinned_empty", "pinned_zeros", "pinned_full", "pinned_empty_like", "pinned_array",
    "pinned_zeros_like",
    "is_pinned", "mapped_pointer", "host_memory_stats", "trim_host_memory",
    "set_host_memory_limit", "set_host_memory_policy", "live_allocations",
    "trace_allocations",
)  # fmt: skip
def page_locked_arrays(cu: Any) -> None:
    arrays = [
        cu.pinned_empty((3, 4), "f4", "F"),
        cu.pinned_zeros(MIDDLE),
        cu.pinned_full(1 << 16, 3, "i2"),
        cu.pinned_empty_like(np.zeros((5, 6)).T),
        cu.pinned_zeros_like(np.zeros((5, 6)).T),
        cu.pinned_array([[1, 2], [3, 4]]),
    ]
    for array in arrays:
        cu.is_pinned(array)
    cu.mapped_pointer(arrays[0])
    cu.host_memory_stats()
    cu.set_host_memory_limit(1 << 40)
    cu.set_host_memory_limit(None)
    cu.set_host_memory_policy(numa=None)
    cu.set_host_memory_policy(numa="device", copy_threads=cu.host_memory_stats().copy_threads + 1)
    cu.set_host_memory_policy(copy_threads=None)
    cu.trace_allocations()
    cu.trace_allocations(enabled=False)
    cu.live_allocations()
    del arrays, array
    cu.trim_host_memory()


@covers(
    "pin", "pin.close", "pin.__enter__", "pin.__exit__", "pin.array", "pin.nbytes", "pin.closed",
)  # fmt: skip
def pins(cu: Any) -> None:
    array = np.zeros(MIDDLE)
    with cu.pin(array) as whole, cu.pin(array[100:]), cu.pin(array):
        assert whole.array is array
        whole.nbytes, whole.closed, repr(whole)
        cu.is_pinned(array)
    with mmap.mmap(-1, 8192) as memory:
        handle = cu.pin(memory)
        handle.close()
    read_only = np.frombuffer(bytes(5000), "u1")
    cu.pin(read_only).close()


@covers(
    "pin_async", "pinned_empty_async", "Pinning", "Pinning.array", "Pinning.nbytes",
    "Pinning.closed", "Pinning.done", "Pinning.progress", "Pinning.wait", "Pinning.close",
    "Pinning.__enter__", "Pinning.__exit__", "Pinning.__await__",
)  # fmt: skip
def pins_in_the_background(cu: Any) -> None:
    from cudriver.memory import pieces

    async def wait(pinning: Any) -> None:
        await pinning

    step, pieces.STEP = pieces.STEP, MIDDLE
    try:
        with cu.pin_async(np.zeros(MIDDLE)) as pinning:
            pinning.wait()
            pinning.done, pinning.progress, pinning.closed, pinning.nbytes, repr(pinning)
        with cu.pinned_empty_async((2, MIDDLE)) as pinning:
            asyncio.run(wait(pinning))
            cu.is_pinned(pinning.array)
        rows, array = cu.pinned_empty((4, MIDDLE), "u1", pieces=True), np.zeros((4, MIDDLE))
        with cu.pin(array, pieces=True):
            cu.is_pinned(rows), cu.is_pinned(array)
        cu.SharedMemory.anonymous(4 * MIDDLE, pieces=True).close()
    finally:
        pieces.STEP = step


@covers(
    "SharedMemory", "SharedMemory.anonymous", "SharedMemory.array", "SharedMemory.buf",
    "SharedMemory.name", "SharedMemory.size", "SharedMemory.closed", "SharedMemory.pin",
    "SharedMemory.close", "SharedMemory.unlink", "SharedMemory.__enter__", "SharedMemory.__exit__",
)  # fmt: skip
def shared_memory(cu: Any) -> None:
    memory = cu.SharedMemory(create=True, size=5000)
    try:
        with memory, cu.SharedMemory(memory.name, read_only=True) as other:
            memory.array((10, 20), np.int32)[...] = 1
            assert other.buf[796] == 1
            memory.size, memory.closed, repr(memory)
    finally:
        memory.unlink()
    with cu.SharedMemory.anonymous(5000, pin=False) as nameless:
        nameless.pin()


@covers("pinned_numpy", "pinned_numpy.__enter__", "pinned_numpy.__exit__")
def numpys_own_arrays(cu: Any) -> None:
    with cu.pinned_numpy(min_bytes=100):
        array = np.zeros(1000) + np.ones(1000)
        array.resize(5000, refcheck=False)
    array.resize(10, refcheck=False)
    assert array.sum() == 10


@covers(
    "DeviceArray", "device_empty", "device_zeros", "to_device", "DeviceArray.fill",
    "device_full", "device_empty_like",
    "DeviceArray.to_numpy", "DeviceArray.close",
    "DeviceArray.shape", "DeviceArray.strides", "DeviceArray.dtype", "DeviceArray.ndim",
    "DeviceArray.size", "DeviceArray.itemsize", "DeviceArray.nbytes", "DeviceArray.pointer",
    "DeviceArray.device", "DeviceArray.context", "DeviceArray.closed",
    "DeviceArray.__cuda_array_interface__", "DeviceArray.__array__",
)  # fmt: skip
def device_arrays(cu: Any) -> None:
    array = cu.device_zeros((8, 16), "i4")
    array[2:4, ::2].fill(7)
    cu.copy(array, np.ones((8, 16), "i4"))
    out = np.empty((8, 16), "i4")
    cu.copy(out, array)
    assert (array.to_numpy() == out).all()
    array.shape, array.strides, array.dtype, array.ndim, array.size, array.itemsize
    array.nbytes, array.device, array.context, array.closed, len(array), repr(array)
    with contextlib.suppress(TypeError):
        np.asarray(array)
    for name in ("get", "astype", "nothing", "__nothing__"):
        assert not hasattr(array, name)
    other = cu.to_device(array, device=cu.device_count() - 1)
    other.pointer, other.__cuda_array_interface__
    other.close()
    cu.device_full((3, 4), 1.5, order="F"), cu.device_full((2, 3), [1, 2, 3])
    cu.device_empty_like(array.T[:, ::2])
    empty = cu.device_empty(0)
    empty.fill(1)
    assert empty.to_numpy().size == 0


@covers(
    "DeviceArray.T", "DeviceArray.transpose", "DeviceArray.reshape",
    "DeviceArray.view", "DeviceArray.flags",
)  # fmt: skip
def views_of_device_arrays(cu: Any) -> None:
    array = cu.device_zeros((8, 16), "i4")
    views = [array.T, array.transpose(1, 0), array.T.reshape(4, -1, order="F"), array.view("f8")]
    del array
    assert [view.flags.c_contiguous for view in views] == [False, False, False, True]
    with contextlib.suppress(ValueError):
        views[0].reshape(-1)
    assert not views[2].to_numpy().any()


@covers("DeviceArray.copy")
def assignments_to_device_arrays(cu: Any) -> None:
    array, stream = cu.device_zeros((8, 16), "i4"), cu.Stream()
    array[...] = 1
    array[2] = range(16)
    array[:, 3] = np.ones((1, 8), "i4")
    array[1:] = array[:-1]
    for value in (object(), np.zeros(3), np.zeros(16)):
        with contextlib.suppress(ValueError, TypeError):
            array[0] = value
    twin, later = copy.copy(array.T), array.copy(stream=stream)
    stream.synchronize()
    assert (later.to_numpy() == twin.to_numpy().T).all()
    assert hash(array) != hash(twin)
    for ask in (bool, float, list, pickle.dumps, lambda array: array == twin):
        with contextlib.suppress(TypeError):
            ask(array)


@covers(
    "from_dlpack", "DeviceArray.__dlpack__", "DeviceArray.__dlpack_device__",
)  # fmt: skip
def lent_and_borrowed_arrays(cu: Any) -> None:
    stream, model = cu.Stream(), np.arange(24, dtype="f4").reshape(4, 6)
    array = cu.to_device(model, stream=stream)
    capsules = [array.__dlpack__(stream=1), array[1:].__dlpack__(max_version=(1, 0))]
    lender = _Lender(array)
    borrowed = cu.from_dlpack(lender)
    borrowed.flags, borrowed.__dlpack_device__()
    assert (borrowed.to_numpy() == model).all()
    assert (cu.from_dlpack(model) == model).all()
    assert (cu.from_dlpack(lender, device="cpu") == model).all()
    there = cu.from_dlpack(borrowed, copy=True)
    cu.copy(there, lender)
    cu.copy_async(model.copy(), lender, stream).wait()
    array.__dlpack__(copy=True)
    array.__dlpack__(dl_device=(1, 0))
    last = cu.from_dlpack(model, device=cu.device_count() - 1)
    assert (last.to_numpy() == model).all()
    del capsules
    borrowed.close()


@covers("from_cuda_array_interface", "from_pointer", "dlpack_pinned", "Event.from_handle")
def memory_that_others_show(cu: Any) -> None:
    array, stream, host = cu.device_zeros(6), cu.Stream(), cu.pinned_zeros(6)
    shown = cu.from_cuda_array_interface(
        SimpleNamespace(__cuda_array_interface__=array.__cuda_array_interface__)
    )
    placed = cu.from_pointer(array.pointer, (2, 3), np.float64, owner=array)
    placed.fill(2)
    assert (shown.to_numpy() == 2).all()
    assert cu.from_dlpack(cu.dlpack_pinned(host)).ctypes.data == host.ctypes.data
    mark = stream.record()
    event = cu.Event.from_handle(mark.handle)
    event.wait(stream)
    event.synchronize()
    event.close()


class _Lender:
    """An array that is not a DeviceArray, so that it is borrowed by DLPack."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __dlpack__(self, **asked: Any) -> Any:
        return self.of.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.of.__dlpack_device__()


@covers("iter_safetensors", "load_npy", "load_npz", "load_safetensors")
def arrays_from_files(cu: Any) -> None:
    header = b'{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/a.npy", np.arange(6.0).reshape(2, 3).T)
        np.savez(f"{folder}/a.npz", a=np.arange(3))
        with open(f"{folder}/a.safetensors", "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + b"abc")
        cu.load_npy(f"{folder}/a.npy", stream=cu.Stream()).to_numpy()
        cu.load_npz(f"{folder}/a.npz")["a"].to_numpy()
        assert cu.load_safetensors(f"{folder}/a.safetensors")["x"].to_numpy().tobytes() == b"abc"
        cut = cu.iter_safetensors([f"{folder}/a.safetensors"], slices={"x": slice(1, None)})
        assert [array.to_numpy().tobytes() for _, array in cut] == [b"bc"]


@covers("save_safetensors")
def arrays_into_a_file(cu: Any) -> None:
    there = cu.to_device(np.arange(24, dtype="f4").reshape(4, 6))
    last = cu.device_zeros(3, device=cu.device_count() - 1)
    arrays = {"a": there, "b": there[:, ::2], "c": last, "d": np.ones(5), "e": there[:0]}
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(TypeError):
            cu.save_safetensors(f"{folder}/a", {"x": there, "y": object()})
        cu.save_safetensors(f"{folder}/a", arrays, metadata={"x": "y"}, fsync=True)
        assert (
            cu.load_safetensors(f"{folder}/a")["b"].to_numpy() == there.to_numpy()[:, ::2]
        ).all()


@covers("copy", "explain_copy")
def blocking_copies(cu: Any) -> None:
    device, other = cu.device_empty((64, 64)), cu.device_empty((64, 64))
    pinned, plain = cu.pinned_zeros((64, 64)), np.ones((64, 64))
    for dst, src in [
        (device, plain), (pinned, device), (plain, device), (other, device), (plain, pinned),
        (device[::2], pinned[::2]), (plain[:, 1:], device[:, 1:]), (device[:0], plain[:0]),
        (other[:, ::3], device[:, ::3]), (other[::-1], device), (device[1:], device[:-1]),
    ]:  # fmt: skip
        cu.explain_copy(dst, src)
        cu.copy(dst, src)


@covers("copy")
def staged_copies(cu: Any) -> None:
    plain = np.arange(STAGED, dtype="u1")
    device = cu.to_device(plain)
    assert (device.to_numpy() == plain).all()
    strided = np.zeros((STAGED // 1024, 2, 1024), "u1")
    cu.copy(strided[:, 1], _shaped(device, strided))
    assert (strided[:, 1].ravel() == plain).all()


def _shaped(device: Any, like: Any) -> Any:
    """The device's bytes as rows, by the interface that other libraries use."""

    class Rows:
        def __init__(self) -> None:
            self.owner = device
            self.__cuda_array_interface__ = {
                **device.__cuda_array_interface__,
                "shape": (like.shape[0], like.shape[2]),
                "strides": None,
            }

    return Rows()


@covers("copy_async", "Transfer", "Transfer.wait", "Transfer.done", "Transfer.nbytes")
def asynchronous_copies(cu: Any) -> None:
    stream = cu.Stream()
    pinned, plain = cu.pinned_zeros(MIDDLE), np.ones(MIDDLE)
    device, other = cu.to_device(plain, stream=stream), cu.to_device(plain)
    transfers = [
        cu.copy_async(pinned, device, stream),
        cu.copy_async(device, plain, stream),
        cu.copy_async(plain, device, stream),
        cu.copy_async(plain, other, None),
    ]
    for transfer in transfers:
        repr(transfer), transfer.nbytes, transfer.done
        transfer.wait()
    stream.synchronize()


@covers("copy_async")
def staged_asynchronous_copies(cu: Any) -> None:
    stream, plain = cu.Stream(), np.zeros(STAGED, "u1")
    device = cu.device_empty(STAGED, "u1")
    up = cu.copy_async(device, plain, stream)
    down = cu.copy_async(plain, device, stream)
    try:
        up.wait()
    finally:
        down.wait()


@covers("copy_rows", "copy_many", "copy_rows_async", "copy_many_async")
def many_copies_at_once(cu: Any) -> None:
    stream, plain = cu.Stream(), np.ones((8, 64))
    pinned, device = cu.pinned_zeros((8, 64)), cu.device_zeros((8, 64))
    cu.explain_copy(device, pinned, dst_rows=range(8), src_rows=range(8))
    cu.explain_copy([device[1], device[2, ::2]], [plain[1], plain[2, ::2]])
    transfers = [
        cu.copy_rows_async(device, pinned, range(8), range(8), stream=stream),
        cu.copy_rows_async(device, plain, [5, 3], [0, 1], stream, borrow=True),
        cu.copy_many_async(
            [pinned[i] for i in range(8)], [device[i] for i in range(8)], stream=stream
        ),
        cu.copy_many_async([device[1], device[2, ::2]], [plain[1], plain[2, ::2]], stream=stream),
    ]
    for transfer in transfers:
        transfer.wait()
    cu.copy_rows(device, plain, range(8), range(8))
    cu.copy_many([device[1], device[2, ::2]], [plain[1], plain[2, ::2]])


@covers("Transfer.__await__")
def awaited_copies(cu: Any) -> None:
    async def main() -> None:
        stream, pinned = cu.Stream(), cu.pinned_zeros(MIDDLE)
        await cu.copy_async(cu.device_empty(MIDDLE), pinned, stream)

    asyncio.run(main())


@covers("copy", "copy_async", "to_device", "pin", "is_pinned")
def arrays_that_are_no_ndarrays(cu: Any) -> None:
    stream, buffer = cu.Stream(), bytearray(MIDDLE)
    data = np.zeros(MIDDLE, "u1")
    shown = SimpleNamespace(__array_interface__=data.__array_interface__, owner=data)
    device = cu.to_device(buffer)
    cu.copy(buffer, device)
    cu.copy(shown, device)
    device.to_numpy(out=buffer)
    with contextlib.suppress(TypeError):
        cu.copy(device, [1, 2])
    with contextlib.suppress(ValueError):
        cu.copy(bytes(MIDDLE), device)
    with cu.pin(shown):
        cu.is_pinned(shown)
    cu.copy_async(device, buffer, stream).wait()


@covers("copy")
def copies_between_devices(cu: Any) -> None:
    last = cu.device_count() - 1
    first, second = cu.device_zeros((32, 32), device=0), cu.device_zeros((32, 32), device=last)
    cu.copy(second, first)
    cu.copy(first[:, ::2], second[:, ::2])


@covers("copy_async")
def copies_that_stay_on_devices(cu: Any) -> None:
    stream = cu.Stream()
    first = cu.to_device(np.arange(1024.0).reshape(32, 32))
    second = cu.device_zeros((32, 32))
    last = cu.device_zeros((32, 32), device=cu.device_count() - 1)
    transfers = [
        cu.copy_async(dst, src, stream)
        for dst, src in [
            (second[:, ::-1], first), (first[1:], first[:-1]), (second[::-1], second),
            (last[:, ::2], second[:, 1::2]), (first[::-1], last), (last, first[:, ::-1]),
        ]
    ]  # fmt: skip
    for transfer in transfers:
        transfer.wait()
    assert last.to_numpy().any()


@covers("device_empty")
def memory_in_stream_order(cu: Any) -> None:
    stream = cu.Stream()
    array = cu.device_zeros(MIDDLE, stream=stream)
    view = array[::2]
    del array
    view.fill(3, stream=stream)
    del view
    stream.close()

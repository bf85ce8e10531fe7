"""What other libraries call a thing, and what it is called here: the names of coming-from.md.

Who asks for another library's name is answered with ours. A name with `=` is a keyword argument.
"""

from __future__ import annotations

from typing import Any, NoReturn

_same = dict.fromkeys

#: By the type that lacks the name; "cudriver" is the module.
OURS: dict[str, dict[str, str]] = {
    "cudriver": {
        **_same(("mem_alloc", "MemAlloc", "alloc", "malloc"), "device_empty(nbytes, 'uint8')"),
        **_same(("mem_alloc_pitch", "empty", "device_array"), "device_empty(shape, dtype)"),
        **_same(("zeros", "zeros_like"), "device_zeros(shape, dtype)"),
        **_same(("device_array_like", "empty_like"), "device_empty_like(array)"),
        **_same(("ones", "full"), "device_full(shape, value, dtype)"),
        **_same(("asarray", "array", "as_tensor", "tensor", "from_numpy", "to_gpu", "to_cuda"),
                "to_device(array)"),
        **_same(("asnumpy", "to_host", "from_device"), "array.to_numpy()"),
        **_same(("memcpy", "memcpy_htod", "memcpy_dtoh", "memcpy_dtod", "copyto", "Memcpy2D",
                 "Memcpy3D", "memcpy_peer"), "copy(dst, src)"),
        **_same(("memcpy_async", "memcpy_htod_async", "memcpy_dtoh_async", "memcpy_dtod_async",
                 "memcpy_peer_async"), "copy_async(dst, src, stream)"),
        "copy_batch": "copy_many_async(dsts, srcs, stream)",
        **_same(("memset_d8", "memset_d16", "memset_d32", "memset"), "array.fill(value)"),
        **_same(("pagelocked_empty", "empty_pinned", "alloc_pinned_memory", "mapped_array",
                 "PinnedMemory", "PinnedMemoryResource", "PinnedMemoryResourceOptions"),
                "pinned_empty(shape, dtype)"),
        **_same(("pagelocked_zeros", "zeros_pinned"), "pinned_zeros(shape, dtype)"),
        **_same(("pagelocked_empty_like", "empty_like_pinned", "pinned_array_like",
                 "mapped_array_like"), "pinned_empty_like(array)"),
        **_same(("pagelocked_zeros_like", "zeros_like_pinned"), "pinned_zeros_like(array)"),
        **_same(("pin_memory", "pinned"), "pinned_array(array), which copies, or pin(array)"),
        **_same(("register_host_memory", "host_register", "cudaHostRegister", "mapped"),
                "pin(array)"),
        **_same(("mem_get_info", "mem_info"), "memory_info()"),
        **_same(("getDeviceCount", "get_device_count", "num_devices"), "device_count()"),
        **_same(("list_devices", "get_all_devices"), "devices()"),
        **_same(("get_device_name", "get_device_properties", "get_current_device", "gpus",
                 "current_device"), "Device(0), .name, .attributes; devices() has all"),
        **_same(("set_device", "select_device", "autoinit", "make_default_context"),
                "nothing, or device= of each call; with Device(0).primary_context()"),
        **_same(("current_stream", "default_stream", "null_stream", "ExternalStream",
                 "external_stream"), "`with stream:`, or Stream.from_handle(handle)"),
        **_same(("stream", "create_stream"), "Stream()"),
        **_same(("event", "create_event"), "Event(timing=True)"),
        **_same(("get_elapsed_time", "elapsed_time", "event_elapsed_time"),
                "start.elapsed_time(end)"),
        **_same(("as_cuda_array", "is_cuda_array"), "from_cuda_array_interface(x)"),
        **_same(("StridedMemoryView", "from_any_interface"), "from_dlpack(x), or x as it is"),
        "managed_array": "CuPy, for managed memory",
        **_same(("UnownedMemory", "as_array"), "from_pointer(pointer, shape, dtype)"),
        **_same(("get_default_memory_pool", "MemoryPool", "DeviceMemoryPool", "empty_cache"),
                "nothing: device memory comes from a pool, and array.close() returns it"),
        **_same(("get_default_pinned_memory_pool", "PageLockedMemoryPool", "PinnedMemoryPool"),
                "nothing: page-locked memory has a pool; trim_host_memory() empties it"),
        **_same(("LogicError", "RuntimeError", "CUDARuntimeError", "CudaAPIError", "CUDAError",
                 "Error"),
                "CudaError"),
        **_same(("MemoryError", "OutOfMemory"), "OutOfMemoryError"),
        **_same(("get_current", "get_current_context", "current"), "current_context()"),
        **_same(("show_config", "collect_env", "detect"), "the command `cudriver check`"),
        **_same(("load_file", "safe_open"), "load_safetensors(path)"),
        "save_file": "save_safetensors(path, arrays)",
        **_same(("numba_device", "SourceModule", "RawKernel", "RawModule", "jit", "compile",
                 "launch", "LaunchConfig", "Program"),
                "CuPy or Numba for kernels; they take a DeviceArray"),
    },
    "DeviceArray": {
        **_same(("get", "numpy", "cpu", "copy_to_host", "asnumpy"), "to_numpy()"),
        **_same(("set", "copy_to_device"), "cudriver.copy(array, source)"),
        **_same(("copy_", "copy_from"), "cudriver.copy(array, source)"),
        "copy_to": "cudriver.copy(destination, array)",
        **_same(("data", "ptr", "data_ptr", "gpudata", "ctypes"), "pointer"),
        **_same(("to", "cuda"), "cudriver.to_device(array, device=...)"),
        **_same(("clone", "contiguous"), "copy()"),
        **_same(("ravel", "flatten"), "reshape(-1)"),
        "split": "nothing: slices are views, as array[:1000]",
        "permute": "transpose()",
        "stride": "strides",
        "numel": "size",
        "element_size": "itemsize",
        "is_contiguous": "flags.c_contiguous",
        "free": "close()",
        "item": "to_numpy().item()",
        "tolist": "to_numpy().tolist()",
        "tobytes": "to_numpy().tobytes()",
        **_same(("pin_memory", "is_pinned"), "cudriver.pinned_array(), of host memory"),
        **_same(("zero_", "fill_"), "fill(value)"),
    },
    "Stream": {
        **_same(("query", "is_done"), "done"),
        "sync": "synchronize()",
        **_same(("wait_for_event", "wait_event"), "wait(event)"),
        "wait_stream": "wait(other)",
        **_same(("record_event",), "record()"),
        **_same(("ptr", "cuda_stream"), "handle"),
        **_same(("use", "auto_synchronize"), "`with stream:`"),
        **_same(("add_callback", "launch_host_func", "async_done"), "`await` of a Transfer"),
        **_same(("is_capturing", "begin_capture", "end_capture"),
                "CuPy or PyTorch for graphs; see the page on CUDA graphs"),
        **_same(("device_id",), "device.ordinal"),
        **_same(("non_blocking=", "flags=", "null=", "ptds="), "Stream(): it does not block"),
    },
    "Event": {
        **_same(("query", "is_done"), "done"),
        "sync": "synchronize()",
        **_same(("time_till", "get_elapsed_time"), "elapsed_time(end)"),
        "time_since": "start.elapsed_time(end)",
        **_same(("ptr", "cuda_event"), "handle"),
        **_same(("enable_timing=", "disable_timing="), "timing=True"),
        **_same(("blocking=", "block=", "interprocess=", "flags="), "nothing: a wait sleeps"),
    },
    "Transfer": {
        **_same(("query", "is_done"), "done"),
        **_same(("synchronize", "result", "join"), "wait()"),
        "add_done_callback": "`await`, or asyncio.ensure_future(transfer)",
    },
    "Context": {
        **_same(("detach", "destroy"), "close()"),
        **_same(("get_device",), "device"),
        **_same(("set_current", "use"), "push(), or `with context:`"),
        **_same(("get_current",), "cudriver.current_context()"),
    },
    "Device": {
        "count": "cudriver.device_count()",
        "make_context": "cudriver.Context(device)",
        "retain_primary_context": "primary_context()",
        **_same(("get_attributes", "get_attribute", "properties"), "attributes"),
        **_same(("mem_info", "get_memory_info"), "memory_info()"),
        **_same(("synchronize", "sync"), "cudriver.synchronize(device)"),
        "get_all_devices": "cudriver.devices()",
        "allocate": "cudriver.device_empty(shape, dtype, device=device)",
        "create_stream": "cudriver.Stream(device=device)",
        "create_event": "cudriver.Event(device=device)",
        **_same(("use", "set_current"), "`with device.primary_context():`, or device="),
        **_same(("id", "index", "device_id"), "ordinal"),
        "reset": "reset_primary_context()",
    },
}  # fmt: skip


def ours(kind: str, name: str) -> str:
    """The end of a message: what is used instead of a name that a type lacks."""
    found = OURS.get(kind, {}).get(name)
    return "" if found is None else f"; use {found}"


def _is_numpys(name: str) -> bool:
    import numpy as np

    return hasattr(np.ndarray, name)


def missing(thing: Any, name: str) -> NoReturn:
    """Raise AttributeError: an object has no such attribute, but perhaps one for the purpose."""
    kind = type(thing).__name__
    text = f"'{type(thing).__module__}.{kind}' object has no attribute {name!r}"
    hint = ours(kind, name)
    if not hint and kind == "DeviceArray" and _is_numpys(name):
        hint = (
            f": it holds memory and computes nothing; use to_numpy().{name}, or give the array to "
            "a library that computes on the device, as in cupy.from_dlpack(array) or "
            "torch.from_dlpack(array)"
        )
    try:
        raise AttributeError(text + hint, name=name, obj=thing)
    finally:
        del thing  # a traceback would keep it


_KEYWORDS = {"Event": ("timing", "device"), "Stream": ("priority", "device")}


def keyword(kind: str, given: dict[str, object]) -> NoReturn:
    """Raise TypeError where arguments could not be read, with ours for another library's."""
    for name in given:
        if name not in _KEYWORDS[kind]:
            raise TypeError(
                f"{name!r} is an invalid keyword argument for {kind}(){ours(kind, f'{name}=')}"
            )
    known = ", ".join(f"{name}=" for name in _KEYWORDS[kind])
    raise TypeError(f"{kind}() takes {known}, and no others")

"""What a driver's code becomes: an exception with the code's name, its meaning and a hint."""

from __future__ import annotations

import re

from cudriver.errors import (
    CudaError,
    ForkedProcessError,
    InvalidContextError,
    NotInitializedError,
    OutOfMemoryError,
    UnsupportedDriverError,
)

#: Every error of CUresult, without CUDA_ERROR_: a driver may be too old to know it. Its own meaning
#: is preferred.
ERRORS = {
    1: ("INVALID_VALUE", "a parameter is outside the acceptable range"),
    2: ("OUT_OF_MEMORY", "not enough memory (host, device, or address space) for the operation"),
    3: ("NOT_INITIALIZED", "driver not initialised: cuInit not called or failed"),
    4: ("DEINITIALIZED", "driver is shutting down"),
    5: ("PROFILER_DISABLED", "profiler not initialised for this run (visual profiler attached)"),
    6: ("PROFILER_NOT_INITIALIZED", "profiler not initialised (deprecated)"),
    7: ("PROFILER_ALREADY_STARTED", "profiler already started (deprecated)"),
    8: ("PROFILER_ALREADY_STOPPED", "profiler already stopped (deprecated)"),
    34: ("STUB_LIBRARY", "the loaded libcuda is the toolkit's link-time stub, not the driver"),
    36: ("CALL_REQUIRES_NEWER_DRIVER", "the call needs a driver newer than the one installed"),
    46: (
        "DEVICE_UNAVAILABLE",
        "the device is unavailable now (busy, its compute mode, or permission)",
    ),
    47: (
        "MULTICAST_RESOURCE_FULL",
        "the hardware resource for binding memory to a multicast object is exhausted",
    ),
    100: ("NO_DEVICE", "no CUDA-capable device was detected"),
    101: (
        "INVALID_DEVICE",
        "the device ordinal is not valid, or the action is not valid for the device",
    ),
    102: ("DEVICE_NOT_LICENSED", "the device has no valid grid licence"),
    200: ("INVALID_IMAGE", "the device kernel image (module) is not valid"),
    201: ("INVALID_CONTEXT", "no valid current context, or the context handle is invalid"),
    202: ("CONTEXT_ALREADY_CURRENT", "context already current (deprecated)"),
    205: ("MAP_FAILED", "map or register of a resource failed"),
    206: ("UNMAP_FAILED", "unmap or unregister of a resource failed"),
    207: ("ARRAY_IS_MAPPED", "the array is mapped and cannot be destroyed"),
    208: ("ALREADY_MAPPED", "the resource is already mapped"),
    209: ("NO_BINARY_FOR_GPU", "no kernel image in the module for this GPU"),
    210: ("ALREADY_ACQUIRED", "the resource is already acquired"),
    211: ("NOT_MAPPED", "the resource is not mapped"),
    212: ("NOT_MAPPED_AS_ARRAY", "the mapped resource is not accessible as an array"),
    213: ("NOT_MAPPED_AS_POINTER", "the mapped resource is not accessible as a pointer"),
    214: ("ECC_UNCORRECTABLE", "uncorrectable ECC error seen during execution"),
    215: ("UNSUPPORTED_LIMIT", "the CUlimit is not supported by the device"),
    216: ("CONTEXT_ALREADY_IN_USE", "the context is already bound to a CPU thread"),
    217: ("PEER_ACCESS_UNSUPPORTED", "peer access between these devices is not supported"),
    218: ("INVALID_PTX", "PTX JIT compilation failed"),
    219: ("INVALID_GRAPHICS_CONTEXT", "OpenGL or DirectX context error"),
    220: ("NVLINK_UNCORRECTABLE", "uncorrectable NVLink error during execution"),
    221: ("JIT_COMPILER_NOT_FOUND", "the PTX JIT compiler library was not found"),
    222: (
        "UNSUPPORTED_PTX_VERSION",
        "the PTX was made by a toolchain newer than the driver's JIT supports",
    ),
    223: ("JIT_COMPILATION_DISABLED", "PTX JIT compilation is disabled"),
    224: (
        "UNSUPPORTED_EXEC_AFFINITY",
        "the execution-affinity type is not supported by the device",
    ),
    225: (
        "UNSUPPORTED_DEVSIDE_SYNC",
        "PTX to be JIT-compiled calls cudaDeviceSynchronize, which is unsupported",
    ),
    226: ("CONTAINED", "an exception on the device was contained by GPU error containment"),
    227: ("INSUFFICIENT_LOADER_VERSION", "the driver's loader is too old for this fatbin"),
    300: ("INVALID_SOURCE", "the kernel source is invalid"),
    301: ("FILE_NOT_FOUND", "file not found"),
    302: ("SHARED_OBJECT_SYMBOL_NOT_FOUND", "a link to a shared object did not resolve"),
    303: ("SHARED_OBJECT_INIT_FAILED", "a shared object failed to initialise"),
    304: ("OPERATING_SYSTEM", "an operating-system call failed"),
    400: ("INVALID_HANDLE", "a resource handle is not valid"),
    401: ("ILLEGAL_STATE", "a resource is not in a valid state for the operation"),
    402: ("LOSSY_QUERY", "an introspection would lose semantically important information"),
    500: ("NOT_FOUND", "a named symbol (function, global, texture) was not found"),
    600: ("NOT_READY", "asynchronous work issued earlier is not complete (not an error by itself)"),
    700: (
        "ILLEGAL_ADDRESS",
        "a kernel load or store used an invalid address; the context is unusable",
    ),
    701: ("LAUNCH_OUT_OF_RESOURCES", "launch refused: not enough resources (registers, threads)"),
    702: ("LAUNCH_TIMEOUT", "the kernel ran past the watchdog; the context is unusable"),
    703: ("LAUNCH_INCOMPATIBLE_TEXTURING", "launch uses an incompatible texturing mode"),
    704: ("PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"),
    705: ("PEER_ACCESS_NOT_ENABLED", "peer access is not enabled"),
    708: ("PRIMARY_CONTEXT_ACTIVE", "the primary context is already initialised"),
    709: (
        "CONTEXT_IS_DESTROYED",
        "the current context is destroyed or is an uninitialised primary context",
    ),
    710: ("ASSERT", "a device-side assert fired; the context is unusable"),
    711: ("TOO_MANY_PEERS", "the resources for peer access are exhausted"),
    712: ("HOST_MEMORY_ALREADY_REGISTERED", "the host range is already registered"),
    713: ("HOST_MEMORY_NOT_REGISTERED", "the host pointer is not a registered region"),
    714: ("HARDWARE_STACK_ERROR", "hardware stack error; the context is unusable"),
    715: ("ILLEGAL_INSTRUCTION", "illegal instruction; the context is unusable"),
    716: ("MISALIGNED_ADDRESS", "misaligned address; the context is unusable"),
    717: (
        "INVALID_ADDRESS_SPACE",
        "instruction used an address space it cannot; the context is unusable",
    ),
    718: ("INVALID_PC", "the program counter wrapped; the context is unusable"),
    719: ("LAUNCH_FAILED", "exception during kernel execution; the context is unusable"),
    720: ("COOPERATIVE_LAUNCH_TOO_LARGE", "a cooperative launch has more blocks than fit"),
    721: ("TENSOR_MEMORY_LEAK", "a kernel ended without freeing its tensor memory"),
    800: ("NOT_PERMITTED", "the operation is not permitted"),
    801: ("NOT_SUPPORTED", "the operation is not supported on this system or device"),
    802: (
        "SYSTEM_NOT_READY",
        "the system is not ready for CUDA work (e.g. fabric manager / NVSwitch not up)",
    ),
    803: (
        "SYSTEM_DRIVER_MISMATCH",
        "display driver and CUDA driver (libcuda) versions do not match",
    ),
    804: (
        "COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "forward-compatibility libcuda is in use but the visible hardware does not support it",
    ),
    805: ("MPS_CONNECTION_FAILED", "the MPS client could not connect to the MPS daemon or server"),
    806: ("MPS_RPC_FAILURE", "the MPS RPC failed"),
    807: ("MPS_SERVER_NOT_READY", "the MPS server is not ready for new clients"),
    808: ("MPS_MAX_CLIENTS_REACHED", "no resources left for an MPS client"),
    809: ("MPS_MAX_CONNECTIONS_REACHED", "no resources left for an MPS device connection"),
    810: ("MPS_CLIENT_TERMINATED", "the MPS client was terminated by the server"),
    811: (
        "CDP_NOT_SUPPORTED",
        "the module uses dynamic parallelism that this configuration does not support",
    ),
    812: ("CDP_VERSION_MISMATCH", "the module mixes incompatible versions of dynamic parallelism"),
    900: ("STREAM_CAPTURE_UNSUPPORTED", "not permitted while the stream is capturing"),
    901: ("STREAM_CAPTURE_INVALIDATED", "the capture was invalidated by an earlier error"),
    902: ("STREAM_CAPTURE_MERGE", "would merge two independent captures"),
    903: ("STREAM_CAPTURE_UNMATCHED", "the capture was not begun in this stream"),
    904: ("STREAM_CAPTURE_UNJOINED", "the capture has a fork not joined to the origin stream"),
    905: ("STREAM_CAPTURE_ISOLATION", "a dependency would cross the capture boundary"),
    906: ("STREAM_CAPTURE_IMPLICIT", "disallowed implicit dependency on a capture (legacy stream)"),
    907: ("CAPTURED_EVENT", "not permitted on an event last recorded in a capturing stream"),
    908: ("STREAM_CAPTURE_WRONG_THREAD", "capture ended from another thread in a non-relaxed mode"),
    909: ("TIMEOUT", "the wait timed out"),
    910: ("GRAPH_EXEC_UPDATE_FAILURE", "the graph update violates instantiated-graph constraints"),
    911: ("EXTERNAL_DEVICE", "an error in a device outside the GPU"),
    912: ("INVALID_CLUSTER_SIZE", "cluster launch misconfigured"),
    913: ("FUNCTION_NOT_LOADED", "the function handle is not loaded"),
    914: ("INVALID_RESOURCE_TYPE", "a resource is not of a valid type"),
    915: ("INVALID_RESOURCE_CONFIGURATION", "resources are insufficient or not applicable"),
    916: ("KEY_ROTATION", "key-rotation sequence failed"),
    917: ("STREAM_DETACHED", "not permitted: the stream is detached"),
    918: ("GRAPH_RECAPTURE_FAILURE", "graph recapture failed"),
    919: ("FABRIC_NOT_READY", "the GPU fabric is not ready yet; the call may be tried again"),
    999: ("UNKNOWN", "unknown internal error"),
}

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
STUB_LIBRARY = 34
NO_DEVICE = 100

CLASSES: dict[int, type[CudaError]] = {
    OUT_OF_MEMORY: OutOfMemoryError,
    NOT_INITIALIZED: NotInitializedError,
    4: NotInitializedError,
    STUB_LIBRARY: UnsupportedDriverError,
    201: InvalidContextError,
    709: InvalidContextError,
}

HINTS = {
    STUB_LIBRARY: "take the toolkit's stubs folder off LD_LIBRARY_PATH; the driver's libcuda.so.1 "
    "comes with the NVIDIA driver",
    NO_DEVICE: "see `cudriver check` and CUDA_VISIBLE_DEVICES",
    700: "an earlier asynchronous operation failed; the context can only be destroyed now",
    709: "somebody else destroyed or reset the context; pop it where it is on this thread's stack "
    "(context_stack()), and where it was a device's primary one, Device.reset_primary_context() "
    "begins anew",
    712: "this range overlaps one that is page-locked already, perhaps by another library",
    803: "the loaded libcuda does not belong to the kernel's driver; see `cudriver check`",
    804: "a cuda-compat libcuda is loaded, which this GPU does not support; see `cudriver check`",
    999: "after a suspend the nvidia_uvm module often needs to be loaded anew",
}

FORKED = (
    "this process was forked from one in which CUDA was initialised; start it with the 'spawn' "
    "method instead"
)


def with_gib(text: str) -> str:
    """The text with GiB beside each number of bytes from eight digits on, but for a limit's."""
    return re.sub(r"(?<!\w)(?<!limit\()\d{8,}( bytes)?", _with_gib, text)


def _with_gib(found: re.Match[str]) -> str:
    gib = int(found[0].split()[0]) / (1 << 30)
    return f"{found[0]} ({f'{gib:,.0f}' if gib >= 1000 else f'{gib:.3g}'} GiB)"


def failure(
    code: int,
    function: str,
    arguments: str,
    name: str = "",
    meaning: str = "",
    forked: bool = False,
) -> CudaError:
    """The exception for a code that a driver's function returned.

    arguments: those that matter, as they stand in the message. name, meaning: the driver's own, or
    empty. forked: this process is a fork of one in which CUDA was initialised.
    """
    unknown = "UNKNOWN_CODE", "a code that this version of cudriver does not know"
    ours, our_meaning = ERRORS.get(code, unknown)
    if code in ERRORS or not name:
        name = f"CUDA_ERROR_{ours}"
    if code == STUB_LIBRARY or not meaning:
        meaning = our_meaning
    kind, hint = CLASSES.get(code, CudaError), HINTS.get(code, "")
    if code == NOT_INITIALIZED and forked:
        kind, hint = ForkedProcessError, FORKED
    arguments = with_gib(arguments) if code == OUT_OF_MEMORY else arguments
    message = f"{function}({arguments}): {name} ({code}): {meaning}"
    return kind(f"{message}. Hint: {hint}" if hint else message, code, name, meaning, function)


def error_names() -> dict[int, str]:
    """Return the name of every error code of the driver.

    Returns
    -------
    dict of int to str
        Names as in ``cuda.h``, including those that an older driver does not know.

    Notes
    -----
    Calls no CUDA function; `CudaError.code` is a key.

    Examples
    --------
    >>> cu.error_names()[2]
    'CUDA_ERROR_OUT_OF_MEMORY'
    """
    return {0: "CUDA_SUCCESS"} | {code: f"CUDA_ERROR_{name}" for code, (name, _) in ERRORS.items()}

"""What a driver's code becomes: an exception with the code's name, its meaning and a hint."""

from __future__ import annotations

import linecache
import re
import sys
import textwrap
from collections import Counter
from types import FrameType
from typing import NoReturn

from cudriver.errors import (
    CudaError,
    ForkedProcessError,
    InvalidContextError,
    NotInitializedError,
    OutOfMemoryError,
    UnsupportedDriverError,
)

#: Every error of CUresult, without CUDA_ERROR_: a driver may be too old to know it.
NAMES = {
    1: "INVALID_VALUE",
    2: "OUT_OF_MEMORY",
    3: "NOT_INITIALIZED",
    4: "DEINITIALIZED",
    5: "PROFILER_DISABLED",
    6: "PROFILER_NOT_INITIALIZED",
    7: "PROFILER_ALREADY_STARTED",
    8: "PROFILER_ALREADY_STOPPED",
    34: "STUB_LIBRARY",
    36: "CALL_REQUIRES_NEWER_DRIVER",
    46: "DEVICE_UNAVAILABLE",
    47: "MULTICAST_RESOURCE_FULL",
    100: "NO_DEVICE",
    101: "INVALID_DEVICE",
    102: "DEVICE_NOT_LICENSED",
    200: "INVALID_IMAGE",
    201: "INVALID_CONTEXT",
    202: "CONTEXT_ALREADY_CURRENT",
    205: "MAP_FAILED",
    206: "UNMAP_FAILED",
    207: "ARRAY_IS_MAPPED",
    208: "ALREADY_MAPPED",
    209: "NO_BINARY_FOR_GPU",
    210: "ALREADY_ACQUIRED",
    211: "NOT_MAPPED",
    212: "NOT_MAPPED_AS_ARRAY",
    213: "NOT_MAPPED_AS_POINTER",
    214: "ECC_UNCORRECTABLE",
    215: "UNSUPPORTED_LIMIT",
    216: "CONTEXT_ALREADY_IN_USE",
    217: "PEER_ACCESS_UNSUPPORTED",
    218: "INVALID_PTX",
    219: "INVALID_GRAPHICS_CONTEXT",
    220: "NVLINK_UNCORRECTABLE",
    221: "JIT_COMPILER_NOT_FOUND",
    222: "UNSUPPORTED_PTX_VERSION",
    223: "JIT_COMPILATION_DISABLED",
    224: "UNSUPPORTED_EXEC_AFFINITY",
    225: "UNSUPPORTED_DEVSIDE_SYNC",
    226: "CONTAINED",
    227: "INSUFFICIENT_LOADER_VERSION",
    300: "INVALID_SOURCE",
    301: "FILE_NOT_FOUND",
    302: "SHARED_OBJECT_SYMBOL_NOT_FOUND",
    303: "SHARED_OBJECT_INIT_FAILED",
    304: "OPERATING_SYSTEM",
    400: "INVALID_HANDLE",
    401: "ILLEGAL_STATE",
    402: "LOSSY_QUERY",
    500: "NOT_FOUND",
    600: "NOT_READY",
    700: "ILLEGAL_ADDRESS",
    701: "LAUNCH_OUT_OF_RESOURCES",
    702: "LAUNCH_TIMEOUT",
    703: "LAUNCH_INCOMPATIBLE_TEXTURING",
    704: "PEER_ACCESS_ALREADY_ENABLED",
    705: "PEER_ACCESS_NOT_ENABLED",
    708: "PRIMARY_CONTEXT_ACTIVE",
    709: "CONTEXT_IS_DESTROYED",
    710: "ASSERT",
    711: "TOO_MANY_PEERS",
    712: "HOST_MEMORY_ALREADY_REGISTERED",
    713: "HOST_MEMORY_NOT_REGISTERED",
    714: "HARDWARE_STACK_ERROR",
    715: "ILLEGAL_INSTRUCTION",
    716: "MISALIGNED_ADDRESS",
    717: "INVALID_ADDRESS_SPACE",
    718: "INVALID_PC",
    719: "LAUNCH_FAILED",
    720: "COOPERATIVE_LAUNCH_TOO_LARGE",
    721: "TENSOR_MEMORY_LEAK",
    800: "NOT_PERMITTED",
    801: "NOT_SUPPORTED",
    802: "SYSTEM_NOT_READY",
    803: "SYSTEM_DRIVER_MISMATCH",
    804: "COMPAT_NOT_SUPPORTED_ON_DEVICE",
    805: "MPS_CONNECTION_FAILED",
    806: "MPS_RPC_FAILURE",
    807: "MPS_SERVER_NOT_READY",
    808: "MPS_MAX_CLIENTS_REACHED",
    809: "MPS_MAX_CONNECTIONS_REACHED",
    810: "MPS_CLIENT_TERMINATED",
    811: "CDP_NOT_SUPPORTED",
    812: "CDP_VERSION_MISMATCH",
    900: "STREAM_CAPTURE_UNSUPPORTED",
    901: "STREAM_CAPTURE_INVALIDATED",
    902: "STREAM_CAPTURE_MERGE",
    903: "STREAM_CAPTURE_UNMATCHED",
    904: "STREAM_CAPTURE_UNJOINED",
    905: "STREAM_CAPTURE_ISOLATION",
    906: "STREAM_CAPTURE_IMPLICIT",
    907: "CAPTURED_EVENT",
    908: "STREAM_CAPTURE_WRONG_THREAD",
    909: "TIMEOUT",
    910: "GRAPH_EXEC_UPDATE_FAILURE",
    911: "EXTERNAL_DEVICE",
    912: "INVALID_CLUSTER_SIZE",
    913: "FUNCTION_NOT_LOADED",
    914: "INVALID_RESOURCE_TYPE",
    915: "INVALID_RESOURCE_CONFIGURATION",
    916: "KEY_ROTATION",
    917: "STREAM_DETACHED",
    918: "GRAPH_RECAPTURE_FAILURE",
    919: "FABRIC_NOT_READY",
    999: "UNKNOWN",
}

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
STUB_LIBRARY = 34
NO_DEVICE = 100
NOT_FOUND = 500
NOT_READY = 600
CONTEXT_IS_DESTROYED = 709

#: Of the errors that this package raises itself. The driver says what others mean.
MEANINGS = {
    OUT_OF_MEMORY: "not enough memory (host, device, or address space) for the operation",
    STUB_LIBRARY: "the loaded libcuda is the toolkit's link-time stub, not the driver",
    NO_DEVICE: "no CUDA-capable device was detected",
}

#: After these every call of the process fails, and so does a new context: ILLEGAL_ADDRESS,
#: LAUNCH_TIMEOUT, ASSERT, ..., UNKNOWN.
LOST = frozenset((700, 702, 710, *range(714, 720), 721, 999))

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
    709: "somebody else destroyed or reset the context; pop it where it is on this thread's stack "
    "(context_stack()), and where it was a device's primary one, Device.reset_primary_context() "
    "begins anew",
    712: "this range overlaps one that is page-locked already, perhaps by another library",
    803: "the loaded libcuda does not belong to the kernel's driver; see `cudriver check`",
    804: "a cuda-compat libcuda is loaded, which this GPU does not support; see `cudriver check`",
}
UNKNOWN_HINT = "after a suspend the nvidia_uvm module often needs to be loaded anew"
LOST_HINT = (
    "a kernel or a copy that was issued earlier has failed, and no CUDA call works in this process "
    "any more: start the process again (under compute-sanitizer, which names the kernel)"
)

FORKED = (
    "this process was forked from one in which CUDA was initialised; start it with the 'spawn' "
    "method instead"
)


_first = ""  # where a failure of LOST was seen first
_told: Counter[tuple[str, int]] = Counter()  # by destructors
TOLD_AT_MOST = 10  # of one kind
IN_A_DESTRUCTOR = "in a destructor"


def calling() -> FrameType | None:
    """The frame that called this package."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("cudriver."):
        frame = frame.f_back
    return frame


def captured(stream: int, call: str, why: str) -> NoReturn:
    """Raise that a call cannot be captured into a graph. For the core, which knows it as `call`;
    the user may have called a function of this package that makes it.
    """
    written, frame = "", sys._getframe().f_back
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("cudriver."):
        written, frame = frame.f_code.co_name, frame.f_back
    if written and call in ("a copy", "a blocking copy"):
        call = "array[key] = value" if written == "assign" else f"{written}()"
    raise CudaError(
        f"{call} cannot be captured: stream {stream:#x} is being captured into a graph, and {why} "
        "(nothing was done, and the capture goes on)"
    )


def is_lost() -> bool:
    """Whether a failure was seen that this process does not survive."""
    return bool(_first)


def found_again() -> None:
    """The device works again, as the simulated one may."""
    global _first
    _first = ""


def _lost(call: str) -> str:
    """The hint for a code of LOST: what to do, and which line met it first."""
    global _first
    frame = calling()
    if not _first and frame is not None:
        file, number = frame.f_code.co_filename, frame.f_lineno
        line = textwrap.shorten(linecache.getline(file, number), 100)
        _first = f"{file}:{number}" + (f", `{line}`" if line else "") + f", by {call}"
    return f"{LOST_HINT}. Seen first at {_first}"


def reported(code: int, function: str, name: str, meaning: str) -> CudaError | None:
    """What a destructor reports of a failed call; None: it is said, or was often enough.

    Where no call works any more, that is one line for all that is freed from then on.
    """
    kind = ("", 0) if code in LOST else (function, code)
    _told[kind] += 1
    error = failure(code, function, IN_A_DESTRUCTOR, name, meaning)
    if code not in LOST:
        return error if _told[kind] <= TOLD_AT_MOST else None
    if _told[kind] == 1 and sys.stderr is not None:
        print(f"cudriver: {error}", file=sys.stderr)
    return None


def with_gib(text: str) -> str:
    """The text with GiB beside each number of bytes from eight digits on, but for a limit's."""
    return re.sub(r"(?<!\w)(?<!limit\()\d{8,}( bytes)?", _with_gib, text)


def _with_gib(found: re.Match[str]) -> str:
    gib = int(found[0].split()[0]) / (1 << 30)
    return f"{found[0]} ({f'{gib:,.0f}' if gib >= 100 else f'{gib:.3g}'} GiB)"


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
    if code in NAMES or not name:
        name = f"CUDA_ERROR_{NAMES.get(code, 'UNKNOWN_CODE')}"
    if code == STUB_LIBRARY or not meaning:
        meaning = MEANINGS.get(code, "a code that neither the driver nor cudriver explains")
    kind, hint = CLASSES.get(code, CudaError), HINTS.get(code, "")
    if code == NOT_INITIALIZED and forked:
        kind, hint = ForkedProcessError, FORKED
    elif code in LOST:
        hint = UNKNOWN_HINT if function == "cuInit" else _lost(f"{function}({arguments})")
    arguments = with_gib(arguments) if code == OUT_OF_MEMORY else arguments
    message = f"{function}({arguments}): {name} ({code}): {meaning}"
    return kind(f"{message}. Hint: {hint}" if hint else message, code, name, meaning, function)


def raised(
    code: int, function: str, arguments: str, name: str, meaning: str, forked: bool
) -> CudaError | None:
    """What the core raises, or None where destructors have said it often enough."""
    if arguments == IN_A_DESTRUCTOR:
        return reported(code, function, name, meaning)
    return failure(code, function, arguments, name, meaning, forked)


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
    return {0: "CUDA_SUCCESS"} | {code: f"CUDA_ERROR_{name}" for code, name in NAMES.items()}

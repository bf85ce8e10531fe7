"""What a driver's code becomes: an exception with the code's name, its meaning and a hint."""

from __future__ import annotations

import linecache
import os
import re
import sys
import textwrap
from collections import Counter
from types import FrameType
from typing import NoReturn

from cudriver import _core
from cudriver.errors import (
    NAMES,
    CudaError,
    ForkedProcessError,
    InvalidContextError,
    NotInitializedError,
    OutOfMemoryError,
    UnsupportedDriverError,
)

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
STUB_LIBRARY = 34
NO_DEVICE = 100
NOT_FOUND = 500
NOT_READY = 600
CONTEXT_IS_DESTROYED = 709
ALREADY_REGISTERED = 712

#: Of the errors that this package raises itself. The driver says what others mean.
MEANINGS = {
    OUT_OF_MEMORY: "not enough memory (host, device, or address space) for the operation",
    STUB_LIBRARY: "the loaded libcuda is the toolkit's link-time stub, not the driver",
    NO_DEVICE: "no CUDA-capable device was detected",
    ALREADY_REGISTERED: "part or all of the requested memory range is already mapped",
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
    ALREADY_REGISTERED: "this range overlaps one that is page-locked already, perhaps by another "
    "library",
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


def forked() -> NoReturn:
    raise ForkedProcessError(
        f"CUDA was initialised before this process was forked (pid {os.getpid()}): the driver "
        "cannot be used here. Start the process with the 'spawn' method, or fork before the first "
        "CUDA call"
    )


LATER = (
    "its work runs when the graph is launched: call it before or after the capture, or on another "
    "stream, or queue the work with the library that captures, which takes a DeviceArray by DLPack"
)


def captured(stream: int, call: str, why: str | None) -> NoReturn:
    """Raise that a call cannot be captured into a graph. For the core, which knows it as `call`;
    the user may have called a function of this package that makes it.
    """
    written, frame = "", sys._getframe().f_back
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("cudriver."):
        written, frame = frame.f_code.co_name, frame.f_back
    if written and call in ("a copy", "a blocking copy"):
        call = "array[key] = value" if written == "assign" else f"{written}()"
    raise CudaError(
        f"{call} cannot be captured: stream {stream:#x} is being captured into a graph, and "
        f"{why or LATER} "
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


ALLOCATING = "cuMemAllocFromPoolAsync", "cuMemAlloc_v2"


def _room() -> str:
    """What the device of the current context has left, if the driver tells."""
    free, total = bytearray(8), bytearray(8)
    try:
        _core._call(None, "cuMemGetInfo_v2", "", (free, total))
    except CudaError:
        return ""
    return " has {} of {} free".format(*(int.from_bytes(n, sys.byteorder) for n in (free, total)))


def raised(
    code: int, function: str, arguments: str, name: str, meaning: str, forked: bool
) -> CudaError | None:
    """What the core raises, or None where destructors have said it often enough."""
    if arguments == IN_A_DESTRUCTOR:
        return reported(code, function, name, meaning)
    if code == OUT_OF_MEMORY and function in ALLOCATING:
        arguments += _room()
    return failure(code, function, arguments, name, meaning, forked)

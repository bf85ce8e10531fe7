"""The driver library, called directly: one call by ctypes, timed sequences of calls from C."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("calls.c")
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
RELEASE_THRESHOLD = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
MOST_ARGUMENTS = 6

# A function's name and its arguments: an integer or an address, or a c_uint64 whose value is read
# when the call is made (what an earlier call of the sequence has written there).
Call = tuple[Any, ...]


class DriverError(Exception):
    """A driver call that failed."""


class NativeCall(ctypes.Structure):
    """struct call of calls.c."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        ("arguments", ctypes.c_uint64 * MOST_ARGUMENTS),
        ("loads", ctypes.c_uint64),
    ]


def compiled() -> Any:
    """calls_seconds of calls.c, or None where there is no compiler."""
    command = os.environ.get("CC", "cc").split()
    if shutil.which(command[0]) is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder, "calls.so"))
        flags = ["-O2", "-std=c11", "-fPIC", "-shared", "-o", library, str(SOURCE)]
        if subprocess.run([*command, *flags], capture_output=True).returncode != 0:
            return None
        function = ctypes.CDLL(library).calls_seconds
    function.argtypes = [ctypes.POINTER(NativeCall), *[ctypes.c_int] * 3]
    function.restype = ctypes.c_double
    return function


class Driver:
    """The driver library at `path`. A call whose code is not 0 raises DriverError.

    `loops` says who makes the calls of a timed sequence: "C", or "ctypes" where nothing compiles C.
    """

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.native = compiled()
        self.loops = "ctypes" if self.native is None else "C"
        self._contexts: dict[int, int] = {}
        self._streams: dict[tuple[int, int], int] = {}

    def call(self, name: str, *arguments: object) -> None:
        """Passes integers as 64-bit words, and anything else as ctypes does."""
        words = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
        code = getattr(self.library, name)(*words)
        if code != 0:
            raise DriverError(f"{name}: {code}")

    def make(self, name: str, *arguments: object) -> int:
        """Calls a function whose first parameter receives a handle or an address."""
        value = ctypes.c_uint64(0)
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def context(self, device: int) -> int:
        """The device's primary context."""
        if device not in self._contexts:
            self.call("cuInit", 0)
            self._contexts[device] = self.make("cuDevicePrimaryCtxRetain", device)
        return self._contexts[device]

    def enter(self, device: int = 0) -> None:
        """Makes the device's primary context the calling thread's."""
        self.call("cuCtxSetCurrent", self.context(device))

    def stream(self, number: int = 0, device: int = 0) -> int:
        """A stream of the benchmark's own, in the device's primary context."""
        if (number, device) not in self._streams:
            self.enter(device)
            made = self.make("cuStreamCreateWithPriority", NON_BLOCKING, 0)
            self._streams[number, device] = made
            self.enter(0)
        return self._streams[number, device]

    def close(self) -> None:
        """Destroys the streams and releases the contexts."""
        for stream in self._streams.values():
            self.call("cuStreamDestroy_v2", stream)
        for device in self._contexts:
            self.call("cuDevicePrimaryCtxRelease_v2", device)

    def pool(self) -> int:
        """A memory pool on device 0 that keeps what it has."""
        properties = (ctypes.c_uint64 * 11)()
        properties[0], properties[1] = 1, 1  # pinned memory, no handles; on a device, number 0
        pool = self.make("cuMemPoolCreate", properties)
        keep, name = ctypes.c_uint64(2**64 - 1), ctypes.c_int(RELEASE_THRESHOLD)
        self.call("cuMemPoolSetAttribute", pool, name, ctypes.byref(keep))
        return pool

    def timer(
        self, calls: Sequence[Call], repeats: int = 1, after: Sequence[Call] = ()
    ) -> Callable[[], float]:
        """A function that makes the calls in order, `repeats` times, and returns the seconds of
        one time. The `after` calls are made once at the end and not timed."""
        sequence = [*calls, *after]
        if self.native is None:
            return lambda: self._loop(calls, repeats, after)
        native = (NativeCall * len(sequence))(*map(self._native, sequence))

        def run() -> float:
            seconds = float(self.native(native, len(calls), len(after), repeats))
            if seconds < 0:
                # `sequence` also keeps the words alive that the calls point to
                raise DriverError(f"{[call[0] for call in sequence]}: {-seconds:.0f}")
            return seconds

        return run

    def _native(self, call: Call) -> NativeCall:
        name, *arguments = call
        made = NativeCall(ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value)
        for number, argument in enumerate(arguments):
            if isinstance(argument, ctypes.c_uint64):
                made.arguments[number] = ctypes.addressof(argument)
                made.loads |= 1 << number
            else:
                made.arguments[number] = argument
        return made

    def _loop(self, calls: Sequence[Call], repeats: int, after: Sequence[Call]) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            for call in calls:
                self.call(*call)
        taken = (time.perf_counter() - begin) / repeats
        for call in after:
            self.call(*call)
        return taken

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Waits until the bytes are there."""
        self.call("cuMemsetD8Async", address, ctypes.c_ubyte(value), nbytes, 0)
        self.call("cuStreamSynchronize", 0)

    def read(self, host: int, address: int, nbytes: int) -> None:
        """Device memory into host memory."""
        self.call("cuMemcpyDtoH_v2", host, address, nbytes)

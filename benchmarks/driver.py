"""The driver called directly: by ctypes where a call takes long, from C (native_calls.c) in loops."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("native_calls.c")
PRIMARY_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
POOL_RELEASE_THRESHOLD = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
HOST_MEMORY, DEVICE_MEMORY = 1, 2  # CU_MEMORYTYPE_*


class DriverError(Exception):
    """A driver call that failed."""


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        ("src_x", ctypes.c_size_t),
        ("src_y", ctypes.c_size_t),
        ("src_type", ctypes.c_int),
        ("src_host", ctypes.c_void_p),
        ("src_device", ctypes.c_uint64),
        ("src_array", ctypes.c_void_p),
        ("src_pitch", ctypes.c_size_t),
        ("dst_x", ctypes.c_size_t),
        ("dst_y", ctypes.c_size_t),
        ("dst_type", ctypes.c_int),
        ("dst_host", ctypes.c_void_p),
        ("dst_device", ctypes.c_uint64),
        ("dst_array", ctypes.c_void_p),
        ("dst_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


def compiled(folder: Path) -> Path | None:
    """native_calls.c as a library, or None where there is no compiler."""
    command = os.environ.get("CC", "cc").split()
    if shutil.which(command[0]) is None:
        return None
    library = folder / "native_calls.so"
    flags = ["-O2", "-std=c11", "-fPIC", "-shared", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True)
    return library if done.returncode == 0 else None


class Driver:
    """The driver library by name; a code that is not 0 raises DriverError.

    `loops` says who makes the calls that are timed: "C", or "ctypes" where nothing compiles C.
    """

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.contexts: dict[int, int] = {}
        self.streams: dict[tuple[int, int], int] = {}
        self._pools: dict[int, int] = {}
        self.native: Any = None
        with tempfile.TemporaryDirectory() as folder:
            made = compiled(Path(folder))
            if made is not None:
                self.native = ctypes.CDLL(str(made))
                if self.native.calls_open(path.encode()) != 0:
                    self.native = None
        self.loops = "C" if self.native is not None else "ctypes"
        if self.native is not None:
            word, pointer, count = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int
            for name, arguments in {
                "copy": [count, word, pointer, word, count],
                "copy_async": [count, word, pointer, word, pointer, count, count],
                "copy_device": [word, word, word, pointer, count],
                "context": [pointer, count],
                "alloc": [word, count],
                "pool": [pointer, word, pointer, count],
                "host_alloc": [word],
            }.items():
                function = getattr(self.native, f"calls_{name}")
                function.argtypes, function.restype = arguments, ctypes.c_double

    def call(self, name: str, *arguments: object) -> None:
        """Integers go as 64-bit words; anything else as ctypes takes it."""
        words = [ctypes.c_uint64(a & (1 << 64) - 1) if isinstance(a, int) else a for a in arguments]
        code = getattr(self.library, name)(*words)
        if code != 0:
            raise DriverError(f"{name}: {code}")

    def make(self, name: str, *arguments: object) -> int:
        """Calls a function whose first parameter receives a handle or an address."""
        value = ctypes.c_uint64(0)
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def enter(self, device: int = 0) -> int:
        """Makes the device's primary context the calling thread's; returns its handle."""
        if device not in self.contexts:
            self.call("cuInit", 0)
            self.contexts[device] = self.make("cuDevicePrimaryCtxRetain", device)
        self.call("cuCtxSetCurrent", self.contexts[device])
        return self.contexts[device]

    def stream(self, number: int = 0, device: int = 0) -> int:
        """A stream of the benchmark's own, of the device's primary context."""
        if (number, device) not in self.streams:
            self.enter(device)
            made = self.make("cuStreamCreateWithPriority", PRIMARY_NON_BLOCKING, 0)
            self.streams[number, device] = made
            self.enter(0)
        return self.streams[number, device]

    def pool(self, device: int = 0) -> int:
        """A memory pool that keeps what it has."""
        if device not in self._pools:
            properties = (ctypes.c_uint64 * 11)()
            properties[0], properties[1] = 1, 1 | device << 32  # pinned device memory, no handles
            self._pools[device] = self.make("cuMemPoolCreate", properties)
            keep = ctypes.c_uint64((1 << 64) - 1)
            self.call(
                "cuMemPoolSetAttribute",
                self._pools[device],
                ctypes.c_int(POOL_RELEASE_THRESHOLD),
                ctypes.byref(keep),
            )
        return self._pools[device]

    # --- timed ---

    def _timed(self, name: str, *arguments: object) -> float:
        seconds = float(getattr(self.native, f"calls_{name}")(*arguments))
        if seconds < 0:
            raise DriverError(f"{name}: {-seconds:.0f}")
        return seconds

    def _loop(self, work: Callable[[], None], count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            work()
        return (time.perf_counter() - begin) / count

    def copy(self, up: bool, device: int, host: int, nbytes: int, count: int = 1) -> float:
        """Seconds of a blocking copy of pageable memory, its bytes in place."""
        if self.native is not None:
            return self._timed("copy", up, device, host, nbytes, count)

        def work() -> None:
            if up:
                self.call("cuMemcpyHtoD_v2", device, host, nbytes)
                self.call("cuStreamSynchronize", 0)
            else:
                self.call("cuMemcpyDtoH_v2", host, device, nbytes)

        return self._loop(work, count)

    def copy_async(
        self, up: bool, device: int, host: int, nbytes: int, wait: bool = True, count: int = 1
    ) -> float:
        """Seconds of an asynchronous copy: to its end, or (not `wait`) until the call returns."""
        stream = self.stream()
        if self.native is not None:
            arguments = (up, device, host, nbytes, stream, wait, count)
            return self._timed("copy_async", *arguments)

        def work() -> None:
            self.issue(up, device, host, nbytes, stream)
            if wait:
                self.call("cuStreamSynchronize", stream)

        seconds = self._loop(work, count)
        self.call("cuStreamSynchronize", stream)
        return seconds

    def issue(self, up: bool, device: int, host: int, nbytes: int, stream: int) -> None:
        if up:
            self.call("cuMemcpyHtoDAsync_v2", device, host, nbytes, stream)
        else:
            self.call("cuMemcpyDtoHAsync_v2", host, device, nbytes, stream)

    def copy_device(self, to: int, origin: int, nbytes: int, count: int = 1) -> float:
        stream = self.stream()
        if self.native is not None:
            return self._timed("copy_device", to, origin, nbytes, stream, count)

        def work() -> None:
            self.call("cuMemcpyDtoDAsync_v2", to, origin, nbytes, stream)
            self.call("cuStreamSynchronize", stream)

        return self._loop(work, count)

    def push_pop(self, count: int) -> float:
        context = self.enter(0)
        if self.native is not None:
            return self._timed("context", context, count)

        def work() -> None:
            self.call("cuCtxPushCurrent_v2", context)
            self.make("cuCtxPopCurrent_v2")

        return self._loop(work, count)

    def alloc(self, nbytes: int, count: int) -> float:
        if self.native is not None:
            return self._timed("alloc", nbytes, count)
        return self._loop(
            lambda: self.call("cuMemFree_v2", self.make("cuMemAlloc_v2", nbytes)), count
        )

    def pool_alloc(self, nbytes: int, count: int) -> float:
        pool, stream = self.pool(), self.stream()
        if self.native is not None:
            return self._timed("pool", pool, nbytes, stream, count)

        def work() -> None:
            address = self.make("cuMemAllocFromPoolAsync", nbytes, pool, stream)
            self.call("cuMemFreeAsync", address, stream)

        return self._loop(work, count)

    def host_alloc(self, nbytes: int) -> float:
        """Seconds of cuMemHostAlloc; the memory is freed after it."""
        if self.native is not None:
            return self._timed("host_alloc", nbytes)
        begin = time.perf_counter()
        memory = self.make("cuMemHostAlloc", nbytes, ctypes.c_uint(0))
        seconds = time.perf_counter() - begin
        self.call("cuMemFreeHost", memory)
        return seconds

    # --- plain ---

    def fill(self, address: int, value: int, nbytes: int) -> None:
        self.call("cuMemsetD8Async", address, ctypes.c_ubyte(value), nbytes, 0)
        self.call("cuStreamSynchronize", 0)

    def read(self, host: int, address: int, nbytes: int) -> None:
        self.call("cuMemcpyDtoH_v2", host, address, nbytes)

    def rows_up(self, device: int, host: int, width: int, height: int, pitch: int) -> None:
        """Rows of the host's memory, `pitch` bytes apart, into one piece; waited for."""
        copy = Copy2D()
        copy.src_type, copy.src_host, copy.src_pitch = HOST_MEMORY, host, pitch
        copy.dst_type, copy.dst_device, copy.dst_pitch = DEVICE_MEMORY, device, width
        copy.width, copy.height = width, height
        self.call("cuMemcpy2DUnaligned_v2", ctypes.byref(copy))
        self.call("cuStreamSynchronize", 0)

"""The driver library: single calls by ctypes, and timed sequences of calls from C."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.measure import DRIVER, Array, Work
from benchmarks.peers.base import Copy, Peer
from benchmarks.peers.ours import Own

SOURCE = Path(__file__).with_name("calls.c")
POOL = "driver, pool"
RELEASE_THRESHOLD = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
MOST_ARGUMENTS = 6

# A function's name and its arguments: an integer or an address, or a c_uint64 whose value is read
# when the call is made (what an earlier call of the sequence has written there).
DriverCall = tuple[Any, ...]


class NativeCall(ctypes.Structure):
    """struct call of calls.c."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_uint64) * MOST_ARGUMENTS),
    ]


@cache
def compiled() -> Any:
    """The functions of calls.c. Raises where nothing compiles it."""
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder, "calls.so"))
        flags = ["-O2", "-std=c11", "-fPIC", "-shared", "-pthread", "-o", library, str(SOURCE)]
        subprocess.run([*os.environ.get("CC", "cc").split(), *flags], check=True)
        functions = ctypes.CDLL(library)
    calls = ctypes.POINTER(NativeCall)
    functions.calls_seconds.argtypes = [calls, *[ctypes.c_int] * 3]
    functions.threads_seconds.argtypes = [ctypes.POINTER(calls), *[ctypes.c_int] * 3]
    for function in (functions.calls_seconds, functions.threads_seconds):
        function.restype = ctypes.c_double
    return functions


def checked(seconds: float, sequence: Sequence[DriverCall]) -> float:
    if seconds < 0:
        raise RuntimeError(f"{[call[0] for call in sequence]}: {-seconds:.0f}")
    return seconds


class Driver(Own):
    """The library at `path`."""

    name = DRIVER
    issued_into = Peer.nothing

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self._contexts: dict[int, cu.Context] = {}
        self.own = cu.Stream(device=0)

    def call(self, name: str, *arguments: object) -> None:
        """Passes integers as 64-bit words, and anything else as ctypes does."""
        words = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
        code = getattr(self.library, name)(*words)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    def context(self, number: int) -> int:
        """The primary context of a GPU."""
        made = cu.Device(number).primary_context()
        return self._contexts.setdefault(number, made).handle

    def enter(self, number: int = 0) -> None:
        """Makes the primary context of a GPU the calling thread's."""
        self.call("cuCtxSetCurrent", self.context(number))

    def timed(
        self, calls: Sequence[DriverCall], repeats: int = 1, after: Sequence[DriverCall] = ()
    ) -> Work:
        """The calls in order, `repeats` times. The `after` calls are made once at the end and not
        timed."""
        sequence, function = [*calls, *after], compiled().calls_seconds
        native = self.native(sequence)

        def run() -> float:
            return checked(function(native, len(calls), len(after), repeats), sequence)

        return Work(run, timed=True, how=f"{calls[0][0]} from C")

    def together(self, sequences: Sequence[Sequence[DriverCall]], repeats: int) -> Work:
        """Each sequence `repeats` times in a thread of its own. Equally long, all at once."""
        enter = ("cuCtxSetCurrent", self.context(0))
        made = [self.native([enter, *sequence]) for sequence in sequences]
        pointer, count = ctypes.POINTER(NativeCall), len(sequences)
        native = (pointer * count)(*[ctypes.cast(calls, pointer) for calls in made])
        function, length = compiled().threads_seconds, len(sequences[0])

        def run() -> float:
            return checked(function(native, count, length, repeats), sequences[0])

        return Work(run, timed=True, how=f"{sequences[0][0][0]} from C", keep=(made,))

    def native(self, sequence: Sequence[DriverCall]) -> ctypes.Array[NativeCall]:
        native = (NativeCall * len(sequence))()
        for made, (name, *words) in zip(native, sequence, strict=True):
            made.function = ctypes.cast(getattr(self.library, name), ctypes.c_void_p)
            for at, word in enumerate(words + [0] * (MOST_ARGUMENTS - len(words))):
                word = word if isinstance(word, ctypes.c_uint64) else ctypes.c_uint64(word)
                made.arguments[at] = ctypes.pointer(word)  # keeps the word alive, too
        return native

    def copy(self, copy: Copy) -> Work:
        """Plain memory is copied by the blocking functions if there is no stream to wait for.

        With a stream the calls also make the context current: it may be another GPU's, or this
        may be a thread of its own.
        """
        ends = (copy.target, copy.source)
        plain = any(isinstance(end, np.ndarray) and not cu.is_pinned(end) for end in ends)
        blocking = plain and copy.wait and copy.stream is None
        stream = 0 if blocking else (copy.stream or self.own).handle
        number = copy.stream.device.ordinal if copy.stream else 0
        enter = [("cuCtxSetCurrent", self.context(number))] if copy.stream else []
        leave = [("cuCtxSetCurrent", self.context(0))] if number else []
        wait = [("cuStreamSynchronize", stream)]
        over = not copy.wait or (blocking and isinstance(copy.target, np.ndarray))
        call = self._call(*ends, stream)
        work = self.timed([*enter, call, *([] if over else wait), *leave], copy.calls)
        if not copy.wait:
            work.after = self.timed([*enter, *wait, *leave]).run
        work.targets, work.keep = (copy.written,), (*ends, copy.stream)
        work.how = f"{call[0]} from C"
        return work

    def rows_work(self, copy: Copy, to: Array, of: Array, width: int, times: int) -> Work:
        stream = self.own.handle
        name, *ends = self._call(copy.target, copy.source, stream)
        at = zip(to.tolist(), of.tolist(), strict=True)
        calls = [(name, ends[0] + a, ends[1] + b, width, stream) for a, b in at]
        wait = [("cuStreamSynchronize", stream)]
        work = self.timed(calls * times + wait) if times else self.timed(calls, after=wait)
        work.targets, work.keep = (copy.written,), (copy.target, copy.source)
        return work

    def _call(self, target: Any, source: Any, stream: int) -> DriverCall:
        """The driver's copy: of host memory, blocking where `stream` is 0, else asynchronous."""
        nbytes = target.nbytes
        kind, more = ("Async_v2", (stream,)) if stream else ("_v2", ())
        if isinstance(source, np.ndarray):
            return ("cuMemcpyHtoD" + kind, target.pointer, source.ctypes.data, nbytes, *more)
        if isinstance(target, np.ndarray):
            return ("cuMemcpyDtoH" + kind, target.ctypes.data, source.pointer, nbytes, *more)
        to, origin = (self.context(end.device.ordinal) for end in (target, source))
        if to == origin:
            return ("cuMemcpyDtoDAsync_v2", target.pointer, source.pointer, nbytes, stream)
        return ("cuMemcpyPeerAsync", target.pointer, to, source.pointer, origin, nbytes, stream)

    def page_lock(self, nbytes: int) -> Work:
        place = ctypes.c_uint64(0)
        take = ("cuMemHostAlloc", ctypes.addressof(place), nbytes, 0)
        return self.timed([take], after=[("cuMemFreeHost", place)])

    def device_memory(self, nbytes: int) -> Work:
        place = ctypes.c_uint64(0)
        take = ("cuMemAlloc_v2", ctypes.addressof(place), nbytes)
        return self.timed([take, ("cuMemFree_v2", place)], 20)

    def pool_memory(self, nbytes: int) -> Work:
        """From a pool of its own, which keeps what it has."""
        properties = (ctypes.c_uint64 * 11)()
        properties[0], properties[1] = 1, 1  # pinned memory, no handles; on a device, number 0
        place, pool, keep = ctypes.c_uint64(0), ctypes.c_uint64(0), ctypes.c_uint64(2**64 - 1)
        self.call("cuMemPoolCreate", ctypes.byref(pool), properties)
        self.call("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, ctypes.byref(keep))
        stream = self.own.handle
        take = ("cuMemAllocFromPoolAsync", ctypes.addressof(place), nbytes, pool, stream)
        give = ("cuMemFreeAsync", place, stream)
        return self.timed([take, give], 1000, [("cuStreamSynchronize", stream)])

    def push_pop(self) -> Work:
        popped = ctypes.c_uint64(0)
        push = ("cuCtxPushCurrent_v2", self.context(0))
        work = self.timed([push, ("cuCtxPopCurrent_v2", ctypes.addressof(popped))], 5000)
        work.keep = (popped,)
        return work

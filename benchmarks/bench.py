"""What the rows share: sizes, arrays with known bytes, works of ours and of the driver, checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.driver import Call, Driver
from benchmarks.measure import Array, Effort, Part, Target, Work, WrongBytes
from benchmarks.peers.base import Peer

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
WHOLE = 256 * MIB  # up to this size all of an array is compared
PIECE, PIECES = 2 * MIB, 32  # what is compared of a larger one
BLOCK = 8 * MIB
POISON = 0xA5
End = Any  # an end of a copy: a NumPy array or a DeviceArray


def size_name(size: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def pieces(nbytes: int) -> list[tuple[int, int]]:
    """(begin, end) of what is compared: all of it, or pieces spread over the array."""
    if nbytes <= WHOLE:
        return [(at, min(at + WHOLE // 4, nbytes)) for at in range(0, nbytes, WHOLE // 4)]
    step = (nbytes - PIECE) / (PIECES - 1)
    begins = [int(number * step) for number in range(PIECES)]
    return [(begin, begin + PIECE) for begin in begins]


def fill(array: Array) -> None:
    """Bytes that differ from place to place, so that a byte in a wrong place is seen."""
    block = np.random.default_rng(1).integers(0, 255, min(BLOCK, array.size), dtype=np.uint8)
    for number, begin in enumerate(range(0, array.size, BLOCK)):
        part = array[begin : begin + BLOCK]
        np.bitwise_xor(block[: part.size], np.uint8(number % 251), out=part)


def address(array: Array) -> int:
    return int(array.ctypes.data)


def written(target: End, expected: Array) -> Target:
    if isinstance(target, cu.DeviceArray):
        return Target(expected, pointer=target.pointer, device=target.device.ordinal)
    return Target(expected, out=target)


def home(path: str, device: int) -> int:
    """The device that issues the copy of `Bench.ends`."""
    return 1 - device if path == "across" else device


def at_once(works: Sequence[Work], how: str) -> Work:
    """All of them, a thread each. Returns, or raises, when all are done."""

    def run() -> None:
        with ThreadPoolExecutor(len(works)) as pool:
            for future in [pool.submit(work.run) for work in works]:
                future.result()

    return Work(run, targets=sum((work.targets for work in works), ()), how=how)


def issued_together(works: Sequence[Work], how: str) -> Work:
    """All are issued, in one thread, and then waited for. Each work's `after` waits."""

    def run() -> None:
        for work in works:
            work.run()
        for work in works:
            assert work.after is not None
            work.after()

    return Work(run, targets=sum((work.targets for work in works), ()), how=how)


class Bench:
    """One run's circumstances."""

    def __init__(
        self,
        limit_s: float,
        *,
        quick: bool = False,
        most: int | None = None,
        alone: bool = False,
        environment: str = "",
    ) -> None:
        self.begin = time.monotonic()
        self.limit_s, self.quick = limit_s, quick
        self.alone = alone  # no contestant but ours
        self.environment = environment  # a large one, whose check is measured
        self.simulated = cu.driver_is_simulated()
        self.most = most or (8 * MIB if self.simulated else 4 * GIB)
        self.driver = Driver(cu.driver_path())
        self.driver.enter(0)
        self.peers: list[Peer] = []
        self.absent: dict[str, str] = {}  # peers that are not here, and why
        self._arrays: dict[str, Array] = {}
        self._packed: tuple[object, Array] = (None, np.empty(0, np.uint8))

    # --- effort and sizes ---

    def effort(self, **changes: Any) -> Effort:
        """Less where the run is to be quick, or has used up its time."""
        if time.monotonic() - self.begin > 0.85 * self.limit_s:
            return Effort(rounds=5, budget=0.1, least=2, long=0.4)
        if self.quick or self.simulated:
            changes = {"rounds": 7, "budget": 0.1, "least": 2, "long": 0.4, **changes}
        return Effort(**changes)

    def size(self, wanted: int) -> int:
        """At most what this run may use."""
        return min(wanted, self.most)

    def label(self, text: str, wanted: int, used: int | None = None) -> str:
        """`text`, and the size where it is not the one that was wanted."""
        used = self.size(wanted) if used is None else used
        return text if used == wanted else f"{text} as {size_name(used)}".strip()

    # --- memory ---

    def _array(self, name: str, nbytes: int, make: Callable[..., Any]) -> Array:
        asked, have = nbytes, self._arrays.get(name)
        if have is None or have.nbytes < nbytes:
            if nbytes > WHOLE:  # more will be wanted: touched once, not at every size
                nbytes = max(nbytes, min(self.most, GIB if self.quick else 4 * GIB))
            self._arrays.pop(name, None)
            have = self._arrays[name] = make(nbytes, np.uint8)
            fill(have)
        return have[:asked]

    def plain(self, nbytes: int) -> Array:
        """Pageable bytes with known contents, the same memory for all contestants."""
        return self._array("plain", nbytes, np.empty)

    def pinned(self, nbytes: int) -> Array:
        """Page-locked bytes with the contents of `plain`."""
        return self._array("pinned", nbytes, cu.pinned_empty)

    def out(self, nbytes: int, pinned: bool = False) -> Array:
        """Bytes to copy into."""
        if pinned:
            return self._array("pinned out", nbytes, cu.pinned_empty)
        return self._array("out", nbytes, np.empty)

    def ends(self, path: str, size: int, device: int = 0) -> tuple[End, End]:
        """(target, source) of a dense copy, the source with its bytes.

        `path` is "plain up", "pinned down" ..., "on the device", or "across" to `device` from the
        other one. Each device has its own part of the host's bytes.
        """
        here = slice(device * size, (device + 1) * size)
        plain, pinned = self.plain(here.stop)[here], path.startswith("pinned")
        there = cu.device_empty(size, np.uint8, device=device)
        if path.endswith("up"):
            return there, self.pinned(here.stop)[here] if pinned else plain
        if path.endswith("down"):
            cu.copy(there, plain)
            return self.out(here.stop, pinned)[here], there
        source = cu.device_empty(size, np.uint8, device=home(path, device))
        cu.copy(source, plain)
        return there, source

    # --- works of ours and of the driver ---

    def ours(self, path: str, size: int, device: int = 0, calls: int = 1) -> Work:
        """A blocking copy of ours, between `ends`."""
        target, source = self.ends(path, size, device)
        return self.copy(target, source, self._bytes(size, device), calls)

    def copy(self, target: End, source: End, expected: Array, calls: int = 1) -> Work:
        """A blocking copy of ours, between these."""
        plan, targets = cu.explain_copy(target, source), (written(target, expected),)
        how = f"copy: {plan.staging or plan.path}"
        return Work(lambda: cu.copy(target, source), targets=targets, calls=calls, how=how)

    def issue(self, path: str, size: int, device: int = 0, calls: int = 1) -> Work:
        """An asynchronous copy of ours, between `ends`, issued. `after` waits for it."""
        target, source = self.ends(path, size, device)
        stream = cu.Stream(device=home(path, device))
        return self.copy_async(target, source, stream, self._bytes(size, device), calls)

    def copy_async(
        self, target: End, source: End, stream: cu.Stream, expected: Array, calls: int = 1
    ) -> Work:
        """The same between these."""
        return Work(
            lambda: cu.copy_async(target, source, stream),
            after=stream.synchronize,
            targets=(written(target, expected),),
            calls=calls,
            how="copy_async",
        )

    def direct(
        self,
        path: str,
        size: int,
        device: int = 0,
        *,
        calls: int = 1,
        wait: bool = True,
        thread: int = 0,
    ) -> Work:
        """The driver's own copy of the same: waited for, or issued, so that `after` waits.

        `thread` is a number from 1 on for a work that runs in a thread of its own: it makes the
        context current and has a stream of its own. Otherwise plain memory is copied by the
        blocking functions, if it is waited for.
        """
        target, source = self.ends(path, size, device)
        blocking = wait and thread == 0 and path.startswith("plain")
        over = blocking and path.endswith("down")  # when the function returns
        at = home(path, device)
        stream = 0 if blocking else self.driver.stream(thread, at)
        copy, synchronize = self.copy_call(target, source, stream), ("cuStreamSynchronize", stream)
        enter = [("cuCtxSetCurrent", self.driver.context(at))] if thread or at else []
        leave = [("cuCtxSetCurrent", self.driver.context(0))] if at else []
        waited = [synchronize] if wait and not over else []
        timer = self.driver.timer([*enter, copy, *waited, *leave], calls)
        return Work(
            timer,
            timer=timer,
            after=None if wait else self.driver.timer([*enter, synchronize, *leave]),
            targets=(written(target, self._bytes(size, device)),),
            how=f"{copy[0]} from {self.driver.loops}",
            keep=(target, source),
        )

    def copy_call(self, target: End, source: End, stream: int) -> Call:
        """The driver's copy: of host memory, blocking where `stream` is 0, else asynchronous."""
        nbytes = target.nbytes
        kind = "_v2" if stream == 0 else "Async_v2"
        more = () if stream == 0 else (stream,)
        if not isinstance(source, cu.DeviceArray):
            return ("cuMemcpyHtoD" + kind, target.pointer, address(source), nbytes, *more)
        if not isinstance(target, cu.DeviceArray):
            return ("cuMemcpyDtoH" + kind, address(target), source.pointer, nbytes, *more)
        if target.device.ordinal == source.device.ordinal:
            return ("cuMemcpyDtoDAsync_v2", target.pointer, source.pointer, nbytes, stream)
        to, origin = (self.driver.context(end.device.ordinal) for end in (target, source))
        return ("cuMemcpyPeerAsync", target.pointer, to, source.pointer, origin, nbytes, stream)

    def _bytes(self, size: int, device: int) -> Array:
        """What `ends` copies to or from a device."""
        return self.plain((device + 1) * size)[device * size :]

    def offer(self, part: Part, make: Callable[[Peer], Any]) -> None:
        """Adds every peer to a part. `make(peer)` is called when it runs, and may raise."""
        for peer in self.peers:
            part.add(peer.name, partial(make, peer))

    # --- the check ---

    def verify(self, work: Work) -> None:
        """Runs a work once, over bytes that are wrong, and compares what it wrote.

        What lies on a device is read back by the driver's own copy.
        """
        try:
            for target in work.targets:
                self._spoil(target)
            work.seconds()
            for target in work.targets:
                self._compare(target)
        finally:
            self.driver.enter(0)

    def _spoil(self, target: Target) -> None:
        if target.out is None:
            self.driver.enter(target.device)
            self.driver.fill(target.pointer, POISON, target.expected.nbytes)
            self.driver.enter(0)
        else:
            target.out[...] = POISON

    def _compare(self, target: Target) -> None:
        out = target.out
        if out is not None and not out.flags.c_contiguous:
            if not np.array_equal(out, target.expected):
                raise WrongBytes("the host has other bytes than were sent")
            return
        flat = self._flat(target.expected)
        if out is not None:
            found = out.reshape(-1).view(np.uint8)
            if not all(np.array_equal(found[b:e], flat[b:e]) for b, e in pieces(flat.size)):
                raise WrongBytes("the host has other bytes than were sent")
            return
        self.driver.enter(target.device)
        scratch = np.empty(min(flat.size, WHOLE // 4), np.uint8)
        for begin, end in pieces(flat.size):
            self.driver.read(address(scratch), target.pointer + begin, end - begin)
            if not np.array_equal(scratch[: end - begin], flat[begin:end]):
                raise WrongBytes("the device has other bytes than were sent")

    def _flat(self, array: Array) -> Array:
        """The bytes in C order. The last that had to be packed are kept: it can take seconds."""
        if not array.flags.c_contiguous:
            key = address(array), array.shape, array.strides
            if self._packed[0] != key:
                self._packed = key, np.ascontiguousarray(array)
            array = self._packed[1]
        return array.reshape(-1).view(np.uint8)

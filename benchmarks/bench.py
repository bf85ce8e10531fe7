"""What the rows share: contestants, sizes, arrays with known bytes, and the check of bytes."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.measure import Array, Part, Target, Work, WrongBytes
from benchmarks.peers.base import Peer
from benchmarks.peers.driver import Driver
from benchmarks.peers.ours import Ours

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
WHOLE = 256 * MIB  # up to this size all of an array is compared
PIECE, PIECES = 2 * MIB, 32  # what is compared of a larger one
BLOCK = 8 * MIB
POISON = 0xA5


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


class Bench:
    """One run's circumstances."""

    def __init__(
        self, quick: bool, alone: bool = False, most: int | None = None, environment: str = ""
    ) -> None:
        self.begin = time.monotonic()
        self.quick = quick
        self.alone = alone  # no contestant but ours
        self.environment = environment  # a large one, whose check is measured
        self.simulated = cu.driver_is_simulated()
        self.most = most or (8 * MIB if self.simulated else 4 * GIB)
        self.driver = Driver(cu.driver_path())
        self.driver.enter(0)
        self.ours = Ours()
        self.peers: list[Peer] = []
        self.absent: dict[str, str] = {}  # peers that are not here, and why
        self._arrays: dict[tuple[str, bool], Array] = {}

    def offer(self, part: Part, make: Callable[[Any], Any], peers: bool = True) -> list[Part]:
        """Adds all contestants to a part. `make(contestant)` is called when it runs."""
        for contestant in (self.ours, self.driver, *(self.peers if peers else ())):
            part.makers[contestant.name] = partial(make, contestant)
        return [part]

    def effort(self, part: Part) -> dict[str, Any]:
        """Less where the run is to be quick, or has used up its time."""
        late = time.monotonic() - self.begin > (38 if self.quick else 127)
        short = {"rounds": 5 if late else 7, "budget": 0.1, "least": 2, "long": 0.4}
        usual = {"rounds": 15, "budget": 0.3, "least": 3, "long": 1.5}
        return short if late else (short if self.quick or self.simulated else usual) | part.effort

    def size(self, wanted: int) -> int:
        """At most what this run may use."""
        return min(wanted, self.most)

    def label(self, text: str, wanted: int, used: int | None = None) -> str:
        """`text`, and the size where it is not the one that was wanted."""
        used = self.size(wanted) if used is None else used
        return text if used == wanted else f"{text} as {size_name(used)}".strip()

    def _array(self, name: str, nbytes: int, pinned: bool) -> Array:
        have = self._arrays.get((name, pinned))
        if have is None or have.nbytes < nbytes:
            room = nbytes
            if nbytes > WHOLE:  # more will be wanted: touched once, not at every size
                room = max(nbytes, min(self.most, GIB if self.quick else 4 * GIB))
            self._arrays.pop((name, pinned), None)
            have = (cu.pinned_empty if pinned else np.empty)(room, np.uint8)
            self._arrays[name, pinned] = have
            fill(have)
        return have[:nbytes]

    def host(self, nbytes: int, pinned: bool = False) -> Array:
        """Bytes with known contents, the same memory for all contestants."""
        return self._array("host", nbytes, pinned)

    def out(self, nbytes: int, pinned: bool = False) -> Array:
        """Bytes to copy into."""
        return self._array("out", nbytes, pinned)

    def verify(self, work: Work) -> None:
        """Runs a work once, over bytes that are wrong, and compares what it wrote.

        What lies on a device is read back by the driver's own copy.
        """
        try:
            for target in work.targets:
                self._spoil(target)
            work.seconds()
            for target in work.targets:
                if not self._same(target):
                    where = "device" if target.out is None else "host"
                    raise WrongBytes(f"the {where} has other bytes than were sent")
        finally:
            self.driver.enter(0)

    def _spoil(self, target: Target) -> None:
        if target.out is None:
            self.driver.enter(target.device)
            nbytes, poison = target.expected.nbytes, ctypes.c_ubyte(POISON)
            self.driver.call("cuMemsetD8Async", target.pointer, poison, nbytes, 0)
            self.driver.call("cuStreamSynchronize", 0)
            self.driver.enter(0)
        else:
            target.out[...] = POISON

    def _same(self, target: Target) -> bool:
        out, expected = target.out, target.expected
        if out is not None and not out.flags.c_contiguous:
            return np.array_equal(out, expected)
        flat = np.ascontiguousarray(expected).reshape(-1).view(np.uint8)
        return all(
            np.array_equal(self._read(target, begin, end), flat[begin:end])
            for begin, end in pieces(flat.size)
        )

    def _read(self, target: Target, begin: int, end: int) -> Array:
        if target.out is not None:
            return target.out.reshape(-1).view(np.uint8)[begin:end]
        found = np.empty(end - begin, np.uint8)
        self.driver.enter(target.device)
        at = target.pointer + begin
        self.driver.call("cuMemcpyDtoH_v2", found.ctypes.data, at, found.nbytes)
        return found

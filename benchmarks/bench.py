"""What the rows share: the machine, the sizes, the peers, arrays with known bytes, and the checks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.driver import Driver
from benchmarks.measure import Effort, Part, Work, WrongBytes
from benchmarks.peers import Peer

Array = np.ndarray[Any, Any]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PIECE, PIECES = 2 * MIB, 32  # of a large array, what is compared
WHOLE = 256 * MIB  # and up to this size all of it
BLOCK = 8 * MIB
POISON = 0xA5


def size_name(size: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def pieces(nbytes: int) -> list[tuple[int, int]]:
    """(begin, end) of the parts that are compared: all, or pieces spread over the array."""
    if nbytes <= WHOLE:
        return [(at, min(at + WHOLE // 4, nbytes)) for at in range(0, nbytes, WHOLE // 4)]
    step = (nbytes - PIECE) / (PIECES - 1)
    begins = [int(number * step) for number in range(PIECES)]
    return [(begin, begin + PIECE) for begin in begins]


def fill(array: Array, seed: int = 1) -> None:
    """Bytes that differ from place to place, so that a byte out of place is seen."""
    flat = array.reshape(-1).view(np.uint8)
    block = np.random.default_rng(seed).integers(0, 255, min(BLOCK, flat.size), dtype=np.uint8)
    for number, begin in enumerate(range(0, flat.size, BLOCK)):
        part = flat[begin : begin + BLOCK]
        np.bitwise_xor(block[: part.size], np.uint8(number % 251), out=part)


def packed(array: Array) -> Array:
    """A C-ordered copy. A matrix that lies the other way is taken in squares: NumPy's own copy of
    half a GiB of it takes seconds."""
    if array.ndim != 2 or array.strides[1] <= array.strides[0]:
        return np.ascontiguousarray(array)
    result, side = np.empty(array.shape, array.dtype), 256
    for i in range(0, array.shape[0], side):
        for j in range(0, array.shape[1], side):
            result[i : i + side, j : j + side] = array[i : i + side, j : j + side]
    return result


def address(array: Array) -> int:
    return int(array.ctypes.data)


def together(*works: Callable[[], Any]) -> Callable[[], None]:
    """All at once, a thread each; an exception of one is raised when all are done."""

    def run() -> None:
        errors: list[BaseException] = []

        def guarded(work: Callable[[], Any]) -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        threads = [Thread(target=guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    return run


class Bench:
    """One run's circumstances."""

    def __init__(self, *, quick: bool, most: int | None, limit_s: float) -> None:
        self.begin = time.monotonic()
        self.quick, self.limit_s = quick, limit_s
        self.simulated = cu.driver_is_simulated()
        self.most = most or (2 * MIB if self.simulated else 4 * GIB)
        self.driver = Driver(cu.driver_path())
        self.device_count = cu.device_count()
        self.driver.enter(0)
        self.peers: list[Peer] = []
        self.absent: dict[str, str] = {}  # peers that are not here, and why
        self._arrays: dict[str, Array] = {}

    # --- effort and sizes ---

    def effort(self, **changes: Any) -> Effort:
        """Less where the run was asked to be quick, or has used its time up."""
        late = time.monotonic() - self.begin > 0.85 * self.limit_s
        if self.quick or late or self.simulated:
            given = {"rounds": 7, "budget": 0.1, "least": 2, "long": 0.4}
        else:
            given = {"rounds": 15, "budget": 0.3, "least": 3, "long": 1.5}
        return Effort(**{**given, **changes})

    def size(self, wanted: int) -> int:
        """At most what this run may use."""
        return min(wanted, self.most)

    def label(self, text: str, wanted: int) -> str:
        """`text`, and the size where it is not the one that was wanted."""
        used = self.size(wanted)
        return text if used == wanted else f"{text} as {size_name(used)}".strip()

    # --- memory ---

    def _array(self, name: str, nbytes: int, make: Callable[[int], Any]) -> Array:
        have = self._arrays.get(name)
        if have is None or have.nbytes < nbytes:
            self._arrays.pop(name, None)
            have = self._arrays[name] = make(nbytes)
            fill(have)
        return have[:nbytes]

    def plain(self, nbytes: int) -> Array:
        """Pageable bytes with known contents; the same memory for all contestants."""
        return self._array("plain", nbytes, lambda n: np.empty(n, np.uint8))

    def out(self, nbytes: int) -> Array:
        """Pageable bytes to copy into."""
        return self._array("out", nbytes, lambda n: np.empty(n, np.uint8))

    def pinned(self, nbytes: int) -> Array:
        """Page-locked bytes with the contents of `plain`."""
        return self._array("pinned", nbytes, lambda n: cu.pinned_empty(n, np.uint8))

    def drop(self, *names: str) -> None:
        for name in names:
            self._arrays.pop(name, None)

    # --- the checks ---

    def verifier(self, expected: Array, device: int = 0) -> Callable[[Work], None]:
        """Runs a work once and compares what it wrote; WrongBytes where it is not right.

        The target is spoilt before. What lies on the device is read back by the driver's own copy.
        """
        nbytes = expected.nbytes
        flat = packed(expected).reshape(-1).view(np.uint8)
        scratch = np.empty(min(nbytes, WHOLE // 4), np.uint8)

        def verify(work: Work) -> None:
            try:
                self._run_spoilt(work, nbytes, device)
                if work.out is not None:
                    if not self._same(work.out, expected, flat):
                        raise WrongBytes("the host has other bytes than were sent")
                elif work.pointer is not None:
                    self.driver.enter(device)
                    source = work.pointer()
                    for begin, end in pieces(nbytes):
                        self.driver.read(address(scratch), source + begin, end - begin)
                        if not np.array_equal(scratch[: end - begin], flat[begin:end]):
                            raise WrongBytes("the device has other bytes than were sent")
            except BaseException:
                self.drop("pinned", "out")  # spoilt, and not mended
                raise
            finally:
                self.driver.enter(0)

        return verify

    def _run_spoilt(self, work: Work, nbytes: int, device: int) -> None:
        """One run, onto bytes that are wrong before it."""
        if work.out is not None:
            self._spoil(work.out)
        elif work.pointer is not None:
            self._spoil_device(work.pointer, nbytes, device)
        if work.timer is not None:
            work.timer()
        else:
            if work.before is not None:
                work.before()
            work.run()
            if work.after is not None:
                work.after()

    def _spoil_device(self, pointer: Callable[[], int], nbytes: int, device: int) -> None:
        try:
            target = pointer()
        except Exception:
            return  # nothing is there before the first run
        if target:
            self.driver.enter(device)
            self.driver.fill(target, POISON, nbytes)
            self.driver.enter(0)

    @staticmethod
    def _spoil(out: Array) -> None:
        if out.flags.c_contiguous:
            flat = out.reshape(-1).view(np.uint8)
            for begin, end in pieces(flat.size):
                flat[begin:end] = POISON
        else:
            out[...] = 0

    @staticmethod
    def _same(out: Array, expected: Array, flat: Array) -> bool:
        if not out.flags.c_contiguous:
            return np.array_equal(out, expected)
        found = out.reshape(-1).view(np.uint8)
        return all(np.array_equal(found[b:e], flat[b:e]) for b, e in pieces(found.size))

    # --- peers ---

    def offer(self, part: Part, make: Callable[[Peer], Any]) -> None:
        """Adds every peer to a part: `make(peer)` is called when it runs, and may raise."""
        for peer in self.peers:
            part.add(peer.name, lambda peer=peer: make(peer))


def usable_cpus() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0))

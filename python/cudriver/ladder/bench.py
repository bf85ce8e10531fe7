"""Measures the rungs: every way is verified against NumPy once, then timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cudriver as cu
from cudriver import _core
from cudriver.ladder.result import Measured, add_ratios, show_size
from cudriver.ladder.room import SMALLEST, shrinking
from cudriver.ladder.rungs import BY_NAME, RUNGS, Rung
from cudriver.memory.room import host_room

SCHEMA = 1
COHERENT = (
    "This GPU reads ordinary memory through the host's page tables, and cudriver leaves that to "
    "it. It was never run on such a machine: please report this output, and that of "
    "`CUDRIVER_COHERENT=0 cudriver bench`, which has the copies by cudriver's threads."
)
MEANINGLESS = "simulated driver: no GPU takes part, so no rates are given"

KIB, MIB = 1 << 10, 1 << 20
#: Small pieces are timed several at once, so that a timing covers about so many bytes.
HOST_BYTES, DEVICE_BYTES = 16 * MIB, 256 * MIB
MOST_AT_ONCE = 256
#: The kernels of _core: threads of a block, bytes of shared memory that it goes over, what the
#: words of a write grow by.
THREADS, TILE, STEP = 256, 16 * KIB, np.uint32(0x9E3779B1)
#: Blocks on a multiprocessor that all devices have room for at once, and turns around the tile: a
#: millisecond's work or more.
SHARED_BLOCKS, TURNS = 4, 4096
#: What an event's time is good to, in seconds.
RESOLUTION = 0.5e-6

Words = NDArray[np.uint32]


@dataclass(frozen=True)
class Step:
    """A piece of the work, named for whoever shows progress."""

    name: str
    run: Callable[[], list[Measured]]


def measure(
    device: cu.Device,
    sizes: Sequence[int],
    rounds: int,
    follow: Callable[[list[Step]], Iterable[Step]] = iter,
    keep_interrupted: bool = False,
) -> dict[str, Any]:
    """Measures every rung at every size and returns the report, as `cudriver bench --json` has it.

    Args:
        device: the GPU whose ladder it is.
        sizes: bytes of each array, multiples of 16 from 4096 on. Where memory does not suffice,
            the half is tried, and so on; the report says so.
        rounds: timings of each way.
        follow: yields the steps as they are to be run; shows progress if it likes.
        keep_interrupted: report what there is on KeyboardInterrupt, if there is anything.

    Raises:
        ValueError: a size or the number of rounds is out of range.
        CudaError: the driver refused something other than memory.
    """
    if rounds < 1:
        raise ValueError(f"rounds is a number from 1 on, not {rounds}")
    for size in sizes:
        if size < SMALLEST or size % 16:
            raise ValueError(f"a size is a multiple of 16 from {SMALLEST} bytes on, not {size}")
    bench = Bench(device, rounds, cu.driver_is_simulated())
    results: list[Measured] = []
    interrupted = False
    with device.primary_context():
        try:
            for step in follow(bench.steps(sizes)):
                results += step.run()
        except KeyboardInterrupt:
            if not (keep_interrupted and results):
                raise
            interrupted = True
            bench.notes.append("Interrupted: what is missing was not measured.")
        bench.forget()
    if device.attributes.get("pageable_memory_access_uses_host_page_tables"):
        bench.notes.append(COHERENT)
    if bench.simulated:
        for result in results:
            result.seconds = []
    rows = [result.to_dict() for result in results]
    add_ratios(rows)
    return {
        "schema": SCHEMA,
        "simulated": bench.simulated,
        "meaningless": MEANINGLESS if bench.simulated else None,
        "driver": {"cuda": str(cu.driver_version()), "path": cu.driver_path()},
        "device": {
            "ordinal": device.ordinal,
            "name": device.name,
            "compute_capability": "{}.{}".format(*device.compute_capability),
            "multiprocessor_count": device.multiprocessor_count,
            "l2_cache_bytes": device.attributes["l2_cache_size"],
        },
        "device_count": cu.device_count(),
        "rounds": rounds,
        "sizes": list(sizes),
        "rate_unit": "GB/s, 1e9 bytes a second",
        "interrupted": interrupted,
        "verified": all(row["verified"] for row in rows if row["skipped"] is None),
        "notes": bench.notes,
        "rungs": rows,
    }


class Bench:
    """The arrays of the size in hand, and the measurements over them."""

    def __init__(self, device: cu.Device, rounds: int, simulated: bool) -> None:
        self.device = device
        self.rounds = rounds
        self.simulated = simulated
        self.notes: list[str] = []
        self.asked: int = 0
        self.arrays: Arrays | None = None

    def steps(self, sizes: Sequence[int]) -> list[Step]:
        """What is to be done, in the order of the ladder, size by size; what no size changes is
        done with the last."""
        return [
            Step(f"{show_size(size)}: {rung.title}", partial(self.climb, size, rung))
            for size in sizes
            for rung in RUNGS
            if rung.sized or size == sizes[-1]
        ]

    def climb(self, size: int, rung: Rung) -> list[Measured]:
        """One rung at one size; the arrays are made with the first of a size."""
        if self.asked != size:
            self.forget()
            self.arrays, note = shrinking(size, lambda n: Arrays(n, self.device))
            self.asked = size
            if note:
                self.notes.append(note)
        assert self.arrays is not None
        results: list[Measured] = getattr(self, f"rung_{rung.name}")(self.arrays)
        for result in results:
            result.asked = size
        return results

    def forget(self) -> None:
        """Lets go of the arrays, and of the page-locked memory under them."""
        self.arrays = None
        self.asked = 0
        cu.trim_host_memory()

    # --- the rungs ---

    def rung_pageable(self, arrays: Arrays) -> list[Measured]:
        return self.copies("pageable", arrays, arrays.plain, arrays.back, _core._ladder_copy)

    def rung_staged(self, arrays: Arrays) -> list[Measured]:
        results = self.copies("staged", arrays, arrays.plain, arrays.back, cu.copy)
        for result in results:
            if result.path != "staged":
                result.notes.append(
                    f"So small an array cu.copy leaves to the driver (path {result.path!r})."
                )
        return results

    def rung_page_locked(self, arrays: Arrays) -> list[Measured]:
        arrays.locked[...] = arrays.plain
        return self.copies("page_locked", arrays, arrays.locked, arrays.locked, cu.copy)

    def rung_peer(self, arrays: Arrays) -> list[Measured]:
        rung = BY_NAME["peer"]
        others = cu.devices()
        if len(others) < 2:
            why = "there is one device: a peer copy takes two"
            return [Measured(rung, "copy", arrays.size, skipped=why)]
        pairs = [(a, b) for a in others for b in others if a.ordinal < b.ordinal]
        return [m for a, b in pairs for m in ((self.peer(arrays, a, b)), (self.peer(arrays, b, a)))]

    def peer(self, arrays: Arrays, source: cu.Device, target: cu.Device) -> Measured:
        def make(size: int) -> tuple[cu.DeviceArray, cu.DeviceArray]:
            shape = size // 4
            return (
                cu.device_empty(shape, np.uint32, device=source),
                cu.device_zeros(shape, np.uint32, device=target),
            )

        (here, there), note = shrinking(arrays.size, make)
        result = Measured(
            BY_NAME["peer"], "copy", here.nbytes, devices=(source.ordinal, target.ordinal)
        )
        plain = arrays.plain[: here.size]
        cu.copy(here, plain)
        result.notes += [note] if note else []
        if not target.can_access_peer(source):
            result.notes.append("These two cannot reach each other: the driver goes by the host.")
        result.path = cu.explain_copy(there, here).path
        stream = cu.Stream(device=source)
        result.seconds = self.issued(lambda: cu.copy_async(there, here, stream), stream, here)
        result.verified = bool(np.array_equal(there.to_numpy(), plain))
        return result

    def rung_device(self, arrays: Arrays) -> list[Measured]:
        result = Measured(BY_NAME["device"], "copy", arrays.size)
        here, there = arrays.here, arrays.there
        cu.copy(here, arrays.plain)
        there.fill(0)
        cu.copy(there, here)
        result.path = cu.explain_copy(there, here).path
        result.verified = bool(np.array_equal(there.to_numpy(), arrays.plain))
        stream = cu.Stream(device=self.device)
        result.seconds = self.issued(lambda: cu.copy_async(there, here, stream), stream, here)
        self.mark_cached(result, 2 * arrays.size)
        return [result]

    def rung_mapped(self, arrays: Arrays) -> list[Measured]:
        return self.kernels("mapped", arrays, arrays.locked)

    def rung_global(self, arrays: Arrays) -> list[Measured]:
        results = self.kernels("global", arrays, arrays.here)
        for result in results:
            self.mark_cached(result, arrays.size)
        return results

    def rung_shared(self, arrays: Arrays) -> list[Measured]:
        """Each block goes TURNS times over its tile."""
        rung, blocks = BY_NAME["shared"], self.device.multiprocessor_count * SHARED_BLOCKS
        sums = cu.device_zeros(blocks * THREADS, np.uint32, device=self.device)
        tile = np.random.default_rng(1).integers(0, 1 << 32, TILE // 4, np.uint32)
        there = cu.device_empty(tile.size, np.uint32, device=self.device)
        cu.copy(there, tile)
        opposite = np.arange(THREADS, dtype=np.uint32)[::-1]
        # A thread reads the whole tile TURNS / THREADS times; and it adds up what the opposite one
        # wrote last: four vectors of its number and the turn's, and its number + 1, + 2, + 3.
        expected = {
            "read": np.uint32(total(tile) * (TURNS // THREADS) & 0xFFFFFFFF),
            "write": 4 * (4 * opposite + np.uint32(1024 * (TURNS - 1) + 6)),
        }
        results = []
        for direction in rung.directions:
            result = Measured(rung, direction, blocks * TILE * TURNS)
            result.seconds = _core._ladder_kernel(
                "shared_read" if direction == "read" else "shared_write",
                there, sums, TURNS, self.rounds, 1,
            )  # fmt: skip
            seen = sums.to_numpy().reshape(blocks, THREADS)
            result.verified = bool((seen == expected[direction]).all())
            results.append(result)
        return results

    # --- verifying and timing ---

    def copies(
        self,
        name: str,
        arrays: Arrays,
        source: Words,
        target: Words,
        copy: Callable[[Any, Any], None],
    ) -> list[Measured]:
        """Blocking copies both ways, by the host's clock."""
        rung, here = BY_NAME[name], arrays.here
        up = Measured(rung, "to_device", arrays.size, path=cu.explain_copy(here, source).path)
        down = Measured(rung, "from_device", arrays.size, path=cu.explain_copy(target, here).path)
        if copy is not cu.copy:
            up.path = down.path = None

        here.fill(0)
        copy(here, source)
        up.verified = bool(np.array_equal(here.to_numpy(), arrays.plain))
        up.seconds = self.blocking(lambda: copy(here, source), arrays.size)

        cu.copy(here, arrays.plain)
        target[...] = 0
        copy(target, here)
        down.verified = bool(np.array_equal(target, arrays.plain))
        down.seconds = self.blocking(lambda: copy(target, here), arrays.size)
        return [up, down]

    def kernels(self, name: str, arrays: Arrays, memory: Words | cu.DeviceArray) -> list[Measured]:
        """A kernel that reads all of `memory`, and one that writes it, by the device's events."""
        rung, count = BY_NAME[name], self.at_once(arrays.size, DEVICE_BYTES)
        most = self.device.attributes["max_threads_per_multiprocessor"] or 1024
        blocks = self.device.multiprocessor_count * (most // THREADS)
        blocks = min(blocks, -(-arrays.size // (16 * THREADS)))
        sums = cu.device_zeros(blocks * THREADS, np.uint32, device=self.device)
        read, write = (Measured(rung, direction, arrays.size) for direction in rung.directions)

        cu.copy(memory, arrays.plain)
        read.seconds = _core._ladder_kernel("read", memory, sums, 0, self.rounds, count)
        read.verified = total(sums.to_numpy()) == total(arrays.plain)

        start = 20
        write.seconds = _core._ladder_kernel("write", memory, sums, start, self.rounds, count)
        cu.copy(arrays.back, memory)
        write.verified = is_sequence(arrays.back, start) and total(sums.to_numpy()) == (
            arrays.size // 16
        )
        return [read, write]

    def at_once(self, size: int, enough: int) -> int:
        """How many pieces of `size` bytes one timing covers."""
        return 1 if self.simulated else max(1, min(enough // size, MOST_AT_ONCE))

    def blocking(self, copy: Callable[[], None], size: int) -> list[float]:
        """Seconds for one copy, a figure a round: the host's clock around calls that wait."""
        count = self.at_once(size, HOST_BYTES)
        result = []
        copy()
        for _ in range(self.rounds):
            begin = perf_counter()
            for _ in range(count):
                copy()
            result.append((perf_counter() - begin) / count)
        return result

    def issued(
        self, copy: Callable[[], object], stream: cu.Stream, array: cu.DeviceArray
    ) -> list[float]:
        """Seconds for one copy, a figure a round: events around copies in a stream."""
        count = self.at_once(array.nbytes, DEVICE_BYTES)
        begin, end = (cu.Event(timing=True, device=stream.device) for _ in range(2))
        result = []
        copy()
        for _ in range(self.rounds):
            begin.record(stream)
            for _ in range(count):
                copy()
            end.record(stream)
            end.synchronize()
            result.append(max(begin.elapsed_time(end) / 1e3, RESOLUTION) / count)
        return result

    def mark_cached(self, result: Measured, touched: int) -> None:
        """Notes where all that is touched fits in the device's cache."""
        cache = self.device.attributes["l2_cache_size"] or 0
        if touched <= cache and not self.simulated:
            result.notes.append(
                f"All of it fits in the {show_size(cache)} L2 cache: this is the cache's rate."
            )


class Arrays:
    """What one size needs: three arrays on the host, two on the device."""

    def __init__(self, size: int, device: cu.Device) -> None:
        words, room = size // 4, host_room()
        if 3 * size > room:
            raise MemoryError(f"the host has {show_size(room)} left for three such arrays")
        self.size = size
        self.here: cu.DeviceArray[np.uint32] = cu.device_empty(words, np.uint32, device=device)
        self.there: cu.DeviceArray[np.uint32] = cu.device_empty(words, np.uint32, device=device)
        self.locked: Words = cu.pinned_empty(words, np.uint32)
        self.back: Words = np.empty(words, np.uint32)
        self.plain: Words = np.random.default_rng(size).integers(0, 1 << 32, words, np.uint32)


def total(words: Words) -> int:
    """The sum of all words, modulo 2^32."""
    return int(words.sum(dtype=np.uint32))


def is_sequence(words: Words, start: int) -> bool:
    """Whether word j is start + j * STEP modulo 2^32, looked at in pieces that fit the cache."""
    piece = np.arange(1 << 18, dtype=np.uint32) * STEP
    for at in range(0, words.size, piece.size):
        part = words[at : at + piece.size]
        first = np.uint32((start + at * int(STEP)) & 0xFFFFFFFF)
        if not np.array_equal(part, piece[: part.size] + first):
            return False
    return True

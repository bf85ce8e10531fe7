"""Measures the rungs: every way is verified against NumPy once, then timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import cudriver as cu
from cudriver import _core
from cudriver.ladder.rungs import BACK, BY_NAME, RUNGS, Rung

SCHEMA = 1
MEANINGLESS = "simulated driver: no GPU takes part, the figures mean nothing"

KIB, MIB = 1 << 10, 1 << 20
SMALLEST = 4 * KIB
#: Small pieces are timed several at once, so that a timing covers about so many bytes.
HOST_BYTES, DEVICE_BYTES = 16 * MIB, 256 * MIB
MOST_AT_ONCE = 256
#: What an event's time is good to, in seconds.
RESOLUTION = 0.5e-6

Words = NDArray[np.uint32]
T = TypeVar("T")


@dataclass
class Measured:
    """One way of one rung at one size.

    Attributes:
        size: bytes that one copy, or one launch of a kernel, moves.
        asked: the size of the ladder that it belongs to; more, where memory did not suffice.
        devices: ordinals, from and to, of a peer copy.
        seconds: for `size` bytes, one figure a round.
        verified: whether what arrived was what was sent; None where nothing was measured.
        path: of `cu.explain_copy`, where cu.copy moved it.
        skipped: why nothing was measured, or None.
    """

    rung: Rung
    direction: str
    size: int
    devices: tuple[int, int] | None = None
    seconds: list[float] = field(default_factory=list)
    verified: bool | None = None
    path: str | None = None
    notes: list[str] = field(default_factory=list)
    skipped: str | None = None
    asked: int = 0

    @property
    def rate(self) -> float | None:
        """The median, in GB/s (1e9 bytes a second)."""
        return self.size / statistics.median(self.seconds) / 1e9 if self.seconds else None

    @property
    def spread(self) -> float | None:
        """Half of what lies between the quartiles of the rates, as a part of the median."""
        if self.rate is None:
            return None
        rates = [self.size / seconds / 1e9 for seconds in self.seconds]
        if len(rates) < 2:
            return 0.0
        low, _, high = statistics.quantiles(rates, n=4, method="inclusive")
        return (high - low) / 2 / self.rate

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; the ratios are put in where all is known."""
        rates = [self.size / seconds / 1e9 for seconds in self.seconds]
        return {
            "rung": self.rung.name,
            "title": self.rung.title,
            "teaches": self.rung.teaches,
            "direction": self.direction,
            "devices": list(self.devices) if self.devices else None,
            "size": self.asked,
            "bytes": self.size,
            "clock": self.rung.clock,
            "path": self.path,
            "gb_per_s": self.rate,
            "spread": self.spread,
            "lowest": min(rates, default=None),
            "highest": max(rates, default=None),
            "seconds": self.seconds,
            "verified": self.verified,
            "notes": self.notes,
            "skipped": self.skipped,
        }


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
) -> dict[str, Any]:
    """Measures every rung at every size and returns the report, as `cudriver bench --json` has it.

    Args:
        device: the GPU whose ladder it is.
        sizes: bytes of each array, multiples of 16 from 4096 on. Where memory does not suffice,
            the half is tried, and so on; the report says so.
        rounds: timings of each way.
        follow: yields the steps as they are to be run; shows progress if it likes.

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
    with device.primary_context():
        for step in follow(bench.steps(sizes)):
            results += step.run()
        bench.forget()
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
        "verified": all(row["verified"] for row in rows if row["skipped"] is None),
        "notes": bench.notes,
        "rungs": rows,
    }


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """To each row: its rate against the rung above and against page-locked memory.

    Compared are rows of one size and one way (to the device and reads, or back and writes); a copy
    within or between devices counts as the way to the device, and of several pairs of peers the
    first stands for all.
    """
    names = [rung.name for rung in RUNGS]
    rates: dict[tuple[int, bool, str], float] = {}
    for row in rows:
        if row["gb_per_s"]:
            key = (row["size"], row["direction"] in BACK, row["rung"])
            rates.setdefault(key, row["gb_per_s"])
    for row in rows:
        size, back, rate = row["size"], row["direction"] in BACK, row["gb_per_s"]
        above = None
        for name in names[: names.index(row["rung"])]:
            # A rung that goes one way only stands above both.
            above = rates.get((size, back, name)) or rates.get((size, False, name)) or above
        locked = rates.get((size, back, "page_locked"))
        row["ratio_to_above"] = rate / above if rate and above else None
        row["ratio_to_page_locked"] = rate / locked if rate and locked else None


class Bench:
    """The arrays of the size in hand, and the measurements over them."""

    def __init__(self, device: cu.Device, rounds: int, simulated: bool) -> None:
        self.device = device
        self.rounds = rounds
        self.simulated = simulated
        self.notes: list[str] = []
        self.asked = 0
        self.arrays: Arrays | None = None

    def steps(self, sizes: Sequence[int]) -> list[Step]:
        """What is to be done, in the order of the ladder, size by size."""
        return [
            Step(f"{show_size(size)}: {rung.title}", partial(self.climb, size, rung))
            for size in sizes
            for rung in RUNGS
            if hasattr(self, f"rung_{rung.name}")
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
        if touched <= cache:
            result.notes.append(
                f"All of it fits in the {show_size(cache)} L2 cache: this is the cache's rate."
            )


class Arrays:
    """What one size needs: three arrays on the host, two on the device."""

    def __init__(self, size: int, device: cu.Device) -> None:
        words = size // 4
        self.size = size
        self.here = cu.device_empty(words, np.uint32, device=device)
        self.there = cu.device_empty(words, np.uint32, device=device)
        self.locked: Words = cu.pinned_empty(words, np.uint32, mapped=True)
        self.back: Words = np.empty(words, np.uint32)
        self.plain: Words = np.random.default_rng(size).integers(0, 1 << 32, words, np.uint32)


def shrinking(size: int, make: Callable[[int], T]) -> tuple[T, str | None]:
    """What `make` makes of `size` bytes, or of a half, a quarter ... where memory runs out; and,
    in that case, what to say about it."""
    asked, why = size, ""
    while True:
        try:
            made = make(size)
        except MemoryError as error:  # cu.OutOfMemoryError is one
            half = size // 2 & -16
            if half < SMALLEST:
                raise
            size, why = half, why or str(error)
        else:
            note = f"No memory for {show_size(asked)} ({why}): measured with {show_size(size)}."
            return made, note if size != asked else None


def show_size(size: int) -> str:
    """As people write it: 64 KiB, 1.5 GiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.4g} {unit}"
    return f"{size} bytes"

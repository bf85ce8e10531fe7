"""What one measurement gave, and what the report says of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from cudriver.ladder.rungs import BACK, RUNGS, Rung


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


def show_size(size: int) -> str:
    """As people write it: 64 KiB, 1.5 GiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.4g} {unit}"
    return f"{size} bytes"


def number(rate: float) -> str:
    """Three figures, as many as such a measurement carries; thousands in full."""
    return f"{rate:,.0f}" if rate >= 99.95 else f"{rate:.1f}" if rate >= 9.995 else f"{rate:.2f}"

"""Rows: a line of the table of targets each.

A row has one part or several, and is met where each of them is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.bench import Bench
from benchmarks.measure import OURS, Part, Skip, told, worst


@dataclass
class Row:
    """One line of the table of targets."""

    name: str
    target: str  # in words
    build: Callable[[Bench], list[Part]]
    parts: list[Part] = field(default_factory=list)
    note: str = ""  # why there are no figures
    seconds: float = 0.0  # that it took
    simulated: bool = False

    def run(self, bench: Bench) -> None:
        """Makes and measures the parts, or notes why that cannot be."""
        started, self.simulated = time.monotonic(), bench.simulated
        try:
            self.parts = self.build(bench)
            for part in self.parts:
                if bench.alone:
                    part.makers = {OURS: part.makers[OURS]}
                part.run(bench.effort(part), None if bench.alone else bench.verify)
        except Skip as why:
            self.note = str(why)
        except Exception as error:
            self.note = f"FAILED: {told(error)}"
        self.seconds = time.monotonic() - started

    def ratio(self) -> float | None:
        """The worst of its parts' ratios to the target. None where one is not known."""
        return worst([part.ratio() for part in self.parts if part.goals])

    def verdict(self) -> str:
        ratio = self.ratio()
        if self.note:
            return self.note
        if any(OURS in part.failed for part in self.parts):
            return "FAILED"
        if self.simulated:
            return "simulated"
        if ratio is None:
            return "not judged"
        return "met" if ratio >= 1 else "not met"

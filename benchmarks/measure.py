"""Works and parts: what is timed, in rounds, and how the figures are judged.

A part is one kind of work on one size. Its contestants take turns, round by round, so that a drift
of the machine meets all of them. The median of the rounds counts.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]
OURS = "cudriver"
DRIVER = "driver"  # the driver called from C
PINNED = "pinned"  # the same, from page-locked memory: the rate of the bus
NUMPY = "NumPy"


class WrongBytes(Exception):
    """A contestant did not do the work."""


class Skip(Exception):
    """Why a row cannot be measured here."""


@dataclass
class Target:
    """Bytes that a work writes, on the host (`out`) or on a device (`pointer`)."""

    expected: Array
    out: Array | None = None
    pointer: int = 0
    device: int = 0


@dataclass
class Work:
    """One way to do a part's work. `run` does it and waits for its end."""

    run: Call
    before: Call | None = None  # before each sample, not timed
    after: Call | None = None  # after each sample, not timed
    targets: tuple[Target, ...] = ()  # what `run` and `after` have written
    calls: int = 1  # runs in a row that make one sample
    timed: bool = False  # `run` returns the seconds that it took
    how: str = ""  # in words, for the report
    keep: tuple[Any, ...] = ()  # what must stay alive

    def seconds(self) -> float:
        """Takes one sample and returns the seconds of one run."""
        if self.before is not None:
            self.before()
        # timeit drops what a call returns before it makes the next.
        taken = (
            self.run() if self.timed else timeit.timeit(self.run, number=self.calls) / self.calls
        )
        if self.after is not None:
            self.after()
        return float(taken)


# Prepares a contestant's work, or several ways of which the fastest is kept, or a call.
Make = Callable[[], "Work | list[Work] | Call"]
Verify = Callable[[Work], None]
Goal = Callable[["Part"], "float | None"]  # a part's ratio to the target


@dataclass
class Part:
    """One kind of work on one size."""

    label: str
    nbytes: int = 0  # moved by one run; 0: a call, told in time
    goals: list[Goal] = field(default_factory=list)
    unit: str = ""  # of the figures: "GB/s", "us", "ms"
    calls: int = 1  # in a row, of a contestant's call that is not a Work
    makers: dict[str, Make] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)
    warm: bool = True  # one run before those that count
    effort: dict[str, Any] = field(default_factory=dict)  # what `_rounds` takes, if not the run's

    def __post_init__(self) -> None:
        self.unit = self.unit or ("GB/s" if self.nbytes else "us")

    def median(self, who: str = OURS) -> float | None:
        """Seconds of one run, or None where there is no figure."""
        samples = self.samples.get(who)
        return statistics.median(samples) if samples else None

    def spread(self, who: str = OURS) -> float:
        """Half the distance between the quartiles, over the median."""
        samples = self.samples[who]
        if len(samples) < 2:
            return 0.0
        low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
        return (high - low) / 2 / middle

    def figure(self, who: str = OURS) -> float | None:
        """The median in the part's unit."""
        seconds = self.median(who)
        if seconds is None:
            return None
        if self.unit == "GB/s":
            return self.nbytes / seconds / 1e9
        return seconds * {"us": 1e6, "ms": 1e3}[self.unit]

    def ratio(self) -> float | None:
        """Ours over the target: met from 1 on. None where a goal cannot be judged."""
        return worst([goal(self) for goal in self.goals])

    def run(self, effort: dict[str, Any], verify: Verify | None = None) -> None:
        """Prepares, checks and times all contestants. A failure is the contestant's alone.

        `verify` runs a work once and looks at what it wrote.
        """
        works: dict[str, Work] = {}
        for who, make in self.makers.items():
            with self._guard(who):
                works[who] = self._prepared(make, verify)
                self.how[who] = works[who].how
        self._rounds(works, **effort)
        self.makers.clear()  # and the memory that they hold
        works.clear()
        gc.collect()

    def _rounds(
        self, works: dict[str, Work], rounds: int, budget: float, least: int, long: float
    ) -> None:
        """At most `rounds`, and as many as fit into `budget`, the seconds of one contestant; but
        `least` rounds, unless they have taken longer than `long`."""
        spent = dict.fromkeys(works, 0.0)
        for turn in range(rounds):
            order = list(works)
            shift = turn % max(1, len(order))
            for who in order[shift:] + order[:shift]:
                done = self.samples.setdefault(who, [])
                share = budget * (2 if who in (OURS, DRIVER, PINNED) else 1)
                enough = len(done) >= least or (done and spent[who] > long)
                if enough and spent[who] > share:
                    continue
                with self._guard(who):
                    begin = time.perf_counter()
                    done.append(works[who].seconds())
                    spent[who] += time.perf_counter() - begin
                if who in self.failed:
                    del works[who]

    def _prepared(self, make: Make, verify: Verify | None) -> Work:
        made = make()
        ways = [
            way if isinstance(way, Work) else Work(way, calls=self.calls)
            for way in (made if isinstance(made, list) else [made])
        ]
        for work in ways:
            if verify is not None and work.targets:
                verify(work)
            elif self.warm:
                work.seconds()
        return min(ways, key=lambda work: work.seconds()) if len(ways) > 1 else ways[0]

    @contextlib.contextmanager
    def _guard(self, who: str) -> Iterator[None]:
        """Makes an exception the contestant's failure."""
        try:
            yield
        except NotImplementedError:
            pass  # it has nothing of the kind
        except Exception as error:
            self.samples.pop(who, None)
            self.failed[who] = told(error)


def told(error: Exception) -> str:
    """An exception in a line."""
    return f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0][:160]


def worst(ratios: list[float | None]) -> float | None:
    """The smallest ratio. None where one is not known, or there is none."""
    known = [ratio for ratio in ratios if ratio is not None]
    return min(known) if known and len(known) == len(ratios) else None


# --- what a part is held to -----------------------------------------------------------------------


def at_least_rate(gigabytes: float) -> Goal:
    """GB/s (10^9 bytes a second)."""
    return lambda part: (rate := part.figure()) and rate / gigabytes


def at_most(seconds: float) -> Goal:
    return lambda part: (ours := part.median()) and seconds / ours


def times_as_fast(factor: float, *others: str) -> Goal:
    """As the fastest of `others` in the same run; of all contestants where none is named."""

    def goal(part: Part) -> float | None:
        ours, names = part.median(), others or [who for who in part.samples if who != OURS]
        theirs = [seconds for who in names if (seconds := part.median(who))]
        return min(theirs) / ours / factor if ours and theirs else None

    return goal

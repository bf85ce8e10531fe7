"""Works, parts and rows: what is timed, in rounds, and how the figures are judged.

A part is one kind of work on one size; its contestants take turns, round by round, so that a drift
of the machine meets all alike. The median of the rounds counts. A row is one line of the table of
targets: one part or several, met where every one of them is.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

Timer = Callable[[], float]
OURS = "cudriver"
DRIVER = "driver"  # the driver called from C
PINNED = "pinned"  # the same, from page-locked memory: the bus's own rate
SAMPLE_S = 0.003  # of many calls in a row


class WrongBytes(Exception):
    """A contestant did not do the work."""


@dataclass
class Work:
    """One way to do a part's work: `run` does it and waits for its end."""

    run: Callable[[], Any]
    before: Callable[[], Any] | None = None  # before each run, not timed
    after: Callable[[], Any] | None = None  # after each run, not timed
    pointer: Callable[[], int] | None = None  # the device's bytes that `run` has filled
    out: Any = None  # the host array that `run` fills
    calls: int = 1  # runs in a row that make one sample; 0: as many as fill a sample
    timer: Timer | None = None  # measures by itself, in seconds
    how: str = ""  # in words, for the report
    keep: tuple[Any, ...] = ()  # what must stay alive

    def seconds(self) -> float:
        """One sample, in seconds of one run."""
        if self.before is not None:
            self.before()
        if self.timer is not None:
            taken = self.timer()
        elif self.calls == 1:
            begin = time.perf_counter()
            self.run()
            taken = time.perf_counter() - begin
        else:
            if self.calls == 0:
                self.calls = self._fit()
            run, repeat = self.run, range(self.calls)
            enabled = gc.isenabled()
            gc.disable()
            begin = time.perf_counter()
            for _ in repeat:
                run()
            taken = (time.perf_counter() - begin) / len(repeat)
            if enabled:
                gc.enable()
        if self.after is not None:
            self.after()
        return taken

    def _fit(self) -> int:
        """How many runs make a sample long enough for the clock."""
        self.run()
        begin = time.perf_counter()
        self.run()
        taken = max(time.perf_counter() - begin, 1e-7)
        return max(1, min(2000, int(SAMPLE_S / taken)))


@dataclass
class Effort:
    """How much time a part gets."""

    rounds: int = 15  # at most
    budget: float = 0.3  # seconds of one contestant, in all its rounds
    least: int = 3  # rounds, whatever they take ...
    long: float = 1.5  # ... unless they have taken longer than this
    again: bool = False  # measure once more, three times as long, what misses its goal


Make = Callable[[], "Work | list[Work]"]


@dataclass
class Part:
    """One kind of work on one size."""

    label: str
    nbytes: int = 0  # moved by one run; 0: a call, told in time
    goals: list[Callable[[Part], float | None]] = field(default_factory=list)
    unit: str = ""  # of the figures: "GB/s", "us", "ms"
    makers: dict[str, Make] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)
    warm: bool = True  # one run before those that count
    verify: Callable[[Work], None] | None = None  # runs a work once and looks at what it wrote
    effort: dict[str, Any] = field(default_factory=dict)  # what differs from the run's

    def __post_init__(self) -> None:
        self.unit = self.unit or ("GB/s" if self.nbytes else "us")

    def add(self, who: str, make: Make) -> None:
        """`make` prepares a contestant's work, or several ways of which the fastest is kept."""
        self.makers[who] = make

    def median(self, who: str = OURS) -> float | None:
        """Seconds of one run, or None where there is no figure."""
        samples = self.samples.get(who)
        return statistics.median(samples) if samples else None

    def spread(self, who: str = OURS) -> float:
        """Half the distance of the quartiles over the median."""
        samples = self.samples[who]
        if len(samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return (high - low) / 2 / statistics.median(samples)

    def figure(self, who: str = OURS) -> float | None:
        """The median in the part's unit."""
        seconds = self.median(who)
        if seconds is None:
            return None
        if self.unit == "GB/s":
            return self.nbytes / seconds / 1e9
        return seconds * {"us": 1e6, "ms": 1e3}[self.unit]

    def ratio(self) -> float | None:
        """Ours over the target, 1 and more being met; None where it cannot be told."""
        if self.median() is None:
            return None
        ratios = [goal(self) for goal in self.goals]
        known = [ratio for ratio in ratios if ratio is not None]
        return min(known) if known and len(known) == len(ratios) else None

    def run(self, effort: Effort) -> None:
        """Prepares, checks and times all contestants; an exception is that contestant's alone."""
        works: dict[str, Work] = {}
        for who, make in self.makers.items():
            with self._guard(who):
                works[who] = self._prepared(make)
                self.how[who] = works[who].how
        self._rounds(works, effort)
        ratio = self.ratio()
        if effort.again and ratio is not None and ratio < 1:
            self.samples = {}
            longer = replace(effort, rounds=effort.rounds * 3, budget=effort.budget * 3)
            self._rounds(works, longer)
            self.how[OURS] += f" (measured again: {ratio:.3f} of the goal at first)"
        self.samples = {who: done for who, done in self.samples.items() if done}
        self.makers.clear()  # and the memory that they hold
        self.verify = None
        works.clear()
        gc.collect()

    def _rounds(self, works: dict[str, Work], effort: Effort) -> None:
        spent = dict.fromkeys(works, 0.0)
        for turn in range(effort.rounds):
            order = list(works)
            shift = turn % len(order) if order else 0
            for who in order[shift:] + order[:shift]:
                done = self.samples.setdefault(who, [])
                share = effort.budget * (2 if who in (OURS, DRIVER, PINNED) else 1)
                enough = len(done) >= effort.least or (done and spent[who] > effort.long)
                if enough and spent[who] > share:
                    continue
                with self._guard(who):
                    begin = time.perf_counter()
                    done.append(works[who].seconds())
                    spent[who] += time.perf_counter() - begin
                if who in self.failed:
                    del works[who]

    def _prepared(self, make: Make) -> Work:
        made = make()
        ways = made if isinstance(made, list) else [made]
        for work in ways:
            if self.verify is not None:
                self.verify(work)
            elif self.warm:
                work.seconds()
        return min(ways, key=lambda work: work.seconds()) if len(ways) > 1 else ways[0]

    def _guard(self, who: str) -> _Guard:
        return _Guard(self, who)


class _Guard:
    """Makes an exception a contestant's failure."""

    def __init__(self, part: Part, who: str) -> None:
        self.part, self.who = part, who

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        if isinstance(error, NotImplementedError):  # this peer has nothing of the kind
            self.part.samples.pop(self.who, None)
            self.part.failed[self.who] = ""
            return True
        text = str(error).strip().partition("\n")[0]
        self.part.samples.pop(self.who, None)
        self.part.failed[self.who] = f"{type(error).__name__}: {text}"[:160]
        return True


# --- what a part is held to ------------------------------------------------------------------------


def at_least_rate(gigabytes: float) -> Callable[[Part], float | None]:
    """GB/s (10^9 bytes a second)."""

    def goal(part: Part) -> float | None:
        seconds = part.median()
        return None if seconds is None else part.nbytes / seconds / 1e9 / gigabytes

    return goal


def at_most(seconds: float) -> Callable[[Part], float | None]:
    def goal(part: Part) -> float | None:
        ours = part.median()
        return None if ours is None else seconds / ours

    return goal


def times_as_fast(factor: float, *others: str) -> Callable[[Part], float | None]:
    """As the fastest of `others` in the same run; of all that were timed where none is named."""

    def goal(part: Part) -> float | None:
        ours = part.median()
        names = others or tuple(who for who in part.samples if who != OURS)
        theirs = [seconds for who in names if (seconds := part.median(who)) is not None]
        return None if ours is None or not theirs else min(theirs) / ours / factor

    return goal


def over(other: str, seconds: float) -> Callable[[Part], float | None]:
    """At most `seconds` more than the other takes."""

    def goal(part: Part) -> float | None:
        ours, theirs = part.median(), part.median(other)
        if ours is None or theirs is None:
            return None
        return seconds / max(ours - theirs, 1e-6)

    return goal


@dataclass
class Row:
    """One line of the table of targets."""

    name: str
    target: str
    parts: list[Part] = field(default_factory=list)
    note: str = ""  # instead of figures: why there are none
    anywhere: bool = False  # its figures mean something on the simulated driver too
    seconds: float = 0.0  # that it took

    def ratio(self) -> float | None:
        """The worst of its parts' ratios to the target; None where one is not known."""
        judged = [part for part in self.parts if part.goals]
        ratios = [part.ratio() for part in judged]
        known = [ratio for ratio in ratios if ratio is not None]
        return min(known) if known and len(known) == len(ratios) else None

    def verdict(self, simulated: bool = False) -> str:
        if self.note:
            return self.note
        if any(part.failed.get(OURS) for part in self.parts):
            return "FAILED"
        if simulated and not self.anywhere:
            return "simulated"
        ratio = self.ratio()
        if ratio is None:
            return "not judged"
        return "met" if ratio >= 1 else "not met"

"""Runs sequences in this process: the part of the storm that a child runs."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

import cudriver as cu
from cudriver.memory import pieces

from .crowd import Crowd, Member
from .model import Failure, World
from .plan import Plan
from .session import Session, pattern
from .steps import SHARED, SHARED_DTYPE, SHARED_SHAPE, Config, Step

#: What the simulated driver counts and a sequence must leave as it was, and how many more there
#: may be: the copy engine keeps some with the primary context of device 0, as many as it used.
LIVE = {
    "contexts": 0,
    "host_allocs": 0,
    "pending": 0,
    "allocations": 8,
    "streams": 40,
    "events": 200,
}
#: Bytes that pin_async() page-locks at a time, so that it is often in the middle.
PIN_STEP = 1 << 14
#: Microseconds that each operation of the simulated device takes at first, by seed.
DELAYS = (0, 0, 20, 200)
#: Microseconds by which its calls begin late at most, by seed.
JITTERS = (0, 300, 50)

Keep = dict[int, list[int]]


class Simulator:
    """The simulated driver's controls; on the real driver they do nothing."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(cu.driver_path()) if cu.driver_is_simulated() else None
        if self.library is not None:
            self.library.cudriver_sim_live.restype = ctypes.c_longlong
            self.library.cudriver_sim_set_latency.argtypes = [ctypes.c_ulonglong]
            self.library.cudriver_sim_set_jitter.argtypes = [ctypes.c_ulonglong]
        self.first = {what: self.count(what) for what in LIVE}

    def count(self, what: str) -> int:
        return 0 if self.library is None else int(self.library.cudriver_sim_live(what.encode()))

    def grown(self) -> dict[str, int]:
        """What there is more of than at first, and more than may be, once the streams are idle."""
        until = time.monotonic() + 10
        while self.count("pending") and time.monotonic() < until:
            time.sleep(0.001)
        more = {what: self.count(what) - self.first[what] for what in LIVE}
        return {what: count for what, count in more.items() if not 0 <= count <= LIVE[what]}

    def delay(self, microseconds: int) -> None:
        """Each operation of a stream takes so long from now on."""
        if self.library is not None:
            self.library.cudriver_sim_set_latency(microseconds)

    def jitter(self, microseconds: int) -> None:
        """Some calls begin late from now on, by so many microseconds at most."""
        if self.library is not None:
            self.library.cudriver_sim_set_jitter(microseconds)


def alive(simulator: Simulator) -> dict[str, object]:
    """What must be as it was; the contexts that cudriver keeps on purpose are closed."""
    for thread in threading.enumerate():
        if thread.name == "cudriver-pin":
            thread.join()  # it lets go of what it page-locked
    gc.collect()
    cu.trim_host_memory()  # its registrations keep primary contexts
    for row in cu.live_allocations():
        if row.kind == "primary context" and row.device:
            cu.Device(row.device).primary_context().close()
    rows = sorted((row.kind, row.nbytes) for row in cu.live_allocations())
    stats = cu.host_memory_stats()
    return {"live_allocations": rows, "pins": stats.pins, "grown": simulator.grown()}


def plans(seed: int, config: Config, keep: Keep | None = None) -> dict[int, list[Step]]:
    """The steps of each thread; with `keep`, of those threads the steps of those numbers."""
    made = {thread: Plan(seed, thread, config).steps for thread in range(config.threads)}
    if keep is None:
        return made
    return {thread: [made[thread][i] for i in numbers] for thread, numbers in keep.items()}


class Script:
    """The lines of a run, in a file as they are run: so they outlive a crash."""

    def __init__(self, path: str | None) -> None:
        self.file: TextIO | None = open(path, "w", buffering=1) if path else None  # noqa: SIM115
        self.lock = threading.Lock()

    def log(self, thread: int) -> Callable[[str], None]:
        def write(line: str) -> None:
            if self.file is not None:
                with self.lock:
                    self.file.write(f"{thread}\t{line}\n")

        return write

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def make_world(threads: int = 1) -> World:
    host = pattern(SHARED_SHAPE, SHARED_DTYPE, 1)
    values = [host.copy(), cu.pinned_array(host), cu.to_device(host)]
    return World(dict(zip(SHARED, values, strict=True)), dict.fromkeys(SHARED, host), threads)


def run_seed(
    seed: int, config: Config, simulator: Simulator, keep: Keep | None, script: str | None
) -> list[str]:
    """Runs the sequence of a seed; what was wrong, as text."""
    wrong: list[str] = []
    sys.unraisablehook = lambda told: wrong.append(f"{told.object!r}: {told.exc_value!r}")
    simulator.delay(DELAYS[seed % len(DELAYS)])
    before = alive(simulator)
    lines = Script(script)
    simulator.jitter(JITTERS[seed % len(JITTERS)])
    run_threads(bodies(seed, config, simulator, keep, lines), wrong)
    simulator.jitter(0)
    lines.close()
    cu.set_host_memory_limit(None)
    cu.set_host_memory_policy(copy_threads=None)
    cu.trace_allocations(False)
    simulator.delay(0)
    after = alive(simulator)
    if not wrong and after != before:
        wrong.append(f"left alive: {after}, before: {before}")
    return wrong


class Body(Protocol):
    """What a thread does."""

    done: int

    def run_all(self) -> None: ...


def bodies(
    seed: int, config: Config, simulator: Simulator, keep: Keep | None, lines: Script
) -> dict[int, Body]:
    """What each thread does."""
    if config.crowd:
        crowd = Crowd(config.threads, config.devices)
        return {
            thread: Member(seed, thread, crowd, config.steps, lines.log(thread))
            for thread in range(config.threads)
        }
    world = make_world(config.threads)
    return {
        thread: Session(world, steps, simulator.delay, lines.log(thread))
        for thread, steps in plans(seed, config, keep).items()
    }


def run_threads(bodies: dict[int, Body], wrong: list[str]) -> None:
    gate = threading.Barrier(len(bodies))

    def run(thread: int, body: Body) -> None:
        gate.wait()
        try:
            body.run_all()
        except BaseException as error:
            shown = error if isinstance(error, Failure) else traceback.format_exc()
            wrong.append(f"thread {thread}, after {body.done} steps: {shown}")

    threads = [
        threading.Thread(target=run, args=item, name=f"storm {item[0]}") for item in bodies.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_seeds(
    seeds: Sequence[int],
    config: Config,
    *,
    limit: float,
    seconds: float | None,
    keep: Keep | None = None,
    repeat: int = 1,
    script: str | None = None,
) -> int:
    """What a child does: tells each seed on standard output before and after it; 1 at the first
    that fails, for what comes after a failure says little."""
    faulthandler.enable()
    warnings.filterwarnings("ignore", "pinned_numpy", RuntimeWarning)  # where a limit was set
    until = None if seconds is None else time.monotonic() + seconds
    cu.memory_info()
    pieces.STEP = PIN_STEP
    simulator = Simulator()
    for seed in seeds:
        if until is not None and time.monotonic() > until:
            break
        print("seed", seed, flush=True)
        faulthandler.dump_traceback_later(limit, exit=True)
        for _ in range(repeat):
            wrong = run_seed(seed, config, simulator, keep, script)
            if wrong:
                print("\n".join(wrong), file=sys.stderr, flush=True)
                os._exit(1)
        faulthandler.cancel_dump_traceback_later()
        print("done", seed, flush=True)
    return 0

"""What one part of a program does to the others: small copies while a big one is in flight, and who
waits while memory is page-locked."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, KIB, MIB, Bench, size_name
from benchmarks.measure import OURS, Make, Part, Work, at_most, times_as_fast
from benchmarks.peers.base import Peer, first_time
from benchmarks.rows.together import IN_ONE, later
from cudriver.ladder.neighbours import Neighbours

LATER = "pinned_empty_async"
PAUSE = 1e-3  # seconds between two small copies

# Bytes of a page-locked array, and the seconds that its copy may take beside the big one.
BESIDE = {4 * KIB: 0.05e-3, 64 * KIB: 0.05e-3, MIB: 0.12e-3, 16 * MIB: 1.2e-3}


def until_landed(work: Work, flights: list[cu.Transfer]) -> Work:
    """The median time of a copy a millisecond, while the flight lasts."""

    def run() -> float:
        found = []
        while not found or not flights[-1].done:
            begin = time.perf_counter()
            work.run()
            found.append(time.perf_counter() - begin)
            time.sleep(PAUSE)
        return statistics.median(found)

    return replace(work, run=run, timed=True)


def beside(bench: Bench) -> list[Part]:
    """A copy on a stream of its own, until it is over: one a millisecond while a big one is in
    flight, which is ours."""
    whole = bench.host(bench.size(GIB), pinned=True)
    there, flown = cu.to_device(whole), cu.Stream()
    flights: list[cu.Transfer] = []

    def land() -> None:
        flights.pop().wait()

    def works(who: Peer, up: bool, nbytes: int) -> Work:
        host, stream = bench.host(nbytes, pinned=True), who.stream(0)
        if up:
            work = who.up(host, stream=stream)
        else:
            work = who.down(host, bench.out(nbytes, pinned=True), stream=stream)
        ends = (there, whole) if up else (whole, there)

        def take_off() -> None:
            flights.append(cu.copy_async(*ends, flown))

        work = replace(work, before=take_off, after=land, keep=(*work.keep, there, np.copy(host)))
        return until_landed(work, flights)

    parts: list[Part] = []
    for up in (True, False):
        for wanted, most in BESIDE.items():
            nbytes = bench.size(wanted)
            label = bench.label(f"{'up' if up else 'down'}, {size_name(wanted)}", wanted)
            part = Part(label, unit="ms", goals=[at_most(most)])
            parts += bench.offer(part, lambda who, u=up, n=nbytes: works(who, u, n))
    return parts


def page_locking(bench: Bench) -> list[Part]:
    """New memory in pieces: the rate, and how long another process and another thread wait for what
    the driver says of the device's memory."""
    wanted = 48 * GIB
    size = min(wanted // 8 if bench.quick else wanted, 8 * bench.most)
    effort = {"rounds": 3, "least": 2, "long": 4.0}

    def pieces() -> Work:
        def take() -> object:
            return cu.pinned_empty(size, np.uint8, pieces=True)

        return first_time(take, cu.trim_host_memory, "pinned_empty(pieces=True)")

    def waits(work: Work, who: str) -> Work:
        """The longest wait, instead of the time."""

        def run() -> float:
            with Neighbours(cu.Device(0)) as others:
                return others.beside(work.run, 1)[who]

        return Work(run, before=work.before, after=work.after, timed=True, how=work.how)

    makers: dict[str, Make] = {
        OURS: pieces, LATER: lambda: later(size), IN_ONE: lambda: bench.ours.page_lock(size)
    }  # fmt: skip
    goals = [times_as_fast(0.9, LATER)]
    # Once before those that count: a virtual machine gets its memory when that is first used.
    rate = Part(bench.label("", wanted, size), size, goals, effort=effort)
    rate.makers = makers
    parts = [rate]
    for who in ("process", "thread"):
        part = Part(
            bench.label(f"wait of another {who}", wanted, size),
            0,
            [at_most(20e-3)],
            "ms",
            warm=False,
            effort=effort,
        )
        part.makers = {
            name: lambda make=make, who=who: waits(make(), who)  # type: ignore[misc]
            for name, make in makers.items()
        }
        parts.append(part)
    return parts

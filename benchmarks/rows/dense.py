"""Arrays in one piece: plain and page-locked, both ways, every size against the driver's calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.bench import GIB, KIB, MIB, Bench, size_name
from benchmarks.measure import DRIVER, PINNED, Goal, Part, Work, times_as_fast
from benchmarks.peers.base import Peer

SWEEP = "any size, 4 KiB to 4 GiB, any path"
PATHS = ("plain up", "plain down", "pinned up", "pinned down", "on the device")
FLOOR = 0.97


def copy(bench: Bench, path: str, size: int, calls: int, who: Peer) -> Work:
    pinned = path.startswith("pinned")
    host = bench.host(size, pinned)
    if path.endswith("up"):
        return who.up(host, calls=calls)
    if path.endswith("down"):
        return who.down(host, bench.out(size, pinned), calls=calls)
    return who.across(host, 0, 0, calls=calls)


def part(
    bench: Bench, label: str, path: str, wanted: int, goal: Goal, peers: bool = True, **more: Any
) -> Part:
    """One path on one size: ours and the driver's own; peers and the rate of the bus if asked for.

    Copies in a row make a sample. Together they move 64 MiB: some milliseconds.
    """
    size = bench.size(wanted)
    calls = max(1, min(64, 64 * MIB // size))
    made = Part(bench.label(label, wanted), size, [goal], **more)
    bench.offer(made, partial(copy, bench, path, size, calls), peers=peers)
    if peers and path.startswith("plain"):
        bus = path.replace("plain", "pinned")
        made.add(PINNED, lambda: copy(bench, bus, size, calls, bench.driver))
    return made


def plain(share: float, *sizes: int, way: str = "") -> Callable[[Bench], list[Part]]:
    """Plain arrays, `way` up, down or both, held to a share of the rate of the bus."""
    goal, ways = times_as_fast(share, PINNED), [way] if way else ["up", "down"]

    def build(bench: Bench) -> list[Part]:
        return [
            part(bench, size_name(size) if way else to, f"plain {to}", size, goal)
            for size in sizes
            for to in ways
            if size <= GIB or not bench.quick
        ]

    return build


def pinned(bench: Bench) -> list[Part]:
    """Page-locked arrays. The driver copies ours; the peers have their own."""
    goal = times_as_fast(0.99)
    return [part(bench, way, f"pinned {way}", GIB, goal) for way in ("up", "down")]


def sweep(bench: Bench) -> list[Part]:
    """4 KiB to 4 GiB by fours."""
    most, goal = min(bench.most, GIB if bench.quick else 4 * GIB), times_as_fast(FLOOR, DRIVER)
    parts = []
    for path in PATHS:
        for size in (4 * KIB << (2 * step) for step in range(11)):
            effort = {"rounds": 61 if size <= 16 * MIB else 9, "budget": 0.1}
            label = f"{path}, {size_name(size)}"
            if size <= most:
                parts.append(part(bench, label, path, size, goal, peers=False, effort=effort))
    return parts


def right_after(bench: Bench) -> list[Part]:
    """One copy that begins as soon as another has ended, each contestant's own; the first is not
    timed. After a copy of 64 MiB, threads of ours may still be awake."""

    def pair(path: str, before: int, who: Peer) -> Work:
        first, work = copy(bench, path, before, 1, who), copy(bench, path, size, 1, who)
        work.before, work.keep = first.run, (*work.keep, first)
        return work

    parts, size = [], bench.size(MIB)
    for label, path, before in (
        ("up", "plain up", MIB),
        ("down", "plain down", MIB),
        ("up after 64 MiB", "plain up", 64 * MIB),
    ):
        goals, effort = [times_as_fast(FLOOR, DRIVER)], {"rounds": 61}
        parts.append(Part(bench.label(label, MIB), size, goals, effort=effort))
        bench.offer(parts[-1], partial(pair, path, bench.size(before)))
    return parts

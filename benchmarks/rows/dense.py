"""Arrays in one piece: plain and page-locked, both ways, every size against the driver's calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.bench import GIB, KIB, MIB, Bench, size_name
from benchmarks.measure import DRIVER, OURS, PINNED, Part, Work, times_as_fast
from benchmarks.peers.base import Peer

SWEEP = "any size, 4 KiB to 4 GiB, any path"
PATHS = ("plain up", "plain down", "pinned up", "pinned down", "on the device")
FLOOR = 0.97


def part(
    bench: Bench,
    label: str,
    path: str,
    wanted: int,
    *,
    calls: int = 0,
    pinned: bool = False,
    peers: bool = False,
    **more: Any,
) -> Part:
    """One path on one size: ours and the driver's own; the rate of the bus and peers if asked for.

    `calls` copies in a row make a sample. By default they move 64 MiB: some milliseconds.
    """
    size = bench.size(wanted)
    calls = calls or max(1, min(64, 64 * MIB // size))
    made = Part(bench.label(label, wanted), size, verify=bench.verify, **more)
    made.add(OURS, lambda: bench.ours(path, size, calls=calls))
    if pinned:
        bus = path.replace("plain", "pinned")
        made.add(PINNED, lambda: bench.direct(bus, size, calls=calls))
    made.add(DRIVER, lambda: bench.direct(path, size, calls=calls))
    if peers:
        bench.offer(made, lambda peer: theirs(bench, peer, path, size, calls))
    return made


def theirs(bench: Bench, peer: Peer, path: str, size: int, calls: int = 1) -> Work:
    kind, way = path.split()
    if way == "up":
        return peer.up(bench.plain(size), pinned=kind == "pinned", calls=calls)
    out = bench.out(size)
    return peer.down(bench.plain(size), out, pinned=kind == "pinned", calls=calls)


def plain(
    share: float, *sizes: int, ways: Sequence[str] = ("up", "down")
) -> Callable[[Bench], list[Part]]:
    """Plain arrays, held to a share of the rate of the bus."""

    def build(bench: Bench) -> list[Part]:
        return [
            part(
                bench,
                size_name(size) if len(sizes) > 1 else way,
                f"plain {way}",
                size,
                goals=[times_as_fast(share, PINNED)],
                pinned=True,
                peers=True,
            )
            for size in sizes
            for way in ways
            if size <= GIB or not bench.quick
        ]

    return build


def pinned(bench: Bench) -> list[Part]:
    """Page-locked arrays. The driver copies ours; the peers have their own."""
    goals = [times_as_fast(0.99)]
    return [
        part(bench, way, f"pinned {way}", GIB, goals=goals, peers=True) for way in ("up", "down")
    ]


def sweep(bench: Bench) -> list[Part]:
    """4 KiB to 4 GiB by fours."""
    parts = []
    most = min(bench.most, GIB if bench.quick else 4 * GIB)
    sizes = [4 * KIB << (2 * step) for step in range(11) if 4 * KIB << (2 * step) <= most]
    for path in PATHS:
        for size in sizes:
            effort = {"rounds": 61 if size <= 16 * MIB else 9, "budget": 0.1}
            goals, label = [times_as_fast(FLOOR, DRIVER)], f"{path}, {size_name(size)}"
            parts.append(part(bench, label, path, size, goals=goals, effort=effort))
    return parts


def right_after(bench: Bench) -> list[Part]:
    """One copy that begins as soon as another has ended, each contestant's own; the first is not
    timed. After a copy of 64 MiB, threads of ours may still be awake."""
    parts, size = [], bench.size(MIB)
    for label, path, before in (
        ("up", "plain up", size),
        ("down", "plain down", size),
        ("up after 64 MiB", "plain up", bench.size(64 * MIB)),
    ):

        def after(make: Callable[[int], Work], before: int = before) -> Work:
            first, work = make(before), make(size)
            work.before, work.keep = first.run, (*work.keep, first)
            return work

        goals, effort = [times_as_fast(FLOOR, DRIVER)], {"rounds": 61}
        made = Part(bench.label(label, MIB), size, goals, effort=effort, verify=bench.verify)
        made.add(OURS, partial(after, partial(bench.ours, path)))
        made.add(DRIVER, partial(after, partial(bench.direct, path)))
        bench.offer(made, lambda peer, a=after, p=path: a(partial(theirs, bench, peer, p)))
        parts.append(made)
    return parts

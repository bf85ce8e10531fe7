"""Copies alone: arrays in one piece, every size, and views."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.bench import GIB, KIB, MIB, Bench, size_name
from benchmarks.measure import (
    DRIVER,
    OURS,
    PINNED,
    Array,
    Goal,
    Part,
    Work,
    at_least_rate,
    at_most,
    times_as_fast,
)
from benchmarks.peers.base import Peer, View

SWEEP = "any size, 4 KiB to 4 GiB, any path"
PATHS = ("plain up", "plain down", "pinned up", "pinned down", "on the device")
FLOOR = 0.97
SIDE, IMAGES = 512, 256  # uint8 images with three channels: 192 MiB
COLUMNS, HEIGHT = 64, 1 << 20  # 64-bit columns and their rows: 512 MiB


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
        made.makers[PINNED] = partial(copy, bench, bus, size, calls, bench.driver)
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

    parts, size, goal = [], bench.size(MIB), times_as_fast(FLOOR, DRIVER)
    for label, path, before in (
        ("up", "plain up", MIB),
        ("down", "plain down", MIB),
        ("up after 64 MiB", "plain up", 64 * MIB),
    ):
        made = Part(bench.label(label, MIB), size, [goal], effort={"rounds": 61})
        parts += bench.offer(made, partial(pair, path, bench.size(before)))
    return parts


# --- views: the items of one side do not lie one behind another -----------------------------------
# They are integers: a NaN equals nothing.


def matrix(memory: Callable[[int], Array], most: int) -> Array:
    """Twice as wide as high, of at most 512 MiB."""
    height = 1
    while 8 * (2 * height) ** 2 <= min(most, 512 * MIB):
        height *= 2
    return memory(8 * height * height).view(np.int32).reshape(height, 2 * height)


def table(memory: Callable[[int], Array], most: int) -> Array:
    height = min(HEIGHT, most // (8 * COLUMNS))
    return memory(8 * COLUMNS * height).view(np.int64).reshape(height, COLUMNS)


def batch(memory: Callable[[int], Array], most: int) -> Array:
    count, side = IMAGES, SIDE
    while count * side * side * 3 > most:
        count, side = (count // 2, side) if count > 1 else (1, side // 2)
    return memory(count * side * side * 3).reshape(count, side, side, 3)


def channels_first(array: Any) -> Any:
    """PyTorch has another name for NumPy's transpose."""
    change = getattr(array, "permute", array.transpose)
    return change(0, 3, 1, 2)


def up(
    make: Callable[..., Array], view: View, wanted: int, goal: float
) -> Callable[[Bench], list[Part]]:
    """A view into a C-ordered device array. `wanted`: its bytes in a run of full size."""

    def build(bench: Bench) -> list[Part]:
        base = make(bench.host, bench.most)
        nbytes = view(base).nbytes
        part = Part(bench.label("", wanted, nbytes), nbytes, [at_least_rate(goal)])
        return bench.offer(part, lambda who: who.strided_up(base, view))

    return build


transposed = up(matrix, lambda a: a.T, 512 * MIB, 40)
every_second = up(matrix, lambda a: a[:, ::2], 256 * MIB, 25)
half_rows = up(matrix, lambda a: a[:, : a.shape[1] // 2], 256 * MIB, 45)
columns = up(table, lambda a: a[:, 8:13], 40 * MIB, 12)  # five columns that lie side by side
images = up(batch, channels_first, IMAGES * SIDE * SIDE * 3, 40)


def back(bench: Bench) -> list[Part]:
    """A C-ordered device array into every second column of a plain one."""
    base, view = matrix(bench.host, bench.most), lambda a: a[:, ::2]
    out, nbytes = view(matrix(bench.out, bench.most)), base.nbytes // 2
    part = Part(bench.label("", 256 * MIB, nbytes), nbytes, [at_least_rate(20)])
    return bench.offer(part, lambda who: who.strided_down(base, view, out))


# --- rows: many small copies ----------------------------------------------------------------------

STAGED = "one piece"
ROWS = 4096
WIDTHS = {4 * KIB: 45.0, 16 * KIB: 47.0, 64 * KIB: 48.0, 256 * KIB: 49.0}  # bytes: GB/s


def row_copy(
    bench: Bench, width: int, way: str, who: Peer, times: int = 0, pinned: bool = True
) -> Work:
    """ROWS random rows of a GiB to the device, or of the device's GiB to the host."""
    host = bench.host(bench.size(GIB), pinned).reshape(-1, width)
    rng, count = np.random.default_rng(1), min(ROWS, len(host))
    of, to = rng.permutation(len(host))[:count], rng.permutation(count)
    out = bench.out(count * width, pinned).reshape(-1, width) if way == "down" else None
    return who.rows(host, of, to, out, times)


def rows(bench: Bench) -> list[Part]:
    """Calls in a row, as a cache makes them: the device works while the next one is issued."""
    parts = []
    for width, goal in WIDTHS.items():
        nbytes = min(ROWS * width, bench.size(GIB))
        times = max(1, bench.size(256 * MIB) // nbytes)
        for way in ("up", "down"):
            label = bench.label(f"{size_name(width)} {way}", ROWS * width, nbytes)
            made = Part(label, nbytes * times, [at_least_rate(goal)])
            parts += bench.offer(made, partial(row_copy, bench, width, way, times=times))
    return parts


def pageable_rows(bench: Bench) -> list[Part]:
    """Beside as many bytes in one piece, which are staged too."""
    parts = []
    for width in WIDTHS:
        nbytes = min(ROWS * width, bench.size(GIB))
        for way in ("up", "down"):
            label = bench.label(f"{size_name(width)} {way}", ROWS * width, nbytes)
            made = Part(label, nbytes, [times_as_fast(0.9, STAGED)])
            one = partial(row_copy, bench, width, way, bench.ours, times=1, pinned=False)
            made.makers[OURS] = one
            made.makers[STAGED] = partial(copy, bench, f"plain {way}", nbytes, 1, bench.ours)
            parts.append(made)
    return parts


def row_calls(bench: Bench) -> list[Part]:
    """Until the call returns; the wait is not counted."""
    width = 4 * KIB
    count = min(ROWS, bench.size(GIB) // width)
    of_rows = Part(f"copy_rows of {count}", goals=[at_most(20e-6 + 0.02e-6 * count)])
    bench.offer(of_rows, partial(row_copy, bench, width, "up"))
    of_many = Part(f"copy_many of {count}", goals=[at_most(0.3e-6 * count)])
    host = bench.host(count * width, pinned=True).reshape(-1, width)
    of_many.makers[OURS] = lambda: bench.ours.many(host)
    return [of_rows, of_many]

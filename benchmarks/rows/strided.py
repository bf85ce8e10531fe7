"""Views of plain arrays: the items of one side do not lie one behind another."""

from __future__ import annotations

from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.bench import MIB, Bench
from benchmarks.measure import OURS, Array, Part, at_least_rate
from benchmarks.peers.base import View

SIDE, IMAGES = 512, 256  # uint8 images with three channels: 192 MiB
COLUMNS, HEIGHT = 64, 1 << 20  # float64 columns and their rows: 512 MiB


def _matrix(bench: Bench, memory: Array | None = None) -> Array:
    """A matrix of 32-bit items, twice as wide as high, of at most 512 MiB. Bits, not numbers: NaN
    equals nothing."""
    height = 1
    while 8 * (2 * height) ** 2 <= bench.size(512 * MIB):
        height *= 2
    nbytes = 8 * height * height
    memory = bench.plain(nbytes) if memory is None else memory[:nbytes]
    return memory.view(np.uint32).reshape(height, 2 * height)


def _part(bench: Bench, shown: Array, wanted: int, goal: float) -> Part:
    goals = [at_least_rate(goal)]
    label = bench.label("", wanted, shown.nbytes)
    return Part(label, shown.nbytes, goals, verify=bench.verify)


def _up(bench: Bench, base: Array, view: View, wanted: int, goal: float) -> list[Part]:
    """view(base) into a C-ordered device array. `wanted`: its bytes in a run of full size."""
    shown = view(base)
    part = _part(bench, shown, wanted, goal)
    part.add(OURS, lambda: bench.copy(cu.device_empty(shown.shape, shown.dtype), shown, shown))
    bench.offer(part, lambda peer: peer.strided_up(base, view))
    return [part]


def transposed(bench: Bench) -> list[Part]:
    return _up(bench, _matrix(bench), lambda a: a.T, 512 * MIB, 40)


def every_second(bench: Bench) -> list[Part]:
    return _up(bench, _matrix(bench), lambda a: a[:, ::2], 256 * MIB, 25)


def half_rows(bench: Bench) -> list[Part]:
    return _up(bench, _matrix(bench), lambda a: a[:, : a.shape[1] // 2], 256 * MIB, 45)


def back(bench: Bench) -> list[Part]:
    """A C-ordered device array into every second column of a plain one."""
    base = _matrix(bench)
    out, shown = _matrix(bench, bench.out(base.nbytes))[:, ::2], base[:, ::2]
    part = _part(bench, shown, 256 * MIB, 20)
    part.add(OURS, lambda: bench.copy(out, cu.to_device(np.ascontiguousarray(shown)), shown))
    bench.offer(part, lambda peer: peer.strided_down(base, lambda a: a[:, ::2], out))
    return [part]


def images(bench: Bench) -> list[Part]:
    """A batch of images, channels last, into the channels-first array that networks take."""
    count, side, wanted = IMAGES, SIDE, IMAGES * SIDE * SIDE * 3
    while count * side * side * 3 > bench.size(wanted):
        count, side = (count // 2, side) if count > 1 else (1, side // 2)
    base = bench.plain(count * side * side * 3).reshape(count, side, side, 3)

    def channels_first(array: Any) -> Any:
        """PyTorch has another name for NumPy's transpose."""
        change = getattr(array, "permute", array.transpose)
        return change(0, 3, 1, 2)

    return _up(bench, base, channels_first, wanted, 40)


def columns(bench: Bench) -> list[Part]:
    """Five columns of a table that lie side by side."""
    height = min(HEIGHT, bench.size(8 * COLUMNS * HEIGHT) // (8 * COLUMNS))
    base = bench.plain(8 * COLUMNS * height).view(np.uint64).reshape(height, COLUMNS)
    return _up(bench, base, lambda a: a[:, 8:13], 40 * MIB, 12)

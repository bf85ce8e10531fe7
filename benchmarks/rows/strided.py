"""Views of plain arrays: the items of one side do not lie one behind another.

Items are integers: a NaN equals nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.bench import MIB, Bench
from benchmarks.measure import Array, Part, at_least_rate
from benchmarks.peers.base import View

SIDE, IMAGES = 512, 256  # uint8 images with three channels: 192 MiB
COLUMNS, HEIGHT = 64, 1 << 20  # 64-bit columns and their rows: 512 MiB


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

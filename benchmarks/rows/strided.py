"""Arrays that are not in one piece: views of a 512 MiB float32 matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.bench import MIB, Bench, address
from benchmarks.measure import DRIVER, OURS, Part, Row, Work, at_least_rate

View = Callable[[Any], Any]
BASE = 512 * MIB
NUMPY = "NumPy"


def _base(bench: Bench) -> np.ndarray[Any, Any]:
    """A matrix twice as wide as high, of at most 512 MiB, over the run's plain bytes."""
    nbytes = bench.size(BASE)
    height = 1
    while 4 * 2 * (2 * height) ** 2 <= nbytes:
        height *= 2
    return bench.plain(height * height * 8).view(np.float32).reshape(height, 2 * height)


def _up(bench: Bench, row: Row, view: View, goal: float, of: int) -> Row:
    base = _base(bench).view(np.uint32)  # bits, not numbers: NaN equals nothing
    shown = view(base)
    part = Part(
        bench.label("", of) if shown.nbytes != of else "",
        shown.nbytes,
        goals=[at_least_rate(goal)],
        verify=bench.verifier(shown),
    )

    def ours() -> Work:
        there = cu.device_empty(shown.shape, shown.dtype)
        return Work(
            lambda: cu.copy(there, shown),
            pointer=lambda: there.pointer,
            how=f"copy: {cu.explain_copy(there, shown).staging}",
        )

    def driver() -> Work:
        if shown.strides[1] != shown.itemsize:
            raise NotImplementedError  # the driver copies rows, not items
        there = cu.device_empty(shown.shape, shown.dtype)
        pointer, host = there.pointer, address(shown)
        height, width = shown.shape
        return Work(
            lambda: bench.driver.rows_up(
                pointer, host, width * shown.itemsize, height, shown.strides[0]
            ),
            pointer=lambda: pointer,
            how="cuMemcpy2D by ctypes",
            keep=(there,),
        )

    def numpy() -> Work:
        if not bench.simulated and shown.strides[1] > 2 * shown.itemsize:
            raise NotImplementedError  # seconds, and no copy to a device yet
        packed = np.empty(shown.shape, shown.dtype)

        def run() -> None:
            packed[...] = shown

        return Work(run, out=packed, how="packing alone: no copy to a device")

    part.add(OURS, ours)
    part.add(DRIVER, driver)
    part.add(NUMPY, numpy)
    bench.offer(part, lambda peer: peer.strided_up(base, view))
    row.parts.append(part)
    return row


def transposed(bench: Bench) -> Row:
    name = "`a.T` of a plain 512 MiB array into a C-ordered device array"
    return _up(bench, Row(name, ">= 40 GB/s"), lambda a: a.T, 40, BASE)


def every_second(bench: Bench) -> Row:
    name = "`a[:, ::2]` to the device, 256 MiB of data"
    return _up(bench, Row(name, ">= 25 GB/s"), lambda a: a[:, ::2], 25, BASE // 2)


def half_rows(bench: Bench) -> Row:
    name = "`a[:, :n/2]` to the device, 256 MiB"
    row = Row(name, ">= 45 GB/s")
    return _up(bench, row, lambda a: a[:, : a.shape[1] // 2], 45, BASE // 2)


def back(bench: Bench) -> Row:
    """A C-ordered device array of 256 MiB into every second column of a plain one."""
    row = Row("device to `a[:, ::2]`", ">= 20 GB/s")
    base = _base(bench).view(np.uint32)
    out = bench.out(base.nbytes).view(np.uint32).reshape(base.shape)[:, ::2]
    shown = base[:, ::2]

    def view(array: Any) -> Any:
        return array[:, ::2]

    part = Part(
        bench.label("", BASE // 2) if shown.nbytes != BASE // 2 else "",
        shown.nbytes,
        goals=[at_least_rate(20)],
        verify=bench.verifier(shown),
    )

    def ours() -> Work:
        there = cu.to_device(np.ascontiguousarray(shown))
        return Work(
            lambda: cu.copy(out, there),
            out=out,
            how=f"copy: {cu.explain_copy(out, there).staging}",
        )

    def numpy() -> Work:
        packed = np.ascontiguousarray(shown)

        def run() -> None:
            out[...] = packed

        return Work(run, out=out, how="the assignment alone: no copy from a device")

    part.add(OURS, ours)
    part.add(NUMPY, numpy)
    bench.offer(part, lambda peer: peer.strided_down(base, view, out))
    row.parts.append(part)
    return row

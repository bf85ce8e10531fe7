"""Arrays in one piece, plain and page-locked, both ways."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, MIB, Bench, address
from benchmarks.measure import DRIVER, OURS, PINNED, Part, Row, Work, times_as_fast


def _device(nbytes: int) -> cu.DeviceArray:
    return cu.device_empty(nbytes, np.uint8)


def _calls(size: int) -> int:
    """Copies in a row that make one sample: 64 MiB, which takes some milliseconds."""
    return max(1, 64 * MIB // size)


def _repeated(work: Work, calls: int) -> Work:
    work.calls = calls
    return work


def up_part(bench: Bench, label: str, wanted: int, in_a_row: int = 0) -> Part:
    """A plain array to the device: ours, the driver, the bus's rate; and the peers, unless a number
    of copies in a row is named."""
    size = bench.size(wanted)
    calls = in_a_row or _calls(size)
    part = Part(bench.label(label, wanted), size, verify=bench.verifier(bench.plain(size)))

    def ours() -> Work:
        there, host = _device(size), bench.plain(size)
        return Work(
            lambda: cu.copy(there, host), pointer=lambda: there.pointer, calls=calls, how="copy"
        )

    def driver(pinned: bool) -> Work:
        there = _device(size)
        host = address(bench.pinned(size) if pinned else bench.plain(size))
        pointer, direct = there.pointer, bench.driver
        timed = direct.copy_async if pinned else direct.copy
        return Work(
            lambda: None,
            timer=lambda: timed(True, pointer, host, size, count=calls),
            pointer=lambda: pointer,
            how=("cuMemcpyHtoDAsync" if pinned else "cuMemcpyHtoD") + f" from {direct.loops}",
            keep=(there,),
        )

    part.add(OURS, ours)
    part.add(PINNED, lambda: driver(True))
    part.add(DRIVER, lambda: driver(False))
    if not in_a_row:
        bench.offer(part, lambda peer: _repeated(peer.up(bench.plain(size)), calls))
    return part


def down_part(bench: Bench, label: str, wanted: int, in_a_row: int = 0) -> Part:
    """The same from the device."""
    size = bench.size(wanted)
    calls = in_a_row or _calls(size)
    part = Part(bench.label(label, wanted), size, verify=bench.verifier(bench.plain(size)))

    def source() -> cu.DeviceArray:
        there = _device(size)
        cu.copy(there, bench.plain(size))
        return there

    def ours() -> Work:
        there, out = source(), bench.out(size)
        return Work(lambda: cu.copy(out, there), out=out, calls=calls, how="copy")

    def driver(pinned: bool) -> Work:
        there = source()
        out = bench.pinned(size) if pinned else bench.out(size)
        host, pointer, direct = address(out), there.pointer, bench.driver
        timed = direct.copy_async if pinned else direct.copy
        return Work(
            lambda: None,
            timer=lambda: timed(False, pointer, host, size, count=calls),
            out=out,
            how=("cuMemcpyDtoHAsync" if pinned else "cuMemcpyDtoH") + f" from {direct.loops}",
            keep=(there,),
        )

    part.add(OURS, ours)
    part.add(PINNED, lambda: driver(True))
    part.add(DRIVER, lambda: driver(False))
    if not in_a_row:
        bench.offer(
            part, lambda peer: _repeated(peer.down(bench.plain(size), bench.out(size)), calls)
        )
    return part


def _large(bench: Bench, make: Callable[[Bench, str, int], Part], name: str) -> Row:
    row = Row(name, ">= 0.93 of the pinned rate")
    for label, size in (("1 GiB", GIB), ("2 GiB", 2 * GIB)):
        if bench.quick and size > GIB:
            continue
        part = make(bench, label, size)
        part.goals.append(times_as_fast(0.93, PINNED))
        row.parts.append(part)
    return row


def large_up(bench: Bench) -> Row:
    return _large(bench, up_part, "plain NumPy array to device, 1-2 GiB")


def large_down(bench: Bench) -> Row:
    return _large(bench, down_part, "device to plain NumPy array, 1-2 GiB")


def of(mebibytes: int, share: float) -> Callable[[Bench], Row]:
    """The row of one size, up and down."""

    def build(bench: Bench) -> Row:
        row = Row(f"the same, {mebibytes} MiB", f">= {share} of the pinned rate")
        for label, make in (("up", up_part), ("down", down_part)):
            part = make(bench, label, mebibytes * MIB)
            part.goals.append(times_as_fast(share, PINNED))
            row.parts.append(part)
        return row

    return build


def four_in_a_row(bench: Bench) -> Row:
    """The size whose figure above is of a copy that others' work has gone before."""
    row = Row("four plain copies of 256 MiB, one behind another", "")
    for label, make in (("up", up_part), ("down", down_part)):
        row.parts.append(make(bench, label, 256 * MIB, 4))
    return row


def pinned(bench: Bench) -> Row:
    """Page-locked arrays; each contestant has its own, the driver's from cuMemHostAlloc."""
    size = bench.size(GIB)
    row = Row("pinned array to or from device, 1 GiB", ">= 0.99 of the fastest")
    for up in (True, False):
        part = Part(
            bench.label("up" if up else "down", GIB),
            size,
            goals=[times_as_fast(0.99)],
            verify=bench.verifier(bench.plain(size)),
        )

        def ours(up: bool = up) -> Work:
            there, host = _device(size), bench.pinned(size)
            if up:
                return Work(lambda: cu.copy(there, host), pointer=lambda: there.pointer)
            cu.copy(there, host)
            out = cu.pinned_empty(size, np.uint8)
            return Work(lambda: cu.copy(out, there), out=out, how="pinned_empty, copy")

        def driver(up: bool = up) -> Work:
            there = _device(size)
            memory = HostAlloc(bench, size)
            memory.array[...] = bench.plain(size)
            cu.copy(there, bench.pinned(size))
            host, pointer = address(memory.array), there.pointer
            return Work(
                lambda: None,
                timer=lambda: bench.driver.copy_async(up, pointer, host, size),
                pointer=(lambda: pointer) if up else None,
                out=None if up else memory.array,
                how=f"cuMemHostAlloc, asynchronous copy from {bench.driver.loops}",
                keep=(there, memory),
            )

        part.add(OURS, ours)
        part.add(DRIVER, driver)
        bench.offer(
            part,
            lambda peer, up=up: (peer.pinned_up if up else peer.pinned_down)(bench.plain(size)),
        )
        row.parts.append(part)
    return row


class HostAlloc:
    """Memory from cuMemHostAlloc, as an array."""

    def __init__(self, bench: Bench, nbytes: int) -> None:
        import ctypes

        self.driver = bench.driver
        self.address = self.driver.make("cuMemHostAlloc", nbytes, ctypes.c_uint(0))
        memory = (ctypes.c_ubyte * nbytes).from_address(self.address)
        self.array = np.frombuffer(memory, np.uint8)

    def __del__(self) -> None:
        self.driver.call("cuMemFreeHost", self.address)

"""Two directions at once, two GPUs at once, and from GPU to GPU."""

from __future__ import annotations

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, Bench, address, together
from benchmarks.measure import DRIVER, OURS, PINNED, Part, Row, Work, times_as_fast

ONE_GPU = "one GPU"


def both_ways(bench: Bench) -> Row:
    """An array up and another down, as large, by two threads."""
    row = Row("up and down at once on one GPU, plain arrays", ">= 0.75 of pinned")
    size = bench.size(GIB)
    part = Part(
        bench.label("2 x 1 GiB", GIB),
        2 * size,
        goals=[times_as_fast(0.75, PINNED)],
        verify=bench.verifier(bench.plain(size)),
    )
    direct = bench.driver

    def ends() -> tuple[cu.DeviceArray, cu.DeviceArray]:
        there, source = (cu.device_empty(size, np.uint8) for _ in range(2))
        cu.copy(source, bench.plain(size))
        return there, source

    def ours() -> Work:
        there, source = ends()
        host, out = bench.plain(size), bench.out(size)
        run = together(lambda: cu.copy(there, host), lambda: cu.copy(out, source))
        return Work(run, out=out, how="copy in two threads")

    def pinned() -> Work:
        there, source = ends()
        up, down = address(bench.pinned(size)), cu.pinned_empty(size, np.uint8)
        pointers = there.pointer, source.pointer
        streams = [direct.stream(number) for number in (1, 2)]

        def run() -> None:
            direct.issue(True, pointers[0], up, size, streams[0])
            direct.issue(False, pointers[1], address(down), size, streams[1])
            for stream in streams:
                direct.call("cuStreamSynchronize", stream)

        return Work(run, out=down, how="two asynchronous copies", keep=(there, source))

    def driver() -> Work:
        there, source = ends()
        host, out = bench.plain(size), bench.out(size)
        pointers = there.pointer, source.pointer
        streams = [direct.stream(number) for number in (1, 2)]

        def copy(up: bool) -> None:
            direct.enter(0)
            stream = streams[0 if up else 1]
            direct.issue(
                up, pointers[0 if up else 1], address(host if up else out), size, stream
            )
            direct.call("cuStreamSynchronize", stream)

        run = together(lambda: copy(True), lambda: copy(False))
        return Work(run, out=out, how="copies in two threads", keep=(there, source))

    part.add(OURS, ours)
    part.add(PINNED, pinned)
    part.add(DRIVER, driver)

    def theirs(peer: object) -> Work:
        out = bench.out(size)
        up, down = peer.both_ways(bench.plain(size), out)  # type: ignore[attr-defined]
        return Work(together(up, down), out=out, how="copies in two threads")

    bench.offer(part, theirs)
    row.parts.append(part)
    return row


def two_devices(bench: Bench) -> Row:
    """A plain array to each of two GPUs, by two threads."""
    row = Row("plain arrays to two GPUs at once, 32 cores", ">= 0.85 of pinned")
    if bench.device_count < 2:
        row.note = ONE_GPU
        return row
    size = bench.size(GIB)
    part = Part(
        bench.label("2 x 1 GiB", GIB), 2 * size, goals=[times_as_fast(0.85, PINNED)]
    )
    direct = bench.driver

    def hosts(pinned: bool) -> list[np.ndarray]:
        both = bench.pinned(2 * size) if pinned else bench.plain(2 * size)
        return [both[:size], both[size:]]

    def check(there: list[cu.DeviceArray]) -> None:
        for array, host in zip(there, hosts(False), strict=True):
            if not np.array_equal(array.to_numpy(), host):
                raise AssertionError("a GPU has other bytes than were sent")

    def devices() -> list[cu.DeviceArray]:
        return [cu.device_empty(size, np.uint8, device=number) for number in (0, 1)]

    def ours() -> Work:
        there, sources = devices(), hosts(False)
        run = together(
            lambda: cu.copy(there[0], sources[0]), lambda: cu.copy(there[1], sources[1])
        )
        run()
        check(there)
        return Work(run, how="copy in two threads")

    def driver(pinned: bool) -> Work:
        there, sources = devices(), hosts(pinned)
        streams = [direct.stream(3, device) for device in (0, 1)]

        def copy(number: int) -> None:
            direct.enter(number)
            pointer, host = there[number].pointer, address(sources[number])
            direct.issue(True, pointer, host, size, streams[number])
            direct.call("cuStreamSynchronize", streams[number])

        run = together(lambda: copy(0), lambda: copy(1))
        run()
        check(there)
        return Work(run, how="asynchronous copies in two threads")

    part.add(OURS, ours)
    part.add(PINNED, lambda: driver(True))
    part.add(DRIVER, lambda: driver(False))
    bench.offer(part, lambda peer: Work(together(*peer.to_devices(hosts(False)))))
    row.parts.append(part)
    return row


def across(bench: Bench) -> Row:
    """From GPU 0 to GPU 1, one way, and both ways at once."""
    row = Row(
        "from one GPU to another, 1 GiB (NVLink)",
        ">= 1.0 of the fastest peer; both ways >= 1.7 of its one way",
    )
    if bench.device_count < 2:
        row.note = ONE_GPU
        return row
    size = bench.size(GIB)
    direct = bench.driver
    one = Part(
        bench.label("one way", GIB),
        size,
        goals=[times_as_fast(1.0)],
        verify=bench.verifier(bench.plain(size), device=1),
    )
    both = Part(bench.label("both ways", GIB), 2 * size)

    def rate(part: Part) -> float | None:
        """Both ways, over the fastest one way that is not ours."""
        mine = part.median()
        theirs = [s for who in one.samples if who != OURS and (s := one.median(who)) is not None]
        if mine is None or not theirs:
            return None
        return (part.nbytes / mine) / (one.nbytes / min(theirs)) / 1.7

    both.goals.append(rate)

    def pair(origin: int) -> tuple[cu.DeviceArray, cu.DeviceArray]:
        """(filled, on `origin`; empty, on the other)"""
        source = cu.device_empty(size, np.uint8, device=origin)
        cu.copy(source, bench.plain(size))
        return source, cu.device_empty(size, np.uint8, device=1 - origin)

    def ours() -> Work:
        source, there = pair(0)
        return Work(lambda: cu.copy(there, source), pointer=lambda: there.pointer)

    def driver() -> Work:
        source, there = pair(0)
        stream = direct.stream(3, 0)
        contexts = [direct.enter(device) for device in (1, 0)][::-1]
        ends = (there.pointer, contexts[1], source.pointer, contexts[0], size, stream)

        def run() -> None:
            direct.call("cuMemcpyPeerAsync", *ends)
            direct.call("cuStreamSynchronize", stream)

        return Work(
            run, pointer=lambda: ends[0], keep=(source, there), how="cuMemcpyPeerAsync"
        )

    def ours_both() -> Work:
        there, back = pair(0), pair(1)
        streams = [cu.Stream(device=device) for device in (0, 1)]

        def run() -> None:
            transfers = [
                cu.copy_async(to, origin, stream)
                for (origin, to), stream in zip((there, back), streams, strict=True)
            ]
            for transfer in transfers:
                transfer.wait()

        return Work(run, how="copy_async on two streams")

    def driver_both() -> Work:
        there, back = pair(0), pair(1)
        streams = [direct.stream(3, device) for device in (0, 1)]
        contexts = [direct.enter(device) for device in (1, 0)][::-1]
        copies = [
            (to.pointer, contexts[1 - n], origin.pointer, contexts[n], size, streams[n])
            for n, (origin, to) in enumerate((there, back))
        ]

        def run() -> None:
            for number, copy in enumerate(copies):
                direct.enter(number)
                direct.call("cuMemcpyPeerAsync", *copy)
            for number, stream in enumerate(streams):
                direct.enter(number)
                direct.call("cuStreamSynchronize", stream)
            direct.enter(0)

        return Work(run, keep=(there, back), how="cuMemcpyPeerAsync on two streams")

    one.add(OURS, ours)
    one.add(DRIVER, driver)
    bench.offer(one, lambda peer: peer.across(bench.plain(size)))
    both.add(OURS, ours_both)
    both.add(DRIVER, driver_both)
    bench.offer(both, lambda peer: peer.across_both(bench.plain(size)))
    row.parts += [one, both]
    return row

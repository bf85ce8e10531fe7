"""Small work from many threads at once, each with a stream of its own; no context is entered."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from itertools import repeat

import numpy as np

import cudriver as cu
from benchmarks.bench import KIB, MIB, Bench
from benchmarks.measure import DRIVER, OURS, Part, Work, times_as_fast
from benchmarks.rows.calls import ISSUES

COUNTS = (1, 2, 4, 8, 16)
SHARE = 0.8  # of what threads in C reach
COPIES = 20 * ISSUES  # of each thread
TAKEN = 50  # page-locked arrays of each thread

has_gil = getattr(sys, "_is_gil_enabled", lambda: True)


def at_once(bodies: list[Callable[[], None]], how: str) -> Work:
    """A thread each. The seconds from the first one's start to the last one's end."""

    def run() -> float:
        gate, times = threading.Barrier(len(bodies)), list[float]()

        def timed(body: Callable[[], None]) -> None:
            gate.wait()
            times.append(time.perf_counter())
            body()
            times.append(time.perf_counter())

        threads = [threading.Thread(target=timed, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(times) == 2 * len(bodies), "a thread failed"
        return max(times) - min(times)

    return Work(run, timed=True, how=how)


def parts(make: Callable[[int, Part], None], each: int) -> list[Part]:
    """A part for each number of threads; its figure is the time of all over the number of calls.
    With a GIL nothing is held to a target: threads take turns there."""
    made = []
    for count in COUNTS:
        goals = [] if has_gil() else [times_as_fast(SHARE, DRIVER)]
        part = Part(f"{count} threads" if count > 1 else "1 thread", goals=goals)
        make(count, part)
        for who, maker in part.makers.items():
            part.makers[who] = over(maker, count * each)
        made.append(part)
    return made


def over(maker: Callable[[], Work], calls: int) -> Callable[[], Work]:
    """The same work, told for one of its calls."""

    def made() -> Work:
        work = maker()
        work.run = lambda run=work.run: run() / calls
        return work

    return made


def copies(bench: Bench) -> list[Part]:
    """Asynchronous copies of 4 KiB; each thread waits after every 200. All of that is timed."""

    def make(count: int, part: Part) -> None:
        hosts = np.split(bench.host(4 * KIB * count, pinned=True), count)
        theres = [cu.device_empty(4 * KIB, np.uint8) for _ in hosts]
        streams = [cu.Stream() for _ in hosts]

        def body(there: cu.DeviceArray, host: object, stream: cu.Stream) -> None:
            for _ in repeat(None, COPIES // ISSUES):
                for _ in repeat(None, ISSUES):
                    cu.copy_async(there, host, stream)
                stream.synchronize()

        def ours() -> Work:
            ends = zip(theres, hosts, streams, strict=True)
            return at_once([lambda e=e: body(*e) for e in ends], "copy_async")

        def driver() -> Work:
            sequences = [
                [
                    (
                        "cuMemcpyHtoDAsync_v2",
                        there.pointer,
                        host.ctypes.data,
                        host.nbytes,
                        stream.handle,
                    )
                ]
                * ISSUES
                + [("cuStreamSynchronize", stream.handle)]
                for there, host, stream in zip(theres, hosts, streams, strict=True)
            ]
            return bench.driver.together(sequences, COPIES // ISSUES)

        part.makers |= {OURS: ours, DRIVER: driver}

    return parts(make, COPIES)


def allocations(bench: Bench) -> list[Part]:
    """Page-locked memory of 1 MiB, taken and given back."""

    def make(count: int, part: Part) -> None:
        def body() -> None:
            for _ in repeat(None, TAKEN):
                cu.pinned_empty(MIB, np.uint8)

        def driver() -> Work:
            places = [ctypes.c_uint64(0) for _ in range(count)]
            sequences = [
                [("cuMemHostAlloc", ctypes.addressof(place), MIB, 0), ("cuMemFreeHost", place)]
                for place in places
            ]
            work = bench.driver.together(sequences, TAKEN)
            work.keep += (places,)
            return work

        part.makers |= {OURS: lambda: at_once([body] * count, "pinned_empty"), DRIVER: driver}

    return parts(make, TAKEN)

"""Two GPUs of one machine: what work on one does to the other, and work that both share."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, KIB, Bench
from benchmarks.measure import OURS, Make, Part, Skip, Work, at_most, times_as_fast
from benchmarks.peers.base import Peer
from benchmarks.rows.files import MEMORY, SIZE, experts, forget, written
from benchmarks.rows.neighbours import until_landed
from benchmarks.rows.processes import OTHER
from benchmarks.rows.rank import LOADERS
from cudriver.ladder.neighbours import Neighbours

SMALL = 64 * KIB
RANK = "from benchmarks.rows.rank import main; main()"
ONE, ALL = "one GPU", "arrays of one GPU"


def need_two() -> None:
    if cu.device_count() < 2:
        raise Skip(ONE)


# ---- small copies --------------------------------------------------------------------------------


def beside(bench: Bench) -> list[Part]:
    """64 KiB of page-locked memory on a stream of its own, until it is over, while a GiB of ours is
    on its way to or from the other GPU, or between the two."""
    need_two()
    whole = bench.host(bench.size(GIB), pinned=True)
    there = [cu.to_device(whole, device=number) for number in (0, 1)]
    streams = [cu.Stream(device=number) for number in (0, 1)]
    big = {
        "to GPU 0": (there[0], whole, 0),
        "from GPU 0": (whole, there[0], 0),
        "from GPU 0 to GPU 1": (there[1], there[0], 0),
    }
    flights: list[cu.Transfer] = []

    def land() -> None:
        flights.pop().wait()

    def works(who: Peer, up: bool, number: int, flight: str) -> Work:
        host, stream = bench.host(SMALL, pinned=True), who.stream(number)
        if up:
            work = who.up(host, number, stream=stream)
        else:
            work = who.down(host, bench.out(SMALL, pinned=True), number, stream=stream)
        to, origin, place = big[flight]

        def take_off() -> None:
            flights.append(cu.copy_async(to, origin, streams[place]))

        work = replace(work, before=take_off, after=land, keep=(*work.keep, np.copy(host)))
        return until_landed(work, flights)

    asked = [
        (True, 1, "to GPU 0"), (False, 1, "from GPU 0"),
        *((up, number, "from GPU 0 to GPU 1") for up in (True, False) for number in (0, 1)),
    ]  # fmt: skip
    parts = []
    for up, number, flight in asked:
        way = f"{'to' if up else 'from'} GPU {number} beside 1 GiB {flight}"
        part = Part(bench.label(way, GIB), unit="ms", goals=[at_most(0.05e-3)])
        parts += bench.offer(part, lambda who, u=up, n=number, f=flight: works(who, u, n, f))
    return parts


# ---- weights -------------------------------------------------------------------------------------


@contextlib.contextmanager
def ranks(who: str, paths: list[Path]) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts two ranks, and yields them when both are ready to load."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        processes = []
        for rank in (0, 1):
            words = [who, str(rank), f"{folder}/meeting", *map(str, paths)]
            process = subprocess.Popen(
                [sys.executable, "-c", RANK, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                process.kill()
                raise OSError(f"a rank of {who} was not ready: {process.wait()}")
        yield processes


def loaded(bench: Bench) -> list[Part]:
    """One set of files by two ranks at once, each its half of each matrix: the longer of both
    times, for the bytes of the files."""
    need_two()
    if find_spec("ml_dtypes") is None:
        raise Skip("needs ml_dtypes")

    def part(label: str, place: str | None, make: Callable[[Path], list[Path]], cold: bool) -> Part:
        folder = tempfile.TemporaryDirectory(dir=place)
        paths = make(Path(folder.name))
        size = sum(path.stat().st_size for path in paths)

        def work(who: str) -> Work:
            stack = contextlib.ExitStack()
            both = stack.enter_context(ranks(who, paths))
            read: list[int] = []

            def before() -> None:
                for path in paths if cold else ():
                    forget(path)

            def run() -> float:
                for process in both:
                    assert process.stdin is not None
                    print(file=process.stdin, flush=True)
                told = [process.stdout.readline().split() for process in both if process.stdout]
                read.append(sum(int(each[1]) for each in told))
                made.how[who] = f"read {read[-1] / size:.2f} times"
                return max(float(each[0]) for each in told)

            return Work(run, before, timed=True, keep=(folder, stack))

        effort = {"rounds": 3, "least": 2, "long": 8}
        made = Part(label, size, [times_as_fast(1.0)], effort=effort)
        made.makers[OURS] = partial(work, "cudriver")
        for who in LOADERS:
            if bench.peers and who != OURS and find_spec(who.lower()) is not None:
                made.makers[who] = partial(work, who)
        return made

    parts = []
    memory = bench.size(16 * GIB)
    if os.path.isdir(MEMORY) and shutil.disk_usage(MEMORY).free > 2 * memory:
        label = bench.label("14,004 tensors, in memory", 16 * GIB)
        parts.append(part(label, MEMORY, partial(experts, nbytes=memory), False))
    label = bench.label("40 tensors, not in the page cache", SIZE)
    disk = bench.size(SIZE)
    return [*parts, part(label, None, lambda folder: [written(str(folder), disk)], True)]


def saved(bench: Bench) -> list[Part]:
    """Arrays that lie on both GPUs into one file in memory, beside as many that lie on one."""
    need_two()
    if find_spec("ml_dtypes") is None:
        raise Skip("needs ml_dtypes")
    nbytes = bench.size(16 * GIB)
    folder = tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None)
    path = Path(folder.name, "saved.safetensors")
    with tempfile.TemporaryDirectory() as other:
        files = experts(Path(other), nbytes)
        one = cu.load_safetensors(files)
        far = cu.load_safetensors(files, device=1)
    both = {name: (far if place % 2 else one)[name] for place, name in enumerate(one)}
    size = sum(array.nbytes for array in one.values())

    def work(arrays: dict[str, Any]) -> Work:
        before = partial(path.unlink, missing_ok=True)
        return Work(partial(cu.save_safetensors, path, arrays), before, before, keep=(folder,))

    effort = {"rounds": 3, "least": 2, "long": 20}
    part = Part(bench.label("", 16 * GIB), size, [times_as_fast(0.9, ALL)], effort=effort)
    part.makers = {OURS: partial(work, both), ALL: partial(work, one)}
    return [part]


# ---- shared memory -------------------------------------------------------------------------------


def shared(bench: Bench) -> list[Part]:
    """A region that two processes page-lock at once, a GPU each: the longer of both times, for the
    bytes of both, and how long a third process waits for what it asks either GPU meanwhile."""
    need_two()
    wanted = 16 * GIB
    size = min(wanted // 8 if bench.quick else wanted, 4 * bench.most)
    effort = {"rounds": 3, "least": 2, "long": 6.0}

    def run(pieces: bool, number: int | None) -> float:
        region = cu.SharedMemory(create=True, size=size, pin=False, pieces=pieces)
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": cu.Device(1).uuid}
        command = [sys.executable, "-c", OTHER, str(region.name), str(int(pieces))]
        try:
            with subprocess.Popen(
                command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as other:
                assert other.stdin is not None
                assert other.stdout is not None
                assert other.stdout.readline() == "ready\n"

                def both() -> float:
                    print(file=other.stdin, flush=True)
                    begin = time.perf_counter()
                    region.pin()
                    mine = time.perf_counter() - begin
                    return max(mine, float(other.stdout.readline()))

                if number is None:
                    return both()
                with Neighbours(cu.Device(number)) as others:
                    return others.beside(both, 1)["process"]
        finally:
            region.unlink()
            region.close()

    def made(label: str, goals: list[Any], number: int | None) -> Part:
        unit, nbytes = ("GB/s", 2 * size) if number is None else ("ms", 0)
        part = Part(
            bench.label(label, wanted, size), nbytes, goals, unit, warm=False, effort=effort
        )
        for name, pieces in ((OURS, True), ("in one piece", False)):
            maker: Make = lambda p=pieces: Work(lambda: run(p, number), timed=True)  # noqa: E731
            part.makers[name] = maker
        return part

    waits = [made(f"wait for GPU {n}", [at_most(20e-3)], n) for n in (0, 1)]
    return [made("", [], None), *waits]

"""Page-locked memory, copies and calls: cudriver beside its peers, on the same work, in one run.

    python benchmarks/memory.py [--json FILE] [--quick] [--only PATTERN]

Each row is timed in rounds, ours and the peers' in turn, so that a drift of the machine meets all
alike; the median of the rounds counts, and the spread (the quartiles' distance over the median) is
shown. Peers that are not installed are left out. Bytes are checked once before anything is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import gc
import importlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cudriver as cu

MIB, GIB = 1 << 20, 1 << 30
Timer = Callable[[], float]


def optional(name: str) -> Any:
    """A peer's module, or None."""
    with contextlib.suppress(Exception):
        return importlib.import_module(name)
    return None


class Row:
    """One kind of work: bytes moved (0: a call is timed), and a timer a contestant."""

    def __init__(self, name: str, nbytes: int = 0, target: str = "") -> None:
        self.name, self.nbytes, self.target = name, nbytes, target
        self.timers: dict[str, Timer] = {}
        self.seconds: dict[str, list[float]] = {}

    def add(self, who: str, timer: Timer) -> None:
        self.timers[who] = timer

    def run(self, rounds: int) -> None:
        for timer in self.timers.values():
            timer()
        for _ in range(rounds):
            for who, timer in self.timers.items():
                self.seconds.setdefault(who, []).append(timer())

    def median(self, who: str) -> float:
        return statistics.median(self.seconds[who])

    def spread(self, who: str) -> float:
        low, _, high = statistics.quantiles(self.seconds[who], n=4)
        return (high - low) / self.median(who)

    def shown(self, who: str) -> str:
        if self.nbytes:
            return f"{self.nbytes / self.median(who) / 1e9:8.2f} GB/s"
        return f"{self.median(who) * 1e6:9.2f} us "


def once(work: Callable[[], Any], sync: Callable[[], Any] | None = None) -> Timer:
    """Seconds of one call, work awaited."""

    def timer() -> float:
        begin = time.perf_counter()
        work()
        if sync is not None:
            sync()
        return time.perf_counter() - begin

    return timer


def many(work: Callable[[], Any], count: int, sync: Callable[[], Any] | None = None) -> Timer:
    """Seconds of a call, from `count` in a row; the wait for their end is not counted."""

    def timer() -> float:
        repeat = range(count)
        gc.disable()
        begin = time.perf_counter()
        for _ in repeat:
            work()
        seconds = (time.perf_counter() - begin) / count
        gc.enable()
        if sync is not None:
            sync()
        return seconds

    return timer


class Peers:
    """The installed peers."""

    def __init__(self) -> None:
        self.real = not cu.driver_is_simulated()
        self.torch = optional("torch") if self.real else None
        if self.torch is not None and not self.torch.cuda.is_available():
            self.torch = None
        self.cupy = optional("cupy") if self.real else None
        self.numba = optional("numba.cuda") if self.real else None
        self.bindings = optional("cuda.bindings.driver") if self.real else None

    def versions(self) -> dict[str, str]:
        found = {"numpy": np.__version__, "cudriver": cu.__version__}
        for name in ("torch", "cupy"):
            module = getattr(self, name)
            if module is not None:
                found[name] = module.__version__
        return found


def checked(result: np.ndarray, wanted: np.ndarray) -> None:
    if not np.array_equal(result, wanted):
        raise SystemExit("a copy gave wrong bytes; nothing was timed")


def size_name(size: int) -> str:
    return f"{size // GIB} GiB" if size >= GIB else f"{size // MIB} MiB"


def host_copies(peers: Peers, sizes: list[int]) -> list[Row]:
    rows = []
    torch, cupy = peers.torch, peers.cupy
    for size in sizes:
        plain = np.random.default_rng(1).integers(0, 255, size, dtype=np.uint8)
        pinned = cu.pinned_array(plain)
        there = cu.to_device(plain)
        back = np.empty_like(plain)
        cu.copy(back, there)
        checked(back, plain)
        share = {GIB: 0.93, 2 * GIB: 0.93, 256 * MIB: 0.85, 64 * MIB: 0.78, 16 * MIB: 0.65}
        share[4 * MIB] = 0.45
        goal = f">= {share[size]} of pinned" if size in share else ""
        up = Row(f"plain array to device, {size_name(size)}", size, goal)
        up.add("cudriver", once(lambda d=there, s=plain: cu.copy(d, s)))
        down = Row(f"device to plain array, {size_name(size)}", size, goal)
        down.add("cudriver", once(lambda d=back, s=there: cu.copy(d, s)))
        pup = Row(f"pinned array to device, {size_name(size)}", size, ">= 0.99 of peers")
        pup.add("cudriver", once(lambda d=there, s=pinned: cu.copy(d, s)))
        pdown = Row(f"device to pinned array, {size_name(size)}", size, ">= 0.99 of peers")
        pdown.add("cudriver", once(lambda d=pinned, s=there: cu.copy(d, s)))
        if torch is not None:
            dev = torch.empty(size, dtype=torch.uint8, device="cuda")
            host, lock = torch.from_numpy(plain), torch.from_numpy(plain).pin_memory()
            out, sync = torch.from_numpy(np.empty_like(plain)), torch.cuda.synchronize
            up.add("torch", once(lambda d=dev, s=host: d.copy_(s), sync))
            down.add("torch", once(lambda d=out, s=dev: d.copy_(s), sync))
            pup.add("torch", once(lambda d=dev, s=lock: d.copy_(s), sync))
            pdown.add("torch", once(lambda d=lock, s=dev: d.copy_(s), sync))
        if cupy is not None:
            cdev = cupy.empty(size, np.uint8)
            csync = cupy.cuda.get_current_stream().synchronize
            cback = np.empty_like(plain)
            up.add("cupy", once(lambda d=cdev, s=plain: d.set(s), csync))
            down.add("cupy", once(lambda d=cback, s=cdev: s.get(out=d), csync))
        rows += [up, down, pup, pdown]
    return rows


def strided_copies(peers: Peers, size: int) -> list[Row]:
    side = int((2 * size // 4) ** 0.5)
    base = np.random.default_rng(2).integers(0, 2**31, (side, side), dtype=np.uint32)
    rows = []
    cases: list[tuple[str, Any, str]] = [
        ("a.T", lambda a: a.T, ">= 40 GB/s"),
        ("a[:, ::2]", lambda a: a[:, ::2], ">= 25 GB/s"),
        ("a[:, :n/2]", lambda a: a[:, : a.shape[1] // 2], ">= 45 GB/s"),
    ]
    for name, view, target in cases:
        source = view(base)
        there = cu.device_empty(source.shape, base.dtype)
        cu.copy(there, source)
        checked(there.to_numpy(), source)
        row = Row(f"plain {name} to device, {size_name(source.nbytes)}", source.nbytes, target)
        row.add("cudriver", once(lambda d=there, s=source: cu.copy(d, s)))
        if peers.torch is not None:
            host = view(peers.torch.from_numpy(base.view(np.int32)))
            dev = peers.torch.empty(tuple(host.shape), dtype=host.dtype, device="cuda")
            row.add("torch", once(lambda d=dev, s=host: d.copy_(s), peers.torch.cuda.synchronize))
        rows.append(row)
    source = cu.to_device(np.ascontiguousarray(base[:, ::2]))
    target_array = np.zeros_like(base)
    cu.copy(target_array[:, ::2], source)
    checked(target_array[:, ::2], base[:, ::2])
    row = Row(f"device to plain a[:, ::2], {size_name(source.nbytes)}", source.nbytes, ">= 20 GB/s")
    row.add("cudriver", once(lambda: cu.copy(target_array[:, ::2], source)))
    if peers.torch is not None:
        tdev = peers.torch.from_numpy(base.view(np.int32))[:, ::2].contiguous().cuda()
        tout = peers.torch.zeros(base.shape, dtype=peers.torch.int32)
        sync = peers.torch.cuda.synchronize
        row.add("torch", once(lambda: tout[:, ::2].copy_(tdev), sync))
    return [*rows, row]


def both_ways(peers: Peers, size: int) -> list[Row]:
    import threading

    plain = np.random.default_rng(3).integers(0, 255, size, dtype=np.uint8)
    out = np.empty_like(plain)
    one, two = cu.to_device(plain), cu.to_device(plain)
    lock, lock_out = cu.pinned_array(plain), cu.pinned_empty_like(plain)

    def together(*work: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            threads = [threading.Thread(target=w) for w in work]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        return run

    streams = cu.Stream(), cu.Stream()

    def pinned() -> None:
        first = cu.copy_async(one, lock, streams[0])
        second = cu.copy_async(lock_out, two, streams[1])
        first.wait()
        second.wait()

    row = Row(f"up and down at once, plain, 2 x {size_name(size)}", 2 * size, ">= 0.75 of pinned")
    row.add("cudriver", once(together(lambda: cu.copy(one, plain), lambda: cu.copy(out, two))))
    row.add("pinned", once(pinned))
    return [row]


def asynchronous(peers: Peers, size: int) -> list[Row]:
    plain = np.random.default_rng(4).integers(0, 255, size, dtype=np.uint8)
    there, stream = cu.to_device(plain), cu.Stream()
    pending: list[Any] = []

    def drain() -> None:
        while pending:
            pending.pop().wait()

    def timed(issue: Callable[[], Any]) -> Timer:
        def timer() -> float:
            drain()
            begin = time.perf_counter()
            pending.append(issue())
            seconds = time.perf_counter() - begin
            drain()
            return seconds

        return timer

    row = Row(f"asynchronous copy of a plain {size_name(size)} array: the call", 0, "<= 100 us")
    row.add("cudriver", timed(lambda: cu.copy_async(there, plain, stream)))
    if peers.torch is not None:
        dev, host = peers.torch.empty(size, dtype=peers.torch.uint8, device="cuda"), None
        host = peers.torch.from_numpy(plain)
        row.add(
            "torch",
            once(lambda: dev.copy_(host, non_blocking=True)),
        )
    return [row]


def page_locking(peers: Peers, size: int) -> list[Row]:
    """First-time page-locked memory: the pool is emptied before each round."""

    def first() -> float:
        cu.trim_host_memory()
        begin = time.perf_counter()
        array = cu.pinned_empty(size, np.uint8)
        seconds = time.perf_counter() - begin
        del array
        cu.trim_host_memory()
        return seconds

    row = Row(f"page-locked {size_name(size)}, first time", size, ">= 20 GB/s, >= 10x")
    row.add("cudriver", first)
    if peers.torch is not None:
        torch = peers.torch

        def theirs() -> float:
            torch._C._host_emptyCache()
            begin = time.perf_counter()
            array = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            seconds = time.perf_counter() - begin
            del array
            torch._C._host_emptyCache()
            return seconds

        if hasattr(torch._C, "_host_emptyCache"):
            row.add("torch", theirs)
    return [row]


def small_calls(peers: Peers) -> list[Row]:
    rows = []
    for size in (MIB, GIB if peers.real else 16 * MIB):
        row = Row(f"page-locked array from the pool, {size_name(size)}", 0, "<= 1.0 us")
        row.add("cudriver", many(lambda n=size: cu.pinned_empty(n, np.uint8), 2000))
        row.add("np.empty", many(lambda n=size: np.empty(n, np.uint8), 2000))
        if peers.torch is not None:
            t = peers.torch
            row.add(
                "torch",
                many(lambda n=size, t=t: t.empty(n, dtype=t.uint8, pin_memory=True), 500),
            )
        if peers.cupy is not None:
            row.add("cupy", many(lambda n=size: peers.cupy.cuda.alloc_pinned_memory(n), 500))
        rows.append(row)

    plain_timer = many(lambda: np.empty(MIB, np.uint8), 5000)

    def inside() -> float:
        with cu.pinned_numpy():
            return plain_timer()

    row = Row("np.empty of 1 MiB inside pinned_numpy()", 0, "<= 1.5x np.empty")
    row.add("cudriver", inside)
    row.add("np.empty", plain_timer)
    rows.append(row)

    pinned, there, stream = (
        cu.pinned_empty(4096, np.uint8),
        cu.device_empty(4096, np.uint8),
        cu.Stream(),
    )
    row = Row("asynchronous copy of 4 KiB: issue", 0, "<= 2.60 us")
    row.add("cudriver", many(lambda: cu.copy_async(there, pinned, stream), 500, stream.synchronize))
    if peers.torch is not None:
        t = peers.torch
        tp, td = (
            t.empty(4096, dtype=t.uint8, pin_memory=True),
            t.empty(4096, dtype=t.uint8, device="cuda"),
        )
        row.add("torch", many(lambda: td.copy_(tp, non_blocking=True), 500, t.cuda.synchronize))
    if peers.bindings is not None:
        d = peers.bindings
        ends = d.CUdeviceptr(there.pointer), pinned.ctypes.data, 4096, d.CUstream(stream.handle)
        row.add(
            "bindings",
            many(lambda: d.cuMemcpyHtoDAsync(*ends), 500, stream.synchronize),
        )
    rows.append(row)

    row = Row("device memory of 1 MiB: allocate and free", 0, "<= 1.2 us")
    row.add("cudriver", many(lambda: cu.device_empty(MIB, np.uint8), 2000))
    if peers.torch is not None:
        t = peers.torch
        row.add("torch", many(lambda: t.empty(MIB, dtype=t.uint8, device="cuda"), 2000))
    if peers.cupy is not None:
        row.add("cupy", many(lambda: peers.cupy.empty(MIB, np.uint8), 2000))
    rows.append(row)

    context = cu.current_context()
    assert context is not None

    def enter() -> None:
        with context:
            pass

    row = Row("context push and pop, by `with`", 0, "<= 0.25 us")
    row.add("cudriver", many(enter, 5000))
    if peers.bindings is not None:
        handle = peers.bindings.cuCtxGetCurrent()[1]

        def theirs() -> None:
            d.cuCtxPushCurrent(handle)
            d.cuCtxPopCurrent()

        row.add("bindings", many(theirs, 5000))
    rows.append(row)
    return rows


def two_devices(peers: Peers, size: int) -> list[Row]:
    if cu.device_count() < 2:
        return []
    import threading

    plain = [np.random.default_rng(i).integers(0, 255, size, dtype=np.uint8) for i in (5, 6)]
    pinned = [cu.pinned_array(array) for array in plain]
    there = [cu.device_empty(size, np.uint8, device=i) for i in (0, 1)]

    def both(sources: list[np.ndarray]) -> Callable[[], None]:
        def run() -> None:
            threads = [
                threading.Thread(target=cu.copy, args=pair)
                for pair in zip(there, sources, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        return run

    row = Row(
        f"plain arrays to two GPUs at once, 2 x {size_name(size)}", 2 * size, ">= 0.85 of pinned"
    )
    row.add("cudriver", once(both(plain)))
    row.add("pinned", once(both(pinned)))
    peer = Row(f"one GPU to another, {size_name(size)}", size, ">= 1.0x torch")
    peer.add("cudriver", once(lambda: cu.copy(there[1], there[0])))
    if peers.torch is not None:
        t = peers.torch
        a = t.empty(size, dtype=t.uint8, device="cuda:0")
        b = t.empty(size, dtype=t.uint8, device="cuda:1")

        def sync() -> None:
            t.cuda.synchronize(0)
            t.cuda.synchronize(1)

        peer.add("torch", once(lambda: b.copy_(a), sync))
    return [row, peer]


def imports() -> list[Row]:
    """Whole processes, over a bare interpreter."""
    import subprocess

    def timer(code: str) -> Timer:
        return once(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    row = Row("import, whole process", 0, "<= 20 ms over bare")
    row.add("cudriver", timer("import cudriver; cudriver.copy"))
    row.add("bare", timer("pass"))
    for peer in ("torch", "cupy", "cuda.core", "cuda.bindings.driver", "numba.cuda"):
        if optional_spec(peer):
            row.add(peer, timer(f"import {peer}"))
    return [row]


def optional_spec(name: str) -> bool:
    from importlib.util import find_spec

    with contextlib.suppress(ModuleNotFoundError, ValueError):
        return find_spec(name) is not None
    return False


def print_row(row: Row) -> None:
    print(f"\n{row.name}" + (f"   target {row.target}" if row.target else ""))
    mine = row.median("cudriver")
    for who in row.timers:
        ratio = (
            "" if who == "cudriver" else f"   cudriver is {row.median(who) / mine:6.2f}x as fast"
        )
        print(f"  {who:<10} {row.shown(who)}  +-{row.spread(who) * 50:4.1f} %{ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the medians and spreads here")
    parser.add_argument("--quick", action="store_true", help="small arrays, few rounds")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="rows whose name matches")
    arguments = parser.parse_args()
    cu.init()
    peers = Peers()
    if not peers.real:
        print("SIMULATED DRIVER: these figures are the cost of calls, and mean nothing else.")
    name = cu.Device(0).name
    machine = f"driver for CUDA {cu.driver_version()}, {os.cpu_count()} processors"
    print(f"{name}, {machine}, {peers.versions()}")
    small = arguments.quick or not peers.real
    sizes = [4 * MIB, 16 * MIB] if small else [4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB]
    groups: list[Callable[[], list[Row]]] = [
        lambda: small_calls(peers),
        lambda: host_copies(peers, sizes),
        lambda: strided_copies(peers, 16 * MIB if small else 256 * MIB),
        lambda: both_ways(peers, 16 * MIB if small else GIB),
        lambda: asynchronous(peers, 16 * MIB if small else 256 * MIB),
        lambda: page_locking(peers, 64 * MIB if small else 2 * GIB),
        lambda: two_devices(peers, 16 * MIB if small else GIB),
        imports,
    ]
    done = []
    for group in groups:
        for row in group():
            if fnmatch.fnmatch(row.name, f"*{arguments.only}*"):
                row.run(5 if small else 7)
                print_row(row)
                sys.stdout.flush()
                done.append(row)
        gc.collect()
    if arguments.json:
        document = {
            "machine": {"device": name, "host": platform.processor(), "cpus": os.cpu_count()},
            "driver": str(cu.driver_version()),
            "simulated": not peers.real,
            "versions": peers.versions(),
            "rows": [
                {
                    "name": row.name,
                    "nbytes": row.nbytes,
                    "target": row.target,
                    "seconds": {who: row.median(who) for who in row.timers},
                    "spread": {who: row.spread(who) for who in row.timers},
                }
                for row in done
            ],
        }
        Path(arguments.json).write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

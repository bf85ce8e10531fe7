"""Allocate, copy, free, many times over: `python tests/soak.py ROUNDS`.

A round makes a page-locked array and a device array of a size that varies, copies there and back,
looks at the bytes now and then, and lets both go. After it the resident memory, live_allocations()
and the pools are where they were after a hundredth of the rounds. Ends with 1 where they are not.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time

import numpy as np

import cudriver as cu

#: Items of the arrays, taken in turn: slabs, pages, an array larger than the smallest arena's page.
SIZES = (1, 7, 100, 512, 1000, 3000, 8192, 20000)
#: Every so many rounds the bytes are compared, which costs more than the copies do.
LOOK_EVERY = 101
#: KiB of resident memory that a heap may settle by.
SLACK_KIB = 1024


def resident_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def state() -> dict[str, int]:
    gc.collect()
    live = cu.live_allocations()
    stats = cu.host_memory_stats()
    return {
        "resident_kib": resident_kib(),
        "live": len(live),
        "used_bytes": stats.used_bytes,
        "used_blocks": stats.used_blocks,
        "registered_bytes": stats.registered_bytes,
        "free_device_bytes": cu.memory_info().free,
    }


def free_again(expected: int) -> int:
    """The device's free bytes, or `expected` where they say nothing about this process. A GPU
    has other users: more may be free than before, and what changes within 10 s in which nothing is
    done here is theirs. A simulated one is nobody else's."""
    free = int(cu.memory_info().free)
    if cu.driver_is_simulated():
        return free
    seen = {free}
    until = time.monotonic() + 10
    while free < expected and len(seen) == 1 and time.monotonic() < until:
        time.sleep(0.1)
        free = int(cu.memory_info().free)
        seen.add(free)
    return expected if free >= expected or len(seen) > 1 else free


def rounds(count: int, stream: cu.Stream) -> None:
    """`count` rounds; the asynchronous copies are waited for through the stream."""
    sources = [np.arange(size, dtype="u4") for size in SIZES]
    pinned_empty, device_empty, copy, dtype = cu.pinned_empty, cu.device_empty, cu.copy, "u4"
    kinds = len(SIZES)
    for i in range(count):
        size = SIZES[i % kinds]
        pinned = pinned_empty(size, dtype)
        array = device_empty(size, dtype)
        if i % LOOK_EVERY == 0:
            pinned[:] = sources[i % kinds]
            cu.copy_async(array, pinned, stream)
            pinned = pinned_empty(size, dtype)
            cu.copy_async(pinned, array, stream).wait()
            if not np.array_equal(pinned, sources[i % kinds]):
                raise AssertionError(f"round {i}: {size} items came back different")
        else:
            copy(array, pinned)
            copy(pinned, array)


def soak(count: int, *, quiet: bool = False) -> dict[str, tuple[int, int]]:
    """Runs `count` rounds. What differs at the end, as name: (before, after)."""
    stream = cu.Stream()
    warm = max(count // 100, 2000)
    rounds(warm, stream)
    before = state()
    start = time.monotonic()
    done = 0
    while done < count:
        step = min(max(count // 20, 1), count - done)
        rounds(step, stream)
        done += step
        if not quiet:
            rate = done / (time.monotonic() - start)
            print(f"{done:>12,} rounds, {rate:,.0f}/s, {resident_kib():,} KiB", file=sys.stderr)
    after = state()
    after["free_device_bytes"] = free_again(before["free_device_bytes"])
    if not quiet:
        print(f"before {before}\nafter  {after}\n{time.monotonic() - start:.1f} s")
    grown = after["resident_kib"] - before["resident_kib"]
    if grown <= SLACK_KIB:
        after["resident_kib"] = before["resident_kib"]
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", type=int, help="how many, as in 10000000")
    count = parser.parse_args().rounds
    print(f"{cu.driver_path()}: {cu.Device(0).name}, process {os.getpid()}", file=sys.stderr)
    different = soak(count)
    if different:
        print(f"DIFFERENT after {count:,} rounds: {different}")
        return 1
    print(f"as before after {count:,} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())

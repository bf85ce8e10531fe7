"""One of two ranks that load the same weight files, each its half of each matrix onto its own GPU.

python -m benchmarks.rows.rank LOADER RANK MEETING FILE...

It says when it is ready. At each line of its input it loads, and prints the seconds that this took
and the bytes that came from the disk.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.rows.files import halves

Loader = Callable[[], Any]


def cudriver(rank: int, meeting: str, paths: list[Path]) -> Loader:
    import cudriver as cu

    cuts, _ = halves(paths, 0, rank)
    cu.memory_info(device=rank)  # makes the context
    return lambda: cu.load_safetensors(paths, device=rank, slices=cuts)


def instanttensor(rank: int, meeting: str, paths: list[Path]) -> Loader:
    """Its group reads each file once, and gives every rank all tensors."""
    import torch
    from instanttensor import safe_open
    from torch import distributed

    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", f"file://{meeting}", rank=rank, world_size=2)
    group = distributed.GroupMember.WORLD
    distributed.barrier()
    cuts, _ = halves(paths, 0, rank)

    def load() -> Any:
        found = {}
        files = [*map(str, paths)]
        with safe_open(files, framework="pt", device=rank, process_group=group) as opened:
            for name, tensor in opened.tensors():
                found[name] = tensor[cuts[name]].clone() if name in cuts else tensor
        torch.cuda.synchronize()
        return found

    return load


LOADERS = {"cudriver": cudriver, "InstantTensor": instanttensor}


def from_disk() -> int:
    """The bytes that this process has asked the disk for."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def main() -> None:
    who, rank, meeting, *paths = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    load = LOADERS[who](int(rank), meeting, [*map(Path, paths)])
    print("ready", file=out)
    for _ in sys.stdin:
        read, begin = from_disk(), time.perf_counter()
        loaded = load()
        took = time.perf_counter() - begin
        print(took, from_disk() - read, file=out)
        del loaded
        gc.collect()


if __name__ == "__main__":
    main()

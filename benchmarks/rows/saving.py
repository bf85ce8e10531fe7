"""Weights from device memory into a file, in memory and on the disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cudriver as cu
from benchmarks.bench import GIB, MIB, Bench
from benchmarks.measure import OURS, Part, Skip, Work, times_as_fast
from benchmarks.rows.files import MEMORY, experts

SIZE = 16 * GIB
PLAIN = "parallel write"  # out of host memory: what the disk or the memory takes
Save = Callable[[Path, bool], Any]


def ours(arrays: dict[str, Any], path: Path, fsync: bool) -> None:
    cu.save_safetensors(path, arrays, fsync=fsync)


def safetensors(tensors: dict[str, Any], path: Path, fsync: bool) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path)
    if fsync:
        with path.open("rb") as file:
            os.fsync(file.fileno())


def distributed(tensors: dict[str, Any], path: Path, fsync: bool) -> None:
    """PyTorch's distributed checkpoint, of this process alone: a folder with a file a thread."""
    from torch.distributed import checkpoint

    threads = cu.host_memory_stats().copy_threads
    writer = checkpoint.FileSystemWriter(path, sync_files=fsync, thread_count=threads)
    checkpoint.save(tensors, storage_writer=writer, no_dist=True)


def parallel_write(data: memoryview, size: int, path: Path, fsync: bool) -> None:
    """As many bytes, by as many threads as ours has, and nothing else."""
    threads = cu.host_memory_stats().copy_threads
    with path.open("wb") as file, ThreadPoolExecutor(threads) as pool:

        def write(first: int) -> None:
            for offset in range(first * len(data), size, threads * len(data)):
                os.pwrite(file.fileno(), data[: size - offset], offset)

        list(pool.map(write, range(threads)))
        if fsync:
            os.fsync(file.fileno())


def forget(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)  # a checkpoint is a folder
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def many(bench: Bench) -> list[Part]:
    if find_spec("ml_dtypes") is None:
        raise Skip("needs ml_dtypes")
    nbytes = bench.size(SIZE)
    with tempfile.TemporaryDirectory() as folder:
        arrays = cu.load_safetensors(experts(Path(folder), nbytes))
    size = sum(array.nbytes for array in arrays.values())

    def part(text: str, place: str | None, fsync: bool) -> Part:
        folder = tempfile.TemporaryDirectory(dir=place)
        path = Path(folder.name, "saved.safetensors")

        def work(save: Save) -> Work:
            before = partial(forget, path)
            return Work(partial(save, path, fsync), before, before, keep=(folder,))

        effort = {"rounds": 3, "least": 2, "long": 20}
        goals = [times_as_fast(0.9, PLAIN), times_as_fast(1.0, "safetensors")]
        made = Part(bench.label(text, SIZE), size, goals, effort=effort)
        made.makers[OURS] = partial(work, partial(ours, arrays))
        data = memoryview(os.urandom(MIB) * 8)
        made.makers[PLAIN] = partial(work, partial(parallel_write, data, size))
        if bench.peers and find_spec("safetensors") is not None and find_spec("torch") is not None:
            import torch

            tensors = {name: torch.from_dlpack(array) for name, array in arrays.items()}
            made.makers["safetensors"] = partial(work, partial(safetensors, tensors))
            made.makers["torch.distributed.checkpoint"] = partial(
                work, partial(distributed, tensors)
            )
        return made

    parts = []
    if os.path.isdir(MEMORY) and shutil.disk_usage(MEMORY).free > 2 * size:
        parts.append(part("in memory", MEMORY, False))
    return [*parts, part("on the disk, `fsync=True`", None, True)]

"""Weights from a file into device memory, warm (the file is in the page cache) and cold."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.bench import MIB, Bench, fill
from benchmarks.measure import OURS, Part, Skip, Work, times_as_fast

TENSORS = 40
SIZE = 5 * 1024 * MIB
Load = Callable[[Path], Any]
PLAIN = "parallel read"  # into host memory: what the disk gives


def written(folder: str, nbytes: int) -> Path:
    """A safetensors file of bfloat16 tensors, made without the package."""
    rows = nbytes // TENSORS // 8192
    data = np.empty(rows * 8192, np.uint8)
    fill(data)
    header = {}
    for i in range(TENSORS):
        place = [i * data.size, (i + 1) * data.size]
        header[f"layer{i}"] = {"dtype": "BF16", "shape": [rows, 4096], "data_offsets": place}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = Path(folder, "weights.safetensors")
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(TENSORS):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return path


def twin(path: Path) -> Path:
    """A file of tensors of the same sizes, as PyTorch saves them."""
    import torch

    file = path.with_suffix(".pt")
    each = path.stat().st_size // TENSORS // 8192 * 4096  # two bytes an item
    torch.save({str(i): torch.zeros(each, dtype=torch.bfloat16) for i in range(TENSORS)}, file)
    os.sync()
    return file


def safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path, device="cuda")


def torch_load(path: Path) -> Any:
    import torch

    return torch.load(path, mmap=True, map_location="cuda")


def fastsafetensors(path: Path) -> Any:
    from fastsafetensors import fastsafe_open

    with fastsafe_open([str(path)], device="cuda:0", nogds=True) as file:
        return [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118 (no dict)


def streamer(path: Path) -> Any:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as stream:
        stream.stream_file(str(path), device="cuda")
        return [tensor for _, tensor in stream.get_tensors()]


def parallel_read(path: Path) -> None:
    """Every byte into host memory, by as many threads as ours has, and nothing else."""
    step, size = 4 * MIB, path.stat().st_size
    threads = cu.copy_threads()
    with path.open("rb") as file, ThreadPoolExecutor(threads) as pool:

        def read(first: int) -> None:
            room = memoryview(bytearray(step))
            for offset in range(first * step, size, threads * step):
                os.preadv(file.fileno(), [room], offset)

        list(pool.map(read, range(threads)))


def forget(path: Path) -> None:
    """Takes a file out of the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def waited(load: Load, path: Path) -> Any:
    """A peer's load, to its end."""
    import torch

    loaded = load(path)
    torch.cuda.synchronize()
    return loaded


PEERS: dict[str, tuple[str, Load]] = {
    "safetensors": ("safetensors", safetensors),
    "torch.load": ("torch", torch_load),
    "fastsafetensors": ("fastsafetensors", fastsafetensors),
    "Run:ai streamer": ("runai_model_streamer", streamer),
}


def row(*, cold: bool) -> Callable[[Bench], list[Part]]:
    def build(bench: Bench) -> list[Part]:
        if find_spec("ml_dtypes") is None:
            raise Skip("needs ml_dtypes")
        folder = tempfile.TemporaryDirectory()
        path = written(folder.name, bench.size(SIZE))
        goal = times_as_fast(1.0, PLAIN) if cold else times_as_fast(5.0, "safetensors")
        effort = {"rounds": 3, "least": 2, "long": 8} if cold else {"rounds": 7, "long": 3}
        label, size = bench.label("", SIZE), path.stat().st_size
        part = Part(label, size, [goal], warm=not cold, effort=effort)

        def work(load: Load, peer: bool = True) -> Work:
            file = twin(path) if load is torch_load else path
            run = partial(waited, load, file) if peer else partial(load, file)
            before = partial(forget, file) if cold else None
            return Work(run, before, how=load.__name__, keep=(folder,))

        part.makers[OURS] = partial(work, cu.load_safetensors, peer=False)
        part.makers[PLAIN] = partial(work, parallel_read, peer=False)
        if bench.peers and find_spec("torch") is not None:
            for name, (module, load) in PEERS.items():
                if find_spec(module) is not None:
                    part.makers[name] = partial(work, load)
        return [part]

    return build

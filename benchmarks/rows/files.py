"""Weights from a file into device memory, warm (the file is in the page cache) and cold."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, MIB, Bench, fill
from benchmarks.measure import OURS, Part, Skip, Work, at_least_rate, times_as_fast

TENSORS = 40
SIZE = 5 * 1024 * MIB
LAYERS, EXPERTS, FILES = 36, 128, 4  # of a mixture of experts of 16 GiB
MEMORY = "/dev/shm"  # where files are in memory, if there is room
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


def saved(path: Path, shapes: dict[str, list[int]], data: np.ndarray[Any, Any]) -> None:
    """A safetensors file of bfloat16 tensors, made without the package, of the same bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, data.nbytes):
            file.write(data[: end - begin])


def experts(folder: Path, nbytes: int) -> list[Path]:
    """A mixture of experts of about so many bytes, in several files."""
    layers = max(1, nbytes * LAYERS // (16 * GIB))
    wide = max(16, math.isqrt(nbytes // layers // 452) // 16 * 16)
    narrow = wide * 9 // 16
    data = np.empty(min(nbytes, 64 * MIB), np.uint8)
    fill(data)
    paths = []
    for file in range(min(FILES, layers)):
        shapes = {}
        for layer in range(file, layers, FILES):
            for expert in range(EXPERTS):
                name = f"model.layers.{layer}.mlp.experts.{expert}"
                shapes[f"{name}.gate_proj.weight"] = [narrow, wide]
                shapes[f"{name}.up_proj.weight"] = [narrow, wide]
                shapes[f"{name}.down_proj.weight"] = [wide, narrow]
            name = f"model.layers.{layer}"
            shapes[f"{name}.self_attn.q_proj.weight"] = [4 * wide, wide]
            shapes[f"{name}.self_attn.k_proj.weight"] = [wide, wide]
            shapes[f"{name}.self_attn.v_proj.weight"] = [wide, wide]
            shapes[f"{name}.self_attn.o_proj.weight"] = [wide, 4 * wide]
            shapes[f"{name}.input_layernorm.weight"] = [wide]
        paths.append(folder / f"model-{file}.safetensors")
        saved(paths[-1], shapes, data)
    return paths


def halves(paths: list[Path], axis: int, rank: int = 0) -> tuple[dict[str, Any], int]:
    """Slices of each matrix, as a rank of two has them, and how many bytes are loaded."""
    cuts: dict[str, Any] = {}
    nbytes = 0
    for path in paths:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            shape = tensor["shape"]
            nbytes += 2 * math.prod(shape) // min(2, len(shape))
            if len(shape) == 2:
                middle = shape[axis] // 2
                part = slice(middle, shape[axis]) if rank else slice(middle)
                cuts[name] = (slice(None),) * axis + (part,)
    return cuts, nbytes


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


def instanttensor(paths: list[Path]) -> Any:
    from instanttensor import safe_open

    with safe_open([*map(str, paths)], framework="pt", device=0) as file:
        return dict(file.tensors())


def prefetch(paths: list[Path]) -> Any:
    """Of safetensors 0.9: a loader a file, all at work at once."""
    from safetensors import safe_open

    with contextlib.ExitStack() as stack:
        files = [safe_open(path, framework="pt", device="cuda:0") for path in paths]
        loaders = [stack.enter_context(stack.enter_context(each).prefetch()) for each in files]
        return {name: tensor for each in loaders for name, tensor in each}


def fastsafetensors(paths: list[Path]) -> Any:
    from fastsafetensors import ParallelLoader

    files = [*map(str, paths)]
    loader = ParallelLoader(None, files, device="cuda:0", nogds=True, use_tqdm_on_load=False)
    try:
        return dict(loader.iterate_weights())
    finally:
        loader.close()


def streamer(paths: list[Path]) -> Any:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as stream:
        stream.stream_files([*map(str, paths)], device="cuda:0")
        return dict(stream.get_tensors())


def parallel_read(path: Path) -> None:
    """Every byte into host memory, by as many threads as ours has, and nothing else."""
    step, size = 4 * MIB, path.stat().st_size
    threads = cu.host_memory_stats().copy_threads
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


def waited(load: Callable[[Any], Any], path: Any) -> Any:
    """A peer's load, to its end."""
    import torch

    loaded = load(path)
    torch.cuda.synchronize()
    return loaded


def has_prefetch() -> bool:
    if find_spec("safetensors") is None:
        return False
    from safetensors import safe_open

    return hasattr(safe_open, "prefetch")


MANY: dict[str, tuple[str, Callable[[list[Path]], Any]]] = {
    "InstantTensor": ("instanttensor", instanttensor),
    "safetensors, prefetch": ("safetensors", prefetch),
    "fastsafetensors": ("fastsafetensors", fastsafetensors),
    "Run:ai streamer": ("runai_model_streamer", streamer),
}


def loaders() -> dict[str, Callable[[list[Path]], Any]]:
    """Those of MANY that are here."""
    return {
        name: load
        for name, (module, load) in MANY.items()
        if find_spec(module) is not None and (load is not prefetch or has_prefetch())
    }


def peers() -> dict[str, Load]:
    """Loaders of one file."""
    several = {name: lambda path, load=load: load([path]) for name, load in loaders().items()}
    alone: dict[str, Load] = {"torch.load": torch_load}
    return alone | ({"safetensors": safetensors} if find_spec("safetensors") else {}) | several


def row(*, cold: bool) -> Callable[[Bench], list[Part]]:
    def build(bench: Bench) -> list[Part]:
        if find_spec("ml_dtypes") is None:
            raise Skip("needs ml_dtypes")
        folder = tempfile.TemporaryDirectory()
        path = written(folder.name, bench.size(SIZE))
        goal = times_as_fast(1.0, PLAIN) if cold else times_as_fast(5.0, "safetensors")
        effort = {"rounds": 3, "least": 2, "long": 8} if cold else {"rounds": 7, "long": 3}
        label, size = bench.label("", SIZE), path.stat().st_size
        goals = [goal, times_as_fast(1.0, *MANY)]
        part = Part(label, size, goals, warm=not cold, effort=effort)

        def work(load: Load, peer: bool = True) -> Work:
            file = twin(path) if load is torch_load else path
            run = partial(waited, load, file) if peer else partial(load, file)
            before = partial(forget, file) if cold else None
            return Work(run, before, how=load.__name__, keep=(folder,))

        part.makers[OURS] = partial(work, cu.load_safetensors, peer=False)
        part.makers[PLAIN] = partial(work, parallel_read, peer=False)
        if bench.peers and find_spec("torch") is not None:
            part.makers |= {name: partial(work, load) for name, load in peers().items()}
        return [part]

    return build


def many(bench: Bench) -> list[Part]:
    if find_spec("ml_dtypes") is None:
        raise Skip("needs ml_dtypes")
    wanted = 16 * GIB
    nbytes = bench.size(wanted)
    room = os.path.isdir(MEMORY) and shutil.disk_usage(MEMORY).free > 2 * nbytes
    folder = tempfile.TemporaryDirectory(dir=MEMORY if room else None)
    paths = experts(Path(folder.name), nbytes)
    size = sum(path.stat().st_size for path in paths)

    def work(run: Callable[[], Any]) -> Work:
        return Work(run, keep=(folder,))

    def part(text: str, gigabytes: float, nbytes: int = size) -> Part:
        effort = {"rounds": 7, "long": 3}
        return Part(bench.label(text, wanted), nbytes, [at_least_rate(gigabytes)], effort=effort)

    parts = [part("", 48)]
    parts[0].makers[OURS] = partial(work, partial(cu.load_safetensors, paths))
    for text, gigabytes, axis in (("rows", 40, 0), ("columns", 20, 1)):
        cuts, kept = halves(paths, axis)
        parts.append(part(f"half of the {text} of each (`slices=`)", gigabytes, kept))
        parts[-1].makers[OURS] = partial(work, partial(cu.load_safetensors, paths, slices=cuts))
    if bench.simulated or find_spec("torch") is None:
        return parts
    tensors = part("as PyTorch's tensors", 46)
    ours = partial(cu.load_safetensors, framework="torch")
    tensors.makers[OURS] = partial(work, partial(waited, ours, paths))
    for name, load in loaders().items() if bench.peers else ():
        tensors.makers[name] = partial(work, partial(waited, load, paths))
        tensors.goals = [at_least_rate(46), times_as_fast(1.0)]
    return [*parts, tensors]

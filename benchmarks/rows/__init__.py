"""The table of targets: each row's name, its target in words, and what makes its parts."""

from __future__ import annotations

from benchmarks.bench import GIB, MIB
from benchmarks.row import Row
from benchmarks.rows import (
    blocks,
    calls,
    copies,
    files,
    neighbours,
    processes,
    saving,
    several,
    threads,
    together,
)

TABLE = [
    Row(
        "plain NumPy array to device, 1-2 GiB",
        ">= 0.93 of the pinned rate",
        copies.plain(0.93, GIB, 2 * GIB, way="up"),
    ),
    Row(
        "device to plain NumPy array, 1-2 GiB",
        ">= 0.93 of the pinned rate",
        copies.plain(0.93, GIB, 2 * GIB, way="down"),
    ),
    Row("the same, 256 MiB", ">= 0.85 of the pinned rate", copies.plain(0.85, 256 * MIB)),
    Row("the same, 64 MiB", ">= 0.78 of the pinned rate", copies.plain(0.78, 64 * MIB)),
    Row("the same, 16 MiB", ">= 0.65 of the pinned rate", copies.plain(0.65, 16 * MIB)),
    Row("the same, 4 MiB", ">= 0.45 of the pinned rate", copies.plain(0.45, 4 * MIB)),
    Row("pinned array to or from device, 1 GiB", ">= 0.99 of the fastest", copies.pinned),
    Row(
        "`a.T` of a plain 512 MiB array into a C-ordered device array",
        ">= 40 GB/s",
        copies.transposed,
    ),
    Row("`a[:, ::2]` to the device, 256 MiB of data", ">= 25 GB/s", copies.every_second),
    Row("`a[:, :n/2]` to the device, 256 MiB", ">= 45 GB/s", copies.half_rows),
    Row("device to `a[:, ::2]`", ">= 20 GB/s", copies.back),
    Row("plain arrays to two GPUs at once, 32 cores", ">= 0.85 of pinned", together.two_devices),
    Row("up and down at once on one GPU, plain arrays", ">= 0.75 of pinned", together.both_ways),
    Row(
        "from one GPU to another, 1 GiB (NVLink)",
        ">= 1.0 of the fastest peer; both ways >= 1.7 of its one way",
        together.across,
    ),
    Row(
        "`copy_async` of ordinary memory until it returns, the source read",
        "<= 10 us, 0.1, 1.2, 8 ms",
        calls.reading,
    ),
    Row("the same on a stream that is busy for 50 ms", "the same", calls.reading_busy),
    Row("256 MiB with `borrow=True` until it returns", "<= 0.3 ms", calls.borrowing),
    Row(
        "page-locked copies of 4 KiB, 64 KiB, 1 and 16 MiB beside 1 GiB in the same direction",
        "<= 0.05, 0.05, 0.12, 1.2 ms",
        neighbours.beside,
    ),
    Row(copies.SWEEP, "never below 0.97 of the driver's own", copies.sweep),
    Row("page-locked 2 GiB, first time", ">= 20 GB/s, >= 10x cuMemHostAlloc", calls.first_time),
    Row(
        "page-locked 32 GiB beside other work; the longest wait of a 64 KiB copy meanwhile",
        ">= 25 GB/s, >= 0.85 of one piece; <= 5 ms",
        together.page_locking,
    ),
    Row(
        "page-locked 48 GiB with `pieces=True`; the longest wait of another process and thread",
        ">= 0.9 of pinned_empty_async; <= 20 ms",
        neighbours.page_locking,
    ),
    Row(
        "shared memory of 16 GiB: touched and page-locked",
        ">= 15 GB/s",
        processes.shared_memory,
    ),
    Row("page-locked array from the pool, 1 MiB and 1 GiB", "<= 1.0 us", calls.from_pool),
    Row("np.empty inside `pinned_numpy()`, reuse", "<= 1.5x plain np.empty", calls.inside_numpy),
    Row("4 KiB asynchronous copy, issue cost", "<= 2.60 us, taking arrays", calls.small_issue),
    Row(
        "4 KiB asynchronous copies from 1 to 16 threads, a stream each",
        ">= 0.8 of threads in C, without a GIL",
        threads.copies,
    ),
    Row(
        "page-locked 1 MiB, taken and given back by 1 to 16 threads",
        ">= 0.8 of threads in C, without a GIL",
        threads.allocations,
    ),
    Row("device allocate + free, 1 MiB", "<= 1.2 us", calls.device_memory),
    Row("context push + pop", "<= 0.25 us with `with ctx:`", calls.push_pop),
    Row("import, over a bare interpreter", "<= 20 ms", processes.imports),
    Row("environment report", "<= 150 ms, whole process", processes.report),
    Row(
        "`NHWC -> NCHW` of 256 uint8 images of 512 x 512 x 3 (192 MiB) to the device",
        ">= 40 GB/s",
        copies.images,
    ),
    Row(
        "5 of 64 float64 columns of 2^20 rows (40 MiB) to the device", ">= 12 GB/s", copies.columns
    ),
    Row(
        "feeding 8 plain batches of 36.8 MiB while the GPU computes for 77.6 ms",
        "<= 1.02 of the computation alone",
        together.feeding,
    ),
    Row(
        "1 MiB plain, one copy right after another",
        ">= 0.97 of the driver's own",
        copies.right_after,
    ),
    Row("`to_device` of 1000 floats", "<= 11 us", calls.to_device),
    Row("`torch.from_dlpack(d)`", "<= 1.2 of the fastest", calls.lent),
    Row(
        "`cu.from_dlpack(t)`, with address, shape, strides and type",
        "<= 1.2 of the fastest",
        calls.taken,
    ),
    Row(
        "4 KiB asynchronous copy into another library's array, shape and type checked, issue cost",
        "<= 1.2 of the fastest peer's into its own",
        calls.copied_into,
    ),
    Row(
        "`copy_rows`, 4,096 random rows of a page-locked GiB",
        ">= 45, 47, 48 and 49 GB/s",
        copies.rows,
    ),
    Row("the same rows of plain memory", ">= 0.9 of as many in one piece", copies.pageable_rows),
    Row(
        "the same, until the call returns",
        "<= 20 us + 0.02 us a row; copy_many <= 0.3 us a pair",
        copies.row_calls,
    ),
    Row(
        "blocks of 4 KiB to 1 MiB, as in vllm#48936: naive, batch, swap and Triton",
        "ahead of all four at every size",
        blocks.row,
    ),
    Row(
        "check of an environment with torch, JAX, TensorFlow and ONNX Runtime",
        "<= 250 ms",
        processes.large_environment,
    ),
    Row(
        "safetensors, 5 GiB of bfloat16 in 40 tensors, in the page cache",
        ">= 5 x safetensors, ahead of the other loaders",
        files.row(cold=False),
    ),
    Row(
        "the same, not in the page cache",
        ">= 1.0 of a parallel read, ahead of the other loaders",
        files.row(cold=True),
    ),
    Row(
        "a mixture of experts, 16 GiB of bfloat16 in 14,004 tensors in 4 files in memory",
        ">= 48 GB/s, 46 as PyTorch's tensors, ahead of all; slices 40 and 20",
        files.many,
    ),
    Row(
        "`save_safetensors`, 16 GiB of 14,004 device arrays into a file",
        ">= 0.9 of a parallel write out of host memory, ahead of safetensors",
        saving.many,
    ),
    Row(
        "two GPUs: 64 KiB beside 1 GiB of the other GPU's, or between the two",
        "<= 0.05 ms",
        several.beside,
    ),
    Row(
        "two GPUs: two ranks load one set of weight files, a half of each matrix each",
        "ahead of the other loaders",
        several.loaded,
    ),
    Row(
        "two GPUs: `save_safetensors`, 16 GiB that lie on both",
        ">= 0.9 of those on one",
        several.saved,
    ),
    Row(
        "two GPUs: shared memory of 16 GiB, page-locked by two processes at once",
        "longest wait <= 20 ms",
        several.shared,
    ),
]

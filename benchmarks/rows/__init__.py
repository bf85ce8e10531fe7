"""The rows, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.bench import Bench
from benchmarks.measure import Row
from benchmarks.rows import calls, copies, pinned, processes, strided, sweep, together

Build = Callable[[Bench], Row]

# Name, and what makes it. The first list is the table of targets; the second is measured beside it.
TABLE: dict[str, Build] = {
    "plain NumPy array to device, 1-2 GiB": copies.large_up,
    "device to plain NumPy array, 1-2 GiB": copies.large_down,
    "the same, 256 MiB": copies.of(256, 0.85),
    "the same, 64 MiB": copies.of(64, 0.78),
    "the same, 16 MiB": copies.of(16, 0.65),
    "the same, 4 MiB": copies.of(4, 0.45),
    "pinned array to or from device, 1 GiB": copies.pinned,
    "`a.T` of a plain 512 MiB array into a C-ordered device array": strided.transposed,
    "`a[:, ::2]` to the device, 256 MiB of data": strided.every_second,
    "`a[:, :n/2]` to the device, 256 MiB": strided.half_rows,
    "device to `a[:, ::2]`": strided.back,
    "plain arrays to two GPUs at once, 32 cores": together.two_devices,
    "up and down at once on one GPU, plain arrays": together.both_ways,
    "from one GPU to another, 1 GiB (NVLink)": together.across,
    "asynchronous copy of a plain 256 MiB array: time until the call returns": calls.asynchronous,
    "any size, 4 KiB to 4 GiB, any path": sweep.sizes,
    "page-locked 2 GiB, first time": pinned.first_time,
    "page-locked array from the pool, 1 MiB and 1 GiB": pinned.from_pool,
    "np.empty inside `pinned_numpy()`, reuse": pinned.inside_numpy,
    "4 KiB asynchronous copy, issue cost": calls.small_issue,
    "device allocate + free, 1 MiB": calls.device_memory,
    "context push + pop": calls.push_pop,
    "import, over a bare interpreter": processes.imports,
    "environment report": processes.report,
}
BESIDE: dict[str, Build] = {
    "one plain copy alone, after a pause of 2 ms": sweep.alone,
    "four plain copies of 256 MiB, one behind another": copies.four_in_a_row,
    "import with the core and NumPy": processes.first_use,
    "plain 256 MiB where the process may use one processor": processes.small_machine(1),
    "plain 256 MiB where the process may use two processors": processes.small_machine(2),
    "plain 256 MiB where the process may use four processors": processes.small_machine(4),
}

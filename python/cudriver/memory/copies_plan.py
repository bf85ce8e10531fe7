"""How many copies in one call are done, and what that takes from the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cudriver.memory import devices, rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bytes a second that the kernel moves over PCIe 5 x16.
BUS = 50e9


def explain_rows(there: Any, origin: Any, to: Any, of: Any) -> tuple[Any, ...]:
    """How copy_rows() would copy: the fields of a CopyPlan."""
    return _plan(rows.queue(there, origin, to, of, None, rows.EXPLAIN))


def explain_many(there: Any, origin: Any) -> tuple[Any, ...]:
    """The same of copy_many()."""
    return _plan(rows.queue_many(there, origin, None, rows.EXPLAIN))


def _plan(told: list[Any]) -> tuple[Any, ...]:
    runs, nbytes, odds, most, least, blocks, device = told
    table = np.frombuffer(runs, np.uint64).reshape(-1, 4)
    length = table[:, 2]
    up, down, pageable = table[:, 3:].copy().view(np.uint8)[:, :3].astype(bool).T
    small = ~pageable & (length < most)
    if small.sum() < least:  # not worth a kernel
        small[:] = False
    staged = np.zeros_like(pageable)
    for way in pageable & up, pageable & down:
        if way.sum() > 1:  # together; one alone is a copy by itself
            staged |= way
    groups = {"kernel": small, "direct": ~pageable & ~small, "staged": staged}
    counts = {path: int(group.sum()) for path, group in groups.items() if group.any()}
    moved = {path: _bytes(length, groups[path]) for path in counts}
    if odds := odds + int((pageable & ~staged).sum()):
        counts["apart"], moved["apart"] = odds, nbytes - sum(moved.values())
    taking = small | staged  # by the kernel, in all or at the device's end
    has = devices.Device(device).multiprocessor_count if taking.any() else 0
    seconds = _bytes(length, taking & (up | down)) / BUS
    parts = [_SAYS[path].format(count) for path, count in counts.items()]
    if has:
        spell = f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
        lasting = f", for about {spell} at the rate of PCIe 5 x16" if seconds else ""
        parts.append(
            f"the kernel takes at most {min(blocks, has)} of the device's {has} multiprocessors"
            f"{lasting}; copies of {most >> 20} MiB and more of page-locked memory, and "
            "copy_async() for each, take none"
        )
    path: Any = max(moved, key=lambda path: moved[path]) if nbytes else "empty"
    locked = bool((up | down).any()) and not pageable.any()
    return (
        path,
        "; ".join(parts) or "there is nothing to copy",
        nbytes,
        locked,
        *(None, 0, 0, 0),
        counts,
        min(blocks, has),
        seconds,
    )


def _bytes(length: NDArray[np.uint64], group: NDArray[np.bool_]) -> int:
    return int(length[group].sum())


_SAYS = {
    "kernel": "{:,} dense and page-locked, or on one device: one launch of a kernel copies them",
    "direct": "{:,} dense and page-locked, or on one device, but few or large: a driver copy each",
    "staged": "{:,} dense but pageable: worker threads move them through page-locked slots, "
    "between which and the device a kernel copies them",
    "apart": "{:,} not dense, alone and pageable, or of another device than the first: each as by "
    "copy_async()",
}

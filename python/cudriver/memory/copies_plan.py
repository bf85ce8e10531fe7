"""How the core does many copies in one call, and what that takes from the device."""

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
    runs, nbytes, odds, most, blocks, device = told
    table = np.frombuffer(runs, np.uint64).reshape(-1, 4)
    length, flags = table[:, 2], table[:, 3:].copy().view(np.uint8)
    up, down, pageable = flags[:, :3].astype(bool).T
    groups = {path: flags[:, 3] == number for number, path in enumerate(_SAYS)}
    counts = {path: int(group.sum()) for path, group in groups.items() if group.any()}
    moved = {path: _bytes(length, groups[path]) for path in counts}
    if odds:
        counts["apart"] = counts.get("apart", 0) + odds
        moved["apart"] = moved.get("apart", 0) + nbytes - sum(moved.values())
    taking = groups["kernel"] | groups["staged"]  # by the kernel, in all or at the device's end
    has = devices.Device(device).multiprocessor_count if taking.any() else 0
    seconds = _bytes(length, taking & (up | down)) / BUS
    parts = [_SAYS[path].format(count) for path, count in counts.items()]
    if has:
        spell = f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
        lasting = f", for about {spell} at the rate of PCIe 5 x16" if seconds else ""
        none = "copy_async() for each takes none"
        if int(length[groups["kernel"]].max(initial=0)) < most:  # not beside big copies in flight
            big = f"copies of {most >> 20} MiB and more of page-locked memory"
            none = f"{big}, and copy_async() for each, take none"
        parts.append(
            f"the kernel takes at most {min(blocks, has)} of the device's {has} multiprocessors"
            f"{lasting}; {none}"
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


#: In the order of enum cudriver_run_path.
_SAYS = {
    "kernel": "{:,} dense and page-locked, or on one device: one launch of a kernel copies them",
    "direct": "{:,} dense and page-locked, or on one device, but few or large: by the driver",
    "staged": "{:,} dense but pageable: worker threads move them through page-locked slots, "
    "between which and the device a kernel copies them",
    "apart": "{:,} not dense, alone and pageable, or of another device than the first: each as by "
    "copy_async()",
}

"""What copies do: the plan of one."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np

from cudriver import _core
from cudriver.errors import CudaError
from cudriver.memory.copies_plan import explain_many, explain_rows
from cudriver.memory.making import device_empty
from cudriver.memory.named import public

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from cudriver._core import DeviceArray
    from cudriver.typing import AnyArray


@public
class CopyPlan(NamedTuple):
    """Which path a copy takes, or many in one call, and why; see explain_copy().

    Attributes
    ----------
    path : str
        'direct', '2D', '3D', 'staged', 'kernel', 'temporary', 'peer', 'bounced', 'host', 'same' or
        'empty'. Of many copies that of most of the bytes: 'kernel', 'direct' (by the driver),
        'staged' (together), 'apart' (each as by `copy_async`) or 'empty'.
    why : str
        The reason, in a sentence; of many copies also what they take from the device, and how to
        avoid that.
    nbytes : int
        Bytes to be moved.
    page_locked : bool
        Whether the host side is page-locked; of many copies, whether that of all dense ones is.
    staging : str or None
        How a staged copy travels: 'staged', 'staged, packed', 'staged, rows', 'staged, permuted',
        'small'.
    chunk : int
        Bytes of a part of a staged copy; 0 if small or not staged.
    threads : int
        Threads that may work on a staged copy; else 0.
    crossover : int
        Bytes from which on a dense pageable copy is staged; 0 where not staged.
    counts : dict
        How many copies go which way: the paths, and their numbers.
    multiprocessors : int
        How many of the device's multiprocessors many copies occupy, at most; else 0.
    seconds : float
        For how long, about, where all goes at the rate of PCIe 5 x16; 0 if there are none, or
        where both ends are on the device.
    """

    path: Literal[
        "empty", "same", "host", "direct", "2D", "3D", "staged", "kernel", "temporary", "peer",
        "bounced", "apart",
    ]  # fmt: skip
    why: str
    nbytes: int
    page_locked: bool
    staging: str | None
    chunk: int
    threads: int
    crossover: int
    counts: dict[str, int]
    multiprocessors: int
    seconds: float

    def _repr_html_(self) -> str:
        rows = {
            "path": self.path,
            "why": self.why,
            "bytes": f"{self.nbytes:,}",
            "page-locked": "yes" if self.page_locked else "no",
        }
        if self.staging is not None:
            rows["staging"] = self.staging
        if self.chunk:
            rows["part"] = f"{self.chunk:,} bytes"
        if self.threads:
            rows["threads"] = f"up to {self.threads}"
        if self.crossover:
            rows["staged from"] = f"{self.crossover:,} bytes"
        if sum(self.counts.values()) > 1:
            rows["copies"] = ", ".join(f"{path}: {n:,}" for path, n in self.counts.items())
        if self.multiprocessors:
            rows["multiprocessors"] = f"up to {self.multiprocessors}"
        cells = (
            f'<tr><th style="text-align: left; white-space: nowrap">{name}</th>'
            f'<td style="text-align: left">{html.escape(value)}</td></tr>'
            for name, value in rows.items()
        )
        return f"<table>{''.join(cells)}</table>"


class ChosenCopy(NamedTuple):
    """How the core would copy: a CopyPlan's fields, and what tells why. coherent: the device reads
    the host's page tables, 1, or would crawl there, 2. held: the most bytes of a source that a call
    reads before it returns.
    """

    path: Any
    nbytes: int
    page_locked: bool
    staging: int
    chunk: int
    threads: int
    crossover: int
    dense: bool
    on_device: bool
    apart: bool
    coherent: int
    up: bool
    held: int
    beside: bool


# Of enum cudriver_staging_path.
_STAGING = ("small", "staged", "staged, packed", "staged, rows", "staged, permuted")
_ROWS = {
    "strided locked": "page-locked rows: the driver copies them as they lie",
    "device": "rows on one device: the driver copies them",
}
_BESIDE = (
    "small, and a big copy in the same direction is in flight, behind which the copy engine would "
    "serve it: a kernel moves it beside that"
)
_WHY: dict[str, str | dict[str, str]] = {
    "empty": "there is nothing to copy",
    "same": "both ends are the same memory: nothing to do",
    "host": "both ends are in host memory: NumPy copies",
    "direct": {
        "dense locked": "dense on both sides and page-locked: one copy at the bus's own speed",
        "dense pageable": "dense and small: one driver copy, from this thread",
        "device": "dense on both sides of one device",
        "coherent": "dense and pageable, and the device reads it through the host's page tables: "
        "one driver copy",
    },
    "2D": _ROWS,
    "3D": _ROWS,
    "staged": {
        "dense pageable": "dense but pageable: worker threads move it through page-locked slots",
        "coherent": "dense but in a mapped file, whose pages the device would read slowly through "
        "the host's page tables: worker threads move it through page-locked slots",
        "crawls": "dense and pageable, and the device read the first big array through the host's "
        "page tables at less than 5 GB/s: worker threads move it through page-locked slots",
        "strided locked": "strided in a way that the driver does not copy fast: packed into slots",
        "strided pageable": "strided and pageable: worker threads pack it into page-locked slots",
    },
    "kernel": "strided in a way that the driver does not copy fast: a kernel on the device puts "
    "the items in place",
    "temporary": "the ends may overlap: through a temporary on the device",
    "peer": "dense, on two devices: a peer copy (the driver goes through the host where the "
    "devices cannot reach each other)",
    "bounced": {
        "apart": "strided, on two devices: three copies, through dense memory on both",
        "no kernel": "the two sides are strided too differently for the driver's copies, and the "
        "kernel cannot be had, or has too few dimensions: through host memory",
    },
}


# Of copy_async().
_READ = (
    "; copy_async() returns when it is read, and waits for a busy stream only where 256 MiB have "
    "been read that wait for theirs"
)
_LARGE = (
    "; copy_async() returns when it is read: as it is more than the 256 MiB that may wait for a "
    "busy stream, the call waits for that"
)


@overload
def explain_copy(dst: AnyArray, src: AnyArray, /) -> CopyPlan: ...
@overload
def explain_copy(
    dst: AnyArray, src: AnyArray, /, dst_rows: ArrayLike, src_rows: ArrayLike
) -> CopyPlan: ...
@overload
def explain_copy(dst: Sequence[AnyArray], src: Sequence[AnyArray], /) -> CopyPlan: ...
def explain_copy(
    dst: Any, src: Any, /, dst_rows: ArrayLike | None = None, src_rows: ArrayLike | None = None
) -> CopyPlan:
    """Return which path a copy, or many in one call, would take, and why. Copies nothing.

    Parameters
    ----------
    dst : array, or list or tuple of arrays
        As for `copy` and `copy_rows`; a list or a tuple as for `copy_many`.
    src : array, or list or tuple of arrays
        The same.
    dst_rows, src_rows : sequence of int, optional
        Both, as for `copy_rows`.

    Returns
    -------
    CopyPlan
        A named tuple, with the path's name and the reason first. Of `copy_rows` and
        `copy_many` it also tells what the copies take from the device.

    Raises
    ------
    TypeError, ValueError, IndexError
        As the copy would raise.

    Notes
    -----
    What the path ``'kernel'`` or ``'temporary'`` needs may be missing when the copy
    comes: the kernel, or memory. Then it goes through host memory, or one by one.

    A copy of at most 16 MiB takes the path ``'kernel'`` where copies of 64 MiB or more
    are in flight in the same direction on the device, on another stream, or its own
    stream has a priority higher than normal, which this does not know.

    Examples
    --------
    >>> there = cu.device_empty(1000)
    >>> cu.explain_copy(there, cu.pinned_zeros(1000)).path
    'direct'
    >>> cache, blocks = cu.pinned_zeros((100, 4096)), cu.device_empty((10, 4096))
    >>> plan = cu.explain_copy(blocks, cache, range(10), range(10))
    >>> plan.path, plan.counts
    ('kernel', {'kernel': 10})
    """
    if (dst_rows is None) != (src_rows is None):
        raise TypeError("dst_rows and src_rows are given together")
    if dst_rows is not None:
        return CopyPlan(*explain_rows(dst, src, dst_rows, src_rows))
    if isinstance(dst, (list, tuple)):
        return CopyPlan(*explain_many(dst, src))
    it = ChosenCopy(*_core._explain_copy(dst, src))
    locked = it.page_locked
    if it.beside:
        return CopyPlan("kernel", _BESIDE, it.nbytes, locked, None, 0, 0, 0, {"kernel": 1}, 0, 0.0)
    if it.path == "bounced":
        case = "apart" if it.apart else "no kernel"
    elif it.on_device:
        case = "device"
    elif it.coherent:
        case = "coherent" if it.coherent < 2 else "crawls"
    else:
        case = ("dense " if it.dense else "strided ") + ("locked" if locked else "pageable")
    why = _WHY[it.path]
    why = why if isinstance(why, str) else why[case]
    if it.path == "staged" and it.up and not locked:
        why += _READ if it.nbytes <= it.held else _LARGE
    staging = _STAGING[it.staging] if it.staging >= 0 else None
    counts = {it.path: 1} if it.path != "empty" else {}
    sizes = (it.chunk, it.threads, it.crossover)
    return CopyPlan(it.path, why, it.nbytes, locked, staging, *sizes, counts, 0, 0.0)


def bounce(dst: DeviceArray, src: DeviceArray) -> None:
    """For the core: a copy by several, through dense arrays on the devices."""
    homes: list[Any] = [array.context for array in (src, dst)]
    homes = homes[: 1 + (dst.device != src.device)]
    try:
        between = [device_empty(src.shape, src.dtype, device=home) for home in homes]
    except CudaError:  # there is no memory
        return bounce_by_host(dst, src)
    for array in between:
        _core.copy(array, src)
        src = array
    return _core.copy(dst, src)


def bounce_by_host(dst: DeviceArray, src: DeviceArray) -> None:
    """The same through an array in host memory."""
    between = np.empty(src.shape, src.dtype)
    _core.copy(between, src)
    _core.copy(dst, between)


def on_host(dst: NDArray[Any], src: NDArray[Any]) -> None:
    """For the core: a copy between arrays of one shape and dtype in host memory; where they
    overlap, as if the source had been copied first.
    """
    # NumPy handles overlap itself only with several dimensions or strides of opposite sign. It
    # corrupts 1-D copies between different strides, and single structured items.
    if np.may_share_memory(dst, src):
        src = src.copy()
    np.copyto(dst, src, casting="unsafe")

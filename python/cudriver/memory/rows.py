"""Many copies in one call."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from cudriver import _core

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import ArrayLike, NDArray

    from cudriver._core import Transfer
    from cudriver.typing import AnyArray, StreamLike


#: Of enum copy_batch_mode in cext/arrays/copy_private.h.
READ, BORROW, BLOCKING, EXPLAIN = range(4)


def copy_many(dsts: Iterable[AnyArray], srcs: Iterable[AnyArray], /) -> None:
    """Copy many arrays into as many others in one call, and wait until all are copied.

    Parameters
    ----------
    dsts : sequence of arrays
        Where to: arrays that `copy` takes. None may overlap another, or a source.
    srcs : sequence of arrays
        Where from: for each destination an array of the same shape and dtype.

    Raises
    ------
    TypeError, ValueError
        The lengths differ, an end is not an array, a pair does not fit, or a destination
        overlaps another or a source. Nothing was copied.
    CudaError
        As for `copy_async`.

    Notes
    -----
    `copy_many_async`, and a wait for it, on the stream of the enclosing ``with
    stream:``, else on the default stream.

    Examples
    --------
    >>> hosts = [cu.pinned_full(4, i) for i in range(3)]
    >>> there = [cu.device_empty(4, int) for host in hosts]
    >>> cu.copy_many(there, hosts)
    >>> there[2].to_numpy()
    array([2, 2, 2, 2])
    """
    queue_many(dsts, srcs, None, BLOCKING).wait()


def copy_many_async(
    dsts: Iterable[AnyArray],
    srcs: Iterable[AnyArray],
    /,
    stream: StreamLike | None = None,
    *,
    borrow: bool = False,
) -> Transfer:
    """Copy many arrays into as many others, as one piece of work in the order of a stream.

    Parameters
    ----------
    dsts, srcs : sequence of arrays
        As for `copy_many`. Pageable sources have been read when the call returns.
    stream : Stream, optional
        The default is the enclosing ``with stream:``, else the default stream.
    borrow : bool, optional
        Read pageable sources later too: as for `copy_async`.

    Returns
    -------
    Transfer
        What to wait for. It keeps all arrays alive until every copy is over.

    Raises
    ------
    TypeError, ValueError, CudaError
        As for `copy_many`.

    Notes
    -----
    The copies are done in any order. Small ones that are dense, of page-locked
    memory or on one device, are done by a kernel, one launch for all: see
    `copy_rows_async`. The others are done as by `copy_async`.

    Examples
    --------
    >>> hosts = [cu.pinned_full(4, i) for i in range(3)]
    >>> there = [cu.device_empty(4, int) for host in hosts]
    >>> cu.copy_many_async(there, hosts, cu.Stream()).wait()
    """
    made: Transfer = queue_many(dsts, srcs, stream, BORROW if borrow else READ)
    return made


def copy_rows(dst: AnyArray, src: AnyArray, /, dst_rows: ArrayLike, src_rows: ArrayLike) -> None:
    """Copy rows of one array to rows of another, and wait until all are copied.

    Parameters
    ----------
    dst : array
        Where to: any array that `copy` takes, with at least one dimension.
    src : array
        Where from: any such array whose rows have the same shape and dtype.
    dst_rows : sequence of int
        Which rows to write: indices along the first dimension, each once. Negative
        ones count from the end.
    src_rows : sequence of int
        For each row to write, the one to read. They may repeat.

    Raises
    ------
    IndexError
        An index is out of range, or is not an integer. Nothing was copied.
    TypeError, ValueError
        The lengths differ, an end is not an array, rows do not fit, or one is written twice
        or both written and read. Nothing was copied.
    CudaError
        As for `copy_async`.

    Notes
    -----
    As ``dst[dst_rows] = src[src_rows]``. `copy_rows_async`, and a wait for it, on the
    stream of the enclosing ``with stream:``, else on the default stream.

    Examples
    --------
    >>> cache = cu.pinned_array(np.arange(8).reshape(4, 2))
    >>> there = cu.device_zeros((3, 2), cache.dtype)
    >>> cu.copy_rows(there, cache, [0, 2], [3, 1])
    >>> there.to_numpy()
    array([[6, 7],
           [0, 0],
           [2, 3]])
    """
    queue(dst, src, dst_rows, src_rows, None, BLOCKING).wait()


def copy_rows_async(
    dst: AnyArray,
    src: AnyArray,
    /,
    dst_rows: ArrayLike,
    src_rows: ArrayLike,
    stream: StreamLike | None = None,
    *,
    borrow: bool = False,
) -> Transfer:
    """Copy rows of one array to rows of another, as one piece of work in the order of a stream.

    Parameters
    ----------
    dst, src : array
        As for `copy_rows`. Pageable rows have been read when the call returns.
    dst_rows, src_rows : sequence of int
        As for `copy_rows`. They are read in the call.
    stream : Stream, optional
        The default is the enclosing ``with stream:``, else the default stream.
    borrow : bool, optional
        Read pageable rows later too: as for `copy_async`.

    Returns
    -------
    Transfer
        What to wait for. It keeps both arrays alive until every row is copied.

    Raises
    ------
    IndexError, TypeError, ValueError, CudaError
        As for `copy_rows`.

    Notes
    -----
    Where rows are dense and shorter than 1 MiB, in page-locked memory or on the same
    device, a kernel copies them: 32 blocks of 256 threads read or write the host's
    memory over the bus, at the bus's rate for rows of 4 KiB and more. Meanwhile other
    kernels have the rest of the multiprocessors. Longer rows are copied by the driver,
    which uses none. ``explain_copy(dst, src, dst_rows, src_rows)`` says which way a
    call would take.
    Dense rows of pageable memory are staged together, and the same kernel puts them in
    place; others are copied one by one, as by `copy_async`. An array of ``int64`` as
    indices costs least. Uses ``cuLaunchKernel`` and ``cuMemcpyHtoDAsync`` or
    ``cuMemcpyDtoHAsync``.

    Examples
    --------
    >>> cache = cu.pinned_array(np.arange(8).reshape(4, 2))
    >>> there = cu.device_zeros((3, 2), cache.dtype)
    >>> transfer = cu.copy_rows_async(there, cache, [0, 2], [3, 1], cu.Stream())
    >>> transfer.wait()
    """
    made: Transfer = queue(dst, src, dst_rows, src_rows, stream, BORROW if borrow else READ)
    return made


def queue_many(there: Iterable[Any], origin: Iterable[Any], stream: Any, mode: int) -> Any:
    """For `copy_many` and its plan: a Transfer, or what the core tells of the copies."""
    to, of = tuple(there), tuple(origin)
    try:
        if len(to) != len(of):
            raise ValueError(
                f"the lengths differ: {len(to)} destinations, {len(of)} sources (nothing was "
                "copied)"
            )
        return _core._copy_many(to, of, stream, False, mode)
    finally:
        del to, of  # the traceback of an exception would keep them


def queue(there: Any, origin: Any, rows: Any, src_rows: Any, stream: Any, mode: int) -> Any:
    """For `copy_rows` and its plan: a Transfer, or what the core tells of the copies."""
    at, source_at = indices(rows, src_rows)
    done = _core._copy_rows(there, origin, at, source_at, stream, mode)
    if not isinstance(done, tuple):
        return done
    length, source_length, apart = done
    at, source_at = _checked(at, source_at, length, source_length)
    # Arrays of ours: a slice of a bytearray, for one, would be a copy.
    there, origin = _core._lend(there, True, stream), _core._lend(origin, False, stream)
    to = tuple(there[i : i + 1] for i in at.tolist())
    of = tuple(origin[i : i + 1] for i in source_at.tolist())
    try:
        return _core._copy_many(to, of, stream, apart and not _may_fold(there), mode)
    finally:
        del there, origin, to, of  # as above


def _index(rows: ArrayLike, name: str) -> NDArray[np.int64]:
    """Indices as the core reads them."""
    given = np.asarray(rows)
    if given.ndim != 1:
        raise ValueError(f"{name} has {given.ndim} dimensions; a sequence of integers has one")
    if given.size == 0:
        return np.empty(0, np.int64)
    if given.dtype.kind not in "iu":
        raise IndexError(f"{name} has items of type {given.dtype}; indices are integers")
    if given.dtype.kind == "u" and int(given.max()) > np.iinfo(np.int64).max:
        raise IndexError(f"{name}: index {given.max()} is out of bounds for any array")
    return np.array(given, np.int64)  # a copy: another thread may write to theirs after the checks


def indices(
    dst_rows: ArrayLike, src_rows: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows to write and to read, which may be out of range or repeat."""
    to, of = _index(dst_rows, "dst_rows"), _index(src_rows, "src_rows")
    if to.size != of.size:
        raise ValueError(f"the lengths differ: {to.size} dst_rows, {of.size} src_rows")
    return to, of


def _checked(
    to: NDArray[np.int64], of: NDArray[np.int64], length: int, source_length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices from 0 on; raises what is wrong with them."""
    for name, given, most in ("dst_rows", to, length), ("src_rows", of, source_length):
        for index in given[(given < -most) | (given >= most)]:
            raise IndexError(f"{name}: index {index} is out of bounds for axis 0 with size {most}")
    to, of = np.where(to < 0, to + length, to), np.where(of < 0, of + source_length, of)
    ordered = np.sort(to)
    again = ordered[1:] == ordered[:-1]
    if again.any():
        raise ValueError(f"dst_rows has {ordered[again.argmax()]} twice: a row is written once")
    return to, of


def refuse_overlap_of_runs(runs: bytes) -> None:
    """For the core: `refuse_overlap` for dense runs: destination, source, length, flags of each."""
    table = np.frombuffer(runs, np.uint64).reshape(-1, 4)
    to, of, length = table[:, 0], table[:, 1], table[:, 2]
    refuse_overlap(np.stack([to, to + length, of, of + length], 1).tobytes(), (), ())


def refuse_overlap(spans: bytes, to: tuple[Any, ...], of: tuple[Any, ...]) -> None:
    """For the core: ValueError if a destination shares memory with another, or with a source.

    spans: four numbers for each pair, the first byte of the destination, the one behind its last,
    and the same of the source; all 0 where there is nothing to copy. to, of: the arrays, to look
    closer where spans meet; () where they are dense.
    """
    table = np.frombuffer(spans, np.uint64).reshape(-1, 4).astype(np.int64)
    count, arrays = len(table), (*to, *of)
    low, high = table[:, [0, 2]].T.ravel(), table[:, [1, 3]].T.ravel()  # destinations, sources
    for most in count, 2 * count:  # first among destinations
        for group in _meeting(low[:most], high[:most]):
            for first, second in _pairs(group, low, high, arrays):
                if first >= count or (second < count) != (most == count):
                    continue
                if arrays and not _share(arrays[first], arrays[second]):
                    continue
                if second < count:
                    text = f"what pairs {first} and {second} write overlaps"
                else:
                    text = f"what pair {first} writes overlaps what pair {second - count} reads, "
                    text += "and the copies of one call have no order"
                raise ValueError(f"{text} (nothing was copied)")


def _meeting(low: NDArray[np.int64], high: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """The numbers of those ranges that meet others, in groups that are apart."""
    order = np.argsort(low, kind="stable")
    apart = low[order][1:] >= np.maximum.accumulate(high[order])[:-1]
    if apart.all():
        return []
    return [group for group in np.split(order, np.nonzero(apart)[0] + 1) if group.size > 1]


def _pairs(
    group: NDArray[np.intp], low: NDArray[np.int64], high: NDArray[np.int64], arrays: Any
) -> Iterator[tuple[int, int]]:
    """Those of a group that may share a byte, the smaller number first: where their spans meet, and
    the places of their items within the stride that all have in common. Of n columns of a matrix
    that is none, in n log n steps.
    """
    steps = [_step(arrays[at]) for at in group.tolist()] if arrays else []
    common = math.gcd(*(step for step, _ in steps))
    near = [np.arange(group.size)]
    if common > 0:
        place = low[group] % common
        reach = place + np.array([run for _, run in steps])
        over = np.nonzero(reach > common)[0]  # they go on at the beginning
        near = [
            np.unique(np.concatenate([np.arange(group.size), over])[part])
            for part in _meeting(
                np.concatenate([place, place[over] - common]),
                np.concatenate([reach, reach[over] - common]),
            )
        ]
    for part in near:
        some = group[part]
        for meeting in _meeting(low[some], high[some]):
            ordered = some[meeting]
            ends = np.searchsorted(low[ordered], high[ordered])
            for at, end in enumerate(ends.tolist()):
                for other in ordered[at + 1 : end].tolist():
                    yield min(int(ordered[at]), other), max(int(ordered[at]), other)


def _step(array: Any) -> tuple[int, int]:
    """A stride of which all of an array's are multiples, and the bytes together at each."""
    geometry = _geometry(array)
    step, run = 0, geometry.itemsize
    for stride, length in sorted(zip(map(abs, geometry.strides), geometry.shape, strict=True)):
        if length > 1 and stride > run:
            step = math.gcd(step, stride)
        elif length > 1:
            run += stride * (length - 1)
    return step, run


def _share(first: Any, second: Any) -> bool:
    """Whether two arrays share a byte; True where that takes long to tell."""
    most: Any = 1000  # of the work
    try:
        return np.shares_memory(_geometry(first), _geometry(second), most)
    except np.exceptions.TooHardError:
        return True


def _may_fold(array: Any) -> bool:
    """Whether items of an array may share a byte: a stride is shorter than what lies inside it."""
    geometry = _geometry(array)
    reach = geometry.itemsize
    strides = (abs(stride) for stride in geometry.strides)
    for stride, length in sorted(zip(strides, geometry.shape, strict=True)):
        if length > 1 and stride < reach:
            return True
        reach += stride * (length - 1)
    return False


def _geometry(array: Any) -> NDArray[Any]:
    """How an array lies in memory, which must not be read."""
    ours: Any = _core._lend(array, False, None)
    if isinstance(ours, np.ndarray):
        return ours
    # Bytes: NumPy's interface has no float8.
    shown = {"data": (ours._address, True), "shape": ours.shape, "strides": ours.strides}
    shown |= {"typestr": f"|V{ours.itemsize}", "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=shown))

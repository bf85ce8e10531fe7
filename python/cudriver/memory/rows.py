"""Many copies in one call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from cudriver import _core

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

    from cudriver._core import Transfer
    from cudriver.typing import AnyArray, StreamLike


def copy_many(
    destinations: Iterable[AnyArray],
    sources: Iterable[AnyArray],
    *,
    stream: StreamLike | None = None,
) -> Transfer:
    """Copy many arrays into as many others, as one piece of work in the order of a stream.

    Parameters
    ----------
    destinations : sequence of arrays
        Where to: arrays that `copy` takes. None may overlap another, or a source.
    sources : sequence of arrays
        Where from: for each destination an array of the same shape and dtype.
    stream : Stream, optional
        The default is the enclosing ``with stream:``, else the default stream.

    Returns
    -------
    Transfer
        What to wait for. It keeps all arrays alive until every copy is over.

    Raises
    ------
    TypeError, ValueError
        The lengths differ, an end is not an array, a pair does not fit, or a destination
        overlaps another or a source. Nothing was copied.
    CudaError
        As for `copy_async`.

    Notes
    -----
    The copies are done in any order. Small ones that are dense, of page-locked
    memory or on one device, are done by a kernel, one launch for all: see
    `copy_rows`. The others are done as by `copy_async`.

    Examples
    --------
    >>> hosts = [cu.pinned_full(4, i) for i in range(3)]
    >>> there = [cu.device_empty(4, int) for host in hosts]
    >>> cu.copy_many(there, hosts).wait()
    >>> there[2].to_numpy()
    array([2, 2, 2, 2])
    """
    made: Transfer = queue_many(destinations, sources, stream, False)
    return made


def copy_rows(
    destination: AnyArray,
    rows: ArrayLike,
    source: AnyArray,
    source_rows: ArrayLike,
    *,
    stream: StreamLike | None = None,
) -> Transfer:
    """Copy rows of one array to rows of another, as one piece of work in the order of a stream.

    Parameters
    ----------
    destination : array
        Where to: any array that `copy` takes, with at least one dimension.
    rows : sequence of int
        Which rows to write: indices along the first dimension, each once. Negative
        ones count from the end.
    source : array
        Where from: any such array whose rows have the same shape and dtype.
    source_rows : sequence of int
        For each row to write, the one to read. They may repeat.
    stream : Stream, optional
        The default is the enclosing ``with stream:``, else the default stream.

    Returns
    -------
    Transfer
        What to wait for. It keeps both arrays alive until every row is copied.

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
    As ``destination[rows] = source[source_rows]``. Where rows are dense and shorter than
    1 MiB, in page-locked memory or on the same device, a kernel copies them: 32 blocks
    of 256 threads read or write the host's memory over the bus, at the bus's rate
    for rows of 4 KiB and more. Meanwhile other kernels have the rest of the
    multiprocessors. Longer rows are copied by the driver, which uses none.
    ``explain_copy(destination, source, rows=rows, source_rows=source_rows)`` says
    which way a call would take.
    Dense rows of pageable memory are staged together, and the same kernel puts them in
    place; others are copied one by one, as by `copy_async`. An array of ``int64`` as
    indices costs least. Uses ``cuLaunchKernel`` and ``cuMemcpyHtoDAsync`` or
    ``cuMemcpyDtoHAsync``.

    Examples
    --------
    >>> cache = cu.pinned_array(np.arange(8).reshape(4, 2))
    >>> there = cu.device_zeros((3, 2), cache.dtype)
    >>> cu.copy_rows(there, [0, 2], cache, [3, 1]).wait()
    >>> there.to_numpy()
    array([[6, 7],
           [0, 0],
           [2, 3]])
    """
    made: Transfer = queue(destination, rows, source, source_rows, stream, False)
    return made


def queue_many(there: Iterable[Any], origin: Iterable[Any], stream: Any, explain: bool) -> Any:
    """For `copy_many` and its plan: a Transfer, or what the core tells of the copies."""
    to, of = tuple(there), tuple(origin)
    try:
        if len(to) != len(of):
            raise ValueError(
                f"the lengths differ: {len(to)} destinations, {len(of)} sources (nothing was "
                "copied)"
            )
        return _core._copy_many(to, of, stream, False, False, explain)
    finally:
        del to, of  # the traceback of an exception would keep them


def queue(there: Any, rows: Any, origin: Any, source_rows: Any, stream: Any, explain: bool) -> Any:
    """For `copy_rows` and its plan: a Transfer, or what the core tells of the copies."""
    at, source_at = indices(rows, source_rows)
    done = _core._copy_rows(there, origin, at, source_at, stream, False, explain)
    if not isinstance(done, tuple):
        return done
    length, source_length, apart = done
    at, source_at = _checked(at, source_at, length, source_length)
    # Arrays of ours: a slice of a bytearray, for one, would be a copy.
    there, origin = _core._lend(there, True, stream), _core._lend(origin, False, stream)
    to = tuple(there[i : i + 1] for i in at.tolist())
    of = tuple(origin[i : i + 1] for i in source_at.tolist())
    try:
        return _core._copy_many(to, of, stream, apart and not _may_fold(there), False, explain)
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


def indices(rows: ArrayLike, source_rows: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows to write and to read, which may be out of range or repeat."""
    to, of = _index(rows, "rows"), _index(source_rows, "source_rows")
    if to.size != of.size:
        raise ValueError(f"the lengths differ: {to.size} rows, {of.size} source_rows")
    return to, of


def _checked(
    to: NDArray[np.int64], of: NDArray[np.int64], length: int, source_length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices from 0 on; raises what is wrong with them."""
    for name, given, most in ("rows", to, length), ("source_rows", of, source_length):
        for index in given[(given < -most) | (given >= most)]:
            raise IndexError(f"{name}: index {index} is out of bounds for axis 0 with size {most}")
    to, of = np.where(to < 0, to + length, to), np.where(of < 0, of + source_length, of)
    ordered = np.sort(to)
    again = ordered[1:] == ordered[:-1]
    if again.any():
        raise ValueError(f"rows has {ordered[again.argmax()]} twice: a row is written once")
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
    table = np.frombuffer(spans, np.uint64).reshape(-1, 4)
    order = np.argsort(table[:, 0])
    low, high = table[order, 0], table[order, 1]
    layouts: dict[int, NDArray[Any]] = {}  # of arrays, by their id()
    for at in np.nonzero(low[1:] < high[:-1])[0].tolist():
        for other in range(at + 1, int(np.searchsorted(low, high[at]))):
            first, second = sorted((int(order[at]), int(order[other])))
            if not to or _share(to[first], to[second], layouts):
                raise ValueError(
                    f"what pairs {first} and {second} write overlaps (nothing was copied)"
                )
    reach = np.maximum.accumulate(high)  # spans of destinations may meet by now
    begin = np.searchsorted(reach, table[:, 2], side="right")
    end = np.searchsorted(low, table[:, 3])
    for source in np.nonzero(begin < end)[0].tolist():
        for at in range(int(begin[source]), int(end[source])):
            first = int(order[at])
            meet = high[at] > table[source, 2]
            if meet and (not to or _share(to[first], of[source], layouts)):
                raise ValueError(
                    f"what pair {first} writes overlaps what pair {source} reads, and the copies "
                    "of one call have no order (nothing was copied)"
                )


def _share(first: Any, second: Any, layouts: dict[int, NDArray[Any]]) -> bool:
    """Whether two arrays share a byte; True where that takes long to tell."""
    for array in first, second:
        if id(array) not in layouts:
            layouts[id(array)] = _geometry(array)
    most: Any = 1000  # of the work
    try:
        return np.shares_memory(layouts[id(first)], layouts[id(second)], most)
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

"""New page-locked arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from cudriver._core import _pinned
from cudriver.errors import CudaError, OutOfMemoryError
from cudriver.memory import pieces as pieces_of
from cudriver.memory.arrays import is_fortran
from cudriver.memory.fresh import fresh, item_type, lengths_of
from cudriver.memory.host import page_lock
from cudriver.memory.numa import POLICY, node_of

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from cudriver.typing import NumaLike, ScalarT, ShapeLike


@overload
def pinned_empty(
    shape: ShapeLike,
    dtype: type[float] | Literal["float64"] | None = float,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
    pieces: bool = False,
) -> NDArray[np.float64]: ...
@overload
def pinned_empty(
    shape: ShapeLike,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
    pieces: bool = False,
) -> NDArray[ScalarT]: ...
@overload
def pinned_empty(
    shape: ShapeLike,
    dtype: DTypeLike | None,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
    pieces: bool = False,
) -> NDArray[Any]: ...
def pinned_empty(
    shape: ShapeLike,
    dtype: DTypeLike | None = float,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
    pieces: bool = False,
) -> NDArray[Any]:
    """Return a new ndarray in page-locked memory, with undefined contents.

    Parameters
    ----------
    shape : int or sequence of int
        Lengths of the dimensions.
    dtype : dtype_like, optional
        Type of an item.
    order : {'C', 'F'}, optional
        Order of the items in memory.
    numa : {'policy', 'device'}, int or None, optional
        NUMA node of the memory: as `set_host_memory_policy` says, the one nearest the
        current context's device, a node by its number, or wherever the system puts it.
    pieces : bool, optional
        Register the memory in pieces of whole items of the first axis, about 64 MiB
        each, so that nobody on the machine waits for all of it: see the notes.

    Returns
    -------
    numpy.ndarray
        Its base owns the memory: arrays and views keep it alive, beyond the context.

    Raises
    ------
    OutOfMemoryError
        The system refuses the memory, or the limit is reached.
    TypeError
        The items are Python objects.
    ValueError
        A length is negative, or there is no such NUMA node, or none that this process may use.
        Or the memory is to be in pieces, and there is no item of a first axis.
    PermissionError
        The system lets this process choose no NUMA node, as in many containers.

    Notes
    -----
    Uses ``cuMemHostRegister`` on memory of the process's own, which comes from a
    pool and is page-locked for every context. Kernels may address it: see
    `mapped_pointer`. While the driver registers it, every copy of the process waits,
    20 ms for each GiB, and so do the driver's calls of other processes; not so with
    ``pieces=True`` or `pinned_empty_async`.

    In pieces, several threads touch the memory while the driver follows, piece by
    piece. It goes back to the system, not to the pool, and counts among the pins in
    `host_memory_stats`. The driver refuses a copy across the border of two pieces
    (``invalid argument``): this package cuts its copies there, other libraries do
    not. No item of the first axis (with ``order='F'``, of the last) lies across one.
    So other libraries may copy an item, as a block of a cache, but not many at once.
    A longer item is one piece; from 448 MiB on there is a RuntimeWarning.

    Where the driver refuses so much memory at once, as under Linux 6.11 to 6.13, it is
    registered in pieces by itself, with a RuntimeWarning.

    Examples
    --------
    >>> frame = cu.pinned_empty((1080, 1920, 3), np.uint8)
    >>> cu.is_pinned(frame)
    True
    >>> cache = cu.pinned_empty((1000, 16, 4096), np.uint8, pieces=True)
    >>> cu.is_pinned(cache)
    True
    """
    if pieces:
        return _in_pieces("pinned_empty", shape, dtype, order, numa)
    node = POLICY if numa == "policy" else node_of(numa)
    fortran = order != "C" and is_fortran(order)
    try:
        return _pinned(shape, dtype, fortran, node, False)
    except CudaError as refused:
        return _in_pieces("pinned_empty", shape, dtype, order, numa, refused)


@overload
def pinned_zeros(
    shape: ShapeLike,
    dtype: type[float] | Literal["float64"] | None = float,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
    pieces: bool = False,
) -> NDArray[np.float64]: ...
@overload
def pinned_zeros(
    shape: ShapeLike,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
    pieces: bool = False,
) -> NDArray[ScalarT]: ...
@overload
def pinned_zeros(
    shape: ShapeLike,
    dtype: DTypeLike | None,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
    pieces: bool = False,
) -> NDArray[Any]: ...
def pinned_zeros(
    shape: ShapeLike,
    dtype: DTypeLike | None = float,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
    pieces: bool = False,
) -> NDArray[Any]:
    """Return a new ndarray in page-locked memory, filled with zero bytes.

    Parameters
    ----------
    shape : int or sequence of int
        Lengths of the dimensions.
    dtype : dtype_like, optional
        Type of an item.
    order : {'C', 'F'}, optional
        Order of the items in memory.
    numa : {'policy', 'device'}, int or None, optional
        NUMA node of the memory: as `set_host_memory_policy` says, the one nearest the
        current context's device, a node by its number, or wherever the system puts it.
    pieces : bool, optional
        Register the memory in pieces, as for `pinned_empty`.

    Returns
    -------
    numpy.ndarray
        As from `pinned_empty`.

    Raises
    ------
    OutOfMemoryError
        The system refuses the memory, or the limit is reached.
    TypeError
        The items are Python objects.
    ValueError
        A length is negative, or there is no such NUMA node, or none that this process may use.
        Or the memory is to be in pieces, and there is no item of a first axis.
    PermissionError
        The system lets this process choose no NUMA node, as in many containers.

    Notes
    -----
    Uses ``cuMemHostRegister``; see `pinned_empty`.

    Examples
    --------
    >>> cu.pinned_zeros(3)
    array([0., 0., 0.])
    """
    if pieces:
        return _in_pieces("pinned_zeros", shape, dtype, order, numa)
    node = POLICY if numa == "policy" else node_of(numa)
    fortran = order != "C" and is_fortran(order)
    try:
        return _pinned(shape, dtype, fortran, node, True)
    except CudaError as refused:
        return _in_pieces("pinned_zeros", shape, dtype, order, numa, refused)


@overload
def pinned_full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
    pieces: bool = False,
) -> NDArray[ScalarT]: ...
@overload
def pinned_full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
    pieces: bool = False,
) -> NDArray[Any]: ...
def pinned_full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
    pieces: bool = False,
) -> NDArray[Any]:
    """Return a new ndarray in page-locked memory, filled with a value.

    Parameters
    ----------
    shape : int or sequence of int
        Lengths of the dimensions.
    fill_value : array_like
        Cast and broadcast as `numpy.full` does it.
    dtype : dtype_like, optional
        Type of an item. The default is that of `fill_value`.
    order : {'C', 'F'}, optional
        Order of the items in memory.
    numa : {'policy', 'device'}, int or None, optional
        NUMA node of the memory, as for `pinned_empty`.
    pieces : bool, optional
        Register the memory in pieces, as for `pinned_empty`.

    Returns
    -------
    numpy.ndarray
        As from `pinned_empty`.

    Raises
    ------
    OutOfMemoryError, TypeError, ValueError, PermissionError
        As from `pinned_empty`.

    Notes
    -----
    Uses ``cuMemHostRegister``; see `pinned_empty`.

    Examples
    --------
    >>> cu.pinned_full(3, 7)
    array([7, 7, 7])
    """
    kind = np.asarray(fill_value).dtype if dtype is None else dtype
    array = pinned_empty(shape, kind, order, numa=numa, pieces=pieces)
    np.copyto(array, fill_value, casting="unsafe")
    return array


def _in_pieces(
    called: str,
    shape: ShapeLike,
    dtype: DTypeLike | None,
    order: Literal["C", "F"],
    numa: NumaLike,
    refused: CudaError | None = None,
) -> NDArray[Any]:
    """New memory in several registrations, which is zero. refused: what the driver answered to one;
    raised where pieces are no way out.
    """
    if refused is not None:
        nbytes = math.prod(lengths_of(shape)) * item_type(dtype).itemsize
        if not pieces_of.is_refusal(refused, nbytes):
            raise refused
    try:
        memory, array = fresh(called, shape, dtype, order, numa, some=refused is None)
    except OutOfMemoryError:
        if refused is None:
            raise
        raise refused from None
    pin = page_lock(memory.bytes)
    try:
        if refused is None:
            pieces_of.lock(pin, pieces_of.item_of(array), True)
        else:
            pieces_of.lock_after(refused, pin, pieces_of.item_or_byte(array), True)
    except BaseException:
        pin.close()
        del memory, array  # the traceback would keep them
        raise
    memory.owner = pin
    return array

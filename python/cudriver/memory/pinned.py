"""New page-locked arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from cudriver._core import _pinned
from cudriver.memory.arrays import is_fortran
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
) -> NDArray[np.float64]: ...
@overload
def pinned_empty(
    shape: ShapeLike,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
) -> NDArray[ScalarT]: ...
@overload
def pinned_empty(
    shape: ShapeLike,
    dtype: DTypeLike | None,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
) -> NDArray[Any]: ...
def pinned_empty(
    shape: ShapeLike,
    dtype: DTypeLike | None = float,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
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
    PermissionError
        The system lets this process choose no NUMA node, as in many containers.

    Notes
    -----
    Uses ``cuMemHostRegister`` on memory of the process's own, which comes from a
    pool and is page-locked for every context. Kernels may address it: see
    `mapped_pointer`. While the driver registers it, every copy of the process waits,
    20 ms for each GiB; not so with `pinned_empty_async`.

    Examples
    --------
    >>> frame = cu.pinned_empty((1080, 1920, 3), np.uint8)
    >>> cu.is_pinned(frame)
    True
    """
    node = POLICY if numa == "policy" else node_of(numa)
    fortran = order != "C" and is_fortran(order)
    return _pinned(shape, dtype, fortran, node, False)


@overload
def pinned_zeros(
    shape: ShapeLike,
    dtype: type[float] | Literal["float64"] | None = float,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
) -> NDArray[np.float64]: ...
@overload
def pinned_zeros(
    shape: ShapeLike,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
) -> NDArray[ScalarT]: ...
@overload
def pinned_zeros(
    shape: ShapeLike,
    dtype: DTypeLike | None,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
) -> NDArray[Any]: ...
def pinned_zeros(
    shape: ShapeLike,
    dtype: DTypeLike | None = float,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
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
    node = POLICY if numa == "policy" else node_of(numa)
    fortran = order != "C" and is_fortran(order)
    return _pinned(shape, dtype, fortran, node, True)


@overload
def pinned_full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
) -> NDArray[ScalarT]: ...
@overload
def pinned_full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
) -> NDArray[Any]: ...
def pinned_full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
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
    array = pinned_empty(
        shape, np.asarray(fill_value).dtype if dtype is None else dtype, order, numa=numa
    )
    np.copyto(array, fill_value, casting="unsafe")
    return array

"""New page-locked arrays that are like others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from cudriver.memory.arrays import layout
from cudriver.memory.pinned import pinned_empty, pinned_zeros

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from cudriver.typing import NumaLike, ScalarT


@overload
def pinned_empty_like(
    prototype: NDArray[ScalarT],
    dtype: None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[ScalarT]: ...
@overload
def pinned_empty_like(
    prototype: ArrayLike,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[ScalarT]: ...
@overload
def pinned_empty_like(
    prototype: ArrayLike,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[Any]: ...
def pinned_empty_like(
    prototype: ArrayLike,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[Any]:
    """Return a new ndarray in page-locked memory, shaped like another array.

    Parameters
    ----------
    prototype : array_like
        Gives the shape, and the dtype and order unless they are given.
    dtype : dtype_like, optional
        Type of an item.
    order : {'C', 'F', 'A', 'K'}, optional
        Order of the items in memory, as for `numpy.empty_like`.
    numa : {'policy', 'device'}, int or None, optional
        NUMA node of the memory, as for `pinned_empty`.

    Returns
    -------
    numpy.ndarray
        As from `pinned_empty`, with undefined contents.

    Raises
    ------
    OutOfMemoryError, TypeError, ValueError, PermissionError
        As from `pinned_empty`.

    Notes
    -----
    Uses ``cuMemHostRegister``; see `pinned_empty`.

    Examples
    --------
    >>> cu.pinned_empty_like(np.ones((2, 3), np.int16)).shape
    (2, 3)
    """
    return _like(pinned_empty, prototype, dtype, order, numa)


@overload
def pinned_zeros_like(
    prototype: NDArray[ScalarT],
    dtype: None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[ScalarT]: ...
@overload
def pinned_zeros_like(
    prototype: ArrayLike,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[ScalarT]: ...
@overload
def pinned_zeros_like(
    prototype: ArrayLike,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[Any]: ...
def pinned_zeros_like(
    prototype: ArrayLike,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[Any]:
    """Return a new ndarray in page-locked memory, zeros shaped like another array.

    Parameters
    ----------
    prototype : array_like
        Gives the shape, and the dtype and order unless they are given.
    dtype : dtype_like, optional
        Type of an item.
    order : {'C', 'F', 'A', 'K'}, optional
        Order of the items in memory, as for `numpy.empty_like`.
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
    >>> cu.pinned_zeros_like(np.ones(3))
    array([0., 0., 0.])
    """
    return _like(pinned_zeros, prototype, dtype, order, numa)


def _like(
    make: Any, prototype: ArrayLike, dtype: DTypeLike | None, order: object, numa: NumaLike
) -> NDArray[Any]:
    source = np.asarray(prototype)
    dtype = source.dtype if dtype is None else dtype
    axes, plain = layout(source, order), [*range(source.ndim)]
    if axes in (plain, plain[::-1]):
        return cast("NDArray[Any]", make(source.shape, dtype, "CF"[axes != plain], numa=numa))
    array = make([source.shape[axis] for axis in axes], dtype, numa=numa)
    return np.transpose(array, [axes.index(axis) for axis in plain])


@overload
def pinned_array(
    object: NDArray[ScalarT],
    dtype: None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[ScalarT]: ...
@overload
def pinned_array(
    object: ArrayLike,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[ScalarT]: ...
@overload
def pinned_array(
    object: ArrayLike,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[Any]: ...
def pinned_array(
    object: ArrayLike,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    numa: NumaLike = "policy",
) -> NDArray[Any]:
    """Return a page-locked copy of an array.

    Parameters
    ----------
    object : array_like
        What `numpy.asarray` takes.
    dtype : dtype_like, optional
        Type of an item. The default is that of `object`.
    order : {'C', 'F', 'A', 'K'}, optional
        Order of the items in memory, as for `numpy.array`.
    numa : {'policy', 'device'}, int or None, optional
        NUMA node of the memory, as for `pinned_empty`.

    Returns
    -------
    numpy.ndarray
        As from `pinned_empty`, with the items of ``numpy.asarray(object, dtype)``.

    Raises
    ------
    OutOfMemoryError, TypeError, ValueError, PermissionError
        As from `pinned_empty`.

    Notes
    -----
    Uses ``cuMemHostRegister``; see `pinned_empty`.

    Examples
    --------
    >>> cu.pinned_array([1, 2, 3])
    array([1, 2, 3])
    """
    source = np.asarray(object, dtype)
    same = isinstance(object, np.ndarray) and object.shape == source.shape
    array = pinned_empty_like(object if same else source, source.dtype, order, numa=numa)
    np.copyto(array, source)
    return array

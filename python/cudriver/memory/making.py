"""New device arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from cudriver import _core
from cudriver.memory.arrays import is_fortran, layout
from cudriver.memory.moving import given

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from cudriver._core import DeviceArray
    from cudriver.typing import AnyArray, DeviceLike, ScalarT, ShapeLike, StreamLike


@overload
def device_empty(
    shape: ShapeLike,
    dtype: type[float] | Literal["float64"] | None = float,
    order: Literal["C", "F"] = "C",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray[np.float64]: ...
@overload
def device_empty(
    shape: ShapeLike,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F"] = "C",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray[ScalarT]: ...
@overload
def device_empty(
    shape: ShapeLike,
    dtype: DTypeLike | None,
    order: Literal["C", "F"] = "C",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray: ...
def device_empty(
    shape: ShapeLike,
    dtype: DTypeLike | None = float,
    order: Literal["C", "F"] = "C",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Return a new device array with undefined contents.

    Parameters
    ----------
    shape : int or sequence of int
        Lengths of the dimensions.
    dtype : dtype_like, optional
        Type of an item.
    order : {'C', 'F'}, optional
        Order of the items in memory.
    device : Device or what `Device` takes, optional
        Where to allocate: in the current context if that is on the device, else in
        the device's primary one, which cudriver holds from then on. The default is
        the context of `stream`, else the current one.
    stream : Stream, optional
        Whose context to allocate in. Any stream may use the array at once.

    Returns
    -------
    DeviceArray
        It owns its memory.

    Raises
    ------
    OutOfMemoryError
        The device has too little memory; the message says how much is free.
    TypeError
        The items are Python objects.
    ValueError
        A length is negative, there is no such device or order, or `stream` is on another one.

    Notes
    -----
    Uses ``cuMemAllocFromPoolAsync``, or ``cuMemAlloc`` where the device has no pools.

    Examples
    --------
    >>> cu.device_empty((2, 3), np.float32).nbytes
    24
    """
    fortran = order != "C" and is_fortran(order)
    return _core._device_empty(shape, dtype, device, stream, True, fortran, None)


@overload
def device_zeros(
    shape: ShapeLike,
    dtype: type[float] | Literal["float64"] | None = float,
    order: Literal["C", "F"] = "C",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray[np.float64]: ...
@overload
def device_zeros(
    shape: ShapeLike,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F"] = "C",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray[ScalarT]: ...
@overload
def device_zeros(
    shape: ShapeLike,
    dtype: DTypeLike | None,
    order: Literal["C", "F"] = "C",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray: ...
def device_zeros(
    shape: ShapeLike,
    dtype: DTypeLike | None = float,
    order: Literal["C", "F"] = "C",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Return a new device array filled with zero bytes.

    Parameters
    ----------
    shape : int or sequence of int
        Lengths of the dimensions.
    dtype : dtype_like, optional
        Type of an item.
    order : {'C', 'F'}, optional
        Order of the items in memory.
    device : Device or what `Device` takes, optional
        As for `device_empty`.
    stream : Stream, optional
        As for `device_empty`. Without one, the call waits until the array is filled.

    Returns
    -------
    DeviceArray
        It owns its memory.

    Raises
    ------
    OutOfMemoryError
        The device has too little memory; the message says how much is free.
    TypeError
        The items are Python objects.
    ValueError
        A length is negative, there is no such device or order, or `stream` is on another one.

    Notes
    -----
    Uses ``cuMemsetD8Async`` and what `device_empty` uses.

    Examples
    --------
    >>> cu.device_zeros(3).to_numpy()
    array([0., 0., 0.])
    """
    array = device_empty(shape, dtype, order, device=device, stream=stream)
    try:
        _core._fill(array, np.zeros((), array.dtype), stream)
        return array
    finally:
        del array  # the traceback of an exception would keep it


@overload
def device_full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F"] = "C",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray[ScalarT]: ...
@overload
def device_full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F"] = "C",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray: ...
def device_full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F"] = "C",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Return a new device array filled with a value.

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
    device : Device or what `Device` takes, optional
        As for `device_empty`.
    stream : Stream, optional
        As for `device_empty`. Without one, the call waits until the array is filled.

    Returns
    -------
    DeviceArray
        It owns its memory.

    Raises
    ------
    OutOfMemoryError, TypeError, ValueError
        As from `device_empty`, or `fill_value` cannot be cast or broadcast.

    Notes
    -----
    Uses what `device_empty` and `DeviceArray.fill` use, or, where `fill_value` is an array,
    what `copy` uses.

    Examples
    --------
    >>> cu.device_full(3, 7).to_numpy()
    array([7, 7, 7])
    """
    value = np.full(np.shape(fill_value), fill_value, dtype)
    array = device_empty(
        shape, value.dtype if dtype is None else dtype, order, device=device, stream=stream
    )
    try:
        if value.ndim == 0:
            _core._fill(array, value, stream)
        elif stream is None:
            _core.copy(array, np.broadcast_to(value, array.shape))
        else:
            _core.copy_async(array, np.broadcast_to(value, array.shape), stream)
        return array
    finally:
        del array  # as above


@overload
def device_empty_like(
    prototype: NDArray[ScalarT] | DeviceArray[ScalarT],
    dtype: None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray[ScalarT]: ...
@overload
def device_empty_like(
    prototype: ArrayLike | AnyArray,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray[ScalarT]: ...
@overload
def device_empty_like(
    prototype: ArrayLike | AnyArray,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray: ...
def device_empty_like(
    prototype: ArrayLike | AnyArray,
    dtype: DTypeLike | None = None,
    order: Literal["C", "F", "K", "A"] = "K",
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Return a new device array with undefined contents, shaped like another array.

    Parameters
    ----------
    prototype : array_like
        What `to_device` takes: gives the shape, and the dtype and order unless they are given.
    dtype : dtype_like, optional
        Type of an item.
    order : {'C', 'F', 'A', 'K'}, optional
        Order of the items in memory, as for `numpy.empty_like`.
    device : Device or what `Device` takes, optional
        The default is that of `prototype`, if it is on a device; else as for `device_empty`.
    stream : Stream, optional
        As for `device_empty`.

    Returns
    -------
    DeviceArray
        It owns its memory.

    Raises
    ------
    OutOfMemoryError, TypeError, ValueError
        As from `device_empty`.

    Notes
    -----
    Uses what `device_empty` uses.

    Examples
    --------
    >>> cu.device_empty_like(np.ones((2, 3), np.int16)).shape
    (2, 3)
    """
    home: Any = device
    source: DeviceArray | NDArray[Any] | None = None
    try:
        source = given(prototype, stream)
        if device is None and isinstance(source, _core.DeviceArray):
            home = source.context
        axes = layout(source, order)
        shape = tuple(source.shape[axis] for axis in axes)
        back = tuple(axes.index(axis) for axis in range(source.ndim))
        dtype = source.dtype if dtype is None else dtype
        return _core._device_empty(shape, dtype, home, stream, device is not None, False, back)
    finally:
        del prototype, source  # as above

"""What goes into device arrays and comes out of them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from cudriver import _core
from cudriver.errors import CudaError
from cudriver.memory.arrays import broadcast

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from cudriver._core import DeviceArray
    from cudriver.typing import AnyArray, DeviceLike, ScalarT, StreamLike


@overload
def to_device(
    array: NDArray[ScalarT] | DeviceArray[ScalarT],
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray[ScalarT]: ...
@overload
def to_device(
    array: ArrayLike | AnyArray,
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray: ...
def to_device(
    array: ArrayLike | AnyArray,
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Return a copy of an array in device memory.

    Parameters
    ----------
    array : array_like
        What `copy` or `numpy.asarray` takes: arrays of any library, buffers, lists,
        numbers.
    device : Device or what `Device` takes, optional
        Where to: as for `device_empty`.
    stream : Stream, optional
        The stream in whose order the copy runs. The source is kept alive until the
        copy is over. Without a stream, the call waits for the copy.

    Returns
    -------
    DeviceArray
        In C order, with the shape and dtype of `array`.

    Raises
    ------
    OutOfMemoryError
        The device has too little memory; the message says how much is free.
    TypeError
        The items are Python objects.
    ValueError
        There is no such device, or `stream` is on another one.

    Notes
    -----
    Calls what `device_empty` and `copy` call; see `explain_copy`.

    Examples
    --------
    >>> cu.to_device([[1, 2], [3, 4]]).to_numpy()
    array([[1, 2],
           [3, 4]])
    """
    made: DeviceArray | None = None
    source: DeviceArray | NDArray[Any] | None = None
    try:
        home = None if device is None else _core._context_for_use(device)
        source = given(array, stream)
        made = _core._device_empty(source.shape, source.dtype, home, stream, False, False, None)
        if stream is None:
            _core.copy(made, source)
        else:
            _core.copy_async(made, source, stream)
        return made
    finally:
        del array, made, source  # the traceback of an exception would keep it


def given(array: Any, stream: StreamLike | None) -> DeviceArray | NDArray[Any]:
    """An argument as an array, ours or NumPy's."""
    source: DeviceArray | NDArray[Any] | None = None
    try:
        if type(array) is np.ndarray:
            return array
        if not isinstance(array, bytes):
            source = _lent(array, stream)
        return np.asarray(array) if source is None else source
    finally:
        del array, source  # as above


def _lent(array: Any, stream: StreamLike | None) -> DeviceArray | NDArray[Any] | None:
    """What is copied of another library's array: what it lends, else what NumPy reads of it; None:
    it speaks no protocol.
    """
    try:
        return _core._lend(array, False, stream)
    except CudaError:  # also a RuntimeError
        raise
    except (BufferError, RuntimeError, TypeError):  # pyarrow's bools and dates, JAX's int4
        if hasattr(array, "__cuda_array_interface__"):  # NumPy would lose a mask
            raise
        with suppress(Exception):
            read = np.asarray(array)
            if not read.dtype.hasobject:
                return read
        raise
    finally:
        del array  # as above


# ---- methods of DeviceArray, for the core --------------------------------------------------------

SCALARS = (np.generic, int, float, complex, str, bytes)


def _item(dtype: np.dtype[Any], value: Any) -> NDArray[Any]:
    """An array of one item, for _fill()."""
    scalar = isinstance(value, SCALARS)  # an array of length 1 takes sequences too
    array = np.zeros(() if scalar else 1, dtype)
    array[...] = value
    return array


def fill(array: DeviceArray, value: Any, *, stream: StreamLike | None = None) -> None:
    _core._fill(array, _item(array.dtype, value), stream)


def assign(array: DeviceArray, key: Any, value: Any) -> None:
    """array[key] = value, by NumPy's rules. No variable for the view: a traceback would keep it."""
    shape = array[key].shape
    dtype = array.dtype[key].base if isinstance(key, str) else array.dtype
    one = isinstance(value, SCALARS) or (isinstance(value, np.ndarray) and value.ndim == 0)
    source: Any = value
    try:
        if not one:
            source = _lent(value, None)
        if source is None:
            source = np.asarray(value, dtype)
            one = source.ndim == 0
        if one:
            _core._fill(array[key], _item(dtype, source), None)
        else:
            _core.copy(array[key], source if source.shape == shape else _broadcast(source, shape))
    finally:
        source = None  # as above


def _broadcast(source: Any, shape: tuple[int, ...]) -> Any:
    """A view of that shape."""
    wanted = source.shape
    extra = max(len(wanted) - len(shape), 0)
    if wanted[:extra] == (1,) * extra:
        wanted = wanted[extra:]
    try:
        if isinstance(source, np.ndarray):
            plain = np.asarray(source)  # a matrix keeps two dimensions
            return np.broadcast_to(plain.reshape(wanted), shape)
        return _core._views(source, broadcast, (wanted, shape))[0]
    except ValueError:
        raise ValueError(
            f"an array of shape {source.shape} cannot be broadcast into shape {shape} (nothing was "
            "copied)"
        ) from None
    finally:
        del source  # as above


def to_numpy(array: DeviceArray, out: Any = None, *, stream: StreamLike | None = None) -> Any:
    try:
        if out is None:
            out = np.empty(array.shape, array.dtype)
        elif not isinstance(_core._lend(out, True, None), np.ndarray):
            raise TypeError(f"out is not an array in host memory, but a {type(out).__name__}")
        if stream is None:
            _core.copy(out, array)
        else:
            _core.copy_async(out, array, stream).wait()
        return out
    finally:
        del array  # as above


def copy(array: DeviceArray, *, stream: StreamLike | None = None) -> DeviceArray:
    home: Any = array.context
    try:
        made: DeviceArray = to_device(array, device=home, stream=stream)
        return made
    finally:
        del array  # as above


def deepcopy(array: DeviceArray, memo: object) -> DeviceArray:
    return copy(array)

"""What a DeviceArray tells of itself."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from cudriver import _core
from cudriver.memory.named import public

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cudriver._core import DeviceArray


@public
class ArrayFlags(NamedTuple):
    """How a DeviceArray lies in memory; see DeviceArray.flags.

    Attributes
    ----------
    c_contiguous, f_contiguous : bool
        Whether the items are dense, the last or the first index running fastest.
    owndata : bool
        Whether the array owns its memory; False for a view, or if another library lends it.
    writeable : bool
        Whether the items can be changed; False if another library lends them so.
    """

    c_contiguous: bool
    f_contiguous: bool
    owndata: bool
    writeable: bool


def text(array: DeviceArray) -> str:
    """For the core, as what follows: `repr()`. It asks the driver for nothing."""
    _, ordinal = array.__dlpack_device__()
    closed = ", closed" if array.closed else ""
    return f"<DeviceArray shape={array.shape} dtype={array.dtype} on device {ordinal}{closed}>"


def refuse_pickle(array: DeviceArray) -> NoReturn:
    raise TypeError(
        f"cannot pickle {array!r}: device memory belongs to this process; pickle its to_numpy(), "
        "and give that to to_device() where it is loaded"
    )


def refuse_conversion(array: DeviceArray, *args: object, **keywords: object) -> NoReturn:
    raise TypeError(
        f"{array!r} is in device memory and does not turn into a NumPy array by itself: call "
        "to_numpy()"
    )


def _elsewhere(what: str) -> str:
    return (
        f"a DeviceArray holds memory and computes nothing: use {what} of its to_numpy(), or give "
        "it to a library that computes on the device, as in cupy.from_dlpack(array) or "
        "torch.from_dlpack(array)"
    )


def refuse_computing(left: Any, right: Any) -> Any:
    """An operator, for the core: NotImplemented for what may know a DeviceArray."""
    known = (int, float, complex, np.ndarray, np.generic, _core.DeviceArray)
    refused = isinstance(left, known) and isinstance(right, known)
    del left, right  # a traceback would keep them
    if refused:
        raise TypeError(_elsewhere("the operator"))
    return NotImplemented


#: What NumPy answers by attributes alone.
_SHOWN = frozenset(("shape", "ndim", "size", "iscomplexobj", "isrealobj"))


def array_function(array: DeviceArray, function: Any, types: Any, args: Any, keywords: Any) -> Any:
    """`__array_function__`: without it np.array_equal() takes the refusal for "not equal"."""
    if function.__name__ in _SHOWN:
        return function.__wrapped__(*args, **keywords)
    try:
        raise TypeError(_elsewhere(f"np.{function.__name__}()"))
    finally:
        del array, args, keywords  # a traceback would keep them


def formatted(array: DeviceArray, spec: str, /) -> str:
    """`__format__`."""
    if not spec:
        return repr(array)
    raise TypeError(f"{array!r} has no format {spec!r}: use to_numpy(), or to_numpy().item()")


def flags(array: DeviceArray, geometry: NDArray[Any], owns: bool) -> ArrayFlags:
    """geometry: an ndarray at the device's address."""
    dense = geometry.flags
    return ArrayFlags(dense.c_contiguous, dense.f_contiguous, owns, dense.writeable)


def interface(array: DeviceArray, geometry: NDArray[Any], owns: bool) -> dict[str, Any]:
    """`__cuda_array_interface__`."""
    try:
        return {
            **geometry.__array_interface__,
            "data": (array.pointer, not geometry.flags.writeable),
            "strides": geometry.strides,
            "stream": None,
        }
    finally:
        del geometry  # the traceback of an exception would keep it, and what prints it read there


def is_fortran(order: object) -> bool:
    """Reads an order argument, "C" or "F"; None is "C"."""
    if order is not None and (not isinstance(order, str) or order not in ("C", "F", "c", "f")):
        raise ValueError(f"order is 'C' or 'F', not {order!r}")
    return order in ("F", "f")


def layout(like: DeviceArray | NDArray[Any], order: object) -> list[int]:
    """The axes of an array made like another, the longest stride first; for None as for "K"."""
    axes = [*range(like.ndim)]
    c, f = like.flags.c_contiguous, like.flags.f_contiguous
    if order is None or order in ("K", "k"):
        if not c and not f:
            return sorted(axes, key=lambda axis: -abs(like.strides[axis]))
        order = "A"
    fortran = f and not c if order in ("A", "a") else is_fortran(order)
    return axes[::-1] if fortran else axes


def transpose(geometry: Any, /, *axes: Any) -> Any:
    """A view with the axes in another order."""
    try:
        return geometry.transpose(*axes)
    finally:
        del geometry  # as above


def reshape(geometry: Any, /, *lengths: Any, order: str | None = None) -> Any:
    """A view of another shape. Where NumPy would copy, ValueError."""
    try:
        shape = lengths[0] if len(lengths) == 1 else lengths
        fortran = is_fortran(order)
        order = "F" if fortran else "C"
        if geometry.flags.f_contiguous if fortran else geometry.flags.c_contiguous:
            return geometry.reshape(shape, order=order)
        if np.lib.NumpyVersion(np.__version__) < "2.1.0":
            raise ValueError("NumPy before 2.1 cannot tell whether this is a copy")
        return geometry.reshape(shape, order=order, copy=False)
    except ValueError as error:
        if "copy" not in str(error):
            raise
        raise ValueError(
            f"an array of shape {geometry.shape} with strides {geometry.strides} has no view of "
            f"shape {shape} ({error}): call copy() first, then reshape()"
        ) from None
    finally:
        del geometry  # as above


def index(key: tuple[Any, ...]) -> tuple[Any, ...] | str:
    """A key of basic indexing, with integers as int; or a field's name."""
    if isinstance(key[0], str) and len(key) <= 2:
        return str(key[0])
    return tuple(map(_item, key))


def _item(item: Any) -> Any:
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    try:
        if not isinstance(item, (bool, np.bool_)):  # which old versions accept as a number
            return operator.index(item)
    except TypeError:
        pass
    raise IndexError(
        "a DeviceArray takes integers, slices, ... and None as indices, or the name of one field, "
        f"not {type(item).__name__}"
    )


Kinds = list[tuple[tuple[int, ...], np.dtype[Any]]]


def parts(geometry: NDArray[Any], given: tuple[list[int], Kinds]) -> list[NDArray[Any]]:
    """C-ordered arrays in the memory of a dense one: each from a byte on, of a shape and dtype."""
    places, kinds = given
    try:
        if min(places, default=0) < 0:  # NumPy would not see it
            raise ValueError(f"byte {min(places)} is not in the memory")
        pairs = zip(places, kinds, strict=True)
        return [np.ndarray(shape, dtype, geometry, place) for place, (shape, dtype) in pairs]
    finally:
        del geometry  # as above


def broadcast(geometry: NDArray[Any], shapes: tuple[Any, Any]) -> list[NDArray[Any]]:
    """A view of the first shape, repeated to have the second."""
    try:
        return [np.broadcast_to(geometry.reshape(shapes[0]), shapes[1])]
    finally:
        del geometry  # as above

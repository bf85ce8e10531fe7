"""What other libraries' arrays, streams and events say of themselves, for the core."""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

INTERFACE = "__cuda_array_interface__"
MISSING = object()


# ---- arrays --------------------------------------------------------------------------------------


def interface(array: Any, write: bool) -> tuple[int, NDArray[Any], int | None] | None:
    """What `__cuda_array_interface__` shows: address (0: there are no items), an ndarray that lies
    there and must not be read, and the stream to wait for.

    None if there is none, or if DLPack is to be asked, which orders streams (version 2 has no entry
    for a stream) and may read what this refuses: a tensor of PyTorch's that requires grad.
    """
    try:
        shown = getattr(array, INTERFACE, MISSING)
    except RuntimeError:
        if _lends(array):
            return None
        raise
    if shown is MISSING:
        return None
    if not isinstance(shown, dict) or shown.get("mask") is not None:
        wrong = "masked, which is not supported" if isinstance(shown, dict) else "not a dict"
        raise TypeError(f"{type(array).__name__}.{INTERFACE} is {wrong}")
    shown = shown.copy()  # to read a number may run code that changes it
    data, stream = shown.get("data"), shown.get("stream")
    if not isinstance(data, tuple) or len(data) != 2:
        raise TypeError(f"{INTERFACE}: 'data' is (address, read-only)")
    address = _unsigned(data[0], "an address")
    if bool(data[1]) and write:
        raise ValueError("the destination is read-only")
    if "stream" not in shown and _lends(array):
        return None
    stream = None if stream is None else _unsigned(stream, "a stream")
    try:
        geometry = _geometry(shown, address)
        if geometry.nbytes and address == 0:
            raise ValueError(f"{INTERFACE}: an array of shape {geometry.shape} lies at address 0")
        return address if geometry.nbytes else 0, geometry, stream
    finally:
        geometry = None  # the traceback would keep it, and what prints it read there


def _lends(array: Any) -> bool:
    return not isinstance(array, type) and hasattr(array, "__dlpack__")


def _unsigned(value: Any, what: str) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise TypeError(f"{INTERFACE}: {value!r} is not {what}")
    return value


def _geometry(shown: dict[str, Any], address: int) -> Any:
    """An ndarray as NumPy's own interface describes it, which asks for the same."""
    lies: dict[str, Any] = {"version": 3, "data": (address or 1, False)}  # at 0 NumPy allocates
    for name in ("shape", "strides"):
        if shown.get(name) is not None:
            lies[name] = tuple(map(operator.index, shown[name]))
    for name in ("typestr", "descr"):
        if shown.get(name) is not None:
            lies[name] = shown[name]
    made = np.asarray(SimpleNamespace(__array_interface__=lies))
    size, wanted = made.dtype.itemsize, np.dtype(lies["typestr"]).itemsize
    if size == wanted:
        return made
    del made
    raise ValueError(
        f"{INTERFACE}: 'typestr' {lies['typestr']!r} says items of {wanted} bytes, 'descr' "
        f"{lies.get('descr')!r} items of {size}"
    )


def view(x: Any) -> NDArray[Any] | None:
    """An ndarray over the memory of a buffer, or of what shows NumPy's interface; None: it is
    neither. It keeps the object alive, and a buffer exported. Never a copy.
    """
    if isinstance(x, (type, np.generic)):  # as NumPy sees them
        return None
    try:
        held = memoryview(x)
    except TypeError:
        shows = hasattr(x, "__array_struct__") or hasattr(x, "__array_interface__")
        return np.asarray(x) if shows else None
    array = np.asarray(held)  # a copy of the items if it does not know their format
    if isinstance(array.base, memoryview) and array.itemsize == held.itemsize:
        return array
    raise TypeError(
        f"{type(x).__name__} has items of the format '{held.format}', which is not a dtype"
    )


# ---- streams and events --------------------------------------------------------------------------


def handle(x: Any, kind: str) -> int | None:
    """The handle of another library's "stream" or "event". None if it is no such thing.

    From `cuda_stream` (PyTorch), from `__cuda_stream__`, or, if its class is called Stream, from
    `ptr` (CuPy) or `handle`; accordingly of an event. 0 for one that PyTorch never recorded.
    """
    value = named = getattr(x, f"cuda_{kind}", MISSING)
    if value is MISSING and kind == "stream" and hasattr(x, "__cuda_stream__"):
        pair = x.__cuda_stream__()
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"{type(x).__name__}.__cuda_stream__() must give (version, handle)")
        value = pair[1]
    if value is MISSING and _is_called(x, kind.capitalize()):  # memory has these attributes, too
        value = getattr(x, "ptr", MISSING)
        value = getattr(x, "handle", MISSING) if value is MISSING else value
    if value is MISSING:
        return None
    try:
        number = _number(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise TypeError(f"{type(x).__name__}: its {kind} is {value!r}, which is not a handle")
    if number == 0 and kind == "event" and named is MISSING:
        raise ValueError(f"{type(x).__name__} says that its event is 0: is it closed?")
    return number


def stream_argument(x: Any) -> int:
    """The handle that Stream.from_handle() is given."""
    plain = hasattr(type(x), "__index__") and not isinstance(x, bool)
    number = None if plain else handle(x, "stream")
    if number is None:
        if not plain and not (_has_int(x) and _is_called(x, "CUstream", "cudaStream_t")):
            name = type(x).__name__
            raise TypeError(
                f"a stream's handle is an int, or an object that is a stream, not {name}"
            )
        number = _number(x)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{number} is not the handle of a stream")
    return number


def _is_called(x: Any, *endings: str) -> bool:
    """Whether the class, or one that it derives from, has a name that ends so."""
    return any(kind.__name__.endswith(endings) for kind in type(x).__mro__)


def _has_int(value: Any) -> bool:
    """Whether int() takes what is not an ordinary number, such as cuda.bindings' CUstream."""
    return hasattr(type(value), "__int__") and not hasattr(type(value), "__float__")


def _number(value: Any) -> int:
    """A handle: an int, what int() takes, or a ctypes pointer, whose value is None for 0."""
    if hasattr(type(value), "__index__") and not isinstance(value, bool):
        return operator.index(value)
    if _has_int(value):
        return int(value)
    number = getattr(value, "value", MISSING)
    if number is not None and not isinstance(number, int):
        raise TypeError("no number")
    return number or 0

"""What other libraries' arrays, streams and events say of themselves, for the core."""

from __future__ import annotations

import operator
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

INTERFACE = "__cuda_array_interface__"
MISSING = object()
HOST = (1, 3)  # DLPack's kinds of devices
RAW = {"stream": ("CUstream", "cudaStream_t"), "event": ("CUevent", "cudaEvent_t")}


class Placed:
    """Device memory at an address, as from_pointer() is told of it; keeps its owner alive."""

    def __init__(
        self, address: int, shape: Any, dtype: np.dtype[Any], strides: Any, owner: object
    ) -> None:
        shown = {"shape": shape, "strides": strides, "typestr": f"|V{dtype.itemsize}"}
        self.address: int = address
        self.owner: object = owner
        self.geometry: Any = _geometry(shown, address, False).view(dtype)


# ---- arrays --------------------------------------------------------------------------------------


def interface(array: Any, write: bool) -> tuple[int, NDArray[Any], int | None] | None:
    """What `__cuda_array_interface__` shows: address (0: there are no items), an ndarray that lies
    there and must not be read, and the stream to wait for.

    None if there is none, or if DLPack is to be asked, which orders streams (version 2 has no entry
    for a stream) and may read what this refuses: a tensor of PyTorch's that requires grad.
    """
    if isinstance(array, Placed):
        return array.address, array.geometry, None
    try:
        shown = getattr(array, INTERFACE, MISSING)
    except RuntimeError:
        if hasattr(array, "__dlpack__"):
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
    if bool(data[1]) and write:  # DLPack before 1.0 cannot say so
        raise ValueError("the destination is read-only")
    if "stream" not in shown and hasattr(array, "__dlpack__"):
        return None
    stream = None if stream is None else _unsigned(stream, "a stream")
    try:
        geometry = _geometry(shown, address, bool(data[1]))
        if geometry.nbytes and address == 0:
            raise ValueError(f"{INTERFACE}: an array of shape {geometry.shape} lies at address 0")
        return address if geometry.nbytes else 0, geometry, stream
    finally:
        geometry = None  # the traceback would keep it, and what prints it read there


def _unsigned(value: Any, what: str) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise TypeError(f"{INTERFACE}: {value!r} is not {what}")
    return value


def _geometry(shown: dict[str, Any], address: int, read_only: bool) -> Any:
    """An ndarray as NumPy's own interface describes it, which asks for the same."""
    lies: dict[str, Any] = {"version": 3, "data": (address or 1, read_only)}  # at 0 it allocates
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


def memory_of(
    array: Any, write: bool
) -> tuple[int, NDArray[Any], int | None] | NDArray[Any] | None:
    """What an object shows of its memory without DLPack: as interface() says, or an ndarray over
    host memory. None: nothing, or DLPack is to be asked.
    """
    found = interface(array, write)
    if found is not None:
        return found
    lends = hasattr(array, "__dlpack__")
    try:  # TensorFlow copies from a device for its buffer; JAX has no buffer of bfloat16
        on_host = not lends or array.__dlpack_device__()[0] in HOST
        return _view(array) if on_host else None
    except Exception:
        if lends:
            return None
        raise
    finally:
        del array  # the traceback would keep it


def _view(x: Any) -> NDArray[Any] | None:
    """An ndarray over the memory of a buffer, or of what shows NumPy's interface; None: it is
    neither. It keeps the object alive, and a buffer exported. Never a copy.
    """
    if isinstance(x, np.generic):  # its buffer is not what it seems
        return None
    try:
        held = memoryview(x)
    except TypeError:
        shows = hasattr(x, "__array_struct__") or hasattr(x, "__array_interface__")
        return np.asarray(x) if shows else None
    if held.ndim == 0 and held.format.lstrip("<>=@!")[:1] in tuple("&PzZX"):
        raise TypeError(  # its buffer is the pointer's own eight bytes
            f"{type(x).__name__} is a pointer, which does not say how much memory lies there: "
            "np.ctypeslib.as_array(pointer, shape) makes an array of host memory, "
            "cudriver.from_pointer(address, shape, dtype) one of device memory"
        )
    with suppress(RuntimeError):  # of a format that it does not know, or the items are copied
        array = np.asarray(held)
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
    if value is MISSING and _is_raw(x, kind):
        value = x
    if value is MISSING:
        return None
    try:
        found = address_of(value)
    except TypeError:
        found = -1
    if not 0 <= found < 1 << 64:
        raise TypeError(f"{type(x).__name__}: its {kind} is {value!r}, which is not a handle")
    if found == 0 and kind == "event" and named is MISSING:
        raise ValueError(f"{type(x).__name__} says that its event is 0: is it closed?")
    return found


def stream_handle(x: Any) -> int:
    """The handle of what a call is given as its stream, which is none of ours."""
    found = handle(x, "stream")
    if found is None:
        hint = " (Stream.from_handle takes a handle)" if isinstance(x, int) else ""
        raise TypeError(f"a stream is a Stream or None, not {type(x).__name__}{hint}")
    return found


def handle_argument(x: Any, kind: str) -> int:
    """The handle that Stream.from_handle() or Event.from_handle() is given."""
    plain = hasattr(type(x), "__index__") and not isinstance(x, bool)
    found = operator.index(x) if plain else handle(x, kind)
    a = "an" if kind == "event" else "a"
    if found is None:
        name = type(x).__name__
        raise TypeError(
            f"{a} {kind}'s handle is an int, or an object that is {a} {kind}, not {name}"
        )
    if not 0 <= found < 1 << 64 or (found == 0 and kind == "event"):
        raise ValueError(f"{found} is not the handle of {a} {kind}")
    return found


def _is_raw(x: Any, kind: str) -> bool:
    """Whether it is a handle of cuda.bindings."""
    return _has_int(x) and _is_called(x, *RAW[kind])


def _is_called(x: Any, *endings: str) -> bool:
    """Whether the class, or one that it derives from, has a name that ends so."""
    return any(kind.__name__.endswith(endings) for kind in type(x).__mro__)


def _has_int(value: Any) -> bool:
    """Whether int() takes what is not an ordinary number, such as cuda.bindings' CUstream."""
    return hasattr(type(value), "__int__") and not hasattr(type(value), "__float__")


def address_of(value: Any) -> int:
    """A handle or an address: an int, what int() takes, or a ctypes pointer (None there is 0)."""
    if hasattr(type(value), "__index__") and not isinstance(value, bool):
        return operator.index(value)
    if _has_int(value):
        return int(value)
    found = getattr(value, "value", MISSING)
    if found is not None and not isinstance(found, int):
        raise TypeError("no number")
    return found or 0

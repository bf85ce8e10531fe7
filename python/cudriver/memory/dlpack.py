"""DLPack for the core: what is asked of other libraries, and what they may ask of us."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsIndex, overload

import numpy as np

from cudriver import _core
from cudriver.memory.devices import ordinal_of
from cudriver.memory.making import device_empty
from cudriver.memory.moving import to_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from cudriver._core import DeviceArray
    from cudriver.memory.devices import Device
    from cudriver.typing import DeviceLike, ScalarT, SupportsDLPack

CPU, CUDA, CUDA_HOST, MANAGED = 1, 2, 3, 13  # kinds of devices
IS_COPIED, PADDED = 2, 4  # flags
VERSION = (1, 3)  # as in cext/python/dlpack_abi.h


# ---- another library's array ---------------------------------------------------------------------


def ask(
    lender: Any, method: Callable[..., object], stream: int, ordinal: int, never_copied: bool
) -> object:
    """What a lender's `__dlpack__` gives. A library that knows only the older protocol raises
    TypeError, and is asked again.

    stream: what device memory is to be ready for, on the device `ordinal` (-1: on any). Memory of
    another device is made ready for its default stream.
    """
    says = getattr(lender, "is_neg", None) if hasattr(lender, "requires_grad") else None
    if says is not None and says():  # of PyTorch, which lends the memory as it is
        raise BufferError(
            f"the {type(lender).__name__} is lazily negated, which DLPack cannot say: call "
            "resolve_neg()"
        )
    device = lender.__dlpack_device__()
    if not isinstance(device, tuple) or len(device) != 2:
        name = type(lender).__name__
        raise TypeError(f"{name}.__dlpack_device__() returned {device!r}, not a pair of integers")
    kind, number = operator.index(device[0]), operator.index(device[1])
    if max(kind.bit_length(), number.bit_length()) > 31:  # what an int32_t has left is another one
        raise OverflowError(f"{type(lender).__name__}.__dlpack_device__(): {device} is too large")
    old = {}
    if kind in (CUDA, MANAGED):
        _core.init()
        old["stream"] = stream if ordinal in (-1, number) else 1
    new = {"copy": False} if never_copied else {}
    try:
        return method(max_version=VERSION, **old, **new)
    except TypeError:
        return method(**old)


def refuse(given: object, name: str | None) -> NoReturn:
    """Raise what `__dlpack__` gave instead of a tensor. name: a capsule's."""
    if type(given).__name__ != "PyCapsule":
        kind = type(given).__name__
        raise TypeError(f"__dlpack__() returned {kind}, which is not a capsule")
    if (name or "").startswith("used_dltensor"):
        raise ValueError("__dlpack__() returned a capsule whose tensor was taken already")
    raise ValueError(
        f"__dlpack__() returned a capsule named '{name or ''}', not 'dltensor' or "
        "'dltensor_versioned'"
    )


@overload
def from_dlpack(
    x: NDArray[ScalarT], *, device: None = None, copy: bool | None = None
) -> NDArray[ScalarT]: ...
@overload
def from_dlpack(
    x: NDArray[ScalarT] | DeviceArray[ScalarT],
    *,
    device: Literal["cpu"],
    copy: bool | None = None,
) -> NDArray[ScalarT]: ...
@overload
def from_dlpack(
    x: SupportsDLPack, *, device: Literal["cpu"], copy: bool | None = None
) -> NDArray[Any]: ...
@overload
def from_dlpack(
    x: DeviceArray[ScalarT],
    *,
    device: SupportsIndex | Device | None = None,
    copy: bool | None = None,
) -> DeviceArray[ScalarT]: ...
@overload
def from_dlpack(
    x: NDArray[ScalarT], *, device: SupportsIndex | Device, copy: bool | None = None
) -> DeviceArray[ScalarT]: ...
@overload
def from_dlpack(
    x: SupportsDLPack, *, device: DeviceLike | None = None, copy: bool | None = None
) -> DeviceArray | NDArray[Any]: ...
def from_dlpack(
    x: SupportsDLPack, *, device: DeviceLike | None = None, copy: bool | None = None
) -> DeviceArray | NDArray[Any]:
    """Return an array that shares another library's memory.

    Parameters
    ----------
    x : object with ``__dlpack__``
        A tensor or array of PyTorch, CuPy, JAX, NumPy, cuda-core, ...
    device : int, str or Device, optional
        Where the array is to be: a device, or ``"cpu"``. If `x` is elsewhere, it is
        copied there. The default is where `x` is.
    copy : bool, optional
        True always copies, into C order. False never copies. The default copies only
        if `device` needs it.

    Returns
    -------
    DeviceArray or numpy.ndarray
        A DeviceArray for device memory, an ndarray for host memory. It keeps the
        memory alive. It is read-only if `x` says that it is.

    Raises
    ------
    TypeError
        `x` has no ``__dlpack__``.
    BufferError
        This kind of memory or this data type is not supported.
    ValueError
        The tensor's description is invalid, or `device` needs a copy and
        ``copy=False`` forbids it.
    ImportError
        The data type (bfloat16, float8, ...) needs ``ml_dtypes``.

    Notes
    -----
    The other library makes the stream of the enclosing ``with stream:``, else the
    default stream, wait for its own work on the memory. If the type of `x` offers
    DLPack's table of C functions, that is used: for host memory always, for device
    memory if the other library's current stream is the same one, or is idle.

    Examples
    --------
    >>> numbers = np.arange(3)
    >>> cu.from_dlpack(numbers).ctypes.data == numbers.ctypes.data
    True
    >>> cu.from_dlpack(numbers, device=0)
    <DeviceArray shape=(3,) dtype=int64 on device 0>
    """
    never = copy is not None and not copy
    shared = _core._borrow(x, never)
    if device is None and not copy:
        return shared
    try:
        if device is None:
            return shared.copy()
        here: int | str = "cpu" if isinstance(shared, np.ndarray) else shared.device.ordinal
        there = device if isinstance(device, str) and device == "cpu" else ordinal_of(device)
        if here == there:
            return shared.copy() if copy else shared
        if never:
            name = type(x).__name__
            raise ValueError(
                f"the {name} is not on the device asked for ({device!r}), and copy=False"
            )
        if there == "cpu" and not isinstance(shared, np.ndarray):
            return shared.to_numpy()
        return to_device(shared, device=there)
    finally:
        del shared  # the traceback of an exception would keep it


# ---- ours ----------------------------------------------------------------------------------------


def export(
    array: DeviceArray,
    *,
    stream: Any = None,
    max_version: Any = None,
    dl_device: Any = None,
    copy: Any = None,
) -> object:
    """DeviceArray.__dlpack__()."""
    old = max_version is None or _pair("max_version", "(major, minor)", max_version)[0] < 1
    device = None if dl_device is None else _pair("dl_device", "(type, id)", dl_device)
    if device is not None and device != (own := array.__dlpack_device__()):
        if device[0] != CPU:
            raise BufferError(
                f"{array!r} cannot be exported to dl_device {device}: only to its own device, "
                f"{own}, or copied to the CPU, (1, 0)"
            )
        if copy is not None and not copy:
            raise BufferError(
                f"{array!r} is in device memory: the CPU gets it by a copy, and copy=False"
            )
        return _export_host(array.to_numpy(), old)
    number = 1 if stream is None else _stream_number(stream)
    code, bits = type_of(array.dtype)
    if copy:  # waits, so no stream has to
        return _core._export(array.copy(), -1, old, True, code, bits)
    return _core._export(array, number, old, False, code, bits)


def allocate(
    kind: int, ordinal: int, code: int, bits: int, lanes: int, shape: bytes
) -> DeviceArray | tuple[str, str]:
    """A new array for who asks by the table of C functions; or an error's kind and text.

    shape: lengths as int64.
    """
    try:
        if kind != CUDA:
            raise ValueError(f"a DeviceArray is in device memory (DLPack's {CUDA}), not in {kind}")
        lengths = memoryview(shape).cast("q").tolist()
        return device_empty(lengths, dtype_of(code, bits, lanes, False), device=ordinal)
    except MemoryError as error:
        return "MemoryError", str(error)
    except Exception as error:
        return type(error).__name__, str(error)


def refuse_lender(x: object) -> NoReturn:
    """Raise that from_dlpack() cannot take an object."""
    shows = not isinstance(x, type) and hasattr(x, "__cuda_array_interface__")
    hint = "; it has __cuda_array_interface__: use from_cuda_array_interface()" if shows else ""
    raise TypeError(f"{type(x).__name__} has no __dlpack__, by which it would lend memory{hint}")


def _pair(name: str, meaning: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(f"{name} is None or a pair {meaning}, not {value!r}")
    return operator.index(value[0]), operator.index(value[1])


def _stream_number(stream: Any) -> int:
    try:
        number = operator.index(stream)
    except TypeError:
        raise TypeError(f"stream is None or an integer, not {type(stream).__name__}") from None
    if number == 0 or number < -1:
        either = "; 0 could be either of the default streams" if number == 0 else ""
        raise ValueError(
            f"stream={number}: DLPack has -1 (no stream waits), 1 (the legacy default stream), "
            f"2 (the default stream of the thread) or a stream's handle{either}"
        )
    return number


def _export_host(array: NDArray[Any], old: bool, kind: int = CPU, flags: int = IS_COPIED) -> object:
    """A capsule of NumPy's, with what NumPy does not know. kind: of its memory."""
    code, bits = type_of(array.dtype)
    if old and bits < 8:
        raise BufferError(
            f"items of {array.dtype} are less than a byte, as DLPack 1.0 can say first"
        )
    plain = array if (code, bits) in TYPES else array.view(f"u{array.itemsize}")
    try:
        capsule = plain.__dlpack__() if old else plain.__dlpack__(max_version=VERSION)
    except TypeError:  # NumPy before 2.1 knows only the older kind
        capsule = plain.__dlpack__()
    _core._mark(capsule, flags | (PADDED if bits < 8 else 0), kind, code, bits)
    return capsule


def export_pinned(array: NDArray[Any], max_version: Any, dl_device: Any, copied: bool) -> object:
    """What `dlpack_pinned` makes lends this."""
    old = max_version is None or _pair("max_version", "(major, minor)", max_version)[0] < 1
    device = (CUDA_HOST, 0) if dl_device is None else _pair("dl_device", "(type, id)", dl_device)
    if device not in ((CUDA_HOST, 0), (CPU, 0)):
        raise BufferError(
            f"page-locked memory cannot be exported to dl_device {device}: only as what it is, "
            "(3, 0), or as the CPU's, (1, 0)"
        )
    return _export_host(array, old, device[0], IS_COPIED if copied else 0)


# ---- types ---------------------------------------------------------------------------------------

# NumPy's types, by DLPack's code and bits.
TYPES = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    **{(5, bits): f"complex{bits}" for bits in (64, 128)},
    (6, 8): "bool",
}
# Those of ml_dtypes.
ML_TYPES = {
    (4, 16): "bfloat16",
    (7, 8): "float8_e3m4",
    (8, 8): "float8_e4m3",
    (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
    (15, 6): "float6_e2m3fn",
    (16, 6): "float6_e3m2fn",
    (17, 4): "float4_e2m1fn",
    (0, 2): "int2",
    (0, 4): "int4",
    (1, 2): "uint2",
    (1, 4): "uint4",
}


def dtype_of(code: int, bits: int, lanes: int, padded: bool) -> np.dtype[Any]:
    """The dtype of a data type of DLPack."""
    if lanes != 1:
        raise BufferError(f"DLPack: items of {lanes} lanes are not supported, only of 1")
    if name := TYPES.get((code, bits)):
        return np.dtype(name)
    name = ML_TYPES.get((code, bits))
    if name is None:
        raise BufferError(
            f"DLPack: NumPy has no dtype for the data type with code {code} and {bits} bits"
        )
    if bits < 8 and not padded:
        raise BufferError(
            f"DLPack: {name} is packed, several items in a byte, and NumPy has items of whole "
            "bytes only; export the bytes instead"
        )
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(
            f"NumPy has no {name} of its own: install ml_dtypes (pip install ml_dtypes)"
        ) from None
    try:
        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    except AttributeError:
        raise ImportError(f"this ml_dtypes has no {name}: install a newer one") from None
    return found


@lru_cache
def type_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """DLPack's code and bits of a dtype."""
    for names in TYPES, ML_TYPES:
        for (code, bits), name in names.items():
            if dtype.name == name and dtype.isnative:
                return code, bits
    raise BufferError(
        f"DLPack has no data type for dtype {dtype!r} (it has numbers in the machine's byte order)"
    )

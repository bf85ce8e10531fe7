"""DLPack by ctypes: producers and consumers of any kind, the wrong ones too.

Written after the standard, and not after cext/python/dlpack_abi.h: each checks the other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

CPU, CUDA, CUDA_HOST, ROCM, MANAGED = 1, 2, 3, 10, 13
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
READ_ONLY, IS_COPIED, PADDED = 1, 2, 4
OLD, VERSIONED = b"dltensor", b"dltensor_versioned"


class Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class OldTensor(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("manager", ctypes.c_void_p), ("deleter", DELETER))


class VersionedTensor(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


SET_ERROR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
ALLOCATE = ctypes.PYFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(Tensor),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
    SET_ERROR,
)
FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
TO_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
CURRENT_STREAM = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class ExchangeTable(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", ALLOCATE),
        ("from_object", FROM_OBJECT),
        ("to_object", TO_OBJECT),
        ("borrow", ctypes.c_void_p),
        ("current_stream", CURRENT_STREAM),
    )


_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


def capsule(address: int, name: bytes | None) -> Any:
    """A capsule without a destructor. The caller keeps the name alive."""
    return _api.PyCapsule_New(address, name, None)


def name_of(found: Any) -> bytes:
    return bytes(_api.PyCapsule_GetName(found))


def table_of(kind: type) -> ExchangeTable:
    found = kind.__dlpack_c_exchange_api__  # type: ignore[attr-defined]
    return ExchangeTable.from_address(_api.PyCapsule_GetPointer(found, b"dlpack_exchange_api"))


USED = {OLD: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}


class Taken:
    """A consumer: a tensor taken out of a capsule, until `give_back`."""

    def __init__(self, found: Any) -> None:
        name = name_of(found)
        self.versioned = name == VERSIONED
        kind: Any = VersionedTensor if self.versioned else OldTensor
        self.address = _api.PyCapsule_GetPointer(found, name)
        self.managed = kind.from_address(self.address)
        _api.PyCapsule_SetName(found, USED[name])

    @property
    def tensor(self) -> Any:
        return self.managed.tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[: self.tensor.ndim])

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(self.tensor.strides[: self.tensor.ndim])

    def give_back(self) -> None:
        self.managed.deleter(self.address)


class Lender:
    """A producer of one tensor, which counts how often it is given back."""

    def __init__(
        self,
        data: int | None,
        shape: Sequence[int] | None,
        strides: Sequence[int] | None = None,
        *,
        device: tuple[int, int] = (CUDA, 0),
        dtype: tuple[int, int, int] = (FLOAT, 32, 1),
        ndim: int | None = None,
        byte_offset: int = 0,
        flags: int = 0,
        version: tuple[int, int] = (1, 0),
        old: bool = False,
        deleter: bool = True,
        owner: object = None,
        name: bytes | None = None,
    ) -> None:
        self.given_back = 0
        self.asked: list[dict[str, Any]] = []
        self.device, self.owner, self.old = device, owner, old
        self.name = name or (OLD if old else VERSIONED)
        # ctypes would free these with this object, and a consumer may outlive it: `alive`.
        self.parts = [
            (ctypes.c_int64 * len(lengths))(*lengths) if lengths is not None else None
            for lengths in (shape, strides)
        ]

        def delete(address: int) -> None:
            self.given_back += 1
            self.owner = None
            alive.discard(self)

        self.deleter = DELETER(delete) if deleter else DELETER()
        self.managed: Any = OldTensor() if old else VersionedTensor()
        if not old:
            self.managed.major, self.managed.minor = version
            self.managed.flags = flags
        self.managed.deleter = self.deleter
        tensor = self.managed.tensor
        tensor.data = data
        tensor.device = Device(*device)
        tensor.ndim = ndim if ndim is not None else len(shape or ())
        tensor.dtype = DataType(*dtype)
        for field, part in zip(("shape", "strides"), self.parts, strict=True):
            if part is not None:
                setattr(tensor, field, ctypes.cast(part, ctypes.POINTER(ctypes.c_int64)))
        tensor.byte_offset = byte_offset
        alive.add(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked.append(asked)
        if self.old and asked.keys() - {"stream"}:
            raise TypeError("an old library knows only stream")
        return capsule(ctypes.addressof(self.managed), self.name)


#: Lenders whose tensor was not given back.
alive: set[Lender] = set()

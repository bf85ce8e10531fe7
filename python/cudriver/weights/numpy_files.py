"""NumPy's own files, .npy and .npz, into device memory."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as npy

from cudriver._core import DeviceArray, device_empty
from cudriver.weights.reading import Piece, Source, chosen, in_bytes, read, stream_of

HEADER_MOST = 1 << 16  # bytes that are read to find the header of an array
LOCAL_HEADER = 30  # bytes of a zip member's local header, before its name


@dataclass(frozen=True)
class Stored:
    """An array of a file: its bytes begin at `begin`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    begin: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def stored(source: Source, begin: int, end: int, name: str) -> Stored:
    """The .npy array that lies between two offsets of a file."""
    head = io.BytesIO(source.read(begin, min(end - begin, HEADER_MOST)))
    try:
        version = npy.read_magic(head)
        if version == (1, 0):
            shape, fortran, dtype = npy.read_array_header_1_0(head)
        elif version == (2, 0):
            shape, fortran, dtype = npy.read_array_header_2_0(head)
        else:
            raise ValueError(f"version {version[0]}.{version[1]} of the format is unknown")
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{name} is no .npy array: {error}") from None
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise ValueError(f"{name} has the dtype {dtype}, which device arrays cannot have")
    if any(length < 0 for length in shape):
        raise ValueError(f"{name} has the shape {shape}")
    found = Stored(dtype, shape, fortran, begin + head.tell())
    if found.begin + found.nbytes > end:
        raise ValueError(
            f"{name} is cut off: {dtype} of shape {shape} has {found.nbytes} bytes, and "
            f"{end - found.begin} are there"
        )
    return found


def loaded(
    source: Source, found: dict[str, Stored], device: Any, stream: Any
) -> dict[str, DeviceArray]:
    """Reads arrays of a file into an allocation each."""
    with stream_of(stream, device) as order:
        memory = {
            name: device_empty(
                each.shape[::-1] if each.fortran else each.shape,
                each.dtype,
                device=device,
                stream=order,
            )
            for name, each in found.items()
        }
        read([Piece(source, found[name].begin, in_bytes(memory[name])) for name in found], order)
    return {name: array.T if found[name].fortran else array for name, array in memory.items()}


def load_npy(
    path: str | os.PathLike[str], *, device: Any = None, stream: Any = None
) -> DeviceArray:
    """Load a .npy file into device memory.

    Parameters
    ----------
    path : path_like
        A file that `numpy.save` wrote.
    device : int, str or Device, optional
        Where to load to, as for `device_empty`.
    stream : Stream, optional
        The stream in whose order the array is filled. Without one it is filled on return.

    Returns
    -------
    DeviceArray
        In the file's order, C or Fortran.

    Raises
    ------
    ValueError
        The file is no valid .npy file, holds Python objects or records, or was changed while it
        was read.
    OutOfMemoryError
        The device has too little memory.

    Notes
    -----
    The data is read into page-locked memory by several threads and copied from there.

    Examples
    --------
    >>> np.save("three.npy", np.arange(3))
    >>> cu.load_npy("three.npy").to_numpy()
    array([0, 1, 2])
    """
    with Source(path) as source:
        found = {"": stored(source, 0, source.nbytes, source.path)}
        return loaded(source, found, device, stream)[""]


def members(source: Source) -> dict[str, zipfile.ZipInfo]:
    """The arrays of a .npz file, by name."""
    try:
        with os.fdopen(os.dup(source.fd), "rb") as file, zipfile.ZipFile(file) as archive:
            found = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeError, OSError, ValueError) as error:
        raise ValueError(f"{source.path} is no .npz file: {error}") from None
    return {info.filename.removesuffix(".npy"): info for info in found}


def member(source: Source, info: zipfile.ZipInfo) -> Stored:
    """An array of a .npz file."""
    name = f"{info.filename} in {source.path}"
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise ValueError(
            f"{name} is compressed or encrypted: load it with numpy.load, or save it with "
            "numpy.savez"
        )
    head = source.read(info.header_offset, LOCAL_HEADER) if info.header_offset >= 0 else b""
    if len(head) < LOCAL_HEADER or not head.startswith(b"PK\3\4"):
        raise ValueError(f"{name} is not where the file's directory says")
    begin = info.header_offset + LOCAL_HEADER
    begin += int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    end = begin + info.file_size
    if end > source.nbytes:
        raise ValueError(f"{name} is cut off: it ends at byte {end} of {source.nbytes}")
    return stored(source, begin, end, name)


def load_npz(
    path: str | os.PathLike[str],
    *,
    device: Any = None,
    names: Iterable[str] | None = None,
    stream: Any = None,
) -> dict[str, DeviceArray]:
    """Load the arrays of a .npz file into device memory.

    Parameters
    ----------
    path : path_like
        A file that `numpy.savez` wrote; compressed ones are refused.
    device : int, str or Device, optional
        Where to load to, as for `device_empty`.
    names : iterable of str, optional
        The arrays to load. The default is all.
    stream : Stream, optional
        The stream in whose order the arrays are filled. Without one they are filled on return.

    Returns
    -------
    dict of str to DeviceArray
        Each array has an allocation of its own.

    Raises
    ------
    ValueError
        The file is no valid .npz file, is compressed, lacks a name, or was changed while it was
        read.
    OutOfMemoryError
        The device has too little memory.

    Notes
    -----
    As `load_npy`. The checksums in the file are not verified.

    Examples
    --------
    >>> np.savez("two.npz", a=np.arange(3), b=np.ones(2))
    >>> sorted(cu.load_npz("two.npz", names=["b"]))
    ['b']
    """
    with Source(path) as source:
        all_members = members(source)
        wanted = chosen(source.path, all_members, names)
        found = {name: member(source, all_members[name]) for name in all_members if name in wanted}
        return loaded(source, found, device, stream)

"""NumPy's own files, .npy and .npz, into device memory."""

from __future__ import annotations

import errno
import io
import math
import os
import struct
import zipfile
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

from cudriver._core import DeviceArray
from cudriver.memory.making import device_empty
from cudriver.weights.reading import RUN, Reading
from cudriver.weights.source import LENGTHS, Source, chosen, is_shape, shown

if TYPE_CHECKING:
    from cudriver.typing import DeviceLike, StreamLike

HEADER_MOST = 1 << 16  # bytes that are read to find the header of an array
LOCAL_HEADER = 30  # bytes of a zip member's local header, before its name
ENCRYPTED, SIZES_BEHIND, UTF8 = 1, 1 << 3, 1 << 11  # flags of a zip member


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


def array_header(file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape, whether in Fortran's order, and the dtype. The array's bytes follow."""
    version = npy.read_magic(file)
    if version == (1, 0):
        return npy.read_array_header_1_0(file)
    if version == (2, 0):
        return npy.read_array_header_2_0(file)
    raise ValueError(f"version {version[0]}.{version[1]} of the format is unknown")


def stored(source: Source, begin: int, end: int, name: str) -> Stored:
    """The .npy array that lies between two offsets of a file."""
    head = io.BytesIO(source.read(begin, min(end - begin, HEADER_MOST)))
    try:
        shape, fortran, dtype = array_header(head)
    except Exception as error:  # NumPy lets through what Python's tokenizer and parser raise
        raise ValueError(f"{name} is not an .npy array: {shown(error)}") from None
    if dtype.hasobject or dtype.subdtype or not dtype.itemsize:
        why = "Python objects" if dtype.hasobject else "items that no array has"
        raise ValueError(f"{name} has the dtype {shown(str(dtype))}: {why}")
    if not is_shape(shape, 8 * dtype.itemsize):
        raise ValueError(f"{name} has the shape {shown(shape)}; a shape is {LENGTHS}")
    found = Stored(dtype, shape, fortran, begin + head.tell())
    if found.begin + found.nbytes > end:
        kind = "records" if dtype.names else dtype  # which may be thousands of fields
        raise ValueError(
            f"{name} is cut off: {kind} of shape {shown(shape)} has "
            f"{shown(found.nbytes)} bytes, and {end - found.begin} are there"
        )
    return found


def loaded(
    source: Source, found: dict[str, Stored], device: DeviceLike | None, stream: StreamLike | None
) -> dict[str, DeviceArray]:
    """Reads arrays of a file into an allocation each."""
    with closing(Reading(stream, device)) as reading:
        memory = {
            name: device_empty(
                each.shape[::-1] if each.fortran else each.shape,
                each.dtype,
                device=device,
                stream=reading.order,
            )
            for name, each in found.items()
        }
        runs = np.zeros(len(found), RUN)
        runs["offset"] = [each.begin for each in found.values()]
        runs["bytes"] = [each.nbytes for each in found.values()]
        runs["begin"] = runs["bytes"].cumsum() - runs["bytes"]
        runs["array"] = range(len(found))
        reading.add(source, [*memory.values()], runs, int(runs["bytes"].sum()))
        reading.finish()
    return {name: array.T if found[name].fortran else array for name, array in memory.items()}


def load_npy(
    path: str | os.PathLike[str],
    *,
    device: DeviceLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Load a .npy file into device memory.

    Parameters
    ----------
    path : path_like
        A file that `numpy.save` wrote.
    device : int, str or Device, optional
        Where to load to, as for `device_empty`.
    stream : Stream, optional
        The stream in whose order memory is allocated, and whose earlier work is waited for. The
        array is filled on return, with or without one.

    Returns
    -------
    DeviceArray
        In the file's order, C or Fortran.

    Raises
    ------
    ValueError
        The file is not a valid .npy file, holds Python objects or records, or was changed while it
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
    with closing(Source(path)) as source:
        found = {"": stored(source, 0, source.nbytes, source.path)}
        return loaded(source, found, device, stream)[""]


def directory(source: Source) -> tuple[dict[str, zipfile.ZipInfo], list[int]]:
    """The arrays of a .npz file by name; and the offsets where something begins, and of the end."""
    try:
        with os.fdopen(os.dup(source.fd), "rb") as file, zipfile.ZipFile(file) as archive:
            found, begin = archive.infolist(), archive.start_dir
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise  # the system's; EINVAL is of a seek to an offset that the file says
        raise ValueError(f"{source.path} is not an .npz file: {shown(error)}") from None
    begins = sorted([*(info.header_offset for info in found), begin, source.nbytes])
    members: dict[str, zipfile.ZipInfo] = {}
    for info in found:
        name = info.filename.removesuffix(".npy")
        if members.setdefault(name, info) is not info:
            raise ValueError(f"{source.path} has the array {shown(name)} twice")
    return members, begins


def differences(info: zipfile.ZipInfo, head: bytes, name: bytes, extra: bytes) -> list[str]:
    """In what a member's own header contradicts the directory."""
    flags, method = struct.unpack("<HH", head[6:10])
    size = info.file_size
    large = struct.pack("<HHQQ", 1, 16, size, size)  # the extra field for sizes beyond 4 GiB
    if flags & SIZES_BEHIND:  # the writer could not go back: the header has none
        same_sizes = True
    elif head[18:26] == b"\xff" * 8:
        same_sizes = large in extra
    else:
        same_sizes = struct.unpack("<II", head[18:26]) == (size, size)
    same = {
        "name": name == info.orig_filename.encode("utf-8" if info.flag_bits & UTF8 else "cp437"),
        "flags": flags == info.flag_bits,
        "method": method == info.compress_type,
        "size": same_sizes and info.compress_size == size,
    }
    return [what for what in same if not same[what]]


def member(source: Source, info: zipfile.ZipInfo, begins: list[int]) -> Stored:
    """An array of a .npz file, which ends where the next thing begins, or before."""
    name = f"{shown(info.filename)} in {source.path}"
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & ENCRYPTED:
        raise ValueError(
            f"{name} is compressed or encrypted: load it with numpy.load, or save it with "
            "numpy.savez"
        )
    begin = info.header_offset
    head = source.read(begin, LOCAL_HEADER) if 0 <= begin < source.nbytes else b""
    if len(head) < LOCAL_HEADER or not head.startswith(b"PK\3\4"):
        raise ValueError(f"{name} is not where the file's directory says")
    following = begins[bisect_right(begins, begin)]
    lengths = struct.unpack("<HH", head[26:30])
    begin += LOCAL_HEADER
    text = source.read(begin, sum(lengths))
    if wrong := differences(info, head, text[: lengths[0]], text[lengths[0] :]):
        raise ValueError(f"{name} has another {wrong[0]} there than in the file's directory")
    begin += sum(lengths)
    end = begin + info.file_size
    if end > following:
        raise ValueError(
            f"{name} ends at byte {end}, and at byte {following} something else begins"
        )
    return stored(source, begin, end, name)


def load_npz(
    path: str | os.PathLike[str],
    *,
    device: DeviceLike | None = None,
    names: Iterable[str] | None = None,
    stream: StreamLike | None = None,
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
        The stream in whose order memory is allocated, and whose earlier work is waited for. The
        arrays are filled on return, with or without one.

    Returns
    -------
    dict of str to DeviceArray
        Each array has an allocation of its own.

    Raises
    ------
    ValueError
        The file is not a valid .npz file, is compressed, lacks a name or has it twice, or was
        changed while it was read.
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
    with closing(Source(path)) as source:
        members, begins = directory(source)
        wanted = chosen(source.path, members, names)
        found = {
            name: member(source, info, begins) for name, info in members.items() if name in wanted
        }
        return loaded(source, found, device, stream)

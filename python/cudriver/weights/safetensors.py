"""The safetensors format: https://huggingface.co/docs/safetensors#format

A file is the header's length (8 bytes, little-endian), the header (JSON, names to dtype, shape and
offsets), and the tensors' bytes without gaps.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cudriver._core import DeviceArray, device_empty
from cudriver.weights.reading import (
    LENGTHS,
    Piece,
    Source,
    are_sizes,
    chosen,
    in_bytes,
    is_shape,
    read,
    shown,
    stream_of,
)

if TYPE_CHECKING:
    from cudriver.typing import DeviceLike, StreamLike

HEADER_MOST = 100_000_000  # bytes: the format's own limit
NAME_MOST = 255  # bytes: Linux's own limit (NAME_MAX)
INDEX = ".index.json"
ALIGNMENT = 256  # bytes: as the driver aligns what it allocates

# The format's types: bits an item, and NumPy's name. Those without a NumPy type stay bytes.
TYPES = {
    "BOOL": (8, "bool"),
    "U8": (8, "uint8"),
    "I8": (8, "int8"),
    "U16": (16, "uint16"),
    "I16": (16, "int16"),
    "F16": (16, "float16"),
    "U32": (32, "uint32"),
    "I32": (32, "int32"),
    "F32": (32, "float32"),
    "U64": (64, "uint64"),
    "I64": (64, "int64"),
    "F64": (64, "float64"),
    "C64": (64, "complex64"),
    "BF16": (16, "bfloat16"),
    "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "F6_E2M3": (6, None),
    "F6_E3M2": (6, None),
    "F4": (4, None),
}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file. Its bytes are those from `begin` to `end`, counted in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    def kind(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """The shape and dtype of its array."""
        bits, name = TYPES[self.dtype]
        if name is not None:
            return self.shape, numpy_type(name)
        if self.shape and (self.shape[-1] * bits) % 8 == 0:
            return (*self.shape[:-1], self.shape[-1] * bits // 8), np.dtype(np.uint8)
        return (self.nbytes,), np.dtype(np.uint8)


def numpy_type(name: str) -> np.dtype[Any]:
    if name == "bool" or hasattr(np, name):  # NumPy 1 warns about np.bool
        return np.dtype(name)
    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ImportError(
            f"NumPy has no {name}; the package ml_dtypes has it: pip install ml_dtypes"
        ) from None
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def header(source: Source) -> dict[str, Tensor]:
    """The tensors of a file, in the order of their bytes. Checks all that the header says."""
    head = source.read(0, 8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(HEADER_MOST, source.nbytes - 8):
        raise ValueError(
            f"{source.path} is not a safetensors file, or is cut off: its first 8 bytes announce a "
            f"header of {length} bytes, and the file has {source.nbytes}"
        )
    try:
        data = parse(source.read(8, length))
        tensors = [
            tensor(name, value, 8 + length)
            for name, value in data.items()
            if name != "__metadata__"
        ]
        check_metadata(data.get("__metadata__"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source.path}: {error}") from None
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    ends = [8 + length, *(tensor.end for tensor in tensors)]
    for end, following in zip(ends, tensors, strict=False):
        if following.begin != end:
            raise ValueError(
                f"{source.path}: tensor {shown(following.name)} begins at byte {following.begin} "
                f"of the file, and the one before it ends at {end}"
            )
    if ends[-1] != source.nbytes:
        raise ValueError(
            f"{source.path} has {source.nbytes} bytes, and its header speaks of {ends[-1]}: it is "
            "cut off, or something was appended"
        )
    return {tensor.name: tensor for tensor in tensors}


def parse(data: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = {}
        for name, value in pairs:
            if name in names:
                raise ValueError(f"the header has {shown(name)} twice")
            names[name] = value
        return names

    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise ValueError(f"the header is not valid UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the header is not valid JSON: {error}") from None
    if type(found) is not dict or not data.startswith(b"{"):
        raise ValueError("the header is not a JSON object")
    return found


def check_metadata(found: Any) -> None:
    """The format's own library takes null for none, too."""
    found = {} if found is None else found
    if type(found) is not dict or any(type(value) is not str for value in found.values()):
        raise ValueError("__metadata__ is not a JSON object of strings")


def tensor(name: str, found: Any, base: int) -> Tensor:
    """A tensor by its entry of the header; the tensors' bytes begin at `base`."""
    if type(found) is not dict or not {"dtype", "shape", "data_offsets"} <= found.keys():
        raise ValueError(f"tensor {shown(name)} lacks a dtype, shape or data_offsets")
    dtype, shape, offsets = found["dtype"], found["shape"], found["data_offsets"]
    if type(dtype) is not str or dtype not in TYPES:
        raise ValueError(f"tensor {shown(name)} has the unknown dtype {shown(dtype)}")
    if type(shape) is not list or not is_shape(shape, TYPES[dtype][0]):
        raise ValueError(
            f"tensor {shown(name)} has the shape {shown(shape)}; a shape is a list of {LENGTHS}"
        )
    if (
        type(offsets) is not list
        or len(offsets) != 2
        or not are_sizes(offsets)
        or offsets[0] > offsets[1]
    ):
        raise ValueError(f"tensor {shown(name)} has the data_offsets {shown(offsets)}")
    bits = TYPES[dtype][0] * math.prod(shape)
    size = offsets[1] - offsets[0]
    if bits != 8 * size:
        wanted = f"{shown(bits)} bits, not whole bytes" if bits % 8 else f"{shown(bits // 8)} bytes"
        raise ValueError(
            f"tensor {shown(name)} has {size} bytes; {dtype} of shape {shown(tuple(shape))} has "
            f"{wanted}"
        )
    return Tensor(name, dtype, tuple(shape), base + offsets[0], base + offsets[1])


def is_name(file: Any) -> bool:
    """Whether a folder can have a file of this name."""
    if type(file) is not str or file in ("", ".", "..") or "/" in file or "\0" in file:
        return False
    try:
        return len(os.fsencode(file)) <= NAME_MOST
    except UnicodeEncodeError:
        return False


def shards(path: str) -> dict[str, set[str] | None]:
    """The files of a checkpoint, and the names to take from each; None: all."""
    if os.path.isdir(path):
        whole = os.path.join(path, "model.safetensors")
        path = whole if os.path.exists(whole) else whole + INDEX
    if not path.endswith(INDEX):
        return {path: None}
    with Source(path) as source:
        try:
            found = parse(source.read(0, min(source.nbytes, HEADER_MOST))).get("weight_map")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None
    if type(found) is not dict:
        raise ValueError(f"{path} has no weight_map")
    files: dict[str, set[str] | None] = {}
    for name, file in found.items():
        if not is_name(file):
            raise ValueError(
                f"{path}: tensor {shown(name)} lies in {shown(file)}, which is not a file "
                "beside the index"
            )
        names = files.setdefault(os.path.join(os.path.dirname(path), file), set())
        assert names is not None
        names.add(name)
    return files


def arrays_for(
    tensors: list[Tensor], device: DeviceLike | None, stream: StreamLike | None, *, together: bool
) -> list[DeviceArray]:
    """An array for each tensor: views of one allocation, or an allocation each."""
    kinds = [each.kind() for each in tensors]
    if not together:
        return [device_empty(*kind, device=device, stream=stream) for kind in kinds]
    places = [0]
    for each in tensors:
        places.append(places[-1] + -(-each.nbytes // ALIGNMENT) * ALIGNMENT)
    memory = device_empty(places[-1], np.uint8, device=device, stream=stream)
    return [
        memory[start : start + each.nbytes].view(dtype).reshape(shape)
        for each, start, (shape, dtype) in zip(tensors, places, kinds, strict=False)
    ]


def load_safetensors(
    path: str | os.PathLike[str],
    *,
    device: DeviceLike | None = None,
    names: Iterable[str] | None = None,
    stream: StreamLike | None = None,
) -> dict[str, DeviceArray]:
    """Load the tensors of a safetensors file or checkpoint into device memory.

    Parameters
    ----------
    path : path_like
        A file, the ``.safetensors.index.json`` of a checkpoint in several files, or a folder that
        has a ``model.safetensors`` or ``model.safetensors.index.json``.
    device : int, str or Device, optional
        Where to load to, as for `device_empty`.
    names : iterable of str, optional
        The tensors to load. The default is all.
    stream : Stream, optional
        The stream in whose order the arrays are filled. Without one they are filled on return.

    Returns
    -------
    dict of str to DeviceArray
        In the order of the files' bytes. Without `names` the arrays of a file share one allocation,
        which lives until the last of them is gone; with `names` each has its own.

    Raises
    ------
    ValueError
        A file is not a valid safetensors file, was changed while it was read, or lacks a name.
    ImportError
        A tensor is of a type that NumPy lacks (bfloat16, float8), and ``ml_dtypes`` is not
        installed.
    OutOfMemoryError
        The device has too little memory.

    Notes
    -----
    Nothing is allocated before the headers are checked against the files. Types of 4 and 6 bits
    come as bytes (uint8), packed as in the file. PyTorch, CuPy and JAX take the arrays by
    ``from_dlpack`` without a copy.

    Examples
    --------
    >>> header = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    >>> data = len(header).to_bytes(8, "little") + header + np.float32([1, 2]).tobytes()
    >>> with open("tiny.safetensors", "wb") as file:
    ...     _ = file.write(data)
    >>> cu.load_safetensors("tiny.safetensors")["x"].to_numpy()
    array([1., 2.], dtype=float32)
    """
    path = os.fspath(path)
    with ExitStack() as opened:
        files: list[tuple[Source, dict[str, Tensor]]] = []
        for file, listed in shards(path).items():
            source = opened.enter_context(Source(file))
            tensors = header(source)
            some = chosen(file, tensors, listed)
            files.append((source, {name: tensors[name] for name in tensors if name in some}))
        wanted = chosen(path, (name for _, tensors in files for name in tensors), names)
        found = [
            (source, [each for name, each in tensors.items() if name in wanted])
            for source, tensors in files
        ]
        for _, some_tensors in found:
            for each in some_tensors:
                each.kind()  # raises what it has to before anything is allocated
        pieces, arrays = [], {}
        with stream_of(stream, device) as order:
            for source, some_tensors in found:
                made = arrays_for(some_tensors, device, order, together=names is None)
                for each, array in zip(some_tensors, made, strict=True):
                    pieces.append(Piece(source, each.begin, in_bytes(array)))
                    arrays[each.name] = array
            read(pieces, order)
    return arrays

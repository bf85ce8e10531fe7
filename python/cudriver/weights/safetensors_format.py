"""The safetensors format: https://huggingface.co/docs/safetensors#format

A file is the header's length (8 bytes, little-endian), the header (JSON, names to dtype, shape and
offsets), and the tensors' bytes without gaps.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain
from typing import Any

import numpy as np

from cudriver.weights.source import LENGTHS, Source, are_sizes, is_shape, shown

HEADER_MOST = 100_000_000  # bytes: the format's own limit
NAME_MOST = 255  # bytes: Linux's own limit (NAME_MAX)
INDEX = ".index.json"

# An entry of a header as the format's own library writes it, and the comma or brace behind it.
NUMBER = r"(?:0|[1-9][0-9]{0,17})"
NUMBERS = re.compile(rf"(?:{NUMBER}(?:,{NUMBER})*)?")
ENTRY = re.compile(
    r'"([^"\\\x00-\x1f]*)":\{"dtype":"([A-Z0-9_]+)","shape":\[([0-9,]*)\],'
    rf'"data_offsets":\[({NUMBER}),({NUMBER})\]\}}(?:,|\}}\Z)'
)
ENTRY_LETTERS = len('"":{"dtype":"","shape":[],"data_offsets":[,]},')  # beside the groups
METADATA = re.compile(r'\{("__metadata__":\{[^{}]*\}),')

# The format's types: bits an item, and NumPy's name. Those without a NumPy type stay bytes.
# They stand in the order of the format's own library, which writes arrays of the last one first.
TYPES = {
    "BOOL": (8, "bool"),
    "F4": (4, None),
    "F6_E2M3": (6, None),
    "F6_E3M2": (6, None),
    "U8": (8, "uint8"),
    "I8": (8, "int8"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "I16": (16, "int16"),
    "U16": (16, "uint16"),
    "F16": (16, "float16"),
    "BF16": (16, "bfloat16"),
    "I32": (32, "int32"),
    "U32": (32, "uint32"),
    "F32": (32, "float32"),
    "C64": (64, "complex64"),
    "F64": (64, "float64"),
    "I64": (64, "int64"),
    "U64": (64, "uint64"),
}
ORDER = {dtype: place for place, dtype in enumerate(TYPES)}
NAMES = {name: dtype for dtype, (_, name) in TYPES.items() if name}  # those of NumPy's types


class Kind:
    """What tensors of one dtype and shape share. Those of a file have few kinds.

    nbytes, row, pitch: what there is to read. Of a cut along a later dimension it is rows of `row`
    bytes, `pitch` bytes apart in the file; otherwise these two are 0, and the bytes are dense.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...], row: int = 0, pitch: int = 0) -> None:
        bits, name = TYPES[dtype]
        self.dtype: str = dtype
        self.shape: tuple[int, ...] = shape
        self.bits: int = math.prod(shape) * bits
        self.nbytes: int = self.bits // 8
        self.extent: tuple[int, int, int] = self.nbytes, row, pitch
        self.cuts: dict[tuple[tuple[int, int, int], ...], tuple[Kind, int]] = {}
        if name is None:  # not one of NumPy's: bytes
            dense = bool(shape) and shape[-1] * bits % 8 == 0
            shape = (*shape[:-1], shape[-1] * bits // 8) if dense else (self.nbytes,)
        # NumPy's shape, and the name of its dtype.
        self.array: tuple[tuple[int, ...], str] = shape, name or "uint8"

    def cut(self, name: str, key: slice | tuple[slice, ...]) -> tuple[Kind, int]:
        """What slices of at most one dimension leave, and how many bytes before it they cut off."""
        keys = key if isinstance(key, tuple) else (key,)
        try:
            bounds = (*map(slice.indices, keys, self.shape),)
        except TypeError:  # of a slice: its bounds are no integers
            if all(type(each) is slice for each in keys):
                raise
            bounds = ()
        if len(keys) > len(bounds):
            raise ValueError(
                f"slices has {shown(key)} for tensor {shown(name)}, whose shape is {self.shape}: "
                "it takes a slice, or one for each of the first dimensions"
            )
        found = self.cuts.get(bounds)
        if found is None:
            cuts = [
                (axis, start, stop, step)
                for axis, (start, stop, step) in enumerate(bounds)
                if (start, stop, step) != (0, self.shape[axis], 1)
            ]
            if len(cuts) > 1 or any(step != 1 for _, _, _, step in cuts):
                raise ValueError(
                    f"slices has {shown(key)} for tensor {shown(name)}: only one dimension can be "
                    "cut, in steps of 1"
                )
            found = self._cut(name, *cuts[0][:3]) if cuts else (self, 0)
            self.cuts[bounds] = found
        return found

    def _cut(self, name: str, axis: int, start: int, stop: int) -> tuple[Kind, int]:
        stop = max(start, stop)
        item = math.prod(self.shape[axis + 1 :]) * TYPES[self.dtype][0]  # bits, of one index
        pitch = self.shape[axis] * item
        if start * item % 8 or stop * item % 8 or (axis and pitch % 8):
            raise ValueError(
                f"slices cuts tensor {shown(name)}, {self.dtype} of shape {self.shape}, within a "
                "byte"
            )
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        dense = math.prod(self.shape[:axis]) == 1 or 0 in shape
        rows = (0, 0) if dense else ((stop - start) * item // 8, pitch // 8)
        return Kind(self.dtype, shape, *rows), start * item // 8


#: Its name, what it is like, and where it begins in the file.
Tensor = tuple[str, Kind, int]


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


def kind_of(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Kind:
    """The kind of an array that is to be saved."""
    found = NAMES.get(dtype.name) if dtype.isnative and dtype.names is None else None
    if found is None:
        raise TypeError(f"array {shown(name)} has the dtype {dtype}, which the format lacks")
    return Kind(found, shape)


def is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False


def encoded(tensors: Iterable[tuple[str, Kind]], metadata: Mapping[str, str] | None) -> bytes:
    """The begin of a file with these tensors, in this order: the header and its length.

    It is as the format's own library writes it, and ends at a multiple of 8 bytes.
    """
    found: dict[str, Any] = {}
    if metadata is not None:
        if not isinstance(metadata, Mapping):
            raise TypeError(f"metadata is {shown(metadata)}; a dict of str is needed")
        for key, value in metadata.items():
            if not (is_text(key) and is_text(value)):
                raise TypeError(f"metadata has {shown(key)}: {shown(value)}; both are valid text")
        found["__metadata__"] = dict(metadata)
    end = 0
    for name, kind in tensors:
        begin, end = end, end + kind.nbytes
        if name == "__metadata__":
            raise ValueError("an array cannot have the name '__metadata__', the format's own")
        found[name] = {"dtype": kind.dtype, "shape": kind.shape, "data_offsets": [begin, end]}
    data = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    if len(data) > HEADER_MOST:
        raise ValueError(f"the header has {len(data)} bytes, and the format allows {HEADER_MOST}")
    return len(data).to_bytes(8, "little") + data


def header(source: Source) -> list[Tensor]:
    """The tensors of a file, in the order of their bytes. Checks all that the header says."""
    head = source.read(0, 8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(HEADER_MOST, source.nbytes - 8):
        raise ValueError(
            f"{source.path} is not a safetensors file, or is cut off: its first 8 bytes announce a "
            f"header of {length} bytes, and the file has {source.nbytes}"
        )
    base = end = 8 + length
    try:
        data = source.read(8, length)
        tensors = usual(data, base) or [*entries(parse(data), base)]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source.path}: {error}") from None
    tensors.sort(key=lambda tensor: (tensor[2], tensor[1].nbytes))
    for name, kind, begin in tensors:
        if begin != end:
            raise ValueError(
                f"{source.path}: tensor {shown(name)} begins at byte {begin} of the file, and the "
                f"one before it ends at {end}"
            )
        end += kind.nbytes
    if end != source.nbytes:
        raise ValueError(
            f"{source.path} has {source.nbytes} bytes, and its header speaks of {end}: it is cut "
            "off, or something was appended"
        )
    return tensors


def usual(data: bytes, base: int) -> list[Tensor] | None:
    """What `entries` finds in a header as the format's own library writes it, in less time.

    None: the header is of another form, or wrong.
    """
    text = data.decode("utf-8").rstrip(" ")
    metadata = METADATA.match(text)
    begin = metadata.end() if metadata is not None else 1
    found = ENTRY.findall(text, begin)
    letters = sum(map(len, chain.from_iterable(found))) + len(found) * ENTRY_LETTERS
    if text[:1] != "{" or not text.endswith("}}") or letters != len(text) - begin:
        return None  # something lies between, before or behind
    kinds: dict[tuple[str, str], Kind | None] = {}
    tensors: list[Tensor] = []
    for name, dtype, shape, first, last in found:
        if (dtype, shape) not in kinds:
            kinds[dtype, shape] = usual_kind(dtype, shape)
        kind, start = kinds[dtype, shape], int(first)
        if kind is None or start + kind.nbytes != int(last):
            return None
        tensors.append((name, kind, base + start))
    names = {tensor[0] for tensor in tensors}
    if len(names) < len(tensors) or "__metadata__" in names:
        return None
    if metadata is not None:
        check_metadata(parse(b"{%b}" % metadata[1].encode()).get("__metadata__"))
    return tensors


def usual_kind(dtype: str, shape: str) -> Kind | None:
    """The kind of a tensor by the words of a header; None where only the full reader tells."""
    if dtype not in TYPES or NUMBERS.fullmatch(shape) is None:
        return None
    lengths = [int(length) for length in shape.split(",") if length]
    bits = TYPES[dtype][0]
    if not is_shape(lengths, bits) or math.prod(lengths) * bits % 8:
        return None
    return Kind(dtype, tuple(lengths))


def entries(data: dict[str, Any], base: int) -> Iterator[Tensor]:
    """The tensors of a header; their bytes begin at `base`."""
    metadata = data.pop("__metadata__", None)
    known: dict[tuple[str, tuple[int, ...]], Kind] = {}
    for name, value in data.items():
        yield tensor(name, value, base, known)
    check_metadata(metadata)


def parse(data: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) < len(pairs):
            twice = next(name for name, count in Counter(n for n, _ in pairs).items() if count > 1)
            raise ValueError(f"the header has {shown(twice)} twice")
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


def tensor(
    name: str, found: Any, base: int, known: dict[tuple[str, tuple[int, ...]], Kind]
) -> Tensor:
    """A tensor by its entry of the header; the tensors' bytes begin at `base`.

    known: the kinds so far.
    """
    try:
        dtype, shape, offsets = found["dtype"], found["shape"], found["data_offsets"]
    except (KeyError, TypeError):
        raise ValueError(f"tensor {shown(name)} lacks a dtype, shape or data_offsets") from None
    if type(dtype) is not str or dtype not in TYPES:
        raise ValueError(f"tensor {shown(name)} has the unknown dtype {shown(dtype)}")
    if type(shape) is not list or not are_sizes(shape):
        raise ValueError(wrong_shape(name, shape))
    lengths = tuple(shape)
    if (dtype, lengths) not in known:
        if not is_shape(shape, TYPES[dtype][0]):
            raise ValueError(wrong_shape(name, shape))
        known[dtype, lengths] = Kind(dtype, lengths)
    if type(offsets) is not list or len(offsets) != 2 or not are_sizes(offsets):
        raise ValueError(f"tensor {shown(name)} has the data_offsets {shown(offsets)}")
    begin, end = offsets
    if begin > end:
        raise ValueError(f"tensor {shown(name)} has the data_offsets {shown(offsets)}")
    kind = known[dtype, lengths]
    if kind.bits != 8 * (end - begin):
        whole = kind.bits % 8 == 0
        wanted = (
            f"{shown(kind.nbytes)} bytes" if whole else f"{shown(kind.bits)} bits, not whole bytes"
        )
        raise ValueError(
            f"tensor {shown(name)} has {end - begin} bytes; {dtype} of shape {shown(lengths)} has "
            f"{wanted}"
        )
    return name, kind, base + begin


def wrong_shape(name: str, shape: Any) -> str:
    return f"tensor {shown(name)} has the shape {shown(shape)}; a shape is a list of {LENGTHS}"


def is_name(file: Any) -> bool:
    """Whether a folder can have a file of this name."""
    if type(file) is not str or file in ("", ".", "..") or "/" in file or "\0" in file:
        return False
    try:
        return len(os.fsencode(file)) <= NAME_MOST
    except UnicodeEncodeError:
        return False


def shards(path: str) -> Mapping[str, set[str] | None]:
    """The files of a checkpoint, and the names to take from each; None: all."""
    if os.path.isdir(path):
        whole = os.path.join(path, "model.safetensors")
        path = whole if os.path.exists(whole) else whole + INDEX
    if not path.endswith(INDEX):
        return {path: None}
    with closing(Source(path)) as source:
        try:
            found = parse(source.read(0, min(source.nbytes, HEADER_MOST))).get("weight_map")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None
    if type(found) is not dict:
        raise ValueError(f"{path} has no weight_map")
    files: dict[str, set[str]] = {}
    for name, file in found.items():
        if type(file) is not str or (file not in files and not is_name(file)):
            raise ValueError(
                f"{path}: tensor {shown(name)} lies in {shown(file)}, which is not a file "
                "beside the index"
            )
        files.setdefault(file, set()).add(name)
    return {os.path.join(os.path.dirname(path), file): names for file, names in files.items()}

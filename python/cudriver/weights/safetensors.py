"""Loads safetensors files into device memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from cudriver._core import DeviceArray, device_empty
from cudriver.weights.blocks import Block, NumpysTypes, TorchsTypes, dtypes_of, types_of
from cudriver.weights.reading import Batch, Piece, Reading, in_bytes, stream_of
from cudriver.weights.safetensors_format import Tensor, header, shards
from cudriver.weights.source import Source, chosen, shown

if TYPE_CHECKING:
    from cudriver.typing import DeviceLike, StreamLike
    from cudriver.weights.blocks import Views

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    Slices = Mapping[str, slice | tuple[slice, ...]]

GROUP = 1 << 30  # bytes that iter_safetensors() reads at once, at least


@dataclass(frozen=True)
class File:
    """An open file, and what to load from it, in the order of its bytes."""

    source: Source
    tensors: list[Tensor]


def headers(
    paths: list[str | os.PathLike[str]], opened: ExitStack
) -> Iterator[tuple[Source, list[Tensor]]]:
    """The tensors of each file, checked. All files are open before the first is read."""
    sources = []
    for path in paths:
        for file, listed in shards(os.fspath(path)).items():
            sources.append((opened.enter_context(Source(file)), listed))
    owners: dict[str, Source] = {}
    for source, listed in sources:
        tensors = header(source)
        names = {tensor.name for tensor in tensors}
        if listed is not None:
            chosen(source.path, names, listed)
            if len(listed) < len(names):
                tensors = [tensor for tensor in tensors if tensor.name in listed]
                names = listed
        if not names.isdisjoint(owners):
            twice = next(name for name in owners if name in names)
            raise ValueError(
                f"{owners[twice].path} and {source.path} both have the tensor {shown(twice)}"
            )
        if len(sources) > 1:
            owners.update(dict.fromkeys(names, source))
        yield source, tensors


def files_of(
    path: Paths, names: Iterable[str] | None, slices: Slices | None, opened: ExitStack
) -> list[File]:
    """The files, whose headers are checked, with what was asked for of them."""
    paths = [path] if isinstance(path, (str, bytes, os.PathLike)) else [*path]
    if slices is not None and not isinstance(slices, Mapping):
        raise TypeError(f"slices is {shown(slices)}; a dict of names and slices is needed")
    found = [*headers(paths, opened)]
    if names is None and not slices:
        return [File(source, tensors) for source, tensors in found]
    where = ", ".join(os.fspath(each) for each in paths[:2]) + ", ..." * (len(paths) > 2)
    wanted = chosen(where, (tensor.name for _, tensors in found for tensor in tensors), names)
    cuts = slices or {}
    chosen(where, wanted, cuts)
    return [
        File(
            source,
            [
                tensor.cut(cuts[tensor.name]) if tensor.name in cuts else tensor
                for tensor in tensors
                if tensor.name in wanted
            ],
        )
        for source, tensors in found
    ]


# ---- loading -------------------------------------------------------------------------------------


@overload
def load_safetensors(
    path: Paths,
    *,
    device: DeviceLike | None = None,
    names: Iterable[str] | None = None,
    slices: Slices | None = None,
    framework: None = None,
    stream: StreamLike | None = None,
) -> dict[str, DeviceArray]: ...
@overload
def load_safetensors(
    path: Paths,
    *,
    device: DeviceLike | None = None,
    names: Iterable[str] | None = None,
    slices: Slices | None = None,
    framework: Literal["torch"],
    stream: StreamLike | None = None,
) -> dict[str, Any]: ...
def load_safetensors(
    path: Paths,
    *,
    device: DeviceLike | None = None,
    names: Iterable[str] | None = None,
    slices: Slices | None = None,
    framework: Literal["torch"] | None = None,
    stream: StreamLike | None = None,
) -> dict[str, Any]:
    """Load the tensors of a safetensors file or checkpoint into device memory.

    Parameters
    ----------
    path : path_like, or iterable of path_like
        A file, the ``.safetensors.index.json`` of a checkpoint in several files, or a folder that
        has a ``model.safetensors`` or ``model.safetensors.index.json``. Several are loaded as one.
    device : int, str or Device, optional
        Where to load to, as for `device_empty`.
    names : iterable of str, optional
        The tensors to load. The default is all.
    slices : mapping of str to slice or tuple of slice, optional
        The part of a tensor to load, as of an array: ``{"x": slice(0, 64)}`` or, along the second
        dimension, ``{"x": (slice(None), slice(0, 64))}``. One dimension can be cut, in steps of 1.
    framework : None or 'torch', optional
        With ``'torch'``, the arrays come as tensors of PyTorch's, in memory of its allocator.
    stream : Stream, optional
        The stream in whose order the arrays are filled. Without one they are filled on return.

    Returns
    -------
    dict of str to DeviceArray or torch.Tensor
        In the order of the files' bytes. Without `names` the arrays of a file share one allocation,
        which lives until the last of them is gone; with `names` each has its own.

    Raises
    ------
    ValueError
        A file is not a valid safetensors file, was changed while it was read, or lacks a name; two
        files have the same; a slice does not fit.
    ImportError
        A tensor is of a type that NumPy lacks (bfloat16, float8), and ``ml_dtypes`` is not
        installed; or PyTorch is missing, or lacks the type.
    OutOfMemoryError
        The device has too little memory.

    Notes
    -----
    Nothing is allocated before the headers are checked against the files. Types of 4 and 6 bits
    come as bytes (uint8), packed as in the file. PyTorch, CuPy and JAX take the arrays by
    ``from_dlpack`` without a copy; for PyTorch, `framework` does that faster for many tensors.

    Examples
    --------
    >>> header = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    >>> data = len(header).to_bytes(8, "little") + header + np.float32([1, 2]).tobytes()
    >>> with open("tiny.safetensors", "wb") as file:
    ...     _ = file.write(data)
    >>> cu.load_safetensors("tiny.safetensors")["x"].to_numpy()
    array([1., 2.], dtype=float32)
    >>> cu.load_safetensors("tiny.safetensors", slices={"x": slice(1, None)})["x"].to_numpy()
    array([2.], dtype=float32)
    """
    types = types_of(framework)
    alone = names is not None
    arrays: dict[str, Any] = {}
    views: list[tuple[Block, Views]] = []
    with ExitStack() as opened:
        files = files_of(path, names, slices, opened)
        types.require(dtypes_of(chain.from_iterable(file.tensors for file in files)))
        with stream_of(stream, device) as order, Reading(order) as reading:
            for file in files:
                pieces: list[Piece] = []
                for some in [[tensor] for tensor in file.tensors] if alone else [file.tensors]:
                    block = Block(file.source, some)
                    if alone and isinstance(types, NumpysTypes):
                        kind = types.kind(some[0])
                        memory = device_empty(*kind, device=device, stream=order)
                        arrays[some[0].name] = memory
                    else:
                        memory, over = memory_for(block, types, device, order)
                        views.append((block, over))
                    pieces += block.pieces(in_bytes(memory))
                reading.add(pieces)
            reading.finish()
            # Not while the threads read: each of them would wait for the GIL between two reads.
            for block, over in views:
                arrays.update(block.arrays(over))
            if stream is not None and isinstance(types, TorchsTypes):
                types.follow(ordinal_of(device, order), order)
    return arrays


def ordinal_of(device: DeviceLike | None, stream: StreamLike) -> int:
    return device_empty(0, np.uint8, device=device, stream=stream).device.ordinal


def memory_for(
    block: Block, types: NumpysTypes | TorchsTypes, device: DeviceLike | None, stream: StreamLike
) -> tuple[DeviceArray, Views]:
    """The memory of a block, in bytes, and what makes its arrays."""
    if isinstance(types, TorchsTypes):
        return types.memory(block.nbytes, ordinal_of(device, stream), stream)
    memory = device_empty(block.nbytes, np.uint8, device=device, stream=stream)
    return memory, types.views(memory)


@overload
def iter_safetensors(
    path: Paths,
    *,
    device: DeviceLike | None = None,
    names: Iterable[str] | None = None,
    slices: Slices | None = None,
    framework: None = None,
    stream: StreamLike | None = None,
) -> Iterator[tuple[str, DeviceArray]]: ...
@overload
def iter_safetensors(
    path: Paths,
    *,
    device: DeviceLike | None = None,
    names: Iterable[str] | None = None,
    slices: Slices | None = None,
    framework: Literal["torch"],
    stream: StreamLike | None = None,
) -> Iterator[tuple[str, Any]]: ...
def iter_safetensors(
    path: Paths,
    *,
    device: DeviceLike | None = None,
    names: Iterable[str] | None = None,
    slices: Slices | None = None,
    framework: Literal["torch"] | None = None,
    stream: StreamLike | None = None,
) -> Iterator[tuple[str, Any]]:
    """Load the tensors of safetensors files, and hand them out as they land in device memory.

    Parameters
    ----------
    path, device, names, slices, framework, stream : optional but for path
        As for `load_safetensors`.

    Returns
    -------
    iterator of (str, DeviceArray or torch.Tensor)
        In the order of the files' bytes. Tensors of a file that were read together, about 1 GiB,
        share one allocation, which lives until the last of them is gone.

    Raises
    ------
    ValueError, ImportError, OutOfMemoryError
        As `load_safetensors`, at the first step; later, if a file was changed while it was read.

    Notes
    -----
    While the tensors of one allocation are handed out, the next is filled. Who keeps no tensor
    needs memory for two of them, and not for the whole checkpoint. Nothing is read before the first
    step. To stop early, close() the iterator, or drop it.

    Examples
    --------
    >>> header = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    >>> data = len(header).to_bytes(8, "little") + header + np.float32([1, 2]).tobytes()
    >>> with open("tiny.safetensors", "wb") as file:
    ...     _ = file.write(data)
    >>> for name, array in cu.iter_safetensors("tiny.safetensors"):
    ...     print(name, array.to_numpy())
    x [1. 2.]
    """

    types = types_of(framework)
    with ExitStack() as opened:
        files = files_of(path, names, slices, opened)
        types.require(dtypes_of(chain.from_iterable(file.tensors for file in files)))
        waiting = [Block(file.source, some) for file in files for some in groups(file.tensors)]
        order = opened.enter_context(stream_of(stream, device))
        reading = opened.enter_context(Reading(order, landing=stream is None))
        begun: deque[tuple[Block, Views, Batch]] = deque()
        for i in range(-1, len(waiting)):
            if i + 1 < len(waiting):
                block = waiting[i + 1]
                memory, views = memory_for(block, types, device, order)
                begun.append((block, views, reading.add([*block.pieces(memory)])))
                del memory, views
            if i >= 0:
                block, views, batch = begun.popleft()
                arrays = [*block.arrays(views)]
                del views
                reading.wait(batch)
                if stream is not None and isinstance(types, TorchsTypes):
                    types.follow(ordinal_of(device, order), order)
                arrays.reverse()
                while arrays:
                    yield arrays.pop()
        reading.finish()


def groups(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Cuts a file's tensors into parts of about GROUP bytes."""
    some: list[Tensor] = []
    nbytes = 0
    for tensor in tensors:
        if nbytes >= GROUP:
            yield some
            some, nbytes = [], 0
        some.append(tensor)
        nbytes += tensor.nbytes
    if some:
        yield some

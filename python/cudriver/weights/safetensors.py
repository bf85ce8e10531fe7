"""Loads safetensors files into device memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from cudriver._core import DeviceArray
from cudriver.memory.making import device_empty
from cudriver.weights.blocks import Block, NumpysTypes, TorchsTypes, dtypes_of, types_of
from cudriver.weights.reading import Reading
from cudriver.weights.safetensors_format import Tensor, header, shards
from cudriver.weights.source import Source, chosen, shown

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import TypedDict, Unpack

    from cudriver.typing import DeviceLike, StreamLike
    from cudriver.weights.blocks import Views

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    Slices = Mapping[str, slice | tuple[slice, ...]]

    class Options(TypedDict, total=False):
        """What both functions take by keyword, whatever the framework."""

        device: DeviceLike | None
        names: Iterable[str] | None
        slices: Slices | None
        stream: StreamLike | None


GROUP = 1 << 30  # bytes that iter_safetensors() reads at once, at least


def headers(
    paths: list[str | os.PathLike[str]], opened: ExitStack
) -> Iterator[tuple[Source, list[Tensor]]]:
    """The tensors of each file, checked. All files are open before the first is read."""
    sources = []
    for path in paths:
        for file, listed in shards(os.fsdecode(path)).items():
            sources.append((opened.enter_context(closing(Source(file))), listed))
    owners: dict[str, Source] = {}
    for source, listed in sources:
        tensors = header(source)
        names = {tensor[0] for tensor in tensors}
        if listed is not None:
            chosen(source.path, names, listed)
            if len(listed) < len(names):
                tensors = [tensor for tensor in tensors if tensor[0] in listed]
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
    path: Paths,
    names: Iterable[str] | None,
    slices: Slices | None,
    types: NumpysTypes | TorchsTypes,
    opened: ExitStack,
) -> Iterator[tuple[Source, list[Tensor]]]:
    """The files, and what was asked for of each, in the order of its bytes.

    A header is checked when its file is reached; where names or slices are given, all are at first.
    So are the types.
    """
    paths = [path] if isinstance(path, (str, bytes, os.PathLike)) else [*path]
    if slices is not None and not isinstance(slices, Mapping):
        raise TypeError(f"slices is {shown(slices)}; a dict of names and slices is needed")
    files = headers(paths, opened)
    if names is None and not slices:
        return required(types, files)
    found, cuts = [*files], slices or {}
    where = ", ".join(os.fsdecode(each) for each in paths[:2]) + ", ..." * (len(paths) > 2)
    wanted = chosen(where, (name for _, tensors in found for name, _, _ in tensors), names)
    chosen(where, wanted, cuts)
    parts = [(source, cut(tensors, wanted, cuts)) for source, tensors in found]
    return iter([*required(types, parts)])


def required(
    types: NumpysTypes | TorchsTypes, files: Iterable[tuple[Source, list[Tensor]]]
) -> Iterator[tuple[Source, list[Tensor]]]:
    for source, tensors in files:
        types.require(dtypes_of(tensors))
        yield source, tensors


def cut(tensors: Iterable[Tensor], wanted: set[str], slices: Slices) -> list[Tensor]:
    """The parts to load."""
    parts = []
    for name, kind, begin in tensors:
        if name in slices:
            kind, skipped = kind.cut(name, slices[name])
            parts.append((name, kind, begin + skipped))
        elif name in wanted:
            parts.append((name, kind, begin))
    return parts


# ---- loading -------------------------------------------------------------------------------------


@overload
def load_safetensors(
    path: Paths, *, framework: None = None, **options: Unpack[Options]
) -> dict[str, DeviceArray]: ...
@overload
def load_safetensors(
    path: Paths, *, framework: Literal["torch"], **options: Unpack[Options]
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
        The stream in whose order memory is allocated, and whose earlier work is waited for. The
        arrays are filled on return, with or without one.

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
    Memory for a file is allocated when its header has been checked against the file, and with
    `names` or `slices` when all have been. Types of 4 and 6 bits come as bytes (uint8), packed as
    in the file. PyTorch, CuPy and JAX take the arrays by ``from_dlpack`` without a copy; for
    PyTorch, `framework` does that faster for many tensors.

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
        files = files_of(path, names, slices, types, opened)
        reading = opened.enter_context(closing(Reading(stream, device)))
        for source, tensors in files:
            block = Block(source, tensors, alone)
            if alone:
                sizes = block.runs["bytes"].tolist()
                made = [
                    array_for(kind, nbytes, types, device, reading)
                    for kind, nbytes in zip(block.kinds, sizes, strict=True)
                ]
                arrays.update(zip(block.names, (array for _, array in made), strict=True))
                memory = [each for each, _ in made]
            else:
                whole, over = memory_for(block.nbytes, types, device, reading)
                views.append((block, over))
                memory = [whole]
            reading.add(source, memory, block.runs, block.nbytes)
        for block, over in views:
            arrays.update(block.arrays(over))
        reading.finish()
    return arrays


def memory_for(
    nbytes: int, types: NumpysTypes | TorchsTypes, device: DeviceLike | None, reading: Reading
) -> tuple[DeviceArray, Views]:
    """Memory for several arrays, in bytes, and what makes these."""
    if isinstance(types, TorchsTypes):
        return types.memory(nbytes, reading.device.ordinal, reading.order)
    memory = device_empty(nbytes, np.uint8, device=device, stream=reading.order)
    return memory, types.views(memory)


def array_for(
    kind: tuple[tuple[int, ...], str],
    nbytes: int,
    types: NumpysTypes | TorchsTypes,
    device: DeviceLike | None,
    reading: Reading,
) -> tuple[DeviceArray, Any]:
    """Memory for one array, and the array."""
    if isinstance(types, TorchsTypes):
        memory, views = memory_for(nbytes, types, device, reading)
        return memory, views([0], [kind])[0]
    shape, name = kind
    array = device_empty(shape, types.types[name], device=device, stream=reading.order)
    return array, array


@overload
def iter_safetensors(
    path: Paths, *, framework: None = None, **options: Unpack[Options]
) -> Iterator[tuple[str, DeviceArray]]: ...
@overload
def iter_safetensors(
    path: Paths, *, framework: Literal["torch"], **options: Unpack[Options]
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
        files = [*files_of(path, names, slices, types, opened)]
        waiting = [Block(source, some) for source, tensors in files for some in groups(tensors)]
        reading = opened.enter_context(closing(Reading(stream, device)))
        begun: deque[tuple[Block, Views, Future[None]]] = deque()
        for i in range(-1, len(waiting)):
            if i + 1 < len(waiting):
                block = waiting[i + 1]
                memory, views = memory_for(block.nbytes, types, device, reading)
                read = reading.add(block.source, [memory], block.runs, block.nbytes)
                begun.append((block, views, read))
                del memory, views
            if i >= 0:
                block, views, read = begun.popleft()
                arrays = [*block.arrays(views)]
                del views
                reading.landed(read)
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
        nbytes += tensor[1].nbytes
    if some:
        yield some

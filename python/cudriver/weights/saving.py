"""Saves arrays in safetensors files.

Arrays are copied into page-locked blocks, many in one call, and several threads write these. The
file lies beside its name until it is whole.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from cudriver import _core
from cudriver._core import Context, DeviceArray, Stream
from cudriver.memory.pinned import pinned_empty
from cudriver.memory.rows import copy_many
from cudriver.weights.reading import progress
from cudriver.weights.safetensors_format import ORDER, Kind, encoded, is_text, kind_of
from cudriver.weights.source import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cudriver.typing import AnyArray

    Array = DeviceArray | NDArray[Any]

BLOCK = 8 << 20  # bytes that are copied, and written, at once
WRITERS = 16  # threads, at most; each has a block, and one is being filled


def save_safetensors(
    path: str | os.PathLike[str],
    arrays: Mapping[str, AnyArray] | Iterable[tuple[str, AnyArray]],
    *,
    metadata: Mapping[str, str] | None = None,
    fsync: bool = False,
) -> None:
    """Save arrays in a safetensors file.

    Parameters
    ----------
    path : path_like
        The file. One of this name is replaced when the new one is whole.
    arrays : mapping of str to array, or iterable of (str, array)
        Arrays that `copy` takes, in device or host memory, with any strides.
    metadata : mapping of str to str, optional
        Text for the file's header.
    fsync : bool, optional
        Return when the file and its name are on the disk, where a loss of power leaves them.

    Raises
    ------
    TypeError
        Something is not an array, a name or a value of `metadata` is not a str, or the format has
        no such dtype. Nothing was written.
    ValueError
        A name is given twice, an array is closed, or `path` is something else than a file. Nothing
        was written.
    OSError
        The file could not be written: the disk is full, for one.
    CudaError
        Work on a device failed, or a stream there is being captured.

    Notes
    -----
    All work is waited for that was issued before on the arrays' devices, on any stream. Until the
    call returns the arrays must not change, and cannot be closed.

    The file is written beside its name, under a hidden one, and renamed. After an exception,
    Ctrl-C too, the old file is as it was, and the new one is gone; a process that is killed leaves
    ``.*.safetensors.tmp``. A symbolic link is replaced, not followed.

    The file has the bytes that ``save_file`` of the package safetensors writes: types with large
    items come first, then names in order, so that each array lies at a multiple of its item's size.

    Examples
    --------
    >>> array = cu.to_device(np.float32([1, 2]))
    >>> cu.save_safetensors("two.safetensors", {"x": array}, metadata={"step": "3"})
    >>> cu.load_safetensors("two.safetensors")["x"].to_numpy()
    array([1., 2.], dtype=float32)
    """
    target = os.fsdecode(path)
    found = lent(arrays)
    try:
        header = encoded([(name, kind) for name, kind, _ in found], metadata)
        memory = [array for _, kind, array in found if kind.nbytes]
    finally:
        del arrays
        found.clear()  # the traceback of an exception would keep them
    try:
        with replaced(target, fsync) as fd, closing(Writing(fd, memory, fsync)) as writing:
            writing.write(header)
    finally:
        memory.clear()  # as above


def lent(
    arrays: Mapping[str, AnyArray] | Iterable[tuple[str, AnyArray]],
) -> list[tuple[str, Kind, Array]]:
    """The arrays in the order of the file, as views, so that they cannot be closed."""
    pairs = arrays.items() if isinstance(arrays, Mapping) else arrays
    if not isinstance(pairs, Iterable):
        raise TypeError(f"arrays is {shown(arrays)}; a dict of names and arrays is needed")
    kinds: dict[tuple[np.dtype[Any], tuple[int, ...]], Kind] = {}
    found: dict[str, tuple[str, Kind, Array]] = {}
    pair: Any = None
    array: Any = None
    try:
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise TypeError(f"arrays has {shown(pair)}; a name and an array are needed")
            name, array = pair
            if not is_text(name):
                raise TypeError(f"{shown(name)} is the name of an array; names are valid text")
            if name in found:
                raise ValueError(f"arrays has {shown(name)} twice")
            array = _core._lend(array, False, None)
            if array is None:
                raise TypeError(f"{shown(name)} is not an array")
            array = array[...] if isinstance(array, DeviceArray) else np.asarray(array)
            if isinstance(array, DeviceArray) and array.closed:
                raise ValueError(f"array {shown(name)} is closed")
            key = array.dtype, array.shape
            if key not in kinds:
                kinds[key] = kind_of(name, *key)
            found[name] = name, kinds[key], array
        return sorted(found.values(), key=lambda each: (-ORDER[each[1].dtype], each[0]))
    finally:
        del pair, array, arrays, pairs
        found.clear()


# ---- writing -------------------------------------------------------------------------------------


@contextmanager
def replaced(path: str, fsync: bool) -> Iterator[int]:
    """A new file, which takes the place of another when it is whole. An exception leaves none."""
    with suppress(FileNotFoundError):
        kind = os.lstat(path).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
            raise ValueError(f"{path} is not a regular file")
    folder = os.path.dirname(path) or "."
    beside = os.path.join(folder, f".{token_hex(8)}.safetensors.tmp")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            yield fd
            if fsync:
                os.fsync(fd)
        finally:
            os.close(fd)  # some file systems tell only here that their disk is full
        os.replace(beside, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(beside)
        if isinstance(error, OSError) and error.filename in (None, beside):
            error.filename = path
        raise
    if fsync:  # where this fails, the new file stands
        sync_folder(folder)


def sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Writing:
    """Writes a file by several threads. close() stops them."""

    def __init__(self, fd: int, arrays: list[Array], fsync: bool) -> None:
        self.fd: int = fd
        self.arrays: list[Array] = arrays
        self.fsync: bool = fsync
        self.streams: dict[Context, Stream] = {}
        self.threads: int = min(_core._copy_threads()[0], WRITERS)
        self.pool: ThreadPoolExecutor = ThreadPoolExecutor(self.threads, "cudriver-write")
        self.running: deque[tuple[Future[None], NDArray[np.uint8]]] = deque()

    def write(self, header: bytes) -> None:
        self.settle()
        total, at = sum(array.nbytes for array in self.arrays), len(header)
        some: list[Array] = []
        try:
            with progress(total, "write") as show:
                self.put(np.frombuffer(header, np.uint8), 0)
                for some in packs(self.arrays):
                    block = self.block(min(total, BLOCK))
                    nbytes = self.fill(block, some)
                    future = self.pool.submit(self.put, block[:nbytes], at)
                    self.running.append((future, block))
                    at += nbytes
                    show(at - len(header))
                while self.running:
                    self.running.popleft()[0].result()
        finally:
            some.clear()  # as above

    def settle(self) -> None:
        """Waits for the work on the arrays' devices. A stream of our own for each."""
        for context in dict.fromkeys(map(context_of, self.arrays)):
            if context is not None:
                context.synchronize()
                self.streams[context] = Stream(device=context.device)

    def block(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory that nobody uses."""
        if len(self.running) > self.threads:
            future, block = self.running.popleft()
            future.result()
            return block
        if self.streams:
            with suppress(MemoryError):  # a limit of page-locked memory
                return pinned_empty(nbytes, np.uint8)
        return np.empty(nbytes, np.uint8)

    def fill(self, block: NDArray[np.uint8], arrays: list[Array]) -> int:
        """Copies arrays behind one another. How many bytes they are."""
        at = 0
        for context, group in groupby(arrays, context_of):
            sources, destinations = [*group], []
            try:
                for kind, shape, nbytes in [(a.dtype, a.shape, a.nbytes) for a in sources]:
                    destinations.append(block[at : at + nbytes].view(kind).reshape(shape))
                    at += nbytes
                if context is None:
                    for there, array in zip(destinations, sources, strict=True):
                        np.copyto(there, array)
                else:
                    copied(destinations, sources, self.streams[context])
            finally:
                sources.clear()  # as above
        return at

    def put(self, data: NDArray[np.uint8], offset: int) -> None:
        view, at = data.data, offset
        while view:
            count = os.pwrite(self.fd, view, at)
            view, at = view[count:], at + count
        if self.fsync:  # the disk begins now, not when all is there
            os.posix_fadvise(self.fd, offset, data.nbytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def context_of(array: Array) -> Context | None:
    return array.context if isinstance(array, DeviceArray) else None


def copied(destinations: list[NDArray[Any]], sources: list[Array], stream: Stream) -> None:
    """Copies in the order of a stream, and waits."""
    with stream:
        copy_many(destinations, sources)


def packs(arrays: Iterable[Array]) -> Iterator[list[Array]]:
    """What is written at once: parts of arrays, of at most BLOCK bytes together."""
    some: list[Array] = []
    nbytes = 0
    for array in arrays:
        for part in parts(array):
            if nbytes + part.nbytes > BLOCK:
                yield some
                some, nbytes = [], 0
            some.append(part)
            nbytes += part.nbytes
    if some:
        yield some


def parts(array: Array) -> Iterator[Array]:
    """An array of some bytes in parts of at most BLOCK, in C order."""
    if array.nbytes <= BLOCK:
        yield array
        return
    step = BLOCK * len(array) // array.nbytes
    if step:
        for i in range(0, len(array), step):
            yield array[i : i + step]
    else:
        for i in range(len(array)):
            yield from parts(array[i])

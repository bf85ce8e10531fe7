"""Shared memory: one region of bytes for many processes, page-locked in each that asks for it."""

from __future__ import annotations

import errno
import math
import operator
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, overload

import numpy as np

from cudriver import _core
from cudriver.memory import pieces as cut
from cudriver.memory import shared_files
from cudriver.memory.fresh import item_type, lengths_of, over
from cudriver.memory.host import page_lock
from cudriver.memory.mapping import mapped
from cudriver.memory.numa import node_of, now

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from numpy.typing import DTypeLike, NDArray

    from cudriver.typing import NumaLike, ScalarT, ShapeLike

# Of every SharedMemory's state; short. A finalizer or a signal's handler may run in the thread that
# holds it, and use or close another region.
_lock = threading.RLock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class _Mapping:
    """A region as this process has it: unmapped when the last that holds this has gone."""

    def __init__(self, file: int, read_only: bool) -> None:
        size = os.fstat(file).st_size
        try:
            self.bytes = mapped(size, file, read_only=read_only)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise shared_files.refusal(f"{size} bytes; the system refuses the mapping") from None
        self.read_only = read_only
        self.pin: _core.PageLock | None = None  # it holds the bytes, so it ends before them


class _Lease:
    """The base of all arrays of a SharedMemory, alive as long as one of them is."""

    def __init__(self, mapping: _Mapping) -> None:
        self.mapping = mapping
        self.__array_interface__ = mapping.bytes.__array_interface__


class SharedMemory:
    """Memory that several processes map, page-locked in each of them that asks for it.

    Parameters
    ----------
    name : str, optional
        Name of the region, as of `multiprocessing.shared_memory.SharedMemory`, which
        finds it too. A new region without one gets one.
    create : bool, optional
        Make a new region, instead of opening an existing one.
    size : int, optional
        Bytes of a new region. Of an existing one, the bytes that it has at least.
    pin : bool, optional
        Page-lock the region in this process at once, as `pin` does. Without it, CUDA
        is not used, and `pin` can follow.
    huge : bool, optional
        Demand huge pages that the system has reserved. Otherwise the region lies in
        ordinary pages, or in transparent huge pages where the system makes them of
        shared memory.
    read_only : bool, optional
        Map an existing region for reading.
    numa : {'policy', 'device'}, int or None, optional
        NUMA node of a new region, as for `pinned_empty`. Without `pin`, the policy is
        followed only once CUDA is in use.
    pieces : bool, optional
        Register the region in pieces of 64 MiB, as `pinned_empty` does, so that nobody
        on the machine waits for all of it. The driver refuses another library's copy
        across the border of two. No item lies across one where its size is a power of
        two, up to 64 MiB, and its array begins at a multiple of that.

    Raises
    ------
    FileExistsError
        A new region's name is taken.
    FileNotFoundError
        There is no region of this name.
    OutOfMemoryError
        The machine, a cgroup, the file system or the reserved huge pages have less
        than `size`, or the driver cannot page-lock it; nothing is left behind.
    ValueError
        The name, the size or the options do not fit.
    PermissionError
        The region is another user's, or the system lets this process choose no NUMA node.
    DriverNotFoundError
        No driver library could be opened, and the region was to be page-locked.

    Notes
    -----
    Uses ``cuMemHostRegister``. The memory of a new region is zero and reserved at
    once, and gets its name when it is ready: a process that is killed before leaves
    nothing. From then on the system keeps the region, a file in ``/dev/shm``, until
    `unlink`, also when all of its processes have ended; `SharedMemory.anonymous` makes
    one that goes with them. There is no resource tracker that takes it from processes
    that still use it.

    A pickled region is opened again where it is unpickled, without page-locking it:
    workers that only fill it then use no CUDA. Nor does a forked child, which has the
    region from its parent; it may call `pin` if CUDA was not used before the fork.

    Examples
    --------
    >>> memory = cu.SharedMemory(create=True, size=4000)
    >>> frames = memory.array((10, 100), np.float32)
    >>> frames[0] = 1
    >>> with cu.SharedMemory(memory.name, read_only=True) as other:
    ...     float(other.array((10, 100), np.float32)[0, 0])
    1.0
    >>> memory.unlink()
    """

    _mapping: _Mapping | None
    _name: str | None
    _lease: Callable[[], _Lease | None]
    _file: int  # of a nameless region, for others; -1: none
    _pieces: bool

    def __init__(
        self,
        name: str | None = None,
        create: bool = False,
        size: SupportsIndex = 0,
        *,
        pin: bool = True,
        huge: bool = False,
        read_only: bool = False,
        numa: NumaLike = "policy",
        pieces: bool = False,
    ) -> None:
        self._pieces = bool(pieces)
        if name is not None:
            name = shared_files.check_name(name)
        size = operator.index(size)
        if create and read_only:
            raise ValueError("a new region is not read-only: its maker fills it")
        if huge and not create:
            raise ValueError("huge=True is for a new region: an existing one keeps its pages")
        if create:
            path = name and shared_files.path_of(name)
            if path and os.path.lexists(path):
                raise shared_files.exists(path)
            self._make(name, True, size, pin, huge, numa)
            return
        if numa != "policy":
            raise ValueError("numa is for a new region: an existing one lies where it lies")
        if name is None:
            raise ValueError("SharedMemory() needs the name of a region, or create=True and a size")
        file = shared_files.attach(name, read_only)
        try:
            self._open(file, name, read_only)
        finally:
            os.close(file)
        if size > self._size:
            raise ValueError(f"{name!r} has {self._size} bytes, not {size}")
        if pin:
            self.pin()

    @staticmethod
    def anonymous(
        size: SupportsIndex,
        *,
        pin: bool = True,
        huge: bool = False,
        numa: NumaLike = "policy",
        pieces: bool = False,
    ) -> SharedMemory:
        """Make a region without a name, which the system frees with its last process.

        Parameters
        ----------
        size : int
            Bytes.
        pin, huge, numa, pieces : optional
            As for a region with a name.

        Returns
        -------
        SharedMemory
            Its `name` is None. Other processes get it from this one: forked children
            have it, and it can be pickled where `multiprocessing` pickles: as an
            argument of a process, or through a pipe or a queue.

        Raises
        ------
        OutOfMemoryError
            As for a region with a name.
        ValueError
            The size is not positive.

        Notes
        -----
        However its processes end, nothing is left behind. The size of ``/dev/shm`` does
        not limit it. What is sent through a pipe or a queue must be received while the
        sender lives.

        Examples
        --------
        >>> memory = cu.SharedMemory.anonymous(1 << 20)
        >>> memory.size
        1048576
        """
        self = SharedMemory.__new__(SharedMemory)
        self._pieces = bool(pieces)
        self._make(None, False, operator.index(size), pin, huge, numa)
        return self

    def _make(
        self, name: str | None, named: bool, size: int, pin: bool, huge: bool, numa: NumaLike
    ) -> None:
        self._name = None
        if size <= 0:
            raise ValueError(f"the size of a new region is a positive number of bytes, not {size}")
        node = node_of(numa)
        if pin:
            _core.init()  # before any memory is taken
        file = shared_files.make(size, named, huge, now(node))
        given: list[str] = []  # the file's paths
        try:
            self._open(file, name, False)
            if pin:
                self.pin()
            if named:
                self._name = shared_files.give_name(file, name, huge, given)
        except BaseException:
            shared_files.take_names(file, given)
            os.close(file)
            self._mapping = None  # the error's traceback may hold this
            raise
        if named:
            os.close(file)
        else:
            self._file = file

    def _open(self, file: int, name: str | None, read_only: bool) -> None:
        self._mapping = _Mapping(file, read_only)
        self._lease, self._name, self._file = _no_lease, name, -1
        self._size, self._read_only = self._mapping.bytes.nbytes, read_only

    @property
    def name(self) -> str | None:
        """Name of the region, without a slash; None if it has none."""
        return self._name

    @property
    def size(self) -> int:
        """Bytes of the region; with huge pages, whole pages."""
        return self._size

    @property
    def buf(self) -> memoryview:
        """The bytes of the region, which cannot be closed while this is held."""
        return self._bytes().data

    @property
    def closed(self) -> bool:
        """Whether this is closed."""
        return self._mapping is None

    @overload
    def array(
        self,
        shape: ShapeLike,
        dtype: type[float] | Literal["float64"] | None = "float64",
        offset: SupportsIndex = 0,
    ) -> NDArray[np.float64]: ...
    @overload
    def array(
        self, shape: ShapeLike, dtype: type[ScalarT] | np.dtype[ScalarT], offset: SupportsIndex = 0
    ) -> NDArray[ScalarT]: ...
    @overload
    def array(
        self, shape: ShapeLike, dtype: DTypeLike | None, offset: SupportsIndex = 0
    ) -> NDArray[Any]: ...
    def array(
        self, shape: ShapeLike, dtype: DTypeLike | None = "float64", offset: SupportsIndex = 0
    ) -> NDArray[Any]:
        """Return an ndarray of a part of the region.

        Parameters
        ----------
        shape : int or sequence of int
            Lengths of the dimensions.
        dtype : dtype_like, optional
            Type of an item.
        offset : int, optional
            Byte of the region where the array begins.

        Returns
        -------
        numpy.ndarray
            It keeps the region mapped, and page-locked, as long as it lives. It cannot
            be written if the region was opened for reading.

        Raises
        ------
        ValueError
            The array reaches beyond the region, or this is closed.
        TypeError
            The items are Python objects.

        Examples
        --------
        >>> memory = cu.SharedMemory.anonymous(4096)
        >>> memory.array((4, 8), np.int32, offset=1024).any().item()
        False
        """
        lengths, kind = lengths_of(shape), item_type(dtype)
        if kind.hasobject:
            raise TypeError(f"dtype {kind} holds Python objects: they cannot be shared")
        begin, nbytes = operator.index(offset), math.prod(lengths) * kind.itemsize
        if begin < 0 or begin + nbytes > self._size:
            raise ValueError(
                f"an array of {nbytes} bytes at offset {begin} is not in a region of {self._size}"
            )
        return over(self._bytes(), lengths, kind, begin)

    def _bytes(self) -> NDArray[np.uint8]:
        with _lock:
            mapping, lease = self._mapped(), self._lease()
            if lease is None:
                lease = _Lease(mapping)
                self._lease = weakref.ref(lease)
        return np.asarray(lease)

    def _mapped(self) -> _Mapping:
        if self._mapping is None:
            raise ValueError("this SharedMemory is closed")
        return self._mapping

    def pin(self) -> None:
        """Page-lock the region in this process, if it is not.

        Raises
        ------
        OutOfMemoryError
            The system or the driver refuses.
        ForkedProcessError
            This process was forked from one in which CUDA was initialised.
        ValueError
            Another pin holds a part of the memory, or this is closed.

        Notes
        -----
        Uses ``cuMemHostRegister``; several threads touch the memory before. It stays
        page-locked until `close`, or until this and the last array have gone. While the
        driver works on it, every copy of this process waits; `pin_async` of an array of
        the region does the same beside other work.

        Examples
        --------
        >>> memory = cu.SharedMemory.anonymous(4096, pin=False)
        >>> cu.is_pinned(memory.buf)
        False
        >>> memory.pin()
        >>> cu.is_pinned(memory.buf)
        True
        """
        mapping = self._mapped()
        if self._name is not None:
            shared_files.check_filled(self._name)
        _core.init()  # a forked child is told here
        if mapping.pin is None:
            pin = page_lock(mapping.bytes)
            # Threads touch it first. H200, 8 GiB: 17.8 GB/s, by the driver alone 4.0; in four
            # processes at once 7.5 and 2.3.
            try:
                if self._pieces:
                    cut.lock(pin, 1, not mapping.read_only)
                else:
                    cut.lock_whole(pin, 0, not mapping.read_only)
            except BaseException:
                pin.close()
                raise
            mapping.pin = pin

    def close(self) -> None:
        """Unlock and unmap the region in this process.

        Raises
        ------
        BufferError
            Arrays or memoryviews of it are alive; nothing was done. The end of a ``with``
            block does not raise it: the region goes with the last of them.
        CudaError
            The driver cannot unlock the memory.

        Notes
        -----
        A second call does nothing. Where it is not called, the region goes with the
        object and its last array. Other processes keep theirs.

        Examples
        --------
        >>> memory = cu.SharedMemory.anonymous(4096)
        >>> memory.close()
        >>> memory.closed
        True
        """
        with _lock:
            if self._lease() is not None:
                raise BufferError(
                    "cannot close this SharedMemory: arrays or memoryviews of it are alive. Drop "
                    "them first, or drop all: the region goes with the last of them"
                )
            mapping, self._mapping = self._mapping, None
            file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
        if mapping is not None and mapping.pin is not None:
            mapping.pin.close()

    def unlink(self) -> None:
        """Take the region's name away; it goes when the last process has closed it.

        Raises
        ------
        FileNotFoundError
            The name is gone already.

        Notes
        -----
        Does nothing if the region never had a name. Works after `close`, too.

        Examples
        --------
        >>> memory = cu.SharedMemory(create=True, size=4096)
        >>> memory.unlink()
        """
        if self._name is not None:
            os.unlink(shared_files.path_of(self._name))

    def __enter__(self) -> Self:
        """Return the region itself."""
        self._mapped()
        return self

    def __exit__(
        self, *exception: type[BaseException] | BaseException | TracebackType | None
    ) -> None:
        """Close it: at once, or when the last array of it goes."""
        with _lock:
            file, mapping = self._file, self._mapping
            self._file, self._mapping = -1, None
            used = self._lease() is not None
        if file >= 0:
            os.close(file)
        if mapping is not None and mapping.pin is not None and not used:
            mapping.pin.close()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        file, self._file = getattr(self, "_file", -1), -1  # another's finalizer may close it, too
        if file >= 0:
            close(file)

    def __reduce__(self) -> tuple[Callable[..., SharedMemory], tuple[Any, ...]]:
        self._mapped()
        if self._name is not None:
            return _opened, (type(self), self._name, self._read_only, self._pieces)
        from multiprocessing.reduction import DupFd

        return _received, (type(self), DupFd(self._file), self._pieces)

    def __repr__(self) -> str:
        name = "" if self._name is None else f" {self._name!r}"
        closed = ", closed" if self.closed else ""
        return f"<SharedMemory{name} of {self._size} bytes{closed}>"


SharedMemory.__module__ = "cudriver"


def _no_lease() -> None:
    return None


def _opened(kind: type[SharedMemory], name: str, read_only: bool, pieces: bool) -> SharedMemory:
    return kind(name, pin=False, read_only=read_only, pieces=pieces)


def _received(kind: type[SharedMemory], descriptor: Any, pieces: bool) -> SharedMemory:
    self = kind.__new__(kind)
    self._pieces = pieces
    file = descriptor.detach()
    try:
        self._open(file, None, False)
    except BaseException:
        os.close(file)
        raise
    self._file = file
    return self

"""The C core. Every name that a user needs is re-exported by ``cudriver``."""

from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from types import GenericAlias, TracebackType
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    NoReturn,
    Self,
    SupportsIndex,
    SupportsInt,
    final,
    overload,
)

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cudriver.memory.arrays import ArrayFlags
from cudriver.memory.contexts import ContextLimits, MemoryInfo, StreamPriorityRange
from cudriver.memory.devices import Device
from cudriver.typing import (
    AnyArray,
    BasicIndex,
    DeviceLike,
    EventLike,
    HostArray,
    HostArrayT,
    ScalarT,
    ScalarT_co,
    ShapeLike,
    StreamLike,
)

_stream_scope: ContextVar[tuple[Stream, ...]]
_LadderKernel = Literal["read", "write", "shared_read", "shared_write"]

@final
class Context:
    """A context of your own, beside the device's primary one.

    Parameters
    ----------
    device : Device or what `Device` takes, optional
        Where to create it.
    flags : int or ContextFlags, optional
        How it waits for the device.

    Raises
    ------
    ValueError
        There is no such device, or no such flag.
    CudaError
        The driver refuses, for example for lack of memory.

    Notes
    -----
    Uses ``cuCtxCreate``. The new context is on no thread's stack: `push` it, or use
    ``with``. It is destroyed with its last owner, or by `close`.

    Examples
    --------
    >>> with cu.Context(0) as context:
    ...     array = cu.device_zeros(4)
    >>> array.context is context
    True
    """

    def __new__(cls, device: DeviceLike | None = 0, *, flags: int = 0) -> Self: ...
    @property
    def device(self) -> Device:
        """Device of the context."""
    @property
    def closed(self) -> bool:
        """Whether the context is closed, or was reset."""
    @property
    def is_primary(self) -> bool:
        """Whether this is the device's primary context."""
    @property
    def handle(self) -> int:
        """Handle (CUcontext) as an int, for other libraries."""
    @property
    def exists(self) -> bool:
        """Whether the context exists on the device; of a primary context, whether anybody in this
        process holds it (cuDevicePrimaryCtxGetState). `current_context` says which one is current.
        """
    @property
    def flags(self) -> int:
        """Flags as an int: see ContextFlags (cuCtxGetFlags)."""
    @property
    def limits(self) -> ContextLimits:
        """Mapping of the limits, in bytes or counts: stack_size, printf_fifo_size,
        malloc_heap_size, dev_runtime_sync_depth, dev_runtime_pending_launch_count,
        max_l2_fetch_granularity and persisting_l2_cache_size. Assignment sets one; the driver may
        round it (cuCtxSetLimit).
        """
    @property
    def cache_config(self) -> Literal["none", "shared", "l1", "equal"]:
        """What on-chip memory is preferred for: 'none', 'shared', 'l1' or 'equal'. Devices whose
        split is fixed ignore it (cuCtxSetCacheConfig).
        """
    @cache_config.setter
    def cache_config(self, value: Literal["none", "shared", "l1", "equal"]) -> None: ...
    @property
    def stream_priority_range(self) -> StreamPriorityRange:
        """Priorities (least, greatest) of streams. Smaller numbers come first: least >= greatest
        (cuCtxGetStreamPriorityRange).
        """
    @property
    def api_version(self) -> int:
        """API version that it was made with, such as 3020 (cuCtxGetApiVersion)."""
    def push(self) -> None:
        """Put the context on this thread's stack, which makes it current.

        Raises
        ------
        InvalidContextError
            It is closed or was reset.

        Notes
        -----
        Uses ``cuCtxPushCurrent``.
        """
    def pop(self) -> None:
        """Take the context off this thread's stack.

        Raises
        ------
        InvalidContextError
            Another one is current here; then nothing has changed.

        Notes
        -----
        Uses ``cuCtxPopCurrent``.
        """
    def close(self) -> None:
        """Destroy a manual context, or release a primary one.

        Raises
        ------
        InvalidContextError
            It is on a thread's stack, or arrays, streams or events live in it, or a
            call or an asynchronous copy is under way there.

        Notes
        -----
        Uses ``cuCtxDestroy`` or ``cuDevicePrimaryCtxRelease``. A second call does
        nothing. Page-locked arrays outlive the context.
        """
    def synchronize(self) -> None:
        """Wait for all work in the context.

        Raises
        ------
        CudaError
            Work in the context has failed, or a Stream in it is being captured.

        Notes
        -----
        Uses ``cuCtxSynchronize``. Other threads run meanwhile. Ctrl-C interrupts the
        wait, but not where only a non-blocking stream of another library is at work: the
        driver has no question for that.
        """
    def memory_info(self) -> MemoryInfo:
        """Return the free and total memory of the context's device (cuMemGetInfo).

        Returns
        -------
        MemoryInfo
            A named tuple ``(free, total)`` in bytes.
        """
    def __enter__(self) -> Self:
        """Put the context on this thread's stack, as push() does."""
    def __exit__(
        self,
        *exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None:
        """Take the context off this thread's stack, as pop() does."""

@final
class Stream:
    """A queue of work that the device does in order.

    Parameters
    ----------
    priority : int, optional
        Smaller numbers come first; see `Context.stream_priority_range`.
    device : Device or what `Device` takes, optional
        Where to create it: in the current context if that is on the device, else in
        the device's primary one. The default is the current context.

    Raises
    ------
    ValueError
        The priority is out of range, or there is no such device.

    Notes
    -----
    Uses ``cuStreamCreateWithPriority``, non-blocking: the work of other streams and
    of the default stream runs beside it. In ``with stream:`` it is the stream of
    this thread or asyncio task for calls that are given none; the end of the block
    does not wait.

    Examples
    --------
    >>> stream = cu.Stream()
    >>> array = cu.to_device(np.arange(3), stream=stream)
    >>> stream.synchronize()
    >>> array.to_numpy()
    array([0, 1, 2])
    """

    def __new__(cls, priority: int = 0, *, device: DeviceLike | None = None) -> Self: ...
    @property
    def done(self) -> bool:
        """Whether all work in the stream is over (cuStreamQuery)."""
    @property
    def handle(self) -> int:
        """Handle (CUstream) as an int, for other libraries."""
    @property
    def priority(self) -> int:
        """Priority; smaller numbers come first."""
    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
    @property
    def context(self) -> Context:
        """Context of the stream."""
    @property
    def device(self) -> Device:
        """Device of the stream."""
    def synchronize(self) -> None:
        """Wait for all work that was issued on the stream so far.

        Raises
        ------
        CudaError
            The work has failed.

        Notes
        -----
        Uses ``cuEventRecord`` and ``cuEventQuery``. Other threads run meanwhile, and
        Ctrl-C interrupts the wait, not the work.
        """
    def record(self, event: Event | None = None) -> Event:
        """Record an event behind the work so far.

        Parameters
        ----------
        event : Event, optional
            An event of the stream's own context. By default a new one is made.

        Returns
        -------
        Event
            The event that was recorded.

        Raises
        ------
        ValueError
            The event belongs to another context.

        Notes
        -----
        Uses ``cuEventRecord``.
        """
    def wait(self, other: EventLike | StreamLike, /) -> None:
        """Let work queued from here on wait for an event or another stream.

        Parameters
        ----------
        other : Event or Stream
            An event, or the stream whose work so far is waited for; ours, or of PyTorch,
            CuPy, Numba, cuda-core or what else has ``__cuda_stream__``, or a ``CUevent``
            or ``CUstream`` of cuda.bindings.

        Notes
        -----
        Uses ``cuStreamWaitEvent``. The device waits; this call does not. Another
        library's default stream is that of this stream's context.
        """
    def close(self) -> None:
        """Destroy the stream; one of another library (see `from_handle`) is only released.

        Raises
        ------
        ValueError
            A running call uses it.

        Notes
        -----
        Uses ``cuStreamDestroy``. The work in it is finished first, in the background.
        A second call does nothing.
        """
    @classmethod
    def from_handle(cls, handle: SupportsInt | StreamLike, /) -> Self:
        """Return a stream that another library owns.

        Parameters
        ----------
        handle : int or object
            A ``CUstream`` or ``cudaStream_t`` as an int, or another library's stream object,
            which the result keeps alive. 0 and 1 are the legacy default stream, 2 is the
            per-thread default stream, of the context that is current now.

        Returns
        -------
        Stream
            Its `close` releases the other library's stream and does not destroy it.

        Raises
        ------
        TypeError
            `handle` is neither an int nor a stream.
        ValueError
            The int is negative or too large.
        CudaError
            The driver does not know the handle.

        Notes
        -----
        Uses ``cuStreamGetCtx`` and ``cuStreamGetPriority``. If you pass an int, keep the stream
        alive yourself. An int that is not a stream's handle may crash the process in the
        driver. Streams of PyTorch, CuPy, Numba and cuda-core need no `from_handle`: pass them
        as they are, wherever a stream is taken.

        Examples
        --------
        >>> theirs = cu.Stream()
        >>> stream = cu.Stream.from_handle(theirs.handle)
        >>> array = cu.device_zeros(3, stream=stream)
        >>> stream.synchronize()
        """
    def __cuda_stream__(self) -> tuple[int, int]:
        """Return (0, handle), the protocol by which other libraries take the stream."""
    def __enter__(self) -> Self:
        """Make the stream the default, in this thread or task, for calls that are given none."""
    def __exit__(
        self,
        *exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None:
        """End what `__enter__` began. Does not wait."""

@final
class Event:
    """A mark in a stream's work, which the host or another stream can wait for.

    Parameters
    ----------
    timing : bool, optional
        Whether the event notes the time, which costs a little.
    device : Device or what `Device` takes, optional
        Where to create it: in the current context if that is on the device, else in
        the device's primary one. The default is the context of the enclosing
        ``with stream:``, else the current one.

    Raises
    ------
    ValueError
        There is no such device.

    Notes
    -----
    Uses ``cuEventCreate``. An event belongs to one context, and only streams of
    that context record it.

    Examples
    --------
    >>> start, end = cu.Event(timing=True), cu.Event(timing=True)
    >>> with cu.Stream():
    ...     marked = start.record()
    ...     array = cu.device_zeros(1000)
    ...     end.record().synchronize()
    >>> start.elapsed_time(end) >= 0
    True
    """

    def __new__(cls, timing: bool = False, *, device: DeviceLike | None = None) -> Self: ...
    @property
    def done(self) -> bool:
        """Whether the marked work is over; True before the first record (cuEventQuery)."""
    @property
    def _recorded(self) -> bool: ...
    @property
    def timing(self) -> bool:
        """Whether the event notes the time."""
    @property
    def handle(self) -> int:
        """Handle (CUevent) as an int, for other libraries."""
    @property
    def closed(self) -> bool:
        """Whether the event is closed."""
    @property
    def context(self) -> Context:
        """Context of the event."""
    @classmethod
    def from_handle(cls, handle: SupportsInt | EventLike, /) -> Event:
        """Return an event that another library owns.

        Parameters
        ----------
        handle : int or object
            A ``CUevent`` or ``cudaEvent_t`` as an int, or another library's event object,
            which the result keeps alive.

        Returns
        -------
        Event
            Its `close` releases the other library's event and does not destroy it.

        Raises
        ------
        TypeError
            `handle` is neither an int nor an event.
        ValueError
            The int is 0, negative or too large.

        Notes
        -----
        Calls no CUDA function. If you pass an int, keep the event alive yourself. An int
        that is not an event's handle may crash the process in the driver. `context` is the
        one that is current now; streams of the event's own context record it.

        Examples
        --------
        >>> theirs = cu.Stream().record()
        >>> event = cu.Event.from_handle(theirs.handle)
        >>> event.synchronize()
        >>> event.done
        True
        """
    def record(self, stream: StreamLike | None = None) -> Self:
        """Mark the work queued on a stream so far.

        Parameters
        ----------
        stream : Stream, optional
            The default is the enclosing ``with stream:``, else the default stream.

        Returns
        -------
        Event
            The event itself.

        Raises
        ------
        ValueError
            The stream belongs to another context.

        Notes
        -----
        Uses ``cuEventRecord``.
        """
    def wait(self, stream: StreamLike | None = None) -> None:
        """Let work queued on a stream from here on wait for the event.

        Parameters
        ----------
        stream : Stream, optional
            Of any device. The default is the enclosing ``with stream:``, else the
            default stream.

        Notes
        -----
        Uses ``cuStreamWaitEvent``. The device waits; this call does not.
        """
    def synchronize(self) -> None:
        """Wait for the work that the event marks.

        Raises
        ------
        CudaError
            The work has failed.

        Notes
        -----
        Uses ``cuEventQuery``. Other threads run meanwhile, and Ctrl-C interrupts the
        wait, not the work.
        """
    def elapsed_time(self, end: Event, /) -> float:
        """Return the milliseconds from this event's record to a later one's.

        Parameters
        ----------
        end : Event
            The later event, of the same context.

        Returns
        -------
        float
            Milliseconds, to about 0.0005.

        Raises
        ------
        ValueError
            An event takes no time, was not recorded or not reached yet, or the two are
            of different contexts.

        Notes
        -----
        Uses ``cuEventElapsedTime``.
        """
    def close(self) -> None:
        """Destroy the event.

        Raises
        ------
        ValueError
            A running call uses it.

        Notes
        -----
        Uses ``cuEventDestroy``. A second call does nothing.
        """

@final
class Transfer:
    """An asynchronous copy that was issued, as `copy_async` returns it.

    Notes
    -----
    `wait` for it, look at `done`, or ``await`` it. It keeps both ends alive until
    the copy is over, even if the Transfer itself is dropped.

    Examples
    --------
    >>> there = cu.device_empty(3)
    >>> transfer = cu.copy_async(there, cu.pinned_zeros(3), cu.Stream())
    >>> transfer.wait()
    >>> transfer.nbytes
    24
    """

    @property
    def done(self) -> bool:
        """Whether the copy is over. Does not wait. Raises where the copy failed."""
    @property
    def nbytes(self) -> int:
        """Bytes that it moves."""
    def wait(self) -> None:
        """Wait until the copy is over.

        Raises
        ------
        CudaError
            The copy failed, or its stream is being captured into a graph now.

        Notes
        -----
        Other threads run meanwhile. Ctrl-C interrupts the wait; the copy goes on, and
        keeps its ends alive.
        """
    def __await__(self) -> Generator[Any]: ...

@final
class DeviceArray(Generic[ScalarT_co]):
    """An array in a device's memory.

    Notes
    -----
    In annotations, ``DeviceArray[np.float32]`` names the type of an item.

    `device_empty`, `device_zeros` and `to_device` make one. Basic indexing gives
    views, as NumPy's does: ``a[2:5, ::-1]``, ``a[..., 0]``, ``a[None]``. An array
    keeps its context alive. Its memory is freed with its last owner, or by `close`.

    ``a[key] = value`` fills with a scalar, which is cast, or copies an array, which
    must have the same dtype and is broadcast; it is ordered as `fill` and `copy`
    are. An array is a key in a dict by its identity: ``==`` between two raises.

    Examples
    --------
    >>> array = cu.to_device(np.arange(6).reshape(2, 3))
    >>> array[:, ::2].to_numpy()
    array([[0, 2],
           [3, 5]])
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions, as a tuple."""
    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one item to the next along each dimension, as a tuple."""
    @property
    def dtype(self) -> np.dtype[ScalarT_co]:
        """Type of an item, a numpy.dtype."""
    @property
    def ndim(self) -> int:
        """Number of dimensions."""
    @property
    def size(self) -> int:
        """Number of items."""
    @property
    def itemsize(self) -> int:
        """Bytes of one item."""
    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
    @property
    def T(self) -> Self:
        """View with the axes in reverse order."""
    @property
    def flags(self) -> ArrayFlags:
        """How the array lies in memory: an ArrayFlags, a named tuple of bools."""
    @property
    def pointer(self) -> int:
        """Device address of the first item (CUdeviceptr) as an int. Once it has been read, the
        memory is freed only after all work of its context, as cuMemFree does.
        """
    @property
    def device(self) -> Device:
        """Device of the array."""
    @property
    def context(self) -> Context:
        """Context of the array."""
    @property
    def closed(self) -> bool:
        """Whether the memory has been freed."""
    @property
    def _address(self) -> int:
        """`pointer`, for this package."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Protocol by which other libraries take the array without a copy (version 3)."""
    __dlpack_c_exchange_api__: ClassVar[Any]
    def __dlpack__(
        self,
        *,
        stream: SupportsIndex | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[SupportsIndex, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export the array to another library, without a copy.

        Parameters
        ----------
        stream : int, optional
            The stream that is to wait for work of this package in flight on the array's
            memory: a handle, 1 (the legacy default stream, also for None), 2 (the
            thread's default stream), or -1 (none waits).
        max_version : tuple of int, optional
            The newest version that the other library knows. From (1, 0) on it gets a
            versioned tensor.
        dl_device : tuple of int, optional
            Where the memory is to be: the array's own device, or ``(1, 0)``, the CPU, for
            which it is copied.
        copy : bool, optional
            True for a copy, False for none in any case.

        Returns
        -------
        capsule
            It keeps the array alive, and `close` is refused until it is given back.

        Raises
        ------
        BufferError
            The array cannot be exported as asked.

        Notes
        -----
        Other libraries call this, as in ``torch.from_dlpack(array)``. Uses
        ``cuStreamWaitEvent``; the host does not wait.
        """
    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's type of the device (2, CUDA) and its ordinal."""
    def fill(self, value: Any, *, stream: StreamLike | None = None) -> None:
        """Set every item to a value.

        Parameters
        ----------
        value : scalar
            Cast to the array's dtype.
        stream : Stream, optional
            The stream in whose order to fill. Without one, the call waits.

        Raises
        ------
        TypeError, ValueError, OverflowError
            NumPy cannot cast the value to the dtype, or it is no scalar.

        Notes
        -----
        Uses ``cuMemsetD8Async`` and its kin, or a copy for items of other sizes.
        """
    @overload
    def to_numpy(
        self, out: None = None, *, stream: StreamLike | None = None
    ) -> NDArray[ScalarT_co]:
        """Return the items in host memory, and wait for the copy.

        Parameters
        ----------
        out : array, optional
            Where to copy: an array in host memory that `cudriver.copy` takes, of the same
            shape and dtype.
        stream : Stream, optional
            The stream in whose order to copy: work queued there is done first.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array in C order.
        """
    @overload
    def to_numpy(self, out: HostArrayT, *, stream: StreamLike | None = None) -> HostArrayT: ...
    def copy(self, *, stream: StreamLike | None = None) -> Self:
        """Return a copy on the same device.

        Parameters
        ----------
        stream : Stream, optional
            The stream in whose order to copy. Without one, the call waits.

        Returns
        -------
        DeviceArray
            In C order, with memory of its own.

        Raises
        ------
        OutOfMemoryError
            The device has too little memory; the message says how much is free.

        Notes
        -----
        Calls what `device_empty` and `cudriver.copy` call. Python's `copy.copy`
        and `copy.deepcopy` work, too.
        """
    def __copy__(self) -> Self:
        """Return copy()."""
    def __deepcopy__(self, memo: Any, /) -> Self:
        """Return copy()."""
    def __reduce__(self) -> NoReturn:
        """Raise TypeError: device memory cannot be pickled."""
    def close(self) -> None:
        """Free the memory now.

        Raises
        ------
        ValueError
            Views or running copies use it.

        Notes
        -----
        Uses ``cuMemFreeAsync`` or ``cuMemFree``. A second call does nothing.
        """
    @overload
    def transpose(self, axes: Sequence[SupportsIndex] | None = None, /) -> Self: ...
    @overload
    def transpose(self, *axes: SupportsIndex) -> Self:
        """Return a view with the axes in another order.

        Parameters
        ----------
        *axes : int, optional
            For each axis of the view, the axis of this array; as several ints or as one tuple.
            Without any, or with None, the order is reversed.

        Returns
        -------
        DeviceArray
            A view: nothing is copied.

        Raises
        ------
        ValueError
            An axis is missing, out of bounds, or named twice.

        Notes
        -----
        As `numpy.ndarray.transpose`. Calls no CUDA function.

        Examples
        --------
        >>> cu.device_empty((2, 3, 4)).transpose(1, 0, 2).shape
        (3, 2, 4)
        """
    @overload
    def reshape(self, shape: ShapeLike, /, *, order: Literal["C", "F"] = "C") -> Self: ...
    @overload
    def reshape(self, *shape: SupportsIndex, order: Literal["C", "F"] = "C") -> Self:
        """Return a view with another shape.

        Parameters
        ----------
        *shape : int
            The new lengths, as several ints or as one tuple. One may be -1: it is computed.
        order : {'C', 'F'}, optional
            The order in which items are read from this array and placed in the view: 'C', the last
            index changes fastest; 'F', the first does.

        Returns
        -------
        DeviceArray
            A view: nothing is copied.

        Raises
        ------
        ValueError
            The number of items differs, or the new shape needs a copy: call `copy` first.

        Notes
        -----
        As `numpy.reshape` with ``copy=False``. Calls no CUDA function.

        Examples
        --------
        >>> array = cu.to_device(np.arange(6))
        >>> array.reshape(2, -1).to_numpy()
        array([[0, 1, 2],
               [3, 4, 5]])
        >>> array.reshape(2, 3).T.copy().reshape(-1).to_numpy()
        array([0, 3, 1, 4, 2, 5])
        """
    @overload
    def view(self, dtype: type[ScalarT] | np.dtype[ScalarT]) -> DeviceArray[ScalarT]: ...
    @overload
    def view(self, dtype: DTypeLike) -> DeviceArray:
        """Return a view of the same bytes with another dtype.

        Parameters
        ----------
        dtype : dtype_like
            The new type of an item. If its size differs, the length of the last axis changes.

        Returns
        -------
        DeviceArray
            A view: nothing is copied.

        Raises
        ------
        TypeError
            The dtype holds Python objects.
        ValueError
            The size of an item differs, and the last axis is not contiguous, or its bytes are not
            a whole number of the new items.

        Notes
        -----
        As `numpy.ndarray.view`. Calls no CUDA function.

        Examples
        --------
        >>> cu.to_device(np.array([1.0], "f4")).view(np.uint32).to_numpy()
        array([1065353216], dtype=uint32)
        """
    def __array__(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        """Raise TypeError: a silent copy from the device is seldom meant. Call to_numpy()."""
    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        """Raise TypeError, as functions of NumPy do: it computes nothing in device memory."""
    def __format__(self, spec: str, /) -> str:
        """Return the repr; TypeError for a format."""
    @classmethod
    def __class_getitem__(cls, item: Any, /) -> GenericAlias:
        """Return a generic alias, for annotations: ``DeviceArray[np.float32]``."""
    @overload
    def __getitem__(self, key: str, /) -> DeviceArray: ...
    @overload
    def __getitem__(self, key: BasicIndex | tuple[BasicIndex, ...], /) -> Self: ...
    def __setitem__(
        self, key: str | BasicIndex | tuple[BasicIndex, ...], value: Any, /
    ) -> None: ...
    def __hash__(self) -> int: ...
    def __len__(self) -> int: ...

@final
class HostMemory:
    """A block of the pool of page-locked memory: the base of the arrays that lie in it."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

@final
class PageLock:
    """A page lock on memory of somebody else, closed until `lock`: array has it, and held, an
    ndarray over it, keeps it where it is. Both stay alive until the memory is unlocked.
    """

    def __new__(
        cls, array: HostArray, held: object, low: int, nbytes: int, writable: bool, /
    ) -> PageLock: ...
    @property
    def array(self) -> HostArray | None:
        """Whose memory it is; None once the lock was closed."""
    @property
    def closed(self) -> bool:
        """Whether the memory is not locked, yet or any more."""
    @property
    def nbytes(self) -> int:
        """Bytes from the lowest to the highest."""
    def lock(self, step: int, fresh: bool, /) -> bool:
        """Page-lock, at most `step` bytes in one driver call; 0: as many as one takes; -1: the
        same, and nobody stops it. False: `stop` has ended it. `fresh`: the memory is new, and
        is touched by several threads.
        """
    def stop(self) -> None:
        """End a `lock` that is under way in another thread, or that comes."""
    def close(self) -> None:
        """Unlock the memory that no other lock holds."""

def init() -> None:
    """Initialise the driver.

    Raises
    ------
    DriverNotFoundError
        No driver library could be opened.
    UnsupportedDriverError
        The driver is too old, or is the toolkit's stub library.
    CudaError
        The driver cannot be initialised.

    Notes
    -----
    Uses ``cuInit``. Every call that needs the driver does this itself, and a second
    call does nothing.

    Examples
    --------
    >>> cu.init()
    """

def current_context() -> Context | None:
    """Return the context that is current in this thread.

    Returns
    -------
    Context or None
        None if there is none; none is created.

    Raises
    ------
    CudaError
        The current context was destroyed by another library.

    Notes
    -----
    Uses ``cuCtxGetCurrent``.

    Examples
    --------
    >>> with cu.Context() as context:
    ...     cu.current_context() is context
    True
    """

def context_stack() -> list[Context]:
    """Return the contexts on this thread's stack.

    Returns
    -------
    list of Context
        The bottom first, those of other libraries included. It ends at a context that was
        destroyed: what lies below that cannot be read.

    Notes
    -----
    Reads the driver's own stack: ``cuCtxPopCurrent`` as far as it goes, then
    ``cuCtxPushCurrent`` in the reverse order.

    Examples
    --------
    >>> with cu.Context() as context:
    ...     cu.context_stack()[-1] is context
    True
    """

def copy(dst: AnyArray, src: AnyArray, /) -> None:
    """Copy an array into another one, and wait.

    Parameters
    ----------
    dst : array
        Where to, with any strides: a DeviceArray, a NumPy array, or an object with
        ``__cuda_array_interface__``, ``__dlpack__``, the buffer protocol or
        ``__array_interface__``.
    src : array
        Where from: any such array of the same shape and dtype.

    Raises
    ------
    TypeError, ValueError
        An end is not an array, the two do not fit, or ``dst`` is some fields of records,
        which the copy of whole items would damage. Nothing was copied.
    CudaError
        The copy failed.

    Notes
    -----
    `explain_copy` names the path, and with it the CUDA function. The copy is
    ordered after the work of the enclosing ``with stream:``, else of the default
    stream, and after every call of this package in flight on a DeviceArray's
    memory. Other threads run meanwhile. Ctrl-C interrupts the wait; a copy of at
    most 2 MiB, or 64 MiB within a device, may be queued by then, and goes on.

    Examples
    --------
    >>> array = cu.device_empty(3, np.int64)
    >>> cu.copy(array, np.arange(3))
    >>> array.to_numpy()
    array([0, 1, 2])
    """

def copy_async(
    dst: AnyArray, src: AnyArray, /, stream: StreamLike | None = None, *, borrow: bool = False
) -> Transfer:
    """Copy an array into another one in the order of a stream.

    Parameters
    ----------
    dst : array
        Where to: any array that `copy` takes. Do not read it before the copy is over.
    src : array
        Where from: any such array of the same shape and dtype. Ordinary (pageable)
        memory has been read when the call returns. Page-locked and device memory is
        read later: do not change it before the copy is over.
    stream : Stream, optional
        The default is the enclosing ``with stream:``, else the default stream.
    borrow : bool, optional
        Return at once, and read ordinary memory later too.

    Returns
    -------
    Transfer
        What to wait for. It keeps both ends alive until the copy is over.

    Raises
    ------
    TypeError, ValueError
        An end is not an array, or the two do not fit. Nothing was copied.
    CudaError
        The driver refuses the copy. Or the stream is being captured into a graph:
        copy before or after the capture. The capture goes on.

    Notes
    -----
    `explain_copy` names the path, and with it the CUDA function. The call waits
    until the copy is over if the path is ``'host'``, ``'temporary'`` or
    ``'bounced'``, or if kernels in the stream's context cannot use the memory. For
    a copy of pageable memory, or a ``'staged'`` one, it waits where no thread or no
    page-locked memory can be had, or where the driver has no stream memory
    operations.

    Pageable memory is read in the call, into page-locked memory of cudriver's pool, and goes
    to the device from there in the stream's order; up to 64 KiB the driver does it. A
    stream that is busy does not delay the call unless 256 MiB have been read that
    their streams have not come to yet, or the limit of page-locked memory is
    reached. Then the call waits for the stream; Ctrl-C ends the wait. With `borrow`
    it needs no such memory.

    Examples
    --------
    >>> stream = cu.Stream()
    >>> host, there = cu.pinned_zeros(3), cu.device_empty(3)
    >>> transfer = cu.copy_async(there, host, stream)
    >>> transfer.wait()
    >>> transfer.done
    True
    """

def _ladder_copy(dst: AnyArray, src: AnyArray, /) -> None:
    """One cuMemcpyHtoD or cuMemcpyDtoH over the whole, whatever the host's memory is: the driver
    alone. Both ends C-ordered without gaps and of one size; else ValueError.
    """

def _ladder_kernel(
    kernel: _LadderKernel,
    memory: AnyArray,
    sums: DeviceArray,
    number: int,
    rounds: int,
    launches: int,
    /,
) -> list[float]:
    """Runs 'read', 'write', 'shared_read' or 'shared_write' over an array of the device or a
    mapped one of the host, and returns a list of `rounds` figures: seconds for one launch, by the
    device's events around `launches` of them. `sums` is a DeviceArray that gets a 32-bit word from
    each thread, and sets how many there are: 256 a block. `number` is what a write starts from, or
    how often a kernel goes over its 16 KiB of shared memory.
    """

def _drop_driver() -> bool:
    """Let another library be loaded. False: the driver is initialised."""

def _driver() -> tuple[str, int, bool]:
    """The path of the driver in use, its version (0: a stub), and whether it is simulated."""

def _explain_copy(dst: AnyArray, src: AnyArray, /) -> tuple[Any, ...]: ...
def _copy_many(
    destinations: tuple[AnyArray, ...],
    sources: tuple[AnyArray, ...],
    stream: StreamLike | None,
    apart: bool,
    mode: int,
    /,
) -> Any:
    """A Transfer; to explain, a list, which `memory/copies_plan.py` reads.

    `apart`: no destination overlaps another or a source. `mode`: of `memory/rows.py`.
    """

def _copy_rows(
    dst: AnyArray,
    src: AnyArray,
    dst_rows: NDArray[np.int64],
    src_rows: NDArray[np.int64],
    stream: StreamLike | None,
    mode: int,
    /,
) -> Any:
    """As `_copy_many`, or a tuple: an index is wrong, or the rows have to be copied one by one.

    How many rows each array has, and whether the arrays are known to lie apart.
    """

def _read_files(
    runs: NDArray[np.void],
    nbytes: int,
    piece: int,
    progress: NDArray[np.int64],
    stream: StreamLike,
    /,
) -> None:
    """Read parts of open files into device memory, and wait.

    runs: struct cudriver_file_run of engine/engine.h. nbytes: what travels of them, at
    least 1. piece: bytes of one read, at least 1. progress: bytes that were read so far, and
    what ended the reading: 0, the number of a run that could not be read, counted from 1, or a
    negative number that another thread has put there.
    """

def _copy_threads() -> tuple[int, int]:
    """Threads for copies of pageable memory, and the most that may be set."""

def _set_copy_threads(count: int, /) -> None:
    """Set how many; 0: as many as the process's processors suggest."""

def _pinned(
    shape: ShapeLike, dtype: DTypeLike | None, fortran: bool, node: int, zero: bool, /
) -> NDArray[Any]:
    """A new page-locked array."""

def _is_page_locked(low: int, nbytes: int, /) -> bool:
    """Whether the driver knows all of the memory as page-locked; False without a driver."""

def _host_memory_stats() -> tuple[Any, ...]: ...
def _trim(keep: int, /) -> int:
    """Return free memory of the pool to the system, but for `keep` bytes. The bytes returned."""

def _set_limit(nbytes: int, /) -> None:
    """Limit what the pool page-locks; 2**64 - 1: not."""

def _set_nodes(table: bytes, /) -> None:
    """`struct cudriver_nodes`, as memory/numa.py makes it."""

def _node() -> int:
    """The NUMA node of new page-locked memory now; -1: any, -2: it depends on the device."""

def _place(address: int, nbytes: int, node: int, /) -> int:
    """Ask for memory that is not touched yet to lie on a node (mbind): 0, or errno."""

def _ranges() -> bytes:
    """Address and bytes, each an uint64, of all memory that the pool and pins have page-locked."""

def _numpy_new(min_bytes: int, /) -> object:
    """A capsule with a new memory handler of NumPy's, which page-locks from so many bytes on."""

def _numpy_set(handler: object, /) -> object:
    """Put a handler in force in this context, in place of the one that is returned."""

def _numpy_forget(handler: object, /) -> None:
    """From here on the handler allocates ordinary memory."""

def _trace(enabled: bool, /) -> None:
    """Note where each object is made, or no longer."""

def _live() -> list[tuple[tuple[Any, ...], bool]]:
    """The fields of each Allocation, newest first, and whether it is a context that is kept."""

def _borrow(object: Any, never_copied: bool, /) -> DeviceArray | NDArray[Any]:
    """An array over the memory that an object lends by DLPack."""

def _export(
    array: DeviceArray, stream: int, old: bool, copied: bool, code: int, bits: int, /
) -> object:
    """A capsule of DLPack, of the kind before version 1.0 if `old`."""

def _device_empty(
    shape: ShapeLike,
    dtype: DTypeLike | None,
    device: DeviceLike | Context | None,
    stream: StreamLike | None,
    asked: bool,
    fortran: bool,
    axes: tuple[int, ...] | None,
    /,
) -> DeviceArray:
    """A new array on a device. asked: the caller has named it; else it is another array's. axes:
    the array is transposed so.
    """

def _lend(
    object: Any, own: bool, stream: StreamLike | None, /
) -> DeviceArray | NDArray[Any] | None:
    """What speaks a protocol of arrays as one of ours over its memory; None: it speaks none.
    own: not over a copy of it, which another library may lend. stream: of the copy that comes;
    None: one that waits.
    """

def _fill(array: DeviceArray, item: NDArray[Any], stream: StreamLike | None, /) -> Transfer | None:
    """Set every item to an array's only one, which nobody changes."""

def _views(
    array: DeviceArray, function: Callable[..., list[Any]], arguments: tuple[Any, ...], /
) -> list[DeviceArray]:
    """Views with the geometries that a function makes of the array's."""

def _mark(capsule: object, flags: int, kind: int, code: int, bits: int, /) -> None:
    """Write into a host tensor's capsule what NumPy does not know of it."""

def _primary_context(ordinal: int, /) -> Context: ...
def _reset_primary_context(ordinal: int, /) -> None: ...
def _context_for_use(device: DeviceLike | None, /) -> Context: ...
def _call(
    context: Context | None,
    function: str,
    shown: str,
    arguments: tuple[int | bytes | bytearray | Event | Stream, ...],
    /,
) -> None:
    """Call a function of the driver by its name, with the context current, if there is one.

    shown: the arguments that an error's message names. Bytes are passed by their address, an Event
    or a Stream by its handle; it cannot be closed during the call.
    """

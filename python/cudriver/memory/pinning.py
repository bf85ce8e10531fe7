"""Page-locking in a thread of its own, a piece at a time, while the program works."""

from __future__ import annotations

import atexit
import copy
import operator
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeVar, final, overload

import numpy as np

from cudriver import _core
from cudriver.memory import pieces, waiting
from cudriver.memory.fresh import fresh
from cudriver.memory.host import host_range, page_lock
from cudriver.memory.live import page_locked
from cudriver.memory.named import HOME

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from numpy.typing import DTypeLike, NDArray

    from cudriver.typing import HostArrayT, NumaLike, ScalarT, ShapeLike

EXIT_PATIENCE = 2.0  # seconds that the interpreter's exit waits for a thread

ArrayT = TypeVar("ArrayT")


class _Work:
    """The work of one thread. It holds no reference to the Pinning, whose end stops it, and none to
    the pin once it is over: whoever drops the Pinning then unlocks the memory.
    """

    def __init__(self) -> None:
        self.outcome: bool | BaseException | None = None  # locked; stopped; failed; under way
        self.over = threading.Event()  # an interrupted join() may take the thread for ended
        self.process = os.getpid()

    def start(self, pin: _core.PageLock, fresh: bool) -> None:
        self.fresh = fresh
        _running[self] = pin
        try:
            threading.Thread(target=self.run, name="cudriver-pin", daemon=True).start()
        except RuntimeError:  # no thread is to be had: do it at once
            self.run()
        except BaseException:  # Ctrl-C; the thread may still begin
            pin.stop()
            _running.pop(self, None)
            raise

    def run(self) -> None:
        outcome: bool | BaseException
        try:
            outcome = _running[self].lock(pieces.STEP, self.fresh)
        except BaseException as error:
            outcome = error.with_traceback(None)
        _running.pop(self, None)  # before it tells
        self.outcome = outcome
        self.over.set()

    @property
    def lost(self) -> bool:
        """Whether this is a forked child, which has no such thread."""
        return self.outcome is None and self.process != os.getpid()

    def join(self, timeout: float | None = None) -> None:
        if not self.lost:
            self.over.wait(timeout)


_running: dict[_Work, _core.PageLock] = {}


@atexit.register
def _stop_all() -> None:
    for work, pin in _running.copy().items():
        pin.stop()
        work.join(EXIT_PATIENCE)


class _Owner:
    """Stops the page-locking when neither the Pinning nor the array holds it any longer."""

    def __init__(self, pin: _core.PageLock) -> None:
        self.pin, self.work = pin, _Work()

    def __del__(self, stop: Callable[[_core.PageLock], None] = _core.PageLock.stop) -> None:
        if (pin := getattr(self, "pin", None)) is not None:
            stop(pin)


@final
class Pinning(Generic[ArrayT]):
    """Page-locking under way, as `pin_async` and `pinned_empty_async` return it.

    Notes
    -----
    `wait` for it, look at `done` and `progress`, or ``await`` it. The array may be
    used and copied meanwhile. Memory is page-locked from its lowest address on, in
    pieces, by a thread; a copy of memory that is locked by then goes directly, and
    one of other memory is staged.

    `close` ends the page-locking, whether it is done or not, as does the end of a
    ``with`` block.

    Examples
    --------
    >>> pinning = cu.pin_async(np.ones(1000))
    >>> pinning.wait()
    >>> pinning.done, pinning.progress
    (True, 1.0)
    >>> pinning.close()
    """

    __slots__ = ("__weakref__", "_array", "_closed", "_owner")

    _array: ArrayT
    _closed: bool
    _owner: _Owner

    def __init__(self) -> None:
        raise TypeError("pin_async() and pinned_empty_async() make a Pinning")

    @property
    def array(self) -> ArrayT:
        """Array whose memory is page-locked, until this is closed."""
        return self._array

    @property
    def nbytes(self) -> int:
        """Bytes to page-lock, from the lowest to the highest."""
        return self._owner.pin.nbytes

    @property
    def closed(self) -> bool:
        """Whether this is closed."""
        return self._closed

    @property
    def done(self) -> bool:
        """Whether all of the memory is page-locked; raises the error that ended it early."""
        work = self._owner.work
        if isinstance(work.outcome, BaseException):
            raise copy.copy(work.outcome)  # a traceback would keep the array in a cycle
        if self._closed or work.outcome is False:
            raise ValueError("this Pinning is closed")
        if work.lost:
            _core.init()  # raises ForkedProcessError
        return work.outcome is True

    @property
    def progress(self) -> float:
        """Part of the memory that is page-locked by now, from 0 to 1."""
        array, work = self._owner.pin.array, self._owner.work
        if self._closed or array is None or work.outcome is not None:
            return float(work.outcome is True and not self._closed)
        memory = host_range(array)
        locked = dict(page_locked()).get(memory.low, 0)
        return min(locked / max(memory.nbytes, 1), 1.0)

    def wait(self) -> None:
        """Wait until all of the memory is page-locked.

        Raises
        ------
        OutOfMemoryError
            The system or the driver refuses; nothing is left page-locked.
        CudaError
            Another call of the driver failed; nothing is left page-locked.
        ValueError
            Another pin holds a part of the memory, or this was closed before the end.

        Notes
        -----
        Other threads run meanwhile. Ctrl-C interrupts the wait; the page-locking goes
        on.
        """
        self._owner.work.join()
        operator.truth(self.done)

    def __await__(self) -> Generator[Any]:
        return waiting.wait(self)

    def close(self) -> None:
        """End the page-locking, and unlock the memory that no other pin holds.

        Raises
        ------
        CudaError
            The driver cannot unlock the memory.

        Notes
        -----
        Uses ``cuMemHostUnregister``. The array stays as it is. Waits for the piece that
        is being page-locked, a few milliseconds. A second call does nothing.
        """
        pin = self._owner.pin
        pin.stop()
        self._owner.work.join()
        self._closed = True
        pin.close()

    def __enter__(self) -> Self:
        """Return the Pinning itself."""
        if self._closed:
            raise ValueError("this Pinning is closed")
        return self

    def __exit__(
        self, *exception: type[BaseException] | BaseException | TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.progress:.0%}"
        return f"<Pinning of {self.nbytes} bytes, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle '{HOME}.Pinning' object")


Pinning.__module__ = HOME


def _begin(array: ArrayT, owner: _Owner, fresh: bool) -> Pinning[ArrayT]:
    pinning: Pinning[ArrayT] = object.__new__(Pinning)
    pinning._array, pinning._closed, pinning._owner = array, False, owner
    owner.work.start(owner.pin, fresh)
    return pinning


def pin_async(array: HostArrayT) -> Pinning[HostArrayT]:
    """Begin to page-lock the memory of an existing array where it lies, and return at once.

    Parameters
    ----------
    array : array
        What `pin` takes. It stays alive as long as its memory is page-locked.

    Returns
    -------
    Pinning
        To wait for, and to close. The memory is unlocked with it, when it is closed
        or dropped.

    Raises
    ------
    TypeError
        It is no array in host memory, or its items are Python objects.
    ValueError
        The array reaches beyond the process's memory.
    DriverNotFoundError
        No driver library could be opened.

    Notes
    -----
    Uses ``cuMemHostRegister``, in pieces of 64 MiB. While the driver registers
    memory, every copy of the process waits, 20 ms for each GiB: in `pin` for all of
    it, here for one piece. What the driver refuses is raised by `Pinning.wait`.

    The driver refuses a copy that crosses from one piece to the next (``invalid
    argument``). This package cuts its copies there; other libraries do not know. Let
    them copy parts that lie in one piece, or use `pin`.

    Examples
    --------
    >>> weights = np.ones(1_000_000, np.float32)
    >>> with cu.pin_async(weights) as pinning:
    ...     there = cu.to_device(weights)  # at once
    ...     pinning.wait()
    ...     cu.is_pinned(weights)
    True
    """
    return _begin(array, _Owner(page_lock(array)), False)


@overload
def pinned_empty_async(
    shape: ShapeLike,
    dtype: type[float] | Literal["float64"] | None = "float64",
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
) -> Pinning[NDArray[np.float64]]: ...
@overload
def pinned_empty_async(
    shape: ShapeLike,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
) -> Pinning[NDArray[ScalarT]]: ...
@overload
def pinned_empty_async(
    shape: ShapeLike,
    dtype: DTypeLike | None,
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
) -> Pinning[NDArray[Any]]: ...
def pinned_empty_async(
    shape: ShapeLike,
    dtype: DTypeLike | None = "float64",
    order: Literal["C", "F"] = "C",
    *,
    numa: NumaLike = "policy",
) -> Pinning[NDArray[Any]]:
    """Return a new ndarray at once, whose memory becomes page-locked meanwhile.

    Parameters
    ----------
    shape : int or sequence of int
        Lengths of the dimensions.
    dtype : dtype_like, optional
        Type of an item.
    order : {'C', 'F'}, optional
        Order of the items in memory.
    numa : {'policy', 'device'}, int or None, optional
        NUMA node of the memory, as for `pinned_empty`.

    Returns
    -------
    Pinning
        Its ``array`` is zero, and may be used. The array keeps its memory
        page-locked, until the last array or view of it is gone or the Pinning is
        closed.

    Raises
    ------
    OutOfMemoryError
        The system refuses the memory, or the limit is reached.
    TypeError
        The items are Python objects.
    ValueError
        A length is negative, or there is no such NUMA node, or none that this process may use.
    PermissionError
        The system lets this process choose no NUMA node, as in many containers.
    DriverNotFoundError
        No driver library could be opened.

    Notes
    -----
    Several threads touch the memory; ``cuMemHostRegister`` follows in pieces, as in
    `pin_async`, whose notes hold here too. The memory goes back to the system, not
    to the pool, and counts among the pins in `host_memory_stats`.

    Examples
    --------
    >>> pinning = cu.pinned_empty_async((1000, 1000), np.float32)
    >>> cache = pinning.array
    >>> cache[0] = 1
    >>> pinning.wait()
    >>> cu.is_pinned(cache)
    True
    """
    memory, array = fresh("pinned_empty_async", shape, dtype, order, numa)
    owner = memory.owner = _Owner(page_lock(memory.bytes))
    return _begin(array, owner, True)

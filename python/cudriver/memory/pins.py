"""Page-locking memory of somebody else, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self, final

from cudriver.memory import pieces as cut
from cudriver.memory.host import host_range, page_lock

if TYPE_CHECKING:
    from types import TracebackType

    from cudriver._core import PageLock
    from cudriver.typing import HostArray


@final
class pin:
    """Page-lock the memory of an existing array where it lies.

    Parameters
    ----------
    array : array
        Any array in host memory that `copy` takes; also an ``mmap``, shared memory,
        or read-only memory such as ``bytes``, to copy from. It stays alive as long
        as the pin is open, and to close what its memory belongs to is a BufferError.
    pieces : bool, optional
        Register it in pieces, as `pinned_empty` does, so that nobody waits for all of
        it.

    Raises
    ------
    TypeError
        It is no array in host memory, or its items are Python objects.
    ValueError
        The array reaches beyond the process's memory, or shares a part of its memory
        with a pin that does not hold all of it. Or it is to be registered in pieces, and
        has no items of a first axis.
    CudaError
        The driver refuses to page-lock the memory.

    Notes
    -----
    Uses ``cuMemHostRegister``. The pin ends with its ``with`` block, with `close`,
    or with its last reference. Pins of the same memory, or of a part of another
    pin's, share it. Memory that is page-locked already is taken as it is. While the
    driver registers memory, every copy of the process waits, 20 ms for each GiB; not
    so with ``pieces=True`` or `pin_async`. Where the driver refuses so much memory at
    once, it is registered in pieces, with a RuntimeWarning.

    Do not truncate a mapped file meanwhile: touching bytes that are gone ends the
    process with SIGBUS, in a copy too, as it does without a pin.

    Examples
    --------
    >>> array = np.arange(1000)
    >>> with cu.pin(array):
    ...     cu.is_pinned(array)
    True
    >>> cu.is_pinned(array)
    False
    """

    __slots__ = ("__weakref__", "_lock")

    _lock: PageLock

    def __new__(cls, array: HostArray, *, pieces: bool = False) -> Self:
        self = super().__new__(cls)
        self._lock = page_lock(array)
        try:
            if pieces:
                cut.lock(self._lock, cut.item_of(host_range(array).shown), False)
            else:
                cut.lock_whole(self._lock, -1, False)
        except BaseException:
            self._lock.close()
            del array  # the traceback would keep it
            raise
        return self

    @property
    def array(self) -> HostArray | None:
        """Array that the pin holds; None once it is closed."""
        return self._lock.array

    @property
    def nbytes(self) -> int:
        """Bytes that the pin holds, from the lowest to the highest."""
        return self._lock.nbytes

    @property
    def closed(self) -> bool:
        """Whether the pin is closed."""
        return self._lock.closed

    def close(self) -> None:
        """Unlock the memory that no other pin holds.

        Raises
        ------
        CudaError
            The driver cannot unlock the memory.

        Notes
        -----
        Uses ``cuMemHostUnregister``. A second call does nothing.
        """
        self._lock.close()

    def __enter__(self) -> Self:
        """Return the pin itself."""
        if self._lock.closed:
            raise ValueError("this pin is closed")
        return self

    def __exit__(
        self, *exception: type[BaseException] | BaseException | TracebackType | None
    ) -> None:
        """Close the pin."""
        self._lock.close()

    def __repr__(self) -> str:
        return f"<pin of {self.nbytes} bytes{', closed' if self.closed else ''}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'cudriver.pin' object")


pin.__module__ = "cudriver"

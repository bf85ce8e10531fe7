"""``with pinned_numpy():`` lets NumPy allocate page-locked memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn, Self, SupportsIndex, final

from cudriver import _core
from cudriver.memory.numbers import number

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


@final
class pinned_numpy:
    """Let NumPy allocate page-locked memory inside a ``with`` block.

    Parameters
    ----------
    min_bytes : int, optional
        Smaller arrays are allocated as usual.

    Warns
    -----
    RuntimeWarning
        The driver refuses, and the array is in ordinary memory. Once a block.

    Notes
    -----
    Uses ``cuMemHostRegister`` for every array that NumPy allocates, for example in
    ``np.empty``, ``np.load``, arithmetic and ``resize`` (NEP 49). Arrays may outlive
    the block and be freed in any thread. As NumPy defines it, the block is in force
    for the running context (``contextvars``): other threads and tasks are not
    affected.

    Examples
    --------
    >>> with cu.pinned_numpy():
    ...     total = np.ones(100_000) + 1
    >>> cu.is_pinned(total)
    True
    """

    __slots__ = ("__weakref__", "_before", "_handler", "_min_bytes")

    _before: object  # a capsule: the handler from before the block
    _handler: object  # the same, while the block is entered; else None
    _min_bytes: int

    def __new__(cls, *, min_bytes: SupportsIndex = 65536) -> Self:
        least = number("min_bytes is a number of bytes", min_bytes, sys.maxsize)
        self = super().__new__(cls)
        self._handler, self._before, self._min_bytes = None, None, least
        return self

    def __enter__(self) -> Self:
        """Let NumPy allocate page-locked memory."""
        if self._handler is not None:
            raise RuntimeError("this pinned_numpy() is entered already: make another")
        handler = _core._numpy_new(self._min_bytes)
        self._handler, self._before = handler, _core._numpy_set(handler)
        return self

    def __exit__(
        self, *exception: type[BaseException] | BaseException | TracebackType | None
    ) -> None:
        """Let NumPy allocate as it did before the block."""
        if self._handler is None:
            raise RuntimeError("this pinned_numpy() is not entered")
        inner = _core._numpy_set(self._before)
        if inner is not self._handler:
            # Another block would end, or one would begin in another context.
            _core._numpy_set(inner)
            raise RuntimeError(
                "this pinned_numpy() is not the innermost of this context: blocks are left in the "
                "reverse order of their entering, in the thread or task that entered them"
            )
        self._handler = self._before = None

    def __del__(self, forget: Callable[[object], None] = _core._numpy_forget) -> None:
        # Never left, or not in the context that entered it: nobody can leave it any more. (At the
        # interpreter's end this module's names may be gone.)
        if (handler := getattr(self, "_handler", None)) is not None:
            forget(handler)

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'cudriver.pinned_numpy' object")


pinned_numpy.__module__ = "cudriver"

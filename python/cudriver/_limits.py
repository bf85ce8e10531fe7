"""``Context.limits``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, final

from cudriver.errors import CudaError

if TYPE_CHECKING:
    from cudriver._core import Context

# Names as in cuda.h, without CU_LIMIT_, and their numbers there.
NUMBERS = {
    "stack_size": 0,
    "printf_fifo_size": 1,
    "malloc_heap_size": 2,
    "dev_runtime_sync_depth": 3,
    "dev_runtime_pending_launch_count": 4,
    "max_l2_fetch_granularity": 5,
    "persisting_l2_cache_size": 6,
}


@final
class ContextLimits:
    """The limits of a Context: a mapping of name to int; assignment sets one."""

    __slots__ = ("_context",)

    def __init__(self, context: Context, /) -> None:
        self._context = context

    def _number(self, name: str) -> int:
        if not isinstance(name, str) or name not in NUMBERS:
            raise KeyError(name)
        return NUMBERS[name]

    def _read(self) -> dict[str, int]:
        """The limits that this device supports."""
        found = {}
        for name, number in NUMBERS.items():
            try:
                found[name] = self._context._limit(name, number)
            except CudaError as error:
                if error.function != "cuCtxGetLimit":
                    raise
        return found

    def __getitem__(self, name: str, /) -> int:
        return self._context._limit(name, self._number(name))

    def __setitem__(self, name: str, value: int, /) -> None:
        self._context._set_limit(name, self._number(name), value)

    def __delitem__(self, name: str, /) -> None:
        self._number(name)
        raise TypeError("a limit can be set, not deleted")

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __repr__(self) -> str:
        if self._context.closed:
            return f"<limits of {self._context!r}>"
        return f"<limits {self._read()!r}>"

    def keys(self) -> list[str]:
        """Return the names of the limits that this device has.

        Returns
        -------
        list of str
            See `Context.limits`.
        """
        return list(self._read())

    def items(self) -> list[tuple[str, int]]:
        """Return the limits that this device has, with their values.

        Returns
        -------
        list of tuple
            Pairs of name and value.

        Notes
        -----
        Uses ``cuCtxGetLimit``.
        """
        return list(self._read().items())


ContextLimits.__module__ = "cudriver"  # as the types of the core say

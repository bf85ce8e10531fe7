"""What to do where there is not enough memory for the arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cudriver.ladder.result import show_size

KIB = 1 << 10
#: Bytes of the smallest array that is measured.
SMALLEST = 4 * KIB

T = TypeVar("T")


def shrinking(size: int, make: Callable[[int], T]) -> tuple[T, str | None]:
    """What `make` makes of `size` bytes, or of a half, a quarter ... where memory runs out; and,
    in that case, what to say about it."""
    asked, why = size, ""
    while True:
        try:
            made = make(size)
        except MemoryError as error:  # cu.OutOfMemoryError is one
            half = size // 2 & -16
            if half < SMALLEST:
                raise
            size, why = half, why or str(error)
        else:
            note = f"No memory for {show_size(asked)} ({why}): measured with {show_size(size)}."
            return made, note if size != asked else None

"""Page-locking in pieces: registrations of whole items, so that nobody waits long for one."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cudriver._core import PageLock

#: Bytes of one registration. While the driver makes it, every copy of the process waits.
STEP = 64 << 20
#: Bytes from which on others wait long. From 512 MB on the kernel module allocates what describes
#: the pages under a lock that every process of the machine waits for.
LONG = 448 << 20


def check(lengths: tuple[int, ...], nbytes: int) -> None:
    """ValueError where there is nothing to cut."""
    if not lengths or nbytes == 0:
        what = f"an array of shape {lengths}" if not lengths or 0 in lengths else "items of 0 bytes"
        raise ValueError(
            f"pieces=True registers whole items of the first axis, and {what} has none: leave it "
            "out"
        )


def step_of(array: NDArray[Any] | memoryview) -> int:
    """Bytes of a piece, by the array's layout: whole items of the axis that lies outermost, the
    first of C order. RuntimeWarning: one item is longer than a piece should be.
    """
    lengths = tuple(array.shape or ())
    check(lengths, array.nbytes)
    strides = [abs(stride) for stride in array.strides or ()]
    item = max(strides)
    axis = strides.index(item)
    inner = sum(
        (length - 1) * stride
        for at, (length, stride) in enumerate(zip(lengths, strides, strict=True))
        if at != axis
    )
    if lengths[axis] == 1:
        item = inner + array.itemsize
    elif inner + array.itemsize > item:
        raise ValueError(
            f"pieces=True registers whole items, and those of an array of strides {array.strides} "
            "share memory: pin the array that it is a view of"
        )
    if item >= LONG:
        warn(
            f"an item along axis {axis} has {item} bytes, and is registered as one piece: others "
            f"wait for it longer than for one below {LONG} bytes"
        )
    return max(STEP // item, 1) * item


def lock(pin: PageLock, step: int, fresh: bool) -> None:
    """Page-lock in pieces of `step` bytes. fresh: the memory is new, and is touched meanwhile."""
    pin.lock(step, fresh)


def warn(message: str) -> None:
    """A RuntimeWarning in the line that called this package."""
    level = 2
    while sys._getframe(level - 1).f_globals.get("__name__", "").startswith("cudriver."):
        level += 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)

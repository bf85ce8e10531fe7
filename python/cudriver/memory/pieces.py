"""Page-locking in pieces: registrations of whole items, so that nobody waits long for one."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from cudriver.errors import CudaError
from cudriver.memory.failures import INVALID_VALUE, OUT_OF_MEMORY
from cudriver.memory.host import host_range

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cudriver._core import PageLock

#: Bytes of one registration. While the driver makes it, every copy of the process waits.
STEP = 64 << 20
#: Bytes from which on others wait long. From 512 MB on the kernel module allocates what describes
#: the pages under a lock that every process of the machine waits for.
LONG = 448 << 20

#: What the driver answers where it could page-lock parts. Both were met.
REFUSALS = (OUT_OF_MEMORY, INVALID_VALUE)


def check(lengths: tuple[int, ...], nbytes: int) -> None:
    """ValueError where there is nothing to cut."""
    if not lengths or nbytes == 0:
        what = f"an array of shape {lengths}" if not lengths or 0 in lengths else "items of 0 bytes"
        raise ValueError(
            f"pieces=True registers whole items of the first axis, and {what} has none: leave it "
            "out"
        )


def item_of(array: NDArray[Any]) -> int:
    """Bytes of an item of the axis that lies outermost in memory, the first of C order."""
    lengths = array.shape
    check(lengths, array.nbytes)
    strides = [abs(stride) for stride in array.strides]
    axis = max(range(len(strides)), key=lambda at: (strides[at], lengths[at]))
    item = strides[axis]
    inner: int = sum(
        (length - 1) * stride
        for at, (length, stride) in enumerate(zip(lengths, strides, strict=True))
        if at != axis
    )
    if lengths[axis] == 1:
        return inner + array.itemsize
    if inner + array.itemsize > item:
        raise ValueError(
            f"pieces=True registers whole items, and those of an array of strides {array.strides} "
            "share memory: pin the array that it is a view of"
        )
    return item


def item_or_byte(array: Any) -> int:
    """item_of(), where nobody asked for whole items."""
    try:
        return item_of(host_range(array).shown)
    except ValueError:
        return 1


def lock(pin: PageLock, item: int, fresh: bool) -> None:
    """Page-lock in pieces of whole items of `item` bytes; in smaller ones where the driver refuses.

    fresh: the memory is new, and is touched meanwhile. RuntimeWarning: an item is longer than a
    piece should be, or the driver refused.
    """
    if item >= LONG:
        warn(
            f"an item of the outermost axis has {item} bytes, and is registered as one piece: "
            f"others wait for it longer than for one below {LONG} bytes"
        )
    steps = _steps(item)
    step = _first(pin, steps, fresh, None)
    if step != steps[0]:
        warn(f"the driver refused pieces of {steps[0]} bytes: they have {step}")


def lock_whole(pin: PageLock, once: int, fresh: bool) -> None:
    """Page-lock at once, or where the driver refuses that, in pieces, with a RuntimeWarning.

    once: for `PageLock.lock`, which says what it means.
    """
    try:
        pin.lock(once, fresh)
    except CudaError as refused:
        if not is_refusal(refused, pin.nbytes):
            raise
        lock_after(refused, pin, item_or_byte(pin.array), fresh)


def is_refusal(error: CudaError, nbytes: int) -> bool:
    """Whether the driver refused memory at once that it may take in pieces."""
    return error.code in REFUSALS and nbytes > STEP


def lock_after(refused: CudaError, pin: PageLock, item: int, fresh: bool) -> None:
    """Page-lock in pieces what the driver refused at once; raises that if it refuses them too."""
    item = item if item <= STEP else 1
    step = _first(pin, _steps(item), fresh, refused)
    kept = "; no item of the outermost axis lies across one" if item > 1 else ""
    warn(
        f"the driver refused to page-lock {pin.nbytes} bytes at once ({refused.name}): they are "
        f"registered in pieces of {step} bytes. Other libraries cannot copy across the border of "
        f"two (invalid argument); cudriver cuts its copies there{kept}"
    )


def _steps(item: int) -> list[int]:
    """Bytes of a piece, and of those to try where the driver refuses."""
    count = max(STEP // item, 1)
    return [count * item, *([count // 2 * item] if count > 1 else [])]


def _first(pin: PageLock, steps: list[int], fresh: bool, refused: CudaError | None) -> int:
    """Bytes of the pieces that the driver takes; its first refusal if it takes none."""
    for step in steps:
        try:
            pin.lock(step, fresh)
        except CudaError as error:
            if error.code not in REFUSALS:
                raise
            refused = refused or error
        else:
            return step
    assert refused is not None
    raise refused


def warn(message: str) -> None:
    """A RuntimeWarning in the line that called this package."""
    level = 2
    while sys._getframe(level - 1).f_globals.get("__name__", "").startswith("cudriver."):
        level += 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)

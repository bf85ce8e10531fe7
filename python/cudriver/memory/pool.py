"""The state of the pool of page-locked memory."""

from __future__ import annotations

from typing import NamedTuple

from cudriver import _core
from cudriver.memory.named import public


@public
class HostMemoryStats(NamedTuple):
    """The pool of page-locked memory; see host_memory_stats().

    Attributes
    ----------
    used_bytes, used_blocks : int
        Page-locked bytes in arrays that are alive, and the number of these.
    pooled_bytes : int
        Page-locked bytes that are free, for the next array.
    registered_bytes, peak_bytes : int
        Page-locked bytes in all, and the most that there were at once.
    limit_bytes : int or None
        The limit that was set.
    pins, pinned_bytes : int
        Live pins (pin(), pin_async(), pinned_empty_async()), and the bytes that they have
        page-locked.
    hits, misses : int
        Arrays that were served from free memory, and those for which memory had to be page-locked.
    """

    used_bytes: int
    used_blocks: int
    pooled_bytes: int
    registered_bytes: int
    peak_bytes: int
    limit_bytes: int | None
    pins: int
    pinned_bytes: int
    hits: int
    misses: int


def host_memory_stats() -> HostMemoryStats:
    """Return the state of the pool of page-locked memory.

    Returns
    -------
    HostMemoryStats
        A named tuple of counts and sizes in bytes.

    Notes
    -----
    Calls no CUDA function.

    Examples
    --------
    >>> array = cu.pinned_empty(1000, np.uint8)
    >>> cu.host_memory_stats().used_bytes >= 1000
    True
    """
    return HostMemoryStats(*_core._host_memory_stats())

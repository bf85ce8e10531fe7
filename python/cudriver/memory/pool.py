"""The pool of page-locked memory and the threads that copy through it: state and settings."""

from __future__ import annotations

import operator
from types import EllipsisType
from typing import Literal, NamedTuple, SupportsIndex

from cudriver import _core
from cudriver.memory.loading import asked
from cudriver.memory.named import public
from cudriver.memory.numa import lie, prefer
from cudriver.memory.numbers import MOST, number


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
        Live pins (pin(), pin_async(), pinned_empty_async(), SharedMemory, new arrays in pieces),
        and the bytes that they have page-locked.
    hits, misses : int
        Arrays that were served from free memory, and those for which memory had to be page-locked.
    huge_given_up_bytes : int
        Bytes of new memory, since the start, for which huge pages were given up, because the system
        made them at less than 1 GB/s. It compacts memory for them; ordinary pages are faster then.
    nodes : dict
        Bytes of `registered_bytes` and `pinned_bytes` by the NUMA node in which they lie, from a
        sample of their pages; under None those of which the system does not tell.
    copy_threads : int
        The most threads that pack and unpack copies of pageable memory, all copies together.
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
    huge_given_up_bytes: int
    nodes: dict[int | None, int]
    copy_threads: int


def host_memory_stats() -> HostMemoryStats:
    """Return the state of the pool of page-locked memory.

    Returns
    -------
    HostMemoryStats
        A named tuple of counts and sizes in bytes.

    Notes
    -----
    Calls no CUDA function. Where the machine has several NUMA nodes, the system is asked where
    pages lie, at most 512 of each array or pin.

    Examples
    --------
    >>> array = cu.pinned_empty(1000, np.uint8)
    >>> cu.host_memory_stats().used_bytes >= 1000
    True
    """
    counts = _core._host_memory_stats()
    stats = HostMemoryStats._make((*counts, {}, _core._copy_threads()[0]))
    return stats._replace(nodes=lie(stats.registered_bytes + stats.pinned_bytes))


def trim_host_memory(keep: SupportsIndex = 0) -> int:
    """Return free page-locked memory of the pool to the system.

    Parameters
    ----------
    keep : int, optional
        Bytes of free memory that may stay in the pool.

    Returns
    -------
    int
        Bytes that were returned to the system.

    Raises
    ------
    CudaError
        The driver cannot unlock the memory.

    Notes
    -----
    Uses ``cuMemHostUnregister``. Page-locked memory keeps the primary context alive
    that it is registered in; without any, that context may go.

    Examples
    --------
    >>> array = cu.pinned_empty(1000, np.uint8)
    >>> del array
    >>> cu.trim_host_memory() >= 1000
    True
    >>> cu.host_memory_stats().pooled_bytes
    0
    """
    return _core._trim(number("keep is a number of bytes", keep))


def set_host_memory_limit(bytes: SupportsIndex | None, /) -> None:
    """Limit how much memory the pool page-locks.

    Parameters
    ----------
    bytes : int or None
        The most bytes, used and free together; None for no limit.

    Notes
    -----
    Calls no CUDA function. Beyond the limit there is an OutOfMemoryError; in
    `pinned_numpy`, ordinary memory. It holds for `pinned_empty_async` and for new memory in
    pieces as well, where all that is page-locked counts; `pin`, `pin_async` and
    `SharedMemory` are not limited.

    Examples
    --------
    >>> cu.set_host_memory_limit(1 << 30)
    >>> cu.host_memory_stats().limit_bytes
    1073741824
    >>> cu.set_host_memory_limit(None)
    """
    most = MOST if bytes is None else number("a limit is a number of bytes or None", bytes)
    _core._set_limit(most)


def set_host_memory_policy(
    *,
    numa: Literal["device"] | SupportsIndex | EllipsisType | None = ...,
    copy_threads: SupportsIndex | EllipsisType | None = ...,
) -> None:
    """Choose where page-locked memory comes from, and how many threads copy through it.

    What is not given stays as it is.

    Parameters
    ----------
    numa : {'device'}, int or None, optional
        The NUMA node of new memory: the one nearest the current context's device, as it
        is from the start; a node by its number; or wherever the system puts memory.
    copy_threads : int or None, optional
        The most threads that pack and unpack copies of pageable memory, from 1 to 1024;
        None for the default.

    Raises
    ------
    ValueError
        There is no such node, or this process may not use it. The number of threads is
        out of range.
    PermissionError
        The system lets this process choose no node, as in many containers.

    Notes
    -----
    The node holds for arrays and regions whose `numa` is not given, and for the blocks
    through which pageable memory is copied; the threads that pack these run on the
    node's processors, as far as the process may. A node is preferred: where it is
    full, memory of another is taken. `host_memory_stats` tells how much lies where, and
    how many threads there are. On a machine with one node `numa` changes nothing.

    By default there are two threads fewer than the CPUs that the process may use, by
    affinity and cgroup, and 64 at most; up to four CPUs, as many. The environment
    variable ``CUDRIVER_COPY_THREADS`` changes that; it is read when cudriver's core is
    loaded, and anything but a number from 1 to 1024 is ignored with a RuntimeWarning.
    Copies that have begun keep their threads; those of page-locked memory need none.

    Calls no CUDA function, unless CUDA is in use.

    Examples
    --------
    >>> cu.set_host_memory_policy(numa=None, copy_threads=2)
    >>> cu.host_memory_stats().copy_threads
    2
    >>> cu.set_host_memory_policy(numa="device", copy_threads=None)
    """
    threads = None if copy_threads is ... else _threads(copy_threads)
    if numa is not ...:
        prefer(numa)
    if threads is not None:
        _core._set_copy_threads(threads)


def _threads(count: SupportsIndex | None) -> int:
    """The core's number for an argument: 0 for the default."""
    most = _core._copy_threads()[1]
    number = (asked(most) or 0) if count is None else operator.index(count)
    if count is not None and not 1 <= number <= most:
        raise ValueError(
            f"the number of threads is 1 to {most}, or None for as many as the process's "
            f"processors suggest; not {count!r}"
        )
    return number

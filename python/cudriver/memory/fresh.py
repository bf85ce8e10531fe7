"""New memory of the process's own for a page-locked array, beside the pool; arrays in memory."""

from __future__ import annotations

import math
import mmap
import operator
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cudriver import _core
from cudriver.memory import pieces, refusals
from cudriver.memory.arrays import is_fortran
from cudriver.memory.failures import ALREADY_REGISTERED, OUT_OF_MEMORY, failure
from cudriver.memory.mapping import mapped
from cudriver.memory.numa import node_of, now
from cudriver.memory.pool import host_memory_stats
from cudriver.memory.room import host_room

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from cudriver.typing import NumaLike, ShapeLike

ADDRESSES = 4  # to try


class Memory:
    """New memory of this process, page-locked as long as it lives: an array's base."""

    def __init__(self, nbytes: int, node: int) -> None:
        self.bytes: NDArray[np.uint8] = mapped(nbytes, node=node)
        self.owner: object = None  # ends the page lock
        self.__array_interface__: dict[str, Any] = self.bytes.__array_interface__

    def is_stale(self) -> bool:
        """Whether somebody unmapped registered memory here: the driver still has the address."""
        low, last = self.__array_interface__["data"][0], max(self.bytes.nbytes, 1) - 1
        return any(_core._is_page_locked(low + at, 1) for at in (0, last))


def fresh(
    called: str,
    shape: ShapeLike,
    dtype: DTypeLike | None,
    order: Literal["C", "F"],
    numa: NumaLike,
    some: bool = False,
) -> tuple[Memory, NDArray[Any]]:
    """New memory that is zero, untouched and not page-locked yet, and an array over all of it.

    called: the function that the caller called, for its errors. some: ValueError for no items.
    """
    lengths = lengths_of(shape)
    kind = item_type(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind} holds Python objects: they cannot be page-locked")
    fortran = is_fortran(order)
    nbytes = math.prod(lengths) * kind.itemsize
    if some:
        pieces.check(lengths, nbytes)
    node = node_of(numa)
    _core.init()
    memory = _map(called, nbytes, now(node))
    return memory, over(np.asarray(memory), lengths, kind, order="F" if fortran else "C")


def lengths_of(shape: ShapeLike) -> tuple[int, ...]:
    """As NumPy takes a shape: a bool is no length, and dicts and sets are no sequences."""
    try:
        given = tuple(shape) if np.iterable(shape) else (shape,)
        if isinstance(shape, Mapping | Set) or any(isinstance(each, bool) for each in given):
            raise TypeError
        lengths = tuple(map(operator.index, given))
    except TypeError:
        raise TypeError(f"shape is an integer or a sequence of integers, not {shape!r}") from None
    if min(lengths, default=0) < 0:
        raise ValueError(f"the lengths of a shape must be at least 0, not {lengths}")
    return lengths


def item_type(dtype: DTypeLike | None) -> np.dtype[Any]:
    """As np.empty takes it: 'S' and 'U' mean one character."""
    kind = np.dtype(dtype)
    return np.dtype(f"{kind.char}1") if kind.itemsize == 0 and kind.char in "SU" else kind


def over(
    memory: NDArray[np.uint8],
    lengths: tuple[int, ...],
    kind: np.dtype[Any],
    begin: int = 0,
    order: Literal["C", "F"] = "C",
) -> NDArray[Any]:
    """An array in bytes of a memory."""
    if kind.names is None or kind.itemsize == 0 or 0 in lengths:
        return np.ndarray(lengths, kind, memory, begin, order=order)
    # The base of a view of some fields is to have all: refusals.fields() looks there.
    return np.frombuffer(memory.data, kind, math.prod(lengths), begin).reshape(lengths, order=order)


def _map(called: str, nbytes: int, node: int) -> Memory:
    """Map new memory; OutOfMemoryError where the machine or a limit has too little."""
    stats = host_memory_stats()
    room, held = host_room(), stats.registered_bytes + stats.pinned_bytes
    pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE  # of which the pool takes whole ones
    if stats.limit_bytes is not None and held + pages > stats.limit_bytes:
        why = refusals.under_limit(stats.limit_bytes)
    elif pages > room:
        why = refusals.room_left(room)
    else:
        tried: list[Memory] = []  # they stay mapped: the system chooses other addresses
        try:
            while len(tried) < ADDRESSES:
                tried.append(Memory(nbytes, node))
                if not tried[-1].is_stale():
                    return tried[-1]
        except (OSError, OverflowError):
            why = "; the system refuses the mapping"
        else:
            what = f"{nbytes} bytes of new memory: each of {ADDRESSES} addresses is registered"
            raise failure(ALREADY_REGISTERED, f"cudriver.{called}", what)
    arguments = f"{nbytes} bytes; {held} page-locked already{why}"
    raise failure(OUT_OF_MEMORY, f"cudriver.{called}", arguments)

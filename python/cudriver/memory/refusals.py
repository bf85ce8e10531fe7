"""Why something was refused: errors, and what their messages say between parentheses."""

from __future__ import annotations

import math
import resource
from typing import Any, NoReturn

import numpy as np

from cudriver import _core
from cudriver.errors import InvalidContextError
from cudriver.memory.failures import INVALID_VALUE, OUT_OF_MEMORY
from cudriver.memory.room import text

CAP_IPC_LOCK = 14  # its bit


def ends(to: tuple[int, ...], of: tuple[int, ...], into: object, dtype: object) -> NoReturn:
    """Raise what differs between the ends of a copy, by their shapes and dtypes. For the core."""
    if to != of:
        raise ValueError(
            f"the shapes differ: {of} cannot be copied into {to} (nothing was copied)"
            + _as_bytes(to, of, into, dtype)
        )
    raise TypeError(
        f"the dtypes differ: {dtype} cannot be copied into {into} (nothing was copied); cast the "
        "source first: a host array by its astype(), a device array by another library"
    )


def _as_bytes(to: tuple[int, ...], of: tuple[int, ...], into: Any, dtype: Any) -> str:
    """A hint where both ends have as many bytes, or where one is bytes for the other."""
    there, here = (math.prod(shape) * each.itemsize for shape, each in ((to, into), (of, dtype)))
    if there == here:
        return f": both have {here} bytes; reshape() one, or view() it as {dtype} first"
    if 1 in (into.itemsize, dtype.itemsize) and into != dtype:
        items, of_kind = (into, dtype) if into.itemsize == 1 else (dtype, into)
        return (
            f": one end is of {items}, the other of {of_kind}; allocate it with the other's shape "
            f"and dtype, or view() it as {of_kind}, and take as many items"
        )
    return ""


def fields(owner: object) -> None:
    """Raise where a destination has only some fields of records: the others would be overwritten.
    For the core. owner: the destination, or what begins with it.
    """
    seen: list[np.dtype[Any]] = []  # those with fields: the destination's, ..., the whole records'
    holder = owner[0] if isinstance(owner, tuple) else owner
    while isinstance(holder, np.ndarray | memoryview):
        if isinstance(holder, np.ndarray) and holder.dtype.names is not None:
            seen.append(holder.dtype)
        holder = holder.base if isinstance(holder, np.ndarray) else holder.obj
    if seen and seen[0] is not seen[-1] and _has_gaps(seen[0]) and _selects(seen[-1], seen[0]):
        raise ValueError(
            f"the destination has only the fields {seen[0].names} of records, and a copy would "
            "overwrite what lies between them (nothing was copied): copy into a new array, and "
            "assign that to the fields"
        )


def _has_gaps(dtype: np.dtype[Any]) -> bool:
    """Whether bytes of an item are of no field."""
    end = 0
    for kind, begin in sorted(_fields(dtype), key=lambda field: field[1]):
        if begin > end or _has_gaps(kind.base):
            return True
        end = max(end, begin + kind.itemsize)
    return dtype.names is not None and end < dtype.itemsize


def _selects(whole: np.dtype[Any], part: np.dtype[Any]) -> bool:
    """Whether a dtype is what NumPy makes of some fields of another, or of one of its fields."""
    of = dict(zip(whole.names or (), _fields(whole), strict=True))
    to = dict(zip(part.names or (), _fields(part), strict=True))
    some = whole.itemsize == part.itemsize and len(to) < len(of) and to.items() <= of.items()
    return some or any(_selects(kind.base, part) for kind, _ in of.values())


def _fields(dtype: np.dtype[Any]) -> list[tuple[np.dtype[Any], int]]:
    """The dtype and the place of each field."""
    found: Any = dtype.fields or {}
    return [found[name][:2] for name in dtype.names or ()]


def under_limit(limit: int) -> str:
    return f", under set_host_memory_limit({limit})"


def room_left(room: int) -> str:
    return f"; the machine's memory and this process's cgroups leave {room} bytes"


def _lock_limit(code: int, nbytes: int) -> str:
    """The limit of locked memory, where that can be why the driver refused so many bytes more. No
    driver that is known obeys it; then more is locked already than it allows.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    _, _, _, registered, *_, pinned, _, _, _ = _core._host_memory_stats()
    if (
        code != OUT_OF_MEMORY
        or most == resource.RLIM_INFINITY
        or not registered + pinned <= most < registered + pinned + nbytes
        or _may_lock_all()
    ):
        return ""
    return f"; this process may lock {most} bytes (RLIMIT_MEMLOCK, `ulimit -l`)"


def _may_lock_all() -> bool:
    """Whether the process has CAP_IPC_LOCK, which no limit of locked memory holds back."""
    for line in text("/proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_IPC_LOCK & 1)
    return False


def pool(code: int, called: str, nbytes: int, least: int, room: int) -> tuple[str, str]:
    """The function that refused memory of the pool, and its arguments. For the core.

    called: ours. least: bytes that were to be page-locked. room: what the system had left.
    """
    _, _, _, registered, _, limit, *_ = _core._host_memory_stats()
    function, why = "cuMemHostRegister_v2", _lock_limit(code, nbytes)
    if code == OUT_OF_MEMORY:
        function = f"cudriver.{called}"  # the driver may not have been asked
        if limit is not None and registered + least > limit:
            why = under_limit(limit)
        elif room < least:
            why = room_left(room)
    return function, f"{nbytes} bytes; {registered} page-locked already{why}"


def unmapped(low: int, nbytes: int) -> NoReturn:
    """Raise where a range has no memory. For the core."""
    hole = low
    for line in text("/proc/self/maps").splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= hole < end:
            hole = end
    raise ValueError(
        f"cannot page-lock {nbytes} bytes from {low:#x} on: at {hole:#x} this process has no "
        "memory (strides that go beyond the array's memory?)"
    )


def read_only(dst: object) -> NoReturn:
    """Raise that a destination cannot be written. For the core."""
    grad = getattr(dst, "requires_grad", False)  # of PyTorch
    wrong = f"a {type(dst).__name__} that requires grad: pass its detach()" if grad else "read-only"
    raise ValueError(f"the destination is {wrong}")


def size(shape: tuple[int, ...], itemsize: int) -> NoReturn:
    raise ValueError(
        f"an array of shape {shape} and items of {itemsize} bytes is larger than the address space"
    )


def pin(code: int, low: int, nbytes: int, writable: bool, other: int, other_bytes: int) -> str:
    """The arguments of a pin that the driver refused. For the core.

    other: the address of a pin that holds a part of the memory; its bytes are 0 if there is none.
    """
    if other_bytes > 0:
        raise ValueError(
            f"cannot page-lock {nbytes} bytes from {low:#x} on: another pin holds {other_bytes} "
            f"bytes from {other:#x} on, which share a part with them. Close that pin first, or pin "
            "the whole memory before its parts"
        )
    hint = _lock_limit(code, nbytes)
    if not writable:
        hint = f", read-only{hint}"
    elif code == INVALID_VALUE:
        hint = (
            "; a file mapped for writing? Linux page-locks a copy-on-write mapping, as "
            "np.memmap(mode='c') makes it"
        )
    return f"{low:#x}, {nbytes} bytes{hint}"


def used(thing: object, call: str, children: int, calls: int, exports: int, work: bool) -> NoReturn:
    """Raise who uses what a call would close: children (a context's arrays, streams and events, an
    array's views), running calls, tensors of DLPack, work in flight. For the core.
    """
    context, many = isinstance(thing, _core.Context), children > 1
    users = []
    if children and context:
        kind = "arrays, streams or events live" if many else "array, stream or event lives"
        users.append(f"{children} {kind} in it")
    elif children:
        users.append(f"{children} {'views use' if many else 'view uses'} it")
    if calls:
        users.append("a running call uses it")
    if exports:
        times = f"{exports} time{'s' * (exports > 1)}"
        users.append(f"another library's array (exported {times} by DLPack) uses it")
    hint = " (see live_allocations())" if context and children else ""
    if work and not (context and users):  # of a context with users it is their calls
        users.append("an asynchronous copy uses it")
        hint = "; wait() for that first"
    error = InvalidContextError if context else ValueError
    raise error(f"cannot {call} {thing!r}: {' and '.join(users)}{hint}")

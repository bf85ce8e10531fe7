"""What is alive: every object that holds a driver object or a page lock."""

from __future__ import annotations

import sys
from typing import NamedTuple

from cudriver import _core
from cudriver.memory.failures import calling
from cudriver.memory.named import public


@public
class Allocation(NamedTuple):
    """One thing that is alive, as live_allocations() lists it.

    Attributes
    ----------
    kind : str
        What it is: 'device array', 'host memory', 'NumPy arrays of a pinned_numpy()', 'pin',
        'stream', 'event', 'context' or 'primary context'.
    nbytes : int
        Its size in bytes; 0 where that means nothing.
    address : int
        Where it lies, or the driver's handle.
    device : int or None
        The ordinal of its device.
    where : str or None
        ``file:line`` that made it, when trace_allocations() was on.
    """

    kind: str
    nbytes: int
    address: int
    device: int | None
    where: str | None


def live_allocations() -> list[Allocation]:
    """Return what cudriver keeps alive in this process.

    Returns
    -------
    list of Allocation
        Named tuples ``(kind, nbytes, address, device, where)``, the oldest first.
        ``where`` is the line that made it, if `trace_allocations` was on then.

    Notes
    -----
    An asynchronous copy holds both of its ends until it is over; those that are
    over are let go first. Free memory of the pools is not in the list: see
    `host_memory_stats`.

    Examples
    --------
    >>> array = cu.device_empty(1000, np.uint8)
    >>> last = cu.live_allocations()[-1]
    >>> last.kind, last.nbytes
    ('device array', 1000)
    """
    return [Allocation(*entry) for entry, _ in _core._live()[::-1]]


def trace_allocations(enabled: bool = True) -> None:
    """Note which line of Python makes each object, from now on.

    Parameters
    ----------
    enabled : bool, optional
        False to stop.

    Notes
    -----
    The environment variable ``CUDRIVER_TRACE=1`` does this from the start.

    Examples
    --------
    >>> cu.trace_allocations()
    >>> stream = cu.Stream()
    >>> cu.live_allocations()[-1].where is not None
    True
    >>> cu.trace_allocations(False)
    """
    _core._trace(bool(enabled))


def line_running() -> str | None:
    """'file:line' of the code that called this package, for the core."""
    frame = calling()
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def page_locked() -> list[tuple[int, int]]:
    """Address and bytes of all memory that the pool and pins have page-locked."""
    numbers = memoryview(_core._ranges()).cast("Q")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def report() -> None:
    """Write what is alive to sys.stderr, if anything is, but for contexts that the package keeps.

    The core calls it at the interpreter's exit.
    """
    entries = [Allocation(*entry) for entry, kept in _core._live()[::-1] if not kept]
    if not entries or sys.stderr is None:
        return
    total = sum(entry.nbytes for entry in entries)
    lines = [f"cudriver: alive at exit: {len(entries)}, {total} bytes in all"]
    for kind, nbytes, _, device, where in entries:
        of = "" if device is None else f", device {device}"
        made = "" if where is None else f", made at {where}"
        lines.append(f"  {kind}, {nbytes} bytes{of}{made}")
    print("\n".join(lines), file=sys.stderr)

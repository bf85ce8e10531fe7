"""The time between two Events, for the core."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NoReturn

from cudriver import _core
from cudriver.errors import CudaError
from cudriver.memory.asking import ask
from cudriver.memory.failures import NOT_READY

if TYPE_CHECKING:
    from cudriver._core import Context, Event


def elapsed_time(start: Event, end: Any, /) -> float:
    if type(end) is not _core.Event:
        raise TypeError(f"elapsed_time takes the later Event, not {type(end).__name__}")
    _check(start)
    _check(end)
    if start.context is not end.context:
        raise ValueError(
            f"{start!r} belongs to {start.context!r}, {end!r} to {end.context!r}: time passes "
            "between events of one context"
        )
    shown = f"{start.handle:#x}, {end.handle:#x}"
    try:
        time: float = ask(start.context, "cuEventElapsedTime", shown, "f", start, end)
    except CudaError as error:
        if error.code != NOT_READY:
            raise
        raise ValueError(
            "the work before one of the events is not over: synchronize() the later first"
        ) from None
    return time


def refuse_stream(event: Event, context: Context) -> NoReturn:
    raise ValueError(
        f"{event!r} belongs to {event.context!r}, the stream to {context!r}: record an event of "
        "the stream's own context"
    )


def refuse_captured(event: Event) -> NoReturn:
    """Raise that it cannot be waited for. For the core."""
    raise CudaError(
        f"{event!r} was recorded on a stream that was being captured: it marks a point in a graph, "
        "which is not reached once but in every launch"
    )


def _check(event: Event) -> None:
    if not event.closed and not (event.timing and event._recorded):
        wrong = (
            "was never recorded"
            if event.timing
            else "takes no time: make it with Event(timing=True)"
        )
        raise ValueError(f"{event!r} {wrong}")
    operator.truth(event.done)  # raises where it is closed, or marks a point in a graph

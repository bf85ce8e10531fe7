"""The time between two Events, for the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudriver import _core
from cudriver.memory.asking import ask

if TYPE_CHECKING:
    from cudriver._core import Event


def elapsed_time(start: Event, end: Any) -> float:
    if type(end) is not _core.Event:
        raise TypeError(f"elapsed_time takes the later Event, not {type(end).__name__}")
    over = [_is_over(event) for event in (start, end)]
    if start.context is not end.context:
        raise ValueError(
            f"{start!r} belongs to {start.context!r}, {end!r} to {end.context!r}: time passes "
            "between events of one context"
        )
    if not all(over):
        raise ValueError(
            "the work before one of the events is not over: synchronize() the later first"
        )
    shown = f"{start.handle:#x}, {end.handle:#x}"
    time: float = ask(start.context, "cuEventElapsedTime", shown, "f", start.handle, end.handle)
    return time


def _is_over(event: Event) -> bool:
    if not event.closed and not (event.timing and event._recorded):
        wrong = (
            "was never recorded"
            if event.timing
            else "takes no time: make it with Event(timing=True)"
        )
        raise ValueError(f"{event!r} {wrong}")
    return event.done  # raises where it is closed, or marks a point in a graph

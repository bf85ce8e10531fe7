"""New streams, and `with stream:`, for the core.

A context variable holds the streams that are entered, the innermost last, so that tasks which take
turns in a thread each see their own.
"""

from __future__ import annotations

import operator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from cudriver import _core
from cudriver.memory.contexts import stream_priority_range

if TYPE_CHECKING:
    from cudriver._core import Context, Stream

    Scope = ContextVar[tuple[Stream, ...]]


def arguments(priority: Any, device: Any) -> tuple[Context, int]:
    """The context and the priority of a new Stream."""
    context = _core._context_for_use(device)
    number = operator.index(priority)
    least, greatest = stream_priority_range(context)
    if not greatest <= number <= least:
        raise ValueError(
            f"priority {priority} is out of range: from {least} (least) to {greatest} (greatest)"
        )
    return context, number


def _entered(scope: Scope) -> tuple[Stream, ...]:
    streams = scope.get(())
    return streams if type(streams) is tuple else ()  # anybody can set it


def enter(scope: Scope, stream: Stream) -> Stream:
    scope.set((*_entered(scope), stream))
    return stream


def leave(scope: Scope, stream: Stream) -> None:
    streams = _entered(scope)
    if streams and streams[-1] is stream:
        scope.set(streams[:-1])
        return
    places = [i for i, entered in enumerate(streams) if entered is stream]
    if places:  # leave it even so: nothing else would
        scope.set((*streams[: places[-1]], *streams[places[-1] + 1 :]))
    raise RuntimeError(
        f"with {stream!r}: left, but it is not the innermost `with stream:` of this thread or task"
    )

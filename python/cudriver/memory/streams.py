"""New streams, their order, and `with stream:`, for the core.

A context variable holds the streams that are entered, the innermost last, so that tasks which take
turns in a thread each see their own.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from cudriver import _core
from cudriver.memory.contexts import stream_priority_range
from cudriver.memory.foreign import handle

if TYPE_CHECKING:
    from cudriver._core import Context, Event, Stream


DEFAULT = (0, 1, 2)  # handles: NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD


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


def _check(stream: Stream) -> None:
    if stream.closed:
        raise ValueError(f"{stream!r} is closed")


def protocol(stream: Stream) -> tuple[int, int]:
    """`__cuda_stream__()`."""
    _check(stream)
    return 0, stream.handle


def _entered() -> tuple[Stream, ...]:
    streams = _core._stream_scope.get(())
    return streams if type(streams) is tuple else ()  # anybody can set it


def enter(stream: Stream) -> Stream:
    _core._stream_scope.set((*_entered(), stream))
    return stream


def leave(stream: Stream, *exception: object) -> None:
    streams = _entered()
    if streams and streams[-1] is stream:
        _core._stream_scope.set(streams[:-1])
        return
    places = [i for i, entered in enumerate(streams) if entered is stream]
    if places:  # leave it even so: nothing else would
        _core._stream_scope.set((*streams[: places[-1]], *streams[places[-1] + 1 :]))
    raise RuntimeError(
        f"with {stream!r}: left, but it is not the innermost `with stream:` of this thread or task"
    )


# ---- the order of streams ------------------------------------------------------------------------


def record(stream: Stream, event: Any = None) -> Event:
    if event is None:
        return _event(stream.context).record(stream)  # no variable: a traceback would keep it
    if type(event) is not _core.Event:
        raise TypeError(f"an Event is recorded, not {type(event).__name__}")
    return event.record(stream)


def wait(stream: Stream, other: Any, /) -> None:
    _check(stream)
    home = stream  # another library's default stream is that of this stream's context
    if type(other) is _core.Event:
        return other.wait(stream)
    if type(other) is _core.Stream:
        home = other
    elif (event := handle(other, "event")) is not None:
        shown = f"event {event:#x} of {type(other).__name__}"
        if event:  # else PyTorch never recorded it
            _core._call(stream.context, "cuStreamWaitEvent", shown, (stream, event, 0))
        return None
    elif (number := handle(other, "stream")) is None:
        hint = (
            " (Stream.from_handle and Event.from_handle take one)" if isinstance(other, int) else ""
        )
        name = type(other).__name__
        raise TypeError(f"a stream waits for an Event or a Stream, not {name}{hint}")
    elif number not in DEFAULT:
        home = _core.Stream.from_handle(other)
    _event(home.context).record(other).wait(stream)
    return None


def _event(context: Any) -> Event:
    return _core.Event(device=context)

"""Streams and events at their edges: of other contexts and devices, captured, refused, half made.

A call in another context, or one that fails, leaves this thread's stack of contexts as it was.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from graphkit import ACTIVE, Capture, busy

pytestmark = pytest.mark.usefixtures("no_leaks", "same_stack")


@pytest.fixture(params=["this context", "another context", "another device"])
def home(request: Any) -> Iterator[Any]:
    """A context: the current one, another of its device, and one of a device that is not current.
    It can be closed when the test is over: nothing that a call has made is left in it."""
    if request.param == "another device":
        request.getfixturevalue("two_devices")
    if request.param == "this context":
        yield cu.current_context()
        return
    context = cu.Context(int(request.param == "another device"))
    yield context
    gc.collect()
    context.close()


def stream_of(context: Any) -> Any:
    with context:
        return cu.Stream()


def event_of(context: Any, timing: bool = False) -> Any:
    with context:
        return cu.Event(timing=timing)


# ---- calls that the driver refuses ---------------------------------------------------------------


def used(context: Any) -> Any:
    """What the calls below use, in a context."""
    first, second = event_of(context, True), event_of(context, True)
    stream = stream_of(context)
    stream.record(first)
    stream.record(second)
    stream.synchronize()
    theirs = SimpleNamespace(cuda_event=first.handle)
    return SimpleNamespace(stream=stream, first=first, second=second, theirs=theirs)


CALLS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "done": ("cuStreamQuery", lambda made: made.stream.done),
    "synchronize": ("cuStreamIsCapturing", lambda made: made.stream.synchronize()),
    "record": ("cuEventRecord", lambda made: made.stream.record(made.first)),
    "record anew": ("cuEventCreate", lambda made: made.stream.record()),
    "record anew, but not": ("cuEventRecord", lambda made: made.stream.record()),
    "record it": ("cuStreamIsCapturing", lambda made: made.first.record(made.stream)),
    "wait for it": ("cuStreamWaitEvent", lambda made: made.first.wait(made.stream)),
    "wait": ("cuStreamWaitEvent", lambda made: made.stream.wait(made.first)),
    "wait for theirs": ("cuStreamWaitEvent", lambda made: made.stream.wait(made.theirs)),
    "wait for a stream": ("cuStreamWaitEvent", lambda made: made.stream.wait(made.stream)),
    "wait for a stream 2": ("cuEventRecord", lambda made: made.stream.wait(made.stream)),
    "event done": ("cuEventQuery", lambda made: made.first.done),
    "event synchronize": ("cuEventQuery", lambda made: made.first.synchronize()),
    "elapsed time": ("cuEventElapsedTime", lambda made: made.first.elapsed_time(made.second)),
    "from handle": ("cuStreamGetPriority", lambda made: cu.Stream.from_handle(made.stream.handle)),
    "from handle 2": ("cuStreamGetCtx_v2", lambda made: cu.Stream.from_handle(made.stream.handle)),
    "synchronize context": ("cuCtxSynchronize", lambda made: made.stream.context.synchronize()),
    "synchronize context 2": (
        "cuStreamIsCapturing", lambda made: made.stream.context.synchronize(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_what_the_driver_refuses_is_told_and_leaves_nothing(sim: Any, home: Any, name: str) -> None:
    function, call = CALLS[name]
    made, stack = used(home), cu.context_stack()
    events = sim.live("events")
    references = sys.getrefcount(made.stream), sys.getrefcount(home)
    sim.fail_next(function, 719)
    with pytest.raises(cu.CudaError) as refused:
        call(made)
    assert (refused.value.code, refused.value.function) == (719, function)
    assert cu.context_stack() == stack
    assert sim.live("events") == events
    del refused
    gc.collect()
    after = sys.getrefcount(made.stream), sys.getrefcount(home)
    assert after == references
    for thing in (made.stream, made.first, made.second):
        thing.close()  # no call counts as running


def test_what_cannot_be_made(sim: Any, home: Any) -> None:
    for function, make in (("cuStreamCreateWithPriority", cu.Stream), ("cuEventCreate", cu.Event)):
        sim.fail_next(function, 719)
        with home, pytest.raises(cu.CudaError) as refused:
            make()
        assert refused.value.function == function
    with home, pytest.raises(ValueError, match="is out of range"):
        cu.Stream(7)


@pytest.mark.parametrize("what", ["stream", "event"])
def test_what_cannot_be_destroyed_is_closed_all_the_same(sim: Any, what: str) -> None:
    """The driver is not asked twice, and its context can be closed."""
    context = cu.Context()
    thing = stream_of(context) if what == "stream" else event_of(context)
    function = {"stream": "cuStreamDestroy_v2", "event": "cuEventDestroy_v2"}[what]
    sim.fail_next(function, 719)
    with pytest.raises(cu.CudaError, match=function):
        thing.close()
    assert thing.closed
    assert thing.handle == 0
    calls = sim.call_count(function)
    thing.close()
    assert sim.call_count(function) == calls
    assert len(cu.live_allocations()) == 2, "the two contexts"
    context.close()


def test_an_event_whose_record_fails_is_not_recorded(sim: Any) -> None:
    stream, event = cu.Stream(), cu.Event(timing=True)
    sim.fail_next("cuEventRecord", 719)
    with pytest.raises(cu.CudaError):
        event.record(stream)
    assert "not recorded" in repr(event)
    with pytest.raises(ValueError, match="was never recorded"):
        event.elapsed_time(event)
    event.record(stream)
    sim.fail_next("cuEventRecord", 719)
    with pytest.raises(cu.CudaError):
        event.record(stream)
    event.synchronize()
    assert event.elapsed_time(event) == 0, "of the time before"


# ---- events ------------------------------------------------------------------------------------


def test_an_event_of_a_capture_until_it_is_recorded_again(driver: Any) -> None:
    stream, outside = cu.Stream(), cu.Event(timing=True)
    event, other = cu.Event(timing=True), cu.Event(timing=True)
    outside.record(stream).synchronize()
    with Capture(driver, stream) as graph:
        event.record(stream)
        event.wait(stream)  # in its own graph it may be waited for
        stream.wait(event)
        with pytest.raises(cu.CudaError, match=r"wait\(\) cannot be captured: .* outside the gr"):
            stream.wait(outside)
        for ask in (
            event.synchronize,
            lambda: event.done,
            lambda: event.elapsed_time(outside),
            lambda: outside.elapsed_time(event),
        ):
            with pytest.raises(cu.CudaError, match="it marks a point in a graph"):
                ask()
        assert graph.status() == ACTIVE
    assert graph.ended == 0
    with pytest.raises(cu.CudaError, match="it marks a point in a graph"):
        event.synchronize()
    event.record(stream)
    event.synchronize()
    assert event.done
    assert outside.elapsed_time(event) >= 0
    with pytest.raises(ValueError, match="was never recorded"):
        outside.elapsed_time(other)
    with pytest.raises(ValueError, match="was never recorded"):
        other.elapsed_time(outside)
    graph.close()


def test_an_event_whose_record_fails_in_a_capture_is_of_none(driver: Any, sim: Any) -> None:
    stream, event = cu.Stream(), cu.Event()
    event.record(stream).synchronize()
    with Capture(driver, stream) as graph:
        sim.fail_next("cuEventRecord", 719)
        with pytest.raises(cu.CudaError):
            event.record(stream)
        assert event.done
    graph.close()


def test_an_event_and_the_stream_it_is_recorded_on(home: Any) -> None:
    """Its own context's, whatever is entered or current."""
    stream, entered, event = stream_of(home), cu.Stream(), event_of(home)
    elsewhere = home is not entered.context
    refused = pytest.raises(ValueError, match="record an event of the stream's own context")
    with entered:
        assert stream.record().context is home
        assert stream.record(event) is event
        assert event_of(home).context is entered.context
        with refused if elsewhere else nullcontext():
            event.record()
        with refused if elsewhere else nullcontext():
            stream.record(cu.Event())
        event.wait()  # any context's stream may wait
    event.record()
    event.wait()
    event.synchronize()


def test_no_device_is_that_of_the_stream(home: Any) -> None:
    with stream_of(home):
        assert cu.Event(device=None).context is home
        assert cu.device_empty(3, device=None).context is home


def test_the_default_stream_of_an_event_is_that_of_its_context(driver: Any, home: Any) -> None:
    """And not of the current one."""
    event, stream, work = event_of(home), stream_of(home), ExitStack()
    with home:
        default = cu.Stream.from_handle(1)
        work.enter_context(busy(driver, default))
    with work:
        event.record()
        assert not event.done
    event.synchronize()
    with busy(driver, stream):
        stream.record(event)
        event.wait()
        assert not default.done
    default.synchronize()


@pytest.mark.parametrize("way", ["wait", "record and wait", "their stream", "their event"])
def test_a_stream_waits_for_work_anywhere(driver: Any, home: Any, way: str) -> None:
    """In another context or device than that of the one that waits."""
    first, second = stream_of(home), cu.Stream()
    with busy(driver, first):
        event = first.record()
        if way == "wait":
            second.wait(first)
        elif way == "record and wait":
            event.wait(second)
        elif way == "their stream":
            second.wait(SimpleNamespace(cuda_stream=first.handle))
        else:
            second.wait(SimpleNamespace(cuda_event=event.handle))
        assert not second.done
        with second:
            assert not second.record().done
    second.synchronize()


def test_a_context_waits_for_the_streams_that_are_its_own(driver: Any, home: Any) -> None:
    """`synchronize` refuses while one of these is captured, and only then."""
    older, mine, side = stream_of(home), stream_of(home), cu.Stream()
    other = cu.Context(home.device.ordinal)
    theirs = stream_of(other)
    with Capture(driver, theirs, 2) as graph:
        home.synchronize()
        assert graph.status() == ACTIVE
        with pytest.raises(cu.CudaError, match=r"Context.synchronize\(\) cannot be captured"):
            other.synchronize()
        assert graph.status() == ACTIVE
    graph.close()
    assert graph.ended == 0
    with Capture(driver, mine, 2) as graph:
        event = event_of(home)  # listed after the stream, and no stream
        with pytest.raises(cu.CudaError, match=r"Context.synchronize\(\) cannot be captured"):
            home.synchronize()
        stream_of(home).close()
        assert graph.status() == ACTIVE
    graph.close()
    assert graph.ended == 0
    event.close()
    for stream in (theirs, older, mine, side):
        stream.close()
    other.close()


def test_a_context_waits_for_no_copy_in_another_of_its_device(driver: Any) -> None:
    here, other = cu.current_context(), cu.Context(0)
    with other:
        stream, there = cu.Stream(), cu.device_empty(10)
    with busy(driver, stream):
        transfer = cu.copy_async(there, cu.pinned_zeros(10), stream)
        here.synchronize()
        assert not transfer.done
    transfer.wait()
    there.close()
    stream.close()
    other.close()


# ---- streams of other libraries ------------------------------------------------------------------


class cudaStream_t:  # as cuda.bindings calls it
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __int__(self) -> int:
        return self.handle


class Stream:
    """Numba's: a handle that is a ctypes pointer, None for 0."""

    def __init__(self, handle: Any) -> None:
        self.handle = ctypes.c_void_p(handle)


@pytest.mark.parametrize("how", [cudaStream_t, Stream, int])
def test_a_handle_in_another_context(home: Any, how: Any) -> None:
    theirs = stream_of(home)
    stream = cu.Stream.from_handle(how(theirs.handle))
    assert (stream.handle, stream.context) == (theirs.handle, home)
    array = cu.device_zeros(10, "u1", stream=stream)
    assert array.context is home
    array.fill(3, stream=stream)
    assert (array.to_numpy() == 3).all()


def test_a_pointer_to_nothing_is_the_default_stream() -> None:
    stream = cu.Stream.from_handle(Stream(0))
    assert stream.handle == 0
    stream.synchronize()
    with pytest.raises(ValueError, match="says that its event is 0"):
        stream.wait(type("Event", (), {"handle": ctypes.c_void_p(0)})())


def test_which_of_several_handles_counts() -> None:
    """PyTorch's first, then the protocol, then the names of older libraries."""
    good = cu.Stream()

    class Both:
        cuda_stream = good.handle

        def __cuda_stream__(self) -> Any:
            raise AssertionError("not asked")

    class OldStream:
        ptr = handle = 0x1234

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, good.handle

    class PointerStream:
        ptr, handle = good.handle, 0x1234

    for found in (Both(), OldStream(), PointerStream()):
        assert cu.Stream.from_handle(found).handle == good.handle
    for answer in ((0,), (0, good.handle, 0), [0, good.handle]):
        with pytest.raises(TypeError, match=r"must give \(version, handle\)"):
            cu.Stream.from_handle(SimpleNamespace(__cuda_stream__=lambda answer=answer: answer))


def test_a_stream_of_theirs_is_no_home_of_memory(sim: Any) -> None:
    """It may go at any time: the memory is not made in its order."""
    theirs = cu.Stream()
    for stream in (
        cu.Stream.from_handle(theirs.handle),
        SimpleNamespace(cuda_stream=theirs.handle),
    ):
        sim.hold()
        array = cu.device_empty(1000, stream=stream)
        assert theirs.done, "nothing is queued on it"
        sim.release()
        array.close()


def test_the_innermost_of_a_with_that_is_entered_twice(home: Any) -> None:
    stream, between = stream_of(home), cu.Stream()
    with stream:
        with between:
            with stream:
                assert cu.Event().context is home
            assert cu.Event().context is between.context
        assert cu.Event().context is home


def test_a_captured_stream_that_made_memory_is_not_waited_for(driver: Any, sim: Any) -> None:
    """Where more is needed, by an allocation that has nothing to do with the capture."""
    stream = cu.Stream()
    cu.device_empty(10, stream=stream).close()
    with Capture(driver, stream, 2) as graph:
        sim.fail_next("cuMemAllocFromPoolAsync", 2)
        cu.device_empty(10).close()
        assert graph.status() == ACTIVE
    graph.close()
    assert graph.ended == 0


@pytest.mark.parametrize("call", [cu.Stream, cu.Event, lambda **how: cu.device_empty(3, **how)])
def test_a_call_on_another_device_keeps_no_context(two_devices: Any, call: Any) -> None:
    cu.Stream(device=1).close()
    for device in (0, 1):
        with cu.Context(0) as context:
            call(device=device).close()
            before = sys.getrefcount(context)
            for _ in range(5):
                call(device=device).close()
            after = sys.getrefcount(context)
        assert after == before
        context.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda array: array.copy(),
        lambda array: array.copy(stream=None),
        lambda array: cu.device_empty(10, device=0),
        lambda array: cu.device_empty(10, device=0, stream=None),
        lambda array: cu.device_zeros(10, device=0, stream=None),
        lambda array: cu.from_dlpack(array, copy=True),
    ],
)
def test_a_with_of_another_device_is_no_home_of_memory(
    driver: Any, two_devices: Any, call: Any
) -> None:
    """Else its first use would wait for work that has nothing to do with it."""
    array, far = cu.device_zeros(10, device=0), cu.Stream(device=1)
    with busy(driver, far), far:
        made = call(array)
        assert made.device.ordinal == 0
        made.fill(3)
        assert (made.to_numpy() == 3).all()
        assert not far.done


# ---- copies on streams -------------------------------------------------------------------------


def test_a_copy_in_host_memory_comes_in_the_streams_order(sim: Any, home: Any) -> None:
    """It needs no device, and yet what it reads may still be on its way."""
    with home:
        there = cu.device_zeros(1000, "u1")
    there.fill(7)
    stream, between = stream_of(home), cu.pinned_zeros(1000, "u1")
    out = np.zeros(1000, "u1")
    sim.set_latency(20_000)
    cu.copy_async(between, there, stream)
    transfer = cu.copy_async(out, between, stream)
    assert transfer.done
    assert (out == 7).all()
    sim.set_latency(0)


@pytest.mark.parametrize("function", ["cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuEventCreate"])
def test_an_asynchronous_copy_that_is_refused(sim: Any, home: Any, function: str) -> None:
    with home:
        there, stream = cu.device_zeros(1000, "u1"), cu.Stream()
    out, stack = cu.pinned_zeros(1000, "u1"), cu.context_stack()
    references = sys.getrefcount(out)
    cu.trim_host_memory()  # no event is kept from earlier work
    sim.fail(f"{function}:*:719")
    try:
        cu.copy_async(out, there, stream).wait()
    except cu.CudaError as error:
        assert (error.code, error.function) == (719, function)
    else:
        assert function != "cuMemcpyDtoHAsync_v2"
    sim.clear_faults()
    assert cu.context_stack() == stack
    assert sys.getrefcount(out) == references
    stream.synchronize()
    there.close()
    stream.close()


@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_that_cannot_be_captured_changes_no_stack(
    driver: Any, home: Any, pinned: bool
) -> None:
    with home:
        there, stream = cu.device_zeros(1000, "u1"), cu.Stream()
    host = (cu.pinned_zeros if pinned else np.zeros)(1000, "u1")
    stack = cu.context_stack()
    with Capture(driver, stream) as graph:
        for ends in ((there, host), (host, there), (host, host.copy())):
            with pytest.raises(cu.CudaError, match="cannot be captured"):
                cu.copy_async(*ends, stream)
            with stream, pytest.raises(cu.CudaError, match="cannot be captured"):
                cu.copy(there, host)
            assert cu.context_stack() == stack
            assert graph.status() == ACTIVE
    graph.close()
    assert graph.ended == 0


def test_a_copy_into_a_new_array_without_a_stream_waits(sim: Any) -> None:
    """The source may be changed as soon as the call is over."""
    source = cu.pinned_full(1000, 7, "u1")
    for asked in ({}, {"stream": None}):
        sim.set_latency(20_000)
        there = cu.to_device(source, **asked)
        source[:] = 9
        sim.set_latency(0)
        assert (there.to_numpy() == 7).all()
        source[:] = 7
    first = cu.to_device(source)
    sim.set_latency(20_000)
    copied, stream = first.copy(stream=None), cu.Stream()
    first.fill(9, stream=stream)
    sim.set_latency(0)
    assert (copied.to_numpy() == 7).all()
    stream.synchronize()


def test_a_copy_whose_stream_is_on_neither_device(two_devices: Any) -> None:
    far, near = cu.Stream(device=1), cu.Stream(device=0)
    here, there = cu.device_zeros(9, device=0), cu.device_zeros(9, device=1)
    host = np.ones(9)
    for ends in ((here, host), (host, here), (here, here[::-1])):
        with pytest.raises(ValueError, match="the stream is on device 1, the array on device 0"):
            cu.copy_async(*ends, far)
    for stream in (far, near):
        cu.copy_async(there, here, stream).wait()
        cu.copy_async(here, there, stream).wait()
    with pytest.raises(ValueError, match="the stream is on device 0, the array on device 1"):
        cu.copy_async(host, there, near)
    assert not here.to_numpy().any()


# ---- arguments -----------------------------------------------------------------------------------


def test_arguments_are_taken_as_a_function_of_pythons_takes_them() -> None:
    def from_dlpack(x: Any, *, device: Any = None, copy: Any = None) -> None: ...

    def to_device(array: Any, *, device: Any = None, stream: Any = None) -> None: ...

    def device_empty(
        shape: Any, dtype: Any = float, order: Any = "C", *, device: Any = None, stream: Any = None
    ) -> None: ...

    x = np.zeros(3)
    for model in (from_dlpack, to_device, device_empty):
        names = inspect.getfullargspec(model).args + inspect.getfullargspec(model).kwonlyargs
        values: dict[str, Any] = dict.fromkeys(names) | {"x": x, "array": x, "shape": 3}
        call = getattr(cu, model.__name__)
        for count in range(len(names) + 1):
            for named in ([], names[:1], names[1:2], names[-1:], names[-2:], names, ["other"]):
                given = [values[name] for name in names[:count]]
                keywords = {name: values.get(name) for name in named}
                with ExitStack() as expected:
                    try:
                        model(*given, **keywords)  # type: ignore[operator]
                    except TypeError:
                        raises = pytest.raises(TypeError, match=rf"{model.__name__}\(\) ")
                        expected.enter_context(raises)
                    call(*given, **keywords)

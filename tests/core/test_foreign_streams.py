"""Other libraries' streams and events, by each of the names under which they show a handle."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphkit import ACTIVE, Capture, busy
from program import output

pytestmark = pytest.mark.usefixtures("no_leaks")


class IntLike:
    """A handle of cuda.bindings: int() takes it, and it is not a number otherwise."""

    def __init__(self, handle: int) -> None:
        self.number = handle

    def __int__(self) -> int:
        return self.number


class CUstream(IntLike):
    pass


class CUdeviceptr(IntLike):
    pass


class WithProtocol:
    def __init__(self, handle: int) -> None:
        self.number = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.number


class TorchStream:
    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


def classes(name: str) -> dict[str, type]:
    """The classes that libraries call Stream or Event: CuPy's, cuda-core's, Numba's, PyCUDA's."""

    def cupy(self: Any, handle: int) -> None:
        self.ptr = handle

    def pycuda(self: Any, handle: int) -> None:
        self.handle = handle

    def core(self: Any, handle: int) -> None:
        self.handle = IntLike(handle)

    def numba(self: Any, handle: int) -> None:
        self.handle = ctypes.c_void_p(handle)

    makers = {"cupy": cupy, "pycuda": pycuda, "core": core, "numba": numba}
    return {key: type(name, (), {"__init__": made}) for key, made in makers.items()}


STREAMS: dict[str, Callable[[int], object]] = {
    "cuda_stream": TorchStream,
    "__cuda_stream__": WithProtocol,
    **classes("Stream"),
    "derived": type("Mine", (classes("ExternalStream")["cupy"],), {}),
}
EVENTS: dict[str, Callable[[int], object]] = {
    "cuda_event": lambda handle: type("Event", (), {"cuda_event": handle})(),
    **classes("Event"),
}


@pytest.fixture
def theirs(cu):
    stream = cu.Stream(-1)
    yield stream
    stream.synchronize()
    stream.close()


@pytest.mark.parametrize("kind", STREAMS)
def test_work_on_their_stream(cu, sim, theirs, kind: str) -> None:
    foreign, ours = STREAMS[kind](theirs.handle), cu.Stream()
    array, pinned = cu.device_zeros(100, "u1", stream=foreign), cu.pinned_zeros(100, "u1")
    sim.hold()
    array.fill(6, stream=foreign)
    transfer = cu.copy_async(pinned, array, foreign)
    event = cu.Event().record(foreign)
    ours.wait(foreign)
    assert (theirs.done, event.done, ours.done) == (False, False, False)
    sim.release()
    transfer.wait()
    ours.synchronize()
    assert (pinned == 6).all()
    event.wait(foreign)
    for thing in (event, ours):
        thing.close()


def test_their_default_stream_is_that_of_our_streams_context(cu) -> None:
    """Whichever context is current."""
    driver, work = ctypes.CDLL(cu.driver_path()), ExitStack()
    with cu.Context(0) as context:
        ours, default = cu.Stream(), cu.Stream.from_handle(1)
        work.enter_context(busy(driver, default))
    with work:
        ours.wait(TorchStream(0))
        assert not ours.done
    for stream in (ours, default):
        stream.synchronize()
        stream.close()
    context.close()


@pytest.mark.parametrize("kind", EVENTS)
def test_our_stream_waits_for_their_event(cu, sim, theirs, kind: str) -> None:
    ours, array, event = cu.Stream(), cu.device_zeros(100, "u1"), cu.Event()
    sim.hold()
    array.fill(5, stream=theirs)
    event.record(theirs)
    ours.wait(EVENTS[kind](event.handle))
    assert not ours.done
    sim.release()
    ours.close()
    event.close()


def test_pytorchs_event_before_its_first_record(cu, sim) -> None:
    """It has no handle yet, and nothing to wait for."""
    stream = cu.Stream()
    waited = sim.call_count("cuStreamWaitEvent")
    stream.wait(EVENTS["cuda_event"](0))
    assert sim.call_count("cuStreamWaitEvent") == waited
    with pytest.raises(ValueError, match="says that its event is 0: is it closed"):
        stream.wait(EVENTS["cupy"](0))
    stream.close()


def test_their_event_that_the_driver_refuses(cu, sim) -> None:
    stream = cu.Stream()
    with pytest.raises(cu.CudaError, match=r"cuStreamWaitEvent\(event 0x1234 of Event\)"):
        stream.wait(EVENTS["cupy"](0x1234))
    stream.close()


def test_what_only_has_a_handle_is_no_stream(cu, theirs) -> None:
    """A handle or pointer of memory, or of an event, must not reach the driver as a stream."""
    memory = classes("MemoryPointer")["cupy"](theirs.handle)
    buffer = classes("Buffer")["core"](theirs.handle)
    event = classes("Event")["pycuda"](theirs.handle)
    number = theirs.handle
    for other in (memory, buffer, event, number, CUdeviceptr(number)):
        with pytest.raises(TypeError, match="a stream is a Stream or None, not"):
            cu.device_empty(3, stream=other)
        if other is not event:
            with pytest.raises(TypeError, match="a stream waits for an Event or a Stream, not"):
                theirs.wait(other)
        if other is not number:
            with pytest.raises(TypeError, match="a stream's handle is an int, or an object"):
                cu.Stream.from_handle(other)
    with pytest.raises(TypeError, match="not NoneType"):
        theirs.wait(None)
    with pytest.raises(
        TypeError, match=r"not int \(Stream.from_handle and Event.from_handle take one\)"
    ):
        theirs.wait(number)


def test_reading_their_event_closes_our_stream(cu) -> None:
    stream = cu.Stream()

    class Closing:
        @property
        def cuda_event(self) -> int:
            stream.close()
            return 1

    with pytest.raises(ValueError, match="is closed"):
        stream.wait(Closing())


@pytest.mark.parametrize(
    "bad",
    [
        True, 1.5, "1", b"1", -1, 1 << 64, object(), None, [1],
        SimpleNamespace(value="1"), SimpleNamespace(value=1.0), SimpleNamespace(value=-1),
    ],
)  # fmt: skip
def test_a_handle_that_is_none(cu, bad: object) -> None:
    with pytest.raises(TypeError, match=r"Stream: its stream is .*, which is not a handle"):
        cu.device_empty(3, stream=STREAMS["pycuda"](bad))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Event: its event is .*, which is not a handle"):
        cu.Stream().wait(EVENTS["pycuda"](bad))  # type: ignore[arg-type]


def test_what_reading_their_handle_raises_is_passed_on(cu) -> None:
    class Stream:
        @property
        def handle(self) -> int:
            raise ZeroDivisionError("theirs")

    class Torch:
        @property
        def cuda_stream(self) -> int:
            raise ZeroDivisionError("theirs")

    class Broken:
        def __int__(self) -> int:
            raise ZeroDivisionError("theirs")

    for other in (Stream(), Torch(), STREAMS["pycuda"](Broken())):  # type: ignore[arg-type]
        with pytest.raises(ZeroDivisionError, match="theirs"):
            cu.device_empty(3, stream=other)


# ---- from_handle ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [int, np.uint64, CUstream, *STREAMS.values()])
def test_from_handle(cu, sim, theirs, how: Callable[[int], object]) -> None:
    stream = cu.Stream.from_handle(how(theirs.handle))
    assert isinstance(stream, cu.Stream)
    assert stream.handle == theirs.handle
    assert stream.context is theirs.context
    assert stream.priority == theirs.priority == -1
    assert "of another library" in repr(stream)
    assert stream.__cuda_stream__() == (0, theirs.handle)
    array, pinned = cu.device_zeros(100, "u1", stream=stream), cu.pinned_zeros(100, "u1")
    sim.hold()
    with stream:
        array.fill(4)
        transfer = cu.copy_async(pinned, array, None)
    assert stream.done is theirs.done is False
    sim.release()
    transfer.wait()
    stream.synchronize()
    assert (pinned == 4).all()
    destroyed = sim.call_count("cuStreamDestroy_v2")
    stream.close()
    assert stream.closed
    with pytest.raises(ValueError, match="is closed"):
        array.fill(1, stream=stream)
    del stream, array
    assert sim.call_count("cuStreamDestroy_v2") == destroyed
    assert theirs.done


def test_from_handle_of_our_own_is_itself(cu, theirs) -> None:
    assert cu.Stream.from_handle(theirs) is theirs


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_from_handle_of_the_default_streams(cu, handle: int) -> None:
    with cu.Context() as context:
        stream = cu.Stream.from_handle(handle)
        assert (stream.handle, stream.priority) == (handle, 0)
    assert stream.context is context
    array, pinned = cu.device_zeros(100, "u1", stream=stream), cu.pinned_zeros(100, "u1")
    assert array.context is context
    array.fill(3, stream=stream)
    cu.copy_async(pinned, array, stream).wait()
    assert (pinned == 3).all()
    stream.synchronize()
    assert stream.done
    for thing in (array, stream, context):
        thing.close()


def test_from_handle_keeps_an_object_alive_and_lets_it_go(cu, theirs) -> None:
    for close in (True, False):
        owner = TorchStream(theirs.handle)
        seen = weakref.ref(owner)
        stream = cu.Stream.from_handle(owner)
        del owner
        assert seen() is not None
        if close:
            stream.close()
            assert seen() is None
        del stream
        assert seen() is None


def test_an_object_that_keeps_the_stream_made_of_it_is_collected(cu, theirs) -> None:
    owner = TorchStream(theirs.handle)
    owner.ours = cu.Stream.from_handle(owner)  # type: ignore[attr-defined]
    seen = weakref.ref(owner)
    del owner
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("bad", [-1, 1 << 64, np.int64(-5)])
def test_from_handle_of_a_number_that_is_none(cu, bad: int) -> None:
    with pytest.raises(ValueError, match=rf"{int(bad)} is not the handle of a stream"):
        cu.Stream.from_handle(bad)


@pytest.mark.parametrize("bad", [True, 1.5, np.float32(1), "1", b"1", None, [], object()])
def test_from_handle_of_what_is_no_stream(cu, bad: object) -> None:
    with pytest.raises(TypeError, match=f"a stream's handle is .* not .*{type(bad).__name__}"):
        cu.Stream.from_handle(bad)


def test_from_handle_that_the_driver_does_not_know(cu, sim) -> None:
    with pytest.raises(cu.CudaError, match=r"cuStreamGetCtx_v2\(stream 0x1234\)"):
        cu.Stream.from_handle(0x1234)


def test_from_handle_cannot_be_closed_while_a_call_uses_it(cu, sim, theirs) -> None:
    """Else its owner could destroy the stream under the call."""
    stream, array = cu.Stream.from_handle(theirs.handle), cu.device_zeros(10)
    sim.hold()
    array.fill(1, stream=stream)
    asked = sim.call_count("cuEventQuery")
    thread = threading.Thread(target=stream.synchronize)
    thread.start()
    while thread.is_alive() and sim.call_count("cuEventQuery") < asked + 2:
        pass
    with pytest.raises(ValueError, match=r"cannot close <Stream .*: a running call uses it"):
        stream.close()
    sim.release()
    thread.join()
    stream.close()


def test_from_handle_may_be_closed_while_the_stream_is_captured(cu, theirs) -> None:
    """Its owner's stream lives on."""
    stream = cu.Stream.from_handle(theirs.handle)
    with Capture(ctypes.CDLL(cu.driver_path()), theirs) as graph:
        stream.close()
        assert graph.status() == ACTIVE
    graph.close()


def test_from_handle_of_a_stream_on_another_device(cu, two_devices) -> None:
    first, second = two_devices
    theirs = cu.Stream(device=second)
    stream = cu.Stream.from_handle(theirs.handle)
    assert stream.device == second
    with pytest.raises(ValueError, match="the stream is on device 1, the array on device 0"):
        cu.device_zeros(3, device=first).fill(1, stream=stream)
    ours = cu.Stream(device=first)
    ours.wait(stream)
    stream.wait(ours)
    ours.synchronize()
    for thing in (ours, stream, theirs):
        thing.close()


# ---- with, in tasks ------------------------------------------------------------------------------


def test_tasks_that_take_turns_each_see_their_own(cu, sim) -> None:
    streams = [cu.Stream() for _ in range(3)]
    seen: list[tuple[int, list[bool]]] = []

    async def work(which: int) -> None:
        array = cu.device_empty(10, "u1")
        with streams[which]:
            for _ in range(4):
                await asyncio.sleep(0)
                sim.hold()
                array.fill(which)
                seen.append((which, [stream.done for stream in streams]))
                sim.release()
                streams[which].synchronize()

    async def main() -> None:
        await asyncio.gather(*(work(which) for which in range(3)))

    asyncio.run(main())
    assert [which for which, _ in seen[:3]] == [0, 1, 2], "they did take turns"
    for which, done in seen:
        assert done == [other != which for other in range(3)]
    for stream in streams:
        stream.close()


def test_a_task_begins_with_the_stream_of_its_maker(cu, sim) -> None:
    outer, inner = cu.Stream(), cu.Stream()
    array, pinned = cu.device_empty(10, "u1"), cu.pinned_zeros(10, "u1")

    def used() -> list[bool]:
        sim.hold()
        transfer = cu.copy_async(array, pinned, None)
        busy = [not stream.done for stream in (outer, inner)]
        sim.release()
        transfer.wait()
        return busy

    async def child(ready: asyncio.Event) -> list[list[bool]]:
        before = used()
        with inner:
            ready.set()
            await asyncio.sleep(0)
            within = used()
        return [before, within, used()]

    async def main() -> None:
        ready = asyncio.Event()
        with outer:
            task = asyncio.ensure_future(child(ready))
            await ready.wait()
            assert used() == [True, False], "the child's `with` is not ours"
        assert await task == [[True, False], [False, True], [True, False]]
        assert used() == [False, False]

    asyncio.run(main())
    outer.close()
    inner.close()


def test_a_context_that_is_left_in_another(cu, sim) -> None:
    stream = cu.Stream()
    contextvars.copy_context().run(stream.__enter__)
    with pytest.raises(RuntimeError, match="not the innermost"):
        stream.__exit__(None, None, None)
    stream.close()


def test_anothers_value_in_the_variable_is_no_stream(cu) -> None:
    stream, array = cu.Stream(), cu.device_zeros(3)
    with stream:
        context = contextvars.copy_context()
    (variable,) = (v for v in context if v.name == "cudriver.stream")
    for value in (3, (), (3,), None):
        context.run(variable.set, value)
        context.run(array.fill, 2)
        context.run(stream.__enter__)
        context.run(stream.__exit__, None, None, None)
    assert (array.to_numpy() == 2).all()
    del context
    stream.close()


def test_a_with_that_the_interpreter_ends_in() -> None:
    program = """
        import cudriver as cu
        stream = cu.Stream()
        stream.__enter__()
        cu.device_zeros(3)
        theirs = cu.Stream.from_handle(stream)
        other = cu.Stream.from_handle(stream.handle).__enter__()
        print("over")
    """
    assert output(program) == "over\n"


def test_references_of_a_with(cu) -> None:
    stream = cu.Stream()
    before = sys.getrefcount(stream)
    for _ in range(10):
        with stream, stream:
            cu.device_zeros(3)
    stream.synchronize()
    assert sys.getrefcount(stream) == before
    stream.close()


@pytest.mark.parametrize("number", [-5, 1 << 64, "7"])
def test_a_stream_whose_number_is_no_handle_is_refused_with_it(cu: Any, number: Any) -> None:
    stream = type("Stream", (), {"cuda_stream": number})()
    with pytest.raises(TypeError, match=f"its stream is {number!r}, which is not a handle"):
        cu.copy_async(cu.device_zeros(3), np.zeros(3), stream)

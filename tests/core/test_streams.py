"""Streams: order, waiting, `with`, priorities, other libraries' streams."""

from __future__ import annotations

import contextvars
import ctypes
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from graphkit import busy
from program import output

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def stream(cu):
    stream = cu.Stream()
    yield stream
    stream.synchronize()
    stream.close()


def test_form(cu, stream) -> None:
    assert stream.handle
    assert not stream.closed
    assert stream.priority == 0
    assert stream.context is cu.current_context()
    assert stream.device == cu.Device(0)
    assert "device 0" in repr(stream)
    assert stream.done is True
    assert stream.__cuda_stream__() == (0, stream.handle)


def test_priorities(cu) -> None:
    least, greatest = cu.Device(0).primary_context().stream_priority_range
    for priority in range(greatest, least + 1):
        with_priority = cu.Stream(priority)
        assert with_priority.priority == priority
        with_priority.close()
    for priority in (least + 1, greatest - 1):
        with pytest.raises(ValueError, match=f"from {least} .* to {greatest}"):
            cu.Stream(priority)
    for priority in (1 << 40, -(1 << 40), 1 << 70):
        with pytest.raises(ValueError, match=f"priority {priority} .* from {least}"):
            cu.Stream(priority)
    with pytest.raises(TypeError, match="float"):
        cu.Stream(1.5)


def test_synchronize_waits_for_all_streams_of_the_device_it_names(cu, sim) -> None:
    streams = [cu.Stream(device=d) for d in (0, 0, *[1] * (cu.device_count() > 1))]
    arrays = [cu.device_empty(100, "u1", device=stream.device) for stream in streams]
    sim.settle()  # the memory is there
    sim.hold()
    for array, stream in zip(arrays, streams, strict=True):
        array.fill(3, stream=stream)
    assert [stream.done for stream in streams] == [False] * len(streams)
    threading.Timer(0.05, sim.release).start()
    for device in (None, *{stream.device for stream in streams}):
        cu.synchronize(device)
        mine = [s for s in streams if s.device == (cu.Device(0) if device is None else device)]
        assert [stream.done for stream in mine] == [True] * len(mine)
    for stream in streams:
        stream.close()


def test_synchronize_and_memory_info_take_the_current_context_of_their_device(
    cu, sim, two_devices
) -> None:
    with cu.Context(1) as context:
        before = sim.live("contexts")
        cu.synchronize(1)
        free, total = cu.memory_info(1)
        assert cu.memory_info("cuda:1").total == cu.memory_info(device=cu.Device(1)).total == total
        with pytest.raises(ValueError, match="99"):
            cu.memory_info(99)
        free, total = cu.Device(1).memory_info()
        assert 0 < free <= total == context.memory_info().total
        assert sim.live("contexts") == before
    context.close()


@pytest.mark.parametrize("device", [-1, 99, "cuda:99", "x", 1.5])
def test_synchronize_refuses_what_is_no_device(cu, device) -> None:
    with pytest.raises((TypeError, ValueError)):
        cu.synchronize(device)


def test_record_gives_the_event_back(cu, stream) -> None:
    event = cu.Event()
    assert stream.record(event=event) is event
    new = stream.record()
    assert isinstance(new, cu.Event)
    assert not new.timing
    with pytest.raises(TypeError, match="an Event is recorded, not int"):
        stream.record(3)
    event.close()
    new.close()


def test_what_a_stream_waits_for(cu, stream) -> None:
    with pytest.raises(TypeError, match="an Event or a Stream, not int"):
        stream.wait(3)
    stream.wait(stream)


# ---- with ----------------------------------------------------------------------------------------


def test_with_nests_and_is_the_threads_own(cu, stream) -> None:
    other = cu.Stream()
    array = cu.device_zeros(10, "u1")
    seen: list[bool] = []

    def body() -> None:
        array.fill(1)
        seen.append(other.done and stream.done)

    with stream, other, stream:
        thread = threading.Thread(target=body)
        contextvars.Context().run(thread.start)  # a thread may inherit the context variables here
        thread.join()
    assert seen == [True]
    other.close()


def test_a_with_of_another_device_is_not_waited_for(cu, two_devices) -> None:
    """By a blocking copy that has nothing to do with that device."""
    array = cu.device_zeros(10, "u1", device=two_devices[0])
    driver, stream = ctypes.CDLL(cu.driver_path()), cu.Stream(device=two_devices[1])
    with stream, busy(driver, stream):
        cu.copy(array, np.ones(10, "u1"))
        assert not stream.done
    assert (array.to_numpy() == 1).all()


def test_with_left_in_the_wrong_order(cu) -> None:
    stream, other = cu.Stream(), cu.Stream()
    stream.__enter__()
    other.__enter__()
    with pytest.raises(RuntimeError, match="not the innermost"):
        stream.__exit__(None, None, None)
    other.close()
    with pytest.raises(ValueError, match="is closed"):
        cu.device_empty(3)  # the innermost stays
    other.__exit__(None, None, None)
    stream.close()
    cu.device_empty(3)  # the one that was left in the wrong order has gone too
    with pytest.raises(RuntimeError, match="not the innermost"):
        stream.__exit__(None, None, None)


def test_closed_while_it_is_the_threads_stream(cu) -> None:
    stream = cu.Stream()
    array = cu.device_zeros(3)
    with stream:
        stream.close()
        with pytest.raises(ValueError, match="is closed"):
            array.fill(1)
        with pytest.raises(ValueError, match="is closed"):
            cu.device_empty(3)


def test_thread_that_ends_inside_a_with(cu) -> None:
    stream = cu.Stream()
    seen = weakref.ref(stream)
    thread = threading.Thread(target=stream.__enter__)
    thread.start()
    thread.join()
    del stream, thread
    assert seen() is None


# ---- closing -------------------------------------------------------------------------------------


def test_everything_about_a_closed_stream(cu) -> None:
    stream = cu.Stream()
    stream.close()
    stream.close()
    assert stream.closed
    assert repr(stream) == "<Stream, closed>"
    array, open_stream = cu.device_zeros(3), cu.Stream()
    calls: list[Any] = [
        stream.synchronize,
        lambda: stream.done,
        stream.record,
        lambda: stream.wait(cu.Event()),
        lambda: open_stream.wait(stream),
        stream.__enter__,
        stream.__cuda_stream__,
        lambda: array.fill(0, stream=stream),
        lambda: cu.copy_async(array, np.zeros(3), stream),
        lambda: cu.to_device(np.zeros(3), stream=stream),
        lambda: cu.device_empty(3, stream=stream),
        lambda: cu.Event().record(stream),
        lambda: cu.Event().wait(stream),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="is closed"):
            call()


# ---- others' streams -----------------------------------------------------------------------------


class Foreign:
    """A stream as PyTorch shows it."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


class Protocol:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def __cuda_stream__(self) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (3, TypeError, "pair|must give"),
        ((1,), TypeError, "must give"),
        ((0, "x"), TypeError, "Protocol: its stream is 'x', which is not a handle"),
        (KeyError("theirs"), KeyError, "theirs"),
    ],
)
def test_bad_streams_of_other_libraries(
    cu, answer: object, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        cu.device_zeros(3, stream=Protocol(answer))


def test_work_on_others_streams_is_let_go_unasked(cu, sim) -> None:
    """Nobody waits for these transfers, nor asks; what they held must not pile up."""
    array = cu.device_empty(4096, "u1")
    events = sim.live("events")
    for i in range(2000):
        cu.copy_async(array, cu.pinned_zeros(4096, "u1"), None)
        if i % 50 == 0:
            array.context.synchronize()  # which lets nothing go by itself
    assert sim.live("events") - events < 200
    array.context.synchronize()
    assert len(cu.live_allocations()) < 10


def test_others_stream_of_another_device_is_as_our_own(cu, sim, two_devices) -> None:
    first, second = two_devices
    stream = cu.Stream(device=second)
    here, host = cu.device_zeros(1000, "u1", device=first), cu.pinned_zeros(1000, "u1")
    for other in (stream, Foreign(stream.handle), Protocol((0, stream.handle))):
        assert cu.to_device(np.arange(4.0), stream=other).device == second
        assert cu.device_zeros(3, stream=other).device == second
        with pytest.raises(ValueError, match="the stream is on device 1, the array on device 0"):
            cu.copy_async(here, host, other)
        with pytest.raises(ValueError, match="the stream is on device 1, the array on device 0"):
            here.fill(1, stream=other)
        with pytest.raises(ValueError, match="device 0 was asked for"):
            cu.device_empty(3, device=first, stream=other)
        event = cu.Event(device=first)
        with pytest.raises(ValueError, match="record an event of the stream's own context"):
            event.record(other)
        event.record().wait(other)
        there = cu.device_zeros(1000, "u1", device=second)
        sim.hold()
        transfer = cu.copy_async(host, there, other)
        assert not transfer.done
        sim.release()
        transfer.wait()
        cu.Event(device=second).record(other).synchronize()
    stream.close()


@pytest.mark.parametrize("kind", ["primary", "manual"])
def test_others_stream_in_a_context_that_we_have_not_met(cu, two_devices, kind: str) -> None:
    library = ctypes.CDLL(cu.driver_path())
    context, stream, popped = (ctypes.c_void_p() for _ in range(3))
    if kind == "primary":
        assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0
        assert library.cuCtxPushCurrent_v2(context) == 0
    else:
        assert library.cuCtxCreate_v2(ctypes.byref(context), 0, 1) == 0
    assert library.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
    assert library.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0
    before = cu.context_stack()
    array = cu.to_device(np.arange(4.0), stream=Foreign(stream.value))
    assert cu.context_stack() == before
    assert array.context.handle == context.value
    assert array.context.is_primary == (kind == "primary")
    assert cu.device_zeros(3, stream=Foreign(stream.value)).context is array.context
    assert library.cuStreamSynchronize(stream) == 0
    assert library.cuStreamDestroy_v2(stream) == 0
    if kind == "primary":  # ours is a hold of our own
        assert library.cuDevicePrimaryCtxRelease_v2(1) == 0
    assert array.to_numpy().tolist() == [0, 1, 2, 3]
    ours = array.context
    array.close()
    ours.close()
    if kind == "manual":
        assert library.cuCtxDestroy_v2(context) == 0


def test_others_stream_on_a_driver_without_green_contexts() -> None:
    program = """
        import numpy as np, cudriver as cu
        stream = cu.Stream(device=1)
        class Theirs:
            cuda_stream = stream.handle
        print(cu.to_device(np.arange(3), stream=Theirs()).device.ordinal)
    """
    environ = {"CUDRIVER_LIBRARY": "sim", "CUDRIVER_SIM_DEVICES": "2"}
    assert output(program, CUDRIVER_SIM_DRIVER_VERSION="11000", **environ) == "1\n"


def test_others_stream_that_the_driver_refuses(cu, sim, stream) -> None:
    array = cu.device_zeros(3)
    sim.fail_next("cuStreamGetCtx_v2", 400)
    said = rf"cuStreamGetCtx_v2\(stream {stream.handle:#x}\)"
    with pytest.raises(cu.CudaError, match=said) as told:
        array.fill(1, stream=Foreign(stream.handle))
    assert told.value.code == 400
    sim.fail_next("cuStreamGetCtx_v2", 400)
    array.fill(1, stream=Foreign(2))  # not asked: of whichever context is current
    assert (array.to_numpy() == 1).all()

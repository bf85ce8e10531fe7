"""Events: recording, waiting, time."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from copykit import wait_for

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def stream(cu):
    stream = cu.Stream()
    yield stream
    stream.close()


def test_form(cu) -> None:
    event = cu.Event()
    assert event.handle
    assert not event.timing
    assert not event.closed
    assert event.context is cu.current_context()
    assert "not recorded" in repr(event)
    assert event.done
    event.synchronize()
    event.wait()
    assert event.record() is event
    assert "not recorded" not in repr(event)
    event.close()


def test_done_follows_the_work_before_it(cu, sim, stream) -> None:
    array = cu.device_zeros(100, "u1")
    sim.hold()
    array.fill(1, stream=stream)
    event = cu.Event().record(stream)
    array.fill(2, stream=stream)
    assert event.done is False
    sim.step(3)  # the fill, the event that tells us of its end, and the one recorded
    event.synchronize()
    assert event.done is True
    assert stream.done is False
    sim.release()
    stream.synchronize()
    event.close()


def test_elapsed_time(cu, sim, stream) -> None:
    array = cu.device_empty(10, "u1")
    first, second = cu.Event(timing=True), cu.Event(timing=True)
    sim.set_latency(3000)
    first.record(stream)
    array.fill(1, stream=stream)
    second.record(stream)
    second.synchronize()
    milliseconds = first.elapsed_time(second)
    assert milliseconds >= 2.9
    assert first.elapsed_time(first) == 0
    assert second.elapsed_time(first) == pytest.approx(-milliseconds)
    first.close()
    second.close()


def test_elapsed_time_on_any_driver(cu, stream) -> None:
    first, second = cu.Event(timing=True).record(stream), cu.Event(True).record(stream)
    second.synchronize()
    assert 0 <= first.elapsed_time(second) < 60_000
    first.close()
    second.close()


def test_elapsed_time_that_cannot_be_told(cu, sim, stream) -> None:
    timed, plain, array = cu.Event(timing=True), cu.Event(), cu.device_zeros(10, "u1")
    with pytest.raises(ValueError, match="was never recorded"):
        timed.elapsed_time(timed)
    timed.record(stream)
    plain.record(stream)
    for first, second in ((timed, plain), (plain, timed)):
        with pytest.raises(ValueError, match="takes no time"):
            first.elapsed_time(second)
    late = cu.Event(timing=True)
    sim.hold()
    array.fill(1, stream=stream)
    late.record(stream)
    with pytest.raises(ValueError, match="is not over"):
        timed.elapsed_time(late)
    sim.release()
    stream.synchronize()
    with pytest.raises(TypeError, match="takes the later Event, not int"):
        timed.elapsed_time(3)
    for event in (timed, plain, late):
        event.close()


def test_elapsed_time_between_contexts_is_none(cu, stream) -> None:
    context = cu.Context()
    with context:
        other = cu.Stream()
        second = cu.Event(timing=True).record(other)
    first = cu.Event(timing=True).record(stream)
    stream.synchronize()
    other.synchronize()
    for start, end in ((first, second), (second, first)):
        with pytest.raises(ValueError, match="of one context") as caught:
            start.elapsed_time(end)
        assert repr(context) in str(caught.value)
        assert repr(stream.context) in str(caught.value)
    for thing in (first, second, other, context):
        thing.close()


@pytest.mark.threads
def test_events_are_not_closed_while_the_time_between_them_is_asked_for(cu, sim, stream) -> None:
    first, second = (cu.Event(timing=True).record(stream) for _ in range(2))
    second.synchronize()
    asked = sim.call_count("cuEventElapsedTime")
    sim.hold_call("cuEventElapsedTime", 1)
    times: list[float] = []
    asking = threading.Thread(target=lambda: times.append(first.elapsed_time(second)))
    asking.start()
    wait_for(lambda: sim.call_count("cuEventElapsedTime") > asked, "the thread is in the call")
    try:
        for event in (first, second):
            with pytest.raises(ValueError, match="a running call uses it"):
                event.close()
    finally:
        sim.clear_faults()
        asking.join()
    assert times[0] >= 0
    first.close()
    second.close()


@pytest.mark.threads
def test_a_stream_is_not_closed_while_it_is_told_to_wait_for_anothers_event(
    cu, sim, stream
) -> None:
    event, waits = cu.Event().record(stream), cu.Stream()
    theirs = SimpleNamespace(cuda_event=event.handle)
    told = sim.call_count("cuStreamWaitEvent")
    sim.hold_call("cuStreamWaitEvent", 1)
    telling = threading.Thread(target=waits.wait, args=(theirs,))
    telling.start()
    wait_for(lambda: sim.call_count("cuStreamWaitEvent") > told, "the thread is in the call")
    try:
        with pytest.raises(ValueError, match="a running call uses it"):
            waits.close()
    finally:
        sim.clear_faults()
        telling.join()
    waits.close()
    event.close()


def test_an_event_recorded_anew_while_its_time_is_asked_for(cu, sim, stream) -> None:
    event = cu.Event(timing=True).record(stream)
    event.synchronize()
    sim.fail_next("cuEventElapsedTime", 600)
    with pytest.raises(ValueError, match="is not over"):
        event.elapsed_time(event)
    event.close()


def test_made_inside_with_it_is_of_the_streams_context(cu, stream) -> None:
    """So that record() and wait(), which are that stream's there, take it."""
    context = cu.Context()
    with context:
        other = cu.Stream()
    with other:
        event, elsewhere = cu.Event(timing=True), cu.Event(device=0)
        assert event.context is context
        assert elsewhere.context is cu.current_context()
        event.record()
        event.wait()
        with stream:
            assert cu.Event().record().context is stream.context
        with pytest.raises(ValueError, match="record an event of the stream's own context"):
            elsewhere.record()
    event.synchronize()
    elsewhere.record()
    for thing in (event, elsewhere, other, context):
        thing.close()
    with stream:
        stream.close()
        with pytest.raises(ValueError, match="is closed"):
            cu.Event()


def test_everything_about_a_closed_event(cu, stream) -> None:
    event = cu.Event(timing=True)
    event.close()
    event.close()
    assert event.closed
    assert repr(event) == "<Event, closed>"
    calls: list[Any] = [
        event.record,
        lambda: stream.record(event),
        event.wait,
        lambda: stream.wait(event),
        event.synchronize,
        lambda: event.done,
        lambda: event.elapsed_time(event),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="is closed"):
            call()


def test_closed_while_work_waits_for_it(cu, sim, stream) -> None:
    """The driver lets it go when it is over."""
    other, array = cu.Stream(), cu.device_zeros(10, "u1")
    sim.hold()
    array.fill(5, stream=other)
    event = cu.Event().record(other)
    stream.wait(event)
    event.close()
    pinned = cu.pinned_zeros(10, "u1")
    transfer = cu.copy_async(pinned, array, stream)
    sim.release()
    transfer.wait()
    assert (pinned == 5).all()
    other.close()


def test_synchronize_lets_other_threads_run(cu, sim, stream) -> None:
    array = cu.device_zeros(10, "u1")
    sim.hold()
    array.fill(1, stream=stream)
    event = cu.Event().record(stream)
    done = threading.Event()

    def wait() -> None:
        event.synchronize()
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not done.wait(0.05)
    sim.release()
    thread.join()
    assert done.is_set()
    event.close()


@pytest.mark.parametrize("how", ["record", "wait"])
def test_closed_by_the_stream_that_it_is_given(cu, stream, how: str) -> None:
    """To read another library's stream runs that library's code."""
    event = cu.Event()

    class Theirs:
        @property
        def cuda_stream(self) -> int:
            event.close()
            return int(stream.handle)

    with pytest.raises(ValueError, match="<Event, closed> is closed"):
        getattr(event, how)(Theirs())


def test_closing_while_another_thread_waits_for_it(cu, sim, stream) -> None:
    array, event = cu.device_zeros(10, "u1"), cu.Event()
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            event.synchronize()
        except BaseException as error:
            failures.append(error)

    sim.hold()
    array.fill(1, stream=stream)
    event.record(stream)
    asked = sim.call_count("cuEventQuery")
    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive() and sim.call_count("cuEventQuery") < asked + 2:
        pass
    with pytest.raises(ValueError, match=r"cannot close <Event .*: a running call uses it"):
        event.close()
    assert not event.closed
    assert event.done is False
    sim.release()
    thread.join()
    assert failures == []
    event.close()
    assert event.closed


def test_bad_arguments(cu) -> None:
    event = cu.Event()
    for bad in (3, "x", np.zeros(3)):
        with pytest.raises(TypeError, match="a stream is a Stream or None"):
            event.record(bad)
        with pytest.raises(TypeError, match="a stream is a Stream or None"):
            event.wait(bad)
    with pytest.raises(TypeError):
        cu.Event(1, 2, 3)
    event.close()

"""Asynchronous copies: what comes before and behind them.

What must be in flight is held there by the simulated driver's hold(), never by time.
"""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from copykit import LARGE, NamedBy, ends, ends_before, one_step, wait_for
from graphkit import RELAXED, Capture

pytestmark = [pytest.mark.threads, pytest.mark.usefixtures("no_leaks")]


def test_a_blocking_copy_does_not_wait_for_work_that_comes_later(sim: Any) -> None:
    """Another thread may keep the stream busy for ever."""
    library = ctypes.CDLL(cu.driver_path())
    stream, there = cu.Stream(), cu.device_zeros(LARGE, np.uint8)
    gates = threading.Event(), threading.Event()
    source = np.full(LARGE, 7, np.uint8)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def pause(number: int | None) -> None:
        assert gates[number or 0].wait(60)

    def copy() -> None:
        with stream:
            cu.copy(there, source)

    def queue(number: int) -> None:
        assert library.cuLaunchHostFunc(ctypes.c_void_p(stream.handle), pause, number) == 0

    queue(0)
    asked = sim.call_count("cuEventQuery")
    copying = threading.Thread(target=copy)
    copying.start()
    while sim.call_count("cuEventQuery") == asked:  # it waits
        time.sleep(0.001)
    queue(1)
    gates[0].set()
    copying.join(60)
    finished = not copying.is_alive()
    gates[1].set()
    copying.join()
    stream.synchronize()
    assert finished
    assert (there.to_numpy() == 7).all()


def test_it_is_in_flight_until_the_device_has_done_it(held: Any) -> None:
    source, there = ends_before(held)
    stream = cu.Stream()
    transfer = cu.copy_async(there, source, stream)
    assert not transfer.done
    assert not stream.done
    assert "in flight" in repr(transfer)
    assert held.live("pending") > 0
    held.release()
    transfer.wait()
    assert transfer.done
    assert np.array_equal(there.to_numpy(), source)


def test_what_is_over_is_done_when_first_asked_about(sim: Any) -> None:
    """An event that were recorded only now would be done later."""
    source, there = ends()
    stream = cu.Stream()
    transfer = cu.copy_async(there[:100], source[:100], stream)
    wait_for(lambda: sim.live("pending") == 0, "the copy never ends")
    sim.hold()
    assert transfer.done
    sim.release()


@pytest.mark.parametrize("to_device", [True, False])
@pytest.mark.parametrize("strided", [False, True])
def test_pageable_copies_keep_the_streams_order(to_device: bool, strided: bool) -> None:
    stream = cu.Stream()
    step = 2 if strided else 1
    first = np.full(LARGE * step, 1, np.uint8)[::step]
    second = np.full(LARGE * step, 2, np.uint8)[::step]
    assert cu.explain_copy(cu.device_empty(LARGE, np.uint8), first).path == "staged"
    there = cu.device_zeros(LARGE, np.uint8)
    outs = [np.zeros(LARGE * step, np.uint8)[::step] for _ in range(3)]
    pinned = cu.pinned_full(LARGE, 3, np.uint8)
    transfers = [
        cu.copy_async(there, first, stream),
        cu.copy_async(outs[0], there, stream),
        cu.copy_async(there, second if to_device else pinned, stream),
        cu.copy_async(outs[1], there, stream),
    ]
    there.fill(7, stream=stream)
    transfers.append(cu.copy_async(outs[2], there, stream))
    for transfer in random.Random(1).sample(transfers, len(transfers)):
        transfer.wait()
    assert [int(out.min()) for out in outs] == [1, 2 if to_device else 3, 7]
    assert [int(out.max()) for out in outs] == [1, 2 if to_device else 3, 7]


@pytest.mark.parametrize("to_device", [True, False])
def test_a_large_pageable_copy_does_not_wait(held: Any, to_device: bool) -> None:
    held.release()
    there = cu.to_device(np.full(LARGE, 6, np.uint8))
    held.hold()
    stream = cu.Stream()
    gate = cu.pinned_zeros(100, np.uint8)
    cu.copy_async(gate, there[:100], stream)
    host = np.full(LARGE, 8, np.uint8)
    transfer = (
        cu.copy_async(there, host, stream) if to_device else cu.copy_async(host, there, stream)
    )
    assert not transfer.done, "issued, and behind work that is held"
    gone = weakref.ref(host)
    view = host[:10]
    del host
    gc.collect()
    assert gone() is not None
    held.release()
    transfer.wait()
    assert (gate == 6).all()
    assert (view == (8 if to_device else 6)).all()
    assert (there.to_numpy() == (8 if to_device else 6)).all()


def test_with_stream_it_is_the_stream_of_calls_that_name_none(held: Any) -> None:
    source, there = ends_before(held)
    stream, other = cu.Stream(), cu.Stream()
    with stream:
        there.fill(3)
        transfer = cu.copy_async(there, source, None)
        with other:
            assert other.done
        assert not stream.done
    assert not transfer.done
    held.release()
    transfer.wait()
    with stream:
        assert np.array_equal(there.to_numpy(), source), (
            "a blocking copy comes after the stream's work"
        )
        there.fill(4)
        assert (there.to_numpy() == 4).all()
        out = np.zeros(1 << 16, np.uint8)
        cu.copy(out, there)
        assert (out == 4).all()


def test_what_needs_no_device_is_done_at_once() -> None:
    stream = cu.Stream()
    out = np.zeros(100)
    transfer = cu.copy_async(out, np.arange(100.0), stream)
    assert transfer.done
    assert np.array_equal(out, np.arange(100))
    empty = cu.device_zeros((3, 0))
    assert cu.copy_async(empty, np.zeros((3, 0)), stream).done
    there = cu.device_zeros(5)
    same = cu.copy_async(there, there, stream)
    same.wait()
    assert (cu.copy_async(empty, empty, stream).nbytes, same.nbytes) == (0, 40)


def test_an_event_recorded_behind_a_copy_does_not_end_before_it(held: Any) -> None:
    """Also where the copy was asked about later than the event was recorded."""
    source, there = ends_before(held)
    stream = cu.Stream()
    transfer = cu.copy_async(there, source, stream)
    event = stream.record()
    later = cu.copy_async(there, source, stream)
    assert (transfer.done, event.done, later.done) == (False, False, False)
    while not event.done:
        one_step(held)
    assert transfer.done
    assert not later.done, "it was issued behind the event"
    held.release()
    later.wait()


def test_a_stream_that_waits_for_another_waits_for_its_copies(held: Any) -> None:
    source, there = ends_before(held)
    stream, other = cu.Stream(), cu.Stream()
    transfer = cu.copy_async(there, source, stream)
    other.wait(stream)
    assert not transfer.done
    behind = other.record()
    while not behind.done:
        one_step(held)
    assert transfer.done


def test_a_copy_issued_while_another_lets_go_is_in_flight(held: Any) -> None:
    """Though the stream was idle just before, when it was asked."""
    source, there = ends_before(held, 1000)
    first, stream, later = cu.pinned_zeros(1000, np.uint8), cu.Stream(), []

    def issue(_: object) -> None:
        held.hold()
        later.append(cu.copy_async(there, source, stream))

    watched = weakref.ref(first, issue)
    cu.copy_async(there, first, stream)
    del first
    held.release()
    while not stream.done:
        pass
    assert watched() is None
    assert not later[0].done
    held.release()
    later[0].wait()
    assert np.array_equal(there.to_numpy(), source)


def test_synchronize_waits_for_what_was_issued_before_it(held: Any) -> None:
    """And not for what another thread issues while it waits."""
    source, there = ends_before(held, 1000)
    stream = cu.Stream()
    transfer = cu.copy_async(there, source, stream)
    recorded = held.call_count("cuEventRecord")
    waiting = threading.Thread(target=stream.synchronize, daemon=True)
    waiting.start()
    while held.call_count("cuEventRecord") == recorded:
        time.sleep(0.001)
    later = cu.copy_async(there, source, stream)
    for _ in range(3):  # the copy, the event behind it, and that of synchronize()
        one_step(held)
    waiting.join(60)
    assert not waiting.is_alive()
    assert transfer.done
    assert not later.done
    held.release()
    later.wait()


@pytest.mark.parametrize("others", [False, True])
def test_an_event_is_behind_a_copy_by_whatever_name_the_stream_has(held: Any, others: bool) -> None:
    """Whatever else is under way, on this stream or on others, begun earlier or later."""
    source, there = ends_before(held, 100)
    elsewhere = [ends_before(held, 100)[1] for _ in range(2)]
    stream, early, late = cu.Stream(), cu.Stream(), cu.Stream()
    busy = []
    if others:
        busy = [cu.copy_async(there, source, stream), cu.copy_async(elsewhere[0], source, early)]
        assert not busy[0].done
    transfer = cu.copy_async(there, source, stream)
    if others:
        busy.append(cu.copy_async(elsewhere[1], source, late))
    event = cu.Event().record(NamedBy(stream))
    later = cu.copy_async(there, source, stream)
    assert not transfer.done
    while not event.done:
        one_step(held)
    assert transfer.done
    assert not later.done
    held.release()
    for other in [later, *busy]:
        other.wait()


@pytest.mark.parametrize("pageable", [False, True])
def test_a_copy_is_over_while_the_next_is_under_way(held: Any, pageable: bool) -> None:
    """Two buffers taking turns on one stream overlap."""
    source, first = ends_before(held, 1 << 20)
    second = [ends_before(held, 1 << 20)[1], ends_before(held, 100)]
    stream = cu.Stream()
    plain = np.array(source) if pageable else source
    small = cu.copy_async(second[1][1], second[1][0], stream)
    copies = [cu.copy_async(there, plain, stream) for there in (first, second[0])]
    for done in ([True, False, False], [True, True, False]):
        while [small.done, *(copy.done for copy in copies)] != done:
            assert not copies[1].done
            one_step(held)
    held.release()
    copies[1].wait()
    assert np.array_equal(second[0].to_numpy(), source)


@pytest.mark.parametrize("what", ["fill", "to_numpy", "copy"])
@pytest.mark.parametrize("closed", [False, True])
def test_memory_made_in_a_streams_order_is_there_for_calls_without_one(
    held: Any, what: str, closed: bool
) -> None:
    source, there = ends_before(held)
    busy, stream = cu.Stream(), cu.Stream()
    cu.copy_async(there, source, busy)
    stream.wait(busy)
    array = cu.device_empty(source.shape, np.uint8, stream=stream)
    if closed:
        stream.close()
    running = threading.Timer(0.05, held.release)
    running.start()
    if what == "fill":
        array.fill(7)
    elif what == "copy":
        cu.copy(array, source)
    assert array.to_numpy().shape == source.shape
    running.join()


@pytest.fixture
def only_this_thread() -> Iterator[None]:
    """Under the GIL, other threads only get on where this one lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(before)


def test_what_waits_for_a_copy_that_is_refused_while_it_is_issued(sim: Any) -> None:
    """The copy is in flight from before it is issued, and then never is."""
    source, there = cu.pinned_zeros(4096, np.uint8), cu.device_zeros(4096, np.uint8)
    stream = cu.Stream()
    asked = sim.call_count("cuStreamIsCapturing")
    errors: list[BaseException] = []

    def issue() -> None:
        try:
            cu.copy_async(there, source, stream)
        except cu.CudaError as error:
            errors.append(error)

    sim.hold_call("cuStreamIsCapturing", 1)
    issuing = threading.Thread(target=issue)
    issuing.start()
    wait_for(lambda: sim.call_count("cuStreamIsCapturing") > asked, "the thread is in its copy")
    waiting = threading.Thread(target=cu.copy, args=(there, np.full(4096, 7, np.uint8)))
    with Capture(ctypes.CDLL(cu.driver_path()), stream, RELAXED):
        waiting.start()
        for thing in (there, stream):
            with pytest.raises(ValueError, match="cannot close"):
                thing.close()
        assert waiting.is_alive()
        sim.clear_faults()
        issuing.join()
    waiting.join(60)
    assert not waiting.is_alive()
    assert "cannot be captured" in str(*errors)
    assert (there.to_numpy() == 7).all()


def test_a_copy_issued_while_another_thread_issues_one_on_the_stream(held: Any) -> None:
    """It has an event of its own, although the other thread is the first that records one."""
    (source, there), (second, elsewhere) = ends_before(held), ends_before(held, seed=2)
    stream = cu.Stream()
    calls = held.call_count("cuMemcpyHtoDAsync_v2")
    held.hold_call("cuMemcpyHtoDAsync_v2", 1)
    issuing = threading.Thread(target=cu.copy_async, args=(there, source, stream))
    issuing.start()
    wait_for(lambda: held.call_count("cuMemcpyHtoDAsync_v2") > calls, "the thread is in its copy")
    transfer = cu.copy_async(elsewhere, second, stream)
    gone = weakref.ref(second)
    del second
    gc.collect()
    assert not transfer.done
    assert gone() is not None, "the device reads it"
    held.clear_faults()
    issuing.join()
    held.release()
    transfer.wait()
    assert gone() is None
    stream.synchronize()
    assert (there.to_numpy() == source).all()
    assert elsewhere.to_numpy().any()


def test_a_later_copy_that_is_over_ends_none_that_is_not_issued_yet(sim: Any) -> None:
    source, there = cu.pinned_zeros(4096, np.uint8), cu.device_zeros(4096, np.uint8)
    stream, calls = cu.Stream(), sim.call_count("cuMemcpyHtoDAsync_v2")
    sim.hold_call("cuMemcpyHtoDAsync_v2", 1)
    issuing = threading.Thread(target=cu.copy_async, args=(there, source, stream))
    issuing.start()
    wait_for(lambda: sim.call_count("cuMemcpyHtoDAsync_v2") > calls, "the thread is in its copy")
    cu.copy_async(cu.device_zeros(4096, np.uint8), source, stream)
    stream.synchronize()  # asks for the newest work first
    with pytest.raises(ValueError, match="cannot close"):
        there.close()
    sim.clear_faults()
    issuing.join()
    stream.synchronize()
    there.close()


@pytest.mark.usefixtures("only_this_thread")
def test_copies_of_two_threads_are_over_in_the_order_of_the_stream(held: Any) -> None:
    """Also where the thread that records its event first queues its copy last: when that is over,
    the other need not be."""
    library = ctypes.PyDLL(cu.driver_path())  # keeps the GIL
    pairs = [ends_before(held, seed=seed) for seed in range(3)]
    for _ in range(60):  # in some of them this thread gets the GIL first
        stream = cu.Stream()
        first = cu.copy_async(*reversed(pairs[0]), stream)
        pending = held.live("pending")
        held.reset_counts()
        held.hold_call("cuEventRecord", 1)
        recording = threading.Thread(target=cu.copy_async, args=(*reversed(pairs[1]), stream))
        recording.start()
        wait_for(lambda: held.call_count("cuEventRecord") > 0, "the thread's copy is issued")
        library.cudriver_sim_clear_faults()
        while library.cudriver_sim_live(b"pending") < pending + 2:
            pass  # until the event is recorded; then the thread waits for the GIL
        last = cu.copy_async(*reversed(pairs[2]), stream)
        recording.join()
        for _ in range(4):  # copy and event, twice
            one_step(held)
        cu.live_allocations()  # drops what is over
        assert first.done
        assert not last.done
        held.release()
        last.wait()
        held.settle()
        held.hold()


def test_copies_on_many_streams_are_not_asked_about_over_and_over(held: Any) -> None:
    pairs = [ends_before(held) for _ in range(3)]
    streams = [cu.Stream() for _ in pairs]
    asked = held.call_count("cuEventQuery")
    for i in range(600):
        source, there = pairs[i % 3]
        cu.copy_async(there, source, streams[i % 3])
    assert held.call_count("cuEventQuery") - asked < 600
    held.release()
    for stream in streams:
        stream.synchronize()


def test_without_a_stream_the_current_one_is_used(sim: Any) -> None:
    array, host, stream = cu.device_zeros(1000), np.arange(1000.0), cu.Stream()
    cu.copy_async(array, host).wait()
    assert np.array_equal(array.to_numpy(), host)
    with stream:
        sim.hold()
        transfer = cu.copy_async(array[:500], cu.pinned_full(500, -1.0))
        event = stream.record()
        assert not event.done
        sim.release()
    transfer.wait()
    assert (array[:500].to_numpy() == -1).all()


def test_copy_async_takes_two_arrays_and_perhaps_a_stream() -> None:
    source, there = ends()
    calls: list[Any] = [
        lambda: cu.copy_async(there, source, None, None),  # type: ignore[call-arg]
        lambda: cu.copy_async(there, source, None, stream=None),  # type: ignore[misc]
        lambda: cu.copy_async(there, source, steam=cu.Stream()),  # type: ignore[call-arg]
        lambda: cu.copy_async(there, stream=None, src=source),  # type: ignore[call-arg]
        lambda: cu.copy_async(there),  # type: ignore[call-arg]
        lambda: cu.copy_async(there, source, None, True),  # type: ignore[misc]
        lambda: cu.copy_async(there, source, borrow=True, copy=True),  # type: ignore[call-arg]
    ]
    for call in calls:
        with pytest.raises(TypeError, match="two arrays, and a stream or None"):
            call()
    for named in ({"src": source}, {"dst": there, "src": source}, {"stream": None}):
        given = (there,) if "stream" not in named else (there, source)
        with pytest.raises(TypeError, match="takes two positional arguments"):
            cu.copy(*given, **named)  # type: ignore[call-overload]
    assert not there.to_numpy().any()
    for named in ({"borrow": True, "stream": None}, {"stream": None, "borrow": 0}):
        cu.copy_async(there, source, **named).wait()


@pytest.mark.parametrize("seen", ["by synchronize", "by a wait", "by close"])
def test_memory_of_a_stream_that_is_gone_waits_for_nothing_else(sim: Any, seen: str) -> None:
    """It was there when that was seen, whatever the stream got to do later."""
    source, there = ends()
    stream, behind = cu.Stream(), None
    if seen == "by a wait":
        sim.set_latency(50_000)
    array = cu.device_empty(source.shape, np.uint8, stream=stream)
    array.fill(3, stream=stream)
    if seen == "by close":
        wait_for(lambda: sim.live("pending") == 0, "the fill never ends")
    else:
        stream.synchronize()
        sim.set_latency(0)
        sim.hold()
        behind = cu.copy_async(there, source, stream)
    stream.close()
    sim.release()
    sim.reset_counts()
    array.fill(1)
    assert sim.call_count("cuCtxSynchronize") == 0
    if behind is not None:
        behind.wait()


def test_a_context_in_whose_memory_a_call_is_running_is_not_reset(sim: Any) -> None:
    """Though the call is issued in another context's stream."""
    with cu.Context() as other:
        stream = cu.Stream()
    source, there = ends()
    sim.hold()

    def run() -> None:
        with stream:
            cu.copy(there, source)

    running = threading.Thread(target=run)
    running.start()
    while sim.live("pending") == 0:
        time.sleep(0.001)
    with pytest.raises(cu.InvalidContextError, match="a call is running in <"):
        cu.Device(0).reset_primary_context()
    sim.release()
    running.join()
    assert np.array_equal(there.to_numpy(), source)
    stream.close()
    other.close()


@pytest.mark.parametrize("how", ["to_device", "fill", "zeros", "view"])
def test_a_call_without_a_stream_sees_what_one_with_a_stream_began(sim: Any, how: str) -> None:
    source = cu.pinned_full(LARGE, 5, np.uint8)
    there = cu.device_zeros(LARGE, np.uint8)
    stream = cu.Stream()
    sim.hold()
    try:
        if how == "to_device":
            there = cu.to_device(source, stream=stream)
        elif how == "zeros":
            there = cu.device_zeros(LARGE, np.uint8, stream=stream)
            there.fill(5, stream=stream)
        elif how == "view":
            there[: LARGE // 2].fill(5, stream=stream)
            there[LARGE // 2 :].fill(5, stream=stream)
        else:
            there.fill(5, stream=stream)
        timer = threading.Timer(0.1, sim.release)
        timer.start()
        assert there[:10].to_numpy().tolist() == [5] * 10
        timer.join()
        sim.hold()
        there.fill(6, stream=stream)
        timer = threading.Timer(0.1, sim.release)
        timer.start()
        there.fill(7)
        timer.join()
    finally:
        sim.release()
    stream.synchronize()
    assert (there.to_numpy() == 7).all()


@pytest.mark.parametrize("nbytes", [64, 1 << 16])
def test_a_blocking_copy_of_plain_memory_is_over_for_every_stream(held: Any, nbytes: int) -> None:
    """The driver's own call returns when it has read the host's memory. A stream that does not wait
    for the default one must find the bytes all the same."""
    held.release()
    there, plain = cu.device_zeros(nbytes, np.uint8), np.full(nbytes, 7, np.uint8)
    cu.copy(there, plain)
    plain[:] = 9
    held.hold()
    copying = threading.Thread(target=cu.copy, args=(there, plain))
    copying.start()
    while held.live("pending") == 0 and copying.is_alive():
        pass
    copying.join(0.2)
    returned_early = not copying.is_alive()
    held.release()
    copying.join()
    assert not returned_early
    assert np.array_equal(there.to_numpy(), plain)


def test_little_page_locked_memory_makes_a_copy_slower_and_does_not_end_it() -> None:
    there, plain = cu.to_device(np.full(LARGE, 6, np.uint8)), np.zeros(LARGE, np.uint8)
    cu.trim_host_memory()
    cu.set_host_memory_limit(cu.host_memory_stats().registered_bytes + (10 << 20))
    try:
        cu.copy_async(plain, there, cu.Stream()).wait()
    finally:
        cu.set_host_memory_limit(None)
    assert (plain == 6).all()


@pytest.mark.parametrize("size", [64, 1 << 14])
@pytest.mark.parametrize("to_device", [False, True])
def test_a_small_pageable_copy_does_not_wait(held: Any, to_device: bool, size: int) -> None:
    """The driver's own call would: to pageable memory it returns when the copy is over, and from
    there it reads at once, though it is borrowed."""
    held.release()
    there, out = cu.device_zeros(size, np.uint8), cu.pinned_zeros(size, np.uint8)
    host = np.full(size, 8, np.uint8)
    stream, issued = cu.Stream(), threading.Event()
    transfers = []
    held.hold()
    there.fill(5, stream=stream)

    def issue() -> None:
        ends = (there, host) if to_device else (host, there)
        transfers.append(cu.copy_async(*ends, stream, borrow=True))
        issued.set()

    issuing = threading.Thread(target=issue)
    issuing.start()
    in_time = issued.wait(60)
    done = in_time and transfers[0].done
    untouched = (host == 8).all()
    if to_device:
        host[:] = 9  # in the stream's order it has not been read
    held.release()
    issuing.join()
    assert (in_time, done) == (True, False)
    assert untouched
    cu.copy_async(out, there, stream).wait()
    transfers[0].wait()
    assert (out == (9 if to_device else 5)).all()
    assert (host == (9 if to_device else 5)).all()

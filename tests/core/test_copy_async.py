"""Asynchronous copies: order, lifetime, waiting and failing.

What must be in flight is held there by the simulated driver's hold(), never by time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from graphkit import busy
from program import output

pytestmark = pytest.mark.threads

LARGE = 8 << 20  # staged by the copy engine where it is pageable


def alive() -> int:
    """What lives, but for the contexts that are kept on purpose."""
    gc.collect()
    return sum(row.kind != "primary context" for row in cu.live_allocations())


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = alive()
    yield
    assert alive() <= before


@pytest.fixture
def held(sim: Any) -> Iterator[Any]:
    """Streams stand still until held.release()."""
    for make in (cu.pinned_zeros, cu.device_zeros):  # what is made at first use is made
        make(LARGE, np.uint8)
    sim.settle()
    sim.hold()
    yield sim
    sim.release()
    sim.settle()  # work in flight keeps its memory


def ends(size: int = 1 << 16, seed: int = 1) -> tuple[Any, Any]:
    """A page-locked source and a device array of zeros."""
    source = cu.pinned_empty(size, np.uint8)
    source[:] = np.random.default_rng(seed).integers(1, 256, size, np.uint8)
    return source, cu.device_zeros(size, np.uint8)


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


def ends_before(held: Any, size: int = 1 << 16, seed: int = 1) -> tuple[Any, Any]:
    """ends(), whose fill needs a stream that runs."""
    held.release()
    made = ends(size, seed)
    held.hold()
    return made


def one_step(held: Any) -> None:
    pending = held.live("pending")
    assert pending > 0, "nothing is left that could step"
    held.step(1)
    while held.live("pending") == pending:
        time.sleep(0.001)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Until it holds; what never comes fails the test, and does not hang it."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.001)


def test_what_is_over_is_done_when_first_asked_about(sim: Any) -> None:
    """An event that were recorded only now would be done later."""
    source, there = ends()
    stream = cu.Stream()
    transfer = cu.copy_async(there[:100], source[:100], stream)
    wait_for(lambda: sim.live("pending") == 0, "the copy never ends")
    sim.hold()
    assert transfer.done
    sim.release()


def test_both_ends_are_kept_while_it_is_in_flight(held: Any) -> None:
    source, there = ends_before(held)
    wanted = source.copy()
    out = cu.pinned_zeros(1 << 16, np.uint8)
    gone = [weakref.ref(source), weakref.ref(there), weakref.ref(out)]
    used = cu.host_memory_stats().used_blocks
    stream = cu.Stream()
    transfers = [cu.copy_async(there, source, stream), cu.copy_async(out, there, stream)]
    view = out[:]
    del source, there, out
    gc.collect()
    assert all(ref() is not None for ref in gone)
    assert cu.host_memory_stats().used_blocks == used
    held.release()
    for transfer in transfers:
        transfer.wait()
    del transfer, transfers
    gc.collect()
    assert gone[0]() is None
    assert gone[1]() is None
    assert np.array_equal(view, wanted)


def test_a_dropped_transfer_is_carried_out_and_then_lets_go(held: Any) -> None:
    source, there = ends_before(held)
    wanted = source.copy()
    gone = weakref.ref(source)
    stream = cu.Stream()
    cu.copy_async(there, source, stream)
    del source
    gc.collect()
    assert gone() is not None
    held.release()
    stream.synchronize()
    assert gone() is None, "synchronize() lets go of what is over"
    assert np.array_equal(there.to_numpy(), wanted)


def test_a_whole_array_in_flight_cannot_be_closed(held: Any) -> None:
    source, there = ends_before(held)
    transfer = cu.copy_async(there, source, cu.Stream())
    with pytest.raises(ValueError, match="asynchronous copy"):
        there.close()
    held.release()
    transfer.wait()
    there.close()


def test_a_stream_closed_in_flight_finishes_its_work(held: Any) -> None:
    source, there = ends_before(held)
    stream = cu.Stream()
    transfer = cu.copy_async(there, source, stream)
    stream.close()
    assert not transfer.done
    with pytest.raises(ValueError, match="closed"):
        cu.copy_async(there, source, stream)
    held.release()
    transfer.wait()
    assert np.array_equal(there.to_numpy(), source)


def test_work_on_a_stream_runs_in_its_order() -> None:
    stream = cu.Stream()
    source, there = ends(1 << 20)
    out = [cu.pinned_zeros(1 << 20, np.uint8) for _ in range(4)]
    there.fill(9, stream)
    cu.copy_async(out[0], there, stream)
    cu.copy_async(there, source, stream)
    cu.copy_async(out[1], there, stream)
    there[::2].fill(5, stream)
    cu.copy_async(out[2], there, stream)
    other = cu.device_empty(1 << 20, np.uint8, stream=stream)
    cu.copy_async(other, there, stream)
    cu.copy_async(out[3], other, stream).wait()
    assert (out[0] == 9).all()
    assert np.array_equal(out[1], source)
    wanted = source.copy()
    wanted[::2] = 5
    assert np.array_equal(out[2], wanted)
    assert np.array_equal(out[3], wanted)


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
    there.fill(7, stream)
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


@pytest.mark.parametrize("size", [1 << 16, LARGE])
@pytest.mark.parametrize("pageable", [False, True])
def test_what_was_copied_before_a_synchronize_is_done(sim: Any, size: int, pageable: bool) -> None:
    """At once, without more work on the stream."""
    source, there = ends(size)
    plain = np.array(source)
    stream = cu.Stream()
    sim.set_latency(20_000)  # an event that were recorded now would be done later
    transfer = cu.copy_async(there, plain if pageable else source, stream)
    stream.synchronize()
    assert transfer.done
    gone = weakref.ref(plain)
    del plain
    gc.collect()
    assert gone() is None, "its ends are let go"


@pytest.mark.parametrize("how", ["stream.done", "context.synchronize", "event.synchronize"])
def test_what_was_seen_over_stays_over(sim: Any, how: str) -> None:
    """Whatever else the stream gets to do after it."""
    source, there = ends()
    stream = cu.Stream()
    plain = np.array(source)
    gone = weakref.ref(plain)
    transfer = cu.copy_async(there, plain, stream)
    if how == "stream.done":
        while not stream.done:
            pass
    elif how == "context.synchronize":
        stream.context.synchronize()
    else:
        stream.record().synchronize()
    del plain
    gc.collect()
    assert gone() is None, "its ends are let go"
    sim.hold()
    later = cu.copy_async(there, source, stream)
    assert transfer.done
    assert not later.done
    sim.release()
    later.wait()


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


class NamedBy:
    """As other libraries show a stream."""

    def __init__(self, stream: Any) -> None:
        self.cuda_stream = stream.handle


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


@pytest.mark.parametrize("fills", range(3))
def test_any_mix_of_fills_and_copies_is_held(sim: Any, fills: int) -> None:
    """A fill keeps one array alive, a copy two: what takes note of them must not run over. Python's
    own allocator looks behind each block when that is freed, so there are many."""
    program = """
        import ctypes, gc, sys, weakref, numpy as np, cudriver as cu
        sim, fills = ctypes.CDLL(cu.driver_path()), int(sys.argv[1])
        stream = cu.Stream()
        pairs = [(cu.device_zeros(100, "u1"), cu.pinned_full(100, i, "u1")) for i in range(16)]
        sim.cudriver_sim_hold()
        for _ in range(200):
            for there, _ in pairs[:fills]:
                there.fill(200, stream)
            for there, source in pairs:
                cu.copy_async(there, source, stream)
        gone = [weakref.ref(side) for pair in pairs for side in pair]
        arrays = [there for there, _ in pairs]
        del pairs, there, source
        gc.collect()
        held = sum(ref() is not None for ref in gone)
        sim.cudriver_sim_release()
        stream.synchronize()
        right = all((array.to_numpy() == i).all() for i, array in enumerate(arrays))
        del arrays
        gc.collect()
        print(held, right, sum(ref() is not None for ref in gone) <= 1)
    """
    assert output(program, str(fills), PYTHONMALLOC="debug") == "32 True True\n"


def test_each_copy_is_over_by_itself(held: Any) -> None:
    """Whatever comes behind it on the stream."""
    source, there = ends_before(held, 100)
    stream = cu.Stream()
    transfers = [cu.copy_async(there, source, stream) for _ in range(40)]
    for at in range(10):
        while not transfers[at].done:
            one_step(held)
        assert not transfers[at + 1].done
    held.release()
    transfers[-1].wait()


#: How a loop sees that a copy is over, how large the copies are, and how many sources may be kept.
SEEN = {
    "context.synchronize": (1 << 17, 1),
    "event.synchronize": (1 << 12, 2),
    "transfer.done": (1 << 17, 2),
    "transfer.done on another library's stream": (1 << 17, 2),
    "transfer.done behind a copy that nobody asks about": (64, 3),
    "by large copies that come after it": (1 << 17, 3),
    "by small copies that come after it": (100, 40),
}


@pytest.mark.parametrize("how", SEEN)
def test_sources_of_copies_that_are_over_are_let_go(sim: Any, how: str) -> None:
    """Neither every array nor every event is kept."""
    size, most = SEEN[how]
    there, stream, event = cu.device_zeros(size, np.uint8), cu.Stream(), cu.Event()
    on = NamedBy(stream) if "another library" in how or "behind" in how else stream
    if "behind" in how:
        cu.copy_async(there, cu.pinned_zeros(size, np.uint8), stream)
    copied, alive_after = [], []
    for _ in range(100):
        plain = np.zeros(size, np.uint8)
        copied.append(weakref.ref(plain))
        transfer = cu.copy_async(there, plain, on)
        del plain
        if "transfer" in how:
            wait_for(lambda transfer=transfer: transfer.done, "the copy never ends")
        del transfer
        if how == "context.synchronize":
            stream.context.synchronize()
        elif how == "event.synchronize":
            event.record(stream).synchronize()
        elif how.startswith("by"):
            wait_for(lambda: sim.live("pending") == 0, "the copy never ends")
        alive_after.append(sum(ref() is not None for ref in copied))
    assert max(alive_after) <= most


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
    ]
    for call in calls:
        with pytest.raises(TypeError, match="two arrays, and a stream or None"):
            call()
    for named in ({"src": source}, {"dst": there, "src": source}, {"stream": None}):
        given = (there,) if "stream" not in named else (there, source)
        with pytest.raises(TypeError, match="takes two positional arguments"):
            cu.copy(*given, **named)  # type: ignore[call-overload]
    assert not there.to_numpy().any()


def test_copies_on_a_stream_with_the_handle_of_a_busy_one_are_let_go() -> None:
    sources = [cu.pinned_zeros(1 << 17, np.uint8) for _ in range(2)]
    targets = [cu.device_zeros(1 << 17, np.uint8) for _ in range(2)]
    old = cu.Stream()
    with busy(ctypes.CDLL(cu.driver_path()), old):
        transfer = cu.copy_async(targets[0], sources[0], old)
        old.close()
        stream = cu.Stream()  # the driver gives it the handle
        cu.copy_async(targets[1], sources[1], stream)
        gone = [weakref.ref(source) for source in sources]
        sources.clear()
        stream.synchronize()
        assert [ref() is None for ref in gone] == [False, True]
    transfer.wait()


class Theirs:
    """Another library's stream, which does not say when it goes."""

    def __init__(self, driver: Any) -> None:
        self.driver, handle = driver, ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
        self.handle = self.cuda_stream = handle.value

    def __getattr__(self, name: str) -> Any:  # cuStreamSynchronize, cuStreamDestroy_v2
        return lambda: self.driver[name](ctypes.c_void_p(self.handle))


def test_copies_on_another_librarys_stream_with_the_handle_of_a_busy_one() -> None:
    """What came before on that handle, and is not over, is kept, though what came later is over."""
    driver = ctypes.CDLL(cu.driver_path())
    sources = [cu.pinned_zeros(1 << 12, np.uint8) for _ in range(3)]
    targets = [cu.device_zeros(1 << 12, np.uint8) for _ in range(3)]
    old = Theirs(driver)
    first = cu.copy_async(targets[0], sources[0], old)
    old.cuStreamSynchronize()
    with busy(driver, old):
        second = cu.copy_async(targets[1], sources[1], old)
        old.cuStreamDestroy_v2()
        new = Theirs(driver)  # the driver gives it the handle
        third = cu.copy_async(targets[2], sources[2], new)
        new.cuStreamSynchronize()
        gone = [weakref.ref(source) for source in sources]
        sources.clear()
        cu.device_empty(1)  # looks at all that is in flight
        assert [ref() is None for ref in gone] == [True, False, True]
        assert [first.done, second.done, third.done] == [True, False, True]
    second.wait()
    new.cuStreamDestroy_v2()


def test_a_failed_event_waits_for_the_engine(sim: Any) -> None:
    """Its threads are at the destination until the copy is over, whatever became of the event."""
    source, there = ends(LARGE)
    cu.copy(there, source)
    stream, memory = cu.Stream(), bytearray(LARGE)
    plain = np.frombuffer(memory, np.uint8)
    gone = weakref.ref(plain)
    sim.hold()
    sim.fail("cuEventRecord:*:2")
    soon = threading.Timer(0.1, sim.release)
    soon.start()
    transfer = cu.copy_async(plain, there, stream)
    sim.clear_faults()
    del plain
    assert gone() is None
    assert memory == source.tobytes(), "it is let go when all has arrived"
    transfer.wait()
    soon.join()


def test_threads_that_let_go_of_contexts_while_others_copy() -> None:
    """To let go of the last array of a context runs anything, and changes the list of copies."""
    until, failed, before = time.monotonic() + 1, [], alive()

    def copies() -> None:
        source, there = ends()
        stream = cu.Stream()
        while True:
            for _ in range(50):
                cu.copy_async(there, source, stream)
            stream.synchronize()
            if time.monotonic() >= until:
                break

    def contexts() -> None:
        source = cu.pinned_zeros(1 << 17, np.uint8)
        while True:
            with cu.Context():
                last = cu.copy_async(cu.device_zeros(1 << 17, np.uint8), source, cu.Stream())
            if time.monotonic() >= until:
                break
        last.wait()

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=[w]) for w in (copies, contexts) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    wait_for(lambda: alive() <= before, "what the copies held stays alive")


@pytest.mark.parametrize("seen", ["by synchronize", "by a wait", "by close"])
def test_memory_of_a_stream_that_is_gone_waits_for_nothing_else(sim: Any, seen: str) -> None:
    """It was there when that was seen, whatever the stream got to do later."""
    source, there = ends()
    stream, behind = cu.Stream(), None
    if seen == "by a wait":
        sim.set_latency(50_000)
    array = cu.device_empty(source.shape, np.uint8, stream=stream)
    array.fill(3, stream)
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


def test_what_a_copy_that_is_over_held_may_be_closed() -> None:
    """Though nobody has looked whether it is."""
    context = cu.Context()
    with context:
        there, source = cu.device_zeros(1000, np.uint8), cu.pinned_zeros(500, np.uint8)
        with cu.Stream() as stream:
            cu.copy_async(source, there[:500], stream)
            end = stream.record()
            while not end.done:
                pass
        cu.copy_async(there[::2], source, stream)
        while not stream.done:
            pass
        there.close()
        array = cu.device_zeros(1 << 17, np.uint8)
        cu.copy_async(cu.pinned_zeros(1 << 17, np.uint8), array, stream)
        end.record(stream)
        del array, there
        while not end.done:
            pass
        stream.close()
        end.close()
    del source
    context.close()


@pytest.mark.parametrize("what", ["cuEventCreate", "cuEventRecord", "cuStreamSynchronize"])
def test_an_event_that_cannot_be_recorded_behind_a_copy(sim: Any, what: str) -> None:
    source, there = ends()
    stream, event = cu.Stream(), cu.Event()
    for nth in (1, 2):
        transfer = cu.copy_async(there, source, stream)
        sim.fail(f"{what}:{nth}:2")
        with contextlib.suppress(cu.CudaError):
            event.record(stream)
        sim.clear_faults()
        transfer.wait()
        stream.synchronize()
        assert transfer.done
        assert np.array_equal(there.to_numpy(), source)
    event.close()


#: What queries and waits are told while another thread captures a graph; it says nothing about
#: the work that they ask about.
CAPTURING = (900, 901, 906)


@pytest.mark.parametrize("code", CAPTURING)
def test_memory_in_use_is_kept_while_the_driver_does_not_tell(held: Any, code: int) -> None:
    source, there = ends_before(held)
    wanted, address, gone = source.copy(), source.ctypes.data, weakref.ref(source)
    transfer = cu.copy_async(there, source, cu.Stream())
    assert not transfer.done
    held.fail(f"cuEventQuery:*:{code}")
    assert not transfer.done
    del source
    gc.collect()
    assert gone() is not None
    assert cu.pinned_full(1 << 16, 99, np.uint8).ctypes.data != address
    held.clear_faults()
    assert not transfer.done
    held.release()
    transfer.wait()
    assert transfer.done
    assert gone() is None
    assert np.array_equal(there.to_numpy(), wanted)


@pytest.mark.parametrize("code", CAPTURING)
@pytest.mark.parametrize("what", ["cuEventCreate", "cuEventRecord"])
def test_a_copy_that_no_event_can_be_recorded_behind_is_waited_for(
    held: Any, what: str, code: int
) -> None:
    """The default stream refuses one while another thread captures a blocking stream."""
    with cu.Context() as context:  # it has no events yet
        source, there = ends_before(held)
    made: list[Any] = []
    for call in (what, "cuStreamQuery"):
        held.fail(f"{call}:*:{code}")
    asked = held.call_count("cuStreamQuery")
    copying = threading.Thread(target=lambda: made.append(cu.copy_async(there, source, None)))
    copying.start()
    wait_for(lambda: held.call_count("cuStreamQuery") > asked + 2, "the call waits")
    assert made == []
    held.clear_faults()
    held.release()
    copying.join()
    assert made.pop().done
    assert np.array_equal(there.to_numpy(), source)
    there.close()
    context.close()


def test_a_transfer_is_done_after_synchronize_on_any_driver() -> None:
    source, there = ends()
    stream = cu.Stream()
    for _ in range(500):
        transfer = cu.copy_async(there, source, stream)
        stream.synchronize()
        assert transfer.done


def test_a_copy_that_the_driver_refuses_is_no_transfer(sim: Any) -> None:
    source, there = ends(LARGE)
    plain = np.zeros(LARGE, np.uint8)
    stream = cu.Stream()
    for what in ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuEventRecord"):
        sim.fail(f"{what}:1:700")
        for dst, src in ((there, source), (source, there), (there, plain), (plain, there)):
            with contextlib.suppress(cu.CudaError):
                cu.copy_async(dst, src, stream).wait()
        assert sim.call_count(what) > 0
        sim.clear_faults()
        stream.synchronize()
    there.close()


@pytest.mark.parametrize("size", [1 << 14, 600_000, LARGE])
def test_a_stream_that_answers_nothing_takes_no_page_locked_memory(sim: Any, size: int) -> None:
    """Such a copy queues nothing, so no slot stays with the device. (During a capture a stream
    answers neither a query nor a wait.)"""
    plain, there = np.zeros(size, np.uint8), cu.device_zeros(size, np.uint8)
    stream = cu.Stream()
    cu.copy_async(there, plain, stream).wait()  # what is made at first use is made
    used = cu.host_memory_stats().used_bytes
    sim.fail("cuStreamQuery:*:900,cuStreamSynchronize:*:900")
    for _ in range(5):
        with pytest.raises(cu.CudaError) as caught:
            cu.copy_async(there, plain, stream)
        assert caught.value.code == 900
    sim.clear_faults()
    assert cu.host_memory_stats().used_bytes == used
    cu.copy_async(there, plain, stream).wait()


@pytest.mark.parametrize("pageable", [False, True])
def test_a_copy_that_fails_on_the_device_is_told_by_its_transfer(sim: Any, pageable: bool) -> None:
    source, there = ends(LARGE)
    host = np.zeros(LARGE, np.uint8) if pageable else source
    stream = cu.Stream()
    sim.hold()
    transfer = cu.copy_async(there, host, stream)
    assert not transfer.done
    sim.fail("async:1:719")
    sim.release()
    with pytest.raises(cu.CudaError) as caught:
        transfer.wait()
    assert caught.value.code == 719
    with pytest.raises(cu.CudaError) as again:
        transfer.done
    assert again.value.code == 719
    assert "719" in repr(transfer) or "LAUNCH_FAILED" in repr(transfer)
    sim.clear_faults()
    sim.reset()
    gone = weakref.ref(there)
    del there, transfer, caught, again
    gc.collect()
    assert gone() is None, "a failed copy holds nothing"
    assert np.array_equal(cu.to_device(source).to_numpy(), source), "the device was fixed"


def test_waiting_in_many_threads_for_one_transfer(held: Any) -> None:
    source, there = ends_before(held)
    transfer = cu.copy_async(there, source, cu.Stream())
    ready = threading.Barrier(7)
    results: list[object] = []

    def work() -> None:
        ready.wait()
        results.append(transfer.wait())  # type: ignore[func-returns-value]

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    ready.wait()
    held.release()
    for thread in threads:
        thread.join()
    assert results == [None] * 6
    assert transfer.done


@pytest.mark.parametrize("fails", [False, True])
def test_a_transfer_that_is_asked_about_while_it_lets_go_of_its_ends(sim: Any, fails: bool) -> None:
    plain, there = np.full(LARGE, 7, np.uint8), cu.device_zeros(LARGE, np.uint8)
    stream, inner = cu.Stream(), []

    def ask(_: object = None) -> object:
        try:
            return transfer.done
        except cu.CudaError as error:
            return error.code

    gone = weakref.ref(plain, lambda _: inner.append(ask()))
    sim.hold()
    transfer = cu.copy_async(there, plain, stream)
    del plain
    assert ask() is False
    if fails:
        sim.fail("async:1:719")
    sim.release()
    wait_for(lambda: ask() is not False, "the copy ends")
    assert inner == [ask()] == [719 if fails else True]
    assert gone() is None
    sim.clear_faults()
    sim.reset()


def test_awaiting() -> None:
    source, there = ends(LARGE)
    out = cu.pinned_zeros(LARGE, np.uint8)
    plain = np.zeros(LARGE, np.uint8)

    async def main() -> None:
        stream = cu.Stream()
        assert await cu.copy_async(there, source, stream) is None  # type: ignore[func-returns-value]
        await asyncio.gather(
            cu.copy_async(out, there, stream),
            cu.copy_async(plain, there, cu.Stream()),
            *(cu.copy_async(np.zeros(10), np.ones(10), None) for _ in range(3)),
        )
        transfer = cu.copy_async(out, there, stream)
        await transfer
        await transfer
        assert transfer.done

    asyncio.run(main())
    assert np.array_equal(out, source)
    assert np.array_equal(plain, source)


class TheirStream:
    """A stream of another library on the same driver, which destroys it without telling us."""

    def __init__(self) -> None:
        self.driver, self.handle = ctypes.CDLL(cu.driver_path()), ctypes.c_void_p()
        assert self.driver.cuStreamCreateWithPriority(ctypes.byref(self.handle), 1, 0) == 0

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle.value or 0

    def __del__(self) -> None:
        assert self.driver.cuStreamDestroy_v2(self.handle) == 0


@pytest.mark.parametrize("stream", [cu.Stream, TheirStream])
def test_streams_that_end_before_their_copies(stream: Callable[[], Any]) -> None:
    """A driver gives a dropped stream's handle to the next one while work is still in the first."""
    arrays = [cu.to_device(np.full(1 << 18, i)) for i in range(8)]

    async def fetch(there: cu.DeviceArray) -> Any:
        back = np.empty(there.shape, there.dtype)
        await cu.copy_async(back, there, stream())
        return back

    async def main() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*map(fetch, arrays)), 60)

    for i, back in enumerate(asyncio.run(main())):
        assert (back == i).all()


def test_other_tasks_run_while_one_awaits(held: Any) -> None:
    source, there = ends_before(held)
    steps: list[str] = []

    async def copying() -> None:
        transfer = cu.copy_async(there, source, cu.Stream())
        steps.append("issued")
        await transfer
        steps.append("over")

    async def other() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            steps.append("other")
        held.release()

    async def main() -> None:
        await asyncio.gather(copying(), other())

    asyncio.run(main())
    assert steps == ["issued", "other", "other", "other", "over"]


def test_an_await_can_be_cancelled_and_the_copy_goes_on(held: Any) -> None:
    source, there = ends_before(held)
    stream = cu.Stream()

    async def main() -> None:
        transfer = cu.copy_async(there, source, stream)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(finish(transfer)), 0.01)
        assert not transfer.done
        held.release()
        await transfer

    async def finish(transfer: cu.Transfer) -> None:
        await transfer

    asyncio.run(main())
    assert np.array_equal(there.to_numpy(), source)


def test_a_failed_copy_raises_where_it_is_awaited(sim: Any) -> None:
    source, there = ends()

    async def main() -> int:
        sim.hold()
        transfer = cu.copy_async(there, source, cu.Stream())
        sim.fail("async:1:719")
        sim.release()
        try:
            await transfer
        except cu.CudaError as error:
            return error.code
        return 0

    assert asyncio.run(main()) == 719
    sim.reset()


@pytest.mark.parametrize("how", ["to_device", "fill", "zeros", "view"])
def test_a_call_without_a_stream_sees_what_one_with_a_stream_began(sim: Any, how: str) -> None:
    source = cu.pinned_full(LARGE, 5, np.uint8)
    there = cu.device_zeros(LARGE, np.uint8)
    stream = cu.Stream()
    sim.hold()
    try:
        if how == "to_device":
            there = cu.to_device(source, stream)
        elif how == "zeros":
            there = cu.device_zeros(LARGE, np.uint8, stream=stream)
            there.fill(5, stream)
        elif how == "view":
            there[: LARGE // 2].fill(5, stream)
            there[LARGE // 2 :].fill(5, stream)
        else:
            there.fill(5, stream)
        timer = threading.Timer(0.1, sim.release)
        timer.start()
        assert there[:10].to_numpy().tolist() == [5] * 10
        timer.join()
        sim.hold()
        there.fill(6, stream)
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
    there it reads at once."""
    held.release()
    there, out = cu.device_zeros(size, np.uint8), cu.pinned_zeros(size, np.uint8)
    host = np.full(size, 8, np.uint8)
    stream, issued = cu.Stream(), threading.Event()
    transfers = []
    held.hold()
    there.fill(5, stream)

    def issue() -> None:
        ends = (there, host) if to_device else (host, there)
        transfers.append(cu.copy_async(*ends, stream))
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


def test_memory_of_which_a_copy_that_is_over_held_a_view_can_be_closed(sim: Any) -> None:
    """Nobody has asked whether it is over but close() itself."""
    source, there = ends(1000)
    stream = cu.Stream()
    sim.hold()
    cu.copy_async(there[:100], source[:100], stream)
    with pytest.raises(ValueError, match="1 view uses"):
        there.close()
    cu.copy_async(there[100:200], source[:100], stream)
    sim.release()
    wait_for(lambda: sim.live("pending") == 0, "the copy never ends")
    there.close()
    assert there.closed

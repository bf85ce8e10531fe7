"""Transfers of asynchronous copies: what they keep, when they are over, how they fail.

What must be in flight is held there by the simulated driver's hold(), never by time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from copykit import LARGE, NamedBy, ends, ends_before, one_step, wait_for
from graphkit import busy
from parallel import together
from program import output

pytestmark = [pytest.mark.threads, pytest.mark.usefixtures("no_leaks")]


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


def test_a_wait_leaves_the_thread_its_timer_slack(held: Any) -> None:
    """It sleeps more precisely than the thread's own sleeps."""
    set_slack, get_slack = 29, 30  # of prctl
    prctl = ctypes.CDLL(None).prctl
    before = prctl(get_slack)
    if prctl(set_slack, ctypes.c_ulong(123456)) != 0:
        pytest.skip("the system sets no timer slack")
    try:
        source, there = ends_before(held)
        transfer = cu.copy_async(there, source, cu.Stream())
        timer = threading.Timer(0.02, held.release)  # the wait sleeps by then
        timer.start()
        transfer.wait()
        timer.join()
        assert prctl(get_slack) == 123456
    finally:
        prctl(set_slack, ctypes.c_ulong(before))


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
                there.fill(200, stream=stream)
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


@pytest.mark.parametrize("behind", [1, 20])
def test_sources_are_let_go_behind_a_device_that_lags(held: Any, behind: int) -> None:
    """Those of copies that are over, and no other."""
    (host, there), stream = ends_before(held, 100), cu.Stream()
    copied: list[Any] = []
    for _ in range(300):
        part = host[:]
        copied.append(weakref.ref(part))
        cu.copy_async(there, part, stream)
        del part
        while held.live("pending") > 2 * behind:  # a copy and an event each
            one_step(held)
        assert all(ref() is not None for ref in copied[-behind:])
        assert sum(ref() is not None for ref in copied[:-behind]) <= 100


def test_a_pass_between_the_begin_and_the_end_of_another(held: Any) -> None:
    """A thread asks for ended work while it issues a copy. Another has let that go when the first
    is back, and has issued a copy, which is not over."""
    (host, there), stream = ends_before(held, 1 << 18), cu.Stream()
    cu.copy_async(there, host, stream)  # large, so that the next one asks
    while held.live("pending") > 0:
        one_step(held)
    calls = held.call_count("cuMemcpyHtoDAsync_v2")
    held.hold_call("cuMemcpyHtoDAsync_v2", 1)
    issuing = threading.Thread(target=cu.copy_async, args=(there, host, stream))
    issuing.start()
    wait_for(lambda: held.call_count("cuMemcpyHtoDAsync_v2") > calls, "the thread is in its copy")
    cu.device_empty(1)  # looks at all that is in flight
    part = host[:]
    gone = weakref.ref(part)
    transfer = cu.copy_async(there, part, stream)
    del part
    held.clear_faults()
    issuing.join()
    assert gone() is not None, "the device reads it"
    assert not transfer.done
    held.release()
    transfer.wait()
    assert gone() is None


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("named", [lambda stream: stream, NamedBy])
def test_sources_on_an_idle_stream_are_let_go_by_copies_on_another(
    sim: Any, asked: bool, named: Callable[[cu.Stream], Any]
) -> None:
    """Also by copies that are over one by one, as those are that one awaits."""
    host, there = cu.pinned_zeros(1 << 18, np.uint8), cu.device_zeros(1 << 18, np.uint8)
    idle, stream = cu.Stream(), cu.Stream()
    source = np.zeros(100, np.uint8)
    gone = weakref.ref(source)
    cu.copy_async(there[:100], source, idle)
    del source
    wait_for(lambda: sim.live("pending") == 0, "the copy never ends")
    on, copies = named(stream), 0
    while gone() is not None and copies < 100:
        transfer = cu.copy_async(there, host, on)
        copies += 1
        if asked:
            wait_for(lambda transfer=transfer: transfer.done, "the copy never ends")
        else:
            wait_for(lambda: sim.live("pending") == 0, "the copy never ends")
    assert gone() is None


def test_sources_are_let_go_though_every_other_copy_fails(sim: Any) -> None:
    host, stream = cu.pinned_zeros(1 << 18, np.uint8), cu.Stream()
    there = cu.device_zeros(1 << 18, np.uint8)
    copied = []
    for _ in range(20):
        part = host[:]
        copied.append(weakref.ref(part))
        cu.copy_async(there, part, stream)
        del part
        wait_for(lambda: sim.live("pending") == 0, "the copy never ends")
        sim.fail("cuMemcpyHtoDAsync_v2:1:1")
        with pytest.raises(cu.CudaError):
            cu.copy_async(there, host, stream)
    assert sum(ref() is not None for ref in copied) <= 2


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

    def alive() -> int:
        gc.collect()
        return sum(row.kind != "primary context" for row in cu.live_allocations())

    until, before = time.monotonic() + 1, alive()

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

    together(*[copies, contexts] * 2)
    wait_for(lambda: alive() <= before, "what the copies held stays alive")


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


@pytest.mark.parametrize(
    ("size", "borrow"),
    [(1 << 14, True), (600_000, True), (600_000, False), (LARGE, True), (LARGE, False)],
)
def test_a_stream_that_answers_nothing_takes_no_page_locked_memory(
    sim: Any, size: int, borrow: bool
) -> None:
    """Such a copy queues nothing, so no slot stays with the device. (During a capture a stream
    answers neither a query nor a wait.)"""
    plain, there = np.zeros(size, np.uint8), cu.device_zeros(size, np.uint8)
    stream = cu.Stream()
    cu.copy_async(there, plain, stream, borrow=borrow).wait()  # what is made at first use is made
    used = cu.host_memory_stats().used_bytes
    sim.fail("cuStreamQuery:*:900,cuStreamSynchronize:*:900")
    for _ in range(5):
        with pytest.raises(cu.CudaError) as caught:
            cu.copy_async(there, plain, stream, borrow=borrow)
        assert caught.value.code == 900
    sim.clear_faults()
    assert cu.host_memory_stats().used_bytes <= used
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


def test_memory_of_which_a_copy_that_is_over_held_a_view_can_be_closed(sim: Any) -> None:
    """Nobody has asked whether it is over but close() itself."""
    source, there = ends(1000)
    stream = cu.Stream()
    sim.hold()
    cu.copy_async(there[:100], source[:100], stream)
    with pytest.raises(ValueError, match="1 view uses it and an asynchronous copy uses it; wait"):
        there.close()
    cu.copy_async(there[100:200], source[:100], stream)
    sim.release()
    wait_for(lambda: sim.live("pending") == 0, "the copy never ends")
    there.close()
    assert there.closed


def test_the_event_of_work_goes_that_ends_for_others_while_a_thread_waits(sim: Any) -> None:
    host, there, stream = cu.pinned_zeros(64), cu.device_zeros(64), cu.Stream()
    events = []
    for _ in range(20):
        sim.settle()
        sim.hold()
        transfer = cu.copy_async(there, host, stream)
        asked = sim.call_count("cuEventQuery")
        waiting = threading.Thread(target=transfer.wait)
        waiting.start()
        wait_for(lambda n=asked: sim.call_count("cuEventQuery") > n, "the thread waits")
        sim.release()
        sim.settle()
        cu.live_allocations()  # lets go what is over
        waiting.join()
        events.append(sim.live("events"))
    assert max(events) <= events[0] + 1  # one may be kept for later

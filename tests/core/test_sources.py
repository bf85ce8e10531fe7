"""What a call with a stream has read when it returns, and what it reads later.

Streams are held by the simulated driver, behind work: so nothing that is queued can have been done.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from copykit import wait_for

pytestmark = [pytest.mark.threads, pytest.mark.usefixtures("no_leaks")]

SIZES = (1000, 65_536, 65_537, 1 << 20, 5 << 20, 37 << 20)


def busy_stream(held: Any) -> Any:
    """Whose work does not end until the driver is let go."""
    held.release()
    gate, stream = cu.device_zeros(64, np.uint8), cu.Stream()
    held.settle()
    held.hold()
    gate.fill(1, stream=stream)
    return stream


def new(size: int) -> Any:
    """Device memory that needs no stream."""
    return cu.device_empty(size, np.uint8)


def seen_waiting(held: Any, returned: list[int]) -> int:
    """How many calls have returned when the next one waits for its stream."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        count, asked = len(returned), held.call_count("cuEventQuery")
        while held.call_count("cuEventQuery") <= asked + 20 and len(returned) == count:
            assert time.monotonic() < until, "it neither returns nor waits"
        if len(returned) == count:
            return count
    raise AssertionError("it never waits")


CALLS: dict[str, Callable[[Any, Any, Any], object]] = {
    "copy_async": lambda there, host, stream: cu.copy_async(there, host, stream),
    "a buffer": lambda there, host, stream: cu.copy_async(there, memoryview(host), stream),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("size", SIZES[:-1])
def test_a_source_is_the_callers_when_the_call_returns(held: Any, call: str, size: int) -> None:
    busy = busy_stream(held)
    frame, slots = np.empty(size, np.uint8), [new(size) for _ in range(3)]
    for k, slot in enumerate(slots):
        frame[:] = k
        CALLS[call](slot, frame, busy)
        frame[:] = 99
    assert not busy.done
    gone = weakref.ref(frame)
    held.release()
    busy.synchronize()
    assert [set(np.unique(slot.to_numpy())) for slot in slots] == [{0}, {1}, {2}]
    del frame
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("size", SIZES)
def test_to_device_has_read_its_source(held: Any, size: int) -> None:
    busy = busy_stream(held)
    frame, made = np.empty(size, np.uint8), []
    for k in range(3):
        frame[:] = k
        made.append(cu.to_device(frame, stream=busy))
        frame[:] = 99
    assert not busy.done
    held.release()
    busy.synchronize()
    assert [set(np.unique(slot.to_numpy())) for slot in made] == [{0}, {1}, {2}]


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "every other": lambda host: host[:, ::2],
    "turned": lambda host: host.T,
    "rows": lambda host: host[:, : host.shape[1] // 2],
    "backwards": lambda host: host[::-1, ::-1],
    "repeated": lambda host: np.broadcast_to(host[:1], (64, host.shape[1])),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [4, 700])
def test_whatever_the_source_looks_like(held: Any, layout: str, rows: int) -> None:
    busy = busy_stream(held)
    host = np.random.default_rng(rows).integers(0, 90, (rows, 2000), np.uint8)
    source = LAYOUTS[layout](host)
    wanted = source.copy()
    there = cu.device_empty(source.shape, np.uint8)
    cu.copy_async(there, source, busy)
    host[:] = 99
    assert not busy.done
    held.release()
    busy.synchronize()
    assert np.array_equal(there.to_numpy(), wanted)


@pytest.mark.parametrize("size", SIZES[:-1])
def test_a_borrowed_source_is_read_in_the_streams_order(held: Any, size: int) -> None:
    """So what it became meanwhile arrives; and it takes no memory of its own to wait in."""
    busy = busy_stream(held)
    frame, there = np.zeros(size, np.uint8), new(size)
    transfer = cu.copy_async(there, frame, busy, borrow=True)
    frame[:] = 7
    assert not transfer.done
    held.release()
    transfer.wait()
    assert (there.to_numpy() == 7).all()


def test_page_locked_memory_is_read_later_strided_or_not(held: Any) -> None:
    busy = busy_stream(held)
    held.release()
    host = cu.pinned_zeros((600, 4000), np.uint8)
    held.hold()
    for source in (host, host[:, ::2]):
        there = cu.device_empty(source.shape, np.uint8)
        host[:] = 0
        cu.copy_async(there, source, busy)
        host[:] = 5
        held.release()
        busy.synchronize()
        assert (there.to_numpy() == 5).all()
        held.hold()
        there.fill(1, stream=busy)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """For 8 MiB, and no more, beside what there is."""
    cu.trim_host_memory()
    cu.set_host_memory_limit(cu.host_memory_stats().registered_bytes + (8 << 20))
    yield
    cu.set_host_memory_limit(None)


def test_it_waits_where_there_is_no_memory_to_read_into(held: Any, little_memory: None) -> None:
    busy = busy_stream(held)
    size = 3 << 20
    frame, slots = np.empty(size, np.uint8), [new(size) for _ in range(5)]
    returned: list[int] = []

    def feed() -> None:
        for k, slot in enumerate(slots):
            frame[:] = k
            cu.copy_async(slot, frame, busy)
            frame[:] = 99
            returned.append(k)

    feeding = threading.Thread(target=feed)
    feeding.start()
    in_time = seen_waiting(held, returned)
    held.release()
    feeding.join()
    busy.synchronize()
    assert 0 < in_time < len(slots), "some fit, and then the call waits"
    assert [set(np.unique(slot.to_numpy())) for slot in slots] == [{k} for k in range(5)]


def test_memory_to_read_into_is_counted_and_comes_back(held: Any) -> None:
    busy = busy_stream(held)
    size, count = 4 << 20, 6
    frame, slots = np.zeros(size, np.uint8), [new(size) for _ in range(count)]
    before = cu.host_memory_stats().used_bytes
    for slot in slots:
        cu.copy_async(slot, frame, busy)
    assert cu.host_memory_stats().used_bytes - before >= count * size
    held.release()
    busy.synchronize()
    wait_for(
        lambda: cu.host_memory_stats().used_bytes - before < 1 << 20, "the memory is not given back"
    )


def test_copies_on_idle_streams_keep_no_memory(held: Any) -> None:
    held.release()
    frame, before = np.zeros(16 << 20, np.uint8), cu.host_memory_stats().used_bytes
    for _ in range(3):
        cu.copy_async(new(frame.size), frame, cu.Stream()).wait()
    wait_for(
        lambda: cu.host_memory_stats().used_bytes - before < 1 << 20, "the memory is not given back"
    )


def test_at_most_256_mib_wait(held: Any) -> None:
    """The next call waits for the stream."""
    busy = busy_stream(held)
    size = 37 << 20
    frame, slot = np.zeros(size, np.uint8), new(size)
    before = cu.host_memory_stats().used_bytes
    returned: list[int] = []

    def feed() -> None:
        for k in range(8):
            cu.copy_async(slot, frame, busy)
            returned.append(k)

    feeding = threading.Thread(target=feed)
    feeding.start()
    in_time, used = seen_waiting(held, returned), cu.host_memory_stats().used_bytes - before
    held.release()
    feeding.join()
    busy.synchronize()
    assert in_time == 6
    assert used <= 257 << 20


def test_sources_of_many_threads_on_one_stream(held: Any) -> None:
    busy = busy_stream(held)
    size, count = 200_000, 8
    slots = [[new(size) for _ in range(6)] for _ in range(count)]

    def feed(thread: int) -> None:
        frame = np.empty(size, np.uint8)
        for k, slot in enumerate(slots[thread]):
            frame[:] = 10 * thread + k
            cu.copy_async(slot, frame, busy)
            frame[:] = 99

    threads = [threading.Thread(target=feed, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held.release()
    busy.synchronize()
    for thread, own in enumerate(slots):
        for k, slot in enumerate(own):
            assert (slot.to_numpy() == 10 * thread + k).all()


def test_a_copy_that_the_device_fails_while_the_call_reads(held: Any) -> None:
    """More parts than an idle stream has blocks: the rest waits for a device that has failed."""
    held.release()
    host, there, stream = np.zeros(80 << 20, np.uint8), new(80 << 20), cu.Stream()
    held.fail("async:1:719")
    with pytest.raises(cu.CudaError, match="LAUNCH_FAILED"):
        cu.copy_async(there, host, stream).wait()
    held.put_back()


def test_explain_copy_says_whether_the_call_may_wait() -> None:
    for size, text in ((8 << 20, "only where 256 MiB"), (257 << 20, "more than the 256 MiB")):
        host, there = np.empty(size, np.uint8), new(size)
        assert text in cu.explain_copy(there, host).why
        assert "copy_async" not in cu.explain_copy(host, there).why
        with cu.pin(host):
            assert "copy_async" not in cu.explain_copy(there, host).why


def each(array: Any) -> list[Any]:
    return [array[i] for i in range(len(array))]


MANY: dict[str, Callable[[Any, Any, Any, bool], Any]] = {
    "many": lambda there, host, stream, lent: cu.copy_many_async(
        each(there), each(host), stream, borrow=lent
    ),
    "rows": lambda there, host, stream, lent: cu.copy_rows_async(
        there, host, range(len(host)), range(len(host)), stream, borrow=lent
    ),
    "rows that lie apart": lambda there, host, stream, lent: cu.copy_rows_async(
        there[:, ::2], host[:, ::2], range(len(host)), range(len(host)), stream, borrow=lent
    ),
    "one by one": lambda there, host, stream, lent: cu.copy_many_async(
        [there[0], there[1:, ::2]], [host[0], host[1:, ::2]], stream, borrow=lent
    ),
}


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("call", MANY)
@pytest.mark.parametrize("shape", [(9, 64), (40, 4096), (4, 1 << 20)])
def test_sources_of_many_copies(held: Any, call: str, lent: bool, shape: tuple[int, int]) -> None:
    held.release()
    there, host = cu.device_zeros(shape, np.uint8), np.full(shape, 5, np.uint8)
    busy = busy_stream(held)
    transfer = MANY[call](there, host, busy, lent)
    host[:] = 9
    assert not transfer.done
    held.release()
    transfer.wait()
    assert there.to_numpy().max() == (9 if lent else 5)


@pytest.mark.parametrize("what", ["many", "rows"])
@pytest.mark.parametrize("down", [False, True])
def test_calls_without_async_are_over_when_they_return(held: Any, what: str, down: bool) -> None:
    """And come after what calls with a stream have begun on the same memory."""
    held.release()
    host, there = cu.pinned_full((8, 4096), 7, np.uint8), cu.device_zeros((8, 4096), np.uint8)
    stream, elsewhere = cu.Stream(), cu.device_zeros(16, np.uint8)
    held.hold()
    elsewhere.fill(1, stream=stream)
    there.fill(3, stream=stream)
    ends = (host, there) if down else (there, host)
    over: list[bool] = []

    def copy() -> None:
        if what == "many":
            cu.copy_many(*map(each, ends))
        else:
            cu.copy_rows(*ends, range(8), range(8))
        over.append(True)
        assert (np.asarray(host) == (3 if down else 7)).all()

    copying = threading.Thread(target=copy)
    copying.start()
    copying.join(0.1)
    assert not over
    held.release()
    copying.join()
    assert over
    assert (there.to_numpy() == (3 if down else 7)).all()

"""Copies on streams that are being captured into CUDA graphs, and all else during a capture.

The graphs are made and launched by the driver's own functions, through ctypes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cudriver as cu

pytestmark = pytest.mark.threads

GLOBAL, THREAD_LOCAL, RELAXED = MODES = (0, 1, 2)
ACTIVE, BROKEN = 1, 2
SIZE = 1 << 12


@pytest.fixture(scope="module")
def driver() -> Any:
    cu.init()
    return ctypes.CDLL(cu.driver_path())


class Capture:
    """What is queued on `stream` inside becomes `graph`; `launch` runs it."""

    def __init__(self, driver: Any, stream: Any, mode: int = GLOBAL) -> None:
        self.driver, self.stream, self.mode = driver, stream, mode
        self.graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.ended: int | None = None

    @property
    def handle(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.stream.handle)

    def begin(self) -> Capture:
        assert self.driver.cuStreamBeginCapture_v2(self.handle, self.mode) == 0
        return self

    def end(self) -> int:
        self.ended = int(self.driver.cuStreamEndCapture(self.handle, ctypes.byref(self.graph)))
        return self.ended

    def status(self) -> int:
        status = ctypes.c_int(-1)
        assert self.driver.cuStreamIsCapturing(self.handle, ctypes.byref(status)) == 0
        return status.value

    def __enter__(self) -> Capture:
        return self.begin()

    def __exit__(self, *exception: object) -> None:
        if self.end() == 0 and exception[0] is None:
            made = self.driver.cuGraphInstantiateWithFlags(
                ctypes.byref(self.executable), self.graph, ctypes.c_ulonglong(0)
            )
            assert made == 0

    def nodes(self) -> int:
        count = ctypes.c_size_t()
        assert self.driver.cuGraphGetNodes(self.graph, None, ctypes.byref(count)) == 0
        return count.value

    def launch(self, stream: Any = None) -> None:
        stream = stream or self.stream
        assert self.driver.cuGraphLaunch(self.executable, ctypes.c_void_p(stream.handle)) == 0
        stream.synchronize()

    def close(self) -> None:
        for function, handle in (
            (self.driver.cuGraphExecDestroy, self.executable),
            (self.driver.cuGraphDestroy, self.graph),
        ):
            if handle.value:
                assert function(handle) == 0
            handle.value = None


@pytest.fixture
def capture(driver: Any) -> Iterator[Callable[..., Capture]]:
    made: list[Capture] = []

    def make(stream: Any, mode: int = GLOBAL) -> Capture:
        made.append(Capture(driver, stream, mode))
        return made[-1]

    yield make
    for item in made:
        item.close()


def pinned(size: int = SIZE, seed: int = 1) -> Any:
    array = cu.pinned_empty(size, np.uint8)
    array[:] = np.random.default_rng(seed).integers(1, 256, size, np.uint8)
    return array


def in_thread(work: Callable[[], object]) -> None:
    """Runs `work` in another thread; raises what it raised."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


# --- what is captured ---


@pytest.mark.parametrize("mode", MODES)
def test_copies_are_nodes_that_each_launch_runs(capture: Any, mode: int) -> None:
    stream, source, back = cu.Stream(), pinned(), cu.pinned_zeros(SIZE, np.uint8)
    there, other = cu.device_zeros(SIZE, np.uint8), cu.device_zeros(SIZE, np.uint8)
    with capture(stream, mode) as graph:
        transfers = [
            cu.copy_async(there, source, stream),
            cu.copy_async(other, there, stream),
            cu.copy_async(back, other, stream),
        ]
    assert graph.nodes() == 3
    assert [transfer.captured for transfer in transfers] == [True] * 3
    assert not back.any(), "nothing runs during the capture"
    for seed in (2, 3):
        source[:] = pinned(seed=seed)
        graph.launch()
        assert np.array_equal(back, source)


@pytest.mark.parametrize(
    ("shape", "key"),
    [
        ((16, 64), np.s_[:, :8]),
        ((4, 8, 64), np.s_[:, 2:4, :16]),
        ((2, 3, 4, 64), np.s_[..., :2, :8]),
    ],
    ids=["2D", "3D", "planes"],
)
def test_page_locked_rows_are_captured(capture: Any, shape: Any, key: Any) -> None:
    stream, there = cu.Stream(), cu.device_zeros(shape, np.uint64)
    rows, wanted = cu.pinned_empty(shape, np.uint64), np.zeros(shape, np.uint64)
    rows[:] = np.arange(rows.size).reshape(shape)
    wanted[key] = rows[key]
    with capture(stream) as graph:
        transfer = cu.copy_async(there[key], rows[key], stream)
    assert transfer.captured
    graph.launch()
    assert np.array_equal(there.to_numpy(), wanted)


def test_methods_of_an_array_are_captured_too(capture: Any) -> None:
    stream, source, back = cu.Stream(), pinned(), cu.pinned_zeros(SIZE, np.uint8)
    there = cu.device_zeros(SIZE, np.uint8)
    with capture(stream) as graph, stream:
        kept = [there.copy_from(source, stream), there.copy_to(back, stream)]
        kept.append(cu.copy_async(there, source, None))
    assert [transfer.captured for transfer in kept] == [True] * 3
    graph.launch()
    assert np.array_equal(back, source)


def test_what_has_nothing_to_copy_is_no_node(capture: Any) -> None:
    stream, there = cu.Stream(), cu.device_zeros(4)
    with capture(stream) as graph:
        same = cu.copy_async(there, there, stream)
        empty = cu.copy_async(there[:0], cu.pinned_zeros(0), stream)
    assert graph.nodes() == 0
    assert not same.captured
    assert not empty.captured
    assert same.done
    assert empty.done


def test_a_capture_spreads_to_other_streams_by_events(capture: Any) -> None:
    stream, side, source = cu.Stream(), cu.Stream(), pinned()
    there, back = cu.device_zeros(SIZE, np.uint8), cu.pinned_zeros(SIZE, np.uint8)
    event = cu.Event()
    with capture(stream) as graph:
        first = cu.copy_async(there, source, stream)
        stream.record(event)
        side.wait(event)
        second = cu.copy_async(back, there, side)
        stream.wait(side)
    assert graph.ended == 0
    assert (first.captured, second.captured) == (True, True)
    graph.launch()
    assert np.array_equal(back, source)
    for ask in (lambda: event.done, event.synchronize):
        with pytest.raises(cu.CudaError, match="a point in a graph"):
            ask()
    event.record(side)
    event.synchronize()
    assert event.done


# --- the Transfer ---


def test_a_captured_transfer_says_what_it_is(capture: Any) -> None:
    stream, source, there = cu.Stream(), pinned(), cu.device_zeros(SIZE, np.uint8)
    with capture(stream) as graph:
        transfer = cu.copy_async(there, source, stream)
        for ask in (transfer.wait, lambda: transfer.done):
            with pytest.raises(cu.CudaError, match="a node of a graph"):
                ask()
        assert repr(transfer) == f"<Transfer of {SIZE} bytes, captured>"
    graph.launch()
    with pytest.raises(cu.CudaError, match="wait for the stream of the launch"):
        transfer.wait()

    async def wait() -> None:
        await transfer

    with pytest.raises(cu.CudaError, match="a node of a graph"):
        asyncio.run(wait())
    assert transfer.nbytes == SIZE
    ordinary = cu.copy_async(there, source, stream)
    assert not ordinary.captured
    ordinary.wait()


def test_both_ends_live_as_long_as_the_transfer(capture: Any) -> None:
    stream, source, there = cu.Stream(), pinned(), cu.device_zeros(SIZE, np.uint8)
    back = cu.pinned_zeros(SIZE, np.uint8)
    wanted, address = source.copy(), source.ctypes.data
    with capture(stream) as graph:
        transfers = [cu.copy_async(there, source, stream), cu.copy_async(back, there, stream)]
    ends = [weakref.ref(source), weakref.ref(there)]
    del source, there
    gc.collect()
    assert all(end() is not None for end in ends)
    assert cu.pinned_full(SIZE, 99, np.uint8).ctypes.data != address
    graph.launch()
    assert np.array_equal(back, wanted)
    graph.close()
    transfers.clear()
    gc.collect()
    assert [end() for end in ends] == [None, None]


def test_an_array_in_a_graph_cannot_be_closed(capture: Any) -> None:
    stream, there = cu.Stream(), cu.device_zeros(SIZE, np.uint8)
    with capture(stream):
        whole = cu.copy_async(there, pinned(), stream)
        part = cu.copy_async(there[8:16], pinned(8), stream)
    with pytest.raises(ValueError, match="1 view and a running call"):
        there.close()
    del part
    with pytest.raises(ValueError, match="node of a graph"):
        there.close()
    del whole
    there.close()


def test_a_copy_that_the_driver_refuses_is_no_transfer(capture: Any, sim: Any) -> None:
    stream, source, there = cu.Stream(), pinned(), cu.device_zeros(SIZE, np.uint8)
    with capture(stream) as graph:
        sim.fail("cuMemcpyHtoDAsync_v2:1:2")
        with pytest.raises(cu.OutOfMemoryError):
            cu.copy_async(there, source, stream)
        sim.clear_faults()
        assert graph.status() == ACTIVE
        kept = cu.copy_async(there, source, stream)
    assert graph.nodes() == 1
    del kept
    there.close()


# --- what is refused, and leaves the capture intact ---


#: name: (call, the reason that the message gives). `s` is the captured stream, `d` a device array,
#: `p` a page-locked array, `a` an ordinary one.
REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "pageable up": (lambda x: cu.copy_async(x.d, x.a, x.s), "pageable"),
    "pageable down": (lambda x: cu.copy_async(x.a, x.d, x.s), "pageable"),
    "pageable large": (
        lambda x: cu.copy_async(x.large, np.zeros(1 << 21, np.uint8), x.s),
        "pageable",
    ),
    "to_numpy": (lambda x: x.in_stream(x.d.to_numpy), "call it before or after"),
    "copy_from": (lambda x: x.d.copy_from(x.a, x.s), "pageable"),
    "copy_to": (lambda x: x.d.copy_to(x.a, x.s), "pageable"),
    "to_device": (lambda x: cu.to_device(x.p, x.s), "into a new array cannot be captured"),
    "to_device here": (lambda x: x.in_stream(lambda: cu.to_device(x.a)), "into a new array cannot"),
    "to_device, foreign": (
        lambda x: cu.to_device(x.p, types.SimpleNamespace(cuda_stream=x.s.handle)),
        "into a new array cannot",
    ),
    "array's copy": (lambda x: x.d.copy(x.s), "into a new array cannot"),
    "assignment": (lambda x: x.in_stream(lambda: x.d.__setitem__(0, 1)), "cannot be captured"),
    "assigned array": (
        lambda x: x.in_stream(lambda: x.d.__setitem__(slice(0, 9), x.p[:9])),
        "cannot be captured",
    ),
    "device_empty": (lambda x: cu.device_empty(3, stream=x.s), "an allocation cannot"),
    "device_zeros": (lambda x: cu.device_zeros(3, stream=x.s), "an allocation cannot"),
    "fill": (lambda x: x.d.fill(1, x.s), r"fill\(\) cannot be captured"),
    "fill here": (lambda x: x.in_stream(lambda: x.d.fill(1)), r"fill\(\) cannot be captured"),
    "copy": (lambda x: x.in_stream(lambda: cu.copy(x.d, x.p)), "a blocking copy cannot"),
    "copy small": (lambda x: x.in_stream(lambda: cu.copy(x.d[:3], x.a[:3])), "a blocking copy"),
    "strided host": (lambda x: cu.copy_async(x.d[: SIZE // 2], x.p[::2], x.s), "strided"),
    "strided device": (lambda x: cu.copy_async(x.d[:99], x.large[99:0:-1], x.s), "kernel"),
    "overlap": (lambda x: cu.copy_async(x.d[1:], x.d[:-1], x.s), "kernel or temporary"),
    "host to host": (lambda x: cu.copy_async(x.p, x.a, x.s), "cannot be captured"),
    "synchronize": (lambda x: x.s.synchronize(), r"synchronize\(\) cannot be captured"),
    "done": (lambda x: x.s.done, "done cannot be captured"),
    "close": (lambda x: x.s.close(), "must live until the capture ends"),
    "wait": (lambda x: x.s.wait(x.e), "outside the graph"),
    "wait for a stream": (lambda x: x.s.wait(x.side), "outside the graph"),
    "event wait": (lambda x: x.e.wait(x.s), "outside the graph"),
}  # fmt: skip


class Things:
    def __init__(self) -> None:
        self.s, self.side = cu.Stream(), cu.Stream()
        self.d, self.large = cu.device_zeros(SIZE, np.uint8), cu.device_zeros(1 << 21, np.uint8)
        self.p, self.a = pinned(), np.ones(SIZE, np.uint8)
        self.e = self.side.record()

    def in_stream(self, call: Callable[[], object]) -> object:
        with self.s:
            return call()


@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_captured_is_refused(capture: Any, mode: int) -> None:
    things, refused = Things(), 0
    with capture(things.s, mode) as graph:
        first = cu.copy_async(things.d, things.p, things.s)
        for name, (call, reason) in REFUSED.items():
            try:
                call(things)
            except cu.CudaError as error:
                assert re.search(reason, str(error)), (name, error)
            else:
                pytest.fail(f"{name} was not refused")
            assert graph.status() == ACTIVE, name
            refused += 1
    assert refused == len(REFUSED)
    assert graph.ended == 0
    assert graph.nodes() == 1
    graph.launch()
    assert np.array_equal(things.d.to_numpy(), things.p)
    del first
    things.s.close()


@pytest.mark.parametrize("mode", MODES)
def test_other_calls_are_made_at_once(capture: Any, mode: int) -> None:
    """They are no part of the graph, and the thread that captures may make them."""
    things = Things()
    before = cu.copy_async(things.large, np.full(1 << 21, 5, np.uint8), things.side)
    cu.copy(things.large[:99], things.large[199:100:-1])  # its kernel is loaded
    with capture(things.s, mode) as graph:
        before.wait()
        assert before.done
        made = cu.to_device(things.a)
        assert np.array_equal(made.to_numpy(), things.a)
        assert np.array_equal(things.large.to_numpy(), np.full(1 << 21, 5, np.uint8))
        made.fill(7)
        cu.copy(things.p, made)
        assert (things.p == 7).all()
        cu.copy(made[:99], things.large[199:100:-1])
        cu.copy_async(made, np.zeros(SIZE, np.uint8), things.side).wait()
        assert not made.to_numpy().any()
        made.close()
        things.side.synchronize()
        things.e.synchronize()
        assert things.e.done
        assert things.side.done
        with cu.pin(np.zeros(1 << 16, np.uint8)):
            cu.pinned_zeros(8 << 20, np.uint8)
        cu.device_zeros(4, stream=things.side)
        cu.Stream().close()
        cu.Event().close()
        cu.memory_info()
        cu.trim_host_memory()
        gc.collect()
        assert graph.status() == ACTIVE
        kept = cu.copy_async(things.d, things.p, things.s)
    assert graph.ended == 0
    graph.launch()
    assert (things.d.to_numpy() == 7).all()
    del kept


def test_memory_of_a_captured_stream_is_freed_outside_the_graph(capture: Any) -> None:
    stream = cu.Stream()
    array = cu.device_zeros(SIZE, stream=stream)
    stream.synchronize()
    free = cu.live_allocations()
    with capture(stream) as graph:
        del array
        gc.collect()
        assert graph.status() == ACTIVE
    assert graph.nodes() == 0
    assert len(cu.live_allocations()) < len(free)


def test_earlier_work_of_a_captured_stream(capture: Any) -> None:
    """Its end cannot be seen before the capture ends, and its memory is kept till then."""
    stream, source, there = cu.Stream(), pinned(), cu.device_zeros(SIZE, np.uint8)
    transfer = cu.copy_async(there, source, stream)
    gone = weakref.ref(source)
    wanted = source.copy()
    with capture(stream) as graph:
        del source
        gc.collect()
        assert not transfer.done
        for wait in (transfer.wait, there.to_numpy):
            with pytest.raises(cu.CudaError, match="before the capture ends"):
                wait()
        assert gone() is not None
        assert graph.status() == ACTIVE
        kept = cu.copy_async(there, cu.pinned_zeros(SIZE, np.uint8), stream)
    transfer.wait()
    assert gone() is None
    assert np.array_equal(there.to_numpy(), wanted)
    graph.launch()
    assert not there.to_numpy().any()
    del kept


def test_a_broken_capture_is_told(capture: Any, driver: Any) -> None:
    stream, source, there = cu.Stream(), pinned(), cu.device_zeros(SIZE, np.uint8)
    graph = capture(stream).begin()
    assert driver.cuStreamSynchronize(graph.handle) == 900
    assert graph.status() == BROKEN
    for call in (lambda: cu.copy_async(there, source, stream), stream.synchronize):
        with pytest.raises(cu.CudaError) as caught:
            call()
        assert caught.value.code == 901
    assert graph.end() == 901
    cu.copy_async(there, source, stream).wait()
    assert np.array_equal(there.to_numpy(), source)


# --- other threads ---


@pytest.mark.parametrize("mode", MODES)
def test_another_thread_works_as_usual(capture: Any, mode: int) -> None:
    stream, source, there = cu.Stream(), pinned(), cu.device_zeros(SIZE, np.uint8)

    def work() -> None:
        for size in (SIZE, 1 << 21):
            plain = np.random.default_rng(size).integers(0, 256, size, np.uint8)
            own = cu.Stream()
            with own:
                array = cu.to_device(plain)
                assert np.array_equal(array.to_numpy(), plain)
            cu.copy_async(array, np.zeros(size, np.uint8), own).wait()
            for _ in range(40):
                cu.copy_async(array[:64], cu.pinned_full(64, 3, np.uint8), own)
            event = own.record()
            event.synchronize()
            assert (array[:64].to_numpy() == 3).all()
            array.fill(9, own)
            own.synchronize()
            assert own.done
            cu.copy(plain, array)
            assert (plain == 9).all()
            cu.copy(array[::2], array[1::2])
            own.close()
        gc.collect()

    with capture(stream, mode) as graph:
        in_thread(work)
        assert graph.status() == ACTIVE
        kept = cu.copy_async(there, source, stream)
        with pytest.raises(cu.CudaError, match="being captured"):
            in_thread(stream.synchronize)
    assert graph.ended == 0
    graph.launch()
    assert np.array_equal(there.to_numpy(), source)
    del kept


def test_the_default_stream_while_a_blocking_stream_is_captured(capture: Any, driver: Any) -> None:
    """It would wait for the captured stream, so it cannot be used: not even by another thread."""
    there, source = cu.device_zeros(SIZE, np.uint8), pinned()
    made = ctypes.c_void_p()
    assert driver.cuStreamCreateWithPriority(ctypes.byref(made), 0, 0) == 0
    blocking = types.SimpleNamespace(handle=made.value, cuda_stream=made.value)
    calls: list[Callable[[], object]] = [
        lambda: cu.copy(there, source),
        lambda: there.to_numpy(),
        lambda: there.fill(1),
        lambda: cu.copy_async(there, source, None),
        lambda: cu.Event().record(),
        there.context.synchronize,
    ]
    with capture(blocking) as graph:
        kept = cu.copy_async(there, source, blocking)
        for call in calls:
            for run in (call, lambda call=call: in_thread(call)):
                with pytest.raises(cu.CudaError) as caught:
                    run()
                assert caught.value.code == 906
                assert graph.status() == ACTIVE
    assert graph.ended == 0
    assert graph.nodes() == 1
    graph.launch(cu.Stream())
    assert np.array_equal(there.to_numpy(), source)
    del kept
    assert driver.cuStreamDestroy_v2(made) == 0


def test_the_threads_mode_is_left_as_it_was(driver: Any) -> None:
    mode = ctypes.c_int()
    array = cu.device_zeros(4)
    for wanted in MODES:
        mode.value = wanted
        assert driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
        array.to_numpy()
        with contextlib.suppress(ValueError):
            cu.copy(array, np.zeros(5))
        mode.value = GLOBAL
        assert driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
        assert mode.value == wanted

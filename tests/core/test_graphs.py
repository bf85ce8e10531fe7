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
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from graphkit import ACTIVE, BROKEN, GLOBAL, MODES, Capture, busy, eventually
from program import output

pytestmark = pytest.mark.threads

SIZE = 1 << 12


@pytest.fixture(scope="module")
def driver() -> Any:
    cu.init()
    return ctypes.CDLL(cu.driver_path())


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


@pytest.mark.parametrize(
    ("dtype", "key"),
    [
        (np.uint8, np.s_[:]),
        (np.float64, np.s_[:]),
        (np.complex128, np.s_[:, 3]),
        (np.int16, np.s_[2:5, ::2]),
    ],
    ids=["bytes", "doubling", "words of items", "rows"],
)
def test_fills_are_nodes_too(capture: Any, dtype: Any, key: Any) -> None:
    stream, there = cu.Stream(), cu.to_device(np.ones((16, 64), dtype))
    wanted, address = np.ones((16, 64), dtype), there.pointer
    wanted[key] = 77

    def kept() -> bool:
        return any(row.address == address for row in cu.live_allocations())

    with capture(stream) as graph:
        there[key].fill(77, stream)
    with capture(stream) as second, stream:
        there[-1] = 5
    assert graph.nodes() > 0
    assert (there.to_numpy() == 1).all(), "nothing runs during the capture"
    graph.launch()
    assert np.array_equal(there.to_numpy(), wanted)
    second.launch()
    wanted[-1] = 5
    assert np.array_equal(there.to_numpy(), wanted)
    del there
    gc.collect()
    assert kept()
    graph.close()
    second.close()
    assert eventually(lambda: not kept())


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


@pytest.mark.parametrize("last", ["graph", "executable", "launch"])
def test_the_graph_keeps_both_ends(capture: Any, driver: Any, last: str) -> None:
    """As long as it, its executable, or a launch may use them, whatever becomes of the Transfer."""
    stream, source, there = cu.Stream(), pinned(), cu.device_zeros(SIZE, np.uint8)
    back = cu.pinned_zeros(SIZE, np.uint8)
    wanted, address = source.copy(), source.ctypes.data
    with capture(stream) as graph:
        cu.copy_async(there, source, stream)
        cu.copy_async(back, there, stream)
    ends = [weakref.ref(source), weakref.ref(there)]
    del source, there
    gc.collect()
    assert cu.pinned_full(SIZE, 99, np.uint8).ctypes.data != address
    with busy(driver, stream):
        graph.start()
        if last == "launch":
            graph.close()
        elif last == "executable":
            assert driver.cuGraphDestroy(graph.graph) == 0
            graph.graph.value = None
        cu.live_allocations()
        assert all(end() is not None for end in ends)
    stream.synchronize()
    assert np.array_equal(back, wanted)
    if last != "launch":
        cu.live_allocations()
        assert all(end() is not None for end in ends)
    graph.close()
    assert eventually(lambda: all(end() is None for end in ends))


def test_captures_let_go_what_earlier_graphs_kept(capture: Any) -> None:
    """A program may make no other call that would."""
    stream, there = cu.Stream(), cu.device_zeros(SIZE, np.uint8)
    source, other = pinned(), pinned()
    gone = weakref.ref(source)
    for _ in range(1000):
        with capture(stream) as graph:
            cu.copy_async(there, source, stream)
        graph.close()
        source = other
        if gone() is None:
            break
        time.sleep(0.01)  # the driver tells on a thread of its own
    assert gone() is None


def test_an_array_in_a_graph_cannot_be_closed(capture: Any) -> None:
    stream, there = cu.Stream(), cu.device_zeros(SIZE, np.uint8)
    with capture(stream) as whole:
        cu.copy_async(there, pinned(), stream)
    with capture(stream) as part:
        cu.copy_async(there[8:16], pinned(8), stream)
    with pytest.raises(ValueError, match="1 view and a running call"):
        there.close()
    part.close()
    assert eventually(lambda: "view" not in refusal(there))
    with pytest.raises(ValueError, match="a running call, or a graph"):
        there.close()
    whole.close()
    assert eventually(lambda: not refusal(there))


def refusal(array: Any) -> str:
    """Why it is not closed, if it is not."""
    try:
        array.close()
    except ValueError as error:
        return str(error)
    return ""


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
    assert kept.captured
    graph.close()
    assert eventually(lambda: not refusal(there))


@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("cuStreamGetCaptureInfo_v2", 0),
        ("cuUserObjectCreate", 0),
        ("cuGraphRetainUserObject", 0),
        ("cuUserObjectRelease:1:2,cuGraphRetainUserObject", 1),  # the driver keeps its own object
    ],
)
def test_a_copy_that_no_graph_keeps_is_none(capture: Any, sim: Any, call: str, left: int) -> None:
    stream, source, there = cu.Stream(), pinned(), cu.device_zeros(SIZE, np.uint8)
    with capture(stream) as graph:
        sim.fail(f"{call}:1:2")
        with pytest.raises(cu.OutOfMemoryError, match=call.rpartition(",")[2]):
            cu.copy_async(there, source, stream)
        sim.clear_faults()
        assert graph.status() == ACTIVE
    assert graph.nodes() == 0
    assert not refusal(there)
    assert sim.live("user_objects") == left


def test_a_driver_whose_graphs_keep_nothing_is_told() -> None:
    program = """
        import ctypes, numpy as np, cudriver as cu
        there, stream = cu.device_zeros(4), cu.Stream()
        driver, handle = ctypes.CDLL(cu.driver_path()), ctypes.c_void_p(stream.handle)
        assert driver.cuStreamBeginCapture_v2(handle, 0) == 0
        try:
            cu.copy_async(there, cu.pinned_zeros(4), stream)
        except cu.CudaError as error:
            print(error)
    """
    said = output(program, CUDRIVER_LIBRARY="sim", CUDRIVER_SIM_DRIVER_VERSION="11020")
    assert "before CUDA 11.3 a graph cannot keep its arrays alive" in said


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
    "assigned array": (
        lambda x: x.in_stream(lambda: x.d.__setitem__(slice(0, 9), x.p[:9])),
        "cannot be captured",
    ),
    "device_empty": (lambda x: cu.device_empty(3, stream=x.s), "an allocation cannot"),
    "device_zeros": (lambda x: cu.device_zeros(3, stream=x.s), "an allocation cannot"),
    "fill": (lambda x: x.boxes.fill(1, x.s), "fills only dense memory and rows"),
    "copy": (lambda x: x.in_stream(lambda: cu.copy(x.d, x.p)), "a blocking copy cannot"),
    "copy small": (lambda x: x.in_stream(lambda: cu.copy(x.d[:3], x.a[:3])), "a blocking copy"),
    "strided host": (lambda x: cu.copy_async(x.d[: SIZE // 2], x.p[::2], x.s), "strided"),
    "strided device": (lambda x: cu.copy_async(x.d[:99], x.large[99:0:-1], x.s), "kernel"),
    "overlap": (lambda x: cu.copy_async(x.d[1:], x.d[:-1], x.s), "kernel or temporary"),
    "host to host": (lambda x: cu.copy_async(x.p, x.a, x.s), "cannot be captured"),
    "synchronize": (lambda x: x.s.synchronize(), r"synchronize\(\) cannot be captured"),
    "context": (lambda x: x.s.context.synchronize(), r"Context.synchronize\(\) cannot be captured"),
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
        self.boxes = cu.device_zeros((9, 10, 10, 10), np.uint8)[:, 1:, 1:, 1:]
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


def test_a_full_batch_that_a_capture_kept_open_takes_no_more(sim: Any) -> None:
    """As if another thread's capture had begun just before the batch was to be closed."""
    stream, there, sources = cu.Stream(), cu.device_zeros(16), [cu.pinned_zeros(16)] * 40
    stream.synchronize()
    for copies in range(1, 20):  # one of them fills the batch
        for source in sources[:copies]:
            cu.copy_async(there, source, stream)
        sim.fail("cuStreamIsCapturing:2:900")
        gone = [cu.pinned_zeros(16) for _ in range(2)]
        cu.copy_async(there, gone[0], stream)
        sim.clear_faults()
        refs = [weakref.ref(array) for array in gone]
        cu.copy_async(there, gone.pop(), stream)
        del gone
        stream.synchronize()
        cu.live_allocations()
        assert not any(ref() for ref in refs)


@pytest.mark.parametrize("way", ["close", "drop"])
def test_a_stream_that_ends_after_a_capture(capture: Any, driver: Any, way: str) -> None:
    """Work that the capture hid is still waited for, and its memory kept."""
    stream, source, there = cu.Stream(), pinned(), cu.device_zeros(SIZE, np.uint8)
    wanted, gone = source.copy(), weakref.ref(source)
    with busy(driver, stream):
        transfer = cu.copy_async(there, source, stream)
        with capture(types.SimpleNamespace(handle=stream.handle)):
            assert not transfer.done
        del source
        if way == "close":
            stream.close()
        del stream
        gc.collect()
        assert not transfer.done
        assert gone() is not None
    transfer.wait()
    assert gone() is None
    assert np.array_equal(there.to_numpy(), wanted)


@pytest.mark.parametrize("size", [None, SIZE, 1 << 22])
def test_a_stream_that_is_dropped_in_a_capture(
    capture: Any, simulator: Any, size: int | None
) -> None:
    """Its handle lives until the capture is over, with or without open work from before."""
    source = pinned(size or SIZE)
    there, wanted = cu.device_empty(source.size, np.uint8), source.copy()
    streams = simulator.live("streams") if simulator else 0
    stream = cu.Stream()
    handle = types.SimpleNamespace(handle=stream.handle)
    transfer = None if size is None else cu.copy_async(there, source, stream)
    with capture(handle) as graph:
        del stream
        gc.collect()
        assert graph.status() == ACTIVE
    assert graph.ended == 0
    if transfer is not None:
        transfer.wait()
    assert handle.handle not in [made.address for made in cu.live_allocations()]
    if simulator:
        assert simulator.live("streams") == streams
    if transfer is not None:
        assert np.array_equal(there.to_numpy(), wanted)


def test_the_context_of_a_dropped_stream_waits_for_the_capture(capture: Any) -> None:
    """To wait for the context would break the capture, and to close it would end the stream."""
    with cu.Context() as context:
        stream = cu.Stream()
    handle = stream.handle
    with capture(types.SimpleNamespace(handle=handle)) as graph:
        del stream
        gc.collect()
        with pytest.raises(cu.CudaError, match=r"Context.synchronize\(\) cannot be captured"):
            context.synchronize()
        with pytest.raises(cu.InvalidContextError, match=r"lives in it \(see live_allocations"):
            context.close()
        assert [row.kind for row in cu.live_allocations() if row.address == handle] == [
            "dropped stream"
        ]
        assert graph.status() == ACTIVE
    assert graph.ended == 0
    context.synchronize()
    graph.close()
    context.close()


def test_a_dropped_stream_that_is_waited_for_by_its_handle(capture: Any, simulator: Any) -> None:
    """It is destroyed after its capture, and counts as alive no longer."""
    streams = simulator.live("streams") if simulator else 0
    stream = cu.Stream()
    handle = types.SimpleNamespace(handle=stream.handle)
    with capture(handle):
        del stream
        gc.collect()
    cu.Stream.from_handle(handle.handle).synchronize()
    assert "dropped stream" not in [row.kind for row in cu.live_allocations()]
    if simulator:
        assert simulator.live("streams") == streams


@pytest.mark.parametrize(("more", "order"), [(0, 1), (1, 1), (1, -1)])
def test_a_stream_whose_work_no_event_could_mark(sim: Any, more: int, order: int) -> None:
    """Its handle lives until the work before its end was seen to be over, as in a capture."""
    stream, there, source = cu.Stream(), cu.device_zeros(SIZE, np.uint8), pinned()
    handle = stream.handle
    sim.hold()
    transfers = [cu.copy_async(there, source, stream)]
    sim.fail("cuEventCreate:1:2,cuStreamSynchronize:1:900")
    assert not transfers[0].done
    sim.clear_faults()
    if more:
        transfers.append(cu.copy_async(there, source, stream))
        sim.fail("cuEventCreate:1:2,cuStreamSynchronize:1:900")
    del stream
    gc.collect()
    sim.clear_faults()
    sim.release()
    for transfer in transfers[::order]:
        transfer.wait()
    assert np.array_equal(there.to_numpy(), source)
    cu.live_allocations()
    assert handle not in [row.address for row in cu.live_allocations()]


def test_a_stream_that_no_memory_is_left_for() -> None:
    """Dropped in a capture, it is not destroyed, which would break the capture."""
    pytest.importorskip("_testcapi")
    program = """
        import _testcapi, ctypes, cudriver as cu
        stream = cu.Stream()
        driver, handle = ctypes.CDLL(cu.driver_path()), ctypes.c_void_p(stream.handle)
        graph = ctypes.c_void_p()
        assert driver.cuStreamBeginCapture_v2(handle, 0) == 0
        _testcapi.set_nomemory(0)
        del stream
        _testcapi.remove_mem_hooks()
        print(driver.cuStreamEndCapture(handle, ctypes.byref(graph)))
    """
    assert output(program, CUDRIVER_LIBRARY="sim") == "0\n"


def test_the_interpreters_exit_waits_for_no_capture() -> None:
    program = """
        import ctypes, cudriver as cu
        stream = cu.Stream()
        driver, handle = ctypes.CDLL(cu.driver_path()), ctypes.c_void_p(stream.handle)
        assert driver.cuStreamBeginCapture_v2(handle, 0) == 0
        del stream
        driver.cudriver_sim_reset_counts()
        cu._core._shutdown()
        print(driver.cudriver_sim_call_count(b"cuStreamIsCapturing") < 50)
    """
    assert output(program, CUDRIVER_LIBRARY="sim") == "True\n"


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


def test_an_allocation_that_finds_no_memory_breaks_no_capture(capture: Any, sim: Any) -> None:
    """It waits for our own work, which may free some, and not for the context."""
    stream, side = cu.Stream(), cu.Stream()
    home = cu.device_zeros(SIZE, stream=side)
    sim.set_latency(2000)
    earlier = cu.copy_async(home, cu.pinned_zeros(SIZE), side)
    with capture(stream) as graph:
        sim.fail("cuMemAllocFromPoolAsync:1:2")
        in_thread(lambda: cu.device_empty(SIZE).close())
        sim.clear_faults()
        assert earlier.done
        assert graph.status() == ACTIVE
    assert graph.ended == 0
    assert sim.call_count("cuCtxSynchronize") == 0


def test_a_stream_may_go_while_memory_is_waited_for(sim: Any) -> None:
    """An allocation in the callback of a weak reference to it finds the stream, and leaves it."""
    stream, sizes = cu.Stream(), []
    cu.device_empty(SIZE, stream=stream).close()

    def allocate(_: object) -> None:
        sim.fail("cuMemAllocFromPoolAsync:1:2")
        sizes.append(cu.device_empty(SIZE).size)

    gone = weakref.ref(stream, allocate)
    del stream
    sim.clear_faults()
    assert gone() is None
    assert sizes == [SIZE]


def test_memory_of_a_closed_stream_is_waited_for_alone(capture: Any, sim: Any) -> None:
    """By an event behind the stream's work; not with the context, which would break the capture. A
    wait that fails has not seen the memory ready."""
    stream, home = cu.Stream(), cu.Stream()
    sim.hold()
    array = cu.device_zeros(SIZE, np.uint8, stream=home)
    home.close()
    with capture(stream) as graph:
        sim.release()
        for _ in range(2):
            sim.fail("cuEventQuery:1:719")
            with pytest.raises(cu.CudaError, match="LAUNCH_FAILED"):
                array.to_numpy()
            sim.clear_faults()
        assert not array.to_numpy().any()
        assert graph.status() == ACTIVE
    assert graph.ended == 0


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

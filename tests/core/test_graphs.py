"""Calls on streams that are being captured into CUDA graphs, and all else during a capture.

The graphs are made and launched by the driver's own functions, through ctypes.
"""

from __future__ import annotations

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
from copykit import wait_for
from graphkit import ACTIVE, BROKEN, GLOBAL, MODES, Capture, busy
from parallel import in_thread
from program import output

pytestmark = pytest.mark.threads

SIZE = 1 << 12


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


class Node:
    """Work of another library: what a launch of the graph does."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.there = cu.device_zeros(SIZE, np.uint8)
        self.address = ctypes.c_uint64(self.there.pointer)

    def queue(self, stream: Any) -> None:
        handle = ctypes.c_void_p(stream.handle)
        assert self.driver.cuMemsetD8Async(self.address, 7, ctypes.c_size_t(SIZE), handle) == 0

    def ran(self) -> bool:
        return bool((self.there.to_numpy() == 7).all())


def test_a_capture_spreads_to_other_streams_by_events(capture: Any, driver: Any) -> None:
    stream, side, node = cu.Stream(), cu.Stream(), Node(driver)
    event = cu.Event()
    with capture(stream) as graph:
        stream.record(event)
        side.wait(event)
        node.queue(side)
        stream.wait(side)
    assert graph.ended == 0
    graph.launch()
    assert node.ran()
    for ask in (lambda: event.done, event.synchronize):
        with pytest.raises(cu.CudaError, match="a point in a graph"):
            ask()
    event.record(side)
    event.synchronize()
    assert event.done


def test_what_has_nothing_to_copy_is_over_at_once(capture: Any) -> None:
    stream, there = cu.Stream(), cu.device_zeros(4)
    with capture(stream) as graph:
        assert cu.copy_async(there, there, stream).done
        assert cu.copy_async(there[:0], cu.pinned_zeros(0), stream).done
    assert graph.nodes() == 0


# --- what is refused, and leaves the capture intact ---


#: name: (call, the reason that the message gives). `s` is the captured stream, `d` a device array,
#: `p` a page-locked array, `a` an ordinary one.
REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "up": (lambda x: cu.copy_async(x.d, x.p, x.s), "takes a DeviceArray by DLPack"),
    "down": (lambda x: cu.copy_async(x.p, x.d, x.s), "a copy cannot be captured"),
    "on the device": (lambda x: cu.copy_async(x.d[:9], x.large[:9], x.s), "a copy cannot"),
    "in the stream": (lambda x: x.in_stream(lambda: cu.copy_async(x.d, x.p, None)), "a copy"),
    "by its handle": (
        lambda x: cu.copy_async(x.d, x.p, types.SimpleNamespace(cuda_stream=x.s.handle)),
        "a copy cannot be captured",
    ),
    "pageable up": (lambda x: cu.copy_async(x.d, x.a, x.s), "a copy cannot be captured"),
    "pageable down": (lambda x: cu.copy_async(x.a, x.d, x.s), "a copy cannot be captured"),
    "pageable large": (
        lambda x: cu.copy_async(x.large, np.zeros(1 << 21, np.uint8), x.s),
        "a copy cannot be captured",
    ),
    "to_numpy": (lambda x: x.in_stream(x.d.to_numpy), "call it before or after"),
    "to_device": (lambda x: cu.to_device(x.p, stream=x.s), "cannot be captured"),
    "to_device here": (lambda x: x.in_stream(lambda: cu.to_device(x.a)), "cannot be captured"),
    "to_device, foreign": (
        lambda x: cu.to_device(x.p, stream=types.SimpleNamespace(cuda_stream=x.s.handle)),
        "cannot be captured",
    ),
    "array's copy": (lambda x: x.d.copy(stream=x.s), "cannot be captured"),
    "assigned array": (
        lambda x: x.in_stream(lambda: x.d.__setitem__(slice(0, 9), x.p[:9])),
        "cannot be captured",
    ),
    "device_zeros": (lambda x: cu.device_zeros(3, stream=x.s), r"^device_zeros\(\) cannot"),
    "fill": (lambda x: x.d.fill(1, stream=x.s), r"^fill\(\) cannot be captured"),
    "fill of many pieces": (lambda x: x.boxes.fill(1, stream=x.s), r"^fill\(\) cannot be captured"),
    "assigned number": (
        lambda x: x.in_stream(lambda: x.d.__setitem__(0, 5)),
        r"^array\[key\] = value cannot",
    ),
    "copy": (lambda x: x.in_stream(lambda: cu.copy(x.d, x.p)), "a blocking copy cannot"),
    "copy small": (lambda x: x.in_stream(lambda: cu.copy(x.d[:3], x.a[:3])), "a blocking copy"),
    "strided host": (lambda x: cu.copy_async(x.d[: SIZE // 2], x.p[::2], x.s), "a copy cannot"),
    "strided device": (lambda x: cu.copy_async(x.d[:99], x.large[99:0:-1], x.s), "a copy cannot"),
    "overlap": (lambda x: cu.copy_async(x.d[1:], x.d[:-1], x.s), "cannot be captured"),
    "host to host": (lambda x: cu.copy_async(x.p, x.a, x.s), "cannot be captured"),
    "synchronize": (lambda x: x.s.synchronize(), r"synchronize\(\) cannot be captured"),
    "context": (lambda x: x.s.context.synchronize(), r"Context.synchronize\(\) cannot be captured"),
    "save": (
        lambda x: cu.save_safetensors("x.safetensors", {"x": x.d}),
        r"Context.synchronize\(\) cannot be captured",
    ),
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
def test_what_cannot_be_captured_is_refused(capture: Any, driver: Any, mode: int) -> None:
    things, node, refused = Things(), Node(driver), 0
    with capture(things.s, mode) as graph:
        node.queue(things.s)
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
    assert node.ran()
    assert not things.d.to_numpy().any()
    things.s.close()


@pytest.mark.parametrize("mode", MODES)
def test_other_calls_are_made_at_once(capture: Any, driver: Any, mode: int) -> None:
    """They are not part of the graph, and the thread that captures may make them."""
    things, node = Things(), Node(driver)
    before = cu.copy_async(things.large, np.full(1 << 21, 5, np.uint8), things.side)
    cu.copy(things.large[:99], things.large[199:100:-1])  # its kernel is loaded
    with capture(things.s, mode) as graph:
        before.wait()
        assert before.done
        made = cu.to_device(things.a)
        assert np.array_equal(made.to_numpy(), things.a)
        made = cu.device_empty(SIZE, np.uint8, stream=things.s)  # the stream only says where
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
        node.queue(things.s)
    assert graph.ended == 0
    assert graph.nodes() == 1
    graph.launch()
    assert node.ran()


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


def test_earlier_work_of_a_captured_stream(capture: Any, driver: Any) -> None:
    """Its end is seen, and its memory is let go, though the stream tells nothing."""
    stream, source, there = cu.Stream(), pinned(), cu.device_zeros(SIZE, np.uint8)
    gone, wanted = weakref.ref(source), source.copy()
    with busy(driver, stream):
        transfer = cu.copy_async(there, source, stream)
        graph = capture(stream).begin()
        del source
        gc.collect()
        assert not transfer.done
        assert gone() is not None
    transfer.wait()
    assert gone() is None
    assert np.array_equal(there.to_numpy(), wanted)
    assert graph.status() == ACTIVE
    assert graph.end() == 0


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
def test_a_stream_that_is_dropped_in_a_capture(capture: Any, size: int | None) -> None:
    """It is not destroyed, which would break the capture, but left to the end of its context."""
    source = pinned(size or SIZE)
    with cu.Context() as context:
        there, wanted = cu.device_empty(source.size, np.uint8), source.copy()
        stream = cu.Stream()
    handle = types.SimpleNamespace(handle=stream.handle)
    transfer = None if size is None else cu.copy_async(there, source, stream)
    with capture(handle) as graph:
        del stream
        gc.collect()
        assert graph.status() == ACTIVE
    assert graph.ended == 0
    assert handle.handle not in [made.address for made in cu.live_allocations()]
    if transfer is not None:
        transfer.wait()
        assert np.array_equal(there.to_numpy(), wanted)
    graph.close()
    context.synchronize()
    there.close()
    context.close()


@pytest.mark.parametrize("broken", [False, True])
def test_memory_of_a_stream_that_tells_nothing_is_freed(
    capture: Any, driver: Any, broken: bool
) -> None:
    """Also where the capture is broken: a free in the stream's order would be refused (901)."""
    stream = cu.Stream()
    array = cu.device_zeros(SIZE, stream=stream)
    stream.synchronize()
    graph = capture(stream).begin()
    if broken:
        assert driver.cuStreamSynchronize(graph.handle) == 900
        assert graph.status() == BROKEN
    array.close()
    assert graph.end() == (901 if broken else 0)


def test_a_stream_whose_capture_is_broken_can_be_closed_once_that_ends(
    capture: Any, driver: Any
) -> None:
    """Until then its owner needs the handle, to end the capture."""
    stream = cu.Stream()
    graph = capture(stream).begin()
    assert driver.cuStreamSynchronize(graph.handle) == 900
    assert graph.status() == BROKEN
    with pytest.raises(cu.CudaError, match="must live until the capture ends"):
        stream.close()
    assert graph.end() == 901
    stream.close()


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
def test_another_thread_works_as_usual(capture: Any, driver: Any, mode: int) -> None:
    stream, node = cu.Stream(), Node(driver)

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
            array.fill(9, stream=own)
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
        node.queue(stream)
        with pytest.raises(cu.CudaError, match="being captured"):
            in_thread(stream.synchronize)
    assert graph.ended == 0
    graph.launch()
    assert node.ran()


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


def test_a_copy_that_no_event_can_be_recorded_behind_breaks_no_capture(
    capture: Any, sim: Any
) -> None:
    """The copy's stream is waited for."""
    side, source, there = cu.Stream(), pinned(), cu.device_zeros(SIZE, np.uint8)
    copying = threading.Thread(target=cu.copy_async, args=(there, source, side))
    with capture(cu.Stream()) as graph:
        sim.fail("cuEventRecord:1:2")
        copying.start()
        wait_for(lambda: not copying.is_alive(), "the copy never ends")
        assert graph.status() == ACTIVE
    assert graph.ended == 0
    assert np.array_equal(there.to_numpy(), source)


def test_the_default_stream_while_a_blocking_stream_is_captured(capture: Any, driver: Any) -> None:
    """It would wait for the captured stream, so it cannot be used: not even by another thread."""
    there, source, node = cu.device_zeros(SIZE, np.uint8), pinned(), Node(driver)
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
        node.queue(blocking)
        for call in calls:
            for run in (call, lambda call=call: in_thread(call)):
                with pytest.raises(cu.CudaError) as caught:
                    run()
                assert caught.value.code == 906
                assert graph.status() == ACTIVE
    assert graph.ended == 0
    assert graph.nodes() == 1
    graph.launch(cu.Stream())
    assert node.ran()
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

"""Many threads: their results are right, and closing what another uses is an error, not a crash."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conftest import DRIVER
from parallel import together
from program import output

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.threads]

THREADS = 8
ROUNDS = 30


def test_copies_of_each_kind(cu) -> None:
    def body(seed: int) -> None:
        random = np.random.default_rng(seed)
        stream = cu.Stream()
        for _ in range(ROUNDS):
            source = random.integers(0, 255, int(random.integers(1, 1 << 15)), "u1")
            pinned = cu.pinned_array(source)
            first, second = cu.to_device(source), cu.device_empty(source.shape, "u1")
            cu.copy_async(second, pinned, stream)
            out = cu.pinned_empty(source.shape, "u1")
            cu.copy_async(out, second, stream).wait()
            assert (first.to_numpy() == source).all()
            assert (out == source).all()
            with stream:
                cu.copy(second[::-1][: len(source) // 2], pinned[: len(source) // 2])

    together(*[lambda i=i: body(i) for i in range(THREADS)])


def test_staged_copies(cu) -> None:
    plain = np.arange(3 << 20, dtype="u4").view("u1")

    def body() -> None:
        array = cu.to_device(plain)
        for _ in range(2):
            assert (array.to_numpy() == plain).all()

    together(*[body] * 4)


def test_contexts(cu) -> None:
    shared = cu.Context()

    def body() -> None:
        for _ in range(rounds_of("context")):
            with shared, cu.Context() as own:
                assert cu.current_context() is own
                array = cu.device_zeros(10)
                with shared:
                    assert cu.device_empty(1).context is shared
                assert array.to_numpy().sum() == 0
                del array
            own.close()

    together(*[body] * THREADS)
    shared.close()


def test_primary_contexts_come_and_go(cu, two_devices) -> None:
    device = two_devices[1]

    def body() -> None:
        for i in range(ROUNDS):
            context = device.primary_context()
            with contextlib.suppress(cu.InvalidContextError), context:
                assert cu.device_zeros(5).to_numpy().sum() == 0
            if i % 5 == 0:
                with contextlib.suppress(cu.InvalidContextError):
                    context.close()

    together(*[body] * 4)


def test_one_pin_closed_by_all(cu) -> None:
    for _ in range(ROUNDS):
        array = np.zeros(1 << 14)
        handle = cu.pin(array)
        together(*[handle.close] * 4)
        assert handle.closed
        assert not cu.is_pinned(array)


def test_arrays_freed_by_other_threads(cu) -> None:
    box: list[Any] = []
    done = threading.Event()

    def make() -> None:
        for i in range(200):
            box.append((cu.pinned_full(100 * (i % 7) + 1, i % 256, "u1"), cu.device_empty(50)))

    def free() -> None:
        while not done.is_set() or box:
            with contextlib.suppress(IndexError):
                pinned, _ = box.pop()
                assert (pinned == pinned[0]).all()

    def make_all() -> None:
        try:
            together(make, make, make)
        finally:
            done.set()

    together(make_all, free, free)


def test_numpys_own_arrays_freed_by_other_threads(cu) -> None:
    box: list[Any] = []

    def make() -> None:
        with cu.pinned_numpy(min_bytes=100):
            for i in range(200):
                box.append(np.full(500, i))

    def plain() -> None:
        for i in range(200):
            assert np.full(500, i).sum() == 500 * i
            with contextlib.suppress(IndexError):
                box.pop()

    together(make, make, plain, plain)
    box.clear()


CLOSERS: dict[str, Callable[[Any], Any]] = {
    "stream": lambda cu: cu.Stream(),
    "event": lambda cu: cu.Event(timing=True),
    "array": lambda cu: cu.device_zeros(1000, "u1"),
    "context": lambda cu: cu.Context(),
}


def rounds_of(kind: str) -> int:
    """A context takes 0.2 s to make and destroy on a GPU, several times that beside other
    processes; what is looked for is within the package, and the simulator's rounds are many."""
    return 5 if DRIVER == "real" and kind == "context" else ROUNDS


@pytest.mark.parametrize("kind", CLOSERS)
def test_closed_while_another_thread_uses_it(cu, kind: str) -> None:
    """Uses either work or say that it is closed; a close either works or says who uses it."""
    pinned = cu.pinned_zeros(1000, "u1")

    def uses(thing: Any) -> None:
        if kind == "stream":
            array = cu.device_empty(1000, "u1")
            cu.copy_async(array, pinned, thing)
            array.fill(1, stream=thing)
            thing.record().synchronize()
            cu.Stream().wait(thing)
            thing.synchronize()
            thing.done
        elif kind == "event":
            stream = cu.Stream()
            thing.record(stream)
            stream.wait(thing)
            thing.synchronize()
            thing.done
            thing.elapsed_time(thing)
        elif kind == "array":
            thing.fill(1)
            cu.copy(pinned, thing)
            cu.copy_async(pinned, thing, None).wait()
            thing[::2].to_numpy()
        else:
            thing.synchronize()
            thing.memory_info()
            with thing:
                cu.device_zeros(10).to_numpy()

    for _ in range(rounds_of(kind)):
        thing = CLOSERS[kind](cu)

        def use(thing: Any = thing) -> None:
            with contextlib.suppress(ValueError, cu.InvalidContextError):
                while True:
                    uses(thing)
                    time.sleep(0.001)  # leave gaps in which close() can succeed

        def close(thing: Any = thing) -> None:
            while not thing.closed:
                with contextlib.suppress(ValueError, cu.InvalidContextError):
                    thing.close()

        together(use, use, close)
        assert thing.closed
    cu.current_context().synchronize()


def test_closed_by_all_at_once(cu, simulator) -> None:
    for kind, make in CLOSERS.items():
        for _ in range(rounds_of(kind)):
            thing = make(cu)
            together(*[thing.close] * 4)
            assert thing.closed


def test_closing_from_what_a_call_reads(cu) -> None:
    """Code that reading an argument runs cannot take away the other argument."""
    array = cu.device_zeros(100, "u1")
    said: list[str] = []

    class Source:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            with pytest.raises(ValueError, match="a running call") as caught:
                array.close()
            said.append(str(caught.value))
            return cu.device_empty(100, "u1").__cuda_array_interface__

    with contextlib.suppress(ValueError):
        cu.copy(array, Source())
    assert len(said) == 1
    array.close()


def test_manual_contexts_that_close_leave_other_contexts_alone(cu) -> None:
    """Each opens, copies and closes; the copies go through slots that all of them share."""

    def body() -> None:
        for _ in range(10 * rounds_of("context")):
            with cu.Context():
                assert not cu.device_zeros(3).to_numpy().any()

    together(body, body)


@pytest.mark.parametrize("kind", ["small", "staged", "strided", "async"])
def test_manual_contexts_that_close_leave_copies_in_the_primary_one_alone(cu, kind: str) -> None:
    """The other thread's contexts make the page-locked memory that the copies then use."""
    count = 3 << 20 if kind == "staged" else 1 << 18
    source = np.arange(count, dtype=np.uint8)
    source = source[::2] if kind == "strided" else source
    over = threading.Event()

    def contexts() -> None:
        try:
            for _ in range(rounds_of("context")):
                with cu.Context():
                    arrays = [cu.pinned_empty(1000) for _ in range(300)]
                    cu.to_device(arrays[0])
        finally:
            over.set()

    def copies() -> None:
        stream = cu.Stream()
        there, back = cu.device_empty(source.shape, "u1"), cu.pinned_empty(source.shape, "u1")
        while not over.is_set():
            back[:] = 0
            if kind == "async":
                cu.copy_async(there, source, stream)
                cu.copy_async(back, there, stream).wait()
            else:
                cu.copy(there, source)
                cu.copy(back, there)
            assert (back == source).all()

    together(contexts, copies)


@pytest.mark.skipif(DRIVER != "sim", reason="holds a call of the simulator")
def test_a_context_ends_after_what_a_trim_frees_in_it() -> None:
    """If it ended first, the trim would give the driver handles of what is destroyed already."""
    program = """
        import ctypes, threading, time, numpy as np, cudriver as cu
        plain = np.ones(4 << 20, np.uint8)
        context = cu.Context()
        with context:
            cu.to_device(plain)  # a stream, events and a block stay with the context
        sim = ctypes.CDLL(cu.driver_path())
        sim.cudriver_sim_call_count.restype = ctypes.c_longlong
        pushes = sim.cudriver_sim_call_count(b"cuCtxPushCurrent_v2")
        sim.cudriver_sim_hold_call(b"cuCtxPushCurrent_v2", ctypes.c_ulonglong(1))
        trimming = threading.Thread(target=cu.trim_host_memory)
        trimming.start()
        while sim.cudriver_sim_call_count(b"cuCtxPushCurrent_v2") == pushes:
            time.sleep(0.001)
        ending = threading.Thread(target=context.close)
        ending.start()
        ending.join(0.3)  # if it did not wait for the trim, it would end now
        sim.cudriver_sim_clear_faults()
        trimming.join()
        ending.join()
        print(context.closed)
    """
    assert output(program) == "True\n"

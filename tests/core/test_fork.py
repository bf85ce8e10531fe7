"""fork(): the child's clear error, its own bytes, and the parent's copies."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forking import ASAN, let_threads_rest
from native_build import TESTS
from program import output

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
    pytest.mark.usefixtures("no_leaks"),
]


def in_child(body: Callable[[], None]) -> str:
    """Runs `body` in a forked child; what it raised, or an empty string."""
    reader, writer = os.pipe()
    let_threads_rest()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            body()
        except BaseException:
            said = traceback.format_exc().encode()
        os.write(writer, said[-60000:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "the child did not end by itself"
    return said.decode()


def test_every_first_call_of_a_child_is_told(cu) -> None:
    stream, event, context = cu.Stream(), cu.Event(), cu.Context()
    array, pinned, plain = cu.device_zeros(10), cu.pinned_zeros(10), np.zeros(10)
    device, transfer = cu.Device(0), cu.copy_async(array, pinned, stream)
    stream.synchronize()
    calls: list[Callable[[], object]] = [
        cu.init,
        cu.device_count,
        cu.devices,
        cu.memory_info,
        cu.current_context,
        cu.context_stack,
        lambda: cu.Device(0),
        lambda: device.name,
        lambda: device.attributes,
        device.primary_context,
        device.reset_primary_context,
        cu.Context,
        context.push,
        context.pop,
        context.synchronize,
        lambda: context.flags,
        lambda: context.limits["stack_size"],
        cu.Stream,
        stream.synchronize,
        lambda: stream.done,
        stream.record,
        cu.Event,
        event.record,
        event.synchronize,
        lambda: event.done,
        lambda: cu.pinned_empty(1 << 20),
        lambda: cu.pinned_zeros(10),
        lambda: cu.pin(plain),
        lambda: cu.mapped_pointer(pinned),
        lambda: cu.device_empty(10),
        lambda: cu.to_device(plain),
        lambda: array.fill(1),
        array.to_numpy,
        lambda: cu.copy(array, plain),
        lambda: cu.copy_async(array, plain, stream),
        lambda: cu.copy_rows_async(array, pinned, [1], [2], stream=stream),
        lambda: cu.copy_many_async([array], [plain], stream=stream),
        lambda: cu.SharedMemory.anonymous(10),
        lambda: cu.pin_async(plain),
        lambda: cu.pinned_empty_async(10),
        lambda: cu.pinned_numpy().__enter__(),
    ]

    def body() -> None:
        for i, call in enumerate(calls):
            try:
                call()
            except cu.ForkedProcessError as error:
                assert "fork" in str(error), str(error)
                assert "spawn" in str(error), str(error)
            else:
                raise AssertionError(f"call {i} did not say that the process is a fork")

    assert in_child(body) == ""
    transfer.wait()
    context.close()


def test_what_a_child_may_do(cu) -> None:
    stream, context = cu.Stream(), cu.Context()
    array, pinned = cu.device_zeros(10), cu.pinned_full(1000, 5)
    plain = np.zeros(3000)
    pin = cu.pin(plain)

    def body() -> None:
        assert cu.is_available() is False
        assert cu.is_pinned(pinned) is False
        assert pinned.sum() == 5000
        pinned[:] = 6
        plain[:] = 7
        cu.driver_version(), cu.driver_path(), cu.driver_is_simulated(), cu.errors.error_names()
        cu.host_memory_stats(), cu.trim_host_memory(), cu.live_allocations()
        repr(stream), repr(context), repr(array), repr(pin), repr(cu)
        array.close(), stream.close(), pin.close()
        context.close()
        with pytest.raises(ValueError, match="is closed"):
            array.fill(1)

    assert in_child(body) == ""
    assert (pinned == 5).all(), "the child wrote into its own copy"
    assert (plain == 0).all()
    assert not array.closed
    array.fill(2)
    assert array.to_numpy().sum() == 20
    pin.close()
    context.close()


def test_objects_dropped_in_the_child(cu) -> None:
    things: list[object] = [
        cu.Stream(), cu.Event(), cu.Context(), cu.device_zeros(10), cu.pinned_zeros(100),
        cu.pin(np.zeros(1000)), cu.Device(0).primary_context(),
    ]  # fmt: skip
    with cu.pinned_numpy(min_bytes=1):
        things.append(np.zeros(1000))
    cu.Context().push()

    assert in_child(things.clear) == ""
    cu.current_context().pop()
    assert things[3].to_numpy().sum() == 0  # type: ignore[attr-defined]


def one_by_one(cu: Any, targets: list[Any], sources: list[Any], stream: Any) -> list[Any]:
    return [cu.copy_async(t, s, stream) for t, s in zip(targets, sources, strict=True)]


def many(cu: Any, targets: list[Any], sources: list[Any], stream: Any) -> list[Any]:
    return [cu.copy_many_async(targets, sources, stream=stream)]


def rows(cu: Any, targets: list[Any], sources: list[Any], stream: Any) -> list[Any]:
    pairs = zip(targets, sources, strict=True)
    at = np.arange(16)
    return [
        cu.copy_rows_async(t.reshape(16, -1), s.reshape(16, -1), at, at, stream=stream)
        for t, s in pairs
    ]


@pytest.mark.parametrize("memory", ["page-locked", "pageable"])
@pytest.mark.parametrize("way", [one_by_one, many, rows])
def test_copies_in_flight_over_a_fork(cu, sim, way: Callable[..., Any], memory: str) -> None:
    stream = cu.Stream()
    make = cu.pinned_full if memory == "page-locked" else np.full
    sources = [make(1 << 16, i, "u1") for i in range(8)]
    targets = [cu.device_empty(1 << 16, "u1") for _ in sources]
    sim.hold()
    transfers = way(cu, targets, sources, stream)

    def body() -> None:
        for source in sources:
            source[:] = 99
        transfers.clear()
        targets.clear()

    assert in_child(body) == ""
    sim.release()
    for transfer in transfers:
        transfer.wait()
    for i, target in enumerate(targets):
        assert (target.to_numpy() == i).all()


@pytest.mark.parametrize("over", [False, True])
def test_arrays_of_copies_in_flight_are_refused_in_the_child(cu, over: bool) -> None:
    """At once: nothing that was in flight ends there."""
    stream, array = cu.Stream(), cu.device_zeros(10)
    transfer = cu.copy_async(array, np.zeros(10), stream)
    if over:
        cu.current_context().synchronize()

    def body() -> None:
        signal.alarm(60)  # the default action: a child that hangs is killed, and tells so
        for call in (array.to_numpy, lambda: cu.copy(array, np.zeros(10)), lambda: array.fill(1)):
            with pytest.raises(cu.ForkedProcessError):
                call()

    assert in_child(body) == ""
    transfer.wait()


def test_a_context_of_a_copy_in_flight_is_closed_in_the_child(cu, sim) -> None:
    """Nothing can be waited for there."""
    context, out, address = cu.Context(0), cu.pinned_zeros(100, "u1"), ctypes.c_uint64()
    driver = ctypes.CDLL(cu.driver_path())
    with context:
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(100)) == 0
    shown = {"shape": (100,), "typestr": "|u1", "data": (address.value, False), "version": 3}
    theirs = SimpleNamespace(__cuda_array_interface__={**shown, "stream": None})
    sim.hold()
    transfer = cu.copy_async(out, theirs)
    with pytest.raises(cu.InvalidContextError):
        context.close()
    assert in_child(context.close) == ""
    sim.release()
    transfer.wait()
    with context:
        assert driver.cuMemFree_v2(address) == 0
    context.close()


def test_parent_copies_right_during_and_after_a_fork(cu) -> None:
    """While the child holds the same pages, the parent's writes must not go to other ones."""
    source, back = cu.pinned_zeros(1 << 18, "u1"), cu.pinned_zeros(1 << 18, "u1")
    plain = np.zeros(1 << 18, "u1")
    pin = cu.pin(plain)
    array = cu.device_zeros(1 << 18, "u1")
    reader, writer = os.pipe()
    let_threads_rest()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        os._exit(0 if not source.any() and not plain.any() else 3)
    for value in range(1, 5):
        for memory in (source, plain):
            memory[:] = value
            cu.copy(array, memory)
            cu.copy(back, array)
            assert (back == value).all()
    os.write(writer, b"x")
    assert os.waitpid(child, 0)[1] == 0, "the child reads the bytes of the moment of the fork"
    source[:] = 9
    cu.copy(array, source)
    assert (array.to_numpy() == 9).all()
    os.close(reader)
    os.close(writer)
    pin.close()


@pytest.mark.skipif(
    ASAN, reason="AddressSanitizer's own allocator is left locked in such a child: make test"
)
def test_fork_from_a_thread_while_others_allocate() -> None:
    program = """
        import os, threading, warnings, cudriver as cu
        warnings.simplefilter("ignore")
        stop = threading.Event()
        def allocate():
            while not stop.is_set():
                cu.pinned_zeros(100_000); cu.device_empty(1000); cu.Stream().close()
        threads = [threading.Thread(target=allocate) for _ in range(4)]
        cu.pinned_zeros(1); cu.ForkedProcessError; cu.host_memory_stats
        # (No import may be under way in another thread at a fork: Python's rule, not ours.)
        [t.start() for t in threads]
        codes = []
        for _ in range(20):
            child = os.fork()
            if child == 0:
                try:
                    cu.pinned_zeros(100_000)
                except cu.ForkedProcessError:
                    cu.host_memory_stats()
                    os._exit(7)
                os._exit(1)
            codes.append(os.waitpid(child, 0)[1] >> 8)
        stop.set()
        [t.join() for t in threads]
        print(set(codes))
    """
    assert output(program) == "{7}\n"


def test_child_of_a_process_that_never_used_the_driver() -> None:
    program = """
        import os, sys, cudriver as cu
        sys.path.insert(0, sys.argv[1])
        from forking import let_threads_rest
        cu.driver_version()
        let_threads_rest()
        if os.fork() == 0:
            print(cu.to_device([1, 2]).to_numpy().tolist(), flush=True)
            sys.exit(0)
        os.wait()
    """
    assert output(program, str(TESTS)) == "[1, 2]\n"


def test_child_that_exits_as_interpreters_do() -> None:
    program = """
        import os, sys, numpy as np, cudriver as cu
        sys.path.insert(0, sys.argv[1])
        from forking import let_threads_rest
        array, pinned, stream = cu.device_zeros(5), cu.pinned_zeros(5), cu.Stream()
        pin = cu.pin(np.zeros(1000))
        transfer = cu.copy_async(array, pinned, stream)
        let_threads_rest()
        if os.fork() == 0:
            sys.exit(0)
        assert os.wait()[1] == 0
        print(array.to_numpy().sum())
    """
    quiet = "ignore:This process:DeprecationWarning"  # of Python 3.12 on, about threads and fork()
    environ = {"CUDRIVER_REPORT_LEAKS": "0", "PYTHONWARNINGS": quiet}
    assert output(program, str(TESTS), **environ) == "0.0\n"


def child_work(queue: multiprocessing.Queue, array: np.ndarray) -> None:
    import cudriver as cu

    try:
        queue.put(("sum", float(cu.to_device(array).to_numpy().sum())))
    except cu.ForkedProcessError as error:
        queue.put(("forked", str(error)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(cu, method: str) -> None:
    pinned = cu.pinned_full(100, 2.0)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=child_work, args=(queue, pinned))
    let_threads_rest()
    process.start()
    kind, value = queue.get(timeout=60)
    process.join()
    assert process.exitcode == 0
    if method == "spawn":
        assert (kind, value) == ("sum", 200.0)
    else:
        assert kind == "forked"
        assert "'spawn'" in value

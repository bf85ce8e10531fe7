"""Contexts of other libraries: met, held while they are known, destroyed by their owners."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from contextkit import FEW, Driver
from parallel import in_thread, together
from program import output

pytestmark = pytest.mark.usefixtures("same_stack")


@pytest.fixture(scope="module")
def driver(cu) -> Driver:
    cu.init()
    return Driver(cu.driver_path())


def test_foreign_context_is_shown_and_left_alone(cu, driver: Driver) -> None:
    handle = driver.create()
    foreign = cu.current_context()
    assert foreign.handle == handle
    assert "foreign" in repr(foreign)
    assert cu.current_context() is foreign
    assert cu.context_stack()[-1] is foreign
    array = cu.to_device(np.arange(5))
    assert array.context is foreign
    assert array.to_numpy().tolist() == [0, 1, 2, 3, 4]
    del array
    foreign.close()
    del foreign
    gc.collect()
    assert driver.current() == handle, "it is not ours to destroy"
    driver.destroy(handle)


def test_a_foreign_context_leaves_the_primary_one_as_it_is(cu, sim, driver: Driver) -> None:
    """To tell the two apart the primary one is asked for, and given back."""
    primary = cu.Device(0).primary_context()
    for _ in range(3):
        before = sim.live("primary_retains")
        assert before > 0
        handle = driver.create()
        foreign = cu.current_context()
        assert (foreign.handle, foreign.is_primary) == (handle, False)
        assert foreign is not primary
        assert sim.live("primary_retains") == before
        foreign.close()
        driver.destroy(handle)
    assert sim.live("primary_retains") == before


@pytest.mark.parametrize("popped", [False, True])
def test_foreign_context_destroyed_by_its_owner(cu, driver: Driver, popped: bool) -> None:
    """Every call says so, and leaves the stack as it is."""
    handle = driver.create()
    foreign = cu.current_context()
    array, stream, event = cu.device_empty(100), cu.Stream(), cu.Event()
    event.record(stream)
    assert foreign.exists
    if popped:
        assert driver.pop() == handle
    driver.destroy(handle)
    before = driver.current()
    assert not foreign.exists
    calls: list[Callable[[], Any]] = [
        foreign.synchronize,
        stream.synchronize,
        lambda: stream.done,
        event.synchronize,
        lambda: event.done,
        array.to_numpy,
        lambda: array.fill(1),
        lambda: cu.copy(array, np.zeros(100)),
        lambda: cu.copy_async(array, np.zeros(100), stream),
        foreign.push,
        foreign.__enter__,
        *(thing.close for thing in (stream, event, array)),
    ]
    for call in calls:
        with nullcontext() if call in calls[-3:] else pytest.raises(cu.InvalidContextError):
            call()
        assert driver.current() == before


def test_whether_a_context_exists_that_other_code_destroyed() -> None:
    """The driver crashes in other calls, given its handle."""
    program = """
        import ctypes, os
        import cudriver as cu

        context = cu.Context()
        destroy = ctypes.CDLL(cu.driver_path()).cuCtxDestroy_v2
        print(context.exists, destroy(ctypes.c_void_p(context.handle)), context.exists, flush=True)
        os._exit(0)  # close() would give the driver the handle
    """
    assert output(program) == "True 0 False\n"


def test_a_context_whose_handle_another_one_got_does_not_exist(cu, driver: Driver) -> None:
    handle = driver.create()
    foreign = cu.current_context()
    driver.pop()
    driver.destroy(handle)
    made = [driver.create()]
    while made[-1] != handle and len(made) < 20:
        made.append(driver.create())
    try:
        if made[-1] != handle:
            pytest.skip("the driver gives no handle twice")
        assert not foreign.exists
    finally:
        for each in reversed(made):
            driver.pop()
            driver.destroy(each)


def test_copies_from_and_to_another_device_whose_context_is_destroyed(
    cu, driver: Driver, two_devices
) -> None:
    """The driver is never given its handle."""
    near = cu.device_zeros(100, device=0)
    handle = driver.create(1)
    far = cu.device_zeros(100)
    driver.pop()
    cu.copy(far, near)
    driver.destroy(handle)
    pairs = [(far, near), (near, far), (far[::2], near[::2])]
    for to, of in pairs:
        with pytest.raises(cu.InvalidContextError):
            cu.copy(to, of)
        with pytest.raises(cu.InvalidContextError):
            cu.copy_async(to, of)
        with pytest.raises(cu.InvalidContextError):
            cu.copy_many([to], [of])


@pytest.mark.parametrize("looked", [False, True])
def test_foreign_context_destroyed_with_a_copy_in_flight(
    cu, sim, driver: Driver, looked: bool
) -> None:
    handle = driver.create()
    source, array, stream = np.zeros(10), cu.device_zeros(10), cu.Stream()
    sim.hold()
    transfer = cu.copy_async(array, source, stream)
    if looked:
        assert not transfer.done
    sim.release()
    driver.destroy(handle)
    with pytest.raises(cu.InvalidContextError):
        transfer.wait()
    with pytest.raises(cu.InvalidContextError):
        cu.copy(array, np.zeros(10))
    gone = weakref.ref(source)
    del source
    assert gone() is None, "its ends are let go"
    stream.close()
    array.close()


def test_a_foreign_context_is_known_by_its_id(cu, driver: Driver) -> None:
    """The driver may give its handle to another one, after its end."""
    handle = driver.create()
    foreign = cu.current_context()
    driver.destroy(handle)
    with pytest.raises(cu.InvalidContextError, match="cuCtxGetId"):
        foreign.synchronize()
    for _ in range(FEW):
        fresh = driver.create()
        assert cu.current_context() is not foreign
        with pytest.raises(cu.InvalidContextError):
            foreign.synchronize()
        driver.destroy(fresh)
    foreign.close()


def test_foreign_contexts_come_and_go(cu, driver: Driver) -> None:
    for _ in range(FEW):
        handle = driver.create()
        array = cu.to_device(np.arange(5))
        driver.destroy(handle)
        with pytest.raises(cu.InvalidContextError):
            array.to_numpy()
        array.close()
        del array


def test_a_stream_of_a_context_that_is_gone_leaves_the_arrays_own_alone(
    cu, driver: Driver, context
) -> None:
    with context:
        array = cu.device_zeros(100)
    handle = driver.create()
    stream = cu.Stream()
    assert driver.pop() == handle
    driver.destroy(handle)
    before = driver.current()
    for call in (
        lambda: cu.copy_async(array, np.ones(100), stream),
        lambda: cu.copy_async(array[::2], cu.pinned_zeros(50), stream),
        lambda: array.fill(1, stream=stream),
    ):
        with pytest.raises(cu.InvalidContextError):
            call()
        assert driver.current() == before
    assert not array.to_numpy().any()
    array.close()
    stream.close()
    context.close()
    assert context.closed, "no call counts as running in it"


def test_many_threads_meet_one_foreign_context(cu, driver: Driver) -> None:
    handle = driver.create()
    gate = threading.Barrier(8)
    seen = []

    def body() -> None:
        driver.push(handle)
        gate.wait()
        seen.append(cu.current_context())
        gate.wait()
        driver.pop()

    together(*[body] * 8)
    assert len(set(map(id, seen))) == 1
    seen.pop().close()
    driver.destroy(handle)


def test_the_stack_is_shown_around_a_context_that_was_destroyed(
    cu, driver: Driver, context
) -> None:
    """It is destroyed by another thread while it is on this one's stack, and was never ours."""

    def body() -> None:
        handle = driver.create()
        in_thread(lambda: driver.destroy(handle))
        with context:
            assert cu.context_stack() == [context]
            assert driver.current() == context.handle
        assert driver.current() == handle, "all is as it was"
        with pytest.raises(cu.InvalidContextError, match="cannot pop"):
            context.pop()
        assert driver.pop() == handle
        assert cu.context_stack() == []

    in_thread(body)


def test_a_context_below_one_that_was_destroyed_is_kept_and_popped(
    cu, driver: Driver, context, two_devices
) -> None:
    """To look below it would be to pop it, and the driver might not push it again."""

    def body() -> None:
        primary = two_devices[1].primary_context()
        with context:
            primary.push()
            with context:
                assert driver.call("cuDevicePrimaryCtxReset_v2", 1) == 0
                with pytest.raises(cu.InvalidContextError, match="was reset by other code"):
                    primary.synchronize()
                assert cu.context_stack() == [context]
            assert cu.context_stack() == []
            with pytest.raises(cu.InvalidContextError, match="on the stack of thread"):
                context.close()
            primary.pop()
            assert cu.context_stack() == [context]
        assert cu.context_stack() == []
        primary.close()

    in_thread(body)


def test_a_fork_and_the_exit_with_a_foreign_context() -> None:
    program = """
        import ctypes, os, sys, warnings, cudriver as cu
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of threads at a fork
        cu.init()
        library, handle = ctypes.CDLL(cu.driver_path()), ctypes.c_void_p()
        assert library.cuCtxCreate_v2(ctypes.byref(handle), 0, 0) == 0
        foreign, array = cu.current_context(), cu.device_zeros(4)
        child = os.fork()
        if child == 0:
            del array
            try:
                foreign.close()
            except cu.CudaError:
                pass
            print("child", flush=True)
            sys.exit(0)
        print(os.waitpid(child, 0)[1], array.to_numpy().sum())
    """
    assert output(program).splitlines() == ["child", "0 0.0"]


@pytest.mark.parametrize("when", ["open", "closed"])
def test_copies_leave_nothing_in_a_foreign_context(when: str) -> None:
    """What the copy engine keeps there for the next copy must not be looked for after its end."""
    program = """
        import ctypes, sys, numpy as np, cudriver as cu
        cu.init()
        library, handle = ctypes.CDLL(cu.driver_path()), ctypes.c_void_p()
        for _ in range(3):
            assert library.cuCtxCreate_v2(ctypes.byref(handle), 0, 0) == 0
            source = np.arange(6 << 20, dtype="u1")
            array = cu.to_device(source)
            assert cu.explain_copy(array, source).path == "staged"
            assert (array.to_numpy() == source).all()
            if sys.argv[1] == "closed":
                array.close()
                del array
                cu.current_context().close()
            assert library.cuCtxDestroy_v2(handle) == 0
            if cu.driver_is_simulated():
                library.cudriver_sim_reset_counts()
            cu.trim_host_memory()
            for name in (b"cuStreamDestroy_v2", b"cuEventDestroy_v2", b"cuModuleUnload"):
                # The real driver crashes at times when it is given what went with the context.
                assert not cu.driver_is_simulated() or library.cudriver_sim_call_count(name) == 0
        assert (cu.to_device(source).to_numpy() == source).all()
        print(cu.current_context().is_primary)
    """
    assert output(program, when) == "True\n"


def test_contexts_of_other_libraries_in_several_threads(sim) -> None:
    """That one thread begins to use its own takes nothing away from another in its."""
    program = """
        import ctypes, threading, numpy as np, cudriver as cu
        cu.init()
        library, failures = ctypes.CDLL(cu.driver_path()), []
        def body():
            handle = ctypes.c_void_p()
            assert library.cuCtxCreate_v2(ctypes.byref(handle), 0, 0) == 0
            source = np.arange(3 << 20, dtype="u1")
            try:
                for _ in range(40):
                    array = cu.to_device(source)
                    cu.copy(array, source)
                    array.close()
            except Exception as error:
                failures.append(error)
            library.cuCtxDestroy_v2(handle)
        threads = [threading.Thread(target=body) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(failures)
    """
    assert output(program) == "[]\n"


def test_popped_by_another_library(cu, driver: Driver) -> None:
    context = cu.Context()
    context.push()
    assert driver.pop() == context.handle
    with pytest.raises(cu.InvalidContextError):
        context.pop()
    context.close()
    assert context.closed, "it is on no stack, whatever we had noted"


def test_pushed_by_another_library(cu, driver: Driver, context) -> None:
    driver.push(context.handle)
    assert cu.current_context() is context
    context.pop()


def test_primary_context_retained_by_another_library_first(cu, driver, two_devices) -> None:
    held = driver.primary_state(1)[1]  # by PyTorch or JAX, which other tests of a process use
    handle = ctypes.c_void_p()
    assert driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), 1) == 0
    driver.push(handle.value)
    found = cu.current_context()
    assert found.is_primary
    assert found is two_devices[1].primary_context()
    driver.pop()
    found.close()
    assert driver.primary_state(1)[1] is True, "the other library's hold is still there"
    assert driver.call("cuDevicePrimaryCtxRelease_v2", 1) == 0
    assert driver.primary_state(1)[1] is held


def test_stack_of_ours_and_of_others(cu, driver: Driver, context) -> None:
    def body() -> None:
        with context:
            handle = driver.create()
            with context:
                stack = cu.context_stack()
                assert [c.handle for c in stack] == [context.handle, handle, context.handle]
                assert [c is context for c in stack] == [True, False, True]
                del stack
            driver.destroy(handle)
            assert driver.current() == context.handle

    in_thread(body)


def test_walking_the_stack_fails_half_way(cu, sim, context) -> None:
    with context, context:
        sim.fail("cuCtxPopCurrent_v2:2:999")
        with pytest.raises(cu.CudaError, match="cuCtxPopCurrent_v2"):
            cu.context_stack()
        sim.clear_faults()
        assert cu.context_stack()[-2:] == [context, context]
        with pytest.raises(cu.InvalidContextError):
            context.close()


def test_pool_memory_is_freed_where_no_context_is_left() -> None:
    """It survives the context."""
    program = """
        import ctypes, cudriver as cu
        array = cu.device_empty(100)
        driver = ctypes.CDLL(cu.driver_path())
        driver.cuDevicePrimaryCtxReset_v2(0)
        del array
        print([row.kind for row in cu.live_allocations()])
        print(getattr(driver, "cudriver_sim_live", lambda _: 0)(b"allocations"))
    """
    assert output(program).splitlines() == ["['primary context']", "0"]

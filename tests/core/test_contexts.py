"""Contexts: stacks per thread, primary contexts, misuse, and other libraries beside us.

The oracle for what is current is the driver itself, asked through ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import random
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from contextkit import FEW, Driver
from copykit import wait_for
from parallel import in_thread
from program import output

pytestmark = pytest.mark.usefixtures("same_stack")


@pytest.fixture(scope="module")
def driver(cu) -> Driver:
    cu.init()
    return Driver(cu.driver_path())


# ---- the stack -----------------------------------------------------------------------------------


def test_new_context_is_on_no_stack(cu, driver: Driver) -> None:
    before = driver.current()
    context = cu.Context()
    assert driver.current() == before
    assert not context.closed
    assert not context.is_primary
    context.close()
    assert context.closed
    assert "closed" in repr(context)


def test_with_nested_and_repeated(cu, driver: Driver, context) -> None:
    def body() -> None:
        other = cu.Context()
        assert cu.current_context() is None
        with context as entered:
            assert entered is context
            with other, context:
                assert cu.context_stack() == [context, other, context]
                assert driver.current() == context.handle
            assert cu.context_stack() == [context]
        assert cu.context_stack() == []
        assert driver.current() is None
        other.close()

    in_thread(body)


def test_with_pops_when_the_body_raises(cu, context) -> None:
    before = cu.context_stack()
    with pytest.raises(KeyError), context:
        raise KeyError("body")
    assert cu.context_stack() == before


def test_deep_stack(cu, context) -> None:
    for _ in range(500):
        context.push()
    assert len(cu.context_stack()) >= 500
    for _ in range(500):
        context.pop()


def test_a_pop_forgets_its_own_push_alone(cu) -> None:
    below, above = cu.Context(0), cu.Context(0)
    below.push()
    above.push()
    above.pop()
    with pytest.raises(cu.InvalidContextError, match="stack"):
        below.close()
    below.pop()
    below.close()
    above.close()


def test_threads_have_stacks_of_their_own(cu, context) -> None:
    with context:
        assert in_thread(cu.current_context) is None
        assert in_thread(cu.context_stack) == []
        assert cu.current_context() is context


def test_calls_in_a_context_that_is_not_current_leave_the_stack(cu, context) -> None:
    before = cu.context_stack()
    context.synchronize()
    context.memory_info()
    context.cache_config = "l1"
    assert context.cache_config in ("none", "shared", "l1", "equal")
    assert context.stream_priority_range.least >= context.stream_priority_range.greatest
    assert context.limits["stack_size"] > 0
    assert cu.context_stack() == before


def test_memory_and_streams_are_made_in_the_current_context(cu, context) -> None:
    with context:
        array, stream, event = cu.device_empty(10), cu.Stream(), cu.Event()
        assert array.context is stream.context is event.context is context
    array.fill(1.0)
    stream.synchronize()
    assert (array.to_numpy() == 1).all()
    array.close()


def test_nothing_current_means_the_primary_context_of_device_0(cu) -> None:
    def body() -> None:
        assert cu.current_context() is None
        cu.memory_info()
        current = cu.current_context()
        assert current.is_primary
        assert current.device == cu.Device(0)
        assert current is cu.Device(0).primary_context()

    in_thread(body)


def test_only_device_0s_primary_context_stays_current(cu, driver: Driver, two_devices) -> None:
    """What else calls work in is current during the call only."""
    array, other = cu.device_zeros(3), cu.Context()

    def of(call: Callable[[], object]) -> int | None:
        """The context that is current after a call in a thread where none was."""

        def body() -> int | None:
            assert driver.current() is None
            call()
            return driver.current()

        return in_thread(body)

    with other:
        there = cu.device_zeros(3)
    for call in (cu.Stream, array.to_numpy, lambda: cu.device_zeros(3, device=0)):
        assert of(call) == array.context.handle
    for call in (there.to_numpy, lambda: cu.device_zeros(3, device=1)):
        assert of(call) is None
    there.close()
    other.close()


def test_it_stays_current_also_if_nobody_has_used_it_by_default() -> None:
    """As beside PyTorch, which makes it current in the main thread. A push and a pop take longer
    than a small copy's own work.
    """
    program = """
        import threading
        import cudriver as cu

        with cu.Device(0).primary_context() as primary:
            there, host, stream = cu.device_empty(9), cu.pinned_zeros(9), cu.Stream()

            def copy():
                cu.copy_async(there, host, stream)
                print(cu.context_stack() == [primary])

            thread = threading.Thread(target=copy)
            thread.start()
            thread.join()
            stream.synchronize()
    """
    assert output(program) == "True\n"


# ---- misuse --------------------------------------------------------------------------------------


def test_popping_what_is_not_current_names_both(cu, driver: Driver, context) -> None:
    other = cu.Context()
    with other:
        with pytest.raises(cu.InvalidContextError) as caught:
            context.pop()
        assert repr(context) in str(caught.value)
        assert repr(other) in str(caught.value)
        assert driver.current() == other.handle, "nothing has changed"
    other.close()


def test_popping_from_an_empty_stack(cu, context) -> None:
    def body() -> None:
        with pytest.raises(cu.InvalidContextError, match=r"cannot pop .* nothing is current"):
            context.pop()

    in_thread(body)


def test_with_notices_what_its_body_left_on_the_stack(cu, context) -> None:
    other = cu.Context()
    with pytest.raises(cu.InvalidContextError) as caught, context:
        other.push()
    assert repr(context) in str(caught.value)
    assert repr(other) in str(caught.value)
    other.pop()
    context.pop()
    other.close()


def test_closing_what_is_current_here(cu, context) -> None:
    with context:
        with pytest.raises(cu.InvalidContextError) as caught:
            context.close()
        assert repr(context) in str(caught.value)
        assert not context.closed
        context.synchronize()


def test_closing_what_is_current_elsewhere_names_the_thread_and_both(cu, context) -> None:
    pushed, leave = threading.Event(), threading.Event()
    thread_id = []

    def body() -> None:
        with context:
            thread_id.append(threading.get_ident())
            pushed.set()
            leave.wait()

    thread = threading.Thread(target=body)
    thread.start()
    pushed.wait()
    other = cu.Context()
    with other, pytest.raises(cu.InvalidContextError) as caught:
        context.close()
    text = str(caught.value)
    assert repr(context) in text
    assert str(thread_id[0]) in text
    assert repr(other) in text
    leave.set()
    thread.join()
    other.close()
    context.close()
    assert context.closed


def test_a_pop_here_leaves_another_threads_push(cu, driver: Driver, context) -> None:
    pushed, leave = threading.Event(), threading.Event()

    def body() -> None:
        with context:
            pushed.set()
            leave.wait(60)

    thread = threading.Thread(target=body)
    thread.start()
    pushed.wait()
    driver.push(context.handle)
    context.pop()
    try:
        with pytest.raises(cu.InvalidContextError, match="on the stack of thread"):
            context.close()
    finally:
        leave.set()
        thread.join()
    context.close()


def test_closing_what_things_live_in(cu) -> None:
    context = cu.Context()
    with context:
        things = [cu.device_empty(4), cu.Stream(), cu.Event()]
    while things:
        many = len(things) > 1
        told = "arrays, streams or events live" if many else "array, stream or event lives"
        with pytest.raises(cu.InvalidContextError, match=f": {len(things)} {told} in it"):
            context.close()
        things.pop().close()
    context.close()


def test_closing_while_another_thread_calls_in_it(cu, sim, driver: Driver, context) -> None:
    """Another library's work, so that nothing of ours lives there: the call alone keeps it."""
    memory, failures = ctypes.c_uint64(), []
    driver.push(context.handle)
    assert driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(100)) == 0
    sim.hold()
    assert driver.call("cuMemsetD8Async", memory, 1, ctypes.c_size_t(100), None) == 0
    assert driver.pop() == context.handle

    def wait() -> None:
        try:
            context.synchronize()
        except BaseException as error:
            failures.append(error)

    calls = sim.call_count("*")
    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive() and sim.call_count("*") < calls + 5:
        pass
    late = threading.Timer(30, sim.release)  # a close that waits for the work is let go on
    late.start()
    with pytest.raises(cu.InvalidContextError, match=r"cannot close .*>: a running call uses it"):
        context.close()
    late.cancel()
    assert not context.closed
    sim.release()
    thread.join()
    assert failures == []
    driver.push(context.handle)
    assert driver.call("cuMemFree_v2", memory) == 0
    driver.pop()


@pytest.mark.parametrize("primary", [False, True])
def test_closing_while_a_copy_of_others_memory_is_in_flight(
    cu, sim, driver: Driver, primary: bool
) -> None:
    """Nothing of ours lives there, but the memory that is written must not serve others: what
    retains a primary context beside us keeps its work going."""
    context = cu.Device(1).primary_context() if primary else cu.Context(1)
    address, out = ctypes.c_uint64(), cu.pinned_zeros(100, "u1")
    driver.push(context.handle)
    assert driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(100)) == 0
    assert driver.call("cuMemsetD8_v2", address, 7, ctypes.c_size_t(100)) == 0
    driver.pop()
    shown = {"shape": (100,), "typestr": "|u1", "data": (address.value, False), "version": 3}
    theirs = SimpleNamespace(__cuda_array_interface__={**shown, "stream": None})
    sim.settle()
    sim.hold()
    transfer = cu.copy_async(out, theirs)
    late = threading.Timer(30, sim.release)
    late.start()
    with pytest.raises(cu.InvalidContextError, match="an asynchronous copy uses it"):
        context.close()
    late.cancel()
    assert not transfer.done
    sim.release()
    transfer.wait()
    assert (out == 7).all()
    driver.push(context.handle)
    assert driver.call("cuMemFree_v2", address) == 0
    driver.pop()
    context.close()


def test_everything_about_a_closed_context(cu, context) -> None:
    context.close()
    context.close()
    calls: list[Callable[[], Any]] = [
        context.push,
        context.__enter__,
        context.synchronize,
        context.memory_info,
        lambda: context.flags,
        lambda: context.cache_config,
        lambda: setattr(context, "cache_config", "l1"),
        lambda: context.stream_priority_range,
        lambda: context.api_version,
        lambda: context.limits["stack_size"],
        lambda: context.limits.__setitem__("stack_size", 4096),
        lambda: list(context.limits),
        lambda: len(context.limits),
    ]
    for call in calls:
        with pytest.raises(cu.InvalidContextError, match="is closed"):
            call()
    assert context.exists is False
    assert repr(context.limits) == f"<limits of {context!r}>"
    assert context.device == cu.Device(0)
    assert context.closed


def test_what_lives_in_a_context_keeps_it(cu, sim) -> None:
    before = sim.live("contexts")
    context = cu.Context()
    with context:
        array = cu.device_zeros(5)
        view = array[1:3]
    del context, array
    gc.collect()
    assert sim.live("contexts") == before + 1
    assert view.to_numpy().tolist() == [0, 0]
    del view
    assert sim.live("contexts") == before


def test_dropped_while_on_the_stack_it_stays_there(cu) -> None:
    def body() -> None:
        context = cu.Context()
        context.push()
        seen = weakref.ref(context)
        del context
        current = cu.current_context()
        assert current is seen()
        current.pop()

    in_thread(body)


def test_thread_that_ends_with_contexts_on_its_stack(cu, sim) -> None:
    before = sim.live("contexts")

    contexts = [cu.Context() for _ in range(3)]

    def body() -> None:
        for index in (0, 1, 2, 0):
            contexts[index].push()

    in_thread(body)
    left = weakref.ref(contexts[0])
    while contexts:
        contexts.pop().close()
    assert left() is None
    assert sim.live("contexts") == before


def test_a_thread_that_has_the_number_of_one_that_ended(cu, context) -> None:
    """The system gives a thread's number out again."""
    ended = threading.Thread(target=context.push)
    ended.start()
    ended.join()
    leave = threading.Event()
    threads = [threading.Thread(target=leave.wait) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        context.close()
        assert context.closed
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def test_a_reset_by_others_leaves_what_was_pushed_on_the_stack() -> None:
    program = """
        import ctypes, cudriver as cu
        cu.memory_info()  # device 0's primary context, by default
        outer, primary, said = cu.Context(0), cu.Device(0).primary_context(), []
        with outer:
            with primary:
                ctypes.CDLL(cu.driver_path()).cuDevicePrimaryCtxReset_v2(0)
                for _ in range(3):
                    try:
                        cu.device_empty(3)
                    except cu.InvalidContextError:
                        said.append("refused")
            print(said, cu.current_context() is outer)
    """
    assert output(program) == "['refused', 'refused', 'refused'] True\n"


# ---- limits and settings -------------------------------------------------------------------------


def test_limits_are_a_mapping(cu, context) -> None:
    limits = context.limits
    assert len(limits) == len(list(limits)) == len(limits.keys()) == len(limits.items())
    assert "stack_size" in limits
    assert "nonsense" not in limits
    assert dict(limits.items())["stack_size"] == limits["stack_size"]
    assert "stack_size" in repr(limits)
    limits["stack_size"] = 8192
    assert context.limits["stack_size"] >= 8192


def test_bad_limits(cu, context) -> None:
    for name in ("nonsense", 3):
        with pytest.raises(KeyError):
            context.limits[name]
        with pytest.raises(KeyError):
            context.limits[name] = 3
    with pytest.raises(cu.CudaError, match=r"cuCtxSetLimit\(stack_size, "):
        context.limits["stack_size"] = (1 << 63) - 1
    with pytest.raises(ValueError, match="cache_config is"):
        del context.cache_config


def test_flags(cu) -> None:
    for flags in (0, cu.ContextFlags.SCHED_YIELD, cu.ContextFlags.SCHED_BLOCKING_SYNC):
        context = cu.Context(flags=flags)
        assert cu.ContextFlags(context.flags) & 7 == flags
        context.close()
    with pytest.raises(cu.CudaError, match="flags 0x7"):
        cu.Context(flags=7)


def test_device_argument(cu, two_devices) -> None:
    for which in (1, two_devices[1], two_devices[1].uuid, two_devices[1].pci_bus_id):
        context = cu.Context(which)
        assert context.device == two_devices[1]
        with context:
            assert cu.device_empty(3).device == two_devices[1]
        context.close()


def test_api_version_and_priorities(cu, context) -> None:
    assert context.api_version >= 3010
    least, greatest = context.stream_priority_range
    assert least >= greatest
    assert context.handle
    assert context.exists is True


# ---- primary contexts ----------------------------------------------------------------------------


def test_primary_context_is_given_back_with_its_last_owner(cu, driver, two_devices) -> None:
    device = two_devices[1]
    assert driver.primary_state(1)[1] is False
    context = device.primary_context()
    assert context.exists is True
    assert driver.primary_state(1)[1] is True
    with context:
        array = cu.device_empty(3)
    assert array.context is context
    del context
    assert driver.primary_state(1)[1] is True
    array.close()
    del array
    assert driver.primary_state(1)[1] is False


def test_the_primary_context_of_a_device_that_is_named_is_kept(
    cu, sim, driver, two_devices
) -> None:
    def body() -> None:
        sim.reset_counts()
        for device in (*two_devices, 1):
            for _ in range(20):
                cu.copy(cu.device_zeros(3, device=device), np.arange(3.0))
                cu.Stream(device=device).close()
                cu.Event(device=device).close()
        assert sim.call_count("cuDevicePrimaryCtxRetain") == 1, "device 0's is there already"
        assert sim.call_count("cuDevicePrimaryCtxRelease_v2") == 0

    assert driver.primary_state(1)[1] is False
    cu.memory_info()
    in_thread(body)
    gc.collect()
    assert driver.primary_state(1)[1] is True
    context = two_devices[1].primary_context()
    kept = weakref.ref(context)
    del context
    assert two_devices[1].primary_context() is kept()
    two_devices[1].reset_primary_context()
    assert kept() is None
    assert driver.primary_state(1)[1] is False
    cu.device_empty(1, device=1).close()
    two_devices[1].primary_context().close()
    assert driver.primary_state(1)[1] is False
    assert sim.call_count("cuDevicePrimaryCtxRetain") == 2
    assert sim.call_count("cuDevicePrimaryCtxRelease_v2") == 2


def test_kept_contexts_are_let_go_at_the_end() -> None:
    program = """
        import cudriver as cu
        for device in cu.devices():
            cu.device_empty(3, device=device).close()
    """
    assert output(program, CUDRIVER_REPORT_LEAKS="1") == ""


def test_primary_context_close_and_again(cu, driver, two_devices) -> None:
    context = two_devices[1].primary_context()
    context.close()
    assert driver.primary_state(1)[1] is False
    assert context.exists is False
    again = two_devices[1].primary_context()
    assert again is not context
    assert context.exists is True, "of a primary context it is the device's state"
    with pytest.raises(cu.InvalidContextError):
        context.push()
    again.close()


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="its allocator cannot be replaced"
)
def test_a_primary_context_that_no_memory_is_left_for_is_given_back(simulator) -> None:
    pytest.importorskip("_testcapi", reason="this CPython has no tests of its own")
    program = """
        import _testcapi, ctypes, cudriver as cu
        sim = ctypes.CDLL(cu.driver_path())
        sim.cudriver_sim_live.restype = ctypes.c_longlong
        device = cu.Device(1)
        device.primary_context().close()
        refused = 0
        for nth in range(100):
            made = None
            _testcapi.set_nomemory(nth, nth + 1)
            try:
                made = device.primary_context()
            except MemoryError:
                refused += 1
            finally:
                _testcapi.remove_mem_hooks()
            if made is not None:
                made.close()
            assert sim.cudriver_sim_live(b"primary_retains") == 0, nth
        print(0 < refused < 100)
    """
    if simulator is None:
        pytest.skip("counts what the simulator has retained")
    assert output(program, CUDRIVER_SIM_DEVICES="2") == "True\n"


def test_primary_flags(cu, driver, two_devices) -> None:
    device = two_devices[1]
    context = device.primary_context(cu.ContextFlags.SCHED_BLOCKING_SYNC)
    assert context.flags & 7 == cu.ContextFlags.SCHED_BLOCKING_SYNC
    assert driver.primary_state(1)[0] & 7 == 4
    device.primary_context(flags=0)
    assert context.flags & 7 == 0
    with pytest.raises(TypeError):
        device.primary_context("x")
    with pytest.raises(cu.CudaError):
        device.primary_context(7)
    context.close()


#: What may live in a primary context, made there; and what a reset says of it.
LIVING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an array": (lambda cu: cu.device_zeros(8), "1 array, stream or event lives in it"),
    "a view": (lambda cu: cu.device_zeros(8)[2:], "1 array, stream or event lives in it"),
    "streams": (lambda cu: [cu.Stream(), cu.Stream()], "2 arrays, streams or events live in it"),
    "an event": (lambda cu: cu.Event(), "1 array, stream or event lives in it"),
    # large enough for a region of its own, which is registered there
    "pinned": (lambda cu: cu.pinned_full(1 << 18, 7.0), "page-locked memory of arrays, pins or c"),
    "a pin": (lambda cu: cu.pin(np.zeros(9000)), "page-locked memory of arrays, pins or copies"),
}


@pytest.mark.parametrize("what", LIVING)
def test_a_reset_is_refused_while_anything_lives_there(cu, two_devices, what: str) -> None:
    cu.trim_host_memory()
    device, (make, told) = two_devices[1], LIVING[what]
    with device.primary_context() as context:
        living = make(cu)
    with pytest.raises(cu.InvalidContextError, match=f"cannot reset .*{told}"):
        device.reset_primary_context()
    assert not context.closed
    assert cu.device_zeros(3, device=device).to_numpy().tolist() == [0, 0, 0]
    del living
    device.reset_primary_context()
    assert context.closed
    again = device.primary_context()
    assert again is not context
    assert cu.device_zeros(3, device=device).to_numpy().tolist() == [0, 0, 0]
    again.close()


@pytest.mark.threads
def test_a_reset_that_meets_a_trim_says_so(cu, sim, two_devices) -> None:
    cu.trim_host_memory()
    device, calls = two_devices[1], sim.call_count("cuMemHostUnregister")
    with device.primary_context():
        cu.pinned_full(1 << 18, 7.0)  # its memory stays in the pool
    sim.hold_call("cuMemHostUnregister", 1)
    trimming = threading.Thread(target=cu.trim_host_memory)
    trimming.start()
    try:
        wait_for(lambda: sim.call_count("cuMemHostUnregister") > calls, "the thread is in it")
        with pytest.raises(cu.InvalidContextError, match="or a thread returns some just now"):
            device.reset_primary_context()
    finally:
        sim.clear_faults()
        trimming.join()
    device.reset_primary_context()


@pytest.mark.threads
def test_a_reset_is_refused_while_a_copy_is_issued_there(cu, sim, two_devices) -> None:
    device, calls = two_devices[1], sim.call_count("cuMemcpyHtoDAsync_v2")
    with device.primary_context() as context:
        stream, there, source = cu.Stream(), cu.device_zeros(4096), cu.pinned_zeros(4096)
        sim.hold_call("cuMemcpyHtoDAsync_v2", 1)
        issuing = threading.Thread(target=cu.copy_async, args=(there, source, stream))
        issuing.start()
        wait_for(lambda: sim.call_count("cuMemcpyHtoDAsync_v2") > calls, "the thread is in it")
    try:
        with pytest.raises(cu.InvalidContextError, match=r"cannot reset .*: a call is running in"):
            device.reset_primary_context()
    finally:
        sim.clear_faults()
        issuing.join()
    stream.synchronize()
    assert not context.closed


def test_a_reset_returns_free_memory_first(cu, driver: Driver, two_devices) -> None:
    """What the pool and the copy engine keep for later is registered in primary contexts."""
    cu.trim_host_memory()
    kept = cu.host_memory_stats().pooled_bytes  # beside blocks that failed copies gave up
    device = two_devices[1]
    with device.primary_context() as context:
        keep = [cu.pinned_empty(n) for n in (100, 9 << 20)]
        there, plain = cu.to_device(np.ones(4 << 20, np.uint8)), np.zeros(4 << 20, np.uint8)
        cu.copy(plain, there)
        assert plain.all()
    del keep, there
    assert cu.host_memory_stats().pooled_bytes > kept
    device.reset_primary_context()
    assert cu.host_memory_stats().pooled_bytes == kept
    assert not driver.primary_state(1)[1]
    assert context.closed


def test_popping_what_was_reset_leaves_its_successor(cu, two_devices) -> None:
    """The driver may give the successor the same handle."""
    device = two_devices[1]
    before = device.primary_context()
    device.reset_primary_context()
    after = device.primary_context()
    after.push()
    with pytest.raises(cu.InvalidContextError, match="cannot pop"):
        before.pop()
    assert cu.current_context() is after
    after.pop()
    after.close()


def test_reset_of_the_context_that_is_used_by_default() -> None:
    program = """
        import numpy as np, cudriver as cu
        array, pinned = cu.to_device(np.arange(4)), cu.pinned_full(100, 3)
        old = cu.current_context()
        del array, pinned
        cu.Device(0).reset_primary_context()
        print(cu.current_context(), old.closed)
        print(cu.to_device(np.arange(4)).to_numpy(), cu.current_context() is old)
        cu.copy(cu.device_empty(100), cu.pinned_full(100, 3.0))
    """
    assert output(program).splitlines() == ["None True", "[0 1 2 3] False"]


def test_reset_while_it_is_on_a_stack(cu, two_devices) -> None:
    device = two_devices[1]
    with device.primary_context() as context:
        with pytest.raises(cu.InvalidContextError, match=r"cannot reset .*: it is on the stack of"):
            device.reset_primary_context()
        assert cu.current_context() is context
        assert cu.memory_info().free > 0
    device.reset_primary_context()


def test_what_is_listed_can_be_popped_whatever_was_reset(cu, two_devices) -> None:
    """Random pushes and resets: the stack that is listed can be popped, from its top down."""
    device = two_devices[1]

    def play(rng: random.Random) -> None:
        manual = cu.Context(1)
        steps: list[Callable[[], Any]] = [
            lambda: device.primary_context().push(),
            manual.push,
            device.reset_primary_context,
            device.primary_context,
            lambda: cu.memory_info().free,
        ]
        for _ in range(10):
            with contextlib.suppress(cu.InvalidContextError):  # it was reset, and is current
                rng.choice(steps)()
        while stack := cu.context_stack():
            stack[-1].pop()
            assert len(cu.context_stack()) == len(stack) - 1
        assert cu.device_zeros(3, device=device).to_numpy().tolist() == [0, 0, 0]
        manual.close()

    for seed in range(5 * FEW):
        in_thread(functools.partial(play, random.Random(seed)))
    device.reset_primary_context()


def test_what_another_library_destroyed_is_in_the_way(cu, driver: Driver) -> None:
    def body() -> None:
        ours = cu.Context()
        ours.push()
        handle = driver.create()
        in_thread(functools.partial(driver.destroy, handle))
        with pytest.raises(cu.InvalidContextError, match="that was destroyed"):
            ours.pop()
        assert driver.pop() == handle
        ours.pop()
        ours.close()

    in_thread(body)


#: Calls in contexts of the device, which another thread makes during a reset.
DURING: dict[str, Callable[[Any], Any]] = {
    "synchronize": lambda w: w.stream.synchronize(),
    "done": lambda w: w.stream.done,
    "event.done": lambda w: w.start.done,
    "elapsed": lambda w: w.start.elapsed_time(w.end),
    "record": lambda w: w.start.record(w.stream),
    "wait": lambda w: w.stream.wait(w.start),
    "copy": lambda w: w.cu.copy(w.array, np.zeros(16)),
    "copy_async": lambda w: w.cu.copy_async(w.array, np.zeros(16), w.stream),
    "fill": lambda w: w.array.fill(1),
    "memory_info": lambda w: w.context.memory_info(),
    "primary": lambda w: w.cu.Device(1).primary_context(),
    "allocate": lambda w: w.cu.device_empty(5, device=1),
    "reset": lambda w: w.cu.Device(1).reset_primary_context(),
}


@pytest.mark.threads
def test_calls_during_a_reset_are_refused(cu, sim, driver: Driver, two_devices) -> None:
    """What a call has checked holds: no other thread closes its handles while it waits. The reset
    waits for another library's Python code."""
    over, begun, failures = threading.Event(), threading.Event(), []
    world, theirs = SimpleNamespace(cu=cu), ctypes.c_void_p()
    with cu.Context(1) as world.context:
        world.start, world.end = cu.Event(timing=True), cu.Event(timing=True)
        world.stream, world.array = cu.Stream(), cu.device_zeros(16)
        for event in (world.start, world.end):
            event.record(world.stream)
        world.stream.synchronize()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def wait(_: object) -> None:
        begun.set()
        over.wait(60)

    assert driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(theirs), 1) == 0
    with two_devices[1].primary_context():
        assert driver.call("cuStreamCreateWithPriority", ctypes.byref(theirs), 1, 0) == 0
        assert driver.call("cuLaunchHostFunc", theirs, wait, None) == 0

    def reset() -> None:
        try:
            two_devices[1].reset_primary_context()
        except BaseException as error:
            failures.append(error)

    resets = sim.call_count("cuDevicePrimaryCtxReset_v2")
    thread = threading.Thread(target=reset)
    thread.start()
    begun.wait(60)
    while thread.is_alive() and sim.call_count("cuDevicePrimaryCtxReset_v2") == resets:
        time.sleep(0.001)
    for name, call in DURING.items():
        told = "a thread is resetting the primary context of device 1"
        with pytest.raises(cu.InvalidContextError, match=told):
            print(name, call(world))
    assert cu.device_zeros(3, device=0).to_numpy().tolist() == [0, 0, 0]
    assert thread.is_alive()
    over.set()
    thread.join()
    assert failures == []
    assert driver.call("cuDevicePrimaryCtxRelease_v2", 1) == 0
    for name in ("start", "end", "stream", "array", "context"):
        getattr(world, name).close()


@pytest.mark.threads
def test_a_primary_context_retained_beside_a_reset_is_retained_anew(cu, sim, two_devices) -> None:
    """The driver may have retained it before: then all in it is gone."""
    made: list[Any] = []
    retains, calls = sim.live("primary_retains"), sim.call_count("cuDevicePrimaryCtxRetain")
    sim.hold_call("cuDevicePrimaryCtxRetain", 1)
    thread = threading.Thread(target=lambda: made.append(two_devices[1].primary_context()))
    thread.start()
    wait_for(lambda: sim.call_count("cuDevicePrimaryCtxRetain") > calls, "the thread is in it")
    try:
        two_devices[1].reset_primary_context()
    finally:
        sim.clear_faults()
        thread.join()
    assert sim.call_count("cuDevicePrimaryCtxRetain") == calls + 2
    assert sim.live("primary_retains") == retains + 1
    made[0].synchronize()
    made[0].close()


@pytest.mark.parametrize("again", [False, True])
def test_a_reset_by_others_is_told_by_every_call(again: bool, two_devices) -> None:
    """The driver gives the handle out again, for another context: the old one's handles in it are
    nobody's, or others'."""
    program = f"""
        import ctypes, numpy as np, cudriver as cu
        driver, handle = ctypes.CDLL(cu.driver_path()), ctypes.c_void_p()
        array, stream, event = cu.device_zeros(8), cu.Stream(), cu.Event(timing=True)
        cu.copy(array, cu.pinned_zeros(8)), event.record(stream)
        far = cu.Stream(device=1)
        other = cu.device_zeros(3, device=1)
        context = array.context
        assert driver.cuDevicePrimaryCtxReset_v2(0) == 0
        if {again}:
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(handle), 0) == 0
            assert handle.value == context.handle
        calls = [
            array.to_numpy, lambda: array.fill(1), lambda: cu.copy(array, np.zeros(8)),
            lambda: cu.copy_async(array, np.zeros(8), stream), stream.synchronize,
            lambda: stream.done, lambda: event.done, lambda: event.record(stream),
            lambda: stream.wait(event), lambda: far.wait(event), lambda: event.wait(far),
            lambda: far.wait(stream), context.synchronize, context.memory_info, context.push,
            cu.Device(0).primary_context, lambda: cu.device_empty(3), cu.memory_info,
            cu.Stream, lambda: cu.pinned_empty(9 << 20), lambda: cu.Event(device=0),
        ]
        for i, call in enumerate(calls * 2):
            try:
                print(i, call())
            except cu.InvalidContextError as error:
                assert "was reset by other code in this process" in str(error), (i, error)
        assert context.closed
        print(other.to_numpy())
        array.close(), stream.close(), event.close()
    """
    assert output(program) == "[0. 0. 0.]\n"


def test_a_reset_that_fails_says_so(cu, sim, two_devices) -> None:
    device = two_devices[1]
    context = device.primary_context()
    sim.fail_next("cuDevicePrimaryCtxReset_v2", 999)
    with pytest.raises(cu.CudaError, match="cuDevicePrimaryCtxReset_v2"):
        device.reset_primary_context()
    assert context.closed
    assert cu.device_zeros(3, device=device).to_numpy().tolist() == [0, 0, 0]
    device.reset_primary_context()


def test_threads_that_used_it_by_default_go_on_after_a_reset() -> None:
    program = """
        import threading, cudriver as cu
        ready, go, said = threading.Event(), threading.Event(), []
        def body():
            cu.memory_info(); ready.set(); go.wait()
            said.append(float(cu.device_zeros(4).to_numpy().sum()))
        thread = threading.Thread(target=body); thread.start(); ready.wait()
        cu.Device(0).reset_primary_context()
        go.set(); thread.join()
        print(said)
    """
    assert output(program) == "[0.0]\n"


def test_popping_what_was_not_pushed_here_says_so(cu) -> None:
    context = cu.Context()
    with pytest.raises(cu.InvalidContextError, match="was not pushed here"), context:
        context.pop()
    context.push()
    with cu.Context() as inner, pytest.raises(cu.InvalidContextError, match=r"pop that first"):
        context.pop()
    inner.close()
    context.pop()
    context.close()

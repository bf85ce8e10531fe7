"""pin_async() and pinned_empty_async(): page-locking beside the program's own work."""

from __future__ import annotations

import asyncio
import copy
import gc
import mmap
import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from conftest import DRIVER
from cudriver import typing
from cudriver.memory import pinning as implementation
from forking import let_threads_rest
from parallel import in_thread
from program import output, run

REGISTER = "cuMemHostRegister_v2"
STEP = 1 << 16
STEPS = 8

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.threads]


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudriver.memory.pieces.STEP", STEP)


@pytest.fixture
def array() -> np.ndarray:
    return np.arange(STEPS * STEP // 8)


class Held:
    """Holds the nth registration from now on, until it is let go."""

    def __init__(self, sim: Any, nth: int) -> None:
        self.sim, self.until = sim, sim.call_count(REGISTER) + nth
        sim.hold_call(REGISTER, nth)

    def reached(self) -> None:
        deadline = time.monotonic() + 60
        while self.sim.call_count(REGISTER) < self.until:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def go(self) -> None:
        self.sim.clear_faults()


@pytest.fixture
def hold(cu, sim) -> Iterator[Callable[[int], Held]]:
    cu.memory_info()
    cu.pinned_empty(1)  # its registration is not the one to be held
    yield lambda nth: Held(sim, nth)
    sim.clear_faults()


def start(cu: Any, kind: str, array: np.ndarray) -> Any:
    if kind == "pin_async":
        return cu.pin_async(array)
    pinning = cu.pinned_empty_async(array.shape, array.dtype)
    pinning.array[...] = array
    return pinning


def rest() -> None:
    """Until the threads that page-lock have ended, and let go of everything."""
    for thread in threading.enumerate():
        if thread.name == "cudriver-pin":
            thread.join()


KINDS = pytest.mark.parametrize("kind", ["pin_async", "pinned_empty_async"])


# ---- the result ----------------------------------------------------------------------------------


def test_an_array_is_locked_in_the_end_and_unlocked_with_the_pinning(cu, array) -> None:
    with cu.pin_async(array) as pinning:
        pinning.wait()
        assert (pinning.done, pinning.progress, pinning.closed) == (True, 1.0, False)
        assert pinning.array is array
        assert pinning.nbytes == array.nbytes
        assert cu.is_pinned(array)
        assert repr(pinning) == f"<Pinning of {array.nbytes} bytes, 100%>"
    assert (pinning.progress, pinning.closed) == (0.0, True)
    assert pinning.array is array
    assert not cu.is_pinned(array)
    assert repr(pinning) == f"<Pinning of {array.nbytes} bytes, closed>"
    for late in (pinning.wait, pinning.__enter__, lambda one=pinning: one.done):
        with pytest.raises(ValueError, match="closed"):
            late()
    pinning.close()
    pinning = cu.pin_async(array)
    pinning.wait()
    del pinning
    assert not cu.is_pinned(array)


def test_dropped_between_the_end_of_the_work_and_that_of_its_thread(
    cu, array, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, gate = implementation._Work.run, threading.Event()

    def run(work: Any) -> None:
        usual(work)
        assert gate.wait(60)

    monkeypatch.setattr(implementation._Work, "run", run)
    pinning = cu.pin_async(array)
    pinning.wait()
    del pinning
    locked = cu.is_pinned(array)
    gate.set()
    rest()
    assert not locked


def test_new_memory_stays_locked_as_long_as_a_view_of_it_lives(cu) -> None:
    before = cu.host_memory_stats().pinned_bytes
    pinning = cu.pinned_empty_async((3, STEP), "f4", "F")
    array = pinning.array
    assert (array.shape, array.dtype, array.flags.f_contiguous) == ((3, STEP), np.float32, True)
    assert not array.any()
    pinning.wait()
    assert cu.is_pinned(array)
    assert cu.host_memory_stats().pinned_bytes == before + array.nbytes
    del pinning
    view = array[1:]
    del array
    assert cu.is_pinned(view)
    del view
    assert cu.host_memory_stats().pinned_bytes == before


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((), "f8"), (0, "u1"), (5, "u1"), ((2, 0, 3), "c16"), ([4, 5], "V3"), (9, "S"), (9, "U")],
)
def test_shapes_are_those_of_pinned_empty(cu, shape: Any, dtype: str) -> None:
    with cu.pinned_empty_async(shape, dtype) as pinning:
        pinning.wait()
        like = cu.pinned_empty(shape, dtype)
        assert (pinning.array.shape, pinning.array.dtype) == (like.shape, like.dtype)
        assert pinning.progress == 1.0


@pytest.mark.parametrize("order", ["C", "F", "c", "f", None])
def test_orders_are_those_of_pinned_empty(cu, order: Any) -> None:
    with cu.pinned_empty_async((2, 3), order=order) as pinning:
        assert pinning.array.strides == cu.pinned_empty((2, 3), order=order).strides


@KINDS
def test_it_can_be_awaited(cu, array, kind: str) -> None:
    async def main() -> None:
        with start(cu, kind, array) as pinning:
            await pinning
            assert pinning.done
            assert cu.is_pinned(pinning.array)

    asyncio.run(main())


def test_objects_with_a_buffer_are_taken_too(cu) -> None:
    with mmap.mmap(-1, 3 * STEP) as memory:
        pinning = cu.pin_async(memory)
        pinning.wait()
        assert cu.is_pinned(memory)
        pinning.close()
    with cu.pin_async(bytes(9000)) as pinning:
        pinning.wait()
        assert cu.is_pinned(pinning.array)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_cannot_be_copied(cu, array, duplicate: Callable[[Any], Any]) -> None:
    """The copy would unlock the memory behind its back."""
    with cu.pin_async(array) as pinning:
        pinning.wait()
        with pytest.raises(TypeError, match=r"cannot pickle 'cudriver\.typing\.Pinning' object"):
            duplicate(pinning)
        assert cu.is_pinned(array)


def test_it_is_registered_on_the_device_in_use(cu, two_devices, array) -> None:
    device = two_devices[1]
    with device.primary_context():
        pinning = cu.pin_async(array)
    pinning.wait()
    with pytest.raises(cu.InvalidContextError, match="page-locked memory"):
        device.reset_primary_context()
    pinning.close()
    device.reset_primary_context()


def test_what_is_alive_is_told_with_the_users_line(cu, array) -> None:
    cu.trace_allocations()
    try:
        with cu.pin_async(array) as pinning:
            pinning.wait()
            last = cu.live_allocations()[-1]
            assert (last.kind, last.nbytes) == ("pin", array.nbytes)
            assert last.where.startswith(__file__)
    finally:
        cu.trace_allocations(False)


# ---- in the middle -------------------------------------------------------------------------------


@KINDS
def test_what_is_locked_goes_directly_and_the_rest_is_staged(cu, array, hold, kind: str) -> None:
    held = hold(4)
    pinning = start(cu, kind, array)
    held.reached()
    assert not pinning.done
    assert pinning.progress == 3 / STEPS
    memory, there = pinning.array, cu.device_empty(array.size, array.dtype)
    locked = 3 * STEP // array.itemsize
    assert cu.is_pinned(memory[:locked])
    assert not cu.is_pinned(memory[: locked + 1])
    paths = [cu.explain_copy(there[part], memory[part]) for part in
             (slice(locked), slice(locked, None), slice(100, 200), slice(None))]  # fmt: skip
    assert [plan.page_locked for plan in paths] == [True, False, True, False]
    # No kernel may use what is unlocked again where the rest fails.
    assert not cu.explain_copy([there[:99]], [memory[:99]]).page_locked
    stream = cu.Stream()
    for begin, end in ((0, locked), (locked - 5, locked + 5), (5, None), (locked, None)):
        part = slice(begin, end)
        there.fill(0)
        cu.copy(there[part], memory[part])
        assert np.array_equal(there[part].to_numpy(), array[part])
        there.fill(7)
        cu.copy_async(there[part], memory[part], stream).wait()
        assert np.array_equal(there[part].to_numpy(), array[part])
        there.fill(9)
        cu.copy_async(memory[part], there[part], stream).wait()
        assert (memory[part] == 9).all()
        memory[part] = np.arange(array.size)[part]
    held.go()
    pinning.wait()
    assert np.array_equal(memory, np.arange(array.size))
    pinning.close()


def test_memory_may_be_written_while_it_is_touched(cu) -> None:
    """The threads that touch new memory change nothing."""
    pinning = cu.pinned_empty_async(64 << 20, np.uint8)
    array = pinning.array
    for value in (1, 2, 3):
        array[::4096] = value
        assert (array[::4096] == value).all()
    pinning.wait()
    assert (array[::4096] == 3).all()
    assert array.sum(dtype=np.int64) == 3 * len(array[::4096])
    pinning.close()


@KINDS
@pytest.mark.parametrize("how", ["close", "drop", "thread"])
def test_closing_in_the_middle_leaves_nothing_locked(cu, array, hold, kind: str, how: str) -> None:
    before = cu.host_memory_stats()
    held = hold(3)
    pinning = start(cu, kind, array)
    held.reached()
    memory = pinning.array
    closing = threading.Timer(0.02, held.go)  # close() waits for the piece under way
    closing.start()
    if how == "close":
        pinning.close()
    elif how == "thread":
        in_thread(pinning.close)
    elif kind == "pinned_empty_async":
        del memory, pinning
    else:
        del pinning
    closing.join()
    rest()
    assert not implementation._running
    stats = cu.host_memory_stats()
    assert (stats.pins, stats.pinned_bytes) == (before.pins, before.pinned_bytes)
    if how != "drop":
        with pytest.raises(ValueError, match="closed"):
            pinning.wait()
        assert np.array_equal(memory, array)
        assert not cu.is_pinned(memory[:1])


def test_whoever_waits_is_told_of_a_close(cu, array, hold) -> None:
    held = hold(2)
    pinning = cu.pin_async(array)
    held.reached()
    said: list[str] = []

    def wait() -> None:
        try:
            pinning.wait()
        except ValueError as error:
            said.append(str(error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    pinning._owner.pin.stop()  # as close() begins
    held.go()
    waiter.join()
    pinning.close()
    assert said == ["this Pinning is closed"]


def test_a_pin_of_memory_that_is_being_locked_waits_and_shares_it(cu, array, hold) -> None:
    held = hold(2)
    pinning = cu.pin_async(array)
    held.reached()
    inner = cu.pin_async(array[100:200])
    threading.Timer(0.02, held.go).start()
    with cu.pin(array):
        pinning.wait()
        inner.wait()
        assert cu.host_memory_stats().pinned_bytes == array.nbytes
        pinning.close()
        assert cu.is_pinned(array)
    assert cu.is_pinned(array[100:200])  # the whole: one registration for both
    inner.close()
    assert not cu.is_pinned(array)


def test_one_that_waits_for_another_can_be_closed(cu, array, hold) -> None:
    held = hold(2)
    pinning = cu.pin_async(array)
    held.reached()
    other = cu.pin_async(array)
    other.close()
    assert not pinning.done
    held.go()
    pinning.wait()
    pinning.close()


@pytest.mark.parametrize("part", [slice(None, 5000), slice(5000, None)])
def test_memory_that_shares_a_part_with_a_pin_is_refused(cu, array, part: slice) -> None:
    with cu.pin(array[part]):
        with cu.pin_async(array) as pinning:
            with pytest.raises(ValueError, match="another pin holds"):
                pinning.wait()
            with pytest.raises(ValueError, match="another pin holds"):
                _ = pinning.done
            assert pinning.progress == 0.0
        assert cu.is_pinned(array[part])
    with cu.pin_async(array) as pinning:
        pinning.wait()


def test_ctrl_c_ends_the_wait_and_not_the_locking(cu, array, hold) -> None:
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    held = hold(2)
    pinning = cu.pin_async(array)
    held.reached()
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))

    def wait() -> None:
        timer.start()
        pinning.wait()

    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        timer.join()
        signal.signal(signal.SIGINT, previous)
    held.go()
    pinning.wait()
    assert cu.is_pinned(array)
    pinning.close()


def test_a_reset_in_the_middle_is_refused(cu, two_devices, array, hold) -> None:
    device = two_devices[1]
    with device.primary_context():
        cu.memory_info()
        held = hold(2)
        pinning = cu.pin_async(array)
    held.reached()
    with pytest.raises(cu.InvalidContextError, match="cannot reset"):
        device.reset_primary_context()
    held.go()
    pinning.wait()
    assert cu.is_pinned(array)
    pinning.close()
    device.reset_primary_context()


def test_a_reset_by_another_library_in_the_middle(cu, sim, two_devices, array, hold) -> None:
    import ctypes

    library = ctypes.CDLL(cu.driver_path())
    device = two_devices[1]
    with device.primary_context():
        held = hold(4)
        before = sim.live("registrations")
        pinning = cu.pin_async(array)
    held.reached()
    library.cuDevicePrimaryCtxReset_v2(1)
    held.go()
    with pytest.raises(cu.CudaError):
        pinning.wait()
    pinning.close()
    assert sim.live("registrations") <= before
    assert np.array_equal(array, np.arange(array.size))
    device.primary_context().close()


# ---- refusals ------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("nth", [1, 2, STEPS])
@pytest.mark.parametrize("code", [2, 719])
def test_a_registration_that_fails(cu, sim, array, hold, kind: str, nth: int, code: int) -> None:
    before = sim.live("registrations")
    hold(10**6)  # the pool has its memory
    sim.clear_faults()
    sim.fail(f"{REGISTER}:{nth}:{code}")
    if code == 2:
        sim.fail(f"{REGISTER}:{nth + 1}:{code}")  # the second try, without the pool's free memory
    pinning = start(cu, kind, array)
    wanted = cu.OutOfMemoryError if code == 2 else cu.CudaError
    for _ in range(2):
        with pytest.raises(wanted, match=f"cuMemHostRegister_v2.*{array.nbytes} bytes"):
            pinning.wait()
    assert pinning.progress == 0.0
    assert not cu.is_pinned(pinning.array[:1])
    assert np.array_equal(pinning.array, array)
    assert sim.live("registrations") <= before
    pinning.close()


def test_an_error_that_was_raised_keeps_no_array(cu, sim, array) -> None:
    """Large memory of which the driver refused some must not wait for the garbage collector."""
    cu.memory_info()
    sim.fail(f"{REGISTER}:*:719")
    pinning = cu.pinned_empty_async(array.shape, array.dtype)
    gone = weakref.ref(pinning)
    try:
        pinning.wait()
    except cu.CudaError as error:
        assert error.code == 719
    gc.disable()
    try:
        del pinning
        assert gone() is None
    finally:
        gc.enable()


def test_beyond_the_limit_of_locked_memory(cu, sim, array) -> None:
    """The message names RLIMIT_MEMLOCK, as pin()'s does."""
    sim.fail(f"{REGISTER}:*:2")
    with pytest.raises(cu.OutOfMemoryError) as refused:
        cu.pin(array)
    pinning = cu.pin_async(array)
    with pytest.raises(cu.OutOfMemoryError) as late:
        pinning.wait()
    assert str(late.value) == str(refused.value)
    pinning.close()


def test_more_than_the_machine_has(cu) -> None:
    with pytest.raises(cu.OutOfMemoryError, match="leave"):
        cu.pinned_empty_async(1 << 46, np.uint8)
    with pytest.raises(cu.OutOfMemoryError, match="bytes"):
        cu.pinned_empty_async(1 << 70, np.uint8)
    cu.set_host_memory_limit(1 << 20)
    try:
        with pytest.raises(cu.OutOfMemoryError, match=r"set_host_memory_limit\(1048576\)"):
            cu.pinned_empty_async(2 << 20, np.uint8)
    finally:
        cu.set_host_memory_limit(None)


def test_pins_count_towards_the_limit_and_are_not_limited(cu) -> None:
    before = cu.host_memory_stats()
    held = before.registered_bytes + before.pinned_bytes
    cu.set_host_memory_limit(held + (2 << 20))
    try:
        refused = pytest.raises(cu.OutOfMemoryError, match="page-locked already, under")
        with cu.pin(np.zeros(3 << 20, np.uint8)), refused:
            cu.pinned_empty_async(1 << 20, np.uint8)
        cu.pinned_empty_async(1 << 20, np.uint8).wait()
    finally:
        cu.set_host_memory_limit(None)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((-1,), ValueError, "at least 0"),
        (("a",), TypeError, "shape"),
        ((1.5,), TypeError, "shape"),
        (((2, None),), TypeError, "shape"),
        ((True,), TypeError, "shape"),
        (((2, True),), TypeError, "shape"),
        (({2: 3},), TypeError, "shape"),
        (({2},), TypeError, "shape"),
        ((3, "O"), TypeError, "objects"),
        ((3, "nonsense"), TypeError, "nonsense"),
        ((3, "f4", "X"), ValueError, "order"),
    ],
)
def test_bad_arguments(cu, arguments: tuple[Any, ...], error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        cu.pinned_empty_async(*arguments)
    with pytest.raises(error):
        cu.pinned_empty(*arguments)


@pytest.mark.parametrize("what", [5, None, "text", [1, 2]])
def test_only_host_memory_is_taken(cu, what: Any) -> None:
    with pytest.raises(TypeError, match="only an array in host memory"):
        cu.pin_async(what)
    with pytest.raises(TypeError):
        cu.pin_async(np.array([object()]))
    with pytest.raises(TypeError, match="pin_async"):
        typing.Pinning()


def test_memory_that_is_not_there_is_refused_at_once(cu) -> None:
    far = np.lib.stride_tricks.as_strided(np.zeros(1), (2,), (1 << 45,))
    with pytest.raises(ValueError, match="no memory"):
        cu.pin_async(far)


def test_read_only_arrays(cu) -> None:
    with mmap.mmap(-1, 3 * STEP, prot=mmap.PROT_READ) as memory:
        array = np.frombuffer(memory, np.uint8)
        with cu.pin_async(array) as pinning:
            pinning.wait()
            assert cu.is_pinned(array)
        del array, pinning
        gc.collect()


def test_the_array_lives_as_long_as_it_is_being_locked(cu, hold) -> None:
    held = hold(2)
    pinning = cu.pin_async(np.ones(STEPS * STEP, np.uint8))
    held.reached()
    gc.collect()
    held.go()
    pinning.wait()
    assert cu.is_pinned(pinning.array)
    pinning.close()


def test_without_threads_it_is_done_at_once(cu, array, monkeypatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with cu.pin_async(array) as pinning:
        assert pinning.done
        pinning.wait()
        assert cu.is_pinned(array)


def test_ctrl_c_while_the_thread_starts(cu, array, monkeypatch) -> None:
    begin, begun = threading.Thread.start, []

    def interrupted(self: threading.Thread, late: bool) -> None:
        begun.append(self)
        if not late:
            begin(self)
            self.join()
        raise KeyboardInterrupt

    for late in (False, True):
        monkeypatch.setattr(
            threading.Thread, "start", lambda thread, late=late: interrupted(thread, late)
        )
        with pytest.raises(KeyboardInterrupt):
            cu.pin_async(array)
    assert implementation._running == {}
    begin(begun[1])
    begun[1].join()
    begun.clear()
    assert not cu.is_pinned(array)


# ---- the process ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_in_the_middle(cu, array, hold) -> None:
    held = hold(3)
    pinning = cu.pin_async(array)
    held.reached()
    let_threads_rest()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert np.array_equal(array, np.arange(array.size))
            for call in (pinning.wait, lambda: pinning.done, lambda: cu.pin_async(array)):
                try:
                    call()
                except cu.ForkedProcessError:
                    continue
                os._exit(2)
            pinning.close()
            assert pinning.closed
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    held.go()
    pinning.wait()
    assert cu.is_pinned(array)
    pinning.close()


BEGUN = """
    import ctypes, time, numpy as np, cudriver as cu
    from cudriver.memory import pieces, pinning
    pieces.STEP = 4096
    cu.pinned_empty(1)
    sim = ctypes.CDLL(cu.driver_path())
    sim.cudriver_sim_hold_call(b"cuMemHostRegister_v2", ctypes.c_ulonglong(5))
    locking = [cu.pin_async(np.ones(1 << 20)), cu.pinned_empty_async(1 << 20)]
    while locking[0].progress == locking[1].progress == 0:
        time.sleep(0.001)
"""


@pytest.mark.skipif(DRIVER != "sim", reason="holds a call of the simulator")
@pytest.mark.parametrize(
    "end",
    [
        "sim.cudriver_sim_clear_faults()",
        "sim.cudriver_sim_clear_faults(); del locking",
        "pinning.EXIT_PATIENCE = 0.1  # and the driver does not answer",
    ],
)
def test_the_end_of_the_process_in_the_middle(end: str) -> None:
    assert output(BEGUN + f"    {end}\n") == ""


@pytest.mark.skipif(DRIVER != "sim", reason="holds a call of the simulator")
def test_exit_statuses_in_the_middle() -> None:
    assert run(BEGUN + "    import os; os._exit(5)\n").returncode == 5
    done = run(BEGUN + "    sim.cudriver_sim_clear_faults(); raise SystemExit(6)\n")
    assert (done.returncode, done.stderr) == (6, "")


def test_nothing_is_initialised_before_the_call_returns() -> None:
    program = """
        import numpy as np, cudriver as cu
        pinning = cu.pin_async(np.ones(1000))
        pinning.wait()
        print(cu.is_pinned(pinning.array))
    """
    assert output(program) == "True\n"


def test_no_driver_is_told_at_once() -> None:
    program = """
        import numpy as np, cudriver as cu
        for call in (lambda: cu.pin_async(np.ones(10)), lambda: cu.pinned_empty_async(10)):
            try:
                call()
            except cu.DriverNotFoundError:
                print("not found")
    """
    assert output(program, CUDRIVER_LIBRARY="/nowhere/libcuda.so") == "not found\n" * 2

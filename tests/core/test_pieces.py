"""pieces=True: page-locking in registrations of whole items. The driver tells where they end."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import DRIVER
from cudriver.memory import pieces
from forking import let_threads_rest

REGISTER = "cuMemHostRegister_v2"
STEP = 1 << 14
RANGE_START, RANGE_SIZE = 11, 12  # CU_POINTER_ATTRIBUTE_RANGE_...

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "STEP", STEP)


@pytest.fixture
def lengths(cu, driver: ctypes.CDLL) -> Callable[[Any], list[int]]:
    """Bytes of each registration in an array's memory, in their order, as the driver knows them."""

    def ask(array: Any) -> list[int]:
        bounds = getattr(np.lib, "array_utils", np).byte_bounds  # NumPy 1.26 has it elsewhere
        low, high = bounds(np.asarray(array))
        found = []
        while low < high:
            start, size = ctypes.c_uint64(), ctypes.c_size_t()
            here = ctypes.c_uint64(low)
            for value, attribute in ((start, RANGE_START), (size, RANGE_SIZE)):
                assert driver.cuPointerGetAttribute(ctypes.byref(value), attribute, here) == 0
            assert start.value == low
            found.append(size.value)
            low += size.value
        assert low == high
        return found

    return ask


def whole_items(lengths: list[int], item: int) -> None:
    """Each registration but the last has as many items as fit, and one at least."""
    most = max(STEP // item, 1) * item
    assert lengths[:-1] == [most] * (len(lengths) - 1)
    assert 0 < lengths[-1] <= most
    assert len(lengths) > 1


# ---- where the pieces end ------------------------------------------------------------------------

SHAPES = {
    "items that fill a piece": ((9, STEP), "u1"),
    "many items in a piece": ((5000, 10), "i8"),
    "items that do not divide a piece": ((100, 1000), "f4"),
    "of no whole page": ((1000, 3, 7), "i2"),
    "longer than a piece": ((4, STEP + 5), "u1"),
    "one dimension": ((STEP,), "f8"),
    "records": ((5000,), "i1,f8,S3"),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_no_item_of_new_memory_lies_across_a_border(cu, lengths, kind: str) -> None:
    shape, dtype = SHAPES[kind]
    before = cu.host_memory_stats()
    for make in (cu.pinned_empty, cu.pinned_zeros):
        array = make(shape, dtype, pieces=True)
        assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, dtype, True)
        whole_items(lengths(array), array[0].nbytes)
        assert cu.is_pinned(array)
        stats = cu.host_memory_stats()
        assert stats.pinned_bytes - before.pinned_bytes == array.nbytes
        assert not array.view("u1").any()
        view = array[1:]
        del array
        assert cu.is_pinned(view)
        del view
    assert cu.host_memory_stats().pinned_bytes == before.pinned_bytes


def test_in_fortran_order_the_last_axis_is_the_outer_one(cu, lengths) -> None:
    array = cu.pinned_full((7, 11, 500), 5, "i4", "F", pieces=True)
    assert (array.flags.f_contiguous, array.min(), array.max()) == (True, 5, 5)
    whole_items(lengths(array), 7 * 11 * 4)


def test_an_axis_of_one_item_is_not_what_is_cut(cu, lengths) -> None:
    """Its stride is as long as another's: in Fortran order the last axis has the items."""
    assert lengths(cu.pinned_empty((1, 4 * STEP), "u1", "F", pieces=True)) == 4 * [STEP]
    assert lengths(cu.pinned_empty((4 * STEP, 1), "u1", pieces=True)) == 4 * [STEP]
    assert lengths(cu.pinned_empty((1, 4 * STEP), "u1", pieces=True)) == [4 * STEP]


PINNED = {
    "dense": lambda: np.ones((100, 999), "f4"),
    "transposed": lambda: np.ones((100, 999), "f4").T,
    "reversed": lambda: np.ones((100, 999), "f4")[::-1],
    "every other": lambda: np.ones((200, 999), "f4")[1::2],
    "columns": lambda: np.ones((100, 999), "f4")[:, 10:500:3],
    "reversed columns": lambda: np.ones((100, 999), "f4")[:, 500:10:-3],
    "read only": lambda: np.frombuffer(bytes(10 * STEP), "u1"),
}


@pytest.mark.parametrize("kind", PINNED)
def test_no_item_of_a_pinned_array_lies_across_a_border(cu, lengths, kind: str) -> None:
    array = PINNED[kind]()
    with cu.pin(array, pieces=True) as pin:
        assert pin.array is array
        assert cu.is_pinned(array)
        whole_items(lengths(array), max(map(abs, array.strides)))
        with cu.pin(array[1:3]):  # shares it
            pass
        there = cu.device_empty(array.shape, array.dtype)
        assert cu.explain_copy(there, array).path in ("direct", "staged")  # 2D crosses borders
        cu.copy(there, array)
        assert np.array_equal(there.to_numpy(), array)
    assert not cu.is_pinned(array)


@pytest.mark.parametrize("make", [lambda size: mmap.mmap(-1, size), bytes, bytearray])
def test_a_buffers_items_are_its_own(cu, lengths, make: Any) -> None:
    thing = make(5 * STEP + 1)
    shown = np.frombuffer(thing, "u1")
    with cu.pin(thing, pieces=True):
        whole_items(lengths(shown), 1)
    rows = memoryview(bytearray(9 * 5000)).cast("B", (9, 5000))
    with cu.pin(rows, pieces=True):
        whole_items(lengths(np.asarray(rows)), 5000)


def test_the_driver_refuses_others_a_copy_across_a_border_alone(cu, driver: ctypes.CDLL) -> None:
    """Why items are whole: what another library copies of one is served."""
    array = cu.pinned_full((6, 3 * STEP // 4), 3, "u1", pieces=True)
    there = cu.device_zeros(array.shape, "u1")
    with there.context:
        for at, row in enumerate(array):
            assert driver.cuMemcpyHtoD_v2(
                ctypes.c_uint64(there[at].pointer), ctypes.c_void_p(row.ctypes.data),
                ctypes.c_size_t(row.nbytes)) == 0  # fmt: skip
        assert driver.cuMemcpyHtoD_v2(
            ctypes.c_uint64(there.pointer), ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(2 * array[0].nbytes)) == 1  # fmt: skip
    assert (there.to_numpy() == 3).all()


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), 0, (0, 5), (5, 0)])
def test_without_an_item_there_is_nothing_to_cut(cu, shape: Any) -> None:
    for make in (cu.pinned_empty, cu.pinned_zeros):
        with pytest.raises(ValueError, match=r"pieces=True.*shape \(.*\) has none"):
            make(shape, pieces=True)
    with pytest.raises(ValueError, match=r"pieces=True.*has none"):
        cu.pin(np.zeros(shape), pieces=True)
    with pytest.raises(ValueError, match=r"pieces=True.*0 bytes has none"):
        cu.pinned_empty(3, "V0", pieces=True)


def test_items_that_share_memory_cannot_be_whole(cu) -> None:
    windows = np.lib.stride_tricks.sliding_window_view(np.zeros(100), 10)
    with pytest.raises(ValueError, match=r"strides \(8, 8\) share memory"):
        cu.pin(windows, pieces=True)


def test_other_bad_arguments_are_told_as_without_pieces(cu) -> None:
    for arguments in ((-1,), ("5",), (5, "O"), (5, "f8", "X")):
        with pytest.raises((TypeError, ValueError)) as usual:
            cu.pinned_empty(*arguments)
        with pytest.raises(usual.type):
            cu.pinned_empty(*arguments, pieces=True)
    with pytest.raises(ValueError, match="NUMA"):
        cu.pinned_empty(5, numa=60, pieces=True)


def test_a_long_item_is_one_piece_and_a_warning_says_so(cu, lengths, monkeypatch) -> None:
    monkeypatch.setattr(pieces, "LONG", 4 * STEP)
    with pytest.warns(RuntimeWarning, match=f"outermost axis has {4 * STEP} bytes") as told:
        array = cu.pinned_empty((3, 4 * STEP), "u1", pieces=True)
    assert [warning.filename for warning in told] == [__file__]
    assert lengths(array) == 3 * [4 * STEP]
    with pytest.warns(RuntimeWarning, match=f"has {4 * STEP} bytes") as told:
        cu.pin(np.zeros((2, 4 * STEP), "u1").T, pieces=True)
    assert [warning.filename for warning in told] == [__file__]


def test_the_limit_of_page_locked_memory_holds(cu) -> None:
    cu.set_host_memory_limit(cu.host_memory_stats().registered_bytes + STEP)
    try:
        with pytest.raises(cu.OutOfMemoryError, match=r"cudriver\.pinned_empty\(.*limit\("):
            cu.pinned_empty((2, STEP), "u1", pieces=True)
    finally:
        cu.set_host_memory_limit(None)
    with pytest.raises(cu.OutOfMemoryError, match="leave"):
        cu.pinned_zeros(1 << 46, "u1", pieces=True)


@pytest.mark.skipif(DRIVER == "real", reason="leaves registrations behind")
@pytest.mark.parametrize("over", ["all", "the end"])
def test_registrations_that_others_left_behind_are_no_lock(
    cu, driver: ctypes.CDLL, over: str
) -> None:
    """Somebody unmapped registered memory, and the system maps new memory there."""
    libc, size = ctypes.CDLL(None), 256 << 20
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
    cu.pinned_empty(1)
    at = libc.mmap(None, ctypes.c_size_t(size), 3, 0x22, -1, ctypes.c_long(0))
    begin = 0 if over == "all" else size - (50 << 20)
    with cu.Device(0).primary_context():
        stale = ctypes.c_void_p(at + begin)
        assert driver.cuMemHostRegister_v2(stale, ctypes.c_size_t(size - begin), 1) == 0
    libc.munmap(at, size)
    before = cu.host_memory_stats().pinned_bytes
    try:
        array = cu.pinned_empty((100, 1 << 20), np.uint8, pieces=True)
        assert not at + begin - array.nbytes < array.ctypes.data < at + size
        assert cu.host_memory_stats().pinned_bytes == before + array.nbytes
    finally:
        with cu.Device(0).primary_context():
            assert driver.cuMemHostUnregister(stale) == 0


# ---- copies --------------------------------------------------------------------------------------

SLICES = st.tuples(st.integers(-40, 40), st.integers(-40, 40), st.sampled_from([1, 1, 2, 3, -1]))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(1, 50)),
    order=st.sampled_from("CF"),
    step=st.integers(1, 3000),
    cuts=st.tuples(SLICES, SLICES, SLICES),
    rows=st.lists(st.integers(0, 39), max_size=20, unique=True),
)
def test_copies_cross_borders_as_numpy_would(cu, shape, order, step, cuts, rows) -> None:
    """Copies of every kind, of memory in pieces of some bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "STEP", step)
        array = cu.pinned_empty(shape, "i2", order, pieces=True)
        array[...] = np.arange(array.size).reshape(shape)
        there = cu.device_zeros(shape, "i2", order)
        cu.copy(there, array)
        assert np.array_equal(there.to_numpy(), array)
        part = tuple(slice(*cut) for cut in cuts)
        model, out = np.zeros_like(array), cu.pinned_zeros(shape, "i2", order, pieces=True)
        model[part] = array[part]
        cu.copy_async(out[part], there[part]).wait()
        assert np.array_equal(out, model)
        there.fill(-1)
        cu.copy(there[part], array[part])
        model[...] = -1
        model[part] = array[part]
        assert np.array_equal(there.to_numpy(), model)
        if order == "C":
            chosen = [row for row in rows if row < shape[0]]
            of = chosen[::-1]
            cu.copy_rows(there, array, chosen, of)
            model[chosen] = array[of]
            assert np.array_equal(there.to_numpy(), model)
            cu.copy_rows(out, there, of, chosen)
            expected = out.copy()
            expected[of] = model[chosen]
            assert np.array_equal(out, expected)
        cu.copy_many(list(out), [there[at] for at in range(shape[0])][::-1])
        assert np.array_equal(out, there.to_numpy()[::-1])


@pytest.mark.skipif(DRIVER == "real", reason="counts calls of the simulated driver")
def test_a_long_copy_is_cut_where_the_pieces_end(cu, sim, monkeypatch) -> None:
    """Not only once the driver has refused it."""
    monkeypatch.setattr(pieces, "STEP", 1 << 20)
    array = np.ones(3 << 20, "u1")
    with cu.pin(array, pieces=True):
        there, before = cu.device_empty(array.shape, "u1"), sim.call_count("cuMemcpyHtoD_v2")
        cu.copy(there, array)
        assert sim.call_count("cuMemcpyHtoD_v2") == before + 3


# ---- the end, and failures -----------------------------------------------------------------------


@pytest.mark.skipif(DRIVER == "real", reason="the simulated driver is made to fail")
@pytest.mark.parametrize("nth", range(1, 6))
def test_a_failure_in_the_middle_leaves_nothing(cu, sim, nth: int) -> None:
    array = np.arange(5 * STEP, dtype="u1")
    cu.memory_info()
    before, stats = sim.live("registrations"), cu.host_memory_stats()
    for call in (
        lambda: cu.pinned_empty(array.shape, "u1", pieces=True),
        lambda: cu.pin(array, pieces=True),
        lambda: cu.SharedMemory.anonymous(array.nbytes, pieces=True),
    ):
        sim.fail(f"{REGISTER}:{nth}:999")
        with pytest.raises(cu.CudaError, match=REGISTER):
            call()
        sim.clear_faults()
        assert sim.live("registrations") == before
        assert cu.host_memory_stats() == stats
    assert np.array_equal(array, np.arange(5 * STEP, dtype="u1"))
    with cu.pin(array, pieces=True):
        assert cu.is_pinned(array)


@pytest.mark.skipif(DRIVER == "real", reason="counts what is alive in the simulated driver")
def test_all_pieces_go_with_the_last_pin(cu, sim) -> None:
    cu.memory_info()
    array, before = np.zeros(5 * STEP, "u1"), sim.live("registrations")
    first, second = cu.pin(array, pieces=True), cu.pin(array[10:])
    assert sim.live("registrations") == before + 5
    first.close()
    assert sim.live("registrations") == before + 5
    second.close()
    assert sim.live("registrations") == before
    with cu.pin(array), cu.pin(array, pieces=True):  # shares what is there
        assert sim.live("registrations") == before + 1


@pytest.mark.skipif(DRIVER == "real", reason="holds calls of the simulated driver")
def test_others_use_the_driver_between_two_pieces(cu, sim) -> None:
    """A piece is registered; the next has not begun: nobody waits."""
    array, there = np.ones(5 * STEP, "u1"), cu.device_zeros(10, "u1")
    cu.pinned_empty(1)
    until = sim.call_count(REGISTER) + 3
    sim.hold_call(REGISTER, 3)
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(cu.pin(array, pieces=True)))
    thread.start()
    try:
        while sim.call_count(REGISTER) < until:
            pass
        cu.copy(there, np.full(10, 4, "u1"))
        assert cu.is_pinned(array[: 2 * STEP])
        assert not cu.is_pinned(array)
        cu.copy(there, array[2 * STEP - 5 : 2 * STEP + 5])  # half of it locked
        assert not done
    finally:
        sim.clear_faults()
        thread.join()
    assert (there.to_numpy() == 1).all()
    assert cu.is_pinned(array)
    done.pop().close()


def test_a_forked_child_has_the_bytes_and_the_parent_its_lock(cu) -> None:
    array = cu.pinned_full((5, STEP), 6, "u1", pieces=True)
    there = cu.device_empty(array.shape, "u1")
    let_threads_rest()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            array[0] = 7
            try:
                cu.copy(there, array)
            except cu.ForkedProcessError:
                status = 0 if (array[1:] == 6).all() else 2
            del array
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    cu.copy(there, array)
    assert (there.to_numpy() == 6).all()


# ---- a driver that refuses -----------------------------------------------------------------------

REFUSED = {  # what is refused, and how it is asked for
    "pinned_empty": lambda cu, shape: cu.pinned_empty(shape, "u1"),
    "pinned_zeros": lambda cu, shape: cu.pinned_zeros(shape, "u1"),
    "pinned_full": lambda cu, shape: cu.pinned_full(shape, 0, "u1"),
    "pinned_empty_like": lambda cu, shape: cu.pinned_empty_like(np.empty(shape, "u1")),
    "pinned_array": lambda cu, shape: cu.pinned_array(np.zeros(shape, "u1")),
}
simulated = pytest.mark.skipif(DRIVER == "real", reason="the simulated driver refuses")


@pytest.fixture
def short(sim) -> Any:
    """The driver makes no registration above 20 KiB; its own blocks are there already."""
    sim.set_registration_limit(20_001)
    yield sim
    sim.set_registration_limit(0)


def refusal(told: Any, nbytes: int, step: int, whole: bool = True) -> None:
    """One warning, for the line that called, says what was done and what it means for others."""
    assert [warning.filename for warning in told] == [__file__]
    said = str(told[0].message)
    assert f"refused to page-lock {nbytes} bytes at once (CUDA_ERROR_" in said
    assert f"pieces of {step} bytes" in said
    assert "Other libraries cannot copy across" in said
    assert ("no item of the outermost axis" in said) == whole


@simulated
@pytest.mark.parametrize("kind", REFUSED)
def test_new_memory_that_is_refused_at_once_is_had_in_pieces(cu, short, lengths, kind) -> None:
    with pytest.warns(RuntimeWarning) as told:
        array = REFUSED[kind](cu, (30, 1000))
    refusal(told, 30_000, 16_000)
    assert lengths(array) == [16_000, 14_000]
    there = cu.device_empty(array.shape, "u1")
    array[...] = 5
    cu.copy(there, array)
    assert (there.to_numpy() == 5).all()


@simulated
@pytest.mark.parametrize("code", [1, 2])
def test_arrays_and_regions_too(cu, sim, short, lengths, code: int) -> None:
    array = np.ones((30, 1000), "u1")
    for take in (lambda: cu.pin(array), lambda: cu.pin(array.T)):
        with pytest.warns(RuntimeWarning) as told, take():
            assert lengths(array) == [16_000, 14_000]
        refusal(told, 30_000, 16_000)
    sim.set_registration_limit(0)
    sim.fail(f"{REGISTER}:1:{code}")
    if code == 2:  # after which free memory is given back, and it is tried again
        sim.fail(f"{REGISTER}:2:2")
    with pytest.warns(RuntimeWarning, match="MEMORY" if code == 2 else "VALUE") as told:
        memory = cu.SharedMemory.anonymous(5 * STEP)
    refusal(told, 5 * STEP, STEP, whole=False)
    assert lengths(memory.buf) == 5 * [STEP]
    memory.close()


@simulated
def test_pieces_are_halved_once(cu, sim, lengths) -> None:
    sim.set_registration_limit(10_001)
    array = np.ones((30, 1000), "u1")
    with pytest.warns(RuntimeWarning) as told, cu.pin(array):
        assert lengths(array) == [8_000, 8_000, 8_000, 6_000]
    refusal(told, 30_000, 8_000)
    with pytest.warns(RuntimeWarning, match="pieces of 16000 bytes: they have 8000") as told:
        made = cu.pinned_empty((30, 1000), "u1", pieces=True)
    assert [warning.filename for warning in told] == [__file__]
    assert lengths(made) == [8_000, 8_000, 8_000, 6_000]
    before, live = cu.host_memory_stats(), sim.live("registrations")
    sim.set_registration_limit(5_001)
    for take in (lambda: cu.pin(array), lambda: cu.pin(array, pieces=True),
                 lambda: cu.pinned_empty((30, 1000), "u1"),
                 lambda: cu.pinned_zeros((30, 1000), "u1", pieces=True)):  # fmt: skip
        with pytest.raises(cu.CudaError, match=r"(INVALID_VALUE|bytes)"):
            take()
        assert (cu.host_memory_stats(), sim.live("registrations")) == (before, live)
    sim.set_registration_limit(0)
    with cu.pin(array):
        assert lengths(array) == [30_000]


@simulated
def test_items_that_are_too_long_are_cut_where_nobody_asked_for_whole_ones(cu, short, lengths):
    array = np.ones((2, 2 * STEP), "u1")
    with pytest.warns(RuntimeWarning) as told, cu.pin(array):
        assert lengths(array) == 4 * [STEP]
    refusal(told, 4 * STEP, STEP, whole=False)
    with pytest.raises(cu.CudaError, match="INVALID_VALUE"):
        cu.pin(array, pieces=True)  # an item cannot be had


@simulated
def test_one_item_is_cut_too_where_nobody_asked_for_whole_ones(cu, short, lengths) -> None:
    with pytest.warns(RuntimeWarning) as told:
        array = cu.pinned_empty((), "V30000")
    assert lengths(array) == [STEP, 30_000 - STEP]
    refusal(told, 30_000, STEP, whole=False)


@simulated
def test_no_more_is_tried_of_little_memory_or_after_another_error(cu, sim) -> None:
    calls = sim.call_count(REGISTER)
    sim.fail(f"{REGISTER}:1:1")
    with pytest.raises(cu.CudaError):
        cu.pin(np.ones(STEP, "u1"))
    assert sim.call_count(REGISTER) == calls + 1
    sim.fail(f"{REGISTER}:1:999")
    with pytest.raises(cu.CudaError):
        cu.pin(np.ones(3 * STEP, "u1"))
    assert sim.call_count(REGISTER) == calls + 2


@simulated
def test_a_limit_of_ours_is_no_reason_for_pieces(cu, sim) -> None:
    calls = sim.call_count(REGISTER)
    cu.set_host_memory_limit(cu.host_memory_stats().registered_bytes + 10)
    try:
        with pytest.raises(cu.OutOfMemoryError, match="set_host_memory_limit"):
            cu.pinned_empty(4 << 20, "u1")
    finally:
        cu.set_host_memory_limit(None)
    assert sim.call_count(REGISTER) == calls


@simulated
@pytest.mark.parametrize("nbytes", [STEP + 1, (4 << 20) + 1])
def test_nor_is_one_that_only_whole_pages_exceed(cu, sim, nbytes: int) -> None:
    cu.trim_host_memory()
    calls = sim.call_count(REGISTER)
    cu.set_host_memory_limit(cu.host_memory_stats().registered_bytes + nbytes)
    try:
        with pytest.raises(cu.OutOfMemoryError, match="set_host_memory_limit"):
            cu.pinned_empty(nbytes, "u1")
    finally:
        cu.set_host_memory_limit(None)
    assert sim.call_count(REGISTER) == calls


@simulated
def test_little_memory_is_not_mapped_to_be_refused(cu, sim, monkeypatch) -> None:
    monkeypatch.setattr("cudriver.memory.fresh.Memory", None)
    cu.trim_host_memory()
    sim.set_registration_limit(1)
    try:
        with pytest.raises(cu.CudaError, match="INVALID_VALUE"):
            cu.pinned_empty(STEP, "u1")
    finally:
        sim.set_registration_limit(0)


@simulated
@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_leaves_nothing(cu, short) -> None:
    cu.memory_info()
    before, live = cu.host_memory_stats().pins, short.live("registrations")
    array = np.ones((30, 1000), "u1")
    gone = weakref.ref(array)
    for take in (cu.pin, lambda like: cu.pinned_empty(like.shape, "u1"),
                 lambda like: cu.SharedMemory.anonymous(like.nbytes)):  # fmt: skip
        with pytest.raises(RuntimeWarning):
            take(array)
        assert (cu.host_memory_stats().pins, short.live("registrations")) == (before, live)
    del array
    assert gone() is None


@simulated
@pytest.mark.filterwarnings("error")
def test_a_region_is_unlocked_while_its_error_is_held(cu, short) -> None:
    memory = cu.SharedMemory.anonymous(30_000, pin=False)
    live = short.live("registrations")
    with pytest.raises(RuntimeWarning) as held:
        memory.pin()
    assert short.live("registrations") == live
    assert not cu.is_pinned(memory.buf)
    del held
    memory.close()


# ---- shared memory -------------------------------------------------------------------------------


def _fill(memory: Any, sender: Any) -> None:
    """In another process: page-locks the region in pieces as well."""
    from cudriver.memory import pieces

    pieces.STEP = STEP
    import cudriver as cu

    memory.pin()
    array = memory.array((5, STEP), "u1")
    there = cu.to_device(np.arange(5 * STEP).astype("u1").reshape(5, STEP))
    cu.copy(array, there)
    sender.send((cu.is_pinned(array), memory._pieces))


@pytest.mark.parametrize("named", [True, False])
def test_each_process_locks_a_region_in_pieces(cu, lengths, named: bool) -> None:
    make = cu.SharedMemory.anonymous if not named else _named
    memory = make(size=5 * STEP, pieces=True)
    try:
        assert lengths(memory.buf) == 5 * [STEP]
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_fill, args=(memory, theirs))
        process.start()
        try:
            assert ours.poll(120)
            assert ours.recv() == (True, True)
        finally:
            process.join()
        there = cu.to_device(memory.array((5, STEP), "u1"))
        assert np.array_equal(there.to_numpy().ravel(), np.arange(5 * STEP).astype("u1"))
    finally:
        if named:
            memory.unlink()
    memory.close()


def _named(size: int, pieces: bool) -> Any:
    import cudriver as cu

    return cu.SharedMemory(create=True, size=size, pieces=pieces)


def test_an_attached_region_and_one_that_is_locked_later(cu, lengths) -> None:
    memory = cu.SharedMemory(create=True, size=5 * STEP, pin=False)
    try:
        with cu.SharedMemory(memory.name, pieces=True) as other:
            assert lengths(other.buf) == 5 * [STEP]
        with cu.SharedMemory(memory.name, read_only=True, pieces=True) as other:
            assert lengths(other.buf) == 5 * [STEP]
        with cu.SharedMemory(memory.name, pin=False, pieces=True) as other:
            again = pickle.loads(pickle.dumps(other))
            again.pin()
            assert lengths(again.buf) == 5 * [STEP]
            again.close()
        memory.pin()
        assert lengths(memory.buf) == [5 * STEP]
    finally:
        memory.unlink()
    memory.close()

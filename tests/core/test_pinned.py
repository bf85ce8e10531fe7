"""Page-locked arrays: ordinary ndarrays over memory that the driver knows."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudriver as cu
from program import output

DTYPES: list[Any] = [
    np.uint8,
    "<f2",
    ">i4",
    float,
    complex,
    bool,
    "S7",
    "U3",
    "V11",
    "M8[ms]",
    [("a", "i1"), ("b", ">f8", (2, 3))],
    np.dtype({"names": ["x"], "formats": ["f4"], "offsets": [4], "itemsize": 12}),
]


def owner_of(array: np.ndarray) -> Any:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base


@pytest.mark.parametrize(("wish", "flag"), [("0", "nh"), ("1", "hg")])
def test_the_system_is_told_of_the_wish_for_huge_pages(wish: str, flag: str) -> None:
    program = """
        import cudriver as cu
        array = cu.pinned_empty(4 << 20, "u1")
        begin = array.__array_interface__["data"][0]
        lines = open("/proc/self/smaps").read().splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{begin:x}-"))
        print(next(line for line in lines[at:] if line.startswith("VmFlags")))
    """
    assert flag in output(program, CUDRIVER_HUGEPAGES=wish).split()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), 0, 5, (3, 0, 2), (4, 5), [2, 3, 4]], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_dtype_shape_and_order_is_numpys(dtype: Any, shape: Any, order: Any) -> None:
    array = cu.pinned_empty(shape, dtype, order)
    model = np.empty(shape, dtype, order)
    assert type(array) is np.ndarray
    assert array.dtype == model.dtype
    assert array.shape == model.shape
    assert array.size == 0 or array.strides == model.strides
    assert array.flags.c_contiguous == model.flags.c_contiguous
    assert array.flags.f_contiguous == model.flags.f_contiguous
    assert array.flags.writeable
    assert array.flags.aligned
    assert not array.flags.owndata
    assert cu.is_pinned(array)
    assert not np.shares_memory(array, model)
    zeros = cu.pinned_zeros(shape, dtype, order)
    assert ctypes.string_at(zeros.ctypes.data, zeros.nbytes) == bytes(zeros.nbytes)


def test_the_default_is_float64_and_like_numpy() -> None:
    assert cu.pinned_empty(3).dtype == np.float64
    assert cu.pinned_full((2, 3), 7).dtype == np.full((2, 3), 7).dtype
    assert (cu.pinned_full((2, 3), 2.5, "f4") == np.float32(2.5)).all()
    assert (cu.pinned_full(2, 1 + 2j) == 1 + 2j).all()
    model = np.asfortranarray(np.arange(12, dtype="i2").reshape(3, 4))
    like = cu.pinned_empty_like(model)
    assert (like.shape, like.dtype, like.strides) == (model.shape, model.dtype, model.strides)
    assert cu.pinned_empty_like(model, float, "C").strides == (32, 8)
    copy = cu.pinned_array(model[:, ::2])
    assert np.array_equal(copy, model[:, ::2])
    assert cu.is_pinned(copy)
    assert np.array_equal(cu.pinned_array([[1, 2], [3, 4]], "f4"), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("size", "alignment"),
    [(1, 64), (63, 64), (4096, 4096), (4097, 64), (65536, 4096), ((1 << 20) + 1, 4096)],
)
def test_alignment(size: int, alignment: int) -> None:
    arrays = [cu.pinned_empty(size, np.uint8) for _ in range(3)]
    assert [array.ctypes.data % alignment for array in arrays] == [0, 0, 0]


def test_views_keep_the_memory_when_every_other_name_is_gone() -> None:
    array = cu.pinned_empty((100, 100), np.int32)
    array[:] = np.arange(10000).reshape(100, 100)
    owner = owner_of(array)
    address = array.ctypes.data
    view = array[50:, ::2]
    wanted = view.copy()
    cu.Device(0).primary_context().synchronize()
    cu.trim_host_memory()  # earlier tests' finished copies let go of their ends
    used = cu.host_memory_stats().used_blocks
    del array, owner
    gc.collect()
    churn = [cu.pinned_full((100, 100), 7, np.int32) for _ in range(8)]
    assert all(a.ctypes.data != address for a in churn)
    assert np.array_equal(view, wanted)
    assert cu.is_pinned(view)
    assert cu.host_memory_stats().used_blocks == used + 8
    del churn, view
    gc.collect()
    assert cu.host_memory_stats().used_blocks == used - 1


def test_memory_goes_back_to_the_pool_and_to_the_system() -> None:
    cu.trim_host_memory()
    before = cu.host_memory_stats()
    array = cu.pinned_empty(40 << 20, np.uint8)
    inside = cu.host_memory_stats()
    assert inside.used_bytes == before.used_bytes + (40 << 20)
    assert inside.registered_bytes >= before.registered_bytes + (40 << 20)
    assert inside.registered_bytes < before.registered_bytes + (43 << 20), "no powers of two"
    del array
    after = cu.host_memory_stats()
    assert after.pooled_bytes >= 40 << 20
    again = cu.pinned_empty(40 << 20, np.uint8)
    assert cu.host_memory_stats().hits == after.hits + 1
    del again
    released = cu.trim_host_memory()
    assert released >= 40 << 20
    assert cu.host_memory_stats().pooled_bytes <= before.pooled_bytes
    with pytest.raises(ValueError, match="-1"):
        cu.trim_host_memory(-1)


def test_a_limit_is_an_error_and_nothing_is_lost() -> None:
    cu.trim_host_memory()
    before = cu.host_memory_stats()
    cu.set_host_memory_limit(before.registered_bytes + (8 << 20))
    try:
        assert cu.host_memory_stats().limit_bytes == before.registered_bytes + (8 << 20)
        with pytest.raises(cu.OutOfMemoryError, match=r"67108864 bytes.*limit\(\d+\)") as caught:
            cu.pinned_empty(64 << 20, np.uint8)
        assert isinstance(caught.value, MemoryError)
        assert cu.host_memory_stats().used_bytes == before.used_bytes
    finally:
        cu.set_host_memory_limit(None)
    assert cu.pinned_empty(64 << 20, np.uint8).size == 64 << 20
    assert cu.host_memory_stats().limit_bytes is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("pinned_empty", (9 << 20, np.uint8)),
        ("pinned_zeros", (9 << 20, np.uint8)),
        ("pinned_full", (9 << 20, 1, np.uint8)),
        ("pinned_empty_like", (np.empty(9 << 20, np.uint8),)),
        ("pinned_zeros_like", (np.empty(9 << 20, np.uint8),)),
        ("pinned_array", (np.empty(9 << 20, np.uint8),)),
    ],
)
def test_an_error_names_its_call_and_no_limit_that_was_not_met(
    sim: Any, name: str, arguments: tuple[Any, ...]
) -> None:
    cu.trim_host_memory()
    cu.set_host_memory_limit(1 << 40)
    try:
        sim.fail("cuMemHostRegister_v2:*:2")
        with pytest.raises(cu.OutOfMemoryError) as caught:
            getattr(cu, name)(*arguments)
    finally:
        sim.clear_faults()
        cu.set_host_memory_limit(None)
    called = "pinned_zeros" if "zeros" in name else "pinned_empty"
    assert caught.value.function == f"cudriver.{called}"
    assert str(caught.value).startswith(f"cudriver.{called}(9437184 bytes; ")
    assert "set_host_memory_limit" not in str(caught.value)


def test_a_limit_counts_for_what_is_really_page_locked() -> None:
    """However small the array, its memory comes in larger pieces."""
    cu.trim_host_memory()
    held = cu.pinned_zeros(9 << 20, np.uint8)
    limit = cu.host_memory_stats().registered_bytes + 4096
    cu.set_host_memory_limit(limit)
    try:
        with pytest.raises(cu.OutOfMemoryError, match=rf"\(8 bytes;.*limit\({limit}\)"):
            list(map(cu.pinned_empty, [1] * (1 << 20)))
    finally:
        cu.set_host_memory_limit(None)
    del held


@pytest.mark.parametrize("mebibytes", [6, 12, 40])
def test_copies_under_a_limit_share_what_they_hold(mebibytes: int) -> None:
    """They would rather have more of it than they need, and manage where they cannot."""
    nbytes = 2 << 20
    there, here = cu.to_device(np.arange(nbytes, dtype="u1")), np.zeros(nbytes, "u1")
    cu.trim_host_memory()
    before = cu.host_memory_stats()
    cu.set_host_memory_limit(before.registered_bytes + (mebibytes << 20))
    try:
        held = []
        for _ in range(12):
            here[...] = 0
            cu.copy(here, there)
            assert (here == np.arange(nbytes, dtype="u1")).all()
            held.append(cu.host_memory_stats().used_bytes - before.used_bytes)
        assert set(held[1:]) == {held[0]}
        assert held[0] <= mebibytes << 20
    finally:
        cu.set_host_memory_limit(None)


def test_bad_arguments_are_named_before_the_driver_is_called() -> None:
    for call, error, text in [
        (lambda: cu.pinned_empty(-3), ValueError, "-3"),
        (lambda: cu.pinned_empty((2, -1)), ValueError, "-1"),
        (lambda: cu.pinned_empty("12"), TypeError, "str"),
        (lambda: cu.pinned_empty(2.5), TypeError, r"got '2\.5'"),
        (lambda: cu.pinned_empty(3, object), TypeError, "Python objects"),
        (lambda: cu.pinned_empty(3, [("a", object)]), TypeError, "Python objects"),
        (lambda: cu.pinned_empty(3, "no such type"), TypeError, "no such type"),
        (lambda: cu.pinned_empty(3, float, "X"), ValueError, "'X'"),
        (lambda: cu.pinned_empty((1 << 40, 1 << 40)), ValueError, "address space"),
        (lambda: cu.pinned_empty(np.array([[2]])), TypeError, "index"),
        (lambda: cu.pinned_full(3, (1, 2)), ValueError, "broadcast"),
        (lambda: cu.set_host_memory_limit(-1), ValueError, "or None, not -1"),
        (lambda: cu.set_host_memory_limit(1 << 70), ValueError, f"or None, not {1 << 70}"),
        (lambda: cu.set_host_memory_limit("5"), TypeError, "or None, not str"),
        (lambda: cu.trim_host_memory(-1), ValueError, "keep is a number of bytes, not -1"),
        (lambda: cu.trim_host_memory(1 << 70), ValueError, f"not {1 << 70}"),
        (lambda: cu.trim_host_memory(1.5), TypeError, "keep .* not float"),
        (lambda: cu.pinned_full(3, "word", float), ValueError, "word"),
        (lambda: cu.is_pinned(12), TypeError, "int"),
        (lambda: cu.is_pinned([1, 2]), TypeError, "list"),
    ]:
        with pytest.raises(error, match=text):
            call()


@pytest.mark.parametrize(
    "call",
    [
        ((2, 3), 7),
        ((2, 3), (1, 2, 3)),
        ((2, 3), [[1], [2]]),
        ((2, 3), [1, 2, 3], None, "F"),
        (3, 7.5, "i4", "C"),
        (2, True),
        (4, (1, 2.5, 3, 4), "f8"),
        (2, 1.5, "i4,f8"),
        ((), 3),
        ((0, 2), 3),
        (3, "word"),
        (3, np.datetime64("2026-01-01")),
    ],
)
def test_full_fills_as_numpy_does(call: tuple[Any, ...]) -> None:
    array, numpys = cu.pinned_full(*call), np.full(*call)
    assert cu.is_pinned(array)
    assert (array.dtype, array.shape) == (numpys.dtype, numpys.shape)
    assert array.tobytes() == numpys.tobytes()
    assert array.flags.f_contiguous == numpys.flags.f_contiguous


def test_lengths_and_sizes_may_be_any_integers() -> None:
    assert cu.pinned_empty(np.array([2, 3])).shape == (2, 3)
    assert cu.pinned_empty(np.array(3)).shape == (3,)
    assert cu.pinned_empty((np.int8(2), np.uint64(3))).shape == (2, 3)
    assert cu.device_empty(np.array([2, 3])).shape == (2, 3)
    cu.set_host_memory_limit(np.int64(1 << 30))
    try:
        assert cu.host_memory_stats().limit_bytes == 1 << 30
    finally:
        cu.set_host_memory_limit(None)
    assert cu.trim_host_memory(np.int32(0)) >= 0
    cu.pinned_numpy(min_bytes=np.int32(4))


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        ([300], np.uint8),
        ([-1], np.uint8),
        (np.array([300, -1]), np.uint8),
        ([2**63], "i8"),
        ([2**64], "f8"),
        ([1, None], "f8"),
        ([1.7, 2], int),
        (np.array([1.5, 2.5]), "S"),
        (["word", "longer"], None),
        (["word"], "S2"),
        ([[1, 2], [3]], None),
        ([1, "x"], float),
        (np.array([None]), None),
        (bytearray(b"abc"), None),
        (np.ma.masked_array([1, 2], [True, False]), None),
        (np.datetime64("2026-01-01"), "M8[s]"),
        ([(1, 2.5)], "i4,f8"),
    ],
    ids=str,
)
def test_an_array_has_what_asarray_makes_of_the_object(source: Any, dtype: Any) -> None:
    try:
        wanted = np.asarray(source, dtype)
    except (ValueError, OverflowError, TypeError) as error:
        with pytest.raises(type(error)) as caught:
            cu.pinned_array(source, dtype)
        assert str(caught.value) == str(error)
        return
    if wanted.dtype.hasobject:
        with pytest.raises(TypeError, match="Python objects"):
            cu.pinned_array(source, dtype)
        return
    array = cu.pinned_array(source, dtype)
    assert cu.is_pinned(array)
    assert type(array) is np.ndarray
    assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
    assert array.tobytes() == wanted.tobytes()


def test_mapped_memory_has_a_device_address() -> None:
    array = cu.pinned_empty(1000, np.float32)
    array[:] = np.arange(1000)
    address = cu.mapped_pointer(array)
    assert address > 0
    assert cu.mapped_pointer(array[10:]) == address + 40
    for view in (array[::-1], array[7:2:-2], array[:0], array.reshape(-1, 10)[::-1, ::-1]):
        assert cu.mapped_pointer(view) == address + view.ctypes.data - array.ctypes.data
    with pytest.raises(ValueError, match="not page-locked: make the array with pinned_empty"):
        cu.mapped_pointer(np.zeros(1000))


@pytest.mark.parametrize("by", ["pinned_empty", "pin", "pinned_numpy"])
def test_memory_stays_page_locked_when_the_context_that_was_current_is_closed(by: str) -> None:
    cu.trim_host_memory()
    pin = None
    with cu.Context(0) as context:
        if by == "pinned_empty":
            array = cu.pinned_empty(3 << 20, np.uint8)
        elif by == "pin":
            array = np.empty(3 << 20, np.uint8)
            pin = cu.pin(array)
        else:
            with cu.pinned_numpy(min_bytes=0):
                array = np.empty(3 << 20, np.uint8)
        array[:] = 77
    context.close()
    assert cu.is_pinned(array)
    assert cu.explain_copy(cu.device_empty(array.shape, array.dtype), array).path == "direct"
    assert (cu.to_device(array).to_numpy() == 77).all()
    if pin is not None:
        pin.close()
        assert not cu.is_pinned(array)
    del array


def test_the_pool_keeps_the_primary_context_until_it_is_trimmed() -> None:
    program = """
        import ctypes, cudriver as cu
        library = ctypes.CDLL(cu.driver_path())
        def active():
            flags, on = ctypes.c_uint(), ctypes.c_int()
            library.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(on))
            return bool(on.value)
        with cu.Context(0):
            print(active())
            array = cu.pinned_zeros(100)
        print(active(), cu.trim_host_memory(), active())
        del array
        print(cu.trim_host_memory() > 0, active())
    """
    assert output(program).splitlines() == ["False", "True 0 True", "True False"]


def test_is_pinned_needs_no_context_and_agrees_with_the_truth() -> None:
    assert not cu.is_pinned(np.zeros(10))
    assert not cu.is_pinned(b"some bytes")
    assert not cu.is_pinned(memoryview(bytearray(100)))
    array = cu.pinned_zeros(100, np.uint8)
    assert cu.is_pinned(array[10:20])
    assert cu.is_pinned(memoryview(array))
    assert cu.is_pinned(array[:0])
    assert not cu.is_pinned(array.copy())


def test_the_owner_says_what_it_is() -> None:
    owner = owner_of(cu.pinned_empty(10))
    assert owner.nbytes == 80
    assert "page-locked memory: 80 bytes" in repr(owner)


def test_is_pinned_asks_of_any_memory() -> None:
    assert not cu.is_pinned(np.array([None, 1], object))
    assert not cu.is_pinned(b"bytes")
    with cu.pinned_numpy(min_bytes=0):
        assert cu.is_pinned(np.full(4096, None, object))


@given(st.data())
def test_what_resembles_an_array_has_numpys_strides(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), max_size=5))
    model = np.zeros(shape, "i4").transpose(data.draw(st.permutations(range(len(shape)))))
    model = model[tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in shape)]
    if data.draw(st.booleans()):
        model = np.broadcast_to(model, (3, *model.shape))
    order = data.draw(st.sampled_from([*"KACFkacf", None]))
    dtype = data.draw(st.sampled_from([None, "f8", "u1"]))
    wanted = np.empty_like(model, dtype, order=order or "K")
    array = cu.pinned_array(model, dtype, order)
    zeros = cu.pinned_zeros_like(model, dtype, order)
    assert not zeros.any()
    there = cu.device_empty_like(model, dtype, order)
    assert not there[...].flags.owndata
    assert there.flags.owndata, "a transposed view could not be closed"
    for found in (cu.pinned_empty_like(model, dtype, order), zeros, there, array):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert steps(found) == steps(wanted)
    assert np.array_equal(array, model)


def steps(array: np.ndarray | cu.DeviceArray) -> list[int]:
    """The strides that lead anywhere."""
    pairs = zip(array.strides, array.shape, strict=True)
    return [step for step, size in pairs if size > 1 and array.size]


@pytest.mark.parametrize("times", range(1, 6))
def test_addresses_at_which_the_driver_knows_other_memory(sim: Any, times: int) -> None:
    """Somebody has unmapped what was registered there. Another address will do, but one cannot look
    for it for ever."""
    cu.trim_host_memory()
    size, before = 9 << 20, cu.host_memory_stats()
    registered = sim.live("registrations")
    for nth in range(1, times + 1):
        sim.fail(f"cuMemHostRegister_v2:{nth}:712")
    array = None
    try:
        array = cu.pinned_full(size, 7, np.uint8)
    except cu.CudaError as error:
        assert error.code == 712
        assert times > 3
        assert sim.live("registrations") == registered
    assert (array is None) == (times > 3)
    sim.clear_faults()
    del array
    array = cu.pinned_full(size, 8, np.uint8)
    assert (array == 8).all()
    del array
    cu.trim_host_memory()
    after = cu.host_memory_stats()
    assert after.used_bytes == before.used_bytes
    assert after.registered_bytes == before.registered_bytes


def test_the_peak_stays_when_memory_goes() -> None:
    large = cu.pinned_empty(64 << 20, np.uint8)
    peak = cu.host_memory_stats().peak_bytes
    assert peak >= cu.host_memory_stats().registered_bytes >= 64 << 20
    del large
    cu.trim_host_memory()
    small = cu.pinned_empty(9 << 20, np.uint8)
    assert cu.host_memory_stats().registered_bytes < peak
    assert cu.host_memory_stats().peak_bytes == peak
    del small

"""DeviceArray against NumPy: geometry, indexing, fills, both ends of the array interface."""

from __future__ import annotations

import ctypes
import datetime
import gc
import operator
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import cudriver as cu
import dlpackkit as kit
from conftest import named
from graphkit import busy
from program import output

PACKED = np.dtype([("a", "i1"), ("b", "<f8"), ("c", "S3"), ("d", ">u2", (2, 2))])
PADDED = np.dtype({"names": ["x", "y"], "formats": ["u1", "f4"], "offsets": [1, 8], "itemsize": 24})
DTYPES: list[Any] = [
    *np.typecodes["AllInteger"],
    *"?efd",
    "g",
    *"FD",
    "G",
    ">i4",
    ">c16",
    "S1",
    "S3",
    "S7",
    "S16",
    "U1",
    "U3",
    "V1",
    "V5",
    "V12",
    "V32",
    "<M8[ns]",
    "<m8[D]",
    PACKED,
    PADDED,
]


def alive() -> int:
    """What lives, but for the contexts that are kept on purpose."""
    return sum(row.kind != "primary context" for row in cu.live_allocations())


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = alive()
    yield
    if alive() > before:
        gc.collect()
    assert alive() <= before


def raw(array: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def random_array(shape: Any, dtype: Any, seed: int = 1) -> NDArray[Any]:
    """Any bytes at all that the dtype has a meaning for."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    bits = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, size, np.uint8)
    if dtype.kind == "U":
        bits.view(np.uint32)[...] %= 0xD800
    return bits.view(dtype).reshape(shape)


def meant(array: NDArray[Any]) -> bytes:
    """raw(), without the bytes of a long double that mean nothing."""
    if array.dtype.char not in "gG" or np.finfo(np.longdouble).nmant != 63:
        return raw(array)
    size = np.dtype("g").itemsize
    return np.frombuffer(raw(array), np.uint8).reshape(-1, size)[:, :10].tobytes()


# ---- making them -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), 0, 5, (3, 0, 2), (4, 5), [2, 3, 4]], ids=str)
def test_geometry_is_numpys(dtype: Any, shape: Any) -> None:
    array, model = cu.device_empty(shape, dtype), np.empty(shape, dtype)
    assert array.shape == model.shape
    assert array.dtype == model.dtype
    assert array.strides == model.strides or model.size == 0
    for name in ("ndim", "size", "itemsize", "nbytes"):
        assert getattr(array, name) == getattr(model, name), name
    assert raw(cu.device_zeros(shape, dtype).to_numpy()) == bytes(model.nbytes)


def test_a_dtype_with_a_shape_of_its_own_gives_dimensions_as_numpys() -> None:
    pair = np.dtype(("f4", (2, 3)))
    for made in (cu.device_zeros(5, pair), cu.pinned_zeros(5, pair), cu.device_zeros((), pair)):
        model = np.zeros(5 if made.ndim == 3 else (), pair)
        assert (made.shape, made.dtype, made.strides) == (model.shape, model.dtype, model.strides)
    array = cu.device_zeros(5, pair)
    array.fill(2)
    assert (array.to_numpy() == 2).all()


def test_items_of_no_bytes() -> None:
    for dtype in ("V0", np.dtype([])):
        model = np.zeros((2, 3), dtype)
        array = cu.to_device(model)
        assert (array.shape, array.nbytes, array.itemsize) == ((2, 3), 0, 0)
        assert array.to_numpy().shape == (2, 3)
        array.fill(model[0, 0])
    assert cu.device_empty(2, "S").dtype == np.empty(2, "S").dtype


@pytest.mark.parametrize(
    "value",
    [
        3,
        2.5,
        1 + 2j,
        True,
        [1, 2, 3],
        [[1.0, 2.0], [3.0, 4.0]],
        (),
        [[]],
        b"bytes",
        "text",
        range(7),
        np.float32(7),
        np.array(5, np.int16),
        np.arange(24).reshape(2, 3, 4),
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        np.asfortranarray(np.arange(35.0).reshape(5, 7)),
        np.arange(100)[::-7],
        np.broadcast_to(np.arange(5), (4, 5)),
        np.arange(12, dtype=">i2").reshape(3, 4),
        np.zeros((3, 0, 2), "c8"),
        memoryview(b"0123456789"),
        np.ma.array([1, 2, 3]),
        np.array(["2001-01-01"], "M8[D]"),
        np.zeros(3, PACKED),
    ],
    ids=named,
)
def test_what_asarray_takes_goes_to_the_device(value: Any) -> None:
    model = np.asarray(value)
    array = cu.to_device(value)
    assert (array.shape, array.dtype) == (model.shape, model.dtype)
    assert array.strides == np.empty_like(model, order="C", subok=False).strides or not model.size
    back = array.to_numpy()
    assert back.flags.c_contiguous
    assert raw(back) == raw(model)
    again = cu.to_device(array)
    assert again.pointer != array.pointer or array.size == 0
    assert raw(again.to_numpy()) == raw(model)


def test_a_copy_goes_to_the_device_that_is_named(two_devices: Any) -> None:
    first, second = two_devices
    model = np.arange(1000)
    for source in (model, cu.to_device(model), cu.to_device(model, device=second)):
        array = cu.to_device(source, device="cuda:1")
        assert (array.device, array.context) == (second, second.primary_context())
        assert np.array_equal(array.to_numpy(), model)
    stream = cu.Stream(device=second)
    assert cu.to_device(model, stream, device=second).device == second
    with stream:
        assert cu.to_device(model, device=second).device == second
        assert cu.to_device(model, device=first).device == first
    with cu.Context(1) as own:
        assert cu.to_device(model, device=1).context is own
        assert cu.to_device(model, device=0).context is first.primary_context()
    alive = cu.live_allocations()
    with pytest.raises(ValueError, match="stream is on device 1, the array on device 0"):
        cu.to_device(model, stream, device=first)
    with pytest.raises(ValueError, match="device 2 does not exist"):
        cu.to_device(model, device=2)
    with pytest.raises(TypeError, match="positional"):
        cu.to_device(model, stream, second)  # type: ignore[call-overload]
    assert cu.live_allocations() == alive


def test_items_come_in_the_order_of_the_stream_that_is_named() -> None:
    driver, stream = ctypes.CDLL(cu.driver_path()), cu.Stream()
    array, out = cu.device_zeros(1000, "u1"), cu.pinned_zeros(1000, "u1")
    for into in (None, out):
        array.fill(0)
        address, size = ctypes.c_uint64(array.pointer), ctypes.c_size_t(array.size)
        with ThreadPoolExecutor(1) as other, busy(driver, stream):
            assert driver.cuMemsetD8Async(address, 7, size, ctypes.c_void_p(stream.handle)) == 0
            back = other.submit(array.to_numpy, into, stream=stream)
            time.sleep(0.05)  # a copy in another order is over by now
        assert (back.result() == 7).all()
    assert back.result() is out


def test_read_only_and_unaligned_sources() -> None:
    model = np.arange(1000)
    model.flags.writeable = False
    assert np.array_equal(cu.to_device(model).to_numpy(), model)
    unaligned = np.frombuffer(bytearray(8001), np.uint8)[1:].view(np.int64)
    assert not unaligned.flags.aligned
    unaligned[:] = model
    assert np.array_equal(cu.to_device(unaligned).to_numpy(), model)


def test_what_is_no_array_is_refused() -> None:
    for value in (object(), [object()], None, {}):
        with pytest.raises(TypeError, match="Python objects"):
            cu.to_device(value)
    with pytest.raises(ValueError, match="inhomogeneous"):
        cu.to_device([[1], [2, 3]])


@pytest.mark.parametrize("make", ["device_empty", "device_zeros"])
def test_bad_arguments_are_named(make: str) -> None:
    function = getattr(cu, make)
    for arguments, keywords, error, text in [
        ((-3,), {}, ValueError, "-3"),
        (((2, -1),), {}, ValueError, "-1"),
        (("12",), {}, TypeError, "str"),
        ((2.5,), {}, TypeError, r"a sequence of ints, not 2\.5 \(float\)"),
        (((3, 1.5),), {}, TypeError, r"lengths are ints, not 1\.5 \(float\)"),
        (((3, "4"),), {}, TypeError, r"lengths are ints, not '4' \(str\)"),
        ((None,), {}, TypeError, "NoneType"),
        (((1,) * 65,), {}, ValueError, "65"),
        ((3, object), {}, TypeError, "Python objects"),
        ((3, "no such type"), {}, TypeError, "no such type"),
        (((1 << 40, 1 << 40),), {}, ValueError, rf"\({1 << 40}, {1 << 40}\).* address space"),
        ((1 << 70,), {}, ValueError, f"at most {sys.maxsize}, not {1 << 70}"),
        (((2, -1 << 70),), {}, ValueError, str(-1 << 70)),
        ((3,), {"stream": 7}, TypeError, "int"),
        ((3,), {"device": 99}, Exception, "99"),
        ((3,), {"device": "nonsense"}, Exception, "nonsense"),
        ((3, float, 0), {}, TypeError, "positional"),
    ]:
        with pytest.raises(error, match=text):
            function(*arguments, **keywords)


def test_too_much_memory_says_what_there_is() -> None:
    total = cu.memory_info().total
    with pytest.raises(cu.OutOfMemoryError, match=rf"{8 << total.bit_length()} bytes") as caught:
        cu.device_empty(1 << total.bit_length(), np.float64)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.code == 2
    assert f"of {total} ({total / 2**30:.3g} GiB) free" in str(caught.value)
    assert cu.device_zeros(1000).to_numpy().any() == np.False_


def test_a_huge_empty_shape_is_refused_as_numpy_refuses_it() -> None:
    for shape in [(1 << 40, 0, 1 << 40), (0, 1 << 62, 2)]:
        for make in (np.empty, cu.device_zeros):
            with pytest.raises(ValueError, match="too big"):
                make(shape)
    array = cu.device_zeros((1 << 40, 0, 1 << 10))
    assert (array.size, array.nbytes, array.pointer) == (0, 0, 0)
    assert array[5:7, :, 1].shape == (2, 0)
    array.fill(1)


# ---- indexing ----------------------------------------------------------------------------------

SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)


@settings(max_examples=150)
@given(data=st.data(), shape=SHAPES, dtype=st.sampled_from(["u1", "<i4", "V3", "<c16"]))
def test_any_basic_index_is_numpys(data: st.DataObject, shape: Any, dtype: str) -> None:
    model = random_array(shape, dtype)
    array = cu.to_device(model)
    base = array.pointer
    for _ in range(2):  # a view, and a view of it
        key = data.draw(hnp.basic_indices(model.shape, allow_newaxis=True, max_dims=8))
        before = model
        model = before[(*_tuple(key), ...)] if ... not in _tuple(key) else before[key]
        array = array[key]
        assert array.shape == model.shape
        if model.size:
            assert array.strides == model.strides
            offset = model.__array_interface__["data"][0] - _root(model).ctypes.data
            assert array.pointer - base == offset
        assert raw(array.to_numpy()) == raw(model)
        if model.ndim == 0:
            with pytest.raises(TypeError, match="len"):
                len(array)
        else:
            assert len(array) == len(model)


def _tuple(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _root(array: NDArray[Any]) -> NDArray[Any]:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_steps_and_bounds_beyond_every_integer() -> None:
    model = np.arange(10)
    array = cu.to_device(model)
    for key in (
        slice(None, None, 1 << 62),
        slice(None, None, -(1 << 62)),
        slice(None, None, 1 << 80),
        slice(-(1 << 80), 1 << 80),
        slice(1 << 80, None, -3),
        slice(3, 3),
        slice(7, 2),
        slice(2, 3, 5),
        np.int8(3),
        np.uint64(9),
        np.array(4),
        (),
        ...,
        (..., None),
    ):
        assert array[key].shape == model[key].shape, key
        assert np.array_equal(array[key].to_numpy(), model[key]), key


BAD = [
    10,
    -11,
    1 << 80,
    "a",
    b"a",
    1.0,
    1j,
    True,
    np.True_,
    np.float64(1),
    [0, 1],
    np.array([0, 1]),
    np.array([True] * 10),
    np.array(True),
    np.array([3]),
    {},
    object(),
    (0, 0),
    (..., ...),
    ("a",),
    (slice(None), 0),
]


@pytest.mark.parametrize("key", BAD, ids=named)
def test_a_bad_index_is_an_index_error(key: Any) -> None:
    array = cu.to_device(np.arange(10))
    with pytest.raises(IndexError):
        array[key]


def test_bad_slices_are_as_lists_have_them() -> None:
    array = cu.to_device(np.arange(10))
    with pytest.raises(ValueError, match="zero"):
        array[::0]
    with pytest.raises(TypeError):
        array["a":]  # type: ignore[misc]

    class Angry:
        def __index__(self) -> int:
            raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        array[Angry()]
    with pytest.raises(IndexError):
        cu.device_zeros(())[0]
    most = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
    deep = cu.device_zeros((1,) * (most - 4))
    with pytest.raises(IndexError, match="dimensions"):
        deep[(None,) * 5]
    assert deep[(None,) * 4].ndim == most


def test_what_an_array_does_not_do() -> None:
    array = cu.to_device(np.arange(10))
    with pytest.raises(TypeError):
        iter(array)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        3 in array  # type: ignore[operator]  # noqa: B015
    with pytest.raises(TypeError):
        array + 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        operator.index(array)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="to_numpy"):
        np.asarray(array)
    with pytest.raises(TypeError, match="to_numpy"):
        np.array([array, array])
    with pytest.raises(TypeError, match="to_numpy"):
        np.arange(10) + array  # type: ignore[operator]
    with pytest.raises(TypeError):
        type(array)()
    with pytest.raises(AttributeError):
        array.shape = (5, 2)  # type: ignore[misc]
    assert array == array
    assert hash(array) == hash(array)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("get", "; use to_numpy()"),
        ("item", "; use to_numpy().item()"),
        ("ctypes", "; use pointer"),
        ("data_ptr", "; use pointer"),
        ("set", "; use copy_from(array)"),
        ("astype", "computes nothing; use to_numpy().astype, or"),
        ("sum", "computes nothing; use to_numpy().sum, or"),
        ("nothing", "no attribute 'nothing'"),
        ("__nothing__", "no attribute '__nothing__'"),
        ("", "no attribute ''"),
    ],
)
def test_an_attribute_of_other_libraries_names_ours(name: str, ours: str) -> None:
    array = cu.device_zeros(3)
    assert not hasattr(array, name)
    assert getattr(array, name, 5) == 5
    with pytest.raises(AttributeError, match=re.escape(ours)) as caught:
        getattr(array, name)
    assert str(caught.value).startswith("'cudriver.DeviceArray' object has no attribute")
    assert (caught.value.name, caught.value.obj) == (name, array)
    if "use" in ours:
        assert hasattr(array, re.findall(r"use (\w+)", ours)[0])


def test_other_attributes_cannot_be_set() -> None:
    array = cu.device_zeros(3)
    with pytest.raises(AttributeError):
        array.get = None  # type: ignore[attr-defined]


def test_the_type_of_an_item_can_be_named_in_annotations() -> None:
    alias = cu.DeviceArray[np.float32]
    assert (get_origin(alias), get_args(alias)) == (cu.DeviceArray, (np.float32,))
    assert str(alias) == "cudriver.DeviceArray[numpy.float32]"


def test_what_it_says_of_itself() -> None:
    array = cu.device_zeros((3, 4), np.float32)
    assert repr(array) == "<DeviceArray shape=(3, 4) dtype=float32 on device 0>"
    assert repr(array[0, ::2]) == "<DeviceArray shape=(2,) dtype=float32 on device 0>"
    assert repr(cu.device_zeros((), "S3")) == "<DeviceArray shape=() dtype=|S3 on device 0>"
    array.close()
    assert repr(array) == "<DeviceArray shape=(3, 4) dtype=float32 on device 0, closed>"


# ---- fills -------------------------------------------------------------------------------------

SETS = ("D8", "D16", "D32", "D2D8", "D2D16", "D2D32")


@settings(max_examples=200)
@given(
    data=st.data(),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, max_side=7),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1 << 30),
    streamed=st.booleans(),
)
def test_a_fill_is_numpys_and_touches_nothing_else(
    data: st.DataObject, shape: Any, dtype: Any, seed: int, streamed: bool
) -> None:
    dtype = np.dtype(dtype)
    model = random_array(shape, dtype, seed)
    key = data.draw(hnp.basic_indices(model.shape, allow_newaxis=True))
    value = random_array((), dtype, seed + 1)
    if data.draw(st.booleans(), "the same byte again and again"):
        bits = bytes([seed % 2, 0, 0, 0] if dtype.kind == "U" else [seed % 2])
        value = np.frombuffer(bits * (dtype.itemsize // len(bits)), dtype).reshape(())
    base = cu.to_device(model)
    if streamed:
        stream = cu.Stream()
        base[key].fill(value, stream)
        stream.synchronize()
    else:
        base[key].fill(value)
    if dtype == PADDED:
        model[key] = value
        got = base.to_numpy()
        assert all(raw(got[name]) == raw(model[name]) for name in ("x", "y"))
    else:
        item = value.tobytes()
        flat = model.view(f"V{dtype.itemsize}") if model.ndim else model.reshape(1).view("V")
        flat.reshape(model.shape)[key] = np.frombuffer(item, f"V{dtype.itemsize}")[0]
        assert meant(base.to_numpy()) == meant(model)


@pytest.mark.parametrize(
    "key",
    [
        np.s_[:],
        np.s_[::2],
        np.s_[::-3],
        np.s_[:, 1:-1],
        np.s_[:, ::-1],
        np.s_[1::4, 5::7],
        np.s_[:, :1],
        np.s_[:1],
        np.s_[3, 4],
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "dtype", ["u1", "u2", "u4", "u8", "c16", "V3", "V6", "V12", PACKED], ids=str
)
def test_large_fills_of_views(dtype: Any, key: Any) -> None:
    dtype = np.dtype(dtype)
    model = random_array((129, 515), dtype)
    array = cu.to_device(model)
    value = random_array((), dtype, 9)
    array[key].fill(value)
    model.view(f"V{dtype.itemsize}")[key] = value.view(f"V{dtype.itemsize}")
    assert raw(array.to_numpy()) == raw(model)


class Aliased(kit.Lender):
    """Items that lie on each other, which no slice gives."""


@pytest.mark.parametrize(
    ("shape", "strides", "wanted"),
    [
        ((5,), (0,), [7, 0, 0, 0, 0, 0]),
        ((3, 2), (0, 1), [7, 7, 0, 0, 0, 0]),
        ((2, 3), (1, 1), [7, 7, 7, 7, 0, 0]),
        ((2, 3), (1, 2), [7, 7, 7, 7, 7, 7]),
        ((2, 0), (0, 1), [0, 0, 0, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("value", [7, np.array(7), [7]])
def test_fill_of_items_that_lie_on_each_other(
    shape: Any, strides: Any, wanted: Any, dtype: Any, value: Any
) -> None:
    base = cu.device_zeros(6, dtype)
    kind = (kit.COMPLEX if dtype == "c16" else kit.FLOAT, base.itemsize * 8, 1)
    lender = Aliased(base.pointer, shape, strides, dtype=kind, owner=base)
    lent = cu.from_dlpack(lender)
    lent.fill(value)
    assert base.to_numpy().tolist() == wanted
    base.fill(0)
    lent[...] = value
    assert base.to_numpy().tolist() == wanted


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize("key", [np.s_[:], np.s_[::2]])
def test_fill_at_any_address(at: int, key: Any) -> None:
    """An item of 8 bytes may lie anywhere: the driver's words may not."""
    whole = cu.device_zeros(8 * 9, "u1")
    whole[at : at + 64].view("f8")[key].fill(-1.5)
    model = np.zeros(8 * 9, "u1")
    model[at : at + 64].view("f8")[key] = -1.5
    assert whole.to_numpy().tobytes() == model.tobytes()


def test_fill_of_rows_further_apart_than_the_driver_takes() -> None:
    if cu.memory_info().free < 5 << 30:
        pytest.skip("needs 5 GiB of device memory")
    there = cu.device_empty((2, 1 << 31), np.uint8)
    ends = there[:, -4:]
    there[:, -8:].fill(1)
    ends.fill(7)
    assert np.array_equal(there[:, -8:].to_numpy(), [[1] * 4 + [7] * 4] * 2)


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize(
    ("dtype", "key"),
    [("u1", np.s_[::2, ::2, ::2]), ("c16", np.s_[:, ::3, 1:-1]), ("V12", np.s_[::-1, :, ::-3])],
)
def test_fills_of_many_planes_are_copies_of_an_item(
    sim: Any, dtype: str, key: Any, refused: bool
) -> None:
    model = random_array((150, 30, 20), np.dtype(dtype))
    value = random_array((), np.dtype(dtype), 9)
    with cu.Context():  # where the kernel is refused it is refused for good
        array = cu.to_device(model)
        stream = cu.Stream()
        if refused:
            sim.fail("cuModuleLoadDataEx:*:801")
        sim.reset_counts()
        array[key].fill(value, stream)
        stream.synchronize()
        sets = sum(sim.call_count(f"cuMemset{kind}Async") for kind in SETS)
        assert sets == 0
        model.view(f"V{model.itemsize}")[key] = value.view(f"V{model.itemsize}")
        assert raw(array.to_numpy()) == raw(model)
        del array, stream


def test_fill_values_are_cast_as_numpy_casts_them() -> None:
    for dtype, value in [
        ("f4", 3),
        ("i4", -1),
        ("u1", 255),
        ("c16", 2.5),
        ("c8", 1 - 1j),
        ("?", 7),
        ("f2", "2.5"),
        ("S4", "abc"),
        ("U3", "wörld"),
        ("i4", np.float64(2.9)),
        ("M8[D]", "2020-02-02"),
        ("m8[s]", 90),
        ("f8", [4.5]),
        ("f8", np.array([[4.5]])),
        (">f8", 1e300),
        (PACKED, (1, 2.5, b"ab", [[1, 2], [3, 4]])),
        (PADDED, (1, 2.5)),
        ("f8", float("nan")),
    ]:
        array = cu.device_zeros((3, 4), dtype)
        array.fill(value)
        model = np.zeros((3, 4), dtype)
        model[...] = np.asarray(value, dtype).reshape(()) if not isinstance(value, tuple) else value
        got = array.to_numpy()
        for name in model.dtype.names or (None,):
            first, second = (got[name], model[name]) if name else (got, model)
            assert raw(first) == raw(second), (dtype, value)
    array = cu.device_zeros((3, 4), "u1")
    for wrong, error in [
        ("word", ValueError),
        ([1, 2], ValueError),
        ([], ValueError),
        ({}, TypeError),
    ]:
        with pytest.raises(error):
            array.fill(wrong)
    with pytest.raises(TypeError, match="to_numpy"):
        array.fill(array)
    assert not array.to_numpy().any()


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(("dtype", "value"), [("u1", 1), ("u2", 0x102), ("u4", 0x1020304)])
def test_a_fill_that_fails_names_its_call(sim: Any, dtype: str, value: int, rows: bool) -> None:
    array = cu.device_zeros((4, 16), dtype)
    name = f"cuMemset{'D2' if rows else ''}D{8 * array.itemsize}Async"
    sim.fail(f"{name}:1:2")
    with pytest.raises(cu.OutOfMemoryError, match=name + r"\("):
        (array[:, :3] if rows else array).fill(value)
    assert not array.to_numpy().any()


def test_fill_on_a_stream_of_another_device(two_devices: Any) -> None:
    first, second = two_devices
    array = cu.device_zeros(1000, device=first)
    stream = cu.Stream(device=second)
    with pytest.raises(ValueError, match="device 1"):
        array.fill(3, stream)
    assert not array.to_numpy().any()
    with stream:  # as copy() does: a default stream of another device is none for it
        array.fill(3)
        assert (array.to_numpy() == 3).all()
        assert cu.device_zeros(10, device=first).device == first
    with pytest.raises(ValueError, match="device 0"):
        cu.device_empty(10, device=first, stream=stream)
    assert cu.device_empty(10, stream=stream).device == second


@pytest.mark.filterwarnings("ignore")  # NumPy's own, of complex numbers and of old versions
@pytest.mark.parametrize(
    "dtype", ["i4", "u1", "f4", "c8", "?", "S4", "M8[D]", "m8[s]", "V5", PACKED]
)
def test_fill_takes_what_numpys_assignment_takes(dtype: Any) -> None:
    def told(write: Callable[[Any], object], array: Any) -> object:
        try:
            write(array)
        except Exception as error:
            return type(error), str(error)
        return raw(array if isinstance(array, np.ndarray) else array.to_numpy())

    def assign(array: Any) -> None:
        array[...] = value

    for value in [
        *(7, 1.5, True, 300, -1, 1 << 70, 1j, float("nan"), "7", "x", b"ab", None, {}, object()),
        *([4], (4,), [[4]], [1, 2], [], (1, 2.5, b"ab", [[1, 2], [3, 4]])),
        *(np.datetime64("2020-01-01"), np.timedelta64(3, "s"), datetime.date(2020, 1, 1)),
        *(np.float64(2.9), np.complex64(1j), np.str_("3"), np.void(b"abcde")),
        *(np.array([["2020-01-01"]], "M8[D]"), np.array(4), np.array(object())),
    ]:
        mine = told(lambda array: array.fill(value), cu.device_zeros(1, dtype))  # noqa: B023
        assert mine == told(assign, np.zeros(1, dtype)), value


@pytest.mark.parametrize("key", [np.s_[:], np.s_[::2, ::2, ::2]])
def test_fill_on_a_stream_of_another_context(sim: Any, key: Any) -> None:
    model = random_array((150, 30, 20), np.dtype("V12"))
    value = random_array((), np.dtype("V12"), 9)
    array, context = cu.to_device(model), cu.Context()
    with context:
        stream = cu.Stream()
    for _ in range(2):
        sim.reset_counts()
        array[key].fill(value, stream)
        assert sum(sim.call_count(f"cuMemset{kind}Async") for kind in SETS) <= 4
    stream.synchronize()
    model[key] = value
    assert raw(array.to_numpy()) == raw(model)
    stream.close()
    context.close()


# ---- reading back ------------------------------------------------------------------------------


def test_to_numpy_into_an_array() -> None:
    model = np.arange(24.0).reshape(4, 6)
    array = cu.to_device(model)
    out = np.zeros((8, 12))
    assert array.to_numpy(out[::2, ::-2]) is not None
    assert np.array_equal(out[::2, ::-2], model)
    assert out.sum() == model.sum()
    given_out = np.empty((4, 6), order="F")
    assert array.to_numpy(out=given_out) is given_out
    assert np.array_equal(given_out, model)
    pinned = cu.pinned_empty((4, 6))
    assert np.array_equal(array.to_numpy(pinned), model)
    for wrong, error, text in [
        (np.zeros((6, 4)), ValueError, "shapes differ"),
        (np.zeros((4, 6), np.float32), TypeError, "dtypes differ"),
        ([[0.0] * 6] * 4, TypeError, "list"),
        (cu.device_zeros((4, 6)), TypeError, "DeviceArray"),
        (3, TypeError, "int"),
    ]:
        with pytest.raises(error, match=text):
            array.to_numpy(wrong)  # type: ignore[arg-type]
    frozen = np.zeros((4, 6))
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        array.to_numpy(frozen)


def test_copy_from_and_copy_to() -> None:
    model = np.arange(12).reshape(3, 4)
    array = cu.device_zeros((3, 4), int)
    assert array.copy_from(model) is None  # type: ignore[func-returns-value]
    other = cu.device_empty((4, 3), int)
    with pytest.raises(ValueError, match="shapes differ"):
        array.copy_to(other)
    out = np.zeros((3, 4), int)
    stream = cu.Stream()
    transfer = array.copy_to(out, stream)
    transfer.wait()
    assert np.array_equal(out, model)
    array.copy_from(src=model[::-1], stream=stream).wait()
    assert np.array_equal(array.to_numpy(), model[::-1])


# ---- closing -----------------------------------------------------------------------------------


def test_closing() -> None:
    array = cu.device_zeros((4, 4))
    view = array[1:]
    with pytest.raises(ValueError, match=": 1 view uses"):
        array.close()
    with pytest.raises(ValueError, match="is a view"):
        view.close()
    assert not array.closed
    del view
    array.close()
    array.close()
    assert array.closed
    for use in (
        lambda: array.to_numpy(),
        lambda: array.fill(1),
        lambda: array.pointer,
        lambda: array.__cuda_array_interface__,
        lambda: cu.copy(array, np.zeros((4, 4))),
        lambda: cu.copy(np.zeros((4, 4)), array),
        lambda: array[0].to_numpy(),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert array.shape == (4, 4)


def test_closing_gives_the_memory_back() -> None:
    before = {entry.address for entry in cu.live_allocations()}
    array = cu.device_empty(3 << 20, np.uint8)
    mine = [entry for entry in cu.live_allocations() if entry.address not in before]
    assert [(e.kind, e.nbytes, e.device) for e in mine] == [("device array", 3 << 20, 0)]
    array.close()
    assert {entry.address for entry in cu.live_allocations()} == before


def test_views_keep_the_memory() -> None:
    before = alive()
    array = cu.to_device(np.arange(100000))
    view = array[50000:][::2]
    del array
    assert alive() == before + 1
    churn = [cu.device_zeros(100000, int) for _ in range(4)]
    assert np.array_equal(view.to_numpy(), np.arange(50000, 100000, 2))
    del view, churn
    assert alive() == before


def test_a_value_that_closes_the_array_while_it_is_read() -> None:
    array = cu.device_zeros(1000)

    class Hostile:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            array.close()

    with pytest.raises(ValueError, match="running call"):
        array.fill(Hostile())
    assert not array.closed

    class Index:
        def __index__(self) -> int:
            array.close()
            return 3

    view = array[Index() :]
    assert view.closed
    with pytest.raises(ValueError, match="closed"):
        view.to_numpy()


def test_arrays_of_each_device(two_devices: Any) -> None:
    model = np.arange(100000)
    arrays = [cu.device_zeros(100000, int, device=device) for device in two_devices]
    assert [array.device for array in arrays] == list(two_devices)
    arrays[0].copy_from(model)
    cu.copy(arrays[1], arrays[0])
    assert np.array_equal(arrays[1].to_numpy(), model)
    cu.copy(arrays[0][::2], arrays[1][1::2])
    wanted = model.copy()
    wanted[::2] = model[1::2]
    assert np.array_equal(arrays[0].to_numpy(), wanted)
    assert repr(arrays[1]).endswith("on device 1>")
    moved = cu.to_device(arrays[1])
    assert moved.device == two_devices[0]
    assert np.array_equal(moved.to_numpy(), model)


# ---- __cuda_array_interface__ ------------------------------------------------------------------


class Foreign:
    """Another library's array: a DeviceArray's interface, changed here and there."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        interface = {**array.__cuda_array_interface__, **changes}
        self.__cuda_array_interface__ = {k: v for k, v in interface.items() if v != "gone"}


def test_the_interface_tells_the_truth() -> None:
    array = cu.to_device(np.arange(24, dtype="<i4").reshape(4, 6))[1:, ::-2]
    interface = array.__cuda_array_interface__
    assert interface["version"] == 3
    assert interface["typestr"] == "<i4"
    assert interface["shape"] == (3, 3)
    assert interface["strides"] == (24, -8)
    assert interface["data"] == (array.pointer, False)
    assert interface["stream"] is None
    empty = cu.device_zeros((3, 0)).__cuda_array_interface__
    assert empty["data"] == (0, False)
    assert cu.device_zeros((0, 2))[:, 1].__cuda_array_interface__["data"] == (0, False)
    nothing = cu.to_device(Foreign(array, shape=(3, 0), strides=None, data=(1, False)))
    assert nothing.shape == (3, 0)


@settings(max_examples=60)
@given(data=st.data(), shape=SHAPES, dtype=st.sampled_from(DTYPES))
def test_what_comes_back_through_the_interface_is_the_same(
    data: st.DataObject, shape: Any, dtype: Any
) -> None:
    model = random_array(shape, dtype)
    array = cu.to_device(model)
    key = data.draw(hnp.basic_indices(model.shape, allow_newaxis=True))
    foreign = Foreign(array[key])
    copy = cu.to_device(foreign)
    assert copy.shape == array[key].shape
    assert copy.dtype.itemsize == model.dtype.itemsize
    if model.dtype != PADDED:
        assert copy.dtype == model.dtype
    assert raw(copy.to_numpy().view(f"V{model.dtype.itemsize}")) == raw(array[key].to_numpy())
    back = np.zeros(copy.shape, copy.dtype)
    cu.copy(back, foreign)
    assert raw(back) == raw(copy.to_numpy())


def test_a_dtype_is_what_was_given() -> None:
    for dtype in (np.dtype([("a", "i4"), ("b", "u1")]), np.dtype("<i4", metadata={"x": 1})):
        assert cu.device_zeros(3, dtype).dtype is dtype
        assert cu.to_device(np.zeros(3, dtype)).view(dtype).dtype is dtype


def test_dtypes_whose_fields_have_no_description() -> None:
    for dtype in (
        PADDED,
        np.dtype({"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 2]}),
        np.dtype({"names": ["a", "b"], "formats": ["u1", "u1"], "offsets": [4, 0]}),
    ):
        model = random_array(50, dtype)
        array = cu.to_device(model)
        assert raw(array.to_numpy().view(f"V{dtype.itemsize}")) == raw(model)
        foreign = Foreign(array)
        assert foreign.__cuda_array_interface__["typestr"] == f"|V{dtype.itemsize}"
        assert cu.to_device(foreign).itemsize == dtype.itemsize


def test_foreign_arrays_at_either_end() -> None:
    model = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = cu.to_device(model)
    for foreign in (
        Foreign(array),
        Foreign(array, strides=None),
        Foreign(array, strides="gone", descr="gone", stream="gone"),
        Foreign(array, version=2),
        Foreign(array, stream=1),
        Foreign(array, stream=2),
        Foreign(array, descr=None),
    ):
        out = np.zeros((4, 6), np.float32)
        cu.copy(out, foreign)
        assert np.array_equal(out, model)
        cu.copy(foreign, model + 1)
        assert np.array_equal(array.to_numpy(), model + 1)
        array.copy_from(model)
        stream = cu.Stream()
        cu.copy_async(foreign, model * 2, stream).wait()
        assert np.array_equal(array.to_numpy(), model * 2)
        array.copy_from(model)
    turned = Foreign(array, shape=(6, 4), strides=(4, 24))
    assert np.array_equal(cu.to_device(turned).to_numpy(), model.T)


def test_the_producers_stream_is_waited_for(sim: Any) -> None:
    array = cu.device_zeros(1 << 16, np.uint8)
    source = cu.pinned_full(1 << 16, 7, np.uint8)
    stream = cu.Stream()
    sim.set_latency(20000)
    transfer = cu.copy_async(array, source, stream)
    out = np.zeros(1 << 16, np.uint8)
    cu.copy(out, Foreign(array, stream=stream.handle))
    assert (out == 7).all()
    transfer.wait()


def test_bad_interfaces_are_refused() -> None:
    array = cu.device_zeros((4, 6), np.float32)
    good = array.__cuda_array_interface__
    for changes, error in [
        ({"data": "gone"}, TypeError),
        ({"data": (1, 2, 3)}, TypeError),
        ({"data": ("x", False)}, TypeError),
        ({"data": (-1, False)}, TypeError),
        ({"data": (1 << 70, False)}, TypeError),
        ({"data": (16, False)}, ValueError),
        ({"typestr": "gone"}, TypeError),
        ({"typestr": 5}, TypeError),
        ({"typestr": "|O8", "descr": None}, TypeError),
        ({"shape": "gone"}, TypeError),
        ({"shape": [4, 6]}, TypeError),
        ({"shape": (4, -6)}, ValueError),
        ({"shape": (4, "6")}, TypeError),
        ({"strides": (4,)}, TypeError),
        ({"strides": ("a", "b")}, TypeError),
        ({"strides": (1 << 70, 4)}, TypeError),
        ({"stream": "x"}, TypeError),
        ({"stream": -1}, TypeError),
        ({"stream": 1 << 64}, TypeError),
        ({"stream": 1.0}, TypeError),
        ({"shape": (1 << 62, 1 << 62), "strides": None}, ValueError),
        ({"data": (0, False)}, ValueError),
        ({"data": (0, False), "shape": (), "strides": None}, ValueError),
        ({"mask": Foreign(array)}, TypeError),
    ]:
        with pytest.raises(error):
            cu.copy(np.zeros((4, 6), np.float32), Foreign(array, **changes))
    nothing = Foreign(array, data=(0, False), shape=(3, 0), strides=None)
    cu.copy(np.zeros((3, 0), np.float32), nothing)
    with pytest.raises(ValueError, match=r"\(4, 6\) lies at address 0"):
        cu.copy(Foreign(array, data=(0, False)), np.zeros((4, 6), np.float32))
    with pytest.raises(ValueError, match="read-only"):
        cu.copy(Foreign(array, data=(good["data"][0], True)), np.ones((4, 6), np.float32))
    assert not array.to_numpy().any()

    class Broken:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        cu.copy(np.zeros(3), Broken())
    with pytest.raises(LookupError, match="its own"):
        cu.to_device(Broken())
    gc.collect()
    array.close()


class Spoiler:
    """A number whose reading empties what it stands in, and fills the memory that this frees."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.home: Any = None
        self.reads = 0

    def __index__(self) -> int:
        self.reads += 1
        self.home.clear()
        self.junk = [tuple([None] * n) for n in range(1, 9) for _ in range(50)]
        return self.value


@pytest.mark.parametrize("name", ["shape", "strides"])
def test_an_interface_that_its_own_numbers_empty(name: str) -> None:
    model = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = cu.to_device(model)
    values = {"shape": (4, 6), "strides": (24, 4)}[name]
    spoilers = [Spoiler(value) for value in values]
    foreign = Foreign(array, **{name: tuple(spoilers)})
    for spoiler in spoilers:
        spoiler.home = foreign.__cuda_array_interface__
    out = np.zeros_like(model)
    cu.copy(out, foreign)
    assert np.array_equal(out, model)
    assert foreign.__cuda_array_interface__ == {}
    assert [spoiler.reads for spoiler in spoilers] == [1, 1]


@pytest.mark.parametrize("make", [cu.device_empty, cu.pinned_empty, cu.pinned_zeros])
def test_a_shape_that_its_own_items_empty(make: Any) -> None:
    spoilers = [Spoiler(n) for n in (2, 3, 4)]
    shape = list(spoilers)
    for spoiler in spoilers:
        spoiler.home = shape
    assert make(shape).shape == (2, 3, 4)
    assert shape == []
    assert [spoiler.reads for spoiler in spoilers] == [1, 1, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_to_device_reads_an_interface_once(stream: bool) -> None:
    model = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = cu.to_device(model)
    reads = []

    class Once:
        @property
        def __cuda_array_interface__(self) -> Any:
            reads.append(1)
            return array.__cuda_array_interface__

    chosen = cu.Stream() if stream else None
    there = cu.to_device(Once(), chosen)
    assert np.array_equal(there.to_numpy(), model)
    assert reads == [1]


def test_an_empty_foreign_array_fits_every_device(two_devices: Any) -> None:
    array = cu.device_zeros(4, np.float32)
    here = np.empty((3, 0), np.float32)
    for ordinal in (0, 1):
        stream = cu.Stream(device=ordinal)
        there = cu.device_empty((3, 0), np.float32, device=ordinal)
        for address in (0, array.pointer):
            nothing = Foreign(array, data=(address, False), shape=(3, 0), strides=None)
            for dst, src in [(here, nothing), (nothing, here), (there, nothing), (nothing, there)]:
                cu.copy(dst, src)
                assert cu.copy_async(dst, src, stream).done
                assert cu.explain_copy(dst, src).path == "empty"
            assert cu.to_device(nothing, stream).device == two_devices[ordinal]
    with pytest.raises(TypeError, match="no stream"):
        cu.copy(here, Foreign(array, data=(0, False), shape=(3, 0), strides=None, stream="x"))


def test_an_empty_foreign_array_makes_no_context() -> None:
    program = """
        import ctypes, numpy as np, cudriver as cu
        class Foreign:
            __cuda_array_interface__ = {"data": (0, False), "shape": (0,), "typestr": "<f8"}
        cu.init()
        cu.copy(np.empty(0), Foreign())
        cu.copy(Foreign(), np.empty(0))
        active, flags = ctypes.c_int(5), ctypes.c_uint()
        libcuda = ctypes.CDLL(cu.driver_path())
        libcuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
        print(cu.context_stack(), active.value)
    """
    assert output(program) == "[] 0\n"


@pytest.mark.parametrize(
    ("typestr", "descr", "sizes"),
    [
        ("|V8", [("a", "<f4")], "8 bytes, .* of 4"),
        ("|V8", [("a", "<f8"), ("b", "u1")], "8 bytes, .* of 9"),
        ("|V8", [("", "<f4")], "8 bytes, .* of 4"),
        ("|V4", [("a", "<f4"), ("", "|V4")], "4 bytes, .* of 8"),
    ],
)
def test_a_description_of_another_size_is_refused(typestr: str, descr: Any, sizes: str) -> None:
    array = cu.device_zeros(24, "u1")
    foreign = Foreign(array, typestr=typestr, descr=descr, shape=(2,), strides=None)
    with pytest.raises(ValueError, match=sizes):
        cu.to_device(foreign)
    assert not cu.device_zeros(3, "f4,f4").to_numpy()["f0"].any()


def test_an_extent_beyond_the_memory_is_refused() -> None:
    """Where the driver knows the allocation, and nothing lies behind it."""
    nbytes = (64 << 20) + 100
    with cu.Context() as context:  # no pool: behind its memory there might be more of it
        array = cu.device_zeros(nbytes, "u1")
        start, end = array.pointer, array.pointer + nbytes
        wide = nbytes + (1 << 40)
        for changes in [
            {"shape": (wide,)},
            {"shape": (wide // 8,), "typestr": "<f8"},
            {"data": (end - 1, False), "shape": (wide,)},
            {"data": (end - 1, False), "shape": (2,), "strides": (1 << 40,)},
            {"data": (start, False), "shape": (2,), "strides": (-(1 << 40),)},
            {"data": (start, False), "shape": (3, 4), "strides": (1 << 40, 1)},
            {"data": (start, False), "shape": (2,), "strides": (-start - 5,)},
            {"data": (start, False), "shape": (1 << 61, 1 << 61), "strides": (0, 1 << 3)},
        ]:
            foreign = Foreign(array, **{"strides": None, "descr": None, **changes})
            with pytest.raises(ValueError, match=r"but the memory there ends at|no memory that"):
                cu.explain_copy(foreign, foreign)
        for first, last, step in [(0, nbytes, 1), (nbytes - 1, -1, -1), (5, nbytes, 7)]:
            shape = (len(range(first, last, step)),)
            whole = Foreign(array, data=(start + first, False), shape=shape, strides=(step,))
            assert cu.explain_copy(whole, whole).nbytes == shape[0]
        assert not array.to_numpy()[-4096:].any(), "nothing was broken"
        array.close()
        del array, foreign, whole
    context.close()


def test_an_array_may_span_allocations(sim: Any) -> None:
    """As tensors do in segments that grow: one range of addresses, of several allocations."""
    libcuda = ctypes.CDLL(sim.path)
    addresses = [ctypes.c_ulonglong() for _ in range(4)]
    with cu.Context() as context:
        for address in addresses:
            assert libcuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)) == 0
        parts = sorted(address.value for address in addresses)
        assert np.diff(parts).tolist() == [4096] * 3, "the simulator puts them side by side"

        model = cu.device_empty(3 * 4096, "u1")  # only its interface
        here = {"data": (parts[0], False)}
        whole = Foreign(model, **here)
        gaps = Foreign(model, **here, shape=(2,), strides=(3 * 4096 - 1,))

        def reaches(foreign: Any) -> int:  # a copy over two allocations is the driver's to refuse
            return cu.explain_copy(foreign, foreign).nbytes

        assert (reaches(whole), reaches(gaps)) == (3 * 4096, 2)
        assert libcuda.cuMemFree_v2(ctypes.c_ulonglong(parts[3])) == 0
        with pytest.raises(ValueError, match=f"16384 bytes .* ends at {parts[3]:#x}"):
            reaches(Foreign(model, **here, shape=(4 * 4096,)))
        assert libcuda.cuMemFree_v2(ctypes.c_ulonglong(parts[1])) == 0
        with pytest.raises(ValueError, match=f"12288 bytes .* ends at {parts[1]:#x}"):
            reaches(whole)
        assert reaches(gaps) == 2
        assert libcuda.cuMemFree_v2(ctypes.c_ulonglong(parts[2])) == 0
        with pytest.raises(ValueError, match=f"12288 bytes .* ends at {parts[1]:#x}"):
            reaches(gaps)
        assert libcuda.cuMemFree_v2(ctypes.c_ulonglong(parts[0])) == 0
        model.close()
        del model, whole, gaps
    context.close()


def test_pool_and_plain_memory_both_work(sim: Any) -> None:
    array = cu.to_device(np.arange(1000))
    assert np.array_equal(array.to_numpy(), np.arange(1000))
    sim.fail("cuMemAllocFromPoolAsync:*:2")
    with pytest.raises(cu.OutOfMemoryError, match="8000 bytes"):
        cu.device_empty(1000)
    sim.clear_faults()
    assert cu.device_empty(1000).size == 1000

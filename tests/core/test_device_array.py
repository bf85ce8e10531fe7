"""DeviceArray against NumPy: geometry, indexing, fills, both ends of the array interface."""

from __future__ import annotations

import ctypes
import gc
import operator
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args, get_origin

import numpy as np
import pytest
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import cudriver as cu
from conftest import named
from graphkit import busy

PACKED = np.dtype([("a", "i1"), ("b", "<f8"), ("c", "S3"), ("d", ">u2", (2, 2))])
PADDED = np.dtype({"names": ["x", "y"], "formats": ["u1", "f4"], "offsets": [1, 8], "itemsize": 24})
SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)
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


@pytest.mark.parametrize("shape", [(), 0, 5, (3, 0, 2), (4, 5), [2, 3, 4]], ids=str)
@pytest.mark.parametrize("order", ["C", "F", "f", None])
def test_order_is_numpys(shape: Any, order: Any) -> None:
    for dtype in ("f4", np.dtype(("f4", (2, 3)))):
        model = np.empty(shape, dtype, order=order or "C")
        for made in (
            cu.device_empty(shape, dtype, order),
            cu.device_zeros(shape, dtype, order=order),
            cu.device_full(shape, 0, dtype, order),
        ):
            assert (made.shape, made.dtype) == (model.shape, model.dtype)
            assert made.flags[:2] == (model.flags.c_contiguous, model.flags.f_contiguous)
            made.fill(3)
            assert (made.to_numpy() == 3).all()
            made.close()


@pytest.mark.parametrize("order", ["K", "A", "column", 3])
def test_an_order_that_is_none(order: Any) -> None:
    for make in (cu.device_empty, cu.device_zeros):
        with pytest.raises(ValueError, match=re.escape(f"order is 'C' or 'F', not {order!r}")):
            make((2, 3), "f4", order)
    if order not in ("K", "A"):
        with pytest.raises(ValueError, match=re.escape(f"not {order!r}")):
            cu.device_empty_like(np.ones(3), order=order)


@pytest.mark.parametrize(
    "call",
    [
        ((2, 3), 7),
        ((2, 3), 2.5, "f4"),
        (2, 1 + 2j),
        ((), True),
        (3, 2.9, int),
        (2, "word"),
        (2, b"word", "S2"),
        ((4, 3), [1, 2, 3]),
        ((2, 3), np.arange(6).reshape(2, 3), "f8", "F"),
        (0, 1),
        ((2, 0), [[1], [2]]),
        (3, (1, 2.5, 1), [("a", "u1"), ("b", "f8"), ("c", "i2")]),
    ],
    ids=str,
)
@pytest.mark.parametrize("streamed", [False, True])
def test_full_is_numpys(call: tuple[Any, ...], streamed: bool) -> None:
    """The bytes also, of casts and of broadcast values."""
    dtype = np.dtype(call[2]) if len(call) > 2 else None
    if dtype is not None and dtype.names:
        call = (call[0], np.array(call[1], dtype), dtype)
    model, stream = np.full(*call), cu.Stream() if streamed else None
    made = cu.device_full(*call, stream=stream)
    found = made.to_numpy(stream=stream)
    assert (found.dtype, found.shape, raw(found)) == (model.dtype, model.shape, raw(model))
    assert made.flags.f_contiguous == (model.flags.f_contiguous)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        ((3, [1, 2]), ValueError, "broadcast"),
        ((3, "word", float), ValueError, "word"),
        ((3, None), TypeError, "Python objects"),
        ((-3, 1), ValueError, "negative"),
        ((3, 1, "f4", "K"), ValueError, "order is"),
    ],
)
def test_values_that_cannot_fill(call: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        cu.device_full(*call)


def test_what_is_like_a_device_array_is_on_its_device(two_devices: Any) -> None:
    first, second = two_devices
    there = cu.device_empty((2, 3, 4), "i2", device=second).transpose(1, 2, 0)
    like = cu.device_empty_like(there)
    assert (like.device, like.dtype, like.strides) == (second, there.dtype, there.strides)
    assert cu.device_empty_like(there, device=first).device == first
    assert cu.device_empty_like(there.to_numpy()).device == first
    assert cu.device_empty_like([[1.5]], "u1").nbytes == 1
    with pytest.raises(ValueError, match="the stream is on device 0, the array on device 1"):
        cu.device_empty_like(there, stream=cu.Stream(device=first))


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
    assert cu.to_device(model, stream=stream, device=second).device == second
    with stream:
        assert cu.to_device(model, device=second).device == second
        assert cu.to_device(model, device=first).device == first
    with cu.Context(1) as own:
        assert cu.to_device(model, device=1).context is own
        assert cu.to_device(model, device=0).context is first.primary_context()
    alive = cu.live_allocations()
    with pytest.raises(ValueError, match="stream is on device 1, the array on device 0"):
        cu.to_device(model, stream=stream, device=first)
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
def test_bad_arguments_are_named(make: str, simulator: Any) -> None:
    function, call = getattr(cu, make), "cuMemAllocFromPoolAsync"
    before = simulator.call_count(call) if simulator else 0
    for arguments, keywords, error, text in [
        ((-3,), {}, ValueError, "-3"),
        (((2, -1),), {}, ValueError, "-1"),
        (("12",), {}, TypeError, "str"),
        ((2.5,), {}, TypeError, r"a sequence of integers .* got '2\.5'"),
        (((3, 1.5),), {}, TypeError, "'float' object"),
        (((3, "4"),), {}, TypeError, "'str' object"),
        ((None,), {}, TypeError, "None"),
        (((1,) * 65,), {}, ValueError, "65"),
        ((3, object), {}, TypeError, "Python objects"),
        ((3, "no such type"), {}, TypeError, "no such type"),
        (((1 << 40, 1 << 40),), {}, ValueError, rf"\({1 << 40}, {1 << 40}\).* address space"),
        ((1 << 70,), {}, ValueError, "Maximum allowed"),
        (((2, -1 << 70),), {}, ValueError, "Maximum allowed"),
        ((3,), {"stream": 7}, TypeError, "int"),
        ((3,), {"device": 99}, Exception, "99"),
        ((3,), {"device": "nonsense"}, Exception, "nonsense"),
        ((3, float, "C", 0), {}, TypeError, "positional"),
    ]:
        with pytest.raises(error, match=text):
            function(*arguments, **keywords)
    assert simulator is None or simulator.call_count(call) == before


def test_too_much_memory_says_what_there_is() -> None:
    total = cu.memory_info().total
    with pytest.raises(cu.OutOfMemoryError, match=rf"{8 << total.bit_length()} bytes") as caught:
        cu.device_empty(1 << total.bit_length(), np.float64)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.code == 2
    assert f"of {total} ({total / 2**30:.3g} GiB) free" in str(caught.value)
    assert cu.device_zeros(1000).to_numpy().any() == np.False_


def test_what_the_pool_keeps_is_given_back_before_memory_is_short(cu, sim) -> None:
    cu.device_empty(1 << 20, np.uint8)  # the pool keeps it
    sim.fail("cuMemAllocFromPoolAsync:1:2")
    sim.reset_counts()
    assert cu.device_empty(1 << 20, np.uint8).nbytes == 1 << 20
    assert sim.call_count("cuMemPoolTrimTo") == 1


def test_a_huge_empty_shape_is_refused_as_numpy_refuses_it() -> None:
    for shape in [(1 << 40, 0, 1 << 40), (0, 1 << 62, 2)]:
        for make in (np.empty, cu.device_zeros):
            with pytest.raises(ValueError, match="too big"):
                make(shape)
    array = cu.device_zeros((1 << 40, 0, 1 << 10))
    assert (array.size, array.nbytes, array.pointer) == (0, 0, 0)
    assert array[5:7, :, 1].shape == (2, 0)
    array.fill(1)


# ---- what it is --------------------------------------------------------------------------------


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
        ("set", "; use cudriver.copy(array, source)"),
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
        word = re.findall(r"use (?:cudriver\.)?(\w+)", ours)[0]
        assert hasattr(array, word) or hasattr(cu, word)


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


# ---- closing -----------------------------------------------------------------------------------


def test_a_close_that_is_refused_names_the_copy_of_a_view(held: Any) -> None:
    array, source = cu.device_empty(100, np.uint8), cu.pinned_zeros(50, np.uint8)
    held.settle()
    held.hold()
    copied = cu.copy_async(array[:50], source, cu.Stream())
    with pytest.raises(ValueError, match="an asynchronous copy uses it; wait"):
        array.close()
    held.release()
    copied.wait()
    array.close()


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


def test_a_value_that_closes_the_array_while_it_is_read() -> None:
    array = cu.device_zeros(1000)

    class Hostile:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            array.close()
            return np.ones(1)

    with pytest.raises(ValueError, match="closed"):
        array.fill(Hostile())
    array = cu.device_zeros(1000)

    class Index:
        def __index__(self) -> int:
            array.close()
            return 3

    view = array[Index() :]
    assert view.closed
    with pytest.raises(ValueError, match="closed"):
        view.to_numpy()

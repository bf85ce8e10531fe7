"""DeviceArray.fill() against NumPy: any value, any view, by the driver's own fills or by copies."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from test_device_array import DTYPES, PACKED, PADDED, random_array, raw

import cudriver as cu
import dlpackkit as kit
from copykit import lateness

pytestmark = pytest.mark.usefixtures("no_leaks")


def meant(array: NDArray[Any]) -> bytes:
    """raw(), without the bytes of a long double that mean nothing."""
    if array.dtype.char not in "gG" or np.finfo(np.longdouble).nmant != 63:
        return raw(array)
    size = np.dtype("g").itemsize
    return np.frombuffer(raw(array), np.uint8).reshape(-1, size)[:, :10].tobytes()


SETS = ("D8", "D16", "D32", "D2D8", "D2D16", "D2D32")


@settings(max_examples=200)
@given(
    data=st.data(),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, max_side=7),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1 << 30),
    streamed=st.booleans(),
    late=st.booleans(),
)
def test_a_fill_is_numpys_and_touches_nothing_else(
    simulator: Any,
    data: st.DataObject,
    shape: Any,
    dtype: Any,
    seed: int,
    streamed: bool,
    late: bool,
) -> None:
    dtype = np.dtype(dtype)
    model = random_array(shape, dtype, seed)
    key = data.draw(hnp.basic_indices(model.shape, allow_newaxis=True))
    value = random_array((), dtype, seed + 1)
    if data.draw(st.booleans(), "the same byte again and again"):
        bits = bytes([seed % 2, 0, 0, 0] if dtype.kind == "U" else [seed % 2])
        value = np.frombuffer(bits * (dtype.itemsize // len(bits)), dtype).reshape(())
    base = cu.to_device(model)
    with lateness(simulator, late):
        if streamed:
            stream = cu.Stream()
            base[key].fill(value, stream=stream)
            stream.synchronize()
        else:
            base[key].fill(value)
        got = base.to_numpy()
    if dtype == PADDED:
        model[key] = value
        assert all(raw(got[name]) == raw(model[name]) for name in ("x", "y"))
    else:
        item = value.tobytes()
        flat = model.view(f"V{dtype.itemsize}") if model.ndim else model.reshape(1).view("V")
        flat.reshape(model.shape)[key] = np.frombuffer(item, f"V{dtype.itemsize}")[0]
        assert meant(got) == meant(model)


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


@pytest.mark.parametrize("offset", range(1, 5))
@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_fills_of_items_at_odd_addresses(dtype: str, offset: int) -> None:
    """The driver sets words of 2 and 4 bytes at multiples of these only."""
    model = np.zeros(45, np.uint8)
    array = cu.to_device(model)
    array[offset : offset + 40].view(dtype).fill(1.7)
    model[offset : offset + 40].view(dtype)[...] = np.array(1.7).astype(dtype)
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


def test_fill_of_rows_that_lie_far_apart() -> None:
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
        array[key].fill(value, stream=stream)
        stream.synchronize()
        sets = sum(sim.call_count(f"cuMemset{kind}Async") for kind in SETS)
        assert sets == 0
        model.view(f"V{model.itemsize}")[key] = value.view(f"V{model.itemsize}")
        assert raw(array.to_numpy()) == raw(model)
        del array, stream


@pytest.mark.parametrize(("dtype", "value"), [("u1", 1), ("u2", 0x102), ("u4", 0x1020304)])
def test_a_fill_that_fails_names_its_call(sim: Any, dtype: str, value: int) -> None:
    array = cu.device_zeros((4, 16), dtype)
    name = f"cuMemsetD{8 * array.itemsize}Async"
    sim.fail(f"{name}:1:2")
    with pytest.raises(cu.OutOfMemoryError, match=name + r"\("):
        array.fill(value)
    assert not array.to_numpy().any()


def test_fill_on_a_stream_of_another_device(two_devices: Any) -> None:
    first, second = two_devices
    array = cu.device_zeros(1000, device=first)
    stream = cu.Stream(device=second)
    with pytest.raises(ValueError, match="device 1"):
        array.fill(3, stream=stream)
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
    "dtype",
    [
        *["i4", "u1", "f2", "f4", ">f8", "c8", "c16", "?", "S4", "U3", "M8[D]", "m8[s]", "V5"],
        PACKED,
        PADDED,
    ],
    ids=str,
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
        *([4], (4,), [[4]], [1, 2], [], "2.5", "wörld", (1, 2.5)),
        (1, 2.5, b"ab", [[1, 2], [3, 4]]),
        *(np.datetime64("2020-01-01"), np.timedelta64(3, "s"), datetime.date(2020, 1, 1)),
        *(np.float64(2.9), np.complex64(1j), np.str_("3"), np.void(b"abcde")),
        *(np.array([["2020-01-01"]], "M8[D]"), np.array(4), np.array(object())),
    ]:
        mine = told(lambda array: array.fill(value), cu.device_zeros(1, dtype))  # noqa: B023
        assert mine == told(assign, np.zeros(1, dtype)), value
    with pytest.raises(TypeError, match="to_numpy"):
        cu.device_zeros(1, dtype).fill(cu.device_zeros(1, dtype))


@pytest.mark.parametrize("key", [np.s_[:], np.s_[::2, ::2, ::2]])
def test_fill_on_a_stream_of_another_context(sim: Any, key: Any) -> None:
    model = random_array((150, 30, 20), np.dtype("V12"))
    value = random_array((), np.dtype("V12"), 9)
    array, context = cu.to_device(model), cu.Context()
    with context:
        stream = cu.Stream()
    for _ in range(2):
        sim.reset_counts()
        array[key].fill(value, stream=stream)
        assert sum(sim.call_count(f"cuMemset{kind}Async") for kind in SETS) <= 4
    stream.synchronize()
    model[key] = value
    assert raw(array.to_numpy()) == raw(model)
    stream.close()
    context.close()

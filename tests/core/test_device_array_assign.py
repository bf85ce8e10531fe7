"""array[key] = value, copies, and what a DeviceArray is not: NumPy is the model of each."""

from __future__ import annotations

import copy
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import cudriver as cu
from conftest import named

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def pair(shape: Any, dtype: Any = "i4") -> tuple[cu.DeviceArray, NDArray[Any]]:
    """The same items on the device and on the host."""
    model = np.arange(int(np.prod(shape, dtype=np.int64))).astype(dtype).reshape(shape)
    return cu.to_device(model), model


def assigned(array: Any, key: Any, value: Any) -> type[Exception] | None:
    """The error of `array[key] = value`."""
    try:
        array[key] = value
    except (ValueError, TypeError, OverflowError) as error:
        return type(error)
    return None


def region(key: Any) -> Any:
    """The key of a view: an item alone would take only scalars in NumPy."""
    key = key if isinstance(key, tuple) else (key,)
    return key if ... in key else (*key, ...)


@st.composite
def source_for(draw: st.DrawFn, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array that mostly fits: axes shortened to 1, left out, added in front; or any."""
    lengths = [draw(st.sampled_from([n, n, 1])) for n in shape]
    lengths = lengths[draw(st.integers(0, len(lengths))) :]
    lengths = [1] * draw(st.integers(0, 2)) * (len(lengths) == len(shape)) + lengths
    if draw(st.integers(0, 4)) == 0:
        lengths = list(draw(SHAPES))
    size = int(np.prod(lengths, dtype=np.int64))
    flat = np.arange(1000, 1000 + 2 * size, dtype="i4")[:: draw(st.sampled_from([1, 2]))]
    return flat[:size].reshape(lengths)


@settings(max_examples=120)
@given(data=st.data(), shape=SHAPES, on=st.sampled_from(["host", "device", "list", "library"]))
def test_any_assignment_is_numpys(data: st.DataObject, shape: Any, on: str) -> None:
    array, model = pair(shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=5))
    source = data.draw(source_for(np.shape(model[key])))
    value: Any = source
    if on == "device":
        value = cu.to_device(source)
    elif on == "list":
        value = source.tolist()
        source = np.asarray(value, "i4")  # what has no items has lost its inner axes
    elif on == "library":
        value = OtherLibrary(cu.to_device(source))
    wanted = assigned(model, region(key), source)
    assert assigned(array, key, value) == wanted
    assert np.array_equal(array.to_numpy(), model)


class OtherLibrary:
    def __init__(self, owner: cu.DeviceArray) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = owner.__cuda_array_interface__


@settings(max_examples=100)
@given(data=st.data(), shape=hnp.array_shapes(max_dims=3, max_side=5))
def test_an_array_assigned_to_itself_is_read_first(data: st.DataObject, shape: Any) -> None:
    array, model = pair(shape)
    left = data.draw(hnp.basic_indices(shape))
    right = data.draw(hnp.basic_indices(shape))
    wanted = assigned(model, region(left), np.array(model[region(right)]))
    assert assigned(array, left, array[right]) == wanted
    assert np.array_equal(array.to_numpy(), model)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f4", 3), ("f4", 2.5), ("i2", True), ("c8", 1 + 2j), ("i4", np.float64(2.7)),
        ("f4", np.array(1.5)), ("i4", [1.7, 2.2, 3.9]), ("S3", b"abcdef"), ("U4", "text"),
        ("S3", [b"a", b"bc", "d"]), ("M8[D]", "2001-01-01"), ("M8[D]", np.datetime64("2001-01-01")),
        ("i4, f4", (1, 2.5)), ("i4, f4", [(1, 2), (3, 4), (5, 6)]),
        ("u1", bytearray(b"xyz")), ("u1", memoryview(b"xyz")), ("?", [0, 2, 0]), ("f4", range(3)),
        ("i4", np.array([[7, 8, 9]], "i4").view(np.matrix)),
    ],
    ids=named,
)  # fmt: skip
def test_what_has_no_dtype_of_its_own_is_cast(dtype: Any, value: Any) -> None:
    model = np.zeros((2, 3), dtype)
    array = cu.to_device(model)
    model[1] = value
    array[1] = value
    assert np.array_equal(array.to_numpy(), model)
    assert model[1].tobytes() != model[0].tobytes()


def test_an_assignment_that_is_refused_says_why_and_changes_nothing() -> None:
    array, model = pair((4, 3))
    for key, value, error, text in [
        (0, np.zeros(4, "i4"), ValueError, r"\(4,\) cannot be broadcast into shape \(3,\)"),
        (
            ...,
            np.zeros((2, 4, 3), "i4"),
            ValueError,
            r"\(2, 4, 3\) cannot be broadcast into .*4, 3",
        ),
        (0, cu.device_zeros(4, "i4"), ValueError, "cannot be broadcast"),
        (0, np.zeros(3), TypeError, "dtypes differ: float64 cannot be copied into int32"),
        (0, cu.device_zeros(3), TypeError, "dtypes differ"),
        (0, "no number", ValueError, "no number"),
        (0, [[1], [2, 3]], ValueError, "inhomogeneous"),
        (0, object(), TypeError, "object"),
        (9, 1, IndexError, "9"),
        ([0, 1], 1, IndexError, "list"),
    ]:
        with pytest.raises(error, match=text):
            array[key] = value  # type: ignore[index]
    with pytest.raises(TypeError, match="cannot be deleted"):
        del array[0]  # type: ignore[attr-defined]
    assert np.array_equal(array.to_numpy(), model)
    array.close()
    for value in (1, model):
        with pytest.raises(ValueError, match="closed"):
            array[...] = value


def test_an_error_keeps_no_array() -> None:
    """Its traceback would, by a variable of a function that is written in Python."""
    array = cu.device_zeros((4, 4))
    wrong = [np.zeros(7), np.zeros(4, "i4"), cu.to_device(np.zeros(7)), "no number"]
    alive = cu.live_allocations()
    for value in wrong:
        try:
            array[1:] = value
        except (ValueError, TypeError):
            assert cu.live_allocations() == alive
            array.close()  # which a view forbids
        assert array.closed
        array = cu.device_zeros((4, 4))
        alive = cu.live_allocations()
    closed = cu.Stream()
    closed.close()
    try:
        cu.to_device(np.zeros(4), stream=closed)
    except ValueError:
        assert cu.live_allocations() == alive


def test_an_assignment_follows_the_stream_around_it() -> None:
    array, stream = cu.device_empty(1 << 20, "i4"), cu.Stream()
    host = np.arange(1 << 20, dtype="i4")
    with stream:
        array[...] = 7
        array[::2] = host[::2]
        array[1] = array[4]
    host[1::2] = 7
    host[1] = 4
    assert np.array_equal(array.to_numpy(), host)


# ---- copies ------------------------------------------------------------------------------------


COPIES: list[Any] = [lambda a: a.copy(), lambda a: a.copy(stream=None), copy.copy, copy.deepcopy]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("key", [..., (slice(None), 0), (0, 0), slice(0, 0), slice(None, None, -2)])
def test_a_copy_has_its_own_memory_in_c_order(how: Any, key: Any) -> None:
    array, model = pair((4, 5))
    for view, numpys in ((array[key], model[key]), (array.T[key], model.T[key])):
        twin = how(view)
        assert twin.flags.c_contiguous
        assert twin.flags.owndata
        assert (twin.dtype, twin.device, twin.context) == (view.dtype, view.device, view.context)
        view[...] = -1
        assert np.array_equal(twin.to_numpy(), np.array(numpys))
        numpys = np.asarray(numpys)
        view[...] = numpys


def test_a_deep_copy_of_a_structure_copies_an_array_once() -> None:
    array, _ = pair(3)
    first, second = copy.deepcopy([array, array])
    assert first is second
    assert first is not array


def test_a_copy_in_the_order_of_a_stream() -> None:
    array, _ = pair(1 << 18)
    stream = cu.Stream()
    array.fill(5, stream=stream)
    twin = array.copy(stream=stream)
    del array
    assert (twin.to_numpy() == 5).all()
    with stream:
        third = twin.copy()
    assert (third.to_numpy() == 5).all()


@pytest.mark.usefixtures("two_devices")
def test_a_copy_stays_on_its_device() -> None:
    array = cu.device_zeros(1000, "i4", device=1)
    assert array.copy().device == array.device
    with cu.Stream(device=0) as stream:
        assert array.copy().device == array.device
        assert not array.copy().to_numpy().any()
    with pytest.raises(ValueError, match="the stream is on device 0, the array on device 1"):
        array.copy(stream=stream)


def test_a_closed_array_is_not_copied() -> None:
    array, _ = pair(3)
    array.close()
    with pytest.raises(ValueError, match="closed"):
        array.copy()


# ---- what it is not ----------------------------------------------------------------------------


def test_comparisons_are_refused() -> None:
    array, model = pair(3)
    twin = array.copy()
    for compare in (
        lambda: array == twin,
        lambda: array != twin,
        lambda: array == 3,
        lambda: array == None,  # noqa: E711
        lambda: model == array,
        lambda: array == model,
        lambda: array < twin,
        lambda: twin in [array],
    ):
        with pytest.raises(TypeError, match=r"to_numpy\(\)"):
            compare()


def test_an_array_is_a_key_by_its_identity() -> None:
    array, twin = cu.device_zeros(3), cu.device_zeros(3)
    assert {array: 1, twin: 2}[twin] == 2
    names = weakref.WeakKeyDictionary({array: "a", twin: "b"})
    assert [names[array], names[twin]] == ["a", "b"]
    assert array in [array]
    assert len({array, twin, array}) == 2
    del twin
    assert len(names) == 1


def test_what_needs_the_items_here_says_so() -> None:
    array, _ = pair(1)
    for ask, text in [
        (float, "make a number of"),
        (int, "make a number of"),
        (complex, "make a number of"),
        (bool, "take the truth value of .* or ask `is None` or `size`"),
        (list, r"iterate over .* array\[i\] is a view"),
        (np.asarray, r"call to_numpy\(\)"),
        (pickle.dumps, r"cannot pickle <DeviceArray shape=\(1,\).*to_device\(\)"),
    ]:
        with pytest.raises(TypeError, match=text):
            ask(array)  # type: ignore[operator]

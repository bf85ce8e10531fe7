"""Views of a DeviceArray with other axes, shapes and dtypes, against NumPy."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from test_device_array import SHAPES

import cudriver as cu
from conftest import named


def pair(shape: Any, dtype: Any = "i4") -> tuple[cu.DeviceArray, NDArray[Any]]:
    """The same items on the device and on the host."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    bits = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    model = np.frombuffer(bits.tobytes(), dtype).reshape(shape)
    return cu.to_device(model), model


def assert_same(array: cu.DeviceArray, model: NDArray[Any]) -> None:
    assert array.shape == model.shape
    assert array.dtype == model.dtype
    for length, ours, numpys in zip(model.shape, array.strides, model.strides, strict=True):
        assert ours == numpys or length <= 1 or model.size == 0
    assert array.to_numpy().tobytes() == model.tobytes()
    assert array.flags.c_contiguous == model.flags.c_contiguous
    assert array.flags.f_contiguous == model.flags.f_contiguous


NO_ORDERS = [
    (0,),
    (0, 1),
    (0, 1, 1),
    (0, 1, 3),
    (0, 1, -4),
    (0, 1, 2, 0),
    (0, 1, 2**80),
    ((), 0, 1),
]


@pytest.mark.parametrize("axes", NO_ORDERS)
def test_what_is_no_order_of_the_axes_is_refused(axes: Any) -> None:
    array, model = pair((2, 3, 4))
    with pytest.raises((ValueError, TypeError)):
        model.transpose(*axes)
    with pytest.raises((ValueError, TypeError)):
        array.transpose(*axes)


@st.composite
def shape_of(draw: st.DrawFn, size: int) -> list[int]:
    """A shape of so many items, sometimes with a length left open."""
    shape = []
    left = size
    while left > 1 and len(shape) < 6:
        shape.append(draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0][:5])))
        left //= shape[-1]
    shape = draw(st.permutations([*shape, left, *draw(st.lists(st.just(1), max_size=2))]))
    if draw(st.booleans()):
        shape = list(shape)
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return list(shape)


def test_a_shape_that_needs_a_copy_says_so() -> None:
    array, _ = pair((2, 3))
    with pytest.raises(
        ValueError, match=r"\(3, 2\) with strides \(4, 12\) has no view of .*6 .*: call copy\(\)"
    ):
        array.T.reshape(6)
    with pytest.raises(ValueError, match="order is 'C' or 'F', not 'A'"):
        array.reshape(6, order="A")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="copy"):
        array.reshape(6, copy=True)  # type: ignore[call-arg]


VIEWED = ["u1", "i2", ">i4", "f8", "c16", "S3", "V6", [("a", "i2"), ("b", "u1", (2,))]]
WANTED = [*VIEWED, ("u1", (2,))]


def numpys(step: Any, model: NDArray[Any]) -> Any:
    """NumPy's view, or the type of its error; ValueError where it has to copy."""
    try:
        made = step(model)
    except (ValueError, IndexError, TypeError) as error:
        return type(error)
    return made if made.size == 0 or np.may_share_memory(made, model) else ValueError


# Before 2.1 NumPy cannot say that a reshape copies: only dense arrays are reshaped.
KINDS = ["index", "axes", "dtype", "T"]
KINDS += ["reshape"] * (np.lib.NumpyVersion(np.__version__) >= "2.1.0")


@st.composite
def steps(draw: st.DrawFn, model: NDArray[Any]) -> Any:
    """What makes a view of an array, right or wrong."""
    what = draw(st.sampled_from(KINDS))
    if what == "index":
        loose = tuple(draw(st.lists(st.integers(0, 4), min_size=model.ndim, max_size=model.ndim)))
        key = draw(
            hnp.basic_indices(draw(st.sampled_from([model.shape, loose])), allow_newaxis=True)
        )
        key = key if isinstance(key, tuple) else (key,)
        return lambda array: array[key if ... in key else (*key, ...)]
    if what == "axes":
        axes = draw(st.permutations(range(model.ndim)) | st.lists(st.integers(-3, 3), max_size=4))
        given = draw(
            st.sampled_from([(axes,), (tuple(axes),), (np.array(axes, int),), tuple(axes)])
        )
        return lambda array: array.transpose(*given)
    if what == "reshape":
        shape = draw(shape_of(model.size) | st.lists(st.integers(-1, 6), max_size=4))
        order = draw(st.sampled_from("CF"))
        if shape and draw(st.booleans()):
            return lambda array: array.reshape(*shape, order=order)
        return lambda array: array.reshape(tuple(shape), order=order)
    dtype = np.dtype(draw(st.sampled_from(WANTED)))
    return (lambda array: array.view(dtype)) if what == "dtype" else (lambda array: array.T)


@settings(max_examples=300)
@given(data=st.data(), shape=SHAPES, dtype=st.sampled_from(VIEWED))
def test_any_sequence_of_views_is_numpys(data: st.DataObject, shape: Any, dtype: Any) -> None:
    array, model = pair(shape, np.dtype(dtype))
    base, start = array.pointer, model.ctypes.data
    for _ in range(data.draw(st.integers(1, 8), "steps")):
        step = data.draw(steps(model), "step")
        wanted = numpys(step, model)
        if isinstance(wanted, type):
            with pytest.raises(wanted):
                step(array)
            continue
        with nullcontext() if model.ndim else pytest.raises(TypeError, match="len"):
            assert len(array) == len(model)
        array, model = step(array), wanted
        assert (array.shape, array.strides, array.dtype) == (
            model.shape, model.strides, model.dtype
        )  # fmt: skip
        assert array.flags.c_contiguous == model.flags.c_contiguous
        assert array.flags.f_contiguous == model.flags.f_contiguous
        assert (array.ndim, array.size, array.nbytes) == (model.ndim, model.size, model.nbytes)
        assert model.nbytes == 0 or array.pointer - base == model.ctypes.data - start
    assert array.to_numpy().tobytes() == model.tobytes()


def test_numbers_of_numpys_are_indices() -> None:
    model = np.arange(10)
    array = cu.to_device(model)
    for key in (np.int8(3), np.uint64(9), np.array(4), slice(1 << 80, None, -(1 << 62))):
        assert np.array_equal(array[key].to_numpy(), model[key]), key


# fmt: off
BAD = [
    10, -11, 1 << 80, "a", b"a", 1.0, 1j, True, np.True_, np.float64(1), [0, 1], {}, object(),
    np.array([0, 1]), np.array([True] * 10), np.array(True), np.array([3]),
    (0, 0), (..., ...), ("a",), (slice(None), 0),
]
# fmt: on


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


def test_views_share_the_memory_and_keep_it() -> None:
    array, _ = pair((2, 6))
    views = [array.T, array.transpose(), array.reshape(12), array.view("f4"), array.T.view("u4")]
    assert {view.pointer for view in views} == {array.pointer}
    with pytest.raises(ValueError, match="5 views use"):
        array.close()
    array.fill(7)
    assert all((view.view("i4").to_numpy() == 7).all() for view in views)
    last = views.pop()
    del views
    del array
    assert (last.to_numpy() == 7).all()
    assert not last.flags.owndata


def test_flags_are_numpys() -> None:
    array, model = pair((2, 3))
    assert array.flags == (True, False, True, True)
    assert array.flags.writeable
    assert array.flags.owndata
    names = [
        name for name in dir(array.flags) if not name.startswith(("_", "n_", "count", "index"))
    ]
    assert all(hasattr(model.flags, name) for name in names)
    for shape in [(), (1,), (1, 5), (5, 1), (0, 3), (3, 0), (2, 1, 3)]:
        assert_same(*pair(shape))


def test_references_stay_as_they_are() -> None:
    array, _ = pair((2, 6))
    dtype = np.dtype([("a", "i4"), ("b", "f4")])
    order = (1, 0)
    before = [sys.getrefcount(thing) for thing in (array, dtype, order)]
    for _ in range(100):
        array.T, array.transpose(order), array.reshape(3, 4), array.flags
        assert array.view(dtype).dtype is dtype
        for wrong in (
            lambda: array.transpose(0, 0),
            lambda: array.reshape(5),
            lambda: array.T.reshape(12),
            lambda: array[:, ::2].view(dtype),
        ):
            with pytest.raises(ValueError):
                wrong()
    assert [sys.getrefcount(thing) for thing in (array, dtype, order)] == before


def test_no_traceback_keeps_an_ndarray_at_a_device_address(cu) -> None:
    """What prints a traceback's locals would read there."""
    closed = cu.device_empty(3)
    closed.close()
    array = cu.device_empty((4, 6))
    calls = [
        lambda: array.T.reshape(24),
        lambda: array.reshape(24, order="X"),
        lambda: array.reshape(24, wrong=1),
        lambda: closed.__cuda_array_interface__,
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError, cu.CudaError)) as caught:
            call()
        frames = caught.value.__traceback__
        while frames is not None:
            kept = [v for v in frames.tb_frame.f_locals.values() if type(v) is np.ndarray]
            assert kept == []
            frames = frames.tb_next

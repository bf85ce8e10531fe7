"""Views of a DeviceArray with other axes, shapes and dtypes, against NumPy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import cudriver as cu

SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)
LENGTHS = [1, 1, 2, 3, 4, 6]
RESHAPES = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0",
    reason="before 2.1 NumPy cannot say that a reshape copies: only dense arrays are reshaped",
)


def pair(shape: Any, dtype: Any = "i4") -> tuple[cu.DeviceArray, NDArray[Any]]:
    """The same items on the device and on the host."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    bits = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    model = np.frombuffer(bits.tobytes(), dtype).reshape(shape)
    return cu.to_device(model), model


@st.composite
def strided(draw: st.DrawFn, dtype: Any = "i4") -> tuple[cu.DeviceArray, NDArray[Any]]:
    """The same view of both: any basic index, then any order of the axes."""
    array, model = pair(draw(SHAPES), dtype)
    key = draw(hnp.basic_indices(model.shape, allow_newaxis=True, max_dims=6))
    array, model = array[key], np.asarray(model[key], model.dtype)
    axes = draw(st.permutations(range(model.ndim)))
    return array.transpose(axes), model.transpose(axes)


def assert_same(array: cu.DeviceArray, model: NDArray[Any]) -> None:
    assert array.shape == model.shape
    assert array.dtype == model.dtype
    for length, ours, numpys in zip(model.shape, array.strides, model.strides, strict=True):
        assert ours == numpys or length <= 1 or model.size == 0
    assert array.to_numpy().tobytes() == model.tobytes()
    assert array.flags.c_contiguous == model.flags.c_contiguous
    assert array.flags.f_contiguous == model.flags.f_contiguous


@settings(max_examples=100)
@given(data=st.data(), both=strided())
def test_any_transpose_is_numpys(data: st.DataObject, both: Any) -> None:
    array, model = both
    assert_same(array, model)
    assert_same(array.T, model.T)
    assert_same(array.transpose(), model.transpose())
    axes = data.draw(st.permutations(range(model.ndim)))
    axes = [axis - model.ndim * data.draw(st.booleans()) for axis in axes]
    for given_axes in (axes, tuple(axes), np.array(axes, int)):
        assert_same(array.transpose(given_axes), model.transpose(axes))
    if axes:
        assert_same(array.transpose(*axes), model.transpose(*axes))


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


def without_copy(model: NDArray[Any], shape: Any, order: Any) -> NDArray[Any] | None:
    """NumPy's view of that shape; None where it would have to copy."""
    made = model.reshape(shape, order=order)
    return made if made.size == 0 or np.shares_memory(made, model) else None


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


@RESHAPES
@settings(max_examples=120)
@given(data=st.data(), both=strided(), order=st.sampled_from("CF"))
def test_any_reshape_is_numpys_view_or_is_refused(
    data: st.DataObject, both: Any, order: Any
) -> None:
    array, model = both
    shape = data.draw(shape_of(model.size))
    try:
        wanted = without_copy(model, shape, order)
    except ValueError:  # a length of -1 beside one of 0
        with pytest.raises(ValueError, match="cannot reshape"):
            array.reshape(shape, order=order)
        return
    if wanted is None:
        with pytest.raises(ValueError, match=r"call copy\(\) first"):
            array.reshape(shape, order=order)
    else:
        made = array.reshape(*shape, order=order)
        assert_same(made, wanted)
        assert_same(array.reshape(tuple(shape), order=order), wanted)


@RESHAPES
@settings(max_examples=120)
@given(
    lengths=st.lists(st.sampled_from(LENGTHS), max_size=4),
    axes=st.randoms(use_true_random=False),
    steps=st.lists(st.sampled_from([1, 1, 2, -1]), min_size=4, max_size=4),
    cut=st.lists(st.sampled_from([0, 0, 1]), min_size=4, max_size=4),
    order=st.sampled_from("CF"),
    data=st.data(),
)
@example([4, 6], None, [1, 1, 1, 1], [0, 0, 0, 0], "C", None).via("both are one run")
def test_reshapes_of_what_is_partly_dense(
    lengths: list[int], axes: Any, steps: list[int], cut: list[int], order: Any, data: Any
) -> None:
    """Few lengths, small steps: here about half of all shapes can be had without a copy."""
    array, model = pair([n + c for n, c in zip(lengths, cut, strict=False)])
    key = tuple(slice(c, None, s) for c, s, _ in zip(cut, steps, lengths, strict=False))
    array, model = array[key], model[(*key, ...)]
    if axes is not None:
        turned = list(range(model.ndim))
        axes.shuffle(turned)
        array, model = array.transpose(turned), model.transpose(turned)
    shape = [3, 8] if data is None else data.draw(shape_of(model.size))
    wanted = without_copy(model, shape, order)
    if wanted is None:
        with pytest.raises(ValueError, match=r"call copy\(\) first"):
            array.reshape(shape, order=order)
    else:
        assert_same(array.reshape(shape, order=order), wanted)


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


@settings(max_examples=100)
@given(data=st.data(), before=st.sampled_from(VIEWED), after=st.sampled_from(WANTED))
def test_any_view_is_numpys(data: st.DataObject, before: Any, after: Any) -> None:
    array, model = data.draw(strided(np.dtype(before)))
    after = np.dtype(after)
    try:
        wanted = model.view(after)
    except ValueError:
        with pytest.raises(ValueError, match=r"last axis|0d array|itemsize|dtype"):
            array.view(after)
        return
    assert_same(array.view(after), wanted)


def numpys(step: Any, model: NDArray[Any]) -> Any:
    """NumPy's view, or the type of its error; ValueError where it has to copy."""
    try:
        made = step(model)
    except (ValueError, IndexError, TypeError) as error:
        return type(error)
    return made if made.size == 0 or np.may_share_memory(made, model) else ValueError


@st.composite
def steps(draw: st.DrawFn, model: NDArray[Any]) -> Any:
    """What makes a view of an array, right or wrong."""
    what = draw(st.sampled_from(["index", "axes", "reshape", "dtype", "T"]))
    if what == "index":
        loose = tuple(draw(st.lists(st.integers(0, 4), min_size=model.ndim, max_size=model.ndim)))
        key = draw(
            hnp.basic_indices(draw(st.sampled_from([model.shape, loose])), allow_newaxis=True)
        )
        key = key if isinstance(key, tuple) else (key,)
        return lambda array: array[key if ... in key else (*key, ...)]
    if what == "axes":
        axes = draw(st.permutations(range(model.ndim)) | st.lists(st.integers(-3, 3), max_size=4))
        return lambda array: array.transpose(*axes) if axes else array.transpose()
    if what == "reshape":
        shape = draw(shape_of(model.size) | st.lists(st.integers(-1, 6), max_size=4))
        order = draw(st.sampled_from("CF"))
        return lambda array: array.reshape(shape, order=order)
    dtype = np.dtype(draw(st.sampled_from(WANTED)))
    return (lambda array: array.view(dtype)) if what == "dtype" else (lambda array: array.T)


@RESHAPES
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
        array, model = step(array), wanted
        assert (array.shape, array.strides, array.dtype) == (
            model.shape, model.strides, model.dtype
        )  # fmt: skip
        assert array.flags.c_contiguous == model.flags.c_contiguous
        assert array.flags.f_contiguous == model.flags.f_contiguous
        assert (array.ndim, array.size, array.nbytes) == (model.ndim, model.size, model.nbytes)
        assert model.nbytes == 0 or array.pointer - base == model.ctypes.data - start
    assert array.to_numpy().tobytes() == model.tobytes()


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

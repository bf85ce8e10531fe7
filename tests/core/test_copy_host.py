"""Copies between overlapping views of host memory, against NumPy's of a copied source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import cudriver as cu

BYTES = 512
DTYPES = ["u1", "<i2", "<f8", "<c16", "S3", "V24", "u1,<i4"]
MAKERS = {"plain": np.zeros, "pinned": cu.pinned_zeros}

Geometry = tuple[int, tuple[int, ...]]  # offset, strides


@st.composite
def geometries(draw: st.DrawFn, shape: tuple[int, ...], itemsize: int) -> Geometry:
    """Where a view of BYTES bytes may lie: its strides may be anything."""
    near = st.integers(-3, 3).map(lambda n: n * itemsize)
    strides = tuple(draw(near | st.integers(-40, 40)) for _ in shape)
    spans = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    low = -sum(span for span in spans if span < 0)
    high = BYTES - itemsize - sum(span for span in spans if span > 0)
    assume(low <= high)
    middle = (low + high) // 2
    return draw(st.integers(max(low, middle - 24), min(high, middle + 24))), strides


def view(memory: NDArray[Any], shape: Any, dtype: np.dtype[Any], where: Geometry) -> NDArray[Any]:
    offset, strides = where
    return np.ndarray(shape, dtype, memory.data, offset, strides)


def is_apart_in_itself(shape: Any, itemsize: int, where: Geometry) -> bool:
    """Whether no two items of a view share a byte: else the order of a copy would matter."""
    marks = np.zeros(BYTES, "u1")
    items = np.ndarray((*shape, itemsize), "u1", marks.data, where[0], (*where[1], 1))
    np.add.at(items, ..., 1)
    return int(np.count_nonzero(marks)) == items.size


@settings(max_examples=400)
@given(st.data(), st.sampled_from([*MAKERS]), st.booleans(), st.sampled_from(DTYPES))
def test_overlapping_views(data: st.DataObject, kind: str, stream: bool, dtype: str) -> None:
    ndim = data.draw(st.integers(0, 3))
    item = np.dtype(dtype)
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=ndim, max_size=ndim)))
    to, source = (data.draw(geometries(shape, item.itemsize)) for _ in range(2))
    assume(is_apart_in_itself(shape, item.itemsize, to))
    model = np.frombuffer(bytearray(np.random.default_rng(0).bytes(BYTES)), "u1")
    memory = MAKERS[kind](BYTES, "u1")
    memory[...] = model

    # Through bytes of its own, so that NumPy's assignment has nothing that overlaps.
    held = np.frombuffer(bytearray(model), "u1")
    view(model, shape, item, to)[...] = view(held, shape, item, source)
    dst, src = view(memory, shape, item, to), view(memory, shape, item, source)
    if stream:
        cu.copy_async(dst, src, cu.Stream()).wait()
    else:
        cu.copy(dst, src)
    assert memory.tobytes() == model.tobytes()


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("to", "source"), [(slice(0, 10, 2), slice(1, 6)), (slice(1, 6), slice(0, 10, 2))]
)
def test_lines_of_two_strides(kind: str, to: slice, source: slice) -> None:
    memory = MAKERS[kind](10, "i8")
    memory[...] = np.arange(10)
    expected = np.arange(10)
    expected[to] = np.arange(10)[source]
    cu.copy(memory[to], memory[source])
    assert memory.tolist() == expected.tolist()
    large = MAKERS[kind](3 << 20, "u1")
    large[...] = np.arange(3 << 20) % 251
    wanted = large.copy()
    wanted[: 2 << 20 : 2] = large[1 << 20 : 2 << 20].copy()
    cu.copy(large[: 2 << 20 : 2], large[1 << 20 : 2 << 20])
    assert np.array_equal(large, wanted)

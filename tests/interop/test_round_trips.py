"""Arrays of any shape, strides and type to another library and back by DLPack: one memory."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from interop.libraries import LIBRARIES
from interop.library import Library, NotHere

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
st = pytest.importorskip("hypothesis.strategies")

TYPES = ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8", "c8", "c16")
DENSE = ("JAX",)  # takes and has no strides
FORWARD = ("PyTorch",)  # has no negative strides
HOST = [library for library in LIBRARIES if "host" not in library.lacks]
DEVICE = [library for library in LIBRARIES if not {"device", "DLPack"} & {*library.lacks}]


@st.composite
def views(draw: Any, library: Library) -> tuple[np.ndarray, Any, Any]:
    """An array, what is taken of it, and the order of the axes that are left."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    dtype = np.dtype(draw(st.sampled_from(TYPES)))
    base = np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)
    if library.name in DENSE:
        return base, (), tuple(range(len(shape)))
    step = st.integers(1, 3)
    if library.name not in FORWARD:
        step |= st.integers(-3, -1)
    ends = st.none() | st.integers(-5, 5)
    part = st.builds(slice, ends, ends, step)
    key = tuple(draw(part | st.integers(0, size - 1) if size else part) for size in shape)
    left = sum(isinstance(one, slice) for one in key)
    return base, key, draw(st.permutations(range(left)))


def opened(library: Library, device: bool) -> None:
    if not library.installed():
        pytest.skip(f"{library.name} is not installed")
    try:
        library.open()
        if device:
            library.open_device()
    except NotHere as why:
        pytest.skip(str(why))


def whole(library: Any) -> Any:
    """JAX has items of 64 bits only if asked."""
    return library.jax.enable_x64(True) if library.name == "JAX" else contextlib.nullcontext()


def same_steps(one: Any, other: Any) -> bool:
    """Whether each item lies where it did. Strides of axes of one item mean nothing."""
    matter = [i for i, size in enumerate(one.shape) if size > 1 and one.size]
    return one.shape == other.shape and all(one.strides[i] == other.strides[i] for i in matter)


@pytest.mark.parametrize("library", HOST, ids=repr)
@hypothesis.given(data=st.data())
def test_host_memory(library: Any, data: Any) -> None:
    opened(library, device=False)
    base, key, axes = data.draw(views(library))
    model = base[(*key, ...)].transpose(axes)
    if library.name == "PyTorch":
        theirs = library.host_array(base)[(*key, ...)].permute(axes)
    elif library.name == "NumPy":
        theirs = model
    else:
        with whole(library):
            theirs = library.host_array(model)
    ours = cu.from_dlpack(theirs)
    assert ours.dtype == model.dtype
    assert np.array_equal(ours, model)
    assert same_steps(ours, model)
    assert not model.size or ours.ctypes.data == library.pointer(theirs)


@pytest.mark.parametrize("library", DEVICE, ids=repr)
@hypothesis.given(data=st.data())
def test_device_memory(library: Any, data: Any) -> None:
    opened(library, device=True)
    base, key, axes = data.draw(views(library))
    model = base[(*key, ...)].transpose(axes)
    ours = cu.to_device(base)[key].transpose(axes)
    with whole(library):
        theirs = library.take(ours)
    assert tuple(theirs.shape) == model.shape
    assert not model.size or library.pointer(theirs) == ours.pointer
    again = cu.from_dlpack(theirs)
    assert again.dtype == model.dtype
    assert np.array_equal(again.to_numpy(), model)
    assert same_steps(again, ours)
    assert not model.size or again.pointer == ours.pointer

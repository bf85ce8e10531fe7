"""The C loops that move strided memory on the host, against NumPy."""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

CEXT = Path(__file__).resolve().parents[2] / "cext"
MAX_DIMS = 64
INT64 = np.iinfo(np.int64)
SANITIZE = {
    "asan": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "ubsan": ["-fsanitize=undefined", "-fno-sanitize-recover=all"],
}.get(os.environ.get("CUDRIVER_TEST_SANITIZER", ""), [])


class Layout(ctypes.Structure):
    """`struct cudriver_layout` of cext/engine/layout.h."""

    _fields_ = [
        ("ndim", ctypes.c_int),
        ("itemsize", ctypes.c_size_t),
        ("shape", ctypes.c_int64 * MAX_DIMS),
        ("dst_strides", ctypes.c_int64 * MAX_DIMS),
        ("src_strides", ctypes.c_int64 * MAX_DIMS),
        ("dst_offset", ctypes.c_int64),
        ("src_offset", ctypes.c_int64),
    ]

    def dims(self) -> list[tuple[int, int, int]]:
        return list(zip(self.shape, self.dst_strides, self.src_strides, strict=True))[: self.ndim]


def layout_of(
    itemsize: int, shape: tuple[int, ...], dst: tuple[int, ...], src: tuple[int, ...]
) -> Layout:
    made = Layout(ndim=len(shape), itemsize=itemsize)
    for d, (n, a, b) in enumerate(zip(shape, dst, src, strict=True)):
        made.shape[d], made.dst_strides[d], made.src_strides[d] = n, a, b
    return made


def layout_between(dst: np.ndarray, src: np.ndarray) -> Layout:
    assert dst.shape == src.shape
    return layout_of(src.dtype.itemsize, src.shape, dst.strides, src.strides)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = os.environ.get("CC", "cc").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no C compiler ({compiler[0]}) to build cext/engine/layout.c with")
    if not CEXT.is_dir():
        pytest.skip("no C sources beside the tests")
    library = tmp_path_factory.mktemp("layout") / "liblayout.so"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [
            *compiler,
            *("-std=c11", "-O3", *warnings, *SANITIZE, "-shared", "-fPIC"),
            *("-o", str(library), str(CEXT / "engine" / "layout.c")),
        ],
        check=True,
    )
    lib = ctypes.CDLL(str(library))
    pointer = ctypes.POINTER(Layout)
    lib.cudriver_layout_simplify.argtypes = [pointer, ctypes.c_bool]
    lib.cudriver_layout_simplify.restype = ctypes.c_size_t
    lib.cudriver_layout_bytes.argtypes = [pointer]
    lib.cudriver_layout_bytes.restype = ctypes.c_size_t
    lib.cudriver_layout_pack.argtypes = [pointer, ctypes.c_bool]
    lib.cudriver_layout_pack.restype = None
    lib.cudriver_layout_copy.argtypes = [
        *(pointer, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    ]
    lib.cudriver_layout_copy.restype = None
    numbers = ctypes.POINTER(ctypes.c_int64)
    lib.cudriver_extent.argtypes = [
        *(ctypes.c_int, ctypes.c_size_t, numbers, numbers, numbers, numbers)
    ]
    lib.cudriver_extent.restype = None
    return lib


ITEMSIZES = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 64, 130])


@st.composite
def one_side(draw: st.DrawFn, shape: tuple[int, ...], itemsize: int) -> tuple[np.ndarray, ...]:
    """(whole, view): an array and a view of it with `shape`, of any order, steps and signs."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in shape]
    leads = [draw(st.sampled_from([0, 0, 1, 5])) for _ in shape]
    lengths = [lead + n * step for lead, n, step in zip(leads, shape, steps, strict=True)]
    whole = np.zeros([lengths[d] for d in order], dtype=f"V{itemsize}")
    view = whole.transpose(np.argsort(order)) if shape else whole
    view = view[(..., *(slice(a, None, s) for a, s in zip(leads, steps, strict=True)))]
    for d in range(len(shape)):
        if draw(st.booleans()):
            view = np.flip(view, d)
    assert view.shape == shape
    return whole, view


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    itemsize = draw(ITEMSIZES)
    ndim = draw(st.integers(0, 5))
    longest = [200, 200, 60, 14, 7, 5][ndim]
    shape = tuple(draw(st.integers(0 if d == 0 else 1, longest)) for d in range(ndim))
    dst_whole, dst = draw(one_side(shape, itemsize))
    src_whole, src = draw(one_side(shape, itemsize))
    noise(src_whole, draw(st.integers(0, 2**32 - 1)))
    if ndim and draw(st.sampled_from([False, False, True])):
        d = draw(st.integers(0, ndim - 1))
        if shape[d]:
            src = np.broadcast_to(src[tuple([slice(None)] * d + [slice(0, 1)])], shape)
    return dst_whole, dst, src_whole, src


def noise(array: np.ndarray, seed: int) -> None:
    """Fills a C-ordered array with bytes of which none is zero."""
    if array.nbytes:
        raw = np.random.default_rng(seed).integers(1, 256, array.nbytes, dtype=np.uint8)
        array.reshape(-1).view(np.uint8)[:] = raw


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def copy_whole(native: ctypes.CDLL, layout: Layout, dst: int | None, src: int | None) -> None:
    end = native.cudriver_layout_bytes(layout)
    native.cudriver_layout_copy(layout, dst, src, 0, end)


def raw(array: np.ndarray) -> bytes:
    return array.tobytes()


def bounds(array: np.ndarray) -> tuple[int, int]:
    """Lowest and one past the highest byte, relative to the array's first item."""
    low, high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
    return low - address(array), high - address(array)


@given(pair=pairs(), by_src=st.booleans(), simplified=st.booleans())
@settings(max_examples=300)
def test_copy_moves_what_numpy_moves(
    native: ctypes.CDLL, pair: tuple[np.ndarray, ...], by_src: bool, simplified: bool
) -> None:
    dst_whole, dst, src_whole, src = pair
    before = raw(src_whole)
    layout = layout_between(dst, src)
    expected_bytes = dst.size * dst.dtype.itemsize
    assert native.cudriver_layout_bytes(layout) == expected_bytes
    if simplified:
        assert native.cudriver_layout_simplify(layout, not by_src) == expected_bytes
        assert native.cudriver_layout_bytes(layout) == expected_bytes
    copy_whole(native, layout, address(dst), address(src))

    ours = raw(dst_whole)
    dst_whole.reshape(-1).view(np.uint8)[:] = 0 if dst_whole.nbytes else []
    np.copyto(dst, src)
    assert ours == raw(dst_whole)
    assert raw(src_whole) == before


@given(pair=pairs(), data=st.data(), packed=st.sampled_from(["neither", "dst", "src"]))
@settings(max_examples=300)
def test_parts_make_the_whole(
    native: ctypes.CDLL, pair: tuple[np.ndarray, ...], data: st.DataObject, packed: str
) -> None:
    dst_whole, dst, _, src = pair
    layout = layout_between(dst, src)
    total = dst.size * dst.dtype.itemsize
    cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=4)))
    ends = [0, *cuts, total]
    walk = raw(src)  # C order of the shape is the walk's order before simplification
    if packed != "neither":
        native.cudriver_layout_pack(layout, packed == "dst")
    for begin, end in pairwise(ends):
        slot = np.zeros(end - begin + 2, dtype=np.uint8)
        inside = address(slot) + 1 - begin
        to, source = address(dst), address(src)
        if packed == "dst":
            to = inside
        if packed == "src":
            source = inside
            slot[1:-1] = np.frombuffer(walk[begin:end], dtype=np.uint8)
        native.cudriver_layout_copy(layout, to, source, begin, end)
        if packed == "dst":
            assert slot.tobytes() == b"\0" + walk[begin:end] + b"\0"
    ours = raw(dst_whole)
    dst_whole.reshape(-1).view(np.uint8)[:] = 0 if dst_whole.nbytes else []
    if packed != "dst":
        np.copyto(dst, src)
    assert ours == raw(dst_whole)


@given(pair=pairs(), data=st.data(), by_src=st.booleans())
@settings(max_examples=200)
def test_packed_parts_of_a_simplified_layout_round_trip(
    native: ctypes.CDLL, pair: tuple[np.ndarray, ...], data: st.DataObject, by_src: bool
) -> None:
    dst_whole, dst, _, src = pair
    layout = layout_between(dst, src)
    total = native.cudriver_layout_simplify(layout, not by_src)
    into, out = Layout.from_buffer_copy(layout), Layout.from_buffer_copy(layout)
    native.cudriver_layout_pack(into, True)
    native.cudriver_layout_pack(out, False)
    cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=3)))
    ends = [0, *cuts, total]
    for begin, end in pairwise(ends):
        slot = np.zeros(end - begin + 1, dtype=np.uint8)
        native.cudriver_layout_copy(into, address(slot) - begin, address(src), begin, end)
        native.cudriver_layout_copy(out, address(dst), address(slot) - begin, begin, end)
    ours = raw(dst_whole)
    dst_whole.reshape(-1).view(np.uint8)[:] = 0 if dst_whole.nbytes else []
    np.copyto(dst, src)
    assert ours == raw(dst_whole)


@given(pair=pairs(), by_src=st.booleans())
@settings(max_examples=200)
def test_simplest_form(native: ctypes.CDLL, pair: tuple[np.ndarray, ...], by_src: bool) -> None:
    _, dst, _, src = pair
    layout = layout_between(dst, src)
    if native.cudriver_layout_simplify(layout, not by_src) == 0:
        assert layout.dims() == [(0, 0, 0)]
        return
    dims = layout.dims()
    assert all(n > 1 for n, _, _ in dims)
    assert not any(a <= 0 and b <= 0 and (a or b) for _, a, b in dims)
    key = (lambda d: (abs(d[2]), abs(d[1]))) if by_src else (lambda d: (abs(d[1]), abs(d[2])))
    assert dims == sorted(dims, key=key, reverse=True)
    for (_, a, b), (n, c, d) in pairwise(dims):
        assert not (a == c * n and b == d * n), "neighbours that could be merged"
    if dims:
        assert dims[-1][1:] != (layout.itemsize, layout.itemsize), "a run that could be longer"
    if dst.flags.c_contiguous and src.flags.c_contiguous:
        assert layout.ndim == 0
        assert layout.itemsize == dst.nbytes
    assert bounds(dst) == extent(native, layout, True)
    if not any(s == 0 for s in src.strides):
        assert bounds(src) == extent(native, layout, False)


def extent(native: ctypes.CDLL, layout: Layout, of_dst: bool) -> tuple[int, int]:
    low, high = ctypes.c_int64(), ctypes.c_int64()
    strides = layout.dst_strides if of_dst else layout.src_strides
    offset = layout.dst_offset if of_dst else layout.src_offset
    native.cudriver_extent(layout.ndim, layout.itemsize, layout.shape, strides, low, high)
    return offset + low.value, offset + high.value


@given(pair=pairs())
@settings(max_examples=100)
def test_extent_is_numpys(native: ctypes.CDLL, pair: tuple[np.ndarray, ...]) -> None:
    _, dst, _, src = pair
    layout = layout_between(dst, src)
    if dst.nbytes == 0:
        assert extent(native, layout, True) == (0, 0)
    else:
        assert extent(native, layout, True) == bounds(dst)
        assert extent(native, layout, False) == bounds(src)


STRIDES = st.one_of(
    st.sampled_from([INT64.min, INT64.max, -1, 0, 1, 2**32, -(2**62)]),
    st.integers(INT64.min, INT64.max),
)
LENGTHS = st.one_of(st.integers(1, 3), st.integers(1, 2**62))


@given(
    itemsize=st.one_of(st.integers(1, 64), st.integers(1, 2**63)),
    dims=st.lists(st.tuples(LENGTHS, STRIDES, STRIDES), max_size=MAX_DIMS),
)
@example(itemsize=8, dims=[(2**40, 0, 0), (2**40, 8, 0)])
@example(itemsize=8, dims=[(2**31, 2**62, 2**62), (2**31, 2**31, 2**31)])
@settings(max_examples=300)
def test_huge_layouts_do_not_overflow(
    native: ctypes.CDLL, itemsize: int, dims: list[tuple[int, int, int]]
) -> None:
    shape, dst, src = zip(*dims, strict=True) if dims else ((), (), ())
    layout = layout_of(itemsize, shape, dst, src)
    bytes_exact = itemsize * math.prod(shape)
    bytes_said = min(bytes_exact, 2**64 - 1)
    low = sum(min(0, (n - 1) * s) for n, s, _ in dims)
    high = sum(max(0, (n - 1) * s) for n, s, _ in dims) + itemsize
    clipped = (max(low, INT64.min), min(high, INT64.max))
    assert extent(native, layout, True) == clipped
    assert native.cudriver_layout_bytes(layout) == bytes_said
    assert native.cudriver_layout_simplify(layout, True) == bytes_said
    # The merged dimensions still span what the separate ones did.
    assert layout.itemsize * math.prod(n for n, _, _ in layout.dims()) == bytes_exact
    if INT64.min < low and high <= INT64.max and INT64.min not in dst:
        assert extent(native, layout, True) == clipped


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_items_without_size(native: ctypes.CDLL, shape: tuple[int, ...]) -> None:
    layout = layout_of(0, shape, (5,) * len(shape), (7,) * len(shape))
    copy_whole(native, layout, None, None)
    assert native.cudriver_layout_bytes(layout) == 0
    assert extent(native, layout, True) == (0, 0)
    assert native.cudriver_layout_simplify(layout, True) == 0
    copy_whole(native, layout, None, None)


def test_sixty_four_dimensions(native: ctypes.CDLL) -> None:
    # Ordered so that nothing merges; lengths 1 and 2 with 2**16 items in all.
    lengths = [2 if d % 4 == 0 else 1 for d in range(MAX_DIMS)]
    src = np.arange(2**16, dtype=np.int32)
    strides, stride = [0] * MAX_DIMS, 4
    order = list(range(0, MAX_DIMS, 4))
    for d in order[1::2] + order[0::2]:
        strides[d], stride = stride, stride * 2
    dst_strides = [0] * MAX_DIMS
    stride = 4
    for d in reversed(order):
        dst_strides[d], stride = stride, stride * 2
    layout = layout_of(4, tuple(lengths), tuple(dst_strides), tuple(strides))
    dst = np.zeros_like(src)
    simple = Layout.from_buffer_copy(layout)
    assert native.cudriver_layout_simplify(simple, True) == src.nbytes
    copy_whole(native, simple, address(dst), address(src))
    expected = np.lib.stride_tricks.as_strided(
        src, [lengths[d] for d in order], [strides[d] for d in order]
    )
    assert np.array_equal(dst.reshape(expected.shape), expected)
    again = np.zeros_like(src)
    copy_whole(native, layout, address(again), address(src))
    assert np.array_equal(again, dst)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "c16", "V3", "V40", "V200"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1000, 700), (1, 0)),
        ((40, 50, 60), (2, 1, 0)),
        ((40, 50, 60), (0, 2, 1)),
        ((40, 50, 60), (1, 2, 0)),
        ((300, 200, 3), (2, 0, 1)),
        ((3, 300, 200), (1, 2, 0)),
        ((8, 9, 10, 11, 12), (4, 0, 3, 1, 2)),
    ],
)
def test_permutations_larger_than_a_tile(
    native: ctypes.CDLL, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    if np.dtype(dtype).itemsize > 16:  # a tile has fewer of them
        shape = tuple(n // 3 if n > 40 else n for n in shape)
    whole = np.zeros(shape, dtype=dtype if dtype[0] == "V" else f"V{np.dtype(dtype).itemsize}")
    noise(whole, 7)
    src = whole.transpose(axes)
    dst = np.zeros(src.shape, dtype=whole.dtype)
    layout = layout_between(dst, src)
    native.cudriver_layout_simplify(layout, True)
    copy_whole(native, layout, address(dst), address(src))
    assert dst.tobytes() == src.tobytes()
    back = np.zeros(shape, dtype=whole.dtype)
    layout = layout_between(back.transpose(axes), dst)
    native.cudriver_layout_simplify(layout, False)
    copy_whole(native, layout, address(back), address(dst))
    assert back.tobytes() == whole.tobytes()

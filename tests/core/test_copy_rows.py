"""copy_rows() and copy_many(): what they copy, what they refuse, and one piece of work for all."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from copykit import wait_for
from cudriver.memory import rows
from graphkit import Capture

pytestmark = pytest.mark.threads

COPIES = ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2")


@pytest.fixture(autouse=True)
def _nothing_is_left(no_leaks: None) -> None: ...


def random(shape: Any, dtype: Any = np.uint8, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(1, 127, shape).astype(dtype)


#: Memory of the host: made, and filled with an array.
HOSTS: dict[str, Callable[[Any], Any]] = {
    "page-locked": cu.pinned_array,
    "pageable": np.array,
    "strided": lambda data: np.repeat(data, 2, axis=-1)[..., ::2],
    "column-major": np.asfortranarray,
    "every other row": lambda data: np.repeat(cu.pinned_array(data), 2, axis=0)[::2],
    "a view of page-locked": lambda data: cu.pinned_array(np.repeat(data, 2, axis=0))[1::2],
}
ROWS = [
    ((40, 4096), np.uint8), ((40, 16), np.uint8), ((40, 17), np.uint8), ((40, 3), np.int16),
    ((40, 5, 7), np.float32), ((40, 1030), np.float64), ((40,), np.int32), ((6, 1 << 20), np.uint8),
    ((5, 700_001), np.uint8),
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(("shape", "dtype"), ROWS, ids=str)
def test_rows_are_copied_as_numpy_does(host: str, shape: Any, dtype: Any) -> None:
    rng, rows = np.random.default_rng(7), shape[0]
    plain = random(shape, dtype)
    source, there = HOSTS[host](plain), cu.to_device(np.zeros(shape, dtype))
    to, of = rng.permutation(rows)[: rows // 2], rng.integers(-rows, rows, rows // 2)
    wanted = np.zeros(shape, dtype)
    wanted[to] = plain[of]
    cu.copy_rows(there, source, to, of)
    assert np.array_equal(there.to_numpy(), wanted)

    back = HOSTS[host](np.zeros(shape, dtype))
    down = np.zeros(shape, dtype)
    down[of := rng.permutation(rows)[: rows // 2]] = wanted[to]
    cu.copy_rows_async(back, there, of, to, stream=cu.Stream()).wait()
    assert np.array_equal(back, down)

    other = cu.to_device(np.zeros(shape, dtype))
    between = np.zeros(shape, dtype)
    between[of] = wanted[to]
    cu.copy_rows(other, there, of, to)
    assert np.array_equal(other.to_numpy(), between)


@pytest.mark.parametrize(
    "rows",
    [
        [3, -1, 0], (3, -1, 0), np.array([3, -1, 0], np.int8), np.array([3, -1, 0])[::1],
        np.array([3, 0, 4, 0, 0])[[0, 2, 1]], range(3), np.array([2, 0, 3], np.uint64), [],
        np.array([[0, 3], [1, 2], [2, 1]])[:, 1],
    ],
    ids=repr,
)  # fmt: skip
def test_indices_are_any_sequence_of_integers(rows: Any) -> None:
    plain = random((5, 32))
    there = cu.to_device(np.zeros_like(plain))
    cu.copy_rows(there, cu.pinned_array(plain), rows, rows)
    at = np.asarray(rows, np.int64)
    wanted = np.zeros_like(plain)
    wanted[at] = plain[at]
    assert np.array_equal(there.to_numpy(), wanted)


def test_rows_within_one_array() -> None:
    plain = random((8, 100))
    cache = cu.to_device(plain)
    cu.copy_rows(cache, cache, [0, 2, 4, 6], [1, 3, 3, 7])
    plain[[0, 2, 4, 6]] = plain[[1, 3, 3, 7]]
    assert np.array_equal(cache.to_numpy(), plain)


BAD: dict[str, tuple[type[Exception], str, Callable[[Any, Any], object]]] = {
    "lengths": (ValueError, "1 dst_rows, 2 src_rows", lambda d, h: cu.copy_rows(d, h, [0], [1, 2])),
    "too large": (
        IndexError, "dst_rows: index 4 is out of bounds for axis 0 with size 4",
        lambda d, h: cu.copy_rows(d, h, [0, 4], [0, 1]),
    ),
    "too small": (
        IndexError, "src_rows: index -5 is out of bounds for axis 0 with size 4",
        lambda d, h: cu.copy_rows(d, h, [0, 1], [0, -5]),
    ),
    "too large a source": (
        IndexError, "src_rows: index 4 is out of bounds for axis 0 with size 4",
        lambda d, h: cu.copy_rows(d, h, [0, 1], [0, 4]),
    ),
    "too small a destination": (
        IndexError, "dst_rows: index -5 is out of bounds for axis 0 with size 4",
        lambda d, h: cu.copy_rows(d, h, [0, -5], [0, 1]),
    ),
    "huge": (
        IndexError, "18446744073709551615 is out of bounds",
        lambda d, h: cu.copy_rows(d, h, np.array([2**64 - 1], np.uint64), [0]),
    ),
    "beyond int64": (IndexError, "object", lambda d, h: cu.copy_rows(d, h, [2**70], [0])),
    "bools": (IndexError, "type bool", lambda d, h: cu.copy_rows(d, h, [True], [0])),
    "floats": (IndexError, "type float64", lambda d, h: cu.copy_rows(d, h, [1.0], [0])),
    "text": (IndexError, "<U1", lambda d, h: cu.copy_rows(d, h, ["a"], [0])),
    "a number": (ValueError, "dst_rows has 0 dimensions", lambda d, h: cu.copy_rows(d, h, 1, [1])),
    "a table": (ValueError, "2 dimensions", lambda d, h: cu.copy_rows(d, h, [[1]], [1])),
    "twice": (
        ValueError, "dst_rows has 2 twice", lambda d, h: cu.copy_rows(d, h, [2, 0, -2], [0, 1, 2]),
    ),
    "twice of many": (
        ValueError, "dst_rows has 3 twice",
        lambda d, h: cu.copy_rows(cu.device_empty((2000, 64), "u1"), h, [3, 1999, 3], [0, 1, 2]),
    ),
    "read and written": (
        ValueError, "what pair 1 writes overlaps what pair 0 reads",
        lambda d, h: cu.copy_rows(d, d, [0, 1], [1, 2]),
    ),
    "onto itself": (ValueError, "overlaps", lambda d, h: cu.copy_rows(d, d, [1], [1])),
    "rows that overlap": (
        ValueError, "what pairs 0 and 1 write overlaps",
        lambda d, h: cu.copy_rows(
            np.lib.stride_tricks.as_strided(h, (2, 64), (1, 1)), d, [0, 1], [0, 1]
        ),
    ),
    "shapes": (ValueError, "shapes differ", lambda d, h: cu.copy_rows(d, h[:, 1:], [1], [1])),
    "dimensions": (ValueError, "shapes differ", lambda d, h: cu.copy_rows(d, h[0], [1], [1])),
    "dtypes": (TypeError, "dtypes differ", lambda d, h: cu.copy_rows(d, h.view("i1"), [1], [1])),
    "no rows": (ValueError, "without dimensions", lambda d, h: cu.copy_rows(d[0, 0], h, [0], [0])),
    "no array": (TypeError, "src is not an array", lambda d, h: cu.copy_rows(d, [1], [0], [0])),
    "read-only": (ValueError, "read-only", lambda d, h: cu.copy_rows(locked(h), d, [0], [0])),
    "no stream": (TypeError, "a stream is", lambda d, h: cu.copy_rows_async(d, h, [0], [0], 3)),
    "closed": (ValueError, "closed", lambda d, h: cu.copy_rows(closed(d), h, [0], [0])),
    "many lengths": (
        ValueError, "2 destinations, 1 sources", lambda d, h: cu.copy_many([d[0], d[1]], [h[0]]),
    ),
    "many shapes": (
        ValueError, "shapes", lambda d, h: cu.copy_many([d[0], d[1]], [h[0], h[1, 1:]]),
    ),
    "many dtypes": (
        TypeError, "dtypes", lambda d, h: cu.copy_many([d[0], d[1]], [h[0], h[1].view("i1")]),
    ),
    "many overlap": (
        ValueError, "what pairs 0 and 2 write overlaps",
        lambda d, h: cu.copy_many([d[0], d[2], d[0, 63:]], [h[0], h[1], h[3, :1]]),
    ),
    "many read and written": (
        ValueError, "what pair 1 writes overlaps what pair 0 reads",
        lambda d, h: cu.copy_many([h[0], d[1]], [d[1], h[1]]),
    ),
    "many closed": (ValueError, "closed", lambda d, h: cu.copy_many([d, closed(d)], [h, h])),
    "not many": (TypeError, "not iterable", lambda d, h: cu.copy_many(3, [h])),
    "many of nothing": (TypeError, "src is not", lambda d, h: cu.copy_many([d[0]], [None])),
}  # fmt: skip


def locked(array: Any) -> Any:
    view = array[:]
    view.flags.writeable = False
    return view


def closed(array: Any) -> Any:
    other = cu.device_empty(array.shape, array.dtype)
    other.close()
    return other


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_anything_is_queued(sim: Any, case: str) -> None:
    error, text, call = BAD[case]
    plain = random((4, 64))
    host, there = cu.pinned_array(plain), cu.to_device(np.zeros_like(plain))
    sim.settle()
    sim.reset_counts()
    with pytest.raises(error, match=text):
        call(there, host)
    assert [sim.call_count(name) for name in (*COPIES, "cuLaunchKernel")] == [0, 0, 0, 0]
    assert not there.to_numpy().any()
    assert np.array_equal(host, plain)
    there.close()  # no call uses it any more


def test_the_pair_is_named() -> None:
    hosts = [cu.pinned_zeros(4) for _ in range(3)]
    there = [cu.device_empty(4), cu.device_empty(4), cu.device_empty(3)]
    with pytest.raises(ValueError, match="shapes differ") as caught:
        cu.copy_many(there, hosts)
    assert "pair 2" in caught.value.__notes__[0]


def test_another_device_is_refused(two_devices: Any) -> None:
    host, there = cu.pinned_zeros((4, 4)), cu.device_zeros((4, 4), device=1)
    first = cu.device_zeros((4, 4))
    stream = cu.Stream()  # of device 0
    with pytest.raises(ValueError, match="the stream is on device 0, the array on device 1"):
        cu.copy_rows_async(there, host, [0], [1], stream=stream)
    with pytest.raises(ValueError, match="the stream is on device 0, the array on device 1"):
        cu.copy_many([first, there], [host, host])
    cu.copy_rows(there, first, [0, 1], [1, 2])  # between two: as copy_async() does it


class Lent:
    """An array that is shown by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def mixture(seed: int, pins: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Destinations, sources, and what the destinations should be, of memory of any kind."""
    rng = np.random.default_rng(seed)
    destinations, sources, wanted = [], [], []

    def half_locked(data: Any) -> Any:
        made = np.array(data)
        if len(half := made.reshape(-1)[made.size // 2 :]):
            pins.append(cu.pin(half))
        return made

    makers = [cu.pinned_array, np.array, cu.to_device, half_locked]
    for _ in range(30):
        dims = rng.integers(0, 4)
        shape = tuple(rng.integers(0, 40, dims).tolist())
        data = random(shape, rng.choice(np.array(["u1", "<i2", "<f8"])), int(rng.integers(1 << 30)))
        first, second = (makers[i](data) for i in rng.integers(0, 4, 2))
        lends = rng.random() < 0.2
        order = rng.permutation(dims).tolist()
        if rng.random() < 0.3:
            first, second, data = (x.transpose(order) for x in (first, second, data))
        elif dims and rng.random() < 0.3:
            first, second, data = first[::2], second[::2], data[::2]
        empty = np.zeros_like(data)
        cu.copy(first, empty) if empty.size else None
        destinations.append(first)
        sources.append(Lent(second) if lends else second)
        wanted.append(data)
    return destinations, sources, wanted


@pytest.mark.parametrize("seed", range(12))
def test_any_mixture_is_copied(seed: int) -> None:
    pins: list[Any] = []
    destinations, sources, wanted = mixture(seed, pins)
    cu.copy_many(destinations, iter(sources))
    for pin in pins:
        pin.close()
    for there, data in zip(destinations, wanted, strict=True):
        assert np.array_equal(there.to_numpy() if hasattr(there, "pointer") else there, data)


class Shown:
    """Memory of the host, or of a device, that shows where it lies and cannot be indexed."""

    def __init__(self, array: Any) -> None:
        self.owner, name = array, "__array_interface__"
        name = name if isinstance(array, np.ndarray) else "__cuda_array_interface__"
        setattr(self, name, getattr(array, name))


@pytest.mark.parametrize("other", [np.array, cu.to_device])
@pytest.mark.parametrize(
    "make",
    [bytearray, lambda plain: array.array("B", plain), (ctypes.c_uint8 * 12).from_buffer_copy,
     lambda plain: Shown(np.frombuffer(bytearray(plain), np.uint8)),
     lambda plain: Shown(cu.to_device(np.repeat(np.frombuffer(plain, np.uint8), 2))[::2]),
     lambda plain: memoryview(bytearray(plain))],
    ids=["bytearray", "array.array", "ctypes", "shown", "shown, of a device", "memoryview"],
)  # fmt: skip
def test_rows_of_what_has_no_slices_that_are_views(make: Any, other: Any) -> None:
    """Not of ctypes, nor of array.array; those of others are copies."""
    plain, out = random(12), np.zeros(12, np.uint8)
    source = other(plain)
    ours = make(bytes(12))
    cu.copy_rows(ours, source, [1, 2, 11], [3, 4, -1])
    cu.copy(out, np.frombuffer(ours, np.uint8) if isinstance(ours, ctypes.Array) else ours)
    wanted = np.zeros(12, np.uint8)
    wanted[[1, 2, 11]] = plain[[3, 4, -1]]
    assert np.array_equal(out, wanted)
    there = other(np.zeros(12, np.uint8))
    cu.copy_rows(there, ours, [5, 6], [11, 2])
    back = there if isinstance(there, np.ndarray) else there.to_numpy()
    assert np.array_equal(back[5:7], wanted[[11, 2]])


@pytest.mark.parametrize(("shape", "strides"), [((10, 4), (8, 8)), ((5, 2, 2), (4, 8, 4))])
def test_rows_with_gaps_that_share_items_are_refused(shape: Any, strides: Any) -> None:
    base = np.zeros(100, np.int32)
    host, there = (
        np.lib.stride_tricks.as_strided(base, shape, strides),
        cu.device_zeros(shape, "i4"),
    )
    with pytest.raises(ValueError, match="what pairs 0 and 1 write overlaps"):
        cu.copy_rows(host, there, [0, 1], [0, 1])
    cu.copy_rows(host, there, [0, 4], [0, 1])
    turned = np.zeros((6, 40), np.int32).T
    cu.copy_rows(turned, cu.to_device(np.ones((2, 6), np.int32)), [0, 1], [0, 1])
    assert turned.sum() == 12


def test_what_is_interleaved_does_not_overlap() -> None:
    plain = random((20, 32))
    there = cu.to_device(np.zeros_like(plain))
    halves = [plain[:, :16].copy(), plain[:, 16:].copy()]
    cu.copy_many([there[:, :16], there[:, 16:]], halves)
    assert np.array_equal(there.to_numpy(), plain)
    host = np.zeros_like(plain)
    cu.copy_many([host[:, ::2], host[:, 1::2]], [there[:, ::2], there[:, 1::2]])
    assert np.array_equal(host, plain)
    cu.copy_many([there[:, ::2]], [there[:, 1::2]])
    assert np.array_equal(there.to_numpy()[:, ::2], plain[:, 1::2])
    with pytest.raises(ValueError, match="what pairs 0 and 2 write overlaps"):
        cu.copy_many(
            [there[:, ::2], there[:, 1::2], there[:, 4::8]],
            [host[:, ::2], host[:, ::2], host[:, 4::8]],
        )
    with pytest.raises(ValueError, match="overlaps what pair"):
        cu.copy_many([there[:, ::2], host[0]], [host[:, ::2], there[3]])
    ends = there.reshape(-1)[28:-4].reshape(19, 32)[:, :8]  # and the beginnings of the next
    with pytest.raises(ValueError, match="what pairs 0 and 1 write overlaps"):
        cu.copy_many([ends, there[1:, :4]], [host[1:, :8], host[1:, :4]])


def test_items_that_numpys_interface_cannot_name() -> None:
    """It has no float8: rows with gaps were a TypeError."""
    float8 = pytest.importorskip("ml_dtypes", reason="NumPy has no float8 of its own").float8_e5m2
    plain = random((6, 32)).astype(float8)
    there = cu.to_device(plain)
    cu.copy_rows(there[:, ::2], plain[:, 1::2], [5, 0], [1, 2])
    cu.copy_many([there[1:, ::2]], [there[1:, 1::2]])
    wanted = plain.copy()
    wanted[[5, 0], ::2] = plain[[1, 2], 1::2]
    wanted[1:, ::2] = plain[1:, 1::2]
    assert there.to_numpy().tobytes() == wanted.tobytes()
    with pytest.raises(ValueError, match="overlap"):
        cu.copy_rows(there[:, ::2], there[:, ::2], [0], [0])


@pytest.mark.parametrize("make", [np.zeros, cu.device_zeros])
def test_what_others_lend_and_is_interleaved_does_not_overlap(make: Any) -> None:
    plain, whole = random((20, 32)), make((20, 32), np.uint8)
    halves = [Lent(whole[:, :16]), Lent(whole[:, 16:])]
    there = [cu.to_device(plain[:, :16].copy()), cu.to_device(plain[:, 16:].copy())]
    cu.copy_many(halves, there)
    assert np.array_equal(whole if make is np.zeros else whole.to_numpy(), plain)
    with pytest.raises(ValueError, match="overlap"):
        cu.copy_many([Lent(whole[:, :16]), Lent(whole[:, 15:31])], there)


def test_none_at_all() -> None:
    transfer = cu.copy_many_async([], [])
    transfer.wait()
    assert transfer.done
    assert transfer.nbytes == 0


def test_a_kernel_copies_small_rows_and_the_driver_large_ones(sim: Any) -> None:
    host, there = cu.pinned_array(random((100, 512))), cu.device_empty((100, 512), np.uint8)
    rows = np.arange(100)
    cu.copy_rows(there, host, rows, rows)  # loads the kernel
    sim.reset_counts()
    cu.copy_rows(there, host, rows, rows)
    cu.copy_many(list_of(there, 100), list_of(host, 100))
    assert sim.call_count("cuLaunchKernel") == 2
    assert sum(map(sim.call_count, COPIES)) == 0
    large, there = cu.pinned_array(random((5, 1 << 20))), cu.device_empty((5, 1 << 20), np.uint8)
    cu.copy_rows(there, large, range(5), range(5))
    assert sim.call_count("cuLaunchKernel") == 2
    assert sim.call_count("cuMemcpyHtoDAsync_v2") == 5, "a default stream takes no batch"


@pytest.mark.parametrize(("failing", "each"), [("2:1", 2), ("1:801", 66)])
def test_a_stream_takes_64_large_rows_in_one_call(sim: Any, failing: str, each: int) -> None:
    few, rows = random((4, 1 << 20)), np.arange(66)
    host, there = cu.pinned_array(few), cu.device_empty((66, 1 << 20), np.uint8)
    sim.fail(f"cuMemcpyBatchAsync_v2:{failing}")
    sim.reset_counts()
    cu.copy_rows_async(there, host, rows, rows % 4, stream=cu.Stream()).wait()
    assert sim.call_count("cuMemcpyBatchAsync_v2") == (1 if each == 66 else 2)
    assert sum(map(sim.call_count, COPIES)) == each
    assert np.array_equal(there.to_numpy(), few[rows % 4])


def list_of(array: Any, count: int) -> list[Any]:
    return [array[i] for i in range(count)]


@pytest.mark.parametrize("call", ["cuModuleLoadDataEx", "cuModuleGetFunction"])
def test_where_there_is_no_kernel_the_driver_copies(sim: Any, call: str) -> None:
    with cu.Context(0):
        host, there = cu.pinned_array(random((50, 48))), cu.device_empty((50, 48), np.uint8)
        sim.fail(f"{call}:1:801")
        rows = np.arange(50)
        cu.copy_rows(there, host, rows, rows[::-1])
        assert np.array_equal(there.to_numpy(), host[::-1])
        assert sim.call_count("cuMemcpyHtoDAsync_v2") == 50
        del there


@pytest.mark.parametrize("width", [5000, 10_007, 200_000])
@pytest.mark.parametrize("way", ["up", "down"])
def test_many_pageable_rows_are_staged_together(sim: Any, width: int, way: str) -> None:
    rows = 12_000_000 // width
    plain, there = random((rows, width)), cu.device_zeros((rows, width), np.uint8)
    to, of = np.random.default_rng(3).permuted(np.tile(np.arange(rows), (2, 1)), axis=1)
    if way == "down":
        cu.copy(there, plain)
    sim.reset_counts()
    if way == "up":
        cu.copy_rows(there, plain, to, of)
    else:
        out = np.zeros_like(plain)
        cu.copy_rows(out, there, to, of)
    assert sim.call_count("cuLaunchKernel") < rows / 2 + 40
    assert sum(map(sim.call_count, COPIES)) == 0
    wanted = np.zeros_like(plain)
    wanted[to] = plain[of]
    assert np.array_equal(there.to_numpy() if way == "up" else out, wanted)


@pytest.mark.parametrize(
    "failing",
    ["cuStreamBatchMemOp_v2:1:801", "cuLaunchKernel:1:801", "cuMemHostGetDevicePointer_v2:2:2"],
)
def test_pageable_rows_are_copied_one_by_one_where_they_must_be(sim: Any, failing: str) -> None:
    elsewhere, four = cu.device_empty((4, 8)), cu.pinned_zeros((4, 8))
    cu.copy_rows(elsewhere, four, range(4), range(4))  # the new context is asked again
    with cu.Context(0):
        plain, there = random((300, 5000)), cu.device_zeros((300, 5000), np.uint8)
        sim.fail(failing)
        cu.copy_rows(there, plain, range(300), range(299, -1, -1))
        assert np.array_equal(there.to_numpy(), plain[::-1])
        del there


def test_page_locked_pieces_of_others_are_page_locked() -> None:
    plain = random((64, 4096))
    there = cu.device_empty(plain.shape, plain.dtype)
    half = plain[:32], plain[32:]
    with cu.pin(half[0]), cu.pin(half[1]):  # two registrations
        cu.copy_rows(there, plain, range(64), range(64))
        cu.copy_many([there[16:48]], [plain[16:48]])
    assert np.array_equal(there.to_numpy(), plain)


def test_rows_that_are_page_locked_in_part_are_not_given_to_the_kernel() -> None:
    plain = random((8, 16 << 10))
    there = cu.device_empty(plain.shape, plain.dtype)
    for part in (slice(0, 8 << 10), slice(8 << 10, None), slice(4 << 10, 9000)):
        pins = [cu.pin(row[part]) for row in plain]
        assert cu.explain_copy(list_of(there, 8), list_of(plain, 8)).counts == {"staged": 8}
        cu.copy_many(list_of(there, 8), list_of(plain, 8))
        assert np.array_equal(there.to_numpy(), plain)
        for pin in pins:
            pin.close()


def test_a_copy_that_begins_within_a_registration_is_cut_where_each_ends(sim: Any) -> None:
    size, count = 64 << 10, 8
    plain, there = random(size * count), cu.device_zeros(size * count, np.uint8)
    pins = [cu.pin(plain[i * size : (i + 1) * size]) for i in range(count)]
    part = slice(size // 2, -size // 4)
    sim.settle()
    sim.reset_counts()
    cu.copy_async(there[part], plain[part], cu.Stream()).wait()
    assert sim.call_count("cuMemcpyHtoDAsync_v2") == count
    assert np.array_equal(there[part].to_numpy(), plain[part])
    for pin in pins:
        pin.close()


@pytest.mark.parametrize("end", ["source", "destination"])
def test_no_array_of_a_call_that_is_running_can_be_closed(sim: Any, end: str) -> None:
    """Each is counted until the driver has all copies, though the Transfer holds none yet."""
    first, second = ([cu.device_zeros(64, np.uint8) for _ in range(8)] for _ in range(2))
    cu.copy_many(first, second)  # loads the kernel
    calls = sim.call_count("cuLaunchKernel")
    sim.hold_call("cuLaunchKernel", 1)
    copying = threading.Thread(target=cu.copy_many_async, args=(first, second))
    copying.start()
    wait_for(lambda: sim.call_count("cuLaunchKernel") > calls, "the call is under way")
    with pytest.raises(ValueError, match="cannot close"):
        (second if end == "source" else first)[3].close()
    sim.clear_faults()
    copying.join()
    sim.settle()  # the copies hold the arrays until then


def test_a_call_that_fails_waits_for_what_it_has_queued(sim: Any) -> None:
    """The kernel reads a table, which goes back to the pool."""
    locked, plain = cu.pinned_zeros((8, 64), np.uint8), np.zeros((4, 64), np.uint8)
    there, stream = cu.device_zeros((12, 64), np.uint8), cu.Stream()
    to, of = list_of(there, 12), [*list_of(locked, 8), *list_of(plain, 4)]
    cu.copy_many_async(to, of, stream).wait()
    failed: list[cu.CudaError] = []

    def copy() -> None:
        try:
            cu.copy_many_async(to, of, stream)
        except cu.CudaError as error:
            failed.append(error)

    sim.settle()
    sim.hold()
    asked = sim.call_count("cuStreamQuery")
    sim.fail("cuStreamQuery:1:999")  # whether the stream is idle: first of the staged part
    copying = threading.Thread(target=copy)
    copying.start()
    wait_for(lambda: sim.call_count("cuStreamQuery") > asked, "the staged part fails")
    copying.join(0.2)
    assert copying.is_alive(), "the kernel is queued"
    sim.release()
    copying.join()
    assert [error.code for error in failed] == [999]


# ---- one piece of work ----


@pytest.fixture
def held(sim: Any) -> Iterator[Any]:
    """Streams stand still until held.release()."""
    host, there = cu.pinned_zeros((8, 64), np.uint8), cu.device_zeros((8, 64), np.uint8)
    cu.copy_rows(there, host, range(8), range(8))  # what is made at first use is made
    cu.copy_many([there[0]], [np.zeros(64, np.uint8)])
    del there
    sim.settle()
    yield sim
    sim.release()
    sim.settle()


def copies(kind: str, there: Any, host: Any, stream: Any) -> Any:
    if kind == "rows":
        return cu.copy_rows_async(there, host, range(8), range(8), stream=stream)
    return cu.copy_many_async(list_of(there, 8), list_of(host, 8), stream=stream)


KINDS = pytest.mark.parametrize("kind", ["rows", "many"])
MEMORIES = pytest.mark.parametrize("memory", ["page-locked", "pageable"])


def test_a_strided_source_is_the_callers_again(held: Any) -> None:
    stream, there = cu.Stream(), cu.device_zeros((2000, 64), np.uint8)
    source = np.full((2000, 128), 1, np.uint8)[:, ::2]
    first = cu.device_zeros(100), cu.pinned_zeros(100)
    held.settle()
    held.hold()
    before = cu.copy_async(*first, stream)  # it is busy
    transfer = cu.copy_many_async([there], [source], stream)
    source[...] = 2
    held.release()
    before.wait()
    transfer.wait()
    assert (there.to_numpy() == 1).all()


@KINDS
@MEMORIES
def test_it_is_one_transfer_in_the_order_of_its_stream(held: Any, kind: str, memory: str) -> None:
    first = HOSTS[memory](random((8, 64)))
    wanted = first.copy()
    there, out = cu.to_device(np.zeros_like(first)), cu.pinned_empty_like(first)
    stream = cu.Stream()
    held.hold()
    early = cu.copy_async(out, there, stream)
    transfer = copies(kind, there, first, stream)
    late = cu.copy_async(out, there, stream)
    assert isinstance(transfer, cu.Transfer)
    assert transfer.nbytes == first.nbytes
    assert not transfer.done
    held.release()
    transfer.wait()
    assert transfer.done
    assert early.done
    late.wait()
    assert np.array_equal(out, wanted)


@KINDS
@MEMORIES
def test_both_ends_live_until_it_is_over(held: Any, kind: str, memory: str) -> None:
    host = HOSTS[memory](random((8, 64)))
    there = cu.to_device(np.zeros_like(host))
    wanted, gone = host.copy(), [weakref.ref(host), weakref.ref(there)]
    stream = cu.Stream()
    held.hold()
    copies(kind, there, host, stream)  # the Transfer is dropped
    view = there[:]
    with pytest.raises(ValueError, match="cannot close"):
        there.close()
    del host, there
    gc.collect()
    if memory == "page-locked" or kind == "rows":
        assert gone[0]() is not None
    held.release()
    stream.synchronize()
    gc.collect()
    assert gone[0]() is None
    assert np.array_equal(view.to_numpy(), wanted)


def test_an_array_in_it_cannot_be_closed_and_is_waited_for(held: Any) -> None:
    host, there = cu.pinned_array(random((8, 64))), cu.to_device(np.zeros((8, 64), np.uint8))
    stream = cu.Stream()
    held.hold()
    transfer = cu.copy_many_async([there], [host], stream=stream)
    with pytest.raises(ValueError, match="an asynchronous copy uses it"):
        there.close()
    held.release()
    assert np.array_equal(there.to_numpy(), host)  # after every call in flight on the memory
    transfer.wait()
    there.close()


@KINDS
def test_a_pin_that_ends_earlier_takes_no_memory_from_the_kernel(held: Any, kind: str) -> None:
    """The kernel of a queued copy would meet an address that is no longer mapped."""
    plain = random((8, 64))
    there, stream = cu.to_device(np.zeros_like(plain)), cu.Stream()
    pin = cu.pin(plain)
    before = cu.host_memory_stats().pins
    held.hold()
    transfer = copies(kind, there, plain, stream)
    pin.close()
    assert cu.is_pinned(plain)
    held.release()
    transfer.wait()
    assert not cu.is_pinned(plain)
    assert cu.host_memory_stats().pins == before - 1
    assert np.array_equal(there.to_numpy(), plain)


def test_a_capture_refuses_it_and_goes_on(held: Any) -> None:
    host, there = cu.pinned_zeros((8, 64)), cu.device_zeros((8, 64))
    stream = cu.Stream()
    capture = Capture(ctypes.CDLL(cu.driver_path()), stream)
    with capture:
        for kind in ("rows", "many"):
            for memory in (host, np.zeros((8, 64))):
                with pytest.raises(cu.CudaError, match="cannot be captured"):
                    copies(kind, there, memory, stream)
    assert capture.nodes() == 0
    capture.close()


def test_a_failure_of_the_device_is_told_by_the_transfer(sim: Any) -> None:
    host, there = cu.pinned_zeros((8, 64)), cu.device_zeros((8, 64))
    sim.fail("cuLaunchKernel:1:719")
    with pytest.raises(cu.CudaError, match="cuLaunchKernel"):
        copies("rows", there, host, None)
    copies("rows", there, host, None).wait()


def test_streams_of_other_libraries_and_of_a_with_statement() -> None:
    plain = random((8, 64))
    there = cu.to_device(np.zeros_like(plain))
    with cu.Stream() as stream:
        cu.copy_rows(there, cu.pinned_array(plain), range(8), range(8))
        stream.synchronize()
    assert np.array_equal(there.to_numpy(), plain)


def test_memory_of_another_context() -> None:
    """The stream's context may be another one of the device."""
    plain = random((8, 64))
    host, out = cu.pinned_array(plain), cu.pinned_zeros((8, 64), np.uint8)
    with cu.Context(0) as context:
        there = cu.to_device(np.zeros_like(plain))
    stream = cu.Stream()
    cu.copy_rows_async(there, host, range(8), range(8), stream=stream).wait()
    cu.copy_rows_async(out, there, range(8), range(8), stream=stream).wait()
    assert np.array_equal(out, plain)
    del there
    context.close()


def test_a_row_across_two_registrations(sim: Any) -> None:
    """The kernel goes from one to the next; the driver's copy would be refused."""
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 4 * page) as memory:
        host = np.frombuffer(memory, np.uint8)
        host[:] = random((4 * page,))
        parts = [cu.pin(host[: 2 * page]), cu.pin(host[2 * page :])]
        rows = [host[at : at + page] for at in range(9, 3 * page, 100)]
        there = [cu.device_empty(page, np.uint8) for _ in rows]
        cu.copy_many(there, rows)  # loads the kernel
        sim.reset_counts()
        cu.copy_many(there, rows)
        assert sim.call_count("cuLaunchKernel") == 1
        for one, row in zip(there, rows, strict=True):
            assert np.array_equal(one.to_numpy(), row)
        for part in parts:
            part.close()
        del host, rows, row


def test_indices_that_another_thread_changes_are_those_that_were_checked() -> None:
    mine = np.arange(5)
    for taken in rows.indices(mine, mine):
        assert taken.tolist() == mine.tolist()
        assert not np.shares_memory(taken, mine)

"""Copies against NumPy: random shapes, strides, offsets and item sizes on both sides."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

import cudriver as cu
import cudriver.typing as cut
from copykit import lateness, wait_for
from native_build import TESTS
from program import output, run

#: The copy engine packs with threads of its own: of each kind of copy ThreadSanitizer sees one.
watched, slow = pytest.mark.threads, pytest.mark.slow

DTYPES = ["u1", "<i2", "<f4", "<f8", "<c16", "S3", "S5", "V24", "<M8[ns]"]


@st.composite
def slices(draw: st.DrawFn, length: int, wanted: int) -> slice:
    """A slice of an axis of `length` that gives `wanted` items."""
    if wanted == 0:
        return slice(0, 0)
    step = draw(st.sampled_from([s for s in (1, 2, 3, -1, -2) if (wanted - 1) * abs(s) < length]))
    span = (wanted - 1) * abs(step)
    first = draw(st.integers(0, length - 1 - span))
    if step > 0:
        return slice(first, first + span + 1, step)
    last = first - 1
    return slice(first + span, None if last < 0 else last, step)


def random_bytes(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.frombuffer(bytearray(rng.bytes(size)), dtype=dtype).reshape(shape)


def raw(array: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def placed(model: NDArray[Any], device: int = 0) -> Any:
    there = cu.device_empty(model.shape, model.dtype, device=min(device, cu.device_count() - 1))
    cu.copy(there, model)
    return there


#: Where an array may be, and how it is made there.
MAKERS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "plain": np.array,
    "pinned": cu.pinned_array,
    "device 0": placed,
    "device 1": lambda model: placed(model, 1),
}


def contents(array: Any) -> bytes:
    return raw(array if isinstance(array, np.ndarray) else array.to_numpy())


def streams_of(*arrays: Any) -> list[Any]:
    """The devices on whose streams a copy between these may be issued."""
    return [a.device for a in arrays if isinstance(a, cu.DeviceArray)] or [cu.Device(0)]


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: str, seed: int) -> tuple[Any, ...]:
    """(an array, a view of it of `shape`; the same of a model of NumPy's): any axes and steps."""
    axes = draw(st.permutations(range(len(shape))))
    inner = [shape[i] for i in np.argsort(axes)]
    most = 3 if len(shape) < 4 else 2
    base = [length * draw(st.integers(1, most)) + draw(st.integers(0, 1)) for length in inner]
    index = (*(draw(slices(b, n)) for b, n in zip(base, inner, strict=True)), ...)
    model = random_bytes(tuple(base), np.dtype(dtype), seed)
    array = MAKERS[draw(st.sampled_from(sorted(MAKERS)))](model)
    return array, array[index].transpose(axes), model, model[index].transpose(axes)


@settings(max_examples=250)
@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    shape=st.one_of(
        st.lists(st.integers(0, 7), max_size=4),
        st.lists(st.integers(1, 2), min_size=5, max_size=9),
        st.lists(st.sampled_from([1, 31, 32, 33]), min_size=2, max_size=3),
    ),
    late=st.booleans(),
)
def test_a_copy_is_numpys(
    simulator: Any, data: st.DataObject, dtype: str, shape: list[int], late: bool
) -> None:
    ends = [data.draw(views(tuple(shape), dtype, seed)) for seed in (1, 2)]
    (dst, to, to_model, expected), (src, source, source_model, _) = ends
    expected[...] = ends[1][3]
    with lateness(simulator, late):
        if data.draw(st.booleans()):
            cu.copy(to, source)
        else:
            device = data.draw(st.sampled_from(streams_of(dst, src)))
            cu.copy_async(to, source, cu.Stream(device=device)).wait()
        assert contents(dst) == raw(to_model)
        assert contents(src) == raw(source_model)


@watched
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_give_what_the_same_program_gives_in_order(seed: int, request: Any) -> None:
    """Copies and fills of strided parts on a few streams, with events where they depend on each
    other, against the same steps on NumPy arrays. On the simulated driver each takes its time."""
    if cu.driver_is_simulated():
        sim = request.getfixturevalue("sim")
        sim.set_latency(100 * (seed % 2))
        sim.set_late(300 * (seed % 3 == 0))
    rng = random.Random(seed)
    models = [random_bytes((60, 240), np.dtype("i4"), i) for i in range(8)]
    arrays = [make(model) for make, model in zip([*MAKERS.values()] * 2, models, strict=True)]
    streams = [cu.Stream(device=device) for device in cu.devices()[:2] for _ in range(2)]
    last: list[Any] = [None] * len(arrays)

    def part() -> Any:
        row, column = rng.randrange(30), rng.randrange(120)
        steps = [slice(column, column + 120), slice(None, None, 2), slice(None, None, -2)]
        return slice(row, row + 30), rng.choice(steps)

    for step in range(150):
        to, source = rng.randrange(len(arrays)), rng.randrange(len(arrays))
        near = streams_of(arrays[to], arrays[source])
        stream = rng.choice([stream for stream in streams if stream.device in near])
        for event in (last[to], last[source]):
            if event is not None:
                stream.wait(event)
        a, b = part(), part()
        if isinstance(arrays[to], cu.DeviceArray) and rng.random() < 0.3:
            if arrays[to].device != stream.device:
                continue
            arrays[to][a].fill(step, stream=stream)
            models[to][a] = step
        else:
            cu.copy_async(arrays[to][a], arrays[source][b], stream, borrow=True)
            models[to][a] = models[source][b].copy()
        last[to] = last[source] = stream.record()
    for stream in streams:
        stream.synchronize()
    for array, model in zip(arrays, models, strict=True):
        assert contents(array) == raw(model)


def calls(simulator: Any) -> int:
    """Copies to the device that the driver was asked for."""
    names = ("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2")
    return 0 if simulator is None else sum(map(simulator.call_count, names))


@pytest.mark.parametrize("kind", ["plain", "pinned"])
@pytest.mark.parametrize("offset", [0, 1, 4095])
@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        3,
        4096,
        65535,
        65536,
        65537,
        (1 << 20) - 1,
        1 << 20,
        (1 << 20) + 1,
        pytest.param((5 << 20) + 7, marks=watched),
    ],
)
def test_sizes_around_every_threshold(simulator: Any, kind: str, offset: int, size: int) -> None:
    total = offset + size + 17
    model = random_bytes((total,), np.dtype("u1"), size)
    host = cu.pinned_array(model) if kind == "pinned" else model.copy()
    there = cu.device_zeros(total, np.uint8)
    before = calls(simulator)
    ends = there[offset : offset + size], host[offset : offset + size]
    cu.copy(*ends)
    if simulator is not None and cu.explain_copy(*ends).path == "direct":
        assert calls(simulator) - before == 1
    expected = np.zeros(total, np.uint8)
    expected[offset : offset + size] = model[offset : offset + size]
    back = there.to_numpy()
    assert np.array_equal(back, expected)
    target = np.full(total, 7, np.uint8)
    cu.copy(target[offset : offset + size], there[offset : offset + size])
    assert np.array_equal(target[offset : offset + size], model[offset : offset + size])
    assert (target[:offset] == 7).all()
    assert (target[offset + size :] == 7).all()


def large_views(rows: int) -> list[tuple[str, Any]]:
    return [
        ("rows of half width", lambda a: a[:, : a.shape[1] // 2]),
        ("every other item", lambda a: a[:, ::2]),
        ("rows reversed", lambda a: a[::-1]),
        ("both reversed, every other", lambda a: a[::-1, ::2]),
        ("every third row", lambda a: a[::3]),
    ]


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("dtype", ["u1", pytest.param("<f4", marks=watched), "<c16"])
@pytest.mark.parametrize(("name", "view"), large_views(0))
def test_large_strided_copies(pinned: bool, dtype: str, name: str, view: Any) -> None:
    shape = ((6 << 20) // np.dtype(dtype).itemsize // 1024, 1024)
    model = random_bytes(shape, np.dtype(dtype), 5)
    host = cu.pinned_array(model) if pinned else model.copy()
    for there_view in (lambda a: a, view):
        source = view(host)
        there = cu.device_zeros(shape if there_view is view else source.shape, dtype)
        cu.copy(there_view(there), source)
        got = there.to_numpy()
        assert raw(there_view(got)) == raw(source), name
        back = np.zeros_like(model)
        cu.copy(view(back), there_view(there))
        assert raw(view(back)) == raw(source), name


@pytest.mark.parametrize("itemsize", [1, pytest.param(2, marks=watched), 4, 8, 16, 3])
@pytest.mark.parametrize("axes", [(1, 0, 2), pytest.param((2, 1, 0), marks=slow), (2, 0, 1)])
def test_large_transposed_copies(itemsize: int, axes: tuple[int, int, int]) -> None:
    dtype = np.dtype(f"V{itemsize}")
    # About 9 MB in five chunks, or 5 MB in three.
    inner = min(301, 604 // itemsize) if axes == (2, 1, 0) else 301 // itemsize | 1
    model = random_bytes((61, 257, inner), dtype, 3)
    there = cu.to_device(model.transpose(axes))
    assert there.shape == model.transpose(axes).shape
    assert raw(there.to_numpy()) == raw(model.transpose(axes))
    back = np.zeros_like(model)
    cu.copy(back.transpose(axes), there)
    assert raw(back) == raw(model)


@watched
def test_a_broadcast_source_and_overlapping_views() -> None:
    row = np.arange(1000, dtype=np.int32)
    there = cu.device_empty((300, 1000), np.int32)
    cu.copy(there, np.broadcast_to(row, (300, 1000)))
    assert (there.to_numpy() == row).all()

    line = np.arange(100000, dtype=np.int64)
    on_device = cu.to_device(line)
    cu.copy(on_device[5:], on_device[:-5])
    expected = line.copy()
    expected[5:] = line[:-5]
    assert np.array_equal(on_device.to_numpy(), expected)
    cu.copy(on_device, on_device)
    assert np.array_equal(on_device.to_numpy(), expected)
    assert cu.explain_copy(on_device, on_device).path == "same"


def test_what_does_not_match_is_refused_and_changes_nothing() -> None:
    there = cu.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
    for shape in ((4, 3), (12,), (3,), (3, 4, 1), ()):
        for ends in ((there, np.zeros(shape, "f4")), (np.ones(shape, "f4"), there)):
            with pytest.raises(ValueError, match="shapes differ"):
                cu.copy(*ends)
            with pytest.raises(ValueError, match="shapes differ"):
                cu.copy_async(*ends, None)
    for bad_type in (np.zeros((3, 4)), np.zeros((3, 4), ">f4"), np.zeros((3, 4), np.int32)):
        with pytest.raises(TypeError, match="dtypes differ"):
            cu.copy(there, bad_type)
    with pytest.raises(TypeError, match="src is not an array, but a list"):
        cu.copy(there, [[1.0] * 4] * 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Python objects"):
        cu.copy(there, np.zeros((3, 4), object))
    frozen = np.zeros((3, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        cu.copy(frozen, there)
    assert np.array_equal(there.to_numpy().ravel(), np.arange(12))


def test_the_paths_that_are_explained() -> None:
    pinned = cu.pinned_zeros((4096, 1024), np.float32)
    plain = np.zeros((4096, 1024), np.float32)
    there = cu.device_zeros((4096, 1024), np.float32)
    assert cu.explain_copy(there, pinned)[:4:3] == ("direct", True)
    assert cu.explain_copy(there, pinned)[4:8] == (None, 0, 0, 0), "of staged copies only"
    assert cu.explain_copy(there, pinned)[8:] == ({"direct": 1}, 0, 0.0), "of many copies"
    assert cu.explain_copy(there, plain).path == "staged"
    assert cu.explain_copy(there[:1], plain[:1]).path == "direct"
    assert cu.explain_copy(there[:, :512], pinned[:, :512]).path == "2D"
    assert cu.explain_copy(there[::-1], pinned)[:4:3] == ("staged", True)
    assert cu.explain_copy(there, plain.reshape(1024, 4096).T.copy(order="C")).nbytes == 16 << 20
    assert cu.explain_copy(there, plain[:, ::-1]).path == "staged"
    assert cu.explain_copy(plain, plain).path == "host"
    assert cu.explain_copy(there[:0], plain[:0]).path == "empty"
    assert all(len(plan) == 11 for plan in [cu.explain_copy(there, plain)])


def test_a_notebook_shows_a_plan_as_a_table() -> None:
    def shown(plan: cut.CopyPlan) -> dict[str, str]:
        rows = ElementTree.fromstring(plan._repr_html_())
        return {row[0].text or "": row[1].text or "" for row in rows}

    there, host = cu.device_empty((1 << 12, 1 << 12), "u1"), np.zeros((1 << 13, 1 << 13), "u1")
    staged = cu.explain_copy(there, host[::2, ::2])
    assert shown(staged) == {
        "path": "staged",
        "why": staged.why,
        "bytes": "16,777,216",
        "page-locked": "no",
        "staging": "staged, packed",
        "part": f"{staged.chunk:,} bytes",
        "threads": f"up to {staged.threads}",
        "staged from": f"{staged.crossover:,} bytes",
    }
    direct = cu.explain_copy(there, cu.pinned_empty(there.shape, "u1"))
    assert list(shown(direct)) == ["path", "why", "bytes", "page-locked"]
    assert shown(direct._replace(why="a < b & c"))["why"] == "a < b & c"


@pytest.mark.parametrize("to_device", [True, False])
def test_a_copy_is_staged_from_the_crossover_on(to_device: bool) -> None:
    def plan(nbytes: int, strided: bool) -> cut.CopyPlan:
        there = cu.device_empty(nbytes, np.uint8)
        host = np.zeros((nbytes, 2), np.uint8)[:, 0] if strided else np.zeros(nbytes, np.uint8)
        return cu.explain_copy(there, host) if to_device else cu.explain_copy(host, there)

    cu.set_host_memory_policy(copy_threads=4)  # one thread alone stages nothing
    try:
        bound = plan(64 << 20, False).crossover
        assert 1 < bound <= 64 << 20
        assert [plan(bound + more, False).path for more in (-1, 0, 1)] == [
            "direct",
            "staged",
            "staged",
        ]
        strided = [plan(bound + more, True) for more in (-1, 0, 1)]
        assert {plan.path for plan in strided} == {"staged"}
        assert [plan.staging for plan in strided] == [
            "small",
            "staged, packed",
            "staged, packed",
        ]
        assert [plan.chunk > 0 for plan in strided] == [False, True, True]
    finally:
        cu.set_host_memory_policy(copy_threads=None)


@pytest.mark.parametrize("outer", [(64,), (65,), (8, 8), (13, 5)])
@pytest.mark.parametrize("to_device", [True, False])
def test_page_locked_rows_are_the_drivers_up_to_64_calls(
    sim: Any, to_device: bool, outer: tuple[int, ...]
) -> None:
    """Planes of rows at distances that no driver call takes: each plane is a call."""
    planes = int(np.prod(outer))
    few, strides = planes <= 64, [416 * planes // outer[0] + 10, 416][-len(outer) :]
    base = cu.pinned_zeros(1 << 16, np.uint8)
    host = as_strided(base, (*outer, 4, 64), (*strides, 96, 1))
    there = cu.to_device(np.arange(host.size, dtype=np.uint8).reshape(host.shape))
    model = there.to_numpy()
    plan = cu.explain_copy(*((there, host) if to_device else (host, there)))
    assert (plan.path in ("2D", "3D")) == few
    sim.reset_counts()
    if to_device:
        host[...] = model + 1
        cu.copy(there, host)
        assert np.array_equal(there.to_numpy(), model + 1)
    else:
        cu.copy(host, there)
        assert np.array_equal(host, model)
    calls = sim.call_count("cuMemcpy3DAsync_v2")
    assert calls == planes if few else calls < 64


@watched
def test_a_copy_of_which_a_part_is_refused_is_over_when_it_says_so(sim: Any) -> None:
    """Nothing is under way to memory that nobody holds."""
    base = cu.pinned_zeros(1 << 16, np.uint8)
    host = as_strided(base, (5, 4, 64), (416, 96, 1))
    there, stream = cu.device_zeros(host.shape, np.uint8), cu.Stream()
    assert cu.explain_copy(host, there).path == "2D"
    sim.hold()
    sim.fail("cuMemcpy3DAsync_v2:3:999")
    soon = threading.Timer(0.2, sim.release)
    soon.start()
    with pytest.raises(cu.CudaError) as caught:
        cu.copy_async(host, there, stream)
    assert caught.value.code == 999
    assert stream.done
    soon.join()


@pytest.mark.parametrize("nth", [1, 2, 3, 9])
def test_a_copy_across_a_lock_that_ends_meanwhile(sim: Any, nth: int) -> None:
    """Where another thread locks the memory in steps and unlocks it, the driver refuses a copy
    across the end of a step, of which nothing is left when it is looked for."""
    host = np.arange(70_000, dtype=np.uint8)
    sim.fail(",".join(f"cuMemcpyHtoD_v2:{i}:1" for i in range(1, nth + 1)))
    np.testing.assert_array_equal(cu.to_device(host).to_numpy(), host)


def test_a_copy_that_the_driver_always_refuses(sim: Any) -> None:
    sim.fail("cuMemcpyHtoD_v2:*:1,cuMemcpyHtoDAsync_v2:*:1")
    with pytest.raises(cu.CudaError, match=r"cuMemcpyHtoD_v2\(70000 bytes") as caught:
        cu.to_device(np.zeros(70_000, np.uint8))
    assert caught.value.code == 1


@watched
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("up", [True, False])
def test_a_copy_that_the_driver_refuses_is_staged(
    sim: Any, driver: ctypes.CDLL, up: bool, blocking: bool, rows: bool
) -> None:
    """It was planned for memory that others had page-locked, and now lock in steps and unlock."""
    model = np.arange(1 << 20, dtype="u4").view("u1").reshape(-1, 1024)
    host, there = (model.copy() if up else np.zeros_like(model)), cu.to_device(model)
    if up:
        there.fill(0)
    width = 512 if rows else 1024
    ends: tuple[Any, Any] = (there[:, :width], host[:, :width])[:: 1 if up else -1]
    address = ctypes.c_void_p(host.ctypes.data)
    assert driver.cuMemHostRegister_v2(address, ctypes.c_size_t(4 << 20), 1) == 0
    assert cu.explain_copy(*ends).path == ("2D" if rows else "direct")
    function = "cuMemcpy" + ("3D" if rows else "HtoD" if up else "DtoH")
    later = rows or not blocking
    sim.fail(f"{function}Async_v2:1:1" if later else f"{function}_v2:*:1")
    if blocking:
        cu.copy(*ends)
    else:
        cu.copy_async(*ends, cu.Stream()).wait()
    assert driver.cuMemHostUnregister(address) == 0
    got = there.to_numpy() if up else host
    np.testing.assert_array_equal(got[:, :width], model[:, :width])


@watched
@pytest.mark.parametrize("scarce", [False, True])
@pytest.mark.parametrize("size", [100, 1 << 20, 5 << 20])
@pytest.mark.parametrize("what", ["up", "page-locked", "items", "device", "fill"])
def test_a_blocking_call_has_done_its_work(sim: Any, what: str, size: int, scarce: bool) -> None:
    """Streams that are not ordered with the default stream see what it wrote, though the device is
    late with all that may be late; also where no page-locked memory can be had."""
    array, other = cu.device_zeros(size, "u1"), cu.device_zeros(size, "u1")
    plain, out = np.full(2 * size, 5, "u1"), cu.pinned_zeros(size, "u1")
    pinned, stream = cu.pinned_array(plain), cu.Stream()
    other.fill(5)
    calls: dict[str, Callable[[], None]] = {
        "up": lambda: cu.copy(array, plain[:size]),
        "page-locked": lambda: cu.copy(array, pinned[:size]),
        "items": lambda: cu.copy(array, plain[::2]),
        "device": lambda: cu.copy(array, other),
        "fill": lambda: array.fill(5),
    }
    if scarce:
        cu.trim_host_memory()
        sim.fail("cuMemHostRegister_v2:*:2")
    sim.set_late(100_000)
    calls[what]()
    sim.set_late(0)
    cu.copy_async(out, array, stream).wait()
    assert (out == 5).all()


@watched
@pytest.mark.parametrize("lock", [cu.pin, cu.pin_async])
def test_a_blocking_call_has_done_its_work_though_its_lock_ends(
    sim: Any, driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, lock: Any
) -> None:
    """Page-locked when the copy was planned, pageable when the stream comes to it."""
    monkeypatch.setattr("cudriver.memory.pieces.STEP", 1 << 20)
    source, array = np.full(8 << 20, 7, "u1"), cu.device_zeros(8 << 20, "u1")
    out, stream, pin = cu.pinned_zeros(8 << 20, "u1"), cu.Stream(), lock(source)
    while not cu.is_pinned(source):
        time.sleep(0.001)
    wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.3))
    with cu.Device(0).primary_context():
        assert driver.cuLaunchHostFunc(None, wait, None) == 0
    soon = threading.Timer(0.1, pin.close)
    soon.start()
    sim.set_late(100_000)
    cu.copy(array, source)
    cu.copy_async(out, array, stream).wait()
    assert (out == 7).all()
    soon.join()


@pytest.mark.parametrize("threads", [1, 2, 40])
def test_copies_with_another_number_of_threads(threads: int) -> None:
    usual = cu.host_memory_stats().copy_threads
    source = np.random.default_rng(2).integers(0, 255, (2000, 3000), np.uint8)
    cu.set_host_memory_policy(copy_threads=threads)
    try:
        assert cu.host_memory_stats().copy_threads == threads
        for view in (source, source[:, ::2], source.T):
            there = cu.to_device(view)
            assert cu.explain_copy(there, view).threads <= threads
            assert np.array_equal(there.to_numpy(), view)
    finally:
        cu.set_host_memory_policy(copy_threads=None)
    assert cu.host_memory_stats().copy_threads == usual


@pytest.mark.parametrize("how", ["an old driver", "a refusal"])
def test_without_stream_memory_operations_asynchronous_copies_wait(how: str) -> None:
    """Drivers before CUDA 11.7 have none, and some of WSL refuse them."""
    if not cu.driver_is_simulated():
        pytest.skip("needs the simulated driver")
    program = """
        import numpy as np, cudriver as cu
        with cu.Context():
            stream = cu.Stream()
            model = np.random.default_rng(1).integers(0, 256, (3, 1000, 1200), dtype="u1")
            there = cu.to_device(model)
            turned = np.zeros((1200, 1000, 3), "u1").transpose(2, 1, 0)
            ends = [
                (model, there), (np.zeros_like(model), there), (model[:, ::2], there[:, ::2]),
                (turned, there), (np.zeros_like(model)[:, :, ::-1], there),
            ]
            for host, there in ends:
                wanted = there.to_numpy()
                cu.copy(host, there)
                assert np.array_equal(host, wanted)
                host[...] = 0
                cu.copy_async(host, there, stream).wait()
                assert np.array_equal(host, wanted)
                host[...] += 1
                cu.copy(there, host)
                assert np.array_equal(there.to_numpy(), host)
                host[...] += 1
                wanted = host.copy()
                done = cu.copy_async(there, host, stream)  # has read all when it returns
                host[...] += 1
                done.wait()
                assert np.array_equal(there.to_numpy(), wanted)
                print(cu.explain_copy(there, host).staging)
    """
    old = {"CUDRIVER_SIM_DRIVER_VERSION": "11000"}
    refusing = {"CUDRIVER_SIM_FAIL": "cuStreamWaitValue32_v2:*:801,cuStreamBatchMemOp_v2:*:801"}
    said = output(program, **(old if how == "an old driver" else refusing)).splitlines()
    assert said == [*["staged"] * 2, "staged, rows", "staged, permuted", "staged, packed"]


def test_explain_copy_says_what_is_done_after_the_kernel_was_refused() -> None:
    if not cu.driver_is_simulated():
        pytest.skip("needs the simulated driver")
    program = """
        import numpy as np, cudriver as cu
        model = np.arange(1500 * 2000, dtype="u1").reshape(1500, 2000)
        there, turned = cu.device_zeros((1500, 2000), "u1"), np.zeros((2000, 1500), "u1").T
        turned[...] = model
        print(cu.explain_copy(there, turned).staging)
        cu.copy(there, turned)
        assert np.array_equal(there.to_numpy(), model)
        print(cu.explain_copy(there, turned).staging)
    """
    said = output(program, CUDRIVER_SIM_FAIL="cuModuleLoadDataEx:*:801").splitlines()
    assert said == ["staged, permuted", "staged, packed"]


@pytest.mark.parametrize(
    "value", ["abc", "0", "-1", "1025", "99999", "9" * 300, "4.5", "3x", "\udcff"]
)
def test_a_number_of_threads_that_is_none_is_told_once(value: str) -> None:
    shown = "print(cu.host_memory_stats().copy_threads)"
    code = (
        f"import cudriver as cu; {shown}; cu.set_host_memory_policy(copy_threads=None); cu.Stream"
    )
    usual = run(code).stdout
    done = run(f"{code}; {shown}", CUDRIVER_COPY_THREADS=value)
    assert (done.returncode, done.stdout) == (0, usual * 2)
    (told,) = (line for line in done.stderr.splitlines() if "Warning" in line)
    told = told.partition(" RuntimeWarning: ")[2]
    assert told.startswith(f"CUDRIVER_COPY_THREADS={ascii(value)[:50]}"[:60])
    assert " is not a number from 1 to 1024 and is ignored: copies " in told
    assert f" use at most {int(usual)} thread" in told
    assert len(told) < 220


def test_a_number_of_threads_that_is_none_is_an_error_where_warnings_are() -> None:
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "import cudriver as cu\n"
        "try: cu.host_memory_stats().copy_threads\n"
        "except RuntimeWarning as error: print(error)"
    )
    done = run(code, CUDRIVER_COPY_THREADS="many")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("CUDRIVER_COPY_THREADS='many' is not a number")


@pytest.mark.parametrize("value", ["", "1", "1024", " 7"])
def test_a_number_of_threads_that_is_one_is_not_talked_of(value: str) -> None:
    usual = run("import cudriver as cu; print(cu.host_memory_stats().copy_threads)").stdout
    done = run(
        "import cudriver as cu; print(cu.host_memory_stats().copy_threads)",
        CUDRIVER_COPY_THREADS=value,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{value}\n".lstrip() or usual, "")


PART = 1 << 18  # of what goes down through a slot


@pytest.mark.parametrize("nbytes", [1, PART - 1, PART, PART + 1, 2 * PART, 4 * PART + 3])
def test_plain_memory_is_filled_part_by_part(sim, nbytes: int) -> None:
    source = np.random.default_rng(nbytes).integers(0, 256, nbytes, "u1")
    there, target = cu.to_device(source), np.zeros(nbytes + 1, "u1")
    before = sim.call_count("cuMemcpyDtoHAsync_v2")
    cu.copy(target[:-1], there)
    assert np.array_equal(target[:-1], source)
    assert target[-1] == 0
    assert sim.call_count("cuMemcpyDtoHAsync_v2") - before == -(-nbytes // PART)


@watched
@pytest.mark.parametrize("value", range(10))
def test_each_part_of_plain_memory_is_waited_for(sim, value: int) -> None:
    """The device does the first of two parts and stops, while the call looks for the second. A busy
    machine may begin to look too late to see only the first, so there are ten.
    """
    model = np.full(2 * PART, value, "u1")
    there, target = cu.to_device(model), np.full(2 * PART, 255, "u1")
    copying = threading.Thread(target=cu.copy, args=(target, there))
    sim.reset_counts()
    sim.hold()
    sim.step(2)  # the first part, and the word behind it
    copying.start()
    what = "the call looks no more, but sleeps"
    wait_for(lambda: sim.call_count("cuEventQuery") or not copying.is_alive(), what)
    sim.release()
    copying.join()
    assert np.array_equal(target, model)


@watched
@pytest.mark.parametrize("nbytes", [1024, 100_000, 1 << 20, 8 << 20])
def test_plain_memory_is_read_after_the_default_streams_work(sim, nbytes: int) -> None:
    """What a host function of another library's writes before, on the default stream, is copied."""
    source, there = np.zeros(nbytes, "u1"), cu.device_zeros(nbytes, "u1")

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def write(_: object) -> None:
        time.sleep(0.1)
        source[:] = 7

    library = ctypes.CDLL(cu.driver_path())
    assert library.cuLaunchHostFunc(None, write, None) == 0
    cu.copy(there, source)
    assert (there.to_numpy() == 7).all()


@watched
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("kind", ["made by default", "per thread"])
def test_memory_is_read_after_the_default_streams_work_that_a_stream_waits_for(
    kind: str, pinned: bool, blocking: bool
) -> None:
    """A stream made without CU_STREAM_NON_BLOCKING, or the per-thread default stream, says that it
    is idle while the default stream's work, which comes before its next operation, still runs.
    """
    shape = (20, 1 << 16)
    source = cu.pinned_zeros(shape, "u1") if pinned else np.zeros(shape, "u1")
    there = cu.device_zeros(shape, "u1")
    library = ctypes.CDLL(cu.driver_path())

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def write(_: object) -> None:
        time.sleep(0.1)
        source[:] = 7

    with cu.Device(0).primary_context():
        made = ctypes.c_void_p(2)  # CU_STREAM_PER_THREAD
        if kind == "made by default":
            assert library.cuStreamCreateWithPriority(ctypes.byref(made), 0, 0) == 0
        assert made.value is not None
        assert library.cuLaunchHostFunc(None, write, None) == 0
        if blocking:
            with cu.Stream.from_handle(made.value):
                cu.copy(there[::-1], source)
        else:
            stream = SimpleNamespace(cuda_stream=made.value)
            cu.copy_async(there[::-1], source, stream, borrow=True).wait()
        assert (there.to_numpy() == 7).all()
        if kind == "made by default":
            assert library.cuStreamDestroy_v2(made) == 0


@watched
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("nbytes", [1024, 100_000, 1 << 20, 8 << 20])
def test_plain_memory_is_read_after_what_its_stream_waits_for(
    nbytes: int, step: int, inside: bool
) -> None:
    """By the driver, by one block, by many: a blocking stream and the default one wait for each
    other, and the work of one of them writes what a copy on the other reads."""
    source, there = np.zeros(nbytes, "u1"), cu.device_zeros(nbytes, "u1")
    library, made = ctypes.CDLL(cu.driver_path()), ctypes.c_void_p()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def write(_: object) -> None:
        time.sleep(0.1)
        source[:] = 7

    with cu.Device(0).primary_context():
        assert library.cuStreamCreateWithPriority(ctypes.byref(made), 0, 0) == 0
        assert made.value is not None
        assert library.cuLaunchHostFunc(None if inside else made, write, None) == 0
        with cu.Stream.from_handle(made.value) if inside else nullcontext():
            cu.copy(there, source[::step])
        assert (there.to_numpy() == 7).all()
        assert library.cuStreamDestroy_v2(made) == 0


@watched
@pytest.mark.parametrize("nbytes", [1024, 100_000, 1 << 20, 8 << 20])
def test_a_copy_comes_after_what_the_default_stream_waits_for(nbytes: int) -> None:
    """Also where the engine's own stream copies, which does not wait for a blocking stream."""
    source, there = np.full(nbytes, 3, "u1"), cu.device_zeros(nbytes, "u1")
    library, made = ctypes.CDLL(cu.driver_path()), ctypes.c_void_p()
    wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.1))
    size, address = ctypes.c_size_t(nbytes), ctypes.c_ulonglong(there.pointer)
    with cu.Device(0).primary_context():
        assert library.cuStreamCreateWithPriority(ctypes.byref(made), 0, 0) == 0
        assert library.cuLaunchHostFunc(made, wait, None) == 0
        assert library.cuMemsetD8Async(address, ctypes.c_ubyte(5), size, made) == 0
        cu.copy(there, source)
        assert library.cuStreamSynchronize(made) == 0
        assert (there.to_numpy() == 3).all()
        assert library.cuStreamDestroy_v2(made) == 0


#: The shape of the device's array and a view of it; a view of the host's, of (120, 500, 8) items.
ELSEWHERE: dict[str, tuple[tuple[int, ...], Any, Callable[[Any], Any]]] = {
    "dense": ((120, 500, 8), np.s_[:], lambda a: a),
    "small": ((120, 500, 8), np.s_[3, 4], lambda a: a[3, 4]),
    "packed": ((120, 250, 8), np.s_[:], lambda a: a[:, ::2]),
    "one slot": ((120, 500, 8), np.s_[:1, ::-4], lambda a: a[:1, ::4]),
    "long runs": ((120, 500, 8), np.s_[:], lambda a: a[::-1]),
    "permuted": ((8, 120, 500), np.s_[:], lambda a: a.transpose(2, 0, 1)),
    "every other item": ((120, 500, 8), np.s_[..., ::2], lambda a: a[..., 1::2]),
}


def copy_elsewhere(blocking: bool, pinned: bool, name: str) -> None:
    """There and back on a stream of another context than the array's, behind that stream's work."""
    shape, key, view = ELSEWHERE[name]
    model = random_bytes((120, 500, 8), np.dtype("i4"), 7)
    host = cu.pinned_array(model) if pinned else model.copy()
    back = cu.pinned_zeros(model.shape, "i4") if pinned else np.zeros_like(model)
    there = cu.device_empty(shape, "i4")
    context = cu.Context()
    with context:
        stream = cu.Stream()
    there.fill(5, stream=stream)
    if blocking:
        with stream:
            cu.copy(there[key], view(host))
            there.fill(6, stream=stream)
            cu.copy(there[key], view(host))
            cu.copy(view(back), there[key])
    else:
        cu.copy_async(there[key], view(host), stream)
        there.fill(6, stream=stream)
        cu.copy_async(there[key], view(host), stream)
        cu.copy_async(view(back), there[key], stream).wait()
    expected = np.full(shape, 6, "i4")
    expected[key] = view(model)
    assert raw(there.to_numpy()) == raw(expected), name
    assert raw(view(back)) == raw(view(model)), name
    stream.close()
    context.close()


@watched
@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("blocking", [False, True])
def test_a_stream_of_another_context_of_the_device(
    request: pytest.FixtureRequest, simulator: Any, blocking: bool, pinned: bool, name: str
) -> None:
    if simulator is not None:
        request.getfixturevalue("sim").set_latency(1000)
    copy_elsewhere(blocking, pinned, name)


def test_a_stream_whose_kernels_cannot_use_the_memory() -> None:
    """Memory of no pool belongs to one context."""
    program = """
        import itertools, sys
        sys.path[:0] = sys.argv[1:]
        from test_copy import ELSEWHERE, copy_elsewhere, cu, np
        for arguments in itertools.product([False, True], [False, True], ELSEWHERE):
            copy_elsewhere(*arguments)
        array, context = cu.device_zeros((150, 30, 20), "V12"), cu.Context()
        with context:
            stream = cu.Stream()
        array[::2, ::2, ::2].fill(np.void(b"123456789012"), stream=stream)
        stream.synchronize()
        filled = array.to_numpy() == np.void(b"123456789012")
        assert filled[::2, ::2, ::2].all() and filled.sum() == 75 * 15 * 10
    """
    folders = str(Path(__file__).parent), str(TESTS)
    environ = {"CUDRIVER_LIBRARY": "sim", "CUDRIVER_SIM_FAIL": "cuMemPoolCreate:*:801"}
    done = run(program, *folders, CUDRIVER_SIM_LATENCY_US="500", **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_copy_that_waits_is_cut_as_a_blocking_one() -> None:
    """Also where it was planned for a stream, whose kernels then cannot use the memory."""
    program = """
        import ctypes, numpy as np, cudriver as cu
        sim = ctypes.CDLL(cu.driver_path())
        there, host = cu.device_empty((8, 500, 480), "i4"), np.zeros((500, 480, 8), "i4")
        with cu.Context():
            stream = cu.Stream()
        for use in (None, stream):
            sim.cudriver_sim_reset_counts()
            if use is None:
                cu.copy(there, host.transpose(2, 0, 1))
            else:
                cu.copy_async(there, host.transpose(2, 0, 1), use)
            print(sim.cudriver_sim_call_count(b"cuMemcpyHtoDAsync_v2"))
    """
    environ = {"CUDRIVER_LIBRARY": "sim", "CUDRIVER_SIM_FAIL": "cuMemPoolCreate:*:801"}
    blocking, waiting = map(int, output(program, **environ).split())
    assert blocking == waiting > 1

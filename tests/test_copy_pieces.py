"""Copies of many long page-locked pieces: as one batch where the driver has batches."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cudriver as cu
from program import output
from test_copy import random_bytes, raw

pytestmark = pytest.mark.threads

KIB = 1 << 10
BATCHES = ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2")
ONES = ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2")


def calls(sim: Any, names: tuple[str, ...]) -> int:
    return sum(sim.call_count(name) for name in names)


def ends(shape: tuple[int, ...], up: bool, dtype: str = "u1") -> tuple[Any, Any, Any, Any]:
    """(destination, source, model of the destination, of the source): the host's is page-locked."""
    models = [random_bytes(shape, np.dtype(dtype), seed) for seed in (1, 2)]
    host = cu.pinned_array(models[1 if up else 0])
    there = cu.to_device(models[0 if up else 1])
    return (there, host, *models) if up else (host, there, *models)


def contents(array: Any) -> bytes:
    return raw(array if isinstance(array, np.ndarray) else array.to_numpy())


def turned(pieces: int) -> list[tuple[str, Any, Any]]:
    """Views of (pieces, 2, length) whose runs no 2D copy takes."""
    return [
        ("turned round", np.s_[::-1], np.s_[:]),
        ("every other, turned round", np.s_[::-2, 0], np.s_[::2, 1]),
        ("both", np.s_[::-1, ::-1], np.s_[::1]),
    ]


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("pieces", [20, 50])
@pytest.mark.parametrize(("name", "to", "source"), turned(0))
@pytest.mark.parametrize("stream", ["named", "default", "blocking", "with"])
def test_long_pieces_are_one_batch(
    sim: Any, up: bool, pieces: int, name: str, to: Any, source: Any, stream: str
) -> None:
    dst, src, wanted, model = ends((pieces, 2, 64 * KIB), up)
    if isinstance(dst, np.ndarray):  # the view that is turned round is the host's
        to, source = source, to
    plan = cu.explain_copy(dst[to], src[source])
    assert (plan.path, plan.page_locked, plan.staging) == ("pieces", True, None), name
    assert "batch" in plan.why
    sim.reset_counts()
    if stream == "blocking":
        cu.copy(dst[to], src[source])
    elif stream == "with":
        with cu.Stream():
            cu.copy(dst[to], src[source])
    else:
        cu.copy_async(dst[to], src[source], cu.Stream() if stream == "named" else None).wait()
    count = wanted[to].size // (64 * KIB)
    few = count < 16 and stream in ("default", "blocking")
    assert calls(sim, BATCHES) == (0 if few else 1)
    assert calls(sim, ONES) == (count if few else 0)
    wanted[to] = model[source]
    assert contents(dst) == raw(wanted)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    up=st.booleans(),
    dtype=st.sampled_from(["u1", "<i4", "V24"]),
    length=st.sampled_from([4, 11, 12, 13, 23, 24, 25, 47, 48, 49, 63, 64, 65, 128]),
    offset=st.integers(0, 3),
    blocking=st.booleans(),
)
def test_pieces_around_every_threshold_are_numpys(
    data: st.DataObject, up: bool, dtype: str, length: int, offset: int, blocking: bool
) -> None:
    items = length * KIB // np.dtype(dtype).itemsize
    shape = (data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)), items + offset)
    dst, src, wanted, model = ends(shape, up, dtype)
    keys = []
    for _ in range(2):
        turns = [data.draw(st.sampled_from([slice(None), slice(None, None, -1)])) for _ in "ab"]
        keys.append((*turns, slice(offset, None)))
    to, source = keys
    if blocking:
        cu.copy(dst[to], src[source])
    else:
        cu.copy_async(dst[to], src[source], cu.Stream()).wait()
    wanted[to] = model[source]
    assert contents(dst) == raw(wanted)
    assert contents(src) == raw(model)


@pytest.mark.parametrize("up", [True, False])
def test_more_pieces_than_a_batch_takes(sim: Any, up: bool) -> None:
    dst, src, wanted, model = ends((1100, 64 * KIB), up)
    sim.reset_counts()
    cu.copy_async(dst[::-1], src, cu.Stream()).wait()
    assert calls(sim, BATCHES) == 2
    assert calls(sim, ONES) == 0
    wanted[::-1] = model
    assert contents(dst) == raw(wanted)


def test_short_or_pageable_or_repeated_pieces_are_staged() -> None:
    there = cu.device_zeros((100, 128 * KIB), np.uint8)
    pinned = cu.pinned_zeros((100, 128 * KIB), np.uint8)
    plain = np.zeros((100, 128 * KIB), np.uint8)
    assert cu.explain_copy(there[::-1], pinned).path == "pieces"
    assert cu.explain_copy(there[::-1], plain).path == "staged"
    assert cu.explain_copy(there[::-1, :4096], pinned[:, :4096]).path == "staged"
    assert cu.explain_copy(there, np.broadcast_to(pinned[:1], there.shape)).path == "staged"
    assert cu.explain_copy(there[:, : 64 * KIB], pinned[:, : 64 * KIB]).path == "2D"


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("default", [True, False])
def test_a_batch_keeps_the_streams_order(sim: Any, up: bool, default: bool) -> None:
    """Held: what is queued before is done before the batch, what is behind waits for it."""
    shape = (20, 64 * KIB)
    there = cu.device_zeros(shape, np.uint8)
    hosts = [cu.pinned_full(shape, i, np.uint8) for i in range(3)]
    last = cu.pinned_zeros(shape, np.uint8)
    stream = None if default else cu.Stream()
    cu.copy_async(there[::-1], hosts[0], stream).wait()  # what is made at first use is made
    hosts[1][:] = np.arange(20, dtype=np.uint8)[:, None]
    sim.hold()
    try:
        transfers = [cu.copy_async(there, hosts[1], stream)]
        if up:
            transfers.append(cu.copy_async(there[::-1], hosts[2], stream))
        else:
            transfers.append(cu.copy_async(hosts[2][::-1], there, stream))
        transfers.append(cu.copy_async(last, there, stream))
        if default:
            transfers.append(cu.copy_async(there, hosts[0], None))
        else:
            transfers.append(cu.copy_async(there, hosts[0], stream))
        assert not any(transfer.done for transfer in transfers)
    finally:
        sim.release()
    for transfer in transfers:
        transfer.wait()
    if up:
        assert (last == 2).all()
    else:
        assert np.array_equal(last, hosts[1])
        assert np.array_equal(hosts[2][::-1], hosts[1])
    assert not there.to_numpy().any()


@pytest.mark.parametrize("code", [1, 801])
@pytest.mark.parametrize("up", [True, False])
def test_pieces_that_a_batch_refuses_go_one_by_one(sim: Any, up: bool, code: int) -> None:
    dst, src, wanted, model = ends((20, 64 * KIB), up)
    sim.reset_counts()
    for name in BATCHES:
        sim.fail(f"{name}:*:{code}")
    cu.copy_async(dst[::-1], src, cu.Stream()).wait()
    sim.clear_faults()
    assert calls(sim, BATCHES) == 1
    assert calls(sim, ONES) == 20
    wanted[::-1] = model
    assert contents(dst) == raw(wanted)


@pytest.mark.parametrize("up", [True, False])
def test_a_batch_that_fails_raises_once_and_holds_nothing(sim: Any, up: bool) -> None:
    dst, src, wanted, model = ends((20, 64 * KIB), up)
    stream = cu.Stream()
    for blocking in (True, False):
        for name in (*BATCHES, "cuEventRecord", "cuStreamWaitEvent"):
            sim.fail(f"{name}:1:700")
        with contextlib.suppress(cu.CudaError):
            if blocking:
                cu.copy(dst[::-1], src)
            else:
                cu.copy_async(dst[::-1], src, stream)
        sim.clear_faults()
        stream.synchronize()
    cu.copy(dst[::-1], src)
    wanted[::-1] = model
    assert contents(dst) == raw(wanted)


@pytest.mark.parametrize(
    ("version", "path", "called"),
    [
        ("11000", "pieces", "0 0 40"),
        ("12060", "pieces", "0 0 40"),
        ("12080", "pieces", "1 0 0"),
        ("13000", "pieces", "0 1 0"),
    ],
)
def test_drivers_old_and_new(version: str, path: str, called: str) -> None:
    """The function of CUDA 12.8, the one of 13.0, and none before."""
    if not cu.driver_is_simulated():
        pytest.skip("needs the simulated driver")
    program = """
        import ctypes, numpy as np, cudriver as cu
        model = np.arange(40 << 17, dtype="u4").view("u1").reshape(40, -1)
        host, there = cu.pinned_array(model), cu.device_zeros(model.shape, "u1")
        count = ctypes.CDLL(cu.driver_path()).cudriver_sim_call_count
        count.restype = ctypes.c_longlong
        names = [b"cuMemcpyBatchAsync", b"cuMemcpyBatchAsync_v2", b"cuMemcpyHtoDAsync_v2"]
        plan = cu.explain_copy(there[::-1], host)
        before = [count(name) for name in names]
        cu.copy_async(there[::-1], host, cu.Stream()).wait()
        print(plan.path, "one batch" in plan.why, *(count(n) - b for n, b in zip(names, before)))
        print((there.to_numpy()[::-1] == model).all())
    """
    said = output(program, CUDRIVER_SIM_DRIVER_VERSION=version)
    assert said == f"{path} {called[-1] == '0' and called != '0 0 40'} {called}\nTrue\n"


def test_device_memory_without_a_kernel(sim: Any) -> None:
    with cu.Context():
        model = random_bytes((20, 64 * KIB), np.dtype("u1"), 1)
        src, dst = cu.to_device(model), cu.device_zeros(model.shape, "u1")
        sim.fail("cuModuleLoadDataEx:*:222")
        cu.copy(dst[::-1], src)
        assert raw(dst.to_numpy()[::-1]) == raw(model)
        dst.fill(0)
        assert cu.explain_copy(dst[::-1], src).path == "pieces"
        sim.reset_counts()
        cu.copy_async(dst[::-1], src, cu.Stream()).wait()
        assert calls(sim, BATCHES) == 1
        assert raw(dst.to_numpy()[::-1]) == raw(model)
        del src, dst

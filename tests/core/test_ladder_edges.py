"""The bench's own copies and kernels at their edges: what is taken, refused, timed and left."""

from __future__ import annotations

import gc
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import cudriver as cu
import dlpackkit as kit
from cudriver import _core

BLOCK = 256  # threads, each with a word of `sums`
TILE = 4096  # words of shared memory

pytestmark = [pytest.mark.apart, pytest.mark.usefixtures("no_leaks", "same_stack")]


def words(count: int, device: int = 0) -> Any:
    return cu.device_zeros(count, np.uint32, device=device)


def kernel(
    name: str, memory: Any, sums: Any, number: int = 0, rounds: int = 1, count: int = 1
) -> Any:
    return _core._ladder_kernel(name, memory, sums, number, rounds, count)


@pytest.mark.parametrize("device", [0, 1])
def test_each_call_is_made_on_the_device_of_its_arrays(two_devices: Any, device: int) -> None:
    """Not on that which is current."""
    model = np.arange(5000, dtype=np.uint32)
    there, sums = words(5000, device), words(2 * BLOCK, device)
    back = np.zeros_like(model)
    _core._ladder_copy(there, model)
    _core._ladder_copy(back, there)
    assert np.array_equal(back, model)
    assert kernel("read", there, sums)[0] >= 0
    assert sums.to_numpy().sum() == model.sum()
    pinned = cu.pinned_zeros(5000, np.uint32)
    kernel("write", pinned, sums, 3)
    assert np.array_equal(pinned, np.arange(5000, dtype=np.uint32) * np.uint32(0x9E3779B1) + 3)
    kernel("read", pinned, sums)
    assert sums.to_numpy().sum(dtype=np.uint32) == pinned.sum(dtype=np.uint32)
    with pytest.raises(ValueError, match="memory and sums must be of one device"):
        kernel("read", there, words(BLOCK, 1 - device))


@pytest.mark.parametrize(
    ("shape", "index", "dense"),
    [
        ((4, 5), np.s_[1:2, ::1], True),
        ((4, 5), np.s_[::4], True),
        ((4, 5), np.s_[::2], False),
        ((4, 5), np.s_[:, 1:], False),
        ((4, 5), np.s_[::-1], False),
        ((3, 4, 5), np.s_[:2], True),
        ((3, 4, 5), np.s_[:, ::4], False),
        ((), np.s_[...], True),
    ],
)
def test_only_dense_ends_are_copied(shape: Any, index: Any, dense: bool) -> None:
    """An axis of one item is not a gap, whatever its stride."""
    there = cu.device_zeros(shape, "f4")
    part = np.zeros(shape, "f4")[index].shape
    model = np.arange(np.prod(part), dtype="f4").reshape(part)
    back = np.zeros(part, "f4")
    if dense:
        model += 1
        _core._ladder_copy(there[index], model)
        _core._ladder_copy(back, there[index])
        assert np.array_equal(back, model)
        assert there.to_numpy().sum() == model.sum()
    else:
        for ends in ((there[index], model), (back, there[index])):
            with pytest.raises(ValueError, match=r"(dst|src) must be a C-ordered array without"):
                _core._ladder_copy(*ends)
        assert not there.to_numpy().any()


def test_the_order_of_the_axes_counts() -> None:
    there = cu.device_zeros((4, 5), "f4")
    for ends in ((there, np.zeros((5, 4), "f4").T), (there.T, np.zeros((5, 4), "f4"))):
        with pytest.raises(ValueError, match="must be a C-ordered array"):
            _core._ladder_copy(*ends)
    with pytest.raises(ValueError, match="dst has 80 bytes, src 40"):
        _core._ladder_copy(there, np.zeros((5, 4), "f2"))
    back, frozen = np.zeros((4, 5), "f4"), np.zeros((4, 5), "f4")
    frozen.flags.writeable = False
    for ends in ((there, there), (back, back), (frozen, there)):
        with pytest.raises(ValueError):
            _core._ladder_copy(*ends)


def test_ends_are_let_go_when_a_copy_is_refused(sim: Any) -> None:
    there, buffer = words(24), bytearray(96)
    for other, error in ((3, TypeError), (np.zeros(1), ValueError), (words(5), ValueError)):
        with pytest.raises(error):
            _core._ladder_copy(buffer, other)
    lender = kit.Lender(there.pointer, (24,), owner=there)
    with pytest.raises(TypeError, match="src is not an array"):
        _core._ladder_copy(lender, object())  # type: ignore[arg-type]
    assert lender.given_back == 1
    for function, ends in (
        ("cuMemcpyHtoD_v2", (there, buffer)),
        ("cuMemcpyDtoH_v2", (buffer, there)),
    ):
        ends = tuple(end if end is buffer else end.view("u1") for end in ends)
        sim.fail_next(function, 719)
        with pytest.raises(cu.CudaError, match="96 bytes") as refused:
            _core._ladder_copy(*ends)
        assert refused.value.function == function
        del ends, refused
    gc.collect()
    buffer.extend(b"1")  # not exported any more
    there.close()


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 4])
def test_as_many_launches_as_are_asked_for(sim: Any, rounds: int, count: int) -> None:
    """After one that is not timed. A time is of one launch: all together fit in what passed."""
    memory, sums = words(TILE), words(BLOCK)
    sim.reset_counts()
    sim.set_latency(2000)
    began = time.perf_counter()
    seconds = kernel("read", memory, sums, 0, rounds, count)
    passed = time.perf_counter() - began
    assert len(seconds) == rounds
    assert sim.call_count("cuLaunchKernel") == 1 + rounds * count
    assert sim.call_count("cuEventRecord") == 2 * (1 + rounds)
    assert 0.002 * rounds <= sum(seconds) <= passed / count
    sim.set_latency(0)


#: The calls for a kernel, and which of each is made to fail.
CALLS = [
    *((call, nth) for call in ("cuEventRecord", "cuLaunchKernel") for nth in (1, 2, 3, 4)),
    *(("cuEventCreate", nth) for nth in (1, 2)),
    *((f"cuModule{name}", 1) for name in ("LoadDataEx", "GetFunction")),
    *((f"cu{name}", 1) for name in ("StreamCreateWithPriority", "StreamSynchronize")),
    *((f"cu{name}", 1) for name in ("CtxSynchronize", "EventElapsedTime")),
    ("cuMemHostGetDevicePointer_v2", 1),
]


@pytest.mark.parametrize(("function", "nth"), CALLS)
def test_a_kernel_that_fails_on_the_way_leaves_nothing(sim: Any, function: str, nth: int) -> None:
    """What was launched is waited for, and what was made is destroyed."""
    memory, sums = cu.pinned_zeros(TILE, np.uint32), words(BLOCK)
    kernel("read", memory, sums)
    kinds = ("modules", "streams", "events")
    before = [sim.live(kind) for kind in kinds]
    sim.set_latency(1000)
    sim.fail(f"{function}:{nth}:719")
    with pytest.raises(cu.CudaError) as refused:
        kernel("read", memory, sums, 0, 2, 2)
    assert (refused.value.code, refused.value.function) == (719, function)
    assert sim.live("pending") == 0 or function == "cuStreamSynchronize"
    sim.set_latency(0)
    sim.settle()
    assert [sim.live(kind) for kind in kinds] == before
    sums.close()


def test_a_signal_ends_it_between_rounds(sim: Any) -> None:
    memory, sums, rounds = words(TILE), words(BLOCK), 3000
    thread, main = threading.get_ident(), threading.main_thread()
    assert main.ident == thread
    kernel("read", memory, sums)
    sim.reset_counts()
    sim.set_latency(1000)
    timer = threading.Timer(0.05, signal.pthread_kill, (thread, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        kernel("read", memory, sums, 0, rounds)
    assert 1 < sim.call_count("cuLaunchKernel") < rounds
    sim.set_latency(0)
    timer.join()


def test_memory_that_is_only_read_may_be_read_only() -> None:
    array, sums = cu.pinned_full(TILE, 3, np.uint32), words(BLOCK)
    array.flags.writeable = False
    for name in ("read", "shared_read", "shared_write"):
        kernel(name, array, sums, 1)
    assert (array == 3).all()
    with pytest.raises(ValueError, match="read-only"):
        kernel("write", array, sums, 1)
    lender = kit.Lender(
        sums.pointer, (BLOCK,), dtype=(kit.UINT, 32, 1), flags=kit.READ_ONLY, owner=sums
    )
    with pytest.raises(ValueError, match="read-only"):
        kernel("read", array, cu.from_dlpack(lender), 1)


def test_sizes_at_their_edges() -> None:
    sums = words(2 * BLOCK)
    for name, length, wrong in (
        ("read", 4, None),
        ("write", 4, None),
        ("shared_read", TILE, None),
        ("shared_read", TILE - 4, "the 16384 bytes of a tile"),
        ("shared_write", 4, None),
        ("read", 0, "vectors of 16 bytes, not 0 bytes"),
        ("read", 6, "vectors of 16 bytes, not 24 bytes"),
        ("fly", 4, "there is no kernel fly"),
    ):
        if wrong is None:
            kernel(name, words(length), sums, 1)
        else:
            with pytest.raises(ValueError, match=wrong):
                kernel(name, words(length), sums, 1)
    memory = words(TILE)
    for bad in (sums[:0], sums[: BLOCK - 1], sums[: BLOCK + 1], np.zeros(BLOCK, np.uint32)):
        with pytest.raises(ValueError, match="sums must be a DeviceArray with 256 words"):
            kernel("read", memory, bad)
    with pytest.raises(ValueError, match="not 0 bytes"):
        kernel("read", cu.pinned_zeros(0, np.uint32), sums)
    for bytes_ in (cu.device_zeros(64, "u1"), cu.pinned_zeros(64, "u1")):
        with pytest.raises(ValueError, match="vectors of 16 bytes"):
            kernel("read", bytes_[8:40], sums)
    for rounds, count in ((0, 1), (-1, 1), (1, 0), (1, -1), (1, 2**31)):
        with pytest.raises(ValueError, match=f"{rounds} rounds of {count} launches"):
            kernel("read", memory, sums, 0, rounds, count)
    with pytest.raises(ValueError):
        kernel("read", memory[::2], sums)
    with pytest.raises(cu.CudaError, match="cuMemHostGetDevicePointer"):
        kernel("read", np.zeros(TILE, np.uint32), sums)
    with pytest.raises(TypeError, match="sums is not an array"):
        kernel("read", memory, 3)
    memory.close()
    with pytest.raises(ValueError, match="closed"):
        kernel("read", memory, sums)

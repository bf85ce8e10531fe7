"""Small copies beside big ones: the kernel moves them, since a copy engine serves in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from copykit import wait_for

MIB = 1 << 20
BIG = 64 * MIB  # TUNING_BIG
MOST = 16 * MIB  # TUNING_BESIDE_MOST

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.threads]


@pytest.fixture(scope="module")
def big(cu: Any) -> tuple[Any, Any]:
    return cu.pinned_zeros(BIG, "u1"), cu.device_zeros(BIG, "u1")


@pytest.fixture
def launches(sim: Any) -> Callable[[], int]:
    """How many kernels were launched since."""
    before = sim.call_count("cuLaunchKernel")
    return lambda: int(sim.call_count("cuLaunchKernel")) - before


def small(cu: Any, nbytes: int = 65536) -> tuple[Any, Any]:
    host = cu.pinned_array(np.random.default_rng(1).integers(0, 256, nbytes, np.uint8))
    return host, cu.device_zeros(nbytes, "u1")


def ends(cu: Any, up: bool, nbytes: int = 65536) -> tuple[Any, Any]:
    """Where to and where from."""
    host, there = small(cu, nbytes)
    if up:
        return there, host
    cu.copy(there, host)
    host[:] = 0
    return host, there


def bytes_of(array: Any) -> bytes:
    return bytes((array if isinstance(array, np.ndarray) else array.to_numpy()).tobytes())


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("blocking", [True, False])
def test_beside_a_big_copy_the_kernel_moves_a_small_one(
    cu: Any, sim: Any, big: Any, launches: Any, up: bool, blocking: bool
) -> None:
    dst, src = ends(cu, up)
    wanted, other = bytes_of(src), cu.Stream()
    sim.settle()
    sim.set_latency(2000)  # each operation: the big one is in flight for longer than the rest
    before = launches()
    transfer = cu.copy_async(*(reversed(big) if up else big), cu.Stream())
    if blocking:
        cu.copy(dst, src)
    else:
        cu.copy_async(dst, src, other).wait()
    assert launches() == before + 1
    transfer.wait()
    assert bytes_of(dst) == wanted


@pytest.mark.parametrize("case", ["idle", "other direction", "same stream", "large"])
def test_else_the_copy_engine_does(cu: Any, sim: Any, big: Any, launches: Any, case: str) -> None:
    stream = cu.Stream()
    dst, src = ends(cu, True, MOST + 1 if case == "large" else 65536)
    sim.settle()
    sim.set_latency(2000)
    flying = None
    if case != "idle":
        pair = big if case == "other direction" else reversed(big)
        flying = cu.copy_async(*pair, stream)
    before = launches()
    cu.copy_async(dst, src, stream if case == "same stream" else cu.Stream()).wait()
    assert launches() == before
    if flying is not None:
        flying.wait()


def test_when_the_big_one_is_over_nobody_asks(cu: Any, sim: Any, big: Any) -> None:
    dst, src = ends(cu, True)
    flown = cu.copy_async(big[1], big[0], cu.Stream())
    asked = []
    for over in (False, True):
        if over:
            flown.wait()
        else:
            sim.settle()  # it is over, but nobody has seen that
        stream, before = cu.Stream(), sim.call_count("cuEventQuery")
        transfer = cu.copy_async(dst, src, stream)
        asked.append(sim.call_count("cuEventQuery") - before)
        transfer.wait()
    assert asked == [1, 0]
    assert sim.call_count("cuLaunchKernel") == 0


@pytest.mark.parametrize("count", [3, 4])
def test_many_copies_are_a_big_one_together(
    cu: Any, sim: Any, big: Any, launches: Any, count: int
) -> None:
    dst, src = ends(cu, True)
    sim.settle()
    sim.hold()
    transfers = []
    for i in range(count):
        part = slice(i * MOST, (i + 1) * MOST)
        transfers.append(cu.copy_async(big[1][part], big[0][part], cu.Stream()))
    before = launches()
    transfers.append(cu.copy_async(dst, src, cu.Stream()))
    sim.release()
    for transfer in transfers:
        transfer.wait()
    assert launches() - before == (count == 4)


def test_big_copies_of_another_device_do_not_count(
    cu: Any, sim: Any, big: Any, launches: Any, two_devices: Any
) -> None:
    host, stream = cu.pinned_zeros(65536, "u1"), cu.Stream(device=two_devices[1])
    there = cu.device_zeros(65536, "u1", device=two_devices[1])
    sim.settle()
    sim.hold()
    flying = cu.copy_async(big[1], big[0], cu.Stream(device=two_devices[0]))
    before = launches()
    small = cu.copy_async(there, host, stream)
    assert launches() == before
    sim.release()
    flying.wait()
    small.wait()


def test_a_blocking_copy_is_big_while_it_lasts(cu: Any, sim: Any, big: Any, launches: Any) -> None:
    dst, src = ends(cu, True)
    stream = cu.Stream()
    sim.settle()
    sim.hold_call("cuMemcpyHtoD_v2", 1)
    copying = threading.Thread(target=cu.copy, args=(big[1], big[0]))
    copying.start()
    wait_for(lambda: cu.explain_copy(dst, src).path == "kernel", "the big copy is under way")
    before = launches()
    small = cu.copy_async(dst, src, stream)
    assert launches() == before + 1
    sim.clear_faults()
    copying.join()
    small.wait()
    assert cu.explain_copy(dst, src).path == "direct"
    cu.copy_async(dst, src, stream).wait()
    assert launches() == before + 1


@pytest.mark.parametrize("count", [8, 64])  # of 8 MiB, of 1
@pytest.mark.parametrize("rows", [True, False])
def test_large_parts_of_a_batch_are_big(
    cu: Any, sim: Any, big: Any, launches: Any, rows: bool, count: int
) -> None:
    dst, src = ends(cu, True)
    host, there = big[0].reshape(count, -1), big[1].reshape(count, -1)
    sim.settle()
    sim.hold()
    if rows:
        flying = cu.copy_rows_async(there, host, range(count), range(count), cu.Stream())
    else:
        flying = cu.copy_many_async([there[i] for i in range(count)], [*host], cu.Stream())
    before = launches()
    small = cu.copy_async(dst, src, cu.Stream())
    assert launches() == before + 1
    sim.release()
    flying.wait()
    small.wait()


@pytest.mark.parametrize("both", [False, True])
def test_a_batch_of_both_directions_is_beside_big_ones_in_both(
    cu: Any, sim: Any, big: Any, launches: Any, both: bool
) -> None:
    up, down = ends(cu, True), ends(cu, False)
    other = cu.pinned_empty(BIG, "u1"), cu.device_zeros(BIG, "u1")  # the two run at once
    sim.settle()
    sim.hold()
    pairs = ((big[1], big[0]), other)
    flying = [cu.copy_async(*pair, cu.Stream()) for pair in pairs[: 1 + both]]
    before = launches()
    flying.append(cu.copy_many_async([up[0], down[0]], [up[1], down[1]], cu.Stream()))
    assert launches() == before + both
    sim.release()
    for transfer in flying:
        transfer.wait()


def test_a_stream_of_higher_priority(cu: Any, sim: Any, launches: Any) -> None:
    dst, src = ends(cu, True)
    wanted = bytes_of(src)
    urgent = cu.Stream(priority=-1)
    cu.copy_async(dst, src, urgent).wait()
    assert launches() == 1
    assert bytes_of(dst) == wanted
    handle = cu.Stream.from_handle(urgent.handle)
    cu.copy_async(dst, src, handle).wait()
    assert launches() == 2


def test_an_enclosing_stream_of_another_device_is_not_used(
    cu: Any, sim: Any, launches: Any, two_devices: Any
) -> None:
    """A blocking copy does not use it, whatever its priority; an asynchronous one says so."""
    there = cu.device_zeros(100, "u1", device=two_devices[1])
    host, stream = cu.pinned_zeros(100, "u1"), cu.Stream(priority=-1, device=two_devices[0])
    host[:] = np.arange(100)
    with stream:
        cu.copy(there, host)
        with pytest.raises(ValueError, match="the stream is on device 0, the array on device 1"):
            cu.copy_async(there, host, stream)
    assert np.array_equal(there.to_numpy(), host)
    assert launches() == 0


@pytest.mark.parametrize("up", [True, False])
def test_rows_of_a_strided_copy(cu: Any, sim: Any, launches: Any, up: bool) -> None:
    """A launch for all rows, and nothing between them is touched."""
    whole = cu.pinned_array(np.arange(100 * 200, dtype="i4").reshape(100, 200))
    there = cu.to_device(np.full((100, 120), -1, "i4"))
    host, urgent = whole[::-2, 20:140], cu.Stream(priority=-1)
    before = launches()
    if up:
        cu.copy_async(there[:50], host, urgent).wait()
        assert (there.to_numpy()[:50] == host).all()
        assert (there.to_numpy()[50:] == -1).all()
    else:
        kept = np.array(whole)
        kept[::-2, 20:140] = -1
        cu.copy_async(host, there[:50], urgent).wait()
        assert (whole == kept).all()
    assert launches() == before + 1


@pytest.mark.parametrize(
    ("rows", "width", "moved"),
    [(1, MOST, 1), (1, MOST + 1, 0), (4096, 64, 1), (4097, 64, 0), (10, 63, 0)],
)
def test_where_it_is_worth_it(
    cu: Any, sim: Any, launches: Any, rows: int, width: int, moved: int
) -> None:
    whole = cu.pinned_empty((rows, width + 1), "u1")
    whole[...] = np.random.default_rng(5).integers(0, 256, whole.shape, np.uint8)
    host, there = whole[:, :width], cu.device_zeros((rows, width), "u1")
    cu.copy_async(there, host, cu.Stream(priority=-1)).wait()
    assert launches() == moved
    assert (there.to_numpy() == host).all()


def test_both_ends_backwards(cu: Any, sim: Any, launches: Any) -> None:
    whole = cu.pinned_array(np.arange(20 * 200, dtype="i4").reshape(20, 200))
    there = cu.to_device(np.zeros((20, 100), "i4"))
    cu.copy_async(there[::-1], whole[::-1, 50:150], cu.Stream(priority=-1)).wait()
    assert launches() == 1
    assert (there.to_numpy() == whole[:, 50:150]).all()


def test_few_copies_within_a_device_are_beside_nothing(cu: Any, sim: Any, launches: Any) -> None:
    of, to = cu.to_device(np.arange(300).reshape(3, 100)), cu.device_zeros((3, 100), int)
    rows = ([to[i] for i in range(3)], [of[i] for i in range(3)])
    cu.copy_many_async(*rows, cu.Stream(priority=-1)).wait()
    assert launches() == 0
    assert (to.to_numpy() == of.to_numpy()).all()


def test_pageable_memory_goes_through_a_slot(cu: Any, sim: Any, launches: Any) -> None:
    array = np.random.default_rng(2).integers(0, 256, 3 * MIB, np.uint8)
    there, urgent, wanted = cu.device_zeros(array.size, "u1"), cu.Stream(priority=-1), array.copy()
    transfer = cu.copy_async(there, array, urgent)
    array[:] = 0  # it has been read
    transfer.wait()
    assert launches() > 0
    assert (there.to_numpy() == wanted).all()


@pytest.mark.parametrize("count", [1, 3, 100])
def test_many_and_rows(cu: Any, sim: Any, launches: Any, count: int) -> None:
    cache = cu.pinned_array(np.arange(200 * 1000, dtype="i4").reshape(200, 1000))
    there, urgent = cu.device_zeros((count, 1000), "i4"), cu.Stream(priority=-1)
    rows = list(range(0, 2 * count, 2))
    cu.copy_rows_async(there, cache, range(count), rows, urgent).wait()
    assert launches() == 1
    assert (there.to_numpy() == cache[rows]).all()
    cu.copy_many_async([there[:1]], [cache[7:8]], urgent).wait()
    assert launches() == 2
    assert (there.to_numpy()[0] == cache[7]).all()


def test_memory_that_is_locked_half_is_read_by_no_kernel(cu: Any, sim: Any) -> None:
    """The kernel would read what is not page-locked: an illegal address."""
    array, urgent = np.random.default_rng(3).random(40000), cu.Stream(priority=-1)
    there = cu.device_zeros(array.size)
    with cu.pin(array[:20000]):
        cu.copy_async(there, array, urgent).wait()
    assert (there.to_numpy() == array).all()


def test_a_pin_that_ends_meanwhile_keeps_its_memory_locked(cu: Any, sim: Any) -> None:
    array, urgent = np.random.default_rng(4).random(40000), cu.Stream(priority=-1)
    there = cu.device_zeros(array.size)
    sim.settle()
    sim.hold()
    pin = cu.pin(array)
    transfer = cu.copy_async(there, array, urgent)
    pin.close()
    assert cu.is_pinned(array)
    sim.release()
    transfer.wait()
    assert (there.to_numpy() == array).all()
    del transfer
    cu.live_allocations()
    assert not cu.is_pinned(array)


def test_explain_copy_says_why(cu: Any, sim: Any, big: Any) -> None:
    dst, src = ends(cu, True)
    assert cu.explain_copy(dst, src).path == "direct"
    sim.set_latency(2000)
    transfer = cu.copy_async(big[1], big[0], cu.Stream())
    plan = cu.explain_copy(dst, src)
    assert plan.path == "kernel"
    assert "in flight" in plan.why
    transfer.wait()
    assert cu.explain_copy(dst, src).path == "direct"


def test_without_the_kernel_the_copy_engine_does(cu: Any, sim: Any) -> None:
    _, src = ends(cu, True)
    with cu.Context():
        there, urgent = cu.device_zeros(src.size, "u1"), cu.Stream(priority=-1)
        sim.fail("cuModuleLoadDataEx:*:209")
        cu.copy_async(there, src, urgent).wait()
        sim.fail("")
        assert bytes_of(there) == bytes_of(src)
        there.close()
        urgent.close()

"""pin(): memory that somebody else owns, page-locked in place."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
import weakref
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import cudriver as cu
from cudriver.memory import refusals
from cudriver.memory.live import page_locked
from parallel import together


@pytest.fixture(autouse=True)
def _no_pin_is_left() -> object:
    yield
    gc.collect()
    assert cu.host_memory_stats().pins == 0
    assert cu.host_memory_stats().pinned_bytes == 0


def test_a_pin_locks_and_unlocks() -> None:
    array = np.arange(100000)
    wanted = array.copy()
    with cu.pin(array) as pin:
        assert pin.array is array
        assert pin.nbytes == array.nbytes
        assert cu.is_pinned(array)
        there = cu.to_device(array)
        array[:] = 0
        cu.copy(array, there)
        assert np.array_equal(array, wanted)
    assert pin.closed
    assert pin.array is None
    assert not cu.is_pinned(array)
    pin.close()
    with pytest.raises(ValueError, match="closed"), pin:
        pass


def test_repeated_and_nested_pins_are_counted() -> None:
    array = np.zeros(1 << 16, np.uint8)
    pins = [cu.pin(array), cu.pin(array), cu.pin(array[100:200]), cu.pin(array[30000:])]
    stats = cu.host_memory_stats()
    assert stats.pins == 4
    assert stats.pinned_bytes == array.nbytes
    while pins:
        assert cu.is_pinned(array[30000:])
        assert cu.host_memory_stats().pinned_bytes == array.nbytes
        pins.pop(0).close()
    assert not cu.is_pinned(array)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1001), (999, 2000), (0, 1 << 16), (900, 5500), (6000, 6002)]
)
def test_a_pin_that_shares_a_part_with_another_is_refused(low: int, high: int) -> None:
    """The message says which memory the other has."""
    array = np.zeros(1 << 16, np.uint8)
    others = [array[:1000], array[5000:6001]]
    met = next(o for o in others if np.shares_memory(o, array[low:high]))
    with cu.pin(others[0]), cu.pin(others[1]):
        text = f"cannot page-lock {high - low} bytes from {array[low:].ctypes.data:#x} on: another "
        text += f"pin holds {met.nbytes} bytes from {met.ctypes.data:#x} on"
        with pytest.raises(ValueError, match=text):
            cu.pin(array[low:high])
        assert not cu.is_pinned(array[low:high])
        assert cu.host_memory_stats().pins == 2
        with cu.pin(array[1000:5000]):
            assert cu.is_pinned(array[:6001])
    with cu.pin(array[low:high]):
        assert cu.is_pinned(array[low:high])


def test_the_handle_keeps_the_array_and_dropping_it_unlocks() -> None:
    array = np.full(50000, 9)
    references = sys.getrefcount(array)
    pin = cu.pin(array)
    assert sys.getrefcount(array) > references
    view = array[:]
    del array
    assert pin.array is not None
    del pin
    gc.collect()
    assert not cu.is_pinned(view)
    assert (view == 9).all()


def test_read_only_memory_of_every_kind(tmp_path: Path) -> None:
    frozen = np.arange(10000)
    frozen.flags.writeable = False
    data = np.arange(20000, dtype=np.uint16).tobytes()
    file = tmp_path / "data"
    file.write_bytes(data)
    with file.open("rb") as stream:
        mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    for memory, model in [
        (frozen, np.arange(10000)),
        (np.frombuffer(data, np.uint16), np.arange(20000, dtype=np.uint16)),
        (np.frombuffer(mapping, np.uint16), np.arange(20000, dtype=np.uint16)),
        (np.memmap(file, np.uint16, "r"), np.arange(20000, dtype=np.uint16)),
    ]:
        with cu.pin(memory):
            assert cu.is_pinned(memory)
            assert np.array_equal(cu.to_device(memory).to_numpy(), model)
        assert not cu.is_pinned(memory)
        assert np.array_equal(memory, model)


def test_memory_that_is_no_array(tmp_path: Path) -> None:
    shared = shared_memory.SharedMemory(create=True, size=1 << 20)
    try:
        array = np.ndarray((1 << 20,), np.uint8, shared.buf)
        with cu.pin(array):
            assert cu.is_pinned(shared.buf)
            cu.copy(array, cu.to_device(np.full(1 << 20, 8, np.uint8)))
        assert shared.buf[12345] == 8
        del array
    finally:
        shared.close()
        shared.unlink()
    file = tmp_path / "writable"
    file.write_bytes(bytes(8192))
    private = np.memmap(file, np.uint8, "c")
    with cu.pin(private):
        cu.copy(private, cu.to_device(np.full(8192, 3, np.uint8)))
    assert (private == 3).all()
    assert file.read_bytes() == bytes(8192)


def test_a_file_mapped_for_writing(tmp_path: Path) -> None:
    """Linux refuses to pin such memory for long, on most file systems, from 6.5 on."""
    file = tmp_path / "writable"
    file.write_bytes(bytes(8192))
    mapped = np.memmap(file, np.uint8, "r+")
    try:
        pin = cu.pin(mapped)
    except cu.CudaError as error:
        assert error.code == 1
        assert "copy-on-write" in str(error)
        return
    with pin:
        cu.copy(mapped, cu.to_device(np.full(8192, 3, np.uint8)))
    mapped.flush()
    assert file.read_bytes() == b"\3" * 8192


def test_a_pinned_file_that_is_truncated_is_unpinned_all_the_same(tmp_path: Path) -> None:
    """Its bytes are gone, and touching them is a SIGBUS; the pin is not."""
    file = tmp_path / "truncated"
    file.write_bytes(bytes(1 << 16))
    with (
        file.open("rb+") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as memory,
    ):
        with cu.pin(memory):
            opened.truncate(0)
        assert not cu.is_pinned(memory)


def test_strided_views_are_locked_from_their_lowest_byte_to_their_highest() -> None:
    base = np.arange(100000)
    view = base[50000:10:-3]
    with cu.pin(view) as pin:
        assert pin.nbytes == (50000 - 11) // 3 * 3 * 8 + 8
        assert cu.is_pinned(view)
        assert not cu.is_pinned(base)
        assert np.array_equal(cu.to_device(view).to_numpy(), view)
    with cu.pin(base[:0]) as empty:
        assert empty.nbytes == 0


def test_strided_buffers_are_locked_likewise() -> None:
    base = np.arange(100000)
    view = memoryview(base)[50000:10:-3]
    assert not cu.is_pinned(view)
    with cu.pin(view) as pin:
        assert pin.nbytes == (50000 - 11) // 3 * 3 * 8 + 8
        assert pin.array is view
        assert cu.is_pinned(view)
        assert cu.is_pinned(base[11:50001])
        assert cu.mapped_pointer(view) - cu.mapped_pointer(base[11:50001]) == (50000 - 11) * 8
    turned = memoryview(np.asfortranarray(np.ones((300, 200))))
    with cu.pin_async(turned) as pinning:
        pinning.wait()
        assert pinning.nbytes == 300 * 200 * 8
        assert cu.is_pinned(turned)


def test_what_is_locked_already_is_taken_as_it_is() -> None:
    array = cu.pinned_full(10000, 4, np.int32)
    with cu.pin(array):
        assert cu.is_pinned(array)
    assert cu.is_pinned(array), "the pool's own lock stays"


def test_an_array_of_which_a_part_is_pinned_has_no_device_address() -> None:
    """A kernel would fault behind that part."""
    base = np.arange(100000)
    with cu.pin(base[:50000]):
        for whole in base, base[::-1], base[10:50001]:
            with pytest.raises(ValueError, match="are not all page-locked: make"):
                cu.mapped_pointer(whole)
        assert cu.mapped_pointer(base[49999:50000]) == cu.mapped_pointer(base[:10]) + 49999 * 8


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="int"):
        cu.pin(12)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Python objects"):
        cu.pin(np.array([object()]))
    records = np.zeros(2, [("n", "i4"), ("O", object)])
    for buffer in memoryview(np.array([object()])), memoryview(records), memoryview(records)[::2]:
        with pytest.raises(TypeError, match=r"Python objects|, which is not a dtype"):
            cu.pin(buffer)  # type: ignore[arg-type,unused-ignore]
    with cu.pin(memoryview(np.zeros(2, [("O", "i4")]))) as pin:  # a name is no type
        assert pin.nbytes == 8


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((1 << 54,), (1,)),
        ((1 << 62,), (1,)),
        ((1 << 62,), (-1,)),
        ((2, 2), (1 << 62, -(1 << 62))),
        ((3, 3), (1 << 61, 1 << 61)),
        ((2,), (-(1 << 63),)),
    ],
)
def test_an_extent_beyond_all_memory_is_refused(shape: Any, strides: Any) -> None:
    array = as_strided(np.zeros(1, "u1"), shape, strides)
    with pytest.raises(ValueError, match=r"cannot page-lock .* has no memory"):
        cu.pin(array)


def test_a_range_that_is_mapped_in_part_is_refused() -> None:
    """Far below where the system looks for room: a page that it mapped into the hole for somebody
    else was overwritten at the end of this test, and the process died in the next.
    """
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *4 * [ctypes.c_long])
    libc.mmap.restype = ctypes.c_void_p
    flags, access = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE
    start = libc.mmap(1 << 45, 6 * page, access, flags, -1, 0)
    memory = np.frombuffer((ctypes.c_uint8 * (6 * page)).from_address(start), np.uint8)
    assert libc.munmap(start + 3 * page, page) == 0
    for part, hole in [
        (memory, start + 3 * page),
        (memory[100:-7], start + 3 * page),
        (memory[3 * page + 5 : 3 * page + 10], start + 3 * page + 5),
        (memory[3 * page + 5 :], start + 3 * page + 5),
        (memory[3 * page - 1 : 3 * page + 1], start + 3 * page),
    ]:
        whole = f"{part.nbytes} bytes from {part.ctypes.data:#x} on: at {hole:#x} "
        with pytest.raises(ValueError, match=whole):
            cu.pin(part)
    for part in (memory[: 3 * page], memory[4 * page :], memory[5:10]):
        with cu.pin(part):
            assert cu.is_pinned(part)
    assert cu.pin(memory[3 * page : 3 * page]).nbytes == 0
    assert libc.munmap(start, 6 * page) == 0


@pytest.mark.parametrize(
    "of",
    [
        lambda whole: whole[8:40, 16:48],
        lambda whole: whole[40:8:-1, 16:48],
        lambda whole: whole[8:40, 48:16:-3],
        lambda whole: whole[40:8:-2, 48:16:-1].T,
    ],
)
def test_a_view_is_locked_from_its_lowest_to_its_highest_byte(of: Any) -> None:
    view = of(np.zeros((64, 64), np.float32))
    bounds = getattr(np.lib, "array_utils", np).byte_bounds  # NumPy's own answer
    low, end = bounds(view)
    with cu.pin(view) as pin:
        assert pin.nbytes == end - low
        assert (low, end - low) in page_locked()
        assert cu.is_pinned(view)


def test_a_pin_in_the_way_is_named_though_it_ends_meanwhile(monkeypatch: Any) -> None:
    memory = np.zeros(8192, np.uint8)
    other = cu.pin(memory[:4096])
    tell = refusals.pin

    def ended(*arguments: Any) -> str:
        other.close()
        return tell(*arguments)

    monkeypatch.setattr(refusals, "pin", ended)
    with pytest.raises(ValueError, match="another pin holds 4096 bytes"):
        cu.pin(memory[100:5000])


def test_many_threads_pin_parts_of_one_array() -> None:
    """Those of each other's that lie inside, and those that share a part."""
    array = np.zeros(1 << 20, np.uint8)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            low, high = np.sort(rng.integers(0, array.size, 2))
            part = array[low : high + 1]
            try:
                with cu.pin(part) as pin:
                    assert cu.is_pinned(part)
                    assert pin.nbytes == high + 1 - low
                    with cu.pin(part[part.size // 3 :]):
                        assert cu.is_pinned(part)
            except ValueError as error:
                assert "share a part" in str(error)

    together(*[lambda i=i: work(i) for i in range(6)])
    assert not cu.is_pinned(array)


@pytest.mark.parametrize("part", [slice(0, 20000), slice(9000, 20000), slice(9000, None)])
@pytest.mark.parametrize("nbytes", [30000, 3 << 20])
def test_arrays_of_which_a_part_is_pinned_are_copied_whole(part: slice, nbytes: int) -> None:
    """The driver refuses a copy that begins in a registration and ends beyond it."""
    plain = np.random.default_rng(5).integers(0, 256, nbytes, np.uint8)
    wanted = plain.copy()
    with cu.pin(plain[part]):
        there = cu.to_device(plain)
        assert np.array_equal(there.to_numpy(), wanted)
        plain[:] = 0
        cu.copy(plain, there)
    assert np.array_equal(plain, wanted)


@pytest.mark.parametrize(
    ("nbytes", "low", "high"), [(1 << 16, 8192, 50000), (4 << 20, 1 << 20, 3 << 20)]
)
def test_memory_with_a_gap_between_its_pins_is_pageable(
    sim: Any, nbytes: int, low: int, high: int
) -> None:
    plain = np.zeros(nbytes, np.uint8)
    there, stream = cu.device_zeros(nbytes, np.uint8), cu.Stream()
    with cu.pin(plain[:low]), cu.pin(plain[high:]):
        assert cu.is_pinned(plain[:low])
        assert cu.is_pinned(plain[high:])
        assert not cu.is_pinned(plain)
        assert not cu.explain_copy(there, plain).page_locked
        sim.hold()
        try:
            there.fill(1, stream=stream)
            transfer = cu.copy_async(there, plain, stream, borrow=True)
            plain[:] = 7  # before the stream comes to the copy
        finally:
            sim.release()
        transfer.wait()
        assert (there.to_numpy() == 7).all()
        with cu.pin(plain[low:high]):
            assert cu.is_pinned(plain), "three pins without a gap"
            assert cu.explain_copy(there, plain).path == "direct"


@pytest.mark.parametrize("how", ["close", "drop"])
@pytest.mark.parametrize("kind", ["array", "buffer"])
def test_the_lock_goes_before_the_memory(sim: Any, kind: str, how: str) -> None:
    """What is unmapped while registered stays registered by its address."""
    array = np.zeros(50000, np.uint8)
    before, seen = sim.live("registrations"), []
    watch = weakref.ref(array, lambda _: seen.append(sim.live("registrations")))
    pin = cu.pin(memoryview(array) if kind == "buffer" else array)
    assert sim.live("registrations") == before + 1
    del array
    assert watch() is not None
    if how == "close":
        pin.close()
    del pin
    assert seen == [before]


def test_a_pin_that_the_driver_refuses_locks_nothing(sim: Any) -> None:
    array = np.zeros(1 << 16, np.uint8)
    registered = sim.live("registrations"), sim.live("registration_bytes")
    with cu.pin(array[:1000]):
        stats = cu.host_memory_stats()
        sim.fail_next("cuMemHostRegister_v2", 999)
        with pytest.raises(cu.CudaError) as caught:
            cu.pin(array[1000:])
        assert caught.value.code == 999
        assert cu.host_memory_stats() == stats
        assert not cu.is_pinned(array[1000:1001])
        with cu.pin(array[1000:]):
            assert cu.is_pinned(array)
    assert (sim.live("registrations"), sim.live("registration_bytes")) == registered

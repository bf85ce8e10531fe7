"""Arrays over memory that others show by the CUDA array interface or by its address alone."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import cudriver as cu
import dlpackkit as kit

pytestmark = pytest.mark.usefixtures("no_leaks")
MODEL = np.arange(24, dtype="f4").reshape(4, 6)


class Shows:
    """Another library's array."""

    def __init__(self, array: Any, **other: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.pointer, False),
            "strides": array.strides,
            "version": 3,
            **other,
        }


class Allocation:
    """As PyCUDA's: an address that int() takes."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __int__(self) -> int:
        return int(self.array.pointer)


# ---- the CUDA array interface --------------------------------------------------------------------


@pytest.mark.parametrize("key", [(), slice(1, None, 2), (slice(None, None, -1), 3)])
def test_an_interface_is_an_array_over_the_memory(key: Any) -> None:
    there = cu.to_device(MODEL)
    theirs = Shows(there[key])
    array = cu.from_cuda_array_interface(theirs)
    assert (array.pointer, array.shape, array.strides) == (
        there[key].pointer, there[key].shape, there[key].strides)  # fmt: skip
    assert np.array_equal(array.to_numpy(), MODEL[key])
    array.fill(5)
    model = MODEL.copy()
    model[key] = 5
    assert np.array_equal(there.to_numpy(), model)
    assert not array.flags.owndata
    gone = weakref.ref(theirs)
    del theirs
    gc.collect()
    assert gone() is not None
    array.close()
    del array
    assert gone() is None


def test_a_read_only_interface_is_not_written() -> None:
    there = cu.to_device(MODEL)
    array = cu.from_cuda_array_interface(Shows(there, data=(there.pointer, True)))
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array.fill(1)
    with pytest.raises(ValueError, match="read-only"):
        cu.copy(array, MODEL)
    assert np.array_equal(array.to_numpy(), MODEL)
    with pytest.raises(ValueError, match="read-only"):
        cu.copy(Shows(there, data=(there.pointer, True)), MODEL)


def test_its_stream_is_waited_for(driver: Any) -> None:
    from graphkit import busy

    there, stream, source = (
        cu.device_zeros(1 << 16, "f4"),
        cu.Stream(),
        cu.pinned_full(1 << 16, 3, "f4"),
    )
    with busy(driver, stream):
        transfer = cu.copy_async(there, source, stream)
    array = cu.from_cuda_array_interface(Shows(there, stream=stream.handle))
    assert transfer.done
    assert array.to_numpy()[0] == 3


def test_an_empty_interface_is_an_empty_device_array() -> None:
    shows = Shows(cu.device_empty((0, 3), "i2"))
    array = cu.from_cuda_array_interface(shows)
    assert type(array) is cu.DeviceArray
    assert (array.shape, array.dtype) == ((0, 3), np.int16)


def test_our_own_arrays_are_viewed() -> None:
    there = cu.to_device(MODEL)
    assert cu.from_cuda_array_interface(there).pointer == there.pointer


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (3, TypeError, "int has no __cuda_array_interface__$"),
        (Shows, TypeError, "type has no __cuda_array_interface__$"),
        (MODEL, TypeError, "ndarray has no .*; from_dlpack"),
    ],
)
def test_what_has_none(x: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        cu.from_cuda_array_interface(x)


def test_an_interface_that_reaches_too_far() -> None:
    there = cu.to_device(MODEL)
    with pytest.raises(ValueError, match="Shows: the array takes 960000 bytes"):
        cu.from_cuda_array_interface(Shows(there, shape=(4, 60_000), strides=None))
    with pytest.raises(ValueError, match="Shows: 0x10 is not memory that the driver knows"):
        cu.from_cuda_array_interface(Shows(there, data=(16, False)))


def test_from_dlpack_names_it() -> None:
    with pytest.raises(TypeError, match=r"Shows has no __dlpack__.*use from_cuda_array_interface"):
        cu.from_dlpack(Shows(cu.to_device(MODEL)))


# ---- an address ----------------------------------------------------------------------------------

ADDRESSES: dict[str, Any] = {
    "int": lambda a: a.pointer,
    "numpy": lambda a: np.uint64(a.pointer),
    "allocation": Allocation,
    "ctypes": lambda a: ctypes.c_void_p(a.pointer),
}


@pytest.mark.parametrize("how", ADDRESSES)
def test_a_pointer_is_an_array_over_the_memory(how: str) -> None:
    there = cu.to_device(MODEL)
    array = cu.from_pointer(ADDRESSES[how](there), (4, 6), np.float32, owner=None)
    assert (array.pointer, array.dtype, array.flags.writeable) == (there.pointer, "f4", True)
    array[1:3].fill(9)
    model = MODEL.copy()
    model[1:3] = 9
    assert np.array_equal(there.to_numpy(), model)


def test_strides_and_types() -> None:
    there = cu.to_device(MODEL)
    columns = cu.from_pointer(there[0, 1:].pointer, (3, 4), "f4", strides=(8, 24))
    assert np.array_equal(columns.to_numpy(), MODEL[:, 1::2].T)
    records = np.dtype([("x", "<f4"), ("y", "<u4")])
    pairs = cu.from_pointer(there.pointer, 12, records)
    assert np.array_equal(pairs.to_numpy(), MODEL.view(records).reshape(12))
    backwards = cu.from_pointer(there[3, 5:].pointer, 24, "f4", strides=[-4])
    assert np.array_equal(backwards.to_numpy(), MODEL.reshape(-1)[::-1])
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert cu.from_pointer(there.pointer, 48, ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16


def test_the_owner_lives_as_long_as_the_array_and_its_views() -> None:
    there = cu.to_device(MODEL)
    for given in ("owner", "pointer"):
        owner = Allocation(there)
        gone = weakref.ref(owner)
        if given == "owner":
            array = cu.from_pointer(there.pointer, 24, "f4", owner=owner)
        else:
            array = cu.from_pointer(owner, 24, "f4")
        view = array[3:]
        del owner, array
        gc.collect()
        assert gone() is not None
        del view
        assert gone() is None


def test_an_empty_array_may_lie_anywhere() -> None:
    assert cu.from_pointer(0, (0, 4), "f4").shape == (0, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((0, 3, "f4"), ValueError, r"from_pointer\(\): an array of shape \(3,\) lies at 0"),
        ((16, 3, "f4"), ValueError, r"from_pointer\(\): 0x10 is not memory that the driver knows"),
        ((-1, 3, "f4"), ValueError, "-1 is not an address"),
        ((1 << 64, 3, "f4"), ValueError, "is not an address"),
        (("x", 3, "f4"), TypeError, "not 'x'"),
        ((True, 3, "f4"), TypeError, "not True"),
        ((1.5, 3, "f4"), TypeError, "not 1.5"),
        ((None, 3, "f4"), TypeError, "not None"),
        ((16, 3, "O"), TypeError, "Python objects"),
        ((16, -3, "f4"), ValueError, "negative"),
    ],
)
def test_what_is_no_address(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        cu.from_pointer(*arguments)


def test_a_pointer_to_too_little_memory() -> None:
    there = cu.to_device(MODEL)
    cu.from_pointer(there.pointer, 24, "f4")
    with pytest.raises(ValueError, match=r"from_pointer\(\): the array takes 4000000 bytes"):
        cu.from_pointer(there.pointer, 1_000_000, "f4")
    with pytest.raises(ValueError, match="strides"):
        cu.from_pointer(there.pointer, (2, 2), "f4", strides=(8,))


def test_a_pointer_to_another_device(two_devices: Any) -> None:
    there = cu.device_zeros(3, device=1)
    assert cu.from_pointer(there.pointer, 3, "f8", device=1).device.ordinal == 1
    with pytest.raises(ValueError, match="is on device 1, not on 0"):
        cu.from_pointer(there.pointer, 3, "f8", device="cuda:0")


# ---- pointers of ctypes --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["typed", "void", "text", "wide", "function"])
def test_a_pointer_of_ctypes_is_no_array(kind: str) -> None:
    block = (ctypes.c_float * 4)(1, 2, 3, 4)
    pointers: dict[str, Any] = {
        "typed": ctypes.cast(block, ctypes.POINTER(ctypes.c_float)),
        "void": ctypes.c_void_p(ctypes.addressof(block)),
        "text": ctypes.c_char_p(b"abcdefg"),
        "wide": ctypes.c_wchar_p("abcdefg"),
        "function": ctypes.CFUNCTYPE(None)(lambda: None),
    }
    pointer, there = pointers[kind], cu.device_empty(4, "f4")
    for call in (
        lambda: cu.copy(there, pointer),
        lambda: cu.copy(pointer, there),
        lambda: cu.to_device(pointer),
        lambda: cu.pin(pointer),
        lambda: cu.pin_async(pointer),
        lambda: cu.is_pinned(pointer),
    ):
        with pytest.raises(TypeError, match=r"is a pointer, .*as_array\(pointer.*from_pointer"):
            call()
    cu.copy(there, block)
    with cu.pin(block):
        assert cu.is_pinned(block)


# ---- page-locked memory as DLPack's --------------------------------------------------------------


def test_page_locked_memory_is_lent_as_such() -> None:
    host = cu.pinned_array(MODEL)
    lent = cu.dlpack_pinned(host)
    assert lent.__dlpack_device__() == (3, 0)
    taken = kit.Taken(lent.__dlpack__(max_version=(1, 3)))
    assert (taken.tensor.device.type, taken.tensor.device.id) == (3, 0)
    assert (taken.tensor.data, taken.shape) == (host.ctypes.data, (4, 6))
    taken.give_back()
    old = kit.Taken(lent.__dlpack__())
    assert old.tensor.device.type == 3
    old.give_back()
    plain = kit.Taken(lent.__dlpack__(dl_device=(1, 0)))
    assert plain.tensor.device.type == 1
    plain.give_back()
    back = cu.from_dlpack(lent)
    assert type(back) is np.ndarray
    assert back.ctypes.data == host.ctypes.data


def test_a_copy_of_it_is_page_locked_and_says_so() -> None:
    host = cu.pinned_array(MODEL)
    taken = kit.Taken(cu.dlpack_pinned(host).__dlpack__(max_version=(1, 0), copy=True))
    elsewhere = taken.tensor.data != host.ctypes.data
    knows = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # of the kind that has flags
    says = bool(taken.managed.flags & kit.IS_COPIED) if knows else False
    taken.give_back()
    assert elsewhere
    assert says == knows


def test_a_type_that_numpy_does_not_export() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    host = cu.pinned_zeros(5, ml_dtypes.bfloat16)
    back = cu.from_dlpack(cu.dlpack_pinned(host))
    assert (back.dtype, back.ctypes.data) == (host.dtype, host.ctypes.data)


def test_the_memory_lives_as_long_as_the_tensor() -> None:
    used = cu.host_memory_stats().used_blocks
    taken = kit.Taken(cu.dlpack_pinned(cu.pinned_zeros(100)).__dlpack__(max_version=(1, 0)))
    gc.collect()
    assert cu.host_memory_stats().used_blocks == used + 1
    taken.give_back()
    assert cu.host_memory_stats().used_blocks == used


def test_what_cannot_be_lent_as_page_locked() -> None:
    with pytest.raises(ValueError, match=r"96 bytes at 0x.* are not page-locked"):
        cu.dlpack_pinned(MODEL)
    with pytest.raises(TypeError, match="not DeviceArray"):
        cu.dlpack_pinned(cu.device_empty(3))  # type: ignore[arg-type]
    host: Any = cu.dlpack_pinned(cu.pinned_zeros(3))
    with pytest.raises(BufferError, match=r"dl_device \(2, 0\)"):
        host.__dlpack__(dl_device=(2, 0))


# ---- raw handles ---------------------------------------------------------------------------------


class Handle:
    def __init__(self, handle: int) -> None:
        self.handle_ = handle

    def __int__(self) -> int:
        return self.handle_


class CUevent(Handle):  # as cuda.bindings calls it
    pass


class CUstream(Handle):
    pass


@pytest.mark.parametrize("kind", [int, CUevent])
def test_an_event_from_a_handle(driver: Any, kind: Any) -> None:
    raw = ctypes.c_void_p()
    assert driver.cuEventCreate(ctypes.byref(raw), 0) == 0
    event, stream = cu.Event.from_handle(kind(raw.value)), cu.Stream()
    assert event.handle == raw.value
    assert event.done
    assert event.record(stream) is event
    event.wait(cu.Stream())
    event.synchronize()
    assert event.elapsed_time(event) == 0
    assert "on device 0" in repr(event)
    event.close()
    event.close()
    assert event.closed
    assert driver.cuEventDestroy_v2(raw) == 0, "it was not ours to destroy"


def test_an_event_that_is_none() -> None:
    for wrong, error in ((0, ValueError), (-1, ValueError), (1 << 64, ValueError),
                         ("x", TypeError), (True, TypeError), (None, TypeError)):  # fmt: skip
        with pytest.raises(error, match="an event"):
            cu.Event.from_handle(wrong)  # type: ignore[arg-type]


def test_raw_handles_are_taken_where_streams_and_events_are() -> None:
    work, stream = cu.Stream(), cu.Stream()
    there = cu.device_zeros(4)
    cu.copy_async(there, np.ones(4), CUstream(work.handle)).wait()  # type: ignore[arg-type]
    event = work.record()
    stream.wait(CUevent(event.handle))  # type: ignore[arg-type]
    stream.wait(CUstream(work.handle))  # type: ignore[arg-type]
    assert there.to_numpy().tolist() == [1, 1, 1, 1]
    with pytest.raises(TypeError, match=r"Event\.from_handle"):
        stream.wait(3)  # type: ignore[arg-type]

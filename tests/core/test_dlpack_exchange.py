"""The table of C functions by which other libraries take and make DeviceArrays (DLPack's exchange
API, which FlashInfer, TileLang and CuTe ask for)."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from test_dlpack_import import MODEL, placed

import cudriver as cu
import dlpackkit as kit
from graphkit import ACTIVE, Capture, busy

pytestmark = pytest.mark.usefixtures("no_leaks", "all_given_back")
SIZE = 1 << 16


def table() -> kit.ExchangeTable:
    return kit.table_of(cu.DeviceArray)


def taken(array: Any) -> Any:
    """The tensor that the table makes of an array; the caller gives it back by its deleter."""
    out = ctypes.c_void_p()
    assert table().from_object(array, ctypes.byref(out)) == 0
    return kit.VersionedTensor.from_address(out.value or 0)


def give_back(tensor: Any) -> None:
    tensor.deleter(ctypes.addressof(tensor))


def test_an_array_goes_out_and_comes_back() -> None:
    array = placed()
    assert (table().major, table().minor, table().older) == (1, 3, None)
    tensor, made = taken(array[1:]), ctypes.c_void_p()
    assert tensor.tensor.data == array[1:].pointer
    assert tuple(tensor.tensor.shape[:2]) == (3, 6)
    assert tuple(tensor.tensor.strides[:2]) == (6, 1)
    with pytest.raises(ValueError, match="1 view uses it and another library's array"):
        array.close()
    assert table().to_object(ctypes.addressof(tensor), ctypes.byref(made)) == 0
    again = ctypes.cast(made, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(made)
    assert type(again) is cu.DeviceArray
    assert again.pointer == array[1:].pointer
    assert (again.to_numpy() == MODEL[1:]).all()
    del again
    array.close()


def test_host_memory_comes_as_numpys() -> None:
    host, made = kit.Lender(MODEL.ctypes.data, (4, 6), device=(kit.CPU, 0)), ctypes.c_void_p()
    assert table().to_object(ctypes.addressof(host.managed), ctypes.byref(made)) == 0
    again = ctypes.cast(made, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(made)
    assert type(again) is np.ndarray
    assert again.ctypes.data == MODEL.ctypes.data


def test_it_refuses_what_is_no_device_array() -> None:
    out = ctypes.c_void_p(1)
    with pytest.raises(TypeError, match="a DeviceArray is wanted, not list"):
        table().from_object([1], ctypes.byref(out))
    assert out.value is None
    array = placed()
    newer = kit.Lender(array.pointer, (4, 6), version=(2, 0), owner=array)
    with pytest.raises(BufferError, match=r"a tensor of DLPack 2\.0"):
        table().to_object(ctypes.addressof(newer.managed), ctypes.byref(out))
    assert newer.given_back == 1
    closed = cu.device_empty(3)
    closed.close()
    with pytest.raises(ValueError, match="is closed"):
        table().from_object(closed, ctypes.byref(out))
    with pytest.raises(BufferError, match="no data type"):
        table().from_object(cu.device_empty(3, [("x", "f4")]), ctypes.byref(out))


def test_it_allocates() -> None:
    like, out, said = kit.Lender(None, (3, 5), dtype=(kit.INT, 16, 1)), ctypes.c_void_p(), []
    kit.alive.discard(like)
    report = kit.SET_ERROR(lambda _, kind, message: said.append((kind, message)))
    prototype = ctypes.byref(like.managed.tensor)

    def allocate() -> int:
        return int(table().allocate(prototype, ctypes.byref(out), None, report))

    assert allocate() == 0
    made = kit.VersionedTensor.from_address(out.value or 0)
    assert tuple(made.tensor.shape[:2]) == (3, 5)
    assert (made.tensor.dtype.code, made.tensor.dtype.bits) == (kit.INT, 16)
    give_back(made)
    assert said == []
    like.managed.tensor.dtype.bits = 24
    assert allocate() == -1
    like.managed.tensor.device.type = kit.ROCM
    assert allocate() == -1
    like.managed.tensor.device.type, like.managed.tensor.dtype.bits = kit.CUDA, 16
    like.managed.tensor.shape[0] = 1 << 50
    assert allocate() == -1
    like.managed.tensor.shape[0] = -1
    assert allocate() == -1
    assert out.value is None
    assert [kind for kind, _ in said] == [b"BufferError", b"ValueError", b"MemoryError",
                                          b"ValueError"]  # fmt: skip
    assert b"code 0 and 24 bits" in said[0][1]
    assert b"in 10" in said[1][1]


def test_it_allocates_in_a_thread_without_the_gil() -> None:
    like, out = kit.Lender(None, (3,)), ctypes.c_void_p()
    kit.alive.discard(like)
    report = kit.SET_ERROR(lambda *_: None)
    allocate = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    )(ctypes.cast(table().allocate, ctypes.c_void_p).value or 0)
    tensor = ctypes.addressof(like.managed.tensor)
    told = ctypes.cast(report, ctypes.c_void_p)
    thread = threading.Thread(target=allocate, args=(tensor, ctypes.addressof(out), None, told))
    thread.start()
    thread.join()
    give_back(kit.VersionedTensor.from_address(out.value or 0))


def test_its_stream_is_that_of_the_with_block() -> None:
    out = ctypes.c_void_p(1)
    assert table().current_stream(kit.CUDA, 0, ctypes.byref(out)) == 0
    assert out.value is None
    with cu.Stream() as stream:
        assert table().current_stream(kit.CUDA, 0, ctypes.byref(out)) == 0
        assert out.value == stream.handle
        assert table().current_stream(kit.CPU, 0, ctypes.byref(out)) == 0
        assert out.value is None


@pytest.mark.parametrize("closed", [False, True])
def test_its_stream_waits_for_our_work(driver: Any, closed: bool) -> None:
    array, ours = cu.device_zeros(SIZE, "f4"), cu.Stream()
    back, source = cu.pinned_zeros(SIZE, "f4"), cu.pinned_full(SIZE, 7, "f4")
    with busy(driver, ours):
        first = cu.copy_async(array, source, ours)
        if closed:  # then the driver gives its handle to the next stream
            ours.close()
        theirs = cu.Stream()
        with theirs:
            give_back(taken(array))
        second = cu.copy_async(back, array, theirs)
        assert not second.done
    second.wait()
    first.wait()
    assert (back == 7).all()


def test_a_captured_stream_cannot_wait_for_work_in_flight(driver: Any) -> None:
    ours, theirs, source = cu.Stream(), cu.Stream(), cu.pinned_zeros(SIZE, "f4")
    array = cu.device_empty(SIZE, "f4")
    with busy(driver, ours):
        transfer = cu.copy_async(array, source, ours)
        with Capture(driver, theirs) as graph:
            with theirs, pytest.raises(cu.CudaError, match="captured"):
                taken(array)
            assert graph.status() == ACTIVE
        graph.close()
    transfer.wait()


def test_its_stream_cannot_be_closed_while_it_is_to_wait(driver: Any) -> None:
    """What completed work lets go runs any code."""
    array, ours, theirs = cu.device_zeros(SIZE, "f4"), cu.Stream(), cu.Stream()
    source, refused = cu.pinned_zeros(SIZE, "f4"), list[str]()

    def closing(_: object) -> None:
        try:
            theirs.close()
        except ValueError as error:
            refused.append(str(error))

    watched = weakref.ref(source, closing)
    transfer = cu.copy_async(array, source, ours)
    del source
    assert driver.cuStreamSynchronize(ctypes.c_void_p(ours.handle)) == 0
    with theirs:
        give_back(taken(array))
    assert watched() is None
    assert "a running call uses it" in refused[0]
    transfer.wait()

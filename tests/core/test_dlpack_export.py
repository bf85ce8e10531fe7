"""DeviceArrays lent by DLPack: what the tensor says, who keeps what alive, which stream waits."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import cudriver as cu
import dlpackkit as kit
from program import output

MODEL = np.arange(24, dtype="f4").reshape(4, 6)
NEW = {"max_version": (1, 0)}

pytestmark = pytest.mark.usefixtures("no_leaks")


def placed() -> Any:
    return cu.to_device(MODEL)


VIEWS = {
    "whole": ...,
    "rows": np.s_[::2],
    "columns, backwards": np.s_[:, ::-2],
    "an item": np.s_[1, 2],
    "a new axis": np.s_[None, 1:3],
    "nothing": np.s_[:, :0],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("asked", [{}, NEW])
def test_the_tensor_describes_the_view(view: str, asked: Any) -> None:
    array = placed()
    lent, model = array[VIEWS[view]], MODEL[VIEWS[view]]
    taken = kit.Taken(lent.__dlpack__(**asked))
    tensor = taken.tensor
    assert (tensor.device.type, tensor.device.id) == array.__dlpack_device__() == (kit.CUDA, 0)
    assert taken.shape == model.shape
    assert taken.strides == tuple(stride // 4 for stride in lent.strides)
    assert model.size == 0 or taken.strides == tuple(stride // 4 for stride in model.strides)
    assert (tensor.data or 0) + tensor.byte_offset == (lent.pointer if model.size else 0)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (kit.FLOAT, 32, 1)
    taken.give_back()


DTYPES = {
    "?": (kit.BOOL, 8),
    "i1": (kit.INT, 8), "i2": (kit.INT, 16), "i4": (kit.INT, 32), "i8": (kit.INT, 64),
    "u1": (kit.UINT, 8), "u2": (kit.UINT, 16), "u4": (kit.UINT, 32), "u8": (kit.UINT, 64),
    "q": (kit.INT, 64), "Q": (kit.UINT, 64), "l": (kit.INT, 64),
    "f2": (kit.FLOAT, 16), "f4": (kit.FLOAT, 32), "f8": (kit.FLOAT, 64),
    "c8": (kit.COMPLEX, 64), "c16": (kit.COMPLEX, 128),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_data_types(dtype: str) -> None:
    taken = kit.Taken(cu.device_empty(3, dtype).__dlpack__())
    assert (taken.tensor.dtype.code, taken.tensor.dtype.bits) == DTYPES[dtype]
    assert taken.tensor.dtype.lanes == 1
    taken.give_back()


ML_DTYPES = {
    "bfloat16": (4, 16), "float8_e3m4": (7, 8), "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8), "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8), "float8_e8m0fnu": (14, 8),
    "float6_e2m3fn": (15, 6), "float6_e3m2fn": (16, 6), "float4_e2m1fn": (17, 4),
    "int2": (kit.INT, 2), "int4": (kit.INT, 4), "uint2": (kit.UINT, 2), "uint4": (kit.UINT, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", ML_DTYPES)
def test_data_types_of_ml_dtypes_both_ways(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"ml_dtypes {ml_dtypes.__version__} has no {name}")
    model = np.arange(3).astype(getattr(ml_dtypes, name))
    array = cu.device_empty(3, model.dtype)
    taken = kit.Taken(array.__dlpack__(**NEW))
    dtype = taken.tensor.dtype
    assert (dtype.code, dtype.bits) == ML_DTYPES[name]
    padded = ML_DTYPES[name][1] < 8
    assert taken.managed.flags == (kit.PADDED if padded else 0)
    taken.give_back()
    if padded:
        with pytest.raises(BufferError, match="older"):
            array.__dlpack__()
    lender = kit.Lender(
        model.ctypes.data, (3,), (1,), device=(kit.CPU, 0), dtype=(*ML_DTYPES[name], 1),
        flags=kit.PADDED if padded else 0,
    )  # fmt: skip
    back = cu.from_dlpack(lender)
    assert back.dtype == model.dtype
    assert back.tobytes() == model.tobytes()
    del back
    assert lender.given_back == 1


@pytest.mark.parametrize("dtype", [">i4", "S3", "V4", "M8[s]", [("a", "f4")], "g"])
def test_what_dlpack_has_no_data_type_for(dtype: Any) -> None:
    with pytest.raises(BufferError, match="DLPack has no data type for dtype"):
        cu.device_empty(2, dtype).__dlpack__()


def test_the_tensor_keeps_the_array() -> None:
    array = placed()
    view = array[1:]
    taken, seen = kit.Taken(view.__dlpack__(**NEW)), weakref.ref(view)
    address = array.pointer
    with pytest.raises(ValueError, match=r"cannot close .*: 1 view uses it and another library's"):
        array.close()
    del array, view
    gc.collect()
    assert seen() is not None
    back = np.empty(24, "f4")
    cu.copy(back, cu.from_dlpack(kit.Lender(address, (24,))))
    assert (back.reshape(4, 6) == MODEL).all()
    taken.give_back()
    assert seen() is None


def test_close_waits_for_every_consumer() -> None:
    array = placed()
    taken = [kit.Taken(array.__dlpack__(**asked)) for asked in ({}, NEW)]
    with pytest.raises(ValueError, match=r"another library's array .exported 2 times"):
        array.close()
    taken[0].give_back()
    with pytest.raises(ValueError, match="exported 1 time by"):
        array.close()
    taken[1].give_back()
    array.close()
    with pytest.raises(ValueError, match="is closed"):
        array.__dlpack__()


@pytest.mark.parametrize("asked", [{}, NEW])
def test_a_capsule_that_nobody_takes(asked: Any) -> None:
    array = placed()
    found, seen = array.__dlpack__(**asked), weakref.ref(array)
    del array
    gc.collect()
    assert seen() is not None
    del found
    assert seen() is None


@pytest.mark.parametrize("asked", [{}, NEW])
def test_given_back_by_other_threads_without_the_gil(asked: Any) -> None:
    """ctypes releases the GIL around the deleter."""
    array = cu.device_empty(100)
    taken = [kit.Taken(array.__dlpack__(**asked)) for _ in range(16)]
    seen = weakref.ref(array)
    del array
    threads = [threading.Thread(target=each.give_back) for each in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen() is None


def test_a_context_outlives_its_last_name() -> None:
    with cu.Context():
        taken = kit.Taken(cu.to_device(MODEL).__dlpack__(**NEW))
    gc.collect()
    lender = kit.Lender(taken.tensor.data, (4, 6))
    back = cu.from_dlpack(lender)
    assert (back.to_numpy() == MODEL).all()
    del back
    assert lender.given_back == 1
    taken.give_back()


@pytest.mark.parametrize("moment", ["atexit", "finalized"])
def test_given_back_while_the_interpreter_ends(moment: str) -> None:
    """By an exit handler of Python's, and by one of the C library's."""
    program = """
        import atexit, ctypes, sys, threading, time
        sys.path.insert(0, sys.argv[1])
        import dlpackkit as kit, cudriver as cu
        taken = kit.Taken(cu.device_zeros(10).__dlpack__(max_version=(1, 0)))
        process = ctypes.CDLL(None)
        deleter = ctypes.cast(taken.managed.deleter, ctypes.c_void_p)
        if sys.argv[2] == "atexit":
            atexit.register(taken.give_back)
        else:
            address = ctypes.c_void_p(taken.address)
            assert process.__cxa_atexit(deleter, address, None) == 0
        print("end")
    """
    from native_build import TESTS

    assert output(program, str(TESTS), moment) == "end\n"


# ---- streams ----------------------------------------------------------------------------------


def test_the_consumers_stream_waits_and_the_host_does_not(sim: Any) -> None:
    array, ours, theirs = cu.device_zeros(1000), cu.Stream(), cu.Stream()
    host, back = cu.pinned_full(1000, 7.0), cu.pinned_zeros(1000)
    theirs.synchronize()
    sim.hold()
    first = cu.copy_async(array, host, ours)
    sim.reset_counts()
    found = array.__dlpack__(stream=theirs.handle)
    second = cu.copy_async(back, array, theirs)
    assert sim.call_count("cuStreamWaitEvent") == 1
    assert not first.done
    sim.release()
    second.wait()
    assert (back == 7).all()
    assert first.done
    del found


def test_no_stream_waits_where_none_has_to(sim: Any) -> None:
    array, other, ours = cu.device_zeros(10), cu.device_zeros(10), cu.Stream()
    sim.hold()
    transfer = cu.copy_async(other, cu.pinned_full(10, 7.0), ours)
    sim.reset_counts()
    array.__dlpack__(stream=1)
    other.__dlpack__(stream=-1)
    assert sim.call_count("cuStreamWaitEvent") == 0
    sim.release()
    transfer.wait()


def test_a_view_is_behind_the_work_on_its_whole(sim: Any) -> None:
    array, ours = cu.device_zeros(10), cu.Stream()
    sim.hold()
    array[5:].fill(3, stream=ours)
    sim.reset_counts()
    array[:5].__dlpack__(stream=1)
    assert sim.call_count("cuStreamWaitEvent") == 1
    sim.release()
    ours.synchronize()


@pytest.mark.parametrize(
    ("stream", "error", "says"),
    [
        (0, ValueError, "stream=0: .*could be either"),
        (-2, ValueError, "stream=-2: DLPack has -1"),
        ("1", TypeError, "stream is None or an integer, not str"),
        (1.5, TypeError, "stream is None or an integer, not float"),
    ],
)
def test_streams_that_are_none(stream: Any, error: Any, says: str) -> None:
    array = placed()
    with pytest.raises(error, match=says):
        array.__dlpack__(stream=stream)


# ---- arguments --------------------------------------------------------------------------------


def test_a_copy_on_the_device() -> None:
    array = placed()
    taken = kit.Taken(array[:, ::2].__dlpack__(copy=True, **NEW))
    assert taken.managed.flags == kit.IS_COPIED
    assert taken.tensor.data != array.pointer
    assert (taken.shape, taken.strides) == ((4, 3), (3, 1))
    array.fill(0)
    lender = kit.Lender(taken.tensor.data, (4, 3))
    copied = cu.from_dlpack(lender).to_numpy()
    assert (copied == MODEL[:, ::2]).all()
    array.close()
    taken.give_back()


@pytest.mark.parametrize("asked", [{}, NEW])
def test_a_copy_on_the_host(asked: Any) -> None:
    array = placed()

    class Host:
        def __dlpack__(self, **_: Any) -> Any:
            return array[::2].__dlpack__(dl_device=(kit.CPU, 0), **asked)

        def __dlpack_device__(self) -> tuple[int, int]:
            return kit.CPU, 0

    back = np.from_dlpack(Host())
    assert (back == MODEL[::2]).all()
    with pytest.raises(BufferError, match="copy=False"):
        array.__dlpack__(dl_device=(kit.CPU, 0), copy=False)


def test_its_own_device_is_no_copy() -> None:
    array = placed()
    taken = kit.Taken(array.__dlpack__(dl_device=(kit.CUDA, 0), copy=False, **NEW))
    assert (taken.tensor.data, taken.managed.flags) == (array.pointer, 0)
    taken.give_back()


def test_an_array_of_another_device_than_the_first(two_devices: Any) -> None:
    array = cu.device_zeros((4, 6), "f4", device=two_devices[1])
    assert array.__dlpack_device__() == (kit.CUDA, 1)
    taken = kit.Taken(array.__dlpack__(dl_device=(kit.CUDA, 1), **NEW))
    assert (taken.tensor.device.type, taken.tensor.device.id) == (kit.CUDA, 1)
    taken.give_back()
    with pytest.raises(BufferError, match=r"dl_device \(2, 0\): only to its own device, \(2, 1\)"):
        array.__dlpack__(dl_device=(kit.CUDA, 0))


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"max_version": 1}, TypeError, "max_version is None or a pair"),
        ({"max_version": ("a", 0)}, TypeError, "integer"),
        ({"dl_device": 2}, TypeError, "dl_device is None or a pair"),
        ({"dl_device": (kit.CUDA, 1)}, BufferError, r"dl_device \(2, 1\)"),
        ({"dl_device": (kit.ROCM, 0)}, BufferError, r"dl_device \(10, 0\)"),
        ({"other": 1}, TypeError, "unexpected keyword argument 'other'"),
    ],
)
def test_arguments_that_are_wrong(asked: Any, error: Any, says: str) -> None:
    array = placed()
    with pytest.raises(error, match=says):
        array.__dlpack__(**asked)


def test_numpy_says_that_it_takes_no_device_memory() -> None:
    array = placed()
    with pytest.raises((RuntimeError, BufferError), match=r"[Dd]evice"):
        np.from_dlpack(array)

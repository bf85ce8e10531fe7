"""DLPack at its edges: the values beside those that are usual, and what a failure leaves behind."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_dlpack_import import MODEL, Untrue, lend, placed

import cudriver as cu
import dlpackkit as kit
from graphkit import ACTIVE, Capture, busy

NEW = {"max_version": (1, 0)}

pytestmark = pytest.mark.usefixtures("no_leaks", "all_given_back")


def host(shape: Any = (4, 6), strides: Any = None, **how: Any) -> kit.Lender:
    model = MODEL.copy()
    address = how.pop("data", model.ctypes.data)
    return kit.Lender(address, shape, strides, device=(kit.CPU, 0), owner=model, **how)


# ---- what is lent to us -----------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 0), (1, 4), (1, 2**32 - 1)])
def test_every_minor_version_is_read(version: tuple[int, int]) -> None:
    """It may bring new flags, of which only those that we know count."""
    made = cu.from_dlpack(host(version=version, flags=1 << 40 | kit.PADDED))
    assert (made == MODEL).all()
    assert made.flags.writeable


@pytest.mark.parametrize("old", [False, True])
def test_a_capsule_is_marked_as_taken(old: bool) -> None:
    lender = host(old=old)
    capsule = lender.__dlpack__()
    lent = SimpleNamespace(
        __dlpack__=lambda **asked: capsule, __dlpack_device__=lender.__dlpack_device__
    )
    made = cu.from_dlpack(lent)
    assert kit.name_of(capsule) == kit.USED[kit.OLD if old else kit.VERSIONED]
    with pytest.raises(ValueError, match="was taken already"):
        cu.from_dlpack(lent)
    assert lender.given_back == 0
    del made
    assert lender.given_back == 1


@pytest.mark.parametrize("old", [False, True])
def test_a_tensor_of_either_kind_may_have_no_deleter(old: bool) -> None:
    lender = host(old=old, deleter=False)
    assert (cu.from_dlpack(lender) == MODEL).all()
    kit.alive.discard(lender)


@pytest.mark.parametrize("old", [False, True])
def test_the_deleter_finds_no_exception_and_loses_none(old: bool) -> None:
    seen: list[Any] = []
    lender = host(data=None, old=old)
    delete = kit.DELETER(lambda address: seen.append(ctypes.pythonapi.PyErr_Occurred()))
    lender.managed.deleter = delete
    with pytest.raises(ValueError, match="lies at address"):
        cu.from_dlpack(lender)
    assert seen == [0]
    kit.alive.discard(lender)


def test_a_capsule_without_a_name() -> None:
    lent = SimpleNamespace(
        __dlpack__=lambda **asked: kit.capsule(8, None), __dlpack_device__=lambda: (kit.CPU, 0)
    )
    with pytest.raises(ValueError, match="a capsule named '', not 'dltensor'"):
        cu.from_dlpack(lent)


@pytest.mark.parametrize("shape", [(0, 6), (4, 0), (2, 0, 3), (0, 0)])
@pytest.mark.parametrize("strides", [None, 7])
def test_no_items_lie_anywhere(shape: tuple[int, ...], strides: Any) -> None:
    """Whatever the strides and the address."""
    strides = strides and [strides if length else 1 << 62 for length in shape]
    made = cu.from_dlpack(host(shape, strides, data=None))
    assert made.shape == shape
    assert not made.flags.owndata
    array = placed()
    there = cu.from_dlpack(kit.Lender(array.pointer, shape, strides, owner=array))
    assert (there.shape, there.pointer, there.device.ordinal) == (shape, 0, 0)
    assert there.to_numpy().shape == shape


@pytest.mark.parametrize("kind", [kit.CPU, kit.CUDA])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (3, 1, 2), (1, 4, 1)])
def test_without_strides_it_is_dense(shape: tuple[int, ...], kind: int) -> None:
    model = np.arange(np.prod(shape), dtype="f8").reshape(shape)
    owner: Any = cu.to_device(model) if kind == kit.CUDA else model
    address = owner.pointer if kind == kit.CUDA else model.ctypes.data
    lender = kit.Lender(
        address - 16, shape, device=(kind, 0), dtype=(kit.FLOAT, 64, 1), byte_offset=16, owner=owner
    )
    made = cu.from_dlpack(lender)
    assert made.strides == model.strides
    assert ((made.to_numpy() if kind == kit.CUDA else made) == model).all()


def test_as_many_dimensions_as_there_may_be() -> None:
    array = placed()
    most = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32  # NumPy's own limit
    made = cu.from_dlpack(kit.Lender(array.pointer, (1,) * most, owner=array))
    assert made.ndim == most
    assert made[(0,) * most].to_numpy().item() == 0


@pytest.mark.parametrize("data", [2**64 - 2, 2**64 - 4 * 24 + 4])
def test_the_last_item_must_not_wrap_around(data: int) -> None:
    with pytest.raises(ValueError, match="larger than the address space"):
        cu.from_dlpack(host((24,) if data % 4 == 0 else (1,), data=data))


@pytest.mark.parametrize("items", [1 << 60, -(1 << 60), 1 << 59])
def test_a_span_must_not_wrap_around_to_the_beginning(items: int) -> None:
    """Four steps of 2**62 bytes are none in 64 bits."""
    with pytest.raises(ValueError, match="larger than the address space"):
        cu.from_dlpack(host((5,), (items,)))


def test_backwards_down_to_address_0() -> None:
    """The first item is where the strides begin, and not the lowest one."""
    with pytest.raises(ValueError, match="larger than the address space"):
        cu.from_dlpack(host((3,), (-1,), data=4))


@pytest.mark.parametrize("kind", [kit.CUDA, kit.MANAGED])
def test_negative_strides_of_either_device_memory(kind: int) -> None:
    """CuPy 14 divides them as unsigned numbers."""
    array = placed()
    for items in (-6, (2**64 - 24) // 4):
        lender = kit.Lender(
            array[3].pointer, (4, 6), (items, 1), device=(kind, 0), owner=array,
        )  # fmt: skip
        made = cu.from_dlpack(lender)
        assert made.strides == (-24, 4)
        assert (made.to_numpy() == MODEL[::-1]).all()


@pytest.mark.parametrize("device", [(0, 0), (-1, 0), (14, 0), (2**31 - 1, 7)])
def test_devices_that_are_none_of_cuda(device: tuple[int, int]) -> None:
    lender = kit.Lender(MODEL.ctypes.data, (4, 6), device=device)
    with pytest.raises(BufferError, match=f"memory of device type {device[0]} is not supported"):
        cu.from_dlpack(lender)
    assert (lender.given_back, lender.asked) == (1, [{"max_version": (1, 3)}])


@pytest.mark.parametrize("device", [(kit.CUDA, 99), (kit.CUDA, -1), (kit.MANAGED, 99)])
def test_an_empty_tensor_of_a_device_that_there_is_not(device: tuple[int, int]) -> None:
    lender = kit.Lender(None, (0,), device=device)
    with pytest.raises(cu.CudaError, match=rf"cuDeviceGet\({device[1]}\)"):
        cu.from_dlpack(lender)
    assert lender.given_back == 1


@pytest.mark.parametrize("pair", [(2**32 + kit.CUDA, 0), (kit.CUDA, 2**32), (-(2**31) - 1, 0)])
def test_a_device_that_does_not_fit_its_type(pair: tuple[int, int]) -> None:
    """The standard has int32_t: what is left of a larger number is another device."""
    lender = lend(placed())
    lender.device = pair
    with pytest.raises(OverflowError):
        cu.from_dlpack(lender)
    assert lender.asked == []
    kit.alive.discard(lender)


def test_a_pair_is_a_tuple() -> None:
    lender = host()
    lender.device = [kit.CPU, 0]  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"returned \[1, 0\], not a pair of integers"):
        cu.from_dlpack(lender)
    kit.alive.discard(lender)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("copy", [None, True, False])
@pytest.mark.parametrize("kind", [kit.CPU, kit.CUDA_HOST])
def test_no_host_memory_is_asked_for_with_a_stream(kind: int, copy: Any, old: bool) -> None:
    lender = lend(MODEL.copy(), device=(kind, 0), old=old)
    with cu.Stream():
        assert (cu.from_dlpack(lender, copy=copy) == MODEL).all()
    assert [asked.get("stream", "none") for asked in lender.asked] == ["none"] * (1 + old)


# ---- from_dlpack's own arguments --------------------------------------------------------------


@pytest.mark.parametrize("where", ["host", "device"])
def test_what_is_refused_is_given_back(where: str) -> None:
    def lender() -> kit.Lender:
        return host() if where == "host" else lend(placed())

    other: Any = 0 if where == "host" else "cpu"
    for asked, error in (
        ({"device": "CPU"}, ValueError),
        ({"device": "gpu"}, ValueError),
        ({"device": -1}, Exception),
        ({"device": 99, "copy": True}, Exception),
        ({"device": 1.5}, TypeError),
        ({"device": other, "copy": False}, ValueError),
    ):
        refused = lender()
        with pytest.raises(error):
            cu.from_dlpack(refused, **asked)  # type: ignore[arg-type]
        assert refused.given_back == 1, asked
    refused = lender()
    with pytest.raises(ZeroDivisionError, match="mine"):
        cu.from_dlpack(refused, copy=Untrue())  # type: ignore[arg-type]
    assert refused.asked == [], "before anything is lent"
    kit.alive.discard(refused)


@pytest.mark.parametrize("function", ["cuMemAllocFromPoolAsync", "cuMemcpyDtoDAsync_v2"])
def test_a_copy_that_fails_gives_both_back(sim: Any, function: str) -> None:
    array = placed()
    lender = lend(array)
    allocations = len(cu.live_allocations())
    sim.fail(f"{function}:*:719")
    with pytest.raises(cu.CudaError) as failed:
        cu.from_dlpack(lender, copy=True)
    sim.clear_faults()
    assert (failed.value.code, lender.given_back) == (719, 1)
    assert len(cu.live_allocations()) == allocations


@pytest.mark.parametrize("where", ["host", "device"])
def test_a_copy_may_be_written(where: str) -> None:
    lender = lend(MODEL.copy() if where == "host" else placed(), flags=kit.READ_ONLY)
    copied = cu.from_dlpack(lender, copy=True)
    assert lender.given_back == 1
    assert copied.flags.writeable
    assert copied.flags.c_contiguous


def test_a_device_that_is_not_current(two_devices: Any) -> None:
    with two_devices[0].primary_context() as current:
        there = cu.from_dlpack(host(), device=1)
        assert there.device.ordinal == 1
        assert (there.to_numpy() == MODEL).all()
        assert cu.from_dlpack(there, device=1).pointer == there.pointer
        assert cu.from_dlpack(there, device=1, copy=True).context is there.context
        here = cu.from_dlpack(lend(there, device=(kit.CUDA, 1)), device=0)
        assert here.context is current
        assert (here.to_numpy() == MODEL).all()
        nothing = cu.from_dlpack(kit.Lender(None, (3, 0), device=(kit.CUDA, 1)))
        assert nothing.device.ordinal == 1
        assert cu.current_context() is current


@pytest.mark.parametrize(
    "call",
    [
        lambda lender: cu.pin(lender),
        lambda lender: cu.is_pinned(lender),
        lambda lender: placed().to_numpy(out=lender),
    ],
    ids=["pin", "is_pinned", "to_numpy"],
)
def test_device_memory_is_none_of_the_hosts(call: Any) -> None:
    lender = lend(placed())
    with pytest.raises(TypeError, match=r"not Lender|but a Lender|not dlpackkit.Lender"):
        call(lender)
    assert lender.given_back == 1


def test_a_pin_of_a_copy_is_refused() -> None:
    lender = host(flags=kit.IS_COPIED)
    with pytest.raises(BufferError, match="lent a copy"):
        cu.pin(lender)
    assert lender.given_back == 1


# ---- ends of copies ---------------------------------------------------------------------------


def test_ends_are_let_go_when_the_other_is_wrong() -> None:
    there, buffer = placed(), bytearray(96)
    for other, error in ((3, TypeError), (np.zeros(5), ValueError), (Untrue(), TypeError)):
        first, second = lend(placed()), lend(MODEL.copy())
        for ends in ((first, other), (buffer, other)):
            with pytest.raises(error):
                cu.copy(*ends)  # type: ignore[arg-type]
        with pytest.raises(error):
            cu.copy_async(second, other, None)  # type: ignore[arg-type]
        assert (first.given_back, second.given_back) == (1, 1)
    buffer.extend(b"1")  # not exported any more
    there.close()


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_the_numbers_of_the_default_streams(handle: int) -> None:
    """0 is the legacy one in CUDA, and nothing in the standard."""
    out = np.zeros((4, 6), "f4")
    for stream in (cu.Stream.from_handle(handle), SimpleNamespace(cuda_stream=handle)):
        lender = lend(placed())
        cu.copy_async(out, lender, stream).wait()
        assert lender.asked[-1]["stream"] == max(handle, 1)
    with cu.Stream.from_handle(handle):
        cu.from_dlpack(lender := lend(placed()))
    assert lender.asked[0]["stream"] == max(handle, 1)
    assert (out == MODEL).all()


def test_a_default_stream_is_asked_for_while_another_is_captured(driver: Any) -> None:
    """The number -1 would say that nothing need wait."""
    blocking = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(blocking), 0) == 0
    lender = lend(placed())
    with Capture(driver, SimpleNamespace(handle=blocking.value)) as graph:
        made = cu.from_dlpack(lender)
        assert graph.status() == ACTIVE
    graph.close()
    assert lender.asked == [{"stream": 1, "max_version": (1, 3)}]
    del made
    assert driver.cuStreamDestroy_v2(blocking) == 0


@pytest.mark.parametrize("code", [700, 719])
def test_a_wait_for_the_lender_that_fails(sim: Any, code: int) -> None:
    context = cu.current_context()
    out = np.zeros((4, 6), "f4")
    for call in (cu.copy, lambda dst, src: cu.to_device(src)):
        lender = lend(placed())
        sim.fail(f"cuStreamQuery:1:{code},cuEventQuery:1:{code},cuEventRecord:1:{code}")
        with pytest.raises(cu.CudaError) as failed:
            call(out, lender)
        sim.clear_faults()
        assert (failed.value.code, lender.given_back) == (code, 1)
    assert cu.current_context() is context
    assert not out.any()


REFUSED: dict[str, Callable[[Any], object]] = {
    "a copy": lambda a: cu.from_dlpack(lend(a, flags=kit.IS_COPIED), copy=False),
    "read-only": lambda a: cu.copy(lend(a, flags=kit.READ_ONLY), MODEL),
    "another shape": lambda a: cu.copy(lend(a), MODEL[:2]),
    "another type": lambda a: cu.copy(MODEL.astype("f8"), lend(a)),
    "no array": lambda a: cu.copy(lend(a), 3),  # type: ignore[call-overload]
    "no device": lambda a: cu.from_dlpack(lend(a), device="gpu"),
    "not there": lambda a: cu.from_dlpack(lend(a), device="cpu", copy=False),
    "the host's": lambda a: cu.pin(lend(a)),
    "lanes": lambda a: cu.from_dlpack(lend(a, dtype=(kit.FLOAT, 32, 2))),
    "beyond the memory": lambda a: cu.from_dlpack(kit.Lender(a.pointer, (1 << 40,), owner=a)),
    "at address 0": lambda a: cu.from_dlpack(kit.Lender(None, (4, 6))),
    "another kind": lambda a: cu.from_dlpack(lend(a, device=(kit.ROCM, 0))),
    "a stream of another device": lambda a: cu.copy_async(MODEL, lend(a), cu.Stream(device=1)),
    "an old consumer": lambda a: cu.from_dlpack(lend(a, flags=kit.READ_ONLY)).__dlpack__(),
    "odd strides": lambda a: (
        a.view("u1").reshape(-1)[:95].reshape(19, 5)[:, :4].view("f4").__dlpack__()
    ),
    "a consumer's device": lambda a: a.__dlpack__(dl_device=(kit.CUDA, 1)),
    "a consumer's stream": lambda a: a.__dlpack__(stream=0),
    "no copy": lambda a: a.__dlpack__(dl_device=(kit.CPU, 0), copy=False),
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_reference_stays_behind(two_devices: Any, name: str) -> None:
    """To the context, the data type or the array, whatever was read before the failure."""
    array = placed()
    shared = [array, array.context, array.dtype, np.dtype("f8"), MODEL]

    def count() -> list[int]:
        for _ in range(3):
            with pytest.raises((BufferError, ValueError, TypeError)):
                REFUSED[name](array)
            gc.collect()
        return [sys.getrefcount(thing) for thing in shared]

    count()  # what is kept from the first time
    assert count() == count()


# ---- ours, lent -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "result"),
    [
        ({"max_version": (1, 99)}, kit.VERSIONED),
        ({"max_version": (2**31, 0)}, kit.VERSIONED),
        ({"max_version": (0, 99)}, kit.OLD),
        ({"max_version": (-1, 0)}, kit.OLD),
        ({"max_version": (1,)}, TypeError),
        ({"max_version": (1, 0, 0)}, TypeError),
        ({"max_version": [1, 0]}, TypeError),
        ({"max_version": (1.0, 0)}, TypeError),
        ({"max_version": (2**70, 0)}, kit.VERSIONED),
        ({"dl_device": (kit.CUDA, -1)}, BufferError),
        ({"dl_device": (-1, 0)}, BufferError),
        ({"dl_device": (kit.CUDA_HOST, 0)}, BufferError),
        ({"dl_device": (kit.MANAGED, 0)}, BufferError),
        ({"dl_device": (2**32 + kit.CUDA, 0)}, BufferError),
        ({"dl_device": (kit.CUDA, 2**32)}, BufferError),
        ({"dl_device": [kit.CUDA, 0]}, TypeError),
        ({"dl_device": (kit.CUDA, 0, 0)}, TypeError),
        ({"dl_device": ("x", 0)}, TypeError),
        ({"dl_device": (kit.CUDA, "0")}, TypeError),
        ({"dl_device": (kit.CUDA, 2**70)}, BufferError),
        ({"stream": 2**70}, OverflowError),
        ({"stream": -(2**70)}, ValueError),
        ({"stream": -3}, ValueError),
        ({"stream": 2**64, **NEW}, OverflowError),
        ({"stream": -(2**64), **NEW}, ValueError),
        ({"copy": Untrue()}, ZeroDivisionError),
        ({"copy": True, "stream": 0}, ValueError),
        ({"copy": 0}, kit.OLD),
        ({"stream": -1, "dl_device": None, "copy": None, "max_version": None}, kit.OLD),
    ],
)
def test_arguments_at_their_edges(asked: dict[str, Any], result: Any) -> None:
    array = placed()
    if isinstance(result, bytes):
        assert kit.name_of(array.__dlpack__(**asked)) == result
    else:
        with pytest.raises(result):
            array.__dlpack__(**asked)
    gc.collect()
    array.close()  # nothing is exported


def test_a_stream_says_nothing_about_the_host() -> None:
    array = placed()
    for stream in (0, -5, "x", 2**70):
        array.__dlpack__(dl_device=(kit.CPU, 3), stream=stream)


@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize(("asked", "name"), [({}, kit.OLD), (NEW, kit.VERSIONED)])
def test_a_copy_on_the_host_says_that_it_is_one(asked: Any, name: bytes, copy: Any) -> None:
    """As NumPy's own copies do: the consumer may write into it."""
    array = placed()
    view = cu.from_dlpack(lend(array, flags=kit.READ_ONLY))
    taken = kit.Taken(view.__dlpack__(dl_device=(kit.CPU, 0), copy=copy, **asked))
    knows = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # NumPy makes the host's tensor
    assert taken.versioned == (name == kit.VERSIONED and knows)
    assert not taken.versioned or taken.managed.flags == kit.IS_COPIED
    lender = kit.Lender(taken.tensor.data, (4, 6), device=(kit.CPU, 0))
    assert (cu.from_dlpack(lender) == MODEL).all()
    taken.give_back()


@pytest.mark.parametrize("asked", [{}, NEW])
def test_a_copy_of_read_only_memory_may_be_written(asked: Any) -> None:
    view = cu.from_dlpack(lend(placed(), flags=kit.READ_ONLY))
    taken = kit.Taken(view.__dlpack__(copy=True, **asked))
    assert not taken.versioned or taken.managed.flags == kit.IS_COPIED
    taken.give_back()


def test_a_copy_of_padded_items_is_padded_too() -> None:
    int4 = pytest.importorskip("ml_dtypes", reason="NumPy has no int4 of its own").int4
    taken = kit.Taken(cu.device_zeros(3, int4).__dlpack__(copy=True, **NEW))
    assert taken.managed.flags == kit.IS_COPIED | kit.PADDED
    taken.give_back()


def test_the_version_is_that_of_the_header() -> None:
    taken = kit.Taken(placed().__dlpack__(max_version=(1, 0)))
    assert (taken.managed.major, taken.managed.minor) == (1, 3)
    taken.give_back()


@pytest.mark.parametrize("index", [np.s_[:0], np.s_[:, :0], np.s_[:0, :0]])
def test_no_items_have_no_address(index: Any) -> None:
    taken = kit.Taken(placed()[index].__dlpack__())
    assert taken.tensor.data is None
    assert taken.shape == MODEL[index].shape
    taken.give_back()


def test_strides_that_are_no_whole_items() -> None:
    array = cu.device_zeros((4, 5), "u1")[:, :4].view("u2")
    assert array.strides == (5, 2)
    for asked in ({}, NEW):
        with pytest.raises(BufferError, match="that of axis 0 is 5 bytes, and an item has 2"):
            array.__dlpack__(**asked)
    with pytest.raises(BufferError, match="that of axis 1 is 5 bytes"):
        array.T.__dlpack__()
    with pytest.raises(BufferError, match="that of axis 0 is -5 bytes"):
        array[::-1].__dlpack__()
    taken = kit.Taken(array.T[:, ::2].__dlpack__())
    assert taken.strides == (1, 5)
    taken.give_back()


@pytest.mark.parametrize("stream", [None, 1, 2])
def test_every_default_stream_is_of_the_consumers_context(driver: Any, stream: Any) -> None:
    array, ours = cu.device_zeros(100), cu.Stream()
    with busy(driver, ours):
        transfer = cu.copy_async(array, cu.pinned_zeros(100), ours)
        with cu.Context(0) as context:  # whose end would wait
            theirs = cu.Stream.from_handle(stream or 1)
            array.__dlpack__(stream=stream)
            assert not theirs.done
    transfer.wait()
    context.close()


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("at", [0, 1])
def test_a_consumer_waits_for_all_work_on_the_memory(driver: Any, in_order: bool, at: int) -> None:
    """On each stream, whether or not the memory was made in the order of another."""
    array = cu.device_empty(100, stream=cu.Stream() if in_order else None)
    theirs, streams = cu.Stream(), [cu.Stream(), cu.Stream()]
    with busy(driver, streams[at]):  # not both: the driver may run one host function at a time
        for stream in streams:
            cu.copy_async(array, cu.pinned_zeros(100), stream)
        array.__dlpack__(stream=theirs.handle)
        assert not theirs.done
    theirs.synchronize()


def test_a_consumer_in_a_context_of_its_own(driver: Any, two_devices: Any) -> None:
    """A handle says itself where it is: whichever context or device is current."""
    array, ours = cu.device_zeros(100, device=0), cu.Stream(device=0)
    with cu.Context(0) as context:
        streams = [cu.Stream(), cu.Stream(device=1)]
    with busy(driver, ours):
        transfer = cu.copy_async(array, cu.pinned_full(100, 7.0), ours)
        with two_devices[1].primary_context() as current:
            for theirs in streams:
                array.__dlpack__(stream=theirs.handle)
                assert not theirs.done
                assert cu.current_context() is current
    transfer.wait()
    for theirs in streams:
        theirs.synchronize()
        theirs.close()
    context.close()

"""`__cuda_array_interface__` at its edges: what it may leave out, and what a failure leaves."""

from __future__ import annotations

import ctypes
import sys
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from graphkit import ACTIVE, BROKEN, Capture, busy

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(scope="module")
def driver() -> Any:
    cu.init()
    return ctypes.CDLL(cu.driver_path())


class Foreign:
    def __init__(self, array: Any, **changed: Any) -> None:
        self.owner = array
        entries = {**array.__cuda_array_interface__, **changed}
        self.__cuda_array_interface__ = {k: v for k, v in entries.items() if v is not Foreign}


class Untrue:
    def __bool__(self) -> bool:
        raise ZeroDivisionError("mine")


WRONG: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "data": ({"data": 3}, TypeError),
    "the truth of read-only": ({"data": (4096, Untrue())}, ZeroDivisionError),
    "typestr": ({"typestr": Foreign}, TypeError),
    "shape": ({"shape": (4, 6.0)}, TypeError),
    "strides": ({"strides": (24, 4, 1)}, TypeError),
    "strides in a list": ({"strides": [24, 4]}, TypeError),
    "a shape in a list": ({"shape": [4, 6]}, TypeError),
    "an address of none": ({"data": (16, False)}, ValueError),
    "the extent": ({"shape": (4, 1 << 40), "strides": None}, ValueError),
    "a negative stream": ({"stream": -1}, TypeError),
    "the mask": ({"mask": 1}, TypeError),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused_is_let_go(case: str) -> None:
    changed, error = WRONG[case]
    array = cu.device_zeros((4, 6), "f4")
    foreign, host = Foreign(array, **changed), np.zeros((4, 6), "f4")
    objects: list[Any] = [foreign, foreign.__cuda_array_interface__, host]
    before = [sys.getrefcount(thing) for thing in objects]
    for call, ends in (
        (cu.copy, (foreign, host)),
        (cu.copy, (host, foreign)),
        (cu.to_device, (foreign,)),
        (cu.copy_async, (host, foreign, None)),
    ):
        with pytest.raises(error):
            call(*ends)  # type: ignore[operator]
    ends = ()
    after = [sys.getrefcount(thing) for thing in objects]
    assert after == before
    del foreign, objects, ends
    array.close()


@pytest.mark.parametrize("found", [3, None, [], ()])
def test_an_interface_that_is_no_dict(found: Any) -> None:
    class Odd:
        __cuda_array_interface__ = found

    with pytest.raises(TypeError, match=r"Odd.__cuda_array_interface__ is not a dict"):
        cu.to_device(Odd())


@pytest.mark.parametrize("lends", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, AttributeError, ValueError])
def test_an_interface_that_raises(error: Any, lends: bool) -> None:
    """PyTorch's raises RuntimeError for what DLPack may lend; AttributeError is that of none."""

    class Raising:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise error("theirs")

    class Lending(Raising):
        def __dlpack__(self, **asked: Any) -> Any:
            raise KeyError("DLPack's")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    if lends and error is not ValueError:
        expected = pytest.raises(KeyError, match="DLPack's")
    elif error is AttributeError:
        expected = pytest.raises(TypeError, match="is not an array")  # type: ignore[arg-type]
    else:
        expected = pytest.raises(error, match="theirs")
    with expected:
        cu.copy(np.zeros(3), (Lending if lends else Raising)())


def test_no_mask_and_none_are_one() -> None:
    array = cu.to_device(np.arange(6, dtype="f4"))
    assert (cu.to_device(Foreign(array, mask=None)).to_numpy() == np.arange(6)).all()


def test_a_description_is_that_of_fields_alone() -> None:
    """For a plain type the typestr counts."""
    array = cu.to_device(np.arange(6, dtype="f4"))
    for descr in ([("a", "<f8")], [("", "<i2")], "nonsense", None, Foreign):
        there = cu.to_device(Foreign(array, descr=descr))
        assert there.dtype == np.float32
        assert (there.to_numpy() == np.arange(6)).all()
    items: Any = {"shape": (3,), "strides": None, "typestr": "|V8"}
    pair = cu.to_device(Foreign(array, **items, descr=[("x", "<f4"), ("y", "<f4")]))
    assert pair.dtype.names == ("x", "y")
    assert pair.to_numpy()["y"].tolist() == [1, 3, 5]
    for descr in (
        [("x", "<f8")],
        [(("a title", "x"), "<f8")],
        [("x", "<f4", (2,))],
        [("", "|V4"), ("x", "<f4")],
    ):
        assert cu.to_device(Foreign(array, **items, descr=descr)).dtype == np.dtype(descr)
    for descr in ([("", "|V8")], None, Foreign):
        plain = cu.to_device(Foreign(array, **items, descr=descr))
        assert plain.dtype == np.dtype("V8")


def test_items_without_bytes_lie_anywhere() -> None:
    array = cu.device_zeros(3, "f4")
    for address in (0, 16, array.pointer):
        nothing = Foreign(array, typestr="|V0", data=(address, False), shape=(3,), descr=None)
        assert cu.to_device(nothing).shape == (3,)


@pytest.mark.parametrize("stream", [1, 2, "named"])
@pytest.mark.parametrize("device", [0, 1])
def test_the_stream_is_of_the_memorys_context(
    sim: Any, driver: Any, two_devices: Any, device: int, stream: Any
) -> None:
    """Whichever is current."""
    with cu.Context(device) as context:
        array = cu.device_zeros(1000, "u1")
        named = cu.Stream() if stream == "named" else cu.Stream.from_handle(stream)
    address = ctypes.c_uint64()
    with context:
        assert driver.cuMemAlloc_v2(ctypes.byref(address), 1000) == 0  # of no pool: of a context
    out = np.zeros(1000, "u1")
    foreign = Foreign(array, data=(address.value, False), stream=named.handle)
    current = cu.current_context()
    sim.set_latency(20_000)
    with context:
        handle = ctypes.c_void_p(named.handle)
        assert driver.cuMemsetD8Async(address, 7, ctypes.c_size_t(1000), handle) == 0
    cu.copy(out, foreign)
    sim.set_latency(0)
    assert (out == 7).all()
    sim.fail_next("cuEventRecord" if stream != "named" else "cuStreamQuery", 719)
    with pytest.raises(cu.CudaError) as refused:
        cu.copy(out, foreign)
    assert (refused.value.code, refused.value.function) == (719, "cuStreamQuery")
    assert cu.current_context() is current
    del refused, foreign
    with context:
        assert driver.cuMemFree_v2(address) == 0
    array.close()
    named.close()
    context.close()


def test_a_captured_producer_is_not_waited_for(driver: Any) -> None:
    array, theirs, out = cu.to_device(np.arange(9.0)), cu.Stream(), np.zeros(9)
    stack = cu.context_stack()
    with Capture(driver, theirs) as graph:
        cu.copy(out, Foreign(array, stream=theirs.handle))
        assert cu.context_stack() == stack
        assert graph.status() == ACTIVE
        out[:] = 0
        cu.copy_async(out, Foreign(array, stream=theirs.handle), cu.Stream()).wait()
        assert graph.status() == ACTIVE
    graph.close()
    assert graph.ended == 0
    assert (out == np.arange(9)).all()


def test_a_producer_whose_capture_is_broken_is_told(driver: Any) -> None:
    array, theirs, out = cu.to_device(np.arange(9.0)), cu.Stream(), np.zeros(9)
    graph = Capture(driver, theirs).begin()
    assert driver.cuStreamSynchronize(graph.handle) != 0
    assert graph.status() == BROKEN
    with pytest.raises(cu.CudaError, match="CAPTURE_INVALIDATED"):
        cu.copy(out, Foreign(array, stream=theirs.handle))
    graph.end()
    graph.close()
    cu.copy(out, Foreign(array, stream=theirs.handle))
    assert (out == np.arange(9)).all()


def test_without_a_stream_nothing_is_waited_for(driver: Any) -> None:
    """None says that there is nothing to wait for."""
    array, work, stream = cu.to_device(np.arange(9.0)), ExitStack(), cu.Stream()
    work.enter_context(busy(driver, stream))
    out = cu.pinned_zeros(9)
    with work:
        for named in (None, Foreign):
            cu.copy(out, Foreign(array, stream=named))
        assert not stream.done
    assert (out == np.arange(9)).all()

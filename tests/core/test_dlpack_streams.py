"""DLPack and streams: which stream waits for whom, in copies, and during a capture."""

from __future__ import annotations

import contextvars
import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudriver as cu
import dlpackkit as kit
from graphkit import ACTIVE, Capture, busy

SIZE = 1 << 10

pytestmark = pytest.mark.usefixtures("no_leaks")


class Tensor(kit.Lender):
    """A float32 tensor of PyTorch's before its table: an interface without a stream, and a method
    that makes the consumer's stream wait for `work`, its own current stream."""

    requires_grad = False
    read_only = False

    def __init__(self, array: Any, work: Any) -> None:
        super().__init__(array.pointer, array.shape, owner=array)
        self.array, self.work = array, work
        kit.alive.discard(self)

    @property
    def __cuda_array_interface__(self) -> Any:
        if self.requires_grad:
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")
        data = (self.array.pointer, self.read_only)
        return {"shape": (SIZE,), "typestr": "<f4", "data": data, "version": 2}

    def __dlpack__(self, **asked: Any) -> Any:
        stream = asked["stream"]
        if stream not in (-1, self.work.handle):
            cu.Stream.from_handle(stream).wait(self.work)
        kit.alive.add(self)
        return super().__dlpack__(**asked)

    def detach(self) -> Tensor:
        return Tensor(self.array, self.work)


def placed() -> Tensor:
    return Tensor(cu.device_zeros(SIZE, "f4"), cu.Stream())


@pytest.mark.parametrize("given", ["a stream", "its own", "none"])
def test_a_copy_waits_for_the_stream_of_a_tensor(driver: Any, given: str) -> None:
    """An interface without a stream orders nothing, so DLPack is asked; the host does not wait."""
    tensor = placed()
    stream = {"a stream": cu.Stream(), "its own": tensor.work, "none": None}[given]
    source, back = cu.pinned_full(SIZE, 7, "f4"), cu.pinned_zeros(SIZE, "f4")
    with busy(driver, tensor.work):
        first = cu.copy_async(cu.from_dlpack(tensor), source, tensor.work)
        second = cu.copy_async(back, tensor, stream)
        assert not tensor.work.done
        assert not second.done
    second.wait()
    first.wait()
    assert (back == 7).all()
    assert tensor.asked[-1]["stream"] == (1 if stream is None else stream.handle)


def test_a_copy_to_a_new_array_waits_for_the_stream_of_a_tensor(driver: Any) -> None:
    """In the order of its stream, as copy_async does: the host does not wait."""
    tensor, stream = placed(), cu.Stream()
    source = cu.pinned_full(SIZE, 7, "f4")
    with busy(driver, tensor.work):
        first = cu.copy_async(cu.from_dlpack(tensor), source, tensor.work)
        array = cu.to_device(tensor, stream=stream)
        assert not tensor.work.done
        assert not stream.done
    assert (array.to_numpy() == 7).all()
    first.wait()
    assert tensor.asked[-1]["stream"] == stream.handle


def test_a_stream_of_another_context_of_the_device_need_not_wait(driver: Any) -> None:
    """A lender takes it as any other; the default stream has nothing to do with it."""
    tensor, default = placed(), cu.Stream.from_handle(1)
    back, running = cu.pinned_full(SIZE, 7, "f4"), ExitStack()
    running.enter_context(busy(driver, default))
    with cu.Context(0) as context:
        stream = cu.Stream()
    with running:
        cu.copy_async(back, tensor, stream).wait()
        assert not default.done
    assert tensor.asked[-1]["stream"] == stream.handle
    assert not back.any()
    stream.close()
    context.close()


class Late(Tensor):
    """Its work is over 50 ms after another stream was made to wait for it, and not before."""

    context: Any = None

    def __init__(self, array: Any, work: Any, driver: Any) -> None:
        super().__init__(array, work)
        self.running = ExitStack()
        self.running.enter_context(busy(driver, work))

    def __dlpack__(self, **asked: Any) -> Any:
        with self.array.context:  # a default stream is that of the memory's context
            capsule = super().__dlpack__(**asked)
        self.timer = threading.Timer(0.05, self.running.close)
        # A thread may inherit the context variables here, and so keep a `with stream:` alive.
        contextvars.Context().run(self.timer.start)
        return capsule

    def is_over(self) -> bool:
        """Whether its work is; the thread that has ended it lets go of the stream."""
        done = self.work.done
        self.timer.join()
        return done


def test_a_stream_of_another_device_has_to_wait_for_a_tensor(driver: Any, two_devices: Any) -> None:
    """No lender takes a stream of another device, so the call waits for the default stream."""
    stream = cu.Stream(device=two_devices[1])
    there = cu.device_empty(SIZE, "f4", device=two_devices[1])
    with two_devices[0].primary_context():
        tensor = Late(cu.device_zeros(SIZE, "f4"), cu.Stream(), driver)
    transfer = cu.copy_async(there, tensor, stream)
    assert tensor.is_over()
    assert tensor.asked[-1]["stream"] == 1
    transfer.wait()
    assert not there.to_numpy().any()


@pytest.mark.parametrize("write", [False, True])
def test_the_default_stream_of_another_context_has_to_wait_for_a_tensor(
    driver: Any, write: bool
) -> None:
    """The lender orders its work against the default stream of the memory's context."""
    address, back = ctypes.c_uint64(), cu.pinned_zeros(SIZE, "f4")
    primary = cu.current_context()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), SIZE * 4) == 0  # of no pool: of a context
    array = SimpleNamespace(pointer=address.value, shape=(SIZE,), context=primary)
    tensor = Late(array, cu.Stream(), driver)
    with cu.Context(0):
        ends = (tensor, back) if write else (back, tensor)
        transfer = cu.copy_async(*ends, cu.Stream.from_handle(1))
        assert tensor.is_over()
        transfer.wait()
    assert driver.cuMemFree_v2(address) == 0


@pytest.mark.parametrize("write", [False, True])
def test_many_copies_on_another_contexts_stream_wait_for_a_tensor(driver: Any, write: bool) -> None:
    """Memory of a pool may be used there, and is not ready before its lender is."""
    back = cu.pinned_full(SIZE, 5, "f4")
    tensor = Late(cu.device_zeros(SIZE, "f4"), cu.Stream(), driver)
    with cu.Context(0) as context:
        stream = cu.Stream.from_handle(1)  # its default stream
    ends = (tensor, back) if write else (back, tensor)
    transfer = cu.copy_many_async([ends[0]], [ends[1]], stream)
    over = tensor.is_over()
    transfer.wait()
    context.synchronize()
    stream.close()
    context.close()
    assert over


@pytest.mark.parametrize("by", ["method", "interface", "table"])
def test_a_question_waits_for_no_work(driver: Any, by: str) -> None:
    """explain_copy() moves nothing, so it neither waits nor makes another stream wait."""
    table = kit.ExchangeTable(
        1, 3, None, kit.ALLOCATE(), kit.FROM_OBJECT(lambda lender, out: lender.lend(out)),
        kit.TO_OBJECT(), None, kit.CURRENT_STREAM(lambda kind, device, out: lending.tell(out)),
    )  # fmt: skip

    class Interface(Tensor):
        @property
        def __cuda_array_interface__(self) -> Any:
            return {**super().__cuda_array_interface__, "stream": self.work.handle}

    class Tabled(Tensor):
        __dlpack_c_exchange_api__ = kit.capsule(ctypes.addressof(table), b"dlpack_exchange_api")

        def lend(self, out: Any) -> int:
            out[0] = ctypes.addressof(self.managed)
            return 0

        def tell(self, out: Any) -> int:
            out[0] = self.work.handle
            return 0

    kind = {"method": Tensor, "interface": Interface, "table": Tabled}[by]
    lending: Any = kind(cu.device_zeros(SIZE, "f4"), cu.Stream())
    default, entered = cu.Stream.from_handle(1), cu.Stream()
    with busy(driver, lending.work):
        for stream in (default, entered):
            with stream:
                assert cu.explain_copy(np.zeros(SIZE, "f4"), lending).path == "direct"
        assert not lending.work.done
        assert default.done
        assert entered.done
    assert [asked["stream"] for asked in lending.asked] == ([-1, -1] if by == "method" else [])


def test_a_blocking_copy_waits_for_the_stream_of_a_tensor(driver: Any) -> None:
    tensor = placed()
    source, back = np.full(SIZE, 7, "f4"), np.zeros(SIZE, "f4")
    cu.copy(tensor, source)
    with cu.Stream() as stream:
        cu.copy(back, tensor)
    assert (back == 7).all()
    assert [asked["stream"] for asked in tensor.asked] == [1, stream.handle]


@pytest.mark.parametrize("named", [False, True])
def test_a_blocking_copy_waits_for_a_tensor_of_another_context(driver: Any, named: bool) -> None:
    """The default stream that a lender is told of is that of the memory's context."""
    address, back = ctypes.c_uint64(), np.zeros(SIZE, "f4")
    primary = cu.current_context()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), SIZE * 4) == 0  # of no pool: of a context
    array = SimpleNamespace(pointer=address.value, shape=(SIZE,), context=primary)
    tensor = Late(array, cu.Stream(), driver)
    with cu.Context(0) as context, cu.Stream() if named else cu.Stream.from_handle(1):
        cu.copy(back, tensor)
        assert tensor.is_over()
    context.close()
    assert driver.cuMemFree_v2(address) == 0


def test_the_stream_that_a_copy_waits_for_cannot_be_closed(driver: Any, sim: Any) -> None:
    """Before the copy, for the lender's work that was put before it."""
    tensor, back = placed(), np.zeros(SIZE, "f4")
    stream = cu.Stream()

    def copies() -> None:
        with stream:
            cu.copy(back, tensor)

    thread = threading.Thread(target=copies)
    with busy(driver, tensor.work):
        thread.start()
        while not tensor.asked:
            time.sleep(0.001)
        asked = sim.call_count("cuEventQuery")
        while sim.call_count("cuEventQuery") == asked:  # the lender has answered: it waits
            time.sleep(0.001)
        with pytest.raises(ValueError, match="a running call uses it"):
            stream.close()
    thread.join()
    stream.close()


def test_a_tensor_that_requires_grad_is_read() -> None:
    tensor = placed()
    array = np.ones(SIZE, "f4")
    tensor.requires_grad = True
    assert vars(tensor), "a dict of its own, which Python 3.11 makes when it is asked for"
    assert not cu.to_device(tensor).to_numpy().any()
    with pytest.raises(ValueError, match="requires grad: pass its detach"):
        cu.copy(tensor, array)
    assert tensor.asked == []


def test_an_interface_has_its_say_about_writing() -> None:
    """The tensors of before DLPack 1.0 cannot say that they are read-only."""
    tensor = placed()
    tensor.read_only = True
    with pytest.raises(ValueError, match="destination is read-only"):
        cu.copy(tensor, np.ones(SIZE, "f4"))
    assert tensor.asked == []


def test_an_interface_that_names_a_stream_is_used() -> None:
    tensor = placed()

    class Named(Tensor):
        named: int | None = None

        @property
        def __cuda_array_interface__(self) -> Any:
            return {**super().__cuda_array_interface__, "version": 3, "stream": self.named}

    array = np.zeros(SIZE, "f4")
    for stream in (None, 1, tensor.work.handle):  # None: there is nothing to wait for
        named = Named(tensor.array, tensor.work)
        named.named = stream
        cu.copy(array, named)
        assert named.asked == []


def test_a_copy_on_a_captured_stream_is_refused_and_orders_nothing(driver: Any) -> None:
    tensor = placed()
    stream, source = cu.Stream(), cu.pinned_full(SIZE, 7, "f4")
    with Capture(driver, stream) as graph:
        with pytest.raises(cu.CudaError, match="a copy cannot be captured"):
            cu.copy_async(tensor, source, stream)
        assert graph.status() == ACTIVE
    assert tensor.asked[-1]["stream"] == -1
    assert graph.nodes() == 0
    graph.close()
    assert tensor.given_back == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda tensor: cu.copy(tensor, np.ones(SIZE, "f4")),
        lambda tensor: cu.to_device(tensor),
    ],
    ids=["copy", "to_device"],
)
def test_a_blocking_call_leaves_the_capture_intact(
    driver: Any, call: Callable[[Tensor], object]
) -> None:
    """It is refused before anything waits for the captured stream of its `with` block."""
    tensor = placed()
    stream = cu.Stream()
    with Capture(driver, stream) as graph:
        with stream, pytest.raises(cu.CudaError, match="cannot be captured"):
            call(tensor)
        assert graph.status() == ACTIVE
    graph.close()
    assert graph.ended == 0


def closing(stream: Any, refused: list[str]) -> None:
    try:
        stream.close()
    except ValueError as error:
        refused.append(str(error))


def test_the_stream_of_a_with_block_cannot_be_closed_by_the_lender() -> None:
    """It is to be made ready for that stream, by its handle."""
    refused: list[str] = []

    class Closing(Tensor):
        def __dlpack__(self, **asked: Any) -> Any:
            closing(stream, refused)
            return super().__dlpack__(**asked)

    tensor, stream = placed(), cu.Stream()
    with stream:
        cu.from_dlpack(Closing(tensor.array, tensor.work))
    assert "a running call uses it" in refused[0]
    stream.close()


def test_a_closed_stream_of_a_with_block_is_not_asked_for() -> None:
    """Another library's keeps its handle, which may be nobody's by now."""
    tensor, theirs = placed(), cu.Stream()
    stream = cu.Stream.from_handle(theirs.handle)
    with stream:
        stream.close()
        with pytest.raises(ValueError, match="is closed"):
            cu.from_dlpack(tensor)
    assert tensor.asked == []


def test_a_closed_stream_of_a_with_block_is_not_waited_for() -> None:
    tensor, theirs, out = placed(), cu.Stream(), np.zeros(SIZE, "f4")
    stream = cu.Stream.from_handle(theirs.handle)
    with stream:
        stream.close()
        theirs.close()  # the driver knows the handle no more
        with pytest.raises(ValueError, match="is closed"):
            cu.copy(out, tensor)


def test_a_stream_of_another_device_is_not_asked_for(two_devices: Any) -> None:
    """By a `with` block, which holds for the calls of every device."""
    tensor = placed()
    with cu.Stream(device=two_devices[1]):
        cu.from_dlpack(tensor)
    assert tensor.asked[-1]["stream"] == 1


# ---- our arrays, lent ---------------------------------------------------------------------------


def lend(array: Any, stream: Any) -> object:
    return array.__dlpack__(stream=stream.handle)


def test_the_default_stream_of_a_consumer_is_on_the_device_of_the_array(
    driver: Any, two_devices: Any
) -> None:
    """Whichever device is current."""
    defaults = []
    for device in two_devices:
        with device.primary_context():
            defaults.append(cu.Stream.from_handle(1))
    ours = cu.Stream(device=two_devices[1])
    array = cu.device_zeros(SIZE, "f4", device=two_devices[1])
    with busy(driver, ours):
        transfer = cu.copy_async(array, cu.pinned_zeros(SIZE, "f4"), ours)
        with two_devices[0].primary_context():
            array.__dlpack__(stream=1)
        assert [stream.done for stream in defaults] == [True, False]
    transfer.wait()


def test_a_captured_consumer_cannot_wait_for_work_in_flight(driver: Any) -> None:
    ours, theirs, source = cu.Stream(), cu.Stream(), cu.pinned_zeros(SIZE, "f4")
    array = cu.device_empty(SIZE, "f4")
    with busy(driver, ours):
        transfer = cu.copy_async(array, source, ours)
        with Capture(driver, theirs) as graph:
            with pytest.raises(cu.CudaError, match="outside the graph: wait for that"):
                lend(array, theirs)
            assert graph.status() == ACTIVE
    assert driver.cuStreamSynchronize(ctypes.c_void_p(ours.handle)) == 0
    with Capture(driver, theirs) as after:
        lend(array, theirs)  # nothing is in flight any more
        assert after.status() == ACTIVE
    assert (graph.ended, after.ended) == (0, 0)
    graph.close()
    after.close()
    transfer.wait()


def test_nothing_waits_for_a_captured_stream_of_ours(driver: Any) -> None:
    """What waited for it would join the capture. A copy has an event from before, which tells."""
    ours, theirs, source = cu.Stream(), cu.Stream(), cu.pinned_full(SIZE, 5, "f4")
    array = cu.device_empty(SIZE, "f4")
    transfer = cu.copy_async(array, source, ours)
    with Capture(driver, ours) as graph:
        lend(array, theirs)
        assert graph.status() == ACTIVE
        assert not Capture(driver, theirs).status()
    assert graph.ended == 0
    lend(array, theirs)
    graph.close()
    theirs.synchronize()
    assert transfer.done
    assert (array.to_numpy() == 5).all()

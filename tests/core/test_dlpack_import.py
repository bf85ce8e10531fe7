"""from_dlpack() and copies of what has __dlpack__: other libraries' memory, right and wrong."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudriver as cu
import dlpackkit as kit

MODEL = np.arange(24, dtype="f4").reshape(4, 6)

pytestmark = pytest.mark.usefixtures("no_leaks", "all_given_back")


class Untrue:
    def __bool__(self) -> bool:
        raise ZeroDivisionError("mine")


def lend(array: Any, **how: Any) -> kit.Lender:
    """A lender of a NumPy array's or a DeviceArray's memory."""
    device = isinstance(array, cu.DeviceArray)
    how.setdefault("device", (kit.CUDA, 0) if device else (kit.CPU, 0))
    how.setdefault("owner", array)
    address = array.pointer if device else array.ctypes.data
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return kit.Lender(address, array.shape, strides, **how)


def placed() -> Any:
    return cu.to_device(MODEL)


def refuse(lender: kit.Lender) -> None:
    """A capsule without a destructor was not taken: so its tensor is ours to forget."""
    assert lender.given_back == 0
    kit.alive.discard(lender)


# ---- what comes of it -------------------------------------------------------------------------


@pytest.mark.parametrize("old", [False, True])
def test_device_memory_becomes_a_device_array(old: bool) -> None:
    array = placed()
    lender = lend(array[::2, 1:], old=old)
    made = cu.from_dlpack(lender)
    assert type(made) is cu.DeviceArray
    assert (made.pointer, made.shape, made.strides) == (
        array[::2, 1:].pointer, (2, 5), array[::2, 1:].strides
    )  # fmt: skip
    assert made.context is array.context
    assert made.flags.writeable
    assert not made.flags.owndata
    assert (made.to_numpy() == MODEL[::2, 1:]).all()
    made.fill(0)
    assert not array[::2, 1:].to_numpy().any()
    view = made[1:]
    del made
    assert lender.given_back == 0
    del view
    assert lender.given_back == 1


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", [kit.CPU, kit.CUDA_HOST])
def test_host_memory_becomes_an_ndarray(old: bool, kind: int) -> None:
    model = MODEL.copy()[:, ::-2]
    lender = lend(model, old=old, device=(kind, 0))
    made = cu.from_dlpack(lender)
    assert type(made) is np.ndarray
    assert (made.ctypes.data, made.strides) == (model.ctypes.data, model.strides)
    assert (made == model).all()
    assert made.flags.writeable
    part = made[1:].T
    del made
    assert lender.given_back == 0
    del part
    assert lender.given_back == 1


def test_read_only_stays_read_only() -> None:
    host = cu.from_dlpack(lend(MODEL.copy(), flags=kit.READ_ONLY))
    assert not host.flags.writeable
    there = cu.from_dlpack(lend(placed(), flags=kit.READ_ONLY))
    for array in (there, there[1:], there.T.T, there.view("i4").view("f4"), cu.from_dlpack(there)):
        assert not array.flags.writeable
        assert array.__cuda_array_interface__["data"][1] is True
        with pytest.raises(ValueError, match="read-only"):
            array.fill(0)
        for value in (0, np.zeros(6, "f4")):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = value
        with pytest.raises(ValueError, match="the destination is read-only"):
            cu.copy(array, np.zeros(array.shape, "f4"))
        with pytest.raises(BufferError, match=r"is read-only, which only DLPack 1.0 can say"):
            array.__dlpack__()
        taken = kit.Taken(array.__dlpack__(max_version=(1, 0)))
        assert taken.managed.flags == kit.READ_ONLY
        taken.give_back()
    assert (there.to_numpy() == MODEL).all()


def test_an_array_of_our_own_is_a_view() -> None:
    array = placed()
    made = cu.from_dlpack(array)
    assert made.pointer == array.pointer
    with pytest.raises(ValueError, match="1 view uses"):
        array.close()
    del made
    array.close()
    with pytest.raises(ValueError, match="is closed"):
        cu.from_dlpack(array)


def test_numpys_arrays() -> None:
    model = MODEL.copy()[1:, ::3]
    made = cu.from_dlpack(model)
    assert (made.ctypes.data, made.strides) == (model.ctypes.data, model.strides)
    assert cu.is_pinned(cu.from_dlpack(cu.pinned_zeros(10)))


@pytest.mark.parametrize("kind", [kit.CPU, kit.CUDA])
def test_no_dimensions_need_no_shape(kind: int) -> None:
    owner = cu.to_device(MODEL) if kind == kit.CUDA else MODEL.copy()
    address = owner.pointer if kind == kit.CUDA else owner.ctypes.data
    made = cu.from_dlpack(kit.Lender(address, None, device=(kind, 0), owner=owner))
    assert made.shape == ()
    assert (made.to_numpy() if kind == kit.CUDA else made).tolist() == MODEL[0, 0].tolist()


@st.composite
def windows(draw: st.DrawFn) -> tuple[Any, tuple[slice, ...], Any]:
    """(a whole array, an index, a permutation of axes)"""
    dtype = draw(st.sampled_from(["?", "i1", "u2", "i4", "f2", "f4", "f8", "c8", "c16", "u8"]))
    shape = draw(st.lists(st.integers(1, 6), max_size=5).map(tuple))
    index = tuple(
        slice(draw(st.integers(0, n)), draw(st.integers(0, n)), draw(st.sampled_from([1, 2, 3])))
        if draw(st.booleans())
        else slice(None, None, draw(st.sampled_from([1, -1, 2, -2])))
        for n in shape
    )
    whole = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    return whole, index, draw(st.permutations(range(len(shape))))


@given(windows(), st.booleans())
def test_any_strides_through_numpy_and_back(window: Any, old: bool) -> None:
    whole, index, axes = window
    model = whole[(*index, ...)].transpose(axes)
    code = {"b": kit.BOOL, "i": kit.INT, "u": kit.UINT, "f": kit.FLOAT, "c": kit.COMPLEX}
    dtype = (code[whole.dtype.kind], whole.itemsize * 8, 1)
    root = cu.to_device(whole)
    offset = model.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    strides = tuple(stride // whole.itemsize for stride in model.strides)
    lender = kit.Lender(
        root.pointer + offset, model.shape, strides, dtype=dtype, old=old, owner=root
    )
    made = cu.from_dlpack(lender)
    assert made.dtype == model.dtype
    assert np.array_equal(made.to_numpy(), model)
    again = kit.Taken(made.__dlpack__(max_version=(1, 0)))
    assert model.size == 0 or (again.strides, again.tensor.data) == (strides, root.pointer + offset)
    again.give_back()
    here = cu.from_dlpack(model)
    assert here.dtype == model.dtype
    assert np.array_equal(here, model)
    # NumPy need not keep the stride of an axis of one item.
    seen = [axis for axis in range(model.ndim) if model.shape[axis] != 1]
    assert model.size == 0 or all(here.strides[i] == model.strides[i] for i in seen)
    del made
    assert lender.given_back == 1


# ---- lifetime ---------------------------------------------------------------------------------


def test_close_gives_the_memory_back_once() -> None:
    lender = lend(placed())
    made = cu.from_dlpack(lender)
    made.close()
    assert lender.given_back == 1
    made.close()
    with pytest.raises(ValueError, match="is closed"):
        made.to_numpy()
    del made
    assert lender.given_back == 1


def test_given_back_in_another_thread() -> None:
    lender = lend(placed())
    held = [cu.from_dlpack(lender)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert lender.given_back == 1


def test_a_copy_in_flight_keeps_the_lenders_memory(sim: Any) -> None:
    """The copy owns the tensor: that of a from_dlpack array, or one that it took itself."""
    stream, array = cu.Stream(), placed()
    lenders = [lend(array), lend(array), lend(cu.pinned_array(MODEL))]
    there = cu.device_empty((4, 6), "f4")
    out = cu.pinned_zeros((4, 6), "f4")
    made = cu.from_dlpack(lenders[0])
    sim.hold()
    transfers = [cu.copy_async(out, made, stream), cu.copy_async(there, lenders[2], stream)]
    del made
    assert [lender.given_back for lender in lenders] == [0, 0, 0]
    sim.release()
    for transfer in transfers:
        transfer.wait()
    stream.synchronize()
    cu.live_allocations()
    assert [lender.given_back for lender in lenders] == [1, 0, 1]
    cu.copy_async(out, lenders[1], stream).wait()
    cu.live_allocations()
    assert lenders[1].given_back == 1
    assert (out == MODEL).all()
    assert (there.to_numpy() == MODEL).all()


# ---- what the other library is asked ----------------------------------------------------------


def test_what_is_asked_of_the_lender() -> None:
    array, stream = placed(), cu.Stream()
    lender, host = lend(array), lend(MODEL.copy())
    managed = lend(array, device=(kit.MANAGED, 0))
    cu.from_dlpack(lender)
    cu.from_dlpack(managed)
    with stream:
        cu.from_dlpack(lender, copy=False)
    cu.from_dlpack(host)
    cu.from_dlpack(host, copy=False)
    assert lender.asked == [
        {"stream": 1, "max_version": (1, 3)},
        {"stream": stream.handle, "max_version": (1, 3), "copy": False},
    ]
    assert managed.asked == lender.asked[:1]
    assert host.asked == [{"max_version": (1, 3)}, {"max_version": (1, 3), "copy": False}]


def test_an_old_library_is_asked_as_it_knows() -> None:
    lender, host = lend(placed(), old=True), lend(MODEL.copy(), old=True)
    assert (cu.from_dlpack(lender, copy=False).to_numpy() == MODEL).all()
    assert lender.asked[-1] == {"stream": 1}
    assert (cu.from_dlpack(host) == MODEL).all()
    assert host.asked[-1] == {}


def test_copy_and_device() -> None:
    array, host = placed(), MODEL.copy()
    assert cu.from_dlpack(array, device=0).pointer == array.pointer
    for copied in (cu.from_dlpack(array, copy=True), cu.from_dlpack(lend(array), copy=True)):
        assert copied.pointer != array.pointer
        assert (copied.to_numpy() == MODEL).all()
    copied = cu.from_dlpack(host, copy=True)
    assert copied.ctypes.data != host.ctypes.data
    assert (copied == host).all()
    assert cu.from_dlpack(host, device="cpu").ctypes.data == host.ctypes.data
    down = cu.from_dlpack(lend(array), device="cpu")
    assert (down == MODEL).all()
    up = cu.from_dlpack(host.T, device=cu.Device(0))
    assert (up.to_numpy() == host.T).all()
    with pytest.raises(ValueError, match=r"not on the device asked for \('cpu'\), and copy=False"):
        cu.from_dlpack(array, device="cpu", copy=False)
    with pytest.raises(ValueError, match="copy=False"):
        cu.from_dlpack(host, device=0, copy=False)
    with pytest.raises(ValueError, match="is not a CUDA device"):
        cu.from_dlpack(host, device="gpu")


def test_a_copy_stays_in_the_context_of_its_source() -> None:
    with cu.Context(0) as context:
        array = placed()
    assert cu.current_context() is not context
    copied = cu.from_dlpack(array, copy=True)
    assert copied.context is context
    assert (copied.to_numpy() == MODEL).all()


@pytest.mark.parametrize("stride", [1 << 62, -(1 << 62), 0, 7])
def test_the_stride_of_an_axis_of_one_item_does_not_count(stride: int) -> None:
    model = MODEL.copy()
    lender = kit.Lender(model.ctypes.data, (1, 6), (stride, 1), device=(kit.CPU, 0), owner=model)
    assert (cu.from_dlpack(lender) == MODEL[:1]).all()


# ---- copies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [False, True])
def test_copies_take_what_has_dlpack(old: bool) -> None:
    array, out = placed(), np.zeros((4, 6), "f4")
    there = cu.device_empty((4, 6), "f4")
    cu.copy(there, lend(MODEL.copy(), old=old))
    assert (there.to_numpy() == MODEL).all()
    cu.copy(lend(out, old=old), array)
    assert (out == MODEL).all()
    out[:] = 0
    cu.copy(lend(out), lend(array))
    assert (out == MODEL).all()
    there.fill(0)
    cu.copy(there, lend(array, old=old))
    assert (there.to_numpy() == MODEL).all()
    assert (cu.to_device(lend(MODEL.copy()[:, ::2])).to_numpy() == MODEL[:, ::2]).all()
    assert cu.explain_copy(there, lend(MODEL.copy())).path == "direct"


class Grad(kit.Lender):
    """A tensor as PyTorch's: its __dlpack__ refuses while it requires grad."""

    requires_grad = True

    def detach(self) -> kit.Lender:
        kit.alive.discard(self)  # this one lends nothing
        return kit.Lender(self.managed.tensor.data, MODEL.shape, device=(kit.CPU, 0), owner=self)

    def __dlpack__(self, **asked: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")


def tensor() -> Grad:
    model = MODEL.copy()
    return Grad(model.ctypes.data, model.shape, device=(kit.CPU, 0), owner=model)


def test_a_tensor_that_requires_grad_can_be_page_locked() -> None:
    """As the parameters of a model are, to copy from."""
    parameter = tensor()
    assert not cu.is_pinned(parameter)
    with cu.pin(parameter) as pin:
        assert cu.is_pinned(parameter)
        assert pin.nbytes == MODEL.nbytes


def test_a_tensor_that_requires_grad_is_read_only() -> None:
    there, refused = placed(), tensor()
    there.fill(0)
    cu.copy(there, tensor())
    assert (there.to_numpy() == MODEL).all()
    with pytest.raises(ValueError, match="requires grad: pass its detach"):
        cu.copy(refused, there)
    with pytest.raises(BufferError, match="require gradient"):
        cu.from_dlpack(refused)
    refuse(refused)

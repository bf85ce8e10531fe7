"""from_dlpack() and copies of what has __dlpack__: other libraries' memory, right and wrong."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudriver as cu
import dlpackkit as kit
from graphkit import ACTIVE, Capture, busy

MODEL = np.arange(24, dtype="f4").reshape(4, 6)

pytestmark = pytest.mark.usefixtures("no_leaks", "all_given_back")


@pytest.fixture
def all_given_back() -> Iterator[None]:
    kit.alive.clear()
    yield
    gc.collect()
    assert kit.alive == set(), "tensors that were not given back"


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


def test_managed_memory_becomes_a_device_array() -> None:
    made = cu.from_dlpack(lend(placed(), device=(kit.MANAGED, 0)))
    assert (made.to_numpy() == MODEL).all()


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


def test_a_read_only_destination() -> None:
    with pytest.raises(ValueError, match="the destination is read-only"):
        cu.copy(lend(MODEL.copy(), flags=kit.READ_ONLY), placed())


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


def test_offset_and_dense_strides() -> None:
    array = placed()
    made = cu.from_dlpack(kit.Lender(array.pointer, (3, 6), byte_offset=24, owner=array))
    assert made.pointer == array.pointer + 24
    assert made.strides == (24, 4)
    assert (made.to_numpy() == MODEL[1:]).all()


def test_strides_as_cupy_writes_negative_ones() -> None:
    """CuPy 14: -24 bytes by 4, divided as unsigned numbers."""
    array = placed()
    strides = ((2**64 - 24) // 4, 1)
    lender = kit.Lender(array[3].pointer, (4, 6), strides, owner=array)
    made = cu.from_dlpack(lender)
    assert made.strides == (-24, 4)
    assert (made.to_numpy() == MODEL[::-1]).all()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
@pytest.mark.parametrize("kind", [kit.CPU, kit.CUDA])
def test_no_dimensions_and_no_items(shape: tuple[int, ...], kind: int) -> None:
    owner = cu.to_device(MODEL) if kind == kit.CUDA else MODEL.copy()
    address = owner.pointer if kind == kit.CUDA else owner.ctypes.data
    lender = kit.Lender(
        None if 0 in shape else address, shape if shape else None, device=(kind, 0), owner=owner
    )
    made = cu.from_dlpack(lender)
    assert made.shape == shape
    back = made.to_numpy() if kind == kit.CUDA else made
    assert back.tolist() == MODEL[0, 0].tolist() if shape == () else back.size == 0
    del made, back
    assert lender.given_back == 1


def test_a_tensor_without_a_deleter() -> None:
    lender = lend(MODEL.copy(), deleter=False)
    assert (cu.from_dlpack(lender) == MODEL).all()
    kit.alive.discard(lender)


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


def test_an_exception_survives_the_giving_back() -> None:
    lender = lend(MODEL.copy())

    def fail() -> None:
        made = cu.from_dlpack(lender)
        raise KeyError(made.shape)

    with pytest.raises(KeyError):
        fail()
    gc.collect()
    assert lender.given_back == 1


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


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_the_numbers_of_the_default_streams(handle: int) -> None:
    """0 is the default stream in CUDA, and nothing in the standard."""
    lender = lend(placed())
    with cu.Stream.from_handle(handle):
        cu.from_dlpack(lender)
    assert lender.asked[0]["stream"] == max(handle, 1)


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


def test_another_device(two_devices: Any) -> None:
    array = cu.to_device(MODEL)
    there = cu.from_dlpack(array, device=1)
    assert there.device.ordinal == 1
    assert (there.to_numpy() == MODEL).all()
    again = cu.from_dlpack(lend(there, device=(kit.CUDA, 1)))
    assert again.context is there.context
    assert there.__dlpack_device__() == (kit.CUDA, 1)
    nothing = cu.from_dlpack(kit.Lender(None, (3, 0), device=(kit.CUDA, 1)))
    assert nothing.device.ordinal == 1


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
    there.copy_from(lend(array, old=old))
    assert (there.to_numpy() == MODEL).all()
    assert (cu.to_device(lend(MODEL.copy()[:, ::2])).to_numpy() == MODEL[:, ::2]).all()
    assert cu.explain_copy(there, lend(MODEL.copy())).path == "direct"


@pytest.mark.parametrize("by_table", [False, True])
def test_what_is_written_into_a_copy_would_be_lost(
    request: pytest.FixtureRequest, by_table: bool
) -> None:
    """A library may ignore copy=False, and say so."""
    if by_table:
        request.getfixturevalue("table")
    kind, there = Tabled if by_table else kit.Lender, placed()

    def copied() -> kit.Lender:
        model = np.zeros((4, 6), "f4")
        address = model.ctypes.data
        how: Any = {"device": (kit.CPU, 0), "owner": model, "flags": kit.IS_COPIED}
        return kind(address, model.shape, **how)

    for call in (
        lambda lender: cu.copy(lender, there),
        lambda lender: cu.copy_async(lender, there, None),
        lambda lender: there.to_numpy(out=lender),
        lambda lender: cu.from_dlpack(lender, copy=False),
    ):
        lender = copied()
        with pytest.raises(BufferError, match="lent a copy, although copy=False"):
            call(lender)
        assert lender.given_back == 1
    cu.copy(there, copied())
    assert not there.to_numpy().any()
    assert not cu.from_dlpack(copied()).any()


class Grad(kit.Lender):
    """A tensor as PyTorch's: its __dlpack__ refuses while it requires grad."""

    requires_grad = True

    def detach(self) -> Grad:
        self.requires_grad = False
        return self

    def __dlpack__(self, **asked: Any) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return super().__dlpack__(**asked)


def test_a_tensor_that_requires_grad_is_read_only() -> None:
    def tensor() -> Grad:
        model = MODEL.copy()
        return Grad(model.ctypes.data, model.shape, device=(kit.CPU, 0), owner=model)

    there, refused = placed(), tensor()
    there.fill(0)
    cu.copy(there, tensor())
    assert (there.to_numpy() == MODEL).all()
    with pytest.raises(ValueError, match="requires grad: pass its detach"):
        cu.copy(refused, there)
    with pytest.raises(BufferError, match="require gradient"):
        cu.from_dlpack(refused)
    refuse(refused)


# ---- the other library's table of C functions ---------------------------------------------------


class Tabled(kit.Lender):
    """A lender whose type has the table. `stream`: what it says its current one is."""

    stream: int | None = None
    fails = False
    by_table = 0


def _from_object(lender: Tabled, out: Any) -> int:
    if lender.fails:
        return -1
    lender.by_table += 1
    out[0] = ctypes.addressof(lender.managed)
    return 0


def _current_stream(kind: int, device: int, out: Any) -> int:
    out[0] = Tabled.stream
    return 0


TABLE = kit.ExchangeTable(
    1, 3, None, kit.ALLOCATE(), kit.FROM_OBJECT(_from_object), kit.TO_OBJECT(), None,
    kit.CURRENT_STREAM(_current_stream),
)  # fmt: skip
NEWER = kit.ExchangeTable(2, 0, ctypes.addressof(TABLE))
NEWEST = kit.ExchangeTable(3, 0, ctypes.addressof(NEWER))
UNKNOWN = kit.ExchangeTable(2, 0)
NAME = b"dlpack_exchange_api"


@pytest.fixture(scope="module")
def driver() -> Any:
    cu.init()
    return ctypes.CDLL(cu.driver_path())


@pytest.fixture
def table(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = getattr(request, "param", TABLE)
    found = kit.capsule(ctypes.addressof(chosen), NAME)
    monkeypatch.setattr(Tabled, "__dlpack_c_exchange_api__", found, raising=False)


def tabled(array: Any, **how: Any) -> Tabled:
    device = isinstance(array, cu.DeviceArray)
    address = array.pointer if device else array.ctypes.data
    kind = kit.CUDA if device else kit.CPU
    return Tabled(address, array.shape, device=(kind, 0), owner=array, **how)


@pytest.mark.parametrize("table", [TABLE, NEWER, NEWEST], indirect=True)
def test_the_table_is_used(table: None) -> None:
    lenders = [tabled(placed()), tabled(MODEL.copy())]
    first, second = map(cu.from_dlpack, lenders)
    assert (first.to_numpy() == MODEL).all()
    assert (second == MODEL).all()
    cu.copy(first, tabled(MODEL.copy()))
    assert [(lender.by_table, lender.asked) for lender in lenders] == [(1, []), (1, [])]
    del first, second
    assert [lender.given_back for lender in lenders] == [1, 1]


def test_a_wrong_tensor_of_the_table_is_refused_at_once(table: None) -> None:
    lender = tabled(MODEL.copy(), dtype=(kit.FLOAT, 32, 4))
    with pytest.raises(BufferError, match="of 4 lanes"):
        cu.from_dlpack(lender)
    assert (lender.by_table, lender.asked, lender.given_back) == (1, [], 1)


def test_the_flags_of_a_tensor_of_the_table_count(table: None) -> None:
    for array in (placed(), MODEL.copy()):
        assert not cu.from_dlpack(tabled(array, flags=kit.READ_ONLY)).flags.writeable
        with pytest.raises(ValueError, match="the destination is read-only"):
            cu.copy(tabled(array, flags=kit.READ_ONLY), MODEL)
    padded = np.array([0, 1, 1], "u1")
    lender = tabled(padded, flags=kit.PADDED, dtype=(kit.UINT, 4, 1))
    pytest.importorskip("ml_dtypes", reason="NumPy has no uint4 of its own")
    assert cu.from_dlpack(lender).tolist() == [0, 1, 1]


@pytest.mark.parametrize("table", [UNKNOWN], indirect=True)
def test_a_table_of_another_version_is_not_used(table: None) -> None:
    lender = tabled(placed())
    assert (cu.from_dlpack(lender).to_numpy() == MODEL).all()
    assert (lender.by_table, len(lender.asked)) == (0, 1)


class Again(Tabled):
    """Lends anew when it is asked again."""

    def __dlpack__(self, **asked: Any) -> Any:
        kit.alive.add(self)
        return super().__dlpack__(**asked)


@pytest.mark.parametrize("entered", [False, True])
def test_our_stream_waits_for_another_librarys(
    table: None, monkeypatch: pytest.MonkeyPatch, driver: Any, entered: bool
) -> None:
    """The table orders nothing. The method is not needed for it, and the host does not wait."""
    array, theirs = placed(), cu.Stream()
    ours = cu.Stream() if entered else cu.Stream.from_handle(1)
    monkeypatch.setattr(Tabled, "stream", theirs.handle)
    lender = tabled(array)
    with busy(driver, theirs):
        with ours if entered else nullcontext():
            taken = cu.from_dlpack(lender)
        assert not ours.done
        with theirs:
            again = cu.from_dlpack(tabled(array))  # in the order of its own stream
    assert (taken.to_numpy() == MODEL).all()
    assert (again.to_numpy() == MODEL).all()
    assert (lender.by_table, lender.asked) == (1, [])


def test_the_default_stream_waits_where_the_entered_one_is_of_another_device(
    table: None, monkeypatch: pytest.MonkeyPatch, driver: Any, two_devices: Any
) -> None:
    theirs, far, default = cu.Stream(device=0), cu.Stream(device=1), cu.Stream.from_handle(1)
    monkeypatch.setattr(Tabled, "stream", theirs.handle)
    lender = tabled(placed())
    with busy(driver, theirs):
        with far:
            taken = cu.from_dlpack(lender)
        assert far.done
        assert not default.done
    assert (taken.to_numpy() == MODEL).all()
    assert (lender.by_table, lender.asked) == (1, [])


def test_a_copy_is_put_behind_the_work_of_another_librarys_stream(
    table: None, monkeypatch: pytest.MonkeyPatch, driver: Any
) -> None:
    array, theirs, stream = placed(), cu.Stream(), cu.Stream()
    source, back = cu.pinned_full((4, 6), 7, "f4"), cu.pinned_zeros((4, 6), "f4")
    monkeypatch.setattr(Tabled, "stream", theirs.handle)
    lender = tabled(array)
    with busy(driver, theirs):
        first = cu.copy_async(array, source, theirs)
        second = cu.copy_async(back, lender, stream)
        assert not second.done
    second.wait()
    first.wait()
    assert (back == 7).all()
    assert (lender.by_table, lender.asked) == (1, [])


@pytest.mark.parametrize("call", ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"])
def test_an_order_that_the_driver_refuses_is_for_the_method(
    table: None, monkeypatch: pytest.MonkeyPatch, sim: Any, call: str
) -> None:
    array, theirs = placed(), cu.Stream()
    lender = Again(array.pointer, MODEL.shape)
    monkeypatch.setattr(Tabled, "stream", theirs.handle)
    sim.fail(f"{call}:1:2")
    cu.from_dlpack(lender)
    assert (lender.by_table, len(lender.asked), lender.given_back) == (1, 1, 2)


def test_the_default_stream_is_that_of_the_memorys_context(table: None, driver: Any) -> None:
    """Whichever context is current: PyTorch's is always a primary one."""
    stream, legacy = cu.Stream(), cu.Stream.from_handle(1)  # in the primary context
    address, work = ctypes.c_uint64(), ExitStack()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), 96) == 0

    def waits() -> bool:
        lender = Tabled(address.value, (4, 6))
        with stream:
            cu.from_dlpack(lender)
        assert (lender.by_table, lender.asked) == (1, [])
        return not stream.done

    with cu.Context(0), busy(driver, legacy):
        assert not waits()
    work.enter_context(busy(driver, legacy))
    with cu.Context(0), work:
        assert waits()
    assert driver.cuMemFree_v2(address) == 0


@pytest.mark.parametrize("free", [False, True], ids=["busy", "idle"])
def test_a_default_stream_that_waits_for_a_capture_waits_for_no_other(
    table: None, monkeypatch: pytest.MonkeyPatch, driver: Any, free: bool
) -> None:
    """To queue on it would break the capture. Where the other stream is idle, nothing need wait."""
    array, theirs, blocking = placed(), cu.Stream(), ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(blocking), 0) == 0
    monkeypatch.setattr(Tabled, "stream", theirs.handle)
    lender = Again(array.pointer, MODEL.shape)
    with Capture(driver, SimpleNamespace(handle=blocking.value)) as graph:
        with nullcontext() if free else busy(driver, theirs):
            taken = cu.from_dlpack(lender)
        assert graph.status() == ACTIVE
    graph.close()
    assert graph.ended == 0
    assert (lender.by_table, len(lender.asked)) == (1, 0 if free else 1)
    assert (taken.to_numpy() == MODEL).all()
    assert driver.cuStreamDestroy_v2(blocking) == 0


@pytest.mark.parametrize("captured", ["theirs", "ours"])
def test_a_captured_stream_is_not_waited_for(
    table: None, monkeypatch: pytest.MonkeyPatch, driver: Any, captured: str
) -> None:
    """Its work runs when the graph is launched; and it can wait for no other."""
    streams = {"ours": cu.Stream(), "theirs": cu.Stream()}
    monkeypatch.setattr(Tabled, "stream", streams["theirs"].handle)
    lender = tabled(placed())
    with Capture(driver, streams[captured]) as graph, streams["ours"]:
        array = cu.from_dlpack(lender)
        assert graph.status() == ACTIVE
    graph.close()
    assert graph.ended == 0
    assert (lender.by_table, lender.asked) == (1, [])
    assert (array.to_numpy() == MODEL).all()


def test_a_table_that_fails_is_for_the_method(table: None) -> None:
    lender = tabled(MODEL.copy())
    lender.fails = True
    assert (cu.from_dlpack(lender) == MODEL).all()


@pytest.mark.parametrize("lazy", ["is_conj", "is_neg"])
def test_a_lazy_tensor_is_not_taken_as_it_lies(table: None, lazy: str) -> None:
    """PyTorch's table exports the memory of a lazily conjugated or negated tensor."""
    model = MODEL.view("c8").copy()
    lender = Again(model.ctypes.data, model.shape, device=(kit.CPU, 0), dtype=(kit.COMPLEX, 64, 1))
    lender.requires_grad = False
    lender.is_conj = lender.is_neg = lambda: False
    setattr(lender, lazy, lambda: True)
    if lazy == "is_neg":
        with pytest.raises(BufferError, match="lazily negated"):
            cu.from_dlpack(lender)
        assert (lender.by_table, lender.asked, lender.given_back) == (1, [], 1)
        imaginary = Again(model.ctypes.data, model.shape, device=(kit.CPU, 0))
        vars(imaginary).update(requires_grad=False, is_neg=lambda: True)
        with pytest.raises(BufferError, match="lazily negated"):
            cu.from_dlpack(imaginary)  # float32: the imaginary part of a conjugated tensor
    else:
        assert (cu.from_dlpack(lender) == model).all()
        assert (lender.by_table, len(lender.asked), lender.given_back) == (1, 1, 2)

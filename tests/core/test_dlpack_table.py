"""The other library's table of C functions (DLPack's exchange API), and PyTorch's tensors, which
have it."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_dlpack_import import MODEL, Untrue, placed

import cudriver as cu
import dlpackkit as kit
from graphkit import ACTIVE, Capture, busy

pytestmark = pytest.mark.usefixtures("no_leaks", "all_given_back")


class Tabled(kit.Lender):
    """A lender whose type has the table. `stream`: what it says its current one is."""

    stream: int | None = None
    by_table = 0

    def __dlpack__(self, **asked: Any) -> Any:
        kit.alive.add(self)  # it lends anew when it is asked again
        return super().__dlpack__(**asked)


def _from_object(lender: Tabled, out: Any) -> int:
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


@pytest.fixture
def table(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """TABLE or the given one, with what a test changes in it."""
    changed = kit.ExchangeTable.from_buffer_copy(getattr(request, "param", TABLE))
    found = kit.capsule(ctypes.addressof(changed), NAME)
    monkeypatch.setattr(Tabled, "__dlpack_c_exchange_api__", found, raising=False)
    return changed


def tabled(array: Any, **how: Any) -> Tabled:
    device = isinstance(array, cu.DeviceArray)
    address = array.pointer if device else array.ctypes.data
    how.setdefault("device", (kit.CUDA if device else kit.CPU, 0))
    return Tabled(address, array.shape, owner=array, **how)


def used(lender: Tabled) -> tuple[int, int]:
    """How often it was asked by the table, and by its method."""
    return lender.by_table, len(lender.asked)


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
        cu.pin,
        cu.is_pinned,
    ):
        lender = copied()
        with pytest.raises(BufferError, match="lent a copy, although copy=False"):
            call(lender)
        assert lender.given_back == 1
    cu.copy(there, copied())
    assert not there.to_numpy().any()
    assert not cu.from_dlpack(copied()).any()


@pytest.mark.parametrize("table", [UNKNOWN], indirect=True)
def test_a_table_of_another_version_is_not_used(table: None) -> None:
    lender = tabled(placed())
    assert (cu.from_dlpack(lender).to_numpy() == MODEL).all()
    assert used(lender) == (0, 1)


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
    lender = Tabled(array.pointer, MODEL.shape)
    with Capture(driver, SimpleNamespace(handle=blocking.value)) as graph:
        with nullcontext() if free else busy(driver, theirs):
            taken = cu.from_dlpack(lender)
        assert graph.status() == ACTIVE
    graph.close()
    assert graph.ended == 0
    assert used(lender) == (1, 0 if free else 1)
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


@pytest.mark.parametrize("lazy", ["is_conj", "is_neg"])
def test_a_lazy_tensor_is_not_taken_as_it_lies(table: None, lazy: str) -> None:
    """PyTorch's table exports the memory of a lazily conjugated or negated tensor."""
    model = MODEL.view("c8").copy()
    lender = Tabled(model.ctypes.data, model.shape, device=(kit.CPU, 0), dtype=(kit.COMPLEX, 64, 1))
    lender.requires_grad = False
    lender.is_conj = lender.is_neg = lambda: False
    setattr(lender, lazy, lambda: True)
    if lazy == "is_neg":
        with pytest.raises(BufferError, match="lazily negated"):
            cu.from_dlpack(lender)
        assert (lender.by_table, lender.asked, lender.given_back) == (1, [], 1)
        imaginary = Tabled(model.ctypes.data, model.shape, device=(kit.CPU, 0))
        vars(imaginary).update(requires_grad=False, is_neg=lambda: True)
        with pytest.raises(BufferError, match="lazily negated"):
            cu.from_dlpack(imaginary)  # float32: the imaginary part of a conjugated tensor
    else:
        assert (cu.from_dlpack(lender) == model).all()
        assert (lender.by_table, len(lender.asked), lender.given_back) == (1, 1, 2)


def test_a_table_of_the_object_alone_is_not_the_types() -> None:
    lender = tabled(MODEL.copy())
    vars(lender)["__dlpack_c_exchange_api__"] = kit.capsule(ctypes.addressof(TABLE), NAME)
    assert (cu.from_dlpack(lender) == MODEL).all()
    assert used(lender) == (0, 1)


@pytest.mark.parametrize("found", [3, None, "capsule"])
def test_what_is_no_table_is_not_used(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    if found == "capsule":
        found = kit.capsule(ctypes.addressof(TABLE), b"dlpack_exchange")
    monkeypatch.setattr(Tabled, "__dlpack_c_exchange_api__", found, raising=False)
    lender = tabled(MODEL.copy())
    assert (cu.from_dlpack(lender) == MODEL).all()
    assert used(lender) == (0, 1)


def test_a_table_that_gives_nothing_is_for_the_method(table: Any) -> None:
    array = MODEL.copy()  # a lender lets go of it when its tensor is given back
    lender = tabled(array)
    for function in (lambda lender, out: 0, lambda lender, out: -1, 0):
        table.from_object = kit.FROM_OBJECT(function)  # type: ignore[arg-type]
        assert (cu.from_dlpack(lender) == MODEL).all()
    assert used(lender) == (0, 3)


@pytest.mark.parametrize("version", [(2, 0), (0, 8)])
def test_a_tabled_tensor_of_another_version_is_for_the_method(
    table: Any, version: tuple[int, int]
) -> None:
    """What lies behind its version is not read."""
    lender = tabled(MODEL.copy(), version=version, dtype=(99, 1, 1))
    with pytest.raises(BufferError, match=f"a tensor of DLPack {version[0]}.{version[1]}"):
        cu.from_dlpack(lender)
    assert used(lender) == (1, 1)
    assert lender.given_back == 1
    kit.alive.discard(lender)


@pytest.mark.parametrize("device", [(kit.CUDA, 0), (kit.MANAGED, 0), (kit.CUDA, 1)])
def test_the_table_is_asked_for_the_stream_of_the_device(
    table: Any, device: tuple[int, int], two_devices: Any
) -> None:
    asked = []

    def current(kind: int, ordinal: int, out: Any) -> int:
        asked.append((kind, ordinal))
        out[0] = None
        return 0

    table.current_stream = kit.CURRENT_STREAM(current)
    array = cu.device_zeros((4, 6), "f4", device=device[1])
    lender = tabled(array, device=device)
    made = cu.from_dlpack(lender)
    assert made.context is array.context
    assert (asked, used(lender)) == ([device], (1, 0))
    cu.from_dlpack(tabled(MODEL.copy()))
    assert asked == [device], "the host's memory has no stream"


@pytest.mark.parametrize("how", ["none", "fails"])
def test_a_table_without_a_stream_is_for_the_method(table: Any, how: str) -> None:
    table.current_stream = kit.CURRENT_STREAM() if how == "none" else kit.CURRENT_STREAM(
        lambda kind, device, out: -1
    )  # fmt: skip
    array = placed()
    lender = tabled(array)
    made = cu.from_dlpack(lender)
    assert used(lender) == (1, 1)
    assert lender.given_back == 1
    del made
    assert lender.given_back == 2


@pytest.mark.parametrize(
    ("theirs", "ours", "waits"),
    [(None, 1, 0), (1, 1, 0), (2, 1, 1), (None, 2, 1), (2, 2, 0), (None, "ours", 1), (1, 0, 0)],
)
def test_default_streams_of_the_table(
    table: Any, sim: Any, monkeypatch: pytest.MonkeyPatch, theirs: Any, ours: Any, waits: int
) -> None:
    """NULL and 1 are one stream, which need not wait for itself."""
    array = placed()
    stream = cu.Stream() if ours == "ours" else cu.Stream.from_handle(ours)
    monkeypatch.setattr(Tabled, "stream", theirs)
    lender = tabled(array)
    sim.reset_counts()
    with stream:
        made = cu.from_dlpack(lender)
    assert (sim.call_count("cuStreamWaitEvent"), used(lender)) == (waits, (1, 0))
    del made


@pytest.mark.parametrize("theirs", [None, 1])
def test_nothing_waits_for_a_default_stream_that_a_capture_forbids(
    table: Any, driver: Any, monkeypatch: pytest.MonkeyPatch, theirs: Any
) -> None:
    """Nor can the driver say whether it is idle. The method may know how."""
    array, ours, blocking = placed(), cu.Stream(), ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(blocking), 0) == 0
    monkeypatch.setattr(Tabled, "stream", theirs)
    lender = tabled(array)
    with Capture(driver, SimpleNamespace(handle=blocking.value)) as graph:
        with ours:
            made = cu.from_dlpack(lender)
        assert graph.status() == ACTIVE
    graph.close()
    assert used(lender) == (1, 1)
    assert lender.asked[0]["stream"] == ours.handle
    del made
    assert driver.cuStreamDestroy_v2(blocking) == 0


@pytest.mark.parametrize("call", ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"])
def test_an_order_that_is_refused_keeps_nothing(
    table: Any, sim: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The method is asked instead."""
    array, theirs = placed(), cu.Stream()
    shared = [array, array.context, array.dtype]
    monkeypatch.setattr(Tabled, "stream", theirs.handle)

    def count() -> list[int]:
        lender = tabled(array)
        sim.fail_next(call, 719)
        cu.from_dlpack(lender)
        assert used(lender) == (1, 1)
        assert lender.given_back == 2
        del lender
        gc.collect()
        return [sys.getrefcount(thing) for thing in shared] + [sim.live("events")]

    count()  # what is kept from the first time
    assert count() == count()


# ---- PyTorch's tensors ------------------------------------------------------------------------


class Torch(Tabled):
    requires_grad: Any = False


@pytest.mark.parametrize("by_table", [False, True])
def test_questions_that_go_wrong_are_passed_on(
    request: pytest.FixtureRequest, by_table: bool
) -> None:
    if by_table:
        request.getfixturevalue("table")

    def fail() -> bool:
        raise ZeroDivisionError("theirs")

    complex_model = MODEL.view("c8").copy()
    for name in ("is_neg", "is_conj") if by_table else ("is_neg",):
        lender = Torch(
            complex_model.ctypes.data, complex_model.shape, device=(kit.CPU, 0),
            dtype=(kit.COMPLEX, 64, 1),
        )  # fmt: skip
        setattr(lender, name, fail)
        with pytest.raises(ZeroDivisionError, match="theirs"):
            cu.from_dlpack(lender)
        assert (lender.given_back, used(lender)) == (by_table, (by_table, 0))
        kit.alive.discard(lender)
    lender = Torch(MODEL.ctypes.data, MODEL.shape, device=(kit.CPU, 0))
    lender.requires_grad = Untrue()
    for call in (cu.from_dlpack, cu.to_device, cu.is_pinned):
        with pytest.raises(ZeroDivisionError, match="mine"):
            call(lender)
    assert used(lender) == (0, 0)
    kit.alive.discard(lender)


def test_a_tensor_that_requires_grad_is_for_the_method(table: Any) -> None:
    """Which says why it is not lent; the table would lend it."""

    class Grad(Torch):
        requires_grad = True

        def __dlpack__(self, **asked: Any) -> Any:
            raise BufferError("use tensor.detach()")

    lender = Grad(MODEL.ctypes.data, MODEL.shape, device=(kit.CPU, 0))
    with pytest.raises(BufferError, match="detach"):
        cu.from_dlpack(lender)
    assert used(lender) == (0, 0)
    kit.alive.discard(lender)


@pytest.mark.parametrize("grad", [False, True])
def test_a_negated_tensor_is_refused_by_the_method_too(grad: bool) -> None:
    lender = Torch(MODEL.ctypes.data, MODEL.shape, device=(kit.CPU, 0))
    lender.requires_grad = grad
    vars(lender)["is_neg"] = lambda: True
    with pytest.raises(BufferError, match=r"the Torch is lazily negated.*call resolve_neg"):
        cu.from_dlpack(lender)
    assert used(lender) == (0, 0)
    kit.alive.discard(lender)


@pytest.mark.parametrize(
    ("dtype", "asked"),
    [
        ((kit.FLOAT, 32, 1), ["is_neg"]),
        ((kit.COMPLEX, 64, 1), ["is_neg", "is_conj"]),
        ((kit.INT, 32, 1), []),
        ((kit.BFLOAT, 16, 1), []),
    ],
)
def test_only_what_may_be_lazy_is_asked(table: Any, dtype: Any, asked: list[str]) -> None:
    """To ask costs as much as the tensor. What has no requires_grad is not PyTorch's."""
    if dtype[0] == kit.BFLOAT:
        pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own")
    memory = np.zeros(8)
    for kind, wanted in ((Torch, asked), (Tabled, [])):
        seen: list[str] = []
        lender = kind(memory.ctypes.data, (2,), device=(kit.CPU, 0), dtype=dtype, owner=memory)
        for name in ("is_neg", "is_conj"):
            vars(lender)[name] = lambda name=name, seen=seen: seen.append(name)
        cu.from_dlpack(lender)
        assert (seen, used(lender)) == (wanted, (1, 0))

"""What works with which library: a test is a row of the table, and a library a column of it.

`PYTHONPATH=tests python -m interop` prints the table as it is found; docs/interoperation.md has
that of a GPU. What a library lacks is not tried. What it refuses is, and must be refused.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from interop.libraries import LIBRARIES
from interop.library import Library, NotHere, delay

MODEL = np.arange(24, dtype="f4").reshape(4, 6)
ROWS: dict[str, str] = {}  # test: what it is about
CANNOT: dict[tuple[str, str], str] = {}  # (test, library): the reason


def cells(*needs: str, **cannot: str) -> Callable[[Any], Any]:
    """A row: a test for each installed library that does not lack one of `needs`. `cannot` names
    those that must fail, and why."""

    def mark(function: Any) -> Any:
        found = []
        ROWS[function.__name__] = function.__doc__
        for library in LIBRARIES:
            lacked = [library.lacks[need] for need in needs if need in library.lacks]
            why = cannot.get(library.name.replace("-", "_"))
            if lacked or why:
                CANNOT[function.__name__, library.name] = lacked[0] if lacked else str(why)
            if library.installed() and not lacked:
                marks = [pytest.mark.xfail(reason=why, strict=True)] if why else []
                found.append(pytest.param((library, needs), marks=marks, id=library.name))
        return pytest.mark.parametrize("library", found, indirect=True)(function) if found else None

    return mark


@pytest.fixture
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    chosen, needs = request.param
    try:
        chosen.open()
        if "device" in needs:
            chosen.open_device()
    except NotHere as why:
        pytest.skip(str(why))
    forget_the_last_failure()
    alive = living()
    yield chosen
    if not hasattr(sys, "last_value"):  # else the test failed, and its frames keep its arrays
        assert eventually(living, alive) == alive


def forget_the_last_failure() -> None:
    """pytest keeps the traceback of a failure, and so the arrays of its frames, until it calls the
    next test. They would count as alive before that one."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def eventually(look: Callable[[], Any], wanted: Any) -> Any:
    """What there is, once it is what is wanted: others let go in threads of their own."""
    end = time.monotonic() + 10
    while (found := look()) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return found


def living() -> list[str]:
    """What is alive of ours. Not what the driver counts: other libraries free when they like."""
    gc.collect()
    cu.trim_host_memory()
    return sorted(row.kind for row in cu.live_allocations() if "context" not in row.kind)


def in_use() -> int:
    """Bytes of our device arrays."""
    gc.collect()
    return sum(row.nbytes for row in cu.live_allocations() if row.kind == "device array")


def pinned(value: float) -> np.ndarray:
    return cu.pinned_full(MODEL.shape, value, np.float32)


@pytest.mark.parametrize("library", LIBRARIES, ids=repr)
def test_the_library_is_there(library: Library) -> None:
    """Its column has tests."""
    if not library.installed():
        pytest.skip(f"{library.name} is not installed")
    try:
        library.open()
    except NotHere as why:
        pytest.skip(str(why))


# ---- memory that is shared --------------------------------------------------------------------


def keeps_ours(library: Library, take: Callable[[Any], Any]) -> None:
    before, ours = in_use(), cu.to_device(MODEL)
    theirs = take(ours)
    assert library.pointer(theirs) == ours.pointer
    del ours
    assert in_use() == before + MODEL.nbytes
    assert np.array_equal(library.numpy(theirs), MODEL)
    del theirs
    assert eventually(in_use, before) == before


@cells("device", "DLPack")
def test_their_array_over_ours(library: Any) -> None:
    """its `from_dlpack(d)` of a DeviceArray"""
    keeps_ours(library, library.take)


@cells("device", "DLPack")
@pytest.mark.parametrize("part", [np.s_[2:], np.s_[1, 2], np.s_[:, :0]], ids=str)
def test_their_array_over_a_view(library: Any, part: Any) -> None:
    """the same of a view: rows, one item, nothing"""
    there_and_back(library, part)


@cells("device", "DLPack", JAX="it takes dense arrays only")
def test_their_array_over_a_strided_view(library: Any) -> None:
    """the same of a view with strides"""
    there_and_back(library, np.s_[1:, ::2])


def there_and_back(library: Library, part: Any) -> None:
    ours = cu.to_device(MODEL)[part]
    theirs = library.take(ours)
    assert tuple(theirs.shape) == ours.shape
    assert ours.size == 0 or library.pointer(theirs) == ours.pointer
    again = cu.from_dlpack(theirs)
    assert (again.shape, again.size and again.strides) == (ours.shape, ours.size and ours.strides)
    assert np.array_equal(again.to_numpy(), MODEL[part])


@cells("device", "interface", JAX="its array does not keep ours alive: take it by DLPack")
def test_their_array_over_ours_by_interface(library: Any) -> None:
    """its array over a DeviceArray by `__cuda_array_interface__`"""
    keeps_ours(library, library.take_interface)


@cells("device", "DLPack")
def test_our_array_over_theirs(library: Any) -> None:
    """`cu.from_dlpack(x)` of its device array"""
    library.device_array(MODEL)  # its first use allocates more
    gc.collect()
    before = library.used()
    theirs = library.device_array(MODEL)
    ours = cu.from_dlpack(theirs)
    assert type(ours) is cu.DeviceArray
    assert ours.pointer == library.pointer(theirs)
    assert (ours.shape, ours.dtype) == (MODEL.shape, MODEL.dtype)
    del theirs
    gc.collect()
    assert before is None or library.used() > before
    view = ours[1:]
    del ours
    assert np.array_equal(view.to_numpy(), MODEL[1:])
    del view
    gc.collect()
    assert eventually(library.used, before) == before


@cells("host")
def test_our_array_over_their_host_memory(library: Any) -> None:
    """`cu.from_dlpack(x)` of its host array: a NumPy array"""
    theirs = library.host_array(MODEL)
    ours = cu.from_dlpack(theirs)
    assert type(ours) is np.ndarray
    assert ours.ctypes.data == library.pointer(theirs)
    del theirs
    gc.collect()
    assert np.array_equal(ours, MODEL)


@cells("device")
def test_copies_of_their_device_arrays(library: Any) -> None:
    """`copy`, `copy_async` and `to_device` from its device array"""
    theirs, out = library.device_array(MODEL), np.zeros_like(MODEL)
    cu.copy(out, theirs)
    assert np.array_equal(out, MODEL)
    turned = np.zeros(MODEL.shape[::-1], "f4").T
    cu.copy_async(turned, theirs, cu.Stream()).wait()
    assert np.array_equal(turned, MODEL)
    there = cu.to_device(theirs)
    assert there.pointer != library.pointer(theirs)
    assert np.array_equal(there.to_numpy(), MODEL)


@cells("device", "writing")
def test_copies_into_their_device_arrays(library: Any) -> None:
    """`copy` and `copy_async` into its device array"""
    theirs = library.device_array(np.zeros_like(MODEL))
    for source in (MODEL, np.asfortranarray(MODEL + 1), cu.to_device(MODEL + 2)):
        cu.copy(theirs, source)
        wanted = source if isinstance(source, np.ndarray) else source.to_numpy()
        assert np.array_equal(library.numpy(theirs), wanted)
    cu.copy_async(theirs, pinned(8), cu.Stream()).wait()
    assert (library.numpy(theirs) == 8).all()


@cells("host")
def test_copies_of_their_host_arrays(library: Any) -> None:
    """`copy` and `to_device` from its host array"""
    theirs, there = library.host_array(MODEL), cu.device_zeros(MODEL.shape, "f4")
    cu.copy(there, theirs)
    assert np.array_equal(there.to_numpy(), MODEL)
    cu.copy_async(there.T, library.host_array(MODEL.T), cu.Stream()).wait()
    assert np.array_equal(there.to_numpy(), MODEL)
    assert np.array_equal(cu.to_device(theirs).to_numpy(), MODEL)


@cells("host", "writing")
def test_copies_into_their_host_arrays(library: Any) -> None:
    """`copy` and `to_numpy(out=)` into its host array"""
    theirs, there = library.host_array(np.zeros_like(MODEL)), cu.to_device(MODEL)
    cu.copy(theirs, there)
    assert np.array_equal(library.numpy(theirs), MODEL)
    theirs = library.host_array(np.zeros_like(MODEL))
    assert there.to_numpy(out=theirs) is theirs
    assert np.array_equal(library.numpy(theirs), MODEL)


@cells("host")
def test_their_host_memory_is_page_locked_in_place(library: Any) -> None:
    """`cu.pin(x)`, `cu.is_pinned(x)` of its host array"""
    theirs = library.host_array(np.zeros(5000, "f4"))
    assert not cu.is_pinned(theirs)
    with cu.pin(theirs):
        assert cu.is_pinned(theirs)
    assert not cu.is_pinned(theirs)


@cells("device", "DLPack")
def test_the_exchange_table(library: Any) -> None:
    """its DLPack 1.3 table of C functions is used"""
    theirs = library.device_array(MODEL)
    if not hasattr(type(theirs), "__dlpack_c_exchange_api__"):
        pytest.xfail("its type has no such table")
    assert cu.from_dlpack(theirs).pointer == library.pointer(theirs)


def of_type(library: Library, name: str) -> None:
    """To them and back. A type that they do not have is theirs to refuse."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    model = np.array([1, -2, 0.5]).astype(getattr(ml_dtypes, name))
    ours, theirs, refused = cu.to_device(model), None, ""
    try:
        theirs = library.take(ours)
        assert str(theirs.dtype).endswith(name)
        theirs.__dlpack__(max_version=(1, 0))
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        refused = str(error).partition("\n")[0] or type(error).__name__
    if refused:
        del ours, theirs
        pytest.xfail(f"it refuses: {refused}")
    again = cu.from_dlpack(theirs)
    assert again.dtype == model.dtype
    assert again.to_numpy().tobytes() == model.tobytes()


@cells("device", "DLPack")
def test_bfloat16(library: Any) -> None:
    """bfloat16, both ways"""
    of_type(library, "bfloat16")


@cells("device", "DLPack")
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(library: Any, name: str) -> None:
    """float8, both ways"""
    of_type(library, name)


@cells("device", "kernels")
@pytest.mark.gpu
def test_their_kernels_work_on_ours(library: Any) -> None:
    """its kernels on a DeviceArray"""
    ours, refused = cu.to_device(np.arange(1000, dtype="f4")), ""
    try:
        library.increase(ours)
    except NotImplementedError as error:
        refused = str(error)
    if refused:
        del ours
        pytest.xfail(refused)
    assert np.array_equal(ours.to_numpy(), np.arange(1, 1001))


@cells("device", **dict.fromkeys(("CuPy", "JAX", "Numba"), "give the number, `device.id`"))
def test_their_device_object(library: Any) -> None:
    """`device=` is its device object"""
    assert cu.Device(library.device_object()) == cu.Device(0)
    assert cu.device_zeros(3, device=library.device_object()).device.ordinal == 0


# ---- streams: behind a delay, so that who does not wait sees what was there before -------------


@cells("device", "DLPack")
def test_they_wait_for_our_copy(library: Any) -> None:
    """its `from_dlpack(d)` waits for our copy in flight"""
    stream, source, side = cu.Stream(), pinned(7), library.stream()
    ours = cu.device_zeros(MODEL.shape, "f4")
    delay(stream.handle)
    transfer = cu.copy_async(ours, source, stream)
    with library.on(side):
        theirs = library.take(ours, side)
        assert (library.numpy(theirs, side) == 7).all()
    transfer.wait()


@cells("device", "DLPack", "current stream")
def test_from_dlpack_waits_for_their_stream(library: Any) -> None:
    """`cu.from_dlpack(x)` waits for the work on its current stream"""
    for ours in (contextlib.nullcontext(), cu.Stream()):
        side, out = library.stream(), pinned(0)
        with library.on(side):
            theirs = library.pending(MODEL, 7, side)
            with ours as stream:
                there = cu.from_dlpack(theirs)
                cu.copy_async(out, there, stream).wait()
        assert (out == 7).all()


@cells("device", "current stream")
def test_copies_wait_for_their_stream(library: Any) -> None:
    """copies from its array wait for the work on its current stream"""
    for copy in (cu.copy, lambda *ends: cu.copy_async(*ends, cu.Stream()).wait()):
        side, out = library.stream(), pinned(0)
        with library.on(side):
            theirs = library.pending(MODEL, 7, side)
            copy(out, theirs)
        assert (out == 7).all()


@cells("device", "writing", "current stream")
def test_copies_into_their_array_wait_for_their_stream(library: Any) -> None:
    """copies into its array wait for the work on its current stream"""
    for copy in (cu.copy, lambda *ends: cu.copy_async(*ends, cu.Stream()).wait()):
        side = library.stream()
        with library.on(side):
            theirs = library.pending(MODEL, 7, side)
            copy(theirs, pinned(3))
        assert (library.numpy(theirs) == 3).all()


@cells("device", "streams")
def test_copies_on_their_stream(library: Any) -> None:
    """`copy_async(..., stream)` on its stream"""
    side, out = library.stream(), pinned(0)
    theirs = library.pending(MODEL, 7, side)
    transfer = cu.copy_async(out, theirs, side)
    delay(library.handle(side))
    later = cu.copy_async(theirs, pinned(3), side)
    assert (library.numpy(theirs, side) == 3).all()
    transfer.wait()
    later.wait()
    assert (out == 7).all()


@cells("device", "streams")
def test_our_stream_is_theirs(library: Any) -> None:
    """its work on a `cu.Stream`"""
    stream, out = cu.Stream(), pinned(0)
    theirs, wrapped = library.device_array(MODEL), library.wrap(stream)
    assert library.handle(wrapped) == stream.handle
    delay(stream.handle)
    library.fill(theirs, 7, wrapped)
    cu.copy_async(out, theirs, stream).wait()
    assert (out == 7).all()


@cells("device", "streams", "interface")
@pytest.mark.parametrize("kind", ["stream", "event", "our event"])
def test_our_stream_waits_for_theirs(library: Any, kind: str) -> None:
    """`Stream.wait(x)` of its stream or event, `Event.record(its stream)`"""
    stream, side, out = cu.Stream(), library.stream(), pinned(0)
    ours = cu.to_device(MODEL)
    theirs = library.take_interface(ours)
    delay(library.handle(side))
    library.fill(theirs, 7, side)
    if kind == "stream":
        stream.wait(side)
    else:
        stream.wait(library.record(side) if kind == "event" else cu.Event().record(side))
    cu.copy_async(out, ours, stream).wait()
    assert (out == 7).all()


@cells("device", "streams", "interface")
def test_their_stream_waits_for_ours(library: Any) -> None:
    """`Event.wait(its stream)`"""
    stream, side, source = cu.Stream(), library.stream(), pinned(7)
    ours = cu.to_device(MODEL)
    theirs = library.take_interface(ours)
    delay(stream.handle)
    transfer = cu.copy_async(ours, source, stream)
    stream.record().wait(side)
    assert (library.numpy(theirs, side) == 7).all()
    transfer.wait()


@cells("device", "streams")
def test_a_stream_from_its_handle(library: Any) -> None:
    """`cu.Stream.from_handle` of its stream, or of the number"""
    side, ours = library.stream(), cu.to_device(MODEL)
    for value, handle in enumerate((side, library.handle(side))):
        stream, out = cu.Stream.from_handle(handle), pinned(9)
        assert stream.handle == library.handle(side)
        delay(library.handle(side))
        ours.fill(value, stream=stream)
        cu.copy_async(out, ours, side).wait()
        assert (out == value).all()


@cells("device", "graphs")
def test_copies_are_refused_in_their_graph_capture(library: Any) -> None:
    """its graph capture goes on where `copy_async` on the captured stream is refused"""
    source, refused = pinned(1), []
    ours = cu.device_zeros(MODEL.shape, "f4")

    def work(stream: Any) -> None:
        with pytest.raises(cu.CudaError, match="a copy cannot be captured"):
            cu.copy_async(ours, source, stream)
        refused.append(stream)

    try:
        launch = library.capture(work)
    except NotHere as why:
        pytest.skip(str(why))
    assert len(refused) == 1
    launch()
    assert not ours.to_numpy().any()
    del launch

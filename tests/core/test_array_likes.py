"""Host memory without an ndarray: buffers, and NumPy's array interface. Never copied unasked."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import sys
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from cudriver.memory import foreign

pytestmark = pytest.mark.usefixtures("no_leaks")


class Interface:
    """What shows an ndarray's memory by `__array_interface__` only, as PIL and pyarrow do."""

    def __init__(self, data: np.ndarray[Any, Any], **changed: object) -> None:
        self.data, self.changed = data, changed

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {**self.data.__array_interface__, **self.changed}


class Struct:
    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    @property
    def __array_struct__(self) -> object:
        return self.data.__array_struct__


class Lent:
    """What lends an ndarray's memory by DLPack only, as PyTorch's CPU tensors do."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    def __dlpack__(self, **asked: Any) -> Any:
        return self.data.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


class Both(ctypes.c_float * 3):
    """A buffer, and a `__dlpack__` that refuses."""

    __dlpack_device__: Any = staticmethod(lambda: (1, 0))

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("not lent")


class Converted:
    """NumPy would convert it, which is a copy."""

    def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        raise AssertionError("never asked")


WRITABLE: dict[str, Callable[[], Any]] = {
    "bytearray": lambda: bytearray(12),
    "array.array": lambda: array.array("i", [0] * 3),
    "memoryview": lambda: memoryview(bytearray(12)).cast("f"),
    "strided memoryview": lambda: memoryview(bytearray(24))[::2],
    "ctypes": lambda: (ctypes.c_double * 3)(),
    "ctypes 2-D": lambda: ((ctypes.c_int16 * 3) * 2)(),
    "mmap": lambda: mmap.mmap(-1, 4096),
    "interface": lambda: Interface(np.zeros((3, 4), "f4")),
    "strided interface": lambda: Interface(np.zeros((6, 4), "f4")[::2, ::-1]),
    "struct": lambda: Struct(np.zeros((3, 4), "i8").T),
    "DLPack": lambda: Lent(np.zeros((3, 4), "i8").T),
    "empty": lambda: bytearray(),
}
READABLE: dict[str, Callable[[], Any]] = {
    **WRITABLE,
    "bytes": lambda: bytes(12),
    "read-only memoryview": lambda: memoryview(b"\0" * 12),
}


def seen(thing: Any) -> np.ndarray[Any, Any]:
    """The oracle: NumPy's view of the same memory."""
    if isinstance(thing, Lent):
        return thing.data
    return np.asarray(memoryview(thing)) if isinstance(thing, bytes) else np.asarray(thing)


def values(like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (np.arange(like.size) % 50 + 1).reshape(like.shape).astype(like.dtype)


@pytest.mark.parametrize("kind", WRITABLE)
def test_copies_into(cu, kind: str) -> None:
    thing = WRITABLE[kind]()
    expected = values(seen(thing))
    there, stream = cu.to_device(expected), cu.Stream()
    for copy in (
        lambda: cu.copy(thing, there),
        lambda: there.to_numpy(out=thing),
        lambda: cu.copy_async(thing, there, stream).wait(),
    ):
        seen(thing)[...] = 0
        copy()
        assert np.array_equal(seen(thing), expected)
    there.close()
    stream.close()


@pytest.mark.parametrize("kind", READABLE)
def test_copies_from(cu, kind: str) -> None:
    thing = READABLE[kind]()
    expected = seen(thing)
    if kind in WRITABLE:
        expected[...] = values(expected)
    there = cu.to_device(memoryview(thing) if isinstance(thing, bytes) else thing)
    assert (there.shape, there.dtype) == (expected.shape, expected.dtype)
    assert np.array_equal(there.to_numpy(), expected)
    stream = cu.Stream()
    for copy in (
        lambda: cu.copy(there, thing),
        lambda: cu.copy_async(there, thing, stream).wait(),
    ):
        there.fill(0)
        copy()
        assert np.array_equal(there.to_numpy(), expected)
    assert cu.explain_copy(there, thing) == cu.explain_copy(there, expected)
    with cu.pin(thing) as pinned:
        assert pinned.array is thing
        assert cu.is_pinned(thing) == cu.is_pinned(expected) == (expected.size > 0)
    there.close()
    stream.close()


@pytest.mark.parametrize(
    "thing",
    [bytes(3), memoryview(b"123"), Interface(np.frombuffer(b"123", "u1"))],
    ids=["bytes", "memoryview", "interface"],
)
def test_read_only_memory_is_no_destination(cu, thing: Any) -> None:
    there = cu.to_device(np.arange(3, dtype="u1"))
    for copy in (
        lambda: cu.copy(thing, there),
        lambda: cu.copy_async(thing, there, None),
        lambda: there.to_numpy(out=thing),
    ):
        with pytest.raises(ValueError, match="the destination is read-only"):
            copy()
    there.close()


def test_a_buffer_stays_exported_until_an_asynchronous_copy_is_over(cu, sim) -> None:
    there, stream, thing = cu.device_zeros(8, "u1"), cu.Stream(), bytearray(b"12345678")
    sim.hold()
    transfer = cu.copy_async(there, thing, stream)
    with pytest.raises(BufferError):
        thing.extend(bytes(1 << 20))
    sim.release()
    transfer.wait()
    thing.extend(b"9")
    assert there.to_numpy().tobytes() == b"12345678"
    cu.copy(there, memoryview(thing)[:8])
    thing.extend(b"0")
    stream.close()
    there.close()


def test_what_shows_an_interface_lives_until_an_asynchronous_copy_is_over(cu, sim) -> None:
    there, stream, thing = cu.device_zeros(1000), cu.Stream(), Interface(np.arange(1000.0))
    alive = weakref.ref(thing)
    sim.hold()
    transfer = cu.copy_async(there, thing, stream)
    del thing
    gc.collect()
    assert alive() is not None
    sim.release()
    transfer.wait()
    assert alive() is None
    assert np.array_equal(there.to_numpy(), np.arange(1000.0))
    stream.close()
    there.close()


@pytest.mark.parametrize("bad", [[1, 2], (1, 2), 3, "12", None, Converted(), np.ndarray, object()])
def test_what_is_no_array(cu, bad: Any) -> None:
    there = cu.device_zeros(2)
    name = type(bad).__name__
    with pytest.raises(TypeError, match=rf"dst is not an array, but a {name}$"):
        cu.copy(bad, there)
    with pytest.raises(TypeError, match=rf"src is not an array, but a {name} \(np.asarray\(\)"):
        cu.copy(there, bad)
    if bad is not None:
        with pytest.raises(TypeError, match=f"out is not an array in host memory, but a {name}"):
            there.to_numpy(out=bad)
    with pytest.raises(TypeError, match=f"expected an array in host memory, not {name}"):
        cu.is_pinned(bad)
    with pytest.raises(TypeError, match=f"only an array in host memory can be .*, not {name}"):
        cu.pin(bad)
    there.close()


@pytest.mark.parametrize("error", [BufferError, TypeError, RuntimeError])
def test_what_a_library_does_not_lend_is_read_by_numpy(cu, error: type[Exception]) -> None:
    """As pyarrow's dates, bools, and what has nulls: its ArrowTypeError is a TypeError. JAX's int4:
    its JaxRuntimeError is a RuntimeError, which CudaError is, too.
    """

    class Arrow:
        def __init__(self, items: Any) -> None:
            self.items, self.error = np.array(items), error

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **_: Any) -> Any:
            raise self.error("not of this type")

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return self.items

    days = np.array(["2026-11-22", "NaT", "2001-01-01"], "M8[D]")
    there = cu.to_device(Arrow(days))
    assert there.to_numpy().tobytes() == days.tobytes()
    there[:2] = Arrow(days[1:])
    assert there.to_numpy().tobytes() == days[[1, 2, 2]].tobytes()
    for refused in (lambda: cu.to_device(Arrow([None])), lambda: cu.copy(there, Arrow(days))):
        with pytest.raises(error, match="not of this type"):
            refused()
    driver = Arrow(days)
    driver.error = cu.CudaError
    with pytest.raises(cu.CudaError, match="not of this type"):
        cu.to_device(driver)
    there.close()


def test_a_mask_is_not_lost(cu) -> None:
    """NumPy would read the data without it."""

    class Masked:
        def __init__(self) -> None:
            shown = {"shape": (1,), "typestr": "|u1", "data": (0, False), "version": 3}
            self.__cuda_array_interface__ = {**shown, "mask": object()}

        def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
            return np.zeros(1, "u1")

    there = cu.device_zeros(1)
    for refused in (lambda: cu.to_device(Masked()), lambda: there.__setitem__(..., Masked())):
        with pytest.raises(TypeError, match="mask"):
            refused()
    there.close()


def test_scalars_of_numpy_are_no_arrays_to_copy(cu) -> None:
    """Their buffers are not what they seem: that of a date is eight bytes."""
    there = cu.device_zeros((), "M8[s]")
    date = np.datetime64("2026-11-22", "s")
    with pytest.raises(TypeError, match=r"src is not an array, but a numpy\.datetime64"):
        cu.copy(there, date)
    assert cu.to_device(date).to_numpy()[()] == date
    there.close()


def test_a_buffer_of_a_format_that_numpy_does_not_know(cu) -> None:
    """NumPy would take its items one by one, which is a copy."""

    class Pair(ctypes.Structure):
        _fields_ = (("wide", ctypes.c_wchar), ("pointer", ctypes.c_void_p))

    there = cu.device_zeros(3)
    for thing in (ctypes.c_void_p * 3)(), (Pair * 3)(), (ctypes.py_object * 3)(1, 2, 3):
        for call in (lambda it: cu.copy(it, there), cu.pin):
            with pytest.raises((TypeError, ValueError)):
                call(thing)
    there.close()


def test_a_released_memoryview_and_a_closed_mmap(cu) -> None:
    there = cu.device_zeros(3, "u1")
    view, mapped = memoryview(bytearray(3)), mmap.mmap(-1, 3)
    view.release()
    mapped.close()
    for thing in (view, mapped):
        with pytest.raises(ValueError):
            cu.copy(thing, there)
    there.close()


@pytest.mark.parametrize(
    "changed",
    [
        {"shape": (-1,)}, {"shape": "x"}, {"shape": None}, {"typestr": "?x"}, {"typestr": 3},
        {"data": 3},
    ],
)  # fmt: skip
def test_a_broken_interface(cu, changed: dict[str, object]) -> None:
    there = cu.device_zeros(3)
    with pytest.raises((TypeError, ValueError)):
        cu.copy(there, Interface(np.zeros(3), **changed))
    there.close()


def test_an_interface_that_raises(cu) -> None:
    class Broken:
        @property
        def __array_interface__(self) -> dict[str, Any]:
            raise ZeroDivisionError("theirs")

    there = cu.device_zeros(3)
    with pytest.raises(ZeroDivisionError, match="theirs"):
        cu.copy(there, Broken())
    there.close()


def test_objects_stay_refused(cu) -> None:
    for call in cu.to_device, cu.pin, cu.is_pinned:
        with pytest.raises(TypeError, match="Python objects"):
            call(Interface(np.zeros(3, object)))


def test_references_of_a_buffer(cu) -> None:
    thing, there = bytearray(12), cu.device_zeros(12, "u1")
    before = sys.getrefcount(thing)
    for _ in range(10):
        cu.copy(thing, there)
        cu.copy(there, thing)
        with pytest.raises(ValueError):
            cu.copy(cu.device_zeros(3, "u1"), thing)
    assert sys.getrefcount(thing) == before
    there.close()


def test_pins_by_dlpack_where_the_buffer_is_refused(cu, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's arrays of bfloat16 on the CPU: a buffer has no such format, and DLPack has."""
    refuse = Mock(side_effect=BufferError("no such format"))
    monkeypatch.setattr(foreign, "memoryview", refuse, raising=False)
    thing = Lent(np.zeros(5000))
    with cu.pin(thing):
        assert cu.is_pinned(thing)
    with pytest.raises(BufferError, match="no such format"):
        cu.is_pinned(bytearray(3))


def test_a_buffer_serves_where_dlpack_refuses(cu) -> None:
    thing, there = Both(1, 2, 3), cu.device_zeros(3, "f4")
    cu.copy(there, thing)
    assert there.to_numpy(out=Both())[:] == [1, 2, 3]
    with cu.pin(thing):
        assert cu.is_pinned(thing)
    thing.__dlpack_device__ = lambda: (2, 0)  # the buffer is a copy, as TensorFlow makes
    for call in (cu.pin, cu.is_pinned, lambda it: cu.copy(it, there)):
        with pytest.raises(BufferError, match="not lent"):
            call(thing)
    there.close()


@pytest.mark.parametrize("how", [Interface, Struct, Lent])
def test_pins_what_is_no_buffer(cu, how: Callable[[Any], Any]) -> None:
    data = np.zeros(5000)
    thing, references = how(data), sys.getrefcount(data)
    assert not cu.is_pinned(thing)
    with cu.pin(thing) as pinned:
        assert cu.is_pinned(thing)
        assert cu.is_pinned(data)
        assert pinned.nbytes == data.nbytes
        assert (sys.getrefcount(data) > references) == (how is not Interface)
        alive = weakref.ref(thing)
        del thing
        assert alive() is not None
    assert alive() is None
    assert not cu.is_pinned(data)
    assert cu.is_pinned(how(cu.pinned_zeros(3)))


@given(data=st.data())
def test_any_strides_by_the_interface(cu, data: st.DataObject) -> None:
    whole = data.draw(hn.arrays(data.draw(hn.scalar_dtypes()), hn.array_shapes(max_side=5)))
    index = data.draw(hn.basic_indices(whole.shape, allow_newaxis=True))
    view = whole[index]
    if not isinstance(view, np.ndarray):
        return
    there = cu.to_device(Interface(view))
    assert (there.shape, there.dtype) == (view.shape, view.dtype)
    back = np.zeros_like(view)
    cu.copy(Interface(back), there)
    assert back.tobytes() == view.tobytes()
    there.close()

"""`__cuda_array_interface__`: ours, others', what it may leave out, and what a failure leaves."""

from __future__ import annotations

import ctypes
import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from test_device_array import DTYPES, PADDED, SHAPES, random_array, raw
from test_dlpack_import import Untrue

import cudriver as cu
from graphkit import ACTIVE, BROKEN, Capture, busy
from program import output

pytestmark = pytest.mark.usefixtures("no_leaks")


class Foreign:
    """Another library's array: a DeviceArray's interface, changed here and there."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.owner = array
        entries = {**array.__cuda_array_interface__, **changes}
        self.__cuda_array_interface__ = {k: v for k, v in entries.items() if v is not GONE}


GONE = object()
WRONG: list[tuple[type[Exception], dict[str, Any]]] = [
    *((TypeError, {"data": data}) for data in (3, GONE, (1, 2, 3))),
    *((TypeError, {"data": (address, False)}) for address in ("x", -1, 1 << 70)),
    *((ValueError, {"data": (address, False)}) for address in (0, 16)),
    (ValueError, {"data": (0, False), "shape": (), "strides": None}),
    (ZeroDivisionError, {"data": (4096, Untrue())}),
    *((TypeError, {"typestr": typestr, "descr": None}) for typestr in (5, "|O8")),
    *((TypeError, {"shape": shape}) for shape in ((4, "6"), (4, 6.0))),
    (ValueError, {"typestr": GONE, "descr": None}),
    *((ValueError, {"shape": shape}) for shape in (GONE, (4, -6))),
    *((ValueError, {"shape": (n, m), "strides": None}) for n, m in ((4, 1 << 40), (1 << 62, 2))),
    *((ValueError, {"strides": strides}) for strides in ((4,), (24, 4, 1))),
    (TypeError, {"strides": ("a", "b")}),
    (OverflowError, {"strides": (1 << 70, 4)}),
    *((TypeError, {"stream": stream}) for stream in ("x", -1, 1 << 64, 1.0)),
    *((TypeError, {"mask": mask}) for mask in (1, [])),
]


@pytest.mark.parametrize(("error", "changed"), WRONG)
def test_what_is_refused_is_let_go(error: type[Exception], changed: dict[str, Any]) -> None:
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
    for descr in ([("a", "<f8")], [("", "<i2")], "nonsense", None, GONE):
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
    for descr in ([("", "|V8")], None, GONE):
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


def test_the_stream_may_be_of_another_context_than_the_memory(driver: Any) -> None:
    """Memory of a pool belongs to no context."""
    array, out = cu.device_zeros(1000, "u1"), np.zeros(1000, "u1")
    with cu.Context(0) as context:
        named = cu.Stream()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def wait(_: object) -> None:
        time.sleep(0.1)

    for call in (cu.copy, lambda *ends: cu.copy_async(*ends, cu.Stream()).wait()):
        array.fill(0)
        with context:
            handle, size = ctypes.c_void_p(named.handle), ctypes.c_size_t(1000)
            assert driver.cuLaunchHostFunc(handle, wait, None) == 0
            address = ctypes.c_uint64(array.pointer)
            assert driver.cuMemsetD8Async(address, 7, size, handle) == 0
        call(out, Foreign(array, stream=named.handle))
        assert (out == 7).all()
        out[:] = 0
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
        for named in (None, GONE):
            cu.copy(out, Foreign(array, stream=named))
        assert not stream.done
    assert (out == np.arange(9)).all()


def test_the_interface_tells_the_truth() -> None:
    array = cu.to_device(np.arange(24, dtype="<i4").reshape(4, 6))[1:, ::-2]
    interface = array.__cuda_array_interface__
    assert interface["version"] == 3
    assert interface["typestr"] == "<i4"
    assert interface["shape"] == (3, 3)
    assert interface["strides"] == (24, -8)
    assert interface["data"] == (array.pointer, False)
    assert interface["stream"] is None
    empty = cu.device_zeros((3, 0)).__cuda_array_interface__
    assert empty["data"] == (0, False)
    assert cu.device_zeros((0, 2))[:, 1].__cuda_array_interface__["data"] == (0, False)
    nothing = cu.to_device(Foreign(array, shape=(3, 0), strides=None, data=(1, False)))
    assert nothing.shape == (3, 0)


@settings(max_examples=60)
@given(data=st.data(), shape=SHAPES, dtype=st.sampled_from(DTYPES))
def test_what_comes_back_through_the_interface_is_the_same(
    data: st.DataObject, shape: Any, dtype: Any
) -> None:
    model = random_array(shape, dtype)
    array = cu.to_device(model)
    key = data.draw(hnp.basic_indices(model.shape, allow_newaxis=True))
    foreign = Foreign(array[key])
    copy = cu.to_device(foreign)
    assert copy.shape == array[key].shape
    assert copy.dtype.itemsize == model.dtype.itemsize
    if model.dtype != PADDED:
        assert copy.dtype == model.dtype
    assert raw(copy.to_numpy().view(f"V{model.dtype.itemsize}")) == raw(array[key].to_numpy())
    back = np.zeros(copy.shape, copy.dtype)
    cu.copy(back, foreign)
    assert raw(back) == raw(copy.to_numpy())


def test_a_dtype_is_what_was_given() -> None:
    for dtype in (np.dtype([("a", "i4"), ("b", "u1")]), np.dtype("<i4", metadata={"x": 1})):
        assert cu.device_zeros(3, dtype).dtype is dtype
        assert cu.to_device(np.zeros(3, dtype)).view(dtype).dtype is dtype


def test_dtypes_whose_fields_have_no_description() -> None:
    for dtype in (
        PADDED,
        np.dtype({"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 2]}),
        np.dtype({"names": ["a", "b"], "formats": ["u1", "u1"], "offsets": [4, 0]}),
    ):
        model = random_array(50, dtype)
        array = cu.to_device(model)
        assert raw(array.to_numpy().view(f"V{dtype.itemsize}")) == raw(model)
        foreign = Foreign(array)
        assert foreign.__cuda_array_interface__["typestr"] == f"|V{dtype.itemsize}"
        assert cu.to_device(foreign).itemsize == dtype.itemsize


def test_foreign_arrays_at_either_end() -> None:
    model = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = cu.to_device(model)
    for foreign in (
        Foreign(array),
        Foreign(array, strides=None),
        Foreign(array, strides=GONE, descr=GONE, stream=GONE),
        Foreign(array, version=2),
        Foreign(array, stream=1),
        Foreign(array, stream=2),
        Foreign(array, descr=None),
    ):
        out = np.zeros((4, 6), np.float32)
        cu.copy(out, foreign)
        assert np.array_equal(out, model)
        cu.copy(foreign, model + 1)
        assert np.array_equal(array.to_numpy(), model + 1)
        cu.copy(array, model)
        stream = cu.Stream()
        cu.copy_async(foreign, model * 2, stream).wait()
        assert np.array_equal(array.to_numpy(), model * 2)
        cu.copy(array, model)
    turned = Foreign(array, shape=(6, 4), strides=(4, 24))
    assert np.array_equal(cu.to_device(turned).to_numpy(), model.T)


def test_the_producers_stream_is_waited_for(sim: Any) -> None:
    array = cu.device_zeros(1 << 16, np.uint8)
    source = cu.pinned_full(1 << 16, 7, np.uint8)
    stream = cu.Stream()
    sim.set_latency(20000)
    transfer = cu.copy_async(array, source, stream)
    out = np.zeros(1 << 16, np.uint8)
    cu.copy(out, Foreign(array, stream=stream.handle))
    assert (out == 7).all()
    transfer.wait()


def test_an_interface_says_where_it_lies_and_whether_it_may_be_written() -> None:
    array = cu.device_zeros((4, 6), np.float32)
    nothing = Foreign(array, data=(0, False), shape=(3, 0), strides=None)
    cu.copy(np.zeros((3, 0), np.float32), nothing)
    with pytest.raises(ValueError, match=r"\(4, 6\) lies at address 0"):
        cu.copy(Foreign(array, data=(0, False)), np.zeros((4, 6), np.float32))
    with pytest.raises(ValueError, match="read-only"):
        cu.copy(Foreign(array, data=(array.pointer, True)), np.ones((4, 6), np.float32))
    assert not array.to_numpy().any()


class Spoiler:
    """A number whose reading empties what it stands in, and fills the memory that this frees."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.home: Any = None
        self.reads = 0

    def __index__(self) -> int:
        self.reads += 1
        self.home.clear()
        self.junk = [tuple([None] * n) for n in range(1, 9) for _ in range(50)]
        return self.value


@pytest.mark.parametrize("name", ["shape", "strides"])
def test_an_interface_that_its_own_numbers_empty(name: str) -> None:
    model = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = cu.to_device(model)
    values = {"shape": (4, 6), "strides": (24, 4)}[name]
    spoilers = [Spoiler(value) for value in values]
    foreign = Foreign(array, **{name: tuple(spoilers)})
    for spoiler in spoilers:
        spoiler.home = foreign.__cuda_array_interface__
    out = np.zeros_like(model)
    cu.copy(out, foreign)
    assert np.array_equal(out, model)
    assert foreign.__cuda_array_interface__ == {}
    assert [spoiler.reads for spoiler in spoilers] == [1, 1]


@pytest.mark.parametrize("make", [cu.device_empty, cu.pinned_empty, cu.pinned_zeros])
def test_a_shape_that_its_own_items_empty(make: Any) -> None:
    spoilers = [Spoiler(n) for n in (2, 3, 4)]
    shape = list(spoilers)
    for spoiler in spoilers:
        spoiler.home = shape
    assert make(shape).shape == (2, 3, 4)
    assert shape == []
    assert [spoiler.reads for spoiler in spoilers] == [1, 1, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_to_device_reads_an_interface_once(stream: bool) -> None:
    model = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = cu.to_device(model)
    reads = []

    class Once:
        @property
        def __cuda_array_interface__(self) -> Any:
            reads.append(1)
            return array.__cuda_array_interface__

    chosen = cu.Stream() if stream else None
    there = cu.to_device(Once(), stream=chosen)
    assert np.array_equal(there.to_numpy(), model)
    assert reads == [1]


def test_an_empty_foreign_array_fits_every_device(two_devices: Any) -> None:
    array = cu.device_zeros(4, np.float32)
    here = np.empty((3, 0), np.float32)
    for ordinal in (0, 1):
        stream = cu.Stream(device=ordinal)
        there = cu.device_empty((3, 0), np.float32, device=ordinal)
        for address in (0, array.pointer):
            nothing = Foreign(array, data=(address, False), shape=(3, 0), strides=None)
            for dst, src in [(here, nothing), (nothing, here), (there, nothing), (nothing, there)]:
                cu.copy(dst, src)
                assert cu.copy_async(dst, src, stream).done
                assert cu.explain_copy(dst, src).path == "empty"
            assert cu.to_device(nothing, stream=stream).device == two_devices[ordinal]
    with pytest.raises(TypeError, match="is not a stream"):
        cu.copy(here, Foreign(array, data=(0, False), shape=(3, 0), strides=None, stream="x"))


def test_an_empty_foreign_array_makes_no_context() -> None:
    program = """
        import ctypes, numpy as np, cudriver as cu
        class Foreign:
            __cuda_array_interface__ = {"data": (0, False), "shape": (0,), "typestr": "<f8"}
        cu.init()
        cu.copy(np.empty(0), Foreign())
        cu.copy(Foreign(), np.empty(0))
        active, flags = ctypes.c_int(5), ctypes.c_uint()
        libcuda = ctypes.CDLL(cu.driver_path())
        libcuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
        print(cu.context_stack(), active.value)
    """
    assert output(program) == "[] 0\n"


@pytest.mark.parametrize(
    ("typestr", "descr", "sizes"),
    [
        ("|V8", [("a", "<f4")], "8 bytes, .* of 4"),
        ("|V8", [("a", "<f8"), ("b", "u1")], "8 bytes, .* of 9"),
        ("|V8", [("", "<f4")], "8 bytes, .* of 4"),
        ("|V4", [("a", "<f4"), ("", "|V4")], "4 bytes, .* of 8"),
    ],
)
def test_a_description_of_another_size_is_refused(typestr: str, descr: Any, sizes: str) -> None:
    array = cu.device_zeros(24, "u1")
    foreign = Foreign(array, typestr=typestr, descr=descr, shape=(2,), strides=None)
    with pytest.raises(ValueError, match=sizes):
        cu.to_device(foreign)
    assert not cu.device_zeros(3, "f4,f4").to_numpy()["f0"].any()


def test_an_extent_beyond_the_memory_is_refused() -> None:
    """Where the driver knows the allocation, and nothing lies behind it."""
    nbytes = (64 << 20) + 100
    with cu.Context() as context:  # no pool: behind its memory there might be more of it
        array = cu.device_zeros(nbytes, "u1")
        start, end = array.pointer, array.pointer + nbytes
        wide = nbytes + (1 << 40)
        for changes in [
            {"shape": (wide,)},
            {"shape": (wide // 8,), "typestr": "<f8"},
            {"data": (end - 1, False), "shape": (wide,)},
            {"data": (end - 1, False), "shape": (2,), "strides": (1 << 40,)},
            {"data": (start, False), "shape": (2,), "strides": (-(1 << 40),)},
            {"data": (start, False), "shape": (3, 4), "strides": (1 << 40, 1)},
            {"data": (start, False), "shape": (2,), "strides": (-start - 5,)},
            {"data": (start, False), "shape": (1 << 61, 1 << 61), "strides": (0, 1 << 3)},
        ]:
            foreign = Foreign(array, **{"strides": None, "descr": None, **changes})
            with pytest.raises(ValueError, match=r"memory there ends at|not memory that|too big"):
                cu.explain_copy(foreign, foreign)
        for first, last, step in [(0, nbytes, 1), (nbytes - 1, -1, -1), (5, nbytes, 7)]:
            shape = (len(range(first, last, step)),)
            whole = Foreign(array, data=(start + first, False), shape=shape, strides=(step,))
            assert cu.explain_copy(whole, whole).nbytes == shape[0]
        assert not array.to_numpy()[-4096:].any(), "nothing was broken"
        array.close()
        del array, foreign, whole
    context.close()


def test_an_array_may_span_allocations(sim: Any) -> None:
    """As tensors do in segments that grow: one range of addresses, of several allocations."""
    libcuda = ctypes.CDLL(sim.path)
    addresses = [ctypes.c_ulonglong() for _ in range(4)]
    with cu.Context() as context:
        for address in addresses:
            assert libcuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)) == 0
        parts = sorted(address.value for address in addresses)
        assert np.diff(parts).tolist() == [4096] * 3, "the simulator puts them side by side"

        model = cu.device_empty(3 * 4096, "u1")  # only its interface
        here = {"data": (parts[0], False)}
        whole = Foreign(model, **here)
        gaps = Foreign(model, **here, shape=(2,), strides=(3 * 4096 - 1,))

        def reaches(foreign: Any) -> int:  # a copy over two allocations is the driver's to refuse
            return cu.explain_copy(foreign, foreign).nbytes

        assert (reaches(whole), reaches(gaps)) == (3 * 4096, 2)
        assert libcuda.cuMemFree_v2(ctypes.c_ulonglong(parts[3])) == 0
        with pytest.raises(ValueError, match=f"16384 bytes .* ends at {parts[1]:#x}"):
            reaches(Foreign(model, **here, shape=(4 * 4096,)))
        assert libcuda.cuMemFree_v2(ctypes.c_ulonglong(parts[2])) == 0
        for longer in whole, gaps:
            with pytest.raises(ValueError, match=f"12288 bytes .* ends at {parts[1]:#x}"):
                reaches(longer)
        for part in parts[:2]:
            assert libcuda.cuMemFree_v2(ctypes.c_ulonglong(part)) == 0
        model.close()
        del model, whole, gaps
    context.close()

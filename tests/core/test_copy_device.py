"""Copies between device arrays: they stay on the devices, in stream order, whatever the strides."""

from __future__ import annotations

import ctypes
import gc
import threading
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_copy import placed, random_bytes, raw, slices

import cudriver as cu
from copykit import NamedBy, lateness, wait_for
from program import output

pytestmark = pytest.mark.threads

#: Driver calls that move bytes between device and host.
HOST_CALLS = ("cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2")


def moved(sim: Any, *names: str) -> list[int]:
    return [sim.call_count(name) for name in names]


def test_rows_farther_apart_than_the_drivers_pitch_are_no_2d_copy() -> None:
    if cu.memory_info().free < 5 << 30:
        pytest.skip("needs 5 GiB of device memory")
    model = random_bytes((2, 64), np.dtype("u1"), 1)
    far, near = cu.device_empty((2, 1 << 31), np.uint8)[:, :64], cu.pinned_array(model)
    cu.copy(far, near)
    near[...] = 0
    assert "2D" not in {cu.explain_copy(far, near).path, cu.explain_copy(near, far).path}
    cu.copy(near, far)
    assert np.array_equal(near, model)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    data=st.data(),
    dtype=st.sampled_from(["u1", "<i4", "V24"]),
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    blocking=st.booleans(),
    late=st.booleans(),
)
def test_overlapping_views_of_one_array(
    simulator: Any, data: st.DataObject, dtype: str, shape: list[int], blocking: bool, late: bool
) -> None:
    model = random_bytes(tuple(length * 2 for length in shape), np.dtype(dtype), 7)
    root = cu.to_device(model)
    to, source = [tuple(data.draw(slices(length * 2, length)) for length in shape) for _ in "ab"]
    with lateness(simulator, late):
        if blocking:
            cu.copy(root[to], root[source])
        else:
            cu.copy_async(root[to], root[source], cu.Stream()).wait()
        model[to] = model[source].copy()
        assert raw(root.to_numpy()) == raw(model)


def kinds() -> list[tuple[str, Any, Any, str]]:
    """(name, destination, source, path) as views of a (300, 400) array of 4-byte items."""
    whole = slice(None)
    return [
        ("rows turned round", np.s_[::-1], whole, "kernel"),
        ("columns turned round", np.s_[:, ::-1], whole, "kernel"),
        ("every other item", np.s_[:, ::2], np.s_[:, 1::2], "kernel"),
        ("every third row", np.s_[::3], np.s_[::3], "kernel"),
        ("wide columns", np.s_[:, :200], np.s_[:, 200:], "kernel"),
        ("wide columns of small items", np.s_[:, 1:200], np.s_[:, 200:399], "2D"),
        ("few wide columns", np.s_[:5, :200], np.s_[:5, 200:], "2D"),
        ("all", whole, whole, "direct"),
    ]


@pytest.mark.parametrize(("name", "to", "source", "path"), kinds())
@pytest.mark.parametrize("blocking", [True, False])
def test_one_driver_call_and_none_to_the_host(
    sim: Any, name: str, to: Any, source: Any, path: str, blocking: bool
) -> None:
    models = [random_bytes((300, 400), np.dtype("f4"), seed) for seed in (1, 2)]
    arrays = [cu.to_device(model) for model in models]
    dst, src = arrays[0][to], arrays[1][source]
    plan = cu.explain_copy(dst, src)
    assert plan.path == path, name
    sim.reset_counts()
    if blocking:
        cu.copy(dst, src)
    else:
        cu.copy_async(dst, src, cu.Stream()).wait()
    calls = {"kernel": "cuLaunchKernel", "2D": "cuMemcpy3DAsync_v2"}
    assert sim.call_count(calls.get(path, "cuMemcpyDtoDAsync_v2")) == 1
    assert moved(sim, *HOST_CALLS) == [0, 0, 0, 0]
    models[0][to] = models[1][source]
    assert raw(arrays[0].to_numpy()) == raw(models[0])


@pytest.mark.parametrize(("offset", "path"), [(0, "kernel"), (4, "bounced")])
def test_as_many_dimensions_as_the_kernel_has(sim: Any, offset: int, path: str) -> None:
    """It has six. Where addresses divide by four only, an item of eight bytes is one more."""
    shape, strides = (3,) * 6, tuple(8 * 2 * 7**k for k in range(5, -1, -1))
    models = [random_bytes((8 * 7**6 + 8,), np.dtype("u1"), seed) for seed in (1, 2)]
    roots = [cu.to_device(model) for model in models]
    views = []
    for root in roots:
        interface = {"shape": shape, "strides": strides, "typestr": "<u8", "version": 3}
        interface["data"] = (root.pointer + offset, False)
        views.append(types.SimpleNamespace(__cuda_array_interface__=interface))
    assert cu.explain_copy(*views).path == path
    cu.copy(*views)
    to, source = (np.ndarray(shape, "<u8", model.data, offset, strides) for model in models)
    to[...] = source
    assert raw(roots[0].to_numpy()) == raw(models[0])


@pytest.mark.parametrize("axis", [0, 3, 7])
def test_more_dimensions_than_the_kernel_has(sim: Any, axis: int) -> None:
    """Through host memory, in any order of the stream."""
    shape = [2] * 8
    shape[axis] = 100
    model = random_bytes(tuple(shape), np.dtype("f4"), 1)
    there, source, stream = cu.device_zeros(shape[::-1], "f4"), cu.to_device(model), cu.Stream()
    assert cu.explain_copy(there, source.T).path == "bounced"
    cu.copy(there, source.T)
    assert raw(there.to_numpy()) == raw(np.ascontiguousarray(model.T))
    source.fill(3, stream=stream)
    cu.copy_async(there, source.T, stream).wait()
    assert (there.to_numpy() == 3).all()


@pytest.mark.parametrize(
    ("to", "source", "launches"),
    [
        (np.s_[1:], np.s_[:-1], 0),  # dense: driver copies into the temporary and out
        (np.s_[:, 1:], np.s_[:, :-1], 0),  # rows: the driver's 2D copies
        (np.s_[::-1], np.s_[:], 1),
        (np.s_[:, ::-1], np.s_[::-1], 2),
    ],
)
def test_overlapping_ends_go_through_a_temporary_on_the_device(
    sim: Any, to: Any, source: Any, launches: int
) -> None:
    model = random_bytes((300, 400), np.dtype("f4"), 1)
    array = cu.to_device(model)
    assert cu.explain_copy(array[to], array[source]).path == "temporary"
    before = sim.live("allocations")
    sim.reset_counts()
    cu.copy_async(array[to], array[source], cu.Stream()).wait()
    assert moved(sim, *HOST_CALLS) == [0, 0, 0, 0]
    assert moved(sim, "cuMemAllocFromPoolAsync", "cuMemFreeAsync") == [1, 1]
    assert sim.call_count("cuLaunchKernel") == launches
    copies = moved(sim, "cuMemcpyDtoDAsync_v2", "cuMemcpy3DAsync_v2")
    assert sum(copies) == 2 - launches
    model[to] = model[source].copy()
    assert raw(array.to_numpy()) == raw(model)
    assert sim.live("allocations") == before


def test_memory_pools_are_made_only_for_copies_that_need_them(sim: Any) -> None:
    """To share a device's pool is to give every other device access to it."""
    program = """
        import ctypes, sys, numpy as np, cudriver as cu
        sim = ctypes.CDLL(cu.driver_path())
        class Theirs:
            def __init__(self, address, rows=120, strides=(1024, 1)):
                self.__cuda_array_interface__ = {
                    "shape": (rows, 512), "typestr": "|u1", "data": (address, False),
                    "strides": strides, "version": 3}
        contexts = [cu.Device(device).primary_context() for device in range(2)]
        def memory(device):
            address = ctypes.c_ulonglong()
            with contexts[device]:
                assert sim.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0
            return address.value
        def upwards(address):
            return Theirs(address + 119 * 1024, strides=(-1024, 1))
        def dense(address):
            return Theirs(address, strides=None)
        def asked():
            return sim.cudriver_sim_call_count(b"cuMemPoolCreate")
        a, b, far = memory(0), memory(0), memory(1)
        stream = cu.Stream()
        def step(*ends):
            path = cu.explain_copy(*ends).path
            cu.copy(*ends)
            cu.copy_async(*ends, stream).wait()
            print(path, asked())
        step(dense(a), dense(b))
        step(dense(a), dense(a))
        step(Theirs(a), Theirs(b))
        step(upwards(a), Theirs(b))
        step(Theirs(a, rows=0), Theirs(b, rows=0))
        step(dense(far), dense(a))
        step(upwards(a), Theirs(a))
        step(upwards(far), Theirs(b))
    """
    said = output(program, CUDRIVER_SIM_DEVICES="2").split("\n")
    assert said[:-1] == [
        "direct 0",
        "same 0",
        "kernel 0",
        "kernel 0",
        "empty 0",
        "peer 0",
        "temporary 1",
        "bounced 2",
    ]


@pytest.mark.parametrize(
    ("to", "source", "path"),
    [
        (np.s_[:150], np.s_[150:], "direct"),
        (np.s_[:150, 1:], np.s_[150:, 1:], "2D"),
        (np.s_[:150, ::2], np.s_[:149:-1, 1::2], "kernel"),
        (np.s_[:, ::2], np.s_[:, 1::2], "temporary"),
        (np.s_[:, :200], np.s_[:, 200:], "temporary"),
        (np.s_[::2], np.s_[-1::-2], "temporary"),
        (np.s_[:, :201], np.s_[:, 199:], "temporary"),
        (np.s_[:, ::2], np.s_[:, -2::-2], "temporary"),
    ],
)
def test_ends_whose_ranges_meet_need_a_temporary(to: Any, source: Any, path: str) -> None:
    model = random_bytes((300, 400), np.dtype("f4"), 1)
    array = cu.to_device(model)
    assert cu.explain_copy(array[to], array[source]).path == path
    cu.copy(array[to], array[source])
    model[to] = model[source].copy()
    assert raw(array.to_numpy()) == raw(model)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("to", "source", "path", "launches"),
    [
        (np.s_[:, ::2], np.s_[:, 1::2], "bounced", 2),
        (np.s_[:150, :200], np.s_[::2, :200], "bounced", 2),
        (np.s_[:150], np.s_[150:], "peer", 0),
    ],
)
def test_two_devices_pack_copy_and_unpack(
    sim: Any, two_devices: Any, at: int, to: Any, source: Any, path: str, launches: int
) -> None:
    models = [random_bytes((300, 400), np.dtype("f4"), seed) for seed in (1, 2)]
    arrays = [placed(model, device) for device, model in enumerate(models)]
    stream = cu.Stream(device=two_devices[at])
    assert cu.explain_copy(arrays[0][to], arrays[1][source]).path == path
    before, stack = sim.live("allocations"), cu.context_stack()
    for blocking in (False, True):
        sim.reset_counts()
        if blocking:
            cu.copy(arrays[0][to], arrays[1][source])
        else:
            cu.copy_async(arrays[0][to], arrays[1][source], stream).wait()
        assert moved(sim, *HOST_CALLS) == [0, 0, 0, 0]
        assert moved(sim, "cuLaunchKernel", "cuMemcpyPeerAsync") == [launches, 1]
        temporaries = 2 if path == "bounced" else 0
        assert moved(sim, "cuMemAllocFromPoolAsync") == [temporaries]
        assert cu.context_stack() == stack
    models[0][to] = models[1][source]
    assert raw(arrays[0].to_numpy()) == raw(models[0])
    assert sim.live("allocations") == before


def test_they_come_in_the_streams_order(sim: Any) -> None:
    """Held on the stream: the call returns, and what is before and behind it keeps its place."""
    dst, src = cu.device_zeros((300, 400), "i4"), cu.device_zeros((300, 400), "i4")
    model = random_bytes((300, 400), np.dtype("i4"), 3)
    source, outs = cu.pinned_array(model), [cu.pinned_zeros((300, 400), "i4") for _ in range(2)]
    stream = cu.Stream()
    to = np.s_[::-1]
    cu.copy(dst[to], src)  # what is made at first use is made
    dst.fill(0)
    src.fill(0)
    cu.current_context().synchronize()
    sim.hold()
    try:
        cu.copy_async(src, source, stream)
        transfer = cu.copy_async(dst[to], src, stream)
        behind = [cu.copy_async(outs[0], dst, stream)]
        dst.fill(-1, stream=stream)
        behind.append(cu.copy_async(outs[1], dst, stream))
        assert not transfer.done
        assert not stream.done
    finally:
        sim.release()
    for one in (transfer, *behind):
        one.wait()
    expected = model.copy()
    expected[to] = model
    assert raw(outs[0]) == raw(expected)
    assert (outs[1] == -1).all()


@pytest.mark.parametrize("at", [0, 1])
def test_a_blocking_copy_comes_after_the_work_of_with_stream(
    sim: Any, two_devices: Any, at: int
) -> None:
    """The stream may be on the device of either end."""
    sim.set_latency(2000)
    dst, src = (cu.device_zeros((64, 64), "i4", device=device) for device in two_devices)
    with cu.Stream(device=two_devices[at]):
        (dst, src)[at].fill(5)
        cu.copy(dst[:, ::2], src[:, 1::2])
    got = dst.to_numpy()
    assert (got[:, ::2] == (0, 5)[at]).all()
    assert (got[:, 1::2] == (5, 0)[at]).all()


def test_a_blocking_copy_within_another_devices_stream_follows_the_default_stream(
    sim: Any, two_devices: Any
) -> None:
    """The default stream of the array's device, where another library has queued work."""
    near, far = two_devices
    array, out = cu.device_zeros(1000, "u1", device=near), cu.pinned_zeros(1000, "u1")
    stream, libcuda = cu.Stream(device=far), ctypes.CDLL(sim.path)

    def copy() -> None:
        with stream:
            cu.copy(out, array)

    copying = threading.Thread(target=copy)
    sim.reset_counts()
    sim.hold()
    with near.primary_context():
        for value in range(50):
            assert libcuda.cuMemsetD8Async(ctypes.c_uint64(array.pointer), value, 1000, None) == 0
    copying.start()
    behind = "the copy is behind that work, and behind it a word and an event"
    wait_for(lambda: sim.live("pending") == 53, behind)
    for left in range(52, 3, -1):
        sim.step(1)  # of either stream, if neither has to wait
        wait_for(lambda most=left: sim.live("pending") <= most, "an operation ends")
    sim.release()
    copying.join()
    assert (out == 49).all()


@pytest.mark.parametrize("blocking", [True, False])
def test_a_peer_copy_on_the_default_stream_keeps_the_order_of_both_devices(
    sim: Any, two_devices: Any, blocking: bool
) -> None:
    """Another library's work on the source's default stream, before the copy and behind it."""
    dst, src = (cu.device_zeros(1000, "u1", device=device) for device in two_devices)
    libcuda = ctypes.CDLL(sim.path)

    def fill(value: int) -> None:
        with two_devices[1].primary_context():
            assert libcuda.cuMemsetD8Async(ctypes.c_uint64(src.pointer), value, 1000, None) == 0

    sim.set_latency(2000)
    for value in range(20):
        fill(value)
    if blocking:
        cu.copy(dst, src)
    else:
        transfer = cu.copy_async(dst, src, None)
        fill(77)
        transfer.wait()
    assert (dst.to_numpy() == 19).all()


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    "fault",
    [
        "cuModuleLoadDataEx:*:222",
        "cuLaunchKernel:*:801",
        "cuMemAllocFromPoolAsync:1:2",  # tried again
        "cuMemAllocFromPoolAsync:1:2,cuMemAllocFromPoolAsync:2:2",
    ],
)
def test_what_the_devices_cannot_do_goes_through_the_host(
    sim: Any, fault: str, blocking: bool
) -> None:
    context = cu.Context()
    with context:
        model = random_bytes((50, 60), np.dtype("i4"), 1)
        array = cu.to_device(model)
        stream = cu.Stream()
        assert cu.explain_copy(array[:, ::-1], array[::-1]).path == "temporary"
        sim.fail(fault)
        if blocking:
            cu.copy(array[:, ::-1], array[::-1])
        else:
            cu.copy_async(array[:, ::-1], array[::-1], stream).wait()
        sim.clear_faults()
        model[:, ::-1] = model[::-1].copy()
        assert raw(array.to_numpy()) == raw(model)
        if "Module" in fault:
            plan = cu.explain_copy(cu.device_empty((50, 60), "i4"), array[:, ::-1])
            assert plan.path == "bounced", "the kernel was refused for good"
        del array, stream
        gc.collect()
    context.close()


@pytest.mark.parametrize("first", [1, 2])
def test_where_one_device_has_no_memory_the_host_serves(
    sim: Any, two_devices: Any, first: int
) -> None:
    """For the dense array on the source's device, or on the other's."""
    model = random_bytes((50, 60), np.dtype("i4"), 1)
    source, to = cu.to_device(model), cu.device_zeros((50, 60), "i4", device=two_devices[1])
    assert cu.explain_copy(to[:, ::-1], source[::-1]).path == "bounced"
    sim.fail(f"cuMemAllocFromPoolAsync:{first}:2,cuMemAllocFromPoolAsync:{first + 1}:2")
    cu.copy(to[:, ::-1], source[::-1])
    sim.clear_faults()
    assert raw(to.to_numpy()[:, ::-1]) == raw(model[::-1])


def test_memory_of_another_context_of_the_device_is_none_of_the_kernels(sim: Any) -> None:
    program = """
        import numpy as np, cudriver as cu
        first, second = cu.Context(), cu.Context()
        model = np.arange(600, dtype="i4").reshape(20, 30)
        with first:
            a = cu.to_device(model)
        with second:
            b = cu.device_zeros((20, 30), "i4")
        plan = cu.explain_copy(b[::-1], a)
        cu.copy(b[::-1], a)
        print(plan.path, (b.to_numpy()[::-1] == model).all())
        c = cu.device_zeros((20, 30), "i4")
        print(cu.explain_copy(c, b[:, ::-1]).path, cu.explain_copy(b, b[:, ::-1]).path)
    """
    said = output(program, CUDRIVER_SIM_FAIL="cuMemPoolCreate:*:801")
    assert said == "bounced True\nbounced temporary\n"


def test_memory_of_another_librarys_context_is_copied_in_that_context(sim: Any) -> None:
    """Whatever is current: a kernel elsewhere would break its context."""
    program = """
        import numpy as np, cudriver as cu
        owner, context = cu.Context(), cu.Context()
        model = np.arange(480000, dtype="i4").reshape(8, 120, 500)
        with owner:
            memory = cu.device_zeros(model.shape, "i4")
        class Theirs:
            __cuda_array_interface__ = memory.__cuda_array_interface__
        back = np.empty((120, 500, 8), "i4").transpose(2, 0, 1)
        with context:
            print(cu.explain_copy(Theirs(), back).staging)
            cu.copy(Theirs(), model)
            cu.copy(back, Theirs())
            print((back == model).all(), cu.to_device(Theirs()).context is context)
            stream = cu.Stream()
            cu.copy_async(back, Theirs(), stream).wait()
            cu.copy(Theirs(), np.zeros_like(back))
        print((back == model).all(), memory.to_numpy().any())
    """
    said = output(program, CUDRIVER_SIM_FAIL="cuMemPoolCreate:*:801")
    assert said == "staged, permuted\nTrue True\nTrue False\n"


def test_an_old_driver_has_the_kernel_and_temporaries() -> None:
    if not cu.driver_is_simulated():
        pytest.skip("needs the simulated driver")
    program = """
        import numpy as np, cudriver as cu
        model = np.arange(600, dtype="i4").reshape(20, 30)
        a, b = cu.to_device(model), cu.device_zeros((20, 30), "i4")
        plans = [cu.explain_copy(b[::-1], a), cu.explain_copy(a[:, ::-1], a[::-1])]
        cu.copy_async(b[::-1], a, cu.Stream()).wait()
        cu.copy_async(a[:, ::-1], a[::-1], cu.Stream()).wait()
        other = cu.device_zeros((20, 30), "i4", device=1)
        plans.append(cu.explain_copy(other[::-1], a))
        cu.copy(other[::-1], b)
        wanted = model.copy()
        wanted[:, ::-1] = model[::-1]
        print(*(plan.path for plan in plans), (b.to_numpy()[::-1] == model).all(),
              (a.to_numpy() == wanted).all(), (other.to_numpy() == model).all())
    """
    said = output(program, CUDRIVER_SIM_DRIVER_VERSION="11000", CUDRIVER_SIM_DEVICES="2")
    assert said == "kernel temporary bounced True True True\n"


def test_a_stream_of_another_library(sim: Any) -> None:
    model = random_bytes((50, 60), np.dtype("i4"), 1)
    src = cu.to_device(model)
    dst = cu.device_zeros((50, 60), "i4")
    context = cu.Context()
    with context:
        elsewhere = cu.Stream()
    for stream in (cu.Stream(), elsewhere):
        dst.fill(0)
        cu.copy_async(dst[::-1], src, NamedBy(stream)).wait()
        assert raw(dst.to_numpy()[::-1]) == raw(model)
    elsewhere.close()
    context.close()


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(
    ("to", "source", "path"),
    [
        (np.s_[:30], np.s_[30:], "direct"),
        (np.s_[:30, :20], np.s_[30:, 5:25], "2D"),
        (np.s_[:30], np.s_[:29:-1], "kernel"),
        (np.s_[::-1], np.s_[:], "temporary"),
    ],
)
def test_a_stream_of_another_context_of_the_device(
    sim: Any, to: Any, source: Any, path: str, blocking: bool
) -> None:
    model = random_bytes((60, 40), np.dtype("V16"), 3)
    array, fill = cu.device_empty(model.shape, model.dtype), model[7, 7]
    assert cu.explain_copy(array[to], array[source]).path == path
    context = cu.Context()
    with context:
        stream = cu.Stream()
    cu.copy(array, model)
    sim.set_latency(2000)
    sim.reset_counts()
    array[3:50, 1::2].fill(fill, stream=stream)
    if blocking:
        with stream:
            cu.copy(array[to], array[source])
    else:
        cu.copy_async(array[to], array[source], stream)
    stream.synchronize()
    assert moved(sim, *HOST_CALLS) == [0] * len(HOST_CALLS)
    assert cu.explain_copy(array[to], array[source]).path == path
    model[3:50, 1::2] = fill.copy()
    model[to] = model[source].copy()
    assert raw(array.to_numpy()) == raw(model)
    stream.close()
    context.close()


def test_a_blocking_copy_comes_after_any_work_of_the_sources_stream(
    sim: Any, two_devices: Any
) -> None:
    """Other libraries' work too, of which nothing but the stream tells."""
    library = ctypes.CDLL(cu.driver_path())
    to = cu.device_zeros(100, np.uint8, device=two_devices[0])
    source = cu.device_zeros(100, np.uint8, device=two_devices[1])
    stream = cu.Stream(device=two_devices[1])
    address, handle = ctypes.c_uint64(source.pointer), ctypes.c_void_p(stream.handle)
    cu.copy(to, source)
    sim.set_latency(50_000)
    with source.context:
        for value in range(1, 9):
            assert library.cuMemsetD8Async(address, value, ctypes.c_size_t(100), handle) == 0
    with stream:
        cu.copy(to, source)
    sim.set_latency(0)
    assert (to.to_numpy() == 8).all()

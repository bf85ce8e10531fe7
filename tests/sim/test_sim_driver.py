"""The simulated driver by itself: exports, knobs, and what goes beyond the facts of hardware."""

from __future__ import annotations

import ctypes
import mmap
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import native_build
import simkit
from simkit import Driver

pytestmark = native_build.marks

KINDS = (
    *("contexts", "primary_retains", "streams", "events", "allocations", "allocation_bytes"),
    *("device_bytes", "pools", "registrations", "registration_bytes", "host_allocs"),
    *("host_alloc_bytes", "modules", "pending", "graphs", "executables"),
)
NON_BLOCKING = 1
PTX = ".version 7.0\n.target sm_50\n.visible .entry {name}(.param .u64 a)\n{{ ret; }}\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native_build.simulator(tmp_path_factory.mktemp("sim"))


@pytest.fixture(scope="module")
def loaded(library: Path) -> Driver:
    return Driver(library)


@pytest.fixture
def sim(loaded: Driver) -> Iterator[Driver]:
    """With every knob at its default; nothing may be alive or current at the end."""
    loaded.cudriver_sim_reset()
    loaded.cudriver_sim_set_devices(1)  # whatever the suite's environment says
    yield loaded
    loaded.cudriver_sim_reset()
    assert {kind: loaded.live(kind) for kind in KINDS} == dict.fromkeys(KINDS, 0)
    current = ctypes.c_void_p(1)
    assert loaded.cuCtxGetCurrent(ctypes.byref(current)) in (0, 3)
    assert current.value in (None, 1)


@pytest.fixture
def context(sim: Driver) -> Iterator[int]:
    handle = sim.context()
    yield handle
    sim.cudriver_sim_reset()
    assert sim.cuCtxDestroy_v2(handle) == 0


# --- what it exports ---


def test_exports_the_list_and_nothing_else(library: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm on this machine")
    printed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in printed.splitlines()}
    names = {*simkit.function_names(), *simkit.per_thread(), *simkit.absent()}
    assert exported >= names
    header = (native_build.CEXT / "sim" / "cudriver_sim.h").read_text()
    rest = exported - names
    assert rest
    assert [name for name in rest if not name.startswith("cudriver_sim_")] == []
    assert [name for name in rest if f"{name}(" not in header] == []


def test_marks_itself(sim: Driver) -> None:
    assert sim.cudriver_sim_version() == 1


# --- profiles and knobs ---


def ask_child(library: Path, code: str, **knobs: object) -> str:
    """Runs `code` in a fresh interpreter with the library as `sim`."""
    script = f"from simkit import Driver\nsim = Driver({str(library)!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        env=simkit.environment(**knobs) | {"PYTHONPATH": str(native_build.TESTS)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_stub_answers_34_to_everything(library: Path) -> None:
    names = simkit.function_names()
    code = "from simkit import function_names, parameter_count\n"
    code += "print({getattr(sim, f)(*[0] * parameter_count(f)) for f in function_names()})"
    assert ask_child(library, code, PROFILE="stub").strip() == "{34}"
    assert len(names) > 80


def test_old_driver_lacks_what_is_newer(library: Path) -> None:
    code = "for f in ('cuMemAlloc_v2', 'cuMemPoolCreate', 'nonsense'):\n"
    code += "    print(sim.cudriver_sim_has(f))\n"
    code += "print(sim.cuInit(0), sim.cuMemPoolCreate(0, 0))\n"
    code += (
        "import ctypes; v = ctypes.c_int(); sim.cuDriverGetVersion(ctypes.byref(v)); print(v.value)"
    )
    assert ask_child(library, code, PROFILE="old").split() == ["1", "0", "0", "0", "801", "11000"]
    assert ask_child(library, code, PROFILE="too_old").split()[-1] == "10020"
    assert ask_child(library, code, DRIVER_VERSION=12080).split() == [
        *("1", "1", "0"),
        *("0", "1", "12080"),
    ]


def test_no_device(library: Path) -> None:
    assert ask_child(library, "print(sim.cuInit(0))", PROFILE="no_device").strip() == "100"
    assert ask_child(library, "print(sim.cuInit(0))", DEVICES=0).strip() == "100"


def test_says_what_it_does_not_understand(library: Path) -> None:
    said = ask_child(
        library, "print(sim.cuInit(0))", MEMORY="lots", FAIL="cuNothing:1:2", PROFILE="x"
    )
    assert "CUDRIVER_SIM_MEMORY=lots" in said
    assert "CUDRIVER_SIM_FAIL=cuNothing:1:2" in said
    assert "CUDRIVER_SIM_PROFILE=x" in said


def test_environment_sets_the_knobs(library: Path) -> None:
    code = """
import ctypes
assert sim.cuInit(0) == 0
count = ctypes.c_int(); sim.cuDeviceGetCount(ctypes.byref(count))
total = ctypes.c_size_t(); sim.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
print(count.value, total.value, sim.cuCtxGetCurrent(0), sim.cuCtxGetCurrent(0))
"""
    printed = ask_child(library, code, DEVICES=3, MEMORY="64M", FAIL="cuCtxGetCurrent:2:999")
    assert printed.split() == ["3", str(64 << 20), "1", "999"]


@pytest.mark.parametrize(
    "spec", [":", "cuInit", "cuInit:0:1", "cuInit:1:0", "cuInit:x:1", "*:1:-2"]
)
def test_bad_fault_specs(sim: Driver, spec: str) -> None:
    assert sim.cudriver_sim_fail(spec) == -1


def test_knobs_out_of_range(sim: Driver) -> None:
    assert sim.cudriver_sim_set_devices(17) == -1
    assert sim.cudriver_sim_set_memory(0) == -1
    assert sim.cudriver_sim_set_driver_version(5) == -1
    assert sim.cudriver_sim_set_profile("nonsense") == -1
    assert sim.live("nonsense") == -1


# --- faults and counts ---


def test_nth_call_fails_and_has_no_effect(sim: Driver, context: int) -> None:
    assert sim.cudriver_sim_fail("cuMemAlloc_v2:2:2") == 0
    address = ctypes.c_uint64(7)
    assert sim.cuMemAlloc_v2(ctypes.byref(address), 64) == 0
    first = address.value
    assert sim.cuMemAlloc_v2(ctypes.byref(address), 64) == 2
    assert address.value == first
    assert sim.live("allocations") == 1
    assert sim.cuMemAlloc_v2(ctypes.byref(address), 64) == 0
    assert sim.cudriver_sim_fail_next("cuMemFree_v2", 999) == 0
    assert sim.cudriver_sim_hold_call("cuNothing", 1) == sim.cudriver_sim_hold_call("*", 1) == -1
    assert sim.cuMemFree_v2(first) == 999
    assert sim.live("allocations") == 2
    assert sim.cuMemFree_v2(first) == 0
    assert sim.cuMemFree_v2(address.value) == 0


def test_any_call_and_every_call(sim: Driver, context: int) -> None:
    assert sim.cudriver_sim_fail("*:2:999,cuEventQuery:*:700") == 0
    text = ctypes.c_char_p()
    assert sim.cuCtxSynchronize() == 0
    assert sim.cuGetErrorName(2, ctypes.byref(text)) == 0  # not counted
    assert text.value == b"CUDA_ERROR_OUT_OF_MEMORY"
    assert sim.cuCtxSynchronize() == 999
    assert [sim.cuEventQuery(0), sim.cuEventQuery(0)] == [700, 700]
    sim.cudriver_sim_clear_faults()
    assert sim.cuEventQuery(0) == 400


def test_counts(sim: Driver, context: int) -> None:
    sim.cudriver_sim_reset_counts()
    for _ in range(3):
        assert sim.cuCtxSynchronize() == 0
    assert sim.library.cudriver_sim_call_count(b"cuCtxSynchronize") == 3
    assert sim.library.cudriver_sim_call_count(None) == 3
    assert sim.library.cudriver_sim_call_count(b"nonsense") == -1


def test_failed_operation_breaks_the_device(sim: Driver, context: int) -> None:
    p = sim.make("cuMemAlloc_v2", 64)
    assert sim.cudriver_sim_fail("async:2:719") == 0
    assert sim.cuMemsetD8Async(p, 1, 64, 0) == 0
    assert sim.cuMemsetD8Async(p, 2, 64, 0) == 0
    assert sim.cuMemsetD8Async(p, 3, 64, 0) in (0, 719)
    assert sim.cuCtxSynchronize() == 719
    assert sim.cuMemFree_v2(p) == 719
    sim.cudriver_sim_reset()
    assert sim.read(p, 64) == b"\1" * 64
    assert sim.cuMemFree_v2(p) == 0


# --- memory ---


@pytest.mark.parametrize("size", [1, 513, 70_001, 3 << 20, (5 << 20) + 3])
def test_fresh_and_freed_memory_is_poison(sim: Driver, context: int, size: int) -> None:
    poison = bytes([sim.cudriver_sim_poison()])
    for _ in range(3):
        p = sim.make("cuMemAlloc_v2", size)
        assert sim.read(p, size) == poison * size
        data = b"\x17" * size
        assert sim.cuMemcpyHtoD_v2(p, data, size) == 0
        assert sim.read(p, size) == data
        assert sim.cuMemFree_v2(p) == 0


def test_device_addresses_are_no_host_addresses(sim: Driver, context: int) -> None:
    p = sim.make("cuMemAlloc_v2", 1 << 20)
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if first <= p < last:
                assert line.split()[1] == "---p"
                break
        else:
            pytest.fail("not reserved")
    assert sim.cuMemFree_v2(p) == 0


def test_memory_is_finite_and_comes_back(sim: Driver, context: int) -> None:
    assert sim.cudriver_sim_set_memory(16 << 20) == 0
    p = sim.make("cuMemAlloc_v2", 10 << 20)
    q = ctypes.c_uint64()
    assert sim.cuMemAlloc_v2(ctypes.byref(q), 10 << 20) == 2
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert sim.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    assert (free.value, total.value) == (6 << 20, 16 << 20)
    assert sim.cuMemFree_v2(p) == 0
    assert sim.cuMemFree_v2(sim.make("cuMemAlloc_v2", 16 << 20)) == 0


def test_allocations_never_overlap(sim: Driver, context: int) -> None:
    """Against a model: random sizes, each block with its own content until it is freed."""
    dice = random.Random(20)
    blocks: dict[int, bytes] = {}
    for _ in range(1500):
        if blocks and dice.random() < 0.48:
            address = dice.choice(list(blocks))
            data = blocks.pop(address)
            assert sim.read(address, len(data)) == data
            assert sim.cuMemFree_v2(address) == 0
        else:
            size = dice.choice([1, 100, 512, 513, 4096, 70_000, dice.randrange(1, 400_000)])
            address = sim.make("cuMemAlloc_v2", size)
            data = dice.randbytes(4) * (size // 4 + 1)
            blocks[address] = data[:size]
            assert sim.cuMemcpyHtoD_v2(address, blocks[address], size) == 0
    assert sim.live("allocation_bytes") == sum(map(len, blocks.values()))
    for address, data in blocks.items():
        assert sim.read(address, len(data)) == data
        assert sim.cuMemFree_v2(address) == 0
    assert sim.live("device_bytes") == 0


def test_a_context_takes_its_memory_along(sim: Driver) -> None:
    own = sim.context()
    p = sim.make("cuMemAlloc_v2", 5000)
    host = sim.host(b"x" * 5000)
    sim.make("cuStreamCreateWithPriority", 0, 0)
    sim.make("cuEventCreate", 0)
    sim.make("cuModuleLoadDataEx", PTX.format(name="a"), 0, 0, 0)
    assert sim.live("host_alloc_bytes") == 5000
    assert sim.cuCtxDestroy_v2(own) == 0
    assert sim.cuMemFree_v2(p) == 1
    with open("/proc/self/maps") as maps:
        spans = [[int(x, 16) for x in line.split()[0].split("-")] for line in maps]
    assert not any(first <= host < last for first, last in spans)


def test_registration_limit(sim: Driver, context: int) -> None:
    buffer = ctypes.create_string_buffer(8192)
    assert sim.cudriver_sim_set_registration_limit(8192) == 0
    assert sim.cuMemHostRegister_v2(buffer, 8192, 0) == 1
    assert sim.cuMemHostRegister_v2(buffer, 8191, 0) == 0
    assert (sim.live("registrations"), sim.live("registration_bytes")) == (1, 8191)
    assert sim.cuMemHostUnregister(buffer) == 0


def test_registrations_above_two_gibibytes_of_a_profile(sim: Driver, context: int) -> None:
    most = 2 << 30
    with mmap.mmap(-1, most + 4096) as memory:  # which nobody touches
        view = (ctypes.c_char * (most + 4096)).from_buffer(memory)
        assert sim.cudriver_sim_set_profile("short_registrations") == 0
        assert sim.cuMemHostRegister_v2(view, most + 1, 0) == 1
        assert sim.cuMemHostRegister_v2(view, most, 0) == 0
        assert sim.cuMemHostUnregister(view) == 0
        assert sim.cudriver_sim_set_profile("default") == 0
        assert sim.cuMemHostRegister_v2(view, most + 1, 0) == 0
        assert sim.cuMemHostUnregister(view) == 0
        del view


# --- streams ---


def test_page_locked_sources_are_read_later(sim: Driver, context: int) -> None:
    stream = sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    p = sim.make("cuMemAlloc_v2", 64)
    host = sim.host(b"a" * 64)
    sim.cudriver_sim_hold()
    assert sim.cuMemcpyHtoDAsync_v2(p, host, 64, stream) == 0
    assert sim.cuStreamQuery(stream) == 600
    assert sim.live("pending") == 1
    ctypes.memset(host, ord("b"), 64)
    sim.cudriver_sim_release()
    assert sim.cuStreamSynchronize(stream) == 0
    assert sim.read(p, 64) == b"b" * 64


def test_small_pageable_sources_are_read_at_once(sim: Driver, context: int) -> None:
    stream = sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    p = sim.make("cuMemAlloc_v2", 64)
    source = ctypes.create_string_buffer(b"a" * 64, 64)
    sim.cudriver_sim_hold()
    assert sim.cuMemcpyHtoDAsync_v2(p, source, 64, stream) == 0
    ctypes.memset(source, ord("b"), 64)
    sim.cudriver_sim_release()
    assert sim.cuStreamSynchronize(stream) == 0
    assert sim.read(p, 64) == b"a" * 64


@pytest.mark.parametrize("size", [64, 5 << 20])
def test_late_work_ends_after_the_calls_that_may_return_before_it(
    sim: Driver, context: int, size: int
) -> None:
    """A blocking copy from pageable memory has read it; of one between device memory and of a fill
    nothing need be done. What waits for the stream sees all of them."""
    p, q = sim.make("cuMemAlloc_v2", size), sim.make("cuMemAlloc_v2", size)
    source = ctypes.create_string_buffer(b"a" * size, size)
    assert sim.cudriver_sim_set_late(200_000) == 0
    assert sim.cuMemcpyHtoD_v2(p, source, size) == 0
    assert sim.cuMemcpyDtoD_v2(q, p, size) == 0
    assert sim.cuMemsetD8Async(p, ord("c"), size, None) == 0
    assert sim.cuStreamQuery(None) == 600
    ctypes.memset(source, ord("b"), size)
    assert sim.cuStreamSynchronize(None) == 0
    assert (sim.read(q, size), sim.read(p, size)) == (b"a" * size, b"c" * size)
    sim.cudriver_sim_reset()
    assert sim.cuMemcpyHtoD_v2(p, source, size) == 0
    assert sim.cuStreamQuery(None) == 0


def test_with_jitter_some_calls_begin_late(sim: Driver, context: int) -> None:
    """Some calls do, others do not, and some of them are late by much."""
    assert sim.cudriver_sim_set_jitter(1_000_001) == -1
    assert sim.cudriver_sim_set_jitter(100_000) == 0
    took = []
    for _ in range(60):
        began = time.monotonic()
        assert sim.cuCtxGetDevice(ctypes.byref(ctypes.c_int())) == 0
        took.append(time.monotonic() - began)
    late = [seconds for seconds in took if seconds > 0.001]
    assert 0 < len(late) < 60
    assert any(seconds > 0.02 for seconds in late)
    sim.cudriver_sim_reset()


def test_steps_run_one_by_one_in_order(sim: Driver, context: int) -> None:
    stream = sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    p = sim.make("cuMemAlloc_v2", 4)
    events = [sim.make("cuEventCreate", 2) for _ in range(3)]
    sim.cudriver_sim_hold()
    for value, event in enumerate(events):
        assert sim.cuMemsetD8Async(p, value, 4, stream) == 0
        assert sim.cuEventRecord(event, stream) == 0
    for value, event in enumerate(events):
        assert [sim.cuEventQuery(e) for e in events[value:]] == [600] * (3 - value)
        sim.cudriver_sim_step(2)
        assert sim.cuEventSynchronize(event) == 0
        assert sim.read(p, 4) == bytes([value]) * 4
    sim.cudriver_sim_release()


def test_work_goes_on_when_its_stream_is_destroyed(sim: Driver, context: int) -> None:
    stream = sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    p = sim.make("cuMemAlloc_v2", 4)
    sim.cudriver_sim_hold()
    assert sim.cuMemsetD8Async(p, 9, 4, stream) == 0
    assert sim.cuStreamDestroy_v2(stream) == 0
    assert (sim.live("streams"), sim.live("pending")) == (0, 1)
    sim.cudriver_sim_release()
    assert sim.cuCtxSynchronize() == 0
    assert sim.read(p, 4) == b"\t" * 4


def test_latency_and_bandwidth_take_time(sim: Driver, context: int) -> None:
    stream = sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    start, end = (sim.make("cuEventCreate", 0) for _ in range(2))
    p = sim.make("cuMemAlloc_v2", 1 << 20)
    host = sim.host(b"x" * (1 << 20))
    for latency, bandwidth, least in ((20_000, 0, 19.0), (0, 50 << 20, 19.0)):
        assert sim.cudriver_sim_set_latency(latency) == 0
        assert sim.cudriver_sim_set_bandwidth(bandwidth) == 0
        assert sim.cuEventRecord(start, stream) == 0
        assert sim.cuMemcpyHtoDAsync_v2(p, host, 1 << 20, stream) == 0
        assert sim.cuEventRecord(end, stream) == 0
        assert sim.cuEventSynchronize(end) == 0
        elapsed = ctypes.c_float()
        assert sim.cuEventElapsedTime(ctypes.byref(elapsed), start, end) == 0
        assert elapsed.value >= least


def test_a_host_function_runs_elsewhere_and_in_order(sim: Driver, context: int) -> None:
    stream = sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    seen: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        lambda data: seen.append((data or 0) + sim.cuCtxSynchronize())
    )
    for value in (1, 2, 3):
        assert sim.cuLaunchHostFunc(stream, ctypes.cast(function, ctypes.c_void_p), value) == 0
    assert sim.cuStreamSynchronize(stream) == 0
    assert seen == [801, 802, 803]  # 800: calls are not permitted there


def test_host_functions_of_two_streams_run_one_at_a_time(sim: Driver, context: int) -> None:
    first, second = (sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0) for _ in range(2))
    seen: list[int] = []
    begun, over = threading.Event(), threading.Event()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def function(data: int | None) -> None:
        if data is None:
            begun.set()
            over.wait(0.3)
        seen.append(data or 0)

    pointer = ctypes.cast(function, ctypes.c_void_p)
    assert sim.cuLaunchHostFunc(first, pointer, 0) == 0
    assert begun.wait(60)
    assert sim.cuLaunchHostFunc(second, pointer, 1) == 0
    assert sim.cuCtxSynchronize() == 0
    assert seen == [0, 1]


# --- pools ---


def test_a_block_serves_another_stream_once_the_free_has_happened(
    sim: Driver, context: int
) -> None:
    a, b = (sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0) for _ in range(2))
    pool = sim.pool()
    threshold = ctypes.c_uint64(1 << 40)
    assert sim.cuMemPoolSetAttribute(pool, 4, ctypes.byref(threshold)) == 0
    p = sim.make("cuMemAllocFromPoolAsync", 1000, pool, a)
    sim.cudriver_sim_hold()
    assert sim.cuMemsetD8Async(p, 1, 1000, a) == 0
    assert sim.cuMemFreeAsync(p, a) == 0  # behind work, or it would happen at once
    other = sim.make("cuMemAllocFromPoolAsync", 1000, pool, b)
    same = sim.make("cuMemAllocFromPoolAsync", 1000, pool, a)
    assert other != p
    assert same == p
    assert sim.cuMemFreeAsync(same, a) == 0
    sim.cudriver_sim_release()
    assert sim.cuCtxSynchronize() == 0
    again = sim.make("cuMemAllocFromPoolAsync", 1000, pool, b)
    assert again == p
    assert sim.read(again, 1000) == bytes([sim.cudriver_sim_poison()]) * 1000
    for address in (other, again):
        assert sim.cuMemFreeAsync(address, b) == 0
    assert sim.cuCtxSynchronize() == 0
    assert sim.live("device_bytes") == 2048
    assert sim.cuMemPoolTrimTo(pool, 0) == 0
    assert sim.live("device_bytes") == 0
    assert sim.cuMemPoolDestroy(pool) == 0


def test_use_after_a_free_in_stream_order_is_seen(sim: Driver, context: int) -> None:
    a, b = (sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0) for _ in range(2))
    pool = sim.pool()
    host = sim.host(b"x" * 1000)
    p = sim.make("cuMemAllocFromPoolAsync", 1000, pool, a)
    sim.cudriver_sim_hold()
    assert sim.cuMemcpyHtoDAsync_v2(p, host, 1000, b) == 0  # nothing orders it before the free
    assert sim.cuMemFreeAsync(p, a) == 0
    late = sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    assert sim.cuMemsetD8Async(p, 0, 1000, late) == 1  # by now the program has freed it
    sim.cudriver_sim_release()
    assert sim.cuCtxSynchronize() in (0, 700)  # whichever stream came first
    sim.cudriver_sim_reset()
    assert sim.cuMemPoolDestroy(pool) == 0


def test_a_pool_makes_the_new_stream_wait_when_memory_is_short(sim: Driver, context: int) -> None:
    assert sim.cudriver_sim_set_memory(1 << 20) == 0
    a, b = (sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0) for _ in range(2))
    pool = sim.pool()
    p = sim.make("cuMemAllocFromPoolAsync", 1 << 20, pool, a)
    sim.cudriver_sim_hold()
    assert sim.cuMemsetD8Async(p, 1, 1 << 20, a) == 0
    assert sim.cuMemFreeAsync(p, a) == 0
    q = sim.make("cuMemAllocFromPoolAsync", 1 << 20, pool, b)
    assert q == p
    assert sim.cuMemsetD8Async(q, 2, 1 << 20, b) == 0
    sim.cudriver_sim_release()
    assert sim.cuStreamSynchronize(b) == 0
    assert sim.read(q, 1 << 20) == b"\2" * (1 << 20)
    assert sim.cuMemFree_v2(q) == 0
    assert sim.cuMemPoolDestroy(pool) == 0


def test_a_destroyed_pool_goes_with_its_last_block(sim: Driver, context: int) -> None:
    pool = sim.pool()
    p = sim.make("cuMemAllocFromPoolAsync", 1000, pool, 0)
    assert sim.cuMemPoolDestroy(pool) == 0
    assert (sim.live("pools"), sim.live("device_bytes")) == (0, 1024)
    sim.cudriver_sim_hold()
    assert sim.cuMemFreeAsync(p, 0) == 0
    sim.cudriver_sim_release()
    assert sim.cuCtxSynchronize() == 0
    assert sim.live("device_bytes") == 0


# --- several devices ---


def test_two_devices(sim: Driver) -> None:
    assert sim.cudriver_sim_set_devices(2) == 0
    first, second = sim.context(0, 0), sim.context(0, 1)
    q = sim.make("cuMemAlloc_v2", 64)
    assert sim.cuCtxSetCurrent(first) == 0
    p = sim.make("cuMemAlloc_v2", 64)
    assert sim.cuMemsetD8Async(p, 5, 64, 0) == 0
    assert sim.cuMemcpyPeer(q, second, p, first, 64) == 0
    assert sim.read(q, 64) == b"\5" * 64
    assert sim.cuMemsetD8Async(p, 6, 64, 0) == 0
    assert sim.cuMemcpyPeerAsync(q, second, p, first, 64, 0) == 0
    assert sim.cuCtxSynchronize() == 0
    assert sim.read(q, 64) == b"\6" * 64
    assert sim.cuMemcpyPeer(q, 12345, p, first, 64) == 201
    assert sim.cuCtxEnablePeerAccess(second, 0) == 0
    assert sim.cuCtxEnablePeerAccess(second, 0) == 704
    assert sim.cuCtxPopCurrent_v2(0) == 0
    assert sim.cuCtxDestroy_v2(first) == 0
    assert sim.cuCtxDestroy_v2(second) == 0


def test_the_context_of_a_stream(sim: Driver) -> None:
    first, stream = sim.context(), sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    second = sim.context()
    found, green = ctypes.c_uint64(), ctypes.c_uint64(1)
    for handle, expected in ((stream, first), (0, second), (1, second), (2, second)):
        assert sim.cuStreamGetCtx(handle, ctypes.byref(found)) == 0
        assert found.value == expected
        assert sim.cuStreamGetCtx_v2(handle, ctypes.byref(found), ctypes.byref(green)) == 0
        assert (found.value, green.value) == (expected, 0)
    assert sim.cuStreamGetCtx(stream, 0) == 1
    assert sim.cuStreamDestroy_v2(stream) == 0
    assert sim.cuStreamGetCtx(stream, ctypes.byref(found)) == 400
    assert sim.cuCtxDestroy_v2(second) == 0
    assert sim.cuCtxDestroy_v2(first) == 0
    assert sim.cuStreamGetCtx(0, ctypes.byref(found)) == 201


# --- kernels ---


def test_kernels(sim: Driver, context: int) -> None:
    module = sim.make("cuModuleLoadDataEx", PTX.format(name="cudriver_sim_fill"), 0, 0, 0)
    fill = sim.make("cuModuleGetFunction", module, "cudriver_sim_fill")
    p = sim.make("cuMemAlloc_v2", 64)
    values = (ctypes.c_uint64(p), ctypes.c_uint64(60), ctypes.c_uint8(7))
    params = (ctypes.c_void_p * 3)(*[ctypes.addressof(v) for v in values])
    assert sim.cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, 0, params, 0) == 0
    values[2].value = 9  # the parameters were read at the call
    assert sim.read(p, 64) == b"\7" * 60 + bytes([sim.cudriver_sim_poison()]) * 4
    other = sim.make("cuModuleLoadDataEx", PTX.format(name="unheard_of"), 0, 0, 0)
    unknown = sim.make("cuModuleGetFunction", other, "unheard_of")
    assert sim.cuLaunchKernel(unknown, 1, 1, 1, 1, 1, 1, 0, 0, params, 0) == 801
    assert sim.cuModuleUnload(module) == 0
    assert sim.cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, 0, params, 0) == 400
    assert sim.cuModuleUnload(module) == 400


def test_kernels_reach_no_other_contexts_memory(sim: Driver) -> None:
    """That of a pool is the device's. A real driver may allow both; nothing depends on that."""
    owner = sim.context()
    p = sim.make("cuMemAlloc_v2", 64)
    shared = sim.make("cuMemAllocFromPoolAsync", 64, pool := sim.pool(), 0)
    assert sim.cuCtxSynchronize() == 0
    context = sim.context()
    module = sim.make("cuModuleLoadDataEx", PTX.format(name="cudriver_sim_fill"), 0, 0, 0)
    fill = sim.make("cuModuleGetFunction", module, "cudriver_sim_fill")
    for address, expected in ((shared, 0), (p, 700)):
        values = (ctypes.c_uint64(address), ctypes.c_uint64(64), ctypes.c_uint8(7))
        params = (ctypes.c_void_p * 3)(*[ctypes.addressof(v) for v in values])
        assert sim.cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, 0, params, 0) in (0, expected)
        assert sim.cuCtxSynchronize() == expected
    sim.cudriver_sim_reset()
    assert sim.cuMemFree_v2(shared) == 0
    assert sim.cuMemPoolDestroy(pool) == 0
    assert sim.cuCtxDestroy_v2(context) == 0
    assert sim.cuCtxDestroy_v2(owner) == 0


# --- handles ---


def test_what_was_destroyed_last_gives_its_handle_first(sim: Driver, context: int) -> None:
    """Even while there is work in the stream that had it."""
    streams = [sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0) for _ in range(3)]
    events = [sim.make("cuEventCreate", 0) for _ in range(3)]
    p, number, ids = sim.make("cuMemAlloc_v2", 4), ctypes.c_uint64(), set()
    sim.cudriver_sim_hold()
    for stream, event in zip(streams, events, strict=True):
        assert sim.cuMemsetD8Async(p, 9, 4, stream) == 0
        assert sim.cuEventRecord(event, stream) == 0
        assert sim.cuStreamGetId(stream, ctypes.byref(number)) == 0
        ids.add(number.value)
        assert sim.cuStreamDestroy_v2(stream) == 0
        assert sim.cuEventDestroy_v2(event) == 0
        assert sim.cuStreamQuery(stream) == sim.cuEventQuery(event) == 400
    for stream, event in zip(reversed(streams), reversed(events), strict=True):
        assert sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0) == stream
        assert sim.make("cuEventCreate", 0) == event
        assert sim.cuStreamQuery(stream) == sim.cuEventQuery(event) == 0
        assert sim.cuStreamGetId(stream, ctypes.byref(number)) == 0
        ids.add(number.value)
    assert (sim.live("pending"), len(ids)) == (6, 6)
    sim.cudriver_sim_release()
    assert sim.cuCtxSynchronize() == 0
    for stream, event in zip(streams, events, strict=True):
        assert sim.cuStreamDestroy_v2(stream) == sim.cuEventDestroy_v2(event) == 0
    assert sim.cuMemFree_v2(p) == 0


def test_a_destroyed_contexts_handle_is_free_once_it_is_current_not_found(library: Path) -> None:
    """In a child: here, a worker of an earlier test may free a handle meanwhile."""
    code = """
first = sim.context()
assert sim.cuCtxPushCurrent_v2(first) == 0
assert sim.cuCtxDestroy_v2(first) == 0  # still on the stack, below
second = sim.context()
assert second != first
assert sim.cuCtxDestroy_v2(second) == 0
assert sim.cuCtxPopCurrent_v2(0) == 0
assert sim.context() == first
assert sim.cuCtxDestroy_v2(first) == 0
"""
    assert ask_child(library, code) == ""


def test_invented_handles_are_refused(sim: Driver, context: int) -> None:
    dice = random.Random(3)
    stream = sim.make("cuStreamCreateWithPriority", 0, 0)
    event = sim.make("cuEventCreate", 0)
    real = {context, stream, event}
    words = [0xDEADBEEF, 2**63, 2**64 - 1, 3, 4096, stream + 1, event ^ 1 << 30, context + 2**24]
    words += [dice.getrandbits(64) for _ in range(200)]
    words += [dice.choice([stream, event, context]) ^ 1 << dice.randrange(64) for _ in range(200)]

    def may_have_been_a_context(word: int) -> bool:
        return word >> 56 == context >> 56 and word % (1 << 56) < 1 << 16

    for word in set(words) - real:
        for function in ("cuStreamQuery", "cuStreamSynchronize", "cuStreamDestroy_v2"):
            assert getattr(sim, function)(word) in (400, 709), hex(word)
        for function in ("cuEventQuery", "cuEventSynchronize", "cuEventDestroy_v2"):
            assert getattr(sim, function)(word) in (400, 709), hex(word)
        assert sim.cuCtxDestroy_v2(word) in (201, 709), hex(word)
        for function in ("cuCtxPushCurrent_v2", "cuCtxSetCurrent"):
            if not may_have_been_a_context(word):  # that is deadly: test_sim_facts.py
                assert getattr(sim, function)(word) == 201, hex(word)
        assert sim.cuModuleUnload(word) == 400
        assert sim.cuMemPoolDestroy(word) == 1
        assert sim.cuMemFree_v2(word) == 1


def test_the_stack_of_contexts_ends_somewhere(sim: Driver, context: int) -> None:
    pushed = 0
    while sim.cuCtxPushCurrent_v2(context) == 0:
        pushed += 1
        assert pushed < 5000
    assert pushed == 1023
    for _ in range(pushed):
        assert sim.cuCtxPopCurrent_v2(0) == 0


# --- the end of the process, and forks ---

LEAVE = """
import ctypes
assert sim.cuInit(0) == 0
sim.context()
stream = sim.make("cuStreamCreateWithPriority", 1, 0)
p = sim.make("cuMemAlloc_v2", 1 << 20)
host = sim.host(b"x" * (1 << 20))
for _ in range(50):
    assert sim.cuMemcpyHtoDAsync_v2(p, host, 1 << 20, stream) == 0
    assert sim.cuMemcpyDtoHAsync_v2(host, p, 1 << 20, 0) == 0
"""


@pytest.mark.parametrize("how", ["working", "sleeping", "held", "waiting"])
def test_leaving_with_everything_alive(library: Path, how: str) -> None:
    more = {
        "working": "",
        "sleeping": "",
        "held": "sim.cudriver_sim_hold()\n" + LEAVE,
        "waiting": "assert sim.cuStreamWaitValue32_v2(stream, sim.host(bytes(4)), 1, 0) == 0",
    }[how]
    knobs = {"LATENCY_US": 60_000_000} if how == "sleeping" else {}
    ask_child(library, LEAVE + more, **knobs)


def test_forks_while_streams_work(library: Path) -> None:
    code = """
import os
sim.context()
stream = sim.make("cuStreamCreateWithPriority", 1, 0)
p = sim.make("cuMemAlloc_v2", 1 << 16)
host = sim.host(b"x" * (1 << 16))
for _ in range(30):
    for _ in range(20):
        assert sim.cuMemcpyHtoDAsync_v2(p, host, 1 << 16, stream) == 0
    child = os.fork()
    if child == 0:
        answers = {sim.cuInit(0), sim.cuCtxSynchronize(), sim.cuMemFree_v2(p)}
        alive = sim.live("allocations")
        os._exit(0 if answers == {3} and alive == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
assert sim.cuStreamSynchronize(stream) == 0
assert sim.read(p, 4) == b"xxxx"
print("done")
"""
    assert ask_child(library, code).strip() == "done"


def test_a_child_forked_before_init_is_free(library: Path) -> None:
    code = """
import os
child = os.fork()
if child == 0:
    os._exit(sim.cuInit(0))
assert os.waitpid(child, 0)[1] == 0
"""
    ask_child(library, code)


def test_nothing_grows(sim: Driver) -> None:
    """Contexts with streams that have worked, again and again: threads and memory come back."""

    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1])

    def rounds(count: int) -> None:
        for _ in range(count):
            own = sim.context()
            stream = sim.make("cuStreamCreateWithPriority", NON_BLOCKING, 0)
            p = sim.make("cuMemAlloc_v2", 100_000)
            assert sim.cuMemsetD8Async(p, 1, 100_000, stream) == 0
            assert sim.cuCtxDestroy_v2(own) == 0

    rounds(2000)
    seen = [resident()]
    while len(seen) < 3 or (seen[-1] - seen[-3] >= 64 and len(seen) < 13):
        rounds(2000)
        seen.append(resident())
    # A leak grows all the time; a heap that settles does not.
    assert seen[-1] - seen[-3] < 64, f"pages after each 2000 rounds: {seen}"

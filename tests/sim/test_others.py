"""The simulated driver for other libraries: cuGetProcAddress, and what only they call."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import native_build
import simkit
from simkit import Driver

pytestmark = native_build.marks

INVALID_VALUE, OUT_OF_MEMORY, NO_CONTEXT, NOT_FOUND, NOT_READY = 1, 2, 201, 500, 600
INVALID_DEVICE, FILE_NOT_FOUND, PEER_NOT_ENABLED = 101, 301, 705
FOUND, UNKNOWN, TOO_OLD = 0, 1, 2
LEGACY, PER_THREAD = 1, 2
THREAD_STREAM = 2


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native_build.simulator(tmp_path_factory.mktemp("others"))


@pytest.fixture(scope="module")
def loaded(library: Path) -> Driver:
    return Driver(library)


@pytest.fixture
def sim(loaded: Driver) -> Iterator[Driver]:
    loaded.cudriver_sim_reset()
    loaded.cudriver_sim_set_devices(2)
    yield loaded
    loaded.cudriver_sim_reset()
    kinds = "contexts", "streams", "events", "allocations", "pools", "host_allocs", "modules"
    assert {kind: loaded.live(kind) for kind in kinds} == dict.fromkeys(kinds, 0)


@pytest.fixture
def context(sim: Driver) -> Iterator[int]:
    handle = sim.context()
    yield handle
    sim.cudriver_sim_reset()
    assert sim.cuCtxDestroy_v2(handle) == 0


def symbol_of(sim: Driver, address: int | None) -> str | None:
    """The exported name at an address."""
    names = {*simkit.functions(), *simkit.per_thread(), *simkit.absent()}
    for name in names:
        function = getattr(sim.library, name)
        if ctypes.cast(function, ctypes.c_void_p).value == address:
            return name
    return None


def ask(sim: Driver, symbol: str, version: int, flags: int = 0) -> tuple[int, str | None, int]:
    address, status = ctypes.c_void_p(1), ctypes.c_int(9)
    found = sim.cuGetProcAddress_v2(
        symbol, ctypes.byref(address), version, flags, ctypes.byref(status)
    )
    return found, symbol_of(sim, address.value), status.value


# --- cuGetProcAddress ---


@pytest.mark.parametrize(
    ("symbol", "version", "flags", "name"),
    [
        ("cuInit", 2000, 0, "cuInit"),
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, LEGACY, "cuMemAlloc_v2"),
        ("cuMemAlloc", 3010, 0, "cuMemAlloc"),
        ("cuMemAlloc", 13000, PER_THREAD, "cuMemAlloc_v2"),
        ("cuMemcpyHtoD", 13000, PER_THREAD, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoD", 6050, PER_THREAD, "cuMemcpyHtoD_v2"),
        ("cuMemcpyHtoD", 13000, LEGACY, "cuMemcpyHtoD_v2"),
        ("cuStreamSynchronize", 13000, PER_THREAD, "cuStreamSynchronize_ptsz"),
        ("cuStreamSynchronize", 13000, 0, "cuStreamSynchronize"),
        ("cuCtxCreate", 3020, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuEventElapsedTime", 12070, 0, "cuEventElapsedTime"),
        ("cuEventElapsedTime", 12080, 0, "cuEventElapsedTime_v2"),
        ("cuLibraryLoadData", 12000, 0, "cuLibraryLoadData"),
    ],
)
def test_a_symbol_of_a_version(
    sim: Driver, symbol: str, version: int, flags: int, name: str
) -> None:
    assert ask(sim, symbol, version, flags) == (0, name, FOUND)


def test_symbols_that_there_are_not(sim: Driver) -> None:
    assert ask(sim, "cuNothing", 13000) == (0, None, UNKNOWN)
    assert ask(sim, "cuMemAlloc_v2", 13000) == (0, None, UNKNOWN)
    assert ask(sim, "cuMem", 13000) == (0, None, UNKNOWN)
    assert ask(sim, "cuMemPoolCreate", 11010) == (0, None, TOO_OLD)
    address = ctypes.c_void_p(1)
    assert sim.cuGetProcAddress_v2("cuNothing", ctypes.byref(address), 12000, 0, 0) == 0
    assert address.value is None
    # Before CUDA 12 there was no status, and the call failed.
    for name, version in ("cuNothing", 11030), ("cuMemPoolCreate", 11010):
        assert sim.cuGetProcAddress(name, ctypes.byref(address), version, 0) == NOT_FOUND
    assert sim.cuGetProcAddress("cuInit", ctypes.byref(address), 11030, 0) == 0


def test_what_cannot_be_asked(sim: Driver) -> None:
    assert ask(sim, "cuInit", 13010)[0] == INVALID_VALUE  # newer than the driver
    assert ask(sim, "cuInit", 13000, LEGACY | PER_THREAD)[0] == INVALID_VALUE
    assert ask(sim, "cuInit", 13000, 4)[0] == INVALID_VALUE
    assert sim.cuGetProcAddress_v2("cuInit", 0, 13000, 0, 0) == INVALID_VALUE
    assert sim.cuGetProcAddress_v2(0, 1, 13000, 0, 0) == INVALID_VALUE
    sim.cudriver_sim_set_driver_version(12000)
    assert ask(sim, "cuInit", 12010)[0] == INVALID_VALUE
    assert ask(sim, "cuInit", 12000) == (0, "cuInit", FOUND)


def test_every_function_is_found_by_its_name(sim: Driver) -> None:
    for name in {*simkit.functions(), *simkit.absent()} - {"cuProfilerInitialize"}:
        if not name.endswith(("_ptsz", "_ptds")):
            base = name.partition("_v")[0]
            assert ask(sim, base, 13000)[2] == FOUND, name


# --- what the simulator lacks ---


def test_what_is_lacking_says_so_once(library: Path) -> None:
    script = (
        f"import ctypes; lib = ctypes.CDLL({str(library)!r})\n"
        "print(lib.cuLibraryLoadData(), lib.cuLibraryLoadData(), lib.cuArrayDestroy())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=simkit.environment(), capture_output=True, text=True
    )
    assert done.stdout.split() == ["801", "801", "801"]
    lines = done.stderr.splitlines()
    assert [line.split(": ")[-1] for line in lines] == [
        "cuLibraryLoadData is not supported",
        "cuArrayDestroy is not supported",
    ]
    assert all(line.startswith("cudriver's simulated driver ") for line in lines)


def test_a_kernel_that_is_not_ours_is_refused_by_name(library: Path, tmp_path: Path) -> None:
    ptx = ".version 7.0\n.target sm_50\n.visible .entry theirs()\n{ ret; }\n"
    (tmp_path / "theirs.ptx").write_text(ptx)
    script = f"""
from simkit import Driver
import ctypes
sim = Driver({str(library)!r})
sim.context()
module = sim.make("cuModuleLoad", {str(tmp_path / "theirs.ptx")!r})
kernel = sim.make("cuModuleGetFunction", module, "theirs")
print([sim.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) for _ in range(2)])
print(sim.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), "\\x7fELF"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=simkit.environment() | {"PYTHONPATH": str(native_build.TESTS)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["[801, 801]", "209"]
    assert done.stderr.splitlines() == [
        "cudriver's simulated driver runs no kernels: cuLaunchKernel of theirs is not supported",
        "cudriver's simulated driver runs no kernels: it cannot load a module of machine code",
    ]


# --- memory ---


def test_copies_and_fills_without_a_direction(sim: Driver, context: int) -> None:
    device = sim.make("cuMemAlloc_v2", 16)
    host = sim.make("cuMemAllocHost_v2", 16)
    ctypes.memmove(host, bytes(range(16)), 16)
    plain = ctypes.create_string_buffer(16)
    assert sim.cuMemcpy(device, host, 16) == 0
    assert sim.cuMemcpy(ctypes.addressof(plain), device, 16) == 0
    assert plain.raw == bytes(range(16))
    assert sim.cuMemcpy(ctypes.addressof(plain), host + 8, 8) == 0  # host to host
    assert plain.raw[:8] == bytes(range(8, 16))
    assert sim.cuMemsetD8_v2(device, 7, 16) == 0
    assert sim.cuMemsetD32_v2(device, 0x01020304, 1) == 0
    assert sim.read(device, 6) == bytes((4, 3, 2, 1, 7, 7))
    assert sim.cuMemsetD2D16_v2(device, 8, 0x0A0B, 1, 2) == 0
    assert sim.read(device, 10) == bytes((11, 10, 2, 1, 7, 7, 7, 7, 11, 10))
    assert sim.cuMemsetD16_v2(host, 0x0C0D, 8) == 0
    assert ctypes.string_at(host, 16) == bytes((13, 12)) * 8
    assert sim.cuMemcpy(device, 0, 4) == INVALID_VALUE
    assert sim.cuMemcpyAsync(device, host, 17, 0) == INVALID_VALUE
    assert sim.cuMemFree_v2(device) == 0
    assert sim.cuMemFreeHost(ctypes.c_void_p(host)) == 0


def test_rows_with_a_pitch(sim: Driver, context: int) -> None:
    address, pitch = ctypes.c_uint64(), ctypes.c_size_t()
    out = ctypes.byref(address), ctypes.byref(pitch)
    assert sim.cuMemAllocPitch_v2(*out, 513, 3, 4) == 0
    assert pitch.value == 1024
    start, size = ctypes.c_uint64(), ctypes.c_size_t()
    asked = ctypes.byref(start), ctypes.byref(size)
    assert sim.cuMemGetAddressRange_v2(*asked, address.value + 2000) == 0
    assert (start.value, size.value) == (address.value, 3072)
    assert sim.cuMemGetAddressRange_v2(0, 0, address.value) == 0
    assert sim.cuMemGetAddressRange_v2(*asked, 4096) == NOT_FOUND
    for width, height, element in (513, 3, 5), (0, 3, 4), (513, 0, 4):
        assert sim.cuMemAllocPitch_v2(*out, width, height, element) == INVALID_VALUE
    for width, height in (1 << 62, 8), ((1 << 64) - 1, 1):
        assert sim.cuMemAllocPitch_v2(*out, width, height, 4) == OUT_OF_MEMORY
    assert sim.cuMemFree_v2(address.value) == 0


def test_a_device_has_a_pool_of_its_own(sim: Driver, context: int) -> None:
    pool = sim.make("cuDeviceGetDefaultMemPool", 0)
    assert sim.make("cuDeviceGetDefaultMemPool", 0) == pool
    assert sim.make("cuDeviceGetMemPool", 0) == pool
    other = sim.make("cuDeviceGetDefaultMemPool", 1)
    assert other != pool
    assert sim.cuMemPoolDestroy(pool) == INVALID_VALUE
    assert sim.cuDeviceSetMemPool(0, other) == INVALID_VALUE
    assert sim.cuDeviceSetMemPool(2, pool) == INVALID_DEVICE
    address = sim.make("cuMemAllocAsync", 100, 0)
    used = ctypes.c_uint64()
    assert sim.cuMemPoolGetAttribute(pool, 7, ctypes.byref(used)) == 0
    assert used.value == 100
    assert sim.cuMemFreeAsync(address, 0) == 0
    mine = sim.pool()
    assert sim.cuDeviceSetMemPool(0, mine) == 0
    assert sim.make("cuDeviceGetMemPool", 0) == mine
    address = sim.make("cuMemAllocAsync", 100, THREAD_STREAM)
    assert sim.cuMemPoolGetAttribute(mine, 7, ctypes.byref(used)) == 0
    assert used.value == 100
    assert sim.cuMemFreeAsync(address, THREAD_STREAM) == 0
    assert sim.cuMemPoolDestroy(mine) == 0
    assert sim.make("cuDeviceGetMemPool", 0) == pool  # the default again
    flags = ctypes.c_int(9)
    for device, expected in (0, 3), (1, 0):
        where = (ctypes.c_int * 2)(1, device)
        assert sim.cuMemPoolGetAccess(ctypes.byref(flags), pool, ctypes.byref(where)) == 0
        assert flags.value == expected


# --- streams and events ---


def test_a_callback_is_called_in_its_turn(sim: Driver, context: int) -> None:
    seen = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    def callback(stream: int, status: int, data: int) -> None:
        seen.append((stream, status, data, sim.cuCtxSynchronize()))

    stream = sim.make("cuStreamCreate", 1)
    sim.cudriver_sim_hold()
    assert sim.cuStreamAddCallback(stream, callback, 77, 0) == 0
    assert sim.cuStreamQuery(stream) == NOT_READY
    assert seen == []
    sim.cudriver_sim_release()
    assert sim.cuStreamSynchronize(stream) == 0
    assert seen == [(stream, 0, 77, 800)]  # no call of CUDA is permitted within
    assert sim.cuStreamAddCallback(stream, callback, 77, 1) == INVALID_VALUE
    assert sim.cuStreamAddCallback(stream, 0, 0, 0) == INVALID_VALUE
    assert sim.cuStreamDestroy_v2(stream) == 0


def test_what_a_stream_says_of_itself(sim: Driver, context: int) -> None:
    streams = [sim.make("cuStreamCreate", 0) for _ in range(2)]
    ids = set()
    for stream in (*streams, 0, THREAD_STREAM):
        number = ctypes.c_uint64()
        assert sim.cuStreamGetId(stream, ctypes.byref(number)) == 0
        ids.add(number.value)
    assert len(ids) == 4
    device, status = ctypes.c_int(9), ctypes.c_int(9)
    assert sim.cuStreamGetDevice(streams[0], ctypes.byref(device)) == 0
    assert sim.cuStreamIsCapturing(streams[0], ctypes.byref(status)) == 0
    assert (device.value, status.value) == (0, 0)
    event = sim.make("cuEventCreate", 0)
    assert sim.cuEventRecordWithFlags(event, streams[0], 2) == INVALID_VALUE
    assert sim.cuEventRecordWithFlags(event, streams[0], 0) == 0
    time = ctypes.c_float(9)
    assert sim.cuEventElapsedTime_v2(ctypes.byref(time), event, event) == 0
    assert time.value == 0
    assert sim.cuEventDestroy_v2(event) == 0
    for stream in streams:
        assert sim.cuStreamDestroy_v2(stream) == 0


def test_variants_use_the_threads_own_stream(sim: Driver, context: int) -> None:
    """A held non-blocking stream does not order it; the NULL stream would wait for the held one."""
    device = sim.make("cuMemAlloc_v2", 8)
    host = sim.host(b"fromhost")
    sim.cudriver_sim_hold()
    assert sim.cuMemcpyAsync_ptsz(device, host, 8, 0) == 0
    assert sim.cuStreamQuery(THREAD_STREAM) == NOT_READY
    assert sim.cuStreamQuery_ptsz(0) == NOT_READY
    sim.cudriver_sim_release()
    assert sim.cuStreamSynchronize_ptsz(0) == 0
    assert sim.read(device, 8) == b"fromhost"
    assert sim.cuMemsetD8_v2_ptds(device, 5, 8) == 0
    plain = ctypes.create_string_buffer(8)
    assert sim.cuMemcpyDtoH_v2_ptds(plain, device, 8) == 0
    assert plain.raw == bytes([5]) * 8
    assert sim.cuMemFree_v2(device) == 0
    assert sim.cuMemFreeHost(ctypes.c_void_p(host)) == 0


# --- devices and contexts ---


def test_old_questions_about_a_device(sim: Driver) -> None:
    assert sim.cuInit(0) == 0
    major, minor = ctypes.c_int(), ctypes.c_int()
    out = ctypes.byref(major), ctypes.byref(minor)
    assert sim.cuDeviceComputeCapability(*out, 0) == 0
    assert (major.value, minor.value) == (9, 0)
    assert sim.cuDeviceComputeCapability(*out, 2) == INVALID_DEVICE
    properties = (ctypes.c_int * 14)()
    assert sim.cuDeviceGetProperties(properties, 0) == 0
    assert list(properties[:8]) == [1024, 1024, 1024, 64, 2147483647, 65535, 65535, 49152]
    assert properties[9] == 32  # a warp
    value = ctypes.c_int(9)
    assert sim.cuDeviceGetP2PAttribute(ctypes.byref(value), 2, 0, 1) == 0
    assert value.value == 1
    assert sim.cuDeviceGetP2PAttribute(ctypes.byref(value), 2, 0, 0) == INVALID_DEVICE
    assert sim.cuDeviceGetP2PAttribute(ctypes.byref(value), 9, 0, 1) == INVALID_VALUE


def test_contexts_that_are_named(sim: Driver, context: int) -> None:
    second = sim.make("cuCtxCreate_v3", 0, 0, 0, 1)
    device = ctypes.c_int(9)
    assert sim.cuCtxGetDevice_v2(ctypes.byref(device), context) == 0
    assert device.value == 0
    assert sim.cuCtxGetDevice_v2(ctypes.byref(device), 0) == 0
    assert device.value == 1
    assert sim.cuCtxSynchronize_v2(context) == 0
    assert sim.make("cuCtxGetCurrent") == second
    assert sim.cuCtxDisablePeerAccess(context) == PEER_NOT_ENABLED
    assert sim.cuCtxEnablePeerAccess(context, 0) == 0
    assert sim.cuCtxDisablePeerAccess(context) == 0
    assert sim.make("cuCtxAttach", 0) == second
    assert sim.cuCtxDetach(context) == NO_CONTEXT  # not the current one
    assert sim.cuCtxDetach(second) == 0
    assert sim.make("cuCtxGetCurrent") == second
    assert sim.cuCtxDetach(second) == 0
    assert sim.make("cuCtxGetCurrent") == context
    config = ctypes.c_int(9)
    assert sim.cuCtxGetSharedMemConfig(ctypes.byref(config)) == 0
    assert config.value == 1
    assert sim.cuCtxSetSharedMemConfig(2) == 0
    assert sim.cuCtxSetSharedMemConfig(3) == INVALID_VALUE
    assert sim.cuCtxResetPersistingL2Cache() == sim.cuProfilerStart() == sim.cuProfilerStop() == 0


def test_a_module_from_a_file(sim: Driver, context: int, tmp_path: Path) -> None:
    module = ctypes.c_void_p()
    assert sim.cuModuleLoad(ctypes.byref(module), str(tmp_path / "none")) == FILE_NOT_FOUND
    assert sim.cuModuleLoad(ctypes.byref(module), str(tmp_path)) == FILE_NOT_FOUND
    (tmp_path / "empty").touch()
    assert sim.cuModuleLoad(ctypes.byref(module), str(tmp_path / "empty")) == 200
    mode = ctypes.c_int()
    assert sim.cuModuleGetLoadingMode(ctypes.byref(mode)) == 0
    assert mode.value == 2


def test_calls_made_of_others_count_and_fail_under_their_own_names(
    sim: Driver, context: int
) -> None:
    address = ctypes.c_void_p()
    sim.cudriver_sim_fail("cuMemAllocHost_v2:2:999")
    host = sim.make("cuMemAllocHost_v2", 8)
    assert sim.cuMemAllocHost_v2(ctypes.byref(address), 8) == 999
    assert sim.library.cudriver_sim_call_count(b"cuMemAllocHost_v2") == 2
    assert sim.library.cudriver_sim_call_count(b"cuMemHostAlloc") == 1
    assert sim.cuMemFreeHost(ctypes.c_void_p(host)) == 0

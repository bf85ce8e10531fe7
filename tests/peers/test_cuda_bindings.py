"""cuda-bindings on the simulated driver: what its public calls do with memory and streams."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from cuda.bindings import driver as cuda

OK = cuda.CUresult.CUDA_SUCCESS


def ok(answer):
    assert answer[0] == OK, answer
    return answer[1] if len(answer) == 2 else answer[1:]


@pytest.fixture(autouse=True)
def context():
    ok(cuda.cuInit(0))
    device = ok(cuda.cuDeviceGet(0))
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(device))))
    yield
    ok(cuda.cuCtxSynchronize())
    ok(cuda.cuCtxSetCurrent(cuda.CUcontext(0)))
    ok(cuda.cuDevicePrimaryCtxRelease(device))


def test_devices():
    assert ok(cuda.cuDeviceGetCount()) == 2
    assert b"simulated" in ok(cuda.cuDeviceGetName(64, 1))
    free, total = ok(cuda.cuMemGetInfo())
    assert 0 < free <= total
    assert ok(cuda.cuDriverGetVersion()) == 13000
    warp = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE
    assert ok(cuda.cuDeviceGetAttribute(warp, 0)) == 32


@pytest.mark.parametrize("size", [1, 4096, (3 << 20) + 1])
def test_a_round_trip_through_page_locked_memory(size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    host = ok(cuda.cuMemHostAlloc(size, 0))
    ctypes.memmove(host, data.ctypes.data, size)
    device = ok(cuda.cuMemAlloc(size))
    stream = ok(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
    ok(cuda.cuMemcpyHtoDAsync(device, host, size, stream))
    back = np.zeros(size, np.uint8)
    ok(cuda.cuMemcpyDtoHAsync(back.ctypes.data, device, size, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert (back == data).all()
    ok(cuda.cuMemsetD8(device, 7, size))
    ok(cuda.cuMemcpyDtoH(back.ctypes.data, device, size))
    assert (back == 7).all()
    ok(cuda.cuStreamDestroy(stream))
    ok(cuda.cuMemFree(device))
    ok(cuda.cuMemFreeHost(host))


def test_registration_and_the_attributes_of_pointers():
    array = np.zeros(1 << 16, np.uint8)
    address = (array.ctypes.data + 4095) & ~4095
    ok(cuda.cuMemHostRegister(address, 8192, cuda.CU_MEMHOSTREGISTER_DEVICEMAP))
    kind = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert ok(cuda.cuPointerGetAttribute(kind, address)) == cuda.CUmemorytype.CU_MEMORYTYPE_HOST
    already = cuda.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    assert cuda.cuMemHostRegister(address, 8192, 0)[0] == already
    ok(cuda.cuMemHostUnregister(address))
    assert cuda.cuPointerGetAttribute(kind, address)[0] == cuda.CUresult.CUDA_ERROR_INVALID_VALUE


def test_pools_and_events():
    stream = ok(cuda.cuStreamCreate(0))
    start, end = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
    ok(cuda.cuEventRecord(start, stream))
    address = ok(cuda.cuMemAllocAsync(1000, stream))
    pool = ok(cuda.cuDeviceGetDefaultMemPool(0))
    used = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    assert int(ok(cuda.cuMemPoolGetAttribute(pool, used))) == 1000
    ok(cuda.cuMemFreeAsync(address, stream))
    ok(cuda.cuEventRecord(end, stream))
    ok(cuda.cuEventSynchronize(end))
    assert ok(cuda.cuEventElapsedTime(start, end)) >= 0
    for event in start, end:
        ok(cuda.cuEventDestroy(event))
    ok(cuda.cuStreamDestroy(stream))


def test_kernels_are_refused():
    refused = cuda.cuLibraryLoadData(b".version 8.0", [], [], 0, [], [], 0)[0]
    assert refused == cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED

/* See driver_under_test.h. */
#include "driver_under_test.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static struct cudriver_table driver; /* what `cuda` was before driver_start() */
static atomic_uint calls, fail_at;
static CUresult fail_with;
static atomic_bool failed;
static void (*_Atomic hook)(const void *), (*_Atomic unregister_hook)(const void *);

/* Whether this call is the one to fail. No call may come from the child of a fork. */
static bool fails(void)
{
    unsigned left = atomic_load(&fail_at);

    if (cudriver_driver_is_forked()) {
        fprintf(stderr, "a forked child called the driver\n");
        abort();
    }
    atomic_fetch_add(&calls, 1);
    while (left > 0 && !atomic_compare_exchange_weak(&fail_at, &left, left - 1)) {
    }
    if (left == 1) {
        atomic_store(&failed, true);
    }
    return left == 1;
}

static CUresult tested_register(void *address, size_t bytes, unsigned flags)
{
    void (*call)(const void *) = atomic_load(&hook);

    if (call != NULL) {
        call(address);
    }
    return fails() ? fail_with : driver.cuMemHostRegister_v2(address, bytes, flags);
}

static CUresult tested_unregister(void *address)
{
    void (*call)(const void *) = atomic_load(&unregister_hook);

    if (call != NULL) {
        call(address);
    }
    return fails() ? fail_with : driver.cuMemHostUnregister(address);
}

static CUresult tested_pointer(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    return fails() ? fail_with : driver.cuPointerGetAttribute(value, attribute, address);
}

static CUresult tested_push(CUcontext context)
{
    return fails() ? fail_with : driver.cuCtxPushCurrent_v2(context);
}

static CUresult tested_device(CUdevice *device)
{
    return fails() ? fail_with : driver.cuCtxGetDevice(device);
}

static CUresult tested_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    return fails() ? fail_with : driver.cuDeviceGetAttribute(value, attribute, device);
}

static CUresult tested_retain(CUcontext *context, CUdevice device)
{
    return fails() ? fail_with : driver.cuDevicePrimaryCtxRetain(context, device);
}

static CUresult tested_release(CUdevice device)
{
    CUresult result = driver.cuDevicePrimaryCtxRelease_v2(device);

    if (result != CUDA_SUCCESS || cudriver_driver_is_forked()) {
        fprintf(stderr, "the primary context was released too often, or by a forked child\n");
        abort();
    }
    return result;
}

void driver_start(void)
{
    if (!cudriver_driver_load(getenv("CUDRIVER_LIBRARY"))) {
        fprintf(stderr, "%s\n", cudriver_driver.message);
        exit(2);
    }
    CUresult result = cudriver_driver_init();
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "cuInit answers %d\n", (int)result);
        exit(2);
    }
    driver = cuda;
    cuda.cuMemHostRegister_v2 = tested_register;
    cuda.cuMemHostUnregister = tested_unregister;
    cuda.cuPointerGetAttribute = tested_pointer;
    cuda.cuCtxPushCurrent_v2 = tested_push;
    cuda.cuCtxGetDevice = tested_device;
    cuda.cuDeviceGetAttribute = tested_attribute;
    cuda.cuDevicePrimaryCtxRetain = tested_retain;
    cuda.cuDevicePrimaryCtxRelease_v2 = tested_release;
}

unsigned driver_calls(void)
{
    return atomic_load(&calls);
}

void driver_fail(unsigned n, CUresult result)
{
    fail_with = result;
    atomic_store(&failed, false);
    atomic_store(&fail_at, n);
}

bool driver_has_failed(void)
{
    return atomic_load(&failed);
}

void *driver_function(const char *name)
{
    return dlsym(dlopen(cudriver_driver.path, RTLD_LAZY), name);
}

size_t driver_live(const char *what)
{
    long long (*live)(const char *) = NULL;

    *(void **)&live = driver_function("cudriver_sim_live");
    return live != NULL ? (size_t)live(what) : 0;
}

bool driver_is_registered(const void *address, size_t bytes)
{
    CUdeviceptr at = (uintptr_t)address, end = at + bytes, begin;
    size_t size;

    while (at < end &&
           driver.cuPointerGetAttribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at) == 0 &&
           driver.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at) == 0) {
        at = begin + size;
    }
    return at >= end;
}

void driver_set_hook(void (*call)(const void *address))
{
    atomic_store(&hook, call);
}

void driver_set_unregister_hook(void (*call)(const void *address))
{
    atomic_store(&unregister_hook, call);
}

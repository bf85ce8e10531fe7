/*
 * A driver for tests of hostmem: contexts, and registration by byte with the answers that the real
 * driver was seen to give. See driver_under_test.h.
 */
#define _GNU_SOURCE
#include "driver_under_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct range {
    uintptr_t begin, end;
    CUcontext context;
    struct range *next;
};

struct cudriver_table cuda;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges, read_only, allocated;
static unsigned calls, fail_at;
static CUresult fail_with;
static bool failed;
static void (*_Atomic hook)(const void *), (*_Atomic unregister_hook)(const void *);
static _Thread_local CUcontext current;
static uintptr_t next_context = 0x1000;
static const CUcontext primary = (CUcontext)0x800;
static unsigned retains;                  /* of the primary context */
static _Thread_local CUcontext pushed_on; /* what was current before the one push there is */
static atomic_bool forked;

/* No stream is captured here. */
void cudriver_driver_relax(void)
{
}

void cudriver_driver_restore(void)
{
}

bool cudriver_driver_is_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

static void note_fork(void)
{
    atomic_store(&forked, true);
}

static void must_not_be_forked(const char *function)
{
    if (atomic_load(&forked)) {
        fprintf(stderr, "%s called in a forked child\n", function);
        abort();
    }
}

/* Under the lock: whether this call is the one to fail. */
static bool fails(CUresult *result)
{
    calls++;
    if (fail_at > 0 && --fail_at == 0) {
        *result = fail_with;
        failed = true;
        return true;
    }
    return false;
}

static bool overlap(const struct range *range, uintptr_t begin, uintptr_t end)
{
    return range->begin < end && begin < range->end;
}

static bool is_mapped(uintptr_t begin, uintptr_t end)
{
    enum { AT_ONCE = 4096 };
    unsigned char seen[AT_ONCE];

    for (uintptr_t at = begin / 4096 * 4096; at < end; at += AT_ONCE * 4096) {
        size_t bytes = end - at < AT_ONCE * 4096 ? end - at : AT_ONCE * 4096;
        if (mincore((void *)at, bytes, seen) != 0) {
            return false;
        }
    }
    return true;
}

static CUresult register_locked(uintptr_t begin, uintptr_t end, unsigned flags)
{
    CUresult result;

    if (fails(&result)) {
        return result;
    }
    if (current == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (begin == end || !is_mapped(begin, end) || overlap(&allocated, begin, end) ||
        (overlap(&read_only, begin, end) && (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (struct range *range = ranges; range != NULL; range = range->next) {
        if (overlap(range, begin, end)) {
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        }
    }
    struct range *range = malloc(sizeof *range);
    *range = (struct range){begin, end, current, ranges};
    ranges = range;
    return CUDA_SUCCESS;
}

static CUresult fake_register(void *address, size_t bytes, unsigned flags)
{
    must_not_be_forked("cuMemHostRegister");
    void (*call)(const void *) = atomic_load(&hook);
    if (call != NULL) {
        call(address);
    }
    pthread_mutex_lock(&lock);
    CUresult result = register_locked((uintptr_t)address, (uintptr_t)address + bytes, flags);
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult unregister_locked(uintptr_t begin)
{
    CUresult result;

    if (fails(&result)) {
        return result;
    }
    for (struct range **at = &ranges; *at != NULL; at = &(*at)->next) {
        struct range *range = *at;
        if (range->begin == begin) {
            *at = range->next;
            free(range);
            return CUDA_SUCCESS;
        }
        if (overlap(range, begin, begin + 1)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

static CUresult fake_unregister(void *address)
{
    must_not_be_forked("cuMemHostUnregister");
    void (*call)(const void *) = atomic_load(&unregister_hook);
    if (call != NULL) {
        call(address);
    }
    pthread_mutex_lock(&lock);
    CUresult result = unregister_locked((uintptr_t)address);
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult fake_pointer_attribute(void *value, CUpointer_attribute attribute,
                                       CUdeviceptr address)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    must_not_be_forked("cuPointerGetAttribute");
    pthread_mutex_lock(&lock);
    if (!fails(&result)) {
        struct range *range = ranges;
        while (range != NULL && !overlap(range, address, address + 1)) {
            range = range->next;
        }
        if (range == NULL && overlap(&allocated, address, address + 1)) {
            range = &allocated;
        }
        if (range != NULL) {
            result = CUDA_SUCCESS;
            switch (attribute) {
            case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
                *(unsigned *)value = CU_MEMORYTYPE_HOST;
                break;
            case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
                *(CUdeviceptr *)value = range->begin;
                break;
            case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
                *(size_t *)value = range->end - range->begin;
                break;
            default:
                result = CUDA_ERROR_INVALID_VALUE;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult fake_context_create(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags, (void)device;
    pthread_mutex_lock(&lock);
    *context = current = (CUcontext)(next_context += 16);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* Under the lock. */
static void ranges_go_with(CUcontext context)
{
    for (struct range **at = &ranges; *at != NULL;) {
        struct range *range = *at;
        if (range->context == context) {
            *at = range->next;
            free(range);
        } else {
            at = &range->next;
        }
    }
}

static CUresult fake_context_destroy(CUcontext context)
{
    pthread_mutex_lock(&lock);
    ranges_go_with(context);
    pthread_mutex_unlock(&lock);
    current = current == context ? NULL : current;
    return CUDA_SUCCESS;
}

static CUresult fake_context_push(CUcontext context)
{
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&lock);
    if (!fails(&result)) {
        pushed_on = current;
        current = context;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult fake_context_pop(CUcontext *popped)
{
    *popped = current;
    current = pushed_on;
    return CUDA_SUCCESS;
}

static CUresult fake_primary_retain(CUcontext *context, CUdevice device)
{
    CUresult result = CUDA_SUCCESS;

    (void)device;
    must_not_be_forked("cuDevicePrimaryCtxRetain");
    pthread_mutex_lock(&lock);
    if (!fails(&result)) {
        retains++;
        *context = primary;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult fake_primary_release(CUdevice device)
{
    (void)device;
    must_not_be_forked("cuDevicePrimaryCtxRelease");
    pthread_mutex_lock(&lock);
    if (retains == 0) {
        fprintf(stderr, "the primary context was released too often\n");
        abort();
    }
    if (--retains == 0) {
        ranges_go_with(primary);
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult fake_primary_reset(CUdevice device)
{
    (void)device;
    pthread_mutex_lock(&lock);
    ranges_go_with(primary);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult fake_context_set(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

static CUresult fake_context_device(CUdevice *device)
{
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&lock);
    (void)fails(&result);
    pthread_mutex_unlock(&lock);
    *device = 0;
    return result;
}

static CUresult fake_device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CUresult result = CUDA_SUCCESS;

    (void)device;
    pthread_mutex_lock(&lock);
    (void)fails(&result);
    pthread_mutex_unlock(&lock);
    *value = attribute == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
    return result;
}

void driver_start(void)
{
    cuda.cuMemHostRegister_v2 = fake_register;
    cuda.cuMemHostUnregister = fake_unregister;
    cuda.cuPointerGetAttribute = fake_pointer_attribute;
    cuda.cuCtxCreate_v2 = fake_context_create;
    cuda.cuCtxDestroy_v2 = fake_context_destroy;
    cuda.cuCtxSetCurrent = fake_context_set;
    cuda.cuCtxGetDevice = fake_context_device;
    cuda.cuCtxPushCurrent_v2 = fake_context_push;
    cuda.cuCtxPopCurrent_v2 = fake_context_pop;
    cuda.cuDevicePrimaryCtxRetain = fake_primary_retain;
    cuda.cuDevicePrimaryCtxRelease_v2 = fake_primary_release;
    cuda.cuDevicePrimaryCtxReset_v2 = fake_primary_reset;
    cuda.cuDeviceGetAttribute = fake_device_attribute;
    pthread_atfork(NULL, NULL, note_fork);
}

bool driver_is_fake(void)
{
    return true;
}

unsigned driver_calls(void)
{
    pthread_mutex_lock(&lock);
    unsigned count = calls;
    pthread_mutex_unlock(&lock);
    return count;
}

void driver_fail(unsigned n, CUresult result)
{
    pthread_mutex_lock(&lock);
    fail_at = n;
    fail_with = result;
    failed = false;
    pthread_mutex_unlock(&lock);
}

bool driver_has_failed(void)
{
    pthread_mutex_lock(&lock);
    bool answer = failed;
    pthread_mutex_unlock(&lock);
    return answer;
}

unsigned driver_retains(void)
{
    pthread_mutex_lock(&lock);
    unsigned count = retains;
    pthread_mutex_unlock(&lock);
    return count;
}

unsigned driver_registrations(void)
{
    unsigned count = 0;

    pthread_mutex_lock(&lock);
    for (struct range *range = ranges; range != NULL; range = range->next) {
        count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

size_t driver_registered_bytes(void)
{
    size_t bytes = 0;

    pthread_mutex_lock(&lock);
    for (struct range *range = ranges; range != NULL; range = range->next) {
        bytes += range->end - range->begin;
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

bool driver_is_registered(const void *address, size_t bytes)
{
    uintptr_t begin = (uintptr_t)address, end = begin + bytes;
    bool found = true;

    pthread_mutex_lock(&lock);
    while (begin < end && found) {
        struct range *range = ranges;
        while (range != NULL && !overlap(range, begin, begin + 1)) {
            range = range->next;
        }
        found = range != NULL;
        begin = found ? range->end : begin;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void driver_set_read_only(const void *address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    read_only = (struct range){(uintptr_t)address, (uintptr_t)address + bytes, NULL, NULL};
    pthread_mutex_unlock(&lock);
}

void driver_set_allocated(const void *address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    allocated = (struct range){(uintptr_t)address, (uintptr_t)address + bytes, NULL, NULL};
    pthread_mutex_unlock(&lock);
}

void driver_set_hook(void (*call)(const void *address))
{
    atomic_store(&hook, call);
}

void driver_set_unregister_hook(void (*call)(const void *address))
{
    atomic_store(&unregister_hook, call);
}

/* Device memory. See device_memory.h. */
#include "device_memory.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "contexts/work.h"
#include "contexts/capture.h"
#include "contexts/stream_order.h"
#include "driver/driver.h"
#include "python/error.h"
#include "python/wait.h"

/* One pool per device, created at first use under the GIL. A pool belongs to the device, not to a
 * context, and survives both resets and contexts. The process keeps it, like the driver table. */
#define DEVICES 256

static struct {
    CUmemoryPool pool;
    bool tried;
} pools[DEVICES];

/* Gives every device that can access this one read and write access to the pool. Best effort. */
static void pool_share(CUmemoryPool pool, CUdevice device)
{
    int count = 0, can;

    cuda.cuDeviceGetCount(&count);
    for (int i = 0; i < count; i++) {
        CUdevice peer;
        if (cuda.cuDeviceGet(&peer, i) == CUDA_SUCCESS && peer != device &&
            cuda.cuDeviceCanAccessPeer(&can, peer, device) == CUDA_SUCCESS && can) {
            CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, peer},
                                      CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
            cuda.cuMemPoolSetAccess(pool, &access, 1);
        }
    }
}

/* Makes the device's pool, if it can have one. */
static void pool_make(int ordinal)
{
    CUmemPoolProps props;
    CUdevice device;
    int supported = 0, no = 0;
    cuuint64_t keep = UINT64_MAX;

    if (cuda.cuMemPoolCreate == NULL || cuda.cuMemAllocFromPoolAsync == NULL ||
        cuda.cuMemFreeAsync == NULL || cuda.cuDeviceGet(&device, ordinal) != CUDA_SUCCESS ||
        cuda.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device) !=
            CUDA_SUCCESS ||
        !supported) {
        return;
    }
    memset(&props, 0, sizeof props);
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.id = device;
    if (cuda.cuMemPoolCreate(&pools[ordinal].pool, &props) != CUDA_SUCCESS) {
        pools[ordinal].pool = NULL;
        return;
    }
    /* Keep freed memory. Never hand out memory that another stream still uses, so that an
     * allocation can be used on any stream at once. */
    if (cuda.cuMemPoolSetAttribute(pools[ordinal].pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) !=
            CUDA_SUCCESS ||
        cuda.cuMemPoolSetAttribute(pools[ordinal].pool,
                                   CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                                   &no) != CUDA_SUCCESS) {
        cuda.cuMemPoolDestroy(pools[ordinal].pool);
        pools[ordinal].pool = NULL;
        return;
    }
    pool_share(pools[ordinal].pool, device);
}

CUmemoryPool cudriver_device_pool(int ordinal)
{
    if (ordinal >= DEVICES) {
        return NULL;
    }
    if (!pools[ordinal].tried) {
        pools[ordinal].tried = true;
        cudriver_driver_relax();
        pool_make(ordinal);
        cudriver_driver_restore();
    }
    return pools[ordinal].pool;
}

/* Returns the pools' free memory to the driver. */
static void pools_trim(void)
{
    for (int i = 0; i < DEVICES; i++) {
        if (pools[i].pool != NULL) {
            cuda.cuMemPoolTrimTo(pools[i].pool, 0);
        }
    }
}

/* One attempt. The GIL is held on entry and on return. */
static CUresult alloc_once(CUmemoryPool pool, CUstream stream, size_t bytes, CUdeviceptr *address)
{
    CUresult result;

    Py_BEGIN_ALLOW_THREADS
    result = pool != NULL ? cuda.cuMemAllocFromPoolAsync(address, bytes, pool, stream)
                          : cuda.cuMemAlloc_v2(address, bytes);
    Py_END_ALLOW_THREADS
    return result;
}

/* Waits for our work in the context, and for the frees behind it. Not for the context as a whole:
 * that would break a capture of any stream in it. 0, or -1 with a signal handler's exception.
 * Between begin and end. */
static int wait_for_memory(CoreState *state, ContextObject *context)
{
    cudriver_works_reap(state);
    if (cudriver_works_wait(state, context) < 0) {
        return -1;
    }
    cudriver_streams_wait(state, context);
    if (context->alloc_stream != NULL) {
        CUstream stream = context->alloc_stream;
        Py_BEGIN_ALLOW_THREADS
        cuda.cuStreamSynchronize(stream);
        Py_END_ALLOW_THREADS
    }
    return 0;
}

int cudriver_device_alloc(CoreState *state, ContextObject *context, StreamObject *stream,
                          size_t bytes, struct cudriver_device_block *block)
{
    CUmemoryPool pool = cudriver_device_pool(context->ordinal);
    CUstream order = NULL;
    CUresult result;

    memset(block, 0, sizeof *block);
    if (bytes == 0) {
        return 0;
    }
    if (stream != NULL && cudriver_capture_refuse(state, stream->handle, "an allocation") < 0) {
        return -1;
    }
    cudriver_works_reap(state);
    if (pool != NULL) {
        order = stream != NULL ? stream->handle : cudriver_context_alloc_stream(state, context);
        if (order == NULL) {
            return -1;
        }
    }
    result = alloc_once(pool, order, bytes, &block->address);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        if (wait_for_memory(state, context) < 0) {
            return -1;
        }
        Py_BEGIN_ALLOW_THREADS
        pools_trim();
        Py_END_ALLOW_THREADS
        result = alloc_once(pool, order, bytes, &block->address);
    }
    if (result != CUDA_SUCCESS) {
        size_t available = 0, total = 0;
        char room[80] = "";
        if (cuda.cuMemGetInfo_v2(&available, &total) == CUDA_SUCCESS) {
            snprintf(room, sizeof room, " has %zu of %zu free", available, total);
        }
        block->address = 0;
        cudriver_raise(state, result, pool != NULL ? "cuMemAllocFromPoolAsync" : "cuMemAlloc_v2",
                       "%zu bytes; device %d%s", bytes, context->ordinal, room);
        return -1;
    }
    block->pooled = pool != NULL;
    block->home = pool != NULL ? stream : NULL;
    Py_XINCREF(block->home);
    if (block->home != NULL) {
        block->turn = ++stream->allocated;
    }
    if (pool != NULL && stream == NULL) {
        block->number = ++context->allocated;
    }
    return 0;
}

void cudriver_device_settle(ContextObject *context, const struct cudriver_device_block *block)
{
    unsigned long long allocated = context->allocated;
    CUresult result;
    bool pushed;

    if (block->number <= context->settled || !cudriver_context_begin_free(context, &pushed)) {
        return;
    }
    result = cuda.cuStreamQuery(context->alloc_stream);
    if (result == CUDA_ERROR_NOT_READY) {
        CUstream stream = context->alloc_stream;
        Py_BEGIN_ALLOW_THREADS
        result = cuda.cuStreamSynchronize(stream); /* whoever uses the memory gets the error */
        Py_END_ALLOW_THREADS
    }
    cudriver_context_end(context, pushed);
    if (result == CUDA_SUCCESS && allocated > context->settled) {
        context->settled = allocated;
    }
}

static CUresult event_query(void *handle)
{
    return cuda.cuEventQuery(*(CUevent *)handle);
}

/* Waits for the allocations in the order of a stream. Between begin and end. 0 or -1. */
static int home_wait(CoreState *state, ContextObject *context, StreamObject *home)
{
    const struct cudriver_stream stream = {
        .handle = home->handle, .object = home, .context = context};
    CUresult result;
    int failed;

    if (home->closed && home->last == NULL) {
        cudriver_raise_plain(state, "CudaError",
                             "the memory may not be used: %R was closed before its allocation was "
                             "complete, and could not be waited for",
                             home);
        return -1;
    }
    if (home->closed) {
        return cudriver_wait(state, event_query, &home->last, "cuEventQuery");
    }
    if (cudriver_capture_refuse(state, home->handle, "waiting for memory") < 0) {
        return -1;
    }
    result = cuda.cuStreamQuery(home->handle);
    if (result == CUDA_ERROR_NOT_READY) {
        cudriver_stream_hold(home);
        failed = cudriver_work_wait_stream(state, &stream);
        cudriver_stream_let_go(home);
        return failed;
    }
    return cudriver_check(state, result, "cuStreamQuery", "stream %p", (void *)home->handle);
}

int cudriver_device_reach(CoreState *state, ContextObject *context,
                          struct cudriver_device_block *block)
{
    StreamObject *home = block->home;
    unsigned long long allocated;
    bool pushed;
    int failed;

    if (home == NULL || block->turn <= home->settled) {
        return 0;
    }
    if (cudriver_context_begin(state, context, &pushed) < 0) {
        return -1;
    }
    allocated = home->allocated;
    Py_INCREF(home);
    failed = home_wait(state, context, home);
    cudriver_context_end(context, pushed);
    if (failed == 0 && allocated > home->settled) {
        home->settled = allocated;
    }
    Py_DECREF(home);
    return failed;
}

/* 0 if one of the two streams may wait for the other; 1 if the consumer's is being captured, and
 * the home stream is idle, so that it need not; else -1 with CudaError. Between begin and end. */
static int follow_check(CoreState *state, const StreamObject *home, CUstream stream)
{
    int captured;

    if (cudriver_capture_refuse(state, home->handle, "waiting for memory") < 0) {
        return -1;
    }
    captured = cudriver_capture_check(state, stream);
    if (captured > 0 && cuda.cuStreamQuery(home->handle) != CUDA_SUCCESS) {
        cudriver_capture_raise(
            state, stream, "__dlpack__()",
            "the memory's allocation, in the order of another stream, is outside "
            "the graph: wait for that stream first");
        return -1;
    }
    return captured;
}

int cudriver_device_follow(CoreState *state, ContextObject *context,
                           struct cudriver_device_block *block, ContextObject *use, CUstream stream)
{
    StreamObject *home = block->home;
    const char *function = "";
    bool pushed[2];
    CUresult result = CUDA_SUCCESS;
    int captured;

    if (home == NULL || block->turn <= home->settled || home->handle == stream) {
        return 0;
    }
    if (home->closed || use != home->context) {
        return cudriver_device_reach(state, context, block);
    }
    if (cudriver_context_begin_both(state, context, use, pushed) < 0) {
        return -1;
    }
    cudriver_driver_relax();
    captured = follow_check(state, home, stream);
    if (captured == 0) {
        cudriver_stream_hold(home);
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_stream_follow(home->handle, stream, &function);
        Py_END_ALLOW_THREADS
        cudriver_stream_let_go(home);
    }
    cudriver_driver_restore();
    cudriver_context_end_both(context, use, pushed);
    return captured < 0 ? -1
                        : cudriver_check(state, result, function, "for the consumer's stream %p",
                                         (void *)stream);
}

/* Pool memory survives its context. If no other context is current, makes the device's primary one
 * current for the call. */
static CUresult free_without_context(CUdevice device, CUdeviceptr address)
{
    CUcontext primary, popped;
    CUresult result;

    Py_BEGIN_ALLOW_THREADS
    cudriver_driver_relax();
    result = cuda.cuMemFree_v2(address);
    if ((result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED) &&
        cuda.cuDevicePrimaryCtxRetain(&primary, device) == CUDA_SUCCESS) {
        if (cuda.cuCtxPushCurrent_v2(primary) == CUDA_SUCCESS) {
            result = cuda.cuMemFree_v2(address);
            cuda.cuCtxPopCurrent_v2(&popped);
        }
        cuda.cuDevicePrimaryCtxRelease_v2(device);
    }
    cudriver_driver_restore();
    Py_END_ALLOW_THREADS
    return result;
}

CUresult cudriver_device_free(ContextObject *context, struct cudriver_device_block *block,
                              const char **function)
{
    CUstream order = block->home == NULL   ? context->alloc_stream
                     : block->home->closed ? NULL
                                           : block->home->handle;
    CUresult result = CUDA_SUCCESS;
    bool pushed;

    *function = "cuMemFree_v2";
    if (block->address != 0 && cudriver_context_begin_free(context, &pushed)) {
        /* A closed home stream's work may still run; cuMemFree waits for it. On a stream that is
         * being captured, the graph would free the memory. */
        if (block->pooled && !block->shared && order != NULL &&
            (block->home == NULL || !cudriver_capture_forbids(order))) {
            *function = "cuMemFreeAsync";
            result = cuda.cuMemFreeAsync(block->address, order);
        } else {
            Py_BEGIN_ALLOW_THREADS
            result = cuda.cuMemFree_v2(block->address);
            Py_END_ALLOW_THREADS
        }
        cudriver_context_end(context, pushed);
    } else if (block->address != 0 && block->pooled && !cudriver_driver_is_forked() &&
               cudriver_driver_is_initialised()) {
        result = free_without_context(context->device, block->address);
    }
    block->address = 0;
    Py_CLEAR(block->home);
    return result;
}

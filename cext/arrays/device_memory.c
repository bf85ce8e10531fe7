/* Device memory. See device_memory.h. */
#include "device_memory.h"

#include <stdint.h>

#include "contexts/work.h"
#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"

/* Asks once for the pool of a context's device, which memory/device_pool.py keeps. 0, or -1 with an
 * exception set. */
static int pool_find(ContextObject *context)
{
    PyObject *made;

    if (!context->allocs.asked && cuda.cuMemAllocFromPoolAsync != NULL &&
        cuda.cuMemFreeAsync != NULL) {
        made = cudriver_call(CALL_device_pool_pool_of, context);
        if (made == NULL) {
            return -1;
        }
        context->allocs.pool = PyLong_AsVoidPtr(made);
        context->allocs.asked = true;
        Py_DECREF(made);
    }
    return 0;
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

int cudriver_device_alloc(CoreState *state, struct cudriver_device_memory *memory, size_t bytes)
{
    ContextObject *context = memory->context;
    CUmemoryPool pool;
    CUstream order;
    CUresult result;

    if (bytes == 0) {
        return 0;
    }
    if (pool_find(context) < 0) {
        return -1;
    }
    pool = context->allocs.pool;
    cudriver_works_reap(state, NULL);
    if (pool != NULL && context->allocs.stream == NULL) { /* the first */
        result =
            cuda.cuStreamCreateWithPriority(&context->allocs.stream, CU_STREAM_NON_BLOCKING, 0);
        if (result != CUDA_SUCCESS) {
            context->allocs.stream = NULL;
            return cudriver_check(result, "cuStreamCreateWithPriority", "for allocations");
        }
    }
    order = context->allocs.stream;
    result = alloc_once(pool, order, bytes, &memory->address);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        /* Our work in the context, and the frees behind it. Not the context as a whole: that would
         * break a capture of any stream in it. */
        cudriver_works_reap(state, NULL);
        if (cudriver_works_wait(state, context) < 0) {
            return -1;
        }
        Py_BEGIN_ALLOW_THREADS
        if (order != NULL) {
            cuda.cuStreamSynchronize(order);
        }
        if (pool != NULL) { /* returns what is free in it */
            cuda.cuMemPoolTrimTo(pool, 0);
        }
        Py_END_ALLOW_THREADS
        result = alloc_once(pool, order, bytes, &memory->address);
    }
    if (result != CUDA_SUCCESS) {
        memory->address = 0;
        return cudriver_check(result, pool != NULL ? "cuMemAllocFromPoolAsync" : "cuMemAlloc_v2",
                              "%zu bytes; device %d", bytes, context->ordinal);
    }
    memory->number = pool != NULL ? ++context->allocs.number : 0;
    return 0;
}

void cudriver_device_settle(const struct cudriver_device_memory *memory)
{
    ContextObject *context = memory->context;
    unsigned long long allocated = context->allocs.number;
    CUstream stream = context->allocs.stream;
    CUresult result;
    bool pushed;

    if (!cudriver_context_begin_free(context, &pushed)) {
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cuda.cuStreamSynchronize(stream); /* whoever uses the memory gets the error */
    Py_END_ALLOW_THREADS
    cudriver_context_end(context, pushed);
    if (result == CUDA_SUCCESS && allocated > context->allocs.settled) {
        context->allocs.settled = allocated;
    }
}

/* Pool memory survives its context. If no other context is current, makes the device's primary one
 * current for the call. */
static CUresult free_without_context(CUdevice device, CUdeviceptr address)
{
    CUcontext primary;
    CUresult result;

    Py_BEGIN_ALLOW_THREADS
    cudriver_driver_relax();
    result = cuda.cuMemFree_v2(address);
    if ((result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED) &&
        cuda.cuDevicePrimaryCtxRetain(&primary, device) == CUDA_SUCCESS) {
        if (cuda.cuCtxPushCurrent_v2(primary) == CUDA_SUCCESS) {
            result = cuda.cuMemFree_v2(address);
            cudriver_driver_pop();
        }
        cuda.cuDevicePrimaryCtxRelease_v2(device);
    }
    cudriver_driver_restore();
    Py_END_ALLOW_THREADS
    return result;
}

CUresult cudriver_device_free(struct cudriver_device_memory *memory, const char **function)
{
    ContextObject *context = memory->context;
    CUstream order = context->allocs.stream;
    CUresult result = CUDA_SUCCESS;
    bool pushed;

    *function = "cuMemFree_v2";
    if (memory->address != 0 && cudriver_context_begin_free(context, &pushed)) {
        if (memory->number != 0 && !memory->shared) {
            *function = "cuMemFreeAsync";
            result = cuda.cuMemFreeAsync(memory->address, order);
        } else {
            Py_BEGIN_ALLOW_THREADS
            result = cuda.cuMemFree_v2(memory->address);
            Py_END_ALLOW_THREADS
        }
        cudriver_context_end(context, pushed);
    } else if (memory->address != 0 && memory->number != 0 && cudriver_driver_ready) {
        result = free_without_context(context->device, memory->address);
    }
    memory->address = 0;
    return result;
}

/* ---- other libraries' memory ---- */

/* What the driver knows about an address. */
struct place {
    CUcontext context; /* NULL: memory from a pool */
    int ordinal;
    CUdeviceptr start; /* of its allocation; `bytes` is 0 if the driver does not say */
    size_t bytes;
};

/* Whether the driver knows the address. */
static bool place_look(CUdeviceptr address, struct place *place)
{
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    };
    unsigned int type = 0;
    void *values[] = {&place->context, &place->ordinal, &place->start, &place->bytes, &type};

    *place = (struct place){.ordinal = -1};
    return cuda.cuPointerGetAttributes(sizeof attributes / sizeof attributes[0], attributes, values,
                                       address) == CUDA_SUCCESS &&
           type != 0;
}

ContextObject *cudriver_foreign_context(CoreState *state, const struct cudriver_endpoint *end,
                                        const char *protocol)
{
    struct place first, last;
    CUdeviceptr low, high;
    int64_t from, to;

    cudriver_extent(end->ndim, end->itemsize, end->shape, end->strides, &from, &to);
    low = end->device + (CUdeviceptr)from;
    high = end->device + (CUdeviceptr)to;
    if (!place_look(low, &first)) {
        PyErr_Format(PyExc_ValueError, "%s: %p is not memory that the driver knows", protocol,
                     (void *)(uintptr_t)low);
        return NULL;
    }
    /* The last byte may lie in another allocation, as in PyTorch's expandable segments. */
    if (high <= low ||
        (first.bytes != 0 && high - first.start > first.bytes && !place_look(high - 1, &last))) {
        PyErr_Format(PyExc_ValueError,
                     "%s: the array takes %zu bytes from %p on, but the memory there ends at %p",
                     protocol, (size_t)(high - low), (void *)(uintptr_t)low,
                     (void *)(uintptr_t)(first.start + first.bytes));
        return NULL;
    }
    if (first.context != NULL) {
        return cudriver_context_of_handle(state, first.context);
    }
    return cudriver_context_for_ordinal(state, first.ordinal);
}

/* Contexts, and each thread's stack of current ones. Primary contexts: primary.c. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK_DEPTH 1024
#define LIMIT_SHMEM_SIZE 7 /* of CUDA 13; 8 is CIG_ENABLED. Both are read-only */

/* Another thread may destroy a context that is current here. Until it is off all stacks, its handle
 * is neither reused nor unknown. */
static _Thread_local struct {
    struct current {
        CUcontext handle;
        struct sim_context *context; /* holds a reference, and counts as `stacked` */
    } items[STACK_DEPTH];
    unsigned depth;
} stack;

static pthread_once_t ends_once = PTHREAD_ONCE_INIT;
static pthread_key_t ends; /* set in threads that have pushed: pops the stack when they end */

static unsigned long long last_id; /* in the monitor */

static void (*forgets[FORGETS])(struct sim_context *context);

void sim_context_on_end(enum sim_forget what, void (*forget)(struct sim_context *context))
{
    forgets[what] = forget;
}

static void context_end(void *object)
{
    pthread_cond_destroy(&((struct sim_context *)object)->done);
}

static __attribute__((constructor)) void join(void)
{
    sim_object_on_end(KIND_CONTEXT, context_end);
}

/* ---- for the other files ---- */

CUresult sim_context_of(CUcontext handle, struct sim_context **context)
{
    struct sim_context *found = sim_object_find(KIND_CONTEXT, handle);

    if (found == NULL) {
        return sim_object_was(KIND_CONTEXT, handle) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                    : CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!found->active) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *context = found;
    return CUDA_SUCCESS;
}

CUresult sim_context_current(struct sim_context **context)
{
    CUresult result;

    if (stack.depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    result = sim_context_of(stack.items[stack.depth - 1].handle, context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return sim_context_state(*context);
}

CUresult sim_enter_current(enum sim_call call, struct sim_context **context)
{
    CUresult result = sim_enter(call);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_lock();
    result = sim_context_current(context);
    if (result != CUDA_SUCCESS) {
        sim_unlock();
    }
    return result;
}

CUresult sim_context_state(const struct sim_context *context)
{
    return sim.devices[context->device].broken;
}

void sim_context_break(struct sim_context *context, CUresult error)
{
    struct sim_device *device = &sim.devices[context->device];

    if (device->broken == CUDA_SUCCESS) {
        device->broken = error;
    }
}

void sim_context_wait(struct sim_context *context)
{
    context->waiters++;
    pthread_cond_wait(&context->done, &sim.lock);
    context->waiters--;
}

void sim_context_wake(struct sim_context *context)
{
    if (context->waiters > 0) {
        pthread_cond_broadcast(&context->done);
    }
}

void sim_context_work_begin(struct sim_context *context)
{
    sim_object_hold(context);
    context->calls++;
}

void sim_context_work_end(struct sim_context *context)
{
    context->calls--;
    sim_context_wake(context);
    sim_object_drop(context);
}

void sim_context_drain(struct sim_context *context)
{
    sim_object_hold(context);
    while ((context->pending > 0 || context->calls > 0) && !sim_is_down()) {
        sim_context_wait(context);
    }
    sim_object_drop(context);
}

long long sim_context_live(bool retains)
{
    long long count = 0;

    if (retains) {
        for (int i = 0; i < SIM_MAX_DEVICES; i++) {
            count += sim.devices[i].retains;
        }
        return count;
    }
    for (uint32_t i = 0; i < sim_object_slots(KIND_CONTEXT); i++) {
        struct sim_context *context = sim_object_at(KIND_CONTEXT, i);
        count += context != NULL && context->active;
    }
    return count;
}

/* ---- making and ending ---- */

bool sim_context_flags_are_valid(unsigned flags)
{
    unsigned schedule = flags & CU_CTX_SCHED_MASK;

    return (flags & ~(unsigned)(CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX |
                                CU_CTX_SYNC_MEMOPS)) == 0 &&
           (schedule == CU_CTX_SCHED_AUTO || schedule == CU_CTX_SCHED_SPIN ||
            schedule == CU_CTX_SCHED_YIELD || schedule == CU_CTX_SCHED_BLOCKING_SYNC);
}

void sim_context_open(struct sim_context *context, unsigned flags, unsigned api_version)
{
    context->active = true;
    context->flags = flags;
    context->api_version = api_version;
    context->id = ++last_id;
    context->cache_config = CU_FUNC_CACHE_PREFER_NONE;
    context->peers = 0;
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 8650752;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
    context->limits[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 11796480;
    context->limits[LIMIT_SHMEM_SIZE] = 232448;
}

struct sim_context *sim_context_new(int device)
{
    struct sim_context *context = sim_object_new(KIND_CONTEXT, sizeof *context);

    if (context != NULL) {
        context->device = device;
        pthread_cond_init(&context->done, NULL);
    }
    return context;
}

void sim_context_shut(struct sim_context *context)
{
    sim_object_hold(context);
    context->active = false;
    context->closing = true;
    sim_context_drain(context);
    for (int i = 0; i < FORGETS; i++) {
        forgets[i](context);
    }
    context->closing = false;
    sim_context_wake(context);
    sim_object_drop(context);
}

/* In the monitor. The stack must not be empty. */
static CUcontext stack_pop(void)
{
    struct current *top = &stack.items[--stack.depth];

    top->context->stacked--;
    sim_object_drop(top->context);
    return top->handle;
}

static void thread_ends(void *unused)
{
    (void)unused;
    sim_lock();
    while (stack.depth > 0) {
        stack_pop();
    }
    sim_unlock();
}

static void watch_thread_ends(void)
{
    pthread_key_create(&ends, thread_ends);
}

/* In the monitor. */
static CUresult stack_push(struct sim_context *context)
{
    if (stack.depth == STACK_DEPTH) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_once(&ends_once, watch_thread_ends);
    pthread_setspecific(ends, &stack);
    sim_object_hold(context);
    context->stacked++;
    stack.items[stack.depth++] = (struct current){sim_object_handle(context), context};
    return CUDA_SUCCESS;
}

/*
 * In the monitor. The context of a handle that the real driver would dereference. A destroyed
 * context is found while it is current in some thread. Otherwise its memory is freed and the real
 * driver may crash, so this one aborts with a message. NULL if there never was such a handle.
 */
static struct sim_context *context_behind(const char *function, CUcontext handle)
{
    struct sim_context *context = sim_object_behind(KIND_CONTEXT, handle);

    if (context != NULL && (context->object.alive || context->stacked > 0)) {
        return context;
    }
    if (sim_object_was(KIND_CONTEXT, handle)) {
        fprintf(stderr,
                "cudriver_sim: use of a destroyed context: %s(%p), and no thread has it current\n",
                function, (void *)handle);
        abort();
    }
    return NULL;
}

static CUresult context_create(enum sim_call call, CUcontext *handle, unsigned flags,
                               CUdevice device, unsigned api_version)
{
    CUresult result = sim_enter(call);
    struct sim_context *context;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || !sim_context_flags_are_valid(flags)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_device_is_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_lock();
    if (sim.devices[device].broken != CUDA_SUCCESS) {
        return sim_leave(sim.devices[device].broken);
    }
    context = sim_context_new(device);
    if (context == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    sim_context_open(context, flags, api_version);
    result = stack_push(context);
    if (result != CUDA_SUCCESS) {
        sim_object_close(context);
        return sim_leave(result);
    }
    *handle = sim_object_handle(context);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    return context_create(CALL_cuCtxCreate_v2, context, flags, device, 3020);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags,
                        CUdevice device)
{
    (void)params; /* execution affinity and the like: not modelled */
    return context_create(CALL_cuCtxCreate_v4, context, flags, device, 3020);
}

CUresult cuCtxDestroy_v2(CUcontext handle)
{
    CUresult result = sim_enter(CALL_cuCtxDestroy_v2);
    struct sim_context *context;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    result = sim_context_of(handle, &context);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    if (context->primary) {
        return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    /* Popped if it is this thread's current context. Deeper in this stack, and on other threads'
     * stacks, it stays, and calls return CONTEXT_IS_DESTROYED. */
    sim_object_hold(context);
    if (stack.depth > 0 && stack.items[stack.depth - 1].handle == handle) {
        stack_pop();
    }
    sim_context_shut(context);
    sim_object_close(context);
    sim_object_drop(context);
    return sim_leave(CUDA_SUCCESS);
}

/* ---- the stack ---- */

CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
    CUresult result = sim_enter(CALL_cuCtxPushCurrent_v2);
    struct sim_context *context;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    context = context_behind("cuCtxPushCurrent", handle);
    return sim_leave(context == NULL ? CUDA_ERROR_INVALID_CONTEXT : stack_push(context));
}

CUresult cuCtxPopCurrent_v2(CUcontext *handle)
{
    CUresult result = sim_enter(CALL_cuCtxPopCurrent_v2);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUcontext popped;

    if (stack.depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    sim_lock();
    popped = stack_pop();
    if (handle != NULL) {
        *handle = popped;
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext handle)
{
    CUresult result = sim_enter(CALL_cuCtxSetCurrent);
    struct sim_context *context = NULL;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_lock();
    if (handle != NULL) {
        context = context_behind("cuCtxSetCurrent", handle);
        if (context == NULL) {
            return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
        }
        sim_object_hold(context);
    }
    if (stack.depth > 0) {
        stack_pop();
    }
    if (handle != NULL) {
        result = stack_push(context);
        sim_object_drop(context);
    }
    return sim_leave(result);
}

CUresult cuCtxGetCurrent(CUcontext *handle)
{
    CUresult result = sim_enter(CALL_cuCtxGetCurrent);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *handle = stack.depth > 0 ? stack.items[stack.depth - 1].handle : NULL;
    return CUDA_SUCCESS;
}

/* ---- properties of a context ---- */

/* These two also work in a destroyed or broken context. */

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult result = sim_enter(CALL_cuCtxGetDevice);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stack.depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device = stack.items[stack.depth - 1].context->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    CUresult result = sim_enter(CALL_cuCtxGetFlags);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stack.depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (flags == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    *flags = stack.items[stack.depth - 1].context->flags;
    return sim_leave(CUDA_SUCCESS);
}

/* The context of a handle, or the current one for NULL. On success the monitor is held. */
static CUresult context_enter_handle(enum sim_call call, const char *function, CUcontext handle,
                                     struct sim_context **context)
{
    CUresult result;

    if (handle == NULL) {
        return sim_enter_current(call, context);
    }
    result = sim_enter(call);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_lock();
    if (call != CALL_cuCtxGetId) { /* hardware was only seen to answer that, after destruction */
        context_behind(function, handle);
    }
    result = sim_context_of(handle, context);
    if (result != CUDA_SUCCESS) {
        sim_unlock();
    }
    return result;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
    struct sim_context *context;
    CUresult result = context_enter_handle(CALL_cuCtxGetId, "cuCtxGetId", handle, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (id == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *id = context->id;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
    struct sim_context *context;
    CUresult result =
        context_enter_handle(CALL_cuCtxGetApiVersion, "cuCtxGetApiVersion", handle, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (version == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *version = context->api_version;
    return sim_leave(CUDA_SUCCESS);
}

/* These devices have no synchronisation depth. */
static bool limit_is_known(CUlimit limit)
{
    return (unsigned)limit < SIM_LIMITS && limit != CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH;
}

static size_t between(size_t value, size_t least, size_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* Adjusts a limit's value as hardware does; false if hardware refuses it. */
static bool limit_fit(int device, CUlimit limit, size_t *value)
{
    const size_t cache_way = 3932160; /* the L2 cache is reserved in sixteenths */

    switch (limit) {
    case CU_LIMIT_STACK_SIZE:
        if (*value >= (size_t)512 << 10) {
            return false;
        }
        *value = (*value + 15) & ~(size_t)15;
        return true;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
        *value = between(*value, (size_t)512 << 10, (size_t)2 << 30);
        return true;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
        *value = between(*value, (size_t)4 << 20, sim_space_available(device));
        return true;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
        *value = between(*value, 32, 599186);
        return true;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
        return *value <= 128;
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
        if (*value > 10 * cache_way) {
            return false;
        }
        *value = (*value + cache_way - 1) / cache_way * cache_way;
        return true;
    default:
        return true;
    }
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuCtxSetLimit, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!limit_is_known(limit)) {
        return sim_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
    }
    if ((unsigned)limit >= LIMIT_SHMEM_SIZE) {
        return sim_leave(CUDA_ERROR_NOT_PERMITTED);
    }
    if (!limit_fit(context->device, limit, &value)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    context->limits[limit] = value;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuCtxGetLimit, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (value == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (!limit_is_known(limit)) {
        return sim_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
    }
    *value = context->limits[limit];
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuCtxGetCacheConfig, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (config == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *config = context->cache_config;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuCtxSetCacheConfig, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    context->cache_config = config;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuCtxGetStreamPriorityRange, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (least != NULL) {
        *least = SIM_LEAST_PRIORITY;
    }
    if (greatest != NULL) {
        *greatest = SIM_GREATEST_PRIORITY;
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags)
{
    struct sim_context *context, *peer;
    CUresult result = sim_enter_current(CALL_cuCtxEnablePeerAccess, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = sim_context_of(handle, &peer);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    if (flags != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (peer->device == context->device) {
        return sim_leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    if (context->peers & 1u << peer->device) {
        return sim_leave(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    }
    context->peers |= 1u << peer->device;
    return sim_leave(CUDA_SUCCESS);
}

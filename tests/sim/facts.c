/*
 * What a driver answers, one fact a line: "group.fact answer". Run on a real driver it records, run
 * on the simulated one it shows where that differs.
 *
 *   facts LIBRARY GROUP     a group of facts in a fresh process, since some end badly on some
 * drivers facts                   the groups' names
 *
 * An answer is an error code, a number, or "waits"/"returns" for calls that may wait for work in a
 * stream. Work is held up by cuStreamWaitValue32 on page-locked memory for FACTS_PATIENCE_MS
 * milliseconds (300): a call that returns only then has waited. On a busy machine more patience may
 * be needed.
 */
#define _GNU_SOURCE
#include "sim/functions.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct {
#define X(name, args, since) CUresult(*name) args;
    SIM_FUNCTIONS(X)
#undef X
} cu;

static const char *group;

static void fact(const char *name, long long answer)
{
    printf("%s.%s %lld\n", group, name, answer);
    fflush(stdout);
}

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        printf("%s.STOPPED %s %d\n", group, what, (int)result);
        exit(1);
    }
}

#define MUST(call) must(call, #call)

static CUcontext context_new(void)
{
    CUcontext context;

    MUST(cu.cuInit(0));
    MUST(cu.cuCtxCreate_v2(&context, 0, 0));
    return context;
}

static void *pages(size_t bytes, int protection)
{
    return mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void sleep_ms(long ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&pause, NULL);
}

/* ---- holding a stream up ---- */

static atomic_uint *gate;
static uint32_t gate_value;

static void gate_make(void)
{
    void *memory;

    MUST(cu.cuMemHostAlloc(&memory, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    gate = memory;
    atomic_store(gate, 0);
}

static void gate_close(CUstream stream)
{
    gate_value++;
    MUST(cu.cuStreamWaitValue32_v2(stream, (CUdeviceptr)(uintptr_t)gate, gate_value,
                                   CU_STREAM_WAIT_VALUE_GEQ));
}

static void gate_open(void)
{
    atomic_store(gate, gate_value);
}

static void *open_later(void *unused)
{
    const char *patience = getenv("FACTS_PATIENCE_MS");

    (void)unused;
    sleep_ms(patience != NULL ? atol(patience) : 300);
    gate_open();
    return NULL;
}

static pthread_t gate_thread;

/* Between these two a call is made: did it last until the gate opened? */
static void timed_begin(void)
{
    pthread_create(&gate_thread, NULL, open_later, NULL);
}

static void timed_end(const char *name, CUresult result)
{
    bool waited = atomic_load(gate) == gate_value;

    pthread_join(gate_thread, NULL);
    printf("%s.%s %d %s\n", group, name, (int)result, waited ? "waits" : "returns");
    fflush(stdout);
    cu.cuCtxSynchronize();
}

/* ---- groups ---- */

static void before_init(void)
{
    const char *text;
    CUcontext context;
    CUdeviceptr address;
    int value;
    unsigned type;

    fact("version", cu.cuDriverGetVersion(&value));
    fact("error_name", cu.cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &text));
    fact("count", cu.cuDeviceGetCount(&value));
    fact("device", cu.cuDeviceGet(&value, 0));
    fact("current", cu.cuCtxGetCurrent(&context));
    fact("pop", cu.cuCtxPopCurrent_v2(&context));
    fact("alloc", cu.cuMemAlloc_v2(&address, 16));
    fact("attribute", cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096));
    fact("init_flags", cu.cuInit(1));
    fact("init", cu.cuInit(0));
    fact("init_again", cu.cuInit(0));
    fact("unknown_error_name", cu.cuGetErrorName((CUresult)12345, &text));
    fact("device_negative", cu.cuDeviceGet(&value, -1));
    fact("device_beyond", cu.cuDeviceGet(&value, 64));
    fact("count_null", cu.cuDeviceGetCount(NULL));
}

static void no_context(void)
{
    CUcontext context = (CUcontext)1;
    CUdeviceptr address;
    CUstream stream;
    CUevent event;
    CUdevice device;
    void *host;
    size_t free_bytes, total;
    unsigned flags, type = 99;

    MUST(cu.cuInit(0));
    fact("current", cu.cuCtxGetCurrent(&context));
    fact("current_is_null", context == NULL);
    fact("pop", cu.cuCtxPopCurrent_v2(&context));
    fact("set_null", cu.cuCtxSetCurrent(NULL));
    fact("push_null", cu.cuCtxPushCurrent_v2(NULL));
    fact("destroy_null", cu.cuCtxDestroy_v2(NULL));
    fact("device", cu.cuCtxGetDevice(&device));
    fact("flags", cu.cuCtxGetFlags(&flags));
    fact("synchronize", cu.cuCtxSynchronize());
    fact("alloc", cu.cuMemAlloc_v2(&address, 16));
    fact("free_null", cu.cuMemFree_v2(0));
    fact("info", cu.cuMemGetInfo_v2(&free_bytes, &total));
    fact("host_alloc", cu.cuMemHostAlloc(&host, 16, 0));
    fact("host_free_null", cu.cuMemFreeHost(NULL));
    fact("register", cu.cuMemHostRegister_v2(pages(4096, 3), 4096, 0));
    fact("unregister", cu.cuMemHostUnregister(pages(4096, 3)));
    fact("host_flags", cu.cuMemHostGetFlags(&flags, pages(4096, 3)));
    fact("stream", cu.cuStreamCreateWithPriority(&stream, 0, 0));
    fact("stream_query_null", cu.cuStreamQuery(NULL));
    fact("stream_sync_null", cu.cuStreamSynchronize(NULL));
    fact("event", cu.cuEventCreate(&event, 0));
    fact("pointer_attribute", cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                       (CUdeviceptr)(uintptr_t)pages(4096, 3)));
    fact("limit", cu.cuCtxGetLimit(&total, CU_LIMIT_STACK_SIZE));
    fact("api_version_null", cu.cuCtxGetApiVersion(NULL, &flags));
}

static void stack(void)
{
    CUcontext a, b, got;
    int value;

    a = context_new();
    b = context_new();
    fact("different", a != b);
    MUST(cu.cuCtxGetCurrent(&got));
    fact("created_is_current", got == b);
    fact("set_null_pops", cu.cuCtxSetCurrent(NULL));
    MUST(cu.cuCtxGetCurrent(&got));
    fact("below_is_current", got == a);
    fact("set_replaces", cu.cuCtxSetCurrent(b));
    fact("pop", cu.cuCtxPopCurrent_v2(&got));
    fact("popped_replaced", got == b);
    fact("pop_empty", cu.cuCtxPopCurrent_v2(&got));
    fact("push", cu.cuCtxPushCurrent_v2(a));
    fact("push_same", cu.cuCtxPushCurrent_v2(a));
    fact("pop_null", cu.cuCtxPopCurrent_v2(NULL));
    /* destroyed while current, and deeper in the stack too */
    MUST(cu.cuCtxPushCurrent_v2(a));
    fact("destroy", cu.cuCtxDestroy_v2(a));
    got = NULL;
    fact("current_after", cu.cuCtxGetCurrent(&got));
    fact("current_after_is_it", got == a);
    fact("device_after", cu.cuCtxGetDevice(&value));
    fact("synchronize_after", cu.cuCtxSynchronize());
    fact("pop_after", cu.cuCtxPopCurrent_v2(&got));
    fact("pop_after_is_it", got == a);
    fact("pop_after_again", cu.cuCtxPopCurrent_v2(&got));
}

static void depth(void)
{
    CUcontext a = context_new();
    CUresult result = CUDA_SUCCESS;
    int pushed = 0;

    while (result == CUDA_SUCCESS && pushed < 1000) {
        result = cu.cuCtxPushCurrent_v2(a);
        pushed += result == CUDA_SUCCESS;
    }
    fact("thousand", pushed);
}

struct other {
    CUcontext context;
    pthread_barrier_t barrier;
};

static void *other_thread(void *argument)
{
    struct other *other = argument;
    CUcontext got = NULL;
    unsigned long long id = 0;
    CUdeviceptr address;
    CUdevice device;
    CUstream stream;
    unsigned flags;

    MUST(cu.cuCtxPushCurrent_v2(other->context));
    pthread_barrier_wait(&other->barrier);
    pthread_barrier_wait(&other->barrier);
    fact("current", cu.cuCtxGetCurrent(&got));
    fact("current_is_it", got == other->context);
    fact("synchronize", cu.cuCtxSynchronize());
    fact("id", cu.cuCtxGetId(NULL, &id));
    fact("id_is_set", id != 0);
    fact("alloc", cu.cuMemAlloc_v2(&address, 16));
    fact("device", cu.cuCtxGetDevice(&device));
    fact("flags", cu.cuCtxGetFlags(&flags));
    fact("stream", cu.cuStreamCreateWithPriority(&stream, 0, 0));
    fact("register", cu.cuMemHostRegister_v2(pages(4096, 3), 4096, 0));
    fact("pop", cu.cuCtxPopCurrent_v2(&got));
    fact("pop_is_it", got == other->context);
    return NULL;
}

static void destroyed_elsewhere(void)
{
    struct other other;
    pthread_t thread;
    CUcontext got;

    other.context = context_new();
    MUST(cu.cuCtxPopCurrent_v2(&got));
    pthread_barrier_init(&other.barrier, NULL, 2);
    pthread_create(&thread, NULL, other_thread, &other);
    pthread_barrier_wait(&other.barrier);
    fact("destroy", cu.cuCtxDestroy_v2(other.context));
    pthread_barrier_wait(&other.barrier);
    pthread_join(thread, NULL);
}

static void *keeping_thread(void *argument)
{
    struct other *other = argument;

    MUST(cu.cuCtxSetCurrent(other->context));
    pthread_barrier_wait(&other->barrier);
    pthread_barrier_wait(&other->barrier);
    MUST(cu.cuCtxSetCurrent(NULL));
    return NULL;
}

/* What is current in another thread may be pushed, destroyed or not, and its handle is not given
 * out again. */
static void kept_elsewhere(void)
{
    struct other other;
    unsigned version;
    pthread_t thread;
    CUcontext b, got;
    int same = 0;

    other.context = context_new();
    pthread_barrier_init(&other.barrier, NULL, 2);
    pthread_create(&thread, NULL, keeping_thread, &other);
    pthread_barrier_wait(&other.barrier);
    fact("destroy", cu.cuCtxDestroy_v2(other.context));
    for (int i = 0; i < 4; i++) {
        b = context_new();
        same += b == other.context;
        MUST(cu.cuCtxDestroy_v2(b));
    }
    fact("given_out_again", same);
    fact("push", cu.cuCtxPushCurrent_v2(other.context));
    fact("version", cu.cuCtxGetApiVersion(NULL, &version));
    fact("pop", cu.cuCtxPopCurrent_v2(&got));
    fact("push_again", cu.cuCtxPushCurrent_v2(other.context));
    fact("pop_again", cu.cuCtxPopCurrent_v2(&got));
    pthread_barrier_wait(&other.barrier);
    pthread_join(thread, NULL);
}

/* One dangerous call a group: it may end the process on a real driver. */
static void stale_push(void)
{
    CUcontext a = context_new();

    MUST(cu.cuCtxDestroy_v2(a));
    fact("answer", cu.cuCtxPushCurrent_v2(a));
}

static void stale_set(void)
{
    CUcontext a = context_new();

    MUST(cu.cuCtxDestroy_v2(a));
    fact("answer", cu.cuCtxSetCurrent(a));
}

static void stale_destroy(void)
{
    CUcontext a = context_new();

    MUST(cu.cuCtxDestroy_v2(a));
    fact("answer", cu.cuCtxDestroy_v2(a));
}

static void stale_id(void)
{
    CUcontext a = context_new();
    unsigned long long id;

    MUST(cu.cuCtxDestroy_v2(a));
    fact("answer", cu.cuCtxGetId(a, &id));
}

static void primary(void)
{
    CUcontext a, b, got;
    unsigned long long id = 0;
    CUdeviceptr address;
    CUdevice device;
    unsigned flags = 77;
    int active = 77;

    MUST(cu.cuInit(0));
    fact("release_unretained", cu.cuDevicePrimaryCtxRelease_v2(0));
    fact("state", cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
    fact("state_active", active);
    fact("state_flags", flags);
    fact("reset_unretained", cu.cuDevicePrimaryCtxReset_v2(0));
    fact("set_flags", cu.cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_BLOCKING_SYNC));
    fact("set_flags_bad", cu.cuDevicePrimaryCtxSetFlags_v2(0, 0x3));
    fact("set_flags_unknown", cu.cuDevicePrimaryCtxSetFlags_v2(0, 0x10000));
    MUST(cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
    fact("state_flags_set", flags);
    fact("retain", cu.cuDevicePrimaryCtxRetain(&a, 0));
    fact("retain_again", cu.cuDevicePrimaryCtxRetain(&b, 0));
    fact("same", a == b);
    MUST(cu.cuCtxGetCurrent(&got));
    fact("retain_makes_current", got != NULL);
    MUST(cu.cuCtxPushCurrent_v2(a));
    MUST(cu.cuCtxGetFlags(&flags));
    fact("context_flags", flags);
    fact("set_flags_active", cu.cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_YIELD));
    MUST(cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
    fact("state_flags_active", flags);
    MUST(cu.cuCtxGetFlags(&flags));
    fact("context_flags_active", flags);
    fact("destroy", cu.cuCtxDestroy_v2(a));
    fact("release", cu.cuDevicePrimaryCtxRelease_v2(0));
    fact("alloc_between", cu.cuMemAlloc_v2(&address, 16));
    fact("release_last", cu.cuDevicePrimaryCtxRelease_v2(0));
    fact("release_beyond", cu.cuDevicePrimaryCtxRelease_v2(0));
    MUST(cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
    fact("state_active_released", active);
    MUST(cu.cuCtxGetCurrent(&got));
    fact("still_current", got == a);
    fact("synchronize_released", cu.cuCtxSynchronize());
    fact("id_released", cu.cuCtxGetId(NULL, &id));
    fact("id_released_is_set", id != 0);
    fact("alloc_released", cu.cuMemAlloc_v2(&address, 16));
    fact("device_released", cu.cuCtxGetDevice(&device));
    fact("push_released", cu.cuCtxPushCurrent_v2(a));
    fact("set_released", cu.cuCtxSetCurrent(a));
    fact("retain_anew", cu.cuDevicePrimaryCtxRetain(&b, 0));
    fact("same_anew", a == b);
    fact("synchronize_anew", cu.cuCtxSynchronize());
    fact("retain_second", cu.cuDevicePrimaryCtxRetain(&b, 0));
    fact("reset", cu.cuDevicePrimaryCtxReset_v2(0));
    MUST(cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
    fact("state_active_reset", active);
    fact("state_flags_reset", flags);
    fact("synchronize_reset", cu.cuCtxSynchronize());
    id = 0;
    fact("id_reset", cu.cuCtxGetId(NULL, &id));
    fact("id_reset_is_set", id != 0);
    fact("release_reset", cu.cuDevicePrimaryCtxRelease_v2(0));
    fact("release_reset_second", cu.cuDevicePrimaryCtxRelease_v2(0));
    fact("release_reset_third", cu.cuDevicePrimaryCtxRelease_v2(0));
    fact("invalid_device", cu.cuDevicePrimaryCtxRetain(&b, 99));
}

static void context_facts(void)
{
    CUcontext a, b, got;
    CUfunc_cache config = (CUfunc_cache)77;
    unsigned version = 77, flags = 77;
    unsigned long long id = 0, id2 = 0;
    int least = 77, greatest = 77, priority = 77;
    CUstream stream;
    size_t value;
    char name[32];

    a = context_new();
    MUST(cu.cuCtxGetFlags(&flags));
    fact("flags_default", flags);
    MUST(cu.cuCtxCreate_v2(&b, CU_CTX_SCHED_SPIN, 0));
    MUST(cu.cuCtxGetFlags(&flags));
    fact("flags_spin", flags);
    MUST(cu.cuCtxDestroy_v2(b));
    MUST(cu.cuDevicePrimaryCtxRetain(&b, 0));
    MUST(cu.cuCtxPushCurrent_v2(b));
    MUST(cu.cuCtxGetFlags(&flags));
    fact("flags_primary_default", flags);
    MUST(cu.cuCtxGetApiVersion(b, &version));
    fact("api_version_primary", version);
    MUST(cu.cuCtxPopCurrent_v2(&b));
    MUST(cu.cuDevicePrimaryCtxRelease_v2(0));
    MUST(cu.cuCtxGetApiVersion(a, &version));
    fact("api_version", version);
    MUST(cu.cuCtxGetApiVersion(NULL, &version));
    fact("api_version_of_null", version);
    MUST(cu.cuCtxGetId(a, &id));
    fact("create_flags", cu.cuCtxCreate_v2(&b, CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST, 0));
    MUST(cu.cuCtxGetId(NULL, &id2));
    fact("ids_differ", id != id2);
    MUST(cu.cuCtxGetFlags(&flags));
    fact("flags_given", flags);
    fact("destroy_current", cu.cuCtxDestroy_v2(b));
    MUST(cu.cuCtxGetCurrent(&got));
    fact("current_then", got == a);
    fact("create_bad_schedule", cu.cuCtxCreate_v2(&b, 0x3, 0));
    fact("create_unknown_flag", cu.cuCtxCreate_v2(&b, 0x10000, 0));
    fact("create_bad_device", cu.cuCtxCreate_v2(&b, 0, 99));
    fact("create_null", cu.cuCtxCreate_v2(NULL, 0, 0));
    if (cu.cuCtxCreate_v4 != NULL) {
        fact("create_v4", cu.cuCtxCreate_v4(&b, NULL, 0, 0));
        MUST(cu.cuCtxGetApiVersion(b, &version));
        fact("api_version_v4", version);
        MUST(cu.cuCtxDestroy_v2(b));
    }
    MUST(cu.cuCtxGetCacheConfig(&config));
    fact("cache_config", config);
    fact("cache_config_set", cu.cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
    MUST(cu.cuCtxGetCacheConfig(&config));
    fact("cache_config_then", config);
    fact("cache_config_bad", cu.cuCtxSetCacheConfig((CUfunc_cache)9));
    MUST(cu.cuCtxGetStreamPriorityRange(&least, &greatest));
    fact("priority_least", least);
    fact("priority_greatest", greatest);
    fact("priority_range_null", cu.cuCtxGetStreamPriorityRange(NULL, NULL));
    fact("stream_priority_beyond", cu.cuStreamCreateWithPriority(&stream, 0, -100));
    MUST(cu.cuStreamGetPriority(stream, &priority));
    fact("stream_priority_beyond_is", priority);
    fact("stream_priority_above", cu.cuStreamCreateWithPriority(&stream, 0, 100));
    MUST(cu.cuStreamGetPriority(stream, &priority));
    fact("stream_priority_above_is", priority);
    fact("stream_flags_bad", cu.cuStreamCreateWithPriority(&stream, 0x80, 0));
    fact("priority_of_null_stream", cu.cuStreamGetPriority(NULL, &priority));
    fact("peer_itself", cu.cuCtxEnablePeerAccess(a, 0));
    for (int limit = 0; limit < 9; limit++) {
        value = 0;
        snprintf(name, sizeof name, "limit_%d", limit);
        fact(name, cu.cuCtxGetLimit(&value, (CUlimit)limit));
        snprintf(name, sizeof name, "limit_%d_is", limit);
        fact(name, (long long)value);
        snprintf(name, sizeof name, "limit_%d_set", limit);
        fact(name, cu.cuCtxSetLimit((CUlimit)limit, limit == 5 ? 32 : limit == 0 ? 2000 : value));
        if (limit == 0) {
            MUST(cu.cuCtxGetLimit(&value, (CUlimit)limit));
            fact("limit_stack_of_2000", (long long)value);
        }
    }
}

/* How far limits go. */
static void limit_ranges(void)
{
    static const size_t values[] = {
        0, 1, 1000, 100000, 524288, 1 << 20, (size_t)1 << 33, (size_t)1 << 50, SIZE_MAX};
    char name[64];

    for (int limit = 0; limit < 7; limit++) {
        context_new();
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            size_t is = 0;
            snprintf(name, sizeof name, "limit_%d_to_%zu", limit, values[i]);
            fact(name, cu.cuCtxSetLimit((CUlimit)limit, values[i]));
            (void)cu.cuCtxGetLimit(&is, (CUlimit)limit);
            snprintf(name, sizeof name, "limit_%d_after_%zu", limit, values[i]);
            fact(name, (long long)is);
        }
    }
}

/* What a pool holds after frees and waits. */
static void pool_reserve(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CUstream stream;
    CUdeviceptr p;
    cuuint64_t value;
    CUevent event;

    context_new();
    MUST(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    MUST(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cu.cuMemPoolCreate(&pool, &props));
    for (int way = 0; way < 4; way++) {
        static const char *const ways[] = {"stream", "event", "context", "kept"};
        char name[64];
        if (way == 3) {
            value = (cuuint64_t)1 << 40;
            MUST(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
        }
        MUST(cu.cuMemAllocFromPoolAsync(&p, 40 << 20, pool, stream));
        MUST(cu.cuMemFreeAsync(p, stream));
        MUST(cu.cuEventRecord(event, stream));
        MUST(way == 1   ? cu.cuEventSynchronize(event)
             : way == 2 ? cu.cuCtxSynchronize()
                        : cu.cuStreamSynchronize(stream));
        MUST(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
        snprintf(name, sizeof name, "reserved_after_%s", ways[way]);
        fact(name, (long long)value);
        MUST(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
        snprintf(name, sizeof name, "used_after_%s", ways[way]);
        fact(name, (long long)value);
    }
    MUST(cu.cuMemPoolTrimTo(pool, 0));
    MUST(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    fact("reserved_after_trim", (long long)value);
    MUST(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value));
    fact("reserved_high", (long long)value);
    MUST(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
    fact("used_high", (long long)value);
}

static void memory(void)
{
    CUcontext a = context_new(), b;
    CUdeviceptr p, q, inner;
    char buffer[4096] = {0};
    size_t available, total, after;
    void *host;

    fact("alloc_zero", cu.cuMemAlloc_v2(&p, 0));
    fact("alloc_null", cu.cuMemAlloc_v2(NULL, 16));
    fact("alloc_huge", cu.cuMemAlloc_v2(&p, (size_t)1 << 45));
    fact("alloc_max", cu.cuMemAlloc_v2(&p, SIZE_MAX));
    fact("alloc", cu.cuMemAlloc_v2(&p, 4096));
    fact("aligned_512", p % 512 == 0);
    fact("free_null", cu.cuMemFree_v2(0));
    fact("free_inner", cu.cuMemFree_v2(p + 16));
    fact("free_garbage", cu.cuMemFree_v2(0x1234560));
    fact("copy", cu.cuMemcpyHtoD_v2(p, buffer, 4096));
    fact("copy_nothing", cu.cuMemcpyHtoD_v2(p, buffer, 0));
    fact("copy_nothing_null", cu.cuMemcpyHtoD_v2(0, NULL, 0));
    fact("copy_beyond", cu.cuMemcpyHtoD_v2(p + 1, buffer, 4096));
    fact("copy_back_beyond", cu.cuMemcpyDtoH_v2(buffer, p + 4096 - 1, 2));
    fact("copy_to_null", cu.cuMemcpyHtoD_v2(0, buffer, 16));
    fact("copy_to_garbage", cu.cuMemcpyHtoD_v2(0x1234560, buffer, 16));
    fact("copy_to_host_address",
         cu.cuMemcpyHtoD_v2((CUdeviceptr)(uintptr_t)buffer, buffer + 64, 16));
    MUST(cu.cuMemAlloc_v2(&q, 4096));
    fact("between", cu.cuMemcpyDtoD_v2(q, p, 4096));
    fact("between_beyond", cu.cuMemcpyDtoD_v2(q, p + 1, 4096));
    fact("between_host_address", cu.cuMemcpyDtoD_v2(q, (CUdeviceptr)(uintptr_t)buffer, 16));
    fact("async_beyond", cu.cuMemcpyHtoDAsync_v2(p + 1, buffer, 4096, NULL));
    fact("async_garbage", cu.cuMemcpyHtoDAsync_v2(0x1234560, buffer, 16, NULL));
    fact("async_between_beyond", cu.cuMemcpyDtoDAsync_v2(q, p + 1, 4096, NULL));
    fact("fill", cu.cuMemsetD8Async(p, 1, 4096, NULL));
    fact("fill_nothing", cu.cuMemsetD8Async(p, 1, 0, NULL));
    fact("fill_beyond", cu.cuMemsetD8Async(p, 1, 4097, NULL));
    fact("fill_garbage", cu.cuMemsetD8Async(0x1234560, 1, 16, NULL));
    fact("fill16_odd", cu.cuMemsetD16Async(p + 1, 1, 16, NULL));
    fact("fill32_odd", cu.cuMemsetD32Async(p + 2, 1, 16, NULL));
    fact("fill2d", cu.cuMemsetD2D8Async(p, 64, 1, 32, 8, NULL));
    fact("fill2d_pitch_small", cu.cuMemsetD2D8Async(p, 16, 1, 32, 8, NULL));
    fact("fill2d_one_row_pitch_0", cu.cuMemsetD2D8Async(p, 0, 1, 32, 1, NULL));
    fact("fill2d_odd_pitch_16", cu.cuMemsetD2D16Async(p, 65, 1, 16, 8, NULL));
    fact("fill2d_beyond", cu.cuMemsetD2D8Async(p, 64, 1, 32, 65, NULL));
    fact("synchronize", cu.cuCtxSynchronize());
    MUST(cu.cuMemHostAlloc(&host, 4096, 0));
    fact("device_copy_to_pinned", cu.cuMemcpyDtoD_v2((CUdeviceptr)(uintptr_t)host, p, 4096));
    fact("device_fill_of_pinned", cu.cuMemsetD8Async((CUdeviceptr)(uintptr_t)host, 7, 4096, NULL));
    fact("host_copy_from_device_pointer", cu.cuMemcpyHtoD_v2(q, (void *)(uintptr_t)p, 16));
    fact("host_copy_to_device_pointer", cu.cuMemcpyDtoH_v2((void *)(uintptr_t)p, q, 16));
    MUST(cu.cuCtxSynchronize());
    fact("filled", ((char *)host)[4095]);
    inner = p;
    fact("free", cu.cuMemFree_v2(p));
    fact("free_twice", cu.cuMemFree_v2(inner));
    MUST(cu.cuMemGetInfo_v2(&available, &total));
    fact("alloc_64m", cu.cuMemAlloc_v2(&p, 64 << 20));
    MUST(cu.cuMemGetInfo_v2(&after, &total));
    fact("info_sees_it", available - after >= 64 << 20);
    fact("copy_freed_before", cu.cuMemFree_v2(p));
    fact("copy_freed", cu.cuMemcpyHtoD_v2(p, buffer, 16));
    MUST(cu.cuCtxCreate_v2(&b, 0, 0));
    fact("elsewhere_copy", cu.cuMemcpyDtoH_v2(buffer, q, 16));
    fact("elsewhere_free", cu.cuMemFree_v2(q));
    fact("elsewhere_free_host", cu.cuMemFreeHost(host));
    MUST(cu.cuCtxDestroy_v2(b));
    MUST(cu.cuMemAlloc_v2(&q, 4096));
    MUST(cu.cuCtxCreate_v2(&b, 0, 0));
    MUST(cu.cuCtxDestroy_v2(a));
    fact("of_destroyed_copy", cu.cuMemcpyDtoH_v2(buffer, q, 16));
    fact("of_destroyed_free", cu.cuMemFree_v2(q));
}

static void attribute(const char *name, CUdeviceptr address, CUpointer_attribute which)
{
    unsigned long long value[4] = {0x7777777777777777ull};
    char text[80];
    CUresult result = cu.cuPointerGetAttribute(value, which, address);

    snprintf(text, sizeof text, "%s_%d", name, (int)which);
    fact(text, result);
    if (result == CUDA_SUCCESS && (which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
                                   which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)) {
        snprintf(text, sizeof text, "%s_%d_is", name, (int)which);
        fact(text, (int)value[0]);
    }
    if (result == CUDA_SUCCESS && which == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
        snprintf(text, sizeof text, "%s_%d_is", name, (int)which);
        fact(text, (int)(value[0] & 0xFF));
    }
    if (result == CUDA_SUCCESS && (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                                   which == CU_POINTER_ATTRIBUTE_HOST_POINTER ||
                                   which == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)) {
        snprintf(text, sizeof text, "%s_%d_offset", name, (int)which);
        fact(text, value[0] == 0 ? -1 : (long long)(address - value[0]));
    }
    if (result == CUDA_SUCCESS && which == CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
        snprintf(text, sizeof text, "%s_%d_is", name, (int)which);
        fact(text, (long long)value[0]);
    }
    if (result == CUDA_SUCCESS && which == CU_POINTER_ATTRIBUTE_CONTEXT) {
        CUcontext current;
        cu.cuCtxGetCurrent(&current);
        snprintf(text, sizeof text, "%s_%d_is_current", name, (int)which);
        fact(text, value[0] == 0 ? -1 : (CUcontext)(uintptr_t)value[0] == current);
    }
}

static void attributes_of(const char *name, CUdeviceptr address)
{
    static const CUpointer_attribute all[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER,   CU_POINTER_ATTRIBUTE_HOST_POINTER,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        attribute(name, address, all[i]);
    }
}

static void pointers(void)
{
    char *plain = pages(8192, 3), *registered = pages(8192, 3);
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CUcontext got;
    CUdeviceptr p;
    void *host;

    context_new();
    MUST(cu.cuMemAlloc_v2(&p, 5000));
    MUST(cu.cuMemHostAlloc(&host, 5000, 0));
    MUST(cu.cuMemHostRegister_v2(registered + 100, 5000, 0));
    attributes_of("device", p + 100);
    attributes_of("allocated", (CUdeviceptr)(uintptr_t)host + 100);
    attributes_of("registered", (CUdeviceptr)(uintptr_t)registered + 200);
    attributes_of("beside", (CUdeviceptr)(uintptr_t)registered + 50);
    attributes_of("plain", (CUdeviceptr)(uintptr_t)plain + 100);
    attributes_of("null", 0);
    MUST(cu.cuMemPoolCreate(&pool, &props));
    CUdeviceptr q;
    MUST(cu.cuMemAllocFromPoolAsync(&q, 5000, pool, NULL));
    attributes_of("pooled", q + 100);
    fact("unknown", cu.cuPointerGetAttribute(&got, (CUpointer_attribute)999, p));
    fact("value_null", cu.cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    MUST(cu.cuCtxPopCurrent_v2(&got));
    attribute("no_context", p, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    attribute("no_context_plain", (CUdeviceptr)(uintptr_t)plain, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    MUST(cu.cuCtxPushCurrent_v2(got));
    MUST(cu.cuMemFree_v2(p));
    attribute("freed", p, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
}

static CUresult try2d(CUdeviceptr dst, size_t dst_pitch, const void *src, size_t src_pitch,
                      size_t width, size_t height, size_t x, bool asynchronous)
{
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = src,
                          .srcPitch = src_pitch,
                          .srcXInBytes = x,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = dst,
                          .dstPitch = dst_pitch,
                          .WidthInBytes = width,
                          .Height = height};

    return asynchronous ? cu.cuMemcpy2DAsync_v2(&copy, NULL) : cu.cuMemcpy2DUnaligned_v2(&copy);
}

static CUresult try3d(CUdeviceptr dst, const void *src, size_t pitch, size_t rows, size_t width,
                      size_t height, size_t depth_)
{
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = src,
                          .srcPitch = pitch,
                          .srcHeight = rows,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = dst,
                          .dstPitch = pitch,
                          .dstHeight = rows,
                          .WidthInBytes = width,
                          .Height = height,
                          .Depth = depth_};

    return cu.cuMemcpy3D_v2(&copy);
}

static void hostreg(void)
{
    char *m = pages(1 << 20, 3), *gone = pages(8192, 3), *none = pages(4096, PROT_NONE);
    char *read_only = pages(4096, PROT_READ);
    CUcontext a = context_new(), b;
    unsigned flags = 77;
    CUdeviceptr device;
    void *host;

    fact("zero", cu.cuMemHostRegister_v2(m, 0, 0));
    fact("null", cu.cuMemHostRegister_v2(NULL, 4096, 0));
    fact("unknown_flag", cu.cuMemHostRegister_v2(m, 4096, 0x100));
    munmap(gone, 8192);
    fact("unmapped", cu.cuMemHostRegister_v2(gone, 4096, 0));
    fact("no_access", cu.cuMemHostRegister_v2(none, 4096, 0));
    fact("read_only", cu.cuMemHostRegister_v2(read_only, 4096, 0));
    fact("read_only_flag", cu.cuMemHostRegister_v2(read_only, 4096, CU_MEMHOSTREGISTER_READ_ONLY));
    MUST(cu.cuMemHostGetFlags(&flags, read_only));
    fact("read_only_flags", flags);
    fact("by_byte_1", cu.cuMemHostRegister_v2(m + 16, 100, 0));
    fact("by_byte_2", cu.cuMemHostRegister_v2(m + 116, 100, 0));
    fact("overlap_inside", cu.cuMemHostRegister_v2(m + 20, 10, 0));
    fact("overlap_across", cu.cuMemHostRegister_v2(m + 100, 50, 0));
    fact("overlap_enclosing", cu.cuMemHostRegister_v2(m, 4096, 0));
    fact("unregister_inner", cu.cuMemHostUnregister(m + 20));
    fact("unregister_beside", cu.cuMemHostUnregister(m + 4096));
    fact("unregister_null", cu.cuMemHostUnregister(NULL));
    MUST(cu.cuMemHostGetFlags(&flags, m + 16));
    fact("flags_of_0", flags);
    fact("flags_inner", cu.cuMemHostGetFlags(&flags, m + 20));
    fact("flags_beside", cu.cuMemHostGetFlags(&flags, m + 4096));
    fact("device_pointer", cu.cuMemHostGetDevicePointer_v2(&device, m + 16, 0));
    fact("device_pointer_same", device == (CUdeviceptr)(uintptr_t)m + 16);
    fact("device_pointer_inner", cu.cuMemHostGetDevicePointer_v2(&device, m + 20, 0));
    fact("device_pointer_beside", cu.cuMemHostGetDevicePointer_v2(&device, m + 4096, 0));
    fact("device_pointer_flags", cu.cuMemHostGetDevicePointer_v2(&device, m + 16, 1));
    MUST(cu.cuMemHostRegister_v2(m + 8192, 4096,
                                 CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    MUST(cu.cuMemHostGetFlags(&flags, m + 8192));
    fact("flags_of_3", flags);
    fact("free_host_registered", cu.cuMemFreeHost(m + 8192));
    host = m;
    fact("host_alloc_zero", cu.cuMemHostAlloc(&host, 0, 0));
    fact("host_alloc_zero_gives", host == NULL ? 0 : host == m ? 1 : 2);
    fact("host_alloc_flag", cu.cuMemHostAlloc(&host, 16, 0x100));
    fact("host_alloc_null", cu.cuMemHostAlloc(NULL, 16, 0));
    fact("host_alloc", cu.cuMemHostAlloc(&host, 5000, 0));
    MUST(cu.cuMemHostGetFlags(&flags, host));
    fact("host_alloc_flags_of_0", flags);
    fact("host_flags_inner", cu.cuMemHostGetFlags(&flags, (char *)host + 100));
    fact("register_allocated", cu.cuMemHostRegister_v2(host, 4096, 0));
    fact("unregister_allocated", cu.cuMemHostUnregister(host));
    fact("free_host_inner", cu.cuMemFreeHost((char *)host + 16));
    fact("free_host_null", cu.cuMemFreeHost(NULL));
    fact("free_host", cu.cuMemFreeHost(host));
    fact("free_host_twice", cu.cuMemFreeHost(host));
    fact("free_host_plain", cu.cuMemFreeHost(m + 65536));
    MUST(cu.cuMemHostAlloc(&host, 16, CU_MEMHOSTALLOC_WRITECOMBINED));
    MUST(cu.cuMemHostGetFlags(&flags, host));
    fact("host_alloc_flags_of_4", flags);
    /* seen from another context */
    MUST(cu.cuMemHostRegister_v2(m + 65536, 4096, 0));
    MUST(cu.cuCtxCreate_v2(&b, 0, 0));
    fact("elsewhere_flags", cu.cuMemHostGetFlags(&flags, m + 65536));
    fact("elsewhere_device_pointer", cu.cuMemHostGetDevicePointer_v2(&device, m + 65536, 0));
    fact("elsewhere_register", cu.cuMemHostRegister_v2(m + 65536, 4096, 0));
    fact("elsewhere_unregister", cu.cuMemHostUnregister(m + 65536));
    fact("elsewhere_unregister_again", cu.cuMemHostUnregister(m + 65536));
    /* the context goes */
    m[8192] = 5;
    MUST(cu.cuCtxDestroy_v2(a));
    fact("orphan_readable", m[8192]);
    fact("orphan_flags", cu.cuMemHostGetFlags(&flags, m + 8192));
    fact("orphan_unregister", cu.cuMemHostUnregister(m + 8192));
    fact("orphan_register", cu.cuMemHostRegister_v2(m + 8192, 4096, 0));
    /* the mapping goes */
    munmap(m + 8192, 4096);
    fact("unmapped_flags", cu.cuMemHostGetFlags(&flags, m + 8192));
    if (mmap(m + 8192, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == m + 8192) {
        fact("remapped_register", cu.cuMemHostRegister_v2(m + 8192, 4096, 0));
        fact("remapped_unregister", cu.cuMemHostUnregister(m + 8192));
        fact("remapped_register_again", cu.cuMemHostRegister_v2(m + 8192, 4096, 0));
    }
    /* parts with different rights, parts that are missing */
    mprotect(m + 131072, 4096, PROT_READ);
    fact("partly_read_only", cu.cuMemHostRegister_v2(m + 131072 - 4096, 12288, 0));
    munmap(m + 196608, 4096);
    fact("partly_unmapped", cu.cuMemHostRegister_v2(m + 196608 - 4096, 12288, 0));
    /* two registrations side by side, one copy over both */
    MUST(cu.cuMemHostRegister_v2(m + 262144, 4096, 0));
    MUST(cu.cuMemHostRegister_v2(m + 262144 + 4096, 4096, 0));
    CUdeviceptr q;
    MUST(cu.cuMemAlloc_v2(&q, 8192));
    fact("copy_over_two", cu.cuMemcpyHtoD_v2(q, m + 262144, 8192));
    fact("copy_half_locked", cu.cuMemcpyHtoD_v2(q, m + 262144 + 6000, 8192));
    fact("copy_into_locked", cu.cuMemcpyHtoD_v2(q, m + 262144 - 100, 200));
    fact("copy_around_locked", cu.cuMemcpyHtoD_v2(q, m + 16 - 16, 8000));
    fact("copy_back_over_two", cu.cuMemcpyDtoH_v2(m + 262144, q, 8192));
    fact("copy_back_into_locked", cu.cuMemcpyDtoH_v2(m + 262144 - 100, q, 200));
    fact("async_over_two", cu.cuMemcpyHtoDAsync_v2(q, m + 262144, 8192, NULL));
    fact("async_into_locked", cu.cuMemcpyHtoDAsync_v2(q, m + 262144 - 100, 200, NULL));
    fact("async_back_over_two", cu.cuMemcpyDtoHAsync_v2(m + 262144, q, 8192, NULL));
    fact("rows_over_two", try2d(q, 64, m + 262144, 64, 32, 128, 0, false));
    fact("rows_async_over_two", try2d(q, 64, m + 262144, 64, 32, 128, 0, true));
    fact("rows_into_locked", try2d(q, 64, m + 262144 - 256, 64, 32, 16, 0, false));
    fact("device_copy_over_two", cu.cuMemcpyDtoD_v2(q, (CUdeviceptr)(uintptr_t)m + 262144, 8192));
    fact("device_copy_half_locked",
         cu.cuMemcpyDtoD_v2(q, (CUdeviceptr)(uintptr_t)m + 262144 + 6000, 8192));
}

static void shapes(void)
{
    static char buffer[65536], back[512];
    CUdeviceptr p;
    CUDA_MEMCPY2D unified = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                             .srcPitch = 64,
                             .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                             .dstPitch = 64,
                             .WidthInBytes = 32,
                             .Height = 8};

    context_new();
    MUST(cu.cuMemAlloc_v2(&p, 65536));
    for (int async = 0; async < 2; async++) {
        char name[64];
#define TRY(what, ...)                                                         \
    snprintf(name, sizeof name, "%s_%s", what, async ? "async" : "unaligned"); \
    fact(name, try2d(__VA_ARGS__, async));
        TRY("fine", p, 64, buffer, 96, 32, 8, 0)
        TRY("pitch_equal", p, 32, buffer, 32, 32, 8, 0)
        TRY("src_pitch_small", p, 64, buffer, 16, 32, 8, 0)
        TRY("dst_pitch_small", p, 16, buffer, 64, 32, 8, 0)
        TRY("src_x_beyond_pitch", p, 64, buffer, 64, 32, 8, 40)
        TRY("odd_pitch", p, 65, buffer, 67, 32, 8, 0)
        TRY("one_row_pitch_0", p, 0, buffer, 0, 32, 1, 0)
        TRY("one_row_pitch_small", p, 16, buffer, 16, 32, 1, 0)
        TRY("width_0", p, 64, buffer, 64, 0, 8, 0)
        TRY("height_0", p, 64, buffer, 64, 32, 0, 0)
        TRY("pitch_0_width_0", p, 0, buffer, 0, 0, 8, 0)
        TRY("beyond", p, 64, buffer, 8, 4, 1025, 0)
        TRY("last_row_short", p + 65536 - 7 * 64 - 32, 64, buffer, 64, 32, 8, 0)
        TRY("last_row_over", p + 65536 - 7 * 64 - 31, 64, buffer, 64, 32, 8, 0)
        TRY("pitch_0", p, 0, buffer, 0, 32, 8, 0)
        TRY("dst_pitch_0", p, 0, buffer, 64, 32, 8, 0)
        TRY("pitch_0_with_x", p, 64, buffer, 0, 32, 1, 8)
        TRY("max_pitch", p, 2147483647, buffer, 64, 32, 1, 0)
        TRY("over_max_pitch", p, (size_t)2147483648, buffer, 64, 32, 1, 0)
#undef TRY
        MUST(cu.cuCtxSynchronize());
    }
    for (int i = 0; i < 65536; i++) {
        buffer[i] = (char)(i % 127);
    }
    MUST(try2d(p, 0, buffer, 0, 32, 8, 0, false));
    MUST(cu.cuMemcpyDtoH_v2(back, p, 512));
    fact("pitch_0_packs", memcmp(back, buffer, 256) == 0);
    MUST(try2d(p, 0, buffer, 0, 32, 8, 16, false));
    MUST(cu.cuMemcpyDtoH_v2(back, p, 512));
    fact("pitch_0_with_x_row_1_from", (int)(memchr(buffer, back[32], 127) - (void *)buffer));
    MUST(try3d(p, buffer, 64, 0, 64, 4, 2));
    MUST(cu.cuMemcpyDtoH_v2(back, p, 512));
    fact("box_rows_0_packs", memcmp(back, buffer, 512) == 0);
    fact("null_copy", cu.cuMemcpy2DUnaligned_v2(NULL));
    unified.srcDevice = (CUdeviceptr)(uintptr_t)buffer;
    unified.dstDevice = p;
    fact("unified_pageable", cu.cuMemcpy2DUnaligned_v2(&unified));
    unified.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    fact("array_null", cu.cuMemcpy2DUnaligned_v2(&unified));
    unified.srcMemoryType = (CUmemorytype)9;
    fact("type_9", cu.cuMemcpy2DUnaligned_v2(&unified));
    fact("box", try3d(p, buffer, 64, 4, 32, 4, 8));
    fact("box_rows_small", try3d(p, buffer, 64, 3, 32, 4, 8));
    fact("box_pitch_small", try3d(p, buffer, 16, 4, 32, 4, 8));
    fact("box_one_slice_rows_0", try3d(p, buffer, 64, 0, 32, 4, 1));
    fact("box_pitch_0_one_row", try3d(p, buffer, 0, 0, 32, 1, 1));
    fact("box_pitch_0", try3d(p, buffer, 0, 4, 32, 4, 8));
    fact("box_rows_0", try3d(p, buffer, 64, 0, 32, 4, 8));
    fact("box_depth_0", try3d(p, buffer, 64, 4, 32, 4, 0));
    fact("box_beyond", try3d(p, buffer, 64, 4, 32, 4, 257));
    fact("synchronize", cu.cuCtxSynchronize());
}

static void nothing(void *data)
{
    (void)data;
}

static void streams_events(void)
{
    char *mine = pages(4096, 3);
    CUcontext a = context_new(), b;
    CUstream sa, sb;
    CUevent ea, eb, timeless;
    CUdeviceptr p;
    void *host;
    float ms = -1;

    MUST(cu.cuStreamCreateWithPriority(&sa, 0, 0));
    MUST(cu.cuEventCreate(&ea, 0));
    MUST(cu.cuMemAlloc_v2(&p, 4096));
    MUST(cu.cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_PORTABLE));
    fact("event_flags_bad", cu.cuEventCreate(&eb, 0x80));
    fact("event_interprocess_with_timing", cu.cuEventCreate(&eb, 0x4));
    fact("query_unrecorded", cu.cuEventQuery(ea));
    fact("synchronize_unrecorded", cu.cuEventSynchronize(ea));
    MUST(cu.cuEventCreate(&eb, 0));
    fact("wait_unrecorded", cu.cuStreamWaitEvent(sa, ea, 0));
    fact("wait_flags_bad", cu.cuStreamWaitEvent(sa, ea, 0x10));
    fact("elapsed_unrecorded", cu.cuEventElapsedTime(&ms, ea, eb));
    MUST(cu.cuEventRecord(ea, sa));
    fact("elapsed_half_recorded", cu.cuEventElapsedTime(&ms, ea, eb));
    MUST(cu.cuEventRecord(eb, sa));
    MUST(cu.cuCtxSynchronize());
    fact("elapsed", cu.cuEventElapsedTime(&ms, ea, eb));
    fact("elapsed_positive", ms >= 0);
    fact("elapsed_backwards", cu.cuEventElapsedTime(&ms, eb, ea));
    fact("elapsed_backwards_negative", ms <= 0);
    MUST(cu.cuEventCreate(&timeless, CU_EVENT_DISABLE_TIMING));
    MUST(cu.cuEventRecord(timeless, sa));
    MUST(cu.cuCtxSynchronize());
    fact("elapsed_timeless", cu.cuEventElapsedTime(&ms, ea, timeless));
    fact("record_null_stream", cu.cuEventRecord(ea, NULL));
    fact("record_per_thread", cu.cuEventRecord(ea, (CUstream)2));
    MUST(cu.cuCtxSynchronize());
    fact("query_per_thread", cu.cuStreamQuery((CUstream)2));
    fact("query_null", cu.cuStreamQuery(NULL));
    fact("query_legacy", cu.cuStreamQuery((CUstream)1));
    MUST(cu.cuCtxCreate_v2(&b, 0, 0));
    MUST(cu.cuStreamCreateWithPriority(&sb, 0, 0));
    fact("elsewhere_query", cu.cuStreamQuery(sa));
    fact("elsewhere_synchronize", cu.cuStreamSynchronize(sa));
    fact("elsewhere_copy", cu.cuMemcpyHtoDAsync_v2(p, host, 4096, sa));
    fact("elsewhere_fill", cu.cuMemsetD8Async(p, 0, 4096, sa));
    fact("elsewhere_record_own", cu.cuEventRecord(ea, sa));
    fact("elsewhere_record_mixed", cu.cuEventRecord(ea, sb));
    fact("elsewhere_wait", cu.cuStreamWaitEvent(sb, ea, 0));
    fact("elsewhere_event_query",
         cu.cuEventQuery(ea) == CUDA_ERROR_NOT_READY ? 0 : cu.cuEventQuery(ea));
    fact("elsewhere_event_synchronize", cu.cuEventSynchronize(ea));
    fact("elsewhere_priority", cu.cuStreamGetPriority(sa, (int *)&ms));
    MUST(cu.cuEventCreate(&timeless, 0));
    MUST(cu.cuEventRecord(timeless, sb));
    MUST(cu.cuCtxSynchronize());
    fact("elsewhere_elapsed", cu.cuEventElapsedTime(&ms, ea, timeless));
    MUST(cu.cuCtxPopCurrent_v2(&b));
    MUST(cu.cuCtxPopCurrent_v2(&a));
    fact("nowhere_sync_copy", cu.cuMemcpyHtoD_v2(p, host, 4096));
    fact("nowhere_async_null_copy", cu.cuMemcpyHtoDAsync_v2(p, host, 4096, NULL));
    fact("nowhere_free", cu.cuMemFree_v2(p));
    fact("nowhere_copy_of_freed", cu.cuMemcpyHtoDAsync_v2(p, host, 4096, sa));
    fact("nowhere_free_host", cu.cuMemFreeHost(host));
    MUST(cu.cuCtxPushCurrent_v2(a));
    MUST(cu.cuMemAlloc_v2(&p, 4096));
    MUST(cu.cuMemHostAlloc(&host, 4096, 0));
    MUST(cu.cuMemHostRegister_v2(mine, 4096, 0));
    MUST(cu.cuCtxPopCurrent_v2(&a));
    fact("nowhere_unregister", cu.cuMemHostUnregister(mine));
    fact("nowhere_fill", cu.cuMemsetD8Async(p, 0, 4096, sa));
    fact("nowhere_host_function", cu.cuLaunchHostFunc(sa, nothing, NULL));
    fact("nowhere_priority", cu.cuStreamGetPriority(sa, (int *)&ms));
    MUST(cu.cuStreamSynchronize(sa));
    fact("nowhere_query", cu.cuStreamQuery(sa));
    fact("nowhere_synchronize", cu.cuStreamSynchronize(sa));
    fact("nowhere_copy", cu.cuMemcpyHtoDAsync_v2(p, host, 4096, sa));
    fact("nowhere_record", cu.cuEventRecord(ea, sa));
    fact("nowhere_event_query",
         cu.cuEventQuery(ea) == CUDA_ERROR_NOT_READY ? 0 : cu.cuEventQuery(ea));
    fact("nowhere_event_synchronize", cu.cuEventSynchronize(ea));
    fact("nowhere_wait", cu.cuStreamWaitEvent(sb, ea, 0));
    fact("nowhere_event_destroy", cu.cuEventDestroy_v2(eb));
    fact("nowhere_stream_destroy", cu.cuStreamDestroy_v2(sb));
    fact("stream_destroy_null", cu.cuStreamDestroy_v2(NULL));
    MUST(cu.cuCtxPushCurrent_v2(a));
    fact("stream_destroy_null_here", cu.cuStreamDestroy_v2(NULL));
    fact("stream_destroy_legacy", cu.cuStreamDestroy_v2((CUstream)1));
    fact("event_destroy_null", cu.cuEventDestroy_v2(NULL));
    fact("event_query_null", cu.cuEventQuery(NULL));
    fact("event_record_null", cu.cuEventRecord(NULL, NULL));
}

static void stale_stream_query(void)
{
    CUstream stream;

    context_new();
    MUST(cu.cuStreamCreateWithPriority(&stream, 0, 0));
    MUST(cu.cuStreamDestroy_v2(stream));
    fact("answer", cu.cuStreamQuery(stream));
}

static void stale_stream_copy(void)
{
    CUstream stream;
    CUdeviceptr p;
    char buffer[16] = {0};

    context_new();
    MUST(cu.cuMemAlloc_v2(&p, 16));
    MUST(cu.cuStreamCreateWithPriority(&stream, 0, 0));
    MUST(cu.cuStreamDestroy_v2(stream));
    fact("answer", cu.cuMemcpyHtoDAsync_v2(p, buffer, 16, stream));
}

static void stale_stream_destroy(void)
{
    CUstream stream;

    context_new();
    MUST(cu.cuStreamCreateWithPriority(&stream, 0, 0));
    MUST(cu.cuStreamDestroy_v2(stream));
    fact("answer", cu.cuStreamDestroy_v2(stream));
}

static void stale_event(void)
{
    CUevent event;

    context_new();
    MUST(cu.cuEventCreate(&event, 0));
    MUST(cu.cuEventDestroy_v2(event));
    fact("query", cu.cuEventQuery(event));
    fact("destroy", cu.cuEventDestroy_v2(event));
}

/* Streams and events whose context has gone. */
static void orphans(void)
{
    CUcontext a = context_new(), b;
    CUstream stream;
    CUevent event;

    MUST(cu.cuStreamCreateWithPriority(&stream, 0, 0));
    MUST(cu.cuEventCreate(&event, 0));
    MUST(cu.cuCtxCreate_v2(&b, 0, 0));
    MUST(cu.cuCtxDestroy_v2(a));
    fact("stream_query", cu.cuStreamQuery(stream));
    fact("stream_destroy", cu.cuStreamDestroy_v2(stream));
    fact("event_query", cu.cuEventQuery(event));
    fact("event_destroy", cu.cuEventDestroy_v2(event));
}

/* What waits for what. */
static void waiting(void)
{
    size_t big = 4 << 20;
    CUstream blocking, free_stream, third;
    CUdeviceptr p, q, freed;
    void *pinned, *to_free;
    char *plain = malloc(big), *mine = pages(1 << 20, 3);
    CUevent event;
    CUcontext got;

    context_new();
    gate_make();
    memset(plain, 1, big);
    MUST(cu.cuStreamCreateWithPriority(&blocking, 0, 0));
    MUST(cu.cuStreamCreateWithPriority(&free_stream, CU_STREAM_NON_BLOCKING, 0));
    MUST(cu.cuStreamCreateWithPriority(&third, CU_STREAM_NON_BLOCKING, 0));
    MUST(cu.cuMemAlloc_v2(&p, big));
    MUST(cu.cuMemAlloc_v2(&q, big));
    MUST(cu.cuMemHostAlloc(&pinned, big, 0));
    MUST(cu.cuEventCreate(&event, 0));
    /* once each, so that nothing is done for the first time below */
    MUST(cu.cuMemcpyHtoDAsync_v2(p, plain, big, free_stream));
    MUST(cu.cuMemcpyDtoHAsync_v2(plain, p, big, free_stream));
    MUST(cu.cuMemcpyDtoD_v2(q, p, big));
    MUST(cu.cuMemsetD8Async(p, 1, big, free_stream));
    MUST(cu.cuCtxSynchronize());

    gate_close(blocking);
    fact("query_itself", cu.cuStreamQuery(blocking));
    fact("query_null_behind_blocking", cu.cuStreamQuery(NULL));
    fact("query_other", cu.cuStreamQuery(free_stream));
    MUST(cu.cuEventRecord(event, NULL));
    fact("event_on_null_behind_blocking", cu.cuEventQuery(event));
    MUST(cu.cuEventRecord(event, free_stream));
    sleep_ms(100);
    fact("event_on_free", cu.cuEventQuery(event));
    gate_open();
    MUST(cu.cuCtxSynchronize());

    gate_close(free_stream);
    fact("query_null_beside_free", cu.cuStreamQuery(NULL));
    gate_open();
    MUST(cu.cuCtxSynchronize());

#define TIMED(name, stream, call) \
    gate_close(stream);           \
    timed_begin();                \
    timed_end(name, call);
    TIMED("sync_null_behind_blocking", blocking, cu.cuStreamSynchronize(NULL))
    TIMED("sync_null_beside_free", free_stream, cu.cuStreamSynchronize(NULL))
    TIMED("context_synchronize", free_stream, cu.cuCtxSynchronize())
    TIMED("copy_behind_blocking", blocking, cu.cuMemcpyHtoD_v2(p, plain, 16))
    TIMED("copy_beside_free", free_stream, cu.cuMemcpyHtoD_v2(p, plain, 16))
    TIMED("copy_pinned_behind_blocking", blocking, cu.cuMemcpyHtoD_v2(p, pinned, 16))
    TIMED("between_behind_blocking", blocking, cu.cuMemcpyDtoD_v2(q, p, 4096))
    TIMED("async_4k_pageable", free_stream, cu.cuMemcpyHtoDAsync_v2(p, plain, 4096, free_stream))
    TIMED("async_64k_pageable", free_stream, cu.cuMemcpyHtoDAsync_v2(p, plain, 65536, free_stream))
    TIMED("async_64k1_pageable", free_stream, cu.cuMemcpyHtoDAsync_v2(p, plain, 65537, free_stream))
    TIMED("async_1m_pageable", free_stream, cu.cuMemcpyHtoDAsync_v2(p, plain, 1 << 20, free_stream))
    TIMED("async_1m1_pageable", free_stream,
          cu.cuMemcpyHtoDAsync_v2(p, plain, (1 << 20) + 1, free_stream))
    TIMED("async_1536k_pageable", free_stream,
          cu.cuMemcpyHtoDAsync_v2(p, plain, 1536 << 10, free_stream))
    TIMED("async_2m_pageable", free_stream, cu.cuMemcpyHtoDAsync_v2(p, plain, 2 << 20, free_stream))
    TIMED("async_3m_pageable", free_stream, cu.cuMemcpyHtoDAsync_v2(p, plain, 3 << 20, free_stream))
    TIMED("async_4m_pageable", free_stream, cu.cuMemcpyHtoDAsync_v2(p, plain, big, free_stream))
    TIMED("async_4m_pinned", free_stream, cu.cuMemcpyHtoDAsync_v2(p, pinned, big, free_stream))
    TIMED("async_16_to_pageable", free_stream, cu.cuMemcpyDtoHAsync_v2(plain, p, 16, free_stream))
    TIMED("async_4m_to_pageable", free_stream, cu.cuMemcpyDtoHAsync_v2(plain, p, big, free_stream))
    TIMED("async_4m_to_pinned", free_stream, cu.cuMemcpyDtoHAsync_v2(pinned, p, big, free_stream))
    TIMED("async_2d_4k_pageable", free_stream,
          cu.cuMemcpy2DAsync_v2(&((CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                                                  .srcHost = plain,
                                                  .srcPitch = 64,
                                                  .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                                  .dstDevice = p,
                                                  .dstPitch = 64,
                                                  .WidthInBytes = 32,
                                                  .Height = 64}),
                                free_stream))
    TIMED("fill", free_stream, cu.cuMemsetD8Async(p, 1, big, free_stream))
    TIMED("fill_null_behind_blocking", blocking, cu.cuMemsetD8Async(p, 1, big, NULL))
    MUST(cu.cuMemAlloc_v2(&freed, big));
    TIMED("free_beside_free_stream", free_stream, cu.cuMemFree_v2(freed))
    MUST(cu.cuMemAlloc_v2(&freed, big));
    TIMED("free_beside_blocking", blocking, cu.cuMemFree_v2(freed))
    TIMED("alloc_64m", free_stream, cu.cuMemAlloc_v2(&freed, 64 << 20))
    MUST(cu.cuMemFree_v2(freed));
    TIMED("host_alloc", free_stream, cu.cuMemHostAlloc(&to_free, 1 << 20, 0))
    TIMED("host_free", free_stream, cu.cuMemFreeHost(to_free))
    TIMED("register", free_stream, cu.cuMemHostRegister_v2(mine, 1 << 20, 0))
    TIMED("unregister", free_stream, cu.cuMemHostUnregister(mine))
    TIMED("stream_destroy", third, cu.cuStreamDestroy_v2(third))
    MUST(cu.cuStreamCreateWithPriority(&third, CU_STREAM_NON_BLOCKING, 0));
    gate_close(third);
    MUST(cu.cuStreamDestroy_v2(third));
    timed_begin();
    timed_end("context_synchronize_after_stream_destroy", cu.cuCtxSynchronize());
    gate_close(free_stream);
    MUST(cu.cuEventRecord(event, free_stream));
    timed_begin();
    timed_end("event_synchronize", cu.cuEventSynchronize(event));
    gate_close(free_stream);
    MUST(cu.cuEventRecord(event, free_stream));
    fact("elapsed_not_ready", cu.cuEventElapsedTime(&(float){0}, event, event));
    timed_begin();
    timed_end("event_destroy", cu.cuEventDestroy_v2(event));
    /* last: the context itself; another keeps the gate alive */
    MUST(cu.cuCtxGetCurrent(&got));
    CUcontext keeper;
    MUST(cu.cuCtxCreate_v2(&keeper, 0, 0));
    gate_make();
    MUST(cu.cuCtxPushCurrent_v2(got));
    gate_value = 0;
    gate_close(free_stream);
    timed_begin();
    timed_end("context_destroy", cu.cuCtxDestroy_v2(got));
    free(plain);
}

struct inside {
    CUresult version, current, alloc, query, name, synchronize;
    CUstream stream;
};

static void callback(void *data)
{
    struct inside *inside = data;
    CUcontext context;
    CUdeviceptr p;
    const char *text;
    int version;

    inside->version = cu.cuDriverGetVersion(&version);
    inside->current = cu.cuCtxGetCurrent(&context);
    inside->alloc = cu.cuMemAlloc_v2(&p, 16);
    inside->query = cu.cuStreamQuery(inside->stream);
    inside->name = cu.cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &text);
}

static void host_functions(void)
{
    struct inside inside = {0};

    context_new();
    MUST(cu.cuStreamCreateWithPriority(&inside.stream, 0, 0));
    fact("null", cu.cuLaunchHostFunc(inside.stream, NULL, NULL));
    MUST(cu.cuLaunchHostFunc(inside.stream, callback, &inside));
    MUST(cu.cuStreamSynchronize(inside.stream));
    fact("version", inside.version);
    fact("current", inside.current);
    fact("alloc", inside.alloc);
    fact("query", inside.query);
    fact("error_name", inside.name);
    fact("null_stream", cu.cuLaunchHostFunc(NULL, callback, &inside));
    MUST(cu.cuCtxSynchronize());
}

static void values(void)
{
    CUstream stream;
    CUdeviceptr p;
    char *plain = pages(4096, 3), *registered = pages(4096, 3);

    context_new();
    gate_make();
    MUST(cu.cuStreamCreateWithPriority(&stream, 0, 0));
    MUST(cu.cuMemAlloc_v2(&p, 4096));
    MUST(cu.cuMemHostRegister_v2(registered, 4096, 0));
    fact("write_device", cu.cuStreamWriteValue32_v2(stream, p, 5, 0));
    fact("wait_device", cu.cuStreamWaitValue32_v2(stream, p, 5, CU_STREAM_WAIT_VALUE_EQ));
    fact("write_registered",
         cu.cuStreamWriteValue32_v2(stream, (CUdeviceptr)(uintptr_t)registered, 5, 0));
    fact("wait_plain", cu.cuStreamWaitValue32_v2(stream, (CUdeviceptr)(uintptr_t)plain, 0, 0));
    fact("wait_odd", cu.cuStreamWaitValue32_v2(stream, p + 2, 0, 0));
    fact("wait_flags", cu.cuStreamWaitValue32_v2(stream, p, 0, 0x10));
    fact("wait_and", cu.cuStreamWaitValue32_v2(stream, p, 1, 0x2));
    fact("wait_nor", cu.cuStreamWaitValue32_v2(stream, p, 5, 0x3));
    fact("wait_geq_wraps", cu.cuStreamWaitValue32_v2(stream, p, 0xFFFFFFF0u, 0));
    fact("wait_null_stream", cu.cuStreamWaitValue32_v2(NULL, p, 5, 0));
    fact("synchronize", cu.cuCtxSynchronize());
    fact("registered_is", *(int *)registered);
}

static void pools(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemPoolProps bad = props;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemoryPool pool, limited;
    CUstream stream;
    CUdeviceptr p, q, plain;
    cuuint64_t value;
    char buffer[64] = {0}, name[40];
    int small;

    MUST(cu.cuInit(0));
    fact("create_no_context", cu.cuMemPoolCreate(&pool, &props));
    context_new();
    MUST(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    fact("create_null_props", cu.cuMemPoolCreate(&limited, NULL));
    bad.location.id = 99;
    fact("create_bad_device", cu.cuMemPoolCreate(&limited, &bad));
    bad = props;
    bad.allocType = (CUmemAllocationType)0;
    fact("create_bad_type", cu.cuMemPoolCreate(&limited, &bad));
    bad = props;
    bad.location.type = CU_MEM_LOCATION_TYPE_INVALID;
    fact("create_bad_location", cu.cuMemPoolCreate(&limited, &bad));
    for (int i = 1; i <= 8; i++) {
        value = 0;
        MUST(cu.cuMemPoolGetAttribute(pool, (CUmemPool_attribute)i, &value));
        snprintf(name, sizeof name, "attribute_%d_is", i);
        fact(name, i <= 3 ? (int)(value & 0xFFFFFFFF) : (long long)value);
    }
    fact("attribute_unknown", cu.cuMemPoolGetAttribute(pool, (CUmemPool_attribute)99, &value));
    value = 1 << 20;
    fact("threshold_set",
         cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    value = 5;
    fact("high_set_5", cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
    value = 0;
    fact("high_set_0", cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
    fact("used_set", cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    small = 0;
    fact("opportunistic_set",
         cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &small));
    fact("access_own", cu.cuMemPoolSetAccess(pool, &access, 1));
    access.flags = (CUmemAccess_flags)0;
    fact("access_own_none", cu.cuMemPoolSetAccess(pool, &access, 1));
    access.flags = (CUmemAccess_flags)1;
    fact("access_own_read", cu.cuMemPoolSetAccess(pool, &access, 1));
    p = 7;
    fact("alloc_zero", cu.cuMemAllocFromPoolAsync(&p, 0, pool, stream));
    fact("alloc_zero_gives", p == 0 ? 0 : p == 7 ? 1 : 2);
    fact("alloc_pool_null", cu.cuMemAllocFromPoolAsync(&p, 16, NULL, stream));
    fact("alloc_huge", cu.cuMemAllocFromPoolAsync(&p, (size_t)1 << 45, pool, stream));
    fact("alloc", cu.cuMemAllocFromPoolAsync(&p, 1000, pool, stream));
    fact("alloc_aligned_512", p % 512 == 0);
    MUST(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    fact("used_after_1000", (long long)value);
    MUST(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    fact("reserved_after_1000", (long long)value);
    fact("alloc_null_stream", cu.cuMemAllocFromPoolAsync(&q, 1000, pool, NULL));
    MUST(cu.cuMemcpyHtoDAsync_v2(p, buffer, 64, stream));
    fact("copy_beyond", cu.cuMemcpyHtoDAsync_v2(p + 999, buffer, 2, stream));
    fact("free_inner", cu.cuMemFreeAsync(p + 512, stream));
    fact("free_null", cu.cuMemFreeAsync(0, stream));
    fact("free", cu.cuMemFreeAsync(p, stream));
    fact("free_twice", cu.cuMemFreeAsync(p, stream));
    fact("copy_freed", cu.cuMemcpyHtoDAsync_v2(p, buffer, 64, stream));
    CUdeviceptr again;
    MUST(cu.cuMemAllocFromPoolAsync(&again, 1000, pool, stream));
    fact("same_stream_reuse", again == p);
    fact("synchronous_free", cu.cuMemFree_v2(again));
    MUST(cu.cuMemAlloc_v2(&plain, 1000));
    fact("free_async_of_plain", cu.cuMemFreeAsync(plain, stream));
    fact("destroy_with_live", cu.cuMemPoolDestroy(pool));
    fact("live_copy", cu.cuMemcpyHtoD_v2(q, buffer, 64));
    fact("live_free", cu.cuMemFreeAsync(q, stream));
    fact("synchronize", cu.cuCtxSynchronize());
    bad = props;
    bad.maxSize = 64 << 20;
    fact("create_limited", cu.cuMemPoolCreate(&limited, &bad));
    fact("limited_alloc_1m", cu.cuMemAllocFromPoolAsync(&p, 1 << 20, limited, stream));
    fact("limited_alloc_128m", cu.cuMemAllocFromPoolAsync(&q, 128 << 20, limited, stream));
    fact("trim", cu.cuMemPoolTrimTo(limited, 0));
    fact("destroy_null", cu.cuMemPoolDestroy(NULL));
}

/* Memory of a pool when the context that it was allocated in goes. */
static void pool_outlives(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUcontext a = context_new(), b;
    char buffer[64] = {0};
    CUmemoryPool pool;
    CUdeviceptr p;

    MUST(cu.cuMemPoolCreate(&pool, &props));
    MUST(cu.cuMemAllocFromPoolAsync(&p, 1000, pool, NULL));
    MUST(cu.cuCtxSynchronize());
    MUST(cu.cuCtxCreate_v2(&b, 0, 0));
    MUST(cu.cuCtxDestroy_v2(a));
    fact("copy", cu.cuMemcpyHtoD_v2(p, buffer, 64));
    fact("free", cu.cuMemFreeAsync(p, NULL));
    fact("synchronize", cu.cuCtxSynchronize());
    fact("destroy", cu.cuMemPoolDestroy(pool));
}

/* cudriver_sim_fill(destination, bytes, value): the kernel that the simulator knows, in PTX. */
static const char fill_ptx[] =
    ".version 7.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry cudriver_sim_fill(.param .u64 destination, .param .u64 "
    "bytes, .param .u8 value)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .b16 %rs<2>;\n"
    "    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [destination];\n"
    "    ld.param.u64 %rd2, [bytes];\n"
    "    ld.param.u8 %rs1, [value];\n"
    "    add.u64 %rd3, %rd1, %rd2;\n"
    "LOOP:\n"
    "    setp.ge.u64 %p1, %rd1, %rd3;\n"
    "    @%p1 bra END;\n"
    "    st.global.u8 [%rd1], %rs1;\n"
    "    add.u64 %rd1, %rd1, 1;\n"
    "    bra LOOP;\n"
    "END:\n"
    "    ret;\n"
    "}\n";

static CUfunction fill_function(void)
{
    CUmodule module;
    CUfunction function;

    MUST(cu.cuModuleLoadDataEx(&module, fill_ptx, 0, NULL, NULL));
    MUST(cu.cuModuleGetFunction(&function, module, "cudriver_sim_fill"));
    return function;
}

static CUresult launch_fill(CUfunction function, CUdeviceptr p, uint64_t bytes, uint8_t value,
                            unsigned grid, unsigned block)
{
    void *params[] = {&p, &bytes, &value};

    return cu.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, NULL, params, NULL);
}

static void modules(void)
{
    CUmodule module;
    CUfunction function, again;
    CUcontext b;
    CUdeviceptr p;
    char buffer[64] = {0};

    context_new();
    MUST(cu.cuMemAlloc_v2(&p, 64));
    fact("garbage", cu.cuModuleLoadDataEx(&module, "this is no module at all", 0, NULL, NULL));
    fact("empty", cu.cuModuleLoadDataEx(&module, "", 0, NULL, NULL));
    fact("null", cu.cuModuleLoadDataEx(&module, NULL, 0, NULL, NULL));
    fact("version_only", cu.cuModuleLoadDataEx(&module, ".version 7.0\n", 0, NULL, NULL));
    fact("version_99",
         cu.cuModuleLoadDataEx(&module, ".version 99.9\n.target sm_50\n.address_size 64\n", 0, NULL,
                               NULL));
    fact("syntax",
         cu.cuModuleLoadDataEx(
             &module, ".version 7.0\n.target sm_50\n.address_size 64\nnonsense;\n", 0, NULL, NULL));
    fact("comment_first",
         cu.cuModuleLoadDataEx(&module,
                               "// comment\n.version 7.0\n.target sm_50\n.address_size 64\n", 0,
                               NULL, NULL));
    fact("load", cu.cuModuleLoadDataEx(&module, fill_ptx, 0, NULL, NULL));
    fact("function", cu.cuModuleGetFunction(&function, module, "cudriver_sim_fill"));
    fact("function_again", cu.cuModuleGetFunction(&again, module, "cudriver_sim_fill"));
    fact("function_same", function == again);
    fact("function_missing", cu.cuModuleGetFunction(&again, module, "absent"));
    fact("function_prefix", cu.cuModuleGetFunction(&again, module, "cudriver_sim"));
    fact("function_empty", cu.cuModuleGetFunction(&again, module, ""));
    fact("launch", launch_fill(function, p, 64, 9, 1, 1));
    fact("synchronize", cu.cuCtxSynchronize());
    MUST(cu.cuMemcpyDtoH_v2(buffer, p, 64));
    fact("filled", buffer[63]);
    fact("launch_grid_0", launch_fill(function, p, 64, 9, 0, 1));
    fact("launch_block_0", launch_fill(function, p, 64, 9, 1, 0));
    fact("launch_block_1025", launch_fill(function, p, 64, 9, 1, 1025));
    fact("launch_shared", cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 1 << 20, NULL,
                                            (void *[]){&p, &(uint64_t){64}, &(uint8_t){9}}, NULL));
    fact("launch_params_null", cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    MUST(cu.cuCtxCreate_v2(&b, 0, 0));
    fact("launch_elsewhere", launch_fill(function, p, 64, 9, 1, 1));
    MUST(cu.cuCtxDestroy_v2(b));
    fact("unload", cu.cuModuleUnload(module));
    fact("unload_null", cu.cuModuleUnload(NULL));
}

/* After a kernel touched what it must not, everything in the context answers the same. */
static void broken(void)
{
    CUcontext a = context_new(), got, b;
    CUstream stream;
    CUevent event, more;
    CUdeviceptr p, q;
    CUdevice device;
    void *host, *other;
    char *mine = pages(8192, 3);
    size_t value, total;
    unsigned flags;
    CUfunction function = fill_function();

    MUST(cu.cuStreamCreateWithPriority(&stream, 0, 0));
    MUST(cu.cuEventCreate(&event, 0));
    MUST(cu.cuMemAlloc_v2(&p, 4096));
    MUST(cu.cuMemHostAlloc(&host, 4096, 0));
    MUST(cu.cuMemHostRegister_v2(mine, 4096, 0));
    fact("launch", launch_fill(function, 0x10, 16, 1, 1, 1));
    fact("synchronize", cu.cuCtxSynchronize());
    fact("synchronize_again", cu.cuCtxSynchronize());
    fact("stream_synchronize", cu.cuStreamSynchronize(stream));
    fact("stream_query", cu.cuStreamQuery(stream));
    fact("event_query", cu.cuEventQuery(event));
    fact("event_record", cu.cuEventRecord(event, stream));
    fact("event_create", cu.cuEventCreate(&more, 0));
    fact("alloc", cu.cuMemAlloc_v2(&q, 16));
    fact("copy", cu.cuMemcpyDtoH_v2(mine, p, 16));
    fact("fill", cu.cuMemsetD8Async(p, 0, 16, stream));
    fact("info", cu.cuMemGetInfo_v2(&value, &total));
    fact("host_alloc", cu.cuMemHostAlloc(&other, 16, 0));
    fact("register", cu.cuMemHostRegister_v2(mine + 4096, 4096, 0));
    fact("host_flags", cu.cuMemHostGetFlags(&flags, mine));
    fact("pointer", cu.cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    fact("get_device", cu.cuCtxGetDevice(&device));
    fact("get_flags", cu.cuCtxGetFlags(&flags));
    fact("get_limit", cu.cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    fact("get_api_version", cu.cuCtxGetApiVersion(a, &flags));
    fact("get_current", cu.cuCtxGetCurrent(&got));
    fact("priority_range", cu.cuCtxGetStreamPriorityRange(NULL, NULL));
    fact("push", cu.cuCtxPushCurrent_v2(a));
    fact("pop", cu.cuCtxPopCurrent_v2(&got));
    fact("free", cu.cuMemFree_v2(p));
    fact("unregister", cu.cuMemHostUnregister(mine));
    fact("free_host", cu.cuMemFreeHost(host));
    fact("event_destroy", cu.cuEventDestroy_v2(event));
    fact("stream_destroy", cu.cuStreamDestroy_v2(stream));
    fact("create_beside", cu.cuCtxCreate_v2(&b, 0, 0));
    fact("alloc_beside", cu.cuMemAlloc_v2(&q, 16));
    fact("destroy", cu.cuCtxDestroy_v2(a));
    fact("create_after", cu.cuCtxCreate_v2(&b, 0, 0));
    fact("alloc_after", cu.cuMemAlloc_v2(&q, 16));
    fact("primary_retain_after", cu.cuDevicePrimaryCtxRetain(&b, 0));
    fact("primary_reset_after", cu.cuDevicePrimaryCtxReset_v2(0));
    fact("create_after_reset", cu.cuCtxCreate_v2(&b, 0, 0));
}

/* The primary context broken, then reset. */
static void broken_primary(void)
{
    CUcontext context;
    CUfunction function;
    CUdeviceptr p;
    unsigned flags;
    int active;

    MUST(cu.cuInit(0));
    MUST(cu.cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cu.cuCtxPushCurrent_v2(context));
    function = fill_function();
    fact("launch", launch_fill(function, 0x10, 16, 1, 1, 1));
    fact("synchronize", cu.cuCtxSynchronize());
    fact("state", cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
    fact("retain", cu.cuDevicePrimaryCtxRetain(&context, 0));
    fact("reset", cu.cuDevicePrimaryCtxReset_v2(0));
    fact("retain_after", cu.cuDevicePrimaryCtxRetain(&context, 0));
    fact("alloc_after", cu.cuMemAlloc_v2(&p, 16));
    fact("release_after", cu.cuDevicePrimaryCtxRelease_v2(0));
}

static void forked(void)
{
    CUcontext context = context_new(), got;
    CUdeviceptr p;
    const char *text;
    int value, status;
    unsigned flags;
    pid_t child;

    (void)context;
    child = fork();
    if (child == 0) {
        fact("version", cu.cuDriverGetVersion(&value));
        fact("error_name", cu.cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &text));
        fact("init", cu.cuInit(0));
        fact("count", cu.cuDeviceGetCount(&value));
        fact("current", cu.cuCtxGetCurrent(&got));
        fact("pop", cu.cuCtxPopCurrent_v2(&got));
        fact("synchronize", cu.cuCtxSynchronize());
        fact("alloc", cu.cuMemAlloc_v2(&p, 16));
        fact("register", cu.cuMemHostRegister_v2(pages(4096, 3), 4096, 0));
        fact("pointer", cu.cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096));
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, &status, 0);
    fact("child_status", status);
    fact("parent_alloc", cu.cuMemAlloc_v2(&p, 16));
}

static CUdeviceptr at_exit_memory;

static void at_exit(void)
{
    CUcontext got;

    fact("atexit_current", cu.cuCtxGetCurrent(&got));
    fact("atexit_free", cu.cuMemFree_v2(at_exit_memory));
}

__attribute__((destructor)) static void at_end(void)
{
    CUcontext got;
    int value;

    if (group != NULL && strcmp(group, "leaving") == 0) {
        fact("end_version", cu.cuDriverGetVersion(&value));
        fact("end_current", cu.cuCtxGetCurrent(&got));
        fact("end_synchronize", cu.cuCtxSynchronize());
    }
}

static void leaving(void)
{
    atexit(at_exit);
    context_new();
    MUST(cu.cuMemAlloc_v2(&at_exit_memory, 16));
}

static void device_attributes(void)
{
    char name[40];
    int value;

    MUST(cu.cuInit(0));
    for (int i = 1; i <= 150; i++) {
        value = -77;
        if (cu.cuDeviceGetAttribute(&value, (CUdevice_attribute)i, 0) == CUDA_SUCCESS) {
            snprintf(name, sizeof name, "value_%d", i);
            fact(name, value);
        } else {
            snprintf(name, sizeof name, "refused_%d", i);
            fact(name, 1);
        }
    }
}

static void device_facts(void)
{
    CUdevice device;
    char text[64];
    int can;

    MUST(cu.cuInit(0));
    fact("name_short", cu.cuDeviceGetName(text, 4, 0));
    fact("name_short_length", (long long)strlen(text));
    fact("attribute_0", cu.cuDeviceGetAttribute(&can, (CUdevice_attribute)0, 0));
    fact("attribute_9999", cu.cuDeviceGetAttribute(&can, (CUdevice_attribute)9999, 0));
    fact("attribute_device", cu.cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 99));
    fact("pci", cu.cuDeviceGetPCIBusId(text, sizeof text, 0));
    fact("pci_back", cu.cuDeviceGetByPCIBusId(&device, text));
    text[12] = '\0';
    fact("pci_length", (long long)strlen(text));
    fact("pci_upper", strpbrk(text, "abcdef") == NULL);
    fact("pci_short", cu.cuDeviceGetPCIBusId(text, 5, 0));
    fact("pci_13", cu.cuDeviceGetPCIBusId(text, 13, 0));
    fact("pci_12", cu.cuDeviceGetPCIBusId(text, 12, 0));
    fact("pci_nonsense", cu.cuDeviceGetByPCIBusId(&device, "nonsense"));
    fact("pci_absent", cu.cuDeviceGetByPCIBusId(&device, "0000:FE:1f.0"));
    fact("peer_itself", cu.cuDeviceCanAccessPeer(&can, 0, 0));
    fact("peer_itself_can", can);
    fact("peer_absent", cu.cuDeviceCanAccessPeer(&can, 0, 99));
}

static const struct {
    const char *name;
    void (*run)(void);
} groups[] = {
    {"before_init", before_init},
    {"no_context", no_context},
    {"stack", stack},
    {"depth", depth},
    {"destroyed_elsewhere", destroyed_elsewhere},
    {"kept_elsewhere", kept_elsewhere},
    {"stale_push", stale_push},
    {"stale_set", stale_set},
    {"stale_destroy", stale_destroy},
    {"stale_id", stale_id},
    {"primary", primary},
    {"context", context_facts},
    {"limit_ranges", limit_ranges},
    {"memory", memory},
    {"pointers", pointers},
    {"hostreg", hostreg},
    {"shapes", shapes},
    {"streams_events", streams_events},
    {"stale_stream_query", stale_stream_query},
    {"stale_stream_copy", stale_stream_copy},
    {"stale_stream_destroy", stale_stream_destroy},
    {"stale_event", stale_event},
    {"orphans", orphans},
    {"waiting", waiting},
    {"host_functions", host_functions},
    {"values", values},
    {"pools", pools},
    {"pool_outlives", pool_outlives},
    {"pool_reserve", pool_reserve},
    {"modules", modules},
    {"broken", broken},
    {"broken_primary", broken_primary},
    {"forked", forked},
    {"leaving", leaving},
    {"device", device_facts},
    {"device_attributes", device_attributes},
};

int main(int argc, char **argv)
{
    void *library;

    if (argc < 3) {
        for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
            puts(groups[i].name);
        }
        return 0;
    }
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
#define X(name, args, since) *(void **)&cu.name = dlsym(library, #name);
    SIM_FUNCTIONS(X)
#undef X
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        if (strcmp(groups[i].name, argv[2]) == 0) {
            group = argv[2];
            groups[i].run();
            return 0;
        }
    }
    fprintf(stderr, "no group %s\n", argv[2]);
    return 2;
}

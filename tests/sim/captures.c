/*
 * What a driver answers to calls that are made while a stream is being captured, a call a line:
 *
 *   captures LIBRARY
 *
 * A line is the call's name and an answer for each of 24 cases: RESULT/STATUS/END, the call's
 * result, the capture's status after it (1 active, 2 broken) and what the end of the capture
 * returned. The cases, the last changing fastest: the captured stream is non-blocking, blocking;
 * the capture's mode is global, thread local, relaxed; the caller is the capturing thread, another;
 * its interaction mode is as it was, relaxed.
 *
 * Names: c_ on the captured stream, t_ on another, b_ on another that is blocking, n_ on the
 * default stream, p_ on the per-thread one, s_ blocking copies, e_ events, x_ contexts, m_ memory,
 * k_ pools, w_ streams, l_ modules, g_ graphs.
 */
#define _GNU_SOURCE
#include "sim/functions.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct {
#define X(name, args, since) CUresult(*name) args;
    SIM_FUNCTIONS(X)
#undef X
} cu;

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        printf("STOPPED %s %d\n", what, (int)result);
        exit(1);
    }
}

#define MUST(call) must(call, #call)

/* What the calls use, made before each capture. S is the captured stream. */
static CUcontext ctx;
static CUstream S, T, U, spare_stream;
static CUmemoryPool pool, spare_pool;
static CUevent done_event, other_event, spare_event, elapsed_a, elapsed_b;
static CUmodule spare_module;
static CUgraphExec replay;
static CUdeviceptr dev, dev2, spare_dev, spare_pooled, spare_pooled2;
static void *memory, *spare_host;
static char *pinned, *pageable, *registered, *fresh;
static const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                          ".visible .entry nop()\n{\n ret;\n}\n";

static void nothing(void *unused)
{
    (void)unused;
}

/* clang-format off */
#define CALL(name, ...) static CUresult name(void) { __VA_ARGS__; }
CALL(c_is_capturing, CUstreamCaptureStatus s; return cu.cuStreamIsCapturing(S, &s))
CALL(c_info, CUstreamCaptureStatus s; uint64_t id; return cu.cuStreamGetCaptureInfo_v2(S, &s, &id, 0, 0, 0))
CALL(c_getctx, CUcontext c; return cu.cuStreamGetCtx(S, &c))
CALL(c_getflags, unsigned f; return cu.cuStreamGetFlags(S, &f))
CALL(c_query, return cu.cuStreamQuery(S))
CALL(c_sync, return cu.cuStreamSynchronize(S))
CALL(c_record, return cu.cuEventRecord(spare_event, S))
CALL(c_record_query, CUresult r = cu.cuEventRecord(spare_event, S); return r ? r : cu.cuEventQuery(spare_event))
CALL(c_record_sync, CUresult r = cu.cuEventRecord(spare_event, S); return r ? r : cu.cuEventSynchronize(spare_event))
CALL(c_record_destroy, CUresult r = cu.cuEventRecord(spare_event, S); return r ? r : (r = cu.cuEventDestroy_v2(spare_event), spare_event = 0, r))
CALL(c_record_again, CUresult r = cu.cuEventRecord(spare_event, S); if (r) return r; r = cu.cuEventRecord(spare_event, T); return r ? r : cu.cuEventQuery(spare_event))
CALL(c_wait_done, return cu.cuStreamWaitEvent(S, done_event, 0))
CALL(c_htod, return cu.cuMemcpyHtoDAsync_v2(dev, pinned, 64, S))
CALL(c_htod_registered, return cu.cuMemcpyHtoDAsync_v2(dev, registered, 64, S))
CALL(c_htod_pageable, return cu.cuMemcpyHtoDAsync_v2(dev, pageable, 64, S))
CALL(c_htod_pageable_large, return cu.cuMemcpyHtoDAsync_v2(dev, pageable, 1 << 20, S))
CALL(c_htod_torn, return cu.cuMemcpyHtoDAsync_v2(dev, registered, 3 * 4096, S))
CALL(c_dtoh, return cu.cuMemcpyDtoHAsync_v2(pinned, dev, 64, S))
CALL(c_dtoh_pageable, return cu.cuMemcpyDtoHAsync_v2(pageable, dev, 64, S))
CALL(c_dtod, return cu.cuMemcpyDtoDAsync_v2(dev2, dev, 64, S))
CALL(c_peer, return cu.cuMemcpyPeerAsync(dev2, ctx, dev, ctx, 64, S))
CALL(c_bad, return cu.cuMemcpyHtoDAsync_v2(0, pinned, 64, S))
CALL(c_memset, return cu.cuMemsetD8Async(dev, 1, 64, S))
CALL(c_hostfunc, return cu.cuLaunchHostFunc(S, nothing, 0))
CALL(c_write, return cu.cuStreamWriteValue32_v2(S, (CUdeviceptr)(uintptr_t)pinned, 1, 0))
CALL(c_wait_value, return cu.cuStreamWaitValue32_v2(S, (CUdeviceptr)(uintptr_t)pinned, 0, 0))
CALL(c_alloc_on, CUdeviceptr d; return cu.cuMemAllocFromPoolAsync(&d, 4096, pool, S))
CALL(c_free_on, CUresult r = cu.cuMemFreeAsync(spare_pooled, S); return r)
CALL(c_alloc_free_on, CUdeviceptr d; CUresult r = cu.cuMemAllocFromPoolAsync(&d, 4096, pool, S); return r ? r : cu.cuMemFreeAsync(d, S))
CALL(c_begin_again, return cu.cuStreamBeginCapture_v2(S, 2))
CALL(c_destroy_s, CUresult r = cu.cuStreamDestroy_v2(S); if (!r) S = 0; return r)
CALL(t_query, return cu.cuStreamQuery(T))
CALL(t_sync, return cu.cuStreamSynchronize(T))
CALL(t_is_capturing, CUstreamCaptureStatus s; return cu.cuStreamIsCapturing(T, &s))
CALL(t_record, return cu.cuEventRecord(spare_event, T))
CALL(t_htod, return cu.cuMemcpyHtoDAsync_v2(dev, pinned, 64, T))
CALL(t_htod_pageable, return cu.cuMemcpyHtoDAsync_v2(dev, pageable, 64, T))
CALL(t_dtoh_pageable, return cu.cuMemcpyDtoHAsync_v2(pageable, dev, 64, T))
CALL(t_dtod, return cu.cuMemcpyDtoDAsync_v2(dev2, dev, 64, T))
CALL(t_memset, return cu.cuMemsetD8Async(dev, 1, 64, T))
CALL(t_hostfunc, return cu.cuLaunchHostFunc(T, nothing, 0))
CALL(t_write, return cu.cuStreamWriteValue32_v2(T, (CUdeviceptr)(uintptr_t)pinned, 1, 0))
CALL(t_alloc, CUdeviceptr d; CUresult r = cu.cuMemAllocFromPoolAsync(&d, 4096, pool, T); if (!r) spare_pooled2 = d; return r)
CALL(t_alloc_large, CUdeviceptr d; CUresult r = cu.cuMemAllocFromPoolAsync(&d, 64 << 20, pool, T); if (!r) spare_pooled2 = d; return r)
CALL(t_free, CUresult r = cu.cuMemFreeAsync(spare_pooled, T); if (!r) spare_pooled = 0; return r)
CALL(t_join, CUresult r = cu.cuEventRecord(spare_event, S); return r ? r : cu.cuStreamWaitEvent(T, spare_event, 0))
CALL(t_fork_copy, CUresult r = t_join(); return r ? r : cu.cuMemcpyHtoDAsync_v2(dev, pinned, 64, T))
CALL(t_fork_join, CUresult r = t_fork_copy(); if (r) return r; r = cu.cuEventRecord(other_event, T); return r ? r : cu.cuStreamWaitEvent(S, other_event, 0))
CALL(t_destroy, CUresult r = cu.cuStreamDestroy_v2(spare_stream); if (!r) spare_stream = 0; return r)
CALL(b_query, return cu.cuStreamQuery(U))
CALL(b_htod, return cu.cuMemcpyHtoDAsync_v2(dev, pinned, 64, U))
CALL(n_query, return cu.cuStreamQuery(0))
CALL(n_sync, return cu.cuStreamSynchronize(0))
CALL(n_is_capturing, CUstreamCaptureStatus s; return cu.cuStreamIsCapturing(0, &s))
CALL(n_info, CUstreamCaptureStatus s; uint64_t id; return cu.cuStreamGetCaptureInfo_v2(0, &s, &id, 0, 0, 0))
CALL(n_record, return cu.cuEventRecord(spare_event, 0))
CALL(n_wait, return cu.cuStreamWaitEvent(0, done_event, 0))
CALL(n_htod, return cu.cuMemcpyHtoDAsync_v2(dev, pinned, 64, 0))
CALL(n_memset, return cu.cuMemsetD8Async(dev, 1, 64, 0))
CALL(p_query, return cu.cuStreamQuery((CUstream)2))
CALL(p_htod, return cu.cuMemcpyHtoDAsync_v2(dev, pinned, 64, (CUstream)2))
CALL(s_htod, return cu.cuMemcpyHtoD_v2(dev, pinned, 64))
CALL(s_htod_pageable, return cu.cuMemcpyHtoD_v2(dev, pageable, 64))
CALL(s_dtoh, return cu.cuMemcpyDtoH_v2(pageable, dev, 64))
CALL(s_dtod, return cu.cuMemcpyDtoD_v2(dev2, dev, 64))
CALL(e_query, return cu.cuEventQuery(done_event))
CALL(e_sync, return cu.cuEventSynchronize(done_event))
CALL(e_elapsed, float ms; return cu.cuEventElapsedTime(&ms, elapsed_a, elapsed_b))
CALL(e_create, CUevent e; CUresult r = cu.cuEventCreate(&e, 2); if (!r) cu.cuEventDestroy_v2(e); return r)
CALL(e_destroy, CUresult r = cu.cuEventDestroy_v2(spare_event); if (!r) spare_event = 0; return r)
CALL(x_sync, return cu.cuCtxSynchronize())
CALL(x_info, size_t a, b; return cu.cuMemGetInfo_v2(&a, &b))
CALL(x_limit, size_t v; return cu.cuCtxGetLimit(&v, 0))
CALL(x_set_limit, size_t v; cu.cuCtxGetLimit(&v, 1); return cu.cuCtxSetLimit(1, v))
CALL(x_range, int a, b; return cu.cuCtxGetStreamPriorityRange(&a, &b))
CALL(x_push, CUresult r = cu.cuCtxPushCurrent_v2(ctx); CUcontext c; if (!r) r = cu.cuCtxPopCurrent_v2(&c); return r)
CALL(x_retain, CUcontext c; CUresult r = cu.cuDevicePrimaryCtxRetain(&c, 0); if (!r) r = cu.cuDevicePrimaryCtxRelease_v2(0); return r)
CALL(m_alloc, CUdeviceptr d; CUresult r = cu.cuMemAlloc_v2(&d, 64); if (!r) spare_pooled2 = d; return r)
CALL(m_free, CUresult r = cu.cuMemFree_v2(spare_dev); if (!r) spare_dev = 0; return r)
CALL(m_free_pooled, CUresult r = cu.cuMemFree_v2(spare_pooled); if (!r) spare_pooled = 0; return r)
CALL(m_host_alloc, void *p; CUresult r = cu.cuMemHostAlloc(&p, 4096, 1); if (!r) fresh = p; return r)
CALL(m_host_free, CUresult r = cu.cuMemFreeHost(spare_host); if (!r) spare_host = 0; return r)
CALL(m_register, CUresult r = cu.cuMemHostRegister_v2(registered + 8192, 4096, 3); if (!r) fresh = registered + 8192; return r)
CALL(m_unregister, return cu.cuMemHostUnregister(registered))
CALL(m_device_pointer, CUdeviceptr d; return cu.cuMemHostGetDevicePointer_v2(&d, registered, 0))
CALL(m_flags, unsigned f; return cu.cuMemHostGetFlags(&f, registered))
CALL(m_attribute, unsigned t; return cu.cuPointerGetAttribute(&t, 2, (CUdeviceptr)(uintptr_t)registered))
CALL(m_attribute_plain, unsigned t; return cu.cuPointerGetAttribute(&t, 2, (CUdeviceptr)(uintptr_t)pageable))
CALL(m_attribute_device, CUcontext c; return cu.cuPointerGetAttribute(&c, 1, dev))
CALL(k_create, CUmemoryPool k; CUresult r = cu.cuMemPoolCreate(&k, &props); if (!r) cu.cuMemPoolDestroy(k); return r)
CALL(k_destroy, CUresult r = cu.cuMemPoolDestroy(spare_pool); if (!r) spare_pool = 0; return r)
CALL(k_trim, return cu.cuMemPoolTrimTo(pool, 0))
CALL(k_attribute, uint64_t v; return cu.cuMemPoolGetAttribute(pool, 7, &v))
CALL(w_create, CUstream s; CUresult r = cu.cuStreamCreateWithPriority(&s, 1, 0); if (!r) cu.cuStreamDestroy_v2(s); return r)
CALL(l_load, CUmodule m; CUresult r = cu.cuModuleLoadDataEx(&m, ptx, 0, 0, 0); if (!r) spare_module = m; return r)
CALL(l_unload, CUresult r = cu.cuModuleUnload(spare_module); if (!r) spare_module = 0; return r)
CALL(g_new, CUgraph g = NULL; CUresult r = cu.cuStreamBeginCapture_v2(T, CU_STREAM_CAPTURE_MODE_GLOBAL); if (r) return r; r = cu.cuStreamEndCapture(T, &g); if (g) cu.cuGraphDestroy(g); return r)
CALL(g_launch, return cu.cuGraphLaunch(replay, T))
CALL(g_launch_on, return cu.cuGraphLaunch(replay, S))

static const struct { const char *name; CUresult (*call)(void); } calls[] = {
    {"c_is_capturing", c_is_capturing},
    {"c_info", c_info},
    {"c_getctx", c_getctx},
    {"c_getflags", c_getflags},
    {"c_query", c_query},
    {"c_sync", c_sync},
    {"c_record", c_record},
    {"c_record_query", c_record_query},
    {"c_record_sync", c_record_sync},
    {"c_record_destroy", c_record_destroy},
    {"c_record_again", c_record_again},
    {"c_wait_done", c_wait_done},
    {"c_htod", c_htod},
    {"c_htod_registered", c_htod_registered},
    {"c_htod_pageable", c_htod_pageable},
    {"c_htod_pageable_large", c_htod_pageable_large},
    {"c_htod_torn", c_htod_torn},
    {"c_dtoh", c_dtoh},
    {"c_dtoh_pageable", c_dtoh_pageable},
    {"c_dtod", c_dtod},
    {"c_peer", c_peer},
    {"c_bad", c_bad},
    {"c_memset", c_memset},
    {"c_hostfunc", c_hostfunc},
    {"c_write", c_write},
    {"c_wait_value", c_wait_value},
    {"c_alloc_on", c_alloc_on},
    {"c_free_on", c_free_on},
    {"c_alloc_free_on", c_alloc_free_on},
    {"c_begin_again", c_begin_again},
    {"c_destroy_s", c_destroy_s},
    {"t_query", t_query},
    {"t_sync", t_sync},
    {"t_is_capturing", t_is_capturing},
    {"t_record", t_record},
    {"t_htod", t_htod},
    {"t_htod_pageable", t_htod_pageable},
    {"t_dtoh_pageable", t_dtoh_pageable},
    {"t_dtod", t_dtod},
    {"t_memset", t_memset},
    {"t_hostfunc", t_hostfunc},
    {"t_write", t_write},
    {"t_alloc", t_alloc},
    {"t_alloc_large", t_alloc_large},
    {"t_free", t_free},
    {"t_join", t_join},
    {"t_fork_copy", t_fork_copy},
    {"t_fork_join", t_fork_join},
    {"t_destroy", t_destroy},
    {"b_query", b_query},
    {"b_htod", b_htod},
    {"n_query", n_query},
    {"n_sync", n_sync},
    {"n_is_capturing", n_is_capturing},
    {"n_info", n_info},
    {"n_record", n_record},
    {"n_wait", n_wait},
    {"n_htod", n_htod},
    {"n_memset", n_memset},
    {"p_query", p_query},
    {"p_htod", p_htod},
    {"s_htod", s_htod},
    {"s_htod_pageable", s_htod_pageable},
    {"s_dtoh", s_dtoh},
    {"s_dtod", s_dtod},
    {"e_query", e_query},
    {"e_sync", e_sync},
    {"e_elapsed", e_elapsed},
    {"e_create", e_create},
    {"e_destroy", e_destroy},
    {"x_sync", x_sync},
    {"x_info", x_info},
    {"x_limit", x_limit},
    {"x_set_limit", x_set_limit},
    {"x_range", x_range},
    {"x_push", x_push},
    {"x_retain", x_retain},
    {"m_alloc", m_alloc},
    {"m_free", m_free},
    {"m_free_pooled", m_free_pooled},
    {"m_host_alloc", m_host_alloc},
    {"m_host_free", m_host_free},
    {"m_register", m_register},
    {"m_unregister", m_unregister},
    {"m_device_pointer", m_device_pointer},
    {"m_flags", m_flags},
    {"m_attribute", m_attribute},
    {"m_attribute_plain", m_attribute_plain},
    {"m_attribute_device", m_attribute_device},
    {"k_create", k_create},
    {"k_destroy", k_destroy},
    {"k_trim", k_trim},
    {"k_attribute", k_attribute},
    {"w_create", w_create},
    {"l_load", l_load},
    {"l_unload", l_unload},
    {"g_new", g_new},
    {"g_launch", g_launch},
    {"g_launch_on", g_launch_on},
};
/* clang-format on */

struct job {
    CUresult (*call)(void);
    bool relaxed;
    CUresult result;
};

static void *work(void *argument)
{
    struct job *job = argument;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    if (job->relaxed) {
        cu.cuThreadExchangeStreamCaptureMode(&mode);
    }
    job->result = job->call();
    if (job->relaxed) {
        cu.cuThreadExchangeStreamCaptureMode(&mode);
    }
    return NULL;
}

static void *work_apart(void *argument)
{
    cu.cuCtxSetCurrent(ctx);
    return work(argument);
}

static void make(bool blocking)
{
    CUgraph graph;

    MUST(cu.cuStreamCreateWithPriority(&S, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING,
                                       0));
    MUST(cu.cuStreamCreateWithPriority(&T, CU_STREAM_NON_BLOCKING, 0));
    MUST(cu.cuStreamCreateWithPriority(&U, CU_STREAM_DEFAULT, 0));
    MUST(cu.cuStreamCreateWithPriority(&spare_stream, CU_STREAM_NON_BLOCKING, 0));
    MUST(cu.cuEventCreate(&done_event, CU_EVENT_DISABLE_TIMING));
    MUST(cu.cuEventCreate(&other_event, CU_EVENT_DISABLE_TIMING));
    MUST(cu.cuEventCreate(&spare_event, CU_EVENT_DISABLE_TIMING));
    MUST(cu.cuEventCreate(&elapsed_a, CU_EVENT_DEFAULT));
    MUST(cu.cuEventCreate(&elapsed_b, CU_EVENT_DEFAULT));
    MUST(cu.cuEventRecord(done_event, T));
    MUST(cu.cuEventRecord(elapsed_a, T));
    MUST(cu.cuEventRecord(elapsed_b, T));
    MUST(cu.cuMemAlloc_v2(&spare_dev, 64));
    MUST(cu.cuMemAllocFromPoolAsync(&spare_pooled, 4096, pool, T));
    MUST(cu.cuMemHostAlloc(&spare_host, 4096, CU_MEMHOSTALLOC_PORTABLE));
    MUST(cu.cuMemHostRegister_v2(registered, 4096, 3));
    MUST(cu.cuMemPoolCreate(&spare_pool, &props));
    MUST(cu.cuModuleLoadDataEx(&spare_module, ptx, 0, NULL, NULL));
    MUST(cu.cuStreamBeginCapture_v2(T, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cu.cuMemsetD32Async(dev, 7, 1, T));
    MUST(cu.cuStreamEndCapture(T, &graph));
    MUST(cu.cuGraphInstantiateWithFlags(&replay, graph, 0));
    MUST(cu.cuGraphDestroy(graph));
    MUST(cu.cuCtxSynchronize());
    spare_pooled2 = 0;
    fresh = NULL;
}

static void clear(void)
{
    CUstream streams[] = {S, T, U, spare_stream};
    CUevent events[] = {done_event, other_event, spare_event, elapsed_a, elapsed_b};

    cu.cuCtxSynchronize();
    for (int i = 0; i < 4; i++) {
        if (streams[i] != NULL) {
            cu.cuStreamDestroy_v2(streams[i]);
        }
    }
    for (int i = 0; i < 5; i++) {
        if (events[i] != NULL) {
            cu.cuEventDestroy_v2(events[i]);
        }
    }
    cu.cuMemFree_v2(spare_dev);
    cu.cuMemFree_v2(spare_pooled);
    cu.cuMemFree_v2(spare_pooled2);
    if (spare_host != NULL) {
        cu.cuMemFreeHost(spare_host);
    }
    if (fresh == registered + 8192) {
        cu.cuMemHostUnregister(fresh);
    } else if (fresh != NULL) {
        cu.cuMemFreeHost(fresh);
    }
    cu.cuMemHostUnregister(registered);
    if (spare_pool != NULL) {
        cu.cuMemPoolDestroy(spare_pool);
    }
    if (spare_module != NULL) {
        cu.cuModuleUnload(spare_module);
    }
    cu.cuGraphExecDestroy(replay);
    cu.cuCtxSynchronize();
}

static void one(CUresult (*call)(void), bool blocking, CUstreamCaptureMode mode, bool apart,
                bool relaxed)
{
    struct job job = {call, relaxed, CUDA_SUCCESS};
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = NULL;
    CUresult ended;
    pthread_t thread;

    make(blocking);
    MUST(cu.cuStreamBeginCapture_v2(S, mode));
    if (apart) {
        pthread_create(&thread, NULL, work_apart, &job);
        pthread_join(thread, NULL);
    } else {
        work(&job);
    }
    if (S == NULL) {
        printf(" %d/gone", (int)job.result);
    } else {
        MUST(cu.cuStreamIsCapturing(S, &status));
        ended = cu.cuStreamEndCapture(S, &graph);
        printf(" %d/%d/%d", (int)job.result, (int)status, (int)ended);
    }
    if (graph != NULL) {
        cu.cuGraphDestroy(graph);
    }
    clear();
}

int main(int count, char **words)
{
    void *library = dlopen(count > 1 ? words[1] : "libcuda.so.1", RTLD_NOW);

    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
#define X(name, args, since) *(void **)&cu.name = dlsym(library, #name);
    SIM_FUNCTIONS(X)
#undef X
    MUST(cu.cuInit(0));
    MUST(cu.cuDevicePrimaryCtxRetain(&ctx, 0));
    MUST(cu.cuCtxSetCurrent(ctx));
    MUST(cu.cuMemAlloc_v2(&dev, 4 << 20));
    MUST(cu.cuMemAlloc_v2(&dev2, 4 << 20));
    MUST(cu.cuMemHostAlloc(&memory, 4 << 20, 3));
    pinned = memset(memory, 0, 4 << 20);
    pageable = calloc(1, 4 << 20);
    registered = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(cu.cuMemPoolCreate(&pool, &props));
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        printf("%s", calls[i].name);
        for (int k = 0; k < 24; k++) {
            one(calls[i].call, k / 12, (CUstreamCaptureMode)(k / 4 % 3), k / 2 % 2, k % 2);
        }
        puts("");
        fflush(stdout);
    }
    return 0;
}

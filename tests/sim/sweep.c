/*
 * One scenario with everything in it, again and again: each time another driver call, or another
 * operation on a stream, is made to fail. Whatever fails, a destroyed context leaves nothing alive.
 * Linked with the simulator's sources, for the sanitizers.
 */
#define _GNU_SOURCE
#include "sim/functions.h"
#include "sim/cudriver_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define X(name, args, since) CUresult name args;
SIM_FUNCTIONS(X)
#undef X

#define BYTES 4096
#define LARGE 300000

static char *memory;

/* What the scenario made; zero where a call failed. */
struct made {
    CUcontext context;
    CUstream first, second;
    CUevent event;
    CUmemoryPool pool;
    CUdeviceptr plain, pooled, large;
    void *host;
    CUmodule module;
};

/* No result is looked at: every call may fail, and every later one meets what is missing then. */
static void scenario(struct made *made)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    float elapsed;

    (void)cuCtxCreate_v2(&made->context, 0, 0);
    (void)cuStreamCreateWithPriority(&made->first, CU_STREAM_NON_BLOCKING, 0);
    (void)cuStreamCreateWithPriority(&made->second, 0, 0);
    (void)cuEventCreate(&made->event, 0);
    (void)cuMemPoolCreate(&made->pool, &props);
    (void)cuMemAlloc_v2(&made->plain, BYTES);
    (void)cuMemAllocFromPoolAsync(&made->pooled, BYTES, made->pool, made->first);
    (void)cuMemAlloc_v2(&made->large, LARGE);
    (void)cuMemHostAlloc(&made->host, BYTES, 0);
    (void)cuMemHostRegister_v2(memory, BYTES, 0);
    if (made->host != NULL) {
        (void)cuMemcpyHtoDAsync_v2(made->pooled, made->host, BYTES, made->first);
    }
    (void)cuEventRecord(made->event, made->first);
    (void)cuStreamWaitEvent(made->second, made->event, 0);
    (void)cuMemcpyHtoDAsync_v2(made->plain, memory, BYTES, made->second);
    (void)cuMemsetD8Async(made->large, 1, LARGE, NULL);
    (void)cuMemFreeAsync(made->pooled, made->first);
    (void)cuMemFreeAsync(made->large, made->second);
    (void)cuMemcpyDtoH_v2(memory, made->plain, BYTES);
    (void)cuEventElapsedTime(&elapsed, made->event, made->event);
    (void)cuStreamSynchronize(made->first);
    (void)cuCtxSynchronize();
    (void)cuModuleLoadDataEx(&made->module, ".version 7.0\n.target sm_50\n", 0, NULL, NULL);
    (void)cuMemPoolDestroy(made->pool);
    (void)cuStreamDestroy_v2(made->first);
}

/* Undoes what does not go with the context, where the scenario's own call failed. */
static int clean_up(const struct made *made, const char *spec)
{
    static const char *const kinds[] = {"contexts",     "streams", "events",        "allocations",
                                        "device_bytes", "pools",   "registrations", "host_allocs",
                                        "modules",      "pending"};
    int left = 0;

    cudriver_sim_reset();
    (void)cuMemPoolDestroy(made->pool);
    (void)cuCtxSynchronize();
    (void)cuMemFree_v2(made->pooled);
    if (made->context != NULL && cuCtxDestroy_v2(made->context) != CUDA_SUCCESS) {
        fprintf(stderr, "%s: the context could not be destroyed\n", spec);
        left = 1;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (cudriver_sim_live(kinds[i]) != 0) {
            fprintf(stderr, "%s: %lld %s alive\n", spec, cudriver_sim_live(kinds[i]), kinds[i]);
            left = 1;
        }
    }
    return left;
}

int main(void)
{
    int result = 0;

    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (cuInit(0) != CUDA_SUCCESS) {
        return 1;
    }
    for (int call = 1; call <= 30; call++) {
        for (int kind = 0; kind < 2; kind++) {
            struct made made;
            char spec[32];
            memset(&made, 0, sizeof made);
            snprintf(spec, sizeof spec, "%s:%d:719", kind == 0 ? "*" : "async", call);
            cudriver_sim_reset();
            if (cudriver_sim_fail(spec) != 0) {
                return 1;
            }
            scenario(&made);
            result |= clean_up(&made, spec);
        }
    }
    return result;
}

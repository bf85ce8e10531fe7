/*
 * Many threads in the simulated driver at once, for the sanitizers: a data race, a leak or a bad
 * access ends the program. Checks what it copies. Linked with the simulator's sources.
 *
 *   stress ROUNDS
 */
#define _GNU_SOURCE
#include "sim/functions.h"
#include "sim/cudriver_sim.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define X(name, args, since) CUresult name args;
SIM_FUNCTIONS(X)
#undef X

#define THREADS 6
#define BYTES 20000

static int rounds = 50;
static CUcontext shared;
static CUmemoryPool pool;

static void check(bool good, const char *what, int line)
{
    if (!good) {
        fprintf(stderr, "line %d: %s\n", line, what);
        abort();
    }
}

#define CHECK(condition) check(condition, #condition, __LINE__)
#define OK(call) check((call) == CUDA_SUCCESS, #call, __LINE__)

static void count_up(void *data)
{
    atomic_fetch_add((atomic_int *)data, 1);
}

/* A round trip through two streams, an event between them, pinned memory at both ends. */
static void round_trip(unsigned seed, CUstream first, CUstream second, CUevent event, char *in,
                       char *out)
{
    atomic_int called = 0;
    CUdeviceptr p, q;

    memset(in, (int)(seed & 0x7F), BYTES);
    OK(cuMemAllocFromPoolAsync(&p, BYTES, pool, first));
    OK(cuMemAlloc_v2(&q, BYTES));
    OK(cuMemcpyHtoDAsync_v2(p, in, BYTES, first));
    OK(cuMemcpyDtoDAsync_v2(q, p, BYTES, first));
    OK(cuMemFreeAsync(p, first));
    OK(cuLaunchHostFunc(first, count_up, &called));
    OK(cuEventRecord(event, first));
    OK(cuStreamWaitEvent(second, event, 0));
    OK(cuMemcpyDtoHAsync_v2(out, q, BYTES, second));
    OK(cuStreamSynchronize(second));
    CHECK(memcmp(in, out, BYTES) == 0);
    CHECK(atomic_load(&called) == 1);
    OK(cuMemFree_v2(q));
}

static void *worker(void *argument)
{
    unsigned seed = (unsigned)(size_t)argument;
    char *memory =
        mmap(NULL, 2 * 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUcontext own = NULL, popped;
    CUstream first, second;
    CUevent event;

    OK(cuCtxPushCurrent_v2(shared));
    for (int i = 0; i < rounds; i++) {
        bool mine = i % 5 == 4;
        if (mine) {
            OK(cuCtxCreate_v2(&own, 0, 0));
        }
        OK(cuMemHostRegister_v2(memory, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
        OK(cuMemHostRegister_v2(memory + 65536, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
        OK(cuStreamCreateWithPriority(&first, i % 2 ? CU_STREAM_NON_BLOCKING : 0, 0));
        OK(cuStreamCreateWithPriority(&second, i % 3 ? CU_STREAM_NON_BLOCKING : 0, -1));
        OK(cuEventCreate(&event, i % 2 ? CU_EVENT_DISABLE_TIMING : 0));
        round_trip(seed * 31 + (unsigned)i, first, second, event, memory, memory + 65536);
        if (i % 7 == 3) {
            OK(cuCtxSynchronize());
        }
        OK(cuStreamDestroy_v2(first));
        OK(cuMemHostUnregister(memory));
        OK(cuMemHostUnregister(memory + 65536));
        if (mine) {
            OK(cuCtxDestroy_v2(own)); /* with a stream and an event in it */
        } else {
            OK(cuStreamDestroy_v2(second));
            OK(cuEventDestroy_v2(event));
        }
    }
    OK(cuCtxPopCurrent_v2(&popped));
    CHECK(popped == shared);
    munmap(memory, 2 * 65536);
    return NULL;
}

/* Destroys contexts under the hands of a thread that uses them: errors, no more. One that is
 * current nowhere when it is destroyed must not be pushed any more, so it is handed over under a
 * lock. */
struct victim {
    pthread_mutex_t lock;
    CUcontext context;
    atomic_bool over;
};

static void *user(void *argument)
{
    struct victim *victim = argument;
    char buffer[256];

    while (!atomic_load(&victim->over)) {
        CUcontext context, popped;
        CUdeviceptr p;
        CUstream stream;
        pthread_mutex_lock(&victim->lock);
        context = victim->context;
        if (context != NULL) {
            OK(cuCtxPushCurrent_v2(context));
        }
        pthread_mutex_unlock(&victim->lock);
        if (context == NULL) {
            sched_yield();
            continue;
        }
        if (cuMemAlloc_v2(&p, sizeof buffer) == CUDA_SUCCESS) {
            if (cuStreamCreateWithPriority(&stream, 0, 0) == CUDA_SUCCESS) {
                (void)cuStreamSynchronize(stream);
            }
            /* The stream and the memory end with the context, and another thread may have their
             * handle and address by now. So neither is freed, and the fill uses the default stream
             * of the context itself. */
            (void)cuMemsetD8Async(p, 1, sizeof buffer, NULL);
            (void)cuMemcpyDtoH_v2(buffer, p, sizeof buffer);
        }
        OK(cuCtxPushCurrent_v2(context)); /* destroyed by now, or not */
        (void)cuCtxSynchronize();
        OK(cuCtxPopCurrent_v2(&popped));
        OK(cuCtxPopCurrent_v2(&popped));
    }
    return NULL;
}

static void victim_set(struct victim *victim, CUcontext context)
{
    pthread_mutex_lock(&victim->lock);
    victim->context = context;
    pthread_mutex_unlock(&victim->lock);
}

static void *destroyer(void *argument)
{
    struct victim *victim = argument;

    for (int i = 0; i < rounds; i++) {
        CUcontext context, popped;
        OK(cuCtxCreate_v2(&context, 0, 0));
        OK(cuCtxPopCurrent_v2(&popped));
        victim_set(victim, context);
        for (int j = 0; j < 200; j++) {
            (void)cudriver_sim_live("pending");
        }
        victim_set(victim, NULL);
        OK(cuCtxDestroy_v2(context));
    }
    atomic_store(&victim->over, true);
    return NULL;
}

/* The primary context, retained and released from several sides. */
static void *retainer(void *unused)
{
    (void)unused;
    for (int i = 0; i < rounds * 4; i++) {
        CUcontext context, popped;
        CUdeviceptr p;
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxPushCurrent_v2(context));
        OK(cuMemAlloc_v2(&p, 100));
        OK(cuMemsetD32Async(p, 1, 25, NULL));
        OK(cuMemFree_v2(p));
        OK(cuCtxPopCurrent_v2(&popped));
        OK(cuDevicePrimaryCtxRelease_v2(0));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static const char *const kinds[] = {
        "contexts", "primary_retains", "streams",     "events",  "allocations", "allocation_bytes",
        "pools",    "registrations",   "host_allocs", "modules", "pending",     "device_bytes"};
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    struct victim victim = {.lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[THREADS + 4];
    int count = 0;

    if (argc > 1) {
        rounds = atoi(argv[1]);
    }
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&shared, 0, 0));
    OK(cuMemPoolCreate(&pool, &props));
    for (size_t i = 0; i < THREADS; i++) {
        pthread_create(&threads[count++], NULL, worker, (void *)i);
    }
    pthread_create(&threads[count++], NULL, user, &victim);
    pthread_create(&threads[count++], NULL, destroyer, &victim);
    pthread_create(&threads[count++], NULL, retainer, NULL);
    pthread_create(&threads[count++], NULL, retainer, NULL);
    while (count > 0) {
        pthread_join(threads[--count], NULL);
    }
    OK(cuCtxSynchronize());
    OK(cuMemPoolDestroy(pool));
    OK(cuCtxDestroy_v2(shared));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        long long left = cudriver_sim_live(kinds[i]);
        if (left != 0) {
            fprintf(stderr, "%lld %s alive\n", left, kinds[i]);
            return 1;
        }
    }
    return 0;
}

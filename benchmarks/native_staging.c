/*
 * The copy engine alone, on a real GPU: GB/s (10^9 bytes a second) of the driver's own copy, of
 * staged copies of plain memory, and of page-locked memory, both ways; strided copies; the cost of
 * asynchronous calls; many streams behind gates. Best of several rounds. Every staged copy is
 * checked once.
 *
 *   gcc -O3 -std=c11 -D_GNU_SOURCE -pthread -iquote cext benchmarks/native_staging.c \
 *       cext/driver/{driver,platform}.c $(find cext/hostmem cext/engine -name "*.c") \
 *       -ldl -o native_staging
 *   ./native_staging [sizes] [strided] [async] [gates] [threads] [tune]      (default: all but
 * tune)
 *
 * CUDRIVER_LIBRARY names another driver library.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "driver/platform.h"
#include "engine/engine.h"

#define CALL(call)                                                                    \
    do {                                                                              \
        CUresult code = (call);                                                       \
        if (code != CUDA_SUCCESS) {                                                   \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)code); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static CUcontext context;
static size_t most = (size_t)2048 * MIB;

static double seconds(void)
{
    return (double)platform_nanoseconds() / 1e9;
}

struct memory {
    char *plain, *other, *pinned;
    CUdeviceptr device;
};

static struct memory memory;

static struct cudriver_staging_job dense(bool up, size_t bytes, struct cudriver_layout *layout)
{
    *layout = (struct cudriver_layout){.ndim = 0, .itemsize = bytes};
    return (struct cudriver_staging_job){up,           context, NULL, memory.device,
                                         memory.plain, layout,  NULL, NULL};
}

enum way { DRIVER, STAGED, PINNED };

static void copy_once(enum way way, bool up, size_t bytes, CUstream stream)
{
    struct cudriver_layout layout;
    struct cudriver_staging_job job = dense(up, bytes, &layout);

    switch (way) {
    case DRIVER:
        if (up) {
            CALL(cuda.cuMemcpyHtoD_v2(memory.device, memory.plain, bytes));
            CALL(cuda.cuStreamSynchronize(NULL)); /* small ones return before the bytes are there */
        } else {
            CALL(cuda.cuMemcpyDtoH_v2(memory.plain, memory.device, bytes));
        }
        break;
    case STAGED:
        CALL(cudriver_staging_copy(&job));
        break;
    case PINNED:
        if (up) {
            CALL(cuda.cuMemcpyHtoDAsync_v2(memory.device, memory.pinned, bytes, stream));
        } else {
            CALL(cuda.cuMemcpyDtoHAsync_v2(memory.pinned, memory.device, bytes, stream));
        }
        CALL(cuda.cuStreamSynchronize(stream));
        break;
    }
}

/* The best and the median of several rounds, in seconds. */
static double best_of(enum way way, bool up, size_t bytes, double *median)
{
    double times[64];
    int rounds = bytes > 512 * MIB ? 4 : bytes > 16 * MIB ? 10 : 40;

    copy_once(way, up, bytes, NULL);
    for (int i = 0; i < rounds; i++) {
        double begin = seconds(), taken;
        copy_once(way, up, bytes, NULL);
        taken = seconds() - begin;
        int at = i;
        for (; at > 0 && times[at - 1] > taken; at--) {
            times[at] = times[at - 1];
        }
        times[at] = taken;
    }
    *median = times[rounds / 2];
    return times[0];
}

static void sizes(void)
{
    printf("%-10s %25s %25s %25s\n", "", "driver", "staged", "pinned");
    for (int up = 1; up >= 0; up--) {
        for (size_t bytes = 4 * KIB; bytes <= most;
             bytes *= bytes < MIB / 2 || bytes > 64 * MIB ? 4 : 2) {
            double rates[3], medians[3], times[3];
            for (enum way way = DRIVER; way <= PINNED; way++) {
                times[way] = best_of(way, up, bytes, &medians[way]);
                rates[way] = (double)bytes / times[way] / 1e9;
                medians[way] = (double)bytes / medians[way] / 1e9;
            }
            printf("%s %7zu K", up ? "up  " : "down", bytes / KIB);
            for (enum way way = DRIVER; way <= PINNED; way++) {
                printf("  %6.2f (%6.2f) %8.1fus", rates[way], medians[way], times[way] * 1e6);
            }
            printf("  staged/pinned %.2f staged/driver %.2f\n", rates[STAGED] / rates[PINNED],
                   rates[STAGED] / rates[DRIVER]);
            fflush(stdout);
        }
    }
}

/* ---- strided ---- */

struct shape {
    const char *name;
    bool up;
    int ndim;
    size_t itemsize;
    int64_t shape[3], host[3], device[3];
};

static void check(const struct shape *shape)
{
    /* Each item against its place, for a few thousand items. */
    size_t items = 1;
    for (int d = 0; d < shape->ndim; d++) {
        items *= (size_t)shape->shape[d];
    }
    for (size_t k = 0; k < 4000; k++) {
        size_t index = (size_t)(k * 2654435761u * 97) % items;
        int64_t host = 0, device = 0;
        char item[16];
        for (int d = shape->ndim - 1; d >= 0; d--) {
            host += (int64_t)(index % (size_t)shape->shape[d]) * shape->host[d];
            device += (int64_t)(index % (size_t)shape->shape[d]) * shape->device[d];
            index /= (size_t)shape->shape[d];
        }
        CALL(cuda.cuMemcpyDtoH_v2(item, memory.device + (CUdeviceptr)device, shape->itemsize));
        if (memcmp(item, memory.plain + host, shape->itemsize) != 0) {
            fprintf(stderr, "%s: WRONG at host byte %lld\n", shape->name, (long long)host);
            exit(1);
        }
    }
}

static void strided(void)
{
    const int64_t n = 8192, m = 16384;
    const struct shape shapes[] = {
        {"a.T f4 512 MiB", true, 2, 4, {m, n}, {4, m * 4}, {n * 4, 4}},
        {"a.T f4 down", false, 2, 4, {m, n}, {4, m * 4}, {n * 4, 4}},
        {"a.T f8 512 MiB", true, 2, 8, {n, n}, {8, n * 8}, {n * 8, 8}},
        {"a.T u1 512 MiB", true, 2, 1, {m * 4, n}, {1, m * 4}, {n, 1}},
        {"a.T c16 512 MiB", true, 2, 16, {n / 2, n}, {16, n * 8}, {n * 16, 16}},
        {"a[:, ::2] f4 256 MiB", true, 2, 4, {n, n}, {m * 4, 8}, {n * 4, 4}},
        {"a[:, ::2] f4 down", false, 2, 4, {n, n}, {m * 4, 8}, {n * 4, 4}},
        {"a[:, :n/2] f4 256 MiB", true, 2, 4, {n, n}, {m * 4, 4}, {n * 4, 4}},
        {"a[:, :n/2] f4 down", false, 2, 4, {n, n}, {m * 4, 4}, {n * 4, 4}},
        {"d[:, :n/2] f4 256 MiB", true, 2, 4, {n, n}, {n * 4, 4}, {m * 4, 4}},
        {"d[:, :n/2] f4 down", false, 2, 4, {n, n}, {n * 4, 4}, {m * 4, 4}},
        {"d[:, ::2] f4 256 MiB", true, 2, 4, {n, n}, {n * 4, 4}, {m * 4, 8}},
        {"d[:, ::2] f4 down", false, 2, 4, {n, n}, {n * 4, 4}, {m * 4, 8}},
        {"a.transpose(2,0,1) u1",
         true,
         3,
         1,
         {3, 8192, 8192},
         {1, 8192 * 3, 3},
         {8192 * 8192, 8192, 1}},
        {"a[None].repeat f4 row", true, 2, 4, {n, n}, {0, 4}, {n * 4, 4}},
    };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct shape *shape = &shapes[i];
        struct cudriver_layout layout = {.ndim = shape->ndim, .itemsize = shape->itemsize};
        struct cudriver_staging_plan plan;
        double best = 1e9, total = 0;
        for (int d = 0; d < shape->ndim; d++) {
            layout.shape[d] = shape->shape[d];
            layout.dst_strides[d] = shape->up ? shape->device[d] : shape->host[d];
            layout.src_strides[d] = shape->up ? shape->host[d] : shape->device[d];
        }
        struct cudriver_staging_job job = {shape->up,    context, NULL, memory.device,
                                           memory.plain, &layout, NULL, NULL};
        cudriver_staging_explain(context, &layout, shape->up, true, &plan);
        double begin = seconds();
        CALL(cudriver_staging_copy(&job));
        double first = seconds() - begin;
        check(shape);
        for (int round = 0; round < 8; round++) {
            begin = seconds();
            CALL(cudriver_staging_copy(&job));
            double taken = seconds() - begin;
            best = taken < best ? taken : best;
            total += taken;
        }
        printf("%-24s %-18s %6.2f GB/s (mean %6.2f, first %.1f ms)\n", shape->name,
               cudriver_staging_path_name(plan.path), (double)plan.bytes / best / 1e9,
               (double)plan.bytes * 8 / total / 1e9, first * 1e3);
        fflush(stdout);
    }
}

/* ---- asynchronous ---- */

static void async(void)
{
    static const size_t sizes[] = {4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, 1024 * MIB};
    CUstream stream;

    CALL(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    for (int up = 1; up >= 0; up--) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            double call = 1e9, all = 1e9;
            for (int round = 0; round < 12; round++) {
                struct cudriver_layout layout;
                struct cudriver_staging_job job = dense(up, sizes[i], &layout);
                struct cudriver_staging_transfer *transfer;
                job.stream = stream;
                double begin = seconds(), issued, done;
                CALL(cudriver_staging_copy_async(&job, NULL, NULL, &transfer));
                issued = seconds();
                CALL(cuda.cuStreamSynchronize(stream));
                done = seconds();
                CALL(cudriver_staging_wait(transfer, NULL, NULL));
                cudriver_staging_release(transfer);
                call = issued - begin < call ? issued - begin : call;
                all = done - begin < all ? done - begin : all;
            }
            printf("async %s %8zu K  call %7.1f us, all %10.1f us, %6.2f GB/s\n",
                   up ? "up  " : "down", sizes[i] / KIB, call * 1e6, all * 1e6,
                   (double)sizes[i] / all / 1e9);
            fflush(stdout);
        }
    }
    CALL(cuda.cuStreamDestroy_v2(stream));
}

/* Many streams, each with copies before and behind a gate: gates must not stand in the copies' way.
 */
static void gates(void)
{
    enum { STREAMS = 64, EACH = 4 };
    static CUstream streams[STREAMS];
    static struct cudriver_staging_transfer *transfers[STREAMS][EACH];
    const size_t bytes = 4 * MIB;
    double begin = seconds();

    for (int i = 0; i < STREAMS; i++) {
        CALL(cuda.cuStreamCreateWithPriority(&streams[i], CU_STREAM_NON_BLOCKING, 0));
    }
    for (int k = 0; k < EACH; k++) {
        for (int i = 0; i < STREAMS; i++) {
            struct cudriver_layout layout;
            struct cudriver_staging_job job = dense((i + k) % 2, bytes, &layout);
            size_t offset = (size_t)i * bytes;
            job.stream = streams[i];
            job.device += offset;
            job.host = memory.plain + offset;
            CALL(cuda.cuMemcpyHtoDAsync_v2(job.device, memory.pinned + offset, 65536, streams[i]));
            CALL(cuda.cuMemsetD8Async(job.device, (unsigned char)i, bytes, streams[i]));
            CALL(cudriver_staging_copy_async(&job, NULL, NULL, &transfers[i][k]));
            CALL(cuda.cuMemcpyDtoHAsync_v2(memory.pinned + offset, job.device, 65536, streams[i]));
        }
    }
    double issued = seconds() - begin;
    for (int i = 0; i < STREAMS; i++) {
        for (int k = 0; k < EACH; k++) {
            CALL(cudriver_staging_wait(transfers[i][k], NULL, NULL));
            cudriver_staging_release(transfers[i][k]);
        }
        CALL(cuda.cuStreamSynchronize(streams[i]));
        CALL(cuda.cuStreamDestroy_v2(streams[i]));
    }
    printf(
        "gates: %d copies of 4 MiB on %d streams: issued in %.1f ms, done in %.1f ms, %.1f GB/s\n",
        STREAMS * EACH, STREAMS, issued * 1e3, (seconds() - begin) * 1e3,
        (double)bytes * STREAMS * EACH / (seconds() - begin) / 1e9);
}

/* ---- several threads ---- */

struct task {
    pthread_t thread;
    bool up;
    size_t bytes;
    size_t offset;
    int rounds;
};

static void *task_main(void *data)
{
    struct task *task = data;
    struct cudriver_layout layout;
    struct cudriver_staging_job job = dense(task->up, task->bytes, &layout);

    job.device += task->offset;
    job.host = memory.plain + task->offset;
    CALL(cuda.cuCtxSetCurrent(context));
    for (int i = 0; i < task->rounds; i++) {
        CALL(cuda.cuStreamCreateWithPriority(&job.stream, CU_STREAM_NON_BLOCKING, 0));
        CALL(cudriver_staging_copy(&job));
        CALL(cuda.cuStreamDestroy_v2(job.stream));
    }
    return NULL;
}

static void tasks_run(const char *name, int count, int up, size_t bytes)
{
    struct task tasks[32];
    int rounds = (int)((size_t)2048 * MIB / bytes / (size_t)count);

    rounds = rounds < 2 ? 2 : rounds;
    double begin = seconds();
    for (int i = 0; i < count; i++) {
        tasks[i] = (struct task){.up = up == 2 ? i % 2 : up,
                                 .bytes = bytes,
                                 .offset = (size_t)i * bytes,
                                 .rounds = rounds};
        pthread_create(&tasks[i].thread, NULL, task_main, &tasks[i]);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(tasks[i].thread, NULL);
    }
    printf("%-28s %2d threads of %4zu MiB: %6.2f GB/s in all\n", name, count, bytes / MIB,
           (double)bytes * rounds * count / (seconds() - begin) / 1e9);
    fflush(stdout);
}

static void threads(void)
{
    tasks_run("up and down at once", 2, 2, 512 * MIB);
    tasks_run("up and down at once", 2, 2, 512 * MIB);
    tasks_run("up", 1, 1, 512 * MIB);
    tasks_run("up", 4, 1, 256 * MIB);
    tasks_run("up", 16, 1, 64 * MIB);
    tasks_run("down", 16, 0, 64 * MIB);
    tasks_run("up and down", 16, 2, 64 * MIB);
    tasks_run("up, small", 16, 1, 2 * MIB);
}

/* ---- what the settings do ---- */

static const size_t tune_sizes[] = {MIB,     3 * MIB / 2, 2 * MIB,  3 * MIB,
                                    4 * MIB, 8 * MIB,     16 * MIB, 64 * MIB};
static const int tune_medium[] = {4, 6, 8}, tune_linger[] = {0, 100000};

#define SIZES (sizeof tune_sizes / sizeof tune_sizes[0])
#define MEDIUM (sizeof tune_medium / sizeof tune_medium[0])
#define LINGER (sizeof tune_linger / sizeof tune_linger[0])
#define WAYS (MEDIUM * LINGER + 1) /* the last is the driver's own */
#define TURNS 15

static bool never(void *data)
{
    (void)data;
    return false;
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return left < right ? -1 : left > right;
}

/* One copy's time: the second of two in a row, or one alone after some milliseconds. */
static double tune_once(size_t way, bool up, size_t bytes, bool alone)
{
    struct cudriver_layout layout;
    struct cudriver_staging_job job = dense(up, bytes, &layout);
    double begin = 0;

    job.interrupted = never;
    if (alone) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    for (int run = alone ? 1 : 0; run < 2; run++) {
        begin = seconds();
        if (way == WAYS - 1) {
            copy_once(DRIVER, up, bytes, NULL);
        } else {
            CALL(cudriver_staging_copy(&job));
        }
    }
    return seconds() - begin;
}

/* How many threads, whether they linger, and from which size on: all ways take turns. The last line
 * says what was best. */
static void tune(void)
{
    static double medians[2][2][SIZES][WAYS]; /* up; alone */
    struct cudriver_staging_settings before, settings;
    double best = 0;
    size_t chosen = 0, crossover[2];

    cudriver_staging_get_settings(&before);
    printf("us; medium x linger:");
    for (size_t way = 0; way < WAYS - 1; way++) {
        printf("    %d x %d", tune_medium[way / LINGER], tune_linger[way % LINGER] / 1000);
    }
    printf("  driver\n");
    for (int kind = 0; kind < 4; kind++) {
        bool up = kind < 2, alone = kind % 2 == 1;
        for (size_t s = 0; s < SIZES; s++) {
            double times[WAYS][TURNS];
            for (int turn = -1; turn < TURNS; turn++) {
                for (size_t k = 0; k < WAYS; k++) {
                    size_t way = (k + (size_t)(turn + 1)) % WAYS;
                    settings = before;
                    settings.crossover_up = settings.crossover_down = 4096;
                    if (way < WAYS - 1) {
                        settings.medium = tune_medium[way / LINGER];
                        settings.linger = tune_linger[way % LINGER];
                    }
                    cudriver_staging_set_settings(&settings);
                    times[way][turn < 0 ? 0 : turn] = tune_once(way, up, tune_sizes[s], alone);
                }
            }
            printf("%s %-6s %6.1f MiB:", up ? "up  " : "down", alone ? "alone" : "in row",
                   (double)tune_sizes[s] / (double)MIB);
            for (size_t way = 0; way < WAYS; way++) {
                qsort(times[way], TURNS, sizeof(double), by_value);
                medians[up][alone][s][way] = times[way][TURNS / 2];
                printf(" %8.1f", times[way][TURNS / 2] * 1e6);
            }
            printf("\n");
            fflush(stdout);
        }
    }
    for (size_t way = 0; way < WAYS - 1; way++) {
        double sum = 0;
        for (size_t s = 0; s < SIZES; s++) {
            for (int kind = 0; kind < 4 && tune_sizes[s] >= 4 * MIB; kind++) {
                const double *row = medians[kind / 2][kind % 2][s];
                sum += row[way] / row[WAYS - 1];
            }
        }
        if (way == 0 || sum < best) {
            best = sum;
            chosen = way;
        }
    }
    for (int up = 0; up < 2; up++) {
        size_t s = SIZES;
        while (s > 0 && medians[up][0][s - 1][chosen] < medians[up][0][s - 1][WAYS - 1] &&
               medians[up][1][s - 1][chosen] < medians[up][1][s - 1][WAYS - 1]) {
            s--;
        }
        crossover[up] = tune_sizes[s < SIZES ? s : SIZES - 1];
    }
    printf("best: medium %d linger %d crossover_up %zu crossover_down %zu\n",
           tune_medium[chosen / LINGER], tune_linger[chosen % LINGER], crossover[1], crossover[0]);
    cudriver_staging_set_settings(&before);
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*run)(void);
        bool always;
    } parts[] = {
        {"sizes", sizes, true}, {"strided", strided, true}, {"async", async, true},
        {"gates", gates, true}, {"threads", threads, true}, {"tune", tune, false},
    };
    const char *limit = getenv("CUDRIVER_BENCH_MOST"); /* bytes of the largest copy */
    CUdevice device;
    bool zeroed;
    void *pinned;

    if (limit != NULL) {
        most = strtoull(limit, NULL, 0);
    }
    if (cudriver_driver_load(getenv("CUDRIVER_LIBRARY")) != CUDRIVER_LOADED) {
        fprintf(stderr, "%s\n", cudriver_driver.message);
        return 2;
    }
    CALL(cudriver_driver_init());
    CALL(cuda.cuDeviceGet(&device, 0));
    CALL(cuda.cuDevicePrimaryCtxRetain(&context, device));
    CALL(cuda.cuCtxSetCurrent(context));
    size_t room = most > (size_t)1088 * MIB ? most : (size_t)1088 * MIB;
    memory.plain = malloc(room);
    for (size_t i = 0; i < room / 8; i++) {
        ((uint64_t *)(void *)memory.plain)[i] = i * 0x9e3779b97f4a7c15ull;
    }
    CALL(cudriver_hostmem_alloc(room, false, &pinned, &zeroed));
    memory.pinned = pinned;
    CALL(cuda.cuMemAlloc_v2(&memory.device, room));
    printf("%d processors\n", platform_processor_count());
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        bool run = count == 1 && parts[i].always;
        for (int k = 1; k < count; k++) {
            run |= strcmp(arguments[k], parts[i].name) == 0;
        }
        if (run) {
            parts[i].run();
        }
    }
    return cudriver_staging_shutdown(5000) ? 0 : 1;
}

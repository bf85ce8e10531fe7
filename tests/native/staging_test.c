/*
 * The copy engine (cext/engine/) on a driver library: the simulated one, or a real one.
 *
 *   staging_test SCENARIO [SEED [ROUNDS]]
 *
 * CUDRIVER_LIBRARY names the library. Exit status 0: passed; 2: cannot run here; else the first
 * difference is on standard error. Every copy is checked byte for byte against one made item by
 * item.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "engine/engine.h"
#include "engine/private.h" /* for the settings, and what is left at the end */

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                        \
        }                                                                   \
    } while (0)
#define CALL(call)                                                                    \
    do {                                                                              \
        CUresult code = (call);                                                       \
        if (code != CUDA_SUCCESS) {                                                   \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)code); \
            abort();                                                                  \
        }                                                                             \
    } while (0)

/* ---- the simulated driver's own functions, where there is one ---- */

static struct {
    int (*fail)(const char *spec);
    void (*clear_faults)(void);
    long long (*call_count)(const char *function);
    void (*reset_counts)(void);
    long long (*live)(const char *what);
    void (*hold)(void);
    void (*release)(void);
    int (*set_latency)(unsigned long long microseconds);
    int (*set_version)(int version);
} sim;

static CUcontext context;

static void start(void)
{
    const char *path = getenv("CUDRIVER_LIBRARY");
    CUdevice device;

    if (!cudriver_driver_load(path)) {
        fprintf(stderr, "%s\n", cudriver_driver.message);
        exit(2);
    }
    if (cudriver_driver_init() != CUDA_SUCCESS || cuda.cuDeviceGet(&device, 0) != CUDA_SUCCESS) {
        fprintf(stderr, "no device\n");
        exit(2);
    }
    if (cudriver_driver.simulated) {
        void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        CHECK(library != NULL);
        *(void **)&sim.fail = dlsym(library, "cudriver_sim_fail");
        *(void **)&sim.clear_faults = dlsym(library, "cudriver_sim_clear_faults");
        *(void **)&sim.call_count = dlsym(library, "cudriver_sim_call_count");
        *(void **)&sim.reset_counts = dlsym(library, "cudriver_sim_reset_counts");
        *(void **)&sim.live = dlsym(library, "cudriver_sim_live");
        *(void **)&sim.hold = dlsym(library, "cudriver_sim_hold");
        *(void **)&sim.release = dlsym(library, "cudriver_sim_release");
        *(void **)&sim.set_latency = dlsym(library, "cudriver_sim_set_latency");
        *(void **)&sim.set_version = dlsym(library, "cudriver_sim_set_driver_version");
    }
    CALL(cuda.cuDevicePrimaryCtxRetain(&context, device));
    CALL(cuda.cuCtxSetCurrent(context));
}

static void need_simulator(void)
{
    if (!cudriver_driver.simulated) {
        fprintf(stderr, "needs the simulated driver\n");
        exit(2);
    }
}

/* ---- random numbers, layouts, copies ---- */

struct random {
    uint64_t state;
};

static uint64_t next(struct random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static int below(struct random *random, int limit)
{
    return (int)(next(random) % (uint64_t)limit);
}

/* One copy: a layout, and on both sides memory with margins that must not change. */
struct copy {
    struct cudriver_layout layout;
    bool up;
    size_t host_bytes, device_bytes;
    unsigned char *host, *host_before, *device_before, *device_after;
    CUdeviceptr device;
    CUstream stream;
    bool borrow, spoilt; /* the host's bytes were written again when the call had read them */
};

/* What one side's memory looks like: in one piece, rows with gaps between them, anything, anything
 * with some strides 0. */
enum side { PLAIN, ROWS, ANY, REPEATED };

/* Strides for a shape: the dimensions in any order, with steps, gaps and signs. Returns the bytes
 * of memory, and where in it item 0 lies. */
static size_t side_make(struct random *random, const struct cudriver_layout *layout,
                        int64_t *strides, int64_t *offset, enum side side)
{
    int order[CUDRIVER_MAX_DIMS], ndim = layout->ndim;
    int64_t stride = (int64_t)layout->itemsize, low = 0, high = 0;
    bool any = side == ANY || side == REPEATED;

    for (int d = 0; d < ndim; d++) {
        int at = any ? below(random, d + 1) : d;
        memmove(order + at + 1, order + at, (size_t)(d - at) * sizeof order[0]);
        order[at] = d;
    }
    if (any && below(random, 4) == 0) {
        stride += below(random, 3);
    }
    for (int i = ndim - 1; i >= 0; i--) {
        int d = order[i];
        int64_t step = any && below(random, 3) == 0 ? 2 + below(random, 2) : 1;
        strides[d] = stride * step;
        stride *= step * layout->shape[d];
        stride += side == ROWS || (any && below(random, 3) == 0) ? below(random, 40) : 0;
        if (any && below(random, 4) == 0) {
            strides[d] = -strides[d];
        }
        if (side == REPEATED && below(random, 8) == 0) {
            strides[d] = 0;
        }
    }
    for (int d = 0; d < ndim; d++) {
        int64_t span = (layout->shape[d] - 1) * strides[d];
        *(span < 0 ? &low : &high) += span;
    }
    int64_t margin = below(random, 3) == 0 ? 0 : below(random, 70);
    *offset = margin - low;
    return (size_t)(high - low + (int64_t)layout->itemsize + 2 * margin);
}

static struct copy copy_make(struct random *random, size_t most, CUstream stream)
{
    static const int sizes[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 40, 300};
    struct copy copy = {.up = below(random, 2), .stream = stream, .borrow = below(random, 2)};
    struct cudriver_layout *layout = &copy.layout;
    size_t room;

    layout->itemsize = (size_t)sizes[below(random, sizeof sizes / sizeof sizes[0])];
    layout->ndim = below(random, 5);
    room = most / layout->itemsize;
    room >>= below(random, 8);
    if (layout->ndim == 0) {
        layout->itemsize = 1 + next(random) % most;
    }
    for (int d = 0; d < layout->ndim; d++) {
        int left = layout->ndim - d;
        size_t edge = room;
        while (left-- > 1) {
            edge = edge > 64 ? edge / (4 + (size_t)below(random, 30)) : edge;
        }
        edge = edge < 1 ? 1 : edge;
        layout->shape[d] = 1 + (int64_t)(next(random) % edge);
        room /= (size_t)layout->shape[d];
    }
    enum side host = (enum side)below(random, copy.up ? 4 : 3),
              device = (enum side)below(random, 3);
    copy.device_bytes =
        side_make(random, layout, copy.up ? layout->dst_strides : layout->src_strides,
                  copy.up ? &layout->dst_offset : &layout->src_offset, device);
    copy.host_bytes = side_make(random, layout, copy.up ? layout->src_strides : layout->dst_strides,
                                copy.up ? &layout->src_offset : &layout->dst_offset, host);
    copy.host = malloc(copy.host_bytes);
    copy.host_before = malloc(copy.host_bytes);
    copy.device_before = malloc(copy.device_bytes);
    copy.device_after = malloc(copy.device_bytes);
    for (size_t i = 0; i < copy.host_bytes; i++) {
        copy.host[i] = copy.host_before[i] = (unsigned char)next(random);
    }
    for (size_t i = 0; i < copy.device_bytes; i++) {
        copy.device_before[i] = (unsigned char)next(random);
    }
    CALL(cuda.cuMemAlloc_v2(&copy.device, copy.device_bytes));
    CALL(cuda.cuMemcpyHtoD_v2(copy.device, copy.device_before, copy.device_bytes));
    CALL(cuda.cuStreamSynchronize(NULL)); /* it may return before the bytes are there */
    return copy;
}

static void copy_free(struct copy *copy)
{
    CALL(cuda.cuMemFree_v2(copy->device));
    free(copy->host);
    free(copy->host_before);
    free(copy->device_before);
    free(copy->device_after);
}

/* A staged copy to be made, and its call. */
struct job {
    bool to_device;
    CUcontext context;
    CUstream stream;
    CUdeviceptr device;
    void *host;
    const struct cudriver_layout *layout;
    bool (*interrupted)(void *data);
    void *data;
    bool borrow;
    struct copy *copy; /* or NULL */
};

static struct job job_make(bool up, CUstream stream, CUdeviceptr device, void *host,
                           const struct cudriver_layout *layout)
{
    return (struct job){.to_device = up,
                        .context = context,
                        .stream = stream,
                        .device = device,
                        .host = host,
                        .layout = layout};
}

static struct job copy_job(struct copy *copy)
{
    return (struct job){
        .to_device = copy->up,
        .context = context,
        .stream = copy->stream,
        .device = copy->device,
        .host = copy->host,
        .layout = &copy->layout,
        .borrow = copy->borrow,
        .copy = copy,
    };
}

static void job_plan(const struct job *job, bool waits, struct cudriver_copy_plan *plan)
{
    *plan = (struct cudriver_copy_plan){
        .dst.on_device = job->to_device,
        .src.on_device = !job->to_device,
        .context = job->context,
        .device = job->device,
        .host = job->host,
        .layout = *job->layout,
        .bytes = cudriver_layout_bytes(job->layout),
        .kind = CUDRIVER_COPY_STAGED,
        .borrow = job->borrow,
    };
    staging_plan_make(plan, waits, true);
}

static CUresult job_follow(const struct job *job, struct cudriver_staging_transfer **transfer)
{
    struct cudriver_copy_call call = {
        .stream = job->stream, .interrupted = job->interrupted, .data = job->data};
    struct cudriver_copy_plan plan;

    job_plan(job, transfer == NULL, &plan);
    return cudriver_copy_follow(&plan, &call, transfer);
}

static CUresult copy_now(const struct job *job)
{
    return job_follow(job, NULL);
}

/* Writes to the source as soon as it must have been read. */
static CUresult copy_start(const struct job *job, struct cudriver_staging_transfer **transfer)
{
    CUresult result = job_follow(job, transfer);
    struct copy *copy = job->copy;

    if (result == CUDA_SUCCESS && job->to_device && !job->borrow && copy != NULL) {
        memset(copy->host, 0xee, copy->host_bytes);
        copy->spoilt = true;
    }
    return result;
}

static enum cudriver_staging_path path_of(const struct cudriver_layout *layout, bool up, bool waits)
{
    const struct job job = {.to_device = up, .context = context, .layout = layout};
    struct cudriver_copy_plan plan;

    job_plan(&job, waits, &plan);
    return plan.staged.path;
}

/* The copy, item by item, between images of the memories. */
static void copy_by_items(const struct copy *copy, unsigned char *dst, const unsigned char *src)
{
    const struct cudriver_layout *layout = &copy->layout;
    int64_t index[CUDRIVER_MAX_DIMS] = {0};
    int d;

    do {
        int64_t to = layout->dst_offset, from = layout->src_offset;
        for (d = 0; d < layout->ndim; d++) {
            to += index[d] * layout->dst_strides[d];
            from += index[d] * layout->src_strides[d];
        }
        memcpy(dst + to, src + from, layout->itemsize);
        for (d = layout->ndim - 1; d >= 0 && ++index[d] == layout->shape[d]; d--) {
            index[d] = 0;
        }
    } while (d >= 0);
}

static void describe(const struct copy *copy, const char *what, size_t at)
{
    const struct cudriver_layout *layout = &copy->layout;

    fprintf(stderr, "%s differs at byte %zu: %s, itemsize %zu, offsets %lld %lld, path %d\n", what,
            at, copy->up ? "up" : "down", layout->itemsize, (long long)layout->dst_offset,
            (long long)layout->src_offset, (int)path_of(layout, copy->up, true));
    for (int d = 0; d < layout->ndim; d++) {
        fprintf(stderr, "  %lld: %lld <- %lld\n", (long long)layout->shape[d],
                (long long)layout->dst_strides[d], (long long)layout->src_strides[d]);
    }
    abort();
}

static void compare(const struct copy *copy, const char *what, const unsigned char *seen,
                    const unsigned char *expected, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (seen[i] != expected[i]) {
            describe(copy, what, i);
        }
    }
}

static void copy_mend(const struct copy *copy)
{
    if (copy->spoilt) {
        memcpy(copy->host, copy->host_before, copy->host_bytes);
    }
}

static void copy_verify(const struct copy *copy)
{
    copy_mend(copy);
    CALL(cuda.cuMemcpyDtoH_v2(copy->device_after, copy->device, copy->device_bytes));
    if (copy->up) {
        copy_by_items(copy, copy->device_before, copy->host_before);
    } else {
        copy_by_items(copy, copy->host_before, copy->device_before);
    }
    compare(copy, "the host", copy->host, copy->host_before, copy->host_bytes);
    compare(copy, "the device", copy->device_after, copy->device_before, copy->device_bytes);
}

/* After a copy that failed or was stopped: what it reads is as it was. */
static void copy_verify_source(const struct copy *copy)
{
    copy_mend(copy);
    if (copy->up) {
        compare(copy, "the host", copy->host, copy->host_before, copy->host_bytes);
    } else {
        CALL(cuda.cuMemcpyDtoH_v2(copy->device_after, copy->device, copy->device_bytes));
        compare(copy, "the device", copy->device_after, copy->device_before, copy->device_bytes);
    }
}

/* Settings under which small copies go every way that large ones do. */
static void small_settings(struct random *random)
{
    struct staging_settings settings;

    staging_settings_get(&settings);
    settings.packers = 1 + below(random, 4);
    settings.threads = 1 + below(random, 5);
    settings.linger = below(random, 2) ? 0 : 100000;
    settings.crossover = (size_t)1 << (10 + below(random, 6));
    settings.part = (size_t)4096 * (1 + below(random, 16));
    settings.streaming = below(random, 2) ? settings.streaming : 0;
    staging_lock();
    staging.settings = settings;
    staging_unlock();
}

static unsigned long long milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000;
}

static void rest(unsigned ms)
{
    usleep(ms * 1000);
}

/* ---- scenarios ---- */

static atomic_int asked;

static bool interrupt_at_once(void *data)
{
    (void)data;
    atomic_fetch_add(&asked, 1);
    return true;
}

/* How a copy ended; INTERRUPTED where it has not soon. NULL: the call waited for it. */
static CUresult ending(struct cudriver_staging_transfer *transfer)
{
    CUresult result = CUDA_SUCCESS;

    if (transfer != NULL) {
        staging_lock();
        if (!transfer->over) {
            staging_change_wait(STAGING_POLL_NS);
        }
        result = transfer->over ? transfer->result : CUDRIVER_STAGING_INTERRUPTED;
        staging_unlock();
    }
    return result;
}

/* The same when its stream has passed it, or will. */
static CUresult finish(struct cudriver_staging_transfer *transfer)
{
    while (transfer != NULL && !cudriver_driver_is_forked() &&
           ending(transfer) ==
               CUDRIVER_STAGING_INTERRUPTED) { /* its stream has not passed it yet */
    }
    return transfer == NULL ? CUDA_SUCCESS : cudriver_staging_wait(transfer, CUDA_SUCCESS);
}

static void check_engine_is_empty(void)
{
    cudriver_staging_trim(true);
    staging_lock();
    CHECK(staging.places == NULL && staging.threads == 0 && staging.users == 0);
    staging_unlock();
}

#define MOST ((size_t)300000)

static unsigned paths[8];

static void count_path(const struct copy *copy)
{
    paths[path_of(&copy->layout, copy->up, true)]++;
}

static CUstream stream_make(int round)
{
    CUstream stream = NULL;

    if (round % 3 != 0) {
        CALL(cuda.cuStreamCreateWithPriority(
            &stream, round % 3 == 1 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT, 0));
    }
    return stream;
}

static void stream_free(CUstream stream)
{
    if (stream != NULL) {
        CALL(cuda.cuStreamDestroy_v2(stream));
    }
}

static void blocking(struct random *random, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        CUstream stream = stream_make(i);
        if (i % 16 == 0) {
            small_settings(random);
        }
        struct copy copy = copy_make(random, MOST, stream);
        struct job job = copy_job(&copy);
        count_path(&copy);
        CUresult result = copy_now(&job);
        if (result != CUDA_SUCCESS) {
            fprintf(stderr, "error %d\n", (int)result);
            describe(&copy, "all", 0);
        }
        copy_verify(&copy);
        copy_free(&copy);
        stream_free(stream);
    }
    for (int path = CUDRIVER_STAGING_SMALL; path <= CUDRIVER_STAGING_PERMUTED; path++) {
        printf("path %d: %u\n", path, paths[path]);
        CHECK(rounds < 500 || paths[path] > 0);
    }
}

/* Several asynchronous copies on one stream, before anything is waited for. */
static void async(struct random *random, int rounds)
{
    enum { EACH = 4 };
    for (int i = 0; i < rounds; i++) {
        CUstream stream = stream_make(i);
        struct cudriver_staging_transfer *transfers[EACH];
        struct copy copies[EACH];
        if (i % 16 == 0) {
            small_settings(random);
        }
        for (int k = 0; k < EACH; k++) {
            copies[k] = copy_make(random, MOST / 2, stream);
        }
        for (int k = 0; k < EACH; k++) {
            struct job job = copy_job(&copies[k]);
            CALL(copy_start(&job, &transfers[k]));
        }
        if (i % 2) {
            for (int k = EACH - 1; k >= 0; k--) {
                CALL(finish(transfers[k]));
            }
        } else {
            /* The stream alone tells as much. */
            CALL(cuda.cuStreamSynchronize(stream));
        }
        for (int k = 0; k < EACH; k++) {
            copy_verify(&copies[k]);
            CALL(finish(transfers[k]));
            CALL(ending(transfers[k]));
            cudriver_staging_release(transfers[k]);
            copy_free(&copies[k]);
        }
        stream_free(stream);
    }
}

/* Up, then down from the same device memory, then the host's source is overwritten by a third copy,
 * all queued at once behind a stream that is held: stream order must make them come out as one by
 * one. */
static void ordered(struct random *random, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        size_t bytes = 1 + next(random) % MOST;
        unsigned char *a = malloc(bytes), *b = calloc(1, bytes), *image = malloc(bytes);
        struct cudriver_layout layout = {.ndim = 0, .itemsize = bytes};
        struct cudriver_staging_transfer *transfers[3];
        CUdeviceptr device, other;
        CUstream stream = stream_make(1 + i % 2);

        if (i % 8 == 0) {
            small_settings(random);
        }
        for (size_t k = 0; k < bytes; k++) {
            a[k] = image[k] = (unsigned char)next(random);
        }
        CALL(cuda.cuMemAlloc_v2(&device, bytes));
        CALL(cuda.cuMemAlloc_v2(&other, bytes));
        unsigned char filler = (unsigned char)next(random);
        CALL(cuda.cuMemsetD8Async(other, filler, bytes, stream));
        CALL(cuda.cuStreamSynchronize(stream));
        if (cudriver_driver.simulated && i % 2) {
            sim.hold();
        }
        CALL(cuda.cuMemsetD8Async(device, 7, bytes, stream));
        struct job up = job_make(true, stream, device, a, &layout);
        up.borrow = i % 3;
        struct job down = job_make(false, stream, device, b, &layout);
        struct job over = job_make(false, stream, other, a, &layout);
        CALL(copy_start(&up, &transfers[0]));
        if (!up.borrow) {
            memset(a, 0xee, bytes);
        }
        CALL(copy_start(&down, &transfers[1]));
        CALL(copy_start(&over, &transfers[2]));
        if (cudriver_driver.simulated && i % 2) {
            for (int k = 0; k < 3; k++) {
                CHECK(ending(transfers[k]) == CUDRIVER_STAGING_INTERRUPTED);
            }
            sim.release();
        }
        CALL(cuda.cuStreamSynchronize(stream));
        CHECK(memcmp(b, image, bytes) == 0);
        for (size_t k = 0; k < bytes; k++) {
            CHECK(a[k] == filler);
        }
        for (int k = 0; k < 3; k++) {
            CALL(finish(transfers[k]));
            cudriver_staging_release(transfers[k]);
        }
        CALL(cuda.cuMemFree_v2(device));
        CALL(cuda.cuMemFree_v2(other));
        stream_free(stream);
        free(a);
        free(b);
        free(image);
    }
}

struct task {
    pthread_t thread;
    struct random random;
    int rounds;
};

static void *many_main(void *data)
{
    struct task *task = data;

    CALL(cuda.cuCtxSetCurrent(context));
    for (int i = 0; i < task->rounds; i++) {
        CUstream stream = stream_make(1 + i % 2);
        struct copy copy = copy_make(&task->random, MOST, stream);
        struct job job = copy_job(&copy);
        if (below(&task->random, 2)) {
            CALL(copy_now(&job));
        } else {
            struct cudriver_staging_transfer *transfer;
            CALL(copy_start(&job, &transfer));
            CALL(finish(transfer));
            cudriver_staging_release(transfer);
        }
        copy_verify(&copy);
        copy_free(&copy);
        stream_free(stream);
        if (below(&task->random, 50) == 0) {
            cudriver_staging_trim(false);
        }
        if (below(&task->random, 50) == 0) {
            small_settings(&task->random);
        }
    }
    return NULL;
}

static void threads(struct random *random, int rounds)
{
    enum { THREADS = 8 };
    struct task tasks[THREADS];

    small_settings(random);
    for (int i = 0; i < THREADS; i++) {
        tasks[i] = (struct task){.random = {next(random)}, .rounds = rounds};
        CHECK(pthread_create(&tasks[i].thread, NULL, many_main, &tasks[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(tasks[i].thread, NULL);
    }
}

/* ---- several threads on one stream, trimming, and closing under them ---- */

struct sharer {
    struct task task;
    CUstream stream; /* shared; NULL: the default one */
    bool closing;    /* somebody else ends the engine meanwhile */
};

/* Whether a copy's result is one that there may be. */
static bool result_fits(const struct sharer *sharer, CUresult result)
{
    return result == CUDA_SUCCESS || (sharer->closing && result == CUDA_ERROR_DEINITIALIZED);
}

/* Some copies at once, each of memory of its own; false: the engine has ended. */
static bool share_round(struct sharer *sharer)
{
    enum { MANY = 3 };
    struct random *random = &sharer->task.random;
    struct cudriver_staging_transfer *transfers[MANY] = {NULL};
    struct copy copies[MANY];
    bool copied[MANY], all = true;

    for (int k = 0; k < MANY; k++) {
        copies[k] = copy_make(random, MOST, sharer->stream);
    }
    for (int k = 0; k < MANY; k++) {
        struct job job = copy_job(&copies[k]);
        CUresult result = below(random, 3) == 0 ? copy_now(&job) : copy_start(&job, &transfers[k]);
        CHECK(result_fits(sharer, result));
        copied[k] = result == CUDA_SUCCESS;
    }
    if (below(random, 3) == 0) {
        cudriver_staging_trim(false);
    }
    for (int k = 0; k < MANY; k++) {
        if (transfers[k] != NULL) {
            CUresult result = finish(transfers[k]);
            CHECK(result_fits(sharer, result));
            copied[k] = result == CUDA_SUCCESS;
            cudriver_staging_release(transfers[k]);
        }
    }
    CALL(cuda.cuStreamSynchronize(sharer->stream));
    for (int k = 0; k < MANY; k++) {
        if (copied[k]) {
            copy_verify(&copies[k]);
        }
        all = all && copied[k];
        copy_free(&copies[k]);
    }
    return all;
}

static void *share_main(void *data)
{
    struct sharer *sharer = data;

    CALL(cuda.cuCtxSetCurrent(context));
    for (int i = 0; i < sharer->task.rounds && share_round(sharer); i++) {
        if (below(&sharer->task.random, 20) == 0) {
            small_settings(&sharer->task.random);
        }
    }
    return NULL;
}

static void share(struct random *random, int rounds, bool closing)
{
    enum { SHARERS = 9 };
    CUstream streams[3] = {NULL, stream_make(1), stream_make(1)};
    struct sharer sharers[SHARERS];

    small_settings(random);
    for (int i = 0; i < SHARERS; i++) {
        sharers[i] = (struct sharer){.task = {.random = {next(random)}, .rounds = rounds},
                                     .stream = streams[i % 3],
                                     .closing = closing};
        CHECK(pthread_create(&sharers[i].task.thread, NULL, share_main, &sharers[i]) == 0);
    }
    if (closing) {
        rest(20 + (unsigned)below(random, 40));
        CHECK(cudriver_staging_shutdown(20000));
    }
    for (int i = 0; i < SHARERS; i++) {
        pthread_join(sharers[i].task.thread, NULL);
    }
    stream_free(streams[1]);
    stream_free(streams[2]);
}

static void shared(struct random *random, int rounds)
{
    share(random, rounds, false);
}

/* As many rounds as there are until the engine ends. */
static void closing(struct random *random, int rounds)
{
    (void)rounds;
    share(random, 1000000, true);
}

/* ---- between device memory ---- */

/* The host's side of a copy, in other device memory. */
static void between_once(struct random *random, CUstream stream)
{
    struct copy copy = copy_make(random, MOST / 4, stream);
    struct cudriver_copy_call call = {.stream = stream};
    struct cudriver_staging_transfer *transfer = NULL;
    CUdeviceptr other;

    CALL(cuda.cuMemAlloc_v2(&other, copy.host_bytes));
    CALL(cuda.cuMemcpyHtoD_v2(other, copy.host, copy.host_bytes));
    CALL(cuda.cuStreamSynchronize(NULL));
    struct cudriver_copy_end here = {.on_device = true, .device = copy.device, .context = context};
    struct cudriver_copy_end there = {.on_device = true, .device = other, .context = context};
    struct cudriver_copy_plan plan = {
        .context = context,
        .dst = copy.up ? here : there,
        .src = copy.up ? there : here,
        .layout = copy.layout,
    };
    plan.bytes = cudriver_layout_simplify(&plan.layout, true);
    plan.kind = plan.layout.ndim > 0 ? CUDRIVER_COPY_KERNEL : CUDRIVER_COPY_DIRECT;
    CUresult result = cudriver_copy_follow(&plan, &call, &transfer);
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: error %d%s\n", call.function, (int)result,
                call.refused ? ", refused" : "");
        describe(&copy, "all", 0);
    }
    CALL(cuda.cuStreamSynchronize(stream));
    CALL(cuda.cuMemcpyDtoH_v2(copy.host, other, copy.host_bytes));
    copy_verify(&copy);
    CALL(cuda.cuMemFree_v2(other));
    copy_free(&copy);
}

static void *between_main(void *data)
{
    struct task *task = data;

    CALL(cuda.cuCtxSetCurrent(context));
    for (int i = 0; i < task->rounds; i++) {
        CUstream stream = stream_make(i);
        between_once(&task->random, stream);
        stream_free(stream);
        if (below(&task->random, 50) == 0) {
            cudriver_staging_trim(false);
        }
    }
    return NULL;
}

static void between(struct random *random, int rounds)
{
    enum { THREADS = 4 };
    struct task tasks[THREADS];

    for (int i = 0; i < THREADS; i++) {
        tasks[i] = (struct task){.random = {next(random)}, .rounds = rounds};
        CHECK(pthread_create(&tasks[i].thread, NULL, between_main, &tasks[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(tasks[i].thread, NULL);
    }
}

/* The nth driver call of a copy fails, for n = 1, 2, ... until none does. */
static void faults(struct random *random, int rounds)
{
    unsigned failed = 0, survived = 0;

    need_simulator();
    for (int i = 0; i < rounds; i++) {
        struct random same = {next(random)};
        bool asynchronous = i % 2;
        small_settings(random);
        for (int nth = 1;; nth++) {
            struct random again = same;
            CUstream stream = stream_make(i);
            struct copy copy = copy_make(&again, MOST / 4, stream);
            struct job job = copy_job(&copy);
            CUresult result;
            char spec[64];
            cudriver_staging_trim(true); /* so that streams and events are made, too */
            snprintf(spec, sizeof spec, "*:%d:%d", nth, nth % 2 ? 999 : 2);
            sim.reset_counts();
            CHECK(sim.fail(spec) == 0);
            if (asynchronous) {
                struct cudriver_staging_transfer *transfer = NULL;
                result = copy_start(&job, &transfer);
                if (result == CUDA_SUCCESS) {
                    result = finish(transfer);
                    cudriver_staging_release(transfer);
                }
            } else {
                result = copy_now(&job);
            }
            bool happened = sim.call_count("*") >= nth;
            sim.clear_faults();
            CHECK(happened || result == CUDA_SUCCESS);
            if (result == CUDA_SUCCESS) {
                survived += happened;
                copy_verify(&copy);
            } else {
                failed++;
                CHECK(result == CUDA_ERROR_UNKNOWN || result == CUDA_ERROR_OUT_OF_MEMORY);
                CALL(cuda.cuStreamSynchronize(stream));
                copy_verify_source(&copy);
                /* The engine is whole: the same copy again. */
                if (!copy.up) {
                    memcpy(copy.host, copy.host_before, copy.host_bytes);
                }
                CALL(copy_now(&job));
                if (copy.up) {
                    CALL(cuda.cuMemcpyHtoD_v2(copy.device, copy.device_before, copy.device_bytes));
                    CALL(cuda.cuStreamSynchronize(NULL)); /* it may return before */
                    CALL(copy_now(&job));
                }
                copy_verify(&copy);
            }
            copy_free(&copy);
            stream_free(stream);
            if (!happened) {
                break;
            }
        }
    }
    printf("%u failed, %u survived\n", failed, survived);
    CHECK(failed > 0);
}

static void *release_later(void *data)
{
    rest(*(unsigned *)data);
    sim.release();
    return NULL;
}

/* A copy behind a stream that does not get on, and one whose own chunks do not. */
static void interrupted(struct random *random, int rounds)
{
    need_simulator();
    for (int i = 0; i < rounds; i++) {
        CUstream stream = stream_make(1 + i % 2);
        pthread_t helper;
        unsigned later = 120;
        if (i % 4 == 0) {
            small_settings(random);
        }
        struct copy copy = copy_make(random, MOST, stream);
        struct job job = copy_job(&copy);
        job.interrupted = interrupt_at_once;
        atomic_store(&asked, 0);
        CUdeviceptr spare;
        CALL(cuda.cuMemAlloc_v2(&spare, 1));
        sim.hold();
        if (i % 2) {
            CALL(cuda.cuMemsetD8Async(spare, 0, 1, stream));
        }
        CHECK(pthread_create(&helper, NULL, release_later, &later) == 0);
        CUresult result = copy_now(&job);
        pthread_join(helper, NULL);
        CALL(cuda.cuMemFree_v2(spare));
        CHECK(result == CUDRIVER_STAGING_INTERRUPTED || result == CUDA_SUCCESS);
        CHECK(result == CUDA_SUCCESS || atomic_load(&asked) >= 1);
        if (result == CUDA_SUCCESS) {
            copy_verify(&copy);
        } else {
            copy_verify_source(&copy);
        }
        copy_free(&copy);
        stream_free(stream);
    }
}

/* Contexts that go while copies wait for their streams, or have ended. */
static void forget(struct random *random, int rounds)
{
    CUcontext before = context;

    for (int i = 0; i < rounds; i++) {
        struct cudriver_staging_transfer *transfers[3];
        struct copy copies[3];
        CUcontext made;
        CUstream stream;
        bool held = cudriver_driver.simulated && i % 2;
        small_settings(random);
        CALL(cuda.cuCtxCreate_v2(&made, 0, 0));
        context = made;
        stream = stream_make(1);
        for (int k = 0; k < 3; k++) {
            copies[k] = copy_make(random, MOST / 2, stream);
        }
        if (held) {
            sim.hold();
            CALL(cuda.cuMemsetD8Async(copies[0].device, 1, 1, stream));
        }
        for (int k = 0; k < 3; k++) {
            struct job job = copy_job(&copies[k]);
            CALL(copy_start(&job, &transfers[k]));
        }
        pthread_t helper;
        unsigned later = 60;
        if (held) { /* what is freed waits for the device, as on a real one */
            CHECK(pthread_create(&helper, NULL, release_later, &later) == 0);
        }
        cudriver_staging_forget_context(made);
        for (int k = 0; k < 3; k++) {
            CUresult result = ending(transfers[k]);
            CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_CONTEXT_IS_DESTROYED);
            cudriver_staging_release(transfers[k]);
        }
        if (held) {
            pthread_join(helper, NULL);
        }
        CALL(cuda.cuCtxDestroy_v2(made));
        for (int k = 0; k < 3; k++) {
            free(copies[k].host);
            free(copies[k].host_before);
            free(copies[k].device_before);
            free(copies[k].device_after);
        }
        context = before;
        CALL(cuda.cuCtxSetCurrent(before));
        struct copy copy = copy_make(random, MOST, NULL);
        struct job job = copy_job(&copy);
        CALL(copy_now(&job));
        copy_verify(&copy);
        copy_free(&copy);
    }
}

static void forked(struct random *random, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        struct cudriver_staging_transfer *transfer;
        struct copy copy = copy_make(random, MOST, NULL), other = copy_make(random, MOST, NULL);
        struct job job = copy_job(&copy), next_job = copy_job(&other);
        int status;
        small_settings(random);
        CALL(copy_start(&job, &transfer));
        pid_t child = fork();
        if (child == 0) {
            struct cudriver_staging_transfer *none;
            bool right = copy_now(&next_job) == CUDA_ERROR_NOT_INITIALIZED &&
                         copy_start(&next_job, &none) == CUDA_ERROR_NOT_INITIALIZED &&
                         finish(transfer) == CUDA_ERROR_NOT_INITIALIZED;
            cudriver_staging_release(transfer);
            cudriver_staging_trim(false);
            cudriver_staging_forget_context(context);
            right = cudriver_staging_shutdown(10) && right;
            _exit(right ? 0 : 1);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CALL(finish(transfer));
        cudriver_staging_release(transfer);
        CALL(cuda.cuStreamSynchronize(NULL));
        copy_verify(&copy);
        CALL(copy_now(&next_job));
        copy_verify(&other);
        copy_free(&copy);
        copy_free(&other);
    }
}

/* ---- what nobody can know ---- */

enum { BLOCKS = 64 };

/* Takes what the pool would hand out next, releases the stream and looks whether the device writes
 * there. */
static void check_slot_is_kept(CUstream stream, size_t bytes)
{
    unsigned char *blocks[BLOCKS];

    sim.clear_faults();
    for (int i = 0; i < BLOCKS; i++) {
        bool zeroed;
        CALL(cudriver_hostmem_alloc(bytes, SIZE_MAX, CUDRIVER_NODE_POLICY, (void **)&blocks[i],
                                    &zeroed));
        memset(blocks[i], 0xa5, bytes);
    }
    sim.release();
    CALL(cuda.cuStreamSynchronize(stream));
    for (int i = 0; i < BLOCKS; i++) {
        for (size_t k = 0; k < bytes; k++) {
            CHECK(blocks[i][k] == 0xa5);
        }
        cudriver_hostmem_free(blocks[i]);
    }
}

/* Rows of four-byte items on one side, columns on the other. */
static struct cudriver_layout transposed(int64_t edge)
{
    return (struct cudriver_layout){.ndim = 2,
                                    .itemsize = 4,
                                    .shape = {edge, edge},
                                    .dst_strides = {4 * edge, 4},
                                    .src_strides = {4, 4 * edge}};
}

static void check_path(const struct cudriver_layout *layout, bool up, bool waits,
                       enum cudriver_staging_path path)
{
    CHECK(path_of(layout, up, waits) == path);
}

/* Host and device memory of one copy. */
struct ends {
    size_t bytes;
    unsigned char *host, *back;
    CUdeviceptr device;
    CUstream stream;
};

static struct ends ends_make(struct random *random, size_t bytes)
{
    struct ends ends = {.bytes = bytes, .host = malloc(bytes), .back = malloc(bytes)};

    for (size_t i = 0; i < bytes; i++) {
        ends.host[i] = (unsigned char)next(random);
    }
    CALL(cuda.cuMemAlloc_v2(&ends.device, bytes));
    CALL(cuda.cuMemsetD8Async(ends.device, 0x11, bytes, NULL));
    CALL(cuda.cuStreamSynchronize(NULL));
    ends.stream = stream_make(1);
    return ends;
}

static void ends_free(struct ends *ends)
{
    stream_free(ends->stream);
    CALL(cuda.cuMemFree_v2(ends->device));
    free(ends->host);
    free(ends->back);
}

/* The wait for a copy fails: its slot may be written at any time. */
static void wait_fails(struct random *random)
{
    const struct cudriver_layout dense = {.ndim = 0, .itemsize = 4096};
    const struct cudriver_layout turned = transposed(32);
    struct ends ends = ends_make(random, 4096);
    struct job job = job_make(false, ends.stream, ends.device, ends.host, &dense);
    struct cudriver_copy_plan small = {.src = {.on_device = true, .device = ends.device},
                                       .kind = CUDRIVER_COPY_DIRECT,
                                       .context = context,
                                       .bytes = 4096,
                                       .device = ends.device,
                                       .host = (char *)ends.host,
                                       .layout = dense};
    struct cudriver_copy_call call = {.stream = ends.stream};
    struct cudriver_staging_transfer *transfer;

    /* A small asynchronous copy that is refused when its bytes are on their way already. */
    check_path(&dense, false, false, CUDRIVER_STAGING_SMALL);
    sim.hold();
    CHECK(sim.fail("cuStreamBatchMemOp_v2:2:999,cuStreamSynchronize:1:719") == 0);
    CHECK(copy_start(&job, &transfer) == CUDA_ERROR_UNKNOWN);
    check_slot_is_kept(ends.stream, STAGING_WORDS + TUNING_LANE_LEAST);
    /* A small blocking copy. */
    job.layout = &turned;
    check_path(&turned, false, true, CUDRIVER_STAGING_SMALL);
    sim.hold();
    CHECK(sim.fail("cuEventQuery:1:719,cuStreamSynchronize:1:719") == 0);
    CHECK(copy_now(&job) == CUDA_ERROR_LAUNCH_FAILED);
    check_slot_is_kept(ends.stream, STAGING_WORDS + TUNING_LANE_LEAST);
    /* Without threads. */
    sim.hold();
    CHECK(sim.fail("cuStreamQuery:1:719,cuStreamSynchronize:1:719") == 0);
    CHECK(cudriver_copy_follow(&small, &call, NULL) == CUDA_ERROR_LAUNCH_FAILED);
    check_slot_is_kept(ends.stream, 4096);
    /* The word that the stream writes behind a copy on the device. */
    small.dst = small.src;
    sim.hold();
    CHECK(sim.fail("cuStreamQuery:1:719,cuStreamSynchronize:1:719") == 0);
    CHECK(cudriver_copy_follow(&small, &call, NULL) == CUDA_ERROR_LAUNCH_FAILED);
    check_slot_is_kept(ends.stream, sizeof(uint32_t));
    ends_free(&ends);
}

/* The lane that was given up last; NULL: none. */
static const struct staging_lane *lost_lane(void)
{
    const struct staging_lane *lane = staging.places->lanes;

    while (lane != NULL && !lane->lost) {
        lane = lane->next;
    }
    return lane;
}

/* A copy by parts is refused, and the wait for what was queued of it fails: no other attempt
 * follows, which would race with the first, and no other copy takes its lane. */
static void undo_fails(struct random *random, bool asynchronous)
{
    const struct cudriver_layout layout = transposed(512);
    struct ends ends = ends_make(random, (size_t)1 << 20);
    struct job job = job_make(true, ends.stream, ends.device, ends.host, &layout);
    struct cudriver_staging_transfer *transfer;

    check_path(&layout, true, !asynchronous, CUDRIVER_STAGING_PERMUTED);
    CHECK(sim.fail("cuLaunchKernel:2:2,cuStreamSynchronize:1:2") == 0);
    CHECK((asynchronous ? copy_start(&job, &transfer) : copy_now(&job)) == CUDA_ERROR_UNKNOWN);
    sim.clear_faults();
    CALL(cuda.cuCtxSynchronize()); /* what was queued of it writes the same memory */
    /* The next one on the same stream. */
    CALL(copy_start(&job, &transfer));
    for (int wait = 0; ending(transfer) == CUDRIVER_STAGING_INTERRUPTED; wait++) {
        CHECK(wait < 400);
    }
    CALL(ending(transfer));
    CHECK(lost_lane() != NULL && lost_lane() != transfer->lane);
    cudriver_staging_release(transfer);
    CALL(cuda.cuMemcpyDtoH_v2(ends.back, ends.device, ends.bytes));
    for (int i = 0; i < 512 * 512; i++) {
        CHECK(memcmp(ends.back + 4 * i, ends.host + 4 * (i % 512 * 512 + i / 512), 4) == 0);
    }
    ends_free(&ends);
}

static void unknown(struct random *random, int rounds)
{
    struct staging_settings settings;

    (void)rounds;
    need_simulator();
    wait_fails(random);
    staging_settings_get(&settings);
    settings.crossover = 4096;
    staging_lock();
    staging.settings = settings;
    staging_unlock();
    undo_fails(random, false);
    undo_fails(random, true);
}

/* Copies on one stream, which the first keeps busy, share a lane, unless the stream's handle names
 * another stream in each thread. (The simulated driver has one such stream for all threads, so only
 * the lanes tell.) */
static void lanes(struct random *random, int rounds)
{
    const struct cudriver_layout dense = {.ndim = 0, .itemsize = 4 << 20};
    struct ends ends = ends_make(random, (size_t)4 << 20);
    struct job job = job_make(true, ends.stream, ends.device, ends.host, &dense);

    need_simulator();
    for (int i = 0; i < 2 * rounds; i++) {
        struct cudriver_staging_transfer *transfers[3];
        job.stream = i % 2 ? (CUstream)2 : ends.stream;
        job.borrow = i % 4 < 2;
        sim.hold();
        for (int k = 0; k < 3; k++) {
            CALL(copy_start(&job, &transfers[k]));
        }
        CHECK((transfers[1]->lane == transfers[2]->lane) == (i % 2 == 0));
        sim.release();
        for (int k = 0; k < 3; k++) {
            CALL(finish(transfers[k]));
            cudriver_staging_release(transfers[k]);
        }
        CALL(cuda.cuMemcpyDtoH_v2(ends.back, ends.device, ends.bytes));
        CHECK(memcmp(ends.back, ends.host, ends.bytes) == 0);
    }
    ends_free(&ends);
}

/* The same memory in all copies: each is read before the next is written there. */
static void read_into(struct job *job, int number, struct cudriver_staging_transfer **transfer)
{
    memset(job->host, number, job->layout->itemsize);
    CALL(copy_start(job, transfer));
    memset(job->host, 0xee, job->layout->itemsize);
}

/* Behind a stream that does not get on, as many sources are read as there is memory for. Then the
 * call waits, until it is interrupted; and then nothing reads the source any more. */
static void reading(struct random *random, int rounds)
{
    enum { BYTES = 2 << 20 };
    const struct cudriver_layout dense = {.ndim = 0, .itemsize = BYTES};
    struct staging_settings settings;
    unsigned later = 100;

    need_simulator();
    staging_settings_get(&settings);
    settings.part = (size_t)64 << 10; /* more parts than a stream that is idle has blocks */
    settings.held = (size_t)5 << 20;
    staging_lock();
    staging.settings = settings;
    staging_unlock();
    for (int i = 0; i < rounds; i++) {
        struct cudriver_staging_transfer *transfers[4] = {NULL};
        struct ends ends = ends_make(random, BYTES);
        struct job job = job_make(true, ends.stream, 0, ends.host, &dense);
        CUdeviceptr there[4];
        pthread_t helper;

        for (int k = 0; k < 4; k++) {
            CALL(cuda.cuMemAlloc_v2(&there[k], BYTES));
        }
        sim.hold();
        CALL(cuda.cuMemsetD8Async(ends.device, 1, 1, ends.stream));
        for (int k = 0; k < 2; k++) {
            job.device = there[k];
            read_into(&job, k + 1, &transfers[k]);
        }
        CHECK(staging.held == 2 * BYTES);
        job.device = there[2];
        job.interrupted = interrupt_at_once;
        CHECK(copy_start(&job, &transfers[2]) == CUDRIVER_STAGING_INTERRUPTED);
        CHECK(transfers[2] == NULL);
        CHECK(pthread_create(&helper, NULL, release_later, &later) == 0);
        job.interrupted = NULL;
        read_into(&job, 3, &transfers[2]);
        pthread_join(helper, NULL);
        CHECK(transfers[2] == NULL); /* it waited */
        for (int k = 0; k < 2; k++) {
            CALL(finish(transfers[k]));
        }
        /* More parts than blocks. */
        sim.hold();
        job.device = there[3];
        job.interrupted = interrupt_at_once;
        CHECK(copy_start(&job, &transfers[3]) == CUDRIVER_STAGING_INTERRUPTED);
        CHECK(transfers[3] != NULL);
        free(ends.host);
        ends.host = NULL;
        sim.release();
        CHECK(finish(transfers[3]) == CUDA_ERROR_DEINITIALIZED);
        for (int k = 2; k >= 0; k--) { /* the last of those that are waited for as one */
            cudriver_staging_join(&transfers[k], transfers[k + 1]);
        }
        CHECK(cudriver_staging_wait(transfers[0], CUDA_SUCCESS) == CUDA_ERROR_DEINITIALIZED);
        cudriver_staging_release(transfers[0]);
        CALL(cuda.cuStreamSynchronize(ends.stream));
        CHECK(staging.held == 0);
        for (int k = 0; k < 4; k++) {
            CALL(cuda.cuMemcpyDtoH_v2(ends.back, there[k], BYTES));
            for (int at = 0; at < BYTES && k < 3; at++) {
                CHECK(ends.back[at] == k + 1);
            }
            CALL(cuda.cuMemFree_v2(there[k]));
        }
        ends_free(&ends);
    }
}

/* A driver that refuses stream memory operations is asked for them once. */
static void refused(struct random *random, int rounds)
{
    static const char *const operations[] = {"cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2",
                                             "cuStreamBatchMemOp_v2"};
    const struct cudriver_layout layout = transposed(1024);
    struct ends ends = ends_make(random, (size_t)4 << 20);
    struct job job = job_make(true, ends.stream, ends.device, ends.host, &layout);
    struct cudriver_staging_transfer *transfer;
    long long calls = 0;

    (void)rounds;
    need_simulator();
    check_path(&layout, true, false, CUDRIVER_STAGING_PERMUTED);
    for (int i = 0; i < 3; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "%s:*:801", operations[i]);
        CHECK(sim.fail(spec) == 0);
    }
    sim.reset_counts();
    CALL(copy_start(&job, &transfer));
    CALL(finish(transfer));
    cudriver_staging_release(transfer);
    for (int i = 0; i < 3; i++) {
        calls += sim.call_count(operations[i]);
    }
    CHECK(calls == 1);
    sim.clear_faults();
    CALL(cuda.cuMemcpyDtoH_v2(ends.back, ends.device, ends.bytes));
    for (int i = 0; i < 1024 * 1024; i++) {
        CHECK(memcmp(ends.back + 4 * i, ends.host + 4 * (i % 1024 * 1024 + i / 1024), 4) == 0);
    }
    ends_free(&ends);
}

/* Copies of a broken context are given up: they do not delay the end of the process, they let their
 * stream go on, and they use no memory of the host's. A large one, and a small one whose memory is
 * unmapped. */
static void lost(struct random *random, int rounds)
{
    const struct cudriver_layout dense = {.ndim = 0, .itemsize = 4 << 20};
    const struct cudriver_layout little = {.ndim = 0, .itemsize = 1 << 14};
    struct ends ends = ends_make(random, (size_t)4 << 20);
    struct job job = job_make(true, ends.stream, ends.device, ends.host, &dense);
    job.borrow = true;
    struct job small = job_make(true, ends.stream, ends.device, NULL, &little);
    small.borrow = true;
    struct cudriver_staging_transfer *transfers[2];

    (void)rounds;
    need_simulator();
    small.host = mmap(NULL, little.itemsize, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(small.host != MAP_FAILED);
    sim.hold();
    CALL(cuda.cuMemsetD8Async(ends.device, 1, 1, ends.stream));
    CALL(copy_start(&job, &transfers[0])); /* its stream does not come to it */
    CALL(copy_start(&small, &transfers[1]));
    CHECK(sim.fail("cuMemHostGetFlags:*:719") == 0);
    for (int i = 0; i < 2; i++) {
        CHECK(cudriver_staging_wait(transfers[i], CUDA_ERROR_LAUNCH_FAILED) ==
              CUDA_ERROR_LAUNCH_FAILED);
    }
    CHECK(munmap(small.host, little.itemsize) == 0);
    sim.clear_faults();
    CHECK(cudriver_staging_shutdown(100000));
    check_engine_is_empty();
    sim.release();
    CALL(cuda.cuStreamSynchronize(ends.stream));
    for (int i = 0; i < 2; i++) {
        CHECK(cudriver_staging_wait(transfers[i], CUDA_ERROR_LAUNCH_FAILED) ==
              CUDA_ERROR_LAUNCH_FAILED);
        cudriver_staging_release(transfers[i]);
    }
    ends_free(&ends);
}

/* Everything still under way at exit: streams go on, threads end, nothing is left. */
static void shutdown(struct random *random, int rounds)
{
    enum { EACH = 6 };
    struct cudriver_staging_transfer *transfers[EACH];
    struct copy copies[EACH];
    CUstream stream = stream_make(1);

    (void)rounds;
    small_settings(random);
    for (int k = 0; k < EACH; k++) {
        copies[k] = copy_make(random, MOST, stream);
        copies[k].borrow = true; /* others would wait for the stream, which passes no part */
    }
    if (cudriver_driver.simulated) {
        sim.hold();
    }
    for (int k = 0; k < EACH; k++) {
        struct job job = copy_job(&copies[k]);
        CALL(copy_start(&job, &transfers[k]));
    }
    unsigned long long before = milliseconds();
    bool quiet = cudriver_staging_shutdown(300);
    CHECK(milliseconds() - before < 5000);
    if (cudriver_driver.simulated) {
        sim.release();
    }
    CALL(cuda.cuStreamSynchronize(stream));
    CHECK(cudriver_staging_shutdown(100000) || quiet);
    struct job job = copy_job(&copies[0]);
    CHECK(copy_now(&job) == CUDA_ERROR_DEINITIALIZED);
    for (int k = 0; k < EACH; k++) {
        CUresult result = ending(transfers[k]);
        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED);
        cudriver_staging_release(transfers[k]);
        copy_free(&copies[k]);
    }
    stream_free(stream);
    check_engine_is_empty();
}

/* A driver without stream memory operations: the calling thread copies, and waits. */
static void old(struct random *random, int rounds)
{
    cuda.cuStreamBatchMemOp_v2 = NULL;
    async(random, rounds);
    blocking(random, rounds);
}

/* The default settings, with sizes around each threshold. */
static void sizes(struct random *random, int rounds)
{
    static const size_t around[] = {1, 4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

    (void)rounds;
    for (int64_t dst = INT32_MAX; dst <= (int64_t)INT32_MAX + 1; dst++) { /* the longest pitch */
        for (int64_t src = INT32_MAX; src <= (int64_t)INT32_MAX + 1; src++) {
            const struct cudriver_layout far = {.ndim = 1,
                                                .itemsize = 64,
                                                .shape = {2},
                                                .dst_strides = {dst},
                                                .src_strides = {src}};
            CHECK(cudriver_layout_rows(&far) == (dst == INT32_MAX && src == INT32_MAX));
        }
    }
    for (size_t i = 0; i < sizeof around / sizeof around[0]; i++) {
        for (int delta = -1; delta <= 1; delta++) {
            size_t bytes = around[i] + (size_t)delta;
            if (bytes == 0) {
                continue;
            }
            unsigned char *host = malloc(bytes), *back = malloc(bytes);
            struct cudriver_layout layout = {.ndim = 0, .itemsize = bytes};
            CUdeviceptr device;
            for (size_t k = 0; k < bytes; k++) {
                host[k] = (unsigned char)(next(random) >> 8);
            }
            CALL(cuda.cuMemAlloc_v2(&device, bytes));
            struct job job = job_make(true, NULL, device, host, &layout);
            CALL(copy_now(&job));
            CALL(cuda.cuMemcpyDtoH_v2(back, device, bytes));
            CHECK(memcmp(host, back, bytes) == 0);
            memset(back, 0, bytes);
            job.to_device = false;
            job.host = back;
            CALL(copy_now(&job));
            CHECK(memcmp(host, back, bytes) == 0);
            CALL(cuda.cuMemFree_v2(device));
            free(host);
            free(back);
        }
    }
}

static const struct scenario {
    const char *name;
    void (*run)(struct random *random, int rounds);
    int rounds;
} scenarios[] = {
    {"blocking", blocking, 600}, {"async", async, 120},
    {"ordered", ordered, 60},    {"threads", threads, 40},
    {"shared", shared, 20},      {"closing", closing, 1},
    {"faults", faults, 24},      {"interrupted", interrupted, 24},
    {"forget", forget, 40},      {"forked", forked, 12},
    {"shutdown", shutdown, 1},   {"old", old, 60},
    {"sizes", sizes, 1},         {"between", between, 60},
    {"unknown", unknown, 1},     {"refused", refused, 1},
    {"lost", lost, 1},           {"lanes", lanes, 2},
    {"reading", reading, 4},
};

int main(int count, char **arguments)
{
    struct random random = {count > 2 ? strtoull(arguments[2], NULL, 10) : 1};

    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        if (count > 1 && strcmp(arguments[1], scenarios[i].name) == 0) {
            int rounds = count > 3 ? atoi(arguments[3]) : scenarios[i].rounds;
            start();
            scenarios[i].run(&random, rounds);
            (void)cuda.cuCtxSynchronize(); /* may tell of an error that a scenario caused */
            CHECK(cudriver_staging_shutdown(100000));
            check_engine_is_empty();
            if (strcmp(arguments[1], "unknown") == 0 || strcmp(arguments[1], "lost") == 0) {
                return 0; /* the slots are kept for good */
            }
            CALL(cuda.cuCtxSynchronize());
            if (strcmp(arguments[1], "faults") == 0) {
                /* A call that gives back and was told to fail has given nothing back, and where a
                 * wait failed a slot is kept. */
                CHECK(sim.live("pending") == 0);
                return 0;
            }
            struct cudriver_hostmem_stats memory;
            for (int wait = 0; wait < 5000; wait++) { /* host functions may yet come */
                cudriver_hostmem_get_stats(&memory);
                if (memory.used_blocks == 0) {
                    break;
                }
                rest(1);
            }
            CHECK(memory.used_blocks == 0);
            size_t released;
            CALL(cudriver_hostmem_trim(0, &released));
            if (cudriver_driver.simulated) {
                static const char *const kinds[] = {"pending", "streams",     "events",
                                                    "modules", "allocations", "registrations"};
                for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
                    if (sim.live(kinds[k]) != 0) {
                        fprintf(stderr, "%lld %s alive at the end\n", sim.live(kinds[k]), kinds[k]);
                        return 1;
                    }
                }
            }
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        printf("%s\n", scenarios[i].name);
    }
    return count > 1;
}

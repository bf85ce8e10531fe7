/*
 * Many dense copies at once. The driver takes one to several microseconds for each, also of a
 * batch; a kernel that reads and writes page-locked memory where it is mapped moves rows of 4 KiB
 * at the rate of the bus. Rows of pageable memory travel one behind another through the blocks of
 * one staged copy, between which and the device the kernel moves them. See engine.h, and tuning.h
 * for figures.
 */
#include "private.h"

#include <assert.h>
#include <stdlib.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"

#define BATCH 64 /* copies that one call of the driver takes, at most */

_Static_assert(sizeof(struct cudriver_run) == 32, "as the kernel has it");

/* What a call queues. */
struct runs {
    const struct cudriver_run *runs;
    size_t count;
    size_t small, bytes; /* runs for the kernel, and their bytes */
    size_t together[2];  /* runs that are staged: down, up */
    CUcontext context;
    bool borrow;
    bool batches; /* the driver takes several copies in one call */
    struct staging_place *place;
    struct cudriver_copy_call *call;
    struct cudriver_run *table; /* owned; page-locked, of the kernel's runs; NULL: it does none */
    struct cudriver_staging_transfer *staged; /* owned */
};

void cudriver_runs_choose(struct cudriver_run *runs, size_t count, bool beside)
{
    uint64_t most = beside ? TUNING_BESIDE_MOST + 1 : TUNING_RUN_MOST;
    size_t small = 0, pageable[2] = {0, 0};

    for (size_t i = 0; i < count; i++) {
        pageable[runs[i].up] += runs[i].pageable;
        small += runs[i].bytes < most && !runs[i].pageable;
    }
    most = beside || small >= TUNING_RUNS_LEAST ? most : 0;
    for (size_t i = 0; i < count; i++) {
        if (runs[i].pageable) {
            runs[i].path =
                beside || pageable[runs[i].up] > 1 ? CUDRIVER_RUN_STAGED : CUDRIVER_RUN_APART;
        } else {
            runs[i].path = runs[i].bytes < most ? CUDRIVER_RUN_KERNEL : CUDRIVER_RUN_DIRECT;
        }
    }
}

/* A copy by itself. */
static CUresult run_copy(struct runs *all, const struct cudriver_run *run)
{
    struct cudriver_staging_transfer *staged = NULL;
    struct cudriver_copy_plan plan = {
        .dst = {!run->down, (char *)(uintptr_t)run->dst, run->dst, all->context, -1},
        .src = {!run->up, (char *)(uintptr_t)run->src, run->src, all->context, -1},
        .borrow = all->borrow,
        .layout.itemsize = run->bytes,
    };
    CUresult result;

    cudriver_copy_plan_make(&plan);
    result = cudriver_copy_follow(&plan, all->call, &staged);
    cudriver_staging_join(&all->staged, staged);
    return result;
}

/* ---- page-locked ---- */

/* Fills the table, with runs cut into pieces of `most` bytes, and returns their number. 0: the
 * kernel cannot reach memory of the host. */
static size_t table_fill(struct runs *all, size_t most)
{
    struct cudriver_run *entry = all->table;

    for (size_t i = 0; i < all->count; i++) {
        const struct cudriver_run *run = &all->runs[i];
        uint64_t dst = run->dst, src = run->src;
        if (run->path != CUDRIVER_RUN_KERNEL) {
            continue;
        }
        if (run->up || run->down) {
            uint64_t *host = run->up ? &src : &dst;
            *host = staging_device_address(all->context, (void *)(uintptr_t)*host);
            if (*host == 0) {
                return 0;
            }
        }
        for (uint64_t at = 0; at < run->bytes; at += most, entry++) {
            entry->dst = dst + at;
            entry->src = src + at;
            entry->bytes = run->bytes - at < most ? run->bytes - at : most;
        }
    }
    return (size_t)(entry - all->table);
}

/* Queues the kernel's runs, if it can be had: else there is no table. */
static CUresult kernel_queue(struct runs *all)
{
    struct staging_kernels *kernels;
    size_t most = (all->bytes / TUNING_RUN_PIECES / TUNING_RUN_PIECE + 1) * TUNING_RUN_PIECE;
    size_t entries = all->small + all->bytes / most, count;
    CUdeviceptr address;
    void *table;

    if (all->small == 0 || staging_place_kernels(all->place, &kernels) != CUDA_SUCCESS ||
        staging_slot_get(entries * sizeof *all->table, &table) != CUDA_SUCCESS) {
        return CUDA_SUCCESS;
    }
    all->table = table;
    address = staging_device_address(all->context, table);
    count = address != 0 ? table_fill(all, most) : 0;
    assert(count <= entries);
    if (count == 0) {
        cudriver_hostmem_free(table);
        all->table = NULL;
        return CUDA_SUCCESS;
    }
    all->call->function = "cuLaunchKernel";
    return staging_runs_launch(kernels, address, count, all->call->stream);
}

/* Queues the runs from `first` on that have copies of their own by one call of the driver, which
 * loses no time between them, and returns how many. 0: it refuses one of them, as across the end of
 * a registration, and is not asked again; some may be queued all the same. */
static size_t batch_queue(struct runs *all, size_t first)
{
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    CUdeviceptr dst[BATCH], src[BATCH];
    size_t bytes[BATCH], of = 0, count = 0;

    for (const struct cudriver_run *run = all->runs + first;
         count < BATCH && first + count < all->count && run->path == CUDRIVER_RUN_DIRECT; run++) {
        dst[count] = run->dst;
        src[count] = run->src;
        bytes[count++] = run->bytes;
    }
    all->batches = cuda.cuMemcpyBatchAsync_v2(dst, src, bytes, count, &attributes, &of, 1,
                                              all->call->stream) == CUDA_SUCCESS;
    return all->batches ? count : 0;
}

/* ---- pageable ---- */

/* New: the staged runs of one direction; NULL: no memory. */
static struct staging_runs *runs_gather(const struct runs *all, bool up, size_t *bytes)
{
    size_t most = all->together[up] + 1;
    struct staging_runs *runs = malloc(sizeof *runs + most * sizeof runs->run[0]);
    size_t at = 0, room;
    void *table;

    if (runs == NULL) {
        return NULL;
    }
    runs->count = runs->filled = 0;
    for (size_t i = 0; i < all->count; i++) {
        const struct cudriver_run *run = &all->runs[i];
        if (run->path == CUDRIVER_RUN_STAGED && run->up == up) {
            uint64_t host = up ? run->src : run->dst;
            runs->run[runs->count++] =
                (struct staging_run){at, (char *)(uintptr_t)host, up ? run->dst : run->src};
            at += run->bytes;
        }
    }
    runs->run[runs->count].begin = *bytes = at;
    /* A piece for each run, for each whole length of a piece, and for each end of a part. */
    room = runs->count + at / TUNING_RUN_STAGED + at / (TUNING_PART_LEAST / 4) + 2;
    if (staging_slot_get(room * sizeof *runs->table, &table) != CUDA_SUCCESS) {
        free(runs);
        return NULL;
    }
    runs->table = table;
    runs->room = room;
    atomic_init(&runs->users, 1);
    return runs;
}

/* Stages the pageable runs of one direction together, or else one by one. */
static CUresult staged_queue(struct runs *all, bool up)
{
    struct cudriver_staging_transfer *staged = NULL;
    struct cudriver_copy_plan plan = {.context = all->context, .borrow = all->borrow};
    struct staging_runs *runs = runs_gather(all, up, &plan.bytes);
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (runs != NULL) {
        plan.dst.on_device = up;
        plan.layout.itemsize = plan.bytes;
        staging_plan_make(&plan, false, false);
        plan.staged.runs = runs;
        if (up && plan.staged.path != CUDRIVER_STAGING_SMALL) {
            plan.staged.blocks = TUNING_RUN_STAGED_BLOCKS;
            plan.staged.threads = plan.staged.most;
            plan.staged.streaming = false;
        }
        result = staging_transfer_copy(&plan, all->call, all->place, &staged);
        cudriver_staging_join(&all->staged, staged);
        staging_runs_drop(runs);
    }
    if (!staging_must_do_without(result)) {
        return result;
    }
    result = CUDA_SUCCESS;
    for (size_t i = 0; i < all->count && result == CUDA_SUCCESS; i++) {
        if (all->runs[i].path == CUDRIVER_RUN_STAGED && all->runs[i].up == up) {
            result = run_copy(all, &all->runs[i]);
        }
    }
    return result;
}

/* ---- all ---- */

CUresult cudriver_runs_issue(struct cudriver_run *runs, size_t count, CUcontext context,
                             bool borrow, struct cudriver_copy_call *call, void **table,
                             struct cudriver_staging_transfer **transfer)
{
    struct runs all = {
        .runs = runs, .count = count, .context = context, .borrow = borrow, .call = call};
    CUresult result = staging_place_enter(context, &all.place);

    *table = *transfer = NULL;
    call->function = "cuCtxGetId";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    cudriver_runs_choose(runs, count, call->beside);
    for (size_t i = 0; i < count; i++) {
        all.together[runs[i].up] += runs[i].path == CUDRIVER_RUN_STAGED;
        if (runs[i].path == CUDRIVER_RUN_KERNEL) {
            all.small++;
            all.bytes += runs[i].bytes;
        }
    }
    result = kernel_queue(&all);
    all.batches = cuda.cuMemcpyBatchAsync_v2 != NULL && !cudriver_stream_is_default(call->stream);
    for (size_t i = 0, done; i < count && result == CUDA_SUCCESS; i += done) {
        bool later = runs[i].path == CUDRIVER_RUN_KERNEL ? all.table != NULL
                                                         : runs[i].path == CUDRIVER_RUN_STAGED;
        done = all.batches && runs[i].path == CUDRIVER_RUN_DIRECT ? batch_queue(&all, i) : later;
        if (done == 0) {
            result = run_copy(&all, &runs[i]);
            done = 1;
        }
    }
    for (int up = 1; up >= 0 && result == CUDA_SUCCESS; up--) {
        call->function = NULL;
        result = all.together[up] > 0 ? staged_queue(&all, up) : CUDA_SUCCESS;
    }
    staging_place_leave(all.place);
    *table = all.table;
    *transfer = all.staged;
    call->queued = result == CUDRIVER_STAGING_INTERRUPTED;
    if (result != CUDA_SUCCESS && !call->queued &&
        cuda.cuStreamSynchronize(call->stream) == CUDA_SUCCESS) {
        cudriver_staging_wait(all.staged, CUDA_SUCCESS);
        cudriver_staging_release(all.staged);
        if (all.table != NULL) {
            cudriver_hostmem_free(all.table);
        }
        *table = *transfer = NULL; /* else the device may still use them: they are given up */
    }
    return result;
}

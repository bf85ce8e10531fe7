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

_Static_assert(sizeof(struct cudriver_run) == 32, "as the kernel has it");

/* What a call queues. */
struct runs {
    const struct cudriver_run *runs;
    size_t count;
    size_t small, bytes; /* runs for the kernel, if it can be had, and their bytes */
    size_t pageable[2];  /* runs of pageable memory: down, up */
    CUcontext context;
    bool borrow;
    struct staging_place *place;
    struct cudriver_copy_call *call;
    struct cudriver_run *table; /* owned; page-locked, of the kernel's runs; NULL: it does none */
    struct cudriver_staging_transfer *staged; /* owned */
};

/* ---- one by one ---- */

/* A copy by itself. */
static CUresult run_copy(struct runs *all, const struct cudriver_run *run)
{
    struct cudriver_staging_transfer *staged = NULL;
    struct cudriver_copy_plan plan;
    CUresult result;

    plan.dst = (struct cudriver_copy_end){!run->down, (char *)(uintptr_t)run->dst, run->dst,
                                          all->context, -1};
    plan.src = (struct cudriver_copy_end){!run->up, (char *)(uintptr_t)run->src, run->src,
                                          all->context, -1};
    plan.blocking = plan.fixed = plan.ask = false;
    plan.borrow = all->borrow;
    plan.layout.ndim = 0;
    plan.layout.itemsize = run->bytes;
    plan.layout.dst_offset = plan.layout.src_offset = 0;
    cudriver_copy_plan_make(&plan);
    result = cudriver_copy_follow(&plan, all->call, &staged);
    cudriver_staging_join(&all->staged, staged);
    return result;
}

/* ---- page-locked ---- */

/* Whether the kernel does a run, if it can be had. */
static bool is_kernels(const struct runs *all, const struct cudriver_run *run)
{
    return run->bytes < (all->call->beside ? TUNING_BESIDE_MOST + 1 : TUNING_RUN_MOST) &&
           !run->pageable;
}

/* Fills the table, with runs cut into pieces of `most` bytes, and returns their number. 0: the
 * kernel cannot reach memory of the host. */
static size_t table_fill(struct runs *all, size_t most)
{
    struct cudriver_run *entry = all->table;

    for (size_t i = 0; i < all->count; i++) {
        const struct cudriver_run *run = &all->runs[i];
        uint64_t dst = run->dst, src = run->src;
        if (!is_kernels(all, run)) {
            continue;
        }
        if (run->up) {
            src = staging_device_address(all->context, (void *)(uintptr_t)src);
        }
        if (run->down) {
            dst = staging_device_address(all->context, (void *)(uintptr_t)dst);
        }
        if (dst == 0 || src == 0) {
            return 0;
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

    if (all->small < (all->call->beside ? 1 : TUNING_RUNS_LEAST) ||
        staging_place_kernels(all->place, &kernels) != CUDA_SUCCESS ||
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

/* ---- pageable ---- */

/* New: the pageable runs of one direction; NULL: one alone, unless it is beside big copies, or no
 * memory. */
static struct staging_runs *runs_gather(const struct runs *all, bool up, size_t *bytes)
{
    size_t most = all->pageable[up];
    struct staging_runs *runs =
        most > !all->call->beside ? malloc(sizeof *runs + (most + 1) * sizeof runs->run[0]) : NULL;
    size_t at = 0, room;
    void *table;

    if (runs == NULL) {
        return NULL;
    }
    runs->count = runs->filled = 0;
    for (size_t i = 0; i < all->count; i++) {
        const struct cudriver_run *run = &all->runs[i];
        if (run->pageable && run->up == up) {
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
    struct staging_runs *runs;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (all->pageable[up] == 0) {
        return CUDA_SUCCESS;
    }
    runs = runs_gather(all, up, &plan.bytes);
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
        if (all->runs[i].pageable && all->runs[i].up == up) {
            result = run_copy(all, &all->runs[i]);
        }
    }
    return result;
}

/* ---- all ---- */

CUresult cudriver_runs_issue(const struct cudriver_run *runs, size_t count, CUcontext context,
                             bool borrow, struct cudriver_copy_call *call, void **table,
                             struct cudriver_staging_transfer **transfer)
{
    struct runs all = {
        .runs = runs, .count = count, .context = context, .borrow = borrow, .call = call};
    CUresult result = staging_place_enter(context, &all.place);
    size_t alone;

    *table = *transfer = NULL;
    call->function = "cuCtxGetId";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (size_t i = 0; i < count; i++) {
        all.pageable[runs[i].up] += runs[i].pageable;
        if (is_kernels(&all, &runs[i])) {
            all.small++;
            all.bytes += runs[i].bytes;
        }
    }
    result = kernel_queue(&all);
    alone = count - all.pageable[0] - all.pageable[1] - (all.table != NULL ? all.small : 0);
    for (size_t i = 0; alone > 0 && result == CUDA_SUCCESS; i++) {
        if (!runs[i].pageable && !(all.table != NULL && is_kernels(&all, &runs[i]))) {
            result = run_copy(&all, &runs[i]);
            alone--;
        }
    }
    for (int up = 1; up >= 0 && result == CUDA_SUCCESS; up--) {
        call->function = NULL;
        result = staged_queue(&all, up);
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

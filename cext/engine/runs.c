/*
 * Many dense copies at once. The driver takes one to several microseconds for each, also of a
 * batch; a kernel that reads and writes page-locked memory where it is mapped moves rows of 4 KiB
 * at the rate of the bus. See engine.h, and tuning.h for figures.
 */
#include "private.h"

#include "driver/driver.h"
#include "hostmem/hostmem.h"

_Static_assert(sizeof(struct cudriver_run) == 32, "as the kernel has it");

/* What a call queues: the kernel's runs are those in its table. */
struct runs {
    const struct cudriver_run *runs;
    size_t count;
    CUcontext context;
    struct staging_kernels *kernels; /* borrowed from the place; NULL: not used */
    struct cudriver_run *table;      /* owned; page-locked */
    size_t filled;
};

static bool is_small(const struct cudriver_run *run)
{
    return run->bytes < TUNING_RUN_MOST;
}

/* Fills the table, with runs cut into pieces of `most` bytes. False: the kernel cannot reach memory
 * of the host. */
static bool table_fill(struct runs *all, size_t most)
{
    for (size_t i = 0; i < all->count; i++) {
        struct cudriver_run run = all->runs[i];
        uint64_t *host = run.up ? &run.src : run.down ? &run.dst : NULL, bytes;
        if (!is_small(&run)) {
            continue;
        }
        if (host != NULL) {
            *host = staging_device_address(all->context, (void *)(uintptr_t)*host);
            if (*host == 0) {
                return false;
            }
        }
        for (; run.bytes > 0; run.dst += bytes, run.src += bytes, run.bytes -= bytes) {
            bytes = run.bytes < most ? run.bytes : most;
            all->table[all->filled++] =
                (struct cudriver_run){.dst = run.dst, .src = run.src, .bytes = bytes};
        }
    }
    return true;
}

/* Prepares the kernel's part. What cannot be had is done without. */
static void kernel_prepare(struct runs *all, struct staging_place *place)
{
    size_t small = 0, bytes = 0, most;
    void *table;

    for (size_t i = 0; i < all->count; i++) {
        if (is_small(&all->runs[i])) {
            small++;
            bytes += all->runs[i].bytes;
        }
    }
    most = (bytes / TUNING_RUN_PIECES / TUNING_RUN_PIECE + 1) * TUNING_RUN_PIECE;
    if (small < TUNING_RUNS_LEAST ||
        staging_place_module(place, STAGING_KERNEL_RUNS, &all->kernels) != CUDA_SUCCESS ||
        staging_slot_get((small + bytes / most) * sizeof *all->table, &table) != CUDA_SUCCESS) {
        all->kernels = NULL;
        return;
    }
    all->table = table;
    if (!table_fill(all, most)) {
        cudriver_hostmem_free(table);
        all->table = NULL;
        all->kernels = NULL;
    }
}

/* Queues the kernel, and the driver's copies. */
static CUresult runs_queue(const struct runs *all, struct cudriver_copy_call *call)
{
    struct cudriver_copy_plan plan = {.one_run = false};
    CUresult result = CUDA_SUCCESS;

    if (all->kernels != NULL) {
        call->function = "cuLaunchKernel";
        result = staging_runs_launch(all->kernels, staging_device_address(all->context, all->table),
                                     all->filled, call->stream);
    }
    for (size_t i = 0; i < all->count && result == CUDA_SUCCESS; i++) {
        const struct cudriver_run *run = &all->runs[i];
        if (all->kernels == NULL || !is_small(run)) {
            plan.bytes = run->bytes;
            plan.dst.on_device = !run->down;
            plan.src.on_device = !run->up;
            plan.dst.host = (char *)(uintptr_t)(plan.dst.device = run->dst);
            plan.src.host = (char *)(uintptr_t)(plan.src.device = run->src);
            result = staging_direct_issue(&plan, call->stream, &call->function);
        }
    }
    return result;
}

CUresult cudriver_runs_issue(const struct cudriver_run *runs, size_t count, CUcontext context,
                             struct cudriver_copy_call *call, void **table)
{
    struct runs all = {.runs = runs, .count = count, .context = context};
    struct staging_place *place;
    CUresult result = staging_place_enter(context, &place);

    *table = NULL;
    call->function = "cuCtxGetId";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    kernel_prepare(&all, place);
    result = runs_queue(&all, call);
    if (result == CUDA_SUCCESS) {
        *table = all.table;
    } else if (cuda.cuStreamSynchronize(call->stream) == CUDA_SUCCESS && all.table != NULL) {
        cudriver_hostmem_free(all.table); /* else the device may still use it: it is given up */
    }
    staging_place_leave(place);
    return result;
}

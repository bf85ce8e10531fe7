/* Permuted copies: in waves through scratch memory, put in place by the kernel. See
 * staging_private.h. */
#include "staging_private.h"

#include <stdlib.h>

#include "driver.h"

/* How a walk falls into boxes: `rows` entries of dimension `split` at a time, all that is below,
 * and the dimensions above one by one. */
struct waves {
    int split; /* -1: the walk has no dimensions */
    int64_t rows;
    int64_t per_split; /* waves along the split dimension */
    size_t row_bytes;  /* below one entry of it */
    size_t piece;      /* bytes of the largest wave */
    size_t count;
};

static struct waves waves_make(const struct staging_plan *plan, size_t scratch)
{
    const struct cudriver_layout *walk = &plan->walk;
    size_t most = scratch / STAGING_WAVES, wanted = plan->bytes / 8, below = walk->itemsize;
    struct waves waves = {.split = -1, .rows = 1, .per_split = 1, .count = 1};

    wanted = wanted < plan->chunk ? plan->chunk : wanted;
    most = wanted < most ? wanted : most;
    waves.row_bytes = waves.piece = below;
    for (int d = walk->ndim - 1; d >= 0; d--) {
        waves.split = d;
        waves.row_bytes = below;
        waves.rows = walk->shape[d];
        if (below * (size_t)walk->shape[d] > most) {
            int64_t rows = below >= most ? 1 : (int64_t)(most / below);
            waves.per_split = (walk->shape[d] + rows - 1) / rows;
            waves.rows = (walk->shape[d] + waves.per_split - 1) / waves.per_split;
            waves.per_split = (walk->shape[d] + waves.rows - 1) / waves.rows;
            break;
        }
        below *= (size_t)walk->shape[d];
    }
    waves.piece = waves.row_bytes * (size_t)waves.rows;
    waves.count = (size_t)waves.per_split;
    for (int d = 0; d < waves.split; d++) {
        waves.count *= (size_t)walk->shape[d];
    }
    return waves;
}

/* Wave number `index`: bytes [begin, end) of the walk, and what the kernel does with them. */
static void wave_find(const struct staging_plan *plan, const struct waves *waves, size_t index,
                      size_t *begin, size_t *end, struct cudriver_layout *spread)
{
    const struct cudriver_layout *walk = &plan->walk;
    int64_t *device_offset = plan->up ? &spread->dst_offset : &spread->src_offset;

    *spread = plan->spread;
    if (waves->split < 0) {
        *begin = 0;
        *end = walk->itemsize;
        return;
    }
    const int64_t *device = (plan->up ? spread->dst_strides : spread->src_strides) + plan->repeats;
    int split = waves->split;
    size_t above = index / (size_t)waves->per_split;
    int64_t from = (int64_t)(index % (size_t)waves->per_split) * waves->rows;
    int64_t rows =
        walk->shape[split] - from < waves->rows ? walk->shape[split] - from : waves->rows;
    size_t all = waves->row_bytes * (size_t)walk->shape[split];

    *begin = above * all + (size_t)from * waves->row_bytes;
    *end = *begin + (size_t)rows * waves->row_bytes;
    *device_offset += from * device[split];
    for (int d = split - 1; d >= 0; d--) {
        *device_offset += (int64_t)(above % (size_t)walk->shape[d]) * device[d];
        above /= (size_t)walk->shape[d];
    }
    /* Drop the dimensions above, and shorten the one that is split. */
    int to = plan->repeats;
    for (int d = plan->repeats + split; d < plan->spread.ndim; d++, to++) {
        spread->shape[to] = spread->shape[d];
        spread->dst_strides[to] = spread->dst_strides[d];
        spread->src_strides[to] = spread->src_strides[d];
    }
    spread->ndim = to;
    spread->shape[plan->repeats] = rows;
}

/* Errors after which the kernel is not tried again in this context. */
static bool is_final(CUresult result)
{
    return result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_IMAGE ||
           result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
           result == CUDA_ERROR_NOT_FOUND ||
           result == (CUresult)209 /* no binary for this device */ ||
           result == (CUresult)221 /* no compiler */;
}

/* The kernel for a plan. NOT_SUPPORTED where it cannot be had. */
static CUresult kernels_get(struct staging_place *place, const struct staging_plan *plan,
                            CUdeviceptr device, struct staging_kernels **kernels)
{
    CUdeviceptr dst = plan->up ? device : 0, src = plan->up ? 0 : device;
    int unit = staging_kernels_unit(&plan->spread, dst, src);
    struct staging_kernels *loaded;
    CUresult result;

    staging_lock();
    *kernels = place->kernels[unit];
    staging_unlock();
    if (*kernels != NULL) {
        return CUDA_SUCCESS;
    }
    result = staging_kernels_load(unit, &loaded);
    if (result != CUDA_SUCCESS) {
        staging_lock();
        place->no_kernels |= is_final(result);
        staging_unlock();
        return is_final(result) ? CUDA_ERROR_NOT_SUPPORTED : result;
    }
    staging_lock();
    if (place->kernels[unit] == NULL) {
        place->kernels[unit] = loaded;
        loaded = NULL;
    }
    *kernels = place->kernels[unit];
    staging_unlock();
    staging_kernels_unload(loaded); /* another thread was faster */
    return CUDA_SUCCESS;
}

#define SCRATCH_LEAST ((size_t)1 << 20)

void staging_scratch_free(struct staging_scratch *scratch)
{
    while (scratch != NULL) {
        struct staging_scratch *next = scratch->next;
        cuda.cuMemFree_v2(scratch->address);
        free(scratch);
        scratch = next;
    }
}

/* Scratch memory of at least `bytes`, busy until somebody clears that. What is too small stays for
 * later: giving it back would wait for the device. */
static CUresult scratch_get(struct staging_place *place, size_t bytes,
                            struct staging_scratch **found)
{
    struct staging_scratch *scratch;
    CUresult result;
    size_t rounded = SCRATCH_LEAST;

    staging_lock();
    for (scratch = place->scratch; scratch != NULL; scratch = scratch->next) {
        if (!scratch->busy && scratch->bytes >= bytes) {
            scratch->busy = true;
            staging_unlock();
            *found = scratch;
            return CUDA_SUCCESS;
        }
    }
    staging_unlock();
    while (rounded < bytes) {
        rounded *= 2;
    }
    scratch = calloc(1, sizeof *scratch);
    if (scratch == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = cuda.cuMemAlloc_v2(&scratch->address, rounded);
    if (result != CUDA_SUCCESS) {
        free(scratch);
        return result;
    }
    scratch->bytes = rounded;
    scratch->busy = true;
    staging_lock();
    scratch->next = place->scratch;
    place->scratch = scratch;
    staging_unlock();
    *found = scratch;
    return CUDA_SUCCESS;
}

/* Locked: the stream has passed all that uses the scratch memory. */
static void transfer_tail_over(struct cudriver_staging_transfer *transfer)
{
    if (!transfer->over) { /* else it was abandoned, and so was the scratch memory */
        transfer->scratch->busy = false;
        transfer->scratch = NULL;
    }
    staging_transfer_device_over(transfer);
}

/* On the stream, after all else. */
static void transfer_tail(void *data)
{
    struct cudriver_staging_transfer *transfer = data;

    staging_lock();
    transfer_tail_over(transfer);
    staging_unlock();
    staging_transfer_drop(transfer);
}

/* What the steps of a permuted copy share. */
struct permute {
    struct cudriver_staging_transfer *transfer;
    const struct cudriver_staging_job *job;
    const struct staging_plan *plan;
    const struct staging_kernels *kernels;
    struct waves waves;
};

static CUdeviceptr wave_piece(const struct permute *permute, size_t index)
{
    return permute->transfer->scratch->address + (index % STAGING_WAVES) * permute->waves.piece;
}

static CUresult wave_kernel(const struct permute *permute, size_t index)
{
    struct cudriver_layout spread;
    CUdeviceptr piece = wave_piece(permute, index), device = permute->job->device;
    size_t begin, end;
    bool up = permute->plan->up;

    wave_find(permute->plan, &permute->waves, index, &begin, &end, &spread);
    return staging_kernels_launch(permute->kernels, &spread, up ? device : piece,
                                  up ? piece : device, permute->job->stream);
}

/* Makes the job of a wave, to be handed to the lanes when the stream gets here. */
static CUresult wave_send(const struct permute *permute, size_t index)
{
    struct cudriver_staging_transfer *transfer = permute->transfer;
    struct cudriver_layout spread;
    size_t begin, end;
    CUresult result;

    wave_find(permute->plan, &permute->waves, index, &begin, &end, &spread);
    result = staging_transfer_add(
        transfer,
        staging_job_new(&transfer->place->routes[permute->plan->up ? 0 : 1], permute->plan,
                        wave_piece(permute, index), permute->job->host, begin, end));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return staging_stream_ready(permute->job->stream, transfer->jobs[index]);
}

/*
 * On the caller's stream, with W pieces of scratch memory:
 *   to the device     send 0 .. send W-1, then for each wave: wait for it, kernel, send the one W
 * later from the device   kernel, send for each wave; from the W-th on after waiting for the one W
 * before and the lanes move a wave's bytes when the stream has reached its `send`.
 */
static CUresult waves_queue(const struct permute *permute)
{
    CUstream stream = permute->job->stream;
    size_t count = permute->waves.count;
    bool up = permute->plan->up;
    CUresult result = CUDA_SUCCESS;

    for (size_t step = 0; step < count + STAGING_WAVES && result == CUDA_SUCCESS; step++) {
        if (step >= STAGING_WAVES && step - STAGING_WAVES < count) {
            result = staging_stream_gate(stream, permute->transfer->jobs[step - STAGING_WAVES]);
            if (result == CUDA_SUCCESS && up) {
                result = wave_kernel(permute, step - STAGING_WAVES);
            }
        }
        if (step < count && result == CUDA_SUCCESS) {
            result = up ? CUDA_SUCCESS : wave_kernel(permute, step);
            if (result == CUDA_SUCCESS) {
                result = wave_send(permute, step);
            }
        }
    }
    return result;
}

CUresult staging_permuted_start(struct cudriver_staging_transfer *transfer,
                                const struct cudriver_staging_job *job,
                                const struct staging_plan *plan)
{
    struct cudriver_staging_settings settings;
    struct permute permute = {.transfer = transfer, .job = job, .plan = plan};
    struct staging_kernels *kernels;
    CUresult result;

    result = kernels_get(transfer->place, plan, job->device, &kernels);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    permute.kernels = kernels;
    cudriver_staging_get_settings(&settings);
    permute.waves = waves_make(plan, settings.scratch);
    if (!staging_transfer_make_room(transfer, permute.waves.count)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    size_t pieces = permute.waves.count < STAGING_WAVES ? permute.waves.count : STAGING_WAVES;
    result = scratch_get(transfer->place, pieces * permute.waves.piece, &transfer->scratch);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    staging_lock();
    transfer->device_pending++;
    staging_unlock();
    result = waves_queue(&permute);
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        staging_lock();
        transfer->place->no_kernels = true;
        staging_unlock();
    }
    if (result == CUDA_SUCCESS) {
        staging_transfer_hold(transfer);
        result = cuda.cuLaunchHostFunc(job->stream, transfer_tail, transfer);
        if (result != CUDA_SUCCESS) {
            staging_transfer_drop(transfer);
        }
    }
    if (result != CUDA_SUCCESS) {
        staging_transfer_stop(transfer,
                              result); /* opens the gates, so that the stream gets to the end */
        staging_transfer_quiet(transfer);
        cuda.cuStreamSynchronize(job->stream);
        staging_lock();
        transfer_tail_over(transfer);
        staging_unlock();
    }
    return result;
}

/* ---- blocking ---- */

CUresult staging_copy_permuted(const struct cudriver_staging_job *job, struct staging_place *place,
                               const struct staging_plan *plan)
{
    struct cudriver_staging_transfer *transfer = staging_transfer_new(place, job->stream);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (transfer == NULL) {
        return result;
    }
    staging_lock();
    result = staging_threads_start();
    staging_unlock();
    if (result == CUDA_SUCCESS) {
        result = staging_permuted_start(transfer, job, plan);
    }
    staging_lock();
    transfer->making = false;
    staging_transfer_device_over(transfer);
    staging_unlock();
    staging_transfer_hold(transfer);
    staging_transfer_tell(transfer);
    if (result == CUDA_SUCCESS) {
        result = cudriver_staging_wait(transfer, job->interrupted, job->data);
    }
    if (result != CUDA_SUCCESS) {
        staging_transfer_undo(transfer, result);
    }
    staging_transfer_drop(transfer);
    return result;
}

/* Copies in stream order, and the waves of permuted copies. See staging_private.h. */
#include "staging_private.h"

#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "hostmem.h"
#include "platform.h"

struct cudriver_staging_transfer {
    atomic_int references;
    struct staging_place *place;            /* borrowed; valid until the transfer is over */
    struct cudriver_staging_transfer *next; /* in the place's list */
    CUstream stream;
    void (*finished)(void *data, CUresult result);
    void *finished_data;
    struct staging_job **jobs; /* owned, each with a reference */
    int job_count;
    struct staging_scratch *scratch; /* borrowed from the place, busy; under the lock */
    /* A copy in one slot, without the lanes. */
    bool small;
    bool up;
    char *slot; /* owned, from the page-locked pool */
    char *host;
    size_t bytes;
    struct cudriver_layout walk;
    /* Under the lock. */
    int host_pending;   /* what still uses the host's memory */
    int device_pending; /* what follows on the stream */
    bool making;        /* its call has not returned */
    bool begun;         /* a host function of ours has seen host memory */
    bool stopped;
    bool told;
    bool over;
    CUresult result;
    pthread_cond_t done;
    unsigned long long checked;
};

static struct cudriver_staging_transfer *transfer_new(struct staging_place *place, CUstream stream)
{
    struct cudriver_staging_transfer *transfer = calloc(1, sizeof *transfer);

    if (transfer == NULL) {
        return NULL;
    }
    atomic_init(&transfer->references, 1);
    transfer->place = place;
    transfer->stream = stream;
    transfer->making = true;
    transfer->device_pending = 1; /* its making */
    staging_condition_init(&transfer->done);
    staging_lock();
    transfer->next = place->transfers;
    place->transfers = transfer;
    staging_unlock();
    return transfer;
}

static void transfer_hold(struct cudriver_staging_transfer *transfer)
{
    atomic_fetch_add_explicit(&transfer->references, 1, memory_order_relaxed);
}

static void transfer_drop(struct cudriver_staging_transfer *transfer)
{
    if (atomic_fetch_sub_explicit(&transfer->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (int i = 0; i < transfer->job_count; i++) {
        if (transfer->jobs[i] != NULL) {
            staging_job_drop(transfer->jobs[i]);
        }
    }
    free(transfer->jobs);
    if (transfer->slot != NULL) {
        cudriver_hostmem_free(transfer->slot);
    }
    pthread_cond_destroy(&transfer->done);
    free(transfer);
}

/* Locked: over, if nothing is pending. */
static void transfer_settle(struct cudriver_staging_transfer *transfer)
{
    struct cudriver_staging_transfer **link = &transfer->place->transfers;

    if (transfer->over || transfer->host_pending > 0 || transfer->device_pending > 0) {
        return;
    }
    while (*link != transfer) {
        link = &(*link)->next;
    }
    *link = transfer->next;
    transfer->over = true;
    pthread_cond_broadcast(&transfer->done);
    pthread_cond_broadcast(&staging.quiet);
}

/* Locked: one use of the host's memory has ended. */
static void transfer_host_over(struct cudriver_staging_transfer *transfer, CUresult result)
{
    if (transfer->result == CUDA_SUCCESS) {
        transfer->result = result;
    }
    transfer->host_pending--;
    transfer_settle(transfer);
    pthread_cond_broadcast(&staging.quiet);
}

/* Locked: one thing that follows on the stream has happened. */
static void transfer_device_over(struct cudriver_staging_transfer *transfer)
{
    if (!transfer->over) { /* else it was abandoned */
        transfer->device_pending--;
        transfer_settle(transfer);
    }
}

void staging_transfer_job_over(struct cudriver_staging_transfer *transfer, CUresult result)
{
    transfer_host_over(transfer, result);
}

/* Unlocked. Calls `finished` where it is time, and drops a reference. */
void staging_transfer_tell(struct cudriver_staging_transfer *transfer)
{
    bool tell;
    CUresult result;

    staging_lock();
    tell = transfer->host_pending == 0 && !transfer->told && !transfer->making;
    transfer->told |= tell;
    result = transfer->result;
    staging_unlock();
    if (tell && transfer->finished != NULL) {
        transfer->finished(transfer->finished_data, result);
    }
    transfer_drop(transfer);
}

/* Unlocked, with a reference. Nothing more is begun; what has begun ends by itself. */
static void transfer_stop(struct cudriver_staging_transfer *transfer, CUresult result)
{
    int tell = 0;

    staging_lock();
    transfer->stopped = true;
    if (transfer->result == CUDA_SUCCESS) {
        transfer->result = result;
    }
    for (int i = 0; i < transfer->job_count; i++) {
        tell += transfer->jobs[i] != NULL && staging_job_stop(transfer->jobs[i], result);
    }
    if (transfer->small && !transfer->begun) {
        transfer->begun = true; /* its host functions find nothing to do */
        transfer->host_pending = 0;
        transfer_hold(transfer);
        tell++;
    }
    staging_unlock();
    for (; tell > 0; tell--) {
        staging_transfer_tell(transfer);
    }
}

/* Unlocked: waits until no thread of ours touches host memory or slots for it. */
static void transfer_quiet(struct cudriver_staging_transfer *transfer)
{
    staging_lock();
    while (transfer->host_pending > 0) {
        pthread_cond_wait(&staging.quiet, &staging.lock);
    }
    staging_unlock();
}

/* Locked: what follows on the stream is not waited for any more. */
static void transfer_abandon(struct cudriver_staging_transfer *transfer)
{
    if (!transfer->making) {
        transfer->device_pending = 0;
        transfer_settle(transfer);
    }
}

static bool transfer_has_begun(const struct cudriver_staging_transfer *transfer)
{
    bool begun = transfer->begun;

    for (int i = 0; i < transfer->job_count; i++) {
        begun |= transfer->jobs[i] != NULL && transfer->jobs[i]->begun;
    }
    return begun;
}

void staging_place_cancel(struct staging_place *place, CUresult result, bool all)
{
    struct cudriver_staging_transfer *transfer;

    do {
        staging_lock();
        for (transfer = place->transfers; transfer != NULL; transfer = transfer->next) {
            if (!transfer->stopped && (all || !transfer_has_begun(transfer))) {
                break;
            }
        }
        if (transfer != NULL) {
            transfer_hold(transfer);
            place->lost_flags++;
        }
        staging_unlock();
        if (transfer != NULL) {
            transfer_stop(transfer, result);
            staging_lock();
            transfer_abandon(transfer);
            staging_unlock();
            transfer_drop(transfer);
        }
    } while (transfer != NULL);

    for (int i = 0; i < 2 && all; i++) {
        staging_lock();
        while (place->routes[i].last != NULL) { /* blocking copies: their callers wait */
            staging_job_stop(place->routes[i].last, result);
        }
        staging_unlock();
    }
}

/* ---- staged, in one piece
 * ------------------------------------------------------------------------ */

static bool jobs_make_room(struct cudriver_staging_transfer *transfer, size_t count)
{
    transfer->jobs = count > INT32_MAX ? NULL : calloc(count, sizeof transfer->jobs[0]);
    return transfer->jobs != NULL;
}

/* Adds a job; the transfer holds it, and it the transfer. */
static CUresult job_add(struct cudriver_staging_transfer *transfer, struct staging_job *job)
{
    CUresult result = CUDA_SUCCESS;

    if (job == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    staging_lock();
    if (transfer->stopped) {
        result = transfer->result;
        staging_job_stop(job, result);
    } else {
        job->transfer = transfer;
        transfer_hold(transfer);
        transfer->jobs[transfer->job_count++] = job;
        transfer->host_pending++;
    }
    staging_unlock();
    if (result != CUDA_SUCCESS) {
        staging_job_drop(job);
    }
    return result;
}

static CUresult staged_start(struct cudriver_staging_transfer *transfer,
                             const struct cudriver_staging_job *job,
                             const struct staging_plan *plan)
{
    struct staging_route *route = &transfer->place->routes[plan->up ? 0 : 1];
    struct staging_job *made;
    CUresult result;

    if (!jobs_make_room(transfer, 1)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made = staging_job_new(route, plan, job->device, job->host, 0, plan->bytes);
    result = job_add(transfer, made);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = staging_stream_query(job->stream);
    if (result == CUDA_SUCCESS) {
        result = staging_stream_gate(job->stream, made);
        if (result == CUDA_SUCCESS) {
            staging_lock();
            staging_job_submit(made, false);
            staging_unlock();
        }
    } else if (result == CUDA_ERROR_NOT_READY) {
        result = staging_stream_ready(job->stream, made);
        if (result == CUDA_SUCCESS) {
            result = staging_stream_gate(job->stream, made);
        }
    }
    return result;
}

/* ---- permuted, in waves
 * -------------------------------------------------------------------------- */

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
    transfer_device_over(transfer);
}

/* On the stream, after all else. */
static void transfer_tail(void *data)
{
    struct cudriver_staging_transfer *transfer = data;

    staging_lock();
    transfer_tail_over(transfer);
    staging_unlock();
    transfer_drop(transfer);
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
    result = job_add(transfer, staging_job_new(&transfer->place->routes[permute->plan->up ? 0 : 1],
                                               permute->plan, wave_piece(permute, index),
                                               permute->job->host, begin, end));
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

static CUresult permuted_start(struct cudriver_staging_transfer *transfer,
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
    if (!jobs_make_room(transfer, permute.waves.count)) {
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
        transfer_hold(transfer);
        result = cuda.cuLaunchHostFunc(job->stream, transfer_tail, transfer);
        if (result != CUDA_SUCCESS) {
            transfer_drop(transfer);
        }
    }
    if (result != CUDA_SUCCESS) {
        transfer_stop(transfer, result); /* opens the gates, so that the stream gets to the end */
        transfer_quiet(transfer);
        cuda.cuStreamSynchronize(job->stream);
        staging_lock();
        transfer_tail_over(transfer);
        staging_unlock();
    }
    return result;
}

/* ---- small: one slot, the stream itself, host functions
 * ------------------------------------------- */

static void slot_pack(struct cudriver_staging_transfer *transfer)
{
    cudriver_layout_copy_part(&transfer->walk, transfer->slot, true, transfer->host, false, 0,
                              transfer->bytes);
}

/* On the stream, before the copy to the device. */
static void small_pack(void *data)
{
    struct cudriver_staging_transfer *transfer = data;
    bool begin;

    staging_lock();
    begin = !transfer->begun;
    transfer->begun = true;
    staging_unlock();
    if (!begin) {
        transfer_drop(transfer);
        return;
    }
    slot_pack(transfer);
    staging_lock();
    transfer_host_over(transfer, CUDA_SUCCESS);
    staging_unlock();
    staging_transfer_tell(transfer);
}

/* On the stream, after the copy. */
static void small_done(void *data)
{
    struct cudriver_staging_transfer *transfer = data;
    bool unpack = false;
    char *slot;

    staging_lock();
    if (!transfer->up) {
        unpack = !transfer->begun;
        transfer->begun = true;
    }
    staging_unlock();
    if (unpack) {
        cudriver_layout_copy_part(&transfer->walk, transfer->host, false, transfer->slot, true, 0,
                                  transfer->bytes);
    }
    staging_lock();
    slot = transfer->slot;
    transfer->slot = NULL;
    if (unpack) {
        transfer_host_over(transfer, CUDA_SUCCESS);
    }
    transfer_device_over(transfer);
    staging_unlock();
    cudriver_hostmem_free(slot);
    staging_transfer_tell(transfer);
}

static CUresult small_start(struct cudriver_staging_transfer *transfer,
                            const struct cudriver_staging_job *job, const struct staging_plan *plan)
{
    struct cudriver_layout rows;
    CUresult result;
    void *slot = cudriver_hostmem_try_alloc(plan->bytes, false);
    bool zeroed;

    if (slot == NULL) {
        result = cudriver_hostmem_alloc(job->context, plan->bytes, false, &slot, &zeroed);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    transfer->small = true;
    transfer->up = plan->up;
    transfer->slot = slot;
    transfer->host = job->host;
    transfer->bytes = plan->bytes;
    transfer->walk = plan->walk;
    staging_rows_make(&plan->walk, plan->up, &rows);
    staging_lock();
    transfer->host_pending = 1;
    transfer->device_pending++;
    staging_unlock();

    result = plan->up ? staging_stream_query(job->stream) : CUDA_SUCCESS;
    if (plan->up && result == CUDA_SUCCESS) {
        slot_pack(transfer);
        staging_lock();
        transfer->begun = true;
        transfer->host_pending = 0;
        staging_unlock();
    } else if (plan->up && result == CUDA_ERROR_NOT_READY) {
        transfer_hold(transfer);
        result = cuda.cuLaunchHostFunc(job->stream, small_pack, transfer);
        if (result != CUDA_SUCCESS) {
            transfer_drop(transfer);
        }
    }
    if (result == CUDA_SUCCESS) {
        result = staging_device_copy(&rows, plan->up, job->device, transfer->slot, 0, plan->bytes,
                                     job->stream);
    }
    if (result == CUDA_SUCCESS) {
        transfer_hold(transfer);
        result = cuda.cuLaunchHostFunc(job->stream, small_done, transfer);
        if (result != CUDA_SUCCESS) {
            transfer_drop(transfer);
        }
    }
    return result;
}

/* ---- the calls
 * ----------------------------------------------------------------------------------- */

/* After a failed start: nothing of it is in use any more, `finished` is not called. */
static void transfer_undo(struct cudriver_staging_transfer *transfer, CUresult result)
{
    staging_lock();
    transfer->told = true;
    transfer->making = false;
    staging_unlock();
    transfer_stop(transfer, result);
    transfer_quiet(transfer);
    cuda.cuStreamSynchronize(transfer->stream);
    staging_lock();
    transfer_abandon(transfer);
    staging_unlock();
}

static CUresult transfer_start(struct cudriver_staging_transfer *transfer,
                               const struct cudriver_staging_job *job,
                               const struct staging_plan *plan)
{
    switch (plan->path) {
    case CUDRIVER_STAGING_EMPTY:
        return CUDA_SUCCESS;
    case CUDRIVER_STAGING_DRIVER:
    case CUDRIVER_STAGING_ONE_SLOT:
        return small_start(transfer, job, plan);
    case CUDRIVER_STAGING_PERMUTED:
        return permuted_start(transfer, job, plan);
    default:
        return staged_start(transfer, job, plan);
    }
}

/* One attempt at an asynchronous copy; *made is the caller's. */
static CUresult transfer_make(const struct cudriver_staging_job *job, struct staging_place *place,
                              const struct staging_plan *plan,
                              void (*finished)(void *data, CUresult result), void *finished_data,
                              struct cudriver_staging_transfer **made)
{
    struct cudriver_staging_transfer *transfer = transfer_new(place, job->stream);
    CUresult result;

    if (transfer == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    transfer->finished = finished;
    transfer->finished_data = finished_data;
    result = transfer_start(transfer, job, plan);
    if (result != CUDA_SUCCESS) {
        transfer_undo(transfer, result);
        transfer_drop(transfer);
        return result;
    }
    staging_lock();
    transfer->making = false;
    transfer_device_over(transfer);
    if (transfer->stopped) {
        transfer_abandon(transfer);
    }
    staging_unlock();
    transfer_hold(transfer);
    staging_transfer_tell(transfer); /* where the host's memory was done with at once */
    *made = transfer;
    return CUDA_SUCCESS;
}

CUresult cudriver_staging_copy_async(const struct cudriver_staging_job *job,
                                     void (*finished)(void *data, CUresult result),
                                     void *finished_data, struct cudriver_staging_transfer **made)
{
    struct cudriver_staging_settings settings;
    struct staging_place *place;
    struct staging_plan plan;
    CUresult result = staging_place_enter(job->context, &place);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    staging_lock();
    settings = staging.settings;
    bool kernels = !place->no_kernels;
    result = staging_threads_start();
    staging_unlock();
    if (result == CUDA_SUCCESS) {
        staging_plan_make(job->layout, job->to_device, job->device, &settings, kernels, &plan);
        result = transfer_make(job, place, &plan, finished, finished_data, made);
        if (plan.path == CUDRIVER_STAGING_PERMUTED &&
            (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_OUT_OF_MEMORY)) {
            staging_plan_make(job->layout, job->to_device, job->device, &settings, false, &plan);
            result = transfer_make(job, place, &plan, finished, finished_data, made);
        }
    }
    staging_place_leave(place);
    return result;
}

/* Asks, now and then, whether the context still works: a broken one calls no host function, and the
 * copies in it would never end. */
static void transfer_check(struct cudriver_staging_transfer *transfer)
{
    struct staging_place *place = NULL;
    unsigned long long now = platform_nanoseconds();
    CUresult result;
    CUcontext popped;
    CUstream probe = NULL;

    staging_lock();
    if (!transfer->over && now - transfer->checked > STAGING_POLL_NS) {
        transfer->checked = now;
        place = transfer->place;
        place->users++;
        probe = place->probe;
    }
    staging_unlock();
    if (place == NULL) {
        return;
    }
    result = cuda.cuCtxPushCurrent_v2(place->context);
    if (result == CUDA_SUCCESS) {
        if (probe == NULL) {
            result = cuda.cuStreamCreateWithPriority(&probe, CU_STREAM_NON_BLOCKING, 0);
            staging_lock();
            if (result == CUDA_SUCCESS && place->probe == NULL) {
                place->probe = probe;
                probe = NULL;
            }
            staging_unlock();
            if (result == CUDA_SUCCESS && probe != NULL) {
                cuda.cuStreamDestroy_v2(probe);
            }
        } else {
            result = cuda.cuStreamQuery(probe);
        }
        cuda.cuCtxPopCurrent_v2(&popped);
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
        transfer_stop(transfer, result);
        staging_lock();
        place->lost_flags++;
        transfer_abandon(transfer);
        staging_unlock();
    }
    staging_lock();
    place->users--;
    pthread_cond_broadcast(&staging.quiet);
    staging_unlock();
}

bool cudriver_staging_poll(struct cudriver_staging_transfer *transfer)
{
    return cudriver_staging_result(transfer) != CUDA_ERROR_NOT_READY;
}

CUresult cudriver_staging_result(struct cudriver_staging_transfer *transfer)
{
    CUresult result;

    if (cudriver_driver_is_forked()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    transfer_check(transfer);
    staging_lock();
    result = transfer->over ? transfer->result : CUDA_ERROR_NOT_READY;
    staging_unlock();
    return result;
}

CUresult cudriver_staging_wait(struct cudriver_staging_transfer *transfer,
                               bool (*interrupted)(void *data), void *data)
{
    CUresult result = CUDA_ERROR_NOT_READY;

    if (cudriver_driver_is_forked()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    staging_lock();
    while (!transfer->over) {
        staging_condition_wait(&transfer->done, STAGING_POLL_NS);
        if (transfer->over) {
            break;
        }
        staging_unlock();
        transfer_check(transfer);
        if (interrupted != NULL && interrupted(data)) {
            return CUDRIVER_STAGING_INTERRUPTED;
        }
        staging_lock();
    }
    result = transfer->result;
    staging_unlock();
    return result;
}

void cudriver_staging_release(struct cudriver_staging_transfer *transfer)
{
    if (transfer != NULL && !cudriver_driver_is_forked()) {
        transfer_drop(transfer);
    }
}

/* ---- blocking
 * ------------------------------------------------------------------------------------ */

CUresult staging_copy_permuted(const struct cudriver_staging_job *job, struct staging_place *place,
                               const struct staging_plan *plan)
{
    struct cudriver_staging_transfer *transfer = transfer_new(place, job->stream);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (transfer == NULL) {
        return result;
    }
    staging_lock();
    result = staging_threads_start();
    staging_unlock();
    if (result == CUDA_SUCCESS) {
        result = permuted_start(transfer, job, plan);
    }
    staging_lock();
    transfer->making = false;
    transfer_device_over(transfer);
    staging_unlock();
    if (result == CUDA_SUCCESS) {
        result = cudriver_staging_wait(transfer, job->interrupted, job->data);
    }
    if (result != CUDA_SUCCESS) {
        transfer_undo(transfer, result);
    }
    transfer_drop(transfer);
    return result;
}

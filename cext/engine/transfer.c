/* Copies in stream order. See private.h. */
#include "private.h"

#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "driver/platform.h"

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

void staging_transfer_hold(struct cudriver_staging_transfer *transfer)
{
    atomic_fetch_add_explicit(&transfer->references, 1, memory_order_relaxed);
}

void staging_transfer_drop(struct cudriver_staging_transfer *transfer)
{
    if (atomic_fetch_sub_explicit(&transfer->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    free(transfer->starts);
    free(transfer->cuts);
    if (transfer->slot != NULL) {
        cudriver_hostmem_free(transfer->slot);
    }
    pthread_cond_destroy(&transfer->done);
    free(transfer);
}

/* Locked: over, if nothing is pending. */
static void transfer_settle(struct cudriver_staging_transfer *transfer)
{
    struct cudriver_staging_transfer **link;

    if (transfer->over || transfer->host_pending > 0 || transfer->device_pending > 0) {
        return;
    }
    link = &transfer->place->transfers;
    while (*link != transfer) {
        link = &(*link)->next;
    }
    *link = transfer->next;
    transfer->over = true;
    pthread_cond_broadcast(&transfer->done);
    pthread_cond_broadcast(&staging.quiet);
}

void staging_transfer_host_over(struct cudriver_staging_transfer *transfer)
{
    transfer->host_pending = 0;
    transfer_settle(transfer);
    pthread_cond_broadcast(&staging.quiet);
}

void staging_transfer_device_over(struct cudriver_staging_transfer *transfer)
{
    if (!transfer->over) { /* else it was abandoned */
        transfer->device_pending--;
        transfer_settle(transfer);
    }
}

/* With a reference. Nothing more is begun; what has begun ends by itself. */
static void transfer_stop(struct cudriver_staging_transfer *transfer, CUresult result)
{
    staging_lock();
    transfer->stopped = true;
    if (transfer->result == CUDA_SUCCESS) {
        transfer->result = result;
    }
    if (transfer->small && !transfer->begun) {
        transfer->begun = true; /* its host functions find nothing to do */
        staging_transfer_host_over(transfer);
    } else if (!transfer->small) {
        staging_ring_stop(transfer);
    }
    staging_unlock();
}

/* Waits until no thread of ours touches host memory for it. */
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
    if (!transfer->making && !transfer->over) {
        transfer->device_pending = 0;
        transfer_settle(transfer);
    }
}

void staging_place_cancel(struct staging_place *place, CUresult result, bool all)
{
    struct cudriver_staging_transfer *transfer;

    do {
        staging_lock();
        for (transfer = place->transfers; transfer != NULL; transfer = transfer->next) {
            if (!transfer->stopped && (all || !transfer->begun)) {
                break;
            }
        }
        if (transfer != NULL) {
            staging_transfer_hold(transfer);
        }
        staging_unlock();
        if (transfer != NULL) {
            transfer_stop(transfer, result);
            staging_lock();
            if (!transfer->started &&
                !transfer->over) { /* else its stream is on the way to the end */
                transfer->stray = transfer->small && !transfer->making;
                staging.strays += transfer->stray;
                transfer_abandon(transfer);
            }
            staging_unlock();
            staging_transfer_drop(transfer);
        }
    } while (transfer != NULL);
}

/* ---- small: one slot, the stream itself, host functions ---- */

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
        staging_transfer_drop(transfer);
        return;
    }
    slot_pack(transfer);
    staging_lock();
    staging_transfer_host_over(transfer);
    staging_unlock();
    staging_transfer_drop(transfer);
}

/* On the stream, after the copy. */
static void small_done(void *data)
{
    struct cudriver_staging_transfer *transfer = data;
    bool unpack = false;

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
    cudriver_hostmem_free(transfer->slot);
    transfer->slot = NULL;
    staging_lock();
    if (unpack) {
        staging_transfer_host_over(transfer);
    }
    staging_transfer_device_over(transfer);
    if (transfer->stray) {
        transfer->stray = false;
        staging.strays--;
        pthread_cond_broadcast(&staging.quiet);
    }
    staging_unlock();
    staging_transfer_drop(transfer);
}

static CUresult small_start(struct cudriver_staging_transfer *transfer,
                            const struct cudriver_staging_job *job, const struct staging_plan *plan)
{
    struct cudriver_layout rows;
    void *slot;
    CUresult result = staging_slot_get(plan->bytes, &slot);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    transfer->up = plan->up;
    transfer->slot = slot;
    transfer->host = job->host;
    transfer->bytes = plan->bytes;
    transfer->walk = plan->walk;
    staging_rows_make(&plan->walk, plan->up, &rows);
    staging_lock();
    transfer->small = true;
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
        staging_transfer_hold(transfer);
        result = cuda.cuLaunchHostFunc(job->stream, small_pack, transfer);
        if (result != CUDA_SUCCESS) {
            staging_transfer_drop(transfer);
        }
    }
    if (result == CUDA_SUCCESS) {
        result = staging_device_copy(&rows, plan->up, job->device, transfer->slot, 0, plan->bytes,
                                     job->stream);
    }
    if (result == CUDA_SUCCESS) {
        staging_transfer_hold(transfer);
        result = cuda.cuLaunchHostFunc(job->stream, small_done, transfer);
        if (result != CUDA_SUCCESS) {
            staging_transfer_drop(transfer);
        }
    }
    return result;
}

/* ---- the calls ---- */

/* After a failure: nothing of it is in use any more. */
static void transfer_undo(struct cudriver_staging_transfer *transfer, CUresult result)
{
    staging_lock();
    transfer->stopped = true; /* nobody else's copy follows it through its ring */
    transfer->making = false;
    staging_unlock();
    transfer_stop(transfer, result);
    transfer_quiet(transfer);
    staging_ring_open(transfer);
    result = transfer->ring != NULL || transfer->slot != NULL
                 ? cuda.cuStreamSynchronize(transfer->stream)
                 : CUDA_SUCCESS; /* nothing was queued */
    if (transfer->ring != NULL && result == CUDA_SUCCESS) {
        staging_ring_close(transfer);
    }
    staging_lock();
    transfer->lost |= result != CUDA_SUCCESS;
    transfer_abandon(transfer);
    staging_unlock();
}

/* Makes a transfer and queues it; *made is the caller's. */
static CUresult transfer_make(const struct cudriver_staging_job *job, struct staging_place *place,
                              const struct staging_plan *plan, bool own,
                              struct cudriver_staging_transfer **made)
{
    struct cudriver_staging_transfer *transfer = transfer_new(place, job->stream);
    CUresult result = CUDA_SUCCESS;

    if (transfer == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    transfer->own = own;
    if (plan->path == CUDRIVER_STAGING_DRIVER || plan->path == CUDRIVER_STAGING_ONE_SLOT) {
        result = small_start(transfer, job, plan);
    } else if (plan->path != CUDRIVER_STAGING_EMPTY) {
        result = staging_ring_start(transfer, job, plan);
    }
    if (result != CUDA_SUCCESS) {
        transfer_undo(transfer, result);
        staging_transfer_drop(transfer);
        return result;
    }
    staging_lock();
    transfer->making = false;
    staging_transfer_device_over(transfer);
    if (transfer->stopped) {
        transfer_abandon(transfer);
    }
    staging_unlock();
    *made = transfer;
    return CUDA_SUCCESS;
}

static CUresult async_copy(const struct cudriver_staging_job *job, struct staging_place *place,
                           struct cudriver_staging_transfer **made)
{
    struct staging_settings settings;
    struct staging_plan plan;
    bool kernels, counters = staging_place_counts(place, &kernels);
    CUresult result;

    staging_settings_get(&settings);
    settings.crossover_up /= 2; /* a host function packs in one thread */
    settings.crossover_down /= 2;
    staging_plan_make(job->layout, job->to_device, job->device, &settings, kernels, &plan);
    /* What the stream waits for cannot be told to it, or nobody would do it. */
    result = staging_is_staged(plan.path) && !counters
                 ? CUDA_ERROR_NOT_SUPPORTED
                 : transfer_make(job, place, &plan, false, made);
    if (plan.path == CUDRIVER_STAGING_PERMUTED &&
        (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_OUT_OF_MEMORY)) {
        staging_plan_make(job->layout, job->to_device, job->device, &settings, false, &plan);
        result = transfer_make(job, place, &plan, false, made);
    }
    if (staging_must_do_without(plan.path, result)) { /* the caller waits */
        result = staging_copy_now(job, place);
        plan.path = CUDRIVER_STAGING_EMPTY;
        if (result == CUDA_SUCCESS) {
            result = transfer_make(job, place, &plan, false, made);
        }
    }
    return result;
}

CUresult cudriver_staging_copy_async(const struct cudriver_staging_job *job,
                                     struct cudriver_staging_transfer **made)
{
    struct staging_place *place;
    CUresult result = staging_place_enter(job->context, &place);

    if (result == CUDA_SUCCESS) {
        result = async_copy(job, place, made);
        staging_place_leave(place);
    }
    return result;
}

void staging_transfer_check(struct cudriver_staging_transfer *transfer)
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
    bool failed = result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
    staging_lock();
    transfer->doubts = failed ? transfer->doubts + 1 : 0;
    bool lost = transfer->doubts == 2; /* a broken context stays broken */
    staging_unlock();
    if (lost) {
        transfer_stop(transfer, result);
        staging_lock();
        transfer->lost = true;
        transfer_abandon(transfer);
        staging_unlock();
    }
    staging_lock();
    place->users--;
    pthread_cond_broadcast(&staging.quiet);
    staging_unlock();
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
        staging_transfer_check(transfer);
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
        staging_transfer_drop(transfer);
    }
}

CUresult staging_copy_ring(const struct cudriver_staging_job *job, struct staging_place *place,
                           const struct staging_plan *plan)
{
    struct cudriver_staging_transfer *transfer;
    bool kernels;
    CUresult result;

    if (!staging_place_counts(place, &kernels)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    result = transfer_make(job, place, plan, true, &transfer);
    if (result == CUDA_SUCCESS) {
        result = staging_ring_help(transfer, job->interrupted, job->data)
                     ? cudriver_staging_wait(transfer, NULL, NULL)
                     : CUDRIVER_STAGING_INTERRUPTED;
        if (result != CUDA_SUCCESS) {
            transfer_undo(transfer, result);
        }
        staging_transfer_drop(transfer);
    }
    return result;
}

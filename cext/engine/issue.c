/* Puts a transfer on its stream, through one slot or a ring; undoes one that failed. See
 * private.h. */
#include "private.h"

#include <stdlib.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"

/* ---- small: one slot, host functions ---- */

/* Locked. Whether our thread may use the host's memory now: it was not given up before. */
static bool small_begin(struct cudriver_staging_transfer *transfer)
{
    bool begin = transfer->state == STAGING_QUEUED;

    if (begin) {
        staging_transfer_move(transfer, STAGING_MOVING);
    }
    return begin;
}

/* Packs the slot, unless the copy was given up. */
static void slot_pack(struct cudriver_staging_transfer *transfer)
{
    staging_lock();
    bool begin = small_begin(transfer);
    staging_unlock();
    if (begin) {
        cudriver_layout_copy_part(&transfer->walk, transfer->slot, true, transfer->host, false, 0,
                                  transfer->bytes);
        staging_lock();
        staging_transfer_move(transfer, STAGING_PASSING);
        staging_unlock();
    }
}

/* Host function, before the copy up. */
static void small_pack(void *data)
{
    slot_pack(data);
    staging_transfer_drop(data);
}

/* Host function, after the copy. */
static void small_done(void *data)
{
    struct cudriver_staging_transfer *transfer = data;

    staging_lock();
    bool unpack = !transfer->up && small_begin(transfer);
    staging_unlock();
    if (unpack) {
        cudriver_layout_copy_part(&transfer->walk, transfer->host, false, transfer->slot, true, 0,
                                  transfer->bytes);
    }
    cudriver_hostmem_free(transfer->slot);
    transfer->slot = NULL;
    staging_lock();
    staging_transfer_move(transfer, STAGING_OVER);
    staging_unlock();
    staging_transfer_drop(transfer);
}

static CUresult small_start(struct cudriver_staging_transfer *transfer,
                            const struct cudriver_staging_job *job, const struct staging_plan *plan)
{
    struct cudriver_layout rows;
    void *slot;
    CUresult result, state;

    /* Query before taking a slot: if the query fails, so would the wait that frees the slot. */
    state = plan->up ? staging_stream_query(job->stream) : CUDA_SUCCESS;
    if (state != CUDA_SUCCESS && state != CUDA_ERROR_NOT_READY) {
        return state;
    }
    result = staging_slot_get(plan->bytes, &slot);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    transfer->up = plan->up;
    transfer->slot = slot;
    transfer->host = job->host;
    transfer->bytes = plan->bytes;
    transfer->walk = plan->walk;
    staging_rows_make(&plan->walk, plan->up, &rows);
    if (plan->up && state == CUDA_SUCCESS) {
        slot_pack(transfer);
    } else if (plan->up) {
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

/* ---- any ---- */

/*
 * Undoes a transfer that failed, and returns the copy's result. Afterwards nothing of it is in use,
 * unless its stream cannot be waited for. Then its slots are never used again, and the result is
 * one that forbids another attempt, which could race with this one.
 */
static CUresult transfer_undo(struct cudriver_staging_transfer *transfer, CUresult result)
{
    CUresult waited = CUDA_SUCCESS;
    struct staging_ring *ring;

    staging_lock();
    staging_transfer_stop(transfer, result);
    staging_transfer_quiet(transfer);
    ring = transfer->ring;
    if (ring != NULL) {
        ring->users++; /* its stream is used below */
        staging_ring_open(transfer);
    }
    staging_unlock();
    if (ring != NULL || transfer->slot != NULL) { /* else nothing is queued */
        waited = cuda.cuStreamSynchronize(transfer->stream);
    }
    staging_lock();
    if (waited != CUDA_SUCCESS) {
        staging_transfer_lose(transfer, result);
    } else {
        staging_ring_close(transfer);
    }
    if (ring != NULL) {
        staging_ring_leave(ring);
    }
    staging_unlock();
    return waited != CUDA_SUCCESS && staging_must_do_without(CUDRIVER_STAGING_PERMUTED, result)
               ? CUDA_ERROR_UNKNOWN
               : result;
}

CUresult staging_transfer_make(const struct cudriver_staging_job *job, struct staging_place *place,
                               const struct staging_plan *plan, bool own,
                               struct cudriver_staging_transfer **made)
{
    struct cudriver_staging_transfer *transfer = staging_transfer_new(place, job->stream);
    CUresult result = CUDA_SUCCESS;

    if (transfer == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    transfer->own = own;
    if (plan->path == CUDRIVER_STAGING_ONE_SLOT) {
        result = small_start(transfer, job, plan);
    } else if (plan->path != CUDRIVER_STAGING_EMPTY) {
        result = staging_ring_start(transfer, job, plan);
    }
    if (result != CUDA_SUCCESS) {
        result = transfer_undo(transfer, result);
        staging_transfer_drop(transfer);
        return result;
    }
    staging_lock();
    if (transfer->ring != NULL) {
        transfer->ring->filling = false;
    } else if (plan->path == CUDRIVER_STAGING_EMPTY) {
        staging_transfer_move(transfer, STAGING_OVER);
    }
    staging_unlock();
    *made = transfer;
    return CUDA_SUCCESS;
}

CUresult staging_copy_ring(const struct cudriver_staging_job *job, struct staging_place *place,
                           const struct staging_plan *plan)
{
    struct cudriver_staging_transfer *transfer = NULL;
    bool kernels;
    CUresult result;

    if (!staging_place_counts(place, &kernels)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    result = staging_transfer_make(job, place, plan, true, &transfer);
    if (result == CUDA_SUCCESS) {
        result = staging_ring_help(transfer, job->interrupted, job->data)
                     ? cudriver_staging_wait(transfer, NULL, NULL)
                     : CUDRIVER_STAGING_INTERRUPTED;
        if (result != CUDA_SUCCESS) {
            result = transfer_undo(transfer, result);
        }
        staging_transfer_drop(transfer);
    }
    return result;
}

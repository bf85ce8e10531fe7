/* The life of a transfer, from its creation until it is over: cancelling, probing, waiting. See
 * private.h. */
#include "private.h"

#include <stdlib.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "driver/platform.h"

struct cudriver_staging_transfer *staging_transfer_new(struct staging_place *place, CUstream stream)
{
    struct cudriver_staging_transfer *transfer = calloc(1, sizeof *transfer);

    if (transfer == NULL) {
        return NULL;
    }
    atomic_init(&transfer->references, 1);
    transfer->place = place;
    transfer->stream = stream;
    transfer->making = true;
    transfer->device_pending = 1; /* the call that makes it */
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
    if (transfer->slot != NULL && !transfer->lost) {
        cudriver_hostmem_free(transfer->slot);
    }
    pthread_cond_destroy(&transfer->done);
    free(transfer);
}

/* Locked. Ends the transfer if nothing is pending. */
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

void staging_transfer_stop(struct cudriver_staging_transfer *transfer, CUresult result)
{
    staging_lock();
    transfer->stopped = true;
    if (transfer->result == CUDA_SUCCESS) {
        transfer->result = result;
    }
    if (transfer->small && !transfer->begun) {
        transfer->begun = true; /* its host functions find nothing to do */
        staging_transfer_host_over(transfer);
    } else if (transfer->ring != NULL && transfer->in_flight == 0 && transfer->host_pending > 0) {
        staging_transfer_host_over(transfer);
    }
    staging_unlock();
}

void staging_transfer_quiet(struct cudriver_staging_transfer *transfer)
{
    staging_lock();
    while (transfer->host_pending > 0) {
        pthread_cond_wait(&staging.quiet, &staging.lock);
    }
    staging_unlock();
}

void staging_transfer_abandon(struct cudriver_staging_transfer *transfer)
{
    if (!transfer->making && !transfer->over) {
        transfer->device_pending = 0;
        transfer_settle(transfer);
    }
}

void staging_transfer_lose(struct cudriver_staging_transfer *transfer)
{
    if (transfer->ring != NULL && (transfer->listed || !transfer->started)) { /* else it has left */
        transfer->ring->lost = true;
        if (!transfer->started && !transfer->lost) { /* nobody waits for it to arrive */
            staging.ring_users--;
        }
    }
    transfer->lost = true;
    staging_transfer_abandon(transfer);
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
            staging_transfer_stop(transfer, result);
            staging_lock();
            if (!transfer->started && !transfer->over) { /* else its stream runs to its end */
                transfer->stray = transfer->small && !transfer->making;
                staging.strays += transfer->stray;
                staging_transfer_abandon(transfer);
            }
            staging_unlock();
            staging_transfer_drop(transfer);
        }
    } while (transfer != NULL);
}

void staging_transfer_check(struct cudriver_staging_transfer *transfer)
{
    struct staging_place *place = NULL;
    unsigned long long now = platform_nanoseconds();
    CUresult result;
    CUcontext popped;
    CUstream probe = NULL;
    bool scarce = false; /* no memory for the probe, which says nothing about the context */

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
            scarce = result == CUDA_ERROR_OUT_OF_MEMORY;
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
    bool failed = result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY && !scarce;
    staging_lock();
    transfer->doubts = failed ? transfer->doubts + 1 : 0;
    bool lost = transfer->doubts == 2; /* a broken context stays broken */
    staging_unlock();
    if (lost) {
        staging_transfer_stop(transfer, result);
        staging_lock();
        staging_transfer_lose(transfer);
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

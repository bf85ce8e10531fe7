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
    if (transfer->slot != NULL && transfer->state != STAGING_LOST) {
        cudriver_hostmem_free(transfer->slot);
    }
    pthread_cond_destroy(&transfer->done);
    free(transfer);
}

void staging_transfer_move(struct cudriver_staging_transfer *transfer, enum staging_state state)
{
    enum staging_state from = transfer->state;
    struct staging_ring *ring = transfer->ring;

    if (state <= from) {
        return;
    }
    if (from < STAGING_LOST && state >= STAGING_LOST) {
        struct cudriver_staging_transfer **link = &transfer->place->transfers;
        while (*link != transfer) {
            link = &(*link)->next;
        }
        *link = transfer->next;
    }
    transfer->state = state;
    if (staging_transfer_ended(transfer)) {
        pthread_cond_broadcast(&transfer->done);
    }
    if (ring != NULL && (state == STAGING_LOST || state == STAGING_OVER)) {
        staging.ring_users--;
        if (staging.stopping) {
            staging_threads_call(staging.ring_idle); /* the threads end with the last user */
        }
        if (state == STAGING_LOST) {
            ring->lost = true;
        } else {
            transfer->ring = NULL;
            staging_ring_leave(ring);
        }
    }
    pthread_cond_broadcast(&staging.quiet);
}

/* Locked. */
static void result_set(struct cudriver_staging_transfer *transfer, CUresult result)
{
    if (transfer->result == CUDA_SUCCESS) {
        transfer->result = result;
    }
}

void staging_transfer_stop(struct cudriver_staging_transfer *transfer, CUresult result)
{
    if (transfer->state == STAGING_QUEUED) {
        result_set(transfer, result);
        staging_transfer_move(transfer, STAGING_CANCELLED);
    } else if (transfer->state == STAGING_MOVING && transfer->chunk < transfer->chunks) {
        result_set(transfer, result);
        transfer->chunk = transfer->chunks;
        if (transfer->in_flight == 0) {
            staging_transfer_move(transfer, STAGING_PASSING);
        }
    }
}

void staging_transfer_quiet(struct cudriver_staging_transfer *transfer)
{
    while (transfer->state == STAGING_MOVING) {
        pthread_cond_wait(&staging.quiet, &staging.lock);
    }
}

void staging_transfer_lose(struct cudriver_staging_transfer *transfer, CUresult result)
{
    staging_transfer_stop(transfer, result);
    staging_transfer_quiet(transfer);
    if (transfer->state != STAGING_OVER) {
        result_set(transfer, result);
        staging_transfer_move(transfer, STAGING_LOST);
    }
}

void staging_place_cancel(struct staging_place *place, CUresult result, bool all)
{
    struct cudriver_staging_transfer *transfer = place->transfers, *next;

    for (; transfer != NULL; transfer = next) {
        next = transfer->next;
        if (all || transfer->state == STAGING_QUEUED) {
            staging_transfer_stop(transfer, result);
        }
    }
}

/* Asks the first of a place's own streams, which is made if there is none. */
static CUresult place_probe(struct staging_place *place)
{
    CUresult result = staging_place_open(place);
    CUcontext popped;
    CUstream side;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    staging_lock();
    side = place->sides[0];
    staging_unlock();
    if (side == NULL) {
        result = staging_side_get(place, &side);
    }
    if (result == CUDA_SUCCESS) {
        cudriver_driver_relax();
        result = cuda.cuStreamQuery(side);
        cudriver_driver_restore();
    }
    cuda.cuCtxPopCurrent_v2(&popped);
    return result;
}

/* Whether the answer to a probe is a reason to doubt the context. A lack of memory for a stream is
 * none; nor is a thread that captures a graph, which forbids other threads such calls. */
static bool probe_failed(CUresult result)
{
    return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY &&
           result != CUDA_ERROR_OUT_OF_MEMORY && !cudriver_driver_is_capturing(result);
}

void staging_transfer_check(struct cudriver_staging_transfer *transfer)
{
    struct staging_place *place = NULL;
    unsigned long long now = platform_nanoseconds();
    CUresult result;

    staging_lock();
    if (transfer->state < STAGING_LOST && now - transfer->checked > STAGING_POLL_NS) {
        transfer->checked = now;
        place = transfer->place;
        place->users++;
    }
    staging_unlock();
    if (place == NULL) {
        return;
    }
    result = place_probe(place);
    staging_lock();
    transfer->doubts = probe_failed(result) ? transfer->doubts + 1 : 0;
    if (transfer->doubts == 2) { /* a broken context stays broken */
        staging_transfer_lose(transfer, result);
    }
    place->users--;
    pthread_cond_broadcast(&staging.quiet);
    staging_unlock();
}

CUresult cudriver_staging_wait(struct cudriver_staging_transfer *transfer,
                               bool (*interrupted)(void *data), void *data)
{
    CUresult result;

    if (cudriver_driver_is_forked()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    staging_lock();
    while (!staging_transfer_ended(transfer)) {
        staging_condition_wait(&transfer->done, STAGING_POLL_NS);
        if (staging_transfer_ended(transfer)) {
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

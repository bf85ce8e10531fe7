/* Staged copies, blocking and in stream order: by a ring, in one slot, or by the calling thread
 * alone. See engine.h. */
#include "private.h"

#include <stdlib.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "hostmem/hostmem.h"

/* ---- by the calling thread alone ---- */

/* Called between two parts of a copy: SUCCESS, or why it ends here. *asked: ns, when `interrupted`
 * was last called or the copy began. */
static CUresult may_go_on(const struct cudriver_copy_call *call, unsigned long long *asked)
{
    bool stopping;

    staging_lock();
    stopping = staging.stopping;
    staging_unlock();
    if (stopping) {
        return CUDA_ERROR_DEINITIALIZED;
    }
    if (call->interrupted == NULL || platform_nanoseconds() - *asked < STAGING_POLL_NS) {
        return CUDA_SUCCESS;
    }
    if (call->interrupted(call->data)) {
        return CUDRIVER_STAGING_INTERRUPTED;
    }
    *asked = platform_nanoseconds();
    return CUDA_SUCCESS;
}

/* The driver's own dense copy. Up, its call may return before the device's memory is written; the
 * wait makes the bytes visible to streams that are not ordered with this one. */
static CUresult driver_copy(bool up, CUdeviceptr device, char *host, size_t bytes, CUstream stream)
{
    CUresult result;

    if (stream == NULL) {
        result = up ? cuda.cuMemcpyHtoD_v2(device, host, bytes)
                    : cuda.cuMemcpyDtoH_v2(host, device, bytes);
        return up && result == CUDA_SUCCESS ? cuda.cuStreamSynchronize(NULL) : result;
    }
    result = up ? cuda.cuMemcpyHtoDAsync_v2(device, host, bytes, stream)
                : cuda.cuMemcpyDtoHAsync_v2(host, device, bytes, stream);
    return result == CUDA_SUCCESS ? cuda.cuStreamSynchronize(stream) : result;
}

/* A dense copy in parts of TUNING_CUT bytes. A copy of one part takes neither lock nor clock. */
static CUresult plain_copy(const struct cudriver_copy_plan *copy,
                           const struct cudriver_copy_call *call)
{
    const struct staging_plan *plan = &copy->staged;
    const struct cudriver_layout *walk = &plan->walk;
    CUdeviceptr device =
        copy->device + (CUdeviceptr)(plan->up ? walk->dst_offset : walk->src_offset);
    char *host = copy->host + (plan->up ? walk->src_offset : walk->dst_offset);
    unsigned long long asked = plan->bytes > TUNING_CUT ? platform_nanoseconds() : 0;
    CUresult result = CUDA_SUCCESS;
    bool cut = false;

    for (size_t at = 0, bytes; at < plan->bytes && result == CUDA_SUCCESS; at += bytes) {
        bytes = plan->bytes - at < TUNING_CUT ? plan->bytes - at : TUNING_CUT;
        if (cut) {
            bytes = cudriver_hostmem_run(host + at, bytes);
        }
        if (at > 0) {
            result = may_go_on(call, &asked);
        }
        if (result == CUDA_SUCCESS) {
            result = driver_copy(plan->up, device + at, host + at, bytes, call->stream);
        }
        if (result == CUDA_ERROR_INVALID_VALUE && !cut) {
            cut = true; /* perhaps a registration ends within these bytes */
            bytes = 0;
            result = CUDA_SUCCESS;
        }
    }
    return result;
}

/* Copies chunk by chunk through `slot`, pageable or page-locked. *idle: whether the device no
 * longer uses the slot. */
static CUresult slot_copy(const struct cudriver_copy_plan *copy,
                          const struct cudriver_copy_call *call, char *slot, size_t chunk,
                          bool *idle)
{
    const struct staging_plan *plan = &copy->staged;
    unsigned long long asked = plan->bytes > chunk ? platform_nanoseconds() : 0;
    struct cudriver_layout rows;
    CUresult result = CUDA_SUCCESS;

    *idle = true;
    staging_rows_make(&plan->walk, plan->up, &rows);
    for (size_t begin = 0; begin < plan->bytes && result == CUDA_SUCCESS; begin += chunk) {
        size_t end = plan->bytes - begin > chunk ? begin + chunk : plan->bytes;
        if (plan->up) {
            cudriver_layout_copy_part(&plan->walk, slot, true, copy->host, false, begin, end);
        }
        result = staging_device_copy(&rows, plan->up, copy->device, slot, begin, end, call->stream);
        if (result != CUDA_SUCCESS) {
            /* earlier rows may be under way */
            *idle = cuda.cuStreamSynchronize(call->stream) == CUDA_SUCCESS;
            return result;
        }
        result = cuda.cuStreamSynchronize(call->stream);
        *idle = result == CUDA_SUCCESS;
        if (!plan->up && result == CUDA_SUCCESS) {
            cudriver_layout_copy_part(&plan->walk, copy->host, false, slot, true, begin, end);
        }
        if (result == CUDA_SUCCESS && end < plan->bytes) {
            result = may_go_on(call, &asked);
        }
    }
    return result;
}

/* Copies through one slot, page-locked if possible. */
static CUresult one_slot_copy(const struct cudriver_copy_plan *copy,
                              const struct cudriver_copy_call *call, size_t chunk)
{
    CUresult result;
    void *locked, *slot;
    bool idle;

    slot = staging_slot_get(chunk, &locked) == CUDA_SUCCESS ? locked : malloc(chunk);
    if (slot == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = slot_copy(copy, call, slot, chunk, &idle);
    if (!idle) {
        return result; /* leaked on purpose: the device may still use it */
    }
    if (locked != NULL) {
        cudriver_hostmem_free(locked);
    } else {
        free(slot);
    }
    return result;
}

/* The slower fallback without threads, page-locked memory or stream memory operations. */
static CUresult copy_alone(const struct cudriver_copy_plan *copy,
                           const struct cudriver_copy_call *call)
{
    const struct staging_plan *plan = &copy->staged;

    return plan->host_dense && plan->device_dense
               ? plain_copy(copy, call)
               : one_slot_copy(copy, call, staging_alone_chunk(plan->bytes));
}

/* ---- by a transfer ---- */

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

/* Makes a transfer and queues it. `own`: blocking, on the ring's own stream. The caller owns
 * *made. */
static CUresult transfer_make(const struct cudriver_copy_plan *copy,
                              const struct cudriver_copy_call *call, struct staging_place *place,
                              bool own, struct cudriver_staging_transfer **made)
{
    struct cudriver_staging_transfer *transfer = staging_transfer_new(place, call->stream);
    enum cudriver_staging_path path = copy->staged.path;
    CUresult result = CUDA_SUCCESS;

    if (transfer == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    transfer->own = own;
    if (path == CUDRIVER_STAGING_ONE_SLOT) {
        result = staging_small_start(transfer, copy, call);
    } else if (path != CUDRIVER_STAGING_EMPTY) {
        result = staging_ring_start(transfer, copy, call);
    }
    if (result != CUDA_SUCCESS) {
        result = transfer_undo(transfer, result);
        staging_transfer_drop(transfer);
        return result;
    }
    staging_lock();
    if (transfer->ring != NULL) {
        transfer->ring->filling = false;
    } else if (path == CUDRIVER_STAGING_EMPTY) {
        staging_transfer_move(transfer, STAGING_OVER);
    }
    staging_unlock();
    *made = transfer;
    return CUDA_SUCCESS;
}

/* ---- blocking ---- */

/* A blocking copy through a ring. NOT_SUPPORTED: no stream memory operations, or no kernel. */
static CUresult ring_copy(const struct cudriver_copy_plan *copy,
                          const struct cudriver_copy_call *call, struct staging_place *place)
{
    struct cudriver_staging_transfer *transfer;
    CUresult result = transfer_make(copy, call, place, true, &transfer);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = staging_ring_help(transfer, call->interrupted, call->data);
    if (result != CUDA_SUCCESS) {
        result = transfer_undo(transfer, result);
    }
    staging_transfer_drop(transfer);
    return result;
}

static CUresult planned_copy(const struct cudriver_copy_plan *copy,
                             const struct cudriver_copy_call *call, struct staging_place *place)
{
    const struct staging_plan *plan = &copy->staged;

    if (plan->path == CUDRIVER_STAGING_DRIVER) {
        return plain_copy(copy, call);
    }
    return plan->path == CUDRIVER_STAGING_ONE_SLOT
               ? one_slot_copy(copy, call, plan->chunk > 0 ? plan->chunk : plan->bytes)
               : ring_copy(copy, call, place);
}

static CUresult copy_now(const struct cudriver_copy_plan *copy,
                         const struct cudriver_copy_call *call, struct staging_place *place)
{
    const struct staging_plan *plan = &copy->staged;
    struct cudriver_copy_plan again;
    CUresult result;

    if (plan->path == CUDRIVER_STAGING_EMPTY) {
        return CUDA_SUCCESS;
    }
    if (staging_is_staged(plan->path)) {
        staging_ring_expect(plan->threads - 1);
    }
    /* A ring's stream is not the caller's, so that nothing may be missed. */
    result = staging_is_staged(plan->path)
                 ? cudriver_staging_stream_wait(call->stream, call->interrupted, call->data)
                 : cudriver_staging_stream_settle(call->stream, call->interrupted, call->data);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = planned_copy(copy, call, place);
    if (plan->path == CUDRIVER_STAGING_PERMUTED && staging_must_do_without(plan->path, result)) {
        again = *copy;
        staging_plan_make(&again, true, false);
        copy = &again;
        plan = &again.staged;
        result = planned_copy(copy, call, place);
    }
    return staging_is_staged(plan->path) && staging_must_do_without(plan->path, result)
               ? copy_alone(copy, call)
               : result;
}

/* ---- in stream order ---- */

static CUresult async_copy(const struct cudriver_copy_plan *copy,
                           const struct cudriver_copy_call *call, struct staging_place *place,
                           struct cudriver_staging_transfer **made)
{
    static const struct cudriver_copy_plan nothing = {.staged.path = CUDRIVER_STAGING_EMPTY};
    struct cudriver_copy_plan again;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (!copy->staged.alone) {
        result = transfer_make(copy, call, place, false, made);
    }
    if (copy->staged.path == CUDRIVER_STAGING_PERMUTED &&
        (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_OUT_OF_MEMORY)) {
        again = *copy;
        staging_plan_make(&again, false, false);
        copy = &again;
        if (!copy->staged.alone) {
            result = transfer_make(copy, call, place, false, made);
        }
    }
    if (copy->staged.alone || staging_must_do_without(copy->staged.path, result)) {
        /* Blocking, then an empty transfer. */
        again = *copy;
        staging_plan_make(&again, true, true);
        result = copy_now(&again, call, place);
        if (result == CUDA_SUCCESS) {
            result = transfer_make(&nothing, call, place, false, made);
        }
    }
    return result;
}

CUresult staging_copy(const struct cudriver_copy_plan *copy, const struct cudriver_copy_call *call,
                      struct cudriver_staging_transfer **transfer)
{
    struct staging_place *place;
    CUresult result = staging_place_enter(copy->context, &place);

    if (result == CUDA_SUCCESS) {
        result = transfer == NULL ? copy_now(copy, call, place)
                                  : async_copy(copy, call, place, transfer);
        staging_place_leave(place);
    }
    return result;
}

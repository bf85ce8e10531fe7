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
static CUresult may_go_on(const struct cudriver_staging_job *job, unsigned long long *asked)
{
    bool stopping;

    staging_lock();
    stopping = staging.stopping;
    staging_unlock();
    if (stopping) {
        return CUDA_ERROR_DEINITIALIZED;
    }
    if (job->interrupted == NULL || platform_nanoseconds() - *asked < STAGING_POLL_NS) {
        return CUDA_SUCCESS;
    }
    if (job->interrupted(job->data)) {
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
static CUresult plain_copy(const struct cudriver_staging_job *job, const struct staging_plan *plan)
{
    const struct cudriver_layout *walk = &plan->walk;
    CUdeviceptr device =
        job->device + (CUdeviceptr)(plan->up ? walk->dst_offset : walk->src_offset);
    char *host = (char *)job->host + (plan->up ? walk->src_offset : walk->dst_offset);
    unsigned long long asked = plan->bytes > TUNING_CUT ? platform_nanoseconds() : 0;
    CUresult result = CUDA_SUCCESS;
    bool cut = false;

    for (size_t at = 0, bytes; at < plan->bytes && result == CUDA_SUCCESS; at += bytes) {
        bytes = plan->bytes - at < TUNING_CUT ? plan->bytes - at : TUNING_CUT;
        if (cut) {
            bytes = cudriver_hostmem_run(host + at, bytes);
        }
        if (at > 0) {
            result = may_go_on(job, &asked);
        }
        if (result == CUDA_SUCCESS) {
            result = driver_copy(plan->up, device + at, host + at, bytes, job->stream);
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
static CUresult slot_copy(const struct cudriver_staging_job *job, const struct staging_plan *plan,
                          char *slot, size_t chunk, bool *idle)
{
    unsigned long long asked = plan->bytes > chunk ? platform_nanoseconds() : 0;
    struct cudriver_layout rows;
    CUresult result = CUDA_SUCCESS;

    *idle = true;
    staging_rows_make(&plan->walk, plan->up, &rows);
    for (size_t begin = 0; begin < plan->bytes && result == CUDA_SUCCESS; begin += chunk) {
        size_t end = plan->bytes - begin > chunk ? begin + chunk : plan->bytes;
        if (plan->up) {
            cudriver_layout_copy_part(&plan->walk, slot, true, job->host, false, begin, end);
        }
        result = staging_device_copy(&rows, plan->up, job->device, slot, begin, end, job->stream);
        if (result != CUDA_SUCCESS) {
            /* earlier rows may be under way */
            *idle = cuda.cuStreamSynchronize(job->stream) == CUDA_SUCCESS;
            return result;
        }
        result = cuda.cuStreamSynchronize(job->stream);
        *idle = result == CUDA_SUCCESS;
        if (!plan->up && result == CUDA_SUCCESS) {
            cudriver_layout_copy_part(&plan->walk, job->host, false, slot, true, begin, end);
        }
        if (result == CUDA_SUCCESS && end < plan->bytes) {
            result = may_go_on(job, &asked);
        }
    }
    return result;
}

/* Copies through one slot, page-locked if possible. */
static CUresult one_slot_copy(const struct cudriver_staging_job *job,
                              const struct staging_plan *plan, size_t chunk)
{
    CUresult result;
    void *locked, *slot;
    bool idle;

    slot = staging_slot_get(chunk, &locked) == CUDA_SUCCESS ? locked : malloc(chunk);
    if (slot == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = slot_copy(job, plan, slot, chunk, &idle);
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
static CUresult copy_alone(const struct cudriver_staging_job *job, const struct staging_plan *plan)
{
    return plan->host_dense && plan->device_dense
               ? plain_copy(job, plan)
               : one_slot_copy(job, plan, staging_alone_chunk(plan->bytes));
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
static CUresult transfer_make(const struct cudriver_staging_job *job, struct staging_place *place,
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
        result = staging_small_start(transfer, job, plan);
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

/* ---- blocking ---- */

/* A blocking copy through a ring. NOT_SUPPORTED: no stream memory operations, or no kernel. */
static CUresult ring_copy(const struct cudriver_staging_job *job, struct staging_place *place,
                          const struct staging_plan *plan)
{
    struct cudriver_staging_transfer *transfer;
    CUresult result = transfer_make(job, place, plan, true, &transfer);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = staging_ring_help(transfer, job->interrupted, job->data);
    if (result != CUDA_SUCCESS) {
        result = transfer_undo(transfer, result);
    }
    staging_transfer_drop(transfer);
    return result;
}

static CUresult planned_copy(const struct cudriver_staging_job *job, struct staging_place *place,
                             const struct staging_plan *plan)
{
    if (plan->path == CUDRIVER_STAGING_DRIVER) {
        return plain_copy(job, plan);
    }
    return plan->path == CUDRIVER_STAGING_ONE_SLOT
               ? one_slot_copy(job, plan, plan->chunk > 0 ? plan->chunk : plan->bytes)
               : ring_copy(job, place, plan);
}

static CUresult copy_now(const struct cudriver_staging_job *job, struct staging_place *place,
                         const struct staging_plan *plan)
{
    struct staging_plan again;
    CUresult result;

    if (plan->path == CUDRIVER_STAGING_EMPTY) {
        return CUDA_SUCCESS;
    }
    if (staging_is_staged(plan->path)) {
        staging_ring_expect(plan->threads - 1);
    }
    if (plan->path != CUDRIVER_STAGING_DRIVER || cuda.cuStreamQuery(job->stream) != CUDA_SUCCESS) {
        result = cudriver_staging_stream_wait(job->stream, job->interrupted, job->data);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    result = planned_copy(job, place, plan);
    if (plan->path == CUDRIVER_STAGING_PERMUTED && staging_must_do_without(plan->path, result)) {
        staging_plan_make(job, true, false, &again);
        plan = &again;
        result = planned_copy(job, place, plan);
    }
    return staging_is_staged(plan->path) && staging_must_do_without(plan->path, result)
               ? copy_alone(job, plan)
               : result;
}

/* ---- in stream order ---- */

static CUresult async_copy(const struct cudriver_staging_job *job, struct staging_place *place,
                           const struct staging_plan *plan, struct cudriver_staging_transfer **made)
{
    static const struct staging_plan nothing = {.path = CUDRIVER_STAGING_EMPTY};
    struct staging_plan again;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (!plan->alone) {
        result = transfer_make(job, place, plan, false, made);
    }
    if (plan->path == CUDRIVER_STAGING_PERMUTED &&
        (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_OUT_OF_MEMORY)) {
        staging_plan_make(job, false, false, &again);
        plan = &again;
        if (!plan->alone) {
            result = transfer_make(job, place, plan, false, made);
        }
    }
    if (plan->alone || staging_must_do_without(plan->path, result)) {
        /* Blocking, then an empty transfer. */
        staging_plan_make(job, true, true, &again);
        result = copy_now(job, place, &again);
        if (result == CUDA_SUCCESS) {
            result = transfer_make(job, place, &nothing, false, made);
        }
    }
    return result;
}

CUresult cudriver_staging_copy(const struct cudriver_staging_job *job,
                               const struct staging_plan *plan,
                               struct cudriver_staging_transfer **made)
{
    struct staging_place *place;
    CUresult result = staging_place_enter(job->context, &place);

    if (result == CUDA_SUCCESS) {
        result = made == NULL ? copy_now(job, place, plan) : async_copy(job, place, plan, made);
        staging_place_leave(place);
    }
    return result;
}

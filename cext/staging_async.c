/* Copies in stream order. See staging_private.h. */
#include "staging_private.h"

#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "hostmem.h"
#include "platform.h"

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
    struct cudriver_staging_transfer **link;

    if (transfer->over || !transfer->told || transfer->host_pending > 0 ||
        transfer->device_pending > 0) {
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
void staging_transfer_device_over(struct cudriver_staging_transfer *transfer)
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
    tell = transfer->host_pending == 0 && !transfer->telling && !transfer->making;
    transfer->telling |= tell;
    result = transfer->result;
    staging_unlock();
    if (tell) {
        if (transfer->finished != NULL) {
            transfer->finished(transfer->finished_data, result);
        }
        staging_lock();
        transfer->told = true;
        transfer_settle(transfer);
        staging_unlock();
    }
    staging_transfer_drop(transfer);
}

/* Unlocked, with a reference. Nothing more is begun; what has begun ends by itself. */
void staging_transfer_stop(struct cudriver_staging_transfer *transfer, CUresult result)
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
        staging_transfer_hold(transfer);
        tell++;
    }
    staging_unlock();
    for (; tell > 0; tell--) {
        staging_transfer_tell(transfer);
    }
}

/* Unlocked: waits until no thread of ours touches host memory or slots for it. */
void staging_transfer_quiet(struct cudriver_staging_transfer *transfer)
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
            staging_transfer_hold(transfer);
            place->lost_flags++;
        }
        staging_unlock();
        if (transfer != NULL) {
            staging_transfer_stop(transfer, result);
            staging_lock();
            transfer_abandon(transfer);
            staging_unlock();
            staging_transfer_drop(transfer);
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

/* ---- staged, in one piece ---- */

bool staging_transfer_make_room(struct cudriver_staging_transfer *transfer, size_t count)
{
    transfer->jobs = count > INT32_MAX ? NULL : calloc(count, sizeof transfer->jobs[0]);
    return transfer->jobs != NULL;
}

/* Adds a job; the transfer holds it, and it the transfer. */
CUresult staging_transfer_add(struct cudriver_staging_transfer *transfer, struct staging_job *job)
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
        staging_transfer_hold(transfer);
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

    if (!staging_transfer_make_room(transfer, 1)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made = staging_job_new(route, plan, job->device, job->host, 0, plan->bytes);
    result = staging_transfer_add(transfer, made);
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
    staging_transfer_device_over(transfer);
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

/* After a failed start: nothing of it is in use any more, `finished` is not called. */
void staging_transfer_undo(struct cudriver_staging_transfer *transfer, CUresult result)
{
    staging_lock();
    transfer->telling = transfer->told = true;
    transfer->making = false;
    staging_unlock();
    staging_transfer_stop(transfer, result);
    staging_transfer_quiet(transfer);
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
        return staging_permuted_start(transfer, job, plan);
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
    struct cudriver_staging_transfer *transfer = staging_transfer_new(place, job->stream);
    CUresult result;

    if (transfer == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    transfer->finished = finished;
    transfer->finished_data = finished_data;
    result = transfer_start(transfer, job, plan);
    if (result != CUDA_SUCCESS) {
        staging_transfer_undo(transfer, result);
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
    staging_transfer_hold(transfer);
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
        staging_transfer_stop(transfer, result);
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
        staging_transfer_drop(transfer);
    }
}

/* Blocking copies, settings and figures of the copy engine. See engine.h. */
#include "private.h"

#include <stdlib.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"

#define ALONE_CHUNK ((size_t)1 << 20)

/* ---- by the calling thread alone ---- */

/* The driver's own copy of memory in one piece. Up, it returns when it has read the host's memory;
 * a stream that is not in order with this one must not see the device's before it is written. */
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

static CUresult plain_copy(const struct cudriver_staging_job *job, const struct staging_plan *plan)
{
    const struct cudriver_layout *walk = &plan->walk;
    int64_t device = plan->up ? walk->dst_offset : walk->src_offset;
    int64_t host = plan->up ? walk->src_offset : walk->dst_offset;

    return driver_copy(plan->up, job->device + (CUdeviceptr)device, (char *)job->host + host,
                       plan->bytes, job->stream);
}

/* Packs and sends, or receives and unpacks, chunk by chunk through `slot`, of any memory. */
static CUresult slot_copy(const struct cudriver_staging_job *job, const struct staging_plan *plan,
                          char *slot, size_t chunk)
{
    struct cudriver_layout rows;
    CUresult result = CUDA_SUCCESS;

    staging_rows_make(&plan->walk, plan->up, &rows);
    for (size_t begin = 0; begin < plan->bytes && result == CUDA_SUCCESS; begin += chunk) {
        size_t end = plan->bytes - begin > chunk ? begin + chunk : plan->bytes;
        if (plan->up) {
            cudriver_layout_copy_part(&plan->walk, slot, true, job->host, false, begin, end);
        }
        result = staging_device_copy(&rows, plan->up, job->device, slot, begin, end, job->stream);
        if (result != CUDA_SUCCESS) {
            cuda.cuStreamSynchronize(job->stream); /* rows that went before may be under way */
            return result;
        }
        result = cuda.cuStreamSynchronize(job->stream);
        if (!plan->up && result == CUDA_SUCCESS) {
            cudriver_layout_copy_part(&plan->walk, job->host, false, slot, true, begin, end);
        }
        if (result == CUDA_SUCCESS && end < plan->bytes && job->interrupted != NULL &&
            job->interrupted(job->data)) {
            result = CUDRIVER_STAGING_INTERRUPTED;
        }
    }
    return result;
}

static CUresult one_slot_copy(const struct cudriver_staging_job *job,
                              const struct staging_plan *plan)
{
    void *slot;
    CUresult result = staging_slot_get(plan->bytes, &slot);

    if (result == CUDA_SUCCESS) {
        result = slot_copy(job, plan, slot, plan->bytes);
        cudriver_hostmem_free(slot);
    }
    return result;
}

/* Where no thread, or not enough page-locked memory, can be had: slower, but done. */
static CUresult copy_alone(const struct cudriver_staging_job *job, const struct staging_plan *plan)
{
    size_t chunk = plan->bytes < ALONE_CHUNK ? plan->bytes : ALONE_CHUNK;
    CUresult result;
    void *locked, *slot;

    if (plan->host_dense && plan->device_dense) {
        return plain_copy(job, plan);
    }
    slot = staging_slot_get(chunk, &locked) == CUDA_SUCCESS ? locked : malloc(chunk);
    if (slot == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = slot_copy(job, plan, slot, chunk);
    if (locked != NULL) {
        cudriver_hostmem_free(locked);
    } else {
        free(slot);
    }
    return result;
}

/* ---- with the lanes ---- */

/* Works on a submitted job and waits until it is over. */
static CUresult job_finish(struct staging_job *job, bool (*interrupted)(void *), void *data)
{
    bool go_on = true;
    CUresult result;

    for (;;) {
        if (go_on) {
            go_on = staging_job_help(job, interrupted, data);
        }
        staging_lock();
        if (!go_on) {
            staging_job_stop(job, CUDRIVER_STAGING_INTERRUPTED);
        }
        if (!job->over) {
            staging_condition_wait(&job->done, STAGING_POLL_NS);
        }
        if (job->over) {
            break;
        }
        staging_unlock();
        if (go_on && interrupted != NULL) {
            go_on = !interrupted(data);
        }
    }
    result = job->result;
    staging_unlock();
    return result;
}

static CUresult staged_copy(const struct cudriver_staging_job *job, struct staging_place *place,
                            const struct staging_plan *plan)
{
    struct staging_job *made = staging_job_new(&place->routes[plan->up ? 0 : 1], plan, job->device,
                                               job->host, 0, plan->bytes);
    CUresult result;

    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    staging_lock();
    staging_job_submit(made);
    staging_unlock();
    result = job_finish(made, job->interrupted, job->data);
    staging_job_drop(made);
    return result;
}

static CUresult planned_copy(const struct cudriver_staging_job *job, struct staging_place *place,
                             const struct staging_plan *plan)
{
    CUresult result;

    switch (plan->path) {
    case CUDRIVER_STAGING_EMPTY:
        return CUDA_SUCCESS;
    case CUDRIVER_STAGING_DRIVER:
        return plain_copy(job, plan);
    case CUDRIVER_STAGING_ONE_SLOT:
        return one_slot_copy(job, plan);
    default:
        break;
    }
    result = staging_copy_ring(job, place, plan);
    if (result == CUDA_ERROR_NOT_SUPPORTED && plan->path != CUDRIVER_STAGING_PERMUTED) {
        result = staged_copy(job, place, plan); /* an old driver */
    }
    return result;
}

bool staging_is_short(CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY || result == STAGING_NO_THREADS ||
           result == CUDA_ERROR_OPERATING_SYSTEM; /* the driver's own threads */
}

CUresult staging_copy_now(const struct cudriver_staging_job *job, struct staging_place *place)
{
    struct cudriver_staging_settings settings;
    struct staging_plan plan;
    CUresult result;

    staging_lock();
    settings = staging.settings;
    bool kernels = !place->no_kernels && !place->no_counters;
    staging_unlock();
    staging_plan_make(job->layout, job->to_device, job->device, &settings, kernels, &plan);
    if (plan.path == CUDRIVER_STAGING_EMPTY) {
        return CUDA_SUCCESS;
    }
    if (plan.path == CUDRIVER_STAGING_DENSE && settings.lanes == 1) {
        plan.path = CUDRIVER_STAGING_DRIVER; /* nobody to share the packing with */
    }
    if (plan.chunk != 0 && plan.path != CUDRIVER_STAGING_DRIVER) {
        staging_ring_expect(
            staging_threads_wanted(plan.bytes, staging_runs_are_long(&plan.walk, plan.host_dense),
                                   &settings) -
            1);
    }
    if (plan.path != CUDRIVER_STAGING_DRIVER || cuda.cuStreamQuery(job->stream) != CUDA_SUCCESS) {
        result = staging_stream_wait(job->stream, job->interrupted, job->data);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    result = planned_copy(job, place, &plan);
    if (plan.path == CUDRIVER_STAGING_PERMUTED &&
        (result == CUDA_ERROR_NOT_SUPPORTED || staging_is_short(result))) {
        staging_plan_make(job->layout, job->to_device, job->device, &settings, false, &plan);
        result = planned_copy(job, place, &plan);
    }
    return staging_is_short(result) ? copy_alone(job, &plan) : result;
}

CUresult cudriver_staging_copy(const struct cudriver_staging_job *job)
{
    struct staging_place *place;
    CUresult result = staging_place_enter(job->context, &place);

    if (result == CUDA_SUCCESS) {
        result = staging_copy_now(job, place);
        staging_place_leave(place);
    }
    return result;
}

bool cudriver_staging_is_small(bool to_device, size_t bytes)
{
    bool small;

    staging_lock();
    small = staging.settings.lanes == 1 ||
            bytes < (to_device ? staging.settings.crossover_up : staging.settings.crossover_down);
    staging_unlock();
    return small;
}

/* ---- settings and figures ---- */

void cudriver_staging_get_settings(struct cudriver_staging_settings *settings)
{
    staging_lock();
    *settings = staging.settings;
    staging_unlock();
}

int cudriver_staging_get_threads(void)
{
    struct cudriver_staging_settings settings;

    cudriver_staging_get_settings(&settings);
    return settings.threads;
}

void cudriver_staging_set_threads(int threads)
{
    staging_lock();
    if (threads > 0) {
        staging_settings_threads(&staging.settings, threads);
    } else {
        struct cudriver_staging_settings usual;
        staging_settings_default(&usual);
        staging.settings.threads = usual.threads;
        staging.settings.lanes = usual.lanes;
    }
    staging_unlock();
}

static int between(int value, int least, int most)
{
    return value < least ? least : value > most ? most : value;
}

void cudriver_staging_set_settings(const struct cudriver_staging_settings *settings)
{
    struct cudriver_staging_settings set = *settings;
    const size_t least = 4096, most = (size_t)64 << 20;

    set.lanes = between(set.lanes, 1, 256);
    set.medium = between(set.medium, 1, 256);
    set.threads = between(set.threads, 1, 1024);
    set.linger = between(set.linger, 0, 10000000);
    set.slots = between(set.slots, 1, STAGING_SLOTS);
    if (set.chunk != 0) {
        set.chunk = set.chunk < least ? least : set.chunk > most ? most : set.chunk;
    }
    set.slot = set.slot < least ? least : set.slot > most ? most : set.slot;
    set.slot_up = set.slot_up < least ? least : set.slot_up > most ? most : set.slot_up;
    staging_lock();
    staging.settings = set;
    staging_unlock();
}

void cudriver_staging_get_stats(struct cudriver_staging_stats *stats)
{
    staging_lock();
    *stats = (struct cudriver_staging_stats){
        .threads = staging.threads + staging.ring_threads,
        .lanes = staging.lanes,
        .slot_bytes = staging.slot_bytes,
        .jobs = staging.jobs + (size_t)staging.ring_users,
        .copies = staging.copies,
        .bytes = staging.bytes,
    };
    for (const struct staging_place *place = staging.places; place != NULL; place = place->next) {
        for (const struct staging_ring *ring = place->rings; ring != NULL; ring = ring->next) {
            stats->rings++;
            stats->slot_bytes += STAGING_RING_SLOTS * ring->slot_bytes;
        }
    }
    staging_unlock();
}

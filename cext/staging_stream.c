/* The caller's stream: waiting for it, and making it wait. See staging_private.h. */
#include "staging_private.h"

#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "hostmem.h"

/* ---- waiting for a stream ---- */

#define STREAM_LEGACY ((CUstream)1)

CUresult staging_stream_query(CUstream stream)
{
    CUresult result;
    CUevent event;

    if (stream != NULL && stream != STREAM_LEGACY) {
        return cuda.cuStreamQuery(stream);
    }
    /* The NULL stream comes after the work of others; an event there does too, for certain. */
    result = cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) {
        result = cuda.cuEventRecord(event, stream);
        if (result == CUDA_SUCCESS) {
            result = cuda.cuEventQuery(event);
        }
        cuda.cuEventDestroy_v2(event);
    }
    return result;
}

/* Shared by a waiting thread and a host function on the stream. */
struct arrival {
    atomic_int references;
    bool reached;
    pthread_cond_t condition;
};

static void arrival_drop(struct arrival *arrival)
{
    if (atomic_fetch_sub_explicit(&arrival->references, 1, memory_order_acq_rel) == 1) {
        pthread_cond_destroy(&arrival->condition);
        free(arrival);
    }
}

static void arrival_reach(void *data)
{
    struct arrival *arrival = data;

    staging_lock();
    arrival->reached = true;
    pthread_cond_broadcast(&arrival->condition);
    staging_unlock();
    arrival_drop(arrival);
}

CUresult staging_stream_wait(CUstream stream, bool (*interrupted)(void *), void *data)
{
    CUresult result = staging_stream_query(stream);
    struct arrival *arrival;

    if (result != CUDA_ERROR_NOT_READY) {
        return result;
    }
    if (interrupted == NULL) {
        return cuda.cuStreamSynchronize(stream);
    }
    arrival = calloc(1, sizeof *arrival);
    if (arrival == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    atomic_init(&arrival->references, 2);
    staging_condition_init(&arrival->condition);
    result = cuda.cuLaunchHostFunc(stream, arrival_reach, arrival);
    if (result != CUDA_SUCCESS) {
        arrival_drop(arrival);
    }
    staging_lock();
    while (result == CUDA_SUCCESS && !arrival->reached) {
        staging_condition_wait(&arrival->condition, STAGING_POLL_NS);
        if (arrival->reached) {
            break;
        }
        staging_unlock();
        result = cuda.cuStreamQuery(stream); /* a broken context calls no host function */
        result = result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
        if (result == CUDA_SUCCESS && interrupted(data)) {
            result = CUDRIVER_STAGING_INTERRUPTED;
        }
        staging_lock();
    }
    staging_unlock();
    arrival_drop(arrival);
    return result;
}

/* ---- jobs at their place in a stream ---- */

static void job_ready(void *data)
{
    struct staging_job *job = data;

    staging_lock();
    staging_job_submit(job, false);
    staging_unlock();
    staging_job_drop(job);
}

CUresult staging_stream_ready(CUstream stream, struct staging_job *job)
{
    CUresult result;

    atomic_fetch_add_explicit(&job->references, 1, memory_order_relaxed);
    result = cuda.cuLaunchHostFunc(stream, job_ready, job);
    if (result != CUDA_SUCCESS) {
        staging_job_drop(job);
    }
    return result;
}

/* ---- gates ---- */

#define FLAG_PAGE 4096
#define FLAG_SPACING 64 /* a cache line each */
#define FLAGS (FLAG_PAGE / FLAG_SPACING)

struct staging_flags {
    struct staging_flags *next;
    void *memory; /* owned, from the page-locked pool */
    struct staging_flag flags[FLAGS];
};

/* Another page of flags for the place. */
static CUresult flags_add(struct staging_place *place)
{
    struct staging_flags *page = calloc(1, sizeof *page);
    CUdeviceptr address;
    CUresult result;
    bool zeroed;

    if (page == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = cudriver_hostmem_alloc(place->context, FLAG_PAGE, true, &page->memory, &zeroed);
    if (result != CUDA_SUCCESS) {
        free(page);
        return result;
    }
    result = cuda.cuMemHostGetDevicePointer_v2(&address, page->memory, 0);
    if (result != CUDA_SUCCESS) {
        cudriver_hostmem_free(page->memory);
        free(page);
        return result;
    }
    memset(page->memory, 0, FLAG_PAGE);
    staging_lock();
    for (int i = 0; i < FLAGS; i++) {
        struct staging_flag *flag = &page->flags[i];
        flag->word = (_Atomic uint32_t *)((char *)page->memory + (size_t)i * FLAG_SPACING);
        flag->address = address + (CUdeviceptr)i * FLAG_SPACING;
        flag->next = place->free_flags;
        place->free_flags = flag;
    }
    page->next = place->flag_pages;
    place->flag_pages = page;
    staging_unlock();
    return CUDA_SUCCESS;
}

void staging_flags_free(struct staging_place *place)
{
    while (place->flag_pages != NULL) {
        struct staging_flags *page = place->flag_pages;
        place->flag_pages = page->next;
        if (place->lost_flags == 0) { /* else a stream may still look at them */
            cudriver_hostmem_free(page->memory);
        }
        free(page);
    }
    place->free_flags = NULL;
}

void staging_flag_raise(struct staging_job *job)
{
    struct staging_flag *flag = job->flag;

    if (flag != NULL) {
        atomic_store(flag->word, flag->value);
        flag->next = job->route->place->free_flags;
        job->route->place->free_flags = flag;
        job->flag = NULL;
    }
}

/* A gate where the driver cannot wait for a value: blocks the driver's thread for host functions.
 */
static void job_await(void *data)
{
    struct staging_job *job = data;

    staging_lock();
    while (!job->over) {
        pthread_cond_wait(&job->done, &staging.lock);
    }
    staging_unlock();
    staging_job_drop(job);
}

static CUresult gate_by_function(CUstream stream, struct staging_job *job)
{
    CUresult result;

    atomic_fetch_add_explicit(&job->references, 1, memory_order_relaxed);
    result = cuda.cuLaunchHostFunc(stream, job_await, job);
    if (result != CUDA_SUCCESS) {
        staging_job_drop(job);
    }
    return result;
}

CUresult staging_stream_gate(CUstream stream, struct staging_job *job)
{
    struct staging_place *place = job->route->place;
    struct staging_flag *flag;
    CUdeviceptr address;
    uint32_t value;
    CUresult result;

    if (cuda.cuStreamWaitValue32_v2 == NULL || place->no_wait_value) {
        return gate_by_function(stream, job);
    }
    staging_lock();
    bool none = place->free_flags == NULL;
    staging_unlock();
    if (none) {
        result = flags_add(place);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    staging_lock();
    flag = place->free_flags;
    if (flag == NULL) { /* others took them all in between */
        staging_unlock();
        return gate_by_function(stream, job);
    }
    if (job->over) {
        staging_unlock();
        return CUDA_SUCCESS;
    }
    place->free_flags = flag->next;
    address = flag->address;
    value = ++flag->value;
    job->flag = flag;
    staging_unlock();

    result = cuda.cuStreamWaitValue32_v2(stream, address, value, CU_STREAM_WAIT_VALUE_GEQ);
    if (result == CUDA_SUCCESS) {
        return CUDA_SUCCESS;
    }
    staging_lock();
    staging_flag_raise(job);
    staging_unlock();
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        place->no_wait_value = true;
    }
    return result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_VALUE
               ? gate_by_function(stream, job)
               : result;
}

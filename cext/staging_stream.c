/* Waiting for the caller's stream. See staging_private.h. */
#include "staging_private.h"

#include <stdlib.h>

#include "driver.h"

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

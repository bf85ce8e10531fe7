/* Waiting for the caller's stream, and the engine's own streams beside it. See private.h. */
#include "private.h"

#include <stdlib.h>

#include "driver/driver.h"
#include "driver/platform.h"

#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)

/* Polls a stream for at most `nanoseconds`: SUCCESS, NOT_READY or its work's error. */
static CUresult stream_watch(CUstream stream, unsigned long long nanoseconds)
{
    unsigned long long until = platform_nanoseconds() + nanoseconds;
    CUevent event = NULL;
    CUresult result = CUDA_SUCCESS;

    if (stream == NULL || stream == STREAM_LEGACY) {
        /* The NULL stream runs after other streams' work. cuStreamQuery might not count that; an
         * event in the stream does. */
        result = cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        result = cuda.cuEventRecord(event, stream);
    }
    if (result == CUDA_SUCCESS) {
        do {
            result = event != NULL ? cuda.cuEventQuery(event) : cuda.cuStreamQuery(stream);
        } while (result == CUDA_ERROR_NOT_READY && platform_nanoseconds() < until);
    }
    if (event != NULL) {
        cuda.cuEventDestroy_v2(event);
    }
    return result;
}

CUresult staging_stream_query(CUstream stream)
{
    return stream_watch(stream, 0);
}

/* Shared by a waiting thread and a host function on the stream; the last one frees it. */
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
    CUresult result = stream_watch(stream, TUNING_STREAM_SPIN_NS);
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

/* ---- the engine's own streams ---- */

bool staging_stream_is_default(CUstream stream)
{
    return stream == NULL || stream == STREAM_LEGACY || stream == STREAM_PER_THREAD;
}

/* Makes the place's stream number `index`, unless another thread was faster. */
static CUresult side_make(struct staging_place *place, int index, CUstream *side)
{
    CUstream made;
    CUresult result = cuda.cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    staging_lock();
    if (place->sides[index] == NULL) {
        place->sides[index] = made;
        made = NULL;
    }
    *side = place->sides[index];
    staging_unlock();
    if (made != NULL) {
        cuda.cuStreamDestroy_v2(made);
    }
    return CUDA_SUCCESS;
}

CUresult staging_side_get(struct staging_place *place, CUstream *side)
{
    for (int i = 0; i < STAGING_SIDES; i++) {
        staging_lock();
        *side = place->sides[i];
        staging_unlock();
        if (*side == NULL) {
            return side_make(place, i, side);
        }
        if (cuda.cuStreamQuery(*side) == CUDA_SUCCESS) {
            return CUDA_SUCCESS;
        }
    }
    staging_lock();
    *side = place->sides[place->side++ % STAGING_SIDES];
    staging_unlock();
    return CUDA_SUCCESS;
}

CUresult staging_stream_follow(struct staging_point first, struct staging_point second)
{
    CUcontext popped;
    CUevent event;
    CUresult result = cuda.cuCtxPushCurrent_v2(first.context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) {
        result = cuda.cuEventRecord(event, first.stream);
        if (result == CUDA_SUCCESS && second.context == first.context) {
            result = cuda.cuStreamWaitEvent(second.stream, event, 0);
        } else if (result == CUDA_SUCCESS) {
            result = cuda.cuCtxPushCurrent_v2(second.context); /* a default stream is this one's */
            if (result == CUDA_SUCCESS) {
                result = cuda.cuStreamWaitEvent(second.stream, event, 0);
                cuda.cuCtxPopCurrent_v2(&popped);
            }
        }
        cuda.cuEventDestroy_v2(event); /* the driver frees it after the wait */
    }
    cuda.cuCtxPopCurrent_v2(&popped);
    return result;
}

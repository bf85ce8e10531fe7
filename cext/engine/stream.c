/* Waiting for a stream or an event, and the engine's own streams beside the caller's. See
 * private.h. */
#define _GNU_SOURCE
#include "private.h"

#include <time.h>

#include "driver/driver.h"
#include "driver/platform.h"

#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)

/* ---- waiting ---- */

void staging_nap(long nanoseconds)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = nanoseconds};

    nanosleep(&time, NULL);
}

CUresult cudriver_staging_poll(CUresult (*query)(void *handle), void *handle,
                               bool (*interrupted)(void *data), void *data)
{
    unsigned long long begin = platform_nanoseconds(), asked = begin;
    CUresult result;

    while ((result = query(handle)) == CUDA_ERROR_NOT_READY) {
        unsigned long long now = platform_nanoseconds();
        if (interrupted != NULL && now - asked > STAGING_POLL_NS) {
            if (interrupted(data)) {
                return CUDRIVER_STAGING_INTERRUPTED;
            }
            asked = platform_nanoseconds();
        } else if (now - begin > TUNING_WAIT_SPIN_NS) {
            long nap = (long)((now - begin) / 8);
            staging_nap(nap < TUNING_WAIT_NAP_NS ? nap : TUNING_WAIT_NAP_NS);
        }
    }
    return result;
}

/* What is queued on a stream. */
struct work {
    CUstream stream;
    CUevent event; /* owned: behind the work of a NULL stream; else NULL */
};

/* The NULL stream runs after other streams' work. cuStreamQuery might not count that; an event in
 * the stream does. */
static CUresult work_open(struct work *work)
{
    CUresult result = CUDA_SUCCESS;

    work->event = NULL;
    if (work->stream == NULL || work->stream == STREAM_LEGACY) {
        result = cuda.cuEventCreate(&work->event, CU_EVENT_DISABLE_TIMING);
        if (result != CUDA_SUCCESS) {
            work->event = NULL;
            return result;
        }
        result = cuda.cuEventRecord(work->event, work->stream);
    }
    return result;
}

static void work_close(struct work *work)
{
    if (work->event != NULL) {
        cuda.cuEventDestroy_v2(work->event);
    }
}

static CUresult work_query(void *handle)
{
    const struct work *work = handle;

    return work->event != NULL ? cuda.cuEventQuery(work->event) : cuda.cuStreamQuery(work->stream);
}

CUresult staging_stream_query(CUstream stream)
{
    struct work work = {.stream = stream};
    CUresult result = work_open(&work);

    if (result == CUDA_SUCCESS) {
        result = work_query(&work);
    }
    work_close(&work);
    return result;
}

CUresult staging_stream_wait(CUstream stream, bool (*interrupted)(void *), void *data)
{
    struct work work = {.stream = stream};
    CUresult result = work_open(&work);

    if (result == CUDA_SUCCESS) {
        result = cudriver_staging_poll(work_query, &work, interrupted, data);
    }
    work_close(&work);
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

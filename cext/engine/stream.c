/* Waiting for a stream or an event. See private.h. */
#define _GNU_SOURCE
#include "private.h"

#include <time.h>

#include "driver/driver.h"
#include "driver/platform.h"

void staging_nap(long nanoseconds)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = nanoseconds};

    nanosleep(&time, NULL);
}

CUresult staging_may_go_on(const struct cudriver_copy_call *call, unsigned long long now,
                           unsigned long long *asked)
{
    if (staging.stopping) {
        return CUDA_ERROR_DEINITIALIZED;
    }
    if (call->interrupted == NULL || now - *asked < STAGING_POLL_NS) {
        return CUDA_SUCCESS;
    }
    if (call->interrupted(call->data)) {
        return CUDRIVER_STAGING_INTERRUPTED;
    }
    *asked = platform_nanoseconds();
    return CUDA_SUCCESS;
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

static CUresult event_query(void *event)
{
    return cuda.cuEventQuery((CUevent)event);
}

/* Whether cuStreamQuery sees all that the stream's next operation waits for. It sees the stream's
 * own work alone; an operation of a default or blocking stream waits for other streams' work, too.
 */
static bool stream_is_apart(CUstream stream)
{
    unsigned int flags;

    return !cudriver_stream_is_default(stream) &&
           cuda.cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS &&
           (flags & CU_STREAM_NON_BLOCKING) != 0;
}

/* An event behind all work that is queued by now. Work that other threads add later does not delay
 * it. */
static CUresult stream_mark(CUstream stream, CUevent *event)
{
    CUresult result = cuda.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);

    if (result == CUDA_SUCCESS) {
        result = cuda.cuEventRecord(*event, stream);
        if (result != CUDA_SUCCESS) {
            cuda.cuEventDestroy_v2(*event);
        }
    }
    return result;
}

CUresult staging_stream_query(CUstream stream)
{
    CUevent event;
    CUresult result;

    if (stream_is_apart(stream)) {
        return cuda.cuStreamQuery(stream);
    }
    result = stream_mark(stream, &event);
    if (result == CUDA_SUCCESS) {
        result = cuda.cuEventQuery(event);
        cuda.cuEventDestroy_v2(event);
    }
    return result;
}

CUresult cudriver_staging_stream_wait(CUstream stream, bool (*interrupted)(void *), void *data)
{
    CUevent event;
    CUresult result = stream_is_apart(stream) ? cuda.cuStreamQuery(stream) : CUDA_ERROR_NOT_READY;

    if (result == CUDA_ERROR_NOT_READY) {
        result = stream_mark(stream, &event);
        if (result == CUDA_SUCCESS) {
            result = cudriver_staging_poll(event_query, event, interrupted, data);
            cuda.cuEventDestroy_v2(event);
        }
    }
    return result;
}

CUresult cudriver_staging_stream_settle(CUstream stream, bool (*interrupted)(void *), void *data)
{
    return cuda.cuStreamQuery(stream) == CUDA_SUCCESS
               ? CUDA_SUCCESS
               : cudriver_staging_stream_wait(stream, interrupted, data);
}

CUresult cudriver_staging_follow(CUcontext first_context, CUstream first, CUcontext second_context,
                                 CUstream second)
{
    CUcontext popped;
    CUevent event;
    CUresult result =
        first_context != NULL ? cuda.cuCtxPushCurrent_v2(first_context) : CUDA_SUCCESS;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = stream_mark(first, &event);
    if (result == CUDA_SUCCESS) {
        if (second_context != NULL) { /* a default stream is this one's */
            result = cuda.cuCtxPushCurrent_v2(second_context);
        }
        if (result == CUDA_SUCCESS) {
            result = cuda.cuStreamWaitEvent(second, event, 0);
            if (second_context != NULL) {
                cuda.cuCtxPopCurrent_v2(&popped);
            }
        }
        cuda.cuEventDestroy_v2(event); /* the driver keeps it until the wait is over */
    }
    if (first_context != NULL) {
        cuda.cuCtxPopCurrent_v2(&popped);
    }
    return result;
}

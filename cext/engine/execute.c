/* Follows the plan of a copy: the driver's own copies, or one of the engine's ways. See engine.h.
 */
#include "private.h"

#include "driver/driver.h"
#include "hostmem/hostmem.h"

/* One dense copy. Between host and device it is split at the end of a registration, because the
 * driver refuses a copy that starts in one and ends beyond it. */
static CUresult issue_direct(const struct cudriver_copy_plan *plan, CUstream stream,
                             const char **function)
{
    const struct cudriver_copy_end *dst = &plan->dst, *src = &plan->src;
    int64_t to = plan->layout.dst_offset, from = plan->layout.src_offset;
    bool whole = plan->one_run || (dst->on_device && src->on_device);
    const char *host = whole ? NULL : dst->on_device ? src->host + from : dst->host + to;
    CUresult result = CUDA_SUCCESS;

    for (size_t at = 0, bytes; at < plan->bytes && result == CUDA_SUCCESS; at += bytes) {
        bytes = plan->bytes - at;
        bytes = whole ? bytes : cudriver_hostmem_run(host + at, bytes);
        result = staging_bytes_issue(dst, to + (int64_t)at, src, from + (int64_t)at, bytes, stream,
                                     function);
    }
    return result;
}

/* One stream in its context. */
struct point {
    CUcontext context;
    CUstream stream;
};

/* Makes what is queued on `second` from now on wait for what is queued on `first`. */
static CUresult stream_follow(struct point first, struct point second)
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
        if (result == CUDA_SUCCESS) {
            result = cuda.cuCtxPushCurrent_v2(second.context); /* a default stream is this one's */
        }
        if (result == CUDA_SUCCESS) {
            result = cuda.cuStreamWaitEvent(second.stream, event, 0);
            cuda.cuCtxPopCurrent_v2(&popped);
        }
        cuda.cuEventDestroy_v2(event); /* the driver frees it after the wait */
    }
    cuda.cuCtxPopCurrent_v2(&popped);
    return result;
}

/* A copy to another device. On a default stream it comes after the default work of both devices,
 * and before what follows on either. */
static CUresult issue_peer(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    const struct point near = {plan->context, call->stream};
    const struct point far = {
        plan->context == plan->dst.context ? plan->src.context : plan->dst.context, NULL};
    bool both = cudriver_stream_is_default(call->stream);
    CUresult result = both ? stream_follow(far, near) : CUDA_SUCCESS;

    call->function = "cuStreamWaitEvent";
    if (result == CUDA_SUCCESS) {
        call->function = "cuMemcpyPeerAsync";
        result = cuda.cuMemcpyPeerAsync(plan->dst.device + (CUdeviceptr)plan->layout.dst_offset,
                                        plan->dst.context,
                                        plan->src.device + (CUdeviceptr)plan->layout.src_offset,
                                        plan->src.context, plan->bytes, call->stream);
    }
    if (result == CUDA_SUCCESS && both) {
        call->function = "cuStreamWaitEvent";
        result = stream_follow(near, far);
    }
    return result;
}

/* Queues a copy that is not staged on the stream, and does not wait. */
static CUresult plan_issue(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    switch (plan->kind) {
    case CUDRIVER_COPY_KERNEL:
    case CUDRIVER_COPY_TEMPORARY:
        return staging_copy_between(plan, call);
    case CUDRIVER_COPY_PEER:
        return issue_peer(plan, call);
    case CUDRIVER_COPY_DIRECT:
        return issue_direct(plan, call->stream, &call->function);
    case CUDRIVER_COPY_FILL:
        return staging_fill(plan, call->stream, &call->function);
    default:
        return staging_rows_issue(&plan->layout, &plan->dst, &plan->src, call->stream,
                                  &call->function);
    }
}

CUresult cudriver_copy_follow(const struct cudriver_copy_plan *plan,
                              struct cudriver_copy_call *call,
                              struct cudriver_staging_transfer **transfer)
{
    CUresult result, waited;

    call->refused = false;
    call->function = NULL;
    if (plan->kind == CUDRIVER_COPY_STAGED) {
        return staging_copy(plan, call, transfer);
    }
    if (transfer == NULL) {
        call->function = "cuStreamQuery";
        result = cudriver_staging_stream_settle(call->stream, call->interrupted, call->data);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    if (transfer == NULL && plan->kind == CUDRIVER_COPY_DIRECT &&
        plan->dst.on_device != plan->src.on_device) {
        return staging_dense_copy(plan, call);
    }
    result = plan_issue(plan, call);
    if (transfer != NULL) {
        if (result != CUDA_SUCCESS && !call->refused) {
            /* A part may be in flight, and nobody would keep its memory alive. */
            cuda.cuStreamSynchronize(call->stream);
        }
        return result;
    }
    waited =
        result == CUDA_SUCCESS && plan->kind == CUDRIVER_COPY_DIRECT &&
                plan->bytes <= TUNING_SOON_MOST
            ? staging_wait_soon(plan->context, call->stream)
            : cuda.cuStreamSynchronize(call->stream); /* after a failure a part may be queued */
    if (result == CUDA_SUCCESS && waited != CUDA_SUCCESS) {
        result = waited;
        call->function = "cuStreamSynchronize";
    }
    return result;
}

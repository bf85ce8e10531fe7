/* Follows the plan of a copy: the driver's own copies, or one of the engine's ways. See engine.h.
 */
#include "private.h"

#include "driver/driver.h"

/* A copy to another device. On a default stream it comes after the default work of both devices,
 * and before what follows on either. */
static CUresult issue_peer(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    CUcontext near = plan->context;
    CUcontext far = near == plan->dst.context ? plan->src.context : plan->dst.context;
    bool both = cudriver_stream_is_default(call->stream);
    CUresult result = both ? cudriver_staging_follow(far, NULL, near, call->stream) : CUDA_SUCCESS;

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
        result = cudriver_staging_follow(near, call->stream, far, NULL);
    }
    return result;
}

/* Errors after which the path through the host may work. A launch answers INVALID_HANDLE if the
 * stream is of another context, as another library's may be. */
static bool is_refusal(CUresult result)
{
    return result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_OUT_OF_MEMORY ||
           result == CUDA_ERROR_INVALID_HANDLE;
}

/* A copy on one device by the kernel. Loading that takes a while, at the first use in a context. */
static CUresult issue_kernel(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    CUdeviceptr dst = plan->dst.device, src = plan->src.device;
    struct staging_kernels *kernels;
    struct staging_place *place;
    CUresult result = staging_place_enter(plan->context, &place);

    call->function = "cuCtxGetId";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    call->function = "cuModuleLoadDataEx";
    result = staging_place_kernels(place, &plan->layout, dst, src, &kernels);
    if (result == CUDA_SUCCESS) {
        call->function = "cuLaunchKernel";
        result = staging_kernels_launch(kernels, &plan->layout, dst, src, call->stream);
    }
    call->refused = is_refusal(result);
    if (result != CUDA_SUCCESS) {
        cuda.cuStreamSynchronize(call->stream); /* of several launches some may be queued */
    }
    staging_place_leave(place);
    return result;
}

/* Queues a copy that is not staged on the stream, and does not wait. */
static CUresult plan_issue(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    switch (plan->kind) {
    case CUDRIVER_COPY_KERNEL:
        return issue_kernel(plan, call);
    case CUDRIVER_COPY_PEER:
        return issue_peer(plan, call);
    case CUDRIVER_COPY_DIRECT:
        return staging_direct_issue(plan, call->stream, &call->function);
    case CUDRIVER_COPY_FILL:
        return staging_fill(plan, call->stream, &call->function);
    default:
        return staging_rows_issue(&plan->layout, &plan->dst, &plan->src, call->stream,
                                  &call->function);
    }
}

/* Whether a blocking copy takes microseconds, and may be queued behind other work: it is issued at
 * once, and its wait can be interrupted. A pageable copy up cannot: only the driver's own call
 * waits for the stream before it reads the host. */
static bool is_small(const struct cudriver_copy_plan *plan)
{
    return plan->kind == CUDRIVER_COPY_DIRECT && plan->bytes <= TUNING_SMALL_MOST &&
           (plan->page_locked || plan->src.on_device);
}

CUresult cudriver_copy_follow(const struct cudriver_copy_plan *plan,
                              struct cudriver_copy_call *call,
                              struct cudriver_staging_transfer **transfer)
{
    CUresult result, waited;

    call->refused = call->queued = false;
    call->slot = NULL;
    call->function = NULL;
    if (plan->kind == CUDRIVER_COPY_STAGED) {
        return staging_copy(plan, call, transfer);
    }
    if (transfer == NULL && is_small(plan)) {
        result = staging_small_copy(plan, call);
        if (result != CUDA_ERROR_NOT_READY) {
            return result;
        }
    }
    if (transfer == NULL) {
        call->function = "cuStreamQuery";
        result = cudriver_staging_stream_settle(call->stream, call->interrupted, call->data);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        if (plan->kind == CUDRIVER_COPY_DIRECT && plan->dst.on_device != plan->src.on_device) {
            return staging_dense_copy(plan, call);
        }
    }
    result = plan_issue(plan, call);
    if (transfer != NULL && (result == CUDA_SUCCESS || call->refused)) {
        return result;
    }
    /* After a failure a part may be in flight, and nobody would keep its memory alive. */
    waited = cuda.cuStreamSynchronize(call->stream);
    if (result == CUDA_SUCCESS && waited != CUDA_SUCCESS) {
        result = waited;
        call->function = "cuStreamSynchronize";
    }
    return result;
}

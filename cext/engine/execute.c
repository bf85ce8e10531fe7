/* Follows the plan of a copy: the driver's own copies, or one of the engine's ways. See engine.h.
 */
#include "private.h"

#include <string.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"

/* ---- in the order of the stream ---- */

/* One dense copy. Between host and device it is split at the end of a registration, because the
 * driver refuses a copy that starts in one and ends beyond it. */
static CUresult issue_direct(const struct cudriver_copy_plan *plan, CUstream stream,
                             const char **function)
{
    const struct cudriver_copy_end *dst = &plan->dst, *src = &plan->src;
    CUdeviceptr to = dst->device + (CUdeviceptr)plan->layout.dst_offset;
    CUdeviceptr from = src->device + (CUdeviceptr)plan->layout.src_offset;

    if (plan->kind == CUDRIVER_COPY_PEER) {
        *function = "cuMemcpyPeerAsync";
        return cuda.cuMemcpyPeerAsync(to, dst->context, from, src->context, plan->bytes, stream);
    }
    if (plan->to_device && plan->from_device) {
        *function = "cuMemcpyDtoDAsync_v2";
        return cuda.cuMemcpyDtoDAsync_v2(to, from, plan->bytes, stream);
    }
    const char *host_from = plan->to_device ? src->host + plan->layout.src_offset : NULL;
    char *host_to = plan->to_device ? NULL : dst->host + plan->layout.dst_offset;
    CUresult result = CUDA_SUCCESS;

    *function = plan->to_device ? "cuMemcpyHtoDAsync_v2" : "cuMemcpyDtoHAsync_v2";
    for (size_t at = 0; at < plan->bytes && result == CUDA_SUCCESS;) {
        const char *host = plan->to_device ? host_from : host_to;
        size_t bytes = plan->bytes - at;
        bytes = plan->one_run ? bytes : cudriver_hostmem_run(host + at, bytes);
        result = plan->to_device
                     ? cuda.cuMemcpyHtoDAsync_v2(to + at, host_from + at, bytes, stream)
                     : cuda.cuMemcpyDtoHAsync_v2(host_to + at, from + at, bytes, stream);
        at += bytes;
    }
    return result;
}

/* The 2D or 3D copy at `dst_at` and `src_at`, in bytes from the ends' addresses. */
static CUresult issue_rows(const struct cudriver_copy_plan *plan, int64_t dst_at, int64_t src_at,
                           CUstream stream, const char **function)
{
    const struct cudriver_copy_end *dst = &plan->dst, *src = &plan->src;
    const struct cudriver_layout *layout = &plan->layout;
    int rows = layout->ndim - 1;
    CUDA_MEMCPY3D copy;

    memset(&copy, 0, sizeof copy);
    copy.dstMemoryType = plan->to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.srcMemoryType = plan->from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.dstDevice = plan->to_device ? dst->device + (CUdeviceptr)dst_at : 0;
    copy.srcDevice = plan->from_device ? src->device + (CUdeviceptr)src_at : 0;
    copy.dstHost = plan->to_device ? NULL : dst->host + dst_at;
    copy.srcHost = plan->from_device ? NULL : src->host + src_at;
    copy.dstPitch = (size_t)layout->dst_strides[rows];
    copy.srcPitch = (size_t)layout->src_strides[rows];
    copy.WidthInBytes = layout->itemsize;
    copy.Height = (size_t)layout->shape[rows];
    if (plan->kind == CUDRIVER_COPY_3D) {
        *function = "cuMemcpy3DAsync_v2";
        copy.Depth = (size_t)layout->shape[rows - 1];
        copy.dstHeight = (size_t)(layout->dst_strides[rows - 1] / layout->dst_strides[rows]);
        copy.srcHeight = (size_t)(layout->src_strides[rows - 1] / layout->src_strides[rows]);
        return cuda.cuMemcpy3DAsync_v2(&copy, stream);
    }
    CUDA_MEMCPY2D flat = {
        .srcMemoryType = copy.srcMemoryType,
        .srcHost = copy.srcHost,
        .srcDevice = copy.srcDevice,
        .srcPitch = copy.srcPitch,
        .dstMemoryType = copy.dstMemoryType,
        .dstHost = copy.dstHost,
        .dstDevice = copy.dstDevice,
        .dstPitch = copy.dstPitch,
        .WidthInBytes = copy.WidthInBytes,
        .Height = copy.Height,
    };
    *function = "cuMemcpy2DAsync_v2";
    return cuda.cuMemcpy2DAsync_v2(&flat, stream);
}

/* Loops over the dimensions outside those of one driver call. */
static CUresult issue_outer(const struct cudriver_copy_plan *plan, int axis, int64_t dst_at,
                            int64_t src_at, CUstream stream, const char **function)
{
    const struct cudriver_layout *layout = &plan->layout;
    CUresult result = CUDA_SUCCESS;

    if (axis == layout->ndim - (plan->kind == CUDRIVER_COPY_3D ? 2 : 1)) {
        return issue_rows(plan, dst_at, src_at, stream, function);
    }
    for (int64_t i = 0; i < layout->shape[axis] && result == CUDA_SUCCESS; i++) {
        result = issue_outer(plan, axis + 1, dst_at + i * layout->dst_strides[axis],
                             src_at + i * layout->src_strides[axis], stream, function);
    }
    return result;
}

/* A copy to another device. On a default stream it comes after the default work of both devices,
 * and before what follows on either. */
static CUresult issue_peer(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    const struct staging_point near = {plan->context, call->stream};
    const struct staging_point far = {
        plan->context == plan->dst.context ? plan->src.context : plan->dst.context, NULL};
    bool both = cudriver_stream_is_default(call->stream);
    CUresult result = both ? staging_stream_follow(far, near) : CUDA_SUCCESS;

    call->function = "cuStreamWaitEvent";
    if (result == CUDA_SUCCESS) {
        result = issue_direct(plan, call->stream, &call->function);
    }
    if (result == CUDA_SUCCESS && both) {
        call->function = "cuStreamWaitEvent";
        result = staging_stream_follow(near, far);
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
        return issue_outer(plan, 0, plan->layout.dst_offset, plan->layout.src_offset, call->stream,
                           &call->function);
    }
}

/* ---- blocking ---- */

/* A part of a dense copy between host and device, and waits. */
static CUresult part_copy(const struct cudriver_copy_plan *plan, CUdeviceptr device, char *host,
                          size_t bytes, struct cudriver_copy_call *call)
{
    bool up = plan->to_device;
    CUresult result;

    if (call->stream != NULL) {
        call->function = up ? "cuMemcpyHtoDAsync_v2" : "cuMemcpyDtoHAsync_v2";
        result = up ? cuda.cuMemcpyHtoDAsync_v2(device, host, bytes, call->stream)
                    : cuda.cuMemcpyDtoHAsync_v2(host, device, bytes, call->stream);
    } else {
        call->function = up ? "cuMemcpyHtoD_v2" : "cuMemcpyDtoH_v2";
        result = up ? cuda.cuMemcpyHtoD_v2(device, host, bytes)
                    : cuda.cuMemcpyDtoH_v2(host, device, bytes);
        if (!up || plan->page_locked) {
            return result;
        }
        /* A pageable upload may return before the device has the bytes. */
    }
    if (result == CUDA_SUCCESS) {
        call->function = "cuStreamSynchronize";
        result = up && bytes <= TUNING_SMALL_MOST ? cudriver_staging_ask_soon(call->stream)
                                                  : cuda.cuStreamSynchronize(call->stream);
    }
    return result;
}

/* A dense copy between host and device in parts, waiting for each. */
static CUresult follow_dense(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    bool up = plan->to_device, cut = !plan->one_run && !plan->unlooked;
    const struct cudriver_layout *layout = &plan->layout;
    CUdeviceptr device = plan->device + (CUdeviceptr)(up ? layout->dst_offset : layout->src_offset);
    char *host = plan->host + (up ? layout->src_offset : layout->dst_offset);
    CUresult result = CUDA_SUCCESS;

    if (plan->bytes <= TUNING_SMALL_MOST && (plan->one_run || (!up && !plan->page_locked)) &&
        staging_small_copy(plan, call, device, host, &result)) {
        return result;
    }
    for (size_t at = 0, bytes; at < plan->bytes && result == CUDA_SUCCESS; at += bytes) {
        bytes = plan->bytes - at < TUNING_CUT ? plan->bytes - at : TUNING_CUT;
        if (cut) {
            bytes = cudriver_hostmem_run(host + at, bytes); /* split at a registration's end too */
        }
        result = part_copy(plan, device + at, host + at, bytes, call);
        if (result == CUDA_ERROR_INVALID_VALUE && plan->unlooked && !cut) {
            cut = true; /* somebody's registration may end within the range */
            bytes = 0;
            result = CUDA_SUCCESS;
        } else if (result == CUDA_SUCCESS && at + bytes < plan->bytes &&
                   call->interrupted(call->data)) {
            result = CUDRIVER_STAGING_INTERRUPTED;
        }
    }
    return result;
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
        plan->to_device != plan->from_device) {
        return follow_dense(plan, call);
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
            ? cudriver_staging_wait_soon(plan->context, call->stream)
            : cuda.cuStreamSynchronize(call->stream); /* after a failure a part may be queued */
    if (result == CUDA_SUCCESS && waited != CUDA_SUCCESS) {
        result = waited;
        call->function = "cuStreamSynchronize";
    }
    return result;
}

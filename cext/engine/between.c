/* Copies between memory of one device, in stream order, by the kernel. See private.h. */
#include "private.h"

#include "driver/driver.h"

/* One copy of such: the place is entered. */
struct device_copy {
    struct staging_place *place;
    CUstream stream;
    bool begun; /* bytes of the destination may have changed */
    const char *function;
};

/* Queues a copy: by the kernel, or by the driver if it is dense. NOT_SUPPORTED: no kernel can do
 * it. */
static CUresult layout_queue(struct device_copy *copy, const struct cudriver_layout *layout,
                             CUdeviceptr dst, CUdeviceptr src)
{
    struct staging_kernels *kernels;
    CUresult result;

    if (layout->ndim == 0) {
        copy->begun = true;
        copy->function = "cuMemcpyDtoDAsync_v2";
        return cuda.cuMemcpyDtoDAsync_v2(dst + (CUdeviceptr)layout->dst_offset,
                                         src + (CUdeviceptr)layout->src_offset, layout->itemsize,
                                         copy->stream);
    }
    copy->function = "cuModuleLoadDataEx";
    result = staging_place_kernels(copy->place, layout, dst, src, &kernels);
    if (result == CUDA_SUCCESS) {
        copy->begun = true;
        copy->function = "cuLaunchKernel";
        result = staging_kernels_launch(kernels, layout, dst, src, copy->stream);
    }
    return result;
}

/* The same through a dense temporary. */
static CUresult overlapping_queue(struct device_copy *copy, const struct cudriver_copy_plan *plan)
{
    const struct cudriver_layout *whole = &plan->layout;
    struct cudriver_layout pack = *whole, unpack = *whole;
    CUdeviceptr temporary;
    CUresult result;

    cudriver_layout_pack(&pack, true);
    cudriver_layout_pack(&unpack, false);
    cudriver_layout_simplify(&pack, true);
    cudriver_layout_simplify(&unpack, false);
    copy->function = "cuMemAllocFromPoolAsync";
    result = cuda.cuMemAllocFromPoolAsync(&temporary, plan->bytes, plan->pool, copy->stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = layout_queue(copy, &pack, temporary, plan->src.device);
    copy->begun = false; /* only the temporary has changed */
    if (result == CUDA_SUCCESS) {
        result = layout_queue(copy, &unpack, plan->dst.device, temporary);
    }
    cuda.cuMemFreeAsync(temporary, copy->stream); /* nobody could do anything about a failure */
    return result;
}

/* Errors after which the path through the host may work. A launch answers INVALID_HANDLE if the
 * stream is of another context, as another library's may be. */
static bool is_refusal(CUresult result)
{
    return result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_OUT_OF_MEMORY ||
           result == CUDA_ERROR_INVALID_HANDLE;
}

CUresult staging_copy_between(const struct cudriver_copy_plan *plan,
                              struct cudriver_copy_call *call)
{
    struct device_copy copy = {.stream = call->stream};
    CUresult result = staging_place_enter(plan->context, &copy.place);

    call->refused = false;
    call->function = "cuCtxGetId";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = plan->overlap ? overlapping_queue(&copy, plan)
                           : layout_queue(&copy, &plan->layout, plan->dst.device, plan->src.device);
    /* Where the ends overlap the source changes with the destination: not to be repeated. */
    call->refused = is_refusal(result) && !(copy.begun && plan->overlap);
    call->function = copy.function;
    if (result != CUDA_SUCCESS) {
        cuda.cuStreamSynchronize(call->stream);
    }
    staging_place_leave(copy.place);
    return result;
}

/* Copies between memory of one device, in stream order, by the kernel. See private.h. */
#include "private.h"

#include "driver/driver.h"

/* ---- launches ---- */

static int shortest_dimension(const struct cudriver_layout *layout)
{
    int best = 0;

    for (int d = 1; d < layout->ndim; d++) {
        best = layout->shape[d] < layout->shape[best] ? d : best;
    }
    return best;
}

/* Removes a dimension from a layout. */
static void dimension_drop(struct cudriver_layout *layout, int dropped)
{
    layout->ndim--;
    for (int d = dropped; d < layout->ndim; d++) {
        layout->shape[d] = layout->shape[d + 1];
        layout->dst_strides[d] = layout->dst_strides[d + 1];
        layout->src_strides[d] = layout->src_strides[d + 1];
    }
}

static bool launches_are_few(const struct cudriver_layout *layout, int unit)
{
    struct cudriver_layout rest = *layout;
    int64_t launches = 1;

    while (!staging_kernels_fit(&rest, unit) && launches <= TUNING_MOST_LAUNCHES) {
        int d = shortest_dimension(&rest);
        launches = rest.shape[d] > TUNING_MOST_LAUNCHES ? TUNING_MOST_LAUNCHES + 1
                                                        : launches * rest.shape[d];
        dimension_drop(&rest, d);
    }
    return launches <= TUNING_MOST_LAUNCHES;
}

static CUresult launches_queue(const struct staging_kernels *kernels, int unit,
                               const struct cudriver_layout *layout, CUdeviceptr dst,
                               CUdeviceptr src, CUstream stream)
{
    struct cudriver_layout rest;
    CUresult result = CUDA_SUCCESS;
    int d;

    if (staging_kernels_fit(layout, unit)) {
        return staging_kernels_launch(kernels, layout, dst, src, stream);
    }
    d = shortest_dimension(layout);
    rest = *layout;
    dimension_drop(&rest, d);
    for (int64_t i = 0; i < layout->shape[d] && result == CUDA_SUCCESS; i++) {
        result = launches_queue(kernels, unit, &rest, dst, src, stream);
        rest.dst_offset += layout->dst_strides[d];
        rest.src_offset += layout->src_strides[d];
    }
    return result;
}

bool cudriver_staging_has_kernel(CUcontext context, const struct cudriver_layout *layout,
                                 CUdeviceptr dst, CUdeviceptr src)
{
    int unit = staging_kernels_size(layout, dst, src, STAGING_KERNEL_UNITS - 1);
    bool none = false;

    if (!launches_are_few(layout, unit)) {
        return false;
    }
    staging_lock();
    for (struct staging_place *place = staging.places; place != NULL; place = place->next) {
        none |= place->context == context && place->no_kernels;
    }
    staging_unlock();
    return !none;
}

/* ---- copies ---- */

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
    int unit = staging_kernels_size(layout, dst, src, STAGING_KERNEL_UNITS - 1);
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
    result = launches_are_few(layout, unit) ? staging_place_kernel(copy->place, unit, &kernels)
                                            : CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS) {
        copy->begun = true;
        copy->function = "cuLaunchKernel";
        result = launches_queue(kernels, unit, layout, dst, src, copy->stream);
    }
    return result;
}

/* The same through a dense temporary. */
static CUresult overlapping_queue(struct device_copy *copy, const struct cudriver_copy_plan *plan)
{
    const struct cudriver_layout *whole = &plan->layout;
    struct cudriver_layout pack = *whole, unpack = *whole;
    int64_t stride = (int64_t)whole->itemsize;
    CUdeviceptr temporary;
    CUresult result;

    pack.dst_offset = unpack.src_offset = 0;
    for (int d = whole->ndim - 1; d >= 0; d--) {
        pack.dst_strides[d] = unpack.src_strides[d] = stride;
        stride *= whole->shape[d];
    }
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
    call->function = "cuCtxPushCurrent_v2";
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

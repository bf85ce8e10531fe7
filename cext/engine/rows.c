/* The driver's own copies: dense, in rows, or in stacks of rows. See private.h. */
#include "private.h"

#include "driver/driver.h"

/* Bytes; every driver takes a pitch (bytes between rows) up to here. */
#define PITCH_MOST 0x7fffffff

CUresult staging_bytes_issue(const struct cudriver_copy_end *dst, int64_t dst_at,
                             const struct cudriver_copy_end *src, int64_t src_at, size_t bytes,
                             CUstream stream, const char **function)
{
    CUdeviceptr to = dst->device + (CUdeviceptr)dst_at, from = src->device + (CUdeviceptr)src_at;

    if (!src->on_device) {
        *function = "cuMemcpyHtoDAsync_v2";
        return cuda.cuMemcpyHtoDAsync_v2(to, src->host + src_at, bytes, stream);
    }
    if (!dst->on_device) {
        *function = "cuMemcpyDtoHAsync_v2";
        return cuda.cuMemcpyDtoHAsync_v2(dst->host + dst_at, from, bytes, stream);
    }
    *function = "cuMemcpyDtoDAsync_v2";
    return cuda.cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}

int staging_rows_dims(const struct cudriver_layout *layout)
{
    int rows = layout->ndim - 1;
    int64_t run = (int64_t)layout->itemsize;

    if (rows < 0) {
        return 0;
    }
    int64_t dst = layout->dst_strides[rows], src = layout->src_strides[rows];
    if (dst < run || src < run || dst > PITCH_MOST || src > PITCH_MOST) {
        return 0;
    }
    if (rows == 0) {
        return 1;
    }
    int64_t height = layout->shape[rows];
    int64_t dst_plane = layout->dst_strides[rows - 1], src_plane = layout->src_strides[rows - 1];
    bool stacked = dst_plane % dst == 0 && src_plane % src == 0 && dst_plane / dst >= height &&
                   src_plane / src >= height;
    return stacked ? 2 : 1;
}

/* What all calls of one copy share. */
struct rows_copy {
    const struct cudriver_layout *layout;
    const struct cudriver_copy_end *dst, *src;
    int dims; /* that one call takes */
    CUstream stream;
    const char **function;
};

/* The 2D or 3D copy at `dst_at` and `src_at`, in bytes from the ends' addresses. */
static CUresult rows_issue(const struct rows_copy *copy, int64_t dst_at, int64_t src_at)
{
    const struct cudriver_copy_end *dst = copy->dst, *src = copy->src;
    const struct cudriver_layout *layout = copy->layout;
    int rows = layout->ndim - 1;

    if (copy->dims == 2) {
        CUDA_MEMCPY3D stack = {
            .srcMemoryType = src->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
            .srcHost = src->on_device ? NULL : src->host + src_at,
            .srcDevice = src->on_device ? src->device + (CUdeviceptr)src_at : 0,
            .srcPitch = (size_t)layout->src_strides[rows],
            .srcHeight = (size_t)(layout->src_strides[rows - 1] / layout->src_strides[rows]),
            .dstMemoryType = dst->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
            .dstHost = dst->on_device ? NULL : dst->host + dst_at,
            .dstDevice = dst->on_device ? dst->device + (CUdeviceptr)dst_at : 0,
            .dstPitch = (size_t)layout->dst_strides[rows],
            .dstHeight = (size_t)(layout->dst_strides[rows - 1] / layout->dst_strides[rows]),
            .WidthInBytes = layout->itemsize,
            .Height = (size_t)layout->shape[rows],
            .Depth = (size_t)layout->shape[rows - 1],
        };
        *copy->function = "cuMemcpy3DAsync_v2";
        return cuda.cuMemcpy3DAsync_v2(&stack, copy->stream);
    }
    CUDA_MEMCPY2D plane = {
        .srcMemoryType = src->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
        .srcHost = src->on_device ? NULL : src->host + src_at,
        .srcDevice = src->on_device ? src->device + (CUdeviceptr)src_at : 0,
        .srcPitch = (size_t)layout->src_strides[rows],
        .dstMemoryType = dst->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
        .dstHost = dst->on_device ? NULL : dst->host + dst_at,
        .dstDevice = dst->on_device ? dst->device + (CUdeviceptr)dst_at : 0,
        .dstPitch = (size_t)layout->dst_strides[rows],
        .WidthInBytes = layout->itemsize,
        .Height = (size_t)layout->shape[rows],
    };
    *copy->function = "cuMemcpy2DAsync_v2";
    return cuda.cuMemcpy2DAsync_v2(&plane, copy->stream);
}

/* Loops over the dimensions outside those of one driver call. */
static CUresult outer_issue(const struct rows_copy *copy, int axis, int64_t dst_at, int64_t src_at)
{
    const struct cudriver_layout *layout = copy->layout;
    CUresult result = CUDA_SUCCESS;

    if (axis == layout->ndim - copy->dims) {
        return copy->dims > 0 ? rows_issue(copy, dst_at, src_at)
                              : staging_bytes_issue(copy->dst, dst_at, copy->src, src_at,
                                                    layout->itemsize, copy->stream, copy->function);
    }
    for (int64_t i = 0; i < layout->shape[axis] && result == CUDA_SUCCESS; i++) {
        result = outer_issue(copy, axis + 1, dst_at + i * layout->dst_strides[axis],
                             src_at + i * layout->src_strides[axis]);
    }
    return result;
}

CUresult staging_rows_issue(const struct cudriver_layout *layout,
                            const struct cudriver_copy_end *dst,
                            const struct cudriver_copy_end *src, CUstream stream,
                            const char **function)
{
    if (layout->ndim == 0) {
        return staging_bytes_issue(dst, layout->dst_offset, src, layout->src_offset,
                                   layout->itemsize, stream, function);
    }
    const struct rows_copy copy = {layout, dst, src, staging_rows_dims(layout), stream, function};
    return outer_issue(&copy, 0, layout->dst_offset, layout->src_offset);
}

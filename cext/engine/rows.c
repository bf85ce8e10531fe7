/* Copies between a slot and strided device memory. See private.h. */
#include "private.h"

#include <string.h>

#include "driver/driver.h"

/* Bytes; every driver takes a 2D copy's pitch up to here. */
#define PITCH_MOST 0x7fffffff

void staging_rows_make(const struct cudriver_layout *walk, bool up, struct cudriver_layout *rows)
{
    int64_t stride = (int64_t)walk->itemsize;

    *rows = *walk;
    for (int d = walk->ndim - 1; d >= 0; d--) {
        *(up ? &rows->src_strides[d] : &rows->dst_strides[d]) = stride;
        stride *= walk->shape[d];
    }
    *(up ? &rows->src_offset : &rows->dst_offset) = 0;
    cudriver_layout_simplify(rows, !up); /* merges; the dense side is in order already */
}

/* What all parts of one copy share. */
struct rows_copy {
    const struct cudriver_layout *rows;
    const int64_t *strides; /* the device's */
    bool up;
    CUstream stream;
};

static CUresult bytes_copy(const struct rows_copy *copy, CUdeviceptr device, char *slot,
                           size_t bytes)
{
    return copy->up ? cuda.cuMemcpyHtoDAsync_v2(device, slot, bytes, copy->stream)
                    : cuda.cuMemcpyDtoHAsync_v2(slot, device, bytes, copy->stream);
}

/* `count` runs along the innermost dimension: one 2D copy if possible. */
static CUresult lines_copy(const struct rows_copy *copy, CUdeviceptr device, char *slot,
                           size_t count)
{
    size_t run = copy->rows->itemsize;
    int64_t pitch = copy->strides[copy->rows->ndim - 1];
    CUDA_MEMCPY2D plane;

    if (count > 1 && pitch >= (int64_t)run && pitch <= PITCH_MOST) {
        memset(&plane, 0, sizeof plane);
        plane.WidthInBytes = run;
        plane.Height = count;
        if (copy->up) {
            plane.srcMemoryType = CU_MEMORYTYPE_HOST;
            plane.srcHost = slot;
            plane.srcPitch = run;
            plane.dstMemoryType = CU_MEMORYTYPE_DEVICE;
            plane.dstDevice = device;
            plane.dstPitch = (size_t)pitch;
        } else {
            plane.srcMemoryType = CU_MEMORYTYPE_DEVICE;
            plane.srcDevice = device;
            plane.srcPitch = (size_t)pitch;
            plane.dstMemoryType = CU_MEMORYTYPE_HOST;
            plane.dstHost = slot;
            plane.dstPitch = run;
        }
        return cuda.cuMemcpy2DAsync_v2(&plane, copy->stream);
    }
    for (size_t i = 0; i < count; i++) {
        CUresult result =
            bytes_copy(copy, device + (CUdeviceptr)((int64_t)i * pitch), slot + i * run, run);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

/* Runs [first, last) of the dimensions from `d` inwards; run `first` is at `slot`. */
static CUresult range_copy(const struct rows_copy *copy, int d, CUdeviceptr device, char *slot,
                           size_t first, size_t last)
{
    const struct cudriver_layout *rows = copy->rows;
    size_t below = 1;

    if (d == rows->ndim - 1) {
        return lines_copy(copy, device + (CUdeviceptr)((int64_t)first * copy->strides[d]), slot,
                          last - first);
    }
    for (int e = d + 1; e < rows->ndim; e++) {
        below *= (size_t)rows->shape[e];
    }
    while (first < last) {
        size_t index = first / below, from = first % below;
        size_t to = last / below == index ? last % below : below;
        CUresult result = range_copy(
            copy, d + 1, device + (CUdeviceptr)((int64_t)index * copy->strides[d]), slot, from, to);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        slot += (to - from) * rows->itemsize;
        first += to - from;
    }
    return CUDA_SUCCESS;
}

/* The device address of run number `run`. */
static CUdeviceptr run_find(const struct rows_copy *copy, CUdeviceptr device, size_t run)
{
    for (int d = copy->rows->ndim - 1; d >= 0; d--) {
        size_t length = (size_t)copy->rows->shape[d];
        device += (CUdeviceptr)((int64_t)(run % length) * copy->strides[d]);
        run /= length;
    }
    return device;
}

CUresult staging_device_copy(const struct cudriver_layout *rows, bool up, CUdeviceptr device,
                             char *slot, size_t begin, size_t end, CUstream stream)
{
    const struct rows_copy copy = {rows, up ? rows->dst_strides : rows->src_strides, up, stream};
    size_t run = rows->itemsize, first = begin / run, last = end / run;
    CUresult result = CUDA_SUCCESS;

    device += (CUdeviceptr)(up ? rows->dst_offset : rows->src_offset);
    if (rows->ndim == 0) { /* one run */
        return bytes_copy(&copy, device + begin, slot, end - begin);
    }
    if (begin % run != 0) {
        size_t stop = first == last ? end % run : run;
        result = bytes_copy(&copy, run_find(&copy, device, first) + begin % run, slot,
                            stop - begin % run);
        slot += stop - begin % run;
        if (first == last) {
            return result;
        }
        first++;
    }
    if (result == CUDA_SUCCESS && last > first) {
        result = range_copy(&copy, 0, device, slot, first, last);
        slot += (last - first) * run;
    }
    if (result == CUDA_SUCCESS && end % run != 0) {
        result = bytes_copy(&copy, run_find(&copy, device, last), slot, end % run);
    }
    return result;
}

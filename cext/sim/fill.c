/* Fills: a value of 1, 2 or 4 bytes, in one row or in rows with a pitch, on a stream. */
#include "sim.h"

#include <string.h>

#define MAX_PITCH 0x7fffffff /* CU_DEVICE_ATTRIBUTE_MAX_PITCH */

struct fill_op {
    struct sim_op op;
    CUdeviceptr dst;
    size_t pitch, width, height; /* width in elements */
    uint32_t value;
    unsigned element; /* bytes of an element */
};

static void fill_row(char *row, uint32_t value, unsigned element, size_t count)
{
    if (element == 1) {
        memset(row, (int)value, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (element == 2) {
            ((uint16_t *)(void *)row)[i] = (uint16_t)value;
        } else {
            ((uint32_t *)(void *)row)[i] = value;
        }
    }
}

static size_t fill_extent(const struct fill_op *fill)
{
    return (fill->height - 1) * fill->pitch + fill->width * fill->element;
}

static CUresult fill_run(struct sim_stream *stream, struct sim_op *op)
{
    struct fill_op *fill = (struct fill_op *)op;
    struct sim_pin pin;
    CUresult result;

    (void)stream;
    sim_lock();
    result = sim_memory_pin(fill->dst, fill_extent(fill), &pin);
    sim_unlock();
    if (result != CUDA_SUCCESS) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (size_t y = 0; y < fill->height; y++) {
        fill_row(pin.bytes + y * fill->pitch, fill->value, fill->element, fill->width);
    }
    sim_lock();
    sim_memory_unpin(&pin);
    sim_unlock();
    return CUDA_SUCCESS;
}

static CUresult fill_async(enum sim_call call, CUdeviceptr dst, size_t pitch, uint32_t value,
                           unsigned element, size_t width, size_t height, CUstream handle)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(call, handle, &stream);
    struct fill_op *fill;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (dst % element != 0 ||
        (height > 1 && (pitch % element != 0 || pitch < width * element || pitch > MAX_PITCH))) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (width == 0 || height == 0) {
        return sim_leave(CUDA_SUCCESS);
    }
    fill = sim_op_new(sizeof *fill);
    if (fill == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    fill->op.run = fill_run;
    fill->op.bytes = width * height * element;
    fill->dst = dst;
    fill->pitch = pitch;
    fill->width = width;
    fill->height = height;
    fill->value = value;
    fill->element = element;
    result = sim_memory_check(dst, fill_extent(fill));
    if (result != CUDA_SUCCESS) {
        sim_op_drop(&fill->op);
        return sim_leave(result);
    }
    return sim_leave(sim_stream_issue(stream, &fill->op));
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
    return fill_async(CALL_cuMemsetD8Async, dst, count, value, 1, count, 1, stream);
}

CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream)
{
    return fill_async(CALL_cuMemsetD16Async, dst, 0, value, 2, count, 1, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream)
{
    return fill_async(CALL_cuMemsetD32Async, dst, 0, value, 4, count, 1, stream);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width,
                           size_t height, CUstream stream)
{
    return fill_async(CALL_cuMemsetD2D8Async, dst, pitch, value, 1, width, height, stream);
}

CUresult cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width,
                            size_t height, CUstream stream)
{
    return fill_async(CALL_cuMemsetD2D16Async, dst, pitch, value, 2, width, height, stream);
}

CUresult cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned int value, size_t width,
                            size_t height, CUstream stream)
{
    return fill_async(CALL_cuMemsetD2D32Async, dst, pitch, value, 4, width, height, stream);
}

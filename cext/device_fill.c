/*
 * Filling a DeviceArray with a pattern of any size. The driver sets words of 1, 2 or 4 bytes, dense
 * or in rows; everything is brought to that: a long pattern is so many words, each a fill of its
 * own with the item's stride; a dense array of long patterns grows from its first item by doubling
 * copies.
 */
#include "device_array.h"

#include <string.h>

#include "driver.h"

/* The longest distance between rows that the driver's fills take. */
#define MAX_PITCH 0x7fffffff

/* `height` rows of `width` words of `unit` bytes, `pitch` bytes apart. */
static CUresult fill_rows(CUdeviceptr address, size_t pitch, int unit, const char *word,
                          size_t width, size_t height, CUstream stream, const char **function)
{
    unsigned char one = (unsigned char)word[0];
    unsigned short two = 0;
    unsigned int four = 0;

    memcpy(&two, word, unit >= 2 ? 2 : 0);
    memcpy(&four, word, unit >= 4 ? 4 : 0);
    if (height == 1) {
        *function = unit == 1   ? "cuMemsetD8Async"
                    : unit == 2 ? "cuMemsetD16Async"
                                : "cuMemsetD32Async";
        return unit == 1   ? cuda.cuMemsetD8Async(address, one, width, stream)
               : unit == 2 ? cuda.cuMemsetD16Async(address, two, width, stream)
                           : cuda.cuMemsetD32Async(address, four, width, stream);
    }
    if (pitch > MAX_PITCH) {
        CUresult result = CUDA_SUCCESS;
        for (size_t i = 0; i < height && result == CUDA_SUCCESS; i++) {
            result = fill_rows(address + i * pitch, 0, unit, word, width, 1, stream, function);
        }
        return result;
    }
    *function = unit == 1   ? "cuMemsetD2D8Async"
                : unit == 2 ? "cuMemsetD2D16Async"
                            : "cuMemsetD2D32Async";
    return unit == 1   ? cuda.cuMemsetD2D8Async(address, pitch, one, width, height, stream)
           : unit == 2 ? cuda.cuMemsetD2D16Async(address, pitch, two, width, height, stream)
                       : cuda.cuMemsetD2D32Async(address, pitch, four, width, height, stream);
}

/* The shortest word of 1, 2 or 4 bytes that the pattern is, or repeats; 0 where there is none. */
static size_t pattern_word(const char *pattern, size_t size)
{
    for (size_t word = 1; word <= 4 && word <= size; word *= 2) {
        if (size % word == 0 && memcmp(pattern, pattern + word, size - word) == 0) {
            return word;
        }
    }
    return 0;
}

/* The largest word that the item's size and every address of the fill are multiples of. */
static int word_size(size_t itemsize, CUdeviceptr address, const struct cudriver_layout *layout)
{
    unsigned long long bits = itemsize | address;

    for (int i = 0; i < layout->ndim; i++) {
        bits |= (unsigned long long)layout->dst_strides[i];
    }
    return bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
}

/* A dense run of `bytes`, whose pattern is longer than a word. */
static CUresult fill_doubling(CUdeviceptr address, const char *pattern, size_t itemsize,
                              size_t bytes, CUstream stream, const char **function)
{
    int unit = itemsize % 4 == 0 && address % 4 == 0   ? 4
               : itemsize % 2 == 0 && address % 2 == 0 ? 2
                                                       : 1;
    CUresult result = CUDA_SUCCESS;
    size_t done = itemsize;

    for (size_t at = 0; at < itemsize && result == CUDA_SUCCESS; at += (size_t)unit) {
        result = fill_rows(address + at, 0, unit, pattern + at, 1, 1, stream, function);
    }
    while (done < bytes && result == CUDA_SUCCESS) {
        size_t more = done < bytes - done ? done : bytes - done;
        *function = "cuMemcpyDtoDAsync_v2";
        result = cuda.cuMemcpyDtoDAsync_v2(address + done, address, more, stream);
        done += more;
    }
    return result;
}

/* Fills the dimensions from `axis` on: loops over the outer ones, leaves the last to the driver. */
static CUresult fill_axis(const struct cudriver_layout *layout, int axis, CUdeviceptr address,
                          const char *pattern, size_t itemsize, CUstream stream,
                          const char **function)
{
    size_t run = layout->itemsize; /* dense bytes: one item, or many */
    size_t height = axis < layout->ndim ? (size_t)layout->shape[axis] : 1;
    size_t pitch = axis < layout->ndim ? (size_t)layout->dst_strides[axis] : 0;
    size_t word = pattern_word(pattern, itemsize);
    CUresult result = CUDA_SUCCESS;
    int unit;

    if (axis + 1 < layout->ndim || (word == 0 && run > itemsize && axis < layout->ndim)) {
        for (size_t i = 0; i < height && result == CUDA_SUCCESS; i++) {
            result = fill_axis(layout, axis + 1, address + i * pitch, pattern, itemsize, stream,
                               function);
        }
        return result;
    }
    /* Where the addresses are no multiples of the word, its bytes are set one by one. */
    if (word != 0 && (address | pitch | run) % word == 0) {
        return fill_rows(address, pitch, (int)word, pattern, run / word, height, stream, function);
    }
    if (run > itemsize && (word == 0 || height == 1)) {
        return fill_doubling(address, pattern, itemsize, run, stream, function);
    }
    if (run > itemsize) {
        for (size_t i = 0; i < height && result == CUDA_SUCCESS; i++) {
            result = fill_doubling(address + i * pitch, pattern, itemsize, run, stream, function);
        }
        return result;
    }
    unit = word_size(itemsize, address, layout);
    for (size_t at = 0; at < itemsize && result == CUDA_SUCCESS; at += (size_t)unit) {
        result = fill_rows(address + at, pitch, unit, pattern + at, 1, height, stream, function);
    }
    return result;
}

CUresult cudriver_device_fill(DeviceArrayObject *self, const char *pattern, CUstream stream,
                              const char **function)
{
    struct cudriver_layout layout = {.ndim = self->ndim, .itemsize = (size_t)self->itemsize};
    CUdeviceptr address = self->address;
    CUresult result;

    for (int i = 0; i < self->ndim; i++) {
        layout.shape[i] = self->shape[i];
        layout.dst_strides[i] = layout.src_strides[i] = self->strides[i];
    }
    if (cudriver_layout_simplify(&layout) == 0) {
        return CUDA_SUCCESS;
    }
    address += (CUdeviceptr)layout.dst_offset;
    Py_BEGIN_ALLOW_THREADS
    result = fill_axis(&layout, 0, address, pattern, (size_t)self->itemsize, stream, function);
    Py_END_ALLOW_THREADS
    return result;
}

/* Fills by the driver: copies to dense memory of a device of one item of the host, again and again.
 * The driver sets words of 1, 2 or 4 bytes. Of a longer item the first is set word by word, and
 * copies that double follow. */
#include "private.h"

#include <string.h>

#include "driver/driver.h"

/* An item is set by at most so many calls. */
#define MOST_WORDS 32

/* The shortest word of 1, 2 or 4 bytes whose repetition is the item; 0 if there is none. */
static size_t item_word(const char *item, size_t size)
{
    for (size_t word = 1; word <= 4 && word <= size; word *= 2) {
        if (size % word == 0 && memcmp(item, item + word, size - word) == 0) {
            return word;
        }
    }
    return 0;
}

/* The largest word that divides an item's size and its address. */
static size_t item_unit(size_t size, CUdeviceptr address)
{
    unsigned long long bits = size | address;

    return bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
}

bool staging_fill_fits(const struct cudriver_copy_plan *plan)
{
    const struct cudriver_layout *layout = &plan->layout;
    CUdeviceptr address = plan->device + (CUdeviceptr)layout->dst_offset;
    size_t size = layout->itemsize, word = item_word(plan->host, size);

    if (layout->ndim > 1 || (layout->ndim == 1 && (layout->src_strides[0] != 0 ||
                                                   layout->dst_strides[0] != (int64_t)size))) {
        return false;
    }
    return word != 0 ? address % word == 0 : size / item_unit(size, address) <= MOST_WORDS;
}

/* Sets so many bytes to a word. */
static CUresult words_set(CUdeviceptr address, const char *word, size_t unit, size_t bytes,
                          CUstream stream, const char **function)
{
    unsigned short two = 0;
    unsigned int four = 0;

    memcpy(&two, word, unit >= 2 ? 2 : 0);
    memcpy(&four, word, unit >= 4 ? 4 : 0);
    *function = unit == 1 ? "cuMemsetD8Async" : unit == 2 ? "cuMemsetD16Async" : "cuMemsetD32Async";
    return unit == 1   ? cuda.cuMemsetD8Async(address, (unsigned char)*word, bytes, stream)
           : unit == 2 ? cuda.cuMemsetD16Async(address, two, bytes / 2, stream)
                       : cuda.cuMemsetD32Async(address, four, bytes / 4, stream);
}

CUresult staging_fill(const struct cudriver_copy_plan *plan, CUstream stream, const char **function)
{
    size_t size = plan->layout.itemsize, word = item_word(plan->host, size), unit, done = size;
    CUdeviceptr address = plan->device + (CUdeviceptr)plan->layout.dst_offset;
    CUresult result = CUDA_SUCCESS;

    if (word != 0) {
        return words_set(address, plan->host, word, plan->bytes, stream, function);
    }
    unit = item_unit(size, address);
    for (size_t at = 0; at < size && result == CUDA_SUCCESS; at += unit) {
        result = words_set(address + at, plan->host + at, unit, unit, stream, function);
    }
    while (done < plan->bytes && result == CUDA_SUCCESS) {
        size_t more = done < plan->bytes - done ? done : plan->bytes - done;
        *function = "cuMemcpyDtoDAsync_v2";
        result = cuda.cuMemcpyDtoDAsync_v2(address + done, address, more, stream);
        done += more;
    }
    return result;
}

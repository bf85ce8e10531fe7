/* Fills by the driver: copies to dense memory of a device of one item of the host, again and again.
 * The driver sets words of 1, 2 or 4 bytes. */
#include "private.h"

#include <string.h>

#include "driver/driver.h"

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

bool staging_fill_fits(const struct cudriver_copy_plan *plan)
{
    const struct cudriver_layout *layout = &plan->layout;
    CUdeviceptr address = plan->device + (CUdeviceptr)layout->dst_offset;
    size_t size = layout->itemsize, word = item_word(plan->host, size);

    return word != 0 && address % word == 0 &&
           (layout->ndim == 0 || (layout->ndim == 1 && layout->src_strides[0] == 0 &&
                                  layout->dst_strides[0] == (int64_t)size));
}

CUresult staging_fill(const struct cudriver_copy_plan *plan, CUstream stream, const char **function)
{
    CUdeviceptr address = plan->device + (CUdeviceptr)plan->layout.dst_offset;
    size_t unit = item_word(plan->host, plan->layout.itemsize);
    unsigned short two;
    unsigned int four;

    if (unit == 1) {
        *function = "cuMemsetD8Async";
        return cuda.cuMemsetD8Async(address, (unsigned char)*plan->host, plan->bytes, stream);
    }
    if (unit == 2) {
        *function = "cuMemsetD16Async";
        memcpy(&two, plan->host, 2);
        return cuda.cuMemsetD16Async(address, two, plan->bytes / 2, stream);
    }
    *function = "cuMemsetD32Async";
    memcpy(&four, plan->host, 4);
    return cuda.cuMemsetD32Async(address, four, plan->bytes / 4, stream);
}

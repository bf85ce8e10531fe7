/* Fills by the driver: copies to a device of one item of the host, again and again. The driver sets
 * words of 1, 2 or 4 bytes, dense or in rows, in one call. Longer items are set word by word; if
 * they are dense, only the first, and copies that double follow. */
#include "private.h"

#include <string.h>

#include "driver/driver.h"

/* The largest pitch (bytes between rows) of the driver's fills. */
#define MAX_PITCH 0x7fffffff

/* An item is set by at most so many calls. */
#define MOST_WORDS 32

/* `height` rows of `width` bytes, `pitch` bytes apart. */
struct rows {
    CUdeviceptr address;
    size_t width, height, pitch;
};

/* What a copy fills as rows. False: it has more dimensions, or rows that the driver does not take.
 */
static bool rows_of(const struct cudriver_copy_plan *plan, struct rows *rows)
{
    const struct cudriver_layout *layout = &plan->layout;
    int outer = layout->ndim;

    *rows = (struct rows){plan->device + (CUdeviceptr)layout->dst_offset, layout->itemsize, 1, 0};
    if (outer > 0 && layout->dst_strides[outer - 1] == (int64_t)layout->itemsize) {
        rows->width *= (size_t)layout->shape[--outer];
    }
    if (outer == 1) {
        rows->height = (size_t)layout->shape[0];
        rows->pitch = (size_t)layout->dst_strides[0];
    }
    return outer == 0 || (outer == 1 && rows->pitch >= rows->width && rows->pitch <= MAX_PITCH);
}

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

/* The largest word that divides an item's size and all addresses, whose bits `address` has. */
static size_t item_unit(size_t size, CUdeviceptr address)
{
    unsigned long long bits = size | address;

    return bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
}

bool staging_fill_fits(const struct cudriver_copy_plan *plan)
{
    size_t size = plan->layout.itemsize, word;
    struct rows rows;

    for (int i = 0; i < plan->layout.ndim; i++) {
        if (plan->layout.src_strides[i] != 0) {
            return false;
        }
    }
    if (!rows_of(plan, &rows)) {
        return false;
    }
    word = item_word(plan->host, size);
    if (word != 0) {
        return (rows.address | rows.pitch) % word == 0;
    }
    return (rows.height == 1 || rows.width == size) &&
           size / item_unit(size, rows.address | rows.pitch) <= MOST_WORDS;
}

/* Sets all rows to a word, in one call. */
static CUresult rows_set(const struct rows *rows, const char *word, size_t unit, CUstream stream,
                         const char **function)
{
    size_t pitch = rows->pitch, width = rows->width / unit, height = rows->height;
    unsigned short two = 0;
    unsigned int four = 0;

    memcpy(&two, word, unit >= 2 ? 2 : 0);
    memcpy(&four, word, unit >= 4 ? 4 : 0);
    if (height == 1) {
        *function = unit == 1   ? "cuMemsetD8Async"
                    : unit == 2 ? "cuMemsetD16Async"
                                : "cuMemsetD32Async";
        return unit == 1 ? cuda.cuMemsetD8Async(rows->address, (unsigned char)*word, width, stream)
               : unit == 2 ? cuda.cuMemsetD16Async(rows->address, two, width, stream)
                           : cuda.cuMemsetD32Async(rows->address, four, width, stream);
    }
    *function = unit == 1   ? "cuMemsetD2D8Async"
                : unit == 2 ? "cuMemsetD2D16Async"
                            : "cuMemsetD2D32Async";
    return unit == 1   ? cuda.cuMemsetD2D8Async(rows->address, pitch, (unsigned char)*word, width,
                                                height, stream)
           : unit == 2 ? cuda.cuMemsetD2D16Async(rows->address, pitch, two, width, height, stream)
                       : cuda.cuMemsetD2D32Async(rows->address, pitch, four, width, height, stream);
}

CUresult staging_fill(const struct cudriver_copy_plan *plan, CUstream stream, const char **function)
{
    size_t size = plan->layout.itemsize, word = item_word(plan->host, size), unit, done = size;
    CUresult result = CUDA_SUCCESS;
    struct rows rows;

    rows_of(plan, &rows);
    if (word != 0) {
        return rows_set(&rows, plan->host, word, stream, function);
    }
    unit = item_unit(size, rows.address | rows.pitch);
    for (size_t at = 0; at < size && result == CUDA_SUCCESS; at += unit) {
        struct rows words = {rows.address + at, unit, rows.height, rows.pitch};
        result = rows_set(&words, plan->host + at, unit, stream, function);
    }
    while (done < rows.width && result == CUDA_SUCCESS) {
        size_t more = done < rows.width - done ? done : rows.width - done;
        *function = "cuMemcpyDtoDAsync_v2";
        result = cuda.cuMemcpyDtoDAsync_v2(rows.address + done, rows.address, more, stream);
        done += more;
    }
    return result;
}

/* How the bytes of a staged copy are cut into parts. No CUDA. See private.h. */
#include "private.h"

#define ALIGNED ((size_t)4096) /* bytes; `most` is a multiple of it */

struct staging_boxes staging_boxes_make(const struct staging_plan *plan, size_t most)
{
    const struct cudriver_layout *spread = &plan->spread;
    struct staging_boxes boxes = {.row_bytes = 1};

    for (int d = spread->ndim;; d--) {
        size_t rows = boxes.row_bytes >= most ? 1 : most / boxes.row_bytes;
        boxes.split = d;
        boxes.length = boxes.rows =
            d == spread->ndim ? (int64_t)spread->itemsize : spread->shape[d];
        if (rows < (size_t)boxes.length) {
            size_t parts = ((size_t)boxes.length + rows - 1) / rows;
            size_t even = ((size_t)boxes.length + parts - 1) / parts;
            if (d == spread->ndim) { /* boxes of bytes begin aligned */
                even = d == plan->repeats ? rows : (even + ALIGNED - 1) / ALIGNED * ALIGNED;
            }
            boxes.rows = (int64_t)even;
            break;
        }
        if (d == plan->repeats) {
            break;
        }
        boxes.row_bytes *= (size_t)boxes.length;
    }
    boxes.largest = boxes.row_bytes * (size_t)boxes.rows;
    boxes.per_split = (size_t)((boxes.length + boxes.rows - 1) / boxes.rows);
    boxes.count = boxes.per_split;
    for (int d = plan->repeats; d < boxes.split; d++) {
        boxes.count *= (size_t)spread->shape[d];
    }
    return boxes;
}

void staging_box_find(const struct staging_plan *plan, const struct staging_boxes *boxes,
                      size_t index, size_t *begin, size_t *end, struct cudriver_layout *layout)
{
    const struct cudriver_layout *spread = &plan->spread;
    const int64_t *device = plan->up ? spread->dst_strides : spread->src_strides;
    int split = boxes->split, to = plan->repeats;
    size_t above = index / boxes->per_split;
    int64_t from = (int64_t)(index % boxes->per_split) * boxes->rows;
    int64_t count = boxes->length - from < boxes->rows ? boxes->length - from : boxes->rows;

    *begin = (above * (size_t)boxes->length + (size_t)from) * boxes->row_bytes;
    *end = *begin + (size_t)count * boxes->row_bytes;
    if (layout == NULL) {
        return;
    }
    int64_t at = from * (split == spread->ndim ? 1 : device[split]);
    for (int d = split - 1; d >= plan->repeats; d--) {
        at += (int64_t)(above % (size_t)spread->shape[d]) * device[d];
        above /= (size_t)spread->shape[d];
    }
    *layout = *spread;
    *(plan->up ? &layout->dst_offset : &layout->src_offset) += at;
    /* Drop the dimensions outside the split one, and shorten that. */
    for (int d = split; d < spread->ndim; d++, to++) {
        layout->shape[to] = d == split ? count : spread->shape[d];
        layout->dst_strides[to] = spread->dst_strides[d];
        layout->src_strides[to] = spread->src_strides[d];
    }
    layout->ndim = to;
    layout->itemsize = split == spread->ndim ? (size_t)count : spread->itemsize;
}

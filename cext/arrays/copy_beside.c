/*
 * Small copies that would queue behind big ones: issued as a batch of runs, which the kernel moves
 * over mapped memory while the copy engine is busy. See contexts/work.h.
 */
#include "copy_private.h"

#include "contexts/work.h"

/* Bytes of a row of a strided copy that is worth a run of its own, and rows at most. Not measured.
 */
#define ROW_LEAST 64
#define ROWS_MOST 4096

/* The layout between both ends, simplified: rows that are dense on both sides. How many; 0: it is
 * no small copy, or none of rows that are worth it. */
static size_t ends_rows(const struct copy_ends *ends, struct cudriver_layout *layout)
{
    size_t count = 1, bytes;

    copy_ends_layout(ends, layout);
    bytes = cudriver_layout_simplify(layout, true);
    for (int i = 0; i < layout->ndim && count <= ROWS_MOST; i++) {
        count *= (size_t)layout->shape[i];
    }
    return bytes > 0 && bytes <= TUNING_BESIDE_MOST && count <= ROWS_MOST &&
                   (count == 1 || layout->itemsize >= ROW_LEAST)
               ? count
               : 0;
}

/* Adds a run for each row. */
static void rows_fill(struct copy_batch *batch, const struct copy_ends *ends,
                      const struct cudriver_layout *layout, struct cudriver_run run, size_t count)
{
    run.dst = copy_end_address(&ends->dst) + (uint64_t)layout->dst_offset;
    run.src = copy_end_address(&ends->src) + (uint64_t)layout->src_offset;
    for (size_t row = 0; row < count; row++) {
        size_t left = row;
        batch->runs[row] = run;
        for (int i = layout->ndim - 1; i >= 0; i--) {
            int64_t at = (int64_t)(left % (size_t)layout->shape[i]);
            left /= (size_t)layout->shape[i];
            batch->runs[row].dst += (uint64_t)(at * layout->dst_strides[i]);
            batch->runs[row].src += (uint64_t)(at * layout->src_strides[i]);
        }
    }
    batch->count = count;
    batch->bytes = layout->itemsize * count;
}

int copy_beside(CoreState *state, struct copy_ends *ends, struct cudriver_stream *stream,
                enum copy_batch_mode mode, PyObject **work)
{
    struct copy_batch batch = {.state = state, .mode = mode, .stream = *stream};
    struct cudriver_layout layout;
    struct cudriver_run run;
    size_t count = ends_rows(ends, &layout);
    bool near = true;

    *work = NULL;
    if (count == 0) {
        return 1;
    }
    if (copy_batch_begin(&batch, 1, (Py_ssize_t)count) == 0 &&
        copy_batch_place(&batch, ends) == 0 && (near = copy_batch_is_near(&batch, ends)) &&
        PyList_Append(batch.owners, ends->dst.owner) == 0 &&
        PyList_Append(batch.owners, ends->src.owner) == 0 &&
        copy_batch_run(&batch, ends, layout.itemsize, &run) == 0) {
        rows_fill(&batch, ends, &layout, run, count);
        *work = copy_batch_issue(&batch);
    }
    *stream = batch.stream; /* with its context */
    batch.stream = (struct cudriver_stream){.handle = NULL};
    copy_batch_end(&batch);
    return *work != NULL ? 0 : near ? -1 : 1;
}

bool copy_beside_explain(CoreState *state, const struct copy_ends *ends)
{
    const struct cudriver_stream stream = {.handle = NULL};
    struct cudriver_layout layout;

    return copy_ends_beside(state, ends, &stream) && ends_rows(ends, &layout) > 0;
}

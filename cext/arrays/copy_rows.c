/*
 * copy_rows(): rows of one array into rows of another. Dense rows become runs at once, without an
 * end for each; other rows go back to memory/rows.py, which gives them to copy_many() one by one.
 */
#include "copy_private.h"

#include <string.h>

#include "python/call.h"
#include "python/numpy_bridge.h"

/* Both ends of one row, at the addresses of the first. Their references are borrowed. */
static struct copy_ends rows_ends(const struct copy_ends *whole)
{
    struct copy_ends row = *whole;
    struct cudriver_endpoint *both[] = {&row.dst, &row.src};

    for (int i = 0; i < 2; i++) {
        size_t dims = (size_t)--both[i]->ndim;
        memmove(both[i]->shape, both[i]->shape + 1, dims * sizeof both[i]->shape[0]);
        memmove(both[i]->strides, both[i]->strides + 1, dims * sizeof both[i]->strides[0]);
    }
    return row;
}

/* The indices of a call, and how many rows each array has. */
struct rows {
    const int64_t *to, *of; /* borrowed */
    Py_ssize_t count;
    int64_t dst_length, src_length;
};

/* An index from the beginning. */
static int64_t row_at(int64_t index, int64_t length)
{
    return index < 0 ? index + length : index;
}

/* Whether all indices are in range, and none is written twice; false too where there is no memory
 * to find out. */
static bool rows_are_good(const struct rows *rows)
{
    unsigned char *seen =
        PyMem_Calloc((size_t)rows->dst_length / 8 + 1, 1); /* a bit for each row */
    bool good = seen != NULL;

    for (Py_ssize_t i = 0; i < rows->count && good; i++) {
        int64_t to = row_at(rows->to[i], rows->dst_length);
        int64_t of = row_at(rows->of[i], rows->src_length);
        good = to >= 0 && to < rows->dst_length && of >= 0 && of < rows->src_length &&
               (seen[to / 8] >> to % 8 & 1) == 0;
        if (good) {
            seen[to / 8] |= (unsigned char)(1 << to % 8);
        }
    }
    PyMem_Free(seen);
    return good;
}

/* Whether the memory that both ends span has a byte in common. */
static bool ends_meet(const struct copy_ends *ends)
{
    uint64_t dst[2], src[2];

    copy_end_span(&ends->dst, dst);
    copy_end_span(&ends->src, src);
    return dst[0] < src[1] && src[0] < dst[1];
}

/* Adds the rows. 1; 0 if they are no runs; or -1. */
static int rows_add(struct copy_batch *batch, struct copy_ends *whole, const struct rows *rows)
{
    const struct copy_ends row = rows_ends(whole);
    int64_t dst_step = whole->dst.strides[0], src_step = whole->src.strides[0];
    struct cudriver_run run;
    size_t bytes;

    if (copy_ends_match(&row.dst, &row.src) < 0 || copy_batch_place(batch, whole) < 0) {
        return -1;
    }
    if (!copy_batch_takes(batch, &row, &bytes)) {
        return bytes == 0 || rows->count == 0;
    }
    if (copy_batch_run(batch, whole, bytes, (size_t)rows->count, &run) < 0) {
        return -1;
    }
    run.dst = copy_end_address(&row.dst);
    run.src = copy_end_address(&row.src);
    for (Py_ssize_t i = 0; i < rows->count; i++) {
        struct cudriver_run *made = &batch->runs[i];
        *made = run;
        made->dst += (uint64_t)(row_at(rows->to[i], rows->dst_length) * dst_step);
        made->src += (uint64_t)(row_at(rows->of[i], rows->src_length) * src_step);
    }
    batch->count = (size_t)rows->count;
    batch->bytes = bytes * batch->count;
    if (ends_meet(whole) || cudriver_magnitude(dst_step) < bytes) {
        return cudriver_do(CALL_rows_refuse_overlap_of_runs, (char *)batch->runs,
                           (Py_ssize_t)(batch->count * sizeof run)) < 0
                   ? -1
                   : 1;
    }
    return 1;
}

/* Copies rows between ends that were read, by two int64 arrays. New reference: a Transfer; a tuple
 * if the indices are wrong or the rows no runs: how many rows either end has, and whether the ends
 * lie apart. */
static PyObject *rows_copy(struct copy_batch *batch, struct copy_ends *whole, PyObject *to,
                           PyObject *of)
{
    struct rows rows = {.dst_length = whole->dst.shape[0], .src_length = whole->src.shape[0]};
    Py_ssize_t sources = 0;
    int added = 0;

    rows.to = cudriver_numpy_int64(to, &rows.count);
    rows.of = rows.to != NULL ? cudriver_numpy_int64(of, &sources) : NULL;
    if (rows.of == NULL) {
        return NULL;
    }
    if (sources != rows.count) {
        return PyErr_Format(PyExc_ValueError, "%zd rows of the destination, %zd of the source",
                            rows.count, sources);
    }
    if (rows_are_good(&rows)) {
        added = copy_batch_begin(batch, 0, rows.count) < 0 ? -1 : rows_add(batch, whole, &rows);
    }
    if (added != 0) {
        return added < 0 ? NULL : copy_batch_issue(batch);
    }
    return Py_BuildValue("(LLN)", (long long)rows.dst_length, (long long)rows.src_length,
                         PyBool_FromLong(!ends_meet(whole)));
}

/* _copy_rows(dst, src, dst_rows, src_rows, stream, mode): the indices are int64 arrays of one
 * length. */
PyObject *cudriver_copy_rows(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    struct copy_batch batch = {.state = cudriver_state_of_module(module)};
    PyObject *dst, *to, *src, *of, *stream, *work = NULL;
    struct copy_ends whole;
    int mode;

    if (!PyArg_ParseTuple(args, "OOOOOi", &dst, &src, &to, &of, &stream, &mode)) {
        return NULL;
    }
    batch.mode = (enum copy_batch_mode)mode;
    if (cudriver_stream_read(batch.state, stream, &batch.stream) == 0 &&
        copy_ends_parse(batch.state, dst, src, false, &batch.stream, &whole) == 0) {
        if (whole.dst.ndim > 0 && whole.src.ndim > 0) {
            work = rows_copy(&batch, &whole, to, of);
        } else {
            PyErr_SetString(PyExc_ValueError, "an array without dimensions has no rows");
        }
        copy_ends_done(&whole);
    }
    copy_batch_end(&batch);
    return work;
}

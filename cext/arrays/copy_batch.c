/*
 * copy_many() and copy_rows(): many copies as one piece of work.
 *
 * Each pair of ends is read, checked and brought into its smallest form. Dense copies of
 * page-locked or device memory are runs, which the engine queues together. Any other copy is `odd`:
 * it keeps its ends, and is queued as copy_async() would do it. Nothing is queued before all is
 * checked.
 */
#include "copy_private.h"

#include <string.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "python/call.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/wait.h"
#include "contexts/work.h"

#define SPAN (4 * (Py_ssize_t)sizeof(uint64_t)) /* bytes of a pair's */

struct batch {
    CoreState *state;
    struct cudriver_stream stream;
    ContextObject *home; /* owned: the first device end's; NULL: none yet */
    size_t bytes;
    struct cudriver_run *runs; /* owned */
    size_t count;
    struct copy_ends **odd; /* owned, as what they point to */
    size_t odds;
    PyObject *spans; /* owned: bytes; of each pair the first byte of the destination, the one behind
                        its last, and the same of the source, as uint64; all 0: nothing to copy */
    PyObject *owners;  /* owned: a list, which becomes a tuple; the last is the table, or None */
    Py_ssize_t **busy; /* owned: the device ends' counts of running calls, which include this one */
    size_t busies;
};

/* Makes room for so many pairs and runs. 0 or -1. */
static int batch_begin(struct batch *batch, Py_ssize_t pairs, Py_ssize_t runs)
{
    size_t bytes = ((size_t)runs + 1) * sizeof *batch->runs;

    batch->runs = cudriver_hostmem_try_alloc(bytes); /* in use before: without page faults */
    batch->runs = batch->runs != NULL ? batch->runs : PyMem_Malloc(bytes);
    batch->odd = PyMem_New(struct copy_ends *, pairs + 1);
    batch->busy = PyMem_New(Py_ssize_t *, 2 * pairs + 1);
    batch->owners = PyList_New(0);
    batch->spans = PyBytes_FromStringAndSize(NULL, pairs * SPAN);
    if (batch->runs == NULL || batch->odd == NULL || batch->busy == NULL) {
        PyErr_NoMemory();
    }
    return PyErr_Occurred() ? -1 : 0;
}

static void batch_end(struct batch *batch)
{
    for (size_t i = 0; i < batch->busies; i++) {
        --*batch->busy[i];
    }
    for (size_t i = 0; i < batch->odds; i++) {
        copy_ends_done(batch->odd[i]);
        PyMem_Free(batch->odd[i]);
    }
    PyMem_Free(batch->busy);
    PyMem_Free(batch->odd);
    if (batch->runs != NULL && cudriver_hostmem_free_if_owned(batch->runs) == 0) {
        PyMem_Free(batch->runs);
    }
    Py_XDECREF(batch->owners);
    Py_XDECREF(batch->spans);
    Py_XDECREF(batch->home);
    cudriver_stream_done(&batch->stream);
}

/* ---- pairs ---- */

/* The address of an end's first item. */
static uint64_t end_address(const struct cudriver_endpoint *end)
{
    return end->context != NULL ? end->device : (uint64_t)(uintptr_t)end->host;
}

/* The first byte of an end, and the one behind its last. */
static void end_span(const struct cudriver_endpoint *end, uint64_t *span)
{
    span[0] = end_address(end);
    span[1] = span[0] + end->itemsize;
    for (int d = 0; d < end->ndim; d++) {
        uint64_t reach = (uint64_t)(end->shape[d] - 1) * (uint64_t)end->strides[d];
        span[(int64_t)reach > 0] += reach;
    }
}

/* Bytes of an end's items, and whether they are dense in C order. */
static size_t end_bytes(const struct cudriver_endpoint *end, bool *dense)
{
    size_t bytes = end->itemsize;

    *dense = true;
    for (int d = end->ndim - 1; d >= 0; d--) {
        *dense &= end->shape[d] == 1 || end->strides[d] == (Py_ssize_t)bytes;
        bytes *= (size_t)end->shape[d];
    }
    return bytes;
}

/* Whether the device's copies on the batch's stream can use an end. */
static bool end_is_near(const struct batch *batch, const struct cudriver_endpoint *end)
{
    const ContextObject *context = end->context, *here = batch->stream.context;

    return context == NULL || context == here ||
           (context == batch->home && context->ordinal == here->ordinal && !end->on_default &&
            cudriver_copy_is_usable(end->device, here->handle));
}

static void pin_free(PyObject *capsule)
{
    struct cudriver_pin *pin = PyCapsule_GetPointer(capsule, NULL);

    Py_BEGIN_ALLOW_THREADS
    cudriver_pin_destroy(pin);
    Py_END_ALLOW_THREADS
}

/* Whether memory of an end is page-locked, and stays so as long as the batch's owners live: what a
 * kernel reads or writes must not be unlocked before. 1, 0 or -1. */
static int end_is_locked(struct batch *batch, const struct cudriver_endpoint *end)
{
    uint64_t span[2];
    bool any = false, ours;

    end_span(end, span);
    for (uint64_t low = span[0], run; low < span[1]; low += run) {
        struct cudriver_pin *pin;
        PyObject *owner;
        run = cudriver_pin_share((char *)(uintptr_t)low, span[1] - low, &pin, &ours);
        if (pin != NULL) {
            owner = PyCapsule_New(pin, NULL, pin_free);
            if (owner == NULL || PyList_Append(batch->owners, owner) < 0) {
                Py_XDECREF(owner);
                return -1;
            }
            Py_DECREF(owner);
        }
        any |= ours;
        if (run == 0) { /* another library's, which the owner keeps locked; or not locked */
            return !any &&
                   cudriver_copy_is_page_locked((char *)(uintptr_t)low, (char *)(uintptr_t)span[1]);
        }
    }
    return 1;
}

static ContextObject *ends_home(const struct copy_ends *ends)
{
    return ends->dst.context != NULL ? ends->dst.context : ends->src.context;
}

/* Finds out where the batch runs, and checks that the copy is there. 0 or -1. */
static int batch_place(struct batch *batch, const struct copy_ends *ends)
{
    ContextObject *home = ends_home(ends);

    if (batch->home == NULL && home != NULL) {
        batch->home = (ContextObject *)Py_NewRef((PyObject *)home);
        if (cudriver_stream_settle(batch->state, home, &batch->stream) < 0) {
            return -1;
        }
    }
    return home != NULL ? copy_ends_near(&batch->stream, ends) : 0;
}

/* Takes the ends over, of which only their counts of running calls are needed any more. */
static void batch_keep(struct batch *batch, struct copy_ends *ends)
{
    struct cudriver_endpoint *both[] = {&ends->dst, &ends->src};

    for (int i = 0; i < 2; i++) {
        if (both[i]->busy != NULL) {
            batch->busy[batch->busies++] = both[i]->busy;
            both[i]->busy = NULL;
        }
    }
    copy_ends_done(ends);
}

/* Makes a run between such ends, but for its addresses. 0 or -1. */
static int run_make(struct batch *batch, const struct copy_ends *ends, size_t bytes,
                    struct cudriver_run *run)
{
    bool up = ends->src.context == NULL, down = ends->dst.context == NULL;
    int locked = up     ? end_is_locked(batch, &ends->src)
                 : down ? end_is_locked(batch, &ends->dst)
                        : 1;

    *run = (struct cudriver_run){.bytes = bytes, .up = up, .down = down, .pageable = locked == 0};
    return locked < 0 ? -1 : 0;
}

/* Whether a copy of matching ends is a run. *bytes: of their items. */
static bool ends_are_run(const struct batch *batch, const struct copy_ends *ends, size_t *bytes)
{
    bool dense[2];

    *bytes = end_bytes(&ends->dst, &dense[0]);
    end_bytes(&ends->src, &dense[1]);
    return dense[0] && dense[1] && *bytes > 0 && ends_home(ends) != NULL &&
           end_is_near(batch, &ends->dst) && end_is_near(batch, &ends->src);
}

/* Adds a pair, whose ends it takes over. 0 or -1. */
static int batch_add(struct batch *batch, Py_ssize_t index, struct copy_ends *ends)
{
    uint64_t *span = (uint64_t *)(PyBytes_AS_STRING(batch->spans) + SPAN * index);
    struct copy_ends *odd;
    size_t bytes;
    int failed = 0;
    bool run;

    if (copy_ends_match(&ends->dst, &ends->src) < 0 || batch_place(batch, ends) < 0 ||
        PyList_Append(batch->owners, ends->dst.owner) < 0 ||
        PyList_Append(batch->owners, ends->src.owner) < 0) {
        copy_ends_done(ends);
        return -1;
    }
    run = ends_are_run(batch, ends, &bytes);
    memset(span, 0, SPAN);
    if (bytes > 0) {
        end_span(&ends->dst, span);
        end_span(&ends->src, span + 2);
    }
    batch->bytes += bytes;
    if (run || bytes == 0) {
        if (run) {
            struct cudriver_run *made = &batch->runs[batch->count++];
            failed = run_make(batch, ends, bytes, made);
            made->dst = span[0];
            made->src = span[2];
        }
        batch_keep(batch, ends);
        return failed;
    }
    odd = PyMem_Malloc(sizeof *odd);
    if (odd == NULL) {
        copy_ends_done(ends);
        PyErr_NoMemory();
        return -1;
    }
    *odd = *ends;
    batch->odd[batch->odds++] = odd;
    return 0;
}

/* ---- queueing ---- */

static void table_free(PyObject *capsule)
{
    cudriver_hostmem_free(PyCapsule_GetPointer(capsule, NULL));
}

/* Queues the runs, between begin and end. 0 or -1. */
static int runs_queue(struct batch *batch, struct cudriver_staging_transfer **staged)
{
    PyThreadState *saved = PyEval_SaveThread();
    struct cudriver_copy_call call = {
        .stream = batch->stream.handle, .interrupted = cudriver_signal_arrived, .data = &saved};
    void *table;
    PyObject *owner;
    CUresult result;

    cudriver_driver_relax();
    result = cudriver_runs_issue(batch->runs, batch->count, batch->stream.context->handle, &call,
                                 &table, staged);
    cudriver_driver_restore();
    PyEval_RestoreThread(saved);
    if (result != CUDA_SUCCESS) {
        if (!PyErr_Occurred()) {
            cudriver_raise(result, call.function != NULL ? call.function : "cudriver.copy_many",
                           "%zu copies", batch->count);
        }
        return -1;
    }
    owner = table != NULL ? PyCapsule_New(table, NULL, table_free) : NULL;
    if (owner != NULL) {
        Py_ssize_t last = PyTuple_GET_SIZE(batch->owners) - 1;
        Py_DECREF(PyTuple_GET_ITEM(batch->owners, last)); /* None */
        PyTuple_SET_ITEM(batch->owners, last, owner);
    } else {
        PyErr_Clear(); /* a table without an owner is never freed: the device may read it */
    }
    return 0;
}

/* Queues the odd copies. *staged: the engine's transfers. 0 or -1. */
static int odds_queue(struct batch *batch, struct cudriver_staging_transfer **staged)
{
    for (size_t i = 0; i < batch->odds; i++) {
        struct cudriver_staging_transfer *part = NULL;
        PyObject *done = copy_ends_queue(batch->state, batch->odd[i], &batch->stream, &part);
        cudriver_staging_join(staged, part);
        if (done == NULL) {
            return -1;
        }
        Py_DECREF(done);
    }
    return 0;
}

/* Queues all, between begin and end. New reference: the Transfer. If an odd copy fails, those
 * before it are in flight all the same, and keep their ends alive. */
static PyObject *batch_queue(struct batch *batch)
{
    struct cudriver_staging_transfer *staged = NULL;
    PyObject *work, *type = NULL, *value = NULL, *trace = NULL;

    if (cudriver_capture_refuse(batch->stream.handle, "a copy") < 0 ||
        (batch->count > 0 && runs_queue(batch, &staged) < 0)) {
        return NULL;
    }
    if (odds_queue(batch, &staged) < 0) {
        PyErr_Fetch(&type, &value, &trace);
    }
    work =
        cudriver_work_add(batch->state, &batch->stream, batch->owners, NULL, batch->bytes, staged);
    if (type != NULL) {
        Py_CLEAR(work);
        PyErr_Restore(type, value, trace);
    }
    return work;
}

/* Issues a batch that is complete. New reference: its Transfer. */
static PyObject *batch_issue(struct batch *batch)
{
    PyObject *owners, *work;
    bool pushed;

    if (PyList_Append(batch->owners, Py_None) < 0) { /* room for the table */
        return NULL;
    }
    owners = PyList_AsTuple(batch->owners);
    Py_SETREF(batch->owners, owners);
    if (owners == NULL || cudriver_stream_settle(batch->state, batch->home, &batch->stream) < 0 ||
        cudriver_context_enter(batch->state, batch->stream.context, &pushed) < 0) {
        return NULL;
    }
    work = batch_queue(batch);
    cudriver_context_leave(batch->stream.context, pushed);
    return work;
}

/* ---- copy_many ---- */

/* Says in which pair the error that is set was found. */
static void note_pair(Py_ssize_t index)
{
    PyObject *type, *value, *trace, *note, *done = NULL;

    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    note = PyUnicode_FromFormat("in pair %zd of copy_many(), counted from 0", index);
    if (note != NULL) {
        done = PyObject_CallMethod(value, "add_note", "O", note);
    }
    PyErr_Clear();
    Py_XDECREF(note);
    Py_XDECREF(done);
    PyErr_Restore(type, value, trace);
}

/* Reads and adds all pairs of two tuples. 0 or -1. */
static int pairs_add(struct batch *batch, PyObject *destinations, PyObject *sources)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sources); i++) {
        struct copy_ends ends;
        if (copy_ends_read(batch->state, PyTuple_GET_ITEM(destinations, i),
                           PyTuple_GET_ITEM(sources, i), &batch->stream, &ends) < 0 ||
            batch_add(batch, i, &ends) < 0) {
            note_pair(i);
            return -1;
        }
    }
    return 0;
}

PyObject *cudriver_copy_many(CoreState *state, PyObject *destinations, PyObject *sources,
                             PyObject *stream, bool apart)
{
    struct batch batch = {.state = state};
    PyObject *to = PySequence_Tuple(destinations), *done, *work = NULL;
    PyObject *from = to != NULL ? PySequence_Tuple(sources) : NULL;
    bool given;

    if (from != NULL && PyTuple_GET_SIZE(to) != PyTuple_GET_SIZE(from)) {
        PyErr_Format(PyExc_ValueError,
                     "the lengths differ: %zd destinations, %zd sources (nothing was copied)",
                     PyTuple_GET_SIZE(to), PyTuple_GET_SIZE(from));
        Py_CLEAR(from);
    }
    if (from != NULL && cudriver_stream_read(state, stream, &batch.stream, &given) == 0 &&
        batch_begin(&batch, PyTuple_GET_SIZE(to), PyTuple_GET_SIZE(to)) == 0 &&
        pairs_add(&batch, to, from) == 0) {
        done = apart ? Py_NewRef(Py_None)
                     : cudriver_call("rows", "refuse_overlap", "(OOO)", batch.spans, to, from);
        work = done != NULL ? batch_issue(&batch) : NULL;
        Py_XDECREF(done);
    }
    batch_end(&batch);
    Py_XDECREF(to);
    Py_XDECREF(from);
    return work;
}

/* ---- copy_rows ---- */

/* The ends of a row of both, with borrowed references; the first row's addresses. */
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

/* The rows of a call: indices that are checked, and where the first row lies. */
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

    end_span(&ends->dst, dst);
    end_span(&ends->src, src);
    return dst[0] < src[1] && src[0] < dst[1];
}

/* Adds the rows. 1; 0 if they are no runs; or -1. */
static int rows_add(struct batch *batch, struct copy_ends *whole, const struct rows *rows)
{
    const struct copy_ends row = rows_ends(whole);
    int64_t dst_step = whole->dst.strides[0], src_step = whole->src.strides[0];
    struct cudriver_run run;
    PyObject *done;
    size_t bytes;

    if (copy_ends_match(&row.dst, &row.src) < 0 || batch_place(batch, whole) < 0 ||
        PyList_Append(batch->owners, whole->dst.owner) < 0 ||
        PyList_Append(batch->owners, whole->src.owner) < 0) {
        return -1;
    }
    if (!ends_are_run(batch, &row, &bytes)) {
        return bytes == 0 || rows->count == 0;
    }
    if (run_make(batch, whole, bytes, &run) < 0) {
        return -1;
    }
    run.dst = end_address(&row.dst);
    run.src = end_address(&row.src);
    for (Py_ssize_t i = 0; i < rows->count; i++) {
        struct cudriver_run *made = &batch->runs[i];
        *made = run;
        made->dst += (uint64_t)(row_at(rows->to[i], rows->dst_length) * dst_step);
        made->src += (uint64_t)(row_at(rows->of[i], rows->src_length) * src_step);
    }
    batch->count = (size_t)rows->count;
    batch->bytes = bytes * batch->count;
    if (ends_meet(whole) || cudriver_magnitude(dst_step) < bytes) {
        done = cudriver_call("rows", "refuse_overlap_of_runs", "(y#)", (char *)batch->runs,
                             (Py_ssize_t)(batch->count * sizeof run));
        Py_XDECREF(done);
        return done != NULL ? 1 : -1;
    }
    return 1;
}

/* New reference: the indices, none negative, and whether the ends lie apart; or an error. */
static PyObject *rows_check(const struct rows *rows, PyObject *to, PyObject *of,
                            const struct copy_ends *whole)
{
    return cudriver_call("rows", "check_indices", "(OOLLN)", to, of, (long long)rows->dst_length,
                         (long long)rows->src_length, PyBool_FromLong(!ends_meet(whole)));
}

/* Copies rows between ends that were read, by two int64 arrays. New reference: a Transfer, or if
 * the rows are not runs what rows_check says. */
static PyObject *rows_copy(struct batch *batch, struct copy_ends *whole, PyObject *to, PyObject *of)
{
    struct rows rows = {(const int64_t *)cudriver_numpy_data(to),
                        (const int64_t *)cudriver_numpy_data(of), PyObject_Size(to),
                        whole->dst.shape[0], whole->src.shape[0]};
    PyObject *checked = NULL, *work = NULL;
    int added;

    if (!rows_are_good(&rows)) {
        checked = rows_check(&rows, to, of, whole);
        if (checked == NULL) {
            return NULL;
        }
    }
    Py_XDECREF(checked);
    added = batch_begin(batch, 0, rows.count) < 0 ? -1 : rows_add(batch, whole, &rows);
    if (added > 0) {
        work = batch_issue(batch);
    } else if (added == 0) {
        work = rows_check(&rows, to, of, whole);
    }
    return work;
}

PyObject *cudriver_copy_rows(CoreState *state, PyObject *const *args, PyObject *stream)
{
    PyObject *indices = cudriver_call("rows", "indices", "(OO)", args[1], args[3]), *work = NULL;
    struct batch batch = {.state = state};
    struct copy_ends whole;
    bool given;

    if (indices == NULL) {
        return NULL;
    }
    if (cudriver_stream_read(state, stream, &batch.stream, &given) == 0 &&
        copy_ends_read(state, args[0], args[2], &batch.stream, &whole) == 0) {
        if (whole.dst.ndim > 0 && whole.src.ndim > 0) {
            work = rows_copy(&batch, &whole, PyTuple_GET_ITEM(indices, 0),
                             PyTuple_GET_ITEM(indices, 1));
        } else {
            PyErr_SetString(PyExc_ValueError, "an array without dimensions has no rows");
        }
        copy_ends_done(&whole);
    }
    batch_end(&batch);
    Py_DECREF(indices);
    return work;
}

/*
 * copy_many(), and what copy_rows() and small copies beside big ones share with it: many copies as
 * one piece of work.
 *
 * Each pair of ends is read and checked. Dense copies to, from or on the stream's device are runs,
 * which the engine queues together. Any other copy is `odd`: it keeps its ends, and is queued as
 * copy_async() would do it. Nothing is queued before all is checked.
 */
#include "copy_private.h"

#include <string.h>

#include "device_array.h"
#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "python/call.h"
#include "python/error.h"
#include "contexts/work.h"

#define SPAN (4 * (Py_ssize_t)sizeof(uint64_t)) /* bytes of a pair's entry in `spans` */

int copy_batch_begin(struct copy_batch *batch, Py_ssize_t pairs, Py_ssize_t runs)
{
    size_t bytes = ((size_t)runs + 1) * sizeof *batch->runs;

    batch->runs = cudriver_hostmem_try_alloc(
        bytes, CUDRIVER_NODE_POLICY); /* in use before: without page faults */
    batch->runs = batch->runs != NULL ? batch->runs : PyMem_Malloc(bytes);
    batch->odd = PyMem_New(struct copy_ends *, pairs + 1);
    batch->users = PyMem_New(struct cudriver_users *, 2 * pairs + 1);
    batch->owners = PyList_New(0);
    batch->spans = PyBytes_FromStringAndSize(NULL, pairs * SPAN);
    if (batch->runs == NULL || batch->odd == NULL || batch->users == NULL) {
        PyErr_NoMemory();
    }
    return PyErr_Occurred() ? -1 : 0;
}

void copy_batch_end(struct copy_batch *batch)
{
    for (size_t i = 0; i < batch->used; i++) {
        batch->users[i]->calls--;
    }
    for (size_t i = 0; i < batch->odds; i++) {
        copy_ends_done(batch->odd[i]);
        PyMem_Free(batch->odd[i]);
    }
    PyMem_Free(batch->users);
    PyMem_Free(batch->odd);
    if (batch->runs != NULL && cudriver_hostmem_free_if_owned(batch->runs) == 0) {
        PyMem_Free(batch->runs);
    }
    Py_XDECREF(batch->owners);
    Py_XDECREF(batch->table);
    Py_XDECREF(batch->spans);
    Py_XDECREF(batch->home);
    cudriver_stream_done(&batch->stream);
}

/* ---- pairs ---- */

uint64_t copy_end_address(const struct cudriver_endpoint *end)
{
    return end->context != NULL ? end->device : (uint64_t)(uintptr_t)end->host;
}

void copy_end_span(const struct cudriver_endpoint *end, uint64_t *span)
{
    int64_t low, high;

    cudriver_extent(end->ndim, end->itemsize, end->shape, end->strides, &low, &high);
    span[0] = copy_end_address(end) + (uint64_t)low;
    span[1] = copy_end_address(end) + (uint64_t)high;
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
static bool end_is_near(const struct copy_batch *batch, const struct cudriver_endpoint *end)
{
    const ContextObject *context = end->context, *here = batch->stream.context;

    return context == NULL || context == here ||
           (context == batch->home && context->ordinal == here->ordinal && !end->on_default &&
            cudriver_copy_is_usable(end->device, here->handle));
}

static bool batch_is_near(const struct copy_batch *batch, const struct copy_ends *ends)
{
    return end_is_near(batch, &ends->dst) && end_is_near(batch, &ends->src);
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
static int end_is_locked(struct copy_batch *batch, const struct cudriver_endpoint *end)
{
    uint64_t span[2];
    bool any = false, ours;

    copy_end_span(end, span);
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
            return !any && cudriver_hostmem_is_page_locked((char *)(uintptr_t)low,
                                                           (char *)(uintptr_t)span[1]);
        }
    }
    return 1;
}

static ContextObject *ends_home(const struct copy_ends *ends)
{
    return ends->dst.context != NULL ? ends->dst.context : ends->src.context;
}

int copy_batch_place(struct copy_batch *batch, const struct copy_ends *ends)
{
    ContextObject *home = ends_home(ends);
    CoreState *state = batch->state;

    if (batch->mode == COPY_BATCH_BLOCKING && state->works.queues != NULL &&
        (cudriver_device_array_await(state, ends->dst.users) < 0 ||
         cudriver_device_array_await(state, ends->src.users) < 0)) {
        return -1;
    }
    if (batch->home == NULL && home != NULL) {
        batch->home = (ContextObject *)Py_NewRef((PyObject *)home);
        if (cudriver_stream_settle(state, home, &batch->stream) < 0) {
            return -1;
        }
    }
    return (home != NULL && copy_ends_near(&batch->stream, ends) < 0) ||
                   PyList_Append(batch->owners, ends->dst.owner) < 0 ||
                   PyList_Append(batch->owners, ends->src.owner) < 0
               ? -1
               : 0;
}

int copy_batch_run(struct copy_batch *batch, const struct copy_ends *ends, size_t bytes,
                   size_t count, struct cudriver_run *run)
{
    bool up = ends->src.context == NULL, down = ends->dst.context == NULL;
    int locked = up     ? end_is_locked(batch, &ends->src)
                 : down ? end_is_locked(batch, &ends->dst)
                        : 1;

    *run = (struct cudriver_run){.bytes = bytes, .up = up, .down = down, .pageable = locked == 0};
    if ((up || down) && (locked == 0 || bytes >= TUNING_BIG_COUNTED)) {
        batch->big[up] += bytes * count;
    }
    return locked < 0 ? -1 : 0;
}

bool copy_batch_takes(const struct copy_batch *batch, const struct copy_ends *ends, size_t *bytes)
{
    bool dense[2];

    *bytes = end_bytes(&ends->dst, &dense[0]);
    end_bytes(&ends->src, &dense[1]);
    return dense[0] && dense[1] && *bytes > 0 && ends_home(ends) != NULL &&
           batch_is_near(batch, ends);
}

/* Adds a pair of matching ends, which it takes over. 0 or -1. */
static int batch_add(struct copy_batch *batch, Py_ssize_t index, struct copy_ends *ends)
{
    uint64_t *span = (uint64_t *)(PyBytes_AS_STRING(batch->spans) + SPAN * index);
    struct cudriver_endpoint *both[] = {&ends->dst, &ends->src};
    struct copy_ends *odd;
    size_t bytes;
    int failed = 0;
    bool run;

    if (copy_batch_place(batch, ends) < 0) {
        copy_ends_done(ends);
        return -1;
    }
    run = copy_batch_takes(batch, ends, &bytes);
    memset(span, 0, SPAN);
    if (bytes > 0) {
        copy_end_span(&ends->dst, span);
        copy_end_span(&ends->src, span + 2);
    }
    batch->bytes += bytes;
    if (!run && (ends->src.context == NULL) != (ends->dst.context == NULL)) {
        batch->big[ends->src.context == NULL] += bytes;
    }
    if (run || bytes == 0) {
        if (run) {
            struct cudriver_run *made = &batch->runs[batch->count++];
            failed = copy_batch_run(batch, ends, bytes, 1, made);
            made->dst = span[0];
            made->src = span[2];
        }
        for (int i = 0; i < 2; i++) { /* calls use them until the batch ends */
            if (both[i]->users != NULL) {
                batch->users[batch->used++] = both[i]->users;
                both[i]->users = NULL;
            }
        }
        copy_ends_done(ends);
        return failed;
    }
    odd = PyMem_Malloc(sizeof *odd);
    if (odd == NULL) {
        copy_ends_done(ends);
        PyErr_NoMemory();
        return -1;
    }
    *odd = *ends;
    odd->borrow = batch->mode != COPY_BATCH_READ;
    batch->odd[batch->odds++] = odd;
    return 0;
}

/* ---- queueing ---- */

/* Whether the batch is small, and would queue behind big copies in each direction that it has. */
static bool batch_is_beside(const struct copy_batch *batch)
{
    bool has[2] = {false, false}, beside = batch->home != NULL;

    for (size_t i = 0; i < batch->count; i++) {
        has[0] |= batch->runs[i].down;
        has[1] |= batch->runs[i].up;
    }
    for (int up = 0; up < 2; up++) {
        beside = beside && (!has[up] || copy_is_beside(batch->state, &batch->stream,
                                                       batch->home->ordinal, up, batch->bytes));
    }
    return beside && (has[0] || has[1]);
}

/* Queues the runs, in an entered context. 0; -1; or 1 with an exception: it was interrupted, and
 * they are in flight. */
static int runs_queue(struct copy_batch *batch, struct cudriver_staging_transfer **staged)
{
    PyThreadState *saved = PyEval_SaveThread();
    struct cudriver_copy_call call = {.stream = batch->stream.handle,
                                      .beside = batch->beside,
                                      .interrupted = cudriver_signal_arrived,
                                      .data = &saved};
    void *table;
    PyObject *type, *value, *trace;
    CUresult result;

    result = cudriver_runs_issue(batch->runs, batch->count, batch->stream.context->handle,
                                 batch->mode != COPY_BATCH_READ, &call, &table, staged);
    PyEval_RestoreThread(saved);
    if (result != CUDA_SUCCESS && !PyErr_Occurred()) {
        cudriver_check(result, call.function != NULL ? call.function : "cudriver.copy_many",
                       "%zu copies", batch->count);
    }
    if (result != CUDA_SUCCESS && !call.queued) {
        return -1;
    }
    PyErr_Fetch(&type, &value, &trace);
    batch->table = table != NULL ? PyCapsule_New(table, NULL, copy_slot_free) : NULL;
    PyErr_Restore(type, value, trace); /* without a capsule it is never freed: it may be read */
    return result != CUDA_SUCCESS;
}

/* Queues all, in an entered context. New reference: the Transfer. If an odd copy fails, or the call
 * is interrupted, those before are in flight all the same, and keep their ends alive. */
static PyObject *batch_queue(struct copy_batch *batch)
{
    struct cudriver_staging_transfer *staged = NULL;
    PyObject *work, *type = NULL, *value = NULL, *trace = NULL;
    int failed = cudriver_capture_check(batch->stream.handle, "a copy");

    if (failed == 0 && batch->count > 0) {
        failed = runs_queue(batch, &staged);
    }
    if (failed < 0) {
        return NULL;
    }
    for (size_t i = 0; i < batch->odds && failed == 0; i++) {
        struct cudriver_staging_transfer *part = NULL;
        PyObject *done = copy_ends_queue(batch->state, batch->odd[i], &batch->stream, &part);
        cudriver_staging_join(&staged, part);
        failed = done == NULL;
        Py_XDECREF(done);
    }
    if (failed > 0) {
        PyErr_Fetch(&type, &value, &trace);
    }
    work = cudriver_work_add(batch->state, &batch->stream, batch->owners, batch->table,
                             batch->bytes, batch->big, staged);
    if (type != NULL) {
        Py_CLEAR(work);
        PyErr_Restore(type, value, trace);
    }
    return work;
}

PyObject *copy_batch_issue(struct copy_batch *batch)
{
    PyObject *owners, *work;
    bool pushed;

    if (batch->mode == COPY_BATCH_EXPLAIN) { /* the runs, as bytes */
        cudriver_runs_choose(batch->runs, batch->count, batch_is_beside(batch));
        return Py_BuildValue("[y#nnnii]", (char *)batch->runs,
                             (Py_ssize_t)(batch->count * sizeof *batch->runs), batch->bytes,
                             batch->odds, TUNING_RUN_MOST, TUNING_RUN_BLOCKS,
                             batch->home != NULL ? batch->home->ordinal : -1);
    }
    owners = PyList_AsTuple(batch->owners);
    Py_SETREF(batch->owners, owners);
    if (owners == NULL || cudriver_stream_settle(batch->state, batch->home, &batch->stream) < 0 ||
        cudriver_context_begin(batch->state, batch->stream.context, &pushed) < 0) {
        return NULL;
    }
    batch->beside = batch_is_beside(batch);
    work = batch_queue(batch);
    cudriver_context_end(batch->stream.context, pushed);
    return work;
}

/* ---- one small copy that would queue behind big ones: the kernel moves its rows meanwhile ---- */

/* Bytes of a row of a strided copy that is worth a run of its own, and rows at most. Not measured.
 */
#define ROW_LEAST 64
#define ROWS_MOST 4096

/* How many rows a copy has that are dense on both sides; 0: it is not small, or has none of rows
 * that are worth it. */
static size_t plan_rows(const struct cudriver_copy_plan *plan)
{
    const struct cudriver_layout *layout = &plan->layout;
    size_t count = 1;

    for (int i = 0; i < layout->ndim && count <= ROWS_MOST; i++) {
        count *= (size_t)layout->shape[i];
    }
    return plan->bytes > 0 && plan->bytes <= TUNING_BESIDE_MOST && count <= ROWS_MOST &&
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
    struct cudriver_copy_plan plan;
    struct cudriver_run run;
    size_t count;
    bool near = true;

    *work = NULL;
    copy_ends_plan(ends, false, false, &plan);
    count = plan_rows(&plan);
    if (count == 0) {
        return 1;
    }
    if (copy_batch_begin(&batch, 1, (Py_ssize_t)count) == 0 &&
        copy_batch_place(&batch, ends) == 0 && (near = batch_is_near(&batch, ends)) &&
        copy_batch_run(&batch, ends, plan.layout.itemsize, 0, &run) == 0) {
        rows_fill(&batch, ends, &plan.layout, run, count);
        *work = copy_batch_issue(&batch);
    }
    *stream = batch.stream; /* with its context */
    batch.stream = (struct cudriver_stream){.handle = NULL};
    copy_batch_end(&batch);
    return *work != NULL ? 0 : near ? -1 : 1;
}

bool copy_beside_explain(CoreState *state, const struct copy_ends *ends,
                         const struct cudriver_copy_plan *plan)
{
    const struct cudriver_stream stream = {.handle = NULL};

    return copy_ends_beside(state, ends, &stream) && plan_rows(plan) > 0;
}

/* ---- copy_many ---- */

/* Adds a note to the exception that is set: which pair raised it. */
static void note_pair(Py_ssize_t index)
{
    PyObject *type, *value, *trace, *done;

    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    done = PyObject_CallMethod(
        value, "add_note", "N",
        PyUnicode_FromFormat("in pair %zd of copy_many(), counted from 0", index));
    PyErr_Clear();
    Py_XDECREF(done);
    PyErr_Restore(type, value, trace);
}

/* Reads and adds all pairs of two tuples. 0 or -1. */
static int pairs_add(struct copy_batch *batch, PyObject *destinations, PyObject *sources)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sources); i++) {
        struct copy_ends ends;
        if (copy_ends_parse(batch->state, PyTuple_GET_ITEM(destinations, i),
                            PyTuple_GET_ITEM(sources, i), true, &batch->stream, &ends) < 0 ||
            batch_add(batch, i, &ends) < 0) {
            note_pair(i);
            return -1;
        }
    }
    return 0;
}

/* _copy_many(destinations, sources, stream, apart, mode), of tuples of one length */
PyObject *cudriver_copy_many(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    struct copy_batch batch = {.state = cudriver_state_of_module(module)};
    PyObject *to, *from, *stream, *work = NULL;
    int apart, mode;

    if (!PyArg_ParseTuple(args, "O!O!Opi", &PyTuple_Type, &to, &PyTuple_Type, &from, &stream,
                          &apart, &mode)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(to) != PyTuple_GET_SIZE(from)) {
        return PyErr_Format(PyExc_ValueError, "%zd destinations, %zd sources", PyTuple_GET_SIZE(to),
                            PyTuple_GET_SIZE(from));
    }
    batch.mode = (enum copy_batch_mode)mode;
    if (cudriver_stream_read(batch.state, stream, &batch.stream) == 0 &&
        copy_batch_begin(&batch, PyTuple_GET_SIZE(to), PyTuple_GET_SIZE(to)) == 0 &&
        pairs_add(&batch, to, from) == 0 &&
        (apart || cudriver_do(CALL_rows_refuse_overlap, batch.spans, to, from) == 0)) {
        work = copy_batch_issue(&batch);
    }
    copy_batch_end(&batch);
    return work;
}

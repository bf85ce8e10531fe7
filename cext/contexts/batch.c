/* A batch: its work, its event, its end. batch_queue.c has the queues, batches.c looks at all of
 * them. See batch.h. */
#include "batch_private.h"

#include "capture.h"
#include "driver/driver.h"
#include "python/error.h"
#include "python/wait.h"

/* Releases the owners. */
static void batch_let_go(struct cudriver_batch *batch)
{
    Py_ssize_t count = batch->count;

    batch->count = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(batch->owners[i]); /* may run any code */
    }
}

static void batch_destroy_event(struct cudriver_batch *batch)
{
    bool pushed;

    if (batch->event != NULL && cudriver_context_begin_free(batch->context, &pushed)) {
        cuda.cuEventDestroy_v2(batch->event);
        cudriver_context_end(batch->context, pushed);
    }
    batch->event = NULL;
}

/* Waits for engine threads that may still use host memory after a failure. Releases the GIL. */
static void batch_quiet(struct cudriver_batch *batch)
{
    for (Py_ssize_t i = 0; i < batch->staged_count; i++) {
        struct cudriver_staging_transfer *staged = batch->staged[i];
        Py_BEGIN_ALLOW_THREADS
        cudriver_staging_wait(staged, NULL, NULL);
        Py_END_ALLOW_THREADS
    }
}

/* Marks the batch complete with `result` and releases its owners. The caller holds a reference. */
static void batch_finish(struct cudriver_batch *batch, CUresult result)
{
    if (result != CUDA_SUCCESS && batch->staged_count > 0) {
        batch_quiet(batch);
    }
    if (batch->state == BATCH_DONE) { /* another thread was first */
        return;
    }
    if (batch->waiters == 0) {
        batch_destroy_event(batch);
    }
    batch->state = BATCH_DONE;
    batch->result = result;
    batch_let_go(batch);
}

/* Records an event behind the batch's work, with its context current. */
static CUresult batch_record_event(struct cudriver_batch *batch)
{
    CUevent event = NULL;
    CUresult result = cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuda.cuEventRecord(event, batch->stream);
    if (result != CUDA_SUCCESS) {
        cuda.cuEventDestroy_v2(event);
        return result;
    }
    batch->event = event;
    batch->state = BATCH_CLOSED;
    return CUDA_SUCCESS;
}

/* No more work joins it. */
static void batch_part(struct cudriver_batch *batch)
{
    if (batch->object != NULL) {
        batch->object->open = NULL;
        batch->object = NULL;
    }
}

/* See cudriver_batch_record. */
static void batch_try_record(struct cudriver_batch *batch, bool look)
{
    CUcontext current = NULL;
    CUresult result;
    bool pushed;

    batch_part(batch);
    if (!cudriver_context_begin_free(batch->context, &pushed)) {
        if (!cudriver_driver_is_forked()) {
            batch_finish(batch, CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        return;
    }
    result = cuda.cuCtxGetCurrent(&current);
    if (result != CUDA_SUCCESS || current != batch->context->handle) {
        /* The context cannot be made current. A default stream would be another's: try later. */
        result = CUDA_ERROR_INVALID_CONTEXT;
        if (cudriver_stream_is_default(batch->stream)) {
            cudriver_context_end(batch->context, pushed);
            return;
        }
    } else if ((batch->captured = cudriver_capture_forbids(batch->stream))) {
        cudriver_context_end(batch->context, pushed);
        return;
    } else if (look && cuda.cuStreamQuery(batch->stream) == CUDA_SUCCESS) {
        cudriver_context_end(batch->context, pushed);
        batch_finish(batch, CUDA_SUCCESS);
        return;
    } else {
        result = batch_record_event(batch);
    }
    if (result == CUDA_SUCCESS) {
        cudriver_context_end(batch->context, pushed);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cuda.cuStreamSynchronize(batch->stream);
    Py_END_ALLOW_THREADS
    cudriver_context_end(batch->context, pushed);
    if (batch->state == BATCH_OPEN && !cudriver_driver_is_capturing(result)) {
        batch_finish(batch, result);
    }
}

/* The batch, which is open, owns its stream's handle from here on, and lists it as alive. */
static void orphan_begin(CoreState *state, struct cudriver_batch *batch)
{
    batch->orphan = true;
    cudriver_live_add(state, &batch->live, "dropped stream", 0, (uintptr_t)batch->stream,
                      batch->context->ordinal);
}

/* A batch that owned its stream's handle is no longer open: another open one of that stream takes
 * the handle over, else the stream is destroyed. */
static void orphan_end(CoreState *state, struct cudriver_batch *batch)
{
    CUstream stream = batch->stream;
    struct cudriver_batch *other = cudriver_batch_open_on(state, batch->context, stream);
    bool pushed;

    batch->orphan = false;
    cudriver_live_remove(state, &batch->live);
    if (other != NULL) {
        orphan_begin(state, other);
        return;
    }
    cudriver_batch_end_queue(state, batch->context, stream);
    batch->context->children--;
    if (cudriver_context_begin_free(batch->context, &pushed)) {
        Py_BEGIN_ALLOW_THREADS
        cuda.cuStreamDestroy_v2(stream);
        Py_END_ALLOW_THREADS
        cudriver_context_end(batch->context, pushed);
    }
}

void cudriver_batch_record(CoreState *state, struct cudriver_batch *batch, bool look)
{
    if (batch->recording) {
        return;
    }
    batch->recording = true;
    batch_try_record(batch, look);
    batch->recording = false;
    if (batch->orphan && batch->state != BATCH_OPEN) {
        orphan_end(state, batch);
    }
}

/* cuEventQuery; NOT_READY too if the driver does not tell while a stream is being captured: the
 * device may still use the batch's memory. */
static CUresult event_query(void *handle)
{
    CUresult result = cuda.cuEventQuery(*(CUevent *)handle);

    return cudriver_driver_is_capturing(result) ? CUDA_ERROR_NOT_READY : result;
}

void cudriver_batch_close(CoreState *state, struct cudriver_batch *batch)
{
    batch->refs++;
    cudriver_batch_record(state, batch, false);
    cudriver_batch_release(state, batch);
}

/* See cudriver_batch_poll. The caller holds a reference. */
static CUresult batch_poll(CoreState *state, struct cudriver_batch *batch)
{
    CUresult result;
    bool pushed;

    if (batch->state == BATCH_OPEN) {
        cudriver_batch_record(state, batch, true);
    }
    if (batch->state == BATCH_OPEN) {
        return cudriver_driver_is_forked() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NOT_READY;
    }
    if (batch->state == BATCH_DONE) {
        return batch->result;
    }
    if (batch->context->state != CUDRIVER_CONTEXT_OPEN) {
        batch_finish(batch, CUDA_ERROR_CONTEXT_IS_DESTROYED);
        return batch->result;
    }
    if (!cudriver_context_begin_free(batch->context, &pushed)) {
        if (cudriver_driver_is_forked()) {
            return CUDA_ERROR_NOT_INITIALIZED; /* never completes in a child */
        }
        batch_finish(batch, CUDA_ERROR_CONTEXT_IS_DESTROYED); /* by its owner, another library */
        return batch->result;
    }
    result = event_query(&batch->event);
    cudriver_context_end(batch->context, pushed);
    if (result != CUDA_ERROR_NOT_READY) {
        batch_finish(batch, result);
    }
    return result;
}

void cudriver_batch_keep(struct cudriver_batch *batch)
{
    batch->refs++;
}

void cudriver_batch_release(CoreState *state, struct cudriver_batch *batch)
{
    if (--batch->refs > 0) {
        return;
    }
    batch_let_go(batch);
    for (Py_ssize_t i = 0; i < batch->staged_count; i++) {
        cudriver_staging_release(batch->staged[i]);
    }
    Py_DECREF(batch->context);
    cudriver_batch_spare(state, batch);
}

static void batch_hold(struct cudriver_batch *batch, PyObject *owner)
{
    if (owner != NULL) {
        batch->owners[batch->count++] = Py_NewRef(owner);
    }
}

void cudriver_batches_reap(CoreState *state, bool all)
{
    unsigned long long pass = ++state->pass;
    struct cudriver_batch *batch;

    batch = state->batches;
    while (batch != NULL) {
        if (batch->state == BATCH_DONE) {
            cudriver_batch_pop(state, batch);
            cudriver_batch_release(state, batch); /* may run any code and change the queues */
            batch = state->batches;
            continue;
        }
        /* One is open with others behind it if a program uses our stream by its handle, too. */
        bool open = batch->state == BATCH_OPEN && batch->next == NULL && !batch->orphan;
        if (batch->asked == pass || (open && !all)) {
            batch = batch->across;
            continue;
        }
        batch->asked = pass;
        batch->refs++; /* completing it may run any code */
        batch_poll(state, batch);
        bool done = batch->state == BATCH_DONE;
        struct cudriver_batch *next = batch->across;
        cudriver_batch_release(state, batch);
        batch = done ? state->batches : next; /* one that is not done stays in its queue */
    }
    state->added = 0;
    state->left = state->in_flight;
}

/* Reaps once more batches were closed than the last pass left, so that the cost of closing a batch
 * does not grow with the number in flight. */
static void reap_in_turn(CoreState *state)
{
    if (++state->added > state->left) {
        cudriver_batches_reap(state, false);
    }
}

/* Waits for work that no batch could be had for. Keeps the exception. */
static void wait_unheld(CUstream stream, struct cudriver_staging_transfer *staged)
{
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback);
    Py_BEGIN_ALLOW_THREADS
    cuda.cuStreamSynchronize(stream);
    if (staged != NULL) {
        cudriver_staging_wait(staged, NULL, NULL);
    }
    Py_END_ALLOW_THREADS
    cudriver_staging_release(staged);
    PyErr_Restore(type, value, traceback);
}

static bool batch_is_full(const struct cudriver_batch *batch)
{
    return batch->count + 2 > BATCH_OWNERS || batch->staged_count == BATCH_STAGED;
}

struct cudriver_batch *cudriver_batch_add(CoreState *state, const struct cudriver_stream *stream,
                                          size_t bytes, PyObject *first, PyObject *second,
                                          struct cudriver_staging_transfer *staged)
{
    struct cudriver_batch *batch = stream->object != NULL ? stream->object->open : NULL;

    if (batch == NULL) {
        batch = cudriver_batch_new(state, stream);
    }
    if (batch == NULL) {
        PyErr_NoMemory();
        wait_unheld(stream->handle, staged);
        return NULL;
    }
    batch_hold(batch, first);
    batch_hold(batch, second);
    if (staged != NULL) {
        batch->staged[batch->staged_count++] = staged;
    }
    batch->refs++;
    /* We are not told when a stream that is not ours is destroyed: record the event now. */
    if (stream->object == NULL || bytes >= TUNING_BATCH_ALONE || batch_is_full(batch)) {
        cudriver_batch_close(state, batch);
        reap_in_turn(state);
    }
    return batch;
}

void cudriver_batch_close_open(StreamObject *stream)
{
    if (stream->open != NULL) {
        cudriver_batch_close(cudriver_state_of((PyObject *)stream), stream->open);
    }
}

bool cudriver_batch_adopt(StreamObject *stream, bool captured)
{
    CoreState *state = cudriver_state_of((PyObject *)stream);
    struct cudriver_stream itself = {stream->handle, NULL, stream->context, NULL};
    struct cudriver_batch *batch = cudriver_batch_open_on(state, stream->context, stream->handle);

    if (batch == NULL && captured) {
        batch = cudriver_batch_new(state, &itself);
    }
    if (batch == NULL) {
        return false;
    }
    orphan_begin(state, batch);
    return true;
}

void cudriver_batch_close_before(CoreState *state, const struct cudriver_stream *stream)
{
    struct cudriver_batch *batch;

    if (stream->object != NULL) {
        batch = stream->object->open;
    } else { /* it may still be one of ours, by its handle */
        batch = cudriver_batch_open_on(state, stream->context, stream->handle);
    }
    if (batch != NULL) {
        cudriver_batch_close(state, batch);
        reap_in_turn(state); /* else recording events would release nothing */
    }
}

void cudriver_batch_end_open(CoreState *state, const StreamObject *stream)
{
    unsigned long long issued = state->issued;
    struct cudriver_batch *batch = cudriver_batch_open_on(state, stream->context, stream->handle);

    /* Dropping an owner may run any code. Work that it issues must join none of these. */
    for (; batch != NULL; batch = batch->next) {
        batch_part(batch);
    }
    while ((batch = cudriver_batch_open_on(state, stream->context, stream->handle)) != NULL &&
           batch->serial <= issued && !batch->recording && !batch->orphan) {
        batch->refs++;
        batch_finish(batch, CUDA_SUCCESS);
        cudriver_batch_release(state, batch);
    }
}

int cudriver_batch_wait_all(CoreState *state, const struct cudriver_stream *stream)
{
    struct cudriver_batch *batch = cudriver_batch_add(state, stream, 0, NULL, NULL, NULL);
    CUresult result;
    int failed;

    if (batch == NULL) {
        return -1;
    }
    if (batch->state == BATCH_OPEN) {
        cudriver_batch_close(state, batch);
    }
    failed = cudriver_batch_wait(state, batch);
    result = failed == 0 ? batch_poll(state, batch) : CUDA_SUCCESS;
    cudriver_batch_release(state, batch);
    if (failed < 0) {
        return -1;
    }
    return cudriver_check(state, result, "cuEventQuery", "behind the work of stream %p",
                          (void *)stream->handle);
}

CUresult cudriver_batch_poll(CoreState *state, struct cudriver_batch *batch)
{
    CUresult result;

    batch->refs++;
    result = batch_poll(state, batch);
    cudriver_batch_release(state, batch);
    return result;
}

/* Waits for the event of a batch that batch_poll found NOT_READY; poll again afterwards. 0, or -1
 * with an exception set. The caller holds a reference. */
static int batch_wait_event(CoreState *state, struct cudriver_batch *batch)
{
    bool pushed;
    int failed = 0;

    if (cudriver_context_begin(state, batch->context, &pushed) < 0) {
        return -1;
    }
    if (batch->event != NULL) {
        batch->waiters++;
        failed = cudriver_wait(state, event_query, &batch->event, "cuEventQuery");
        batch->waiters--;
    }
    cudriver_context_end(batch->context, pushed);
    if (batch->state == BATCH_OPEN && batch->captured) {
        cudriver_capture_raise(state, batch->stream, "waiting",
                               "earlier work on it cannot be seen before the capture ends: wait "
                               "then");
        failed = -1;
    } else if (batch->state == BATCH_OPEN) { /* no event could be recorded yet */
        cudriver_nap(1);
        failed = PyErr_CheckSignals();
    }
    if (batch->state == BATCH_DONE && batch->waiters == 0) {
        batch_destroy_event(batch);
    }
    return failed;
}

int cudriver_batch_wait(CoreState *state, struct cudriver_batch *batch)
{
    int failed = 0;

    batch->refs++;
    while (failed == 0 && batch_poll(state, batch) == CUDA_ERROR_NOT_READY) {
        failed = batch_wait_event(state, batch);
    }
    cudriver_batch_release(state, batch);
    return failed;
}

/* Batches of asynchronous work. See batch.h. */
#include "batch.h"

#include <string.h>
#include <time.h>

#include "capture.h"
#include "driver/driver.h"
#include "driver/platform.h"
#include "python/error.h"
#include "python/wait.h"

enum batch_state {
    BATCH_OPEN,   /* no event yet; more work may join while it has an `object` */
    BATCH_CLOSED, /* its event is recorded */
    BATCH_DONE,   /* complete: `result` is set, owners are released */
};

/* How many owners and engine's transfers an open batch takes before it is closed. */
#define BATCH_OWNERS 32
#define BATCH_STAGED 16

/*
 * The batches in flight of one stream form a queue, in the order in which they were issued: `next`.
 * A stream's work ends in that order, so only the oldest batch is asked whether it is complete. The
 * oldest batches of all streams form the list state->batches: `across`.
 */
struct cudriver_batch {
    struct cudriver_batch *next;
    struct cudriver_batch *across; /* of the oldest */
    struct cudriver_batch *last;   /* of the oldest: the newest */
    Py_ssize_t refs;               /* one for the queue, one for each Transfer */
    unsigned long long serial;     /* in the order of issue over all streams */
    unsigned long long asked;      /* the pass that found it not complete */
    enum batch_state state;
    CUresult result;
    bool captured;          /* open, because its stream was being captured when last looked at */
    ContextObject *context; /* owned */
    StreamObject *object;   /* borrowed while open: its stream, if that is ours; else NULL */
    CUstream stream;
    CUevent event;      /* owned while closed */
    Py_ssize_t waiters; /* threads that query the event without the GIL; the last one destroys it */
    Py_ssize_t staged_count, count;
    struct cudriver_staging_transfer *staged[BATCH_STAGED]; /* owned: the engine's transfers */
    PyObject *owners[BATCH_OWNERS];                         /* owned references */
};

/* Freed batches kept for reuse, so that issuing a copy seldom allocates. */
#define SPARE_BATCHES 64

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

/* Records the event behind the batch's work; if that fails, waits for the stream instead. With
 * `look`, an idle stream completes the batch at once: an event recorded now would be later. The
 * batch stays open where neither can be had while a stream is being captured: an event would be
 * part of the graph. */
static void batch_record(struct cudriver_batch *batch, bool look)
{
    CUcontext current = NULL;
    CUresult result;
    bool pushed;

    if (batch->object != NULL) {
        batch->object->open = NULL;
        batch->object = NULL;
    }
    if (!cudriver_context_begin_free(batch->context, &pushed)) {
        if (!cudriver_driver_is_forked()) {
            batch_finish(batch, CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        return;
    }
    result = cuda.cuCtxGetCurrent(&current);
    if (result != CUDA_SUCCESS || current != batch->context->handle) {
        /* The context cannot be made current. A NULL stream would be another's: try later. */
        result = CUDA_ERROR_INVALID_CONTEXT;
        if (batch->stream == NULL) {
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

/* cuEventQuery; NOT_READY too if the driver does not tell while a stream is being captured: the
 * device may still use the batch's memory. */
static CUresult event_query(void *handle)
{
    CUresult result = cuda.cuEventQuery(*(CUevent *)handle);

    return cudriver_driver_is_capturing(result) ? CUDA_ERROR_NOT_READY : result;
}

/* Closes the batch. Holds a reference, because other threads may run and drop theirs. */
static void batch_close(CoreState *state, struct cudriver_batch *batch)
{
    batch->refs++;
    batch_record(batch, false);
    cudriver_batch_release(state, batch);
}

/* See cudriver_batch_poll. The caller holds a reference. */
static CUresult batch_poll(struct cudriver_batch *batch)
{
    CUresult result;
    bool pushed;

    if (batch->state == BATCH_OPEN) {
        batch_record(batch, true);
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
    if (state->spare_batch_count == SPARE_BATCHES) {
        PyMem_Free(batch);
        return;
    }
    batch->next = state->spare_batches;
    state->spare_batches = batch;
    state->spare_batch_count++;
}

/* An empty batch, or NULL. */
static struct cudriver_batch *batch_alloc(CoreState *state)
{
    struct cudriver_batch *batch = state->spare_batches;

    if (batch != NULL) {
        state->spare_batches = batch->next;
        state->spare_batch_count--;
    } else {
        batch = PyMem_Malloc(sizeof *batch);
    }
    if (batch != NULL) {
        memset(batch, 0, offsetof(struct cudriver_batch, staged));
    }
    return batch;
}

/* Appends a batch to the queue of its stream. */
static void queue_append(CoreState *state, struct cudriver_batch *batch)
{
    struct cudriver_batch *head = state->batches;

    while (head != NULL && (head->context != batch->context || head->stream != batch->stream)) {
        head = head->across;
    }
    if (head != NULL) {
        head->last->next = batch;
        head->last = batch;
    } else {
        batch->across = state->batches;
        batch->last = batch;
        state->batches = batch;
    }
    batch->serial = ++state->issued;
    state->in_flight++;
}

/* Takes the oldest batch out of a queue. */
static void queue_pop(CoreState *state, struct cudriver_batch *head)
{
    struct cudriver_batch **link = &state->batches, *next = head->next;

    while (*link != head) {
        link = &(*link)->across;
    }
    if (next != NULL) {
        next->across = head->across;
        next->last = head->last;
        *link = next;
    } else {
        *link = head->across;
    }
    state->in_flight--;
}

/* The batch behind this one, or the oldest of the next stream; NULL: none. `*head` is the oldest of
 * its queue. */
static struct cudriver_batch *after(struct cudriver_batch **head,
                                    const struct cudriver_batch *batch)
{
    if (batch->next != NULL) {
        return batch->next;
    }
    *head = (*head)->across;
    return *head;
}

static struct cudriver_batch *batch_new(CoreState *state, const struct cudriver_stream *stream)
{
    struct cudriver_batch *batch = batch_alloc(state);

    if (batch == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    batch->context = (ContextObject *)Py_NewRef((PyObject *)stream->context);
    batch->stream = stream->handle;
    batch->refs = 1; /* the queue's */
    queue_append(state, batch);
    if (stream->object != NULL) {
        batch->object = stream->object;
        stream->object->open = batch;
    }
    return batch;
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
    struct cudriver_batch *batch = state->batches;

    while (batch != NULL) {
        if (batch->state == BATCH_DONE) {
            queue_pop(state, batch);
            cudriver_batch_release(state, batch); /* may run any code and change the queues */
            batch = state->batches;
            continue;
        }
        /* One is open with others behind it if a program uses our stream by its handle, too. */
        bool open = batch->state == BATCH_OPEN && batch->next == NULL;
        if (batch->asked == pass || (open && !all)) {
            batch = batch->across;
            continue;
        }
        batch->asked = pass;
        batch->refs++; /* completing it may run any code */
        batch_poll(batch);
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

struct cudriver_batch *cudriver_batch_add(CoreState *state, const struct cudriver_stream *stream,
                                          size_t bytes, PyObject *first, PyObject *second,
                                          struct cudriver_staging_transfer *staged)
{
    struct cudriver_batch *batch = stream->object != NULL ? stream->object->open : NULL;

    if (batch == NULL) {
        batch = batch_new(state, stream);
    }
    if (batch == NULL) {
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
    if (stream->object == NULL || bytes >= TUNING_BATCH_ALONE || batch->count + 2 > BATCH_OWNERS ||
        batch->staged_count == BATCH_STAGED) {
        batch_close(state, batch);
        reap_in_turn(state);
    }
    return batch;
}

bool cudriver_batches_hold(CoreState *state, PyObject *object)
{
    struct cudriver_batch *head, *batch;

    for (head = batch = state->batches; batch != NULL; batch = after(&head, batch)) {
        for (Py_ssize_t i = 0; i < batch->count; i++) {
            if (batch->owners[i] == object) {
                return true;
            }
        }
    }
    return false;
}

void cudriver_batch_close_open(StreamObject *stream)
{
    if (stream->open != NULL) {
        batch_close(cudriver_state_of((PyObject *)stream), stream->open);
    }
}

void cudriver_batch_close_before(CoreState *state, const struct cudriver_stream *stream)
{
    struct cudriver_batch *batch = stream->object != NULL ? stream->object->open : state->batches;

    if (stream->object == NULL) { /* it may still be one of ours, by its handle */
        while (batch != NULL &&
               (batch->context != stream->context || batch->stream != stream->handle)) {
            batch = batch->across;
        }
        while (batch != NULL && batch->state != BATCH_OPEN) {
            batch = batch->next;
        }
    }
    if (batch != NULL) {
        batch_close(state, batch);
        reap_in_turn(state); /* else recording events would release nothing */
    }
}

/* A batch of this context in this state, issued no later than `serial`; NULL: none. */
static struct cudriver_batch *batch_find(const CoreState *state, const ContextObject *context,
                                         enum batch_state wanted, unsigned long long serial)
{
    struct cudriver_batch *head, *batch;

    for (head = batch = state->batches; batch != NULL; batch = after(&head, batch)) {
        if (batch->context == context && batch->state == wanted && batch->serial <= serial) {
            break;
        }
    }
    return batch;
}

bool cudriver_batches_use(CoreState *state, const ContextObject *context)
{
    return batch_find(state, context, BATCH_OPEN, state->issued) != NULL ||
           batch_find(state, context, BATCH_CLOSED, state->issued) != NULL;
}

/* Closes all open batches of a context. */
static void batches_close(CoreState *state, const ContextObject *context)
{
    unsigned long long pass = ++state->pass;
    struct cudriver_batch *head, *batch;

    for (head = batch = state->batches; batch != NULL;) {
        if (batch->state == BATCH_OPEN && batch->context == context && batch->asked < pass) {
            batch->asked = pass; /* it may stay open */
            batch_close(state, batch);
            head = batch = state->batches; /* the queues may have changed */
        } else {
            batch = after(&head, batch);
        }
    }
}

int cudriver_batches_wait(CoreState *state, const ContextObject *context)
{
    unsigned long long newest = state->issued;
    struct cudriver_batch *batch;
    int failed = 0;

    batches_close(state, context);
    while (failed == 0 && (batch = batch_find(state, context, BATCH_CLOSED, newest)) != NULL) {
        failed = cudriver_batch_wait(state, batch);
    }
    return failed;
}

void cudriver_batch_end_open(CoreState *state, StreamObject *stream)
{
    struct cudriver_batch *batch = stream->open;

    if (batch != NULL) {
        stream->open = NULL;
        batch->object = NULL;
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
        batch_close(state, batch);
    }
    failed = cudriver_batch_wait(state, batch);
    result = failed == 0 ? batch_poll(batch) : CUDA_SUCCESS;
    cudriver_batch_release(state, batch);
    if (result != CUDA_SUCCESS) {
        cudriver_raise(state, result, "cuEventQuery", "behind the work of stream %p",
                       stream->handle);
        failed = -1;
    }
    return failed;
}

void cudriver_batches_drain(CoreState *state)
{
    for (int round = 0; round < 5000 && state->batches != NULL; round++) {
        cudriver_batches_reap(state, true);
        if (state->batches != NULL) {
            struct timespec pause = {0, 1000000};
            Py_BEGIN_ALLOW_THREADS
            nanosleep(&pause, NULL);
            Py_END_ALLOW_THREADS
        }
        if (cudriver_driver_is_forked()) {
            return;
        }
    }
}

CUresult cudriver_batch_poll(CoreState *state, struct cudriver_batch *batch)
{
    CUresult result;

    batch->refs++;
    result = batch_poll(batch);
    cudriver_batch_release(state, batch);
    return result;
}

void cudriver_batch_free_spares(CoreState *state)
{
    while (state->spare_batches != NULL) {
        struct cudriver_batch *batch = state->spare_batches;
        state->spare_batches = batch->next;
        PyMem_Free(batch);
    }
    state->spare_batch_count = 0;
}

/* Waits a moment for a batch that stays open. 0, or -1 with a signal handler's exception. */
static int batch_wait_open(void)
{
    struct timespec pause = {0, 1000000};

    Py_BEGIN_ALLOW_THREADS
    nanosleep(&pause, NULL);
    Py_END_ALLOW_THREADS
    return PyErr_CheckSignals();
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
        failed = batch_wait_open();
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
    while (failed == 0 && batch_poll(batch) == CUDA_ERROR_NOT_READY) {
        failed = batch_wait_event(state, batch);
    }
    cudriver_batch_release(state, batch);
    return failed;
}

/* The first batch in flight from `batch` on of which uses() is true for an owner; NULL: none. */
static struct cudriver_batch *
batch_using(CoreState *state, struct cudriver_batch **head, struct cudriver_batch *batch,
            bool (*uses)(CoreState *state, PyObject *owner, const void *memory), const void *memory)
{
    for (; batch != NULL; batch = after(head, batch)) {
        for (Py_ssize_t i = 0; i < batch->count; i++) {
            if (uses(state, batch->owners[i], memory)) {
                return batch;
            }
        }
    }
    return NULL;
}

int cudriver_batches_await(CoreState *state,
                           bool (*uses)(CoreState *state, PyObject *owner, const void *memory),
                           const void *memory)
{
    struct cudriver_batch *head = state->batches, *batch;

    if (state->batches != NULL && cudriver_require(state) < 0) {
        return -1; /* in a forked child nothing completes */
    }
    while ((batch = batch_using(state, &head, head, uses, memory)) != NULL) {
        if (cudriver_batch_wait(state, batch) < 0) {
            return -1;
        }
        head = state->batches; /* the queues may have changed; completed batches hold no owners */
    }
    return 0;
}

/* Closes every open batch that uses the memory, or waits for it. 0 or -1. */
static int batches_close_using(CoreState *state,
                               bool (*uses)(CoreState *state, PyObject *owner, const void *memory),
                               const void *memory)
{
    struct cudriver_batch *head = state->batches, *batch = head;
    int failed = 0;

    while (failed == 0 && (batch = batch_using(state, &head, batch, uses, memory)) != NULL) {
        if (batch->state != BATCH_OPEN) {
            batch = after(&head, batch);
            continue;
        }
        batch->refs++;
        batch_record(batch, true);
        if (batch->state == BATCH_OPEN) { /* no event could be recorded */
            failed = cudriver_batch_wait(state, batch);
        }
        cudriver_batch_release(state, batch);
        head = batch = state->batches; /* the queues may have changed */
    }
    return failed;
}

int cudriver_batches_follow(CoreState *state,
                            bool (*uses)(CoreState *state, PyObject *owner, const void *memory),
                            const void *memory, ContextObject *context, CUstream stream)
{
    struct cudriver_batch *head, *batch;
    CUresult result = CUDA_SUCCESS;
    bool pushed;

    if (state->batches == NULL) {
        return 0;
    }
    if (cudriver_require(state) < 0 || batches_close_using(state, uses, memory) < 0 ||
        cudriver_context_begin(state, context, &pushed) < 0) {
        return -1;
    }
    head = state->batches;
    batch = batch_using(state, &head, head, uses, memory);
    while (batch != NULL && result == CUDA_SUCCESS) {
        if (batch->event != NULL && (batch->stream != stream || batch->context != context)) {
            result = cuda.cuStreamWaitEvent(stream, batch->event, 0);
        }
        batch = batch_using(state, &head, after(&head, batch), uses, memory);
    }
    return cudriver_context_finish(state, context, pushed, result, "cuStreamWaitEvent",
                                   "the consumer's stream %p", (void *)stream);
}

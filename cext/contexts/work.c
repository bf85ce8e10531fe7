/* Work in flight. See work.h. */
#include "work.h"

#include <string.h>

#include "stream.h"
#include "driver/driver.h"
#include "python/error.h"
#include "python/wait.h"

/* How many ended pieces of work, with their events, a context keeps for later work. An event from
 * there takes 0.2 us of a 4 KiB copy's 2.3, one that is created and destroyed 0.8. */
#define SPARE_MOST 512

/* How much work is issued between two passes over all, beyond what the last pass left: a piece
 * counts one, and one more for each so many bytes that its owners may hold. H200: a pass after each
 * 4 KiB copy made that cost 3.7 us; before, with one event behind many, 1.8. */
#define REAP_AFTER 32
#define REAP_BYTES ((size_t)8 << 10)

/* In place of a handle that may name several streams: that of a stream which is destroyed, because
 * the next may have it. No piece of such work is linked to another. */
#define STREAM_GONE ((CUstream)UINTPTR_MAX)

/* What a piece of work notes of its stream. Another library may destroy its own at any time, and
 * the default stream per thread is another in each thread. */
static CUstream stream_noted(const struct cudriver_stream *stream)
{
    bool lasts = stream->held != NULL || cudriver_stream_is_default(stream->handle);

    return lasts && stream->handle != CUDRIVER_STREAM_PER_THREAD ? stream->handle : STREAM_GONE;
}

/* ---- the list ---- */

static void list_add(CoreState *state, TransferObject *work)
{
    TransferObject *before = state->works.last;

    work->prev = before;
    *(before != NULL ? &before->next : &state->works.first) = work;
    state->works.last = work;
    if (work->stream == STREAM_GONE) {
        before = NULL;
    }
    while (before != NULL && (before->stream != work->stream || before->context != work->context)) {
        before = before->prev;
    }
    work->before = before;
    if (before != NULL) {
        before->after = work;
    }
    work->serial = ++state->works.issued;
    state->works.in_flight++;
}

/* Work that is over leaves the list, whose reference is the caller's then. */
static void list_remove(CoreState *state, TransferObject *work)
{
    *(work->prev != NULL ? &work->prev->next : &state->works.first) = work->next;
    *(work->next != NULL ? &work->next->prev : &state->works.last) = work->prev;
    if (work->before != NULL) {
        work->before->after = work->after;
    }
    if (work->after != NULL) {
        work->after->before = work->before;
    }
    work->next = work->prev = work->before = work->after = NULL;
    work->over = true;
    state->works.in_flight--;
}

void cudriver_works_end_stream(const CoreState *state, const ContextObject *context,
                               CUstream stream)
{
    for (TransferObject *work = state->works.first; work != NULL; work = work->next) {
        if (work->context == context && work->stream == stream) {
            work->stream = STREAM_GONE;
            work->before = work->after = NULL;
        }
    }
}

/* ---- one piece of work ---- */

/* New reference: a piece of work with an event: one that the context keeps, or a new one. *result
 * says why it has no event. NULL, without an exception: no memory. */
static TransferObject *work_new(CoreState *state, ContextObject *context, CUresult *result)
{
    TransferObject *work = context->spare.first;
    CUevent event = NULL;

    *result = CUDA_SUCCESS;
    if (work != NULL) {
        context->spare.first = work->next;
        context->spare.count--;
        event = work->event;
        memset((char *)work + sizeof(PyObject), 0, sizeof *work - sizeof(PyObject));
        PyObject_Init((PyObject *)work, state->transfer_type);
    } else {
        work = (TransferObject *)state->transfer_type->tp_alloc(state->transfer_type, 0);
        if (work == NULL) {
            PyErr_Clear();
            return NULL;
        }
        cudriver_driver_relax();
        *result = cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        cudriver_driver_restore();
    }
    work->event = *result == CUDA_SUCCESS ? event : NULL;
    work->context = (ContextObject *)Py_NewRef((PyObject *)context);
    return work;
}

PyObject *cudriver_work_over(CoreState *state, size_t bytes)
{
    TransferObject *work =
        (TransferObject *)state->transfer_type->tp_alloc(state->transfer_type, 0);

    if (work != NULL) {
        work->bytes = bytes;
        work->over = true;
    }
    return (PyObject *)work;
}

void cudriver_work_dealloc(PyObject *object)
{
    CUDRIVER_LOCK();
    TransferObject *work = (TransferObject *)object;
    ContextObject *context = work->context;
    PyTypeObject *type = Py_TYPE(object);
    bool pushed;

    cudriver_staging_release(work->staged);
    if (work->event != NULL && context->state == CUDRIVER_CONTEXT_OPEN &&
        work->result == CUDA_SUCCESS && context->spare.count < SPARE_MOST) {
        work->next = context->spare.first;
        context->spare.first = work;
        context->spare.count++;
    } else {
        if (work->event != NULL && cudriver_context_begin_free(context, &pushed)) {
            cuda.cuEventDestroy_v2(work->event);
            cudriver_context_end(context, pushed);
        }
        type->tp_free(object);
    }
    Py_XDECREF(context);
    Py_DECREF(type);
}

void cudriver_works_forget(ContextObject *context)
{
    bool pushed, here = false;

    if (context->spare.first != NULL) {
        here = cudriver_context_begin_free(context, &pushed);
    }
    while (context->spare.first != NULL) {
        TransferObject *work = context->spare.first;
        context->spare.first = work->next;
        if (here) {
            cuda.cuEventDestroy_v2(work->event);
        }
        PyObject_Free(work);
    }
    context->spare.count = 0;
    if (here) {
        cudriver_context_end(context, pushed);
    }
}

/* cuEventQuery; NOT_READY too if the driver does not tell while a stream is being captured: the
 * device may still use the memory. */
static CUresult event_query(void *handle)
{
    CUresult result = cuda.cuEventQuery(*(CUevent *)handle);

    return cudriver_driver_is_capturing(result) ? CUDA_ERROR_NOT_READY : result;
}

/* The state of work whose context can no longer be asked. */
static CUresult gone(void)
{
    return cudriver_driver_is_forked() ? CUDA_ERROR_NOT_INITIALIZED
                                       : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* The work's state, as the driver tells it; in a forked child NOT_INITIALIZED. */
static CUresult work_ask(TransferObject *work)
{
    CUresult result;
    bool pushed;

    if (work->over) {
        return work->result;
    }
    if (!cudriver_context_begin_free(work->context, &pushed)) {
        return gone();
    }
    result = event_query(&work->event);
    cudriver_context_end(work->context, pushed);
    return result;
}

/* Lets the owners go, and the list's reference. After a failure the engine's threads may still use
 * host memory. May run any code. */
static void work_let_go(TransferObject *work)
{
    if (work->result != CUDA_SUCCESS && work->staged != NULL) {
        Py_BEGIN_ALLOW_THREADS
        cudriver_staging_wait(work->staged, work->result);
        Py_END_ALLOW_THREADS
    }
    Py_CLEAR(work->owners[0]);
    Py_CLEAR(work->owners[1]);
    Py_DECREF(work);
}

static bool is_end(CUresult result)
{
    return result != CUDA_ERROR_NOT_READY &&
           !(result == CUDA_ERROR_NOT_INITIALIZED && cudriver_driver_is_forked());
}

CUresult cudriver_work_poll(CoreState *state, TransferObject *work)
{
    CUresult result = work_ask(work);

    if (!work->over && is_end(result)) {
        list_remove(state, work);
        work->result = result;
        work_let_go(work);
    }
    return result;
}

int cudriver_work_wait(CoreState *state, TransferObject *work)
{
    bool pushed;
    int failed = 0;

    Py_INCREF(work);
    while (failed == 0 && cudriver_work_poll(state, work) == CUDA_ERROR_NOT_READY) {
        failed = cudriver_context_begin(state, work->context, &pushed);
        if (failed == 0) {
            failed = cudriver_wait(event_query, &work->event, "cuEventQuery");
            cudriver_context_end(work->context, pushed);
        }
    }
    Py_DECREF(work);
    return failed;
}

/* ---- issue ---- */

static CUresult stream_query(void *handle)
{
    return cuda.cuStreamQuery(*(CUstream *)handle);
}

/* Waits for work that no event could be recorded behind; its result, or INTERRUPTED with a signal
 * handler's exception. A capture that another thread has begun since would be broken, and is waited
 * for first. */
static CUresult wait_unmarked(CUstream stream, struct cudriver_staging_transfer *staged)
{
    CUresult result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

    while (cudriver_driver_is_capturing(result)) {
        if (!cudriver_capture_forbids(stream)) {
            PyThreadState *saved = PyEval_SaveThread();
            result = cudriver_staging_poll(stream_query, &stream, cudriver_signal_arrived, &saved);
            PyEval_RestoreThread(saved);
        }
        if (cudriver_driver_is_capturing(result)) {
            cudriver_nap(1);
            result = PyErr_CheckSignals() < 0 ? CUDRIVER_STAGING_INTERRUPTED : result;
        }
    }
    if (staged != NULL && result != CUDRIVER_STAGING_INTERRUPTED) {
        Py_BEGIN_ALLOW_THREADS
        cudriver_staging_wait(staged, result);
        Py_END_ALLOW_THREADS
    }
    return result;
}

PyObject *cudriver_work_add(CoreState *state, const struct cudriver_stream *stream, PyObject *first,
                            PyObject *second, size_t bytes,
                            struct cudriver_staging_transfer *staged)
{
    CUresult result;
    TransferObject *work = work_new(state, stream->context, &result);

    if (work != NULL && result == CUDA_SUCCESS) {
        result = cuda.cuEventRecord(work->event, stream->handle);
    }
    if (work == NULL || result != CUDA_SUCCESS) {
        result = wait_unmarked(stream->handle, staged);
        if (result == CUDRIVER_STAGING_INTERRUPTED) {
            /* The device may use them for as long as it likes: they are never let go. */
            Py_XINCREF(first);
            Py_XINCREF(second);
            staged = NULL;
        }
        if (work == NULL) {
            cudriver_staging_release(staged);
            return PyErr_Occurred() ? NULL : PyErr_NoMemory();
        }
        work->over = true;
        work->result = result;
    }
    work->staged = staged;
    work->bytes = bytes;
    if (PyErr_Occurred()) {
        Py_CLEAR(work);
    } else if (!work->over) {
        work->stream = stream_noted(stream);
        work->owners[0] = Py_XNewRef(first);
        work->owners[1] = Py_XNewRef(second);
        list_add(state, (TransferObject *)Py_NewRef((PyObject *)work));
        /* Not each time, so that the cost of issuing does not grow with what is in flight. */
        state->works.added += 1 + bytes / REAP_BYTES;
        if (state->works.added > state->works.remained + REAP_AFTER) {
            cudriver_works_reap(state);
        }
    }
    return (PyObject *)work;
}

/* ---- all work in flight ---- */

/*
 * Marks what has ended of a stream's work, from its oldest on. What is followed by work that ended
 * well has ended well too, so each question skips twice as much as the one before, until one is
 * answered otherwise. A failure is asked of each piece by itself.
 */
static void mark_ended(TransferObject *oldest)
{
    TransferObject *next = oldest; /* the first that is not marked */
    size_t step = 1;
    bool pushed, here = cudriver_context_begin_free(oldest->context, &pushed);

    while (next != NULL) {
        TransferObject *asked = next;
        CUresult result;

        for (size_t i = 1; i < step && asked->after != NULL; i++) {
            asked = asked->after;
        }
        result = here ? event_query(&asked->event) : gone();
        if (asked == next ? is_end(result) : result == CUDA_SUCCESS) {
            TransferObject *beyond = asked->after;
            for (; next != beyond; next = next->after) {
                next->ended = true;
                next->result = result;
            }
            step *= 2;
        } else if (asked == next) {
            break;
        } else {
            step = 1;
        }
    }
    if (here) {
        cudriver_context_end(oldest->context, pushed);
    }
}

void cudriver_works_reap(CoreState *state)
{
    TransferObject *work, *next, *ended = NULL, **last = &ended;

    for (work = state->works.first; work != NULL; work = work->next) {
        if (work->before == NULL) {
            mark_ended(work);
        }
    }
    for (work = state->works.first; work != NULL; work = next) {
        next = work->next;
        if (work->ended) {
            list_remove(state, work);
            *last = work;
            last = &work->next;
        }
    }
    state->works.added = 0;
    state->works.remained = state->works.in_flight;
    while ((work = ended) != NULL) { /* any code may run from here on */
        ended = work->next;
        work_let_go(work);
    }
}

/* Whether uses() is true for an owner of the work. */
static bool work_uses(CoreState *state, TransferObject *work, cudriver_uses *uses,
                      const void *memory)
{
    for (int i = 0; i < 2; i++) {
        PyObject **owner = &work->owners[i];
        Py_ssize_t count = *owner != NULL;
        if (count > 0 && PyTuple_CheckExact(*owner)) {
            count = PyTuple_GET_SIZE(*owner);
            owner = ((PyTupleObject *)*owner)->ob_item;
        }
        for (; count > 0; count--, owner++) {
            if (uses(state, *owner, memory)) {
                return true;
            }
        }
    }
    return false;
}

/* The first from `work` on of which uses() is true for an owner; NULL: none. */
static TransferObject *work_using(CoreState *state, TransferObject *work, cudriver_uses *uses,
                                  const void *memory)
{
    while (work != NULL && !work_uses(state, work, uses, memory)) {
        work = work->next;
    }
    return work;
}

static bool is_same(CoreState *Py_UNUSED(state), PyObject *owner, const void *object)
{
    return owner == object;
}

bool cudriver_works_hold(CoreState *state, const PyObject *object)
{
    return work_using(state, state->works.first, is_same, object) != NULL;
}

int cudriver_works_wait(CoreState *state, const ContextObject *context)
{
    unsigned long long newest = state->works.issued;
    TransferObject *work = state->works.first;
    int failed = 0;

    while (failed == 0 && work != NULL && work->serial <= newest) {
        if (work->context == context) {
            failed = cudriver_work_wait(state, work);
            work = state->works.first; /* the list may have changed */
        } else {
            work = work->next;
        }
    }
    return failed;
}

void cudriver_works_drain(CoreState *state)
{
    cudriver_works_reap(state);
    for (int round = 0; round < 5000 && state->works.first != NULL; round++) {
        cudriver_nap(1);
        cudriver_works_reap(state);
        if (cudriver_driver_is_forked()) {
            return;
        }
    }
}

int cudriver_works_await(CoreState *state, cudriver_uses *uses, const void *memory)
{
    TransferObject *work;

    if (state->works.first != NULL && cudriver_require() < 0) {
        return -1; /* in a forked child nothing completes */
    }
    while ((work = work_using(state, state->works.first, uses, memory)) != NULL) {
        if (cudriver_work_wait(state, work) < 0) {
            return -1;
        }
    }
    return 0;
}

int cudriver_works_follow(CoreState *state, cudriver_uses *uses, const void *memory,
                          ContextObject *context, CUstream stream)
{
    TransferObject *work;
    CUresult result = CUDA_SUCCESS;
    int captured;
    bool pushed;

    if (work_using(state, state->works.first, uses, memory) == NULL) {
        return 0;
    }
    cudriver_works_reap(state); /* ends those whose event went with its context */
    if (cudriver_require() < 0 || cudriver_context_begin(state, context, &pushed) < 0) {
        return -1;
    }
    captured = cudriver_capture_check(stream);
    work = work_using(state, state->works.first, uses, memory);
    if (captured > 0 && work != NULL) {
        cudriver_capture_raise(stream, "__dlpack__()",
                               "work in flight on the memory is outside the graph: wait for that "
                               "first");
        captured = -1;
    }
    if (captured < 0) {
        cudriver_context_end(context, pushed);
        return -1;
    }
    while (work != NULL && result == CUDA_SUCCESS) {
        /* Even on `stream`: its handle may have been another's. */
        result = cuda.cuStreamWaitEvent(stream, work->event, 0);
        work = work_using(state, work->next, uses, memory);
    }
    return cudriver_context_finish(context, pushed, result, "cuStreamWaitEvent",
                                   "the consumer's stream %p", (void *)stream);
}

void cudriver_works_trim(CoreState *state)
{
    cudriver_works_reap(state);
    for (ContextObject *context = state->contexts; context != NULL; context = context->next) {
        cudriver_works_forget(context);
    }
}

/* Work in flight, and its Python type, Transfer. See work.h. */
#include "work_private.h"

#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"
#include "docstrings.h"

/* What a piece of work weighs: one, and one more for each so many bytes that its owners may hold.
 */
#define BYTES_A_WEIGHT ((size_t)8 << 10)

/* ---- the queues ---- */

/* The queue for work on a stream. Another library may destroy its own at any time, and the default
 * stream per thread is another in each thread: the order of such work is not known. */
static struct cudriver_queue *queue_of(CoreState *state, const struct cudriver_stream *stream)
{
    if (stream->handle == CUDRIVER_STREAM_PER_THREAD) {
        return &state->works.loose;
    }
    if (stream->held != NULL) {
        return &stream->held->works;
    }
    return cudriver_stream_is_default(stream->handle) ? &stream->context->works
                                                      : &state->works.loose;
}

/* Adds work, with a reference that the queue takes. */
static void queue_add(CoreState *state, struct cudriver_queue *queue, TransferObject *work)
{
    if (queue->count++ == 0) {
        queue->prev = NULL;
        queue->next = state->works.queues;
        if (queue->next != NULL) {
            queue->next->prev = queue;
        }
        state->works.queues = queue;
    }
    work->queue = queue;
    work->prev = queue->last;
    work->next = NULL;
    *(work->prev != NULL ? &work->prev->next : &queue->first) = work;
    queue->last = work;
    for (int up = 0; up < 2; up++) {
        queue->big[up] += work->big[up];
        state->works.big += work->big[up];
    }
    work->owns = queue == &state->works.loose || queue == &work->context->works;
    if (work->owns) {
        Py_INCREF(work->context);
    }
}

TransferObject *cudriver_works_first(const CoreState *state)
{
    return state->works.queues != NULL ? state->works.queues->first : NULL;
}

TransferObject *cudriver_works_next(const TransferObject *work)
{
    if (work->next != NULL) {
        return work->next;
    }
    return work->queue->next != NULL ? work->queue->next->first : NULL;
}

void cudriver_works_end_stream(CoreState *state, StreamObject *stream)
{
    TransferObject *work;

    while ((work = stream->works.first) != NULL) {
        cudriver_work_unqueue(state, work);
        queue_add(state, &state->works.loose, work);
    }
    cudriver_works_forget(&stream->works, stream->context);
}

void cudriver_works_forget(struct cudriver_queue *queue, ContextObject *context)
{
    bool pushed;

    if (queue->spares > 0 && cudriver_context_begin_free(context, &pushed)) {
        for (int i = 0; i < queue->spares; i++) {
            cuda.cuEventDestroy_v2(queue->spare[i]);
        }
        cudriver_context_end(context, pushed);
    }
    queue->spares = 0;
}

/* ---- one piece of work ---- */

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

static void work_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);

    PyObject_ClearWeakRefs(object);
    cudriver_staging_release(((TransferObject *)object)->staged);
    type->tp_free(object);
    Py_DECREF(type);
}

/* The work's result, or NOT_READY. The caller holds a reference. May run any code. */
static CUresult work_poll(CoreState *state, TransferObject *work)
{
    CUresult result = cudriver_work_ask(work);

    if (!work->over && result != CUDA_ERROR_NOT_READY) {
        cudriver_work_leave(state, work, result);
        cudriver_work_let_go(work);
    }
    if (result == CUDA_SUCCESS && work->staged != NULL) {
        /* After a fault the engine lets the stream continue and reports the fault here. */
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_staging_wait(work->staged, CUDA_SUCCESS);
        Py_END_ALLOW_THREADS
    }
    return result;
}

int cudriver_work_wait(CoreState *state, TransferObject *work)
{
    int failed = 0;
    bool pushed;

    Py_INCREF(work);
    while (failed == 0 && work_poll(state, work) == CUDA_ERROR_NOT_READY) {
        ContextObject *context = (ContextObject *)Py_NewRef((PyObject *)work->context);
        failed = cudriver_context_ready(state, context);
        if (failed == 0 && cudriver_context_begin_free(context, &pushed)) {
            work->users.calls++;
            failed = cudriver_wait(cudriver_work_query, work, "cuEventQuery");
            if (--work->users.calls == 0 && work->over) {
                cuda.cuEventDestroy_v2(work->event);
                work->event = NULL;
            }
            cudriver_context_end(context, pushed);
        }
        Py_DECREF(context);
    }
    Py_DECREF(work);
    return failed;
}

/* ---- issue ---- */

/* NOT_READY too while it cannot be asked: another thread may have begun a capture since. */
static CUresult stream_query(void *handle)
{
    CUstream stream = *(CUstream *)handle;
    CUresult result =
        cudriver_capture_forbids(stream) ? CUDA_ERROR_NOT_READY : cuda.cuStreamQuery(stream);

    return cudriver_driver_is_capturing(result) ? CUDA_ERROR_NOT_READY : result;
}

/* Waits for work that no event could be recorded behind. 0, or -1 with an exception. */
static int wait_unmarked(CUstream stream, struct cudriver_staging_transfer *staged)
{
    int failed;

    cudriver_driver_relax();
    failed = cudriver_wait(stream_query, &stream, "cuStreamQuery");
    cudriver_driver_restore();
    if (failed == 0) {
        Py_BEGIN_ALLOW_THREADS
        cudriver_staging_wait(staged, CUDA_SUCCESS);
        Py_END_ALLOW_THREADS
    }
    return failed;
}

/* New reference: work that is about to be issued, queued. */
static TransferObject *issue_begin(CoreState *state, const struct cudriver_stream *stream,
                                   struct cudriver_queue *queue, PyObject *first, PyObject *second,
                                   size_t bytes, const size_t big[2])
{
    struct cudriver_queue *spares = queue == &state->works.loose ? &stream->context->works : queue;
    TransferObject *work =
        (TransferObject *)state->transfer_type->tp_alloc(state->transfer_type, 0);

    if (work == NULL) {
        return NULL;
    }
    work->bytes = bytes;
    work->big[0] = big[0];
    work->big[1] = big[1];
    work->context = stream->context;
    work->stream = stream->handle;
    work->owners[0] = Py_XNewRef(first);
    work->owners[1] = Py_XNewRef(second);
    if (spares->spares > 0) {
        work->event = spares->spare[--spares->spares];
    }
    if (queue->last != NULL && queue->last->stage == CUDRIVER_WORK_BEGUN) {
        queue = &state->works.loose; /* another thread issues work: which is first? */
    }
    queue_add(state, queue, (TransferObject *)Py_NewRef((PyObject *)work));
    /* Not each time, so that the cost of issuing does not grow with what is in flight. */
    queue->added += 1 + bytes / BYTES_A_WEIGHT;
    return work;
}

TransferObject *cudriver_work_begin(CoreState *state, const struct cudriver_stream *stream,
                                    PyObject *first, PyObject *second, size_t bytes,
                                    const size_t big[2])
{
    struct cudriver_queue *queue = queue_of(state, stream);

    cudriver_works_pass(state, queue);
    return cudriver_context_ready(state, stream->context) < 0
               ? NULL
               : issue_begin(state, stream, queue, first, second, bytes, big);
}

void cudriver_work_record(const struct cudriver_stream *stream, TransferObject *work)
{
    if (work->event == NULL) {
        cudriver_driver_relax();
        work->recorded = cuda.cuEventCreate(&work->event, CU_EVENT_DISABLE_TIMING);
        cudriver_driver_restore();
        if (work->recorded != CUDA_SUCCESS) {
            work->event = NULL;
            return;
        }
    }
    work->recorded = cuda.cuEventRecord(work->event, stream->handle);
}

void cudriver_work_cancel(CoreState *state, TransferObject *work)
{
    work->stage = CUDRIVER_WORK_CANCELLED;
    cudriver_work_leave(state, work, CUDA_SUCCESS);
    cudriver_work_let_go(work);
    Py_DECREF(work);
}

PyObject *cudriver_work_end(CoreState *state, const struct cudriver_stream *stream,
                            TransferObject *work, struct cudriver_staging_transfer *staged)
{
    work->staged = staged;
    if (work->recorded == CUDA_SUCCESS) {
        atomic_store_explicit(&work->stage, CUDRIVER_WORK_ISSUED, memory_order_release);
        return (PyObject *)work;
    }
    CUDRIVER_LOCK();
    if (wait_unmarked(stream->handle, staged) < 0) {
        /* The device may use them for as long as it likes: they are kept for ever. */
        Py_XINCREF(work->owners[0]);
        Py_XINCREF(work->owners[1]);
        work->staged = NULL;
    }
    Py_INCREF(work);
    cudriver_work_cancel(state, work);
    if (PyErr_Occurred()) {
        Py_CLEAR(work);
    }
    return (PyObject *)work;
}

PyObject *cudriver_work_add(CoreState *state, const struct cudriver_stream *stream, PyObject *first,
                            PyObject *second, size_t bytes, const size_t big[2],
                            struct cudriver_staging_transfer *staged)
{
    struct cudriver_queue *queue = queue_of(state, stream);
    TransferObject *work;

    cudriver_works_pass(state, queue);
    work = issue_begin(state, stream, queue, first, second, bytes, big);
    if (work == NULL) {
        PyErr_Clear();
        if (wait_unmarked(stream->handle, staged) == 0) {
            cudriver_staging_release(staged);
            return PyErr_NoMemory();
        }
        Py_XINCREF(first); /* kept for ever, as above */
        Py_XINCREF(second);
        return NULL;
    }
    cudriver_work_record(stream, work);
    return cudriver_work_end(state, stream, work, staged);
}

/* ---- the type ---- */

static PyObject *transfer_raise(TransferObject *self, CUresult result)
{
    return CUDRIVER_RAISE(result, "cuEventQuery", "after an asynchronous copy of %zu bytes",
                          self->bytes);
}

static PyObject *transfer_wait(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    TransferObject *self = (TransferObject *)object;
    CoreState *state = cudriver_state_of(object);
    CUresult result;

    if (cudriver_work_wait(state, self) < 0) {
        return NULL;
    }
    result = work_poll(state, self);
    if (result != CUDA_SUCCESS) {
        return transfer_raise(self, result);
    }
    cudriver_works_reap(state, NULL);
    Py_RETURN_NONE;
}

static PyObject *transfer_get_done(PyObject *object, void *Py_UNUSED(closure))
{
    CUDRIVER_LOCK();
    CUresult result = work_poll(cudriver_state_of(object), (TransferObject *)object);

    if (result == CUDA_ERROR_NOT_READY) { /* in a forked child it is never done */
        return cudriver_require() < 0 ? NULL : Py_NewRef(Py_False);
    }
    if (result != CUDA_SUCCESS) {
        return transfer_raise((TransferObject *)object, result);
    }
    Py_RETURN_TRUE;
}

static PyObject *transfer_repr(PyObject *object)
{
    return cudriver_call(CALL_waiting_text, object);
}

/* `await transfer`: a coroutine in Python does the polling. */
static PyObject *transfer_await(PyObject *object)
{
    return cudriver_call(CALL_waiting_wait, object);
}

static PyGetSetDef transfer_getset[] = {
    {"done", transfer_get_done, NULL, DOC_Transfer_done, NULL},
    {NULL},
};

static PyMemberDef transfer_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(TransferObject, weak), READONLY, NULL},
    {"nbytes", T_PYSSIZET, offsetof(TransferObject, bytes), READONLY, DOC_Transfer_nbytes},
    {NULL},
};

static PyMethodDef transfer_methods[] = {
    {"wait", transfer_wait, METH_NOARGS, DOC_Transfer_wait},
    {NULL},
};

static PyType_Slot transfer_slots[] = {
    {Py_tp_doc, DOC_Transfer},       {Py_tp_dealloc, work_dealloc},
    {Py_tp_repr, transfer_repr},     {Py_tp_methods, transfer_methods},
    {Py_tp_getset, transfer_getset}, {Py_tp_members, transfer_members},
    {Py_am_await, transfer_await},   {0, NULL},
};

PyType_Spec cudriver_transfer_spec = {
    .name = "cudriver.Transfer",
    .basicsize = sizeof(TransferObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = transfer_slots,
};

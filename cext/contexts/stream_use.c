/* `with stream:`, the stream that a call uses, and waiting for all. See stream.h. */
#include "stream.h"

#include <string.h>

#include "driver/driver.h"
#include "python/error.h"
#include "python/wait.h"

/* The value of the context variable state->stream_scope is a tuple of streams, the innermost last.
 * A context variable, so that tasks which take turns in a thread each see their own. */

/* New reference: the streams that are entered here, perhaps none. NULL with an exception set. */
static PyObject *scope_read(CoreState *state)
{
    PyObject *streams;

    if (PyContextVar_Get(state->stream_scope, NULL, &streams) < 0) {
        return NULL;
    }
    if (streams == NULL || !PyTuple_CheckExact(streams)) {
        Py_XSETREF(streams, PyTuple_New(0));
    }
    return streams;
}

/* Makes a scope of `count` streams that are those of `streams` from the first on, but for the one
 * at `without`, and `last` if that is not NULL. 0 or -1. */
static int scope_set(CoreState *state, PyObject *streams, Py_ssize_t without, PyObject *last)
{
    Py_ssize_t old = PyTuple_GET_SIZE(streams);
    Py_ssize_t count = 0;
    PyObject *changed = PyTuple_New(old - (without < old) + (last != NULL)), *token;

    if (changed == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < old; i++) {
        if (i != without) {
            PyTuple_SET_ITEM(changed, count++, Py_NewRef(PyTuple_GET_ITEM(streams, i)));
        }
    }
    if (last != NULL) {
        PyTuple_SET_ITEM(changed, count, Py_NewRef(last));
    }
    token = PyContextVar_Set(state->stream_scope, changed);
    Py_DECREF(changed);
    Py_XDECREF(token);
    return token == NULL ? -1 : 0;
}

StreamObject *cudriver_stream_entered(CoreState *state)
{
    PyObject *streams, *last = NULL;

    if (!state->stream_scope_used) { /* the usual case, without a look */
        return NULL;
    }
    streams = scope_read(state);
    if (streams == NULL) {
        PyErr_Clear();
        return NULL;
    }
    if (PyTuple_GET_SIZE(streams) > 0) {
        last = PyTuple_GET_ITEM(streams, PyTuple_GET_SIZE(streams) - 1);
    }
    Py_DECREF(streams); /* the context keeps them alive */
    return last != NULL && Py_IS_TYPE(last, state->stream_type) ? (StreamObject *)last : NULL;
}

int cudriver_stream_enter(CoreState *state, StreamObject *stream)
{
    PyObject *streams = scope_read(state);
    int failed;

    if (streams == NULL) {
        return -1;
    }
    failed = scope_set(state, streams, PyTuple_GET_SIZE(streams), (PyObject *)stream);
    state->stream_scope_used = true;
    Py_DECREF(streams);
    return failed;
}

int cudriver_stream_leave(CoreState *state, StreamObject *stream)
{
    PyObject *streams = scope_read(state);
    Py_ssize_t count, at;
    int failed = 0;

    if (streams == NULL) {
        return -1;
    }
    count = PyTuple_GET_SIZE(streams);
    at = count - 1;
    while (at >= 0 && PyTuple_GET_ITEM(streams, at) != (PyObject *)stream) {
        at--;
    }
    if (at >= 0) { /* leave it even if it is not the innermost: nothing else would */
        failed = scope_set(state, streams, at, NULL);
    }
    if (failed == 0 && (at < 0 || at < count - 1)) {
        PyErr_Format(PyExc_RuntimeError,
                     "with %R: left, but it is not the innermost `with stream:` of this thread or "
                     "task",
                     stream);
        failed = -1;
    }
    Py_DECREF(streams);
    return failed;
}

int cudriver_stream_read(CoreState *state, PyObject *argument, struct cudriver_stream *stream,
                         bool *given)
{
    StreamObject *object;
    int foreign;

    *stream = (struct cudriver_stream){.handle = NULL};
    if (argument == NULL || argument == Py_None) {
        argument = (PyObject *)cudriver_stream_entered(state);
    }
    *given = argument != NULL;
    if (argument == NULL) {
        return 0;
    }
    if (Py_IS_TYPE(argument, state->stream_type)) {
        object = (StreamObject *)argument;
        if (cudriver_stream_check(object) < 0) {
            return -1;
        }
        stream->handle = object->handle;
        stream->context = (ContextObject *)Py_NewRef((PyObject *)object->context);
        stream->held = object;
        cudriver_stream_hold(object);
        return 0;
    }
    foreign = cudriver_foreign_stream(argument, &stream->handle);
    if (foreign == 0) {
        PyErr_Format(PyExc_TypeError, "a stream is a Stream or None, not %.100s%s",
                     Py_TYPE(argument)->tp_name,
                     PyLong_Check(argument) ? " (Stream.from_handle takes a handle)" : "");
    }
    if (foreign > 0 && !cudriver_stream_is_default(stream->handle)) {
        stream->context = cudriver_foreign_stream_context(state, stream->handle);
        foreign = stream->context != NULL ? 1 : -1;
    }
    return foreign > 0 ? 0 : -1;
}

int cudriver_stream_settle(CoreState *state, ContextObject *fallback,
                           struct cudriver_stream *stream)
{
    if (stream->context == NULL) {
        stream->context = fallback != NULL ? (ContextObject *)Py_NewRef((PyObject *)fallback)
                                           : cudriver_context_for_use(state);
    }
    return stream->context != NULL ? 0 : -1;
}

int cudriver_stream_parse(CoreState *state, PyObject *argument, ContextObject *fallback,
                          struct cudriver_stream *stream, bool *given)
{
    if (cudriver_stream_read(state, argument, stream, given) < 0) {
        return -1;
    }
    return cudriver_stream_settle(state, fallback, stream);
}

int cudriver_capture_check(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = cuda.cuStreamIsCapturing(stream, &status);

    if (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (result != CUDA_SUCCESS) {
        cudriver_raise(result, "cuStreamIsCapturing", "stream %p", (void *)stream);
        return -1;
    }
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

void cudriver_capture_raise(CUstream stream, const char *call, const char *why)
{
    cudriver_raise_plain("CudaError",
                         "%s cannot be captured: stream %p is being captured into a graph, and %s "
                         "(nothing was done, and the capture goes on)",
                         call, (void *)stream, why);
}

int cudriver_capture_refuse(CUstream stream, const char *call)
{
    int captured = cudriver_capture_check(stream);

    if (captured > 0) {
        cudriver_capture_raise(stream, call,
                               "its work runs when the graph is launched: call it before or after "
                               "the capture, or on another stream, or queue the work with the "
                               "library that captures, which takes a DeviceArray by DLPack");
    }
    return captured == 0 ? 0 : -1;
}

bool cudriver_capture_forbids(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = cuda.cuStreamIsCapturing(stream, &status);

    return cudriver_driver_is_capturing(result) ||
           (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
}

int cudriver_stream_drain(CoreState *state, ContextObject *context, CUstream stream,
                          const char *call)
{
    bool pushed;
    int failed;

    if (cudriver_context_begin(state, context, &pushed) < 0) {
        return -1;
    }
    failed = call != NULL ? cudriver_capture_refuse(stream, call) : cudriver_capture_check(stream);
    if (failed == 0) {
        failed = cudriver_wait_stream(stream);
    }
    cudriver_context_end(context, pushed);
    return failed < 0 ? -1 : 0;
}

/* The Stream of ours in the context that an entry of the list of what is alive is. Borrowed; NULL:
 * it is something else. */
static StreamObject *stream_of_entry(struct cudriver_live *entry, const ContextObject *context)
{
    StreamObject *stream = (StreamObject *)((char *)entry - offsetof(StreamObject, live));

    return strcmp(entry->kind, "stream") == 0 && stream->context == context ? stream : NULL;
}

int cudriver_streams_wait(CoreState *state, ContextObject *context)
{
    /* Other threads may drop them meanwhile. */
    PyObject *busy = PyTuple_New(context->children);
    int failed = busy == NULL ? -1 : 0;
    Py_ssize_t count = 0;

    for (struct cudriver_live *entry = state->live.newest;
         entry != NULL && failed == 0 && count < PyTuple_GET_SIZE(busy); entry = entry->next) {
        StreamObject *stream = stream_of_entry(entry, context);
        if (stream != NULL && !cudriver_capture_forbids(stream->handle) &&
            cuda.cuStreamQuery(stream->handle) == CUDA_ERROR_NOT_READY &&
            cudriver_try_own((PyObject *)stream)) {
            PyTuple_SET_ITEM(busy, count++, (PyObject *)stream);
        }
    }
    for (Py_ssize_t i = 0; failed == 0 && i < count; i++) {
        StreamObject *stream = (StreamObject *)PyTuple_GET_ITEM(busy, i);
        if (!stream->closed) {
            stream->users++;
            failed = cudriver_stream_drain(state, context, stream->handle, NULL);
            stream->users--;
        }
    }
    Py_XDECREF(busy);
    return failed;
}

int cudriver_streams_refuse(CoreState *state, const ContextObject *context, const char *call)
{
    int failed = 0;

    for (struct cudriver_live *entry = state->live.newest; entry != NULL && failed == 0;
         entry = entry->next) {
        const StreamObject *stream = stream_of_entry(entry, context);
        if (stream != NULL) {
            failed = cudriver_capture_refuse(stream->handle, call);
        }
    }
    return failed;
}

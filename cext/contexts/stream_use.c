/* `with stream:`, the stream that a call uses, and waiting for all. See stream.h. */
#include "stream.h"

#include <string.h>

#include "driver/driver.h"
#include "python/error.h"
#include "python/wait.h"

StreamObject *cudriver_stream_entered(CoreState *state)
{
    PyObject *streams = NULL, *last = NULL;

    if (!state->stream_scope_used) { /* the usual case, without a look */
        return NULL;
    }
    if (PyContextVar_Get(state->stream_scope, NULL, &streams) < 0) {
        PyErr_Clear();
    }
    if (streams != NULL && PyTuple_CheckExact(streams) && PyTuple_GET_SIZE(streams) > 0) {
        last = PyTuple_GET_ITEM(streams, PyTuple_GET_SIZE(streams) - 1);
    }
    Py_XDECREF(streams); /* the context keeps them alive */
    return last != NULL && Py_IS_TYPE(last, state->stream_type) ? (StreamObject *)last : NULL;
}

int cudriver_stream_read(CoreState *state, PyObject *argument, struct cudriver_stream *stream)
{
    StreamObject *object;
    int foreign;

    *stream = (struct cudriver_stream){.handle = NULL};
    if (argument == NULL || argument == Py_None) {
        argument = (PyObject *)cudriver_stream_entered(state);
    }
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
        stream->held = (StreamObject *)Py_NewRef(argument);
        object->users++;
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
                          struct cudriver_stream *stream)
{
    return cudriver_stream_read(state, argument, stream) < 0
               ? -1
               : cudriver_stream_settle(state, fallback, stream);
}

CUresult cudriver_capture_ask(CUstream stream, bool *captured)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = cuda.cuStreamIsCapturing(stream, &status);

    *captured = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED
               ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
               : result;
}

void cudriver_capture_raise(CUstream stream, const char *call, const char *why)
{
    cudriver_raise_plain("CudaError",
                         "%s cannot be captured: stream %p is being captured into a graph, and %s "
                         "(nothing was done, and the capture goes on)",
                         call, (void *)stream, why);
}

int cudriver_capture_told(CUstream stream, CUresult result, bool captured, const char *call)
{
    if (cudriver_check(result, "cuStreamIsCapturing", "stream %p", (void *)stream) < 0) {
        return -1;
    }
    if (captured && call != NULL) {
        cudriver_capture_raise(stream, call,
                               "its work runs when the graph is launched: call it before or after "
                               "the capture, or on another stream, or queue the work with the "
                               "library that captures, which takes a DeviceArray by DLPack");
        return -1;
    }
    return captured;
}

int cudriver_capture_check(CUstream stream, const char *call)
{
    bool captured;
    CUresult result = cudriver_capture_ask(stream, &captured);

    return cudriver_capture_told(stream, result, captured, call);
}

bool cudriver_capture_forbids(CUstream stream)
{
    bool captured;

    return cudriver_driver_is_capturing(cudriver_capture_ask(stream, &captured)) || captured;
}

int cudriver_stream_drain(CoreState *state, ContextObject *context, CUstream stream,
                          const char *call)
{
    bool pushed;
    int failed;

    if (cudriver_context_begin(state, context, &pushed) < 0) {
        return -1;
    }
    failed = cudriver_capture_check(stream, call);
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

int cudriver_streams_wait(CoreState *state, ContextObject *context, const char *call)
{
    /* Other threads may drop them meanwhile. */
    PyObject *busy = PyTuple_New(context->children);
    int failed = busy == NULL ? -1 : 0;
    Py_ssize_t count = 0;

    for (struct cudriver_live *entry = state->live.newest;
         entry != NULL && failed == 0 && count < PyTuple_GET_SIZE(busy); entry = entry->next) {
        StreamObject *stream = stream_of_entry(entry, context);
        failed = stream != NULL ? cudriver_capture_check(stream->handle, call) : 0;
        if (stream != NULL && failed == 0 &&
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

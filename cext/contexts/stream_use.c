/* The stream that a call uses: named, of `with stream:`, or another library's; captures; waiting
 * for streams. See stream.h. */
#include "stream.h"

#include <string.h>

#include "driver/driver.h"
#include "engine/engine.h"
#include "python/call.h"
#include "python/error.h"

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

/* ---- streams of other libraries ---- */

/* Reads the handle of another library's stream. 0, or -1 with an exception. May run any code. */
static int foreign_read(PyObject *object, CUstream *handle)
{
    PyObject *value = PyObject_GetAttrString(object, "cuda_stream"); /* PyTorch's, at once */
    bool read = value != NULL && PyLong_CheckExact(value);

    if (read) {
        *handle = (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(value);
    }
    if (!read || PyErr_Occurred()) { /* another's, or no handle */
        PyErr_Clear();
        Py_XSETREF(value, cudriver_call(CALL_foreign_stream_handle, object));
        *handle = value != NULL ? (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(value) : NULL;
    }
    Py_XDECREF(value);
    return PyErr_Occurred() != NULL ? -1 : 0;
}

ContextObject *cudriver_stream_context(CoreState *state, CUstream handle)
{
    bool newer;
    CUcontext context = NULL;
    CUgreenCtx green;
    CUresult result;

    if (cudriver_require() < 0) {
        return NULL;
    }
    newer = cuda.cuStreamGetCtx_v2 != NULL;
    result = newer ? cuda.cuStreamGetCtx_v2(handle, &context, &green)
                   : cuda.cuStreamGetCtx(handle, &context);
    if (result != CUDA_SUCCESS) {
        return CUDRIVER_RAISE(result, newer ? "cuStreamGetCtx_v2" : "cuStreamGetCtx", "stream %p",
                              (void *)handle);
    }
    return cudriver_context_of_handle(state, context);
}

/* ---- the stream of a call ---- */

int cudriver_stream_read(CoreState *state, PyObject *argument, struct cudriver_stream *stream)
{
    StreamObject *object;

    *stream = (struct cudriver_stream){.handle = NULL};
    if (argument == NULL || argument == Py_None) {
        argument = (PyObject *)cudriver_stream_entered(state);
    }
    if (argument == NULL) {
        return 0;
    }
    if (Py_IS_TYPE(argument, state->stream_type)) {
        object = (StreamObject *)argument;
        if (cudriver_open_check(argument, object->closed) < 0) {
            return -1;
        }
        stream->handle = object->handle;
        stream->context = object->context;
        stream->held = (StreamObject *)Py_NewRef(argument);
        object->users.calls++;
        return 0;
    }
    if (foreign_read(argument, &stream->handle) < 0) {
        return -1;
    }
    if (!cudriver_stream_is_default(stream->handle)) {
        stream->context = cudriver_stream_context(state, stream->handle);
        return stream->context != NULL ? 0 : -1;
    }
    return 0;
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

int cudriver_capture_raise(CUstream stream, const char *call, const char *why)
{
    return cudriver_do(CALL_failures_captured, (unsigned long long)(uintptr_t)stream, call, why);
}

int cudriver_capture_told(CUstream stream, CUresult result, bool captured, const char *call)
{
    if (cudriver_check(result, "cuStreamIsCapturing", "stream %p", (void *)stream) < 0) {
        return -1;
    }
    return captured && call != NULL ? cudriver_capture_raise(stream, call, NULL) : captured;
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
        PyThreadState *saved = PyEval_SaveThread();
        CUresult result =
            cudriver_staging_stream_ask(stream, true, cudriver_signal_arrived, &saved);
        PyEval_RestoreThread(saved);
        failed = result == CUDRIVER_STAGING_INTERRUPTED
                     ? -1
                     : cudriver_check(result, "cuStreamQuery", "stream %p", (void *)stream);
    }
    cudriver_context_end(context, pushed);
    return failed < 0 ? -1 : 0;
}

int cudriver_streams_wait(CoreState *state, ContextObject *context, const char *call)
{
    /* Other threads may drop them meanwhile. */
    PyObject *busy = PyTuple_New(context->users.children);
    int failed = busy == NULL ? -1 : 0;
    Py_ssize_t count = 0;

    for (struct cudriver_live *entry = state->live.newest;
         entry != NULL && failed == 0 && count < PyTuple_GET_SIZE(busy); entry = entry->next) {
        StreamObject *stream = (StreamObject *)((char *)entry - offsetof(StreamObject, live));
        bool ours = strcmp(entry->kind, "stream") == 0 && stream->context == context;
        failed = ours ? cudriver_capture_check(stream->handle, call) : 0;
        if (ours && failed == 0 && cuda.cuStreamQuery(stream->handle) == CUDA_ERROR_NOT_READY &&
            cudriver_try_own((PyObject *)stream)) {
            PyTuple_SET_ITEM(busy, count++, (PyObject *)stream);
        }
    }
    for (Py_ssize_t i = 0; failed == 0 && i < count; i++) {
        StreamObject *stream = (StreamObject *)PyTuple_GET_ITEM(busy, i);
        if (!stream->closed) {
            stream->users.calls++;
            failed = cudriver_stream_drain(state, context, stream->handle, NULL);
            stream->users.calls--;
        }
    }
    Py_XDECREF(busy);
    return failed;
}

/* ---- Stream.from_handle() ---- */

PyObject *cudriver_stream_from_handle(PyObject *type, PyObject *argument)
{
    CUDRIVER_LOCK();
    PyTypeObject *stream_type = (PyTypeObject *)type;
    CoreState *state = (CoreState *)PyType_GetModuleState(stream_type);
    ContextObject *context;
    StreamObject *self;
    PyObject *number;
    CUstream handle;
    CUresult result;
    bool pushed, named;

    if (Py_IS_TYPE(argument, stream_type)) {
        return Py_NewRef(argument);
    }
    number = cudriver_call(CALL_foreign_handle_argument, argument, "stream");
    if (number == NULL) {
        return NULL;
    }
    handle = (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    named = !cudriver_stream_is_default(handle);
    context = named ? cudriver_stream_context(state, handle) : cudriver_context_for_use(state);
    if (context == NULL) {
        return NULL;
    }
    self = (StreamObject *)stream_type->tp_alloc(stream_type, 0);
    if (self == NULL) {
        Py_DECREF(context);
        return NULL;
    }
    self->context = context; /* takes the reference */
    self->handle = handle;
    self->owner = Py_NewRef(PyLong_Check(argument) ? Py_None : argument);
    if (named && cudriver_context_begin(state, context, &pushed) == 0) {
        result = cuda.cuStreamGetPriority(handle, &self->priority);
        cudriver_context_end(context, pushed);
        cudriver_check(result, "cuStreamGetPriority", "stream %p", (void *)handle);
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

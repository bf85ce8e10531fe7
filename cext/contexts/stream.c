/* Stream. See stream.h. */
#include "stream.h"

#include "work.h"
#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"
#include "docstrings.h"

static PyObject *stream_create(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    CUDRIVER_LOCK();
    static char *names[] = {"priority", "device", NULL};
    CoreState *state = (CoreState *)PyType_GetModuleState(type);
    PyObject *device = Py_None, *argument = NULL, *read;
    ContextObject *context;
    StreamObject *self;
    CUresult result;
    bool pushed, good;
    int priority;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O$O:Stream", names, &argument, &device)) {
        return cudriver_keywords_refused("Stream", keywords);
    }
    read = cudriver_call(CALL_streams_arguments,
                         argument != NULL ? Py_NewRef(argument) : PyLong_FromLong(0), device);
    good = read != NULL && PyArg_ParseTuple(read, "Oi", &context, &priority);
    self = good ? (StreamObject *)type->tp_alloc(type, 0) : NULL;
    if (self != NULL) {
        self->closed = true; /* nothing to destroy yet */
        self->context = (ContextObject *)Py_NewRef((PyObject *)context);
        self->priority = priority;
    }
    Py_XDECREF(read);
    if (self == NULL || cudriver_context_begin(state, context, &pushed) < 0) {
        Py_XDECREF(self);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cuda.cuStreamCreateWithPriority(&self->handle, CU_STREAM_NON_BLOCKING, priority);
    Py_END_ALLOW_THREADS
    cudriver_context_end(context, pushed);
    if (cudriver_check(result, "cuStreamCreateWithPriority", "priority %d", priority) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->closed = false;
    context->users.children++;
    cudriver_will_borrow((PyObject *)self);
    cudriver_live_add(state, &self->live, "stream", 0, (uintptr_t)self->handle, context->ordinal);
    return (PyObject *)self;
}

/* Whether the stream, one of ours, is being captured, as far as the driver tells. */
static bool stream_is_captured(StreamObject *self)
{
    bool pushed, captured = false;

    if (!self->closed && self->owner == NULL &&
        cudriver_context_begin_free(self->context, &pushed)) {
        captured = cudriver_capture_forbids(self->handle);
        cudriver_context_end(self->context, pushed);
    }
    return captured;
}

/* Shared by close() and dealloc. The stream's work continues and completes by itself. */
static CUresult stream_release(CoreState *state, StreamObject *self)
{
    bool pushed, captured = stream_is_captured(self);
    CUresult result = CUDA_SUCCESS;

    if (self->closed) {
        return CUDA_SUCCESS;
    }
    self->closed = true; /* first, because what follows may release the GIL */
    cudriver_works_end_stream(state, self);
    if (self->owner != NULL) {
        Py_SETREF(self->owner, Py_NewRef(Py_None));
        return CUDA_SUCCESS;
    }
    cudriver_live_remove(state, &self->live);
    /* To destroy it would break the capture: it is left to the end of its context. */
    if (!captured && cudriver_context_begin_free(self->context, &pushed)) {
        Py_BEGIN_ALLOW_THREADS
        result = cuda.cuStreamDestroy_v2(self->handle);
        Py_END_ALLOW_THREADS
        cudriver_context_end(self->context, pushed);
    }
    self->handle = NULL;
    self->context->users.children--;
    return result;
}

static void stream_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object); /* first: a wait for the lock lets the collector run */
    CUDRIVER_LOCK();
    StreamObject *self = (StreamObject *)object;
    CoreState *state = cudriver_state_of(object);
    PyTypeObject *type = Py_TYPE(object);

    PyObject_ClearWeakRefs(object);
    cudriver_report(state, stream_release(state, self), "cuStreamDestroy_v2");
    Py_XDECREF(self->owner);
    Py_XDECREF(self->context);
    type->tp_free(object);
    Py_DECREF(type);
}

/* Only another library's object can refer back to its stream. */
static int stream_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((StreamObject *)object)->owner);
    return 0;
}

static int stream_clear(PyObject *object)
{
    CUDRIVER_LOCK();
    StreamObject *self = (StreamObject *)object;

    if (self->owner != NULL) {
        stream_release(cudriver_state_of(object), self);
    }
    return 0;
}

static PyObject *stream_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    StreamObject *self = (StreamObject *)object;
    CUresult result;

    if (cudriver_users_check(object, "close", &self->users, 0, false) < 0) {
        return NULL;
    }
    if (stream_is_captured(self)) {
        cudriver_capture_raise(self->handle, "close()", "must live until the capture ends");
        return NULL;
    }
    result = stream_release(cudriver_state_of(object), self);
    return cudriver_none(cudriver_check(result, "cuStreamDestroy_v2", "%s", ""));
}

static PyObject *stream_repr(PyObject *object)
{
    CUDRIVER_LOCK();
    StreamObject *self = (StreamObject *)object;

    if (self->closed) {
        return PyUnicode_FromString("<Stream, closed>");
    }
    return PyUnicode_FromFormat("<Stream %p on device %d, priority %d%s>", self->handle,
                                self->context->ordinal, self->priority,
                                self->owner != NULL ? ", of another library" : "");
}

static PyObject *stream_synchronize(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    StreamObject *self = (StreamObject *)object;
    CoreState *state = cudriver_state_of(object);
    int failed;

    if (cudriver_open_check(object, self->closed) < 0) {
        return NULL;
    }
    self->users.calls++;
    failed = cudriver_stream_drain(state, self->context, self->handle, "synchronize()");
    self->users.calls--;
    if (failed < 0) {
        return NULL;
    }
    cudriver_works_reap(state, &self->works);
    Py_RETURN_NONE;
}

static PyObject *stream_get_done(PyObject *object, void *Py_UNUSED(closure))
{
    CUDRIVER_LOCK();
    StreamObject *self = (StreamObject *)object;
    CoreState *state = cudriver_state_of(object);
    CUresult result;
    bool pushed;

    if (cudriver_open_check(object, self->closed) < 0 ||
        cudriver_context_begin(state, self->context, &pushed) < 0) {
        return NULL;
    }
    if (cudriver_capture_check(self->handle, "done") < 0) {
        cudriver_context_end(self->context, pushed);
        return NULL;
    }
    result = cuda.cuStreamQuery(self->handle);
    cudriver_context_end(self->context, pushed);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
        return CUDRIVER_RAISE(result, "cuStreamQuery", "%s", "");
    }
    if (result == CUDA_SUCCESS) {
        cudriver_works_reap(state, &self->works);
    }
    return PyBool_FromLong(result == CUDA_SUCCESS);
}

static PyObject *stream_enter(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    if (cudriver_open_check(object, ((StreamObject *)object)->closed) < 0) {
        return NULL;
    }
    cudriver_state_of(object)->stream_scope_used = true;
    return cudriver_call(CALL_streams_enter, object);
}

static PyObject *stream_get_device(PyObject *object, void *Py_UNUSED(closure))
{
    return cudriver_call(CALL_devices_device_at, ((StreamObject *)object)->context->ordinal);
}

CUDRIVER_IN_PYTHON(stream_protocol, CALL_streams_protocol)
CUDRIVER_IN_PYTHON(stream_exit, CALL_streams_leave)
CUDRIVER_IN_PYTHON(stream_record, CALL_streams_record)
CUDRIVER_IN_PYTHON(stream_wait, CALL_streams_wait)

/* ---- the type ---- */

static PyGetSetDef stream_getset[] = {
    {"handle", cudriver_get_pointer, NULL, DOC_Stream_handle,
     (void *)offsetof(StreamObject, handle)},
    {"closed", cudriver_get_bool, NULL, DOC_Stream_closed, (void *)offsetof(StreamObject, closed)},
    {"done", stream_get_done, NULL, DOC_Stream_done, NULL},
    {"device", stream_get_device, NULL, DOC_Stream_device, NULL},
    {NULL},
};

static PyMethodDef stream_methods[] = {
    {"synchronize", stream_synchronize, METH_NOARGS, DOC_Stream_synchronize},
    {"record", CUDRIVER_FAST(stream_record), DOC_Stream_record},
    {"wait", CUDRIVER_FAST(stream_wait), DOC_Stream_wait},
    {"close", stream_close, METH_NOARGS, DOC_Stream_close},
    {"from_handle", cudriver_stream_from_handle, METH_O | METH_CLASS, DOC_Stream_from_handle},
    {"__cuda_stream__", CUDRIVER_FAST(stream_protocol), DOC_Stream___cuda_stream__},
    {"__enter__", stream_enter, METH_NOARGS, DOC_Stream___enter__},
    {"__exit__", CUDRIVER_FAST(stream_exit), DOC_Stream___exit__},
    {NULL},
};

static PyMemberDef stream_members[] = {
    {"priority", T_INT, offsetof(StreamObject, priority), READONLY, DOC_Stream_priority},
    {"context", T_OBJECT, offsetof(StreamObject, context), READONLY, DOC_Stream_context},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(StreamObject, weak), READONLY, NULL},
    {NULL},
};

static PyType_Slot stream_slots[] = {
    {Py_tp_doc, DOC_Stream},         {Py_tp_new, stream_create},
    {Py_tp_dealloc, stream_dealloc}, {Py_tp_traverse, stream_traverse},
    {Py_tp_clear, stream_clear},     {Py_tp_repr, stream_repr},
    {Py_tp_methods, stream_methods}, {Py_tp_getset, stream_getset},
    {Py_tp_members, stream_members}, {0, NULL},
};

PyType_Spec cudriver_stream_spec = {
    .name = "cudriver.Stream",
    .basicsize = sizeof(StreamObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = stream_slots,
};

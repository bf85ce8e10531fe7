/* Event. See event.h. */
#include "event.h"

#include "work.h"
#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"
#include "docstrings.h"

static PyObject *event_create(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    CUDRIVER_LOCK();
    static char *names[] = {"timing", "device", NULL};
    CoreState *state = (CoreState *)PyType_GetModuleState(type);
    struct cudriver_stream stream; /* the one that record() uses without an argument */
    ContextObject *context = NULL;
    PyObject *device = NULL;
    EventObject *self;
    CUresult result;
    int timing = 0;
    bool pushed;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|p$O:Event", names, &timing, &device)) {
        return cudriver_keywords_refused("Event", keywords);
    }
    if (device != NULL && device != Py_None) {
        context = cudriver_context_for_device(state, device);
    } else if (cudriver_stream_parse(state, NULL, NULL, &stream) == 0) {
        context = (ContextObject *)Py_NewRef((PyObject *)stream.context);
        cudriver_stream_done(&stream);
    }
    self = context != NULL ? (EventObject *)type->tp_alloc(type, 0) : NULL;
    if (self == NULL) {
        Py_XDECREF(context);
        return NULL;
    }
    self->closed = true; /* nothing to destroy yet */
    self->context = context;
    self->timing = timing != 0;
    if (cudriver_context_begin(state, context, &pushed) == 0) {
        result =
            cuda.cuEventCreate(&self->handle, timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
        cudriver_context_end(context, pushed);
        self->closed = cudriver_check(result, "cuEventCreate", "%s", timing ? "timing" : "") < 0;
    }
    if (self->closed) {
        Py_DECREF(self);
        return NULL;
    }
    context->users.children++;
    cudriver_live_add(state, &self->live, "event", 0, (uintptr_t)self->handle, context->ordinal);
    return (PyObject *)self;
}

static PyObject *event_from_handle(PyObject *type, PyObject *argument)
{
    CUDRIVER_LOCK();
    CoreState *state = (CoreState *)PyType_GetModuleState((PyTypeObject *)type);
    PyObject *number = cudriver_call(CALL_foreign_handle_argument, argument, "event");
    ContextObject *context = number != NULL ? cudriver_context_for_use(state) : NULL;
    EventObject *self =
        context != NULL ? (EventObject *)state->event_type->tp_alloc(state->event_type, 0) : NULL;

    if (self != NULL) {
        self->context = (ContextObject *)Py_NewRef((PyObject *)context);
        self->handle = PyLong_AsVoidPtr(number);
        self->owner = Py_NewRef(PyLong_Check(argument) ? Py_None : argument);
        self->timing = self->recorded = true; /* the driver knows whether it is so */
    }
    Py_XDECREF(number);
    Py_XDECREF(context);
    return (PyObject *)self;
}

/* ---- recorded, waited for by a stream ---- */

/* record() and wait(), which take a stream: that records the event or waits for it, during which
 * the event cannot be closed. 0 or -1. */
static int event_method(PyObject *object, PyObject *args, PyObject *keywords, bool record)
{
    static char *names[] = {"stream", NULL};
    CoreState *state = cudriver_state_of(object);
    EventObject *self = (EventObject *)object;
    struct cudriver_stream stream;
    PyObject *argument = NULL;
    CUresult result = CUDA_SUCCESS;
    int failed, captured;
    bool pushed;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, record ? "|O:record" : "|O:wait", names,
                                     &argument) ||
        cudriver_stream_parse(state, argument, self->context, &stream) < 0) {
        return -1;
    }
    /* Only now: reading another library's stream runs its code, which may close the event. */
    failed = cudriver_open_check(object, self->closed);
    if (failed == 0 && record && stream.context != self->context) {
        failed = cudriver_do(CALL_events_refuse_stream, object, stream.context);
    }
    if (failed == 0 && !record) {
        failed = cudriver_context_check(self->context);
    }
    if (failed < 0 || cudriver_context_begin(state, stream.context, &pushed) < 0) {
        cudriver_stream_done(&stream);
        return -1;
    }
    captured = cudriver_capture_check(stream.handle, NULL);
    if (captured > 0 && !record && !self->captured) {
        captured = cudriver_capture_raise(stream.handle, "wait()",
                                          "the event marks work outside the graph");
    }
    if (captured >= 0) {
        self->users.calls++;
        Py_BEGIN_ALLOW_THREADS
        result = record ? cuda.cuEventRecord(self->handle, stream.handle)
                        : cuda.cuStreamWaitEvent(stream.handle, self->handle, 0);
        Py_END_ALLOW_THREADS
        self->users.calls--;
    }
    if (record && captured >= 0 && result == CUDA_SUCCESS) {
        self->recorded = true;
        self->captured = captured > 0;
    }
    cudriver_context_end(stream.context, pushed);
    failed = cudriver_check(result, record ? "cuEventRecord" : "cuStreamWaitEvent", "event %p",
                            self->handle);
    cudriver_stream_done(&stream);
    return captured < 0 ? -1 : failed;
}

static PyObject *event_record(PyObject *object, PyObject *args, PyObject *keywords)
{
    CUDRIVER_LOCK();
    return event_method(object, args, keywords, true) < 0 ? NULL : Py_NewRef(object);
}

static PyObject *event_wait(PyObject *object, PyObject *args, PyObject *keywords)
{
    CUDRIVER_LOCK();
    return cudriver_none(event_method(object, args, keywords, false));
}

/* ---- the type ---- */

/* Shared by close() and dealloc. */
static CUresult event_release(CoreState *state, EventObject *self)
{
    CUresult result = CUDA_SUCCESS;
    bool pushed;

    if (self->closed) {
        return CUDA_SUCCESS;
    }
    self->closed = true;
    if (self->owner != NULL) {
        self->handle = NULL;
        return CUDA_SUCCESS;
    }
    cudriver_live_remove(state, &self->live);
    if (cudriver_context_begin_free(self->context, &pushed)) {
        result = cuda.cuEventDestroy_v2(self->handle);
        cudriver_context_end(self->context, pushed);
    }
    self->handle = NULL;
    self->context->users.children--;
    return result;
}

static void event_dealloc(PyObject *object)
{
    CUDRIVER_LOCK();
    EventObject *self = (EventObject *)object;
    CoreState *state = cudriver_state_of(object);
    PyTypeObject *type = Py_TYPE(object);

    PyObject_ClearWeakRefs(object);
    cudriver_report(state, event_release(state, self), "cuEventDestroy_v2");
    Py_XDECREF(self->context);
    Py_XDECREF(self->owner);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *event_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    EventObject *self = (EventObject *)object;
    CUresult result;

    if (cudriver_users_check(object, "close", &self->users, 0, false) < 0) {
        return NULL;
    }
    result = event_release(cudriver_state_of(object), self);
    return cudriver_none(cudriver_check(result, "cuEventDestroy_v2", "%s", ""));
}

static PyObject *event_repr(PyObject *object)
{
    CUDRIVER_LOCK();
    EventObject *self = (EventObject *)object;

    if (self->closed) {
        return PyUnicode_FromString("<Event, closed>");
    }
    return PyUnicode_FromFormat("<Event %p on device %d%s%s>", self->handle, self->context->ordinal,
                                self->timing ? ", timing" : "",
                                self->recorded ? "" : ", not recorded");
}

/* Opens what asks whether the event is over. 0, or -1 with an exception: it is closed, or marks a
 * point in a graph, or its context cannot be used. */
static int event_begin(CoreState *state, EventObject *self, bool *pushed)
{
    if (cudriver_open_check((PyObject *)self, self->closed) < 0) {
        return -1;
    }
    if (self->captured) {
        return cudriver_do(CALL_events_refuse_captured, self);
    }
    return cudriver_context_begin(state, self->context, pushed);
}

static CUresult event_query(void *handle)
{
    return cuda.cuEventQuery(*(CUevent *)handle);
}

static PyObject *event_synchronize(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    EventObject *self = (EventObject *)object;
    CoreState *state = cudriver_state_of(object);
    CUevent handle = self->handle;
    bool pushed;
    int failed;

    if (event_begin(state, self, &pushed) < 0) {
        return NULL;
    }
    self->users.calls++;
    failed = cudriver_wait(event_query, &handle, "cuEventQuery");
    self->users.calls--;
    cudriver_context_end(self->context, pushed);
    if (failed < 0) {
        return NULL;
    }
    cudriver_works_reap(state, NULL);
    Py_RETURN_NONE;
}

static PyObject *event_get_done(PyObject *object, void *Py_UNUSED(closure))
{
    CUDRIVER_LOCK();
    EventObject *self = (EventObject *)object;
    CUresult result;
    bool pushed;

    if (event_begin(cudriver_state_of(object), self, &pushed) < 0) {
        return NULL;
    }
    result = cuda.cuEventQuery(self->handle);
    cudriver_context_end(self->context, pushed);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
        return CUDRIVER_RAISE(result, "cuEventQuery", "%p", self->handle);
    }
    return PyBool_FromLong(result == CUDA_SUCCESS);
}

CUDRIVER_IN_PYTHON(event_elapsed, CALL_events_elapsed_time)

static PyGetSetDef event_getset[] = {
    {"handle", cudriver_get_pointer, NULL, DOC_Event_handle, (void *)offsetof(EventObject, handle)},
    {"closed", cudriver_get_bool, NULL, DOC_Event_closed, (void *)offsetof(EventObject, closed)},
    {"done", event_get_done, NULL, DOC_Event_done, NULL},
    {"_recorded", cudriver_get_bool, NULL, NULL, (void *)offsetof(EventObject, recorded)},
    {NULL},
};

static PyMethodDef event_methods[] = {
    {"record", (PyCFunction)(void (*)(void))event_record, METH_VARARGS | METH_KEYWORDS,
     DOC_Event_record},
    {"wait", (PyCFunction)(void (*)(void))event_wait, METH_VARARGS | METH_KEYWORDS, DOC_Event_wait},
    {"synchronize", event_synchronize, METH_NOARGS, DOC_Event_synchronize},
    {"elapsed_time", CUDRIVER_FAST(event_elapsed), DOC_Event_elapsed_time},
    {"close", event_close, METH_NOARGS, DOC_Event_close},
    {"from_handle", event_from_handle, METH_O | METH_CLASS, DOC_Event_from_handle},
    {NULL},
};

static PyMemberDef event_members[] = {
    {"timing", T_BOOL, offsetof(EventObject, timing), READONLY, DOC_Event_timing},
    {"context", T_OBJECT, offsetof(EventObject, context), READONLY, DOC_Event_context},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(EventObject, weak), READONLY, NULL},
    {NULL},
};

static PyType_Slot event_slots[] = {
    {Py_tp_doc, DOC_Event},         {Py_tp_new, event_create},
    {Py_tp_dealloc, event_dealloc}, {Py_tp_repr, event_repr},
    {Py_tp_methods, event_methods}, {Py_tp_getset, event_getset},
    {Py_tp_members, event_members}, {0, NULL},
};

PyType_Spec cudriver_event_spec = {
    .name = "cudriver.Event",
    .basicsize = sizeof(EventObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = event_slots,
};

/* The order of streams, and Stream.record and Stream.wait. See stream.h. */
#include "stream.h"

#include "driver/driver.h"
#include "event.h"
#include "python/error.h"

PyObject *cudriver_stream_record(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"event", NULL};
    CoreState *state = cudriver_state_of(object);
    StreamObject *self = (StreamObject *)object;
    PyObject *event = Py_None;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:record", names, &event) ||
        cudriver_stream_check(self) < 0) {
        return NULL;
    }
    event = event == Py_None ? cudriver_event_new(state, self->context, false) : Py_NewRef(event);
    if (event == NULL) {
        return NULL;
    }
    if (!Py_IS_TYPE(event, state->event_type)) {
        PyErr_Format(PyExc_TypeError, "an Event is recorded, not %.100s", Py_TYPE(event)->tp_name);
        Py_CLEAR(event);
    } else if (cudriver_event_record(state, event, object) < 0) {
        Py_CLEAR(event);
    }
    return event;
}

/* Lets our stream wait for the work so far of a stream, ours or another library's. 0 or -1. */
static int wait_for_stream(CoreState *state, StreamObject *self, PyObject *other)
{
    struct cudriver_stream first;
    PyObject *event;
    bool given;
    int failed = -1;

    if (cudriver_stream_parse(state, other, self->context, &first, &given) < 0) {
        return -1;
    }
    event = cudriver_event_new(state, first.context, false);
    if (event != NULL && cudriver_event_record_on(state, event, &first) == 0) {
        failed = cudriver_event_wait(state, event, (PyObject *)self);
    }
    Py_XDECREF(event);
    cudriver_stream_done(&first);
    return failed;
}

/* Lets our stream wait for another library's event. 1; 0 if `other` is none; -1. */
static int wait_for_foreign_event(CoreState *state, StreamObject *self, PyObject *other)
{
    CUevent event;
    CUresult result = CUDA_SUCCESS;
    bool pushed;
    int found = cudriver_foreign_event(other, &event);

    if (found <= 0) {
        return found;
    }
    /* Reading the event may have run code that closes the stream. */
    if (cudriver_stream_check(self) < 0 ||
        cudriver_context_begin(state, self->context, &pushed) < 0) {
        return -1;
    }
    if (event != NULL) {
        self->users++;
        Py_BEGIN_ALLOW_THREADS
        result = cuda.cuStreamWaitEvent(self->handle, event, 0);
        Py_END_ALLOW_THREADS
        self->users--;
    }
    return cudriver_context_finish(self->context, pushed, result, "cuStreamWaitEvent",
                                   "event %p of %.100s", (void *)event, Py_TYPE(other)->tp_name) < 0
               ? -1
               : 1;
}

PyObject *cudriver_stream_wait(PyObject *object, PyObject *other)
{
    CoreState *state = cudriver_state_of(object);
    StreamObject *self = (StreamObject *)object;
    CUstream handle;
    int found;

    if (cudriver_stream_check(self) < 0) {
        return NULL;
    }
    if (Py_IS_TYPE(other, state->event_type)) {
        return cudriver_event_wait(state, other, object) < 0 ? NULL : Py_NewRef(Py_None);
    }
    if (!Py_IS_TYPE(other, state->stream_type)) {
        found = wait_for_foreign_event(state, self, other);
        if (found != 0) {
            return found < 0 ? NULL : Py_NewRef(Py_None);
        }
        found = cudriver_foreign_stream(other, &handle);
        if (found == 0) {
            PyErr_Format(PyExc_TypeError, "a stream waits for an Event or a Stream, not %.100s%s",
                         Py_TYPE(other)->tp_name,
                         PyLong_Check(other) ? " (Stream.from_handle takes a handle)" : "");
        }
        if (found <= 0) {
            return NULL;
        }
    }
    return wait_for_stream(state, self, other) < 0 ? NULL : Py_NewRef(Py_None);
}

/* What a stream does with an event: records it, or waits for it. See event.h. */
#include "event.h"

#include "capture.h"
#include "driver/driver.h"

/* Reads a stream argument; the default stream is that of the event's context. 0 or -1. */
static int stream_for(CoreState *state, EventObject *self, PyObject *argument,
                      struct cudriver_stream *stream)
{
    bool given;

    if (cudriver_event_check(self) < 0 ||
        cudriver_stream_parse(state, argument, self->context, stream, &given) < 0) {
        return -1;
    }
    if (cudriver_event_check(self) < 0) { /* reading another library's stream runs its code */
        cudriver_stream_done(stream);
        return -1;
    }
    return 0;
}

/* Lets a stream record the event or wait for it, during which the event cannot be closed. 0 or -1.
 */
static int event_use(CoreState *state, EventObject *self, const struct cudriver_stream *stream,
                     bool record)
{
    CUresult result;
    bool pushed;
    int captured;

    if (cudriver_context_begin(state, stream->context, &pushed) < 0) {
        return -1;
    }
    captured = cudriver_capture_check(stream->handle);
    if (captured > 0 && !record && !self->captured) {
        cudriver_capture_raise(stream->handle, "wait()", "the event marks work outside the graph");
        captured = -1;
    }
    if (captured < 0) {
        cudriver_context_end(stream->context, pushed);
        return -1;
    }
    self->users++;
    Py_BEGIN_ALLOW_THREADS
    result = record ? cuda.cuEventRecord(self->handle, stream->handle)
                    : cuda.cuStreamWaitEvent(stream->handle, self->handle, 0);
    Py_END_ALLOW_THREADS
    self->users--;
    if (record && result == CUDA_SUCCESS) {
        self->recorded = true;
        self->captured = captured > 0;
    }
    return cudriver_context_finish(stream->context, pushed, result,
                                   record ? "cuEventRecord" : "cuStreamWaitEvent", "event %p",
                                   self->handle);
}

int cudriver_event_record_on(CoreState *state, PyObject *event,
                             const struct cudriver_stream *stream)
{
    EventObject *self = (EventObject *)event;

    if (stream->context != self->context) {
        PyErr_Format(PyExc_ValueError,
                     "%R belongs to %R, the stream to %R: record an event of the "
                     "stream's own context",
                     event, self->context, stream->context);
        return -1;
    }
    return event_use(state, self, stream, true);
}

int cudriver_event_record(CoreState *state, PyObject *event, PyObject *argument)
{
    struct cudriver_stream stream;
    int failed;

    if (stream_for(state, (EventObject *)event, argument, &stream) < 0) {
        return -1;
    }
    failed = cudriver_event_record_on(state, event, &stream);
    cudriver_stream_done(&stream);
    return failed;
}

int cudriver_event_wait(CoreState *state, PyObject *event, PyObject *argument)
{
    EventObject *self = (EventObject *)event;
    struct cudriver_stream stream;
    int failed = -1;

    if (stream_for(state, self, argument, &stream) < 0) {
        return -1;
    }
    if (cudriver_context_check(self->context) == 0) {
        failed = event_use(state, self, &stream, false);
    }
    cudriver_stream_done(&stream);
    return failed;
}

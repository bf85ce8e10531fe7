/* Stream: a queue of work on a device. */
#ifndef CUDRIVER_STREAM_H
#define CUDRIVER_STREAM_H

#include "context.h"

typedef struct StreamObject {
    PyObject_HEAD
    struct cudriver_live live;
    ContextObject *context; /* owned */
    PyObject *owner;        /* owned: whose stream it is (None: not known); NULL: ours */
    CUstream handle;        /* ours: owned while not closed */
    bool closed;
    struct cudriver_users users;
    int priority;
    struct cudriver_queue works; /* in flight on it */
    PyObject *weak;
} StreamObject;

/* The stream that a stream argument names, for the time of a call. */
struct cudriver_stream {
    CUstream handle;        /* NULL: the legacy default stream */
    ContextObject *context; /* that of `held`; where there is none, owned */
    StreamObject *held;     /* owned: the Stream that was named, which this call uses; or NULL */
};

/*
 * Reads a stream argument. A Stream is itself. None or NULL is the innermost `with stream:` of this
 * thread or task, else the default stream of `fallback` (NULL: of the current context). Another
 * library's stream is read by its attributes; its context is the one that the driver
 * names, or for a default stream's handle that of `fallback`. 0, or -1 with an exception set.
 * Release with cudriver_stream_done. This and the functions below are in stream_use.c.
 */
int cudriver_stream_parse(CoreState *state, PyObject *argument, ContextObject *fallback,
                          struct cudriver_stream *stream);

/* The same in two steps, where the fallback is not known at first: `read` leaves the context of a
 * default stream NULL, and `settle` fills it in. Release after `read`, also if `settle` fails. */
int cudriver_stream_read(CoreState *state, PyObject *argument, struct cudriver_stream *stream);
int cudriver_stream_settle(CoreState *state, ContextObject *fallback,
                           struct cudriver_stream *stream);

/* Needs no lock of ours. */
static inline void cudriver_stream_done(struct cudriver_stream *stream)
{
    if (stream->held != NULL) {
        stream->held->users.calls--;
        Py_CLEAR(stream->held);
        stream->context = NULL;
    }
    Py_CLEAR(stream->context);
}

/* New reference: the context of another library's stream, which is not a default stream. For a
 * green context's stream, the device's primary context: making a green context current takes it
 * from the thread that has it current. */
ContextObject *cudriver_stream_context(CoreState *state, CUstream handle);

/* Waits in `context` for what is queued on a stream of it by now. One that is being captured: if
 * `call` names a call, CudaError says that it cannot be captured; else nothing runs that could be
 * waited for. 0 or -1. */
int cudriver_stream_drain(CoreState *state, ContextObject *context, CUstream stream,
                          const char *call);

/* Waits for what is queued by now on our streams of a context, by other libraries, too. Before, if
 * one of them is being captured: CudaError, whose message says that `call` cannot be. 0, or -1 with
 * an exception set. Between begin and end. */
int cudriver_streams_wait(CoreState *state, ContextObject *context, const char *call);

/*
 * What is queued on a stream that is being captured becomes a node of a graph and runs whenever
 * that is launched. To wait for the stream, or to ask how far it is, breaks the capture, so each
 * call that would do so asks here first.
 */

/* Whether the stream is being captured: 1 or 0; -1 with CudaError if its capture is broken already,
 * or if the stream is the default one and waits for another that is being captured. Unless `call`
 * is NULL, -1 also if it is captured: the message says that `call` cannot be. Between begin and end
 * of the stream's context. */
int cudriver_capture_check(CUstream stream, const char *call);

/* The same in two steps, of which the first needs no GIL. */
CUresult cudriver_capture_ask(CUstream stream, bool *captured);
int cudriver_capture_told(CUstream stream, CUresult result, bool captured, const char *call);

/* Raises that error with a reason: a clause that says why; NULL: the usual one. -1. */
int cudriver_capture_raise(CUstream stream, const char *call, const char *why);

/* Whether asking about the stream's work, or queueing an event behind it, would spoil a capture.
 * Raises nothing. Between begin and end of the stream's context. */
bool cudriver_capture_forbids(CUstream stream);

/* The innermost `with stream:` of this thread or task. Borrowed, or NULL. Never raises. */
StreamObject *cudriver_stream_entered(CoreState *state);

extern PyType_Spec cudriver_stream_spec;

/* Stream.from_handle, a class method. */
PyObject *cudriver_stream_from_handle(PyObject *type, PyObject *argument);

#endif

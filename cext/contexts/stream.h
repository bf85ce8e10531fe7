/* Stream: a queue of work on a device. */
#ifndef CUDRIVER_STREAM_H
#define CUDRIVER_STREAM_H

#include "context.h"

typedef struct StreamObject {
    PyObject_HEAD
    struct cudriver_live live;
    ContextObject *context; /* owned */
    CUstream handle;        /* owned while not closed */
    bool closed;
    Py_ssize_t users; /* calls that use the handle, perhaps without the GIL */
    int priority;
    unsigned long long allocated; /* allocations made so far in its order */
    unsigned long long settled;   /* how many of these are known to be complete */
    struct cudriver_batch *open;  /* borrowed: the open batch, which new work joins */
    PyObject *weak;
} StreamObject;

/* 0, or -1 with ValueError if the stream is closed. */
static inline int cudriver_stream_check(StreamObject *self)
{
    if (self->closed) {
        PyErr_Format(PyExc_ValueError, "%R is closed", self);
        return -1;
    }
    return 0;
}

/* The stream that a stream argument names, for the time of a call. */
struct cudriver_stream {
    CUstream handle;      /* NULL: the legacy default stream */
    StreamObject *object; /* owned, cannot be closed meanwhile; NULL for other libraries' streams */
    ContextObject *context; /* owned: release with cudriver_stream_done */
};

/*
 * Reads a stream argument. A Stream is itself. None or NULL is this thread's innermost `with
 * stream:`, else the default stream of `fallback` (NULL: of the current context). Another library's
 * stream is read through `cuda_stream` or `__cuda_stream__`; its context is the one that the driver
 * names, or for a default stream's handle that of `fallback`. *given: whether a stream was named or
 * a `with stream:` entered. 0, or -1 with an exception set. Release with cudriver_stream_done. In
 * context_use.c.
 */
int cudriver_stream_parse(CoreState *state, PyObject *argument, ContextObject *fallback,
                          struct cudriver_stream *stream, bool *given);

static inline void cudriver_stream_done(struct cudriver_stream *stream)
{
    if (stream->object != NULL) {
        stream->object->users--;
        Py_CLEAR(stream->object);
    }
    Py_CLEAR(stream->context);
}

int cudriver_stream_setup(PyObject *module);

#endif

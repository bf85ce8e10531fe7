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
    Py_ssize_t users; /* running calls that use the handle, perhaps without the GIL */
    int priority;
    unsigned long long allocated; /* allocations so far in its order */
    unsigned long long settled;   /* how many of these are known to be over */
    struct cudriver_batch *open;  /* borrowed: the batch that new work joins */
    PyObject *weak;
} StreamObject;

/* 0, or -1 with ValueError where it is closed. */
static inline int cudriver_stream_check(StreamObject *self)
{
    if (self->closed) {
        PyErr_Format(PyExc_ValueError, "%R is closed", self);
        return -1;
    }
    return 0;
}

/* What a stream argument stands for, while a call runs. */
struct cudriver_stream {
    CUstream handle;        /* NULL: the legacy default stream */
    StreamObject *object;   /* owned, and in use: it cannot be closed; NULL for others' streams */
    ContextObject *context; /* owned: release with cudriver_stream_done */
};

/*
 * Reads a stream argument: a Stream; None or NULL for this thread's innermost `with stream:`, else
 * the default stream of `fallback` (or of the current context where that is NULL); or another
 * library's stream by its `__cuda_stream__` or `cuda_stream`, of the context that the driver names
 * (a default stream's handle: of the one above). *given tells whether there was any but the
 * default. 0, or -1 with an exception set. Ends with cudriver_stream_done. In context_use.c.
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

/* Waits for the work that is queued on a stream, within begin and end of a context: other threads
 * run, and signals interrupt it. 0, or -1 with an exception set. */
int cudriver_stream_wait(CoreState *state, CUstream handle);

int cudriver_stream_setup(PyObject *module);

#endif

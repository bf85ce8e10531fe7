/*
 * What cudriver keeps for one thread: the contexts that it pushed here and the streams of its
 * `with stream:` blocks. It lives in the thread's state dictionary and goes with the thread.
 */
#ifndef CUDRIVER_THREAD_H
#define CUDRIVER_THREAD_H

#include "context.h"

struct StreamObject;

typedef struct ThreadObject {
    PyObject_HEAD
    unsigned long id; /* as the system numbers threads */
    Py_ssize_t context_count, context_room;
    ContextObject **contexts; /* owned references, bottom first */
    Py_ssize_t stream_count, stream_room;
    struct StreamObject **streams; /* owned references, innermost last */
} ThreadObject;

/* This thread's record, made at its first use. Borrowed; NULL with an exception set. */
ThreadObject *cudriver_thread_get(CoreState *state);

/* This thread's record where there is one already; NULL without an exception otherwise. Borrowed.
 */
ThreadObject *cudriver_thread_find(CoreState *state);

/* Notes that this thread pushed `context`. 0 or -1. */
int cudriver_thread_push(CoreState *state, ContextObject *context);

/* Takes the topmost note of a context off this thread's record. By handle: a primary context that
 * was reset and retained anew has another object, and the same handle. */
void cudriver_thread_pop(CoreState *state, CUcontext handle);

/* What this thread has pushed with this handle, the topmost; borrowed, or NULL. */
ContextObject *cudriver_thread_pushed(CoreState *state, CUcontext handle);

/* Compares the record with the driver's own stack of `count` handles (bottom first) and drops notes
 * of contexts that another library has popped since. */
void cudriver_thread_reconcile(CoreState *state, const CUcontext *stack, Py_ssize_t count);

/* The innermost `with stream:` of this thread, borrowed, or NULL. Never raises. */
struct StreamObject *cudriver_thread_stream(CoreState *state);

/* Enters and leaves a `with stream:`. 0 or -1; leaving another than the innermost raises. */
int cudriver_thread_enter_stream(CoreState *state, struct StreamObject *stream);
int cudriver_thread_leave_stream(CoreState *state, struct StreamObject *stream);

int cudriver_thread_setup(PyObject *module);

#endif

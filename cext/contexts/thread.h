/* A thread's record: the contexts that cudriver pushed on it. It lives in the thread's state
 * dictionary and goes with the thread. */
#ifndef CUDRIVER_THREAD_H
#define CUDRIVER_THREAD_H

#include "context.h"

typedef struct ThreadObject {
    PyObject_HEAD
    unsigned long id; /* the system's number of the thread */
    Py_ssize_t context_count, context_room;
    ContextObject **contexts; /* owned references, bottom first */
} ThreadObject;

/* This thread's record if there is one, else NULL without an exception. Borrowed. */
ThreadObject *cudriver_thread_find(CoreState *state);

/* Records that this thread pushed `context`. 0 or -1. */
int cudriver_thread_push(CoreState *state, ContextObject *context);

/* Removes the topmost entry with this handle. By handle, because a primary context that was reset
 * and retained again has a new object but the same handle. */
void cudriver_thread_pop(CoreState *state, CUcontext handle);

/* The topmost context with this handle that this thread pushed. Borrowed, or NULL. */
ContextObject *cudriver_thread_pushed(CoreState *state, CUcontext handle);

/* Compares the record with the driver's stack of `count` handles, and drops entries that another
 * library has popped. */
void cudriver_thread_reconcile(CoreState *state, const CUcontext *stack, Py_ssize_t count);

int cudriver_thread_setup(PyObject *module);

#endif

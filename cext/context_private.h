/* Between context.c and context_type.c. */
#ifndef CUDRIVER_CONTEXT_PRIVATE_H
#define CUDRIVER_CONTEXT_PRIVATE_H

#include "context.h"

/* A new manual context on no thread's stack. New reference. The driver is initialised. */
ContextObject *cudriver_context_create(CoreState *state, int ordinal, unsigned long flags);

/* This thread's current context: new reference in *found, or NULL where there is none (or with an
 * exception set). Returns the driver's code for a current context that is destroyed. */
CUresult cudriver_context_find_current(CoreState *state, ContextObject **found);

/* Walks this thread's stack as the driver has it, leaving it as it was, and corrects our notes by
 * it. Appends a Context for each, bottom first, to `list` unless that is NULL. 0 or -1. */
int cudriver_context_walk_stack(CoreState *state, PyObject *list);

/* Closes: refused where it is on a stack or holds something. 0 or -1. */
int cudriver_context_close(CoreState *state, ContextObject *self);

void cudriver_context_dealloc(PyObject *object);

#endif

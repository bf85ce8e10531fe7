/* Between context.c, context_use.c and context_type.c. */
#ifndef CUDRIVER_CONTEXT_PRIVATE_H
#define CUDRIVER_CONTEXT_PRIVATE_H

#include "context.h"

/* A new object in the registry; it does not own the handle until `kind` says so. */
ContextObject *cudriver_context_new(CoreState *state, CUcontext handle, int ordinal,
                                    CUdevice device, enum cudriver_context_kind kind);

/* The open object for a handle, borrowed, or NULL. */
ContextObject *cudriver_context_registered(CoreState *state, CUcontext handle);

/* A new manual context on no thread's stack. New reference. The driver is initialised. */
ContextObject *cudriver_context_create(CoreState *state, int ordinal, unsigned long flags);

/* The object is the package's no more, if it was. The caller holds another reference. */
void cudriver_context_unkeep(ContextObject *self);

/* No more use is made of the handle: the driver may forget it. */
void cudriver_context_let_go(ContextObject *self);

/* Makes it current where it is not. *pushed says whether that is to be popped: never after a
 * failure. */
CUresult cudriver_context_make_current(ContextObject *self, bool *pushed);

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

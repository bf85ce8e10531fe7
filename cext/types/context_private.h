/* Shared by context.c, context_use.c and context_type.c. */
#ifndef CUDRIVER_CONTEXT_PRIVATE_H
#define CUDRIVER_CONTEXT_PRIVATE_H

#include "context.h"

/* New reference: an object in the registry, which owns the handle as its `kind` says. */
ContextObject *cudriver_context_new(CoreState *state, CUcontext handle, int ordinal,
                                    CUdevice device, enum cudriver_context_kind kind);

/* The open object for a handle. Borrowed, or NULL. */
ContextObject *cudriver_context_registered(CoreState *state, CUcontext handle);

/* A new manual context on no thread's stack. The driver is initialised. New reference. */
ContextObject *cudriver_context_create(CoreState *state, int ordinal, unsigned long flags);

/* Drops the package's own reference, if it holds one. The caller holds another. */
void cudriver_context_unkeep(ContextObject *self);

/* Ends the keeper. The handle must not be used afterwards. */
void cudriver_context_let_go(ContextObject *self);

/* Makes the context current if it is not. *pushed: the caller must pop it (false on failure). */
CUresult cudriver_context_make_current(ContextObject *self, bool *pushed);

/* *found: this thread's current context, a new reference; NULL if there is none or with an
 * exception set. Returns the driver's code if the current context was destroyed. */
CUresult cudriver_context_find_current(CoreState *state, ContextObject **found);

/* Walks this thread's driver stack, restores it, and corrects our record of it. Adds a Context for
 * each entry to `list`, bottom first, unless `list` is NULL. 0 or -1. */
int cudriver_context_walk_stack(CoreState *state, PyObject *list);

/* Closes the context; refuses if it is on a stack or has children. 0 or -1. */
int cudriver_context_close(CoreState *state, ContextObject *self);

void cudriver_context_dealloc(PyObject *object);

#endif

/* Shared by the context*.c files. */
#ifndef CUDRIVER_CONTEXT_PRIVATE_H
#define CUDRIVER_CONTEXT_PRIVATE_H

#include "context.h"

#include "driver/driver.h"

/* New reference: an object in the registry, which owns the handle as its `kind` says. */
ContextObject *cudriver_context_new(CoreState *state, CUcontext handle, int ordinal,
                                    CUdevice device, enum cudriver_context_kind kind);

/* The open object for a handle. New reference, or NULL. */
ContextObject *cudriver_context_registered(CoreState *state, CUcontext handle);

/* The object of a device's primary context, unless it is closed. New reference, or NULL. */
ContextObject *cudriver_context_find_primary(CoreState *state, int ordinal);

/* The driver's handle for an ordinal. 0, or -1 with an exception set. Initialises the driver. */
int cudriver_device_handle(int ordinal, CUdevice *handle);

/* A new manual context on no thread's stack. The driver is initialised. New reference. */
ContextObject *cudriver_context_create(CoreState *state, int ordinal, unsigned long flags);

/* The package holds a reference from here on, and returns the argument (NULL: NULL). Otherwise the
 * context would go with its last array, and finding or making it again for the next one takes up to
 * 0.1 s. */
ContextObject *cudriver_context_keep(ContextObject *self);

/* Drops the package's own reference, if it holds one. It may be the last. */
void cudriver_context_unkeep(ContextObject *self);

/* *found: this thread's current context, a new reference; NULL if there is none or with an
 * exception set. Returns the driver's code if the current context was destroyed. */
CUresult cudriver_context_find_current(CoreState *state, ContextObject **found);

/* New reference: the list of what this thread has pushed, which ends with its Python state; made by
 * memory/stack.py. */
PyObject *cudriver_context_pushed_here(const CoreState *state);

/* New reference: the number of a thread that has pushed the context; 0: none has. NULL with an
 * exception set. Corrects what was noted: another library may have popped it. */
PyObject *cudriver_context_holder(CoreState *state, ContextObject *self);

/* Methods of Context. */
PyObject *cudriver_context_push(PyObject *object, PyObject *ignored);
PyObject *cudriver_context_pop(PyObject *object, PyObject *ignored);
PyObject *cudriver_context_method_enter(PyObject *object, PyObject *ignored);

#endif

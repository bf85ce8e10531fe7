/*
 * What is alive: every object that holds something of the driver's or a page lock is in one list,
 * under the GIL. live_allocations() reads it.
 */
#ifndef CUDRIVER_LIVE_H
#define CUDRIVER_LIVE_H

#include "state.h"

/* Lists `entry`; with tracing on, it notes the line of Python that is running. `kind` is a literal.
 */
void cudriver_live_add(CoreState *state, struct cudriver_live *entry, const char *kind,
                       size_t bytes, unsigned long long address, int device);

/* Takes `entry` out; harmless where it is not listed. */
void cudriver_live_remove(CoreState *state, struct cudriver_live *entry);

/* New reference: what is listed, as live_allocations() answers it. */
PyObject *cudriver_live_list(CoreState *state);

/* Writes what is alive to sys.stderr, a line each and a sum; nothing where nothing is. Leaves out
 * the contexts that cudriver keeps unasked. For the interpreter's exit. Never raises. */
void cudriver_live_report(CoreState *state);

/* The type Allocation, and the module function trace_allocations. 0 or -1. */
int cudriver_live_setup(PyObject *module);

#endif

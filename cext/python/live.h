/* The list of what is alive: every object that owns a driver object or a page lock. Guarded by the
 * GIL, or the lock. live_allocations(), in Python, reads it. */
#ifndef CUDRIVER_LIVE_H
#define CUDRIVER_LIVE_H

#include "state.h"

/* Adds `entry`; with tracing on, also the running line of Python. `kind` is a string literal. */
void cudriver_live_add(CoreState *state, struct cudriver_live *entry, const char *kind,
                       size_t bytes, unsigned long long address, int device);

/* Removes `entry`; harmless if it is not listed. */
void cudriver_live_remove(CoreState *state, struct cudriver_live *entry);

/* New reference: of each entry, newest first, (the fields of Allocation, kept), for memory/live.py.
 */
PyObject *cudriver_live_list(CoreState *state);

#endif

/* Transfer: an asynchronous copy, as a view of the work that it is. */
#ifndef CUDRIVER_TRANSFER_H
#define CUDRIVER_TRANSFER_H

#include "work.h"

/* New reference: a Transfer of `bytes`, which is `work`, whose reference it takes even on failure.
 * `staged` is the engine's transfer, owned by the work, or NULL. */
PyObject *cudriver_transfer_new(CoreState *state, struct cudriver_work *work,
                                struct cudriver_staging_transfer *staged, size_t bytes);

/* New reference: a Transfer that is complete (an empty copy, or one that had to block). */
PyObject *cudriver_transfer_done(CoreState *state, size_t bytes);

int cudriver_transfer_setup(PyObject *module);

/* Frees the Transfers kept for reuse. For the module's end. */
void cudriver_transfer_free_spares(CoreState *state);

#endif

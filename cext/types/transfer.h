/* Transfer: an asynchronous copy that was issued, as a view of the batch that it belongs to. */
#ifndef CUDRIVER_TRANSFER_H
#define CUDRIVER_TRANSFER_H

#include "batch.h"

/* New reference: a Transfer of `bytes` over `batch`, which it takes (also where it fails); `staged`
 * is the batch's handle for the engine's copy, or NULL. */
PyObject *cudriver_transfer_new(CoreState *state, struct cudriver_batch *batch,
                                struct cudriver_staging_transfer *staged, size_t bytes);

/* A Transfer that is over already (an empty copy, or one that had to block). New reference. */
PyObject *cudriver_transfer_done(CoreState *state, size_t bytes);

int cudriver_transfer_setup(PyObject *module);

/* Frees what is kept for the next copies. For the module's end. */
void cudriver_transfer_free_spares(CoreState *state);

#endif

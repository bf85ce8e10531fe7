/* What copy_batch.c does for copy_many(), and for copy_rows.c. */
#ifndef CUDRIVER_COPY_BATCH_H
#define CUDRIVER_COPY_BATCH_H

#include "copy_private.h"

/* Many copies that become one piece of work. */
struct copy_batch {
    CoreState *state;
    bool explain; /* only tells how it would be done */
    struct cudriver_stream stream;
    ContextObject *home; /* owned: the first device end's; NULL: none yet */
    size_t bytes;
    struct cudriver_run *runs; /* owned */
    size_t count;
    struct copy_ends **odd; /* owned, as what they point to */
    size_t odds;
    PyObject *spans; /* owned: bytes; of each pair the first byte of the destination, the one behind
                        its last, and the same of the source, as uint64; all 0: nothing to copy */
    PyObject *owners;  /* owned: a list, which becomes a tuple; the last is the table, or None */
    Py_ssize_t **busy; /* owned: the device ends' counts of running calls, which include this one */
    size_t busies;
};

/* Makes room for so many pairs and runs. 0 or -1. */
int copy_batch_begin(struct copy_batch *batch, Py_ssize_t pairs, Py_ssize_t runs);
void copy_batch_end(struct copy_batch *batch);

/* Finds out where the batch runs, and checks that the copy is there. 0 or -1. */
int copy_batch_place(struct copy_batch *batch, const struct copy_ends *ends);

/* Whether a copy of matching ends is a run. *bytes: of their items. */
bool copy_batch_takes(const struct copy_batch *batch, const struct copy_ends *ends, size_t *bytes);

/* Fills in a run between such ends, except its addresses. 0 or -1. */
int copy_batch_run(struct copy_batch *batch, const struct copy_ends *ends, size_t bytes,
                   struct cudriver_run *run);

/* Issues a batch that is complete, or explains it. New reference: its Transfer, or a list. */
PyObject *copy_batch_issue(struct copy_batch *batch);

/* The first byte of an end, and the one behind its last. */
void copy_end_span(const struct cudriver_endpoint *end, uint64_t *span);

/* The address of an end's first item. */
uint64_t copy_end_address(const struct cudriver_endpoint *end);

#endif

/* What copy_ends.c does for copy.c, and both for copy_batch.c and copy_rows.c. */
#ifndef CUDRIVER_COPY_PRIVATE_H
#define CUDRIVER_COPY_PRIVATE_H

#include "copy.h"

/* Both ends of a copy. */
struct copy_ends {
    struct cudriver_endpoint dst, src;
    ContextObject *home; /* borrowed: whose stream a copy uses by default; NULL: host to host. Set
                            by its plan */
};

/* The end of a capsule with a slot of the page-locked pool. */
void copy_slot_free(PyObject *capsule);

/* Reads both ends. `on`: the stream of an asynchronous copy, else NULL. 0 or -1. */
int copy_ends_read(CoreState *state, PyObject *dst, PyObject *src, const struct cudriver_stream *on,
                   struct copy_ends *ends);
void copy_ends_done(struct copy_ends *ends);

/* The same, and checks them against each other. */
int copy_ends_parse(CoreState *state, PyObject *dst, PyObject *src,
                    const struct cudriver_stream *on, struct copy_ends *ends);

/* Checks that both have the same shape and dtype. 0, or -1 with ValueError or TypeError. */
int copy_ends_match(const struct cudriver_endpoint *dst, const struct cudriver_endpoint *src);

/* Plans a copy between matching ends. `ask`: as in the plan. */
void copy_ends_plan(struct copy_ends *ends, bool blocking, bool ask,
                    struct cudriver_copy_plan *plan);

/* Whether the stream is on one of the copy's devices. */
bool copy_stream_is_near(const struct cudriver_stream *stream, const struct copy_ends *ends);

/* Checks that the stream is on one of the copy's devices. 0, or -1 with ValueError. */
int copy_ends_near(const struct cudriver_stream *stream, const struct copy_ends *ends);

/* Issues a copy between matching ends on a stream that was read. New reference: a Transfer. With
 * `part`, as a part of a larger piece of work: None while it is under way, and *part is the
 * engine's transfer or NULL. */
PyObject *copy_ends_queue(CoreState *state, struct copy_ends *ends, struct cudriver_stream *stream,
                          struct cudriver_staging_transfer **part);

#endif

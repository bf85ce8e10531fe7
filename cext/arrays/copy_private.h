/* Shared by the copy*.c files and interface.c. */
#ifndef CUDRIVER_COPY_PRIVATE_H
#define CUDRIVER_COPY_PRIVATE_H

#include "copy.h"

/* Both ends of a copy. */
struct copy_ends {
    struct cudriver_endpoint dst, src;
    ContextObject *home; /* borrowed: whose stream a copy uses by default; NULL: host to host. Set
                            by its plan */
    bool borrow;         /* as in the plan; false when read */
};

/* The end of a capsule with a slot of the page-locked pool. */
void copy_slot_free(PyObject *capsule);

/* Fills an endpoint through __cuda_array_interface__, and waits for the stream that it names,
 * unless `on` is CUDRIVER_UNORDERED; or through a buffer or NumPy's interface. 1 done; 0 no such
 * protocol, or DLPack is to be asked; -1 an exception. */
int cudriver_interface_endpoint(CoreState *state, PyObject *object, bool write,
                                const struct cudriver_stream *on, struct cudriver_endpoint *end);

/* Reads both ends. `match`: they have to. `on`: the stream of an asynchronous copy, else NULL. 0 or
 * -1. */
int copy_ends_parse(CoreState *state, PyObject *dst, PyObject *src, bool match,
                    const struct cudriver_stream *on, struct copy_ends *ends);
void copy_ends_done(struct copy_ends *ends);

/* Checks that both have the same shape and dtype. 0, or -1 with ValueError or TypeError. */
int copy_ends_match(const struct cudriver_endpoint *dst, const struct cudriver_endpoint *src);

/* Whether so many bytes to (up) or from a device would queue behind big copies of ours, or the
 * stream's work is to come before others': a kernel moves them then, if it can. */
bool copy_is_beside(CoreState *state, const struct cudriver_stream *stream, int ordinal, bool up,
                    size_t bytes);

/* The same of a copy between host and device, whatever its size. Not on a stream of another device:
 * a blocking copy does not use an enclosing one, and for the rest it is an error. */
bool copy_ends_beside(CoreState *state, const struct copy_ends *ends,
                      const struct cudriver_stream *stream);

/* A blocking call begins to move so many bytes between host and device, in `context`, or ends. */
void copy_call_mark(CoreState *state, ContextObject *context, bool up, size_t bytes, bool begins);

/* Plans a copy between matching ends. `ask` as in the plan. */
void copy_ends_plan(struct copy_ends *ends, bool blocking, bool ask,
                    struct cudriver_copy_plan *plan);

/* Checks that the stream is on one of the copy's devices. 0, or -1 with ValueError. */
int copy_ends_near(const struct cudriver_stream *stream, const struct copy_ends *ends);

/* Copies between matching ends and waits. 0 or -1. */
int copy_ends_copy(CoreState *state, struct copy_ends *ends);

struct TransferObject;

/* Plans a copy between matching ends and issues it, but for one DIRECT copy: that is *begun, for
 * copy_work_issue, which needs neither the lock nor the ends. New reference: a Transfer; or NULL,
 * with an exception unless *begun is set. */
PyObject *copy_ends_begin(CoreState *state, struct copy_ends *ends, struct cudriver_stream *stream,
                          struct cudriver_staging_transfer **part, struct cudriver_copy_plan *plan,
                          struct TransferObject **begun);

/* Issues a copy that is a piece of work in flight by now. Takes no lock unless it fails. New
 * reference: a Transfer. NULL without an exception: the copy was refused, and may be bounced. */
PyObject *copy_work_issue(CoreState *state, const struct cudriver_copy_plan *plan,
                          const struct cudriver_stream *stream, struct TransferObject *begun);

/* Issues a copy between matching ends on a stream that was read. New reference: a Transfer. With
 * `part`, as a part of a larger piece of work: None while it is under way, and *part is the
 * engine's transfer or NULL. */
PyObject *copy_ends_queue(CoreState *state, struct copy_ends *ends, struct cudriver_stream *stream,
                          struct cudriver_staging_transfer **part);

/* ---- copy_batch.c, for copy_many() and copy_rows() ---- */

/* Many copies that become one piece of work. */
struct copy_batch {
    CoreState *state;
    enum copy_batch_mode {                      /* memory/rows.py has the same numbers */
                           COPY_BATCH_READ,     /* pageable sources are read at once */
                           COPY_BATCH_BORROW,   /* not so */
                           COPY_BATCH_BLOCKING, /* the same: the caller waits. First for work in
                                                   flight on the ends */
                           COPY_BATCH_EXPLAIN,  /* only tells how it would be done */
    } mode;
    struct cudriver_stream stream;
    ContextObject *home; /* owned: the first device end's; NULL: none yet */
    size_t bytes;
    size_t big[2];             /* of these, what is not small: from (0) and to a device */
    bool beside;               /* the kernel does the runs, if it can */
    struct cudriver_run *runs; /* owned */
    size_t count;
    struct copy_ends **odd; /* owned, as what they point to */
    size_t odds;
    PyObject *spans; /* owned: bytes; of each pair the first byte of the destination, the one behind
                        its last, and the same of the source, as uint64; all 0: nothing to copy */
    PyObject *owners;              /* owned: a list, which becomes a tuple */
    PyObject *table;               /* owned: keeps what the kernel reads; or NULL */
    struct cudriver_users **users; /* owned: the device ends', of which this call is one */
    size_t used;
};

/* Makes room for so many pairs and runs. 0 or -1. */
int copy_batch_begin(struct copy_batch *batch, Py_ssize_t pairs, Py_ssize_t runs);
void copy_batch_end(struct copy_batch *batch);

/* Finds out where the batch runs, and checks that the copy is there; waits as `mode` says. Keeps
 * both ends' owners. 0 or -1. */
int copy_batch_place(struct copy_batch *batch, const struct copy_ends *ends);

/* Whether a copy of matching ends is a run. *bytes: of their items. */
bool copy_batch_takes(const struct copy_batch *batch, const struct copy_ends *ends, size_t *bytes);

/* Fills in a run between such ends, of which there will be `count`, except its addresses. 0 or -1.
 */
int copy_batch_run(struct copy_batch *batch, const struct copy_ends *ends, size_t bytes,
                   size_t count, struct cudriver_run *run);

/* Issues a batch that is complete, or explains it. New reference: its Transfer, or a list. */
PyObject *copy_batch_issue(struct copy_batch *batch);

/* The first byte of an end, and the one behind its last. */
void copy_end_span(const struct cudriver_endpoint *end, uint64_t *span);

/* The address of an end's first item. */
uint64_t copy_end_address(const struct cudriver_endpoint *end);

/* Issues a copy for which copy_ends_beside is true, if it is small. 0: *work is a new reference to
 * its Transfer; -1; or 1: it is not, and nothing was done. */
int copy_beside(CoreState *state, struct copy_ends *ends, struct cudriver_stream *stream,
                enum copy_batch_mode mode, PyObject **work);

/* Whether copy_beside would issue it on the default stream. */
bool copy_beside_explain(CoreState *state, const struct copy_ends *ends,
                         const struct cudriver_copy_plan *plan);

#endif

/* Shared by batch.c, batch_queue.c and batches.c. */
#ifndef CUDRIVER_BATCH_PRIVATE_H
#define CUDRIVER_BATCH_PRIVATE_H

#include "batch.h"

enum batch_state {
    BATCH_OPEN,   /* no event yet; more work may join while it has an `object` */
    BATCH_CLOSED, /* its event is recorded */
    BATCH_DONE,   /* complete: `result` is set, owners are released */
};

/* How many owners and engine's transfers an open batch takes before it is closed. */
#define BATCH_OWNERS 32
#define BATCH_STAGED 16

/*
 * The batches in flight of one stream form a queue, in the order in which they were issued: `next`.
 * A stream's work ends in that order, so only the oldest batch is asked whether it is complete. The
 * oldest batches of all streams form the list state->batches: `across`.
 */
struct cudriver_batch {
    struct cudriver_batch *next;
    struct cudriver_batch *across; /* of the oldest */
    struct cudriver_batch *last;   /* of the oldest: the newest */
    Py_ssize_t refs;               /* one for the queue, one for each Transfer */
    unsigned long long serial;     /* in the order of issue over all streams */
    unsigned long long asked;      /* the pass that found it not complete */
    enum batch_state state;
    CUresult result;
    bool captured;  /* open, because its stream was being captured when last looked at */
    bool recording; /* a thread is in cudriver_batch_record, perhaps without the GIL */
    bool orphan;    /* open: `stream` is owned, its Stream having gone first; it counts in
                     * the context's `children` */
    struct cudriver_live live; /* lists the stream of an orphan */
    ContextObject *context;    /* owned */
    StreamObject *object;      /* borrowed while open: its stream, if that is ours; else NULL */
    CUstream stream;
    CUevent event;      /* owned while closed */
    Py_ssize_t waiters; /* threads that query the event without the GIL; the last one destroys it */
    Py_ssize_t staged_count, count;
    struct cudriver_staging_transfer *staged[BATCH_STAGED]; /* owned: the engine's transfers */
    PyObject *owners[BATCH_OWNERS];                         /* owned references */
};

/* ---- batch_queue.c ---- */

/* A new batch, open, at the end of its stream's queue, which new work on the stream joins.
 * Borrowed; NULL without an exception if there is no memory. */
struct cudriver_batch *cudriver_batch_new(CoreState *state, const struct cudriver_stream *stream);

/* Takes the oldest batch out of a queue. */
void cudriver_batch_pop(CoreState *state, struct cudriver_batch *head);

/* The batch behind this one, or the oldest of the next stream; NULL: none. `*head` is the oldest of
 * its queue. */
struct cudriver_batch *cudriver_batch_after(struct cudriver_batch **head,
                                            const struct cudriver_batch *batch);

/* The oldest open batch of a stream; NULL: none. */
struct cudriver_batch *cudriver_batch_open_on(const CoreState *state, const ContextObject *context,
                                              CUstream stream);

/* Frees a batch that is in no queue and holds nothing, or keeps it for reuse. */
void cudriver_batch_spare(CoreState *state, struct cudriver_batch *batch);

/* ---- batch.c ---- */

/* Records the event behind the batch's work; if that fails, waits for the stream instead. With
 * `look`, an idle stream completes the batch at once: an event recorded now would be later. The
 * batch stays open where neither can be had while a stream is being captured: an event would be
 * part of the graph; and where another thread is at it. The caller holds a reference. */
void cudriver_batch_record(CoreState *state, struct cudriver_batch *batch, bool look);

/* Closes the batch. Holds a reference, because other threads may run and drop theirs. */
void cudriver_batch_close(CoreState *state, struct cudriver_batch *batch);

#endif

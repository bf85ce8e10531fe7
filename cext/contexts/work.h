/*
 * Work in flight, and the objects that it keeps alive.
 *
 * Each piece of asynchronous work, a Transfer in Python, owns references to the memory that is read
 * and written, and an event, which is recorded behind it as soon as it is issued. It is over when
 * the event is; then it lets the references go. Every function needs the GIL.
 */
#ifndef CUDRIVER_WORK_H
#define CUDRIVER_WORK_H

#include "context.h"
#include "engine/engine.h"
#include "stream.h"

/*
 * Work in flight is queued by stream, in the order of its events (struct cudriver_queue): it ends
 * in that order, so a pass asks few of each stream. Queues are in the Stream, for a default stream
 * in its context; what is in no known order is in state->works.loose.
 */
typedef struct TransferObject {
    PyObject_HEAD
    struct TransferObject *next,
        *prev;                    /* in the queue, which owns a reference; or a spare's next */
    struct cudriver_queue *queue; /* NULL: not in flight */
    unsigned long long serial;    /* in the order of issue */
    bool over;                    /* out of the queue: `result` is set */
    CUresult result;
    ContextObject *context; /* owned; a spare's: borrowed; NULL: over from the first */
    CUevent event;          /* owned */
    struct cudriver_staging_transfer *staged; /* owned: the engine's, or NULL */
    PyObject *owners[2]; /* owned until it is over, or NULL; a tuple: all that is in it */
    size_t bytes;
} TransferObject;

/*
 * New reference: a Transfer of `bytes`, which keeps `first` and `second` (objects, tuples of such,
 * or NULL) alive until the work that was just issued on `stream` is over. `staged` is the engine's
 * transfer (taken) or NULL. The stream's context is current, and the stream is not being captured.
 * Where no event can be recorded, waits for the stream. NULL with an exception set: no memory, and
 * the work is over, or the wait failed or was interrupted, and what the work uses is kept for ever.
 */
PyObject *cudriver_work_add(CoreState *state, const struct cudriver_stream *stream, PyObject *first,
                            PyObject *second, size_t bytes,
                            struct cudriver_staging_transfer *staged);

/*
 * The same in steps, for a call that issues the work without the GIL, and records the event at
 * once. `begin` now and then lets go what is over, which may run any code. At last comes `end`, or
 * if nothing was issued `cancel`.
 */
struct cudriver_issue {
    TransferObject *work;         /* owned; NULL: no memory */
    struct cudriver_queue *queue; /* borrowed */
    CUresult result;              /* of making its event, then of recording it */
    unsigned int turn;            /* its number among the queue's `turns` */
    bool alone;                   /* no other thread was recording on the stream */
};
void cudriver_work_begin(CoreState *state, const struct cudriver_stream *stream,
                         struct cudriver_issue *issue);
void cudriver_work_record(const struct cudriver_stream *stream,
                          struct cudriver_issue *issue); /* needs no GIL */
PyObject *cudriver_work_end(CoreState *state, const struct cudriver_stream *stream,
                            struct cudriver_issue *issue, PyObject *first, PyObject *second,
                            size_t bytes, struct cudriver_staging_transfer *staged);
void cudriver_work_cancel(struct cudriver_issue *issue);

/* New reference: a Transfer that is over (an empty copy, or one that had to block). */
PyObject *cudriver_work_over(CoreState *state, size_t bytes);

/* The work's result, or NOT_READY. In a forked child NOT_INITIALIZED: nothing ends there. The
 * caller holds a reference. May run any code. */
CUresult cudriver_work_poll(CoreState *state, TransferObject *work);

/* Waits until the work is over; cudriver_work_poll then has its result. 0, or -1 with an exception
 * set. */
int cudriver_work_wait(CoreState *state, TransferObject *work);

/* Lets go what work that is over kept alive. Cheap if nothing is in flight. Never raises. May run
 * any code. */
void cudriver_works_reap(CoreState *state);

/* The same for the work of a stream. */
void cudriver_works_reap_stream(CoreState *state, StreamObject *stream);

/* The first of all work in flight, and the next, in no order of streams. Borrowed, or NULL. */
TransferObject *cudriver_works_first(const CoreState *state);
TransferObject *cudriver_works_next(const TransferObject *work);

/* Whether work in flight holds `object` itself. (Views in flight count in their memory.) */
bool cudriver_works_hold(CoreState *state, const PyObject *object);

/* Whether an object that work in flight owns lies in the memory asked about. */
typedef bool cudriver_uses(CoreState *state, PyObject *owner, const void *memory);

/* Waits for all work in flight of which uses(state, owner, memory) is true for an owner. Cheap if
 * nothing is in flight. Ignores how that work ended. 0, or -1 with an exception set. */
int cudriver_works_await(CoreState *state, cudriver_uses *uses, const void *memory);

/* Lets `stream`, of `context`, wait for the same work, without a wait on the host: whoever uses the
 * memory gets that work's error. If the stream is being captured, nothing may be in flight. 0, or
 * -1 with an exception set. */
int cudriver_works_follow(CoreState *state, cudriver_uses *uses, const void *memory,
                          ContextObject *context, CUstream stream);

/* Waits for all of our work that is in flight in a context now, not for later work. Ignores how it
 * ended. 0, or -1 with an exception set (a signal handler's, or the context cannot be used). */
int cudriver_works_wait(CoreState *state, const ContextObject *context);

/* Waits for everything in flight, about 5 s at most. Sets no exception. For interpreter exit. */
void cudriver_works_drain(CoreState *state);

/* The stream ends, or is forgotten: the order of its work is no longer known. */
void cudriver_works_end_stream(CoreState *state, StreamObject *stream);

/* Frees the work, and its events, that a context keeps for later. Before its end. */
void cudriver_works_forget(ContextObject *context);

#endif

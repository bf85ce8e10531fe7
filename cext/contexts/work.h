/*
 * Work in flight, and the objects that it keeps alive.
 *
 * Each piece of asynchronous work, a Transfer in Python, owns references to the memory that is read
 * and written, and an event, which is recorded behind it as soon as it is issued. It is in flight
 * from just before it is issued until the event is over; then it lets the references go. Functions
 * need the GIL, unless they say otherwise.
 */
#ifndef CUDRIVER_WORK_H
#define CUDRIVER_WORK_H

#include "stream.h"
#include "engine/engine.h"

/*
 * Work in flight is queued by stream, in the order of its events (struct cudriver_queue): it ends
 * in that order, so a pass asks few of each stream. Queues are in the Stream, for a default stream
 * in its context; what is in no known order is in state->works.loose. Only the last of a queue may
 * be without its event yet: what is issued meanwhile is loose.
 */
enum cudriver_work_stage {
    CUDRIVER_WORK_BEGUN,
    CUDRIVER_WORK_ISSUED,    /* its event is recorded */
    CUDRIVER_WORK_CANCELLED, /* it never will be */
};

typedef struct TransferObject {
    PyObject_HEAD
    struct TransferObject *next, *prev;     /* in the queue, which owns a reference */
    struct cudriver_queue *queue;           /* NULL: not in flight */
    _Atomic enum cudriver_work_stage stage; /* ISSUED is set without the GIL */
    bool over;                              /* out of the queue: `result` is set */
    CUresult result;
    CUresult recorded;           /* of making its event, or of recording it */
    struct cudriver_users users; /* calls that ask the event */
    bool owns;                   /* `context` is owned; in the queue of a Stream, that owns it */
    ContextObject *context;      /* in flight */
    CUevent event;               /* in flight: owned */
    struct cudriver_staging_transfer *staged; /* owned: the engine's, or NULL */
    PyObject *owners[2]; /* owned in flight, or NULL; a tuple: all that is in it */
    size_t bytes;
    size_t big[2];   /* in flight: bytes of copies that are not small, from (0) and to a device */
    CUstream stream; /* borrowed, only to be compared; another stream may have the handle by now */
    PyObject *weak;
} TransferObject;

/* Whether TUNING_BIG bytes or more, to (up) or from a device, are in flight on other streams than
 * `stream`, or are moved by blocking calls. A copy engine serves in the order of issue, whatever
 * the priorities: a copy on `stream` would queue behind them. Asked where state->works.big is as
 * much. */
bool cudriver_works_are_big(CoreState *state, int ordinal, bool up,
                            const struct cudriver_stream *stream);

/* Whether a call that is counted uses the context or issues work in it; with `any`, also whether
 * work is in flight there. */
static inline bool cudriver_works_is_used(const CoreState *state, const ContextObject *context,
                                          bool any)
{
    bool used = context->users.calls > 0;

    for (struct cudriver_queue *queue = state->works.queues; queue != NULL && !used;
         queue = queue->next) {
        for (TransferObject *work = queue->first; work != NULL && !used; work = work->next) {
            used = work->context == context && (any || work->stage == CUDRIVER_WORK_BEGUN);
        }
    }
    return used;
}

/*
 * New reference: a Transfer of `bytes`, which keeps `first` and `second` (objects, tuples of such,
 * or NULL) alive until the work that was just issued on `stream` is over. `big`: as in the object.
 * `staged` is the engine's transfer (taken) or NULL. The stream's context is current, and the
 * stream is not being captured. Where no event can be recorded, waits for the stream. NULL with an
 * exception set: no memory, and the work is over, or the wait failed or was interrupted, and what
 * the work uses is kept for ever.
 */
PyObject *cudriver_work_add(CoreState *state, const struct cudriver_stream *stream, PyObject *first,
                            PyObject *second, size_t bytes, const size_t big[2],
                            struct cudriver_staging_transfer *staged);

/*
 * The same in steps, for a call that issues the work itself. `begin` first lets go what is over now
 * and then, which may run any code, and checks that the stream's context may be used. New
 * reference, for `end` or `cancel`; or NULL. Without the GIL the work is then issued, and `record`
 * records its event. At last comes `end`, which needs no lock of ours unless the event could not be
 * recorded, or if nothing was issued `cancel`.
 */
TransferObject *cudriver_work_begin(CoreState *state, const struct cudriver_stream *stream,
                                    PyObject *first, PyObject *second, size_t bytes,
                                    const size_t big[2]);
void cudriver_work_record(const struct cudriver_stream *stream, TransferObject *work);
PyObject *cudriver_work_end(CoreState *state, const struct cudriver_stream *stream,
                            TransferObject *work, struct cudriver_staging_transfer *staged);
void cudriver_work_cancel(CoreState *state, TransferObject *work);

/* New reference: a Transfer that is over (an empty copy, or one that had to block). */
PyObject *cudriver_work_over(CoreState *state, size_t bytes);

/* Waits until the work is over. 0, or -1 with an exception set. */
int cudriver_work_wait(CoreState *state, TransferObject *work);

/* Lets go what work that is over kept alive: of all queues (NULL), or of one, where the newest is
 * over all of it, else perhaps not the whole. Cheap if nothing is in flight. Never raises. May run
 * any code. */
void cudriver_works_reap(CoreState *state, struct cudriver_queue *only);

/* The first of all work in flight, and the next, in no order of streams. Borrowed, or NULL. */
TransferObject *cudriver_works_first(const CoreState *state);
TransferObject *cudriver_works_next(const TransferObject *work);

/* Whether an object that work in flight owns lies in the memory asked about. */
typedef bool cudriver_uses(CoreState *state, PyObject *owner, const void *memory);

/* Whether any work in flight uses the memory. */
bool cudriver_works_use(CoreState *state, cudriver_uses *uses, const void *memory);

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

/* Destroys the events that a queue of the context keeps for later. */
void cudriver_works_forget(struct cudriver_queue *queue, ContextObject *context);

#endif

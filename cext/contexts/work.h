/*
 * Work in flight, and the objects that it keeps alive.
 *
 * Each piece of asynchronous work owns references to the memory that is read and written, and an
 * event, which is recorded behind it as soon as it is issued. It is over when the event is; then it
 * lets the references go. Every function needs the GIL.
 */
#ifndef CUDRIVER_WORK_H
#define CUDRIVER_WORK_H

#include "context.h"
#include "engine/engine.h"
#include "stream.h"

/*
 * Keeps `first` and `second` (either may be NULL) alive until the work that was just issued on
 * `stream` is over; about `bytes` of theirs. `staged` is the engine's transfer (taken) or NULL. The
 * stream's context is current, and the stream is not being captured. Where no event can be
 * recorded, waits for the stream. New reference; NULL with an exception set: the work is over, or a
 * signal's handler ended the wait, and what the work uses is kept for ever.
 */
struct cudriver_work *cudriver_work_add(CoreState *state, const struct cudriver_stream *stream,
                                        PyObject *first, PyObject *second, size_t bytes,
                                        struct cudriver_staging_transfer *staged);

/* Takes one more reference. */
void cudriver_work_keep(struct cudriver_work *work);

/* Drops one reference. The work continues, and what it needs stays alive. */
void cudriver_work_release(struct cudriver_work *work);

/* The work's result, or NOT_READY. In a forked child NOT_INITIALIZED: nothing ends there. The
 * caller holds a reference. May run any code. */
CUresult cudriver_work_poll(CoreState *state, struct cudriver_work *work);

/* Waits until the work is over; cudriver_work_poll then has its result. 0, or -1 with an exception
 * set. The caller holds a reference. */
int cudriver_work_wait(CoreState *state, struct cudriver_work *work);

/* Lets go what work that is over kept alive. Cheap if nothing is in flight. Never raises. May run
 * any code. */
void cudriver_works_reap(CoreState *state);

/* Whether work in flight holds `object` itself. (Views in flight count in their memory.) */
bool cudriver_works_hold(const CoreState *state, const PyObject *object);

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

/* The stream is destroyed next: later work on its handle is not behind its own. */
void cudriver_works_end_stream(const CoreState *state, const ContextObject *context,
                               CUstream stream);

/* Frees the events that a context keeps for later work. Before its end. */
void cudriver_works_forget(ContextObject *context);

/* Reaps, and frees those of all contexts. */
void cudriver_works_trim(CoreState *state);

#endif

/*
 * Asynchronous work and what it keeps alive.
 *
 * Work on one stream finishes in order, so it is watched in batches: a batch holds the owners of
 * the memory that is being read and written, and one event is recorded behind it: when somebody
 * asks while the stream is busy or records an event of his own, when it is full, when the stream
 * goes, and at once behind much work or on a stream that is not ours. Everything here needs the
 * GIL.
 */
#ifndef CUDRIVER_BATCH_H
#define CUDRIVER_BATCH_H

#include "context.h"
#include "engine/engine.h"
#include "stream.h"

/*
 * Notes work of `bytes` that was just issued on `stream` and that touches memory of `first` and
 * `second` (either may be NULL): both stay alive until it is over. `staged` is the engine's copy
 * that it is, or NULL, and is taken. New reference to the batch; NULL with an exception set, in
 * which case the work has been waited for. Before work of TUNING_BATCH_ALONE bytes is issued,
 * cudriver_batch_close_before parts it from smaller work.
 */
struct cudriver_batch *cudriver_batch_add(CoreState *state, const struct cudriver_stream *stream,
                                          size_t bytes, PyObject *first, PyObject *second,
                                          struct cudriver_staging_transfer *staged);

/* Drops one reference. The work goes on, and what it needs stays alive. */
void cudriver_batch_release(CoreState *state, struct cudriver_batch *batch);

/* Lets go what finished work has kept alive. With `all`, looks at batches still open too. Quick
 * where nothing is in flight. Never raises. */
void cudriver_batches_reap(CoreState *state, bool all);

/* Whether work in flight holds `object`. (A view in flight counts as one of its views.) */
bool cudriver_batches_hold(CoreState *state, PyObject *object);

/*
 * Waits for all work in flight of which uses(state, owner, memory) says that it holds the memory.
 * Quick where nothing is in flight. How that work ended is not said. 0, or -1 with an exception
 * set.
 */
int cudriver_batches_await(CoreState *state,
                           bool (*uses)(CoreState *state, PyObject *owner, const void *memory),
                           const void *memory);

/* Records the event of the stream's open batch: what follows on the stream, or the stream's end,
 * does not delay it. May let other threads run. */
void cudriver_batch_close_open(StreamObject *stream);

/* As the call above, before an event of the program's or much work, by whichever object the stream
 * is named; lets go of what is over. */
void cudriver_batch_close_before(CoreState *state, const struct cudriver_stream *stream);

/* Whether work is in flight in a context, as far as was looked. */
bool cudriver_batches_use(CoreState *state, const ContextObject *context);

/* Waits for all of our work that is in flight in a context, and not for what is issued meanwhile.
 * How it ended is not said. 0, or -1 with an exception set (a signal's). */
int cudriver_batches_wait(CoreState *state, const ContextObject *context);

/* The stream was seen at its end, with the GIL held since: so is its open batch. */
void cudriver_batch_end_open(CoreState *state, StreamObject *stream);

/* Waits for all that was issued on the stream so far, and not for what others issue meanwhile. 0,
 * or -1 with an exception set. */
int cudriver_batch_wait_all(CoreState *state, const struct cudriver_stream *stream);

/* Waits for everything in flight, without an exception; for the interpreter's exit. */
void cudriver_batches_drain(CoreState *state);

/* Looks whether it is over; NOT_READY, or how it ended. The caller holds a reference. */
CUresult cudriver_batch_poll(CoreState *state, struct cudriver_batch *batch);

/* Waits for one that the call above said NOT_READY of; to be polled again. 0, or -1 with an
 * exception set. */
int cudriver_batch_wait(CoreState *state, struct cudriver_batch *batch);

/* Frees what is kept for the next copies. For the module's end. */
void cudriver_batch_free_spares(CoreState *state);

/*
 * Waits while query(handle) says NOT_READY, without the GIL, in short sleeps; every 20 ms it looks
 * for signals. 0, or -1 with an exception set (a signal's, or the driver's with `function`).
 */
int cudriver_wait(CoreState *state, CUresult (*query)(void *handle), void *handle,
                  const char *function);

#endif

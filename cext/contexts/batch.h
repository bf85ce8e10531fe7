/*
 * Asynchronous work, and the objects that it keeps alive.
 *
 * Work on one stream completes in order, so each stream has a queue of batches. A batch owns
 * references to the memory that is being read and written, and one event is recorded behind its
 * work. A batch that has its event is closed. It is closed at once if its work is large or its
 * stream is not ours; otherwise when it is full, when somebody asks for its state while the stream
 * is busy, before the program records an event of its own, or when the stream is closed. Every
 * function needs the GIL.
 */
#ifndef CUDRIVER_BATCH_H
#define CUDRIVER_BATCH_H

#include "context.h"
#include "engine/engine.h"
#include "stream.h"

/*
 * Tracks work of `bytes` that was just issued on `stream`. It uses memory of `first` and `second`
 * (either may be NULL), and keeps both alive until it completes. `staged` is the engine's transfer
 * (taken) or NULL. Before issuing work of TUNING_BATCH_ALONE bytes or more, the caller closes the
 * open batch with cudriver_batch_close_before. New reference to the batch; NULL with an exception
 * set, and then the work has completed.
 */
struct cudriver_batch *cudriver_batch_add(CoreState *state, const struct cudriver_stream *stream,
                                          size_t bytes, PyObject *first, PyObject *second,
                                          struct cudriver_staging_transfer *staged);

/* Takes one more reference. */
void cudriver_batch_keep(struct cudriver_batch *batch);

/* Drops one reference. The work continues, and what it needs stays alive. */
void cudriver_batch_release(CoreState *state, struct cudriver_batch *batch);

/* Releases what completed work kept alive. With `all`, open batches are
 * checked too. Cheap if nothing is in flight. Never raises. */
void cudriver_batches_reap(CoreState *state, bool all);

/* Whether work in flight holds `object` itself. (Views in flight count in their root's `views`.) */
bool cudriver_batches_hold(CoreState *state, PyObject *object);

/* Whether an object that a batch owns lies in the memory asked about. */
typedef bool cudriver_uses(CoreState *state, PyObject *owner, const void *memory);

/* Waits for all work in flight of which uses(state, owner, memory) is true for an owner. Cheap if
 * nothing is in flight. Ignores how that work ended. 0, or -1 with an exception set. */
int cudriver_batches_await(CoreState *state, cudriver_uses *uses, const void *memory);

/* Lets `stream`, of `context`, wait for the same work, without a wait on the host: whoever uses the
 * memory gets that work's error. Waits only for work behind which no event can be recorded. If the
 * stream is being captured, nothing may be in flight. 0, or -1 with an exception set. */
int cudriver_batches_follow(CoreState *state, cudriver_uses *uses, const void *memory,
                            ContextObject *context, CUstream stream);

/* Closes the stream's open batch, so that neither later work nor the stream's end delays it. May
 * release the GIL. */
void cudriver_batch_close_open(StreamObject *stream);

/* The stream is destroyed next: later batches with its handle do not queue behind its own. */
void cudriver_batch_end_queue(const CoreState *state, const ContextObject *context,
                              CUstream stream);

/* At the stream's end: a batch of it that is still open, because of a capture or because no event
 * could be recorded, takes the handle over and destroys it later; with `captured`, an empty one if
 * none is open. False: there is none, or no memory for it. */
bool cudriver_batch_adopt(StreamObject *stream, bool captured);

/* As cudriver_batch_close_open, before large work or before the program records an event. Finds one
 * of our streams by its handle too. Then releases what completed work kept alive. */
void cudriver_batch_close_before(CoreState *state, const struct cudriver_stream *stream);

/* Whether work is in flight in a context, as of the last check. */
bool cudriver_batches_use(CoreState *state, const ContextObject *context);

/* 0 if no stream of a context whose Stream was dropped during its capture is still being captured;
 * else -1 with CudaError, as cudriver_streams_refuse. Between begin and end. */
int cudriver_batches_refuse(CoreState *state, const ContextObject *context, const char *call);

/* Waits for all of our work that is in flight in a context now, not for later work. Ignores how it
 * ended. 0, or -1 with an exception set (a signal handler's, or the context cannot be used). */
int cudriver_batches_wait(CoreState *state, const ContextObject *context);

/* Ends the batches that were open on the stream when the caller saw it idle; the caller has held
 * the GIL since. Leaves a batch that owns the handle to cudriver_batches_reap. */
void cudriver_batch_end_open(CoreState *state, const StreamObject *stream);

/* Waits for work issued on the stream so far, not for later work. 0, or -1 with an exception. */
int cudriver_batch_wait_all(CoreState *state, const struct cudriver_stream *stream);

/* Waits for everything in flight, about 5 s at most. Sets no exception. For interpreter exit. */
void cudriver_batches_drain(CoreState *state);

/* The batch's result, or NOT_READY. The caller holds a reference. */
CUresult cudriver_batch_poll(CoreState *state, struct cudriver_batch *batch);

/* Waits until the batch is over; cudriver_batch_poll then has its result. 0, or -1 with an
 * exception set. The caller holds a reference. */
int cudriver_batch_wait(CoreState *state, struct cudriver_batch *batch);

/* Frees the batches kept for reuse. For the module's end. */
void cudriver_batch_free_spares(CoreState *state);

#endif

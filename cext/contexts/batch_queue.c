/* The queues of batches, and the memory of batches. See batch_private.h. */
#include "batch_private.h"

#include <string.h>

/* Freed batches kept for reuse, so that issuing a copy seldom allocates. */
#define SPARE_BATCHES 64

/* In place of the handle of a stream that is destroyed: the next stream may have it. */
#define STREAM_GONE ((CUstream)UINTPTR_MAX)

/* The oldest batch in flight of a stream; NULL: none. */
static struct cudriver_batch *queue_find(const CoreState *state, const ContextObject *context,
                                         CUstream stream)
{
    struct cudriver_batch *head = state->batches;

    while (head != NULL && (head->context != context || head->stream != stream)) {
        head = head->across;
    }
    return head;
}

struct cudriver_batch *cudriver_batch_open_on(const CoreState *state, const ContextObject *context,
                                              CUstream stream)
{
    struct cudriver_batch *batch = queue_find(state, context, stream);

    while (batch != NULL && batch->state != BATCH_OPEN) {
        batch = batch->next;
    }
    return batch;
}

void cudriver_batch_end_queue(const CoreState *state, const ContextObject *context, CUstream stream)
{
    struct cudriver_batch *batch = queue_find(state, context, stream);

    for (; batch != NULL; batch = batch->next) {
        if (batch->state != BATCH_OPEN) {
            batch->stream = STREAM_GONE;
        }
    }
}

/* An empty batch, or NULL. */
static struct cudriver_batch *batch_alloc(CoreState *state)
{
    struct cudriver_batch *batch = state->spare_batches;

    if (batch != NULL) {
        state->spare_batches = batch->next;
        state->spare_batch_count--;
    } else {
        batch = PyMem_Malloc(sizeof *batch);
    }
    if (batch != NULL) {
        memset(batch, 0, offsetof(struct cudriver_batch, staged));
    }
    return batch;
}

/* Appends a batch to the queue of its stream. */
static void queue_append(CoreState *state, struct cudriver_batch *batch)
{
    struct cudriver_batch *head = queue_find(state, batch->context, batch->stream);

    if (head != NULL) {
        head->last->next = batch;
        head->last = batch;
    } else {
        batch->across = state->batches;
        batch->last = batch;
        state->batches = batch;
    }
    batch->serial = ++state->issued;
    state->in_flight++;
}

void cudriver_batch_pop(CoreState *state, struct cudriver_batch *head)
{
    struct cudriver_batch **link = &state->batches, *next = head->next;

    while (*link != head) {
        link = &(*link)->across;
    }
    if (next != NULL) {
        next->across = head->across;
        next->last = head->last;
        *link = next;
    } else {
        *link = head->across;
    }
    state->in_flight--;
}

struct cudriver_batch *cudriver_batch_after(struct cudriver_batch **head,
                                            const struct cudriver_batch *batch)
{
    if (batch->next != NULL) {
        return batch->next;
    }
    *head = (*head)->across;
    return *head;
}

struct cudriver_batch *cudriver_batch_new(CoreState *state, const struct cudriver_stream *stream)
{
    struct cudriver_batch *batch = batch_alloc(state);

    if (batch == NULL) {
        return NULL;
    }
    batch->context = (ContextObject *)Py_NewRef((PyObject *)stream->context);
    batch->stream = stream->handle;
    batch->refs = 1; /* the queue's */
    queue_append(state, batch);
    batch->object = stream->object;
    if (stream->object != NULL) {
        stream->object->open = batch;
    }
    return batch;
}

void cudriver_batch_spare(CoreState *state, struct cudriver_batch *batch)
{
    if (state->spare_batch_count == SPARE_BATCHES) {
        PyMem_Free(batch);
        return;
    }
    batch->next = state->spare_batches;
    state->spare_batches = batch;
    state->spare_batch_count++;
}

void cudriver_batch_free_spares(CoreState *state)
{
    while (state->spare_batches != NULL) {
        struct cudriver_batch *batch = state->spare_batches;
        state->spare_batches = batch->next;
        PyMem_Free(batch);
    }
    state->spare_batch_count = 0;
}

/* All work in flight, in a context or on some memory. See batch.h. */
#include "batch_private.h"

#include "capture.h"
#include "driver/driver.h"
#include "python/error.h"
#include "python/wait.h"

bool cudriver_batches_hold(CoreState *state, PyObject *object)
{
    struct cudriver_batch *head, *batch;

    for (head = batch = state->batches; batch != NULL; batch = cudriver_batch_after(&head, batch)) {
        for (Py_ssize_t i = 0; i < batch->count; i++) {
            if (batch->owners[i] == object) {
                return true;
            }
        }
    }
    return false;
}

/* A batch of this context in this state, issued no later than `serial`; NULL: none. */
static struct cudriver_batch *batch_find(const CoreState *state, const ContextObject *context,
                                         enum batch_state wanted, unsigned long long serial)
{
    struct cudriver_batch *head, *batch;

    for (head = batch = state->batches; batch != NULL; batch = cudriver_batch_after(&head, batch)) {
        if (batch->context == context && batch->state == wanted && batch->serial <= serial) {
            break;
        }
    }
    return batch;
}

bool cudriver_batches_use(CoreState *state, const ContextObject *context)
{
    return batch_find(state, context, BATCH_OPEN, state->issued) != NULL ||
           batch_find(state, context, BATCH_CLOSED, state->issued) != NULL;
}

/* Closes all open batches of a context. */
static void batches_close(CoreState *state, const ContextObject *context)
{
    unsigned long long pass = ++state->pass;
    struct cudriver_batch *head, *batch;

    for (head = batch = state->batches; batch != NULL;) {
        if (batch->state == BATCH_OPEN && batch->context == context && batch->asked < pass) {
            batch->asked = pass; /* it may stay open */
            cudriver_batch_close(state, batch);
            head = batch = state->batches; /* the queues may have changed */
        } else {
            batch = cudriver_batch_after(&head, batch);
        }
    }
}

int cudriver_batches_refuse(CoreState *state, const ContextObject *context, const char *call)
{
    struct cudriver_batch *head, *batch;

    for (head = batch = state->batches; batch != NULL; batch = cudriver_batch_after(&head, batch)) {
        if (batch->orphan && batch->context == context &&
            cudriver_capture_refuse(state, batch->stream, call) < 0) {
            return -1;
        }
    }
    return 0;
}

int cudriver_batches_wait(CoreState *state, const ContextObject *context)
{
    unsigned long long newest = state->issued;
    struct cudriver_batch *batch;
    int failed = 0;

    batches_close(state, context);
    while (failed == 0 && (batch = batch_find(state, context, BATCH_CLOSED, newest)) != NULL) {
        failed = cudriver_batch_wait(state, batch);
    }
    return failed;
}

/* Whether the interpreter's exit waits for a batch: not for the end of a capture alone. */
static bool batches_matter(CoreState *state)
{
    struct cudriver_batch *head, *batch;

    for (head = batch = state->batches; batch != NULL; batch = cudriver_batch_after(&head, batch)) {
        if (!batch->orphan || batch->count > 0) {
            return true;
        }
    }
    return false;
}

void cudriver_batches_drain(CoreState *state)
{
    cudriver_batches_reap(state, true);
    for (int round = 0; round < 5000 && batches_matter(state); round++) {
        cudriver_nap(1);
        cudriver_batches_reap(state, true);
        if (cudriver_driver_is_forked()) {
            return;
        }
    }
}

/* The first batch in flight from `batch` on of which uses() is true for an owner; NULL: none. */
static struct cudriver_batch *batch_using(CoreState *state, struct cudriver_batch **head,
                                          struct cudriver_batch *batch, cudriver_uses *uses,
                                          const void *memory)
{
    for (; batch != NULL; batch = cudriver_batch_after(head, batch)) {
        for (Py_ssize_t i = 0; i < batch->count; i++) {
            if (uses(state, batch->owners[i], memory)) {
                return batch;
            }
        }
    }
    return NULL;
}

int cudriver_batches_await(CoreState *state, cudriver_uses *uses, const void *memory)
{
    struct cudriver_batch *head = state->batches, *batch;

    if (state->batches != NULL && cudriver_require(state) < 0) {
        return -1; /* in a forked child nothing completes */
    }
    while ((batch = batch_using(state, &head, head, uses, memory)) != NULL) {
        if (cudriver_batch_wait(state, batch) < 0) {
            return -1;
        }
        head = state->batches; /* the queues may have changed; completed batches hold no owners */
    }
    return 0;
}

/* Closes every open batch that uses the memory, or waits for it. 0 or -1. */
static int batches_close_using(CoreState *state, cudriver_uses *uses, const void *memory)
{
    struct cudriver_batch *head = state->batches, *batch = head;
    int failed = 0;

    while (failed == 0 && (batch = batch_using(state, &head, batch, uses, memory)) != NULL) {
        if (batch->state != BATCH_OPEN) {
            batch = cudriver_batch_after(&head, batch);
            continue;
        }
        batch->refs++;
        cudriver_batch_record(state, batch, true);
        if (batch->state == BATCH_OPEN) { /* no event could be recorded */
            failed = cudriver_batch_wait(state, batch);
        }
        cudriver_batch_release(state, batch);
        head = batch = state->batches; /* the queues may have changed */
    }
    return failed;
}

/* Lets the stream wait for the events of all batches that use the memory. Between begin and end. */
static CUresult batches_order(CoreState *state, cudriver_uses *uses, const void *memory,
                              CUstream stream)
{
    struct cudriver_batch *head = state->batches, *batch;
    CUresult result = CUDA_SUCCESS;

    batch = batch_using(state, &head, head, uses, memory);
    while (batch != NULL && result == CUDA_SUCCESS) {
        if (batch->event != NULL) { /* even on `stream`: its handle may have been another's */
            result = cuda.cuStreamWaitEvent(stream, batch->event, 0);
        }
        batch = batch_using(state, &head, cudriver_batch_after(&head, batch), uses, memory);
    }
    return result;
}

int cudriver_batches_follow(CoreState *state, cudriver_uses *uses, const void *memory,
                            ContextObject *context, CUstream stream)
{
    struct cudriver_batch *head = state->batches;
    CUresult result = CUDA_SUCCESS;
    int captured;
    bool pushed;

    if (batch_using(state, &head, head, uses, memory) == NULL) {
        return 0;
    }
    cudriver_batches_reap(state, true); /* ends those whose event went with its context */
    if (cudriver_require(state) < 0 || cudriver_context_begin(state, context, &pushed) < 0) {
        return -1;
    }
    captured = cudriver_capture_check(state, stream);
    head = state->batches;
    if (captured > 0 && batch_using(state, &head, head, uses, memory) != NULL) {
        cudriver_capture_raise(state, stream, "__dlpack__()",
                               "work in flight on the memory is outside the graph: wait for that "
                               "first");
        captured = -1;
    } else if (captured == 0) {
        captured = batches_close_using(state, uses, memory);
        result = captured == 0 ? batches_order(state, uses, memory, stream) : result;
    }
    if (captured < 0) {
        cudriver_context_end(context, pushed);
        return -1;
    }
    return cudriver_context_finish(state, context, pushed, result, "cuStreamWaitEvent",
                                   "the consumer's stream %p", (void *)stream);
}

/* Questions about all work in flight: what uses this memory, when is it over, is the bus busy? See
 * work.h. */
#include "work_private.h"

#include "driver/driver.h"
#include "driver/platform.h"
#include "engine/tuning.h"
#include "python/error.h"

/* Whether uses() is true for an owner of the work. */
static bool work_uses(CoreState *state, TransferObject *work, cudriver_uses *uses,
                      const void *memory)
{
    for (int i = 0; i < 2; i++) {
        PyObject **owner = &work->owners[i];
        Py_ssize_t count = *owner != NULL;
        if (count > 0 && PyTuple_CheckExact(*owner)) {
            count = PyTuple_GET_SIZE(*owner);
            owner = ((PyTupleObject *)*owner)->ob_item;
        }
        for (; count > 0; count--, owner++) {
            if (uses(state, *owner, memory)) {
                return true;
            }
        }
    }
    return false;
}

/* The first from `work` on of which uses() is true for an owner; NULL: none. */
static TransferObject *work_using(CoreState *state, TransferObject *work, cudriver_uses *uses,
                                  const void *memory)
{
    while (work != NULL && !work_uses(state, work, uses, memory)) {
        work = cudriver_works_next(work);
    }
    return work;
}

bool cudriver_works_use(CoreState *state, cudriver_uses *uses, const void *memory)
{
    return work_using(state, cudriver_works_first(state), uses, memory) != NULL;
}

int cudriver_works_wait(CoreState *state, const ContextObject *context)
{
    PyObject *now = PyList_New(0); /* not what is issued meanwhile */
    int failed = now == NULL ? -1 : 0;

    for (TransferObject *work = cudriver_works_first(state); failed == 0 && work != NULL;
         work = cudriver_works_next(work)) {
        failed = work->context == context ? PyList_Append(now, (PyObject *)work) : 0;
    }
    for (Py_ssize_t i = 0; failed == 0 && i < PyList_GET_SIZE(now); i++) {
        failed = cudriver_work_wait(state, (TransferObject *)PyList_GET_ITEM(now, i));
    }
    Py_XDECREF(now);
    return failed;
}

void cudriver_works_drain(CoreState *state)
{
    cudriver_works_reap(state, NULL);
    for (int round = 0; round < 5000 && cudriver_works_first(state) != NULL; round++) {
        Py_BEGIN_ALLOW_THREADS
        platform_nap(1000000);
        Py_END_ALLOW_THREADS
        cudriver_works_reap(state, NULL);
        if (cudriver_driver_is_forked()) {
            return;
        }
    }
}

int cudriver_works_await(CoreState *state, cudriver_uses *uses, const void *memory)
{
    TransferObject *work;

    if (cudriver_works_first(state) != NULL && cudriver_require() < 0) {
        return -1; /* in a forked child nothing completes */
    }
    while ((work = work_using(state, cudriver_works_first(state), uses, memory)) != NULL) {
        if (cudriver_work_wait(state, work) < 0) {
            return -1;
        }
    }
    return 0;
}

int cudriver_works_follow(CoreState *state, cudriver_uses *uses, const void *memory,
                          ContextObject *context, CUstream stream)
{
    TransferObject *work;
    CUresult result = CUDA_SUCCESS;
    int captured;
    bool pushed;

    if (!cudriver_works_use(state, uses, memory)) {
        return 0;
    }
    cudriver_works_reap(state, NULL); /* ends those whose event went with its context */
    if (cudriver_require() < 0 || cudriver_context_begin(state, context, &pushed) < 0) {
        return -1;
    }
    captured = cudriver_capture_check(stream, NULL);
    work = work_using(state, cudriver_works_first(state), uses, memory);
    if (captured > 0 && work != NULL) {
        captured = cudriver_capture_raise(
            stream, "__dlpack__()",
            "work in flight on the memory is outside the graph: wait for that first");
    }
    if (captured < 0) {
        cudriver_context_end(context, pushed);
        return -1;
    }
    while (work != NULL && result == CUDA_SUCCESS) {
        /* Even on `stream`: its handle may have been another's. What another thread issues just now
         * is in no order with this call. */
        if (work->stage == CUDRIVER_WORK_ISSUED) {
            result = cuda.cuStreamWaitEvent(stream, work->event, 0);
        }
        work = work_using(state, cudriver_works_next(work), uses, memory);
    }
    cudriver_context_end(context, pushed);
    return cudriver_check(result, "cuStreamWaitEvent", "the consumer's stream %p", (void *)stream);
}

/* ---- large copies ---- */

bool cudriver_works_are_big(CoreState *state, int ordinal, bool up,
                            const struct cudriver_stream *stream)
{
    size_t bytes = 0;

    for (const ContextObject *context = state->contexts; context != NULL; context = context->next) {
        bytes += context->ordinal == ordinal ? context->big[up] : 0;
    }
    for (struct cudriver_queue *queue = state->works.queues; queue != NULL; queue = queue->next) {
        TransferObject *work = queue->big[up] > 0 ? queue->first : NULL;
        for (; work != NULL && bytes < TUNING_BIG; work = work->next) {
            /* `here`: on this stream, or on another library's with its handle. */
            bool here = work->stream == stream->handle &&
                        (stream->held == NULL || work->queue == &stream->held->works);
            if (work->big[up] > 0 && !here && work->context->ordinal == ordinal &&
                cudriver_work_ask(work) == CUDA_ERROR_NOT_READY) {
                bytes += work->big[up];
            }
        }
    }
    return bytes >= TUNING_BIG;
}

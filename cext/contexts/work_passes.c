/* Whether work in flight is over, and passes over it, which let go what has ended. See work.h. */
#include "work_private.h"

#include "driver/driver.h"

/* ---- one piece of work: is it over? ---- */

CUresult cudriver_work_event_query(void *handle)
{
    CUresult result = cuda.cuEventQuery(*(CUevent *)handle);

    return cudriver_driver_is_capturing(result) ? CUDA_ERROR_NOT_READY : result;
}

/* The state of work whose context can no longer be asked. */
static CUresult work_gone(void)
{
    return cudriver_driver_is_forked() ? CUDA_ERROR_NOT_INITIALIZED
                                       : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult cudriver_work_ask(TransferObject *work)
{
    CUresult result;
    bool pushed;

    if (work->over) {
        return work->result;
    }
    if (!cudriver_context_begin_free(work->context, &pushed)) {
        return work_gone();
    }
    result = cudriver_work_event_query(&work->event);
    cudriver_context_end(work->context, pushed);
    return result;
}

void cudriver_work_let_go(TransferObject *work)
{
    if (work->result != CUDA_SUCCESS && work->staged != NULL) {
        Py_BEGIN_ALLOW_THREADS
        cudriver_staging_wait(work->staged, work->result);
        Py_END_ALLOW_THREADS
    }
    Py_CLEAR(work->owners[0]);
    Py_CLEAR(work->owners[1]);
    Py_DECREF(work);
}

bool cudriver_work_is_end(CUresult result)
{
    return result != CUDA_ERROR_NOT_READY &&
           !(result == CUDA_ERROR_NOT_INITIALIZED && cudriver_driver_is_forked());
}

void cudriver_work_unqueue(CoreState *state, TransferObject *work)
{
    struct cudriver_queue *queue = work->queue;

    *(work->prev != NULL ? &work->prev->next : &queue->first) = work->next;
    *(work->next != NULL ? &work->next->prev : &queue->last) = work->prev;
    work->next = work->prev = NULL;
    work->queue = NULL;
    if (--queue->count == 0) {
        *(queue->prev != NULL ? &queue->prev->next : &state->works.queues) = queue->next;
        if (queue->next != NULL) {
            queue->next->prev = queue->prev;
        }
    }
}

void cudriver_work_leave(CoreState *state, TransferObject *work, CUresult result)
{
    cudriver_work_unqueue(state, work);
    work->over = true;
    work->result = result;
}

/* ---- passes ---- */

/* The weight of the work that is issued on a stream between two passes over it; and of how many
 * passes one goes over the work of all streams. H200: with a pass after each, a 4 KiB copy took 3.7
 * us; with one event behind many copies, 1.8. */
#define REAP_AFTER 32
#define REAP_ALL 16

/* Takes what has ended of a stream's work off its queue, from the oldest on, and adds it to a list.
 * If the newest has ended well, so has all before it. */
static void take_ended(CoreState *state, struct cudriver_queue *queue, TransferObject ***last)
{
    ContextObject *context = queue->first->context;
    bool pushed, here = cudriver_context_begin_free(context, &pushed);
    bool all = here && cudriver_work_event_query(&queue->last->event) == CUDA_SUCCESS;
    TransferObject *work;

    while ((work = queue->first) != NULL) {
        CUresult result = all    ? CUDA_SUCCESS
                          : here ? cudriver_work_event_query(&work->event)
                                 : work_gone();
        if (!cudriver_work_is_end(result)) {
            break;
        }
        cudriver_work_leave(state, work, result);
        **last = work;
        *last = &work->next;
    }
    if (here) {
        cudriver_context_end(context, pushed);
    }
}

/* The same of work in no order: each piece is asked. The next pass is the later the more remain. */
static void take_loose(CoreState *state, TransferObject ***last)
{
    struct cudriver_queue *loose = &state->works.loose;

    for (TransferObject *work = loose->first, *next; work != NULL; work = next) {
        CUresult result = cudriver_work_ask(work);
        next = work->next;
        if (cudriver_work_is_end(result)) {
            cudriver_work_leave(state, work, result);
            **last = work;
            *last = &work->next;
        }
    }
    loose->remained = (size_t)loose->count;
}

/* Lets work go that has left its queue: a list. May run any code. */
static void works_let_go(TransferObject *ended)
{
    TransferObject *work;

    while ((work = ended) != NULL) {
        ended = work->next;
        work->next = NULL;
        cudriver_work_let_go(work);
    }
}

/* Lets go what has ended in queues: in one, or in all (NULL), or `idle` in all on which no thread
 * is issuing work, as such threads make passes of their own. May run any code. */
static void works_reap(CoreState *state, struct cudriver_queue *only, bool idle)
{
    struct cudriver_queue *queue = only != NULL ? only : state->works.queues, *next;
    TransferObject *ended = NULL, **last = &ended;

    for (; queue != NULL; queue = only != NULL ? NULL : next) {
        next = queue->next;
        if (idle && queue->recording > 0) {
            continue;
        }
        if (queue == &state->works.loose) {
            take_loose(state, &last);
        } else if (queue->first != NULL) {
            take_ended(state, queue, &last);
        }
        queue->added = 0;
    }
    works_let_go(ended);
}

void cudriver_works_reap(CoreState *state)
{
    works_reap(state, NULL, false);
}

void cudriver_works_reap_stream(CoreState *state, StreamObject *stream)
{
    works_reap(state, &stream->works, false);
}

/* ---- passes by the calls that issue more ---- */

/* Chooses the work at places 1, 2, 4, ... from the oldest on, and the newest. */
void cudriver_pass_begin(CoreState *state, struct cudriver_issue *issue)
{
    struct cudriver_queue *queue = issue->queue;
    TransferObject *work = queue->first;

    issue->asks = issue->ended = 0;
    issue->due = queue->added > queue->remained + REAP_AFTER ? queue->added : 0;
    queue->added -= issue->due;
    if (issue->due == 0 || work == NULL || queue == &state->works.loose) {
        return;
    }
    for (int place = 1; work->next != NULL && issue->asks < CUDRIVER_ISSUE_ASKS - 1; place++) {
        if (place == 1 << issue->asks) {
            issue->asked[issue->asks++] = (TransferObject *)Py_NewRef((PyObject *)work);
        }
        work = work->next;
    }
    issue->asked[issue->asks++] = (TransferObject *)Py_NewRef((PyObject *)queue->last);
}

/* What is before work that is over is over too. */
void cudriver_pass_ask(struct cudriver_issue *issue)
{
    int newest = issue->asks - 1;

    if (newest < 0) {
        return;
    }
    cudriver_driver_relax();
    if (cudriver_work_event_query(&issue->asked[newest]->event) == CUDA_SUCCESS) {
        issue->ended = issue->asks;
    } else {
        while (issue->ended < newest &&
               cudriver_work_event_query(&issue->asked[issue->ended]->event) == CUDA_SUCCESS) {
            issue->ended++;
        }
    }
    cudriver_driver_restore();
}

void cudriver_pass_drop(struct cudriver_issue *issue)
{
    while (issue->asks > 0) {
        Py_DECREF(issue->asked[--issue->asks]);
    }
}

/* Now and then all work is asked. */
void cudriver_pass_end(CoreState *state, struct cudriver_issue *issue)
{
    struct cudriver_queue *queue = issue->queue;
    TransferObject *newest = issue->ended > 0 ? issue->asked[issue->ended - 1] : NULL;
    TransferObject *ended = NULL, **last = &ended;

    while (newest != NULL && newest->queue == queue) {
        TransferObject *work = queue->first;
        cudriver_work_leave(state, work, CUDA_SUCCESS);
        *last = work;
        last = &work->next;
    }
    cudriver_pass_drop(issue);
    works_let_go(ended);
    if (issue->due > 0 && queue == &state->works.loose) {
        works_reap(state, queue, false);
    }
    if (issue->due > 0 && ++state->works.passes % REAP_ALL == 0) {
        works_reap(state, NULL, true);
    }
}

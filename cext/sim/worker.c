/*
 * The engine below streams: a queue of operations for each, and a thread that starts with the first
 * operation and sleeps while the queue is empty.
 *
 * An operation starts when those before it in its stream are done and the other streams have
 * reached the points for which it waits. The NULL stream is ordered with the blocking streams of
 * its context: an operation on it waits for all that was issued on them before, and they wait for
 * it.
 */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How often a sleeping operation checks whether the process exits. */
#define SLEEP_SLICE_NS 10000000ull
#define LEAVE_SECONDS 2 /* how long exit waits for the workers */

/* ---- waits ---- */

CUresult sim_waits_add(struct sim_waits *waits, struct sim_stream *stream,
                       unsigned long long sequence)
{
    if (stream->done >= sequence) {
        return CUDA_SUCCESS;
    }
    if (waits->count == waits->room) {
        size_t room = waits->room == 0 ? 4 : waits->room * 2;
        struct sim_wait *items = realloc(waits->items, room * sizeof *items);
        if (items == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        waits->items = items;
        waits->room = room;
    }
    sim_object_hold(stream);
    waits->items[waits->count++] = (struct sim_wait){stream, sequence};
    return CUDA_SUCCESS;
}

void sim_waits_drop(struct sim_waits *waits)
{
    for (size_t i = 0; i < waits->count; i++) {
        sim_object_drop(waits->items[i].stream);
    }
    free(waits->items);
    memset(waits, 0, sizeof *waits);
}

void sim_stream_wait(struct sim_stream *stream, unsigned long long sequence)
{
    sim_object_hold(stream);
    while (stream->done < sequence && !sim_is_down()) {
        sim_context_wait(stream->context);
    }
    sim_object_drop(stream);
}

void sim_waits_finish(struct sim_waits *waits)
{
    for (size_t i = 0; i < waits->count; i++) {
        sim_stream_wait(waits->items[i].stream, waits->items[i].sequence);
    }
    sim_waits_drop(waits);
}

/* Whether an operation on `stream` waits for those issued on `other`. */
static bool comes_after(const struct sim_stream *stream, const struct sim_stream *other)
{
    const struct sim_stream *legacy = stream->context->legacy;

    return stream != other &&
           ((stream == legacy && other->blocking) || (other == legacy && stream->blocking));
}

CUresult sim_stream_turn(const struct sim_stream *stream, struct sim_waits *waits)
{
    struct sim_stream *other = stream->context->streams;
    CUresult result = CUDA_SUCCESS;

    /* The usual case. */
    if (stream->context->pending == 0) {
        return CUDA_SUCCESS;
    }
    for (; other != NULL && result == CUDA_SUCCESS; other = other->next) {
        if (comes_after(stream, other)) {
            result = sim_waits_add(waits, other, other->issued);
        }
    }
    return result;
}

bool sim_stream_is_clear(const struct sim_stream *stream)
{
    const struct sim_stream *other = stream->context->streams;

    if (stream->context->pending == 0) {
        return true;
    }
    for (; other != NULL; other = other->next) {
        if (other->done < other->issued && (other == stream || comes_after(stream, other))) {
            return false;
        }
    }
    return true;
}

bool sim_stream_is_idle(const struct sim_stream *stream)
{
    return !sim.held && stream->capture == NULL &&
           atomic_load_explicit(&sim_knobs.latency, memory_order_relaxed) == 0 &&
           atomic_load_explicit(&sim_knobs.late, memory_order_relaxed) == 0 &&
           sim_stream_is_clear(stream);
}

static CUresult settle(struct sim_context *context, bool all)
{
    struct sim_waits waits = {0};
    CUresult result = CUDA_SUCCESS;

    if (context->pending == 0) {
        return CUDA_SUCCESS;
    }
    for (struct sim_stream *stream = context->streams; stream != NULL && result == CUDA_SUCCESS;
         stream = stream->next) {
        if (all || stream->blocking || stream == context->legacy) {
            result = sim_waits_add(&waits, stream, stream->issued);
        }
    }
    if (result == CUDA_SUCCESS) {
        sim_waits_finish(&waits);
    }
    sim_waits_drop(&waits);
    if (result == CUDA_SUCCESS && sim_is_down()) {
        result = CUDA_ERROR_DEINITIALIZED;
    }
    return result;
}

CUresult sim_stream_settle(struct sim_context *context)
{
    return settle(context, false);
}

CUresult sim_stream_settle_all(struct sim_context *context)
{
    return settle(context, true);
}

CUresult sim_stream_settle_device(struct sim_context *context)
{
    CUresult result = CUDA_SUCCESS;

    for (uint32_t i = 0; i < sim_object_slots(KIND_CONTEXT) && result == CUDA_SUCCESS; i++) {
        struct sim_context *other = sim_object_at(KIND_CONTEXT, i);
        if (other != NULL && other->device == context->device && other->pending > 0) {
            sim_object_hold(other);
            result = sim_stream_settle_all(other);
            sim_object_drop(other);
        }
    }
    return result;
}

void sim_stream_unlink(struct sim_stream *stream)
{
    if (stream->unlinked) {
        return;
    }
    stream->unlinked = true;
    if (stream->previous != NULL) {
        stream->previous->next = stream->next;
    } else {
        stream->context->streams = stream->next;
    }
    if (stream->next != NULL) {
        stream->next->previous = stream->previous;
    }
}

/* ---- the worker ---- */

void sim_stream_cost(size_t bytes, const struct sim_context *context)
{
    unsigned long long bandwidth = atomic_load_explicit(&sim_knobs.bandwidth, memory_order_relaxed);
    unsigned long long left = atomic_load_explicit(&sim_knobs.latency, memory_order_relaxed) * 1000;

    (void)context;
    if (bytes != 0) {
        left += atomic_load_explicit(&sim_knobs.late, memory_order_relaxed) * 1000;
    }
    if (bandwidth != 0) {
        left += (unsigned long long)((double)bytes / (double)bandwidth * 1e9);
    }
    while (left > 0 && !sim_is_down()) {
        unsigned long long slice = left < SLEEP_SLICE_NS ? left : SLEEP_SLICE_NS;
        struct timespec pause = {.tv_sec = 0, .tv_nsec = (long)slice};
        nanosleep(&pause, NULL);
        left -= slice;
    }
}

/* Without the monitor. Does an operation's work. `broken` is its context's state. */
static CUresult op_run(struct sim_stream *stream, struct sim_op *op, CUresult broken)
{
    CUresult result = broken;

    if (result == CUDA_SUCCESS) {
        sim_stream_cost(op->bytes, stream->context);
        result = sim_fault_operation();
    }
    if (result == CUDA_SUCCESS && op->run != NULL) {
        result = op->run(stream, op);
    }
    return result;
}

static void op_free(struct sim_op *op)
{
    sim_waits_drop(&op->waits);
    free(op);
}

/* In the monitor, given up meanwhile. Waits until the operation may start. False: at exit. */
static bool worker_await(struct sim_stream *stream, struct sim_op *op)
{
    sim_waits_finish(&op->waits);
    while (sim.held && !op->instant && sim.steps == 0 && !sim_is_down()) {
        pthread_cond_wait(&stream->work, &sim.lock);
    }
    if (sim_is_down()) {
        return false;
    }
    if (sim.held && !op->instant) {
        sim.steps--;
    }
    return true;
}

static void *worker_main(void *argument)
{
    struct sim_stream *stream = argument;

    sim_lock();
    for (;;) {
        struct sim_op *op = stream->head;
        CUresult result;
        if (sim_is_down()) {
            break;
        }
        if (op == NULL) {
            if (stream->closing) {
                break;
            }
            pthread_cond_wait(&stream->work, &sim.lock);
            continue;
        }
        if (!worker_await(stream, op)) {
            break;
        }
        CUresult broken = sim_context_state(stream->context);
        sim_unlock();
        result = op_run(stream, op, broken);
        sim_lock();
        /* What only inherited the error does not break a device that was fixed meanwhile. */
        if (result != broken && sim_context_state(stream->context) == CUDA_SUCCESS) {
            sim_context_break(stream->context, result);
        }
        if (op->finish != NULL) {
            op->finish(stream, op, true);
        }
        stream->head = op->next;
        if (stream->head == NULL) {
            stream->tail = NULL;
        }
        stream->done = op->sequence;
        stream->context->pending--;
        sim_context_wake(stream->context);
        op_free(op);
    }
    if (stream->closing) {
        sim_stream_unlink(stream);
    }
    sim.workers--;
    pthread_cond_broadcast(&sim.worker_gone);
    sim_object_drop(stream);
    sim_unlock();
    return NULL;
}

void sim_stream_wake_all(void)
{
    for (uint32_t i = 0; i < sim_object_slots(KIND_CONTEXT); i++) {
        struct sim_context *context = sim_object_at(KIND_CONTEXT, i);
        if (context == NULL) {
            continue;
        }
        for (struct sim_stream *stream = context->streams; stream != NULL; stream = stream->next) {
            pthread_cond_broadcast(&stream->work);
        }
        pthread_cond_broadcast(&context->done);
    }
}

/* At exit: wakes all workers and waits a while for them to end. */
static void workers_end(void)
{
    struct timespec limit;

    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += LEAVE_SECONDS;
    sim_lock();
    sim_stream_wake_all();
    while (sim.workers > 0) {
        /* A worker may be stuck in the user's function, waiting for something that is gone. */
        if (pthread_cond_timedwait(&sim.worker_gone, &sim.lock, &limit) == ETIMEDOUT) {
            break;
        }
    }
    sim_unlock();
}

/* In the monitor. Starts the stream's thread if it has none, with all signals blocked.
 * OPERATING_SYSTEM if the system refuses a thread, as at a limit of processes. (A real driver
 * starts its threads in cuInit and with a context; its streams need none.) */
static CUresult worker_start(struct sim_stream *stream)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_t thread;
    int error;

    if (stream->worker) {
        return CUDA_SUCCESS;
    }
    sim_object_hold(stream);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    error = pthread_create(&thread, &attributes, worker_main, stream);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        sim_object_drop(stream);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    stream->worker = true;
    sim.workers++;
    sim.end_workers = workers_end;
    return CUDA_SUCCESS;
}

/* ---- operations ---- */

void *sim_op_new(size_t bytes)
{
    return calloc(1, bytes);
}

void sim_op_drop(struct sim_op *op)
{
    if (op == NULL) {
        return;
    }
    if (op->finish != NULL) {
        op->finish(NULL, op, false);
    }
    op_free(op);
}

CUresult sim_stream_issue(struct sim_stream *stream, struct sim_op *op)
{
    CUresult result = sim_context_state(stream->context);

    if (stream->capture != NULL) {
        sim_waits_drop(&op->waits);
        return sim_capture_add(stream, op);
    }

    if (result == CUDA_SUCCESS && !stream->context->active) {
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (result == CUDA_SUCCESS) {
        result = sim_stream_turn(stream, &op->waits);
    }
    if (result == CUDA_SUCCESS) {
        result = worker_start(stream);
    }
    if (result != CUDA_SUCCESS) {
        sim_op_drop(op);
        return result;
    }
    op->sequence = ++stream->issued;
    if (stream->tail != NULL) {
        stream->tail->next = op;
    } else {
        stream->head = op;
    }
    stream->tail = op;
    stream->context->pending++;
    pthread_cond_signal(&stream->work);
    return CUDA_SUCCESS;
}

CUresult sim_stream_issue_and_wait(struct sim_stream *stream, struct sim_op *op)
{
    struct sim_context *context = stream->context;
    CUresult result;

    sim_object_hold(stream);
    if (!sim.held && op->waits.count == 0 && sim_stream_is_clear(stream) && context->active) {
        sim_context_work_begin(context);
        result = sim_context_state(context);
        sim_unlock();
        result = op_run(stream, op, result);
        sim_lock();
        if (result != CUDA_SUCCESS && sim_context_state(context) == CUDA_SUCCESS) {
            sim_context_break(context, result);
        }
        if (op->finish != NULL) {
            op->finish(stream, op, true);
        }
        op_free(op);
        sim_context_work_end(context);
    } else {
        result = sim_stream_issue(stream, op);
        if (result == CUDA_SUCCESS) {
            sim_stream_wait(stream, stream->issued);
            result = sim_is_down() ? CUDA_ERROR_DEINITIALIZED : sim_context_state(context);
        }
    }
    sim_object_drop(stream);
    return result;
}

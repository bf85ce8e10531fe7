/*
 * Streams: queues of operations, each with a thread of its own that starts with the first operation
 * and sleeps while there is none.
 *
 * An operation starts when those before it in its stream are done, and the points in other streams
 * that it waits for are passed. The NULL stream takes turns with the blocking streams of its
 * context: what is put on it comes after all that they were given before, and what they are given
 * later comes after it.
 */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GREATEST_PRIORITY (-5)
#define SLEEP_SLICE_NS \
    10000000ull         /* how soon a sleeping operation notices the end of the process */
#define LEAVE_SECONDS 2 /* at exit, for workers to leave */

/* ---- points to wait for ---- */

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

/* Whether an operation on `stream` comes after what `other` has been given. */
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

    /* Most often nothing is under way. */
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

static bool turn_has_come(const struct sim_stream *stream)
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
    return !sim.held && atomic_load_explicit(&sim_knobs.latency, memory_order_relaxed) == 0 &&
           turn_has_come(stream);
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

/* Takes a stream out of its context's list; once only. */
static void stream_unlink(struct sim_stream *stream)
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

/* Does an operation's work, without the monitor. `broken` is its context's state. */
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

/* In the monitor, given up meanwhile. Waits until the operation may start; false at exit. */
static bool worker_await(struct sim_stream *stream, struct sim_op *op)
{
    sim_waits_finish(&op->waits);
    while (sim.held && sim.steps == 0 && !sim_is_down()) {
        pthread_cond_wait(&stream->work, &sim.lock);
    }
    if (sim_is_down()) {
        return false;
    }
    if (sim.held) {
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
        result = sim_context_state(stream->context);
        sim_unlock();
        result = op_run(stream, op, result);
        sim_lock();
        if (result != CUDA_SUCCESS && sim_context_state(stream->context) == CUDA_SUCCESS) {
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
        stream_unlink(stream);
    }
    sim.workers--;
    pthread_cond_broadcast(&sim.worker_gone);
    sim_object_drop(stream);
    sim_unlock();
    return NULL;
}

/* In the monitor. Starts the stream's thread where it has none. Signals are the program's threads'.
 */
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
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->worker = true;
    sim.workers++;
    return CUDA_SUCCESS;
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

void sim_stream_shut_down(void)
{
    struct timespec limit;

    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += LEAVE_SECONDS;
    sim_lock();
    sim_stream_wake_all();
    while (sim.workers > 0) {
        /* A worker may sit in the user's function, which waits for something that is gone. */
        if (pthread_cond_timedwait(&sim.worker_gone, &sim.lock, &limit) == ETIMEDOUT) {
            break;
        }
    }
    sim_unlock();
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
    if (!sim.held && op->waits.count == 0 && turn_has_come(stream) && context->active) {
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

/* ---- streams ---- */

static struct sim_stream *stream_new(struct sim_context *context)
{
    struct sim_stream *stream = sim_object_new(KIND_STREAM, sizeof *stream);

    if (stream == NULL) {
        return NULL;
    }
    pthread_cond_init(&stream->work, NULL);
    sim_object_hold(context);
    stream->context = context;
    stream->next = context->streams;
    if (stream->next != NULL) {
        stream->next->previous = stream;
    }
    context->streams = stream;
    return stream;
}

/* The handle is gone; the work goes on, and the context's list keeps the stream until it is done.
 */
static void stream_close(struct sim_stream *stream)
{
    stream->closing = true;
    pthread_cond_broadcast(&stream->work);
    if (!stream->worker || stream->done == stream->issued) {
        stream_unlink(stream);
    }
    sim_object_close(stream);
}

void sim_stream_forget(struct sim_context *context)
{
    for (struct sim_stream *stream = context->streams; stream != NULL; stream = context->streams) {
        sim_object_hold(stream);
        stream_unlink(stream);
        sim_object_orphan(stream);
        stream->closing = true;
        pthread_cond_broadcast(&stream->work);
        sim_object_drop(stream);
    }
    context->legacy = NULL;
    context->per_thread = NULL;
}

long long sim_stream_live(bool pending)
{
    long long sum = 0;

    for (uint32_t i = 0; i < sim_object_slots(KIND_STREAM); i++) {
        struct sim_stream *stream = sim_object_at(KIND_STREAM, i);
        if (stream != NULL && !pending) {
            sum += !stream->implicit;
        }
    }
    for (uint32_t i = 0; pending && i < sim_object_slots(KIND_CONTEXT); i++) {
        struct sim_context *context = sim_object_at(KIND_CONTEXT, i);
        sum += context != NULL ? (long long)context->pending : 0;
    }
    return sum;
}

static CUresult implicit_stream(struct sim_context *context, struct sim_stream **place,
                                bool blocking, struct sim_stream **stream)
{
    if (*place == NULL) {
        *place = stream_new(context);
        if (*place == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        (*place)->implicit = true;
        (*place)->blocking = blocking;
    }
    *stream = *place;
    return CUDA_SUCCESS;
}

CUresult sim_stream_of(CUstream handle, struct sim_context *context, struct sim_stream **stream)
{
    struct sim_stream *found;

    /* CU_STREAM_LEGACY is 1, CU_STREAM_PER_THREAD 2. */
    if (handle == NULL || (uintptr_t)handle == 1) {
        return implicit_stream(context, &context->legacy, false, stream);
    }
    if ((uintptr_t)handle == 2) {
        return implicit_stream(context, &context->per_thread, true, stream);
    }
    found = sim_object_find(KIND_STREAM, handle);
    if (found == NULL) {
        return sim_object_missing(KIND_STREAM, handle);
    }
    if (!found->context->active) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *stream = found;
    return sim_context_state(found->context);
}

CUresult sim_enter_stream(enum sim_call call, CUstream handle, struct sim_stream **stream)
{
    CUresult result = sim_enter(call);
    struct sim_context *context = NULL;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_lock();
    if ((uintptr_t)handle <= 2) {
        result = sim_context_current(&context);
    }
    if (result == CUDA_SUCCESS) {
        result = sim_stream_of(handle, context, stream);
    }
    if (result != CUDA_SUCCESS) {
        sim_unlock();
    }
    return result;
}

CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned int flags, int priority)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuStreamCreateWithPriority, &context);
    struct sim_stream *stream;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    stream = stream_new(context);
    if (stream == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    stream->blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
    if (priority > 0) {
        priority = 0;
    } else if (priority < GREATEST_PRIORITY) {
        priority = GREATEST_PRIORITY;
    }
    stream->priority = priority;
    *handle = sim_object_handle(stream);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
    CUresult result = sim_enter(CALL_cuStreamDestroy_v2);
    struct sim_stream *stream;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_lock();
    stream = sim_object_find(KIND_STREAM, handle);
    if (stream == NULL || stream->implicit) {
        return sim_leave(sim_object_missing(KIND_STREAM, handle));
    }
    if (!stream->context->active) {
        return sim_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    /* In a broken context the error is told, and the stream goes. */
    result = sim_context_state(stream->context);
    stream_close(stream);
    return sim_leave(result);
}

CUresult cuStreamQuery(CUstream handle)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuStreamQuery, handle, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream->done < stream->issued ||
        (stream == stream->context->legacy && !turn_has_come(stream))) {
        return sim_leave(CUDA_ERROR_NOT_READY);
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    struct sim_context *context;
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuStreamSynchronize, handle, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    context = stream->context;
    sim_object_hold(context);
    if (stream == context->legacy) {
        result = sim_stream_settle(context);
    } else {
        sim_stream_wait(stream, stream->issued);
        result = sim_is_down() ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS && context->active) {
        sim_pool_settle(context->device);
    }
    if (result == CUDA_SUCCESS) {
        result = sim_context_state(context);
    }
    sim_object_drop(context);
    return sim_leave(result);
}

CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuStreamGetPriority, handle, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (priority == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *priority = stream->priority;
    return sim_leave(CUDA_SUCCESS);
}

/* ---- the user's function ---- */

struct host_op {
    struct sim_op op;
    CUhostFn function;
    void *data;
};

static CUresult host_run(struct sim_stream *stream, struct sim_op *op)
{
    struct host_op *host = (struct host_op *)op;

    (void)stream;
    sim_mark_callback(true);
    host->function(host->data);
    sim_mark_callback(false);
    return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuLaunchHostFunc, handle, &stream);
    struct host_op *host;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (function == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    host = sim_op_new(sizeof *host);
    if (host == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    host->op.run = host_run;
    host->function = function;
    host->data = data;
    return sim_leave(sim_stream_issue(stream, &host->op));
}

/* ---- values in memory ---- */

#define WAIT_AND 0x2
#define WAIT_NOR 0x3
#define WAIT_FLUSH 0x40000000u
#define WRITE_NO_MEMORY_BARRIER 0x1u

struct value_op {
    struct sim_op op;
    CUdeviceptr address;
    uint32_t value;
    unsigned condition;
};

static bool value_matches(uint32_t seen, uint32_t value, unsigned condition)
{
    switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return (int32_t)(seen - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return seen == value;
    case WAIT_AND:
        return (seen & value) != 0;
    default:
        return (seen | value) != UINT32_MAX;
    }
}

/* Memory tells nobody when it changes: this looks, and sleeps ever longer between. */
static CUresult value_wait(struct sim_stream *stream, struct sim_op *op)
{
    struct value_op *wait = (struct value_op *)op;
    struct timespec pause = {.tv_sec = 0, .tv_nsec = 2000};
    struct sim_pin pin;
    CUresult result;
    bool over = false;

    (void)stream;
    while (!over) {
        sim_lock();
        if (sim_is_down()) {
            return sim_leave(CUDA_ERROR_DEINITIALIZED); /* what comes after does not run */
        }
        result = sim_memory_pin(wait->address, sizeof wait->value, &pin);
        sim_unlock();
        if (result != CUDA_SUCCESS) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        over = value_matches(__atomic_load_n((uint32_t *)(void *)pin.bytes, __ATOMIC_ACQUIRE),
                             wait->value, wait->condition);
        sim_lock();
        sim_memory_unpin(&pin);
        sim_unlock();
        if (!over) {
            nanosleep(&pause, NULL);
            if (pause.tv_nsec < 500000) {
                pause.tv_nsec *= 2;
            }
        }
    }
    return CUDA_SUCCESS;
}

static CUresult value_write(struct sim_stream *stream, struct sim_op *op)
{
    struct value_op *write = (struct value_op *)op;
    struct sim_pin pin;
    CUresult result;

    (void)stream;
    sim_lock();
    result = sim_memory_pin(write->address, sizeof write->value, &pin);
    sim_unlock();
    if (result != CUDA_SUCCESS) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    __atomic_store_n((uint32_t *)(void *)pin.bytes, write->value, __ATOMIC_RELEASE);
    sim_lock();
    sim_memory_unpin(&pin);
    sim_unlock();
    return CUDA_SUCCESS;
}

/* Puts a value operation on a stream; in the monitor. */
static CUresult value_issue(struct sim_stream *stream, CUdeviceptr address, uint32_t value,
                            unsigned condition,
                            CUresult (*run)(struct sim_stream *stream, struct sim_op *op))
{
    struct value_op *op;
    CUresult result;

    if (address % sizeof value != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = sim_memory_check(address, sizeof value);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    op = sim_op_new(sizeof *op);
    if (op == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->op.run = run;
    op->address = address;
    op->value = value;
    op->condition = condition;
    return sim_stream_issue(stream, &op->op);
}

CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value,
                                unsigned int flags)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuStreamWaitValue32_v2, handle, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((flags & ~WAIT_FLUSH) > WAIT_NOR) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(value_issue(stream, address, value, flags & ~WAIT_FLUSH, value_wait));
}

CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuStreamWriteValue32_v2, handle, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((flags & ~WRITE_NO_MEMORY_BARRIER) != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(value_issue(stream, address, value, 0, value_write));
}

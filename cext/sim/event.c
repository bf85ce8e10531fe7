/* Events: a point in a stream, and the time when the stream reached it. */
#define _GNU_SOURCE
#include "sim.h"

#include <time.h>

struct event {
    struct sim_object object;
    struct sim_context *context; /* holds a reference */
    unsigned flags;
    struct sim_stream *stream;   /* of the last record; holds a reference; NULL: never recorded */
    unsigned long long sequence; /* of the record in the stream */
    unsigned long long time;     /* nanoseconds, when the stream reached it */
    struct sim_capture *capture; /* holds a reference: the last record was in this capture */
};

struct event_op {
    struct sim_op op;
    struct event *event; /* holds a reference */
};

static unsigned long long now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

static bool event_is_done(const struct event *event)
{
    return event->stream == NULL || event->stream->done >= event->sequence;
}

static void event_set_point(struct event *event, struct sim_stream *stream,
                            unsigned long long sequence)
{
    sim_object_hold(stream);
    if (event->stream != NULL) {
        sim_object_drop(event->stream);
    }
    event->stream = stream;
    event->sequence = sequence;
    sim_capture_hold(stream->capture);
    sim_capture_drop(event->capture);
    event->capture = stream->capture;
}

static void event_close(struct event *event, bool orphaned)
{
    if (event->stream != NULL) {
        sim_object_drop(event->stream);
        event->stream = NULL;
    }
    sim_capture_drop(event->capture);
    event->capture = NULL;
    sim_object_drop(event->context);
    event->context = NULL;
    if (orphaned) {
        sim_object_orphan(event);
    } else {
        sim_object_close(event);
    }
}

static void event_forget(struct sim_context *context)
{
    for (uint32_t i = 0; i < sim_object_slots(KIND_EVENT); i++) {
        struct event *event = sim_object_at(KIND_EVENT, i);
        if (event != NULL && event->context == context) {
            event_close(event, true);
        }
    }
}

static __attribute__((constructor)) void join(void)
{
    sim_context_on_end(FORGET_EVENTS, event_forget);
}

/* Begins a call on an event; needs no current context. On success the monitor is held. */
static CUresult event_enter(enum sim_call call, CUevent handle, struct event **event)
{
    CUresult result = sim_enter(call);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_lock();
    *event = sim_object_find(KIND_EVENT, handle);
    if (*event == NULL) {
        return sim_leave(sim_object_missing(KIND_EVENT, handle));
    }
    if (!(*event)->context->active) {
        return sim_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *handle, unsigned int flags)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuEventCreate, &context);
    struct event *event;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL ||
        (flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    event = sim_object_new(KIND_EVENT, sizeof *event);
    if (event == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    sim_object_hold(context);
    event->context = context;
    event->flags = flags;
    *handle = sim_object_handle(event);
    return sim_leave(CUDA_SUCCESS);
}

/* Operations that use the event still complete. */
CUresult cuEventDestroy_v2(CUevent handle)
{
    struct event *event;
    CUresult result = event_enter(CALL_cuEventDestroy_v2, handle, &event);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    /* In a broken context the call returns the error and frees the event. */
    result = sim_context_state(event->context);
    event_close(event, false);
    return sim_leave(result);
}

static void event_finish(struct sim_stream *stream, struct sim_op *op, bool issued)
{
    struct event *event = ((struct event_op *)op)->event;

    /* The event may have been recorded again since. */
    if (issued && event->stream == stream && event->sequence == op->sequence) {
        event->time = now_ns();
    }
    sim_object_drop(event);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuEventRecord, stream_handle, &stream);
    struct event *event;
    struct event_op *record;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    event = sim_object_find(KIND_EVENT, handle);
    if (event == NULL) {
        return sim_leave(sim_object_missing(KIND_EVENT, handle));
    }
    if (stream->context != event->context) {
        return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    if (stream->capture != NULL) {
        event_set_point(event, stream, stream->captured);
        return sim_leave(CUDA_SUCCESS);
    }
    if (sim_stream_is_idle(stream)) {
        event_set_point(event, stream, stream->issued);
        event->time = now_ns();
        return sim_leave(CUDA_SUCCESS);
    }
    record = sim_op_new(sizeof *record);
    if (record == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    sim_object_hold(event);
    record->op.finish = event_finish;
    record->event = event;
    result = sim_stream_issue(stream, &record->op);
    if (result == CUDA_SUCCESS) {
        event_set_point(event, stream, stream->issued);
    }
    return sim_leave(result);
}

CUresult cuEventQuery(CUevent handle)
{
    struct event *event;
    CUresult result = event_enter(CALL_cuEventQuery, handle, &event);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = sim_capture_event(event->capture);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    result = sim_context_state(event->context);
    if (result == CUDA_SUCCESS && !event_is_done(event)) {
        result = CUDA_ERROR_NOT_READY;
    }
    return sim_leave(result);
}

CUresult cuEventSynchronize(CUevent handle)
{
    struct event *event;
    CUresult result = event_enter(CALL_cuEventSynchronize, handle, &event);
    struct sim_context *context;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = sim_capture_event(event->capture);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    context = event->context;
    sim_object_hold(context);
    if (!event_is_done(event)) {
        sim_stream_wait(event->stream, event->sequence);
    }
    if (context->active) {
        sim_pool_settle(context->device);
    }
    result = sim_is_down() ? CUDA_ERROR_DEINITIALIZED : sim_context_state(context);
    sim_object_drop(context);
    return sim_leave(result);
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start_handle, CUevent end_handle)
{
    struct event *start, *end;
    CUresult result = event_enter(CALL_cuEventElapsedTime, start_handle, &start);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    end = sim_object_find(KIND_EVENT, end_handle);
    if (end == NULL || start->stream == NULL || end->stream == NULL ||
        start->context != end->context ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
        return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    if (milliseconds == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (sim_context_state(start->context) != CUDA_SUCCESS) {
        return sim_leave(sim_context_state(start->context));
    }
    if (start->capture != NULL || end->capture != NULL) {
        return sim_leave(CUDA_ERROR_CAPTURED_EVENT);
    }
    if (!event_is_done(start) || !event_is_done(end)) {
        return sim_leave(CUDA_ERROR_NOT_READY);
    }
    *milliseconds = (float)(((double)end->time - (double)start->time) / 1e6);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuStreamWaitEvent, stream_handle, &stream);
    struct event *event;
    struct sim_op *op;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    event = sim_object_find(KIND_EVENT, handle);
    if (event == NULL) {
        return sim_leave(sim_object_missing(KIND_EVENT, handle));
    }
    if (flags > 1) { /* 1: CU_EVENT_WAIT_EXTERNAL */
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (stream->capture != NULL || event->capture != NULL) {
        return sim_leave(sim_capture_join(stream, event->capture, event->stream, event->sequence));
    }
    /* Already reached, never recorded, or recorded in this stream: nothing to wait for. */
    if (event_is_done(event) || event->stream == stream) {
        return sim_leave(CUDA_SUCCESS);
    }
    op = sim_op_new(sizeof *op);
    if (op == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    result = sim_waits_add(&op->waits, event->stream, event->sequence);
    if (result != CUDA_SUCCESS) {
        sim_op_drop(op);
        return sim_leave(result);
    }
    return sim_leave(sim_stream_issue(stream, op));
}

/* ---- waiting for more than an event ---- */

CUresult cuCtxSynchronize(void)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuCtxSynchronize, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = sim_capture_context(context);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    sim_object_hold(context);
    result = sim_stream_settle_all(context);
    if (result == CUDA_SUCCESS && context->active) {
        sim_pool_settle(context->device);
    }
    if (result == CUDA_SUCCESS) {
        result = sim_context_state(context);
    }
    sim_object_drop(context);
    return sim_leave(result);
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

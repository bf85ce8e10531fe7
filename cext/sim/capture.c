/*
 * The capture of streams.
 *
 * A capture begins in one stream and spreads to those that wait for an event recorded in it. A call
 * that is not permitted breaks it: from then on its streams answer CAPTURE_INVALIDATED, until the
 * end of the capture takes them out of it.
 */
#include "sim.h"

#include <stdlib.h>

struct sim_capture {
    unsigned references;
    const void *thread; /* the thread that began it: the address of its `thread_mode` */
    CUstreamCaptureMode mode;
    struct sim_stream *origin; /* borrowed */
    struct sim_graph *graph;   /* holds a reference */
    cuuint64_t id;
    bool broken;
    bool over;
    struct sim_capture *next;
};

static struct sim_capture *captures; /* those that are not over */
static atomic_uint capture_count;
static cuuint64_t last_id;
static _Thread_local CUstreamCaptureMode thread_mode;

/* ---- the rules of a capture ---- */

static bool capturing(void)
{
    return atomic_load_explicit(&capture_count, memory_order_relaxed) != 0;
}

/* Calls that take effect at once, which a replay of the graph would miss: forbidden to a thread
 * that captures, and to every thread during a global capture. */
static bool call_is_unsafe(enum sim_call call)
{
    switch (call) {
    case CALL_cuMemAlloc_v2:
    case CALL_cuMemFree_v2:
    case CALL_cuMemHostAlloc:
    case CALL_cuMemFreeHost:
    case CALL_cuMemHostRegister_v2:
    case CALL_cuMemHostUnregister:
    case CALL_cuMemPoolCreate:
    case CALL_cuMemPoolDestroy:
    case CALL_cuMemPoolGetAttribute:
    case CALL_cuMemPoolSetAttribute:
    case CALL_cuMemPoolTrimTo:
    case CALL_cuModuleUnload:
    case CALL_cuCtxSetLimit:
    case CALL_cuGraphExecDestroy:
        return true;
    default:
        return false;
    }
}

/* The same for calls on a stream or an event, which is looked at first. */
static bool call_is_unsafe_there(enum sim_call call)
{
    switch (call) {
    case CALL_cuMemAllocFromPoolAsync:
    case CALL_cuMemFreeAsync:
    case CALL_cuStreamQuery:
    case CALL_cuStreamSynchronize:
    case CALL_cuEventQuery:
    case CALL_cuEventSynchronize:
        return true;
    default:
        return false;
    }
}

/* In the monitor. Breaks the captures that an unsafe call of this thread would spoil. */
static CUresult thread_refuse(void)
{
    bool forbidden = false;

    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    for (struct sim_capture *capture = captures; capture != NULL; capture = capture->next) {
        bool here = capture->thread == &thread_mode;
        if (here ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                 : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                       thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
            capture->broken = true;
            forbidden = true;
        }
    }
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* Whether the thread may make the call now: breaks the captures that it would spoil. */
static CUresult capture_permits(enum sim_call call)
{
    if (!capturing() || !call_is_unsafe(call)) {
        return CUDA_SUCCESS;
    }
    sim_lock();
    return sim_leave(thread_refuse());
}

CUresult sim_capture_event(struct sim_capture *capture)
{
    if (capture != NULL) {
        capture->broken = true;
        return capture->over ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_CAPTURED_EVENT;
    }
    return capturing() ? thread_refuse() : CUDA_SUCCESS;
}

/* Whether a stream of the context is being captured; `blocking`: one that the NULL stream waits
 * for. Breaks its capture if told to. */
static bool context_captures(struct sim_context *context, bool blocking, bool breaks)
{
    bool found = false;

    if (!capturing()) {
        return false;
    }
    for (struct sim_stream *stream = context->streams; stream != NULL; stream = stream->next) {
        if (stream->capture != NULL && (stream->blocking || !blocking)) {
            stream->capture->broken |= breaks;
            found = true;
        }
    }
    return found;
}

CUresult sim_capture_legacy(struct sim_context *context)
{
    return context_captures(context, true, true) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                                                 : CUDA_SUCCESS;
}

CUresult sim_capture_context(struct sim_context *context)
{
    return context_captures(context, false, true) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                  : CUDA_SUCCESS;
}

CUresult sim_capture_stream(enum sim_call call, struct sim_stream *stream)
{
    if (!capturing()) {
        return CUDA_SUCCESS;
    }
    switch (call) {
    case CALL_cuStreamGetCtx:
    case CALL_cuStreamGetCtx_v2:
    case CALL_cuStreamGetPriority:
    case CALL_cuStreamEndCapture:
        return CUDA_SUCCESS;
    case CALL_cuStreamIsCapturing:
    case CALL_cuStreamGetCaptureInfo_v2:
        return stream == stream->context->legacy && context_captures(stream->context, true, false)
                   ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                   : CUDA_SUCCESS;
    default:
        break;
    }
    if (stream == stream->context->legacy && context_captures(stream->context, true, true)) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture == NULL) {
        return call_is_unsafe_there(call) ? thread_refuse() : CUDA_SUCCESS;
    }
    if (stream->capture->broken) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    switch (call) {
    case CALL_cuStreamQuery:
    case CALL_cuStreamSynchronize:
    case CALL_cuStreamGetFlags:
    case CALL_cuStreamGetId:
    case CALL_cuMemcpyPeerAsync:
    case CALL_cuGraphLaunch:
        return sim_capture_refuse(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    case CALL_cuMemAllocFromPoolAsync:
        return CUDA_ERROR_NOT_SUPPORTED; /* a memory node */
    case CALL_cuMemFreeAsync:
        return CUDA_ERROR_INVALID_VALUE; /* only memory that the graph allocates */
    default:
        return CUDA_SUCCESS;
    }
}

/* ---- what is captured ---- */

void sim_capture_hold(struct sim_capture *capture)
{
    if (capture != NULL) {
        capture->references++;
    }
}

void sim_capture_drop(struct sim_capture *capture)
{
    if (capture != NULL && --capture->references == 0) {
        sim_object_drop(capture->graph);
        free(capture);
    }
}

CUresult sim_capture_add(struct sim_stream *stream, struct sim_op *op)
{
    struct sim_graph *graph = stream->capture->graph;

    if (graph->tail != NULL) {
        graph->tail->next = op;
    } else {
        graph->head = op;
    }
    graph->tail = op;
    graph->count++;
    stream->captured++;
    stream->unjoined = stream != stream->capture->origin;
    return CUDA_SUCCESS;
}

static void capture_break(struct sim_capture *capture)
{
    if (capture != NULL) {
        capture->broken = true;
    }
}

CUresult sim_capture_refuse(struct sim_capture *capture, CUresult result)
{
    capture_break(capture);
    return result;
}

CUresult sim_capture_join(struct sim_stream *stream, struct sim_capture *capture,
                          struct sim_stream *from, unsigned long long position)
{
    if (capture != NULL && capture->over) {
        return sim_capture_refuse(stream->capture, CUDA_ERROR_INVALID_VALUE);
    }
    if (capture == NULL) { /* an event of work outside the capture */
        return sim_capture_refuse(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    if (stream->capture != NULL && stream->capture != capture) {
        capture_break(capture);
        return sim_capture_refuse(stream->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (stream == stream->context->legacy) {
        return sim_capture_refuse(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    if (capture->broken) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (stream->capture == NULL) {
        sim_capture_hold(capture);
        stream->capture = capture;
        stream->captured = 0;
    }
    if (stream != from) { /* what waits for `stream` now waits for the work of `from`, too */
        bool joined = from->unjoined && from->captured == position;
        stream->captured++;
        stream->unjoined |= joined && stream != capture->origin;
        from->unjoined &= !joined;
    }
    return CUDA_SUCCESS;
}

/* Takes all streams out of a capture. Returns whether one had work that the origin did not wait
 * for. The caller holds a reference. */
static bool capture_end(struct sim_capture *capture)
{
    bool unjoined = false;

    for (uint32_t i = 0; i < sim_object_slots(KIND_STREAM); i++) {
        struct sim_stream *stream = sim_object_at(KIND_STREAM, i);
        if (stream != NULL && stream->capture == capture) {
            unjoined |= stream->unjoined;
            stream->unjoined = false;
            stream->capture = NULL;
            capture->references--; /* not the last: the caller holds one */
        }
    }
    for (struct sim_capture **link = &captures; *link != NULL; link = &(*link)->next) {
        if (*link == capture) {
            *link = capture->next;
            atomic_fetch_sub(&capture_count, 1);
            break;
        }
    }
    capture->over = true;
    return unjoined;
}

void sim_capture_lose(struct sim_stream *stream)
{
    struct sim_capture *capture = stream->capture;

    if (capture == NULL) {
        return;
    }
    capture->broken = true;
    sim_capture_hold(capture);
    if (stream == capture->origin) {
        capture_end(capture);
    } else {
        stream->capture = NULL;
        capture->references--; /* one is held here */
    }
    sim_capture_drop(capture);
}

/* ---- its begin and end ---- */

CUstreamCaptureMode sim_capture_exchange_mode(CUstreamCaptureMode mode)
{
    CUstreamCaptureMode before = thread_mode;

    thread_mode = mode;
    return before;
}

CUresult sim_capture_begin(struct sim_stream *stream, CUstreamCaptureMode mode)
{
    struct sim_capture *capture = calloc(1, sizeof *capture);

    if (capture == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->graph = sim_object_new(KIND_GRAPH, sizeof *capture->graph);
    if (capture->graph == NULL) {
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->references = 1; /* the stream's */
    capture->id = ++last_id;
    capture->thread = &thread_mode;
    capture->mode = mode;
    capture->origin = stream;
    capture->next = captures;
    captures = capture;
    atomic_fetch_add(&capture_count, 1);
    stream->capture = capture;
    stream->captured = 0;
    return CUDA_SUCCESS;
}

CUresult sim_capture_end(struct sim_stream *stream, CUgraph *graph)
{
    struct sim_capture *capture = stream->capture;
    CUresult result = CUDA_SUCCESS;

    if (capture->origin != stream) {
        return sim_capture_refuse(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    sim_capture_hold(capture);
    if (capture_end(capture)) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    if (capture->broken) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &thread_mode) {
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    if (result == CUDA_SUCCESS) {
        sim_object_hold(capture->graph);
        *graph = sim_object_handle(capture->graph);
    }
    sim_capture_drop(capture);
    return result;
}

CUstreamCaptureStatus sim_capture_status(const struct sim_stream *stream, cuuint64_t *id,
                                         CUgraph *graph)
{
    const struct sim_capture *capture = stream->capture;

    if (capture == NULL || capture->broken) {
        return capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE
                               : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    }
    if (id != NULL) {
        *id = capture->id;
    }
    if (graph != NULL) {
        *graph = sim_object_handle(capture->graph);
    }
    return CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static __attribute__((constructor)) void join(void)
{
    sim_enter_through(capture_permits);
}

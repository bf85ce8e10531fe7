/* Streams: creation, destruction, queries and waits. worker.c runs them. */
#include "sim.h"

static struct sim_stream *stream_new(struct sim_context *context)
{
    static unsigned long long last_id; /* in the monitor */
    struct sim_stream *stream = sim_object_new(KIND_STREAM, sizeof *stream);

    if (stream == NULL) {
        return NULL;
    }
    pthread_cond_init(&stream->work, NULL);
    stream->id = ++last_id;
    sim_object_hold(context);
    stream->context = context;
    stream->next = context->streams;
    if (stream->next != NULL) {
        stream->next->previous = stream;
    }
    context->streams = stream;
    return stream;
}

/* Closes the handle. The work continues; the context's list has the stream until it is done. */
static void stream_close(struct sim_stream *stream)
{
    sim_capture_lose(stream);
    stream->closing = true;
    pthread_cond_broadcast(&stream->work);
    if (!stream->worker || stream->done == stream->issued) {
        sim_stream_unlink(stream);
    }
    sim_object_close(stream);
}

static void stream_end(void *object)
{
    struct sim_stream *stream = object;

    pthread_cond_destroy(&stream->work);
    sim_object_drop(stream->context);
}

static void stream_forget(struct sim_context *context)
{
    for (struct sim_stream *stream = context->streams; stream != NULL; stream = context->streams) {
        sim_object_hold(stream);
        sim_capture_lose(stream);
        sim_stream_unlink(stream);
        sim_object_orphan(stream);
        stream->closing = true;
        pthread_cond_broadcast(&stream->work);
        sim_object_drop(stream);
    }
    context->legacy = NULL;
    context->per_thread = NULL;
}

static __attribute__((constructor)) void join(void)
{
    sim_context_on_end(FORGET_STREAMS, stream_forget);
    sim_object_on_end(KIND_STREAM, stream_end);
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
    if (result == CUDA_SUCCESS) {
        result = sim_capture_stream(call, *stream);
    }
    if (result != CUDA_SUCCESS) {
        sim_unlock();
    }
    return result;
}

CUresult sim_ask_stream(enum sim_call call, CUstream handle, const void *answer,
                        struct sim_stream **stream)
{
    CUresult result = sim_enter_stream(call, handle, stream);

    return result == CUDA_SUCCESS && answer == NULL ? sim_leave(CUDA_ERROR_INVALID_VALUE) : result;
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
    if (priority > SIM_LEAST_PRIORITY) {
        priority = SIM_LEAST_PRIORITY;
    } else if (priority < SIM_GREATEST_PRIORITY) {
        priority = SIM_GREATEST_PRIORITY;
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
    /* In a broken context the call returns the error and destroys the stream. */
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
        (stream == stream->context->legacy && !sim_stream_is_clear(stream))) {
        return sim_leave(CUDA_ERROR_NOT_READY);
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    struct sim_stream *stream;
    CUresult result = sim_ask_stream(CALL_cuStreamGetPriority, handle, priority, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    *priority = stream->priority;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
    struct sim_stream *stream;
    CUresult result = sim_ask_stream(CALL_cuStreamGetFlags, handle, flags, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    *flags = stream->blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
    struct sim_stream *stream;
    CUresult result = sim_ask_stream(CALL_cuStreamGetId, handle, id, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    *id = stream->id;
    return sim_leave(CUDA_SUCCESS);
}

/* For the two calls that return a stream's context. */
static CUresult context_of(enum sim_call call, CUstream handle, CUcontext *context)
{
    struct sim_stream *stream;
    CUresult result = sim_ask_stream(call, handle, context, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    *context = sim_object_handle(stream->context);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    return context_of(CALL_cuStreamGetCtx, handle, context);
}

/* Green contexts are not modelled. */
CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green)
{
    CUresult result = context_of(CALL_cuStreamGetCtx_v2, handle, context);

    if (result == CUDA_SUCCESS && green != NULL) {
        *green = NULL;
    }
    return result;
}

/* ---- captures ---- */

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUresult result = sim_enter(CALL_cuThreadExchangeStreamCaptureMode);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *mode = sim_capture_exchange_mode(*mode);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuStreamBeginCapture_v2, handle, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (stream == stream->context->legacy) {
        return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if (stream->capture != NULL) {
        return sim_leave(CUDA_ERROR_ILLEGAL_STATE);
    }
    return sim_leave(sim_capture_begin(stream, mode));
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuStreamEndCapture, handle, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (graph == NULL || stream->capture == NULL) {
        return sim_leave(graph == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_ILLEGAL_STATE);
    }
    *graph = NULL;
    return sim_leave(sim_capture_end(stream, graph));
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    struct sim_stream *stream;
    CUresult result = sim_ask_stream(CALL_cuStreamIsCapturing, handle, status, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    *status = sim_capture_status(stream, NULL, NULL);
    return sim_leave(CUDA_SUCCESS);
}

/* The dependencies of what is captured next are not told. */
CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
    struct sim_stream *stream;
    CUresult result = sim_ask_stream(CALL_cuStreamGetCaptureInfo_v2, handle, status, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    *status = sim_capture_status(stream, id, graph);
    if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        if (dependencies != NULL) {
            *dependencies = NULL;
        }
        if (count != NULL) {
            *count = 0;
        }
    }
    return sim_leave(CUDA_SUCCESS);
}

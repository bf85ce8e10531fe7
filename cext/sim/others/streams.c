/* Streams, callbacks and events. */
#include "others.h"

SIM_MADE_OF(cuStreamCreate, (CUstream * stream, unsigned int flags),
            cuStreamCreateWithPriority(stream, flags, 0))

CUresult cuStreamGetDevice(CUstream handle, CUdevice *device)
{
    struct sim_stream *stream;
    CUresult result = sim_ask_stream(CALL_cuStreamGetDevice, handle, device, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    *device = stream->context->device;
    return sim_leave(CUDA_SUCCESS);
}

struct callback_op {
    struct sim_op op;
    CUstreamCallback function;
    CUstream stream;
    void *data;
};

static CUresult callback_run(struct sim_stream *stream, struct sim_op *op)
{
    struct callback_op *callback = (struct callback_op *)op;

    (void)stream;
    sim_mark_callback(true);
    callback->function(callback->stream, CUDA_SUCCESS, callback->data);
    sim_mark_callback(false);
    return CUDA_SUCCESS;
}

/* In a broken context the function is not called; hardware calls it with the error. */
CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *data,
                             unsigned int flags)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuStreamAddCallback, handle, &stream);
    struct callback_op *callback;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (function == NULL || flags != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    callback = sim_op_new(sizeof *callback);
    if (callback == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    callback->op.run = callback_run;
    callback->function = function;
    callback->stream = handle;
    callback->data = data;
    return sim_leave(sim_stream_issue(stream, &callback->op));
}

SIM_MADE_OF(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags),
            (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) != 0 ? CUDA_ERROR_INVALID_VALUE
                                                               : cuEventRecord(event, stream))
SIM_MADE_OF(cuEventElapsedTime_v2, (float *milliseconds, CUevent start, CUevent end),
            cuEventElapsedTime(milliseconds, start, end))

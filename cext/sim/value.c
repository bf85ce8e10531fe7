/* What else streams do in order: host functions, waits for and writes of values in memory, fills.
 */
#define _GNU_SOURCE
#include "sim.h"

#include <string.h>
#include <time.h>

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

/* Polls the value, with longer and longer sleeps up to about 0.5 ms. */
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
            return sim_leave(CUDA_ERROR_DEINITIALIZED); /* later operations do not run */
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

/* In the monitor. Issues a value operation on a stream. */
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

/* The run function for one operation of a batch; NULL if the operation is invalid. */
static CUresult (*batch_kind(const CUstreamBatchMemOpParams *params))(struct sim_stream *,
                                                                      struct sim_op *)
{
    switch (params->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return (params->waitValue.flags & ~WAIT_FLUSH) <= WAIT_NOR ? value_wait : NULL;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return (params->writeValue.flags & ~WRITE_NO_MEMORY_BARRIER) == 0 ? value_write : NULL;
    default:
        return NULL;
    }
}

CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned int count,
                               CUstreamBatchMemOpParams *params, unsigned int flags)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuStreamBatchMemOp_v2, handle, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (count == 0 || count > 256 || params == NULL || flags != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (unsigned i = 0; i < count; i++) { /* check all before the first is issued */
        if (batch_kind(&params[i]) == NULL || params[i].waitValue.address % 4 != 0) {
            return sim_leave(CUDA_ERROR_INVALID_VALUE);
        }
        result = sim_memory_check(params[i].waitValue.address, sizeof(uint32_t));
        if (result != CUDA_SUCCESS) {
            return sim_leave(result);
        }
    }
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = value_issue(stream, params[i].waitValue.address, params[i].waitValue.value,
                             params[i].waitValue.flags & ~WAIT_FLUSH, batch_kind(&params[i]));
    }
    return sim_leave(result);
}

/* ---- fills: a value of 1, 2 or 4 bytes, in one row or in rows with a pitch ---- */

#define MAX_PITCH 0x7fffffff /* CU_DEVICE_ATTRIBUTE_MAX_PITCH */

struct fill_op {
    struct sim_op op;
    CUdeviceptr dst;
    size_t pitch, width, height; /* width in elements */
    uint32_t value;
    unsigned element; /* bytes of an element */
};

static void fill_row(char *row, uint32_t value, unsigned element, size_t count)
{
    if (element == 1) {
        memset(row, (int)value, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (element == 2) {
            ((uint16_t *)(void *)row)[i] = (uint16_t)value;
        } else {
            ((uint32_t *)(void *)row)[i] = value;
        }
    }
}

static size_t fill_extent(const struct fill_op *fill)
{
    return (fill->height - 1) * fill->pitch + fill->width * fill->element;
}

static CUresult fill_run(struct sim_stream *stream, struct sim_op *op)
{
    struct fill_op *fill = (struct fill_op *)op;
    struct sim_pin pin;
    CUresult result;

    (void)stream;
    sim_lock();
    result = sim_memory_pin(fill->dst, fill_extent(fill), &pin);
    sim_unlock();
    if (result != CUDA_SUCCESS) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (size_t y = 0; y < fill->height; y++) {
        fill_row(pin.bytes + y * fill->pitch, fill->value, fill->element, fill->width);
    }
    sim_lock();
    sim_memory_unpin(&pin);
    sim_unlock();
    return CUDA_SUCCESS;
}

static CUresult fill_async(enum sim_call call, CUdeviceptr dst, size_t pitch, uint32_t value,
                           unsigned element, size_t width, size_t height, CUstream handle)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(call, handle, &stream);
    struct fill_op *fill;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (dst % element != 0 ||
        (height > 1 && (pitch % element != 0 || pitch < width * element || pitch > MAX_PITCH))) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (width == 0 || height == 0) {
        return sim_leave(CUDA_SUCCESS);
    }
    fill = sim_op_new(sizeof *fill);
    if (fill == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    fill->op.run = fill_run;
    fill->op.bytes = width * height * element;
    fill->dst = dst;
    fill->pitch = pitch;
    fill->width = width;
    fill->height = height;
    fill->value = value;
    fill->element = element;
    result = sim_memory_check(dst, fill_extent(fill));
    if (result != CUDA_SUCCESS) {
        sim_op_drop(&fill->op);
        return sim_leave(result);
    }
    return sim_leave(sim_stream_issue(stream, &fill->op));
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
    return fill_async(CALL_cuMemsetD8Async, dst, count, value, 1, count, 1, stream);
}

CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream)
{
    return fill_async(CALL_cuMemsetD16Async, dst, 0, value, 2, count, 1, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream)
{
    return fill_async(CALL_cuMemsetD32Async, dst, 0, value, 4, count, 1, stream);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width,
                           size_t height, CUstream stream)
{
    return fill_async(CALL_cuMemsetD2D8Async, dst, pitch, value, 1, width, height, stream);
}

CUresult cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width,
                            size_t height, CUstream stream)
{
    return fill_async(CALL_cuMemsetD2D16Async, dst, pitch, value, 2, width, height, stream);
}

CUresult cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned int value, size_t width,
                            size_t height, CUstream stream)
{
    return fill_async(CALL_cuMemsetD2D32Async, dst, pitch, value, 4, width, height, stream);
}

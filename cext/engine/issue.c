/* What a stream does for a transfer: copies its parts; for an asynchronous copy it also waits for
 * the packing threads' word and writes its own. See private.h. */
#include "private.h"

#include "driver/driver.h"

CUresult staging_part_issue(struct cudriver_staging_transfer *transfer, size_t part)
{
    bool up = transfer->plan.up;
    CUdeviceptr scratch = transfer->lane->scratch, device = transfer->device;
    CUstream stream = transfer->stream;
    struct cudriver_copy_end block = {.host = staging_block(transfer, part)};
    struct cudriver_copy_end there = {.on_device = true, .device = scratch};
    struct cudriver_layout layout;
    CUresult result = CUDA_SUCCESS;
    const char *function;
    size_t begin, end;

    staging_box_find(&transfer->plan, &transfer->parts, part, &begin, &end, &layout);
    if (transfer->kernels == NULL) {
        there.device = device;
        return staging_rows_issue(&layout, up ? &there : &block, up ? &block : &there, stream,
                                  &function);
    }
    if (up) {
        result = staging_bytes_issue(&there, 0, &block, 0, end - begin, stream, &function);
    }
    if (result == CUDA_SUCCESS) {
        result = staging_kernels_launch(transfer->kernels, &layout, up ? device : scratch,
                                        up ? scratch : device, stream);
        if (result == CUDA_ERROR_NOT_SUPPORTED) {
            staging_lock();
            transfer->place->no_kernels = true;
            staging_unlock();
        }
    }
    if (!up && result == CUDA_SUCCESS) {
        result = staging_bytes_issue(&block, 0, &there, 0, end - begin, stream, &function);
    }
    return result;
}

/* Waits and writes not yet queued: one driver call queues them all. */
struct queue {
    struct cudriver_staging_transfer *transfer;
    CUstreamBatchMemOpParams values[2];
    unsigned count;
};

/* Queues them. Notes a refusal, for later copies in this context. */
static CUresult values_queue(struct queue *queue)
{
    CUresult result = CUDA_SUCCESS;

    if (queue->count > 0) {
        result =
            cuda.cuStreamBatchMemOp_v2(queue->transfer->stream, queue->count, queue->values, 0);
    }
    queue->count = 0;
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        staging_lock();
        queue->transfer->place->no_words = true;
        staging_unlock();
    }
    return result;
}

/* Makes the stream wait until so many parts are packed or unpacked, if they are not yet. */
static void ready_await(struct queue *queue, size_t parts)
{
    const struct staging_lane *lane = queue->transfer->lane;
    uint32_t value = queue->transfer->base + (uint32_t)parts;

    if ((int32_t)(atomic_load_explicit(lane->ready, memory_order_acquire) - value) < 0) {
        queue->values[queue->count++].waitValue =
            (struct CUstreamMemOpWaitValueParams_st){.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                                                     .address = lane->address,
                                                     .value = value,
                                                     .flags = CU_STREAM_WAIT_VALUE_GEQ};
    }
}

/* Makes the stream write that it has done so many steps. */
static void passed_write(struct queue *queue, size_t steps)
{
    const struct staging_lane *lane = queue->transfer->lane;

    queue->values[queue->count++].writeValue =
        (struct CUstreamMemOpWriteValueParams_st){.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                                                  .address = lane->address + STAGING_WORD,
                                                  .value = queue->transfer->base + (uint32_t)steps};
}

/* Up, for each part: wait until it is packed, copy it, tell.
 * Down, for each part: wait until its block is unpacked, copy it, tell; then wait for the rest. */
CUresult staging_words_queue(struct cudriver_staging_transfer *transfer)
{
    struct queue queue = {.transfer = transfer};
    bool up = transfer->plan.up;
    CUresult result = CUDA_SUCCESS;

    for (size_t part = 0; part < transfer->parts.count && result == CUDA_SUCCESS; part++) {
        if (up) {
            ready_await(&queue, part + 1);
        } else if (part >= transfer->blocks) {
            ready_await(&queue, part + 1 - transfer->blocks);
        }
        result = values_queue(&queue);
        if (result == CUDA_SUCCESS) {
            result = staging_part_issue(transfer, part);
        }
        passed_write(&queue, part + 1);
    }
    if (!up && result == CUDA_SUCCESS) {
        ready_await(&queue, transfer->parts.count);
        result = values_queue(&queue);
        passed_write(&queue, transfer->steps); /* only then may the blocks be others' */
    }
    return result == CUDA_SUCCESS ? values_queue(&queue) : result;
}

/* What a stream does: the driver's own copies, dense, in rows, or in stacks of rows; and for a
 * transfer the copies of its parts. For an asynchronous one it also waits for the packing threads'
 * word and writes its own. See private.h. */
#include "private.h"

#include "driver/driver.h"
#include "hostmem/hostmem.h"

/* Bytes; every driver takes a pitch (bytes between rows) up to here. */
#define PITCH_MOST 0x7fffffff

CUresult staging_bytes_issue(const struct cudriver_copy_end *dst, int64_t dst_at,
                             const struct cudriver_copy_end *src, int64_t src_at, size_t bytes,
                             CUstream stream, const char **function)
{
    CUdeviceptr to = dst->device + (CUdeviceptr)dst_at, from = src->device + (CUdeviceptr)src_at;

    if (!src->on_device) {
        *function = "cuMemcpyHtoDAsync_v2";
        return cuda.cuMemcpyHtoDAsync_v2(to, src->host + src_at, bytes, stream);
    }
    if (!dst->on_device) {
        *function = "cuMemcpyDtoHAsync_v2";
        return cuda.cuMemcpyDtoHAsync_v2(dst->host + dst_at, from, bytes, stream);
    }
    *function = "cuMemcpyDtoDAsync_v2";
    return cuda.cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}

int staging_rows_dims(const struct cudriver_layout *layout)
{
    int rows = layout->ndim - 1;
    int64_t run = (int64_t)layout->itemsize;

    if (rows < 0) {
        return 0;
    }
    int64_t dst = layout->dst_strides[rows], src = layout->src_strides[rows];
    if (dst < run || src < run || dst > PITCH_MOST || src > PITCH_MOST) {
        return 0;
    }
    if (rows == 0) {
        return 1;
    }
    int64_t height = layout->shape[rows];
    int64_t dst_plane = layout->dst_strides[rows - 1], src_plane = layout->src_strides[rows - 1];
    bool stacked = dst_plane % dst == 0 && src_plane % src == 0 && dst_plane / dst >= height &&
                   src_plane / src >= height;
    return stacked ? 2 : 1;
}

/* What all calls of one copy share. */
struct rows_copy {
    const struct cudriver_layout *layout;
    const struct cudriver_copy_end *dst, *src;
    int dims; /* that one call takes */
    CUstream stream;
    const char **function;
};

/* The 2D or 3D copy at `dst_at` and `src_at`, in bytes from the ends' addresses. */
static CUresult rows_issue(const struct rows_copy *copy, int64_t dst_at, int64_t src_at)
{
    const struct cudriver_copy_end *dst = copy->dst, *src = copy->src;
    const struct cudriver_layout *layout = copy->layout;
    int rows = layout->ndim - 1;

    if (copy->dims == 2) {
        CUDA_MEMCPY3D stack = {
            .srcMemoryType = src->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
            .srcHost = src->on_device ? NULL : src->host + src_at,
            .srcDevice = src->on_device ? src->device + (CUdeviceptr)src_at : 0,
            .srcPitch = (size_t)layout->src_strides[rows],
            .srcHeight = (size_t)(layout->src_strides[rows - 1] / layout->src_strides[rows]),
            .dstMemoryType = dst->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
            .dstHost = dst->on_device ? NULL : dst->host + dst_at,
            .dstDevice = dst->on_device ? dst->device + (CUdeviceptr)dst_at : 0,
            .dstPitch = (size_t)layout->dst_strides[rows],
            .dstHeight = (size_t)(layout->dst_strides[rows - 1] / layout->dst_strides[rows]),
            .WidthInBytes = layout->itemsize,
            .Height = (size_t)layout->shape[rows],
            .Depth = (size_t)layout->shape[rows - 1],
        };
        *copy->function = "cuMemcpy3DAsync_v2";
        return cuda.cuMemcpy3DAsync_v2(&stack, copy->stream);
    }
    CUDA_MEMCPY2D plane = {
        .srcMemoryType = src->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
        .srcHost = src->on_device ? NULL : src->host + src_at,
        .srcDevice = src->on_device ? src->device + (CUdeviceptr)src_at : 0,
        .srcPitch = (size_t)layout->src_strides[rows],
        .dstMemoryType = dst->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
        .dstHost = dst->on_device ? NULL : dst->host + dst_at,
        .dstDevice = dst->on_device ? dst->device + (CUdeviceptr)dst_at : 0,
        .dstPitch = (size_t)layout->dst_strides[rows],
        .WidthInBytes = layout->itemsize,
        .Height = (size_t)layout->shape[rows],
    };
    *copy->function = "cuMemcpy2DAsync_v2";
    return cuda.cuMemcpy2DAsync_v2(&plane, copy->stream);
}

/* Loops over the dimensions outside those of one driver call. */
static CUresult outer_issue(const struct rows_copy *copy, int axis, int64_t dst_at, int64_t src_at)
{
    const struct cudriver_layout *layout = copy->layout;
    CUresult result = CUDA_SUCCESS;

    if (axis == layout->ndim - copy->dims) {
        return copy->dims > 0 ? rows_issue(copy, dst_at, src_at)
                              : staging_bytes_issue(copy->dst, dst_at, copy->src, src_at,
                                                    layout->itemsize, copy->stream, copy->function);
    }
    for (int64_t i = 0; i < layout->shape[axis] && result == CUDA_SUCCESS; i++) {
        result = outer_issue(copy, axis + 1, dst_at + i * layout->dst_strides[axis],
                             src_at + i * layout->src_strides[axis]);
    }
    return result;
}

CUresult staging_rows_issue(const struct cudriver_layout *layout,
                            const struct cudriver_copy_end *dst,
                            const struct cudriver_copy_end *src, CUstream stream,
                            const char **function)
{
    if (layout->ndim == 0) {
        return staging_bytes_issue(dst, layout->dst_offset, src, layout->src_offset,
                                   layout->itemsize, stream, function);
    }
    const struct rows_copy copy = {layout, dst, src, staging_rows_dims(layout), stream, function};
    return outer_issue(&copy, 0, layout->dst_offset, layout->src_offset);
}

CUresult staging_direct_issue(const struct cudriver_copy_plan *plan, CUstream stream,
                              const char **function)
{
    const struct cudriver_copy_end *dst = &plan->dst, *src = &plan->src;
    int64_t to = plan->layout.dst_offset, from = plan->layout.src_offset;
    bool whole = plan->one_run || (dst->on_device && src->on_device);
    const char *host = whole ? NULL : dst->on_device ? src->host + from : dst->host + to;
    CUresult result = CUDA_SUCCESS;

    for (size_t at = 0, bytes; at < plan->bytes && result == CUDA_SUCCESS; at += bytes) {
        bytes = plan->bytes - at;
        bytes = whole ? bytes : cudriver_hostmem_run(host + at, bytes);
        result = staging_bytes_issue(dst, to + (int64_t)at, src, from + (int64_t)at, bytes, stream,
                                     function);
    }
    return result;
}

/* ---- transfers ---- */

/* The same of a copy of many runs. */
static CUresult runs_part_issue(struct cudriver_staging_transfer *transfer, size_t part)
{
    struct staging_runs *runs = transfer->job.plan.runs;
    struct cudriver_run *first = runs->table + runs->filled, *entry = first;
    CUdeviceptr table = staging_device_address(transfer->place->context, first);
    CUdeviceptr block =
        staging_device_address(transfer->place->context, staging_block(transfer, part));
    size_t begin, end;

    if (table == 0 || block == 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    staging_box_find(&transfer->job.plan, &transfer->job.parts, part, &begin, &end, NULL);
    for (const struct staging_run *run = staging_run_at(runs, begin); begin < end;) {
        size_t bytes = (run[1].begin < end ? run[1].begin : end) - begin;
        uint64_t device = run->device + (begin - run->begin);
        bytes = bytes < TUNING_RUN_STAGED ? bytes : TUNING_RUN_STAGED;
        entry->dst = transfer->job.plan.up ? device : block;
        entry->src = transfer->job.plan.up ? block : device;
        entry++->bytes = bytes;
        block += bytes;
        begin += bytes;
        run += begin == run[1].begin;
    }
    runs->filled += (size_t)(entry - first);
    return staging_runs_launch(transfer->job.kernels, table, (uint64_t)(entry - first),
                               transfer->stream);
}

CUresult staging_part_issue(struct cudriver_staging_transfer *transfer, size_t part)
{
    bool up = transfer->job.plan.up;
    CUdeviceptr scratch = transfer->blocks.lane->scratch, device = transfer->job.device;
    CUstream stream = transfer->stream;
    struct cudriver_copy_end block = {.host = staging_block(transfer, part)};
    struct cudriver_copy_end there = {.on_device = true, .device = scratch};
    struct cudriver_layout layout;
    CUresult result = CUDA_SUCCESS;
    const char *function;
    size_t begin, end;

    if (transfer->job.plan.runs != NULL) {
        return runs_part_issue(transfer, part);
    }
    staging_box_find(&transfer->job.plan, &transfer->job.parts, part, &begin, &end, &layout);
    if (transfer->job.kernels == NULL) {
        there.device = device;
        return staging_rows_issue(&layout, up ? &there : &block, up ? &block : &there, stream,
                                  &function);
    }
    if (up) {
        result = staging_bytes_issue(&there, 0, &block, 0, end - begin, stream, &function);
    }
    if (result == CUDA_SUCCESS) {
        result = staging_kernels_launch(transfer->job.kernels, &layout, up ? device : scratch,
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
    const struct staging_lane *lane = queue->transfer->blocks.lane;
    uint32_t value = queue->transfer->steps.base + (uint32_t)parts;

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
    const struct staging_lane *lane = queue->transfer->blocks.lane;

    queue->values[queue->count++].writeValue = (struct CUstreamMemOpWriteValueParams_st){
        .operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
        .address = lane->address + STAGING_WORD,
        .value = queue->transfer->steps.base + (uint32_t)steps};
}

/* Up, for each part: wait until it is packed, copy it, tell.
 * Down, for each part: wait until its block is unpacked, copy it, tell; then wait for the rest. */
CUresult staging_words_queue(struct cudriver_staging_transfer *transfer)
{
    struct queue queue = {.transfer = transfer};
    bool up = transfer->job.plan.up;
    CUresult result = CUDA_SUCCESS;

    for (size_t part = 0; part < transfer->job.parts.count && result == CUDA_SUCCESS; part++) {
        if (up) {
            ready_await(&queue, part + 1);
        } else if (part >= transfer->blocks.count) {
            ready_await(&queue, part + 1 - transfer->blocks.count);
        }
        result = values_queue(&queue);
        if (result == CUDA_SUCCESS) {
            result = staging_part_issue(transfer, part);
        }
        passed_write(&queue, part + 1);
    }
    if (!up && result == CUDA_SUCCESS) {
        ready_await(&queue, transfer->job.parts.count);
        result = values_queue(&queue);
        passed_write(&queue, transfer->steps.count); /* only then may the blocks be others' */
    }
    return result == CUDA_SUCCESS ? values_queue(&queue) : result;
}

/* What a stream does: the driver's own copies, dense, in rows, or in stacks of rows; and for a
 * transfer the copies of its parts. For an asynchronous one it also waits for the packing threads'
 * word and writes its own. See private.h. */
#include "private.h"

#include <assert.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"

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

    int64_t dst_row = layout->dst_strides[rows], src_row = layout->src_strides[rows];
    bool stacked = copy->dims == 2;
    CUDA_MEMCPY3D stack = {
        .srcMemoryType = src->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
        .srcHost = src->on_device ? NULL : src->host + src_at,
        .srcDevice = src->on_device ? src->device + (CUdeviceptr)src_at : 0,
        .srcPitch = (size_t)src_row,
        .srcHeight = stacked ? (size_t)(layout->src_strides[rows - 1] / src_row)
                             : (size_t)layout->shape[rows],
        .dstMemoryType = dst->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
        .dstHost = dst->on_device ? NULL : dst->host + dst_at,
        .dstDevice = dst->on_device ? dst->device + (CUdeviceptr)dst_at : 0,
        .dstPitch = (size_t)dst_row,
        .dstHeight = stacked ? (size_t)(layout->dst_strides[rows - 1] / dst_row)
                             : (size_t)layout->shape[rows],
        .WidthInBytes = layout->itemsize,
        .Height = (size_t)layout->shape[rows],
        .Depth = stacked ? (size_t)layout->shape[rows - 1] : 1,
    };

    *copy->function = "cuMemcpy3DAsync_v2";
    return cuda.cuMemcpy3DAsync_v2(&stack, copy->stream);
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
    const struct rows_copy copy = {layout, dst,     src, cudriver_layout_rows(layout),
                                   stream, function};
    return outer_issue(&copy, 0, layout->dst_offset, layout->src_offset);
}

CUresult staging_direct_issue(const struct cudriver_copy_plan *plan, CUstream stream,
                              const char **function)
{
    const struct cudriver_copy_end *dst = &plan->dst, *src = &plan->src;
    int64_t to = plan->layout.dst_offset, from = plan->layout.src_offset;
    bool whole = plan->one_run || !plan->page_locked; /* or on the device, or small */
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

/* Queues the copies of bytes [begin, end) of what travels of files, from a block. */
static CUresult files_issue(const struct cudriver_files *files, const char *block, size_t begin,
                            size_t end, CUstream stream)
{
    const struct cudriver_file_run *last = files->run + files->count, *next;
    const struct cudriver_file_run *run =
        staging_item_at(files->run, sizeof *run, files->count, begin);
    CUresult result = CUDA_SUCCESS;
    size_t until;

    for (; begin < end && result == CUDA_SUCCESS;
         block += until - begin, begin = until, run = next) {
        for (next = run + 1;
             next < last && (size_t)next->begin < end && next->array == run->array &&
             next->device - next->begin == run->device - run->begin;
             next++) { /* lies on the device as it travels */
        }
        until = next < last && (size_t)next->begin < end ? (size_t)next->begin : end;
        result = cuda.cuMemcpyHtoDAsync_v2((CUdeviceptr)run->device + begin - (size_t)run->begin,
                                           block, until - begin, stream);
    }
    return result;
}

/* staging_part_issue for a copy of many runs: the kernel moves them, as a table says. */
static CUresult runs_part_issue(struct cudriver_staging_transfer *transfer, size_t part)
{
    struct staging_runs *runs = transfer->copy.staged.runs;
    struct cudriver_run *first = runs->table + runs->filled, *entry = first;
    CUdeviceptr table = staging_device_address(transfer->place->context, first);
    CUdeviceptr block =
        staging_device_address(transfer->place->context, staging_block(transfer, part));
    size_t begin, end;

    if (table == 0 || block == 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    staging_box_find(&transfer->copy.staged, &transfer->parts, part, &begin, &end, NULL);
    for (const struct staging_run *run =
             staging_item_at(runs->run, sizeof *run, runs->count, begin);
         begin < end;) {
        size_t bytes = (run[1].begin < end ? run[1].begin : end) - begin;
        uint64_t device = run->device + (begin - run->begin);
        bytes = bytes < TUNING_RUN_STAGED ? bytes : TUNING_RUN_STAGED;
        entry->dst = transfer->copy.staged.up ? device : block;
        entry->src = transfer->copy.staged.up ? block : device;
        entry++->bytes = bytes;
        block += bytes;
        begin += bytes;
        run += begin == run[1].begin;
    }
    runs->filled += (size_t)(entry - first);
    assert(runs->filled <= runs->room);
    return staging_runs_launch(transfer->kernels, table, (uint64_t)(entry - first),
                               transfer->stream);
}

CUresult staging_part_issue(struct cudriver_staging_transfer *transfer, size_t part)
{
    bool up = transfer->copy.staged.up;
    CUdeviceptr device = transfer->copy.device, scratch;
    CUstream stream = transfer->stream;
    struct cudriver_copy_end block = {.host = staging_block(transfer, part)};
    struct cudriver_copy_end there = {.on_device = true, .device = device};
    struct cudriver_layout layout;
    CUresult result = CUDA_SUCCESS;
    const char *function;
    size_t begin, end;

    if (transfer->copy.staged.runs != NULL) {
        return runs_part_issue(transfer, part);
    }
    staging_box_find(&transfer->copy.staged, &transfer->parts, part, &begin, &end, &layout);
    if (transfer->copy.staged.files != NULL) {
        return files_issue(transfer->copy.staged.files, block.host, begin, end, stream);
    }
    if (transfer->kernels == NULL) {
        return staging_rows_issue(&layout, up ? &there : &block, up ? &block : &there, stream,
                                  &function);
    }
    there.device = scratch = transfer->lane->scratch;
    if (up) {
        result = staging_bytes_issue(&there, 0, &block, 0, end - begin, stream, &function);
    }
    if (result == CUDA_SUCCESS) {
        result = staging_kernels_launch(transfer->kernels, &layout, up ? device : scratch,
                                        up ? scratch : device, stream);
        if (result == CUDA_ERROR_NOT_SUPPORTED) {
            transfer->place->no_kernels = true;
        }
    }
    if (!up && result == CUDA_SUCCESS) {
        result = staging_bytes_issue(&block, 0, &there, 0, end - begin, stream, &function);
    }
    return result;
}

/* Makes the stream write that it has done `passed` steps, and then wait until `ready` parts are
 * packed or unpacked. In one call. Notes a refusal, for later copies in this context. */
static CUresult words_step(struct cudriver_staging_transfer *transfer, size_t passed, size_t ready)
{
    const struct staging_lane *lane = transfer->lane;
    uint32_t base = transfer->steps.base, value = base + (uint32_t)ready;
    CUstreamBatchMemOpParams values[2] = {
        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                        .address = lane->address + STAGING_WORD,
                        .value = base + (uint32_t)passed}}};
    unsigned count = 1;
    CUresult result;

    if (ready > 0 &&
        (int32_t)(atomic_load_explicit(lane->ready, memory_order_acquire) - value) < 0) {
        values[count++].waitValue =
            (struct CUstreamMemOpWaitValueParams_st){.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                                                     .address = lane->address,
                                                     .value = value,
                                                     .flags = CU_STREAM_WAIT_VALUE_GEQ};
    }
    result = cuda.cuStreamBatchMemOp_v2(transfer->stream, count, values, 0);
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        transfer->place->no_words = true;
    }
    return result;
}

/* First the stream tells that it has come to the copy.
 * Up, for each part: wait until it is packed, copy it, tell.
 * Down, for each part: wait until its block is unpacked, copy it, tell; then wait for the rest. */
CUresult staging_words_queue(struct cudriver_staging_transfer *transfer)
{
    size_t count = transfer->parts.count, blocks = transfer->blocks;
    bool up = transfer->copy.staged.up;
    CUresult result = CUDA_SUCCESS;

    for (size_t part = 0; part < count && result == CUDA_SUCCESS; part++) {
        size_t ready = up ? part + 1 : part >= blocks ? part + 1 - blocks : 0;
        result = words_step(transfer, part, ready);
        if (result == CUDA_SUCCESS) {
            result = staging_part_issue(transfer, part);
        }
    }
    if (!up && result == CUDA_SUCCESS) {
        result = words_step(transfer, count, count);
    }
    /* Only then may the blocks be others'. */
    return result == CUDA_SUCCESS ? words_step(transfer, transfer->steps.count, 0) : result;
}

/* What a stream does for a copy through a ring: cuts the chunks, queues the commands. See
 * private.h. */
#include "private.h"

#include <stdlib.h>

#include "driver/driver.h"

#define VALUES 4 /* at most, between two copies */

/* What the commands of one copy share. */
struct queue {
    struct cudriver_staging_transfer *transfer;
    const struct staging_plan *plan;
    CUdeviceptr device;
    const struct cudriver_layout *rows;
    const struct staging_boxes *boxes;
    const struct staging_kernels *kernels; /* NULL: not permuted */
    /* Waits and writes not yet queued: one driver call queues them all. */
    CUstreamBatchMemOpParams values[VALUES];
    unsigned count;
};

/* Queues the waits and writes so far. Notes a refusal, for later copies in this context. */
static CUresult values_queue(struct queue *queue)
{
    CUstream stream = queue->transfer->stream;
    unsigned count = queue->count;
    CUresult result = CUDA_SUCCESS;

    queue->count = 0;
    if (count > 1 && cuda.cuStreamBatchMemOp_v2 != NULL) {
        result = cuda.cuStreamBatchMemOp_v2(stream, count, queue->values, 0);
        count = 0;
    }
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUstreamBatchMemOpParams *value = &queue->values[i];
        result =
            value->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32
                ? cuda.cuStreamWaitValue32_v2(stream, value->waitValue.address,
                                              value->waitValue.value, value->waitValue.flags)
                : cuda.cuStreamWriteValue32_v2(stream, value->writeValue.address,
                                               value->writeValue.value, value->writeValue.flags);
    }
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        staging_lock();
        queue->transfer->place->no_counters = true;
        staging_unlock();
    }
    return result;
}

/* Makes the stream wait until this many chunks are packed or unpacked, if they are not yet. */
static void counter_wait(struct queue *queue, size_t chunks)
{
    const struct cudriver_staging_transfer *transfer = queue->transfer;
    uint32_t value = transfer->base + (uint32_t)chunks;

    if ((int32_t)(atomic_load_explicit(transfer->ring->ready, memory_order_acquire) - value) < 0) {
        queue->values[queue->count++].waitValue =
            (struct CUstreamMemOpWaitValueParams_st){.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                                                     .address = transfer->ring->ready_address,
                                                     .value = value,
                                                     .flags = CU_STREAM_WAIT_VALUE_GEQ};
    }
}

/* Makes the stream store in `passed` that this many steps are done. */
static void counter_write(struct queue *queue, size_t steps)
{
    const struct cudriver_staging_transfer *transfer = queue->transfer;

    queue->values[queue->count++].writeValue =
        (struct CUstreamMemOpWriteValueParams_st){.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                                                  .address = transfer->ring->passed_address,
                                                  .value = transfer->base + (uint32_t)steps};
}

static CUresult kernel_queue(const struct queue *queue, const struct cudriver_layout *spread)
{
    CUdeviceptr scratch = queue->transfer->ring->scratch, device = queue->device;
    bool up = queue->plan->up;
    CUresult result = staging_kernels_launch(queue->kernels, spread, up ? device : scratch,
                                             up ? scratch : device, queue->transfer->stream);

    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        staging_lock();
        queue->transfer->place->no_kernels = true;
        staging_unlock();
    }
    return result;
}

static CUresult chunk_queue(const struct queue *queue, size_t chunk, char *slot)
{
    struct cudriver_staging_transfer *transfer = queue->transfer;
    size_t begin = transfer->starts[chunk], end = transfer->starts[chunk + 1];
    struct cudriver_layout spread;
    CUresult result;

    if (queue->kernels == NULL) {
        return staging_device_copy(queue->rows, transfer->up, queue->device, slot, begin, end,
                                   transfer->stream);
    }
    staging_box_find(queue->plan, queue->boxes, chunk, &begin, &end, &spread);
    if (transfer->up) {
        result =
            cuda.cuMemcpyHtoDAsync_v2(transfer->ring->scratch, slot, end - begin, transfer->stream);
        return result == CUDA_SUCCESS ? kernel_queue(queue, &spread) : result;
    }
    result = kernel_queue(queue, &spread);
    return result == CUDA_SUCCESS ? cuda.cuMemcpyDtoHAsync_v2(slot, transfer->ring->scratch,
                                                              end - begin, transfer->stream)
                                  : result;
}

/*
 * Up, for each chunk: wait until it is packed, copy it, count it.
 * Down, for each chunk: wait until what was in its place is unpacked, copy it, count it. At the end
 * wait until all is unpacked.
 */
static CUresult commands_queue(struct queue *queue)
{
    struct cudriver_staging_transfer *transfer = queue->transfer;
    size_t waited = 0;
    CUresult result = CUDA_SUCCESS;

    for (size_t k = 0; k < transfer->chunks && result == CUDA_SUCCESS; k++) {
        char *slot = staging_ring_memory(transfer, k);
        if (transfer->up) {
            counter_wait(queue, k + 1);
        } else if (transfer->cuts[k].needs > waited) {
            waited = transfer->cuts[k].needs;
            counter_wait(queue, waited);
        }
        result = values_queue(queue);
        if (result == CUDA_SUCCESS) {
            result = chunk_queue(queue, k, slot);
        }
        counter_write(queue, k + 1);
    }
    if (!transfer->up && !transfer->own) {
        counter_wait(queue, transfer->chunks);
        /* The ring may be freed only when the stream has passed that wait. */
        counter_write(queue, transfer->steps);
    }
    return result == CUDA_SUCCESS ? values_queue(queue) : result;
}

/*
 * Cuts a walk into chunks of whole rows. Chunks are small, so that little is left to do after the
 * last one is packed or has arrived; they are larger if nobody waits for that and the calls count
 * more. Up, the first ones are smaller, so that the first copy begins soon; together they are as
 * large as one usual chunk. Returns how many; fills `starts` unless it is NULL.
 */
static size_t chunks_cut(bool up, bool own, size_t bytes, size_t slot, size_t row, size_t *starts)
{
    bool unwatched = up && !own;
    size_t most = bytes / (unwatched ? TUNING_CHUNKS / 2 : TUNING_CHUNKS), size, count = 0;
    size_t limit = unwatched ? 2 * slot : up ? slot : slot / 2;
    size_t usual = up ? TUNING_CHUNK_UP : TUNING_CHUNK_DOWN;

    if (most < usual) {
        most = usual;
    }
    if (most > limit) {
        most = limit;
    }
    size = unwatched ? most / 4 : up ? most / 8 : most;
    if (size < TUNING_CHUNK_FIRST) {
        size = TUNING_CHUNK_FIRST;
    }
    for (size_t at = 0; at < bytes; count++) {
        size_t length = size < limit ? size : limit;
        length -= row < length ? length % row : 0;
        at = bytes - at > length ? at + length : bytes;
        if (starts != NULL) {
            starts[count + 1] = at;
        }
        if (unwatched) {
            size = count == 0 && size < most ? most - size : most;
        } else if (up && count > 0) {
            size = 2 * size < most ? 2 * size : most;
        }
    }
    return count;
}

/*
 * Gives each chunk its place in the slots' memory, one after another, then from the beginning
 * again. Sets `needs`: the chunks that must be done before, up to the last that used those bytes.
 */
static void chunks_place(struct cudriver_staging_transfer *transfer, size_t room)
{
    size_t at = 0, done = 0;

    for (size_t k = 0; k < transfer->chunks; k++) {
        struct staging_chunk *chunk = &transfer->cuts[k];
        chunk->left = transfer->starts[k + 1] - transfer->starts[k];
        if (chunk->left > room - at) {
            at = 0;
        }
        chunk->place = at;
        at += chunk->left;
        /* Chunk `done` is the oldest that may still be using these bytes. */
        for (size_t j = done; j < k; j++) {
            size_t begin = transfer->cuts[j].place;
            size_t end = begin + transfer->starts[j + 1] - transfer->starts[j];
            if (begin < at && chunk->place < end) {
                done = j + 1;
            }
        }
        chunk->needs = done;
    }
}

/* Cuts the walk into chunks, or boxes if it is permuted. Returns the bytes of a slot; 0: out of
 * memory, or too many chunks. */
static size_t chunks_make(struct cudriver_staging_transfer *transfer,
                          const struct staging_plan *plan, const struct cudriver_layout *rows,
                          struct staging_boxes *boxes)
{
    bool permuted = plan->path == CUDRIVER_STAGING_PERMUTED;
    size_t bytes = cudriver_layout_bytes(&plan->walk), most = plan->slot_most, slot;
    int users;

    staging_lock();
    users = staging.ring_users;
    staging_unlock();
    for (; users > 1 && most > TUNING_SLOT_SHARED; users /= 2) {
        most /= 2; /* many copies at once: less memory for each */
    }
    slot = staging_ring_slot(bytes, most);
    if (permuted) {
        size_t box = bytes / 8 > TUNING_SLOT_LEAST ? bytes / 8 : TUNING_SLOT_LEAST;
        *boxes = staging_boxes_make(plan, box < slot ? box : slot);
        transfer->chunks = boxes->count;
    } else {
        transfer->chunks = chunks_cut(plan->up, transfer->own, bytes, slot, rows->itemsize, NULL);
    }
    if (transfer->chunks > INT32_MAX / 2) {
        return 0;
    }
    transfer->bytes = bytes;
    transfer->starts = calloc(transfer->chunks + 1, sizeof transfer->starts[0]);
    transfer->cuts = calloc(transfer->chunks, sizeof transfer->cuts[0]);
    if (transfer->starts == NULL || transfer->cuts == NULL) {
        return 0;
    }
    if (permuted) {
        for (size_t k = 0; k < transfer->chunks; k++) {
            struct cudriver_layout spread;
            staging_box_find(plan, boxes, k, &transfer->starts[k], &transfer->starts[k + 1],
                             &spread);
        }
        slot = boxes->largest > slot ? boxes->largest : slot;
    } else {
        chunks_cut(plan->up, transfer->own, bytes, slot, rows->itemsize, transfer->starts);
    }
    chunks_place(transfer, STAGING_RING_SLOTS * slot);
    return slot;
}

/* Host function: the stream has reached the copy. */
static void transfer_arrive(void *data)
{
    staging_lock();
    staging_ring_list(data);
    staging_unlock();
}

CUresult staging_ring_start(struct cudriver_staging_transfer *transfer,
                            const struct cudriver_copy_plan *copy,
                            const struct cudriver_copy_call *call)
{
    const struct staging_plan *plan = &copy->staged;
    struct staging_kernels *kernels = NULL;
    struct cudriver_layout rows;
    struct staging_boxes boxes;
    CUresult result = staging_ring_ensure(), state;
    size_t slot_bytes;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (plan->path == CUDRIVER_STAGING_PERMUTED) {
        result = staging_place_kernels(transfer->place, plan, copy->device, &kernels);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    staging_rows_make(&plan->walk, plan->up, &rows);
    transfer->up = plan->up;
    transfer->host = copy->host;
    transfer->walk = plan->walk;
    transfer->host_dense = plan->host_dense;
    transfer->threads = transfer->own && plan->threads > 1 ? plan->threads - 1 : plan->threads;
    transfer->streaming = plan->streaming;
    slot_bytes = chunks_make(transfer, plan, &rows, &boxes);
    if (slot_bytes == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* Query before taking a ring: if the query fails, so would the wait that frees the ring. */
    state = transfer->own ? CUDA_SUCCESS : staging_stream_query(call->stream);
    if (state != CUDA_SUCCESS && state != CUDA_ERROR_NOT_READY) {
        return state;
    }
    result = staging_ring_get(transfer, slot_bytes, kernels != NULL);
    if (result != CUDA_SUCCESS) {
        return result;
    }

    staging_transfer_hold(transfer); /* for the list */
    if (state == CUDA_SUCCESS) {
        staging_lock();
        staging_ring_list(transfer);
        staging_unlock();
    } else {
        result = cuda.cuLaunchHostFunc(call->stream, transfer_arrive, transfer);
    }
    if (result != CUDA_SUCCESS) {
        staging_transfer_drop(transfer);
        return result;
    }
    struct queue queue = {transfer, plan, copy->device, &rows, &boxes, kernels, {{0}}, 0};
    return commands_queue(&queue);
}

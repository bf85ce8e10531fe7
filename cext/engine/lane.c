/* Lanes: a stream, its slots, and the chunks in them. See private.h. */
#include "private.h"

#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"

static void lane_forget_block(struct staging_lane *lane)
{
    if (lane->block != NULL) {
        cudriver_hostmem_free(lane->block);
        staging_lock();
        staging.slot_bytes -= lane->slot_bytes * (size_t)lane->depth;
        staging_unlock();
    }
    lane->block = NULL;
    lane->slot_bytes = 0;
}

/* Gives a lane without work slots of at least `bytes`. */
CUresult staging_lane_fit(struct staging_lane *lane, size_t bytes)
{
    CUresult result;
    void *block;
    bool zeroed;
    unsigned generation;
    int depth;

    staging_lock();
    generation = staging.generation;
    depth = staging.settings.slots;
    staging_unlock();
    if (lane->slot_bytes >= bytes && lane->generation == generation && lane->depth == depth) {
        return CUDA_SUCCESS;
    }
    lane_forget_block(lane);
    for (; lane->depth < depth; lane->depth++) {
        result = cuda.cuEventCreate(&lane->slots[lane->depth].event,
                                    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    for (; lane->depth > depth; lane->depth--) {
        cuda.cuEventDestroy_v2(lane->slots[lane->depth - 1].event);
    }
    lane->turn = 0;
    result = cudriver_hostmem_alloc(bytes * (size_t)depth, false, &block, &zeroed);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    lane->block = block;
    lane->slot_bytes = bytes;
    lane->generation = generation;
    for (int i = 0; i < depth; i++) {
        lane->slots[i].memory = lane->block + bytes * (size_t)i;
    }
    staging_lock();
    staging.slot_bytes += bytes * (size_t)depth;
    staging_unlock();
    return CUDA_SUCCESS;
}

void staging_lane_close(struct staging_lane *lane)
{
    if (lane->stream != NULL) {
        /* The result does not matter: where it is an error nothing runs any more. */
        cuda.cuStreamSynchronize(lane->stream);
    }
    lane_forget_block(lane);
    for (int i = 0; i < lane->depth; i++) {
        cuda.cuEventDestroy_v2(lane->slots[i].event);
    }
    if (lane->stream != NULL) {
        cuda.cuStreamDestroy_v2(lane->stream);
    }
    free(lane);
    staging_lock();
    staging.lanes--;
    staging_unlock();
}

void staging_lanes_close(struct staging_lane *lanes)
{
    while (lanes != NULL) {
        struct staging_lane *next = lanes->next;
        staging_lane_close(lanes);
        lanes = next;
    }
}

void staging_lanes_bury(struct staging_lane *lanes)
{
    while (lanes != NULL) {
        struct staging_lane *next = lanes->next;
        if (lanes->block != NULL) {
            cudriver_hostmem_free(lanes->block);
            staging.slot_bytes -= lanes->slot_bytes * (size_t)lanes->depth;
        }
        staging.lanes--;
        free(lanes);
        lanes = next;
    }
}

CUresult staging_lane_open(size_t bytes, struct staging_lane **made)
{
    struct staging_lane *lane = calloc(1, sizeof *lane);
    CUresult result;

    if (lane == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    staging_lock();
    staging.lanes++;
    staging_unlock();
    result = cuda.cuStreamCreateWithPriority(&lane->stream, CU_STREAM_NON_BLOCKING, 0);
    if (result != CUDA_SUCCESS) {
        lane->stream = NULL;
    } else {
        result = staging_lane_fit(lane, bytes);
    }
    if (result != CUDA_SUCCESS) {
        staging_lane_close(lane);
        return result;
    }
    *made = lane;
    return CUDA_SUCCESS;
}

CUresult staging_event_wait(CUevent event)
{
    CUresult result = cuda.cuEventQuery(event);

    if (result != CUDA_ERROR_NOT_READY) {
        return result;
    }
    return cuda.cuEventSynchronize(event);
}

/* ---- chunks ---- */

static void slot_pack(const struct staging_slot *slot)
{
    const struct staging_job *job = slot->job;
    size_t bytes = slot->end - slot->begin;

    if (!job->host_dense) {
        cudriver_layout_copy_part(&job->walk, slot->memory, true, job->host, false, slot->begin,
                                  slot->end);
        return;
    }
    const char *from = job->host + job->walk.src_offset + slot->begin;
    if (job->streaming) {
        staging_memory_stream(slot->memory, from, bytes);
    } else {
        memcpy(slot->memory, from, bytes);
    }
}

static void slot_unpack(const struct staging_slot *slot)
{
    const struct staging_job *job = slot->job;
    size_t bytes = slot->end - slot->begin;

    if (!job->host_dense) {
        cudriver_layout_copy_part(&job->walk, job->host, false, slot->memory, true, slot->begin,
                                  slot->end);
        return;
    }
    char *to = job->host + job->walk.dst_offset + slot->begin;
    if (job->streaming) {
        staging_memory_stream(to, slot->memory, bytes);
    } else {
        memcpy(to, slot->memory, bytes);
    }
}

static CUresult slot_send(const struct staging_lane *lane, const struct staging_slot *slot)
{
    const struct staging_job *job = slot->job;
    size_t bytes = slot->end - slot->begin;
    CUdeviceptr device = job->device + (slot->begin - job->begin);

    if (!job->device_dense) {
        return staging_device_copy(&job->rows, job->up, job->device, slot->memory, slot->begin,
                                   slot->end, lane->stream);
    }
    return job->up ? cuda.cuMemcpyHtoDAsync_v2(device, slot->memory, bytes, lane->stream)
                   : cuda.cuMemcpyDtoHAsync_v2(slot->memory, device, bytes, lane->stream);
}

/* After a failed call: the lane's stream may still use its slots. It is emptied, and given up. */
static void lane_break(struct staging_lane *lane)
{
    cuda.cuStreamSynchronize(lane->stream);
    lane->broken = true;
}

/* Starts a chunk in a free slot. */
void staging_slot_begin(struct staging_lane *lane, struct staging_slot *slot)
{
    CUresult result;

    if (slot->job->up) {
        slot_pack(slot);
    }
    result = slot_send(lane, slot);
    if (result == CUDA_SUCCESS) {
        result = cuda.cuEventRecord(slot->event, lane->stream);
    }
    if (result != CUDA_SUCCESS) {
        struct staging_job *job = slot->job;
        lane_break(lane);
        slot->job = NULL;
        staging_job_credit(job, result);
    }
}

/* Ends the chunk that a slot holds, if any. */
void staging_slot_retire(struct staging_lane *lane, struct staging_slot *slot)
{
    struct staging_job *job = slot->job;
    CUresult result;

    if (job == NULL) {
        return;
    }
    result = staging_event_wait(slot->event);
    if (result != CUDA_SUCCESS) {
        lane_break(lane);
    } else if (!job->up) {
        slot_unpack(slot);
    }
    slot->job = NULL;
    staging_job_credit(job, result);
}

void staging_lane_drain(struct staging_lane *lane)
{
    for (int i = 0; i < lane->depth; i++) {
        staging_slot_retire(lane, &lane->slots[lane->turn]);
        lane->turn = (lane->turn + 1) % lane->depth;
    }
}

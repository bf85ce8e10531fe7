/*
 * Pools: memory allocated and freed in stream order.
 *
 * A freed block stays in its pool and is reused for the same rounded size: at once on the stream
 * that freed it; on another stream after the first has reached the free, or, if the device has no
 * memory left, by making the new stream wait for the old one. When a program waits for a stream, an
 * event or the context, the pool returns to the device what exceeds its threshold.
 */
#include "pool.h"

#include <stdlib.h>
#include <string.h>

struct pool_op {
    struct sim_op op;
    struct sim_block *block;
    size_t bytes; /* an allocation's size; 0: a free */
};

/* ---- the list of free blocks ---- */

static void list_add(struct sim_pool *pool, struct sim_block *block)
{
    block->pool_previous = NULL;
    block->pool_next = pool->free;
    if (pool->free != NULL) {
        pool->free->pool_previous = block;
    }
    pool->free = block;
}

static void list_remove(struct sim_pool *pool, struct sim_block *block)
{
    if (block->pool_previous != NULL) {
        block->pool_previous->pool_next = block->pool_next;
    } else {
        pool->free = block->pool_next;
    }
    if (block->pool_next != NULL) {
        block->pool_next->pool_previous = block->pool_previous;
    }
}

static void block_forget_stream(struct sim_block *block)
{
    if (block->freed_on != NULL) {
        sim_object_drop(block->freed_on);
        block->freed_on = NULL;
    }
}

static bool block_is_passed(const struct sim_block *block)
{
    return block->freed_on == NULL || block->freed_on->done >= block->freed_at;
}

/* ---- returning memory ---- */

/* In the monitor, given up meanwhile. Returns free blocks to the device until at most `keep` bytes
 * are reserved. The caller holds a reference to the pool. True if any were returned. */
static bool pool_trim(struct sim_pool *pool, uint64_t keep)
{
    struct sim_block *block = pool->free;
    bool some = false;

    while (block != NULL && pool->reserved > keep) {
        if (block->under_way > 0 || !block_is_passed(block)) {
            block = block->pool_next;
            continue;
        }
        list_remove(pool, block);
        block_forget_stream(block);
        pool->reserved -= block->range.bytes;
        pool->blocks--;
        block->pool = NULL;
        sim_space_give(block);
        sim_object_drop(pool);
        some = true;
        block = pool->free;
    }
    return some;
}

/* A destroyed pool returns all free blocks. It is freed with its last block. */
static void pool_collect(struct sim_pool *pool)
{
    if (!pool->object.alive) {
        sim_object_hold(pool);
        pool_trim(pool, 0);
        sim_object_drop(pool);
    }
}

static bool pools_trim(int device, bool all)
{
    bool some = false;

    for (uint32_t i = 0; i < sim_object_slots(KIND_POOL); i++) {
        struct sim_pool *pool = sim_object_at(KIND_POOL, i);
        if (pool != NULL && pool->device == device && pool->free != NULL) {
            sim_object_hold(pool);
            some |= pool_trim(pool, all ? 0 : pool->threshold);
            sim_object_drop(pool);
        }
    }
    return some;
}

void sim_pool_settle(int device)
{
    pools_trim(device, false);
}

bool sim_pool_release_unused(int device)
{
    return pools_trim(device, true);
}

long long sim_pool_live(bool unused)
{
    long long count = 0;

    (void)unused;
    for (uint32_t i = 0; i < sim_object_slots(KIND_POOL); i++) {
        const struct sim_pool *pool = sim_object_at(KIND_POOL, i);
        count += pool != NULL && !pool->is_default;
    }
    return count;
}

/* ---- pools ---- */

/* Begins a call on a pool; needs no context. On success the monitor is held. */
static CUresult pool_enter(enum sim_call call, CUmemoryPool handle, struct sim_pool **pool)
{
    CUresult result = sim_enter(call);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_lock();
    *pool = sim_object_find(KIND_POOL, handle);
    return *pool != NULL ? CUDA_SUCCESS : sim_leave(CUDA_ERROR_INVALID_VALUE);
}

struct sim_pool *sim_pool_new(int device)
{
    struct sim_pool *pool = sim_object_new(KIND_POOL, sizeof *pool);

    if (pool != NULL) {
        pool->device = device;
        pool->follow_events = 1;
        pool->opportunistic = 1;
        pool->internal = 1;
    }
    return pool;
}

CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props)
{
    CUresult result = sim_enter(CALL_cuMemPoolCreate);
    struct sim_pool *pool;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || props == NULL || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_device_is_valid(props->location.id)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    sim_lock();
    pool = sim_pool_new(props->location.id);
    if (pool == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    pool->max_bytes = props->maxSize;
    *handle = sim_object_handle(pool);
    return sim_leave(CUDA_SUCCESS);
}

/* Live allocations stay valid; the pool is freed with the last of them. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    struct sim_pool *pool;
    CUresult result = pool_enter(CALL_cuMemPoolDestroy, handle, &pool);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pool->is_default) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    sim_object_hold(pool);
    sim_object_close(pool);
    pool_collect(pool);
    sim_object_drop(pool);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct sim_pool *pool;
    CUresult result = pool_enter(CALL_cuMemPoolSetAttribute, handle, &pool);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (value == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        pool->follow_events = *(int *)value != 0;
        break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        pool->opportunistic = *(int *)value != 0;
        break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->internal = *(int *)value != 0;
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(cuuint64_t *)value;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        /* A high-water mark can only be set to 0, which resets it. */
        if (*(cuuint64_t *)value != 0) {
            return sim_leave(CUDA_ERROR_INVALID_VALUE);
        }
        if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
            pool->used_high = pool->used;
        } else {
            pool->reserved_high = pool->reserved;
        }
        break;
    default:
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(CUDA_SUCCESS);
}

/* Hardware reserves in large chunks. Here only the reported figure is rounded, so that tests can
 * use little memory. */
static uint64_t reserved_chunks(uint64_t bytes)
{
    const uint64_t chunk = (uint64_t)32 << 20;

    return (bytes + chunk - 1) / chunk * chunk;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct sim_pool *pool;
    CUresult result = pool_enter(CALL_cuMemPoolGetAttribute, handle, &pool);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (value == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        *(int *)value = pool->follow_events;
        break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        *(int *)value = pool->opportunistic;
        break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->internal;
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = pool->threshold;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = reserved_chunks(pool->reserved);
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = reserved_chunks(pool->reserved_high);
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->used;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = pool->used_high;
        break;
    default:
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    struct sim_pool *pool;
    CUresult result = pool_enter(CALL_cuMemPoolTrimTo, handle, &pool);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_object_hold(pool);
    pool_trim(pool, keep);
    sim_object_drop(pool);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
    struct sim_pool *pool;
    CUresult result = pool_enter(CALL_cuMemPoolSetAccess, handle, &pool);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (map == NULL || count == 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < count; i++) {
        bool grant = map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
            return sim_leave(CUDA_ERROR_INVALID_VALUE);
        }
        if (!grant && map[i].flags != 0) {
            return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
        }
        /* A pool's own device always has access. */
        if (!sim_device_is_valid(map[i].location.id) ||
            (!grant && map[i].location.id == pool->device)) {
            return sim_leave(CUDA_ERROR_INVALID_DEVICE);
        }
    }
    for (size_t i = 0; i < count; i++) {
        unsigned bit = 1u << map[i].location.id;
        bool grant = map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        pool->peers = grant ? pool->peers | bit : pool->peers & ~bit;
    }
    return sim_leave(CUDA_SUCCESS);
}

/* ---- allocation ---- */

/* In the monitor. The stream has reached an allocation or a free. */
static void pool_finish(struct sim_stream *stream, struct sim_op *op, bool issued)
{
    struct pool_op *step = (struct pool_op *)op;

    if (!issued) {
        return; /* the failed call undoes its own changes */
    }
    step->block->bytes = step->bytes;
    if (step->bytes > step->block->written) {
        step->block->written = step->bytes;
    }
    step->block->under_way--;
    if (step->bytes == 0) {
        if (step->block->freed_on == stream && step->block->freed_at == op->sequence) {
            block_forget_stream(step->block); /* reached: any stream may reuse it now */
        }
        pool_collect(step->block->pool);
    }
}

/* Without the monitor. The stream reaches a free: later use of the block finds poison. */
static CUresult pool_free_run(struct sim_stream *stream, struct sim_op *op)
{
    struct sim_block *block = ((struct pool_op *)op)->block;

    (void)stream;
    sim_lock();
    block->bytes = 0;
    sim_space_poison(block);
    sim_unlock();
    return CUDA_SUCCESS;
}

static struct pool_op *pool_op_new(struct sim_block *block, size_t bytes)
{
    struct pool_op *step = sim_op_new(sizeof *step);

    if (step != NULL) {
        step->op.run = bytes == 0 ? pool_free_run : NULL;
        step->op.finish = pool_finish;
        step->op.instant = true;
        step->block = block;
        step->bytes = bytes;
    }
    return step;
}

/* A free block of that size for `stream`; with `depend` one for which the stream must wait. */
static struct sim_block *pool_find(struct sim_pool *pool, size_t bytes, struct sim_stream *stream,
                                   bool depend)
{
    for (struct sim_block *block = pool->free; block != NULL; block = block->pool_next) {
        if (block->range.bytes < bytes || block->range.bytes - bytes >= 512) {
            continue;
        }
        if (depend || block->freed_on == stream || block->freed_on == NULL ||
            (pool->opportunistic && block_is_passed(block))) {
            return block;
        }
    }
    return NULL;
}

/* In the monitor, given up meanwhile. Takes a block from the pool's device. */
static CUresult pool_grow(struct sim_pool *pool, size_t bytes, struct sim_block **block)
{
    CUresult result;

    if (pool->max_bytes != 0 && pool->reserved + bytes > pool->max_bytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = sim_space_take(pool->device, bytes, block);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && sim_pool_release_unused(pool->device)) {
        result = sim_space_take(pool->device, bytes, block);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    (*block)->asked = 0;
    (*block)->bytes = 0;
    (*block)->pool = pool;
    sim_object_hold(pool);
    pool->blocks++;
    pool->reserved += (*block)->range.bytes;
    if (pool->reserved > pool->reserved_high) {
        pool->reserved_high = pool->reserved;
    }
    list_add(pool, *block);
    return CUDA_SUCCESS;
}

/* In the monitor, given up meanwhile. Allocates a block for the program, on the stream. */
static CUresult pool_take(struct sim_pool *pool, size_t bytes, struct sim_stream *stream,
                          CUdeviceptr *address)
{
    struct sim_block *block = pool_find(pool, bytes, stream, false);
    struct pool_op *step;
    CUresult result = CUDA_SUCCESS;

    if (block == NULL) {
        result = pool_grow(pool, bytes, &block);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY && pool->internal) {
        block = pool_find(pool, bytes, stream, true);
        result = block != NULL ? CUDA_SUCCESS : result;
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (block_is_passed(block) && block->under_way == 0 && sim_stream_is_idle(stream)) {
        block->bytes = bytes;
        block->written = bytes;
    } else {
        step = pool_op_new(block, bytes);
        if (step == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (block->freed_on != NULL && block->freed_on != stream) {
            result = sim_waits_add(&step->op.waits, block->freed_on, block->freed_at);
            if (result != CUDA_SUCCESS) {
                sim_op_drop(&step->op);
                return result;
            }
        }
        result = sim_stream_issue(stream, &step->op);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        block->under_way++;
    }
    list_remove(pool, block);
    block_forget_stream(block);
    block->asked = bytes;
    pool->used += bytes;
    if (pool->used > pool->used_high) {
        pool->used_high = pool->used;
    }
    *address = block->range.start;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool handle,
                                 CUstream stream_handle)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuMemAllocFromPoolAsync, stream_handle, &stream);
    struct sim_pool *pool;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    pool = sim_object_find(KIND_POOL, handle);
    if (address == NULL || pool == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (bytes == 0) {
        *address = 0;
        return sim_leave(CUDA_SUCCESS);
    }
    sim_object_hold(pool);
    sim_object_hold(stream);
    result = pool_take(pool, bytes, stream, address);
    sim_object_drop(stream);
    sim_object_drop(pool);
    return sim_leave(result);
}

/* In the monitor. The program has freed a block. */
static void pool_put(struct sim_block *block, size_t asked, struct sim_stream *stream)
{
    block->pool->used -= asked;
    block->asked = 0;
    block_forget_stream(block);
    if (stream != NULL) {
        sim_object_hold(stream);
        block->freed_on = stream;
        block->freed_at = stream->issued;
    }
    list_add(block->pool, block);
}

void sim_pool_free_now(struct sim_block *block, size_t asked)
{
    struct sim_pool *pool = block->pool;

    sim_object_hold(pool);
    block->bytes = 0;
    sim_space_poison(block);
    pool_put(block, asked, NULL);
    pool_collect(pool);
    sim_object_drop(pool);
}

/* A block of cuMemAlloc freed in stream order; the device gets it when the stream reaches it. */
struct give_op {
    struct sim_op op;
    struct sim_block *block;
};

static void give_finish(struct sim_stream *stream, struct sim_op *op, bool issued)
{
    (void)stream;
    if (issued) {
        sim_space_give(((struct give_op *)op)->block);
    }
}

static CUresult give_issue(struct sim_stream *stream, struct sim_block *block)
{
    struct give_op *give = sim_op_new(sizeof *give);
    CUresult result;

    if (give == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    give->op.finish = give_finish;
    give->block = block;
    result = sim_stream_issue(stream, &give->op);
    if (result == CUDA_SUCCESS) {
        block->asked = 0;
        block->context = NULL; /* the operation owns the block */
    }
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream_handle)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuMemFreeAsync, stream_handle, &stream);
    struct sim_block *block;
    struct pool_op *step;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == 0) {
        return sim_leave(CUDA_SUCCESS);
    }
    block = sim_space_find(address);
    if (block == NULL || block->range.start != address || block->asked == 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (block->pool == NULL) {
        return sim_leave(give_issue(stream, block));
    }
    if (block->under_way == 0 && block->users == 0 && sim_stream_is_idle(stream)) {
        /* First, because the monitor is given up: the program no longer has the block. */
        size_t asked = block->asked;
        block->asked = 0;
        sim_pool_free_now(block, asked);
        return sim_leave(CUDA_SUCCESS);
    }
    step = pool_op_new(block, 0);
    if (step == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    result = sim_stream_issue(stream, &step->op);
    if (result == CUDA_SUCCESS) {
        block->under_way++;
        pool_put(block, block->asked, stream);
    }
    return sim_leave(result);
}

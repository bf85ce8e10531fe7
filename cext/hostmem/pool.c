/* The pool of page-locked host memory: its regions, mapped and registered, released; and what it
 * shares with pins: the primary contexts in which memory is registered. See hostmem.h, private.h.
 */
#include <assert.h>
#include <stdlib.h>

#include "driver/driver.h"
#include "private.h"

#define ADDRESSES 4 /* to try */

/* --- primary contexts --- */

CUresult hostmem_primary_enter(CUdevice *device)
{
    CUcontext context;
    CUresult result = cuda.cuCtxGetDevice(device);

    if (result == CUDA_SUCCESS) {
        result = cuda.cuDevicePrimaryCtxRetain(&context, *device);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuda.cuCtxPushCurrent_v2(context);
    if (result != CUDA_SUCCESS) {
        hostmem_primary_release(*device);
    }
    return result;
}

void hostmem_primary_release(CUdevice device)
{
    if (!cudriver_driver_is_forked()) {
        cuda.cuDevicePrimaryCtxRelease_v2(device);
    }
}

/* --- regions --- */

/* Maps, touches and registers memory. */
static CUresult map_registered(struct hostmem_range *range)
{
    const size_t bytes = range->bytes;
    char *stale[ADDRESSES];
    int count = 0;
    CUresult result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;

    /* Where somebody unmapped registered memory, the driver still has the address. Then take
     * another, and keep this one mapped meanwhile, so that the system does not choose it again. */
    while (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED && count < ADDRESSES) {
        range->base = hostmem_map(bytes, range->node);
        if (range->base == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        result = hostmem_register(range, HOSTMEM_FLAGS, NULL, true);
        if (result != CUDA_SUCCESS) {
            stale[count++] = range->base;
        }
    }
    while (count > 0) {
        hostmem_unmap(stale[--count], bytes);
    }
    return result;
}

static void region_unmap(struct hostmem_region *region)
{
    hostmem_unmap(region->range.base, region->range.bytes);
    hostmem_primary_release(region->range.device);
}

/* A region that has no memory yet; NULL: out of memory. */
static struct hostmem_region *region_new(size_t bytes, int node, bool chunk)
{
    size_t slots = chunk ? bytes / HOSTMEM_SLOT_LEAST : 0;
    struct hostmem_region *region = calloc(1, sizeof *region + slots * sizeof *region->slots);

    if (region != NULL) {
        region->slots = chunk ? (uint64_t *)(region + 1) : NULL;
        region->range.bytes = bytes;
        region->range.step = HOSTMEM_PIECE;
        region->range.node = node;
        region->range.pooled = true;
    }
    return region;
}

static void region_join(struct hostmem_region *region)
{
    region->range.ready = true;
    atomic_store(&region->range.locked, region->range.bytes);
    region->next = hostmem_pool.regions;
    hostmem_pool.regions = region;
    hostmem_region_offer(region);
}

static bool pool_allows(size_t bytes)
{
    return hostmem_pool.stats.registered_bytes <= hostmem_pool.stats.limit_bytes &&
           bytes <= hostmem_pool.stats.limit_bytes - hostmem_pool.stats.registered_bytes;
}

/* Locked, but gives up the lock meanwhile. Adds a region of at most `room` bytes for a request and
 * takes the block from it. `smallest`: a region no larger than the block needs. */
static CUresult region_add(size_t bytes, size_t room, int node, bool smallest, void **block,
                           bool *zeroed)
{
    const bool chunk = bytes < HOSTMEM_LARGE;
    size_t size = hostmem_round(hostmem_block_size(bytes));
    struct hostmem_region *region;
    CUresult result;

    if (chunk && !smallest && HOSTMEM_CHUNK <= room && pool_allows(HOSTMEM_CHUNK)) {
        size = HOSTMEM_CHUNK;
    }
    region = size <= room && pool_allows(size) ? region_new(size, node, chunk) : NULL;
    if (region == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    hostmem_pool.stats.registered_bytes += size;
    hostmem_pool.adding++;
    pthread_mutex_unlock(&hostmem_lock);

    result = hostmem_primary_enter(&region->range.device);
    if (result == CUDA_SUCCESS) {
        result = map_registered(&region->range);
        cudriver_driver_pop();
        if (result != CUDA_SUCCESS) {
            hostmem_primary_release(region->range.device);
        }
    }

    pthread_mutex_lock(&hostmem_lock);
    if (result == CUDA_SUCCESS && !hostmem_range_insert(&region->range)) {
        pthread_mutex_unlock(&hostmem_lock);
        (void)hostmem_unregister(&region->range);
        region_unmap(region);
        pthread_mutex_lock(&hostmem_lock);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    hostmem_pool.adding--;
    if (result != CUDA_SUCCESS) {
        hostmem_pool.stats.registered_bytes -= size;
        free(region);
        return result;
    }
    if (hostmem_pool.stats.registered_bytes > hostmem_pool.stats.peak_bytes) {
        hostmem_pool.stats.peak_bytes = hostmem_pool.stats.registered_bytes;
    }
    region_join(region);
    *block = hostmem_block_take(bytes, node);
    *zeroed = *block == region->range.base; /* new memory */
    return CUDA_SUCCESS;
}

/* Locked, but gives up the lock meanwhile. Releases a region without live blocks. */
static CUresult region_release(struct hostmem_region *region)
{
    struct hostmem_region **link = &hostmem_pool.regions;
    CUresult result;

    while (*link != region) {
        link = &(*link)->next;
    }
    *link = region->next;
    hostmem_region_withdraw(region);
    region->range.ready = false;
    hostmem_pool.releasing++;
    pthread_mutex_unlock(&hostmem_lock);

    result = hostmem_unregister(&region->range);

    pthread_mutex_lock(&hostmem_lock);
    if (result == CUDA_SUCCESS) {
        hostmem_range_remove(&region->range); /* before others may map something there */
        pthread_mutex_unlock(&hostmem_lock);
        region_unmap(region);
        pthread_mutex_lock(&hostmem_lock);
        hostmem_pool.stats.registered_bytes -= region->range.bytes;
        free(region);
    } else { /* stays mapped: its address could never be used again */
        region_join(region);
    }
    hostmem_pool.releasing--;
    hostmem_pool.releases++;
    pthread_cond_broadcast(&hostmem_changed);
    return result;
}

/* --- blocks --- */

static size_t free_bytes(void)
{
    size_t bytes = 0;

    for (struct hostmem_region *region = hostmem_pool.regions; region != NULL;
         region = region->next) {
        bytes += region->range.bytes - region->taken;
    }
    return bytes;
}

/* The free region to release next: the smallest of at least `excess` bytes, else the largest. */
static struct hostmem_region *region_to_release(size_t excess)
{
    struct hostmem_region *best = NULL;

    for (struct hostmem_region *region = hostmem_pool.regions; region != NULL;
         region = region->next) {
        if (region->taken == 0 &&
            (best == NULL ||
             (region->range.bytes >= excess
                  ? best->range.bytes < excess || region->range.bytes < best->range.bytes
                  : region->range.bytes > best->range.bytes))) {
            best = region;
        }
    }
    return best;
}

/* Lock held before and after, not in between. */
static CUresult trim(size_t keep, size_t *released)
{
    *released = 0;
    for (;;) {
        hostmem_chunks_sweep();
        size_t left = free_bytes();
        struct hostmem_region *region = left > keep ? region_to_release(left - keep) : NULL;
        if (region == NULL) {
            return CUDA_SUCCESS;
        }
        size_t bytes = region->range.bytes;
        CUresult result = region_release(region);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        *released += bytes;
    }
}

/* Serves a request that no free memory serves. If memory is short, releases what is free and tries
 * once more with the least. */
static CUresult alloc_slowly(size_t bytes, size_t room, int node, void **block, bool *zeroed)
{
    bool trimmed = false;

    for (;;) {
        CUresult result = region_add(bytes, room, node, trimmed, block, zeroed);
        if (result == CUDA_SUCCESS) {
            hostmem_pool.stats.misses++;
        }
        if (result != CUDA_ERROR_OUT_OF_MEMORY) {
            return result;
        }
        *block = hostmem_block_take(bytes, node); /* freed meanwhile */
        if (*block != NULL) {
            hostmem_pool.stats.hits++;
            return CUDA_SUCCESS;
        }
        if (hostmem_pool.releasing > 0) {
            size_t seen = hostmem_pool.releases;
            while (hostmem_pool.releasing > 0 && hostmem_pool.releases == seen) {
                pthread_cond_wait(&hostmem_changed, &hostmem_lock); /* pins announce too */
            }
        } else if (trimmed) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            size_t released;
            (void)trim(0, &released);
            room += released < SIZE_MAX - room ? released : SIZE_MAX - room;
            trimmed = true;
        }
    }
}

/* Takes a free block; `hard`: looks for more than the usual ones, and for new memory. */
static CUresult block_get(size_t bytes, size_t room, int node, bool hard, void **block,
                          bool *zeroed)
{
    CUresult result = CUDA_SUCCESS;

    bytes = bytes > 0 ? bytes : 1;
    pthread_mutex_lock(&hostmem_lock);
    *block = hostmem_block_take(bytes, node);
    if (*block == NULL && hard && hostmem_chunks_sweep()) {
        *block = hostmem_block_take(bytes, node);
    }
    if (*block != NULL) {
        hostmem_pool.stats.hits++;
    } else if (hard) {
        result = alloc_slowly(bytes, room, node, block, zeroed);
    }
    if (*block != NULL) {
        hostmem_pool.stats.used_bytes += bytes;
        hostmem_pool.stats.used_blocks++;
    }
    pthread_mutex_unlock(&hostmem_lock);
    return result;
}

CUresult cudriver_hostmem_alloc(size_t bytes, size_t room, int node, void **address, bool *zeroed)
{
    *address = NULL;
    *zeroed = false;
    if (cudriver_driver_is_forked()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (bytes > HOSTMEM_MOST) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    node = node == CUDRIVER_NODE_POLICY ? cudriver_hostmem_node() : node;
    node = node == CUDRIVER_NODE_POLICY ? CUDRIVER_NODE_ANY : node;
    return block_get(bytes, room, node, true, address, zeroed);
}

void *cudriver_hostmem_try_alloc(size_t bytes, int node)
{
    void *block = NULL;

    node = node == CUDRIVER_NODE_POLICY ? cudriver_hostmem_node() : node;
    if (!cudriver_driver_is_forked() && bytes <= HOSTMEM_MOST && node != CUDRIVER_NODE_POLICY) {
        (void)block_get(bytes, 0, node, false, &block, NULL);
    }
    return block;
}

size_t cudriver_hostmem_free_if_owned(void *address)
{
    struct hostmem_region *region;
    size_t bytes;

    pthread_mutex_lock(&hostmem_lock);
    region = hostmem_region_of(address);
    bytes = region != NULL ? hostmem_block_bytes(region, address) : 0;
    if (bytes > 0) {
        hostmem_pool.stats.used_bytes -= bytes;
        hostmem_pool.stats.used_blocks--;
        hostmem_block_give(region, address);
    }
    pthread_mutex_unlock(&hostmem_lock);
    return bytes;
}

void cudriver_hostmem_free(void *address)
{
    size_t bytes = cudriver_hostmem_free_if_owned(address);

    assert(bytes > 0);
    (void)bytes;
}

#ifndef NDEBUG
void *cudriver_hostmem_damaged(size_t *bytes)
{
    void *found = NULL;

    pthread_mutex_lock(&hostmem_lock);
    for (struct hostmem_region *region = hostmem_pool.regions; region != NULL && found == NULL;
         region = region->next) {
        size_t end = region->slots == NULL ? 1 : region->cut;
        if (end > region->range.bytes) {
            end = region->range.bytes; /* the last slot's guard lies behind the region */
        }
        for (size_t at = 0; at < end && found == NULL; at += HOSTMEM_SLOT_LEAST) {
            *bytes = hostmem_block_bytes(region, region->range.base + at);
            if (*bytes > 0 && !hostmem_block_guard(region->range.base + at, *bytes, false)) {
                found = region->range.base + at;
            }
        }
    }
    pthread_mutex_unlock(&hostmem_lock);
    return found;
}
#endif

bool cudriver_hostmem_owns(const void *address, size_t *bytes)
{
    struct hostmem_region *region;

    pthread_mutex_lock(&hostmem_lock);
    region = hostmem_region_of(address);
    *bytes = region != NULL ? hostmem_block_bytes(region, address) : 0;
    pthread_mutex_unlock(&hostmem_lock);
    return *bytes > 0;
}

CUresult cudriver_hostmem_trim(size_t keep, size_t *released)
{
    CUresult result;

    pthread_mutex_lock(&hostmem_lock);
    result = trim(keep, released);
    pthread_mutex_unlock(&hostmem_lock);
    return result;
}

void cudriver_hostmem_set_limit(size_t bytes)
{
    pthread_mutex_lock(&hostmem_lock);
    hostmem_pool.stats.limit_bytes = bytes;
    pthread_mutex_unlock(&hostmem_lock);
}

size_t cudriver_hostmem_least(size_t bytes)
{
    return hostmem_round(hostmem_block_size(bytes));
}

void cudriver_hostmem_get_stats(struct cudriver_hostmem_stats *stats)
{
    pthread_mutex_lock(&hostmem_lock);
    *stats = hostmem_pool.stats;
    stats->pooled_bytes = free_bytes();
    pthread_mutex_unlock(&hostmem_lock);
}

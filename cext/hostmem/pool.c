/* The pool of page-locked host memory: see hostmem.h and private.h. */
#include <assert.h>

#include "driver/driver.h"
#include "private.h"

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
        CUresult result = hostmem_region_release(region);
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
        CUresult result = hostmem_region_add(bytes, room, node, trimmed, block, zeroed);
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
    stats->huge_given_up = hostmem_huge_given_up();
    pthread_mutex_unlock(&hostmem_lock);
}

bool cudriver_hostmem_uses_device(CUdevice device)
{
    pthread_mutex_lock(&hostmem_lock);
    bool found = hostmem_pool.adding + hostmem_pool.releasing > 0 || /* perhaps there */
                 hostmem_range_uses_device(device);
    pthread_mutex_unlock(&hostmem_lock);
    return found;
}

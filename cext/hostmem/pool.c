/* The pool of page-locked host memory: see hostmem.h and private.h. */
#include "hostmem.h"

#include <assert.h>

#include "driver/driver.h"
#include "private.h"

static size_t free_bytes(enum hostmem_region_state state)
{
    size_t bytes = 0;

    for (struct hostmem_region *region = hostmem_pool.regions; region != NULL;
         region = region->next) {
        if (region->state == state) {
            bytes += region->bytes - region->taken;
        }
    }
    return bytes;
}

/* The free region to release next: a LOST one, else the smallest of at least `excess` bytes, else
 * the largest. */
static struct hostmem_region *region_to_release(size_t excess)
{
    struct hostmem_region *best = NULL;

    for (struct hostmem_region *region = hostmem_pool.regions; region != NULL;
         region = region->next) {
        if (region->state == HOSTMEM_BUSY || region->taken > 0) {
            continue;
        }
        if (region->state == HOSTMEM_LOST) {
            return region;
        }
        if (best == NULL ||
            (region->bytes >= excess ? best->bytes < excess || region->bytes < best->bytes
                                     : region->bytes > best->bytes)) {
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
        hostmem_slabs_sweep();
        size_t left = free_bytes(HOSTMEM_REGISTERED) + free_bytes(HOSTMEM_LOST);
        struct hostmem_region *region = left > keep ? region_to_release(left - keep) : NULL;
        if (region == NULL) {
            return CUDA_SUCCESS;
        }
        size_t bytes = region->bytes;
        CUresult result = hostmem_region_release(region);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        *released += bytes;
    }
}

static struct hostmem_region *lost_region_for(size_t bytes, enum hostmem_fit fit)
{
    for (struct hostmem_region *region = hostmem_pool.regions; region != NULL;
         region = region->next) {
        if (region->state == HOSTMEM_LOST && !region->refused &&
            hostmem_pool_allows(region->bytes) && hostmem_region_can_serve(region, bytes, fit)) {
            return region;
        }
    }
    return NULL;
}

/*
 * Serves a request that the lists cannot: revives a LOST region or adds one. If memory is short,
 * takes any free memory that fits; then releases all free memory and tries once more with the
 * least.
 */
static CUresult alloc_slowly(size_t bytes, void **block, bool *zeroed)
{
    bool trimmed = false;

    for (;;) {
        enum hostmem_fit fit = trimmed ? HOSTMEM_ANY : HOSTMEM_STRICT;
        struct hostmem_region *lost = lost_region_for(bytes, fit);
        CUresult result = lost != NULL ? hostmem_region_revive(lost)
                                       : hostmem_region_add(bytes, trimmed, block, zeroed);

        if (result == CUDA_SUCCESS) {
            /* The block may be taken by another thread, or the region lost again. */
            if (*block == NULL) {
                *block = hostmem_block_take(bytes, fit, zeroed);
            }
            if (*block != NULL) {
                hostmem_pool.misses++;
                return CUDA_SUCCESS;
            }
            continue;
        }
        if (lost != NULL && result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
            continue; /* without that region */
        }
        if (result != CUDA_ERROR_OUT_OF_MEMORY) {
            return result;
        }
        hostmem_slabs_sweep();
        *block = hostmem_block_take(bytes, HOSTMEM_ANY, zeroed);
        if (*block != NULL) {
            hostmem_pool.hits++;
            return CUDA_SUCCESS;
        }
        if (hostmem_pool.releasing > 0) {
            size_t seen = hostmem_pool.releases;
            while (hostmem_pool.releasing > 0 && hostmem_pool.releases == seen) {
                hostmem_wait(); /* pins announce too */
            }
            continue;
        }
        if (trimmed) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        size_t released;
        (void)trim(0, &released);
        trimmed = true;
    }
}

static void count_use(const void *block, size_t bytes)
{
    if (block != NULL) {
        hostmem_pool.used_bytes += bytes;
        hostmem_pool.used_blocks++;
    }
}

CUresult cudriver_hostmem_alloc(size_t bytes, void **address, bool *zeroed)
{
    CUresult result = CUDA_SUCCESS;
    void *block;

    *address = NULL;
    *zeroed = false;
    if (cudriver_driver_is_forked()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (bytes > HOSTMEM_MOST) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bytes = bytes > 0 ? bytes : 1;

    hostmem_lock();
    block = hostmem_block_take(bytes, HOSTMEM_STRICT, zeroed);
    if (block == NULL && hostmem_slabs_sweep()) {
        block = hostmem_block_take(bytes, HOSTMEM_STRICT, zeroed);
    }
    if (block != NULL) {
        hostmem_pool.hits++;
    } else {
        result = alloc_slowly(bytes, &block, zeroed);
    }
    count_use(block, bytes);
    hostmem_unlock();
    *address = block;
    return result;
}

void *cudriver_hostmem_try_alloc(size_t bytes)
{
    bool zeroed;
    void *block;

    if (cudriver_driver_is_forked() || bytes > HOSTMEM_MOST) {
        return NULL;
    }
    bytes = bytes > 0 ? bytes : 1;
    hostmem_lock();
    block = hostmem_block_take(bytes, HOSTMEM_STRICT, &zeroed);
    hostmem_pool.hits += block != NULL;
    count_use(block, bytes);
    hostmem_unlock();
    return block;
}

size_t cudriver_hostmem_free_if_owned(void *address)
{
    struct hostmem_region *region;
    size_t bytes;

    if (hostmem_region_of(address) == NULL) {
        return 0; /* most addresses that are not ours, without the lock */
    }
    hostmem_lock();
    region = hostmem_region_with(address);
    bytes = region != NULL ? hostmem_block_bytes(region, address) : 0;
    if (bytes > 0) {
        hostmem_pool.used_bytes -= bytes;
        hostmem_pool.used_blocks--;
        hostmem_block_give(region, address);
    }
    hostmem_unlock();
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

    if (hostmem_region_of(address) == NULL) {
        *bytes = 0;
        return false;
    }
    hostmem_lock();
    region = hostmem_region_with(address);
    *bytes = region != NULL ? hostmem_block_bytes(region, address) : 0;
    hostmem_unlock();
    return *bytes > 0;
}

CUresult cudriver_hostmem_trim(size_t keep, size_t *released)
{
    CUresult result;

    hostmem_lock();
    result = trim(keep, released);
    hostmem_unlock();
    return result;
}

void cudriver_hostmem_set_limit(size_t bytes)
{
    hostmem_lock();
    hostmem_pool.limit = bytes;
    hostmem_unlock();
}

void hostmem_pool_count(struct cudriver_hostmem_stats *stats)
{
    hostmem_lock();
    *stats = (struct cudriver_hostmem_stats){
        .used_bytes = hostmem_pool.used_bytes,
        .used_blocks = hostmem_pool.used_blocks,
        .pooled_bytes = free_bytes(HOSTMEM_REGISTERED),
        .registered_bytes = hostmem_pool.registered,
        .peak_bytes = hostmem_pool.peak,
        .limit_bytes = hostmem_pool.limit,
        .hits = hostmem_pool.hits,
        .misses = hostmem_pool.misses,
    };
    hostmem_unlock();
}

bool hostmem_pool_holds(const void *address, size_t bytes, CUresult *result)
{
    struct hostmem_region *region;
    bool inside = false;

    *result = CUDA_SUCCESS;
    hostmem_lock();
    /* Looked up again after each wait, though the caller's live block keeps the region. */
    while ((region = hostmem_region_with(address)) != NULL &&
           bytes <= region->bytes - (size_t)((const char *)address - region->base)) {
        inside = true;
        if (region->state == HOSTMEM_REGISTERED) {
            break;
        }
        if (region->state == HOSTMEM_BUSY) {
            hostmem_wait();
            continue;
        }
        if (!hostmem_pool_allows(region->bytes)) {
            *result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        *result = hostmem_region_revive(region);
        if (*result != CUDA_SUCCESS) {
            break;
        }
    }
    hostmem_unlock();
    return inside;
}

/* The pool of page-locked host memory: see hostmem.h and private.h. */
#include "hostmem.h"

#include <assert.h>

#include "driver/driver.h"
#include "private.h"

/* The region that contains `address`, or NULL. Under the lock. */
static struct hostmem_region *region_with(const void *address)
{
    struct hostmem_region *region = hostmem_region_of(address);

    if (region == NULL || (size_t)((const char *)address - region->base) >= region->bytes) {
        return NULL;
    }
    return region;
}

static size_t free_bytes(void)
{
    size_t bytes = 0;

    for (struct hostmem_region *region = hostmem_pool.regions; region != NULL;
         region = region->next) {
        bytes += region->bytes - region->taken;
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
             (region->bytes >= excess ? best->bytes < excess || region->bytes < best->bytes
                                      : region->bytes > best->bytes))) {
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
        size_t bytes = region->bytes;
        CUresult result = hostmem_region_release(region);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        *released += bytes;
    }
}

/* Serves a request that no free memory serves. If memory is short, releases what is free and tries
 * once more with the least. */
static CUresult alloc_slowly(size_t bytes, size_t room, void **block, bool *zeroed)
{
    bool trimmed = false;

    for (;;) {
        CUresult result = hostmem_region_add(bytes, room, trimmed, block, zeroed);
        if (result == CUDA_SUCCESS) {
            hostmem_pool.misses++;
        }
        if (result != CUDA_ERROR_OUT_OF_MEMORY) {
            return result;
        }
        *block = hostmem_block_take(bytes, zeroed); /* freed meanwhile */
        if (*block != NULL) {
            hostmem_pool.hits++;
            return CUDA_SUCCESS;
        }
        if (hostmem_pool.releasing > 0) {
            size_t seen = hostmem_pool.releases;
            while (hostmem_pool.releasing > 0 && hostmem_pool.releases == seen) {
                hostmem_wait(); /* pins announce too */
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

static void count_use(const void *block, size_t bytes)
{
    if (block != NULL) {
        hostmem_pool.used_bytes += bytes;
        hostmem_pool.used_blocks++;
    }
}

CUresult cudriver_hostmem_alloc(size_t bytes, size_t room, void **address, bool *zeroed)
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
    block = hostmem_block_take(bytes, zeroed);
    if (block == NULL && hostmem_chunks_sweep()) {
        block = hostmem_block_take(bytes, zeroed);
    }
    if (block != NULL) {
        hostmem_pool.hits++;
    } else {
        result = alloc_slowly(bytes, room, &block, zeroed);
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
    block = hostmem_block_take(bytes, &zeroed);
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
    region = region_with(address);
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

    *bytes = 0;
    if (hostmem_region_of(address) == NULL) {
        return false;
    }
    hostmem_lock();
    region = region_with(address);
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

size_t cudriver_hostmem_least(size_t bytes)
{
    return hostmem_round(hostmem_block_size(bytes));
}

void hostmem_pool_count(struct cudriver_hostmem_stats *stats)
{
    hostmem_lock();
    *stats = (struct cudriver_hostmem_stats){
        .used_bytes = hostmem_pool.used_bytes,
        .used_blocks = hostmem_pool.used_blocks,
        .pooled_bytes = free_bytes(),
        .registered_bytes = hostmem_pool.registered,
        .peak_bytes = hostmem_pool.peak,
        .limit_bytes = hostmem_pool.limit,
        .hits = hostmem_pool.hits,
        .misses = hostmem_pool.misses,
    };
    hostmem_unlock();
}

bool hostmem_pool_use_device(CUdevice device)
{
    bool found;

    hostmem_lock();
    found = hostmem_pool.adding + hostmem_pool.releasing > 0; /* perhaps there */
    for (struct hostmem_region *region = hostmem_pool.regions; region != NULL;
         region = region->next) {
        found |= region->device == device;
    }
    hostmem_unlock();
    return found;
}

size_t hostmem_pool_run(const void *address, size_t bytes)
{
    struct hostmem_region *region;
    size_t run = 0;

    if (hostmem_region_of(address) == NULL) {
        return 0;
    }
    hostmem_lock();
    region = region_with(address);
    if (region != NULL) {
        size_t offset = (size_t)((const char *)address - region->base);
        run = HOSTMEM_PIECE - offset % HOSTMEM_PIECE;
        run = run < region->bytes - offset ? run : region->bytes - offset;
        run = run < bytes ? run : bytes;
    }
    hostmem_unlock();
    return run;
}

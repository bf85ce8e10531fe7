/* The pool of page-locked host memory: see hostmem.h and private.h. */
#include "hostmem.h"

#include <assert.h>
#include <stdlib.h>

#include "driver/driver.h"
#include "private.h"

/*
 * A new arena has a quarter of the arenas' bytes, within these bounds, so that at most about a
 * quarter is idle. One registration costs about 40 us, and 16 us for each further MiB.
 */
#define ARENA_LEAST ((size_t)2 << 20)
#define ARENA_GROWTH ((size_t)32 << 20)

/* Registered for all contexts, and mapped: with unified addressing, which all 64-bit Linux drivers
 * have, the driver maps it anyway and takes no longer when asked. */
#define FLAGS (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)

static struct {
    struct hostmem_region *regions;
    size_t registered;  /* bytes */
    size_t reserved;    /* bytes being registered */
    size_t arena_bytes; /* of arenas, in any state */
    unsigned releasing; /* regions being released */
    size_t peak, limit;
    size_t used_bytes, used_blocks;
    unsigned long long hits, misses;
} pool = {.limit = SIZE_MAX};

/* --- regions, under the lock --- */

/* The region that contains `address`, or NULL. */
static struct hostmem_region *region_with(const void *address)
{
    struct hostmem_region *region = hostmem_region_of(address);

    if (region == NULL || (size_t)((const char *)address - region->base) >= region->bytes) {
        return NULL;
    }
    return region;
}

static void region_link(struct hostmem_region *region)
{
    region->previous = NULL;
    region->next = pool.regions;
    if (region->next != NULL) {
        region->next->previous = region;
    }
    pool.regions = region;
    pool.arena_bytes += region->arena ? region->bytes : 0;
}

static void region_unlink(struct hostmem_region *region)
{
    if (region->next != NULL) {
        region->next->previous = region->previous;
    }
    if (region->previous != NULL) {
        region->previous->next = region->next;
    } else {
        pool.regions = region->next;
    }
    pool.arena_bytes -= region->arena ? region->bytes : 0;
}

/* A BUSY region is registered now: puts it in use, or makes it LOST if its home was reset meanwhile
 * (then the lock is not held in between). */
static void region_join(struct hostmem_region *region)
{
    if (region->lost) {
        hostmem_unlock();
        hostmem_home_release(region->home, 1);
        hostmem_lock();
        region->lost = false;
        region->state = HOSTMEM_LOST;
    } else {
        region->state = HOSTMEM_REGISTERED;
        region->refused = false;
        hostmem_region_list(region);
        pool.registered += region->bytes;
        if (pool.registered > pool.peak) {
            pool.peak = pool.registered;
        }
    }
    hostmem_announce();
}

static bool limit_allows(size_t bytes)
{
    size_t held = pool.registered + pool.reserved;

    return held <= pool.limit && bytes <= pool.limit - held;
}

/* Registers a LOST region again. Without the lock. */
static CUresult region_register(struct hostmem_region *region)
{
    CUresult result = hostmem_home_enter(&region->home);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = hostmem_register(region->base, region->bytes, FLAGS);
    if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
        /* It was not lost after all; or somebody has registered one of our blocks. */
        result = hostmem_unregister(region->base, region->bytes);
        if (result == CUDA_SUCCESS) {
            result = hostmem_register(region->base, region->bytes, FLAGS);
        }
    }
    hostmem_home_leave();
    if (result != CUDA_SUCCESS) {
        hostmem_home_release(region->home, 1);
    }
    return result;
}

/* The same, with the bookkeeping. Lock held before and after, not in between. */
static CUresult region_revive(struct hostmem_region *region)
{
    CUresult result;

    region->state = HOSTMEM_BUSY;
    pool.reserved += region->bytes;
    hostmem_unlock();

    result = region_register(region);

    hostmem_lock();
    pool.reserved -= region->bytes;
    if (result == CUDA_SUCCESS) {
        region_join(region);
    } else {
        region->lost = false;
        region->refused = result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        region->state = HOSTMEM_LOST;
        hostmem_announce();
    }
    return result;
}

/* Maps, touches and registers memory. Without the lock. */
static CUresult map_registered(size_t bytes, char **base)
{
    char *stale[3];
    int count = 0;
    CUresult result;

    do {
        *base = hostmem_map(bytes);
        if (*base == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        result = hostmem_touch_and_register(*base, bytes, FLAGS);
        if (result == CUDA_SUCCESS) {
            break;
        }
        if (result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED || count == 3) {
            hostmem_unmap(*base, bytes);
            break;
        }
        /* Somebody unmapped registered memory here, and the driver still has the address. Try
         * another address; keep this one mapped meanwhile, so that the system does not choose it
         * again. */
        stale[count++] = *base;
    } while (true);

    while (count > 0) {
        hostmem_unmap(stale[--count], bytes);
    }
    return result;
}

size_t cudriver_hostmem_least(size_t bytes)
{
    return hostmem_round(hostmem_bytes_needed(bytes));
}

/* The size of a new region for a request; `lean`: the least that will do. */
static size_t region_size(size_t bytes, bool lean)
{
    size_t least = cudriver_hostmem_least(bytes), size;

    if (!hostmem_is_for_arena(bytes) || lean) {
        return least;
    }
    size = pool.arena_bytes / 4 / ARENA_LEAST * ARENA_LEAST;
    size = size < ARENA_LEAST ? ARENA_LEAST : size > ARENA_GROWTH ? ARENA_GROWTH : size;
    if (size < least) {
        size = least;
    }
    return limit_allows(size) ? size : least;
}

/* Gives a region its memory, its extents and its table entries. All or nothing. */
static CUresult region_make(struct hostmem_region *region)
{
    CUresult result = hostmem_home_enter(&region->home);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = map_registered(region->bytes, &region->base);
    hostmem_home_leave();
    if (result == CUDA_SUCCESS && hostmem_region_open(region)) {
        if (hostmem_region_enter(region, region)) {
            return CUDA_SUCCESS;
        }
        hostmem_region_close(region);
    }
    if (result == CUDA_SUCCESS) {
        (void)hostmem_unregister(region->base, region->bytes);
        hostmem_unmap(region->base, region->bytes);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    hostmem_home_release(region->home, 1);
    return result;
}

/* Adds a region for a request and takes the block from it. Lock held before and after, not in
 * between. */
static CUresult region_add(size_t bytes, bool lean, void **block, bool *zeroed)
{
    struct hostmem_region *region;
    size_t size = region_size(bytes, lean);
    CUresult result;

    if (!limit_allows(size)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    region = calloc(1, sizeof *region);
    if (region == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    region->bytes = size;
    region->arena = hostmem_is_for_arena(bytes);
    region->state = HOSTMEM_BUSY;
    region_link(region);
    pool.reserved += size;
    hostmem_unlock();

    result = region_make(region);

    hostmem_lock();
    pool.reserved -= size;
    if (result != CUDA_SUCCESS) {
        region_unlink(region);
        free(region);
        hostmem_announce();
        return result;
    }
    region_join(region);
    *block = hostmem_block_take(bytes, HOSTMEM_STRICT, zeroed);
    return CUDA_SUCCESS;
}

/* Releases a region without live blocks. Lock held before and after, not in between. */
static CUresult region_release(struct hostmem_region *region)
{
    const bool registered = region->state == HOSTMEM_REGISTERED;
    CUresult result;

    if (registered) {
        hostmem_region_unlist(region);
    }
    region->state = HOSTMEM_BUSY;
    pool.releasing++;
    hostmem_unlock();

    /* A LOST one too: if it is registered after all, its address could never be used again. */
    result = hostmem_unregister(region->base, region->bytes);
    if (!registered || result == CUDA_ERROR_DEINITIALIZED) {
        result = CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) {
        (void)hostmem_region_enter(region, NULL);
        hostmem_unmap(region->base, region->bytes);
        hostmem_home_release(region->home, registered);
    }

    hostmem_lock();
    pool.releasing--;
    if (registered) {
        pool.registered -= region->bytes;
    }
    if (result != CUDA_SUCCESS) {
        region_join(region);
        return result;
    }
    region_unlink(region);
    hostmem_region_close(region);
    free(region);
    hostmem_announce();
    return CUDA_SUCCESS;
}

static size_t free_bytes(enum hostmem_region_state state)
{
    size_t bytes = 0;

    for (struct hostmem_region *region = pool.regions; region != NULL; region = region->next) {
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

    for (struct hostmem_region *region = pool.regions; region != NULL; region = region->next) {
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
        CUresult result = region_release(region);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        *released += bytes;
    }
}

/* --- blocks --- */

static struct hostmem_region *lost_region_for(size_t bytes, enum hostmem_fit fit)
{
    for (struct hostmem_region *region = pool.regions; region != NULL; region = region->next) {
        if (region->state == HOSTMEM_LOST && !region->refused && limit_allows(region->bytes) &&
            hostmem_region_can_serve(region, bytes, fit)) {
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
        CUresult result =
            lost != NULL ? region_revive(lost) : region_add(bytes, trimmed, block, zeroed);

        if (result == CUDA_SUCCESS) {
            /* The block may be taken by another thread, or the region lost again. */
            if (*block == NULL) {
                *block = hostmem_block_take(bytes, fit, zeroed);
            }
            if (*block != NULL) {
                pool.misses++;
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
            pool.hits++;
            return CUDA_SUCCESS;
        }
        if (pool.releasing > 0) {
            hostmem_wait(); /* memory is being released */
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
        pool.used_bytes += bytes;
        pool.used_blocks++;
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
        pool.hits++;
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
    pool.hits += block != NULL;
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
        pool.used_bytes -= bytes;
        pool.used_blocks--;
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
    region = region_with(address);
    *bytes = region != NULL ? hostmem_block_bytes(region, address) : 0;
    hostmem_unlock();
    return *bytes > 0;
}

/* --- the whole --- */

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
    pool.limit = bytes;
    hostmem_unlock();
}

void hostmem_pool_count(struct cudriver_hostmem_stats *stats)
{
    hostmem_lock();
    *stats = (struct cudriver_hostmem_stats){
        .used_bytes = pool.used_bytes,
        .used_blocks = pool.used_blocks,
        .pooled_bytes = free_bytes(HOSTMEM_REGISTERED),
        .registered_bytes = pool.registered,
        .peak_bytes = pool.peak,
        .limit_bytes = pool.limit,
        .hits = pool.hits,
        .misses = pool.misses,
    };
    hostmem_unlock();
}

bool hostmem_pool_has_home(CUdevice home)
{
    bool found = false;

    hostmem_lock();
    for (struct hostmem_region *region = pool.regions; region != NULL; region = region->next) {
        found |= region->state == HOSTMEM_BUSY ||
                 (region->state == HOSTMEM_REGISTERED && region->home == home);
    }
    hostmem_unlock();
    return found;
}

size_t hostmem_pool_forget_home(CUdevice home)
{
    size_t count = 0;

    hostmem_lock();
    hostmem_slabs_sweep(); /* only listed regions keep empty slabs */
    for (struct hostmem_region *region = pool.regions; region != NULL; region = region->next) {
        if (region->state == HOSTMEM_BUSY) {
            region->lost = true; /* perhaps of another home */
        } else if (region->state == HOSTMEM_REGISTERED && region->home == home) {
            hostmem_region_unlist(region);
            region->state = HOSTMEM_LOST;
            pool.registered -= region->bytes;
            count++;
        }
    }
    hostmem_unlock();
    return count;
}

/* --- for pins.c and registrations.c --- */

bool hostmem_pool_holds(const void *address, size_t bytes, CUresult *result)
{
    struct hostmem_region *region;
    bool inside = false;

    *result = CUDA_SUCCESS;
    hostmem_lock();
    /* Looked up again after each wait, though the caller's live block keeps the region. */
    while ((region = region_with(address)) != NULL &&
           bytes <= region->bytes - (size_t)((const char *)address - region->base)) {
        inside = true;
        if (region->state == HOSTMEM_REGISTERED) {
            break;
        }
        if (region->state == HOSTMEM_BUSY) {
            hostmem_wait();
            continue;
        }
        if (!limit_allows(region->bytes)) {
            *result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        *result = region_revive(region);
        if (*result != CUDA_SUCCESS) {
            break;
        }
    }
    hostmem_unlock();
    return inside;
}

/* How many of the `bytes` at an address in `region` lie in one registration. */
static size_t region_run(const struct hostmem_region *region, const void *address, size_t bytes)
{
    size_t offset = (size_t)((const char *)address - region->base);
    size_t run = HOSTMEM_PIECE - offset % HOSTMEM_PIECE;

    run = run < region->bytes - offset ? run : region->bytes - offset;
    return run < bytes ? run : bytes;
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
        run = region_run(region, address, bytes);
    }
    hostmem_unlock();
    return run;
}

bool hostmem_pool_is_registered(const void *address, size_t bytes)
{
    struct hostmem_region *region;
    bool registered;

    hostmem_lock();
    region = region_with(address);
    registered = region != NULL && region->state == HOSTMEM_REGISTERED &&
                 region_run(region, address, bytes) == bytes;
    hostmem_unlock();
    return registered;
}

/* Regions of the pool: made, registered, lost with their home, registered again, released. */
#include <stdlib.h>

#include "driver/driver.h"
#include "hostmem.h"
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

struct hostmem_pool hostmem_pool = {.limit = SIZE_MAX};

struct hostmem_region *hostmem_region_with(const void *address)
{
    struct hostmem_region *region = hostmem_region_of(address);

    if (region == NULL || (size_t)((const char *)address - region->base) >= region->bytes) {
        return NULL;
    }
    return region;
}

static void region_link(struct hostmem_region *region)
{
    region->next = hostmem_pool.regions;
    hostmem_pool.regions = region;
    hostmem_pool.arena_bytes += region->arena ? region->bytes : 0;
}

static void region_unlink(struct hostmem_region *region)
{
    struct hostmem_region **link = &hostmem_pool.regions;

    while (*link != region) {
        link = &(*link)->next;
    }
    *link = region->next;
    hostmem_pool.arena_bytes -= region->arena ? region->bytes : 0;
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
        hostmem_pool.registered += region->bytes;
        if (hostmem_pool.registered > hostmem_pool.peak) {
            hostmem_pool.peak = hostmem_pool.registered;
        }
    }
    hostmem_announce();
}

bool hostmem_pool_allows(size_t bytes)
{
    size_t held = hostmem_pool.registered + hostmem_pool.reserved;

    return held <= hostmem_pool.limit && bytes <= hostmem_pool.limit - held;
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

CUresult hostmem_region_revive(struct hostmem_region *region)
{
    CUresult result;

    region->state = HOSTMEM_BUSY;
    hostmem_pool.reserved += region->bytes;
    hostmem_unlock();

    result = region_register(region);

    hostmem_lock();
    hostmem_pool.reserved -= region->bytes;
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
    size = hostmem_pool.arena_bytes / 4 / ARENA_LEAST * ARENA_LEAST;
    size = size < ARENA_LEAST ? ARENA_LEAST : size > ARENA_GROWTH ? ARENA_GROWTH : size;
    if (size < least) {
        size = least;
    }
    return hostmem_pool_allows(size) ? size : least;
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

CUresult hostmem_region_add(size_t bytes, bool lean, void **block, bool *zeroed)
{
    struct hostmem_region *region;
    size_t size = region_size(bytes, lean);
    CUresult result;

    if (!hostmem_pool_allows(size)) {
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
    hostmem_pool.reserved += size;
    hostmem_unlock();

    result = region_make(region);

    hostmem_lock();
    hostmem_pool.reserved -= size;
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

CUresult hostmem_region_release(struct hostmem_region *region)
{
    const bool registered = region->state == HOSTMEM_REGISTERED;
    CUresult result;

    if (registered) {
        hostmem_region_unlist(region);
    }
    region->state = HOSTMEM_BUSY;
    hostmem_pool.releasing++;
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
    hostmem_pool.releasing--;
    hostmem_pool.releases++;
    if (registered) {
        hostmem_pool.registered -= region->bytes;
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

size_t hostmem_pool_forget_home(CUdevice home)
{
    size_t count = 0;

    hostmem_lock();
    hostmem_slabs_sweep(); /* only listed regions keep empty slabs */
    for (struct hostmem_region *region = hostmem_pool.regions; region != NULL;
         region = region->next) {
        if (region->state == HOSTMEM_BUSY) {
            region->lost = true; /* perhaps of another home */
        } else if (region->state == HOSTMEM_REGISTERED && region->home == home) {
            hostmem_region_unlist(region);
            region->state = HOSTMEM_LOST;
            hostmem_pool.registered -= region->bytes;
            count++;
        }
    }
    hostmem_unlock();
    return count;
}

/* Regions of the pool: mapped and registered, released. And what they share with pins: the primary
 * contexts in which memory is registered. */
#include <stdlib.h>
#include <sys/mman.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "private.h"

#define ADDRESSES 4 /* to try */

struct hostmem_pool hostmem_pool = {.stats = {.limit_bytes = SIZE_MAX}};

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
        range->base = hostmem_map(bytes);
        if (range->base == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        (void)platform_place(range->base, bytes, range->node); /* if refused, it lies elsewhere */
        result = hostmem_register(range, HOSTMEM_FLAGS, NULL, true);
        if (result != CUDA_SUCCESS) {
            stale[count++] = range->base;
        }
    }
    while (count > 0) {
        munmap(stale[--count], bytes);
    }
    return result;
}

static void region_unmap(struct hostmem_region *region)
{
    munmap(region->range.base, region->range.bytes);
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

CUresult hostmem_region_add(size_t bytes, size_t room, int node, bool smallest, void **block,
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

CUresult hostmem_region_release(struct hostmem_region *region)
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

/* Queries about registrations, which pool and pins answer together: see hostmem.h. */
#include "hostmem.h"

#include "driver/driver.h"
#include "private.h"

static bool pool_has_home(CUdevice home)
{
    bool found = false;

    hostmem_lock();
    for (struct hostmem_region *region = hostmem_pool.regions; region != NULL;
         region = region->next) {
        found |= region->state == HOSTMEM_BUSY ||
                 (region->state == HOSTMEM_REGISTERED && region->home == home);
    }
    hostmem_unlock();
    return found;
}

/* How many of the `bytes` at an address lie in one registration of the pool; 0: not the pool's. */
static size_t pool_run(const void *address, size_t bytes, bool *registered)
{
    struct hostmem_region *region;
    size_t run = 0;

    *registered = false;
    if (hostmem_region_of(address) == NULL) {
        return 0;
    }
    hostmem_lock();
    region = hostmem_region_with(address);
    if (region != NULL) {
        size_t offset = (size_t)((const char *)address - region->base);
        run = HOSTMEM_PIECE - offset % HOSTMEM_PIECE;
        run = run < region->bytes - offset ? run : region->bytes - offset;
        run = run < bytes ? run : bytes;
        *registered = region->state == HOSTMEM_REGISTERED;
    }
    hostmem_unlock();
    return run;
}

void cudriver_hostmem_get_stats(struct cudriver_hostmem_stats *stats)
{
    hostmem_pool_count(stats);
    hostmem_pins_count(&stats->pins, &stats->pinned_bytes);
}

bool cudriver_hostmem_is_home(CUdevice device)
{
    return pool_has_home(device) || hostmem_pins_have_home(device);
}

void cudriver_hostmem_forget_home(CUdevice device)
{
    size_t count = hostmem_pool_forget_home(device);

    hostmem_home_release(device, count + hostmem_pins_forget_home(device));
}

bool cudriver_hostmem_is_registered(const void *address, size_t bytes)
{
    bool registered;
    size_t run = hostmem_region_of(address) != NULL ? pool_run(address, bytes, &registered)
                                                    : hostmem_pins_run(address, bytes, &registered);

    return registered && run == bytes;
}

size_t cudriver_hostmem_run(const void *address, size_t bytes)
{
    bool registered;
    size_t run = pool_run(address, bytes, &registered), size = 0;
    CUdeviceptr start = 0, here = (CUdeviceptr)(uintptr_t)address;

    if (run == 0) {
        run = hostmem_pins_run(address, bytes, &registered);
    }
    if (run > 0) {
        return run;
    }
    if (cuda.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, here) !=
            CUDA_SUCCESS ||
        cuda.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, here) != CUDA_SUCCESS ||
        here < start || here - start >= size) {
        return bytes;
    }
    size -= (size_t)(here - start);
    return size < bytes ? size : bytes;
}

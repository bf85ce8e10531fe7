/* What pool and pins answer together: see hostmem.h. */
#include "hostmem.h"

#include "driver/driver.h"
#include "private.h"

void cudriver_hostmem_get_stats(struct cudriver_hostmem_stats *stats)
{
    hostmem_pool_count(stats);
    hostmem_pins_count(&stats->pins, &stats->pinned_bytes);
}

bool cudriver_hostmem_uses_device(CUdevice device)
{
    return hostmem_pool_use_device(device) || hostmem_pins_use_device(device);
}

/* How many of the bytes lie in one registration of ours; 0: in none. */
static size_t known_run(const void *address, size_t bytes)
{
    size_t run = hostmem_pool_run(address, bytes);

    return run > 0 ? run : hostmem_pins_run(address, bytes);
}

bool cudriver_hostmem_is_registered(const void *address, size_t bytes)
{
    return known_run(address, bytes) == bytes;
}

size_t cudriver_hostmem_run(const void *address, size_t bytes)
{
    size_t run = known_run(address, bytes), size = 0;
    CUdeviceptr start = 0, here = (CUdeviceptr)(uintptr_t)address;

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

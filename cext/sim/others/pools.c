/* The devices' own pools. Each device has a default pool; one pool is its current one. */
#include "others.h"
#include "sim/pool.h"

/* In the monitor. A device's default pool, made when first asked for; NULL if memory ran out. */
static struct sim_pool *default_pool(int device)
{
    static struct sim_pool *pools[SIM_MAX_DEVICES]; /* owned; live as long as the process */

    if (pools[device] == NULL) {
        pools[device] = sim_pool_new(device);
        if (pools[device] != NULL) {
            pools[device]->is_default = true;
        }
    }
    return pools[device];
}

static struct sim_pool *chosen[SIM_MAX_DEVICES]; /* holds references; by cuDeviceSetMemPool */

/* In the monitor. The same for the current pool: the default one after the chosen one's end. */
static struct sim_pool *current_pool(int device)
{
    struct sim_pool *pool = chosen[device];

    return pool != NULL && pool->object.alive ? pool : default_pool(device);
}

static CUresult pool_of(enum sim_call call, CUmemoryPool *handle, CUdevice device,
                        struct sim_pool *(*find)(int))
{
    CUresult result = sim_enter(call);
    struct sim_pool *pool;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_device_is_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_lock();
    pool = find(device);
    if (pool == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *handle = sim_object_handle(pool);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    return pool_of(CALL_cuDeviceGetDefaultMemPool, pool, device, default_pool);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    return pool_of(CALL_cuDeviceGetMemPool, pool, device, current_pool);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle)
{
    CUresult result = sim_enter(CALL_cuDeviceSetMemPool);
    struct sim_pool *pool;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!sim_device_is_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_lock();
    pool = sim_object_find(KIND_POOL, handle);
    if (pool == NULL || pool->device != device) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    sim_object_hold(pool);
    if (chosen[device] != NULL) {
        sim_object_drop(chosen[device]);
    }
    chosen[device] = pool;
    return sim_leave(CUDA_SUCCESS);
}

/* Allocates from the current pool of the stream's device. */
CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream handle)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuMemAllocAsync, handle, &stream);
    struct sim_pool *pool;
    CUmemoryPool pool_handle;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    pool = current_pool(stream->context->device);
    if (pool == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    pool_handle = sim_object_handle(pool);
    sim_unlock();
    return cuMemAllocFromPoolAsync(address, bytes, pool_handle, handle);
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
    CUresult result = sim_enter(CALL_cuMemPoolGetAccess);
    const struct sim_pool *pool;
    bool granted;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags == NULL || location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !sim_device_is_valid(location->id)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    pool = sim_object_find(KIND_POOL, handle);
    if (pool == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    granted = location->id == pool->device || (pool->peers & 1u << location->id) != 0;
    *flags = granted ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : (CUmemAccess_flags)0;
    return sim_leave(CUDA_SUCCESS);
}

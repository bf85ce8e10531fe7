/* Device memory: allocations, and the attributes of a pointer. */
#include "sim.h"

#include <string.h>

/* Whether [address, address + bytes) lies in the first `limit` bytes of a block. */
static bool reaches(const struct sim_block *block, size_t limit, CUdeviceptr address, size_t bytes)
{
    size_t offset = (uintptr_t)address - block->range.start;

    return offset < limit && bytes <= limit - offset;
}

CUresult sim_memory_pin(CUdeviceptr address, size_t bytes, struct sim_pin *pin)
{
    struct sim_block *block = sim_space_find(address);

    pin->block = NULL;
    pin->bytes = NULL;
    if (block != NULL && reaches(block, block->bytes, address, bytes)) {
        block->users++;
        pin->block = block;
        pin->bytes = sim_space_bytes(block, address);
        return CUDA_SUCCESS;
    }
    if (block == NULL && sim_host_kind((uintptr_t)address, bytes) == HOST_LOCKED) {
        pin->bytes = (char *)(uintptr_t)address;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_memory_check(CUdeviceptr address, size_t bytes)
{
    const struct sim_block *block = sim_space_find(address);
    bool good = block != NULL ? reaches(block, block->asked, address, bytes)
                              : sim_host_kind((uintptr_t)address, bytes) == HOST_LOCKED;

    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_memory_unpin(struct sim_pin *pin)
{
    if (pin->block != NULL) {
        pin->block->users--;
        if (pin->block->users == 0 && sim.unpin_waiters > 0) {
            pthread_cond_broadcast(&sim.unpinned);
        }
        pin->block = NULL;
    }
}

static void memory_forget(struct sim_context *context)
{
    struct sim_block *block = sim.devices[context->device].first;

    while (block != NULL) {
        if (block->state == BLOCK_USED && block->context == context) {
            sim_space_give(block); /* joins neighbours, gives the monitor up: start again */
            block = sim.devices[context->device].first;
        } else {
            block = block->next;
        }
    }
}

static __attribute__((constructor)) void join(void)
{
    sim_context_on_end(FORGET_MEMORY, memory_forget);
}

long long sim_memory_live(bool bytes)
{
    long long sum = 0;

    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        for (struct sim_block *block = sim.devices[i].first; block != NULL; block = block->next) {
            if (block->asked > 0) {
                sum += bytes ? (long long)block->asked : 1;
            }
        }
    }
    return sum;
}

long long sim_memory_taken(bool unused)
{
    long long sum = 0;

    (void)unused;
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        sum += (long long)sim.devices[i].used;
    }
    return sum;
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuMemGetInfo_v2, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (available != NULL) {
        *available = sim_space_available(context->device);
    }
    if (total != NULL) {
        *total = (size_t)atomic_load(&sim_knobs.memory);
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuMemAlloc_v2, &context);
    struct sim_block *block;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    result = sim_space_take(context->device, bytes, &block);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && sim_pool_release_unused(context->device)) {
        result = sim_space_take(context->device, bytes, &block);
    }
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    block->context = context;
    *address = block->range.start;
    return sim_leave(CUDA_SUCCESS);
}

/* Needs no current context: the memory's own is used. */
CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUresult result = sim_enter(CALL_cuMemFree_v2);
    struct sim_context *context;
    struct sim_block *block;
    size_t asked;

    if (result != CUDA_SUCCESS || address == 0) {
        return result;
    }
    sim_lock();
    block = sim_space_find(address);
    if (block == NULL || block->range.start != address || block->asked == 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    result = sim.devices[block->device].broken;
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    context = block->context;
    if (context == NULL) {
        result = sim_context_current(&context); /* a pool's memory has no context */
        if (result != CUDA_SUCCESS) {
            return sim_leave(result);
        }
    }
    /* The driver waits for work that may use the memory. `asked` 0: no other thread can free it. */
    asked = block->asked;
    block->asked = 0;
    sim_context_work_begin(context);
    result = sim_stream_settle_device(context);
    if (result == CUDA_SUCCESS) {
        result = sim_context_state(context);
    }
    if (result != CUDA_SUCCESS) {
        block->asked = asked;
    } else if (block->pool != NULL) {
        sim_pool_free_now(block, asked);
    } else {
        sim_space_give(block);
    }
    sim_context_work_end(context);
    return sim_leave(result);
}

/* A pointer's properties, for cuPointerGetAttribute. */
struct pointer_info {
    CUmemorytype type;
    CUcontext context;
    int device;
    uintptr_t start;
    size_t bytes;
};

static CUresult pointer_look(CUdeviceptr address, struct pointer_info *info)
{
    struct sim_block *block = sim_space_find(address);
    struct sim_host_info host;

    if (block != NULL && reaches(block, block->asked, address, 1)) {
        info->type = CU_MEMORYTYPE_DEVICE;
        info->context = block->context != NULL ? sim_object_handle(block->context) : NULL;
        info->device = block->device;
        info->start = block->range.start;
        info->bytes = block->asked;
        return CUDA_SUCCESS;
    }
    if (sim_host_info((uintptr_t)address, &host)) {
        info->type = CU_MEMORYTYPE_HOST;
        info->context = sim_object_handle(host.context);
        info->device = host.context->device;
        info->start = host.start;
        info->bytes = host.bytes;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult pointer_value(const struct pointer_info *info, CUdeviceptr address,
                              CUpointer_attribute attribute, void *value)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)value = info->context;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = info->type;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)value = info->bytes > 0 ? address : 0;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (info->type != CU_MEMORYTYPE_HOST) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *(void **)value = (void *)(uintptr_t)address;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)value = 0;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = info->device;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = info->start;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = info->bytes;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    CUresult result = sim_enter(CALL_cuPointerGetAttribute);
    struct pointer_info info;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    result = pointer_look(address, &info);
    if (result == CUDA_SUCCESS) {
        result = pointer_value(&info, address, attribute, value);
    }
    return sim_leave(result);
}

/* For an unknown address, and for a value that does not apply, this call returns zeros and no
 * error. */
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values,
                                CUdeviceptr address)
{
    CUresult result = sim_enter(CALL_cuPointerGetAttributes);
    struct pointer_info info;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (count == 0 || attributes == NULL || values == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    if (pointer_look(address, &info) != CUDA_SUCCESS) {
        info = (struct pointer_info){.device = -2}; /* CU_DEVICE_INVALID */
    }
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        if (values[i] == NULL) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER &&
                   info.type != CU_MEMORYTYPE_HOST) {
            *(void **)values[i] = NULL;
        } else {
            result = pointer_value(&info, address, attributes[i], values[i]);
        }
    }
    return sim_leave(result);
}

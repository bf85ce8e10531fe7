/*
 * Pins: page-locking memory that somebody else owns, in place. See hostmem.h.
 *
 * The driver registers ranges by byte, refuses any overlap (712) and releases only whole
 * registrations. So a pin is one range, registered once, as a whole or in steps: pins of a part of
 * it share it.
 *
 * Whoever pins keeps the memory alive until the pin is destroyed. Memory that is unmapped while
 * registered would stay registered by address, with its old pages: the driver would refuse to
 * register what is mapped there next (712), or copy from pages that nobody sees any more. Pins of
 * the same memory are on one owner's memory, so it is alive as long as one of them is.
 */
#include <stdint.h>
#include <stdlib.h>

#include "driver/driver.h"
#include "private.h"

struct cudriver_pin {
    struct hostmem_range range;
    size_t count; /* how many times it was created */
    bool ours;    /* we registered it; else the pool or others have page-locked the memory */
};

/* --- the driver, without the lock --- */

static bool supports_read_only(void)
{
    CUdevice device;
    int supported = 0;

    return cuda.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
           cuda.cuDeviceGetAttribute(&supported,
                                     CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
                                     device) == CUDA_SUCCESS &&
           supported != 0;
}

/* Registers a pin's memory, or finds it locked by others. In its primary context. */
static CUresult range_register(struct cudriver_pin *pin, const struct cudriver_pin_way *way)
{
    CUresult result = hostmem_register(&pin->range, HOSTMEM_FLAGS, way->stop, way->fresh);

    if (result == CUDA_ERROR_OUT_OF_MEMORY) { /* the pool's free memory counts as locked */
        size_t released;
        (void)cudriver_hostmem_trim(0, &released);
        result = hostmem_register(&pin->range, HOSTMEM_FLAGS, way->stop, false);
    }
    pin->ours = result == CUDA_SUCCESS;
    /* Overlap returns 712 with registered memory, INVALID_VALUE with memory the driver
     * allocated. */
    if (result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED && result != CUDA_ERROR_INVALID_VALUE) {
        return result;
    }
    /* Locked by others: not entered in the list, since whoever locked it may unlock it, and the
     * next pin must notice that. */
    if (cudriver_hostmem_is_page_locked(pin->range.base, pin->range.base + pin->range.bytes)) {
        return CUDA_SUCCESS;
    }
    /* INVALID_VALUE also means a mapping without write permission. The read-only flag is tried
     * second: writable memory that is only meant to be read is better registered without it. */
    if (result == CUDA_ERROR_INVALID_VALUE && way->read_only && supports_read_only()) {
        result = hostmem_register(&pin->range, HOSTMEM_FLAGS | CU_MEMHOSTREGISTER_READ_ONLY,
                                  way->stop, false);
        pin->ours = result == CUDA_SUCCESS;
    }
    return result;
}

/* --- pins --- */

/* Registers a new pin's memory. Gives up the lock meanwhile. */
static CUresult pin_register(struct cudriver_pin *pin, const struct cudriver_pin_way *way)
{
    CUdevice device;
    CUresult result;

    if (!hostmem_range_insert(&pin->range)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&hostmem_lock);
    result = hostmem_primary_enter(&device);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&hostmem_lock);
        pin->range.device = device;
        pthread_mutex_unlock(&hostmem_lock);
        result = range_register(pin, way);
        cudriver_driver_pop();
        if (!pin->ours) {
            hostmem_primary_release(device);
        }
    }
    pthread_mutex_lock(&hostmem_lock);
    if (pin->ours) {
        pin->range.ready = true;
        hostmem_pool.stats.pinned_bytes += pin->range.bytes;
    } else {
        hostmem_range_remove(&pin->range);
    }
    pthread_cond_broadcast(&hostmem_changed);
    return result;
}

CUresult cudriver_pin_create(void *address, size_t bytes, const struct cudriver_pin_way *way,
                             struct cudriver_pin **out, struct cudriver_pin_range *other)
{
    CUresult result = CUDA_SUCCESS;
    struct hostmem_range *range;
    struct cudriver_pin *pin;

    *out = NULL;
    *other = (struct cudriver_pin_range){0, 0};
    if (cudriver_driver_is_forked()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (bytes == 0 || bytes > UINTPTR_MAX - (uintptr_t)address) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&hostmem_lock);
    while ((range = hostmem_range_meeting(address, bytes)) != NULL && !range->ready &&
           !(way->stop != NULL && atomic_load(way->stop))) {
        pthread_cond_wait(&hostmem_changed, &hostmem_lock);
    }
    if (way->stop != NULL && atomic_load(way->stop)) {
        result = CUDRIVER_PIN_STOPPED;
    } else if (range != NULL && ((char *)address < range->base ||
                                 (char *)address + bytes > range->base + range->bytes)) {
        *other = (struct cudriver_pin_range){(uintptr_t)range->base, range->bytes};
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    } else if (range != NULL && !range->pooled) {
        *out = (struct cudriver_pin *)range;
        (*out)->count++;
    } else if ((pin = calloc(1, sizeof *pin)) == NULL) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        pin->range = (struct hostmem_range){.base = address,
                                            .bytes = bytes,
                                            .step = way->step > 0 ? way->step : HOSTMEM_PIECE,
                                            .node = CUDRIVER_NODE_ANY,
                                            .device = -1};
        pin->count = 1;
        /* The pool keeps its memory registered, and the pinned array keeps its block. */
        result = range != NULL ? CUDA_SUCCESS : pin_register(pin, way);
        if (result == CUDA_SUCCESS) {
            *out = pin;
        } else {
            free(pin);
        }
    }
    hostmem_pool.stats.pins += result == CUDA_SUCCESS;
    pthread_mutex_unlock(&hostmem_lock);
    return result;
}

size_t cudriver_pin_share(const void *address, size_t bytes, struct cudriver_pin **out, bool *ours)
{
    struct hostmem_range *range;
    size_t run = 0;

    *out = NULL;
    pthread_mutex_lock(&hostmem_lock);
    range = cudriver_driver_is_forked() ? NULL : hostmem_range_meeting(address, bytes);
    *ours = range != NULL;
    range = range != NULL ? hostmem_range_meeting(address, 1) : NULL;
    if (range != NULL && range->ready) {
        size_t offset = (uintptr_t)address - (uintptr_t)range->base;
        size_t locked = atomic_load(&range->locked);
        run = offset < locked ? locked - offset : 0;
        run = run < bytes ? run : bytes;
    }
    if (run > 0 && !range->pooled) {
        *out = (struct cudriver_pin *)range;
        (*out)->count++;
        hostmem_pool.stats.pins++;
    }
    pthread_mutex_unlock(&hostmem_lock);
    return run;
}

void cudriver_pin_stop(atomic_bool *stop)
{
    pthread_mutex_lock(&hostmem_lock);
    atomic_store(stop, true);
    pthread_cond_broadcast(&hostmem_changed); /* it may wait for another pin */
    pthread_mutex_unlock(&hostmem_lock);
}

CUresult cudriver_pin_destroy(struct cudriver_pin *pin)
{
    CUresult result = CUDA_SUCCESS;

    if (pin == NULL) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&hostmem_lock);
    hostmem_pool.stats.pins--;
    if (--pin->count > 0) {
        pthread_mutex_unlock(&hostmem_lock);
        return CUDA_SUCCESS;
    }
    if (pin->ours) {
        pin->range.ready = false;
        pthread_mutex_unlock(&hostmem_lock);
        result = hostmem_unregister(&pin->range);
        hostmem_primary_release(pin->range.device);
        pthread_mutex_lock(&hostmem_lock);
        hostmem_pool.stats.pinned_bytes -= pin->range.bytes;
        hostmem_range_remove(&pin->range);
        pthread_cond_broadcast(&hostmem_changed);
    }
    pthread_mutex_unlock(&hostmem_lock);
    free(pin);
    return result;
}

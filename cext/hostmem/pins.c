/*
 * Pins: page-locking memory that somebody else owns, in place. See hostmem.h.
 *
 * The driver registers ranges by byte, refuses any overlap (712) and releases only whole
 * registrations. So a pin is one range, registered once. Pins of the same memory, or of a part of
 * it, are the same pin, which counts them; it is unregistered when the last of them has gone.
 *
 * Whoever pins keeps the memory alive until the pin is destroyed. Memory that is unmapped while
 * registered would stay registered by address, with its old pages: the driver would refuse to
 * register what is mapped there next (712), or copy from pages that nobody sees any more. Pins of
 * the same memory are on one owner's memory, so it is alive as long as one of them is.
 *
 * The lock is never held across a driver call. Instead a pin is not `ready` while it is being
 * registered or released, and other threads that need its bytes wait.
 */
#include "hostmem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "private.h"

struct cudriver_pin {
    uintptr_t begin, end;
    size_t count;    /* how many times it was created */
    bool listed;     /* else the memory is page-locked by the pool, or by others */
    bool ready;      /* listed, and registered */
    CUdevice device; /* while listed: in whose primary context it is registered */
};

static struct {
    struct cudriver_pin **list; /* sorted by address; no two overlap */
    size_t listed, room;
    size_t count; /* also of those that are not listed */
    size_t bytes; /* registered */
} pins;

/* --- the list, under the lock --- */

/* The index of the first pin that ends after `address`. */
static size_t pins_find(uintptr_t address)
{
    size_t low = 0, high = pins.listed;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pins.list[middle]->end > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* The first pin that shares a byte with the range, or NULL. Waits while it is not ready. */
static struct cudriver_pin *pins_meeting(uintptr_t begin, uintptr_t end)
{
    for (;;) {
        size_t at = pins_find(begin);
        struct cudriver_pin *pin = at < pins.listed ? pins.list[at] : NULL;
        if (pin == NULL || pin->begin >= end) {
            return NULL;
        }
        if (pin->ready) {
            return pin;
        }
        hostmem_wait();
    }
}

/* False: out of memory. */
static bool pins_insert(struct cudriver_pin *pin)
{
    size_t at = pins_find(pin->begin);

    if (pins.listed == pins.room) {
        size_t room = 2 * pins.room + 8;
        struct cudriver_pin **grown = realloc(pins.list, room * sizeof(struct cudriver_pin *));
        if (grown == NULL) {
            return false;
        }
        pins.list = grown;
        pins.room = room;
    }
    memmove(&pins.list[at + 1], &pins.list[at], (pins.listed - at) * sizeof(struct cudriver_pin *));
    pins.list[at] = pin;
    pins.listed++;
    pin->listed = true;
    return true;
}

static void pins_remove(struct cudriver_pin *pin)
{
    size_t at = pins_find(pin->begin);

    pins.listed--;
    memmove(&pins.list[at], &pins.list[at + 1], (pins.listed - at) * sizeof(struct cudriver_pin *));
    pin->listed = pin->ready = false;
    hostmem_announce();
}

/* --- the driver, without the lock --- */

/*
 * Whether the driver says that every byte of the range is page-locked already. Such a range is not
 * entered in the list: whoever locked it may unlock it, and the next pin must notice that.
 */
static bool is_locked_by_others(uintptr_t begin, uintptr_t end)
{
    while (begin < end) {
        CUdeviceptr start = 0;
        size_t size = 0;
        unsigned kind = 0;
        if (cuda.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, begin) !=
                CUDA_SUCCESS ||
            kind != CU_MEMORYTYPE_HOST ||
            cuda.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, begin) !=
                CUDA_SUCCESS ||
            cuda.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, begin) !=
                CUDA_SUCCESS ||
            begin < start || begin - start >= size) {
            return false;
        }
        begin = (uintptr_t)start + size;
    }
    return true;
}

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

/* Registers a pin's memory, or finds it locked by others; *ours tells. In its primary context. */
static CUresult range_register(const struct cudriver_pin *pin, bool read_only, bool *ours)
{
    char *address = (char *)pin->begin;
    size_t bytes = pin->end - pin->begin;
    CUresult result = hostmem_register(address, bytes, HOSTMEM_FLAGS);

    if (result == CUDA_ERROR_OUT_OF_MEMORY) { /* the pool's free memory counts as locked */
        size_t released;
        (void)cudriver_hostmem_trim(0, &released);
        result = hostmem_register(address, bytes, HOSTMEM_FLAGS);
    }
    *ours = result == CUDA_SUCCESS;
    /* Overlap returns 712 with registered memory, INVALID_VALUE with memory the driver
     * allocated. */
    if (result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED && result != CUDA_ERROR_INVALID_VALUE) {
        return result;
    }
    if (is_locked_by_others(pin->begin, pin->end)) {
        return CUDA_SUCCESS;
    }
    /* INVALID_VALUE also means a mapping without write permission. The read-only flag is tried
     * second: writable memory that is only meant to be read is better registered without it. */
    if (result == CUDA_ERROR_INVALID_VALUE && read_only && supports_read_only()) {
        result = hostmem_register(address, bytes, HOSTMEM_FLAGS | CU_MEMHOSTREGISTER_READ_ONLY);
        *ours = result == CUDA_SUCCESS;
    }
    return result;
}

/* Registers a new pin, which is listed. Without the lock; locked when it returns. */
static CUresult pin_register(struct cudriver_pin *pin, bool read_only)
{
    bool ours = false;
    CUresult result = hostmem_primary_enter(&pin->device);

    if (result == CUDA_SUCCESS) {
        result = range_register(pin, read_only, &ours);
        hostmem_primary_leave();
        if (!ours) {
            hostmem_primary_release(pin->device);
        }
    }
    hostmem_lock();
    if (ours) {
        pin->ready = true;
        pins.bytes += pin->end - pin->begin;
        hostmem_announce();
    } else {
        pins_remove(pin);
    }
    return result;
}

/* --- pins --- */

/* A pin that counts once. NULL: out of memory. */
static struct cudriver_pin *pin_new(uintptr_t begin, uintptr_t end, bool list)
{
    struct cudriver_pin *pin = calloc(1, sizeof *pin);

    if (pin != NULL) {
        pin->begin = begin;
        pin->end = end;
        pin->count = 1;
        if (list && !pins_insert(pin)) {
            free(pin);
            pin = NULL;
        }
    }
    return pin;
}

CUresult cudriver_pin_create(void *address, size_t bytes, bool read_only, struct cudriver_pin **out,
                             struct cudriver_pin_range *other)
{
    uintptr_t begin = (uintptr_t)address, end = begin + bytes;
    bool pooled = hostmem_pool_run(address, 1) > 0;
    CUresult result = CUDA_SUCCESS;
    struct cudriver_pin *pin;

    *out = NULL;
    *other = (struct cudriver_pin_range){0, 0};
    if (cudriver_driver_is_forked()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (bytes == 0 || end < begin) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hostmem_lock();
    pin = pins_meeting(begin, end);
    if (pin != NULL && pin->begin <= begin && end <= pin->end) {
        pin->count++;
    } else if (pin != NULL) {
        *other = (struct cudriver_pin_range){pin->begin, pin->end - pin->begin};
        pin = NULL;
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    } else {
        /* The pool keeps its memory registered, and the pinned array keeps its block. */
        pin = pin_new(begin, end, !pooled);
        result = pin == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        if (pin != NULL && !pooled) {
            hostmem_unlock();
            result = pin_register(pin, read_only);
        }
    }
    if (result == CUDA_SUCCESS) {
        pins.count++;
        *out = pin;
    } else {
        free(pin);
    }
    hostmem_unlock();
    return result;
}

CUresult cudriver_pin_destroy(struct cudriver_pin *pin)
{
    CUresult result = CUDA_SUCCESS;

    if (pin == NULL) {
        return CUDA_SUCCESS;
    }
    hostmem_lock();
    pins.count--;
    if (--pin->count > 0) {
        hostmem_unlock();
        return CUDA_SUCCESS;
    }
    if (pin->listed) {
        pin->ready = false;
        hostmem_unlock();
        result = hostmem_unregister((char *)pin->begin, pin->end - pin->begin);
        hostmem_primary_release(pin->device);
        hostmem_lock();
        pins.bytes -= pin->end - pin->begin;
        pins_remove(pin);
    }
    hostmem_unlock();
    free(pin);
    return result;
}

/* --- for registrations.c --- */

bool hostmem_pins_use_device(CUdevice device)
{
    bool found = false;

    hostmem_lock();
    for (size_t i = 0; i < pins.listed; i++) {
        found |=
            !pins.list[i]->ready || pins.list[i]->device == device; /* not ready: perhaps there */
    }
    hostmem_unlock();
    return found;
}

void hostmem_pins_count(size_t *count, size_t *bytes)
{
    hostmem_lock();
    *count = pins.count;
    *bytes = pins.bytes;
    hostmem_unlock();
}

size_t hostmem_pins_run(const void *address, size_t bytes)
{
    uintptr_t begin = (uintptr_t)address;
    size_t run = 0;

    hostmem_lock();
    size_t at = pins_find(begin);
    if (at < pins.listed && pins.list[at]->begin <= begin && pins.list[at]->ready) {
        run = HOSTMEM_PIECE - (begin - pins.list[at]->begin) % HOSTMEM_PIECE;
        run = run < pins.list[at]->end - begin ? run : pins.list[at]->end - begin;
        run = run < bytes ? run : bytes;
    }
    hostmem_unlock();
    return run;
}

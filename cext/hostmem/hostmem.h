/*
 * Page-locked host memory. Plain C: CUDA, no Python.
 *
 * The bytes are mappings of this process; the driver only registers them (portable: for every
 * context). Registrations are made in the primary context of the current context's device, which
 * the memory keeps retained, so that no context that is closed takes one away under the others.
 *
 * Two halves:
 *   the pool   blocks that we own: reserve, touch, register, hand out, take back, trim
 *   pins       ranges that somebody else owns: overlapping ones share registrations by count
 *
 * Every function is thread-safe, and none needs or touches the GIL. Those that register memory need
 * a current context; they may block for a registration's length, so the caller releases the GIL.
 * Taking from or returning to the pool never waits for another thread's registration.
 */
#ifndef CUDRIVER_HOSTMEM_H
#define CUDRIVER_HOSTMEM_H

#include <stdbool.h>

#include "driver/cuda_abi.h"

struct cudriver_hostmem_stats {
    size_t used_bytes; /* handed out, as asked for */
    size_t used_blocks;
    size_t pooled_bytes;     /* registered and free */
    size_t registered_bytes; /* registered in all, by the pool */
    size_t peak_bytes;       /* the most that was registered at once */
    size_t limit_bytes;      /* SIZE_MAX: none */
    size_t pinned_bytes;     /* registered by pins */
    size_t pins;             /* live pins */
    unsigned long long hits; /* allocations served without a registration */
    unsigned long long misses;
};

/*
 * Hands out at least `bytes` (0 counts as 1) of page-locked memory aligned to 64 bytes (to 4096
 * from 4096 bytes on), in the device's address space too; large sizes are not rounded beyond the
 * page. Contents are undefined unless *zeroed comes back true (fresh from the system). Returns the
 * driver's code; OUT_OF_MEMORY for the byte limit and for mmap's refusal too.
 */
CUresult cudriver_hostmem_alloc(size_t bytes, void **address, bool *zeroed);

/* Serves from free memory only, else NULL. Never calls the driver. */
void *cudriver_hostmem_try_alloc(size_t bytes);

/* Takes a block back into the pool. Calls no driver function. `address` must be a live block. */
void cudriver_hostmem_free(void *address);

/* Whether `address` is the start of a live block; *bytes gets the size asked for. Any address may
 * be asked about: it is not looked into. No lock for nearly all that is not ours. */
bool cudriver_hostmem_owns(const void *address, size_t *bytes);

/* As free, where `address` is the start of a live block: the size asked for; else 0, and nothing is
 * done. For callers that are handed addresses of any origin: one look instead of two. */
size_t cudriver_hostmem_free_if_owned(void *address);

/* Gives free memory back to the system until at most `keep` bytes of it are left. */
CUresult cudriver_hostmem_trim(size_t keep, size_t *released);

/* An upper bound of registered bytes; SIZE_MAX for none. Free memory beyond it goes when next there
 * is something to register, or at a trim. */
void cudriver_hostmem_set_limit(size_t bytes);

void cudriver_hostmem_get_stats(struct cudriver_hostmem_stats *stats);

/* Bytes that are mapped and registered at least where no free memory serves a request. */
size_t cudriver_hostmem_least(size_t bytes);

/* The largest region that may still be mapped: what the machine has left and the memory limits of
 * the process's cgroups leave, less a reserve. Memory that could be swapped out does not count as
 * free. It takes 0.3 ms to find out. */
size_t cudriver_hostmem_left(void);

/*
 * How many of the `bytes` from `address` on lie in one registration; `bytes` where `address` is not
 * page-locked. The driver refuses a copy that begins in one registration and ends beyond it
 * (INVALID_VALUE), even where the next byte is registered too: copies are cut at this length. Needs
 * no context for memory of the pool and of pins; else asks the driver, by address alone.
 */
size_t cudriver_hostmem_run(const void *address, size_t bytes);

/*
 * Whether [address, address + bytes) lies in one registration of ours, as far as is known: another
 * library may have reset its home. False says nothing: then only the driver knows. Calls no driver
 * function.
 */
bool cudriver_hostmem_is_registered(const void *address, size_t bytes);

/* Whether memory is registered in the primary context of `device`. */
bool cudriver_hostmem_is_home(CUdevice device);

/* The primary context of `device` was reset, and the registrations made in it are gone: notes it,
 * for pool and pins. Free memory is registered again when next handed out. Nobody may be making a
 * pin or using the memory meanwhile. */
void cudriver_hostmem_forget_home(CUdevice device);

/* One user's hold on a range; opaque. */
struct cudriver_pin;

/*
 * Page-locks [address, address + bytes) in place. Pieces that pins already cover are shared, not
 * registered twice; memory that is page-locked by somebody else (our pool, cuMemHostAlloc, another
 * library) is accepted as it is. `read_only` for mappings without write permission.
 */
CUresult cudriver_pin_create(void *address, size_t bytes, bool read_only,
                             struct cudriver_pin **pin);

/* Undoes one pin; unregisters the pieces that no other pin holds. Frees `pin`. NULL is fine. Needs
 * no context. */
CUresult cudriver_pin_destroy(struct cudriver_pin *pin);

#endif

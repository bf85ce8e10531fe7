/*
 * Finds the region of an address: see private.h. A table of two levels, by HOSTMEM_ALIGNMENT, that
 * any thread reads without a lock, for any address. Leaves are never freed: 128 KiB for each 32 GiB
 * of addresses.
 */
#include "private.h"

#include <stdatomic.h>
#include <stdlib.h>

#define SHIFT 21 /* HOSTMEM_ALIGNMENT */
#define LEAF_BITS 14
#define ROOT_BITS 13
#define ADDRESS_BITS (SHIFT + LEAF_BITS + ROOT_BITS)

typedef _Atomic(struct hostmem_region *) entry;

static _Atomic(entry *) roots[1 << ROOT_BITS];

static entry *leaf_of(uintptr_t address, bool make)
{
    _Atomic(entry *) *root = &roots[address >> (SHIFT + LEAF_BITS)];
    entry *leaf = atomic_load_explicit(root, memory_order_acquire);

    if (leaf == NULL && make) {
        entry *fresh = calloc((size_t)1 << LEAF_BITS, sizeof *fresh);
        if (fresh == NULL || atomic_compare_exchange_strong(root, &leaf, fresh)) {
            return fresh;
        }
        free(fresh); /* another thread was first; `leaf` is its */
    }
    return leaf;
}

static entry *entry_in(entry *leaf, uintptr_t address)
{
    return &leaf[address >> SHIFT & (((uintptr_t)1 << LEAF_BITS) - 1)];
}

struct hostmem_region *hostmem_region_of(const void *address)
{
    uintptr_t number = (uintptr_t)address;
    entry *leaf = number >> ADDRESS_BITS == 0 ? leaf_of(number, false) : NULL;

    return leaf == NULL ? NULL : atomic_load_explicit(entry_in(leaf, number), memory_order_acquire);
}

bool hostmem_region_enter(const struct hostmem_region *region, struct hostmem_region *as)
{
    const uintptr_t leaf_size = (uintptr_t)1 << (SHIFT + LEAF_BITS);
    uintptr_t first = (uintptr_t)region->base, last = first + region->bytes - 1;

    if (last >> ADDRESS_BITS != 0) {
        return false;
    }
    /* Make all leaves first, so that a failure leaves nothing to undo. */
    for (uintptr_t at = first / leaf_size * leaf_size; at <= last; at += leaf_size) {
        if (leaf_of(at, true) == NULL) {
            return false;
        }
    }
    for (uintptr_t at = first; at <= last; at += HOSTMEM_ALIGNMENT) {
        atomic_store_explicit(entry_in(leaf_of(at, false), at), as, memory_order_release);
    }
    return true;
}

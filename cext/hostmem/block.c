/*
 * Blocks in registered regions: see private.h, which says what needs the lock.
 *
 * Sizes below HOSTMEM_LARGE are rounded up to a size class, eight to a doubling, so that at most an
 * eighth is lost. Their blocks are slots, which are cut from a chunk one after the other. A free
 * slot serves its class again; once all slots of a chunk are free, the chunk can be cut anew.
 *
 * A larger block is a region of its own. Free, it serves requests that leave at most an eighth of
 * it unused.
 */
#include <assert.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "private.h"

#define SMALL_CLASSES 96    /* up to HOSTMEM_LARGE */
#define CLASSES 336         /* up to HOSTMEM_MOST, and two more */
#define REUSE 8             /* a large block is handed out if at most 1/REUSE of it is lost */
#define PAGE ((size_t)4096) /* slots are aligned as their size is, up to this */

/* Free memory of one NUMA node, or of none: it serves requests for no other. */
static struct shelf {
    char *free_slots[SMALL_CLASSES];
    struct hostmem_region *free_regions[CLASSES];
    struct hostmem_region *chunks; /* linked by next_free; slots are cut from the first */
} shelves[1 + CUDRIVER_NODES];

static struct shelf *shelf_of(int node)
{
    return &shelves[1 + node];
}

/* --- size classes --- */

static unsigned class_of(size_t bytes)
{
    size_t last = (bytes - 1) / HOSTMEM_SLOT_LEAST;
    unsigned shift = last < 8 ? 0 : 60u - (unsigned)__builtin_clzll(last);

    return shift * 8 + (unsigned)(last >> shift);
}

static size_t class_bytes(unsigned class)
{
    unsigned shift = class < 16 ? 0 : class / 8 - 1;

    return (class - shift * 8 + 1) * HOSTMEM_SLOT_LEAST << shift;
}

size_t hostmem_round(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) / page * page;
}

size_t hostmem_block_size(size_t bytes)
{
    return bytes < HOSTMEM_LARGE ? class_bytes(class_of(bytes)) : hostmem_round(bytes);
}

/* --- guards --- */

bool hostmem_block_guard(void *address, size_t bytes, bool set)
{
    static const char guard[HOSTMEM_SLOT_LEAST] = "What is written here was written beside a block";
    char *behind = (char *)address + bytes;
    bool whole = set || memcmp(behind, guard, HOSTMEM_GUARD) == 0;

    memcpy(behind, guard, HOSTMEM_GUARD);
    return whole;
}

/* --- slots --- */

static uint64_t *entry_of(const struct hostmem_region *chunk, const char *slot)
{
    return &chunk->slots[(size_t)(slot - chunk->range.base) / HOSTMEM_SLOT_LEAST];
}

/* Where a slot of `bytes` would begin in a chunk; SIZE_MAX: no room. */
static size_t place_in(const struct hostmem_region *chunk, size_t bytes)
{
    size_t align = bytes & -bytes;

    align = align < PAGE ? align : PAGE;
    size_t place = (chunk->cut + align - 1) & -align;
    return place + bytes <= chunk->range.bytes ? place : SIZE_MAX;
}

static bool shelf_sweep(struct shelf *shelf)
{
    bool any = false;

    for (struct hostmem_region *chunk = shelf->chunks; chunk != NULL; chunk = chunk->next_free) {
        any |= chunk->taken == 0 && chunk->cut > 0;
    }
    for (unsigned class = 0; any && class < SMALL_CLASSES; class++) {
        char *next = shelf->free_slots[class];
        shelf->free_slots[class] = NULL;
        while (next != NULL) {
            char *slot = next;
            struct hostmem_region *chunk = hostmem_region_of(slot);
            next = (char *)*entry_of(chunk, slot);
            if (chunk->taken > 0) {
                *entry_of(chunk, slot) = (uintptr_t)shelf->free_slots[class];
                shelf->free_slots[class] = slot;
            }
        }
    }
    for (struct hostmem_region *chunk = shelf->chunks; chunk != NULL; chunk = chunk->next_free) {
        chunk->cut = chunk->taken > 0 ? chunk->cut : 0;
    }
    return any;
}

bool hostmem_chunks_sweep(void)
{
    bool any = false;

    for (int node = CUDRIVER_NODE_ANY; node < CUDRIVER_NODES; node++) {
        any |= shelf_sweep(shelf_of(node));
    }
    return any;
}

/* Cuts a slot from the first chunk with room, which becomes the first of all. NULL: none has. */
static char *slot_cut(struct shelf *shelf, size_t bytes)
{
    if (shelf->chunks != NULL && shelf->chunks->taken == 0) {
        shelf_sweep(shelf);
    }
    for (struct hostmem_region **link = &shelf->chunks; *link != NULL; link = &(*link)->next_free) {
        struct hostmem_region *chunk = *link;
        size_t place = place_in(chunk, bytes);
        if (place == SIZE_MAX) {
            continue;
        }
        *link = chunk->next_free;
        chunk->next_free = shelf->chunks;
        shelf->chunks = chunk;
        chunk->cut = place + bytes + HOSTMEM_GUARD;
        return chunk->range.base + place;
    }
    return NULL;
}

static char *slot_take(struct shelf *shelf, size_t bytes)
{
    unsigned class = class_of(bytes);
    char *slot = shelf->free_slots[class];

    if (slot != NULL) {
        shelf->free_slots[class] = (char *)*entry_of(hostmem_region_of(slot), slot);
    } else {
        slot = slot_cut(shelf, class_bytes(class));
    }
    if (slot != NULL) {
        struct hostmem_region *chunk = hostmem_region_of(slot);
        *entry_of(chunk, slot) = 2 * bytes + 1;
        chunk->taken += class_bytes(class);
        hostmem_block_guard(slot, bytes, true);
    }
    return slot;
}

/* --- blocks --- */

static void *large_take(struct shelf *shelf, size_t bytes)
{
    size_t needed = hostmem_round(bytes);
    unsigned class = class_of(needed);

    for (unsigned last = class + 2; class <= last; class++) {
        struct hostmem_region **link = &shelf->free_regions[class];
        for (; *link != NULL; link = &(*link)->next_free) {
            struct hostmem_region *region = *link;
            if (region->range.bytes >= needed &&
                region->range.bytes - needed <= region->range.bytes / REUSE) {
                *link = region->next_free;
                region->asked = bytes;
                region->taken = region->range.bytes;
                hostmem_block_guard(region->range.base, bytes, true);
                return region->range.base;
            }
        }
    }
    return NULL;
}

void *hostmem_block_take(size_t bytes, int node)
{
    struct shelf *shelf = shelf_of(node);

    return bytes < HOSTMEM_LARGE ? slot_take(shelf, bytes) : large_take(shelf, bytes);
}

size_t hostmem_block_bytes(const struct hostmem_region *region, const void *address)
{
    size_t offset = (size_t)((const char *)address - region->range.base);

    if (region->slots == NULL) {
        return offset == 0 ? region->asked : 0;
    }
    uint64_t entry =
        offset % HOSTMEM_SLOT_LEAST == 0 ? region->slots[offset / HOSTMEM_SLOT_LEAST] : 0;
    return entry % 2 == 1 ? entry / 2 : 0;
}

void hostmem_block_give(struct hostmem_region *region, void *address)
{
    size_t bytes = hostmem_block_bytes(region, address);

    assert(bytes > 0 && hostmem_block_guard(address, bytes, false));
    if (region->slots == NULL) {
        hostmem_region_offer(region);
        return;
    }
    struct shelf *shelf = shelf_of(region->range.node);
    unsigned class = class_of(bytes);
    region->taken -= class_bytes(class);
    *entry_of(region, address) = (uintptr_t)shelf->free_slots[class];
    shelf->free_slots[class] = address;
}

/* --- regions --- */

static struct hostmem_region **list_of(const struct hostmem_region *region)
{
    struct shelf *shelf = shelf_of(region->range.node);

    return region->slots != NULL ? &shelf->chunks
                                 : &shelf->free_regions[class_of(region->range.bytes)];
}

void hostmem_region_offer(struct hostmem_region *region)
{
    struct hostmem_region **list = list_of(region);

    region->asked = 0;
    region->taken = 0;
    region->next_free = *list;
    *list = region;
}

void hostmem_region_withdraw(struct hostmem_region *region)
{
    struct hostmem_region **link = list_of(region);

    while (*link != region) {
        link = &(*link)->next_free;
    }
    *link = region->next_free;
}

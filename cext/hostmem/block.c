/*
 * Blocks inside registered regions: see private.h, which says what needs the lock. Nothing here
 * calls the driver. A block is an extent, or for requests below a page a slot of a slab: an extent
 * that is divided into slots of one size.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "extent.h"

#define ARENA_MOST ((size_t)4 << 20) /* bytes; requests up to here come from arenas */

/* Slot sizes: 64 bytes apart up to 1024, then 8 to a doubling, where at most an eighth is lost. */
#define SLOT_MOST ((size_t)3840)
#define SLOT_CLASSES 31
#define SLAB_PAGES ((size_t)16)
#define SLOT_FREE 0x8000u /* in slab.slots: free; the other bits are the next free slot */
#define SLOT_NONE 0x7FFFu

struct hostmem_slab {
    struct hostmem_extent *extent;
    struct hostmem_slab *next, *previous;
    unsigned class;
    unsigned slot_bytes;
    unsigned count, live;
    unsigned untouched; /* the first slot never handed out; none from here on is in the chain */
    unsigned head;      /* of the chain of free slots, or SLOT_NONE */
    bool listed;
    uint16_t slots[]; /* the size requested, or SLOT_FREE and the next free slot */
};

static struct hostmem_slab *partial[SLOT_CLASSES];
static unsigned empty_slabs; /* among the partial ones */

/* --- slabs --- */

static unsigned class_of(size_t bytes)
{
    if (bytes <= 1024) {
        return (unsigned)((bytes + 63) / 64) - 1;
    }
    if (bytes <= 2048) {
        return 16 + (unsigned)((bytes - 1024 + 127) / 128) - 1;
    }
    return 24 + (unsigned)((bytes - 2048 + 255) / 256) - 1;
}

static unsigned class_bytes(unsigned class)
{
    if (class < 16) {
        return (class + 1) * 64;
    }
    return class < 24 ? 1024 + (class - 15) * 128 : 2048 + (class - 23) * 256;
}

static void slab_list(struct hostmem_slab *slab)
{
    slab->previous = NULL;
    slab->next = partial[slab->class];
    if (slab->next != NULL) {
        slab->next->previous = slab;
    }
    partial[slab->class] = slab;
    slab->listed = true;
    empty_slabs += slab->live == 0;
}

static void slab_unlist(struct hostmem_slab *slab)
{
    if (slab->next != NULL) {
        slab->next->previous = slab->previous;
    }
    if (slab->previous != NULL) {
        slab->previous->next = slab->next;
    } else {
        partial[slab->class] = slab->next;
    }
    slab->listed = false;
    empty_slabs -= slab->live == 0;
}

static struct hostmem_slab *slab_new(unsigned class, enum hostmem_fit fit)
{
    unsigned bytes = class_bytes(class);
    unsigned count = (unsigned)(SLAB_PAGES * HOSTMEM_PAGE / bytes);
    struct hostmem_slab *slab = calloc(1, sizeof *slab + count * sizeof slab->slots[0]);

    if (slab == NULL) {
        return NULL;
    }
    slab->extent = hostmem_extent_take(SLAB_PAGES, true, fit);
    if (slab->extent == NULL) {
        free(slab);
        return NULL;
    }
    slab->class = class;
    slab->slot_bytes = bytes;
    slab->count = count;
    slab->head = SLOT_NONE;
    slab->extent->kind = EXTENT_SLAB;
    slab->extent->slab = slab;
    for (size_t i = 0; i < SLAB_PAGES; i++) {
        slab->extent->region->pages[slab->extent->first + i] = slab->extent;
    }
    slab_list(slab);
    return slab;
}

static void slab_dissolve(struct hostmem_slab *slab)
{
    struct hostmem_extent *extent = slab->extent;

    if (slab->listed) {
        slab_unlist(slab);
    }
    memset(&extent->region->pages[extent->first], 0, SLAB_PAGES * sizeof extent->region->pages[0]);
    extent->slab = NULL;
    hostmem_extent_give(extent);
    free(slab);
}

static void *slot_take(struct hostmem_slab *slab, size_t bytes)
{
    unsigned slot = slab->head;

    if (slot != SLOT_NONE) {
        slab->head = slab->slots[slot] & SLOT_NONE;
    } else {
        slot = slab->untouched++;
    }
    slab->slots[slot] = (uint16_t)bytes;
    empty_slabs -= slab->live == 0;
    slab->live++;
    if (slab->live == slab->count) {
        slab_unlist(slab);
    }
    slab->extent->region->taken += slab->slot_bytes;
    return hostmem_extent_address(slab->extent) + (size_t)slot * slab->slot_bytes;
}

static void slot_give(struct hostmem_slab *slab, unsigned slot)
{
    struct hostmem_region *region = slab->extent->region;

    region->taken -= slab->slot_bytes;
    slab->slots[slot] = (uint16_t)(SLOT_FREE | slab->head);
    slab->head = slot;
    slab->live--;
    if (!hostmem_region_is_listed(region)) {
        if (slab->live == 0) {
            slab_dissolve(slab);
        }
        return;
    }
    if (!slab->listed) {
        slab_list(slab); /* counts it if it is empty */
    } else {
        empty_slabs += slab->live == 0;
    }
    /* Keep one empty slab of each size, so that alternating take and give does not remake it. */
    if (slab->live == 0 && (slab->next != NULL || slab->previous != NULL)) {
        slab_dissolve(slab);
    }
}

bool hostmem_slabs_sweep(void)
{
    bool any = false;

    for (unsigned class = 0; class < SLOT_CLASSES && empty_slabs > 0; class++) {
        struct hostmem_slab *next;
        for (struct hostmem_slab *slab = partial[class]; slab != NULL; slab = next) {
            next = slab->next;
            if (slab->live == 0) {
                slab_dissolve(slab);
                any = true;
            }
        }
    }
    return any;
}

/* --- blocks --- */

static size_t pages_of(size_t bytes)
{
    return (bytes + HOSTMEM_PAGE - 1) / HOSTMEM_PAGE;
}

size_t hostmem_bytes_needed(size_t bytes)
{
    return (bytes <= SLOT_MOST ? SLAB_PAGES : pages_of(bytes)) * HOSTMEM_PAGE;
}

bool hostmem_is_for_arena(size_t bytes)
{
    return bytes <= ARENA_MOST;
}

void *hostmem_block_take(size_t bytes, enum hostmem_fit fit, bool *zeroed)
{
    *zeroed = false;
    if (bytes <= SLOT_MOST) {
        unsigned class = class_of(bytes);
        struct hostmem_slab *slab = partial[class] != NULL ? partial[class] : slab_new(class, fit);
        return slab == NULL ? NULL : slot_take(slab, bytes);
    }
    struct hostmem_extent *extent =
        hostmem_extent_take(pages_of(bytes), hostmem_is_for_arena(bytes), fit);
    if (extent == NULL) {
        return NULL;
    }
    extent->kind = EXTENT_BLOCK;
    extent->asked = bytes;
    extent->region->taken += extent->pages * HOSTMEM_PAGE;
    *zeroed = extent->fresh;
    return hostmem_extent_address(extent);
}

/* The extent of the live block that begins at `address`, and in a slab its slot; else NULL. */
static struct hostmem_extent *block_find(const struct hostmem_region *region, const void *address,
                                         unsigned *slot)
{
    size_t offset = (size_t)((const char *)address - region->base);
    struct hostmem_extent *extent = region->pages[offset / HOSTMEM_PAGE];

    if (extent == NULL || extent->kind == EXTENT_FREE) {
        return NULL;
    }
    if (extent->kind == EXTENT_BLOCK) {
        return offset == extent->first * HOSTMEM_PAGE ? extent : NULL;
    }
    struct hostmem_slab *slab = extent->slab;
    unsigned within = (unsigned)(offset - extent->first * HOSTMEM_PAGE);
    *slot = within / slab->slot_bytes;
    if (within % slab->slot_bytes != 0 || *slot >= slab->untouched ||
        (slab->slots[*slot] & SLOT_FREE) != 0) {
        return NULL;
    }
    return extent;
}

size_t hostmem_block_bytes(const struct hostmem_region *region, const void *address)
{
    unsigned slot = 0;
    struct hostmem_extent *extent = block_find(region, address, &slot);

    if (extent == NULL) {
        return 0;
    }
    return extent->kind == EXTENT_BLOCK ? extent->asked : extent->slab->slots[slot];
}

void hostmem_block_give(struct hostmem_region *region, void *address)
{
    unsigned slot = 0;
    struct hostmem_extent *extent = block_find(region, address, &slot);

    assert(extent != NULL);
    if (extent->kind == EXTENT_SLAB) {
        slot_give(extent->slab, slot);
        return;
    }
    region->taken -= extent->pages * HOSTMEM_PAGE;
    hostmem_extent_give(extent);
}

/* --- regions --- */

bool hostmem_region_open(struct hostmem_region *region)
{
    struct hostmem_extent *extent = calloc(1, sizeof *extent);

    region->pages = calloc(hostmem_region_pages(region), sizeof region->pages[0]);
    if (extent == NULL || region->pages == NULL) {
        free(region->pages);
        free(extent);
        region->pages = NULL;
        return false;
    }
    extent->region = region;
    extent->pages = hostmem_region_pages(region);
    extent->kind = EXTENT_FREE;
    extent->fresh = true;
    hostmem_extent_note(extent);
    return true;
}

void hostmem_region_close(struct hostmem_region *region)
{
    assert(region->pages[0]->pages == hostmem_region_pages(region));
    free(region->pages[0]);
    free(region->pages);
    region->pages = NULL;
}

void hostmem_region_list(struct hostmem_region *region)
{
    for (size_t page = 0; page < hostmem_region_pages(region);) {
        struct hostmem_extent *extent = region->pages[page];
        page += extent->pages;
        if (extent->kind == EXTENT_FREE) {
            hostmem_extent_list(extent);
        } else if (extent->kind == EXTENT_SLAB && extent->slab->live < extent->slab->count) {
            slab_list(extent->slab);
        }
    }
}

void hostmem_region_unlist(struct hostmem_region *region)
{
    for (size_t page = 0; page < hostmem_region_pages(region);) {
        struct hostmem_extent *extent = region->pages[page];
        page += extent->pages;
        if (extent->kind == EXTENT_FREE) {
            hostmem_extent_unlist(extent);
        } else if (extent->kind == EXTENT_SLAB && extent->slab->listed) {
            slab_unlist(extent->slab);
        }
    }
}

bool hostmem_region_can_serve(const struct hostmem_region *region, size_t bytes,
                              enum hostmem_fit fit)
{
    size_t pages = hostmem_bytes_needed(bytes) / HOSTMEM_PAGE;

    if (fit == HOSTMEM_STRICT && hostmem_is_for_arena(bytes) && !region->arena) {
        return false;
    }
    for (size_t page = 0; page < hostmem_region_pages(region);) {
        const struct hostmem_extent *extent = region->pages[page];
        page += extent->pages;
        if (extent->kind == EXTENT_FREE && extent->pages >= pages &&
            (region->arena || fit == HOSTMEM_ANY ||
             extent->pages / HOSTMEM_REUSE_FACTOR <= pages)) {
            return true;
        }
        if (extent->kind == EXTENT_SLAB && bytes <= SLOT_MOST &&
            extent->slab->class == class_of(bytes) && extent->slab->live < extent->slab->count) {
            return true;
        }
    }
    return false;
}

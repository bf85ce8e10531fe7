/*
 * Blocks inside registered regions: see private.h, which says what needs the pool's lock. Nothing
 * here calls the driver.
 *
 * A region is divided into extents of whole pages; free neighbours are merged. Free extents are on
 * lists by size, 32 lists to a doubling (two-level segregated fit), so that finding the smallest
 * that fits searches at most two lists. An extent may be a slab: slots of one size, for requests
 * below a page.
 */
#include "private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_MOST ((size_t)4 << 20) /* bytes; requests up to here come from arenas */
#define REUSE_FACTOR 8               /* a large extent is cut for no less than this part of it */

/* Slot sizes: 64 bytes apart up to 1024, then 8 to a doubling, where at most an eighth is lost. */
#define SLOT_MOST ((size_t)3840)
#define SLOT_CLASSES 31
#define SLAB_PAGES ((size_t)16)
#define SLOT_FREE 0x8000u /* in slab.slots: free; the other bits are the next free slot */
#define SLOT_NONE 0x7FFFu

/* Lists: one for each page count up to 63, then 32 to a doubling. */
#define FINE 32
#define LISTS (FINE * 38)
#define WORDS (LISTS / 64)

enum extent_kind {
    EXTENT_FREE,
    EXTENT_BLOCK,
    EXTENT_SLAB,
};

struct hostmem_extent {
    struct hostmem_region *region;
    size_t first, pages;
    enum extent_kind kind;
    bool fresh;                /* never handed out: all zero */
    size_t asked;              /* of a block: bytes requested */
    struct hostmem_slab *slab; /* of a slab: owned */
    struct hostmem_extent *next, *previous;
};

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

struct extent_lists {
    uint64_t filled[WORDS]; /* a bit per list that is not empty */
    struct hostmem_extent *heads[LISTS];
};

static struct extent_lists lists[2]; /* large regions, arenas */
static struct hostmem_slab *partial[SLOT_CLASSES];
static unsigned empty_slabs; /* among the partial ones */
static struct hostmem_extent *spare_extents;

/* --- records --- */

static struct hostmem_extent *extent_new(void)
{
    struct hostmem_extent *extent = spare_extents;

    if (extent != NULL) {
        spare_extents = extent->next;
        memset(extent, 0, sizeof *extent);
        return extent;
    }
    return calloc(1, sizeof *extent);
}

static void extent_forget(struct hostmem_extent *extent)
{
    extent->next = spare_extents;
    spare_extents = extent;
}

static char *extent_address(const struct hostmem_extent *extent)
{
    return extent->region->base + extent->first * HOSTMEM_PAGE;
}

static size_t region_pages(const struct hostmem_region *region)
{
    return region->bytes / HOSTMEM_PAGE;
}

/* Enters an extent where its neighbours and block_find look for it. */
static void extent_note(struct hostmem_extent *extent)
{
    extent->region->pages[extent->first] = extent;
    extent->region->pages[extent->first + extent->pages - 1] = extent;
}

/* --- lists of free extents --- */

static unsigned list_of(size_t pages)
{
    unsigned log;

    if (pages < FINE) {
        return (unsigned)pages;
    }
    log = 63u - (unsigned)__builtin_clzll(pages);
    return (log - 4) * FINE + (unsigned)((pages >> (log - 5)) - FINE);
}

static bool is_listed_region(const struct hostmem_region *region)
{
    return region->state == HOSTMEM_REGISTERED;
}

static void extent_list(struct hostmem_extent *extent)
{
    struct extent_lists *in = &lists[extent->region->arena];
    unsigned list = list_of(extent->pages);

    extent->previous = NULL;
    extent->next = in->heads[list];
    if (extent->next != NULL) {
        extent->next->previous = extent;
    }
    in->heads[list] = extent;
    in->filled[list / 64] |= UINT64_C(1) << list % 64;
}

static void extent_unlist(struct hostmem_extent *extent)
{
    struct extent_lists *in = &lists[extent->region->arena];
    unsigned list = list_of(extent->pages);

    if (extent->next != NULL) {
        extent->next->previous = extent->previous;
    }
    if (extent->previous != NULL) {
        extent->previous->next = extent->next;
    } else {
        in->heads[list] = extent->next;
        if (extent->next == NULL) {
            in->filled[list / 64] &= ~(UINT64_C(1) << list % 64);
        }
    }
}

/* The smallest extent of a list with at least `pages`, or NULL. */
static struct hostmem_extent *list_best(struct hostmem_extent *head, size_t pages)
{
    struct hostmem_extent *best = NULL;

    for (struct hostmem_extent *extent = head; extent != NULL; extent = extent->next) {
        if (extent->pages >= pages && (best == NULL || extent->pages < best->pages)) {
            best = extent;
            if (best->pages == pages) {
                break;
            }
        }
    }
    return best;
}

/* The smallest free extent with at least `pages`, or NULL. */
static struct hostmem_extent *lists_find(const struct extent_lists *in, size_t pages)
{
    unsigned list = list_of(pages);
    struct hostmem_extent *found = list_best(in->heads[list], pages);

    if (found != NULL) {
        return found;
    }
    if (++list == LISTS) {
        return NULL;
    }
    unsigned word = list / 64;
    uint64_t bits = in->filled[word] & (~UINT64_C(0) << list % 64);
    while (bits == 0) {
        if (++word == WORDS) {
            return NULL;
        }
        bits = in->filled[word];
    }
    return list_best(in->heads[word * 64 + (unsigned)__builtin_ctzll(bits)], pages);
}

/* --- extents --- */

/* Takes a free extent off its list and cuts it to `pages`; the rest goes back on a list. NULL: out
 * of memory. */
static struct hostmem_extent *extent_cut(struct hostmem_extent *extent, size_t pages)
{
    struct hostmem_extent *rest = NULL;

    if (extent->pages > pages) {
        rest = extent_new();
        if (rest == NULL) {
            return NULL;
        }
    }
    extent_unlist(extent);
    if (rest != NULL) {
        rest->region = extent->region;
        rest->first = extent->first + pages;
        rest->pages = extent->pages - pages;
        rest->fresh = extent->fresh;
        extent->pages = pages;
        extent_note(rest);
        extent_list(rest);
    }
    extent_note(extent);
    return extent;
}

static struct hostmem_extent *extent_take(size_t pages, bool arena, enum hostmem_fit fit)
{
    struct hostmem_extent *extent = lists_find(&lists[arena], pages);

    if (extent != NULL && !arena && fit == HOSTMEM_STRICT && extent->pages / REUSE_FACTOR > pages) {
        extent = NULL;
    }
    if (extent == NULL && (!arena || fit == HOSTMEM_ANY)) {
        extent = lists_find(&lists[!arena], pages);
    }
    return extent == NULL ? NULL : extent_cut(extent, pages);
}

/* Frees an extent and merges it with its free neighbours. */
static void extent_give(struct hostmem_extent *extent)
{
    struct hostmem_region *region = extent->region;
    size_t end = extent->first + extent->pages;
    struct hostmem_extent *before = extent->first > 0 ? region->pages[extent->first - 1] : NULL;
    struct hostmem_extent *after = end < region_pages(region) ? region->pages[end] : NULL;

    extent->kind = EXTENT_FREE;
    extent->fresh = false;
    /* After a merge no entry may remain between the ends. */
    if (before != NULL && before->kind == EXTENT_FREE) {
        if (is_listed_region(region)) {
            extent_unlist(before);
        }
        region->pages[before->first + before->pages - 1] = NULL;
        region->pages[extent->first] = NULL;
        extent->first = before->first;
        extent->pages += before->pages;
        extent_forget(before);
    }
    if (after != NULL && after->kind == EXTENT_FREE) {
        if (is_listed_region(region)) {
            extent_unlist(after);
        }
        region->pages[after->first] = NULL;
        region->pages[end - 1] = NULL;
        extent->pages += after->pages;
        extent_forget(after);
    }
    extent_note(extent);
    if (is_listed_region(region)) {
        extent_list(extent);
    }
}

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
    slab->extent = extent_take(SLAB_PAGES, true, fit);
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
    extent_give(extent);
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
    return extent_address(slab->extent) + (size_t)slot * slab->slot_bytes;
}

static void slot_give(struct hostmem_slab *slab, unsigned slot)
{
    struct hostmem_region *region = slab->extent->region;

    region->taken -= slab->slot_bytes;
    slab->slots[slot] = (uint16_t)(SLOT_FREE | slab->head);
    slab->head = slot;
    slab->live--;
    if (!is_listed_region(region)) {
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
    struct hostmem_extent *extent = extent_take(pages_of(bytes), hostmem_is_for_arena(bytes), fit);
    if (extent == NULL) {
        return NULL;
    }
    extent->kind = EXTENT_BLOCK;
    extent->asked = bytes;
    extent->region->taken += extent->pages * HOSTMEM_PAGE;
    *zeroed = extent->fresh;
    return extent_address(extent);
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
    extent_give(extent);
}

/* --- regions --- */

bool hostmem_region_open(struct hostmem_region *region)
{
    struct hostmem_extent *extent = calloc(1, sizeof *extent);

    region->pages = calloc(region_pages(region), sizeof region->pages[0]);
    if (extent == NULL || region->pages == NULL) {
        free(region->pages);
        free(extent);
        region->pages = NULL;
        return false;
    }
    extent->region = region;
    extent->pages = region_pages(region);
    extent->kind = EXTENT_FREE;
    extent->fresh = true;
    extent_note(extent);
    return true;
}

void hostmem_region_close(struct hostmem_region *region)
{
    assert(region->pages[0]->pages == region_pages(region));
    free(region->pages[0]);
    free(region->pages);
    region->pages = NULL;
}

void hostmem_region_list(struct hostmem_region *region)
{
    for (size_t page = 0; page < region_pages(region);) {
        struct hostmem_extent *extent = region->pages[page];
        page += extent->pages;
        if (extent->kind == EXTENT_FREE) {
            extent_list(extent);
        } else if (extent->kind == EXTENT_SLAB && extent->slab->live < extent->slab->count) {
            slab_list(extent->slab);
        }
    }
}

void hostmem_region_unlist(struct hostmem_region *region)
{
    for (size_t page = 0; page < region_pages(region);) {
        struct hostmem_extent *extent = region->pages[page];
        page += extent->pages;
        if (extent->kind == EXTENT_FREE) {
            extent_unlist(extent);
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
    for (size_t page = 0; page < region_pages(region);) {
        const struct hostmem_extent *extent = region->pages[page];
        page += extent->pages;
        if (extent->kind == EXTENT_FREE && extent->pages >= pages &&
            (region->arena || fit == HOSTMEM_ANY || extent->pages / REUSE_FACTOR <= pages)) {
            return true;
        }
        if (extent->kind == EXTENT_SLAB && bytes <= SLOT_MOST &&
            extent->slab->class == class_of(bytes) && extent->slab->live < extent->slab->count) {
            return true;
        }
    }
    return false;
}

/*
 * Extents: runs of whole pages inside a region. Free neighbours are merged. Free extents are on
 * lists by size, 32 lists to a doubling (two-level segregated fit), so that finding the smallest
 * that fits searches at most two lists. All of it needs the lock; nothing here calls the driver.
 */
#include <stdlib.h>
#include <string.h>

#include "extent.h"

/* Lists: one for each page count up to 63, then 32 to a doubling. */
#define FINE 32
#define LISTS (FINE * 38)
#define WORDS (LISTS / 64)

struct extent_lists {
    uint64_t filled[WORDS]; /* a bit per list that is not empty */
    struct hostmem_extent *heads[LISTS];
};

static struct extent_lists lists[2];         /* large regions, arenas */
static struct hostmem_extent *spare_extents; /* with malloc, an array of 8 KiB takes 8 % longer */

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

void hostmem_extent_note(struct hostmem_extent *extent)
{
    extent->region->pages[extent->first] = extent;
    extent->region->pages[extent->first + extent->pages - 1] = extent;
}

static unsigned list_of(size_t pages)
{
    unsigned log;

    if (pages < FINE) {
        return (unsigned)pages;
    }
    log = 63u - (unsigned)__builtin_clzll(pages);
    return (log - 4) * FINE + (unsigned)((pages >> (log - 5)) - FINE);
}

void hostmem_extent_list(struct hostmem_extent *extent)
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

void hostmem_extent_unlist(struct hostmem_extent *extent)
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
    hostmem_extent_unlist(extent);
    if (rest != NULL) {
        rest->region = extent->region;
        rest->first = extent->first + pages;
        rest->pages = extent->pages - pages;
        rest->fresh = extent->fresh;
        extent->pages = pages;
        hostmem_extent_note(rest);
        hostmem_extent_list(rest);
    }
    hostmem_extent_note(extent);
    return extent;
}

struct hostmem_extent *hostmem_extent_take(size_t pages, bool arena, enum hostmem_fit fit)
{
    struct hostmem_extent *extent = lists_find(&lists[arena], pages);

    if (extent != NULL && !arena && fit == HOSTMEM_STRICT &&
        extent->pages / HOSTMEM_REUSE_FACTOR > pages) {
        extent = NULL;
    }
    if (extent == NULL && (!arena || fit == HOSTMEM_ANY)) {
        extent = lists_find(&lists[!arena], pages);
    }
    return extent == NULL ? NULL : extent_cut(extent, pages);
}

void hostmem_extent_give(struct hostmem_extent *extent)
{
    struct hostmem_region *region = extent->region;
    size_t end = extent->first + extent->pages;
    struct hostmem_extent *before = extent->first > 0 ? region->pages[extent->first - 1] : NULL;
    struct hostmem_extent *after = end < hostmem_region_pages(region) ? region->pages[end] : NULL;

    extent->kind = EXTENT_FREE;
    extent->fresh = false;
    /* After a merge no entry may remain between the ends. */
    if (before != NULL && before->kind == EXTENT_FREE) {
        if (hostmem_region_is_listed(region)) {
            hostmem_extent_unlist(before);
        }
        region->pages[before->first + before->pages - 1] = NULL;
        region->pages[extent->first] = NULL;
        extent->first = before->first;
        extent->pages += before->pages;
        extent_forget(before);
    }
    if (after != NULL && after->kind == EXTENT_FREE) {
        if (hostmem_region_is_listed(region)) {
            hostmem_extent_unlist(after);
        }
        region->pages[after->first] = NULL;
        region->pages[end - 1] = NULL;
        extent->pages += after->pages;
        extent_forget(after);
    }
    hostmem_extent_note(extent);
    if (hostmem_region_is_listed(region)) {
        hostmem_extent_list(extent);
    }
}

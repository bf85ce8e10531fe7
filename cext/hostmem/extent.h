/* Extents of pages inside regions: for extent.c and block.c. */
#ifndef CUDRIVER_HOSTMEM_EXTENT_H
#define CUDRIVER_HOSTMEM_EXTENT_H

#include "private.h"

#define HOSTMEM_REUSE_FACTOR 8 /* a large extent is cut for no less than this part of it */

enum hostmem_extent_kind {
    EXTENT_FREE,
    EXTENT_BLOCK,
    EXTENT_SLAB,
};

struct hostmem_extent {
    struct hostmem_region *region;
    size_t first, pages;
    enum hostmem_extent_kind kind;
    bool fresh;                /* never handed out: all zero */
    size_t asked;              /* of a block: bytes requested */
    struct hostmem_slab *slab; /* of a slab: owned */
    struct hostmem_extent *next, *previous;
};

static inline char *hostmem_extent_address(const struct hostmem_extent *extent)
{
    return extent->region->base + extent->first * HOSTMEM_PAGE;
}

static inline size_t hostmem_region_pages(const struct hostmem_region *region)
{
    return region->bytes / HOSTMEM_PAGE;
}

/* Whether the region's free extents are on the lists. */
static inline bool hostmem_region_is_listed(const struct hostmem_region *region)
{
    return region->state == HOSTMEM_REGISTERED;
}

/* Enters an extent where its neighbours and block.c look for it. */
void hostmem_extent_note(struct hostmem_extent *extent);

/* Puts a free extent on the lists, or takes it off. */
void hostmem_extent_list(struct hostmem_extent *extent);
void hostmem_extent_unlist(struct hostmem_extent *extent);

/* The smallest free extent that fits, cut to `pages`; NULL if there is none or no memory. */
struct hostmem_extent *hostmem_extent_take(size_t pages, bool arena, enum hostmem_fit fit);

/* Frees an extent and merges it with its free neighbours. */
void hostmem_extent_give(struct hostmem_extent *extent);

#endif

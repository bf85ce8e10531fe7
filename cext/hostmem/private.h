/*
 * What the files of this folder share; see hostmem.h for what it is about.
 *
 *   pool.c     the pool's public half: alloc, free, trim, limit, regions that come and go
 *   table.c    from addresses to regions
 *   block.c    blocks inside regions: page-wise extents, slabs for small sizes. No CUDA
 *   map.c      mappings: reserve, huge pages, first touch by threads, register
 *   left.c     how much memory the machine and the process's cgroups have left. No CUDA
 *   pins.c     pins on memory that somebody else owns
 *   registrations.c   what both of them answer together
 *   home.c     the contexts that registrations are made in
 *
 * One lock guards all regions, extents and slabs; it is held for bookkeeping only, never while the
 * driver or the system is asked for memory. A region in state BUSY belongs to the thread that made
 * it so: others may read its state and may note `lost`, nothing else.
 */
#ifndef CUDRIVER_HOSTMEM_PRIVATE_H
#define CUDRIVER_HOSTMEM_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>

#include "hostmem.h"

#define HOSTMEM_PAGE ((size_t)4096)         /* the unit of blocks, whatever the system's page is */
#define HOSTMEM_ALIGNMENT ((size_t)1 << 21) /* of regions: a huge page */
#define HOSTMEM_MOST ((size_t)1 << 47)      /* no request can be larger */
/* The most that one registration covers, 64 GiB; some tests make it small. */
#ifndef HOSTMEM_PIECE
#define HOSTMEM_PIECE ((size_t)1 << 36)
#endif

enum hostmem_region_state {
    HOSTMEM_BUSY,       /* being registered or released, outside the lock */
    HOSTMEM_REGISTERED, /* its free extents and slabs are on the lists */
    HOSTMEM_LOST,       /* its home was reset, it is not registered; nothing of it is on a list */
};

struct hostmem_extent;
struct hostmem_slab;

/* One mapping, registered as a whole. Addresses in it are found through hostmem_region_of. */
struct hostmem_region {
    char *base; /* HOSTMEM_ALIGNMENT-aligned */
    size_t bytes;
    enum hostmem_region_state state;
    bool arena;    /* for small and middle requests; else made for one large block */
    bool lost;     /* while BUSY: its home may have been reset meanwhile */
    bool refused;  /* while LOST: somebody has registered a part, so that the whole cannot be */
    CUdevice home; /* of the registration, retained until that ends; others read it while
                      REGISTERED only */
    size_t taken;  /* bytes under live blocks, rounding included */
    struct hostmem_extent **pages; /* first and last page of each extent, every page of a slab's */
    struct hostmem_region *next, *previous;
};

enum hostmem_fit {
    HOSTMEM_STRICT, /* small requests from arenas, large ones from extents up to 8 times as large */
    HOSTMEM_ANY,    /* from wherever they fit */
};

/* --- block.c: under the pool's lock, but for open and close --- */

/* Makes a fresh region one free extent, not on the lists yet. False for want of memory. */
bool hostmem_region_open(struct hostmem_region *region);
/* Frees what hostmem_region_open made. Every block must be free, and the region off the lists and
 * out of everybody's reach. */
void hostmem_region_close(struct hostmem_region *region);
/* Puts the free extents and slabs of a region on the lists, or takes them off. */
void hostmem_region_list(struct hostmem_region *region);
void hostmem_region_unlist(struct hostmem_region *region);
/* Whether the free memory of a region that is off the lists would serve `bytes`. */
bool hostmem_region_can_serve(const struct hostmem_region *region, size_t bytes,
                              enum hostmem_fit fit);

/* A block from the lists, or NULL. */
void *hostmem_block_take(size_t bytes, enum hostmem_fit fit, bool *zeroed);
/* The size asked for of the live block that begins at `address`, 0 where none does. */
size_t hostmem_block_bytes(const struct hostmem_region *region, const void *address);
/* Takes a live block back. */
void hostmem_block_give(struct hostmem_region *region, void *address);
/* Dissolves slabs that are kept though empty; whether there were any. */
bool hostmem_slabs_sweep(void);
/* Bytes of the region that a request needs at least. */
size_t hostmem_bytes_needed(size_t bytes);
/* Whether a request is served from arenas. */
bool hostmem_is_for_arena(size_t bytes);

/* --- map.c: no lock needed --- */

/* A private, aligned, untouched mapping of `bytes` (a multiple of the system's page), or NULL. */
char *hostmem_map(size_t bytes);
void hostmem_unmap(char *base, size_t bytes);
/* Gives every page its memory, by several threads where that pays, and registers the whole; all or
 * nothing. */
CUresult hostmem_touch_and_register(char *base, size_t bytes, unsigned flags);
/* Rounds up to the system's page. */
size_t hostmem_round(size_t bytes);
/* Registers, in pieces; all or nothing. */
CUresult hostmem_register(char *base, size_t bytes, unsigned flags);
/* Undoes it; what is not registered any more counts as done. Calls nothing in a forked child. */
CUresult hostmem_unregister(char *base, size_t bytes);

/* --- left.c: no lock needed --- */

/* The smaller of the machine's available memory and what the process's cgroups (either version,
 * parents included) have left; SIZE_MAX where nothing says. `root`: where the system's files are
 * looked for, "" but in tests. */
size_t hostmem_left(const char *root);

/* --- home.c: no lock held --- */

/*
 * A registration goes with the context that it was made in, and every context may be using it. So
 * it is made in a context that stays: the primary context of a device, its home, which is retained
 * once for each registration. Only a reset of that primary context can take it away.
 *
 * Retains the primary context of the current context's device and makes it current: register, then
 * leave. The reference goes with the registration, to hostmem_home_release.
 */
CUresult hostmem_home_enter(CUdevice *home);
void hostmem_home_leave(void);

/* One reference more, to a home that the caller has entered; and `count` less. */
CUresult hostmem_home_retain(CUdevice home);
void hostmem_home_release(CUdevice home, size_t count);

/* --- table.c: no lock needed --- */

/* The region that begins in the HOSTMEM_ALIGNMENT bytes around `address` or covers a part of them,
 * or NULL. It may go at any time, unless the lock is held or a block at `address` is alive. */
struct hostmem_region *hostmem_region_of(const void *address);
/* Lets the addresses of a region lead to `as`: the region, or NULL. False for want of memory or for
 * an address too high; not when it was entered before. */
bool hostmem_region_enter(const struct hostmem_region *region, struct hostmem_region *as);

/* --- pool.c, for pins.c and registrations.c --- */

/* Keeps the pool's lock right across fork(); before it is first held for work. */
void hostmem_watch_forks(void);

/*
 * Whether [address, address + bytes) lies in the pool; if so it is registered on return, or *result
 * says why not. May call the driver and wait.
 */
bool hostmem_pool_holds(const void *address, size_t bytes, CUresult *result);

/* The pool's part of cudriver_hostmem_get_stats, _is_home, _is_registered and _run (0 where the
 * address is not the pool's); and of _forget_home: how many references to the home are the caller's
 * to release. */
void hostmem_pool_count(struct cudriver_hostmem_stats *stats);
bool hostmem_pool_has_home(CUdevice home);
bool hostmem_pool_is_registered(const void *address, size_t bytes);
size_t hostmem_pool_run(const void *address, size_t bytes);
size_t hostmem_pool_forget_home(CUdevice home);

/* --- pins.c, for registrations.c: the same of the pins --- */

void hostmem_pins_count(size_t *pins, size_t *bytes);
bool hostmem_pins_have_home(CUdevice home);
bool hostmem_pins_are_registered(const void *address, size_t bytes);
size_t hostmem_pins_run(const void *address, size_t bytes);
size_t hostmem_pins_forget_home(CUdevice home);

#endif

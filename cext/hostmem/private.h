/*
 * What the files of this folder share. hostmem.h is the public interface.
 *
 *   lock.c            the lock of pool and pins
 *   pool.c            the pool: alloc, free, trim, limit
 *   region.c          its regions: made, lost, revived, released
 *   table.c           finds the region of an address                                   no CUDA
 *   block.c           blocks inside regions, and slabs for small sizes                 no CUDA
 *   extent.c          extents of pages inside regions, and the lists of free ones      no CUDA
 *   map.c             mappings: reserve, huge pages, first touch by threads, register
 *   left.c            how much memory the machine and the process's cgroups have left  no CUDA
 *   pins.c            pins on memory that somebody else owns
 *   registrations.c   queries that pool and pins answer together
 *   home.c            the primary contexts in which memory is registered
 *
 * The lock guards all regions, extents, slabs and pins. It is held for bookkeeping only, never
 * while the driver or the system is asked for memory. A region in state BUSY belongs to the thread
 * that set that state: others may read the state and set `lost`, nothing else.
 */
#ifndef CUDRIVER_HOSTMEM_PRIVATE_H
#define CUDRIVER_HOSTMEM_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "hostmem.h"

#define HOSTMEM_PAGE ((size_t)4096)         /* unit of blocks; the system's page may be larger */
#define HOSTMEM_ALIGNMENT ((size_t)1 << 21) /* of regions: one huge page */
#define HOSTMEM_MOST ((size_t)1 << 47)      /* larger requests fail */
/* Most bytes of one registration, 64 GiB. Some tests make it small. */
#ifndef HOSTMEM_PIECE
#define HOSTMEM_PIECE ((size_t)1 << 36)
#endif

enum hostmem_region_state {
    HOSTMEM_BUSY,       /* being registered or released, without the lock */
    HOSTMEM_REGISTERED, /* its free extents and slabs are on block.c's lists */
    HOSTMEM_LOST,       /* not registered: its home was reset. Nothing of it is on the lists */
};

struct hostmem_extent;
struct hostmem_slab;

/* One mapping, registered and released as a whole. hostmem_region_of finds it by address. `pages`
 * is owned: by page, the extent that begins or ends there (in a slab, for every page), else NULL.
 */
struct hostmem_region {
    char *base; /* HOSTMEM_ALIGNMENT-aligned */
    size_t bytes;
    enum hostmem_region_state state;
    bool arena;    /* for small and medium requests; else made for one large block */
    bool lost;     /* while BUSY: its home may have been reset */
    bool refused;  /* while LOST: somebody else has registered a part, so it cannot be registered */
    CUdevice home; /* where it is registered; retained for that long. Others read it while
                      REGISTERED only */
    size_t taken;  /* bytes of live blocks, rounded up */
    struct hostmem_extent **pages;
    struct hostmem_region *next;
};

enum hostmem_fit {
    HOSTMEM_STRICT, /* small requests from arenas only; no free extent of a large region is cut for
                       less than an eighth */
    HOSTMEM_ANY,    /* from any extent that is large enough */
};

/* --- lock.c --- */

/* The lock stays usable across fork(). wait releases it until a thread announces that a region is
 * no longer BUSY, or a pinned piece no longer PENDING or LEAVING; it may return early. */
extern pthread_mutex_t hostmem_mutex;
extern pthread_cond_t hostmem_changed;

static inline void hostmem_lock(void)
{
    pthread_mutex_lock(&hostmem_mutex);
}

static inline void hostmem_unlock(void)
{
    pthread_mutex_unlock(&hostmem_mutex);
}

static inline void hostmem_wait(void)
{
    pthread_cond_wait(&hostmem_changed, &hostmem_mutex);
}

static inline void hostmem_announce(void)
{
    pthread_cond_broadcast(&hostmem_changed);
}

/* --- block.c: under the lock, but for open, close and the two size functions --- */

/* Makes a fresh region one free extent, not yet on the lists. False: out of memory. */
bool hostmem_region_open(struct hostmem_region *region);
/* Frees what hostmem_region_open made. Every block is free, the region is off the lists, and no
 * other thread can reach it. */
void hostmem_region_close(struct hostmem_region *region);
/* Puts a region's free extents and slabs on the lists, or takes them off. */
void hostmem_region_list(struct hostmem_region *region);
void hostmem_region_unlist(struct hostmem_region *region);
/* Whether a region that is off the lists could serve `bytes`. */
bool hostmem_region_can_serve(const struct hostmem_region *region, size_t bytes,
                              enum hostmem_fit fit);

/* A block from the lists, or NULL. */
void *hostmem_block_take(size_t bytes, enum hostmem_fit fit, bool *zeroed);
/* The size requested for the live block at `address`; 0: no block begins there. */
size_t hostmem_block_bytes(const struct hostmem_region *region, const void *address);
/* Frees a live block. */
void hostmem_block_give(struct hostmem_region *region, void *address);
/* Dissolves the empty slabs that are kept; whether there were any. */
bool hostmem_slabs_sweep(void);
/* Bytes that a request needs in a region, at least. */
size_t hostmem_bytes_needed(size_t bytes);
/* Whether a request is served from arenas. */
bool hostmem_is_for_arena(size_t bytes);

/* --- map.c: no lock needed --- */

/* A private, aligned mapping of `bytes` (a multiple of the system's page), not yet touched; or
 * NULL. */
char *hostmem_map(size_t bytes);
void hostmem_unmap(char *base, size_t bytes);
/* Touches every page, with several threads if that pays, and registers the whole; all or
 * nothing. */
CUresult hostmem_touch_and_register(char *base, size_t bytes, unsigned flags);
/* Rounds up to the system's page. */
size_t hostmem_round(size_t bytes);
/* Registers, in parts of HOSTMEM_PIECE bytes; all or nothing. */
CUresult hostmem_register(char *base, size_t bytes, unsigned flags);
/* Unregisters. Parts that are no longer registered count as done. No driver call in a forked
 * child. */
CUresult hostmem_unregister(char *base, size_t bytes);

/* --- left.c: no lock needed --- */

/* The smaller of the machine's available memory and what the process's cgroups (version 1 or 2,
 * parents included) have left; SIZE_MAX if unknown. `root`: prefix of the system's files, "" except
 * in tests. */
size_t hostmem_left(const char *root);

/* --- home.c: no lock held --- */

/*
 * A registration ends with the context it was made in, yet every context may use the memory. So it
 * is made in the primary context of a device, its "home", and holds one reference to it. Only a
 * reset of that primary context can take the registration away.
 *
 * enter retains the primary context of the current context's device and makes it current. Call
 * leave after registering. The reference stays with the registration, until hostmem_home_release.
 */
CUresult hostmem_home_enter(CUdevice *home);
void hostmem_home_leave(void);

/* retain adds one reference to a home that the caller has entered; release drops `count`. */
CUresult hostmem_home_retain(CUdevice home);
void hostmem_home_release(CUdevice home, size_t count);

/* --- table.c: no lock needed --- */

/* The region that covers some of the HOSTMEM_ALIGNMENT bytes around `address`, or NULL. It may be
 * freed at any time, unless the caller holds the lock or a live block at `address`. */
struct hostmem_region *hostmem_region_of(const void *address);
/* Maps the addresses of a region to `as`: the region, or NULL. False: out of memory, or the address
 * is too high. Never false for a region that was entered before. */
bool hostmem_region_enter(const struct hostmem_region *region, struct hostmem_region *as);

/* --- region.c: under the lock, which revive, add and release give up meanwhile --- */

struct hostmem_pool {
    struct hostmem_region *regions;
    size_t registered;  /* bytes */
    size_t reserved;    /* bytes being registered */
    size_t arena_bytes; /* of arenas, in any state */
    unsigned releasing; /* regions being released */
    size_t releases;    /* how many ended */
    size_t peak, limit;
    size_t used_bytes, used_blocks;
    unsigned long long hits, misses;
};

extern struct hostmem_pool hostmem_pool;

/* The region that contains `address`, or NULL. */
struct hostmem_region *hostmem_region_with(const void *address);
/* Whether the limit lets the pool register so many bytes more. */
bool hostmem_pool_allows(size_t bytes);
/* Registers a LOST region again. */
CUresult hostmem_region_revive(struct hostmem_region *region);
/* Adds a region for a request, of the least size if `lean`, and takes the block from it. */
CUresult hostmem_region_add(size_t bytes, bool lean, void **block, bool *zeroed);
/* Releases a region without live blocks. */
CUresult hostmem_region_release(struct hostmem_region *region);

/* --- for pins.c and registrations.c: these take the lock --- */

/*
 * pool.c: whether [address, address + bytes) lies in the pool. If so, it is registered on return,
 * or *result says why not. May call the driver and wait.
 */
bool hostmem_pool_holds(const void *address, size_t bytes, CUresult *result);

/* The parts of pool.c, region.c and pins.c in cudriver_hostmem_get_stats, _is_home, _forget_home
 * (returns how many references to the home the caller must release), _run (0: no pin's) and
 * _is_registered. */
void hostmem_pool_count(struct cudriver_hostmem_stats *stats);
void hostmem_pins_count(size_t *pins, size_t *bytes);
bool hostmem_pins_have_home(CUdevice home);
size_t hostmem_pool_forget_home(CUdevice home);
size_t hostmem_pins_forget_home(CUdevice home);
size_t hostmem_pins_run(const void *address, size_t bytes, bool *registered);

#endif

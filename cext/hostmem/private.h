/*
 * What the files of this folder share. hostmem.h is the public interface.
 *
 *   pins.c           pins on memory that somebody else owns
 *   pool.c           the pool: alloc, free, trim, limit; its regions; the primary contexts that
 *                    memory is registered in
 *   block.c          free and live blocks in regions                           no CUDA
 *   ranges.c         the lock; finds the registration of an address; the NUMA node of a device, and
 *                    its processors
 *   map.c            mappings: reserve, place, huge pages, first touch by threads, register
 *
 * The lock guards all regions and pins. It is held for bookkeeping only, never while the driver or
 * the system is asked for memory. A range that is not `ready` belongs to the thread that registers
 * or releases it; others wait if they need its bytes.
 */
#ifndef CUDRIVER_HOSTMEM_PRIVATE_H
#define CUDRIVER_HOSTMEM_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "hostmem.h"

#define HOSTMEM_ALIGNMENT ((size_t)1 << 21) /* of regions: one huge page */
#define HOSTMEM_CHUNK ((size_t)1 << 21)     /* bytes of a region for small blocks */
#define HOSTMEM_LARGE ((size_t)1 << 20)     /* from here on a block has a region of its own */
#define HOSTMEM_SLOT_LEAST ((size_t)64)     /* the unit of small blocks */
#define HOSTMEM_MOST ((size_t)1 << 47)      /* larger requests fail */
/* Bytes behind each block that are nobody's: what is written there was written beside a block. */
#ifdef NDEBUG
#define HOSTMEM_GUARD ((size_t)0)
#else
#define HOSTMEM_GUARD HOSTMEM_SLOT_LEAST
#endif
/* Most bytes of one registration, 64 GiB. Some tests make it small. */
#ifndef HOSTMEM_PIECE
#define HOSTMEM_PIECE ((size_t)1 << 36)
#endif

/* Registered for all contexts, and mapped: with unified addressing, which all 64-bit Linux drivers
 * have, the driver maps it anyway and takes no longer when asked. */
#define HOSTMEM_FLAGS (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)

/* What is registered, and released as a whole: the first member of a region or a pin. */
struct hostmem_range {
    char *base;
    size_t bytes;
    size_t step;          /* most bytes of one registration */
    atomic_size_t locked; /* bytes registered, from the lowest on; set by the range's thread */
    int node;             /* where its memory is placed, and touched; or CUDRIVER_NODE_ANY */
    CUdevice device; /* in whose primary context it is registered, which is retained; -1: unknown */
    bool pooled;     /* of a region */
    bool ready;      /* registered, and not being released */
};

/* One mapping, HOSTMEM_ALIGNMENT-aligned: one large block, or a chunk that is cut into slots of the
 * size classes. */
struct hostmem_region {
    struct hostmem_range range;
    size_t taken; /* bytes of live blocks, rounded up */
    size_t asked; /* of a large block: bytes requested; 0: it is free */
    /* Of a chunk, behind this, an entry for each HOSTMEM_SLOT_LEAST bytes; NULL: a large block.
     * Where a live slot begins, 2 * bytes requested + 1; where a free one does, the address of the
     * next free slot of its class. The links are not in the slots: a device may still write there.
     */
    uint64_t *slots;
    size_t cut; /* of a chunk: bytes that were cut into slots */
    struct hostmem_region *next;
    struct hostmem_region *next_free; /* of the same class */
};

/* --- ranges.c: the lock --- */

/* The lock stays usable across fork(). `changed` is signalled when something was registered or
 * released. */
extern pthread_mutex_t hostmem_lock;
extern pthread_cond_t hostmem_changed;

/* --- block.c: under the lock, but for the last --- */

/* A block of a node, from the free ones or from a chunk with room, or NULL. */
void *hostmem_block_take(size_t bytes, int node);
/* The size requested for the live block at `address`; 0: no block begins there. */
size_t hostmem_block_bytes(const struct hostmem_region *region, const void *address);
/* Frees a live block. */
void hostmem_block_give(struct hostmem_region *region, void *address);
/* Adds a new region to those that blocks are taken from: a free large block, or a chunk. */
void hostmem_region_offer(struct hostmem_region *region);
/* Takes one without live blocks away again, after hostmem_chunks_sweep. */
void hostmem_region_withdraw(struct hostmem_region *region);
/* Forgets how chunks without live blocks were cut, so that they serve every size again. Whether
 * there were any. */
bool hostmem_chunks_sweep(void);
/* Bytes that a block takes in a region. */
size_t hostmem_block_size(size_t bytes);
/* Whether a live block's guard is as it was; then, or with `set`, it is again. */
bool hostmem_block_guard(void *address, size_t bytes, bool set);
/* Rounds up to the system's page. */
size_t hostmem_round(size_t bytes);

/* --- map.c: no lock needed --- */

/* A private, aligned mapping of `bytes` (a multiple of the system's page) and a guard, to lie on
 * `node` if that has room, not yet touched; or NULL. */
char *hostmem_map(size_t bytes, int node);
void hostmem_unmap(char *base, size_t bytes);
/* Registers, in pieces of `step` bytes; all or nothing. A driver call keeps every copy of the
 * process waiting until it returns, so a range that is locked beside other work takes small steps.
 * `stop`: NULL, or ends it between two pieces (CUDRIVER_PIN_STOPPED); then pages are also read in
 * before the driver is called. `fresh`: new memory, whose pages are all touched, by several threads
 * if that pays; what others wrote there meanwhile stays. */
CUresult hostmem_register(struct hostmem_range *range, unsigned flags, const atomic_bool *stop,
                          bool fresh);
/* Unregisters. Pieces that are no longer registered count as done, as all do once the driver has
 * ended. No driver call in a forked child. */
CUresult hostmem_unregister(struct hostmem_range *range);

/* --- pool.c: primary contexts; no lock held --- */

/*
 * A registration ends with the context it was made in, yet every context may use the memory. So it
 * is made in the primary context of a device, and holds one reference to it. Only a reset of that
 * primary context can take the registration away.
 *
 * enter retains the primary context of the current context's device and makes it current: pop it
 * after registering. The reference stays with the registration, until hostmem_primary_release.
 */
CUresult hostmem_primary_enter(CUdevice *device);
void hostmem_primary_release(CUdevice device);

/* --- ranges.c: under the lock --- */

/* The first range that shares a byte with [address, address + bytes), or NULL. */
struct hostmem_range *hostmem_range_meeting(const void *address, size_t bytes);
/* False: out of memory. */
bool hostmem_range_insert(struct hostmem_range *range);
void hostmem_range_remove(struct hostmem_range *range);

/* The region that `address` is in, or NULL. */
static inline struct hostmem_region *hostmem_region_of(const void *address)
{
    struct hostmem_range *range = hostmem_range_meeting(address, 1);

    return range != NULL && range->pooled && range->ready ? (struct hostmem_region *)range : NULL;
}

/* --- ranges.c: the pool, under the lock --- */

struct hostmem_pool {
    struct hostmem_region *regions; /* registered */
    unsigned adding, releasing;     /* regions; those being added are not ranges yet */
    size_t releases;                /* how many ended */
    /* `pooled_bytes` is counted when asked for; `registered_bytes`: also those just being
     * registered or released; `pins`: also those that are not ours. */
    struct cudriver_hostmem_stats stats;
};

extern struct hostmem_pool hostmem_pool;

#endif

/*
 * Page-locked host memory. Plain C: CUDA, no Python.
 *
 * The process maps the bytes itself; the driver only registers them, as portable, so that every
 * context can use them. A registration ends with the context it was made in. So each is made in a
 * primary context, that of the current context's device, and retains it: closing another context
 * takes no registration away.
 *
 * Two halves:
 *   the pool   blocks that we own: map, touch, register, hand out, take back, trim
 *   pins       ranges that somebody else owns
 *
 * Every function is thread-safe; none needs the GIL. A function that registers memory needs a
 * current context and blocks until it is registered: call it without the GIL. Neither taking a free
 * block from the pool nor returning one waits for a registration.
 */
#ifndef CUDRIVER_HOSTMEM_H
#define CUDRIVER_HOSTMEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/cuda_abi.h"

/* NUMA nodes are numbered from 0, as the system does; those from CUDRIVER_NODES on are not used. */
#define CUDRIVER_NODES 64
#define CUDRIVER_NODE_ANY (-1)    /* wherever the system puts memory */
#define CUDRIVER_NODE_POLICY (-2) /* as cudriver_hostmem_node() says */

#define CUDRIVER_NODE_DEVICES 64

/* Which memory and which processors are near. Zeroed but for its nodes, it says nothing. */
struct cudriver_nodes {
    signed char of_device[CUDRIVER_NODE_DEVICES];      /* by CUdevice: a node, or ANY */
    unsigned char processors[1 + CUDRIVER_NODES][128]; /* by 1 + node: a set, as for the system */
};

/* Until this is called, each device's node is ANY. */
void cudriver_hostmem_set_nodes(const struct cudriver_nodes *nodes);

/* What madvise() is told of new memory from 2 MiB on: MADV_HUGEPAGE, MADV_NOHUGEPAGE; 0: nothing.
 */
void cudriver_hostmem_set_huge(int advice);

/* The node of the current context's device; POLICY: none is current, and devices differ. Calls no
 * driver function if all devices have one node. Where they differ, ANY in a forked child. */
int cudriver_hostmem_node(void);

/* Lets the calling thread run on a node's processors, or on those of all if it is ANY. */
void cudriver_hostmem_go(int node);

struct cudriver_hostmem_stats {
    size_t used_bytes; /* handed out, as requested */
    size_t used_blocks;
    size_t pooled_bytes;     /* registered, not handed out */
    size_t registered_bytes; /* registered by the pool */
    size_t peak_bytes;       /* peak of registered_bytes */
    size_t limit_bytes;      /* SIZE_MAX: no limit */
    size_t pinned_bytes;     /* registered by pins */
    size_t pins;             /* live pins */
    unsigned long long hits; /* allocations that needed no registration */
    unsigned long long misses;
    size_t huge_given_up; /* bytes of new memory, where the system was slow to make huge pages */
};

/*
 * Hands out at least `bytes` (0 counts as 1) of page-locked memory that devices can use too. It is
 * aligned to 64 bytes; a power of two to its size, up to 4096; from 1 MiB on, to 4096. Sizes below
 * 1 MiB are rounded up to 64 bytes or by an eighth at most, others to whole pages, or by an eighth
 * at most to a block that was freed. At most `room` bytes of new memory are touched, and as many
 * more as free memory is returned for them: a system that overcommits would grant more, and kill
 * the process. Memory of one node serves no request for another. The contents are undefined unless
 * *zeroed is set (fresh from the system). Returns the driver's code; OUT_OF_MEMORY also for `room`,
 * for the pool's limit and if the system has no memory.
 */
CUresult cudriver_hostmem_alloc(size_t bytes, size_t room, int node, void **address, bool *zeroed);

/* Takes a block from free memory, or returns NULL. Never calls the driver. */
void *cudriver_hostmem_try_alloc(size_t bytes, int node);

/* Returns a live block to the pool. Calls no driver function. */
void cudriver_hostmem_free(void *address);

/* Whether `address` is the start of a live block; *bytes gets the size that was requested. Any
 * address may be passed: it is not dereferenced. */
bool cudriver_hostmem_owns(const void *address, size_t *bytes);

/* Frees the live block that begins at `address` and returns the size that was requested. 0: there
 * is none, nothing was done. One lookup for callers that may have any address. */
size_t cudriver_hostmem_free_if_owned(void *address);

/* For tests, which look after each: a live block behind which somebody has written since it was
 * handed out, or since this told so; NULL: there is none. */
#ifndef NDEBUG
__attribute__((visibility("default"))) void *cudriver_hostmem_damaged(size_t *bytes);
#endif

/* Returns free memory to the system until at most `keep` bytes of it are left. */
CUresult cudriver_hostmem_trim(size_t keep, size_t *released);

/* Upper limit of the bytes that the pool registers; SIZE_MAX for none. Free memory above a lowered
 * limit is returned at the next registration or trim. */
void cudriver_hostmem_set_limit(size_t bytes);

void cudriver_hostmem_get_stats(struct cudriver_hostmem_stats *stats);

/* What is registered so far, by the pool or pins, up to `most` ranges: address and bytes of each.
 * How many there are. */
size_t cudriver_hostmem_list(uint64_t *ranges, size_t most);

/* Bytes that a request maps and registers at least, if no free memory serves it. */
size_t cudriver_hostmem_least(size_t bytes);

/*
 * How many of the `bytes` at `address` lie in one registration; `bytes` if `address` is not
 * page-locked. The driver refuses a copy that crosses the end of a registration (INVALID_VALUE),
 * even if the next byte is registered too, so copies are cut at this length. For memory of the pool
 * and of pins no driver call is made; for other memory the driver is asked, without a context.
 */
size_t cudriver_hostmem_run(const void *address, size_t bytes);

/* The same for our own registrations, of the pool and of pins: 0 in none of them, of which only the
 * driver can tell. Calls no driver function. */
size_t cudriver_hostmem_registered(const void *address, size_t bytes);

/* Whether all of [low, high) is page-locked, by whomever, as the driver knows it. */
bool cudriver_hostmem_is_page_locked(const char *low, const char *high);

/* Whether memory is registered in the primary context of `device`. May be true for another device
 * while memory is being registered or released. */
bool cudriver_hostmem_uses_device(CUdevice device);

/* A user's page-lock on a range; opaque. */
struct cudriver_pin;

/* Result of a pin that another thread stopped. Not a driver code. */
#define CUDRIVER_PIN_STOPPED ((CUresult)0x7fff0002)

/* How to make a pin. All zero: at once. */
struct cudriver_pin_way {
    bool read_only;          /* the mapping may lack write permission */
    bool fresh;              /* new memory: several threads touch it */
    size_t step;             /* most bytes of one registration; 0: of any length */
    const atomic_bool *stop; /* NULL, or what cudriver_pin_stop sets */
};

struct cudriver_pin_range {
    uintptr_t begin;
    size_t bytes;
};

/*
 * Page-locks [address, address + bytes), at least a byte, in place. A pin of memory that another
 * pin holds as a whole shares its registration. One that shares a part with another, or contains
 * it, is HOST_MEMORY_ALREADY_REGISTERED, and *other tells the other's range (else 0 bytes). Memory
 * that is page-locked already (by our pool, cuMemHostAlloc, another library) is accepted as it is.
 * Waits while another thread page-locks a part of the memory. The caller keeps the memory alive
 * until cudriver_pin_destroy.
 */
CUresult cudriver_pin_create(void *address, size_t bytes, const struct cudriver_pin_way *way,
                             struct cudriver_pin **pin, struct cudriver_pin_range *other);

/* Ends a cudriver_pin_create of another thread soon, unless it is over. */
void cudriver_pin_stop(atomic_bool *stop);

/*
 * How many of the `bytes` at `address` lie in one of our registrations. If that is a pin's, *pin
 * shares it, until cudriver_pin_destroy: what a kernel uses must stay page-locked. NULL: the
 * pool's, as long as the block lives, or 0. *ours: some of the bytes lie in one, perhaps under way.
 * Calls no driver function.
 */
size_t cudriver_pin_share(const void *address, size_t bytes, struct cudriver_pin **pin, bool *ours);

/* Ends a pin, and unregisters its memory with the last pin that shares it. NULL is fine. Needs no
 * context. */
CUresult cudriver_pin_destroy(struct cudriver_pin *pin);

#endif

/* Device memory: from a pool of the driver's where it has one, from cuMemAlloc where not. */
#ifndef CUDRIVER_DEVICE_MEMORY_H
#define CUDRIVER_DEVICE_MEMORY_H

#include "context.h"
#include "stream.h"

struct cudriver_device_block {
    CUdeviceptr address; /* 0 for an empty block */
    size_t bytes;
    bool pooled;
    unsigned long long number; /* of its allocation on the context's stream for that; 0: none */
    bool shared; /* its address was handed out: it is freed as cuMemFree does, after all work */
    unsigned long long turn; /* of its allocation on its home stream */
    StreamObject
        *home; /* owned: the stream in whose order it was made and goes; NULL: none named */
};

/*
 * Memory of `bytes` in `context`, within begin and end. Without `stream` it may be used in any
 * stream once cudriver_device_settle has been called: the pool is kept from handing out memory that
 * waits for another stream. With it, in its order. On exhaustion: lets finished work go, trims the
 * pool, tries again. 0 or -1.
 */
int cudriver_device_alloc(CoreState *state, ContextObject *context, StreamObject *stream,
                          size_t bytes, struct cudriver_device_block *block);

/*
 * Before each use of a block of `context`, which is open: makes sure that its allocation is over.
 * An idle stream allocates at once, so that there is seldom anything to wait for, and one look does
 * for all allocations before it. May let other threads run.
 */
void cudriver_device_settle(ContextObject *context, const struct cudriver_device_block *block);

/* Before a use that no stream orders: waits until the block's home stream, if it has one, has come
 * to its allocation. May let other threads run. 0 or -1. */
int cudriver_device_reach(CoreState *state, ContextObject *context,
                          struct cudriver_device_block *block);

/* Gives it back; the block is empty then. Nothing of ours may be using it. Needs no current
 * context. */
CUresult cudriver_device_free(ContextObject *context, struct cudriver_device_block *block,
                              const char **function);

/* The pool that a device's memory comes from, made at first use; NULL where it has none. Borrowed:
 * the process keeps it. The GIL is held. */
CUmemoryPool cudriver_device_pool(int ordinal);

/* Gives the pools' free memory back to the driver. */
void cudriver_device_trim(void);

#endif

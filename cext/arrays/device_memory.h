/* Device memory: from one of the driver's memory pools, or from cuMemAlloc if it has none. */
#ifndef CUDRIVER_DEVICE_MEMORY_H
#define CUDRIVER_DEVICE_MEMORY_H

#include "contexts/context.h"
#include "contexts/stream.h"

struct cudriver_device_block {
    CUdeviceptr address; /* 0 for an empty block */
    bool pooled;
    unsigned long long number; /* its allocation's number on alloc_stream; 0: none */
    bool shared; /* its address was handed out: cuMemFree it, which waits for all work */
    unsigned long long turn; /* its allocation's number on the home stream */
    StreamObject *home;      /* owned: orders allocation and free; NULL: none named */
};

/*
 * Allocates `bytes` in `context`, between begin and end. With `stream`, in its order. Without it,
 * the memory may be used on any stream after cudriver_device_settle: the pool never hands out
 * memory that another stream still uses. If memory runs out: waits for our work in the context,
 * which releases what that kept alive, trims the pools and retries. 0 or -1.
 */
int cudriver_device_alloc(CoreState *state, ContextObject *context, StreamObject *stream,
                          size_t bytes, struct cudriver_device_block *block);

/* Call before each use of a block of `context`, which is open: waits until its allocation is
 * complete. An idle stream allocates at once, so a wait is rare, and one check covers all earlier
 * allocations. May release the GIL. */
void cudriver_device_settle(ContextObject *context, const struct cudriver_device_block *block);

/* Call before a use that no stream orders: waits until the block's home stream, if any, has reached
 * its allocation. May release the GIL. 0 or -1. */
int cudriver_device_reach(CoreState *state, ContextObject *context,
                          struct cudriver_device_block *block);

/* Lets `stream`, of `use`, wait until the block's home stream has reached its allocation. If either
 * is being captured, it must have. 0 or -1. */
int cudriver_device_follow(CoreState *state, ContextObject *context,
                           struct cudriver_device_block *block, ContextObject *use,
                           CUstream stream);

/* Frees the block and empties it. None of our work may be using it. Needs no current context. */
CUresult cudriver_device_free(ContextObject *context, struct cudriver_device_block *block,
                              const char **function);

/* The pool for a device's memory, created at first use; NULL if the driver has none. Borrowed: the
 * process keeps it. The GIL is held. */
CUmemoryPool cudriver_device_pool(int ordinal);

#endif

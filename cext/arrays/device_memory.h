/* Device memory: from one of the driver's memory pools, or from cuMemAlloc if it has none. */
#ifndef CUDRIVER_DEVICE_MEMORY_H
#define CUDRIVER_DEVICE_MEMORY_H

#include "contexts/context.h"

struct cudriver_device_block {
    CUdeviceptr address;       /* 0 for an empty block */
    unsigned long long number; /* its allocation's on alloc_stream; 0: it is from no pool */
    bool shared; /* its address was handed out: cuMemFree it, which waits for all work */
};

/*
 * Allocates `bytes` in `context`, between begin and end. After cudriver_device_settle any stream
 * may use the memory: the pool never hands out memory that another stream still uses. If memory
 * runs out: waits for our work in the context, which releases what that kept alive, trims the pools
 * and retries. 0 or -1.
 */
int cudriver_device_alloc(CoreState *state, ContextObject *context, size_t bytes,
                          struct cudriver_device_block *block);

/* Call before each use of a block of `context`, which is open: waits until its allocation is
 * complete. An idle stream allocates at once, so a wait is rare, and one check covers all earlier
 * allocations. May release the GIL. */
void cudriver_device_settle(ContextObject *context, const struct cudriver_device_block *block);

/* Frees the block and empties it. None of our work may be using it: work in flight keeps what it
 * uses. Needs no current context. */
CUresult cudriver_device_free(ContextObject *context, struct cudriver_device_block *block,
                              const char **function);

/* The pool for a device's memory, created at first use; NULL if the driver has none. Borrowed: the
 * process keeps it. The GIL is held. */
CUmemoryPool cudriver_device_pool(int ordinal);

#endif

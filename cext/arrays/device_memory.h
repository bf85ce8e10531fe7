/* Device memory: from one of the driver's memory pools, or from cuMemAlloc if it has none. */
#ifndef CUDRIVER_DEVICE_MEMORY_H
#define CUDRIVER_DEVICE_MEMORY_H

#include "contexts/context.h"
#include "python/endpoint.h"

/* The memory that a DeviceArray and its views share. */
struct cudriver_device_memory {
    struct cudriver_live live; /* listed if the memory is ours */
    ContextObject *context;    /* owned */
    CUdeviceptr address;       /* of memory that is ours; 0: none, or empty */
    unsigned long long number; /* its allocation's on alloc_stream; 0: it is from no pool */
    bool shared; /* its address was handed out: cuMemFree it, which waits for all work */
    bool closed;
    PyObject *lender;            /* owned: keeps another library's memory alive; NULL: ours */
    struct cudriver_users users; /* the last of its children frees it */
};

/*
 * Allocates `bytes` in the memory's context, between begin and end. After cudriver_device_settle
 * any stream may use the memory: the pool never hands out memory that another stream still uses. If
 * memory runs out: waits for our work in the context, which releases what that kept alive, trims
 * the pool and retries. 0 or -1.
 */
int cudriver_device_alloc(CoreState *state, struct cudriver_device_memory *memory, size_t bytes);

/* Call before a use, in an open context, if `number` is above the context's `settled`: waits until
 * the allocation is complete. An idle stream allocates at once, so a wait is rare, and one check
 * covers all earlier allocations. May release the GIL. */
void cudriver_device_settle(const struct cudriver_device_memory *memory);

/* Frees the memory. None of our work may be using it: work in flight keeps what it
 * uses. Needs no current context. */
CUresult cudriver_device_free(struct cudriver_device_memory *memory, const char **function);

/* New reference: the context of a device end's memory, which must reach as far as its strides do.
 * The driver is initialised. `protocol` is for messages. */
ContextObject *cudriver_foreign_context(CoreState *state, const struct cudriver_endpoint *end,
                                        const char *protocol);

#endif

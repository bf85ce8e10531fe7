/*
 * Keeps the handle of another library's context valid. Plain C: no Python.
 *
 * When the owner destroys a context, the driver frees the memory behind the handle, and a call that
 * uses the handle reads freed memory. But not while the context is current in some thread: then a
 * push succeeds, later calls return CONTEXT_IS_DESTROYED, and the handle is not reused. So a thread
 * of ours makes the context current, and sleeps.
 */
#ifndef CUDRIVER_KEEPER_H
#define CUDRIVER_KEEPER_H

#include "cuda_abi.h"

struct cudriver_keeper;

/* Starts a thread that makes `context` current, and returns when it is. The context must be current
 * in the calling thread too, so that it cannot go before. NULL: no thread or memory, or the driver
 * refused. Waits for the thread: call it without the GIL. */
struct cudriver_keeper *cudriver_keeper_start(CUcontext context);

/* Releases the context. `keeper` is not used afterwards: the thread frees it and ends, and nobody
 * waits for that. NULL is fine, and so is a forked child, which has no such thread. */
void cudriver_keeper_end(struct cudriver_keeper *keeper);

#endif

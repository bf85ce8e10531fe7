/*
 * Holds a context that another library made. Plain C: no Python here.
 *
 * When its owner destroys it, the driver frees what stands behind the handle, and to push that
 * handle or to ask about it reads freed memory. It does not while the context is current in some
 * thread: then a push works and the calls after it answer CONTEXT_IS_DESTROYED, and the handle is
 * not given to another context. So a thread of ours has it current, and waits.
 */
#ifndef CUDRIVER_KEEPER_H
#define CUDRIVER_KEEPER_H

#include "cuda_abi.h"

struct cudriver_keeper;

/* Starts a thread in which `context` is current, and returns when it is; it must be current in the
 * calling thread too, so that it is not gone meanwhile. NULL where that cannot be had. Waits for
 * the thread: not to be called with the GIL. */
struct cudriver_keeper *cudriver_keeper_start(CUcontext context);

/* Lets the context go; the thread ends by itself, it is not waited for. NULL is fine, and so is a
 * forked child, which has no such thread. */
void cudriver_keeper_end(struct cudriver_keeper *keeper);

#endif

/* What work_passes.c does for work.c and works.c. */
#ifndef CUDRIVER_WORK_PRIVATE_H
#define CUDRIVER_WORK_PRIVATE_H

#include "work.h"

/* cuEventQuery of the event of `work`, a TransferObject; NOT_READY too before it is recorded, and
 * if the driver does not tell while a stream is being captured: the device may still use the
 * memory. Needs no GIL. */
CUresult cudriver_work_query(void *work);

/* The work's state, as the driver tells it; NOT_READY in a forked child, where nothing ends. */
CUresult cudriver_work_ask(TransferObject *work);

/* Work leaves its queue, whose reference is the caller's then; `leave`: because it is over. Then
 * its event is kept for later work, or destroyed. */
void cudriver_work_unqueue(CoreState *state, TransferObject *work);
void cudriver_work_leave(CoreState *state, TransferObject *work, CUresult result);

/* Lets the owners go, and the queue's reference. After a failure the engine's threads may still use
 * host memory. May run any code. */
void cudriver_work_let_go(TransferObject *work);

/* If it is time for a pass, lets go what is over of a stream's work, and now and then of all
 * streams': by a call that issues more. May run any code. */
void cudriver_works_pass(CoreState *state, struct cudriver_queue *queue);

#endif

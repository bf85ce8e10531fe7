/* Waiting without the GIL: Ctrl-C ends it, and what the driver refuses becomes an exception. */
#ifndef CUDRIVER_WAIT_H
#define CUDRIVER_WAIT_H

#include "state.h"

/* The copy engine's `interrupted`, called without the GIL. `data`: the saved thread state. */
bool cudriver_signal_arrived(void *data);

/* Sleeps without the GIL. */
void cudriver_nap(long milliseconds);

/* Waits while query(handle) returns NOT_READY, as cudriver_staging_poll does. 0, or -1 with an
 * exception set: a signal handler's, or one that names `function`. */
int cudriver_wait(CUresult (*query)(void *handle), void *handle, const char *function);

#endif

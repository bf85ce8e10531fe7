/* The order of streams: one waits for another. */
#ifndef CUDRIVER_STREAM_ORDER_H
#define CUDRIVER_STREAM_ORDER_H

#include "state.h"

PyObject *cudriver_stream_record(PyObject *object, PyObject *args, PyObject *keywords);

PyObject *cudriver_stream_wait(PyObject *object, PyObject *other);

/* Lets work queued on `second` from here on wait for the work so far on `first`, a stream of the
 * current context. Neither is being captured. Without the GIL: the driver blocks where a stream's
 * queue is full. *function: what failed. */
CUresult cudriver_stream_follow(CUstream first, CUstream second, const char **function);

#endif

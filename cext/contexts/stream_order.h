/* Methods of Stream that put work of streams in an order. */
#ifndef CUDRIVER_STREAM_ORDER_H
#define CUDRIVER_STREAM_ORDER_H

#include "state.h"

extern const char cudriver_stream_record_doc[];
PyObject *cudriver_stream_record(PyObject *object, PyObject *args, PyObject *keywords);

extern const char cudriver_stream_wait_doc[];
PyObject *cudriver_stream_wait(PyObject *object, PyObject *other);

#endif

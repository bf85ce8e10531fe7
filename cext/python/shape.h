/* Shape and order arguments. */
#ifndef CUDRIVER_SHAPE_H
#define CUDRIVER_SHAPE_H

#include "state.h"

#include "engine/layout.h"

/* The size of an array of a shape in bytes, or -1 with ValueError if it overflows, or if a length
 * is negative. */
Py_ssize_t cudriver_shape_bytes(int ndim, const Py_ssize_t *shape, Py_ssize_t itemsize);

/* Reads an order argument: "C" (also NULL or None) or "F". 0 or -1. */
int cudriver_order_parse(PyObject *argument, bool *fortran);

#endif

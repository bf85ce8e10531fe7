/* Shapes and sizes as arguments. */
#ifndef CUDRIVER_SHAPE_H
#define CUDRIVER_SHAPE_H

#include "state.h"

#include "engine/layout.h"

/* Reads a shape argument into at most CUDRIVER_MAX_DIMS lengths. 0, or -1 with TypeError or
 * ValueError. */
int cudriver_shape_parse(PyObject *argument, int *ndim, Py_ssize_t *shape);

/* The bytes of an array of that shape, or -1 with ValueError where they do not fit. */
Py_ssize_t cudriver_shape_bytes(int ndim, const Py_ssize_t *shape, Py_ssize_t itemsize);

/* Reads an order argument (NULL or None: "C"): 'C' or 'F'. 0 or -1. */
int cudriver_order_parse(PyObject *argument, bool *fortran);

/* Reads a number, anything that has an index. `meaning` says what it must be, as in "keep is a
 * number of bytes"; TypeError for what is no integer, ValueError out of range. 0 or -1. */
int cudriver_size_parse(PyObject *argument, const char *meaning, size_t *value);

/* New reference: a tuple of `count` ints. */
PyObject *cudriver_shape_tuple(int count, const Py_ssize_t *values);

#endif

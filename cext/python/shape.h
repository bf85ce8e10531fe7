/* Shape, order and size arguments. */
#ifndef CUDRIVER_SHAPE_H
#define CUDRIVER_SHAPE_H

#include "state.h"

#include "engine/layout.h"

/* Reads a shape of at most CUDRIVER_MAX_DIMS dimensions. `least`: 0, or -1 where that stands for a
 * length that follows from the others. 0, or -1 with TypeError or ValueError. */
int cudriver_shape_parse(PyObject *argument, Py_ssize_t least, int *ndim, Py_ssize_t *shape);

/* Whether such an array has no items. */
bool cudriver_shape_is_empty(int ndim, const Py_ssize_t *shape);

/* The strides of an array without gaps, in C order or with `fortran` in column-major order. */
void cudriver_shape_strides(int ndim, const Py_ssize_t *shape, Py_ssize_t itemsize, bool fortran,
                            Py_ssize_t *strides);

/* Whether the items lie without gaps, in the order that `fortran` names. As in NumPy, strides of
 * axes of length 1, and of arrays without items, do not count. */
bool cudriver_shape_is_dense(int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides,
                             Py_ssize_t itemsize, bool fortran);

/* The size of such an array in bytes, or -1 with ValueError if it overflows. */
Py_ssize_t cudriver_shape_bytes(int ndim, const Py_ssize_t *shape, Py_ssize_t itemsize);

/* Reads an order argument: "C" (also NULL or None) or "F". 0 or -1. */
int cudriver_order_parse(PyObject *argument, bool *fortran);

/* Reads a size; anything with __index__. `meaning` says what it must be, such as "keep is a number
 * of bytes". 0, or -1 with TypeError (no integer) or ValueError (out of range). */
int cudriver_size_parse(PyObject *argument, const char *meaning, size_t *value);

/* New reference: a tuple of `count` ints. */
PyObject *cudriver_shape_tuple(int count, const Py_ssize_t *values);

#endif

/* The only access to NumPy: just numpy_bridge.c and pinned_numpy.c use its C API. NumPy is imported
 * at the first call that needs it, not with this extension. Every function needs the GIL. */
#ifndef CUDRIVER_NUMPY_BRIDGE_H
#define CUDRIVER_NUMPY_BRIDGE_H

#include "endpoint.h"

/* Imports NumPy's C API once. 0 or -1. */
int cudriver_numpy_require(void);

/* Whether `object` is an ndarray or a subclass. */
bool cudriver_numpy_is_array(PyObject *object);

/* Reads a dtype argument: *dtype is a new reference, *itemsize its size in bytes.
 * TypeError for types that hold Python objects. 0 or -1. */
int cudriver_numpy_dtype(PyObject *argument, PyObject **dtype, Py_ssize_t *itemsize);

/* Reads a shape of at most CUDRIVER_MAX_DIMS dimensions, as np.empty() does; lengths may be
 * negative. 0, or -1 with TypeError or ValueError. */
int cudriver_numpy_shape(PyObject *argument, int *ndim, Py_ssize_t *shape);

/* The size of an array of a shape in bytes, or -1 with ValueError if it overflows, or if a length
 * is negative. */
Py_ssize_t cudriver_numpy_bytes(int ndim, const Py_ssize_t *shape, Py_ssize_t itemsize);

/* New reference: a shape as a tuple. NumPy is imported. */
PyObject *cudriver_numpy_tuple(int count, const Py_ssize_t *values);

/* Whether two dtypes describe the same bytes. */
bool cudriver_numpy_same_dtype(PyObject *first, PyObject *second);

bool cudriver_numpy_has_fields(PyObject *dtype);

/* New reference: what keeps an ndarray's memory alive and mapped. That is the array; or, where its
 * chain of bases ends in an object that lends a buffer, the array and a memoryview of that object,
 * which cannot be closed or resized as long as the view lives. NULL with ValueError: it is closed.
 */
PyObject *cudriver_numpy_hold(PyObject *array);

/* Fills an endpoint from an ndarray, which `owner` keeps alive, or is: then its memory is held,
 * too. 0 or -1. */
int cudriver_numpy_endpoint(PyObject *array, PyObject *owner, struct cudriver_endpoint *end);

/* New reference: an array at `address` whose base is `owner` (borrowed; the array takes a new
 * reference; NULL: none). `strides` in bytes; NULL for C order, or with `fortran` for column-major.
 */
PyObject *cudriver_numpy_over(PyObject *owner, void *address, PyObject *dtype, int ndim,
                              const Py_ssize_t *shape, const Py_ssize_t *strides, bool fortran,
                              bool writable);

bool cudriver_numpy_is_writable(PyObject *array);

/* Whether the object is one of NumPy's integers, no array. NumPy is imported. */
bool cudriver_numpy_is_integer(PyObject *object);

/* The items of a dense int64 array of one dimension, and how many. NULL with TypeError: it is none.
 */
const int64_t *cudriver_numpy_int64(PyObject *object, Py_ssize_t *count);

#endif

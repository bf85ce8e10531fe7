/*
 * NumPy, behind one door: only numpy_bridge.c and the type in pinned_numpy.c use its C API, and
 * NumPy is imported at the first call that needs it, not with this extension. Every function needs
 * the GIL.
 */
#ifndef CUDRIVER_NUMPY_BRIDGE_H
#define CUDRIVER_NUMPY_BRIDGE_H

#include "endpoint.h"
#include "state.h"

/* Imports NumPy's C API once. 0 or -1. */
int cudriver_numpy_require(void);

/* Whether `object` is an ndarray (subclasses included); false where NumPy is not imported yet. */
bool cudriver_numpy_is_array(PyObject *object);

/* A dtype argument (NULL: float64): new reference in *dtype, its size in *itemsize. Types that hold
 * Python objects are refused with TypeError. 0 or -1. */
int cudriver_numpy_dtype(PyObject *argument, PyObject **dtype, Py_ssize_t *itemsize);

/* A dtype whose items are arrays becomes that of their items, and their dimensions those of the
 * shape, as in np.empty. `*dtype` is an owned reference and is replaced. 0, or -1 with ValueError.
 */
int cudriver_numpy_unfold(PyObject **dtype, Py_ssize_t *itemsize, int *ndim, Py_ssize_t *shape);

/* New reference: the dtype without metadata, its fields' included. NumPy's dtypes are unknown to
 * the garbage collector: what keeps one whose metadata leads back to it would never go. */
PyObject *cudriver_numpy_plain_dtype(PyObject *dtype);

/* Whether two dtypes describe the same bytes. */
bool cudriver_numpy_same_dtype(PyObject *first, PyObject *second);

/* Fills an endpoint from an ndarray; `write`: refuse read-only ones. 0 or -1. */
int cudriver_numpy_endpoint(PyObject *array, bool write, struct cudriver_endpoint *end);

/* New reference: an uninitialised array of ordinary memory. `fortran`: column-major. */
PyObject *cudriver_numpy_empty(PyObject *dtype, int ndim, const Py_ssize_t *shape, bool fortran);

/* New reference: an array over [address, ...) whose base is `owner` (borrowed; it gets a
 * reference). `strides` in bytes, or NULL: in C order, or with `fortran` in that. */
PyObject *cudriver_numpy_over(PyObject *owner, void *address, PyObject *dtype, int ndim,
                              const Py_ssize_t *shape, const Py_ssize_t *strides, bool fortran);

/* New reference: any object as an ndarray, as np.asarray does it. */
PyObject *cudriver_numpy_asarray(PyObject *object);

/* Copies as from a copy of the source, where the two overlap; source and destination are of one
 * shape and dtype. 0 or -1. */
int cudriver_numpy_copy(PyObject *dst, PyObject *src);

/* Fills an array with a value, cast and broadcast as np.full does it. 0 or -1. */
int cudriver_numpy_fill(PyObject *array, PyObject *value);

/* Writes the bytes of `value` to `pattern`, which has room for an item of `dtype` and is aligned
 * for any, as `array[...] = value` does with an array of one item. 0 or -1. */
int cudriver_numpy_pattern(PyObject *value, PyObject *dtype, char *pattern);

/* New reference: the dtype's array-interface string, as in '<f4'. */
PyObject *cudriver_numpy_typestr(PyObject *dtype);

/* New reference: the dtype's array-interface description; [('', typestr)] where it has none. */
PyObject *cudriver_numpy_descr(PyObject *dtype);

/* Whether it is one of NumPy's bools, which old versions take as numbers. */
bool cudriver_numpy_is_bool(PyObject *object);

/* Whether the array holds Python objects; then TypeError is set. */
bool cudriver_numpy_holds_objects(PyObject *array);

/* An array's first item. */
char *cudriver_numpy_data(PyObject *array);

/* The lowest byte of an array's memory and how many bytes it spans; whether it is writable. */
void cudriver_numpy_extent(PyObject *array, char **low, size_t *bytes, bool *writable);

#endif

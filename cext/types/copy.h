/* Copies between host and device arrays, and the choice of their path. */
#ifndef CUDRIVER_COPY_H
#define CUDRIVER_COPY_H

#include "context.h"
#include "python/endpoint.h"

/* Reads one side of a copy: a DeviceArray, an ndarray, or another library's array by its
 * __cuda_array_interface__. `name` is the argument's for messages. 0 or -1. */
int cudriver_endpoint_parse(CoreState *state, PyObject *object, bool write, const char *name,
                            struct cudriver_endpoint *end);

/* The same; 1 read, 0 it is none of these (no exception), -1 an exception. */
int cudriver_endpoint_try(CoreState *state, PyObject *object, bool write,
                          struct cudriver_endpoint *end);

/* Copies and waits. With a stream argument other than the default: in its order. 0 or -1. */
int cudriver_copy_blocking(CoreState *state, PyObject *dst, PyObject *src);

/* Copies what was read into `src`, and lets go of that: on a stream argument, or without one as
 * above. 0 or -1. */
int cudriver_copy_from(CoreState *state, PyObject *dst, struct cudriver_endpoint *src,
                       PyObject *stream);

/* Issues a copy on a stream argument. New reference: a Transfer. */
PyObject *cudriver_copy_async(CoreState *state, PyObject *dst, PyObject *src, PyObject *stream);

int cudriver_copy_setup(PyObject *module);

#endif

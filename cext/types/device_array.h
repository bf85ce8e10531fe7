/* DeviceArray: an n-dimensional array in a device's memory. */
#ifndef CUDRIVER_DEVICE_ARRAY_H
#define CUDRIVER_DEVICE_ARRAY_H

#include "copy.h"
#include "device_memory.h"

typedef struct DeviceArrayObject {
    PyObject_HEAD
    struct cudriver_live live;      /* listed where this array owns memory */
    ContextObject *context;         /* owned */
    struct DeviceArrayObject *root; /* owned: whose memory a view shows; NULL where it is its own */
    struct cudriver_device_block block; /* a root's memory */
    CUdeviceptr address;                /* the first item */
    PyObject *dtype;                    /* owned: a numpy.dtype */
    Py_ssize_t itemsize;
    Py_ssize_t busy;  /* a root's: calls that use the memory without the GIL */
    Py_ssize_t views; /* a root's: live views */
    bool closed;      /* a root's */
    int ndim;
    Py_ssize_t *shape;   /* `ndim` lengths, then `ndim` strides in bytes */
    Py_ssize_t *strides; /* within `shape`'s block */
    Py_ssize_t inlined[8];
    PyObject *weak;
} DeviceArrayObject;

/* New reference: an uninitialised C-ordered array. `stream` may be NULL. */
PyObject *cudriver_device_array_new(CoreState *state, ContextObject *context, StreamObject *stream,
                                    PyObject *dtype, Py_ssize_t itemsize, int ndim,
                                    const Py_ssize_t *shape);

/* Whose memory it shows. */
static inline DeviceArrayObject *cudriver_device_array_root(DeviceArrayObject *self)
{
    return self->root != NULL ? self->root : self;
}

/* Whether the memory may be used; else ValueError or InvalidContextError. 0 or -1. */
int cudriver_device_array_check(CoreState *state, DeviceArrayObject *self);

/* Fills an endpoint. 0, or -1 with ValueError where it is closed, InvalidContextError where it is
 * gone. */
int cudriver_device_array_endpoint(CoreState *state, PyObject *object,
                                   struct cudriver_endpoint *end);

/*
 * Waits for what is in flight on the memory whose count of running calls is at `busy` (an
 * endpoint's, or NULL: nothing to wait for), on whichever stream. Calls that name no stream begin
 * with this, so that they see what calls with one have begun. 0, or -1 with an exception set.
 */
int cudriver_device_array_await(CoreState *state, const Py_ssize_t *busy);

/* For the type: gives the memory back, at the end or by close(). */
void cudriver_device_array_dealloc(PyObject *object);
PyObject *cudriver_device_array_close(PyObject *object, PyObject *ignored);

/* device_array_methods.c: the type. */
int cudriver_device_array_setup(PyObject *module);

/* device_make.c: the module's functions. */
int cudriver_device_make_setup(PyObject *module);

/* device_fill.c: every item becomes `value` (NULL: zero bytes), cast to the array's dtype. `stream`
 * as in cudriver_stream_parse; without one it is done on return. 0 or -1. */
int cudriver_device_array_fill(CoreState *state, DeviceArrayObject *self, PyObject *value,
                               PyObject *stream);

/* New reference: a view of `root` with the given geometry. */
PyObject *cudriver_device_view_new(CoreState *state, DeviceArrayObject *of, CUdeviceptr address,
                                   int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides);

#endif

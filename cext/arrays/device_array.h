/* DeviceArray: an n-dimensional array in a device's memory. */
#ifndef CUDRIVER_DEVICE_ARRAY_H
#define CUDRIVER_DEVICE_ARRAY_H

#include "copy.h"
#include "device_memory.h"

typedef struct DeviceArrayObject {
    PyObject_HEAD
    struct cudriver_live live;          /* listed if this array owns memory */
    ContextObject *context;             /* owned */
    struct DeviceArrayObject *root;     /* owned: the root of a view; NULL for a root */
    struct cudriver_device_block block; /* of a root: its memory */
    PyObject *lender;    /* owned: keeps a root's memory alive if it is another library's */
    CUdeviceptr address; /* of the first item */
    PyObject *dtype;     /* owned: a numpy.dtype */
    Py_ssize_t itemsize;
    Py_ssize_t busy;    /* of a root: calls that use the memory, perhaps without the GIL */
    Py_ssize_t views;   /* of a root: live views */
    Py_ssize_t exports; /* of a root: DLPack tensors that other libraries hold */
    bool closed;        /* of a root */
    bool read_only;
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

/* New reference: an array over another library's memory, as `end` says; `lender` (borrowed; the
 * array takes a new reference) keeps that alive. */
PyObject *cudriver_device_array_over(CoreState *state, const struct cudriver_endpoint *end,
                                     PyObject *lender, bool read_only);

/* The array that owns the memory. Borrowed. */
static inline DeviceArrayObject *cudriver_device_array_root(DeviceArrayObject *self)
{
    return self->root != NULL ? self->root : self;
}

/* 0 if the memory may be used; else -1 with ValueError or InvalidContextError. */
int cudriver_device_array_check(CoreState *state, DeviceArrayObject *self);

/* Fills an endpoint. 0, or -1 with ValueError (closed) or InvalidContextError (context gone). */
int cudriver_device_array_endpoint(CoreState *state, PyObject *object,
                                   struct cudriver_endpoint *end);

/* Whether the object that a batch owns is the array `root`, or a view of it. */
bool cudriver_device_array_uses(CoreState *state, PyObject *owner, const void *root);

/* Waits for all work in flight on an array's memory, on every stream. `busy` is the endpoint's;
 * NULL means that there is nothing to wait for. A call without a stream starts with this, so that
 * it follows what calls with a stream started. 0, or -1 with an exception set. */
int cudriver_device_array_await(CoreState *state, const Py_ssize_t *busy);

/* The geometry of a view. */
struct cudriver_device_view {
    CUdeviceptr address;
    int ndim;
    Py_ssize_t shape[CUDRIVER_MAX_DIMS];
    Py_ssize_t strides[CUDRIVER_MAX_DIMS];
};

/* New reference: a view of `of` (or, if that is a view, of its root), with its dtype. */
PyObject *cudriver_device_array_view(CoreState *state, DeviceArrayObject *of,
                                     const struct cudriver_device_view *view);

/* array[key]: a view, by basic indexing. New reference. */
PyObject *cudriver_device_array_subscript(PyObject *object, PyObject *key);

/* array[key] = value, in device_assign.c. 0 or -1. */
int cudriver_device_array_assign(PyObject *object, PyObject *key, PyObject *value);

/* tp_dealloc and close(): both free the memory that the array owns. */
void cudriver_device_array_dealloc(PyObject *object);
PyObject *cudriver_device_array_close(PyObject *object, PyObject *ignored);

/* device_array_methods.c: the type. */
int cudriver_device_array_setup(PyObject *module);

/* device_array_views.c, device_array_reshape.c: T, transpose(), reshape(), view() and flags. */
PyObject *cudriver_device_array_reversed(PyObject *object, void *closure);
PyObject *cudriver_device_array_transpose(PyObject *object, PyObject *args);
PyObject *cudriver_device_array_reshape(PyObject *object, PyObject *args, PyObject *keywords);
PyObject *cudriver_device_array_view_as(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                        PyObject *keywords);
PyObject *cudriver_device_array_flags(PyObject *object, void *closure);
int cudriver_device_array_views_setup(PyObject *module);

/* device_make.c: the module's functions; a new array on the same device, in C order. `stream` as
 * in cudriver_stream_parse; if there is none, waits. New reference. */
int cudriver_device_make_setup(PyObject *module);
PyObject *cudriver_device_array_copy(CoreState *state, DeviceArrayObject *self, PyObject *stream);

/* device_assign.c: sets every item to `value` (NULL: zero bytes), cast to the array's dtype.
 * `stream` as in cudriver_stream_parse; if there is none, waits. 0 or -1. */
int cudriver_device_array_fill(CoreState *state, DeviceArrayObject *self, PyObject *value,
                               PyObject *stream);

#endif

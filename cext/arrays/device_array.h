/* DeviceArray: an n-dimensional array in a device's memory. */
#ifndef CUDRIVER_DEVICE_ARRAY_H
#define CUDRIVER_DEVICE_ARRAY_H

#include "copy.h"
#include "device_memory.h"

/* `array` is an ndarray whose data pointer is the device's address: NumPy does the geometry. Its
 * items must never be read, so no Python code must see it, nor a debugger that prints it. */
typedef struct {
    PyObject_HEAD
    struct cudriver_device_memory *memory; /* is a child of it */
    PyObject *array;                       /* owned */
    bool is_view;                          /* of another DeviceArray */
    PyObject *weak;
} DeviceArrayObject;

/* New reference: an uninitialised array, C-ordered or column-major. */
PyObject *cudriver_device_array_new(CoreState *state, ContextObject *context, PyObject *dtype,
                                    Py_ssize_t itemsize, int ndim, const Py_ssize_t *shape,
                                    bool fortran);

/* New reference: an array over another library's memory, as `end` says; `lender` (borrowed; the
 * array takes a new reference) keeps that alive. */
PyObject *cudriver_device_array_over(CoreState *state, const struct cudriver_endpoint *end,
                                     PyObject *lender, bool read_only);

/* New reference: a view of `of` with the geometry of `array`, a view of its ndarray, which this
 * takes over. NULL if `array` is NULL. */
PyObject *cudriver_device_array_view(DeviceArrayObject *of, PyObject *array);

/* 0 if the memory may be used; else -1 with ValueError or InvalidContextError. */
int cudriver_device_array_check(DeviceArrayObject *self);

/* Fills an endpoint. 0, or -1 with ValueError (closed) or InvalidContextError (context gone). */
int cudriver_device_array_endpoint(PyObject *object, struct cudriver_endpoint *end);

/* Whether the object that work in flight owns is an array in `memory`. */
bool cudriver_device_array_uses(CoreState *state, PyObject *owner, const void *memory);

/* Waits for all work in flight on an array's memory, on every stream. `users` are the endpoint's;
 * NULL means that there is nothing to wait for. A call without a stream starts with this, so that
 * it follows what calls with a stream started. 0, or -1 with an exception set. */
int cudriver_device_array_await(CoreState *state, const struct cudriver_users *users);

/* array[key]: a view, by basic indexing. New reference. */
PyObject *cudriver_device_array_subscript(PyObject *object, PyObject *key);

/* tp_dealloc and close(): both free the memory that the array owns. */
void cudriver_device_array_dealloc(PyObject *object);
PyObject *cudriver_device_array_close(PyObject *object, PyObject *ignored);

/* device_array_methods.c: the type. */
extern PyType_Spec cudriver_device_array_spec;

/* device_make.c: functions of the module. */
extern PyMethodDef cudriver_device_make_functions[];

#endif

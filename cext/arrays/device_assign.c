/* DeviceArray: fill(), and array[key] = value. A fill is a copy of one item. See device_array.h. */
#include "device_array.h"
#include "dlpack.h"

#include <string.h>

#include "python/numpy_bridge.h"
#include "python/shape.h"

/* Sets ValueError: the source does not fit the region. -1. */
static int broadcast_refuse(const struct cudriver_endpoint *src, const DeviceArrayObject *region)
{
    PyObject *from = cudriver_shape_tuple(src->ndim, src->shape);
    PyObject *to = cudriver_shape_tuple(region->ndim, region->shape);

    if (from != NULL && to != NULL) {
        PyErr_Format(PyExc_ValueError,
                     "an array of shape %R cannot be broadcast into shape %R (nothing was copied)",
                     from, to);
    }
    Py_XDECREF(from);
    Py_XDECREF(to);
    return -1;
}

/* Gives the source the region's shape, by NumPy's rules for assignment: axes of length 1 are
 * repeated, missing ones too, and leading ones of length 1 may be too many. 0 or -1. */
static int broadcast(struct cudriver_endpoint *src, const DeviceArrayObject *region)
{
    int extra = src->ndim - region->ndim;
    Py_ssize_t strides[CUDRIVER_MAX_DIMS];

    for (int i = 0; i < extra; i++) {
        if (src->shape[i] != 1) {
            return broadcast_refuse(src, region);
        }
    }
    for (int i = 0; i < region->ndim; i++) {
        int from = i + extra;
        if (from >= 0 && src->shape[from] != 1 && src->shape[from] != region->shape[i]) {
            return broadcast_refuse(src, region);
        }
        strides[i] = from < 0 || src->shape[from] != region->shape[i] ? 0 : src->strides[from];
    }
    src->ndim = region->ndim;
    memcpy(src->shape, region->shape, (size_t)region->ndim * sizeof *region->shape);
    memcpy(src->strides, strides, (size_t)region->ndim * sizeof *strides);
    return 0;
}

int cudriver_device_array_fill(CoreState *state, DeviceArrayObject *self, PyObject *value,
                               PyObject *stream)
{
    static const Py_ssize_t one = 1;
    struct cudriver_endpoint src;
    PyObject *item;
    char *data;

    if (cudriver_device_array_check(state, self) < 0) {
        return -1;
    }
    if (self->read_only) {
        PyErr_Format(PyExc_ValueError, "%R is read-only", self);
        return -1;
    }
    item = cudriver_numpy_empty(self->dtype, 1, &one, false);
    if (item == NULL) {
        return -1;
    }
    data = cudriver_numpy_data(item);
    memset(data, 0, (size_t)self->itemsize);
    if ((value != NULL && cudriver_numpy_pattern(value, self->dtype, data) < 0) ||
        cudriver_numpy_endpoint(item, false, &src) < 0) {
        Py_DECREF(item);
        return -1;
    }
    Py_DECREF(item);                           /* the endpoint keeps it alive */
    if (stream == NULL || stream == Py_None) { /* unlike a copy, a fill does not wait for it */
        stream = (PyObject *)cudriver_dlpack_stream(state, self->context->ordinal);
    }
    broadcast(&src, self);
    src.fixed = true;
    return cudriver_copy_from(state, (PyObject *)self, &src, stream);
}

/* Reads what is no array, such as a list, as one of the region's dtype. 1 read; 0 it is one item,
 * which *item then is (a new reference); -1 an exception. */
static int sequence_read(const DeviceArrayObject *region, PyObject *value, PyObject **item,
                         struct cudriver_endpoint *src)
{
    PyObject *array = cudriver_numpy_cast(value, region->dtype);
    int found = array == NULL ? -1 : cudriver_numpy_endpoint(array, false, src);

    if (found == 0 && src->ndim > 0) {
        found = 1; /* the endpoint keeps the array alive */
    } else if (found == 0) {
        cudriver_endpoint_done(src);
        *item = Py_NewRef(array);
    }
    Py_XDECREF(array);
    return found;
}

static int region_assign(CoreState *state, DeviceArrayObject *region, PyObject *value)
{
    struct cudriver_endpoint src;
    PyObject *item = NULL;
    int found;

    if (cudriver_numpy_is_scalar(value)) {
        return cudriver_device_array_fill(state, region, value, NULL);
    }
    found = cudriver_endpoint_try(state, value, false, NULL, &src);
    if (found == 0) {
        found = sequence_read(region, value, &item, &src);
    } else if (found > 0 && src.ndim == 0 && cudriver_numpy_is_array(value)) {
        cudriver_endpoint_done(&src);
        item = Py_NewRef(value);
        found = 0;
    }
    if (found < 0) {
        return -1;
    }
    if (found == 0) {
        found = cudriver_device_array_fill(state, region, item, NULL);
        Py_DECREF(item);
        return found;
    }
    if (broadcast(&src, region) < 0) {
        cudriver_endpoint_done(&src);
        return -1;
    }
    return cudriver_copy_from(state, (PyObject *)region, &src, NULL);
}

int cudriver_device_array_assign(PyObject *object, PyObject *key, PyObject *value)
{
    PyObject *region;
    int failed;

    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "the items of a DeviceArray cannot be deleted");
        return -1;
    }
    region = cudriver_device_array_subscript(object, key);
    if (region == NULL) {
        return -1;
    }
    failed = region_assign(cudriver_state_of(object), (DeviceArrayObject *)region, value);
    Py_DECREF(region);
    return failed;
}

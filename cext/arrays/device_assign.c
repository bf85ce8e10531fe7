/* DeviceArray: fill(), and array[key] = value. A fill is a copy of one item. See device_array.h. */
#include "device_array.h"
#include "dlpack.h"

#include <string.h>

#include "python/numpy_bridge.h"
#include "python/shape.h"

/* Sets ValueError: the source does not fit the region. -1. */
static int broadcast_refuse(const struct cudriver_endpoint *src,
                            const struct cudriver_endpoint *region)
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
static int broadcast(struct cudriver_endpoint *src, const struct cudriver_endpoint *region)
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
    memcpy(src->shape, region->shape, (size_t)region->ndim * sizeof region->shape[0]);
    memcpy(src->strides, strides, (size_t)region->ndim * sizeof *strides);
    return 0;
}

/* New reference: an array of one item of a dtype: `value`, or NULL for zero bytes. */
static PyObject *item_make(PyObject *value, const struct cudriver_endpoint *like)
{
    static const Py_ssize_t one = 1;
    PyObject *item = cudriver_numpy_empty(like->dtype, 1, &one, false);

    if (item != NULL) {
        char *data = cudriver_numpy_data(item);
        memset(data, 0, like->itemsize);
        if (value != NULL && cudriver_numpy_pattern(value, like->dtype, data) < 0) {
            Py_CLEAR(item);
        }
    }
    return item;
}

/* Fills a region, and releases it. As cudriver_device_array_fill. */
static int region_fill(CoreState *state, struct cudriver_endpoint *region, PyObject *value,
                       PyObject *stream)
{
    PyObject *item = item_make(value, region);
    struct cudriver_endpoint src;

    if (item == NULL || cudriver_numpy_endpoint(item, false, &src) < 0) {
        Py_XDECREF(item);
        cudriver_endpoint_done(region);
        return -1;
    }
    Py_DECREF(item);                           /* the endpoint keeps it alive */
    if (stream == NULL || stream == Py_None) { /* unlike a copy, a fill does not wait for it */
        stream = (PyObject *)cudriver_dlpack_stream(state, region->context->ordinal);
    }
    broadcast(&src, region);
    src.fixed = true;
    return cudriver_copy_ends(state, region, &src, stream);
}

int cudriver_device_array_fill(CoreState *state, DeviceArrayObject *self, PyObject *value,
                               PyObject *stream)
{
    struct cudriver_endpoint region;

    return cudriver_device_array_endpoint((PyObject *)self, true, &region) < 0
               ? -1
               : region_fill(state, &region, value, stream);
}

/* Reads what is not an array, such as a list, as one of the region's dtype. 1 read; 0 it is one
 * item, which *item then is (a new reference); -1 an exception. */
static int sequence_read(const struct cudriver_endpoint *region, PyObject *value, PyObject **item,
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

/* Assigns to a region, and releases it. 0 or -1. */
static int region_assign(CoreState *state, struct cudriver_endpoint *region, PyObject *value)
{
    struct cudriver_endpoint src;
    PyObject *item = NULL;
    int found;

    if (cudriver_numpy_is_scalar(value)) {
        return region_fill(state, region, value, NULL);
    }
    found = cudriver_endpoint_try(state, value, false, NULL, &src);
    if (found == 0) {
        found = sequence_read(region, value, &item, &src);
    } else if (found > 0 && src.ndim == 0 && cudriver_numpy_is_array(value)) {
        cudriver_endpoint_done(&src);
        item = Py_NewRef(value);
        found = 0;
    }
    if (found == 0) {
        found = region_fill(state, region, item, NULL);
        Py_DECREF(item);
        return found;
    }
    if (found > 0 && broadcast(&src, region) == 0) {
        return cudriver_copy_ends(state, region, &src, NULL);
    }
    if (found > 0) {
        cudriver_endpoint_done(&src);
    }
    cudriver_endpoint_done(region);
    return -1;
}

int cudriver_device_array_assign(PyObject *object, PyObject *key, PyObject *value)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of(object);
    struct cudriver_endpoint region;
    PyObject *view;
    int failed;

    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "the items of a DeviceArray cannot be deleted");
        return -1;
    }
    view = cudriver_device_array_subscript(object, key);
    if (view == NULL) {
        return -1;
    }
    failed = cudriver_device_array_endpoint(view, true, &region);
    Py_DECREF(view); /* the endpoint keeps it alive */
    return failed < 0 ? -1 : region_assign(state, &region, value);
}

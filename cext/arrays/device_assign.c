/* DeviceArray: fill(), and array[key] = value. A fill is a copy of one item. See device_array.h. */
#include "device_array.h"
#include "dlpack.h"

#include <string.h>

#include "python/numpy_bridge.h"

/* Gives the source the target's shape, by NumPy's rules for assignment: axes of length 1 are
 * repeated, missing ones too, and leading ones of length 1 may be too many. 0 or -1. */
static int broadcast(struct cudriver_endpoint *src, const struct cudriver_endpoint *target)
{
    static const char misfit[] =
        "an array of shape %R cannot be broadcast into shape %R (nothing was copied)";
    int extra = src->ndim - target->ndim;
    Py_ssize_t strides[CUDRIVER_MAX_DIMS];

    for (int i = 0; i < extra; i++) {
        if (src->shape[i] != 1) {
            return cudriver_endpoints_refuse(misfit, src, target);
        }
    }
    for (int i = 0; i < target->ndim; i++) {
        int from = i + extra;
        if (from >= 0 && src->shape[from] != 1 && src->shape[from] != target->shape[i]) {
            return cudriver_endpoints_refuse(misfit, src, target);
        }
        strides[i] = from < 0 || src->shape[from] != target->shape[i] ? 0 : src->strides[from];
    }
    src->ndim = target->ndim;
    memcpy(src->shape, target->shape, (size_t)target->ndim * sizeof target->shape[0]);
    memcpy(src->strides, strides, (size_t)target->ndim * sizeof *strides);
    return 0;
}

/* Fills a target, and releases it. As cudriver_device_array_fill. */
static int target_fill(CoreState *state, struct cudriver_endpoint *target, PyObject *value,
                       PyObject *stream)
{
    PyObject *item = cudriver_numpy_item(target->dtype, value);
    struct cudriver_endpoint src;

    if (item == NULL || cudriver_numpy_endpoint(item, item, false, &src) < 0) {
        Py_XDECREF(item);
        cudriver_endpoint_done(target);
        return -1;
    }
    Py_DECREF(item);                           /* the endpoint keeps it alive */
    if (stream == NULL || stream == Py_None) { /* unlike a copy, a fill does not wait for it */
        stream = (PyObject *)cudriver_dlpack_stream(state, target->context->ordinal);
    }
    broadcast(&src, target);
    src.fixed = true;
    return cudriver_copy_ends(state, target, &src, stream);
}

int cudriver_device_array_fill(CoreState *state, DeviceArrayObject *self, PyObject *value,
                               PyObject *stream)
{
    struct cudriver_endpoint target;

    return cudriver_device_array_endpoint((PyObject *)self, true, &target) < 0
               ? -1
               : target_fill(state, &target, value, stream);
}

/* Reads what is not an array, such as a list, as one of the target's dtype. 1 read; 0 it is one
 * item, which *item then is (a new reference); -1 an exception. */
static int sequence_read(const struct cudriver_endpoint *target, PyObject *value, PyObject **item,
                         struct cudriver_endpoint *src)
{
    PyObject *array = cudriver_numpy_cast(value, target->dtype);
    int found = array == NULL ? -1 : cudriver_numpy_endpoint(array, array, false, src);

    if (found == 0 && src->ndim > 0) {
        found = 1; /* the endpoint keeps the array alive */
    } else if (found == 0) {
        cudriver_endpoint_done(src);
        *item = Py_NewRef(array);
    }
    Py_XDECREF(array);
    return found;
}

/* Assigns to a target, and releases it. 0 or -1. */
static int target_assign(CoreState *state, struct cudriver_endpoint *target, PyObject *value)
{
    struct cudriver_endpoint src;
    PyObject *item = NULL;
    int found;

    if (cudriver_numpy_is_scalar(value)) {
        return target_fill(state, target, value, NULL);
    }
    found = cudriver_endpoint_try(state, value, false, NULL, &src);
    if (found == 0) {
        found = sequence_read(target, value, &item, &src);
    } else if (found > 0 && src.ndim == 0 && cudriver_numpy_is_array(value)) {
        cudriver_endpoint_done(&src);
        item = Py_NewRef(value);
        found = 0;
    }
    if (found == 0) {
        found = target_fill(state, target, item, NULL);
        Py_DECREF(item);
        return found;
    }
    if (found > 0 && broadcast(&src, target) == 0) {
        return cudriver_copy_ends(state, target, &src, NULL);
    }
    if (found > 0) {
        cudriver_endpoint_done(&src);
    }
    cudriver_endpoint_done(target);
    return -1;
}

int cudriver_device_array_assign(PyObject *object, PyObject *key, PyObject *value)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of(object);
    struct cudriver_endpoint target;
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
    failed = cudriver_device_array_endpoint(view, true, &target);
    Py_DECREF(view); /* the endpoint keeps it alive */
    return failed < 0 ? -1 : target_assign(state, &target, value);
}

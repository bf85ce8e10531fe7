/* DeviceArray: other orders of axes and other dtypes of the same memory. See device_array.h. */
#include "device_array.h"

#include <string.h>

#include "python/arguments.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"
#include "python/types.h"
#include "docstrings.h"

static DeviceArrayObject *array_of(PyObject *object)
{
    return (DeviceArrayObject *)object;
}

/* ---- transpose ---- */

/* New reference: the view whose axis i is the array's axis axes[i]. */
static PyObject *permuted(DeviceArrayObject *self, const int *axes)
{
    struct cudriver_device_view view = {.address = self->address, .ndim = self->ndim};

    for (int i = 0; i < self->ndim; i++) {
        view.shape[i] = self->shape[axes[i]];
        view.strides[i] = self->strides[axes[i]];
    }
    return cudriver_device_array_view(cudriver_state_of((PyObject *)self), self, &view);
}

PyObject *cudriver_device_array_reversed(PyObject *object, void *Py_UNUSED(closure))
{
    int axes[CUDRIVER_MAX_DIMS];

    for (int i = 0, last = array_of(object)->ndim - 1; i <= last; i++) {
        axes[i] = last - i;
    }
    return permuted(array_of(object), axes);
}

/* Reads one axis, which may be negative. 0 or -1. */
static int axis_read(PyObject *item, int ndim, int *axis)
{
    Py_ssize_t value = PyNumber_AsSsize_t(item, PyExc_ValueError);

    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (value < -ndim || value >= ndim) {
        PyErr_Format(PyExc_ValueError, "axis %zd is out of bounds for an array of %d dimension%s",
                     value, ndim, ndim == 1 ? "" : "s");
        return -1;
    }
    *axis = (int)(value < 0 ? value + ndim : value);
    return 0;
}

/* Reads every axis once. 0 or -1. */
static int axes_read(PyObject *items, int ndim, int *axes)
{
    bool seen[CUDRIVER_MAX_DIMS] = {false};

    if (PyTuple_GET_SIZE(items) != ndim) {
        PyErr_Format(PyExc_ValueError, "transpose() takes each of %d axes once, not %R", ndim,
                     items);
        return -1;
    }
    for (int i = 0; i < ndim; i++) {
        if (axis_read(PyTuple_GET_ITEM(items, i), ndim, &axes[i]) < 0) {
            return -1;
        }
        if (seen[axes[i]]) {
            PyErr_Format(PyExc_ValueError, "transpose() takes each axis once: %R has axis %d twice",
                         items, axes[i]);
            return -1;
        }
        seen[axes[i]] = true;
    }
    return 0;
}

PyObject *cudriver_device_array_transpose(PyObject *object, PyObject *args)
{
    PyObject *first = PyTuple_GET_SIZE(args) == 1 ? PyTuple_GET_ITEM(args, 0) : NULL, *items;
    int axes[CUDRIVER_MAX_DIMS], failed;

    if (PyTuple_GET_SIZE(args) == 0 || first == Py_None) {
        return cudriver_device_array_reversed(object, NULL);
    }
    items = first != NULL && PySequence_Check(first) ? PySequence_Tuple(first) : Py_NewRef(args);
    if (items == NULL) {
        return NULL;
    }
    failed = axes_read(items, array_of(object)->ndim, axes);
    Py_DECREF(items);
    return failed < 0 ? NULL : permuted(array_of(object), axes);
}

/* ---- view(dtype) ---- */

/* Makes the last axis hold items of `itemsize` bytes, as NumPy does. 0, or -1 with ValueError. */
static int items_change(DeviceArrayObject *self, PyObject *dtype, Py_ssize_t itemsize,
                        struct cudriver_device_view *view)
{
    int last = self->ndim - 1;
    Py_ssize_t bytes;

    if (itemsize == self->itemsize) {
        return 0;
    }
    if (last < 0) {
        PyErr_Format(PyExc_ValueError,
                     "view(%S): an array without dimensions keeps its items of %zd bytes", dtype,
                     self->itemsize);
        return -1;
    }
    if (itemsize == 0 || self->itemsize == 0) {
        PyErr_Format(PyExc_ValueError, "view(%S): items of %zd bytes cannot become items of %zd",
                     dtype, self->itemsize, itemsize);
        return -1;
    }
    if (self->strides[last] != self->itemsize && self->shape[last] != 1 &&
        !cudriver_shape_is_empty(self->ndim, self->shape)) {
        PyErr_Format(PyExc_ValueError,
                     "view(%S): the last axis is not contiguous (its stride is %zd bytes, its "
                     "items have %zd); call copy() first",
                     dtype, self->strides[last], self->itemsize);
        return -1;
    }
    if (__builtin_mul_overflow(self->shape[last], self->itemsize, &bytes) ||
        (itemsize < self->itemsize ? self->itemsize : bytes) % itemsize != 0) {
        PyErr_Format(PyExc_ValueError,
                     "view(%S): %zd item%s of %zd bytes cannot be divided into items of %zd", dtype,
                     view->shape[last], view->shape[last] == 1 ? "" : "s", self->itemsize,
                     itemsize);
        return -1;
    }
    view->shape[last] = bytes / itemsize;
    view->strides[last] = itemsize;
    return 0;
}

/* Sets what a dtype makes of the array; *dtype, an owned reference, becomes that of an item. 0 or
 * -1. */
static int view_retype(DeviceArrayObject *self, PyObject **dtype, Py_ssize_t *itemsize,
                       struct cudriver_device_view *view)
{
    Py_ssize_t whole = *itemsize, stride;

    if (cudriver_numpy_unfold(dtype, itemsize, &view->ndim, view->shape) < 0) {
        return -1;
    }
    if (view->ndim == self->ndim) {
        return items_change(self, *dtype, *itemsize, view);
    }
    if (whole != self->itemsize) {
        PyErr_Format(PyExc_ValueError,
                     "view(): a dtype with a shape of its own needs items of the same size: it has "
                     "%zd bytes, the array's have %zd",
                     whole, self->itemsize);
        return -1;
    }
    stride = *itemsize;
    for (int i = view->ndim - 1; i >= self->ndim; i--) {
        view->strides[i] = stride;
        stride *= view->shape[i];
    }
    return 0;
}

PyObject *cudriver_device_array_view_as(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                        PyObject *keywords)
{
    static const char *const names[] = {"dtype", NULL};
    static const struct cudriver_signature signature = {"view", 1, 1, names};
    DeviceArrayObject *self = array_of(object);
    struct cudriver_device_view view = {.address = self->address, .ndim = self->ndim};
    PyObject *argument, *dtype, *array = NULL;
    Py_ssize_t itemsize;

    if (cudriver_arguments(&signature, args, count, keywords, &argument) < 0 ||
        cudriver_numpy_dtype(argument, &dtype, &itemsize) < 0) {
        return NULL;
    }
    memcpy(view.shape, self->shape, (size_t)self->ndim * sizeof *self->shape);
    memcpy(view.strides, self->strides, (size_t)self->ndim * sizeof *self->strides);
    if (view_retype(self, &dtype, &itemsize, &view) == 0) {
        array = cudriver_device_array_view(cudriver_state_of(object), self, &view);
    }
    if (array != NULL) {
        array_of(array)->itemsize = itemsize;
        Py_SETREF(array_of(array)->dtype, Py_NewRef(dtype));
    }
    Py_XDECREF(dtype);
    return array;
}

/* ---- flags ---- */

static bool is_dense(const DeviceArrayObject *self, bool fortran)
{
    return cudriver_shape_is_dense(self->ndim, self->shape, self->strides, self->itemsize, fortran);
}

PyObject *cudriver_device_array_flags(PyObject *object, void *Py_UNUSED(closure))
{
    DeviceArrayObject *self = array_of(object);

    return cudriver_tuple_new(cudriver_state_of(object)->array_flags_type, 4,
                              PyBool_FromLong(is_dense(self, false)),
                              PyBool_FromLong(is_dense(self, true)),
                              PyBool_FromLong(self->root == NULL && self->lender == NULL),
                              PyBool_FromLong(!self->read_only));
}

static PyStructSequence_Field flags_fields[] = {
    {"c_contiguous", DOC_ArrayFlags_c_contiguous},
    {"f_contiguous", DOC_ArrayFlags_f_contiguous},
    {"owndata", DOC_ArrayFlags_owndata},
    {"writeable", DOC_ArrayFlags_writeable},
    {NULL, NULL},
};

static PyStructSequence_Desc flags_desc = {
    .name = "cudriver.ArrayFlags",
    .doc = DOC_ArrayFlags,
    .fields = flags_fields,
    .n_in_sequence = 4,
};

int cudriver_device_array_views_setup(PyObject *module)
{
    return cudriver_tuple_add(module, &cudriver_state_of_module(module)->array_flags_type,
                              &flags_desc);
}

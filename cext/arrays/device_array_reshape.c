/* DeviceArray: other shapes of the same memory, without a copy. See device_array.h. */
#include "device_array.h"

#include "python/shape.h"

/* Axes, innermost first, as runs: neighbours whose items lie at equal distances are one. */
struct runs {
    int count;
    Py_ssize_t length[CUDRIVER_MAX_DIMS];
    Py_ssize_t stride[CUDRIVER_MAX_DIMS];
};

static void runs_find(const DeviceArrayObject *of, bool fortran, struct runs *runs)
{
    runs->count = 0;
    for (int i = 0; i < of->ndim; i++) {
        int axis = fortran ? i : of->ndim - 1 - i, last = runs->count - 1;
        Py_ssize_t next;
        if (of->shape[axis] == 1) {
            continue;
        }
        if (last >= 0 && !__builtin_mul_overflow(runs->stride[last], runs->length[last], &next) &&
            of->strides[axis] == next) {
            runs->length[last] *= of->shape[axis];
        } else {
            runs->length[runs->count] = of->shape[axis];
            runs->stride[runs->count++] = of->strides[axis];
        }
    }
}

/* Finds the strides for view->shape, which has as many items as `of`. False if there are none:
 * an axis of the shape would span two runs, whose items lie at different distances. */
static bool strides_find(const DeviceArrayObject *of, bool fortran,
                         struct cudriver_device_view *view)
{
    struct runs runs;
    Py_ssize_t left = 1, stride = of->itemsize; /* of the run at hand: items, and their distance */
    int taken = 0;

    runs_find(of, fortran, &runs);
    for (int i = 0; i < view->ndim; i++) {
        int axis = fortran ? i : view->ndim - 1 - i;
        Py_ssize_t length = view->shape[axis];
        if (length > 1 && left == 1) {
            left = runs.length[taken];
            stride = runs.stride[taken++];
        }
        if (left % length != 0) {
            return false;
        }
        view->strides[axis] = stride;
        left /= length;
        /* The stride of an axis that follows the last item is never used. */
        if (__builtin_mul_overflow(stride, length, &stride)) {
            stride = 0;
        }
    }
    return true;
}

/* Sets ValueError: the shape does not hold as many items as the array. */
static int shape_refuse(DeviceArrayObject *self, PyObject *shape)
{
    PyObject *own = cudriver_shape_tuple(self->ndim, self->shape);

    if (own != NULL) {
        PyErr_Format(PyExc_ValueError,
                     "cannot reshape an array of shape %R into shape %R: the "
                     "number of items differs",
                     own, shape);
        Py_DECREF(own);
    }
    return -1;
}

/* Replaces a length of -1, and checks that the shape has as many items as the array. 0 or -1. */
static int shape_complete(DeviceArrayObject *self, PyObject *argument,
                          struct cudriver_device_view *view)
{
    Py_ssize_t size = cudriver_shape_bytes(self->ndim, self->shape, 1), known = 1;
    bool empty = cudriver_shape_is_empty(view->ndim, view->shape);
    int open = -1;

    if (size < 0) {
        return -1;
    }
    for (int i = 0; i < view->ndim; i++) {
        if (view->shape[i] < 0 && open >= 0) {
            PyErr_Format(PyExc_ValueError, "only one length of a shape can be -1: %R", argument);
            return -1;
        }
        if (view->shape[i] < 0) {
            open = i;
        } else if (!empty && __builtin_mul_overflow(known, view->shape[i], &known)) {
            return shape_refuse(self, argument);
        }
    }
    known = empty ? 0 : known;
    if (open < 0) {
        return known == size ? 0 : shape_refuse(self, argument);
    }
    if (known == 0 || size % known != 0) {
        return shape_refuse(self, argument);
    }
    view->shape[open] = size / known;
    return 0;
}

/* Reads `order`, the only keyword. 0 or -1. */
static int order_read(PyObject *keywords, bool *fortran)
{
    static char *names[] = {"order", NULL};
    PyObject *order = NULL, *none = PyTuple_New(0);
    int failed =
        none == NULL || !PyArg_ParseTupleAndKeywords(none, keywords, "|$O:reshape", names, &order)
            ? -1
            : cudriver_order_parse(order, fortran);

    Py_XDECREF(none);
    return failed;
}

/* Sets ValueError: the shape cannot be had without a copy. NULL. */
static PyObject *copy_refuse(DeviceArrayObject *self, const struct cudriver_device_view *view)
{
    PyObject *shape = cudriver_shape_tuple(self->ndim, self->shape);
    PyObject *strides = cudriver_shape_tuple(self->ndim, self->strides);
    PyObject *wanted = cudriver_shape_tuple(view->ndim, view->shape);

    if (shape != NULL && strides != NULL && wanted != NULL) {
        PyErr_Format(PyExc_ValueError,
                     "an array of shape %R with strides %R has no view of shape %R: its items "
                     "would need another order in memory; call copy() first, then reshape()",
                     shape, strides, wanted);
    }
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    Py_XDECREF(wanted);
    return NULL;
}

PyObject *cudriver_device_array_reshape(PyObject *object, PyObject *args, PyObject *keywords)
{
    DeviceArrayObject *self = (DeviceArrayObject *)object;
    PyObject *shape = PyTuple_GET_SIZE(args) == 1 ? PyTuple_GET_ITEM(args, 0) : args;
    struct cudriver_device_view view = {.address = self->address};
    bool fortran;

    if (order_read(keywords, &fortran) < 0 ||
        cudriver_shape_parse(shape, -1, &view.ndim, view.shape) < 0 ||
        shape_complete(self, shape, &view) < 0) {
        return NULL;
    }
    if (cudriver_shape_is_empty(view.ndim, view.shape)) {
        cudriver_shape_strides(view.ndim, view.shape, self->itemsize, fortran, view.strides);
    } else if (!strides_find(self, fortran, &view)) {
        return copy_refuse(self, &view);
    }
    return cudriver_device_array_view(cudriver_state_of(object), self, &view);
}

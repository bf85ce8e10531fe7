/* Basic indexing of a DeviceArray: integers, slices, ... and None, as NumPy defines them. */
#include "device_array.h"

#include "python/numpy_bridge.h"

struct view {
    CUdeviceptr address;
    int ndim;
    Py_ssize_t shape[CUDRIVER_MAX_DIMS];
    Py_ssize_t strides[CUDRIVER_MAX_DIMS];
};

/* One more dimension of the result. 0 or -1. */
static int view_append(struct view *view, Py_ssize_t length, Py_ssize_t stride)
{
    if (view->ndim == CUDRIVER_MAX_DIMS) {
        PyErr_Format(PyExc_IndexError, "more than %d dimensions", CUDRIVER_MAX_DIMS);
        return -1;
    }
    view->shape[view->ndim] = length;
    view->strides[view->ndim] = stride;
    view->ndim++;
    return 0;
}

static int apply_slice(DeviceArrayObject *of, int axis, PyObject *item, struct view *view)
{
    Py_ssize_t start, stop, step, length, stride;

    if (PySlice_Unpack(item, &start, &stop, &step) < 0) {
        return -1;
    }
    length = PySlice_AdjustIndices(of->shape[axis], &start, &stop, step);
    if (length > 0) {
        view->address += (CUdeviceptr)(start * of->strides[axis]);
    }
    /* As NumPy has it: the step counts for one item too, but not for none. It may be too large to
     * multiply then, and means nothing. */
    if (length == 0 || __builtin_mul_overflow(of->strides[axis], step, &stride)) {
        stride = of->strides[axis];
    }
    return view_append(view, length, stride);
}

static void index_refuse(PyObject *item)
{
    PyErr_Format(PyExc_IndexError,
                 "a DeviceArray takes integers, slices, ... and None as indices, not %.100s",
                 Py_TYPE(item)->tp_name);
}

static int apply_integer(DeviceArrayObject *of, int axis, PyObject *item, struct view *view)
{
    Py_ssize_t index = PyNumber_AsSsize_t(item, PyExc_IndexError);

    if (index == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) { /* an array of indices, or of booleans */
            index_refuse(item);
        }
        return -1;
    }
    if (index < -of->shape[axis] || index >= of->shape[axis]) {
        PyErr_Format(PyExc_IndexError, "index %zd is out of bounds for axis %d with size %zd",
                     index, axis, of->shape[axis]);
        return -1;
    }
    view->address +=
        (CUdeviceptr)((index < 0 ? index + of->shape[axis] : index) * of->strides[axis]);
    return 0;
}

/* How many axes the key's items use up; Ellipsis is found at *ellipsis (-1: none). -1 on error. */
static int key_count(PyObject *const *items, Py_ssize_t count, Py_ssize_t *ellipsis)
{
    int axes = 0;

    *ellipsis = -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (items[i] == Py_Ellipsis) {
            if (*ellipsis >= 0) {
                PyErr_SetString(PyExc_IndexError,
                                "an index can only have a single ellipsis ('...')");
                return -1;
            }
            *ellipsis = i;
        } else if (PySlice_Check(items[i]) || (PyIndex_Check(items[i]) && !PyBool_Check(items[i]) &&
                                               !cudriver_numpy_is_bool(items[i]))) {
            axes++;
        } else if (items[i] != Py_None) {
            index_refuse(items[i]);
            return -1;
        }
    }
    return axes;
}

PyObject *cudriver_device_view(PyObject *object, PyObject *key)
{
    DeviceArrayObject *self = (DeviceArrayObject *)object;
    PyObject *const *items = PyTuple_Check(key) ? ((PyTupleObject *)key)->ob_item : &key;
    Py_ssize_t count = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1, ellipsis;
    int axes = key_count(items, count, &ellipsis), axis = 0, failed = 0;
    struct view view = {.address = self->address};

    if (axes < 0) {
        return NULL;
    }
    if (axes > self->ndim) {
        PyErr_Format(PyExc_IndexError,
                     "too many indices: the array is %d-dimensional, but %d were indexed",
                     self->ndim, axes);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count && failed == 0; i++) {
        if (i == ellipsis) {
            for (int left = self->ndim - axes; left > 0 && failed == 0; left--, axis++) {
                failed = view_append(&view, self->shape[axis], self->strides[axis]);
            }
        } else if (items[i] == Py_None) {
            failed = view_append(&view, 1, 0);
        } else if (PySlice_Check(items[i])) {
            failed = apply_slice(self, axis++, items[i], &view);
        } else {
            failed = apply_integer(self, axis++, items[i], &view);
        }
    }
    for (; axis < self->ndim && failed == 0; axis++) {
        failed = view_append(&view, self->shape[axis], self->strides[axis]);
    }
    if (failed != 0) {
        return NULL;
    }
    return cudriver_device_view_new(cudriver_state_of(object), self, view.address, view.ndim,
                                    view.shape, view.strides);
}

/* See shape.h. */
#include "shape.h"

static int length_read(PyObject *item, Py_ssize_t *length)
{
    if (!PyIndex_Check(item)) {
        PyErr_Format(PyExc_TypeError, "a shape's lengths are ints, not %R (%.100s)", item,
                     Py_TYPE(item)->tp_name);
        return -1;
    }
    *length = PyNumber_AsSsize_t(item, PyExc_OverflowError);
    if (*length == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(PyExc_ValueError, "a shape's lengths are ints of 0 to at most %zd, not %R",
                         PY_SSIZE_T_MAX, item);
        }
        return -1;
    }
    if (*length < 0) {
        PyErr_Format(PyExc_ValueError, "a shape has no negative lengths: %zd", *length);
        return -1;
    }
    return 0;
}

int cudriver_shape_parse(PyObject *argument, int *ndim, Py_ssize_t *shape)
{
    PyObject *items;

    /* An array of several items passes PyIndex_Check too, because its type has __index__. */
    if (PyIndex_Check(argument) && (!PySequence_Check(argument) || PyObject_Size(argument) < 0)) {
        PyErr_Clear();
        *ndim = 1;
        return length_read(argument, &shape[0]);
    }
    if (!PySequence_Check(argument) || PyUnicode_Check(argument) || PyBytes_Check(argument)) {
        PyErr_Format(PyExc_TypeError, "a shape is an int or a sequence of ints, not %R (%.100s)",
                     argument, Py_TYPE(argument)->tp_name);
        return -1;
    }
    /* Copy even a list: reading an item may run code that changes it. */
    items = PySequence_Tuple(argument);
    if (items == NULL) {
        return -1;
    }
    if (PyTuple_GET_SIZE(items) > CUDRIVER_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "a shape has at most %d dimensions, not %zd",
                     CUDRIVER_MAX_DIMS, PyTuple_GET_SIZE(items));
        Py_DECREF(items);
        return -1;
    }
    *ndim = (int)PyTuple_GET_SIZE(items);
    for (int i = 0; i < *ndim; i++) {
        if (length_read(PyTuple_GET_ITEM(items, i), &shape[i]) < 0) {
            Py_DECREF(items);
            return -1;
        }
    }
    Py_DECREF(items);
    return 0;
}

static bool is_empty(int ndim, const Py_ssize_t *shape)
{
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 0) {
            return true;
        }
    }
    return false;
}

Py_ssize_t cudriver_shape_bytes(int ndim, const Py_ssize_t *shape, Py_ssize_t itemsize)
{
    Py_ssize_t bytes = itemsize;

    if (is_empty(ndim, shape)) {
        return 0;
    }
    for (int i = 0; i < ndim; i++) {
        if (__builtin_mul_overflow(bytes, shape[i], &bytes)) {
            PyObject *tuple = cudriver_shape_tuple(ndim, shape);
            if (tuple != NULL) {
                PyErr_Format(PyExc_ValueError,
                             "an array of shape %R and items of %zd bytes is larger than the "
                             "address space",
                             tuple, itemsize);
                Py_DECREF(tuple);
            }
            return -1;
        }
    }
    return bytes;
}

int cudriver_order_parse(PyObject *argument, bool *fortran)
{
    *fortran = false;
    if (argument == NULL || argument == Py_None) {
        return 0;
    }
    if (PyUnicode_Check(argument) && PyUnicode_GET_LENGTH(argument) == 1) {
        Py_UCS4 letter = Py_TOUPPER(PyUnicode_READ_CHAR(argument, 0));
        *fortran = letter == 'F';
        if (letter == 'C' || letter == 'F') {
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "order is 'C' or 'F', not %R", argument);
    return -1;
}

PyObject *cudriver_shape_tuple(int count, const Py_ssize_t *values)
{
    PyObject *tuple = PyTuple_New(count);

    for (int i = 0; tuple != NULL && i < count; i++) {
        PyObject *value = PyLong_FromSsize_t(values[i]);
        if (value == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

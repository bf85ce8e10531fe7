/* See shape.h. */
#include "shape.h"

#include "numpy_bridge.h"

Py_ssize_t cudriver_shape_bytes(int ndim, const Py_ssize_t *shape, Py_ssize_t itemsize)
{
    Py_ssize_t bytes = itemsize;
    bool empty = false, over = false;

    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0) {
            PyErr_Format(PyExc_ValueError, "negative dimensions are not allowed: %zd", shape[i]);
            return -1;
        }
        empty |= shape[i] == 0;
        over |= __builtin_mul_overflow(bytes, shape[i], &bytes);
    }
    if (over && !empty) {
        PyObject *tuple = cudriver_numpy_tuple(ndim, shape);
        if (tuple != NULL) {
            PyErr_Format(PyExc_ValueError,
                         "an array of shape %R and items of %zd bytes is larger than the address "
                         "space",
                         tuple, itemsize);
            Py_DECREF(tuple);
        }
        return -1;
    }
    return empty ? 0 : bytes;
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

/* See arguments.h. */
#include "arguments.h"

/* The index of a name, or -1. */
static int place_of(const struct cudriver_signature *signature, PyObject *name)
{
    for (int i = 0; signature->names[i] != NULL; i++) {
        if (PyUnicode_CompareWithASCIIString(name, signature->names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

int cudriver_arguments(const struct cudriver_signature *signature, PyObject *const *args,
                       Py_ssize_t count, PyObject *keywords, PyObject **values)
{
    Py_ssize_t named = keywords != NULL ? PyTuple_GET_SIZE(keywords) : 0;

    if (count > signature->positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)",
                     signature->function, signature->positional, count);
        return -1;
    }
    for (int i = 0; signature->names[i] != NULL; i++) {
        values[i] = i < count ? args[i] : NULL;
    }
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(keywords, i);
        int place = place_of(signature, name);
        if (place < 0) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument %R",
                         signature->function, name);
            return -1;
        }
        if (values[place] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument %R",
                         signature->function, name);
            return -1;
        }
        values[place] = args[count + i];
    }
    for (int i = 0; i < signature->required; i++) {
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s' (pos %d)",
                         signature->function, signature->names[i], i + 1);
            return -1;
        }
    }
    return 0;
}

/* copy() and copy_async(). See copy.h. */
#include "copy.h"

#include "python/arguments.h"
#include "docstrings.h"

static PyObject *module_copy(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *names)
{
    CoreState *state = cudriver_state_of_module(module);

    if (count != 2 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "copy(dst, src) takes two positional arguments");
        return NULL;
    }
    if (cudriver_copy_blocking(state, args[0], args[1]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *module_copy_async(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names)
{
    CoreState *state = cudriver_state_of_module(module);
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);

    /* A keyword argument's value follows the positional ones, so it is args[2] either way. */
    if (count + named != 3 || named > 1 ||
        (named == 1 &&
         PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0)) {
        PyErr_SetString(PyExc_TypeError,
                        "copy_async(dst, src, stream) takes two arrays and a stream");
        return NULL;
    }
    return cudriver_copy_async(state, args[0], args[1], args[2]);
}

static PyMethodDef functions[] = {
    {"copy", CUDRIVER_FAST(module_copy), DOC_copy},
    {"copy_async", CUDRIVER_FAST(module_copy_async), DOC_copy_async},
    {NULL},
};

int cudriver_copy_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

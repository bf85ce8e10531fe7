/* Python functions for the copy engine's thread count. See copy_settings.h. */
#include "copy_settings.h"

#include "engine/engine.h"
#include "docstrings.h"

static PyObject *module_copy_threads(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(cudriver_staging_get_threads());
}

static PyObject *module_set_copy_threads(PyObject *module, PyObject *argument)
{
    long count = 0;

    (void)module;
    if (argument != Py_None) {
        PyObject *index = PyNumber_Index(argument);
        if (index == NULL) {
            return NULL;
        }
        count = PyLong_AsLong(index);
        Py_DECREF(index);
        if (count < 1 || count > CUDRIVER_STAGING_THREADS_MOST) { /* also -1 after an overflow */
            PyErr_Clear();
            PyErr_Format(PyExc_ValueError,
                         "the number of threads is 1 to %d, or None for as many as the process's "
                         "processors suggest; not %R",
                         CUDRIVER_STAGING_THREADS_MOST, argument);
            return NULL;
        }
    }
    cudriver_staging_set_threads((int)count);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"copy_threads", module_copy_threads, METH_NOARGS, DOC_copy_threads},
    {"set_copy_threads", module_set_copy_threads, METH_O, DOC_set_copy_threads},
    {NULL},
};

/* Warns if the environment variable is invalid. 0, or -1 if warnings are errors. */
static int wish_check(void)
{
    const char *text = getenv(CUDRIVER_STAGING_VARIABLE);
    PyObject *value;
    int threads, result;

    if (cudriver_staging_wish() >= 0 || text == NULL) {
        return 0;
    }
    value = PyUnicode_DecodeFSDefault(text);
    if (value == NULL) {
        return -1;
    }
    threads = cudriver_staging_get_threads();
    result = PyErr_WarnFormat(
        PyExc_RuntimeWarning, 1,
        CUDRIVER_STAGING_VARIABLE "=%.60R is no number from 1 to %d and is ignored: copies of "
                                  "pageable memory use at most %d thread%s here",
        value, CUDRIVER_STAGING_THREADS_MOST, threads, threads == 1 ? "" : "s");
    Py_DECREF(value);
    return result;
}

int cudriver_copy_settings_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions) < 0 ? -1 : wish_check();
}

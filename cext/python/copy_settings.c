/* The copy engine's thread count, for memory/copies.py. See copy_settings.h. */
#include "copy_settings.h"

#include "engine/engine.h"
#include "docstrings.h"

static PyObject *module_copy_threads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("(ii)", cudriver_staging_get_threads(), CUDRIVER_STAGING_THREADS_MOST);
}

static PyObject *module_set_copy_threads(PyObject *Py_UNUSED(module), PyObject *count)
{
    cudriver_staging_set_threads((int)PyLong_AsLong(count));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_copy_threads", module_copy_threads, METH_NOARGS, DOC__copy_threads},
    {"_set_copy_threads", module_set_copy_threads, METH_O, DOC__set_copy_threads},
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

/* Python functions for the copy engine's thread count. See copy_settings.h. */
#include "copy_settings.h"

#include "engine/engine.h"

PyDoc_STRVAR(copy_threads_doc,
             "copy_threads()\n"
             "--\n"
             "\n"
             "Return how many threads may pack and unpack copies of pageable memory.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "int\n"
             "    The most that run at a time, for all copies together.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "By default a few less than the CPUs that the process may use, by affinity and\n"
             "cgroup. ``CUDRIVER_COPY_THREADS`` or `set_copy_threads` change it. The variable\n"
             "is read when cudriver's core is loaded; anything but a number from 1 to 1024 is\n"
             "ignored with a RuntimeWarning.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> 1 <= cu.copy_threads() <= 1024\n"
             "True");

static PyObject *module_copy_threads(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(cudriver_staging_get_threads());
}

PyDoc_STRVAR(set_copy_threads_doc,
             "set_copy_threads(count, /)\n"
             "--\n"
             "\n"
             "Set how many threads may pack and unpack copies of pageable memory.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "count : int or None\n"
             "    From 1 to 1024; None for the default (see `copy_threads`).\n"
             "\n"
             "Raises\n"
             "------\n"
             "ValueError\n"
             "    The count is out of range.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Copies that have begun keep their threads. Copies of page-locked memory need\n"
             "none.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> cu.set_copy_threads(2)\n"
             ">>> cu.copy_threads()\n"
             "2\n"
             ">>> cu.set_copy_threads(None)");

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
    {"copy_threads", module_copy_threads, METH_NOARGS, copy_threads_doc},
    {"set_copy_threads", module_set_copy_threads, METH_O, set_copy_threads_doc},
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

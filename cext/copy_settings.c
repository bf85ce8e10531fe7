/* How many threads the copy engine may use, for Python. See copy_settings.h. */
#include "copy_settings.h"

#include "staging.h"

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
        if (count < 1 || count > CUDRIVER_STAGING_THREADS_MOST) { /* -1 too, after an overflow */
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
    {"copy_threads", module_copy_threads, METH_NOARGS,
     "copy_threads()\n--\n\n"
     "The most threads that pack and unpack copies of pageable memory at a time, all copies\n"
     "together. Usually a few fewer than the processors that the process may use (by affinity and\n"
     "cgroup); the environment variable CUDRIVER_COPY_THREADS or set_copy_threads() change it."},
    {"set_copy_threads", module_set_copy_threads, METH_O,
     "set_copy_threads(count, /)\n--\n\n"
     "Sets copy_threads(), 1 to 1024; None for the usual number. Copies under way keep theirs.\n"
     "Page-locked memory needs no threads."},
    {NULL},
};

int cudriver_copy_settings_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

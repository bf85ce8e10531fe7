/* copy(), copy_async(), and what is behind explain_copy() and copy_threads(). See copy.h. */
#include "copy_private.h"

#include "engine/engine.h"
#include "python/arguments.h"
#include "docstrings.h"

static PyObject *module_copy(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *names)
{
    CUDRIVER_LOCK();
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
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);

    /* A keyword argument's value follows the positional ones, so it is args[2] either way. */
    if (count < 2 || count + named > 3 || named > 1 ||
        (named == 1 &&
         PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0)) {
        PyErr_SetString(PyExc_TypeError,
                        "copy_async(dst, src, stream=None) takes two arrays, and a stream or None");
        return NULL;
    }
    return cudriver_copy_async(state, args[0], args[1], count + named == 3 ? args[2] : NULL);
}

/* New reference: the fields of a CopyPlan but `why`, and what that is made of: whether the plan is
 * for dense memory, for ends that are both on a device, that are not on the same. */
static PyObject *module_explain_copy(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    struct copy_ends ends;
    struct cudriver_copy_plan plan; /* its pointers to the ends are stale */
    struct staging_plan staged = {0};
    int path = -1;
    PyObject *dst, *src;

    if (!PyArg_ParseTuple(args, "OO", &dst, &src) ||
        copy_ends_parse(cudriver_state_of_module(module), dst, src, CUDRIVER_UNORDERED, &ends) <
            0) {
        return NULL;
    }
    copy_ends_plan(&ends, true, true, &plan);
    copy_ends_done(&ends);
    if (plan.kind == CUDRIVER_COPY_STAGED) {
        staged = plan.staged;
        path = (int)staged.path;
    }
    return Py_BuildValue(
        "(snNininNNNN)", cudriver_copy_kind_name(plan.kind), (Py_ssize_t)plan.bytes,
        PyBool_FromLong(plan.page_locked), path, (Py_ssize_t)staged.chunk, staged.threads,
        (Py_ssize_t)staged.crossover, PyBool_FromLong(plan.layout.ndim == 0),
        PyBool_FromLong(plan.dst.on_device && plan.src.on_device),
        PyBool_FromLong(plan.dst.ordinal != plan.src.ordinal), PyBool_FromLong(plan.coherent));
}

static PyObject *module_copy_threads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("(ii)", cudriver_staging_get_threads(), CUDRIVER_STAGING_THREADS_MOST);
}

static PyObject *module_set_copy_threads(PyObject *Py_UNUSED(module), PyObject *count)
{
    cudriver_staging_set_threads((int)PyLong_AsLong(count));
    Py_RETURN_NONE;
}

PyMethodDef cudriver_copy_functions[] = {
    {"copy", CUDRIVER_FAST(module_copy), DOC_copy},
    {"copy_async", CUDRIVER_FAST(module_copy_async), DOC_copy_async},
    {"_copy_many", cudriver_copy_many, METH_VARARGS, DOC__copy_many},
    {"_copy_rows", cudriver_copy_rows, METH_VARARGS, DOC__copy_rows},
    {"_read_files", cudriver_read_files, METH_VARARGS, DOC__read_files},
    {"_copy_threads", module_copy_threads, METH_NOARGS, DOC__copy_threads},
    {"_set_copy_threads", module_set_copy_threads, METH_O, DOC__set_copy_threads},
    {"_explain_copy", module_explain_copy, METH_VARARGS, NULL},
    {NULL},
};

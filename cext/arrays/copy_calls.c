/* The module's functions that copy one array: both ends are read, and the plan is followed. */
#include "copy_private.h"

#include "dlpack.h"
#include "python/call.h"
#include "python/error.h"
#include "contexts/work.h"
#include "docstrings.h"

static PyObject *module_copy(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *names)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_stream stream;
    struct copy_ends ends;
    PyObject *work = NULL;
    int failed = 1;

    if (count != 2 || names != NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "copy(dst, src) takes two positional arguments; in a stream's order "
                        "it is copy_async(dst, src, stream)");
        return NULL;
    }
    if (copy_ends_parse(state, args[0], args[1], true, NULL, &ends) < 0) {
        return NULL;
    }
    if (cudriver_stream_read(state, NULL, &stream) < 0) {
        failed = -1;
    } else if (copy_ends_beside(state, &ends, &stream)) {
        failed = copy_beside(state, &ends, &stream, COPY_BATCH_BLOCKING, &work);
    }
    cudriver_stream_done(&stream);
    if (failed == 0) {
        failed = cudriver_work_wait(state, (TransferObject *)work);
    } else if (failed > 0) {
        failed = copy_ends_copy(state, &ends);
    }
    Py_XDECREF(work);
    copy_ends_done(&ends);
    return cudriver_none(failed);
}

/* Reads what copy_async() takes beside its two arrays. 0, or -1 with an exception. */
static int options_read(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **stream,
                        int *borrow)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    bool good = count == 2 || count == 3;

    *stream = count == 3 ? args[2] : NULL;
    *borrow = 0;
    for (Py_ssize_t i = 0; i < named && good && *borrow >= 0; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (PyUnicode_CompareWithASCIIString(name, "borrow") == 0) {
            *borrow = PyObject_IsTrue(args[count + i]);
        } else {
            good = *stream == NULL && PyUnicode_CompareWithASCIIString(name, "stream") == 0;
            *stream = args[count + i];
        }
    }
    if (!good) {
        PyErr_SetString(PyExc_TypeError, "copy_async(dst, src, stream=None, *, borrow=False) takes "
                                         "two arrays, and a stream or None");
    }
    return good && *borrow >= 0 ? 0 : -1;
}

static PyObject *module_copy_async(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names)
{
    CoreState *state = cudriver_state_of_module(module);
    TransferObject *begun = NULL;
    struct cudriver_copy_plan plan;
    struct cudriver_stream stream;
    PyObject *given, *transfer = NULL;
    int borrow;

    if (options_read(args, count, names, &given, &borrow) < 0) {
        return NULL;
    }
    {
        CUDRIVER_LOCK();
        struct copy_ends ends;
        if (cudriver_stream_read(state, given, &stream) < 0) {
            return NULL;
        }
        if (copy_ends_parse(state, args[0], args[1], true, &stream, &ends) == 0) {
            ends.borrow = borrow > 0;
            if (!copy_ends_beside(state, &ends, &stream) ||
                copy_beside(state, &ends, &stream, borrow ? COPY_BATCH_BORROW : COPY_BATCH_READ,
                            &transfer) > 0) {
                transfer = copy_ends_begin(state, &ends, &stream, NULL, &plan, &begun);
            }
            copy_ends_done(&ends);
        }
    }
    if (transfer == NULL && begun != NULL) {
        transfer = copy_work_issue(state, &plan, &stream, begun);
    }
    cudriver_stream_done(&stream);
    return transfer;
}

/* _fill(array, item, stream): a copy of one item to all places, which does not wait for an
 * enclosing `with stream:`. */
static PyObject *module_fill(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    PyObject *array, *item, *given, *done = NULL;
    struct cudriver_stream stream;
    struct copy_ends ends;
    bool one;

    if (!PyArg_ParseTuple(args, "O!OO", state->device_array_type, &array, &item, &given) ||
        copy_ends_parse(state, array, item, false, NULL, &ends) < 0) {
        return NULL;
    }
    one = ends.src.context == NULL && ends.src.itemsize == ends.dst.itemsize;
    for (int i = 0; i < ends.src.ndim; i++) {
        one = one && ends.src.shape[i] == 1;
    }
    if (!one) {
        PyErr_Format(PyExc_TypeError, "expected an array of one item of %zu bytes",
                     ends.dst.itemsize);
        copy_ends_done(&ends);
        return NULL;
    }
    ends.src.ndim = ends.dst.ndim;
    ends.src.fixed = true;
    for (int i = 0; i < ends.dst.ndim; i++) {
        ends.src.shape[i] = ends.dst.shape[i];
        ends.src.strides[i] = 0;
    }
    if (given == Py_None) {
        StreamObject *entered = cudriver_dlpack_stream(state, ends.dst.context->ordinal);
        given = entered != NULL ? (PyObject *)entered : Py_None;
    }
    if (given == Py_None) {
        done = copy_ends_copy(state, &ends) < 0 ? NULL : Py_NewRef(Py_None);
    } else if (cudriver_stream_read(state, given, &stream) == 0) {
        done = copy_ends_queue(state, &ends, &stream, NULL);
        cudriver_stream_done(&stream);
    }
    copy_ends_done(&ends);
    return done;
}

#define ChosenCopy_FIELDS(X)                                             \
    X(path, "s", cudriver_copy_kind_name(plan.kind))                     \
    X(nbytes, "n", plan.bytes)                                           \
    X(page_locked, "N", PyBool_FromLong(plan.page_locked))               \
    X(staging, "i", path)                                                \
    X(chunk, "n", staged.chunk)                                          \
    X(threads, "i", staged.threads)                                      \
    X(crossover, "n", staged.crossover)                                  \
    X(dense, "N", PyBool_FromLong(plan.layout.ndim == 0))                \
    X(on_device, "N", PyBool_FromLong(inside))                           \
    X(apart, "N", PyBool_FromLong(plan.dst.ordinal != plan.src.ordinal)) \
    X(coherent, "i", plan.coherent + plan.crawls)                        \
    X(up, "N", PyBool_FromLong(plan.dst.on_device))                      \
    X(held, "n", (Py_ssize_t)TUNING_HELD)                                \
    X(beside, "N", PyBool_FromLong(beside))

static PyObject *module_explain_copy(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct copy_ends ends;
    struct cudriver_copy_plan plan; /* its pointers to the ends are stale */
    struct staging_plan staged = {0};
    int path = -1;
    bool beside, inside;
    PyObject *dst, *src;

    if (!PyArg_ParseTuple(args, "OO", &dst, &src) ||
        copy_ends_parse(state, dst, src, true, CUDRIVER_UNORDERED, &ends) < 0) {
        return NULL;
    }
    copy_ends_plan(&ends, true, true, &plan);
    beside = copy_beside_explain(state, &ends, &plan);
    copy_ends_done(&ends);
    inside = plan.dst.on_device && plan.src.on_device;
    if (plan.kind == CUDRIVER_COPY_STAGED) {
        staged = plan.staged;
        path = (int)staged.path;
    }
    return CUDRIVER_TUPLE(ChosenCopy_FIELDS);
}

static PyObject *module_copy_threads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("(ii)", cudriver_staging_get_threads(), CUDRIVER_STAGING_THREADS_MOST);
}

static PyObject *module_set_copy_threads(PyObject *Py_UNUSED(module), PyObject *count)
{
    long threads = PyLong_AsLong(count);

    if (PyErr_Occurred()) {
        return NULL;
    }
    cudriver_staging_set_threads((int)threads);
    Py_RETURN_NONE;
}

PyMethodDef cudriver_copy_functions[] = {
    {"copy", CUDRIVER_FAST(module_copy), DOC_copy},
    {"copy_async", CUDRIVER_FAST(module_copy_async), DOC_copy_async},
    {"_copy_threads", module_copy_threads, METH_NOARGS, DOC__copy_threads},
    {"_set_copy_threads", module_set_copy_threads, METH_O, DOC__set_copy_threads},
    {"_fill", module_fill, METH_VARARGS, DOC__fill},
    {"_explain_copy", module_explain_copy, METH_VARARGS, NULL},
    {NULL},
};

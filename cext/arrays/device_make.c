/* device_empty(), device_zeros(), to_device(); _views(). */
#include "python/arguments.h"
#include "python/call.h"
#include "device_array.h"
#include "python/numpy_bridge.h"
#include "docstrings.h"

/* New reference: the context of a new array on the device of `home` (NULL: on any): that of the
 * stream argument, which must be there, or ValueError. An enclosing `with stream:` on another
 * device does not count. `asked`: the caller has named the device. */
static ContextObject *context_choose(CoreState *state, ContextObject *home, bool asked,
                                     PyObject *argument)
{
    ContextObject *context = home;
    struct cudriver_stream stream;

    if (cudriver_stream_parse(state, argument, home, &stream) < 0) {
        return NULL;
    }
    if (home == NULL || stream.context->ordinal == home->ordinal) {
        context = stream.context;
    } else if (argument != NULL && argument != Py_None) {
        int there = stream.context->ordinal, here = home->ordinal;
        PyErr_Format(PyExc_ValueError,
                     asked ? "device %d was asked for, but the stream is on device %d"
                           : "the stream is on device %d, the array on device %d",
                     asked ? here : there, asked ? there : here);
        context = NULL;
    }
    Py_XINCREF(context);
    cudriver_stream_done(&stream);
    return context;
}

/* Shared by device_empty and device_zeros. New reference. *stream_argument: borrowed. */
static PyObject *array_make(CoreState *state, const char *function, PyObject *const *args,
                            Py_ssize_t count, PyObject *keywords, PyObject **stream_argument)
{
    static const char *const names[] = {"shape", "dtype", "device", "stream", NULL};
    const struct cudriver_signature signature = {function, 2, 1, names};
    PyObject *values[4], *dtype, *array = NULL;
    ContextObject *context = NULL;
    Py_ssize_t shape[CUDRIVER_MAX_DIMS], itemsize;
    int ndim;

    if (cudriver_arguments(&signature, args, count, keywords, values) < 0 ||
        cudriver_numpy_shape(values[0], &ndim, shape) < 0 ||
        cudriver_numpy_dtype(values[1], &dtype, &itemsize) < 0) {
        return NULL;
    }
    *stream_argument = values[3];
    if (values[2] != NULL && values[2] != Py_None) {
        context = cudriver_context_for_device(state, values[2]);
    }
    if (!PyErr_Occurred()) {
        Py_XSETREF(context, context_choose(state, context, true, values[3]));
    }
    if (context != NULL && !PyErr_Occurred()) {
        array = cudriver_device_array_new(state, context, dtype, itemsize, ndim, shape);
    }
    Py_XDECREF(context);
    Py_DECREF(dtype);
    return array;
}

static PyObject *module_device_empty(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                     PyObject *keywords)
{
    CUDRIVER_LOCK();
    PyObject *stream;

    return array_make(cudriver_state_of_module(module), "device_empty", args, count, keywords,
                      &stream);
}

static PyObject *module_device_zeros(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                     PyObject *keywords)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    PyObject *stream;
    PyObject *array = array_make(state, "device_zeros", args, count, keywords, &stream);

    if (array != NULL &&
        cudriver_device_array_fill(state, (DeviceArrayObject *)array, NULL, stream) < 0) {
        Py_CLEAR(array);
    }
    return array;
}

/* Reads to_device()'s source: a device array as it is, anything else as an ndarray. `on`: the
 * stream of the copy, else NULL. 0 or -1. */
static int source_read(CoreState *state, PyObject *object, const struct cudriver_stream *on,
                       struct cudriver_endpoint *end)
{
    /* To np.asarray, bytes are one string. */
    int found = PyBytes_Check(object) ? 0 : cudriver_endpoint_try(state, object, false, on, end);

    if (found == 0) {
        PyObject *array = cudriver_numpy_cast(object, NULL);
        found = array == NULL ? -1 : cudriver_numpy_endpoint(array, array, false, end);
        Py_XDECREF(array); /* the endpoint keeps it alive */
    }
    return found < 0 ? -1 : 0;
}

/* Copies an endpoint, and releases it. `home`: a context of the device where the copy is to be, or
 * NULL for the stream's. New reference. */
static PyObject *end_copy(CoreState *state, struct cudriver_endpoint *end, ContextObject *home,
                          PyObject *argument)
{
    ContextObject *context = context_choose(state, home, false, argument);
    struct cudriver_endpoint dst;
    PyObject *array = NULL;

    if (context != NULL) {
        array = cudriver_device_array_new(state, context, end->dtype, (Py_ssize_t)end->itemsize,
                                          end->ndim, end->shape);
        Py_DECREF(context);
    }
    if (array == NULL || cudriver_device_array_endpoint(array, true, &dst) < 0) {
        cudriver_endpoint_done(end);
        Py_CLEAR(array);
    } else if (cudriver_copy_ends(state, &dst, end, argument) < 0) {
        Py_CLEAR(array);
    }
    return array;
}

PyObject *cudriver_device_array_copy(CoreState *state, DeviceArrayObject *self, PyObject *stream)
{
    struct cudriver_endpoint end;

    if (cudriver_device_array_endpoint((PyObject *)self, false, &end) < 0) {
        return NULL;
    }
    return end_copy(state, &end, self->memory->context, stream);
}

static PyObject *module_to_device(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                  PyObject *keywords)
{
    CUDRIVER_LOCK();
    static const char *const names[] = {"array", "stream", "device", NULL};
    static const struct cudriver_signature signature = {"to_device", 2, 1, names};
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_stream stream = {.handle = NULL};
    struct cudriver_endpoint end;
    PyObject *values[3], *array = NULL;
    ContextObject *home = NULL;
    bool given;

    if (cudriver_arguments(&signature, args, count, keywords, values) < 0) {
        return NULL;
    }
    given = values[1] != NULL && values[1] != Py_None; /* else the call waits */
    if (given && cudriver_stream_read(state, values[1], &stream) < 0) {
        return NULL;
    }
    if (values[2] != NULL && values[2] != Py_None) {
        home = cudriver_context_for_device(state, values[2]);
    }
    if (!PyErr_Occurred() && source_read(state, values[0], given ? &stream : NULL, &end) == 0) {
        array = end_copy(state, &end, home, values[1]);
    }
    cudriver_stream_done(&stream);
    Py_XDECREF(home);
    return array;
}

/* _views(array, places, kinds) */
static PyObject *module_views(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    PyTypeObject *type = cudriver_state_of_module(module)->device_array_type;
    PyObject *array, *places, *kinds, *views;

    if (!PyArg_ParseTuple(args, "O!OO", type, &array, &places, &kinds)) {
        return NULL;
    }
    views = cudriver_call("arrays", "parts", "(OOO)", ((DeviceArrayObject *)array)->array, places,
                          kinds); /* a list that nobody else has */
    for (Py_ssize_t i = 0; views != NULL && i < PyList_GET_SIZE(views); i++) {
        PyObject *part = Py_NewRef(PyList_GET_ITEM(views, i));
        PyObject *view = cudriver_device_array_view((DeviceArrayObject *)array, part);
        if (view == NULL) {
            Py_CLEAR(views);
        } else {
            PyList_SetItem(views, i, view);
        }
    }
    return views;
}

PyMethodDef cudriver_device_make_functions[] = {
    {"device_empty", CUDRIVER_FAST(module_device_empty), DOC_device_empty},
    {"device_zeros", CUDRIVER_FAST(module_device_zeros), DOC_device_zeros},
    {"to_device", CUDRIVER_FAST(module_to_device), DOC_to_device},
    {"_views", module_views, METH_VARARGS, DOC__views},
    {NULL},
};

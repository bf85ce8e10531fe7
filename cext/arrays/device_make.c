/* New arrays, for memory/making.py and moving.py, and others' arrays as arrays of ours. */
#include "dlpack.h"
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

/* _device_empty(shape, dtype, device, stream, asked, fortran, axes) */
static PyObject *module_device_empty(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    PyObject *dtype, *array = NULL;
    ContextObject *context = NULL;
    Py_ssize_t shape[CUDRIVER_MAX_DIMS], itemsize;
    int ndim;

    if (count != 7) {
        return PyErr_Format(PyExc_TypeError, "_device_empty() takes 7 arguments, not %zd", count);
    }
    if (cudriver_numpy_shape(args[0], &ndim, shape) < 0 ||
        cudriver_numpy_dtype(args[1], &dtype, &itemsize) < 0) {
        return NULL;
    }
    if (args[2] != Py_None) {
        context = cudriver_context_for_device(state, args[2]);
    }
    if (!PyErr_Occurred()) {
        Py_XSETREF(context, context_choose(state, context, args[4] == Py_True, args[3]));
    }
    if (context != NULL && !PyErr_Occurred()) {
        array = cudriver_device_array_new(state, context, dtype, itemsize, ndim, shape,
                                          args[5] == Py_True);
    }
    if (array != NULL && args[6] != Py_None) { /* it owns its memory, as a view would not */
        DeviceArrayObject *made = (DeviceArrayObject *)array;
        PyObject *transposed = PyObject_CallMethod(made->array, "transpose", "(O)", args[6]);
        if (transposed != NULL) {
            Py_SETREF(made->array, transposed);
        } else {
            Py_CLEAR(array);
        }
    }
    Py_XDECREF(context);
    Py_DECREF(dtype);
    return array;
}

/* _lend(object, own, stream) */
static PyObject *module_lend(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_stream stream = {.handle = NULL}, *on;
    struct cudriver_endpoint end;
    PyObject *object, *given, *array = NULL;
    int own, found = -1;

    if (!PyArg_ParseTuple(args, "OpO", &object, &own, &given)) {
        return NULL;
    }
    if (Py_IS_TYPE(object, state->device_array_type) || cudriver_numpy_is_array(object)) {
        return Py_NewRef(object);
    }
    on = given != Py_None ? &stream : NULL;
    if (on == NULL || cudriver_stream_read(state, given, on) == 0) {
        found = cudriver_endpoint_parse(state, object, own != 0, NULL, on, &end);
    }
    if (found > 0) {
        if (!end.on_default || cudriver_dlpack_wait(state, &end, on) == 0) {
            array = cudriver_endpoint_array(state, &end);
        }
        cudriver_endpoint_done(&end);
    }
    cudriver_stream_done(&stream);
    return found == 0 ? Py_NewRef(Py_None) : array;
}

/* _views(array, function, arguments): of the list that a function makes of an ndarray */
static PyObject *module_views(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    PyTypeObject *type = cudriver_state_of_module(module)->device_array_type;
    PyObject *array, *function, *arguments, *views;

    if (!PyArg_ParseTuple(args, "O!OO", type, &array, &function, &arguments)) {
        return NULL;
    }
    views = PyObject_CallFunctionObjArgs(function, ((DeviceArrayObject *)array)->array, arguments,
                                         NULL); /* a list that nobody else has */
    if (views != NULL && !PyList_Check(views)) {
        PyErr_Format(PyExc_TypeError, "%R gives no list", function);
        Py_CLEAR(views);
    }
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
    {"_device_empty", (PyCFunction)(void (*)(void))module_device_empty, METH_FASTCALL,
     DOC__device_empty},
    {"_lend", module_lend, METH_VARARGS, DOC__lend},
    {"_views", module_views, METH_VARARGS, DOC__views},
    {NULL},
};

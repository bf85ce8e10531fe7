/* from_dlpack(). See dlpack.h. */
#include "dlpack.h"

#include "python/arguments.h"
#include "python/devices.h"
#include "python/numpy_bridge.h"
#include "docstrings.h"

/* Where an array is or is to be: a device's ordinal, or: */
#define HOST (-1)

/* Reads a device argument. 0 or -1. */
static int parse_place(PyObject *argument, int here, int *place)
{
    *place = here;
    if (argument == NULL || argument == Py_None) {
        return 0;
    }
    if (PyUnicode_Check(argument) && PyUnicode_CompareWithASCIIString(argument, "cpu") == 0) {
        *place = HOST;
        return 0;
    }
    *place = cudriver_device_parse(argument);
    return *place < 0 ? -1 : 0;
}

/* New reference: a copy in another place, or in the same one. */
static PyObject *copy_to(CoreState *state, PyObject *array, PyObject *device, int place)
{
    ContextObject *context = NULL;
    struct cudriver_endpoint end;
    PyObject *copy = NULL;

    if (cudriver_endpoint_parse(state, array, false, "array", NULL, &end) < 0) {
        return NULL;
    }
    if (place == HOST) {
        copy = cudriver_numpy_empty(end.dtype, end.ndim, end.shape, false);
    } else {
        context = end.context != NULL && end.context->ordinal == place
                      ? (ContextObject *)Py_NewRef((PyObject *)end.context)
                      : cudriver_context_for_device(state, device);
        if (context != NULL) {
            copy = cudriver_device_array_new(state, context, NULL, end.dtype,
                                             (Py_ssize_t)end.itemsize, end.ndim, end.shape);
        }
        Py_XDECREF(context);
    }
    cudriver_endpoint_done(&end);
    if (copy != NULL && cudriver_copy_blocking(state, copy, array) < 0) {
        Py_CLEAR(copy);
    }
    return copy;
}

/* New reference: an object's array where it is, without a copy of ours. */
static PyObject *array_over(CoreState *state, PyObject *object, bool never_copied)
{
    struct cudriver_endpoint end;
    struct cudriver_dl_lent lent;
    PyObject *array;
    int found;

    if (Py_IS_TYPE(object, state->device_array_type)) { /* a view keeps the order of its work */
        return cudriver_device_array_check(state, (DeviceArrayObject *)object) < 0
                   ? NULL
                   : cudriver_device_array_subscript(object, Py_Ellipsis);
    }
    found = cudriver_dlpack_borrow(state, object, cudriver_dlpack_kind(state, object), never_copied,
                                   NULL, &lent, &end);
    if (found <= 0) {
        if (found == 0) {
            PyErr_Format(PyExc_TypeError, "%.100s has no __dlpack__, so it lends no memory",
                         Py_TYPE(object)->tp_name);
        }
        return NULL;
    }
    array = cudriver_dlpack_array(state, &lent, &end);
    cudriver_endpoint_done(&end);
    Py_DECREF(lent.keeper);
    return array;
}

int cudriver_host_view(CoreState *state, PyObject *object, PyObject **array)
{
    struct cudriver_endpoint end;
    struct cudriver_dl_lent lent;
    int found = cudriver_numpy_view(object, array);

    if (found != 0 || PyType_Check(object) || Py_IS_TYPE(object, state->device_array_type)) {
        return found;
    }
    found = cudriver_dlpack_borrow(state, object, cudriver_dlpack_kind(state, object), true, NULL,
                                   &lent, &end);
    if (found <= 0) {
        return found;
    }
    found = cudriver_endpoint_is_device(&end) ? 0 : 1;
    if (found > 0) {
        *array = cudriver_dlpack_array(state, &lent, &end);
        found = *array != NULL ? 1 : -1;
    }
    cudriver_endpoint_done(&end);
    Py_DECREF(lent.keeper);
    return found;
}

static PyObject *module_from_dlpack(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                    PyObject *keywords)
{
    static const char *const names[] = {"x", "device", "copy", NULL};
    static const struct cudriver_signature signature = {"from_dlpack", 1, 1, names};
    CoreState *state = cudriver_state_of_module(module);
    PyObject *values[3], *array;
    int copy = -1, here, place;

    if (cudriver_arguments(&signature, args, count, keywords, values) < 0) {
        return NULL;
    }
    if (values[2] != NULL && values[2] != Py_None) {
        copy = PyObject_IsTrue(values[2]);
        if (copy < 0) {
            return NULL;
        }
    }
    array = array_over(state, values[0], copy == 0);
    if (array == NULL) {
        return NULL;
    }
    here = Py_IS_TYPE(array, state->device_array_type)
               ? ((DeviceArrayObject *)array)->memory->context->ordinal
               : HOST;
    if (parse_place(values[1], here, &place) < 0) {
        Py_CLEAR(array);
    } else if (place != here && copy == 0) {
        PyErr_Format(PyExc_ValueError,
                     "the %.100s is not on the device asked for (%R), and copy=False",
                     Py_TYPE(values[0])->tp_name, values[1]);
        Py_CLEAR(array);
    } else if (place != here || copy > 0) {
        Py_SETREF(array, copy_to(state, array, values[1], place));
    }
    return array;
}

static PyMethodDef functions[] = {
    {"from_dlpack", CUDRIVER_FAST(module_from_dlpack), DOC_from_dlpack},
    {NULL},
};

int cudriver_dlpack_from_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

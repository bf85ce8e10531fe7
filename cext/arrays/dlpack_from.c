/* from_dlpack(). See dlpack.h. */
#include "dlpack.h"

#include "python/arguments.h"
#include "python/call.h"
#include "python/numpy_bridge.h"
#include "docstrings.h"

/* New reference: an object's array where it is, without a copy of ours. */
static PyObject *array_over(CoreState *state, PyObject *object, bool never_copied)
{
    struct cudriver_endpoint end;
    struct cudriver_dl_lent lent;
    PyObject *array;
    int found;

    if (Py_IS_TYPE(object, state->device_array_type)) { /* a view keeps the order of its work */
        return cudriver_device_array_check((DeviceArrayObject *)object) < 0
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
    PyObject *values[3], *device, *copy;

    if (cudriver_arguments(&signature, args, count, keywords, values) < 0) {
        return NULL;
    }
    device = values[1] != NULL ? values[1] : Py_None;
    copy = values[2] != NULL ? values[2] : Py_None;
    if (device != Py_None || (copy != Py_None && copy != Py_False)) {
        return cudriver_call("dlpack", "take", "(OOO)", values[0], device, copy);
    }
    return array_over(cudriver_state_of_module(module), values[0], copy == Py_False);
}

static PyMethodDef functions[] = {
    {"from_dlpack", CUDRIVER_FAST(module_from_dlpack), DOC_from_dlpack},
    {NULL},
};

int cudriver_dlpack_from_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

/* DeviceArray: the type. See device_array.h. */
#include "dlpack.h"

#include "python/call.h"
#include "python/numpy_bridge.h"
#include "docstrings.h"

static DeviceArrayObject *array_of(PyObject *object)
{
    return (DeviceArrayObject *)object;
}

static PyObject *array_repr(PyObject *object)
{
    return cudriver_call(CALL_arrays_text, object);
}

static Py_ssize_t array_length(PyObject *object)
{
    return PyObject_Size(array_of(object)->array);
}

/* What the ndarray has by the same name. */
static PyObject *get_geometry(PyObject *object, void *name)
{
    return PyObject_GetAttrString(array_of(object)->array, name);
}

/* What is written in Python: memory/arrays.py has a function of the property's name, which takes
 * the array, the ndarray of its geometry, and whether it owns the memory. */
static PyObject *get_python(PyObject *object, void *function)
{
    DeviceArrayObject *self = array_of(object);
    bool owns;

    {
        CUDRIVER_LOCK();
        owns = !self->is_view && self->memory->lender == NULL;
    }
    return cudriver_call((enum cudriver_function)(uintptr_t)function, object, self->array,
                         owns ? Py_True : Py_False);
}

static PyObject *get_closed(PyObject *object, void *Py_UNUSED(closure))
{
    CUDRIVER_LOCK();
    return PyBool_FromLong(array_of(object)->memory->closed);
}

static PyObject *get_context(PyObject *object, void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)array_of(object)->memory->context);
}

static PyObject *get_device(PyObject *object, void *Py_UNUSED(closure))
{
    return cudriver_call(CALL_devices_device_at, array_of(object)->memory->context->ordinal);
}

/* `shared`: not NULL if the address leaves this package. */
static PyObject *get_pointer(PyObject *object, void *shared)
{
    CUDRIVER_LOCK();
    struct cudriver_endpoint end;
    Py_ssize_t bytes;

    if (cudriver_device_array_endpoint(object, &end) < 0) {
        return NULL;
    }
    array_of(object)->memory->shared |= shared != NULL;
    bytes = cudriver_numpy_bytes(end.ndim, end.shape, (Py_ssize_t)end.itemsize);
    cudriver_endpoint_done(&end);
    return PyLong_FromUnsignedLongLong(bytes > 0 ? end.device : 0);
}

/* ---- views ---- */

static PyObject *get_reversed(PyObject *object, void *Py_UNUSED(closure))
{
    return cudriver_device_array_view(array_of(object), get_geometry(object, "T"));
}

static PyObject *method_view(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"dtype", NULL};
    PyObject *argument, *dtype, *view;
    Py_ssize_t itemsize;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:view", names, &argument) ||
        cudriver_numpy_dtype(argument, &dtype, &itemsize) < 0) {
        return NULL;
    }
    view = PyObject_CallMethod(array_of(object)->array, "view", "O", dtype);
    Py_DECREF(dtype);
    return cudriver_device_array_view(array_of(object), view);
}

/* Defines a method that makes a view: by a function of memory/arrays.py, which takes the ndarray in
 * place of the array. */
#define VIEW_IN_PYTHON(method, function)                                                     \
    static PyObject *method(PyObject *object, PyObject *const *args, Py_ssize_t count,       \
                            PyObject *keywords)                                              \
    {                                                                                        \
        PyObject *array = array_of(object)->array;                                           \
        return cudriver_device_array_view(                                                   \
            array_of(object), cudriver_call_method(function, array, args, count, keywords)); \
    }

VIEW_IN_PYTHON(method_transpose, CALL_arrays_transpose)
VIEW_IN_PYTHON(method_reshape, CALL_arrays_reshape)

/* ---- in Python ---- */

CUDRIVER_IN_PYTHON(method_dlpack, CALL_dlpack_export)
CUDRIVER_IN_PYTHON(method_fill, CALL_moving_fill)
CUDRIVER_IN_PYTHON(method_to_numpy, CALL_moving_to_numpy)
CUDRIVER_IN_PYTHON(method_copy, CALL_moving_copy)
CUDRIVER_IN_PYTHON(method_deepcopy, CALL_moving_deepcopy)
CUDRIVER_IN_PYTHON(method_reduce, CALL_arrays_refuse_pickle)
CUDRIVER_IN_PYTHON(method_refuse, CALL_arrays_refuse_conversion)
CUDRIVER_IN_PYTHON(method_function, CALL_arrays_array_function)
CUDRIVER_IN_PYTHON(method_format, CALL_arrays_formatted)

/* array[key] = value */
static int array_assign(PyObject *object, PyObject *key, PyObject *value)
{
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "the items of a DeviceArray cannot be deleted");
        return -1;
    }
    return cudriver_do(CALL_moving_assign, object, key, value);
}

/* ---- what would read items on the device, one by one ---- */

static PyObject *array_refuse(PyObject *object, const char *verb, const char *or)
{
    PyErr_Format(PyExc_TypeError,
                 "cannot %s %R: its items are in device memory; call to_numpy() first%s", verb,
                 object, or);
    return NULL;
}

static PyObject *array_number(PyObject *object)
{
    return array_refuse(object, "make a number of", ": to_numpy().item()");
}

static PyObject *array_compute(PyObject *left, PyObject *right)
{
    return cudriver_call(CALL_arrays_refuse_computing, left, right);
}

static int array_truth(PyObject *object)
{
    array_refuse(object, "take the truth value of", ", or ask `is None` or `size`");
    return -1;
}

static PyObject *array_iterate(PyObject *object)
{
    return array_refuse(object, "iterate over", ", or index it: array[i] is a view");
}

/* An array equals itself, so that it can be a key; for all else its items would count. */
static PyObject *array_compare(PyObject *object, PyObject *other, int operation)
{
    if (object == other && (operation == Py_EQ || operation == Py_NE)) {
        return PyBool_FromLong(operation == Py_EQ);
    }
    return array_refuse(object, "compare", ", or ask `is` for the same object");
}

static Py_hash_t array_hash(PyObject *object)
{
    return PyBaseObject_Type.tp_hash(object);
}

static PyGetSetDef array_getset[] = {
    {"shape", get_geometry, NULL, DOC_DeviceArray_shape, "shape"},
    {"strides", get_geometry, NULL, DOC_DeviceArray_strides, "strides"},
    {"dtype", get_geometry, NULL, DOC_DeviceArray_dtype, "dtype"},
    {"ndim", get_geometry, NULL, DOC_DeviceArray_ndim, "ndim"},
    {"size", get_geometry, NULL, DOC_DeviceArray_size, "size"},
    {"itemsize", get_geometry, NULL, DOC_DeviceArray_itemsize, "itemsize"},
    {"nbytes", get_geometry, NULL, DOC_DeviceArray_nbytes, "nbytes"},
    {"T", get_reversed, NULL, DOC_DeviceArray_T, NULL},
    {"flags", get_python, NULL, DOC_DeviceArray_flags, (void *)CALL_arrays_flags},
    {"pointer", get_pointer, NULL, DOC_DeviceArray_pointer, "shared"},
    {"_address", get_pointer, NULL, DOC_DeviceArray__address, NULL},
    {"device", get_device, NULL, DOC_DeviceArray_device, NULL},
    {"context", get_context, NULL, DOC_DeviceArray_context, NULL},
    {"closed", get_closed, NULL, DOC_DeviceArray_closed, NULL},
    {"__cuda_array_interface__", get_python, NULL, DOC_DeviceArray___cuda_array_interface__,
     (void *)CALL_arrays_interface},
    {NULL},
};

static PyMethodDef array_methods[] = {
    {"fill", CUDRIVER_FAST(method_fill), DOC_DeviceArray_fill},
    {"to_numpy", CUDRIVER_FAST(method_to_numpy), DOC_DeviceArray_to_numpy},
    {"copy", CUDRIVER_FAST(method_copy), DOC_DeviceArray_copy},
    {"__copy__", CUDRIVER_FAST(method_copy), DOC_DeviceArray___copy__},
    {"__deepcopy__", CUDRIVER_FAST(method_deepcopy), DOC_DeviceArray___deepcopy__},
    {"__reduce__", CUDRIVER_FAST(method_reduce), DOC_DeviceArray___reduce__},
    {"close", cudriver_device_array_close, METH_NOARGS, DOC_DeviceArray_close},
    {"transpose", CUDRIVER_FAST(method_transpose), DOC_DeviceArray_transpose},
    {"reshape", CUDRIVER_FAST(method_reshape), DOC_DeviceArray_reshape},
    {"view", (PyCFunction)(void (*)(void))method_view, METH_VARARGS | METH_KEYWORDS,
     DOC_DeviceArray_view},
    {"__dlpack__", CUDRIVER_FAST(method_dlpack), DOC_DeviceArray___dlpack__},
    {"__dlpack_device__", cudriver_device_array_dlpack_device, METH_NOARGS,
     DOC_DeviceArray___dlpack_device__},
    {"__array__", CUDRIVER_FAST(method_refuse), DOC_DeviceArray___array__},
    {"__array_function__", CUDRIVER_FAST(method_function), DOC_DeviceArray___array_function__},
    {"__format__", CUDRIVER_FAST(method_format), DOC_DeviceArray___format__},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, DOC_DeviceArray___class_getitem__},
    {NULL},
};

static PyMemberDef array_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(DeviceArrayObject, weak), READONLY, NULL},
    {NULL},
};

static PyType_Slot array_slots[] = {
    {Py_tp_doc, DOC_DeviceArray},
    {Py_tp_dealloc, cudriver_device_array_dealloc},
    {Py_tp_repr, array_repr},
    {Py_tp_methods, array_methods},
    {Py_tp_getset, array_getset},
    {Py_tp_members, array_members},
    {Py_mp_length, array_length},
    {Py_mp_subscript, cudriver_device_array_subscript},
    {Py_mp_ass_subscript, array_assign},
    {Py_tp_richcompare, array_compare},
    {Py_tp_hash, array_hash},
    {Py_tp_iter, array_iterate},
    {Py_nb_bool, array_truth},
    {Py_nb_float, array_number},
    {Py_nb_int, array_number},
    {Py_nb_add, array_compute},
    {Py_nb_subtract, array_compute},
    {Py_nb_multiply, array_compute},
    {Py_nb_true_divide, array_compute},
    {Py_nb_matrix_multiply, array_compute},
    {0, NULL},
};

PyType_Spec cudriver_device_array_spec = {
    .name = "cudriver.DeviceArray",
    .basicsize = sizeof(DeviceArrayObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = array_slots,
};

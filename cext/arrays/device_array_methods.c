/* DeviceArray: the type. See device_array.h. */
#include "device_array.h"

#include "dlpack.h"

#include "python/arguments.h"
#include "python/call.h"
#include "python/numpy_bridge.h"
#include "docstrings.h"

static DeviceArrayObject *array_of(PyObject *object)
{
    return (DeviceArrayObject *)object;
}

static PyObject *array_repr(PyObject *object)
{
    CUDRIVER_LOCK();
    DeviceArrayObject *self = array_of(object);
    PyObject *shape = PyObject_GetAttrString(self->array, "shape");
    PyObject *dtype = PyObject_GetAttrString(self->array, "dtype");
    PyObject *text = NULL;

    if (shape != NULL && dtype != NULL) {
        text = PyUnicode_FromFormat("<DeviceArray shape=%R dtype=%S on device %d%s>", shape, dtype,
                                    self->memory->context->ordinal,
                                    self->memory->closed ? ", closed" : "");
    }
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    return text;
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
static PyObject *get_python(PyObject *object, void *name)
{
    DeviceArrayObject *self = array_of(object);
    bool owns;

    {
        CUDRIVER_LOCK();
        owns = !self->is_view && self->memory->lender == NULL;
    }
    return cudriver_call("arrays", name, "(OOO)", object, self->array, owns ? Py_True : Py_False);
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
    return cudriver_device_new(array_of(object)->memory->context->ordinal);
}

static PyObject *get_pointer(PyObject *object, void *Py_UNUSED(closure))
{
    CUDRIVER_LOCK();
    DeviceArrayObject *self = array_of(object);
    struct cudriver_endpoint end;
    size_t items = 1;

    if (cudriver_device_array_endpoint(object, false, &end) < 0) {
        return NULL;
    }
    self->memory->shared = true;
    for (int i = 0; i < end.ndim; i++) {
        items = end.shape[i] == 0 ? 0 : items;
    }
    cudriver_endpoint_done(&end);
    return PyLong_FromUnsignedLongLong(items > 0 && end.itemsize > 0 ? end.device : 0);
}

/* ---- views ---- */

static PyObject *get_reversed(PyObject *object, void *Py_UNUSED(closure))
{
    return cudriver_device_array_view(array_of(object), get_geometry(object, "T"));
}

static PyObject *method_transpose(PyObject *object, PyObject *axes)
{
    PyObject *transpose = get_geometry(object, "transpose"), *view = NULL;

    if (transpose != NULL) {
        view = PyObject_Call(transpose, axes, NULL);
        Py_DECREF(transpose);
    }
    return cudriver_device_array_view(array_of(object), view);
}

static PyObject *method_view(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    static const char *const names[] = {"dtype", NULL};
    static const struct cudriver_signature signature = {"view", 1, 1, names};
    PyObject *argument, *dtype, *view;
    Py_ssize_t itemsize;

    if (cudriver_arguments(&signature, args, count, keywords, &argument) < 0 ||
        cudriver_numpy_dtype(argument, &dtype, &itemsize) < 0) {
        return NULL;
    }
    view = PyObject_CallMethod(array_of(object)->array, "view", "O", dtype);
    Py_DECREF(dtype);
    return cudriver_device_array_view(array_of(object), view);
}

static PyObject *method_reshape(PyObject *object, PyObject *args, PyObject *keywords)
{
    PyObject *shape = PyTuple_GET_SIZE(args) == 1 ? PyTuple_GET_ITEM(args, 0) : args;
    PyObject *array = array_of(object)->array, *view;

    if (keywords == NULL && cudriver_numpy_is_c_contiguous(array)) {
        view = PyObject_CallMethod(array, "reshape", "(O)", shape);
    } else { /* NumPy might copy */
        view = cudriver_call("arrays", "reshape", "(OOO)", array, shape,
                             keywords != NULL ? keywords : Py_None);
    }
    return cudriver_device_array_view(array_of(object), view);
}

/* ---- filling and copying ---- */

static PyObject *method_fill(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    CUDRIVER_LOCK();
    static const char *const names[] = {"value", "stream", NULL};
    static const struct cudriver_signature signature = {"fill", 2, 1, names};
    PyObject *values[2];

    if (cudriver_arguments(&signature, args, count, keywords, values) < 0 ||
        cudriver_device_array_fill(cudriver_state_of(object), array_of(object), values[0],
                                   values[1]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Copies to or from an argument: waits if there is no stream, else returns a Transfer. */
static PyObject *copy_either_way(const struct cudriver_signature *signature, PyObject *object,
                                 bool to, PyObject *const *args, Py_ssize_t count,
                                 PyObject *keywords)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of(object);
    PyObject *values[2], *dst, *src;

    if (cudriver_arguments(signature, args, count, keywords, values) < 0) {
        return NULL;
    }
    dst = to ? values[0] : object;
    src = to ? object : values[0];
    if (values[1] != NULL && values[1] != Py_None) {
        return cudriver_copy_async(state, dst, src, values[1]);
    }
    return cudriver_copy_blocking(state, dst, src) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *method_copy_from(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                  PyObject *keywords)
{
    static const char *const names[] = {"src", "stream", NULL};
    static const struct cudriver_signature signature = {"copy_from", 2, 1, names};

    return copy_either_way(&signature, object, false, args, count, keywords);
}

static PyObject *method_copy_to(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords)
{
    static const char *const names[] = {"dst", "stream", NULL};
    static const struct cudriver_signature signature = {"copy_to", 2, 1, names};

    return copy_either_way(&signature, object, true, args, count, keywords);
}

/* 0 when the copy is over, or -1. */
static int copy_and_wait(CoreState *state, PyObject *dst, PyObject *src, PyObject *stream)
{
    PyObject *transfer, *done;

    if (stream == NULL || stream == Py_None) {
        return cudriver_copy_blocking(state, dst, src);
    }
    transfer = cudriver_copy_async(state, dst, src, stream);
    done = transfer != NULL ? PyObject_CallMethod(transfer, "wait", NULL) : NULL;
    Py_XDECREF(transfer);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

/* 0 if `out` is an array in host memory, else -1 with an exception set. */
static int out_check(CoreState *state, PyObject *out)
{
    struct cudriver_endpoint end;
    bool host;
    int found;

    if (cudriver_numpy_is_array(out)) {
        return 0;
    }
    found = cudriver_endpoint_try(state, out, true, CUDRIVER_UNORDERED, &end);
    host = found > 0 && end.context == NULL;
    if (found > 0) {
        cudriver_endpoint_done(&end);
    }
    if (found >= 0 && !host) {
        PyErr_Format(PyExc_TypeError, "out is not an array in host memory, but a %.100s",
                     Py_TYPE(out)->tp_name);
    }
    return host ? 0 : -1;
}

static PyObject *method_to_numpy(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                 PyObject *keywords)
{
    CUDRIVER_LOCK();
    static const char *const names[] = {"out", "stream", NULL};
    static const struct cudriver_signature signature = {"to_numpy", 1, 0, names};
    CoreState *state = cudriver_state_of(object);
    PyObject *values[2], *array = NULL;
    struct cudriver_endpoint end;

    if (cudriver_arguments(&signature, args, count, keywords, values) < 0 ||
        cudriver_device_array_endpoint(object, false, &end) < 0) {
        return NULL;
    }
    if (values[0] == NULL || values[0] == Py_None) {
        array = cudriver_numpy_empty(end.dtype, end.ndim, end.shape);
    } else if (out_check(state, values[0]) == 0) {
        array = Py_NewRef(values[0]);
    }
    cudriver_endpoint_done(&end);
    if (array != NULL && copy_and_wait(state, array, object, values[1]) < 0) {
        Py_CLEAR(array);
    }
    return array;
}

static PyObject *method_copy(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    CUDRIVER_LOCK();
    static const char *const names[] = {"stream", NULL};
    static const struct cudriver_signature signature = {"copy", 1, 0, names};
    PyObject *stream;

    if (cudriver_arguments(&signature, args, count, keywords, &stream) < 0) {
        return NULL;
    }
    return cudriver_device_array_copy(cudriver_state_of(object), array_of(object), stream);
}

/* copy.copy() and copy.deepcopy(), whose memo has nothing to find here. */
static PyObject *method_copy_plain(PyObject *object, PyObject *Py_UNUSED(memo))
{
    CUDRIVER_LOCK();
    return cudriver_device_array_copy(cudriver_state_of(object), array_of(object), NULL);
}

static PyObject *method_reduce(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    PyErr_Format(PyExc_TypeError,
                 "cannot pickle %R: device memory belongs to this process; pickle its to_numpy(), "
                 "and give that to to_device() where it is loaded",
                 object);
    return NULL;
}

static PyObject *method_refuse(PyObject *object, PyObject *Py_UNUSED(args),
                               PyObject *Py_UNUSED(keywords))
{
    PyErr_Format(
        PyExc_TypeError,
        "%R is in device memory and does not turn into a NumPy array by itself: call to_numpy()",
        object);
    return NULL;
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
    return array_refuse(object, "make a number of", "");
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

/* Where an attribute is missing, the error says what DeviceArrays have in its place. */
static PyObject *array_getattro(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(object, name);

    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError) &&
        PyUnicode_READ_CHAR(name, 0) != '_') {
        PyErr_Clear();
        value = cudriver_call("arrays", "missing", "(OO)", object, name);
    }
    return value;
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
    {"flags", get_python, NULL, DOC_DeviceArray_flags, "flags"},
    {"pointer", get_pointer, NULL, DOC_DeviceArray_pointer, NULL},
    {"device", get_device, NULL, DOC_DeviceArray_device, NULL},
    {"context", get_context, NULL, DOC_DeviceArray_context, NULL},
    {"closed", get_closed, NULL, DOC_DeviceArray_closed, NULL},
    {"__cuda_array_interface__", get_python, NULL, DOC_DeviceArray___cuda_array_interface__,
     "interface"},
    {NULL},
};

static PyMethodDef array_methods[] = {
    {"fill", CUDRIVER_FAST(method_fill), DOC_DeviceArray_fill},
    {"copy_from", CUDRIVER_FAST(method_copy_from), DOC_DeviceArray_copy_from},
    {"copy_to", CUDRIVER_FAST(method_copy_to), DOC_DeviceArray_copy_to},
    {"to_numpy", CUDRIVER_FAST(method_to_numpy), DOC_DeviceArray_to_numpy},
    {"copy", CUDRIVER_FAST(method_copy), DOC_DeviceArray_copy},
    {"__copy__", method_copy_plain, METH_NOARGS, DOC_DeviceArray___copy__},
    {"__deepcopy__", method_copy_plain, METH_O, DOC_DeviceArray___deepcopy__},
    {"__reduce__", method_reduce, METH_NOARGS, DOC_DeviceArray___reduce__},
    {"close", cudriver_device_array_close, METH_NOARGS, DOC_DeviceArray_close},
    {"transpose", method_transpose, METH_VARARGS, DOC_DeviceArray_transpose},
    {"reshape", (PyCFunction)(void (*)(void))method_reshape, METH_VARARGS | METH_KEYWORDS,
     DOC_DeviceArray_reshape},
    {"view", CUDRIVER_FAST(method_view), DOC_DeviceArray_view},
    {"__dlpack__", CUDRIVER_FAST(cudriver_device_array_dlpack), DOC_DeviceArray___dlpack__},
    {"__dlpack_device__", cudriver_device_array_dlpack_device, METH_NOARGS,
     DOC_DeviceArray___dlpack_device__},
    {"__array__", (PyCFunction)(void (*)(void))method_refuse, METH_VARARGS | METH_KEYWORDS,
     DOC_DeviceArray___array__},
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
    {Py_tp_getattro, array_getattro},
    {Py_tp_methods, array_methods},
    {Py_tp_getset, array_getset},
    {Py_tp_members, array_members},
    {Py_mp_length, array_length},
    {Py_mp_subscript, cudriver_device_array_subscript},
    {Py_mp_ass_subscript, cudriver_device_array_assign},
    {Py_tp_richcompare, array_compare},
    {Py_tp_hash, array_hash},
    {Py_tp_iter, array_iterate},
    {Py_nb_bool, array_truth},
    {Py_nb_float, array_number},
    {Py_nb_int, array_number},
    {0, NULL},
};

PyType_Spec cudriver_device_array_spec = {
    .name = "cudriver.DeviceArray",
    .basicsize = sizeof(DeviceArrayObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = array_slots,
};

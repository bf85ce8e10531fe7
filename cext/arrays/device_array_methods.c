/* DeviceArray: the type. See device_array.h. */
#include "device_array.h"

#include "dlpack.h"

#include "python/arguments.h"
#include "python/devices.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"
#include "python/types.h"
#include "docstrings.h"

static DeviceArrayObject *array_of(PyObject *object)
{
    return (DeviceArrayObject *)object;
}

static Py_ssize_t array_bytes(DeviceArrayObject *self)
{
    return cudriver_shape_bytes(self->ndim, self->shape, self->itemsize); /* fits: it was made */
}

static PyObject *array_repr(PyObject *object)
{
    DeviceArrayObject *self = array_of(object);
    PyObject *shape = cudriver_shape_tuple(self->ndim, self->shape);
    PyObject *text = NULL;

    if (shape != NULL) {
        text = PyUnicode_FromFormat("<DeviceArray shape=%R dtype=%S on device %d%s>", shape,
                                    self->dtype, self->context->ordinal,
                                    cudriver_device_array_root(self)->closed ? ", closed" : "");
        Py_DECREF(shape);
    }
    return text;
}

static Py_ssize_t array_length(PyObject *object)
{
    if (array_of(object)->ndim == 0) {
        PyErr_SetString(PyExc_TypeError, "len() of an array without dimensions");
        return -1;
    }
    return array_of(object)->shape[0];
}

static PyObject *get_shape(PyObject *object, void *Py_UNUSED(closure))
{
    return cudriver_shape_tuple(array_of(object)->ndim, array_of(object)->shape);
}

static PyObject *get_strides(PyObject *object, void *Py_UNUSED(closure))
{
    return cudriver_shape_tuple(array_of(object)->ndim, array_of(object)->strides);
}

static PyObject *get_size(PyObject *object, void *Py_UNUSED(closure))
{
    Py_ssize_t size = cudriver_shape_bytes(array_of(object)->ndim, array_of(object)->shape, 1);

    return size < 0 ? NULL : PyLong_FromSsize_t(size);
}

static PyObject *get_nbytes(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(array_bytes(array_of(object)));
}

static PyObject *get_closed(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(cudriver_device_array_root(array_of(object))->closed);
}

static PyObject *get_pointer(PyObject *object, void *Py_UNUSED(closure))
{
    DeviceArrayObject *self = array_of(object);

    if (cudriver_device_array_check(cudriver_state_of(object), self) < 0) {
        return NULL;
    }
    cudriver_device_array_root(self)->block.shared = true;
    cudriver_device_settle(self->context, &cudriver_device_array_root(self)->block);
    return PyLong_FromUnsignedLongLong(self->address);
}

static PyObject *get_device(PyObject *object, void *Py_UNUSED(closure))
{
    return cudriver_device_new(array_of(object)->context->ordinal);
}

static PyObject *get_interface(PyObject *object, void *closure)
{
    DeviceArrayObject *self = array_of(object);
    PyObject *pointer = get_pointer(object, closure), *descr;

    if (pointer != NULL && array_bytes(self) == 0) { /* the protocol demands 0 for an empty array */
        Py_SETREF(pointer, PyLong_FromLong(0));
    }
    descr = pointer != NULL ? cudriver_numpy_descr(self->dtype) : NULL;
    if (descr == NULL) {
        Py_XDECREF(pointer);
        return NULL;
    }
    return Py_BuildValue("{s:i,s:N,s:N,s:N,s:N,s:(NO),s:O}", "version", 3, "typestr",
                         cudriver_numpy_typestr(self->dtype), "descr", descr, "shape",
                         get_shape(object, NULL), "strides", get_strides(object, NULL), "data",
                         pointer, self->read_only ? Py_True : Py_False, "stream", Py_None);
}

static PyObject *method_fill(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
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

static PyObject *method_to_numpy(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                 PyObject *keywords)
{
    static const char *const names[] = {"out", NULL};
    static const struct cudriver_signature signature = {"to_numpy", 1, 0, names};
    DeviceArrayObject *self = array_of(object);
    CoreState *state = cudriver_state_of(object);
    PyObject *out, *array = NULL;

    if (cudriver_arguments(&signature, args, count, keywords, &out) < 0 ||
        cudriver_device_array_check(state, self) < 0) {
        return NULL;
    }
    out = out != Py_None ? out : NULL;
    if (out == NULL) {
        array = cudriver_numpy_empty(self->dtype, self->ndim, self->shape, false);
    } else if (cudriver_numpy_is_array(out)) {
        array = Py_NewRef(out);
    } else if (cudriver_host_view(state, out, &array) == 0) {
        PyErr_Format(PyExc_TypeError, "out is not an array in host memory, but a %.100s",
                     Py_TYPE(out)->tp_name);
    }
    if (array == NULL || cudriver_copy_blocking(state, array, object) < 0) {
        Py_XDECREF(array);
        return NULL;
    }
    if (out != NULL) {
        Py_SETREF(array, Py_NewRef(out));
    }
    return array;
}

static PyObject *method_copy(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
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

static PyGetSetDef array_getset[] = {
    {"shape", get_shape, NULL, DOC_DeviceArray_shape, NULL},
    {"strides", get_strides, NULL, DOC_DeviceArray_strides, NULL},
    {"size", get_size, NULL, DOC_DeviceArray_size, NULL},
    {"T", cudriver_device_array_reversed, NULL, DOC_DeviceArray_T, NULL},
    {"flags", cudriver_device_array_flags, NULL, DOC_DeviceArray_flags, NULL},
    {"nbytes", get_nbytes, NULL, DOC_DeviceArray_nbytes, NULL},
    {"pointer", get_pointer, NULL, DOC_DeviceArray_pointer, NULL},
    {"device", get_device, NULL, DOC_DeviceArray_device, NULL},
    {"closed", get_closed, NULL, DOC_DeviceArray_closed, NULL},
    {"__cuda_array_interface__", get_interface, NULL, DOC_DeviceArray___cuda_array_interface__,
     NULL},
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
    {"transpose", cudriver_device_array_transpose, METH_VARARGS, DOC_DeviceArray_transpose},
    {"reshape", (PyCFunction)(void (*)(void))cudriver_device_array_reshape,
     METH_VARARGS | METH_KEYWORDS, DOC_DeviceArray_reshape},
    {"view", CUDRIVER_FAST(cudriver_device_array_view_as), DOC_DeviceArray_view},
    {"__dlpack__", CUDRIVER_FAST(cudriver_device_array_dlpack), DOC_DeviceArray___dlpack__},
    {"__dlpack_device__", cudriver_device_array_dlpack_device, METH_NOARGS,
     DOC_DeviceArray___dlpack_device__},
    {"__array__", (PyCFunction)(void (*)(void))method_refuse, METH_VARARGS | METH_KEYWORDS,
     DOC_DeviceArray___array__},
    {NULL},
};

static PyMemberDef array_members[] = {
    {"dtype", T_OBJECT, offsetof(DeviceArrayObject, dtype), READONLY, DOC_DeviceArray_dtype},
    {"ndim", T_INT, offsetof(DeviceArrayObject, ndim), READONLY, DOC_DeviceArray_ndim},
    {"itemsize", T_PYSSIZET, offsetof(DeviceArrayObject, itemsize), READONLY,
     DOC_DeviceArray_itemsize},
    {"context", T_OBJECT, offsetof(DeviceArrayObject, context), READONLY, DOC_DeviceArray_context},
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
    {Py_mp_ass_subscript, cudriver_device_array_assign},
    {Py_tp_richcompare, array_compare},
    {Py_tp_hash, array_hash},
    {Py_tp_iter, array_iterate},
    {Py_nb_bool, array_truth},
    {Py_nb_float, array_number},
    {Py_nb_int, array_number},
    {0, NULL},
};

static PyType_Spec array_spec = {
    .name = "cudriver.DeviceArray",
    .basicsize = sizeof(DeviceArrayObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = array_slots,
};

int cudriver_device_array_setup(PyObject *module)
{
    if (cudriver_type_add(module, &cudriver_state_of_module(module)->device_array_type,
                          &array_spec) < 0) {
        return -1;
    }
    return cudriver_device_array_views_setup(module);
}

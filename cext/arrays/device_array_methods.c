/* DeviceArray: the type. See device_array.h. */
#include "device_array.h"

#include "dlpack.h"

#include "python/arguments.h"
#include "python/devices.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"
#include "python/types.h"

static DeviceArrayObject *array_of(PyObject *object)
{
    return (DeviceArrayObject *)object;
}

static Py_ssize_t array_bytes(DeviceArrayObject *self)
{
    return cudriver_shape_bytes(self->ndim, self->shape, self->itemsize); /* fits: it was made */
}

PyDoc_STRVAR(array_close_doc,
             "close($self, /)\n"
             "--\n"
             "\n"
             "Free the memory now.\n"
             "\n"
             "Raises\n"
             "------\n"
             "ValueError\n"
             "    Views or running copies use it.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Uses ``cuMemFreeAsync`` or ``cuMemFree``. A second call does nothing.");

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
    return cudriver_device_new(cudriver_state_of(object), array_of(object)->context->ordinal);
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

PyDoc_STRVAR(fill_doc,
             "fill($self, value, stream=None)\n"
             "--\n"
             "\n"
             "Set every item to a value.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "value : scalar\n"
             "    Cast to the array's dtype.\n"
             "stream : Stream, optional\n"
             "    The stream in whose order to fill. Without one, the call waits.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Uses ``cuMemsetD8Async`` and its kin, or a copy for items of other sizes.");

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

PyDoc_STRVAR(copy_from_doc,
             "copy_from($self, src, stream=None)\n"
             "--\n"
             "\n"
             "Copy another array into this one.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "src : array\n"
             "    Any array that `cudriver.copy` takes, of the same shape and dtype.\n"
             "stream : Stream, optional\n"
             "    The stream in whose order to copy. Without one, the call waits.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "Transfer or None\n"
             "    A Transfer if a stream is given.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "As `copy_async` with a stream, as `cudriver.copy` without.");

static PyObject *method_copy_from(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                  PyObject *keywords)
{
    static const char *const names[] = {"src", "stream", NULL};
    static const struct cudriver_signature signature = {"copy_from", 2, 1, names};

    return copy_either_way(&signature, object, false, args, count, keywords);
}

PyDoc_STRVAR(copy_to_doc,
             "copy_to($self, dst, stream=None)\n"
             "--\n"
             "\n"
             "Copy this array into another one.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "dst : array\n"
             "    Any array that `cudriver.copy` takes, of the same shape and dtype.\n"
             "stream : Stream, optional\n"
             "    The stream in whose order to copy. Without one, the call waits.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "Transfer or None\n"
             "    A Transfer if a stream is given.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "As `copy_async` with a stream, as `cudriver.copy` without.");

static PyObject *method_copy_to(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords)
{
    static const char *const names[] = {"dst", "stream", NULL};
    static const struct cudriver_signature signature = {"copy_to", 2, 1, names};

    return copy_either_way(&signature, object, true, args, count, keywords);
}

PyDoc_STRVAR(to_numpy_doc,
             "to_numpy($self, out=None)\n"
             "--\n"
             "\n"
             "Return the items in host memory, and wait for the copy.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "out : array, optional\n"
             "    Where to copy: an array in host memory that `cudriver.copy` takes, of the same\n"
             "    shape and dtype.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "numpy.ndarray\n"
             "    `out`, or a new array in C order.");

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

PyDoc_STRVAR(copy_doc, "copy($self, stream=None)\n"
                       "--\n"
                       "\n"
                       "Return a copy on the same device.\n"
                       "\n"
                       "Parameters\n"
                       "----------\n"
                       "stream : Stream, optional\n"
                       "    The stream in whose order to allocate and copy. Without one, the call "
                       "waits.\n"
                       "\n"
                       "Returns\n"
                       "-------\n"
                       "DeviceArray\n"
                       "    In C order, with memory of its own.\n"
                       "\n"
                       "Raises\n"
                       "------\n"
                       "OutOfMemoryError\n"
                       "    The device has too little memory; the message says how much is free.\n"
                       "\n"
                       "Notes\n"
                       "-----\n"
                       "Calls what `device_empty` and `cudriver.copy` call. Python's `copy.copy`\n"
                       "and `copy.deepcopy` work, too.");

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
    {"shape", get_shape, NULL, "Lengths of the dimensions, as a tuple.", NULL},
    {"strides", get_strides, NULL,
     "Bytes from one item to the next along each dimension, as a tuple.", NULL},
    {"size", get_size, NULL, "Number of items.", NULL},
    {"T", cudriver_device_array_reversed, NULL, "View with the axes in reverse order.", NULL},
    {"flags", cudriver_device_array_flags, NULL,
     "How the array lies in memory: an ArrayFlags, a named tuple of bools.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all items.", NULL},
    {"pointer", get_pointer, NULL,
     "Device address of the first item (CUdeviceptr) as an int. Once it has been read, the memory\n"
     "is freed only after all work of its context, as cuMemFree does.",
     NULL},
    {"device", get_device, NULL, "Device of the array.", NULL},
    {"closed", get_closed, NULL, "Whether the memory has been freed.", NULL},
    {"__cuda_array_interface__", get_interface, NULL,
     "Protocol by which other libraries take the array without a copy (version 3).", NULL},
    {NULL},
};

static PyMethodDef array_methods[] = {
    {"fill", CUDRIVER_FAST(method_fill), fill_doc},
    {"copy_from", CUDRIVER_FAST(method_copy_from), copy_from_doc},
    {"copy_to", CUDRIVER_FAST(method_copy_to), copy_to_doc},
    {"to_numpy", CUDRIVER_FAST(method_to_numpy), to_numpy_doc},
    {"copy", CUDRIVER_FAST(method_copy), copy_doc},
    {"__copy__", method_copy_plain, METH_NOARGS, "__copy__($self, /)\n--\n\nReturn copy()."},
    {"__deepcopy__", method_copy_plain, METH_O,
     "__deepcopy__($self, memo, /)\n--\n\nReturn copy()."},
    {"__reduce__", method_reduce, METH_NOARGS,
     "__reduce__($self, /)\n--\n\nRaise TypeError: device memory cannot be pickled."},
    {"close", cudriver_device_array_close, METH_NOARGS, array_close_doc},
    {"transpose", cudriver_device_array_transpose, METH_VARARGS,
     cudriver_device_array_transpose_doc},
    {"reshape", (PyCFunction)(void (*)(void))cudriver_device_array_reshape,
     METH_VARARGS | METH_KEYWORDS, cudriver_device_array_reshape_doc},
    {"view", CUDRIVER_FAST(cudriver_device_array_view_as), cudriver_device_array_view_doc},
    {"__dlpack__", CUDRIVER_FAST(cudriver_device_array_dlpack), cudriver_device_array_dlpack_doc},
    {"__dlpack_device__", cudriver_device_array_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self, /)\n--\n\n"
     "Return DLPack's type of the device (2, CUDA) and its ordinal."},
    {"__array__", (PyCFunction)(void (*)(void))method_refuse, METH_VARARGS | METH_KEYWORDS,
     "__array__($self, *args, **kwargs)\n--\n\n"
     "Raise TypeError: a silent copy from the device is seldom meant. Call to_numpy()."},
    {NULL},
};

static PyMemberDef array_members[] = {
    {"dtype", T_OBJECT, offsetof(DeviceArrayObject, dtype), READONLY,
     "Type of an item, a numpy.dtype."},
    {"ndim", T_INT, offsetof(DeviceArrayObject, ndim), READONLY, "Number of dimensions."},
    {"itemsize", T_PYSSIZET, offsetof(DeviceArrayObject, itemsize), READONLY, "Bytes of one item."},
    {"context", T_OBJECT, offsetof(DeviceArrayObject, context), READONLY, "Context of the array."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(DeviceArrayObject, weak), READONLY, NULL},
    {NULL},
};

static PyType_Slot array_slots[] = {
    {Py_tp_doc, "An array in a device's memory.\n"
                "\n"
                "Notes\n"
                "-----\n"
                "`device_empty`, `device_zeros` and `to_device` make one. Basic indexing gives\n"
                "views, as NumPy's does: ``a[2:5, ::-1]``, ``a[..., 0]``, ``a[None]``. An array\n"
                "keeps its context alive. Its memory is freed with its last owner, or by `close`.\n"
                "\n"
                "``a[key] = value`` fills with a scalar, which is cast, or copies an array, which\n"
                "must have the same dtype and is broadcast; it is ordered as `fill` and `copy`\n"
                "are. An array is a key in a dict by its identity: ``==`` between two raises.\n"
                "\n"
                "Examples\n"
                "--------\n"
                ">>> array = cu.to_device(np.arange(6).reshape(2, 3))\n"
                ">>> array[:, ::2].to_numpy()\n"
                "array([[0, 2],\n"
                "       [3, 5]])"},
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

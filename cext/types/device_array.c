/* DeviceArray: the type. The functions that make one are in device_make.c, views in device_view.c,
 * fills in device_fill.c. */
#include "device_array.h"

#include <string.h>

#include "python/arguments.h"
#include "batch.h"
#include "device.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"

static DeviceArrayObject *array_of(PyObject *object)
{
    return (DeviceArrayObject *)object;
}

static Py_ssize_t array_bytes(DeviceArrayObject *self)
{
    Py_ssize_t bytes = self->itemsize;

    for (int i = 0; i < self->ndim; i++) {
        bytes *= self->shape[i];
    }
    return bytes;
}

/* A zeroed object with room for its geometry. */
static DeviceArrayObject *array_alloc(CoreState *state, int ndim)
{
    PyTypeObject *type = state->device_array_type;
    DeviceArrayObject *self = (DeviceArrayObject *)type->tp_alloc(type, 0);

    if (self == NULL) {
        return NULL;
    }
    self->ndim = ndim;
    self->shape = self->inlined;
    if (2 * (size_t)ndim > sizeof self->inlined / sizeof self->inlined[0]) {
        self->shape = PyMem_Calloc(2 * (size_t)ndim, sizeof *self->shape);
        if (self->shape == NULL) {
            self->shape = self->inlined;
            Py_DECREF(self);
            return (DeviceArrayObject *)PyErr_NoMemory();
        }
    }
    self->strides = self->shape + ndim;
    return self;
}

PyObject *cudriver_device_array_new(CoreState *state, ContextObject *context, StreamObject *stream,
                                    PyObject *dtype, Py_ssize_t itemsize, int ndim,
                                    const Py_ssize_t *shape)
{
    Py_ssize_t bytes = cudriver_shape_bytes(ndim, shape, itemsize), stride = itemsize;
    DeviceArrayObject *self;
    bool pushed;
    int failed;

    if (bytes < 0) {
        return NULL;
    }
    self = array_alloc(state, ndim);
    if (self == NULL) {
        return NULL;
    }
    self->dtype = cudriver_numpy_plain_dtype(dtype);
    if (self->dtype == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->itemsize = itemsize;
    for (int i = ndim - 1; i >= 0; i--) {
        self->shape[i] = shape[i];
        self->strides[i] = stride;
        stride *= shape[i] > 0 ? shape[i] : 1;
    }
    if (cudriver_context_begin(state, context, &pushed) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    failed = cudriver_device_alloc(state, context, stream, (size_t)bytes, &self->block);
    cudriver_context_end(context, pushed);
    if (failed < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->address = self->block.address;
    self->context = (ContextObject *)Py_NewRef((PyObject *)context);
    context->children++;
    cudriver_live_add(state, &self->live, "device array", (size_t)bytes, self->address,
                      context->ordinal);
    return (PyObject *)self;
}

PyObject *cudriver_device_view_new(CoreState *state, DeviceArrayObject *of, CUdeviceptr address,
                                   int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides)
{
    DeviceArrayObject *self = array_alloc(state, ndim);

    if (self == NULL) {
        return NULL;
    }
    self->dtype = Py_NewRef(of->dtype);
    self->itemsize = of->itemsize;
    self->address = address;
    self->root = (DeviceArrayObject *)Py_NewRef((PyObject *)cudriver_device_array_root(of));
    self->root->views++;
    self->context = (ContextObject *)Py_NewRef((PyObject *)of->context);
    memcpy(self->shape, shape, (size_t)ndim * sizeof *shape);
    memcpy(self->strides, strides, (size_t)ndim * sizeof *strides);
    return (PyObject *)self;
}

/* Shared by close() and dealloc. */
static CUresult array_release(CoreState *state, DeviceArrayObject *self, const char **function)
{
    CUresult result;

    *function = "";
    if (self->closed || self->root != NULL) {
        return CUDA_SUCCESS;
    }
    self->closed = true;
    if (self->context == NULL) {
        return CUDA_SUCCESS;
    }
    cudriver_live_remove(state, &self->live);
    result = cudriver_device_free(self->context, &self->block, function);
    self->context->children--;
    return result;
}

static void array_dealloc(PyObject *object)
{
    DeviceArrayObject *self = array_of(object);
    CoreState *state = cudriver_state_of(object);
    PyTypeObject *type = Py_TYPE(object);
    const char *function;
    CUresult result;

    if (self->weak != NULL) {
        PyObject_ClearWeakRefs(object);
    }
    result = array_release(state, self, &function);
    cudriver_report(state, result, function, NULL);
    if (self->shape != self->inlined) {
        PyMem_Free(self->shape);
    }
    Py_XDECREF(self->dtype);
    Py_XDECREF(self->context);
    if (self->root != NULL) {
        self->root->views--;
        Py_DECREF(self->root);
    }
    type->tp_free(object);
    Py_DECREF(type);
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

static PyObject *array_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    DeviceArrayObject *self = array_of(object);
    CoreState *state = cudriver_state_of(object);
    const char *function;
    CUresult result;

    if (self->root != NULL) {
        PyErr_Format(PyExc_ValueError, "%R is a view: close the array that owns the memory",
                     object);
        return NULL;
    }
    cudriver_batches_reap(state, true); /* a copy that is over may hold the last view */
    if (self->views > 0 || self->busy > 0) {
        bool busy = self->busy > 0;
        if (self->views == 0) {
            PyErr_Format(PyExc_ValueError, "cannot close %R: a running call uses its memory",
                         object);
        } else {
            PyErr_Format(PyExc_ValueError, "cannot close %R: %zd view%s%s its memory", object,
                         self->views, self->views == 1 ? "" : "s",
                         busy               ? " and a running call use"
                         : self->views == 1 ? " uses"
                                            : " use");
        }
        return NULL;
    }
    if (Py_REFCNT(object) > 1 && cudriver_batches_hold(state, object)) {
        PyErr_Format(PyExc_ValueError,
                     "cannot close %R: an asynchronous copy uses it; wait() for that first",
                     object);
        return NULL;
    }
    result = array_release(state, self, &function);
    if (result != CUDA_SUCCESS) {
        return cudriver_raise(state, result, function, "0x%llx", (unsigned long long)self->address);
    }
    Py_RETURN_NONE;
}

int cudriver_device_array_check(CoreState *state, DeviceArrayObject *self)
{
    if (cudriver_device_array_root(self)->closed) {
        PyErr_Format(PyExc_ValueError, "%R is closed", self);
        return -1;
    }
    return cudriver_context_check(state, self->context);
}

int cudriver_device_array_endpoint(CoreState *state, PyObject *object,
                                   struct cudriver_endpoint *end)
{
    DeviceArrayObject *self = array_of(object);

    if (cudriver_device_array_check(state, self) < 0) {
        return -1;
    }
    end->owner = Py_NewRef(object);
    end->dtype = Py_NewRef(self->dtype);
    end->context = (ContextObject *)Py_NewRef((PyObject *)self->context);
    end->host = NULL;
    end->device = self->address;
    end->busy = &cudriver_device_array_root(self)
                     ->busy; /* until cudriver_endpoint_done it cannot be closed */
    ++*end->busy;
    cudriver_device_settle(self->context, &cudriver_device_array_root(self)->block);
    end->itemsize = (size_t)self->itemsize;
    end->ndim = self->ndim;
    for (int i = 0; i < self->ndim; i++) {
        end->shape[i] = self->shape[i];
        end->strides[i] = self->strides[i];
    }
    return 0;
}

static bool owner_uses(CoreState *state, PyObject *owner, const void *memory)
{
    return Py_IS_TYPE(owner, state->device_array_type) &&
           &cudriver_device_array_root(array_of(owner))->busy == memory;
}

int cudriver_device_array_await(CoreState *state, const Py_ssize_t *busy)
{
    DeviceArrayObject *root;

    if (busy == NULL) {
        return 0;
    }
    root = (DeviceArrayObject *)((char *)(uintptr_t)busy - offsetof(DeviceArrayObject, busy));
    return cudriver_device_reach(state, root->context, &root->block) < 0
               ? -1
               : cudriver_batches_await(state, owner_uses, busy);
}

static PyObject *array_repr(PyObject *object)
{
    DeviceArrayObject *self = array_of(object);
    PyObject *shape = cudriver_shape_tuple(self->ndim, self->shape);
    PyObject *text = NULL;

    if (shape != NULL) {
        text =
            PyUnicode_FromFormat("<DeviceArray shape=%R dtype=%S on device %d%s>", shape,
                                 self->dtype, self->context != NULL ? self->context->ordinal : -1,
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

static PyObject *get_dtype(PyObject *object, void *Py_UNUSED(closure))
{
    return Py_NewRef(array_of(object)->dtype);
}

static PyObject *get_ndim(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(array_of(object)->ndim);
}

static PyObject *get_size(PyObject *object, void *Py_UNUSED(closure))
{
    Py_ssize_t size = 1;

    for (int i = 0; i < array_of(object)->ndim; i++) {
        size *= array_of(object)->shape[i];
    }
    return PyLong_FromSsize_t(size);
}

static PyObject *get_itemsize(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(array_of(object)->itemsize);
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

static PyObject *get_context(PyObject *object, void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)array_of(object)->context);
}

static PyObject *get_device(PyObject *object, void *Py_UNUSED(closure))
{
    return cudriver_device_new(cudriver_state_of(object), array_of(object)->context->ordinal);
}

static PyObject *get_interface(PyObject *object, void *closure)
{
    DeviceArrayObject *self = array_of(object);
    PyObject *typestr, *descr, *shape, *strides, *pointer, *result = NULL;

    pointer = get_pointer(object, closure);
    if (pointer != NULL && array_bytes(self) == 0) { /* the protocol's address of nothing */
        Py_SETREF(pointer, PyLong_FromLong(0));
    }
    if (pointer == NULL) {
        return NULL;
    }
    typestr = cudriver_numpy_typestr(self->dtype);
    descr = cudriver_numpy_descr(self->dtype);
    shape = get_shape(object, NULL);
    strides = get_strides(object, NULL);
    if (typestr != NULL && descr != NULL && shape != NULL && strides != NULL) {
        result = Py_BuildValue("{s:i,s:O,s:O,s:O,s:O,s:(OO),s:O}", "version", 3, "typestr", typestr,
                               "descr", descr, "shape", shape, "strides", strides, "data", pointer,
                               Py_False, "stream", Py_None);
    }
    Py_DECREF(pointer);
    Py_XDECREF(typestr);
    Py_XDECREF(descr);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return result;
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

/* dst <- src: blocking without a stream, else a Transfer. */
static PyObject *copy_between(PyObject *object, PyObject *dst, PyObject *src, PyObject *stream)
{
    CoreState *state = cudriver_state_of(object);

    if (stream != NULL && stream != Py_None) {
        return cudriver_copy_async(state, dst, src, stream);
    }
    if (cudriver_copy_blocking(state, dst, src) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(copy_from_doc,
             "copy_from($self, src, stream=None)\n"
             "--\n"
             "\n"
             "Copy another array into this one.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "src : numpy.ndarray or DeviceArray\n"
             "    Of the same shape and dtype.\n"
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
             "As `copy_async` with a stream, as `copy` without.");

static PyObject *method_copy_from(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                  PyObject *keywords)
{
    static const char *const names[] = {"src", "stream", NULL};
    static const struct cudriver_signature signature = {"copy_from", 2, 1, names};
    PyObject *values[2];

    if (cudriver_arguments(&signature, args, count, keywords, values) < 0) {
        return NULL;
    }
    return copy_between(object, object, values[0], values[1]);
}

PyDoc_STRVAR(copy_to_doc,
             "copy_to($self, dst, stream=None)\n"
             "--\n"
             "\n"
             "Copy this array into another one.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "dst : numpy.ndarray or DeviceArray\n"
             "    Of the same shape and dtype.\n"
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
             "As `copy_async` with a stream, as `copy` without.");

static PyObject *method_copy_to(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords)
{
    static const char *const names[] = {"dst", "stream", NULL};
    static const struct cudriver_signature signature = {"copy_to", 2, 1, names};
    PyObject *values[2];

    if (cudriver_arguments(&signature, args, count, keywords, values) < 0) {
        return NULL;
    }
    return copy_between(object, values[0], object, values[1]);
}

PyDoc_STRVAR(to_numpy_doc,
             "to_numpy($self, out=None)\n"
             "--\n"
             "\n"
             "Return the items in host memory, and wait for the copy.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "out : numpy.ndarray, optional\n"
             "    An array of the same shape and dtype to copy into.\n"
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
    PyObject *out;

    if (cudriver_arguments(&signature, args, count, keywords, &out) < 0 ||
        cudriver_device_array_check(state, self) < 0) {
        return NULL;
    }
    out = out != Py_None ? out : NULL;
    if (out != NULL && !cudriver_numpy_is_array(out)) {
        PyErr_Format(PyExc_TypeError, "out must be a numpy.ndarray, not %.100s",
                     Py_TYPE(out)->tp_name);
        return NULL;
    }
    out = out != NULL ? Py_NewRef(out)
                      : cudriver_numpy_empty(self->dtype, self->ndim, self->shape, false);
    if (out != NULL && cudriver_copy_blocking(state, out, object) < 0) {
        Py_CLEAR(out);
    }
    return out;
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

static PyGetSetDef array_getset[] = {
    {"shape", get_shape, NULL, "Lengths of the dimensions, as a tuple.", NULL},
    {"strides", get_strides, NULL,
     "Bytes from one item to the next along each dimension, as a tuple.", NULL},
    {"dtype", get_dtype, NULL, "Type of an item, a numpy.dtype.", NULL},
    {"ndim", get_ndim, NULL, "Number of dimensions.", NULL},
    {"size", get_size, NULL, "Number of items.", NULL},
    {"itemsize", get_itemsize, NULL, "Bytes of one item.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all items.", NULL},
    {"pointer", get_pointer, NULL,
     "Device address of the first item (CUdeviceptr) as an int. Once it has been read, the memory\n"
     "is freed only after all work of its context, as cuMemFree does.",
     NULL},
    {"device", get_device, NULL, "Device of the array.", NULL},
    {"context", get_context, NULL, "Context of the array.", NULL},
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
    {"close", array_close, METH_NOARGS, array_close_doc},
    {"__array__", (PyCFunction)(void (*)(void))method_refuse, METH_VARARGS | METH_KEYWORDS,
     "__array__($self, *args, **kwargs)\n--\n\n"
     "Raise TypeError: a silent copy from the device is seldom meant. Call to_numpy()."},
    {NULL},
};

static PyMemberDef array_members[] = {
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
                "Examples\n"
                "--------\n"
                ">>> array = cu.to_device(np.arange(6).reshape(2, 3))\n"
                ">>> array[:, ::2].to_numpy()\n"
                "array([[0, 2],\n"
                "       [3, 5]])"},
    {Py_tp_dealloc, array_dealloc},
    {Py_tp_repr, array_repr},
    {Py_tp_methods, array_methods},
    {Py_tp_getset, array_getset},
    {Py_tp_members, array_members},
    {Py_mp_length, array_length},
    {Py_mp_subscript, cudriver_device_view},
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
    CoreState *state = cudriver_state_of_module(module);

    state->device_array_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &array_spec, NULL);
    return state->device_array_type == NULL ? -1
                                            : PyModule_AddType(module, state->device_array_type);
}

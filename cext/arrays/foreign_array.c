/* Other libraries' device arrays. See foreign_array.h. */
#include "foreign_array.h"

#include "contexts/capture.h"
#include "driver/driver.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"

/* Borrowed: an entry of the interface; NULL if it is missing or None. */
static PyObject *entry(PyObject *interface, const char *name)
{
    PyObject *value = PyDict_GetItemString(interface, name);

    return value == Py_None ? NULL : value;
}

/* Reads the address; refuses read-only memory if it is to be written. 0 or -1. */
static int read_data(PyObject *interface, bool write, struct cudriver_endpoint *end)
{
    PyObject *data = entry(interface, "data");
    int read_only;

    if (data == NULL || !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2) {
        PyErr_SetString(PyExc_TypeError,
                        "__cuda_array_interface__: 'data' is (address, read-only)");
        return -1;
    }
    end->device = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(data, 0));
    if (end->device == (CUdeviceptr)-1 && PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError, "__cuda_array_interface__: %R is no address",
                     PyTuple_GET_ITEM(data, 0));
        return -1;
    }
    read_only = PyObject_IsTrue(PyTuple_GET_ITEM(data, 1));
    if (read_only > 0 && write) {
        PyErr_SetString(PyExc_ValueError, "the destination is read-only");
    }
    return read_only < 0 || PyErr_Occurred() ? -1 : 0;
}

static int read_geometry(PyObject *interface, struct cudriver_endpoint *end)
{
    PyObject *shape = entry(interface, "shape"), *strides = entry(interface, "strides");
    Py_ssize_t stride = (Py_ssize_t)end->itemsize;
    bool empty = end->itemsize == 0;

    if (shape == NULL || !PyTuple_Check(shape) ||
        (strides != NULL &&
         (!PyTuple_Check(strides) || PyTuple_GET_SIZE(strides) != PyTuple_GET_SIZE(shape)))) {
        PyErr_SetString(PyExc_TypeError,
                        "__cuda_array_interface__: 'shape' and 'strides' are tuples of one length");
        return -1;
    }
    if (cudriver_shape_parse(shape, &end->ndim, end->shape) < 0) {
        return -1;
    }
    for (int i = end->ndim - 1; i >= 0; i--) {
        end->strides[i] = stride;
        if (strides != NULL) {
            end->strides[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, i));
            if (PyErr_Occurred()) {
                PyErr_Format(PyExc_TypeError, "__cuda_array_interface__: %R is no stride",
                             PyTuple_GET_ITEM(strides, i));
                return -1;
            }
        } else if (__builtin_mul_overflow(stride, end->shape[i] > 0 ? end->shape[i] : 1, &stride)) {
            PyErr_Format(PyExc_ValueError,
                         "__cuda_array_interface__: an array of shape %R and items of %zu bytes is "
                         "larger than the address space",
                         shape, end->itemsize);
            return -1;
        }
        empty |= end->shape[i] == 0;
    }
    if (empty) { /* an empty array's address does not matter */
        end->device = 0;
    } else if (end->device == 0) {
        PyErr_Format(PyExc_ValueError,
                     "__cuda_array_interface__: an array of shape %R lies at address 0", shape);
        return -1;
    }
    return 0;
}

/* Whether a description has fields; [('', '|V8')] says no more than the typestr. */
static bool has_fields(PyObject *descr)
{
    PyObject *field, *name;

    if (!PyList_Check(descr) || PyList_GET_SIZE(descr) != 1) {
        return true;
    }
    field = PyList_GET_ITEM(descr, 0);
    if (!PyTuple_Check(field) || PyTuple_GET_SIZE(field) != 2) {
        return true;
    }
    name = PyTuple_GET_ITEM(field, 0);
    return !PyUnicode_Check(name) || PyUnicode_GET_LENGTH(name) > 0;
}

/* Checks that typestr and description give the same size. `read`: the one already read. 0 or -1. */
static int sizes_match(PyObject *typestr, PyObject *descr, PyObject *read, Py_ssize_t itemsize)
{
    PyObject *dtype;
    Py_ssize_t other;

    if (cudriver_numpy_dtype(read == descr ? typestr : descr, &dtype, &other) < 0) {
        return -1;
    }
    Py_DECREF(dtype);
    if (other != itemsize) {
        PyErr_Format(PyExc_ValueError,
                     "__cuda_array_interface__: 'typestr' %R says items of %zd bytes, 'descr' %R "
                     "items of %zd",
                     typestr, read == descr ? other : itemsize, descr,
                     read == descr ? itemsize : other);
        return -1;
    }
    return 0;
}

static int read_dtype(PyObject *interface, struct cudriver_endpoint *end)
{
    PyObject *typestr = entry(interface, "typestr"), *descr = entry(interface, "descr"), *read;
    Py_ssize_t itemsize;
    bool described = typestr != NULL && PyUnicode_Check(typestr) && descr != NULL &&
                     PyUnicode_GET_LENGTH(typestr) > 1 && PyUnicode_READ_CHAR(typestr, 1) == 'V';

    if (typestr == NULL) {
        PyErr_SetString(PyExc_TypeError, "__cuda_array_interface__ has no 'typestr'");
        return -1;
    }
    read = described && has_fields(descr) ? descr : typestr;
    if (cudriver_numpy_dtype(read, &end->dtype, &itemsize) < 0) {
        return -1;
    }
    end->itemsize = (size_t)itemsize;
    return described ? sizes_match(typestr, descr, read, itemsize) : 0;
}

/* What the driver knows about an address. */
struct place {
    CUcontext context; /* NULL: memory from a pool */
    int ordinal;
    CUdeviceptr start; /* of its allocation; `bytes` is 0 if the driver does not say */
    size_t bytes;
};

/* Whether the driver knows the address. */
static bool place_look(CUdeviceptr address, struct place *place)
{
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    };
    unsigned int type = 0;
    void *values[] = {&place->context, &place->ordinal, &place->start, &place->bytes, &type};

    *place = (struct place){.ordinal = -1};
    return cuda.cuPointerGetAttributes(sizeof attributes / sizeof attributes[0], attributes, values,
                                       address) == CUDA_SUCCESS &&
           type != 0;
}

/* Whether memory reaches from `place` to `end`, perhaps through adjacent allocations (PyTorch's
 * expandable segments). If the array has gaps (not `dense`), only its last byte is sure to be
 * touched, so only that is checked. Moves `place` to the last allocation. */
static bool place_reaches(struct place *place, CUdeviceptr end, bool dense)
{
    while (place->bytes != 0 && end - place->start > place->bytes) {
        CUdeviceptr last = place->start;
        struct place next;
        if (!place_look(dense ? place->start + place->bytes : end - 1, &next)) {
            return false;
        }
        *place = next;
        if (!dense || place->start <= last) {
            break;
        }
    }
    return true;
}

ContextObject *cudriver_foreign_context(CoreState *state, const struct cudriver_endpoint *end,
                                        const char *protocol)
{
    struct cudriver_layout layout; /* one side of it */
    struct place first, last;
    CUdeviceptr low, high;
    int64_t from, to;

    layout.ndim = end->ndim;
    layout.itemsize = end->itemsize;
    layout.src_offset = 0;
    for (int i = 0; i < end->ndim; i++) {
        layout.shape[i] = end->shape[i];
        layout.src_strides[i] = end->strides[i];
    }
    cudriver_layout_extent(&layout, false, &from, &to);
    low = end->device + (CUdeviceptr)from;
    high = end->device + (CUdeviceptr)to;
    if (!place_look(low, &first)) {
        PyErr_Format(PyExc_ValueError, "%s: %p is no memory that the driver knows", protocol,
                     (void *)(uintptr_t)low);
        return NULL;
    }
    last = first;
    if (high <= low || !place_reaches(&last, high, high - low == cudriver_layout_bytes(&layout))) {
        PyErr_Format(PyExc_ValueError,
                     "%s: the array takes %zu bytes from %p on, but the memory there ends at %p",
                     protocol, (size_t)(high - low), (void *)(uintptr_t)low,
                     (void *)(uintptr_t)(last.start + last.bytes));
        return NULL;
    }
    if (first.context != NULL) {
        return cudriver_context_of_handle(state, first.context);
    }
    return cudriver_context_for_ordinal(state, first.ordinal);
}

/* Finds the memory's context and waits for the producer's stream. `on` as in the header. 0 or -1.
 */
static int read_place(CoreState *state, PyObject *interface, const struct cudriver_stream *on,
                      struct cudriver_endpoint *end)
{
    PyObject *stream = entry(interface, "stream");
    CUresult result;
    int captured;
    bool pushed;

    CUstream handle =
        stream != NULL ? (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(stream) : NULL;
    if (PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError, "__cuda_array_interface__: %R is no stream", stream);
        return -1;
    }
    if (end->device == 0) { /* an empty array has no memory and no work */
        return 0;
    }
    if (cudriver_require(state) < 0) {
        return -1;
    }
    end->context = cudriver_foreign_context(state, end, "__cuda_array_interface__");
    if (end->context == NULL || stream == NULL || on == CUDRIVER_UNORDERED) {
        return end->context == NULL ? -1 : 0;
    }
    if (cudriver_context_begin(state, end->context, &pushed) < 0) {
        return -1;
    }
    captured = cudriver_capture_check(state, handle);
    if (captured != 0) { /* captured work does not run now: there is nothing to wait for */
        cudriver_context_end(end->context, pushed);
        return captured < 0 ? -1 : 0;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cuda.cuStreamSynchronize(handle);
    Py_END_ALLOW_THREADS
    return cudriver_context_finish(state, end->context, pushed, result, "cuStreamSynchronize",
                                   "the producer's stream %p", (void *)handle);
}

/* Whether an object lends its memory by DLPack, too. No exception. */
static bool has_dlpack(PyObject *object)
{
    return !PyType_Check(object) && PyObject_HasAttrString(object, "__dlpack__");
}

/* Whether the memory is to be had by DLPack: the interface, in version 2, has no entry for a
 * stream. With the entry None, the producer says that there is nothing to wait for. */
static bool names_no_stream(PyObject *interface, PyObject *object)
{
    return PyDict_GetItemString(interface, "stream") == NULL && has_dlpack(object);
}

/* Reading the interface has raised. 0, without an exception, if the object has none, or DLPack may
 * read what it refuses: PyTorch raises RuntimeError for a tensor that requires grad. Else -1. */
static int interface_is_missing(PyObject *object)
{
    bool missing = PyErr_ExceptionMatches(PyExc_AttributeError);
    bool refused = PyErr_ExceptionMatches(PyExc_RuntimeError);
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback); /* no attribute is looked up with an exception set */
    if (!missing && !(refused && has_dlpack(object))) {
        PyErr_Restore(type, value, traceback);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return 0;
}

int cudriver_foreign_endpoint(CoreState *state, PyObject *object, bool write,
                              const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    PyObject *interface = PyObject_GetAttrString(object, "__cuda_array_interface__");
    int failed;

    if (interface == NULL) {
        return interface_is_missing(object);
    }
    if (PyDict_Check(interface)) {
        /* Reading a number may run code that changes the dict: the copy owns what is read. */
        Py_SETREF(interface, PyDict_Copy(interface));
        if (interface == NULL) {
            return -1;
        }
    }
    if (!PyDict_Check(interface) || entry(interface, "mask") != NULL) {
        PyErr_Format(PyExc_TypeError, "%.100s.__cuda_array_interface__ is %s",
                     Py_TYPE(object)->tp_name,
                     PyDict_Check(interface) ? "masked, which is not supported" : "no dict");
        Py_DECREF(interface);
        return -1;
    }
    failed = read_data(interface, write, end);
    if (failed == 0 && names_no_stream(interface, object)) {
        Py_DECREF(interface);
        return 0;
    }
    end->owner = Py_NewRef(object);
    failed = failed < 0 || read_dtype(interface, end) < 0 || read_geometry(interface, end) < 0 ||
             read_place(state, interface, on, end) < 0;
    Py_DECREF(interface);
    if (failed) {
        cudriver_endpoint_done(end);
        return -1;
    }
    return 1;
}

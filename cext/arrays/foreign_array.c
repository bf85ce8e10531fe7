/* Other libraries' device arrays. See copy.h. */
#include "copy.h"

#include "contexts/stream.h"
#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"
#include "python/numpy_bridge.h"

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
        PyErr_Format(PyExc_ValueError, "%s: %p is not memory that the driver knows", protocol,
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

/* Fills an endpoint with what memory/foreign.py has read. *stream: borrowed. 0 or -1. */
static int read_geometry(PyObject *read, struct cudriver_endpoint *end, PyObject **stream)
{
    PyObject *dtype, *shape, *strides;
    Py_ssize_t itemsize;

    if (!PyArg_ParseTuple(read, "KOO!O!O", &end->device, &dtype, &PyList_Type, &shape, &PyList_Type,
                          &strides, stream) ||
        cudriver_numpy_dtype(dtype, &end->dtype, &itemsize) < 0) {
        return -1;
    }
    end->itemsize = (size_t)itemsize;
    end->ndim = (int)PyList_GET_SIZE(shape);
    for (int i = 0; i < end->ndim; i++) {
        end->shape[i] = PyLong_AsSsize_t(PyList_GET_ITEM(shape, i));
        end->strides[i] = PyLong_AsSsize_t(PyList_GET_ITEM(strides, i));
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* Fills an endpoint, finds its memory's context and waits for the producer. 0 or -1. */
static int endpoint_read(CoreState *state, PyObject *read, const struct cudriver_stream *on,
                         struct cudriver_endpoint *end)
{
    PyObject *stream;

    if (read_geometry(read, end, &stream) < 0) {
        return -1;
    }
    if (end->device == 0) { /* an empty array has no memory and no work */
        return 0;
    }
    if (cudriver_require() < 0) {
        return -1;
    }
    end->context = cudriver_foreign_context(state, end, "__cuda_array_interface__");
    if (end->context == NULL || stream == Py_None || on == CUDRIVER_UNORDERED) {
        return end->context == NULL ? -1 : 0;
    }
    return cudriver_stream_drain(state, end->context,
                                 (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(stream), NULL);
}

/* Whether an object lends its memory by DLPack, too. No exception. */
static bool has_dlpack(PyObject *object)
{
    return !PyType_Check(object) && PyObject_HasAttrString(object, "__dlpack__");
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
    PyObject *interface = PyObject_GetAttrString(object, "__cuda_array_interface__"), *read;
    int found = 1;

    if (interface == NULL) {
        return interface_is_missing(object);
    }
    read = cudriver_call("foreign", "interface", "(OOO)", object, interface,
                         write ? Py_True : Py_False);
    Py_DECREF(interface);
    if (read == NULL || read == Py_None) { /* None: DLPack is to be asked */
        found = read == NULL ? -1 : 0;
    } else {
        end->owner = Py_NewRef(object);
        if (endpoint_read(state, read, on, end) < 0) {
            cudriver_endpoint_done(end);
            found = -1;
        }
    }
    Py_XDECREF(read);
    return found;
}

/* Lent tensors as arrays and as ends of copies. See dlpack.h. */
#include "dlpack.h"

#include "driver/driver.h"
#include "foreign_array.h"
#include "python/dlpack_types.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"
#include "python/wait.h"

/* Whether a tensor's memory is a device's: its range is checked with the driver. */
static bool is_on_device(const struct cudriver_dl_tensor *tensor)
{
    return tensor->device.type == CUDRIVER_DL_CUDA ||
           tensor->device.type == CUDRIVER_DL_CUDA_MANAGED;
}

/* Reads an axis; `dense` is its stride in items if the tensor has no strides. 0 or -1. */
static int read_axis(const struct cudriver_dl_tensor *tensor, int axis, int64_t dense,
                     struct cudriver_endpoint *end)
{
    int64_t length = tensor->shape[axis], stride;
    int64_t items = tensor->strides != NULL ? tensor->strides[axis] : dense;

    if (length < 0) {
        PyErr_Format(PyExc_ValueError, "DLPack: the length of axis %d is %lld", axis,
                     (long long)length);
        return -1;
    }
    /* CuPy divides negative strides as unsigned numbers, so that only the product that wraps around
     * is right. On a device the driver then tells whether there is memory. */
    if (__builtin_mul_overflow(items, (int64_t)end->itemsize, &stride) && !is_on_device(tensor)) {
        if (length > 1) {
            PyErr_Format(PyExc_ValueError,
                         "DLPack: the stride of axis %d, %lld items of %zu bytes, is larger than "
                         "the address space",
                         axis, (long long)items, end->itemsize);
            return -1;
        }
        stride = (int64_t)end->itemsize; /* it does not matter */
    }
    end->shape[axis] = length;
    end->strides[axis] = stride;
    return 0;
}

/* Checks that the bytes of a non-empty array lie between address 0 and the end. 0 or -1. */
static int check_extent(const struct cudriver_endpoint *end, uintptr_t address)
{
    uintptr_t low = address, high;
    bool over = __builtin_add_overflow(address, end->itemsize, &high);

    for (int i = 0; i < end->ndim && !over; i++) {
        int64_t span;
        over = __builtin_mul_overflow(end->strides[i], end->shape[i] - 1, &span) ||
               (span < 0 ? __builtin_sub_overflow(low, -(uintptr_t)span, &low)
                         : __builtin_add_overflow(high, (uintptr_t)span, &high));
    }
    if (over || address == 0) {
        PyErr_Format(PyExc_ValueError,
                     over ? "DLPack: the array at %p is larger than the address space"
                          : "DLPack: the array is not empty, and lies at address %p",
                     (void *)address);
        return -1;
    }
    return 0;
}

/* Reads dtype, shape, strides and *address. *empty: there are no items. 0 or -1. */
static int read_tensor(CoreState *state, const struct cudriver_dl_lent *lent,
                       struct cudriver_endpoint *end, uintptr_t *address, bool *empty)
{
    const struct cudriver_dl_tensor *tensor = lent->tensor;
    Py_ssize_t itemsize, lengths[CUDRIVER_MAX_DIMS];
    int64_t dense = 1;

    if (tensor->ndim < 0 || tensor->ndim > CUDRIVER_MAX_DIMS ||
        (tensor->ndim > 0 && tensor->shape == NULL)) {
        PyErr_Format(PyExc_ValueError,
                     tensor->shape == NULL ? "DLPack: a tensor of %d dimensions without a shape"
                                           : "DLPack: a tensor of %d dimensions",
                     (int)tensor->ndim);
        return -1;
    }
    end->dtype = cudriver_dlpack_dtype(state, tensor->dtype,
                                       (lent->flags & CUDRIVER_DL_PADDED) != 0, &itemsize);
    if (end->dtype == NULL) {
        return -1;
    }
    end->itemsize = (size_t)itemsize;
    end->ndim = tensor->ndim;
    *empty = false;
    for (int i = end->ndim - 1; i >= 0; i--) {
        if (read_axis(tensor, i, dense, end) < 0) {
            return -1;
        }
        lengths[i] = (Py_ssize_t)end->shape[i];
        *empty |= lengths[i] == 0;
        if (__builtin_mul_overflow(dense, lengths[i] > 0 ? lengths[i] : 1, &dense)) {
            dense = INT64_MAX; /* cudriver_shape_bytes refuses it */
        }
    }
    if (cudriver_shape_bytes(end->ndim, lengths, itemsize) < 0) {
        return -1;
    }
    if (__builtin_add_overflow((uintptr_t)tensor->data, tensor->byte_offset, address)) {
        PyErr_Format(PyExc_ValueError, "DLPack: byte_offset %llu is larger than the address space",
                     (unsigned long long)tensor->byte_offset);
        return -1;
    }
    return *empty ? 0 : check_extent(end, *address);
}

/* Finds a device end's context; that of an empty one is its device's. 0 or -1. */
static int read_context(CoreState *state, const struct cudriver_dl_lent *lent, bool empty,
                        struct cudriver_endpoint *end)
{
    PyObject *ordinal;

    if (cudriver_require(state) < 0) {
        return -1;
    }
    if (!empty) {
        end->context = cudriver_foreign_context(state, end, "DLPack");
        return end->context == NULL ? -1 : 0;
    }
    ordinal = PyLong_FromLong(lent->tensor->device.id);
    if (ordinal != NULL) {
        end->context = cudriver_context_for_device(state, ordinal);
        Py_DECREF(ordinal);
    }
    return end->context == NULL ? -1 : 0;
}

/* Reads a tensor: a host end's address, or a device end's address and context. `end` has no owner,
 * and is the caller's to release, also if this fails. 0 or -1. */
static int read_end(CoreState *state, const struct cudriver_dl_lent *lent,
                    struct cudriver_endpoint *end)
{
    static char nothing; /* NumPy would allocate for an empty array at NULL */
    uintptr_t address;
    bool empty;

    *end = (struct cudriver_endpoint){.owner = NULL};
    if (read_tensor(state, lent, end, &address, &empty) < 0) {
        return -1;
    }
    switch (lent->tensor->device.type) {
    case CUDRIVER_DL_CPU:
    case CUDRIVER_DL_CUDA_HOST:
        end->host = empty ? &nothing : (char *)address;
        return 0;
    case CUDRIVER_DL_CUDA:
    case CUDRIVER_DL_CUDA_MANAGED:
        end->device = empty ? 0 : address;
        return read_context(state, lent, empty, end);
    default:
        PyErr_Format(
            PyExc_BufferError,
            "DLPack: memory of device type %d is not supported, only of 1 (CPU), 2 (CUDA), "
            "3 (page-locked) and 13 (managed)",
            (int)lent->tensor->device.type);
        return -1;
    }
}

/* New reference: a NumPy array over a host end. */
static PyObject *host_array(const struct cudriver_dl_lent *lent,
                            const struct cudriver_endpoint *end)
{
    Py_ssize_t shape[CUDRIVER_MAX_DIMS], strides[CUDRIVER_MAX_DIMS];
    PyObject *array;

    for (int i = 0; i < end->ndim; i++) {
        shape[i] = (Py_ssize_t)end->shape[i];
        strides[i] = (Py_ssize_t)end->strides[i];
    }
    array =
        cudriver_numpy_over(lent->keeper, end->host, end->dtype, end->ndim, shape, strides, false);
    if (array != NULL && (lent->flags & CUDRIVER_DL_READ_ONLY)) {
        cudriver_numpy_set_read_only(array);
    }
    return array;
}

PyObject *cudriver_dlpack_array(CoreState *state, const struct cudriver_dl_lent *lent)
{
    struct cudriver_endpoint end;
    PyObject *array = NULL;

    if (read_end(state, lent, &end) == 0) {
        array = cudriver_endpoint_is_device(&end)
                    ? cudriver_device_array_over(state, &end, lent->keeper,
                                                 (lent->flags & CUDRIVER_DL_READ_ONLY) != 0)
                    : host_array(lent, &end);
    }
    cudriver_endpoint_done(&end);
    return array;
}

/* Waits for the stream that lent device memory is ready for: a copy may use another one. 0 or -1.
 */
static int wait_ready(CoreState *state, const struct cudriver_endpoint *end)
{
    StreamObject *stream = cudriver_dlpack_stream(state, end->context->ordinal);
    ContextObject *context = stream != NULL ? stream->context : end->context;
    bool pushed;
    int failed = cudriver_context_begin(state, context, &pushed);

    if (failed < 0) {
        return -1;
    }
    if (stream != NULL) {
        Py_INCREF(stream);
        stream->users++; /* forbids its close() meanwhile */
    }
    failed = cudriver_wait_stream(state, stream != NULL ? stream->handle : NULL);
    cudriver_context_end(context, pushed);
    if (stream != NULL) {
        stream->users--;
        Py_DECREF(stream);
    }
    return failed;
}

/* Fills an endpoint from a lent tensor. 0 or -1. */
static int lent_endpoint(CoreState *state, const struct cudriver_dl_lent *lent,
                         struct cudriver_endpoint *end)
{
    PyObject *array;
    int failed;

    if (read_end(state, lent, end) < 0) {
        return -1;
    }
    if (cudriver_endpoint_is_device(end)) {
        end->owner = Py_NewRef(lent->keeper);
        return wait_ready(state, end);
    }
    array = host_array(lent, end);
    cudriver_endpoint_done(end);
    if (array == NULL) {
        return -1;
    }
    failed = cudriver_numpy_endpoint(array, false, end);
    Py_DECREF(array); /* the endpoint keeps it alive */
    return failed;
}

/* New reference: what to read: an object, or a tensor's detach() if it requires grad. NULL with an
 * exception set, also if such a tensor is to be written. */
static PyObject *without_grad(CoreState *state, PyObject *object, bool write)
{
    bool is_tensor;
    int grad = cudriver_dlpack_requires_grad(state, object, &is_tensor);

    if (grad <= 0) {
        return grad < 0 ? NULL : Py_NewRef(object);
    }
    if (write) {
        PyErr_Format(PyExc_ValueError,
                     "the destination is a %.100s that requires grad: pass its detach()",
                     Py_TYPE(object)->tp_name);
        return NULL;
    }
    return PyObject_CallMethod(object, "detach", NULL);
}

int cudriver_dlpack_endpoint(CoreState *state, PyObject *object, bool write,
                             struct cudriver_endpoint *end)
{
    struct cudriver_dl_lent lent;
    PyObject *plain = without_grad(state, object, write);
    int found = plain != NULL ? cudriver_dlpack_borrow(state, plain, write, &lent) : -1;

    Py_XDECREF(plain);
    if (found <= 0) {
        return found;
    }
    if (write && (lent.flags & CUDRIVER_DL_READ_ONLY)) {
        PyErr_SetString(PyExc_ValueError, "the destination is read-only");
        found = -1;
    } else if (lent_endpoint(state, &lent, end) < 0) {
        cudriver_endpoint_done(end);
        found = -1;
    }
    Py_DECREF(lent.keeper);
    return found;
}

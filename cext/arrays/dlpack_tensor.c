/* What a lent tensor describes, read and checked. See dlpack.h. */
#include "dlpack.h"

#include "python/call.h"
#include "python/error.h"
#include "python/numpy_bridge.h"

/* New reference: the dtype of a data type. memory/dlpack.py knows them; what it has said once is
 * kept. NULL with BufferError if there is none, or ImportError if it needs an ml_dtypes that is not
 * installed. `padded`: each item has bytes of its own. */
static PyObject *type_read(CoreState *state, struct cudriver_dl_type type, bool padded)
{
    PyObject *key =
        PyLong_FromUnsignedLong(type.code | (unsigned long)type.bits << 8 |
                                (unsigned long)type.lanes << 16 | (unsigned long)padded << 32);
    PyObject *dtype = NULL;

    if (key != NULL && cudriver_numpy_require() == 0) {
        dtype = Py_XNewRef(PyDict_GetItemWithError(state->dlpack_types, key));
        if (dtype == NULL && !PyErr_Occurred()) {
            dtype = cudriver_call(CALL_dlpack_dtype_of, type.code, type.bits, type.lanes,
                                  padded ? Py_True : Py_False);
            if (dtype != NULL && PyDict_SetItem(state->dlpack_types, key, dtype) < 0) {
                Py_CLEAR(dtype);
            }
        }
    }
    Py_XDECREF(key);
    return dtype;
}

/* ---- tensors ---- */

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
    if (__builtin_mul_overflow(items, (int64_t)end->itemsize, &stride) &&
        tensor->device.type != CUDRIVER_DL_CUDA &&
        tensor->device.type != CUDRIVER_DL_CUDA_MANAGED) {
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

/* Reads dtype, shape, strides and *address. *empty: there are no items. 0 or -1. */
static int read_tensor(CoreState *state, const struct cudriver_dl_tensor *tensor, bool padded,
                       struct cudriver_endpoint *end, uintptr_t *address, bool *empty)
{
    int64_t dense = 1, low, high;
    uintptr_t top;
    bool over;

    if (tensor->ndim < 0 || tensor->ndim > CUDRIVER_MAX_DIMS ||
        (tensor->ndim > 0 && tensor->shape == NULL)) {
        PyErr_Format(PyExc_ValueError,
                     tensor->shape == NULL ? "DLPack: a tensor of %d dimensions without a shape"
                                           : "DLPack: a tensor of %d dimensions",
                     (int)tensor->ndim);
        return -1;
    }
    end->dtype = type_read(state, tensor->dtype, padded);
    if (end->dtype == NULL) {
        return -1;
    }
    end->itemsize = (tensor->dtype.bits + 7) / 8; /* a padded item has a byte */
    end->ndim = tensor->ndim;
    *empty = false;
    for (int i = end->ndim - 1; i >= 0; i--) {
        if (read_axis(tensor, i, dense, end) < 0) {
            return -1;
        }
        *empty |= end->shape[i] == 0;
        if (__builtin_mul_overflow(dense, end->shape[i] > 0 ? end->shape[i] : 1, &dense)) {
            dense = INT64_MAX; /* cudriver_numpy_bytes refuses it */
        }
    }
    if (cudriver_numpy_bytes(end->ndim, end->shape, (Py_ssize_t)end->itemsize) < 0) {
        return -1;
    }
    if (__builtin_add_overflow((uintptr_t)tensor->data, tensor->byte_offset, address)) {
        PyErr_Format(PyExc_ValueError, "DLPack: byte_offset %llu is larger than the address space",
                     (unsigned long long)tensor->byte_offset);
        return -1;
    }
    if (*empty) {
        return 0;
    }
    /* All bytes lie between address 0 and the end of the address space. */
    cudriver_extent(end->ndim, end->itemsize, end->shape, end->strides, &low, &high);
    over = low == INT64_MIN || high == INT64_MAX || (uintptr_t)-low > *address ||
           __builtin_add_overflow(*address, (uintptr_t)high, &top);
    if (over || *address == 0) {
        PyErr_Format(PyExc_ValueError,
                     over ? "DLPack: the array at %p is larger than the address space"
                          : "DLPack: the array is not empty, and lies at address %p",
                     (void *)*address);
        return -1;
    }
    return 0;
}

int cudriver_dlpack_read(CoreState *state, const struct cudriver_dl_tensor *tensor, bool padded,
                         struct cudriver_endpoint *end)
{
    uintptr_t address;
    bool empty;

    cudriver_endpoint_clear(end);
    if (read_tensor(state, tensor, padded, end, &address, &empty) < 0) {
        return -1;
    }
    switch (tensor->device.type) {
    case CUDRIVER_DL_CPU:
    case CUDRIVER_DL_CUDA_HOST:
        end->host = empty ? NULL : (char *)address;
        return 0;
    case CUDRIVER_DL_CUDA:
    case CUDRIVER_DL_CUDA_MANAGED:
        end->device = empty ? 0 : address;
        if (cudriver_require() < 0) {
            return -1;
        }
        end->context = empty ? cudriver_context_for_ordinal(state, tensor->device.id)
                             : cudriver_foreign_context(state, end, "DLPack");
        end->kept = (PyObject *)end->context;
        return end->context == NULL ? -1 : 0;
    default:
        PyErr_Format(
            PyExc_BufferError,
            "DLPack: memory of device type %d is not supported, only of 1 (CPU), 2 (CUDA), "
            "3 (page-locked) and 13 (managed)",
            (int)tensor->device.type);
        return -1;
    }
}

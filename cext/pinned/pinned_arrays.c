/* pinned_empty() and its kin: page-locked memory as NumPy arrays. */
#include "host_memory.h"

#include <stdlib.h>
#include <string.h>

#include "python/arguments.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"
#include "docstrings.h"

/* Clearing more bytes than this releases the GIL. */
#define LONG_BYTES ((size_t)1 << 20)

/* A page-locked array to be made. */
struct request {
    const char *function; /* the Python function that was called */
    PyObject *dtype;      /* owned */
    Py_ssize_t itemsize;
    int ndim;
    Py_ssize_t shape[CUDRIVER_MAX_DIMS];
    bool fortran;
    bool strided; /* in neither C nor Fortran order: use `strides` */
    Py_ssize_t strides[CUDRIVER_MAX_DIMS];
    bool mapped;
    bool write_combined;
};

/* New reference: the requested array, zeroed if `zero`. Takes the request's dtype. */
static PyObject *request_make(CoreState *state, struct request *request, bool zero)
{
    Py_ssize_t bytes = cudriver_shape_bytes(request->ndim, request->shape, request->itemsize);
    HostMemoryObject *memory = NULL;
    PyObject *array = NULL;
    bool zeroed;

    if (bytes >= 0 && cudriver_require(state) == 0) {
        memory = cudriver_host_memory_new(state, request->function, (size_t)bytes, request->mapped,
                                          request->write_combined, &zeroed);
    }
    if (memory != NULL) {
        if (zero && !zeroed && (size_t)bytes > LONG_BYTES) {
            Py_BEGIN_ALLOW_THREADS
            memset(memory->address, 0, (size_t)bytes);
            Py_END_ALLOW_THREADS
        } else if (zero && !zeroed) {
            memset(memory->address, 0, (size_t)bytes);
        }
        array = cudriver_numpy_over(
            (PyObject *)memory, memory->address, request->dtype, request->ndim, request->shape,
            request->strided ? request->strides : NULL, request->fortran, true);
        Py_DECREF(memory);
    }
    Py_CLEAR(request->dtype);
    return array;
}

/* Starts a request: reads the arguments into `values`, and of them `mapped` and `write_combined`,
 * which follow the positional ones. 0 or -1. */
static int request_begin(const struct cudriver_signature *signature, PyObject *const *args,
                         Py_ssize_t count, PyObject *keywords, PyObject **values,
                         struct request *request)
{
    request->function = signature->function;
    request->dtype = NULL;
    request->strided = false;
    return cudriver_arguments(signature, args, count, keywords, values) < 0 ||
                   cudriver_argument_flag(values[signature->positional], &request->mapped) < 0 ||
                   cudriver_argument_flag(values[signature->positional + 1],
                                          &request->write_combined) < 0
               ? -1
               : 0;
}

/* pinned_empty and pinned_zeros. */
static PyObject *make_plain(PyObject *module, const char *function, bool zero,
                            PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    static const char *const names[] = {"shape",  "dtype",          "order",
                                        "mapped", "write_combined", NULL};
    const struct cudriver_signature signature = {function, 3, 1, names};
    struct request request;
    PyObject *values[5];

    if (request_begin(&signature, args, count, keywords, values, &request) < 0 ||
        cudriver_shape_parse(values[0], 0, &request.ndim, request.shape) < 0 ||
        cudriver_order_parse(values[2], &request.fortran) < 0 ||
        cudriver_numpy_dtype(values[1], &request.dtype, &request.itemsize) < 0) {
        return NULL;
    }
    return request_make(cudriver_state_of_module(module), &request, zero);
}

static PyObject *pinned_empty(PyObject *module, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords)
{
    return make_plain(module, "pinned_empty", false, args, count, keywords);
}

static PyObject *pinned_zeros(PyObject *module, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords)
{
    return make_plain(module, "pinned_zeros", true, args, count, keywords);
}

/* New reference: the dtype that np.full gives a value. */
static PyObject *dtype_of(PyObject *value)
{
    PyObject *array = cudriver_numpy_asarray(value);
    PyObject *dtype = array != NULL ? PyObject_GetAttrString(array, "dtype") : NULL;

    Py_XDECREF(array);
    return dtype;
}

static PyObject *pinned_full(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    static const char *const names[] = {"shape",  "fill_value",     "dtype", "order",
                                        "mapped", "write_combined", NULL};
    static const struct cudriver_signature signature = {"pinned_full", 4, 2, names};
    struct request request;
    PyObject *values[6], *dtype, *array;
    int failed;

    if (request_begin(&signature, args, count, keywords, values, &request) < 0 ||
        cudriver_shape_parse(values[0], 0, &request.ndim, request.shape) < 0 ||
        cudriver_order_parse(values[3], &request.fortran) < 0) {
        return NULL;
    }
    dtype = values[2] == NULL || values[2] == Py_None ? dtype_of(values[1]) : Py_NewRef(values[2]);
    if (dtype == NULL) {
        return NULL;
    }
    failed = cudriver_numpy_dtype(dtype, &request.dtype, &request.itemsize);
    Py_DECREF(dtype);
    array = failed < 0 ? NULL : request_make(cudriver_state_of_module(module), &request, false);
    if (array != NULL && cudriver_numpy_fill(array, values[1]) < 0) {
        Py_CLEAR(array);
    }
    return array;
}

/* Dense strides with the axes in another array's order, as NumPy's order="K": longest stride first,
 * equal ones in axis order. */
static void strides_like(struct request *request, const struct cudriver_endpoint *end)
{
    int axes[CUDRIVER_MAX_DIMS];
    Py_ssize_t stride = request->itemsize;

    for (int i = 0; i < end->ndim; i++) {
        int at = i;
        for (; at > 0 && llabs(end->strides[axes[at - 1]]) < llabs(end->strides[i]); at--) {
            axes[at] = axes[at - 1];
        }
        axes[at] = i;
    }
    for (int i = end->ndim - 1; i >= 0; i--) {
        request->strides[axes[i]] = stride;
        stride *= request->shape[axes[i]];
    }
    request->strided = true;
}

/* Fills a request from the geometry of `array`; `dtype` may be NULL or None. 0 or -1. */
static int request_like(PyObject *array, PyObject *dtype, struct request *request)
{
    struct cudriver_endpoint end;
    bool c_order, f_order;
    int failed;

    if (cudriver_numpy_endpoint(array, false, &end) < 0) {
        return -1;
    }
    request->ndim = end.ndim;
    memcpy(request->shape, end.shape, (size_t)end.ndim * sizeof *end.shape);
    c_order =
        cudriver_shape_is_dense(end.ndim, end.shape, end.strides, (Py_ssize_t)end.itemsize, false);
    f_order =
        cudriver_shape_is_dense(end.ndim, end.shape, end.strides, (Py_ssize_t)end.itemsize, true);
    request->fortran = f_order && !c_order;
    failed = cudriver_numpy_dtype(dtype != NULL && dtype != Py_None ? dtype : end.dtype,
                                  &request->dtype, &request->itemsize);
    if (failed == 0 && !f_order && !c_order) {
        strides_like(request, &end);
    }
    cudriver_endpoint_done(&end);
    return failed;
}

/* Applies an order argument to such a request; the default is "K". 0 or -1. */
static int order_like(PyObject *order, struct request *request)
{
    Py_UCS4 letter = order == NULL || order == Py_None ? 'K' : 0;

    if (letter == 0 && PyUnicode_Check(order) && PyUnicode_GET_LENGTH(order) == 1) {
        letter = Py_TOUPPER(PyUnicode_READ_CHAR(order, 0));
    }
    request->strided = request->strided && letter == 'K';
    return letter == 'K' || letter == 'A' ? 0 : cudriver_order_parse(order, &request->fortran);
}

/* pinned_empty_like and pinned_array, whose first argument is `first`. */
static PyObject *make_like(PyObject *module, const char *function, const char *first, bool copy,
                           PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    const char *const names[] = {first, "dtype", "order", "mapped", "write_combined", NULL};
    const struct cudriver_signature signature = {function, 3, 1, names};
    PyObject *values[5], *source, *array = NULL;
    struct request request;

    if (request_begin(&signature, args, count, keywords, values, &request) < 0) {
        return NULL;
    }
    source = cudriver_numpy_asarray(values[0]);
    if (source == NULL) {
        return NULL;
    }
    if (request_like(source, values[1], &request) == 0 && order_like(values[2], &request) == 0) {
        array = request_make(cudriver_state_of_module(module), &request, false);
    }
    Py_CLEAR(request.dtype);
    if (array != NULL && copy && cudriver_numpy_copy(array, source) < 0) {
        Py_CLEAR(array);
    }
    Py_DECREF(source);
    return array;
}

static PyObject *pinned_empty_like(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                   PyObject *keywords)
{
    return make_like(module, "pinned_empty_like", "prototype", false, args, count, keywords);
}

static PyObject *pinned_array(PyObject *module, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords)
{
    return make_like(module, "pinned_array", "object", true, args, count, keywords);
}

static PyMethodDef functions[] = {
    {"pinned_empty", CUDRIVER_FAST(pinned_empty), DOC_pinned_empty},
    {"pinned_zeros", CUDRIVER_FAST(pinned_zeros), DOC_pinned_zeros},
    {"pinned_full", CUDRIVER_FAST(pinned_full), DOC_pinned_full},
    {"pinned_empty_like", CUDRIVER_FAST(pinned_empty_like), DOC_pinned_empty_like},
    {"pinned_array", CUDRIVER_FAST(pinned_array), DOC_pinned_array},
    {NULL},
};

int cudriver_pinned_arrays_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

/* Page-locked arrays. See host_memory.h. */
#include "host_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "python/arguments.h"
#include "types/batch.h"
#include "types/copy_path.h"
#include "types/device_memory.h"
#include "driver/driver.h"
#include "python/error.h"
#include "hostmem/hostmem.h"
#include "python/numpy_bridge.h"
#include "driver/platform.h"
#include "python/shape.h"

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

/* Allocates write-combined memory, which the driver owns and which lives in `self->context`. */
static CUresult combined_alloc(CoreState *state, HostMemoryObject *self, size_t bytes, bool mapped)
{
    unsigned int flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED |
                         (mapped ? CU_MEMHOSTALLOC_DEVICEMAP : 0);
    CUresult result;
    bool pushed;

    self->context = cudriver_context_for_use(state);
    if (self->context == NULL || cudriver_context_begin(state, self->context, &pushed) < 0) {
        Py_CLEAR(self->context);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cuda.cuMemHostAlloc(&self->address, bytes, flags);
    Py_END_ALLOW_THREADS
    cudriver_context_end(self->context, pushed);
    if (result != CUDA_SUCCESS) {
        self->address = NULL;
        Py_CLEAR(self->context);
        return result;
    }
    self->context->children++;
    self->context->pinning++;
    return CUDA_SUCCESS;
}

/* Takes memory from the pool of registered process memory. All of it is mapped. */
static CUresult registered_alloc(CoreState *state, HostMemoryObject *self, size_t bytes,
                                 bool *zeroed)
{
    ContextObject *context;
    CUresult result;
    bool pushed;

    *zeroed = false;
    self->address = cudriver_hostmem_try_alloc(bytes);
    if (self->address == NULL) {
        /* Before page-locking more: completed copies may hold the last reference to arrays. */
        cudriver_batches_reap(state, true);
        self->address = cudriver_hostmem_try_alloc(bytes);
    }
    if (self->address != NULL) {
        return CUDA_SUCCESS;
    }
    context = cudriver_context_for_use(state);
    if (context == NULL || cudriver_context_begin(state, context, &pushed) < 0) {
        Py_XDECREF(context);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cudriver_hostmem_alloc(bytes, &self->address, zeroed);
    Py_END_ALLOW_THREADS
    cudriver_context_end(context, pushed);
    Py_DECREF(context);
    if (result != CUDA_SUCCESS) {
        self->address = NULL;
    }
    return result;
}

/* Raises, and says which limit was met if that is known. Returns NULL. */
static void *raise_alloc(CoreState *state, CUresult result, const char *called, size_t bytes,
                         bool combined)
{
    const char *function = combined ? "cuMemHostAlloc" : "cuMemHostRegister_v2";
    size_t least = cudriver_hostmem_least(bytes);
    struct cudriver_hostmem_stats stats;
    char limit[160], ours[64];

    cudriver_hostmem_get_stats(&stats);
    platform_describe_lock_limit(limit, sizeof limit, stats.registered_bytes + bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !combined) {
        size_t left = cudriver_hostmem_left();
        snprintf(ours, sizeof ours, "cudriver.%s", called); /* the driver may not have been asked */
        function = ours;
        if (stats.registered_bytes + least > stats.limit_bytes) {
            snprintf(limit, sizeof limit, ", under set_host_memory_limit(%zu)", stats.limit_bytes);
        } else if (left < least) {
            snprintf(limit, sizeof limit,
                     "; the machine's memory and this process's cgroups leave %zu bytes", left);
        }
    }
    return cudriver_raise(state, result, function, "%zu bytes; %zu page-locked already%s", bytes,
                          stats.registered_bytes, limit);
}

/* New reference: a block of `bytes` for a request. */
static HostMemoryObject *memory_new(CoreState *state, const struct request *request, size_t bytes,
                                    bool *zeroed)
{
    bool combined = request->write_combined;
    HostMemoryObject *self =
        (HostMemoryObject *)state->host_memory_type->tp_alloc(state->host_memory_type, 0);
    CUresult result;

    if (self == NULL) {
        return NULL;
    }
    *zeroed = false;
    self->bytes = bytes;
    bytes = bytes > 0 ? bytes : 1;
    result = combined ? combined_alloc(state, self, bytes, request->mapped)
                      : registered_alloc(state, self, bytes, zeroed);
    if (result != CUDA_SUCCESS) {
        Py_DECREF(self);
        return PyErr_Occurred() ? NULL
                                : raise_alloc(state, result, request->function, bytes, combined);
    }
    cudriver_live_add(state, &self->live, combined ? "write-combined host memory" : "host memory",
                      self->bytes, (uintptr_t)self->address,
                      self->context != NULL ? self->context->ordinal : -1);
    return self;
}

static void memory_dealloc(PyObject *object)
{
    HostMemoryObject *self = (HostMemoryObject *)object;
    CoreState *state = cudriver_state_of(object);
    PyTypeObject *type = Py_TYPE(object);
    CUresult result = CUDA_SUCCESS;
    bool pushed;

    cudriver_live_remove(state, &self->live);
    if (self->address != NULL && self->context == NULL) {
        cudriver_hostmem_free(self->address);
    } else if (self->address != NULL) {
        if (cudriver_context_begin_free(self->context, &pushed)) {
            Py_BEGIN_ALLOW_THREADS
            result = cuda.cuMemFreeHost(self->address);
            Py_END_ALLOW_THREADS
            cudriver_context_end(self->context, pushed);
        }
        self->context->children--;
        self->context->pinning--;
        cudriver_report(state, result, "cuMemFreeHost", NULL);
    }
    Py_XDECREF(self->context);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *memory_repr(PyObject *object)
{
    HostMemoryObject *self = (HostMemoryObject *)object;

    return PyUnicode_FromFormat("<page-locked memory: %zu bytes at %p>", self->bytes,
                                self->address);
}

static PyObject *memory_get_nbytes(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(((HostMemoryObject *)object)->bytes);
}

static PyGetSetDef memory_getset[] = {
    {"nbytes", memory_get_nbytes, NULL, "Size in bytes.", NULL},
    {NULL},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_doc,
     "A block of page-locked memory: the base of the arrays that lie in it, which keep it."},
    {Py_tp_dealloc, memory_dealloc},
    {Py_tp_repr, memory_repr},
    {Py_tp_getset, memory_getset},
    {0, NULL},
};

static PyType_Spec memory_spec = {
    .name = "cudriver.HostMemory",
    .basicsize = sizeof(HostMemoryObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = memory_slots,
};

/* New reference: the requested array, zeroed if `zero`. Takes the request's dtype. */
static PyObject *request_make(CoreState *state, struct request *request, bool zero)
{
    Py_ssize_t bytes = cudriver_shape_bytes(request->ndim, request->shape, request->itemsize);
    HostMemoryObject *memory = NULL;
    PyObject *array = NULL;
    bool zeroed;

    if (bytes >= 0 && cudriver_require(state) == 0) {
        memory = memory_new(state, request, (size_t)bytes, &zeroed);
    }
    if (memory != NULL) {
        if (zero && !zeroed && (size_t)bytes > LONG_BYTES) {
            Py_BEGIN_ALLOW_THREADS
            memset(memory->address, 0, (size_t)bytes);
            Py_END_ALLOW_THREADS
        } else if (zero && !zeroed) {
            memset(memory->address, 0, (size_t)bytes);
        }
        array = cudriver_numpy_over((PyObject *)memory, memory->address, request->dtype,
                                    request->ndim, request->shape,
                                    request->strided ? request->strides : NULL, request->fortran);
        Py_DECREF(memory);
    }
    Py_CLEAR(request->dtype);
    return array;
}

/* Reads the arguments (shape, dtype, order, *, mapped, write_combined). 0 or -1. */
static int request_parse(const char *function, PyObject *const *args, Py_ssize_t count,
                         PyObject *keywords, struct request *request)
{
    static const char *const names[] = {"shape",  "dtype",          "order",
                                        "mapped", "write_combined", NULL};
    const struct cudriver_signature signature = {function, 3, 1, names};
    PyObject *values[5];

    request->function = function;
    request->strided = false;
    if (cudriver_arguments(&signature, args, count, keywords, values) < 0 ||
        cudriver_shape_parse(values[0], &request->ndim, request->shape) < 0 ||
        cudriver_order_parse(values[2], &request->fortran) < 0 ||
        cudriver_argument_flag(values[3], &request->mapped) < 0 ||
        cudriver_argument_flag(values[4], &request->write_combined) < 0) {
        return -1;
    }
    return cudriver_numpy_dtype(values[1], &request->dtype, &request->itemsize);
}

PyDoc_STRVAR(pinned_empty_doc,
             "pinned_empty(shape, dtype='float64', order='C', *, mapped=False, "
             "write_combined=False)\n"
             "--\n"
             "\n"
             "Return a new ndarray in page-locked memory, with undefined contents.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "shape : int or sequence of int\n"
             "    Lengths of the dimensions.\n"
             "dtype : dtype_like, optional\n"
             "    Type of an item.\n"
             "order : {'C', 'F'}, optional\n"
             "    Order of the items in memory.\n"
             "mapped : bool, optional\n"
             "    Whether kernels may address the memory; see `mapped_pointer`.\n"
             "write_combined : bool, optional\n"
             "    Memory that the device reads faster and the host reads very slowly. It\n"
             "    keeps its context alive.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "numpy.ndarray\n"
             "    Its base owns the memory: arrays and views keep it alive, beyond the context.\n"
             "\n"
             "Raises\n"
             "------\n"
             "OutOfMemoryError\n"
             "    The system refuses the memory, or the limit is reached.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Uses ``cuMemHostRegister`` on memory of the process's own, which comes from a\n"
             "pool and is page-locked for every context; ``cuMemHostAlloc`` for write-combined\n"
             "memory.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> frame = cu.pinned_empty((1080, 1920, 3), np.uint8)\n"
             ">>> cu.is_pinned(frame)\n"
             "True");

static PyObject *pinned_empty(PyObject *module, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords)
{
    struct request request;

    if (request_parse("pinned_empty", args, count, keywords, &request) < 0) {
        return NULL;
    }
    return request_make(cudriver_state_of_module(module), &request, false);
}

PyDoc_STRVAR(pinned_zeros_doc,
             "pinned_zeros(shape, dtype='float64', order='C', *, mapped=False, "
             "write_combined=False)\n"
             "--\n"
             "\n"
             "Return a new ndarray in page-locked memory, filled with zero bytes.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "shape : int or sequence of int\n"
             "    Lengths of the dimensions.\n"
             "dtype : dtype_like, optional\n"
             "    Type of an item.\n"
             "order : {'C', 'F'}, optional\n"
             "    Order of the items in memory.\n"
             "mapped, write_combined : bool, optional\n"
             "    As for `pinned_empty`.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "numpy.ndarray\n"
             "    As from `pinned_empty`.\n"
             "\n"
             "Raises\n"
             "------\n"
             "OutOfMemoryError\n"
             "    The system refuses the memory, or the limit is reached.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Uses ``cuMemHostRegister``; see `pinned_empty`.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> cu.pinned_zeros(3)\n"
             "array([0., 0., 0.])");

static PyObject *pinned_zeros(PyObject *module, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords)
{
    struct request request;

    if (request_parse("pinned_zeros", args, count, keywords, &request) < 0) {
        return NULL;
    }
    return request_make(cudriver_state_of_module(module), &request, true);
}

PyDoc_STRVAR(pinned_full_doc,
             "pinned_full(shape, fill_value, dtype=None, order='C', *, mapped=False, "
             "write_combined=False)\n"
             "--\n"
             "\n"
             "Return a new ndarray in page-locked memory, filled with a value.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "shape : int or sequence of int\n"
             "    Lengths of the dimensions.\n"
             "fill_value : array_like\n"
             "    Cast and broadcast as `numpy.full` does it.\n"
             "dtype : dtype_like, optional\n"
             "    Type of an item. The default is that of `fill_value`.\n"
             "order : {'C', 'F'}, optional\n"
             "    Order of the items in memory.\n"
             "mapped, write_combined : bool, optional\n"
             "    As for `pinned_empty`.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "numpy.ndarray\n"
             "    As from `pinned_empty`.\n"
             "\n"
             "Raises\n"
             "------\n"
             "OutOfMemoryError\n"
             "    The system refuses the memory, or the limit is reached.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Uses ``cuMemHostRegister``; see `pinned_empty`.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> cu.pinned_full(3, 7)\n"
             "array([7, 7, 7])");

static PyObject *pinned_full(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"shape",  "fill_value",     "dtype", "order",
                            "mapped", "write_combined", NULL};
    PyObject *shape, *value, *dtype = NULL, *order = NULL, *of_value = NULL, *array;
    struct request request = {.function = "pinned_full"};
    int mapped = 0, combined = 0, failed;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|OO$pp:pinned_full", names, &shape, &value,
                                     &dtype, &order, &mapped, &combined) ||
        cudriver_shape_parse(shape, &request.ndim, request.shape) < 0 ||
        cudriver_order_parse(order, &request.fortran) < 0) {
        return NULL;
    }
    if (dtype == NULL || dtype == Py_None) { /* the value's own, as np.full */
        PyObject *scalar = cudriver_numpy_asarray(value);
        of_value = scalar != NULL ? PyObject_GetAttrString(scalar, "dtype") : NULL;
        Py_XDECREF(scalar);
        if (of_value == NULL) {
            return NULL;
        }
        dtype = of_value;
    }
    request.mapped = mapped != 0;
    request.write_combined = combined != 0;
    failed = cudriver_numpy_dtype(dtype, &request.dtype, &request.itemsize);
    Py_XDECREF(of_value);
    array = failed < 0 ? NULL : request_make(cudriver_state_of_module(module), &request, false);
    if (array == NULL) {
        return NULL;
    }
    if (cudriver_numpy_fill(array, value) < 0) {
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
    Py_ssize_t c_stride, f_stride;
    bool c_order = true, f_order = true;

    if (cudriver_numpy_endpoint(array, false, &end) < 0) {
        return -1;
    }
    request->ndim = end.ndim;
    c_stride = f_stride = (Py_ssize_t)end.itemsize;
    for (int i = 0; i < end.ndim; i++) {
        request->shape[i] = (Py_ssize_t)end.shape[i];
    }
    for (int i = 0; i < end.ndim; i++) {
        int j = end.ndim - 1 - i;
        f_order = f_order && (end.shape[i] <= 1 || end.strides[i] == f_stride);
        c_order = c_order && (end.shape[j] <= 1 || end.strides[j] == c_stride);
        f_stride *= end.shape[i] > 0 ? end.shape[i] : 1;
        c_stride *= end.shape[j] > 0 ? end.shape[j] : 1;
    }
    request->fortran = f_order && !c_order;
    int failed = cudriver_numpy_dtype(dtype != NULL && dtype != Py_None ? dtype : end.dtype,
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

PyDoc_STRVAR(pinned_empty_like_doc,
             "pinned_empty_like(prototype, dtype=None, order='K', *, mapped=False, "
             "write_combined=False)\n"
             "--\n"
             "\n"
             "Return a new ndarray in page-locked memory, shaped like another array.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "prototype : array_like\n"
             "    Gives the shape, and the dtype and order unless they are given.\n"
             "dtype : dtype_like, optional\n"
             "    Type of an item.\n"
             "order : {'C', 'F', 'A', 'K'}, optional\n"
             "    Order of the items in memory, as for `numpy.empty_like`.\n"
             "mapped, write_combined : bool, optional\n"
             "    As for `pinned_empty`.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "numpy.ndarray\n"
             "    As from `pinned_empty`, with undefined contents.\n"
             "\n"
             "Raises\n"
             "------\n"
             "OutOfMemoryError\n"
             "    The system refuses the memory, or the limit is reached.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Uses ``cuMemHostRegister``; see `pinned_empty`.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> cu.pinned_empty_like(np.ones((2, 3), np.int16)).shape\n"
             "(2, 3)");

static PyObject *pinned_empty_like(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"prototype", "dtype", "order", "mapped", "write_combined", NULL};
    PyObject *prototype, *dtype = NULL, *order = NULL;
    struct request request = {.function = "pinned_empty_like"};
    int mapped = 0, combined = 0, failed;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|OO$pp:pinned_empty_like", names, &prototype,
                                     &dtype, &order, &mapped, &combined)) {
        return NULL;
    }
    prototype = cudriver_numpy_asarray(prototype);
    if (prototype == NULL) {
        return NULL;
    }
    failed = request_like(prototype, dtype, &request) < 0 || order_like(order, &request) < 0;
    Py_DECREF(prototype);
    if (failed) {
        Py_XDECREF(request.dtype);
        return NULL;
    }
    request.mapped = mapped != 0;
    request.write_combined = combined != 0;
    return request_make(cudriver_state_of_module(module), &request, false);
}

PyDoc_STRVAR(pinned_array_doc,
             "pinned_array(object, dtype=None, order='K', *, mapped=False, "
             "write_combined=False)\n"
             "--\n"
             "\n"
             "Return a page-locked copy of an array.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "object : array_like\n"
             "    What `numpy.asarray` takes.\n"
             "dtype : dtype_like, optional\n"
             "    Type of an item. The default is that of `object`.\n"
             "order : {'C', 'F', 'A', 'K'}, optional\n"
             "    Order of the items in memory, as for `numpy.array`.\n"
             "mapped, write_combined : bool, optional\n"
             "    As for `pinned_empty`.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "numpy.ndarray\n"
             "    As from `pinned_empty`, with the items of `object`.\n"
             "\n"
             "Raises\n"
             "------\n"
             "OutOfMemoryError\n"
             "    The system refuses the memory, or the limit is reached.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Uses ``cuMemHostRegister``; see `pinned_empty`.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> cu.pinned_array([1, 2, 3])\n"
             "array([1, 2, 3])");

static PyObject *pinned_array(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"object", "dtype", "order", "mapped", "write_combined", NULL};
    PyObject *object, *dtype = NULL, *order = NULL, *source, *array = NULL;
    struct request request = {.function = "pinned_array"};
    int mapped = 0, combined = 0;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|OO$pp:pinned_array", names, &object, &dtype,
                                     &order, &mapped, &combined)) {
        return NULL;
    }
    source = cudriver_numpy_asarray(object);
    if (source != NULL && request_like(source, dtype, &request) == 0 &&
        order_like(order, &request) == 0) {
        request.mapped = mapped != 0;
        request.write_combined = combined != 0;
        array = request_make(cudriver_state_of_module(module), &request, false);
    } else {
        Py_CLEAR(request.dtype);
    }
    if (array != NULL && cudriver_numpy_copy(array, source) < 0) {
        Py_CLEAR(array);
    }
    Py_XDECREF(source);
    return array;
}

/* An ndarray's or buffer's memory, and the address of its first item. 0 or -1. */
static int memory_of(PyObject *object, char **low, size_t *bytes, char **first)
{
    Py_buffer view;
    bool writable;

    if (cudriver_numpy_is_array(object)) {
        cudriver_numpy_extent(object, low, bytes, &writable);
        *first = cudriver_numpy_data(object);
        return 0;
    }
    if (!PyObject_CheckBuffer(object)) {
        PyErr_Format(PyExc_TypeError, "expected a numpy.ndarray or a buffer, not %.100s",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    *low = *first = view.buf;
    *bytes = (size_t)view.len;
    PyBuffer_Release(&view);
    return 0;
}

PyDoc_STRVAR(is_pinned_doc,
             "is_pinned(array, /)\n"
             "--\n"
             "\n"
             "Return whether all of an array's memory is page-locked.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "array : numpy.ndarray or buffer\n"
             "    The memory to ask about.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "bool\n"
             "    True if the driver knows the memory as page-locked, by whichever library.\n"
             "    False where there is no driver, and in a forked child.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Uses ``cuPointerGetAttribute``, and creates no context.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> cu.is_pinned(np.empty(10)), cu.is_pinned(cu.pinned_empty(10))\n"
             "(False, True)");

static PyObject *module_is_pinned(PyObject *module, PyObject *object)
{
    CoreState *state = cudriver_state_of_module(module);
    char *low, *first;
    size_t bytes;

    if (memory_of(object, &low, &bytes, &first) < 0) {
        return NULL;
    }
    if (!cudriver_driver.loaded && cudriver_require_loaded(state) < 0) {
        PyErr_Clear(); /* without a driver, nothing is page-locked */
        Py_RETURN_FALSE;
    }
    if (cudriver_driver_is_forked() || cuda.cuPointerGetAttribute == NULL) {
        Py_RETURN_FALSE;
    }
    return PyBool_FromLong(cudriver_copy_is_page_locked(low, low + (bytes > 0 ? bytes : 1)));
}

PyDoc_STRVAR(mapped_pointer_doc,
             "mapped_pointer(array, /)\n"
             "--\n"
             "\n"
             "Return the device address of an array in mapped page-locked memory.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "array : numpy.ndarray or buffer\n"
             "    For example of ``pinned_empty(..., mapped=True)``.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "int\n"
             "    The address of the first item (``CUdeviceptr``), in the current context.\n"
             "\n"
             "Raises\n"
             "------\n"
             "ValueError\n"
             "    The memory is not mapped page-locked memory.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Uses ``cuMemHostGetDevicePointer``.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> array = cu.pinned_empty(10, mapped=True)\n"
             ">>> cu.mapped_pointer(array[1:]) - cu.mapped_pointer(array)\n"
             "8");

static PyObject *module_mapped_pointer(PyObject *module, PyObject *object)
{
    CoreState *state = cudriver_state_of_module(module);
    CUdeviceptr address = 0;
    ContextObject *context;
    CUresult result;
    char *low, *first;
    size_t bytes;
    bool pushed;

    if (memory_of(object, &low, &bytes, &first) < 0) {
        return NULL;
    }
    context = cudriver_context_for_use(state);
    if (context == NULL || cudriver_context_begin(state, context, &pushed) < 0) {
        Py_XDECREF(context);
        return NULL;
    }
    result = cuda.cuMemHostGetDevicePointer_v2(&address, low, 0);
    cudriver_context_end(context, pushed);
    Py_DECREF(context);
    if (result == CUDA_ERROR_INVALID_VALUE) {
        PyErr_Format(PyExc_ValueError,
                     "%zu bytes at %p are no mapped page-locked memory: make the array with "
                     "pinned_empty(..., mapped=True)",
                     bytes, (void *)low);
        return NULL;
    }
    if (result != CUDA_SUCCESS) {
        return cudriver_raise(state, result, "cuMemHostGetDevicePointer_v2", "%p", (void *)low);
    }
    return PyLong_FromUnsignedLongLong(address + (CUdeviceptr)(first - low));
}

static PyStructSequence_Field stats_fields[] = {
    {"used_bytes", "page-locked bytes in arrays that are alive"},
    {"used_blocks", "number of these"},
    {"pooled_bytes", "page-locked bytes that are free, for the next array"},
    {"registered_bytes", "page-locked bytes in all"},
    {"peak_bytes", "the most that were page-locked at once"},
    {"limit_bytes", "the limit that was set, or None"},
    {"pins", "live pins (pin())"},
    {"pinned_bytes", "bytes that pins have page-locked"},
    {"hits", "arrays that were served from free memory"},
    {"misses", "arrays for which memory had to be page-locked"},
    {NULL, NULL},
};

static PyStructSequence_Desc stats_desc = {
    .name = "cudriver.HostMemoryStats",
    .doc = "The pool of page-locked memory; see host_memory_stats().",
    .fields = stats_fields,
    .n_in_sequence = 10,
};

PyDoc_STRVAR(host_memory_stats_doc,
             "host_memory_stats()\n"
             "--\n"
             "\n"
             "Return the state of the pool of page-locked memory.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "HostMemoryStats\n"
             "    A named tuple of counts and sizes in bytes.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Calls no CUDA function.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> array = cu.pinned_empty(1000, np.uint8)\n"
             ">>> cu.host_memory_stats().used_bytes >= 1000\n"
             "True");

static PyObject *module_stats(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_hostmem_stats stats;
    PyObject *row;

    cudriver_hostmem_get_stats(&stats);
    row = PyStructSequence_New(state->host_stats_type);
    if (row == NULL) {
        return NULL;
    }
    PyStructSequence_SetItem(row, 0, PyLong_FromSize_t(stats.used_bytes));
    PyStructSequence_SetItem(row, 1, PyLong_FromSize_t(stats.used_blocks));
    PyStructSequence_SetItem(row, 2, PyLong_FromSize_t(stats.pooled_bytes));
    PyStructSequence_SetItem(row, 3, PyLong_FromSize_t(stats.registered_bytes));
    PyStructSequence_SetItem(row, 4, PyLong_FromSize_t(stats.peak_bytes));
    PyStructSequence_SetItem(row, 5,
                             stats.limit_bytes == SIZE_MAX ? Py_NewRef(Py_None)
                                                           : PyLong_FromSize_t(stats.limit_bytes));
    PyStructSequence_SetItem(row, 6, PyLong_FromSize_t(stats.pins));
    PyStructSequence_SetItem(row, 7, PyLong_FromSize_t(stats.pinned_bytes));
    PyStructSequence_SetItem(row, 8, PyLong_FromUnsignedLongLong(stats.hits));
    PyStructSequence_SetItem(row, 9, PyLong_FromUnsignedLongLong(stats.misses));
    if (PyErr_Occurred()) {
        Py_CLEAR(row);
    }
    return row;
}

PyDoc_STRVAR(trim_host_memory_doc,
             "trim_host_memory(keep=0)\n"
             "--\n"
             "\n"
             "Return free page-locked memory of the pool to the system.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "keep : int, optional\n"
             "    Bytes of free memory that may stay in the pool.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "int\n"
             "    Bytes that were returned to the system.\n"
             "\n"
             "Raises\n"
             "------\n"
             "CudaError\n"
             "    The driver cannot unlock the memory.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Uses ``cuMemHostUnregister``. Page-locked memory keeps the primary context alive\n"
             "that it is registered in; without any, that context may go.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> array = cu.pinned_empty(1000, np.uint8)\n"
             ">>> del array\n"
             ">>> cu.trim_host_memory() >= 1000\n"
             "True\n"
             ">>> cu.host_memory_stats().pooled_bytes\n"
             "0");

static PyObject *module_trim(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"keep", NULL};
    CoreState *state = cudriver_state_of_module(module);
    PyObject *argument = NULL;
    size_t keep = 0, released = 0;
    CUresult result = CUDA_SUCCESS;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:trim_host_memory", names, &argument) ||
        (argument != NULL &&
         cudriver_size_parse(argument, "keep is a number of bytes", &keep) < 0)) {
        return NULL;
    }
    cudriver_batches_reap(state, true);
    if (cudriver_driver_is_initialised() && !cudriver_driver_is_forked()) {
        Py_BEGIN_ALLOW_THREADS
        cudriver_staging_trim();
        result = cudriver_hostmem_trim(keep, &released);
        Py_END_ALLOW_THREADS
    }
    if (result != CUDA_SUCCESS) {
        return cudriver_raise(state, result, "cuMemHostUnregister", "trimming to %zu bytes", keep);
    }
    return PyLong_FromSize_t(released);
}

PyDoc_STRVAR(set_host_memory_limit_doc,
             "set_host_memory_limit(bytes, /)\n"
             "--\n"
             "\n"
             "Limit how much memory the pool page-locks.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "bytes : int or None\n"
             "    The most bytes, used and free together; None for no limit.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Calls no CUDA function. Beyond the limit there is an OutOfMemoryError; in\n"
             "`pinned_numpy`, ordinary memory.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> cu.set_host_memory_limit(1 << 30)\n"
             ">>> cu.host_memory_stats().limit_bytes\n"
             "1073741824\n"
             ">>> cu.set_host_memory_limit(None)");

static PyObject *module_set_limit(PyObject *module, PyObject *argument)
{
    size_t limit = SIZE_MAX;

    (void)module;
    if (argument != Py_None &&
        cudriver_size_parse(argument, "a limit is a number of bytes or None", &limit) < 0) {
        return NULL;
    }
    cudriver_hostmem_set_limit(limit);
    Py_RETURN_NONE;
}

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void)) function, METH_VARARGS | METH_KEYWORDS

static PyMethodDef functions[] = {
    {"pinned_empty", CUDRIVER_FAST(pinned_empty), pinned_empty_doc},
    {"pinned_zeros", CUDRIVER_FAST(pinned_zeros), pinned_zeros_doc},
    {"pinned_full", WITH_KEYWORDS(pinned_full), pinned_full_doc},
    {"pinned_empty_like", WITH_KEYWORDS(pinned_empty_like), pinned_empty_like_doc},
    {"pinned_array", WITH_KEYWORDS(pinned_array), pinned_array_doc},
    {"is_pinned", module_is_pinned, METH_O, is_pinned_doc},
    {"mapped_pointer", module_mapped_pointer, METH_O, mapped_pointer_doc},
    {"host_memory_stats", module_stats, METH_NOARGS, host_memory_stats_doc},
    {"trim_host_memory", WITH_KEYWORDS(module_trim), trim_host_memory_doc},
    {"set_host_memory_limit", module_set_limit, METH_O, set_host_memory_limit_doc},
    {NULL},
};

int cudriver_host_memory_setup(PyObject *module)
{
    CoreState *state = cudriver_state_of_module(module);

    state->host_memory_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &memory_spec, NULL);
    state->host_stats_type = PyStructSequence_NewType(&stats_desc);
    if (state->host_memory_type == NULL || state->host_stats_type == NULL ||
        PyModule_AddObjectRef(module, "HostMemoryStats", (PyObject *)state->host_stats_type) < 0 ||
        PyModule_AddObjectRef(module, "HostMemory", (PyObject *)state->host_memory_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}

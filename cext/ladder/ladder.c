/* Measurements of `cudriver bench` that the public API cannot make: the driver's own copy of
 * pageable memory, and memory bandwidth in kernels. See ladder.h. */
#include "ladder.h"

#include "arrays/copy.h"
#include "driver/driver.h"
#include "python/error.h"
#include "kernels.h"
#include "docstrings.h"

#include <string.h>

/* The bytes of an end that is dense and in C order. 0, or -1 with ValueError. */
static int end_bytes(const struct cudriver_endpoint *end, const char *name, size_t *bytes)
{
    size_t dense = end->itemsize;

    for (int i = end->ndim - 1; i >= 0; i--) {
        if (end->shape[i] > 1 && end->strides[i] != (int64_t)dense) {
            PyErr_Format(PyExc_ValueError, "%s must be a C-ordered array without gaps", name);
            return -1;
        }
        dense *= (size_t)end->shape[i];
    }
    *bytes = dense;
    return 0;
}

/* Copies between the ends. 0 or -1. */
static int ends_copy(CoreState *state, const struct cudriver_endpoint *dst,
                     const struct cudriver_endpoint *src)
{
    const bool up = dst->context != NULL;
    const struct cudriver_endpoint *device = up ? dst : src;
    const char *function = up ? "cuMemcpyHtoD_v2" : "cuMemcpyDtoH_v2";
    size_t bytes, other;
    CUresult result;
    bool pushed;

    if (up == (src->context != NULL)) {
        PyErr_SetString(PyExc_ValueError, "one end must be host memory and one a device's");
        return -1;
    }
    if (end_bytes(dst, "dst", &bytes) < 0 || end_bytes(src, "src", &other) < 0) {
        return -1;
    }
    if (bytes != other) {
        PyErr_Format(PyExc_ValueError, "dst has %zu bytes, src %zu", bytes, other);
        return -1;
    }
    if (cudriver_context_begin(state, device->context, &pushed) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    result = up ? cuda.cuMemcpyHtoD_v2(dst->device, src->host, bytes)
                : cuda.cuMemcpyDtoH_v2(dst->host, src->device, bytes);
    Py_END_ALLOW_THREADS
    cudriver_context_end(device->context, pushed);
    if (result != CUDA_SUCCESS) {
        cudriver_check(result, function, "%zu bytes", bytes);
        return -1;
    }
    return 0;
}

static PyObject *module_ladder_copy(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_endpoint to, from;
    PyObject *dst, *src;
    int failed;

    if (!PyArg_ParseTuple(args, "OO:_ladder_copy", &dst, &src) ||
        cudriver_endpoint_parse(state, dst, true, "dst", NULL, &to) < 0) {
        return NULL;
    }
    if (cudriver_endpoint_parse(state, src, false, "src", NULL, &from) < 0) {
        cudriver_endpoint_done(&to);
        return NULL;
    }
    failed = ends_copy(state, &to, &from);
    cudriver_endpoint_done(&to);
    cudriver_endpoint_done(&from);
    if (failed < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- kernels ---- */

static const char *const kernel_names[LADDER_KERNELS] = {
    [LADDER_READ] = "read",
    [LADDER_WRITE] = "write",
    [LADDER_SHARED_READ] = "shared_read",
    [LADDER_SHARED_WRITE] = "shared_write",
};

/* The kernel of that name; LADDER_KERNELS with ValueError if there is none. */
static enum ladder_kernel kernel_find(const char *name)
{
    enum ladder_kernel kernel = LADDER_READ;

    while (kernel < LADDER_KERNELS && strcmp(kernel_names[kernel], name) != 0) {
        kernel++;
    }
    if (kernel == LADDER_KERNELS) {
        PyErr_Format(PyExc_ValueError, "there is no kernel %.100s", name);
    }
    return kernel;
}

/* Checks the sizes and fills the launch, except for the device address of host memory. 0 or -1. */
static int launch_make(struct ladder_launch *launch, const struct cudriver_endpoint *memory,
                       const struct cudriver_endpoint *sums)
{
    const size_t block = LADDER_THREADS * sizeof(uint32_t);
    size_t bytes, sum_bytes;

    if (end_bytes(memory, "memory", &bytes) < 0 || end_bytes(sums, "sums", &sum_bytes) < 0) {
        return -1;
    }
    if (sums->context == NULL || sum_bytes == 0 || sum_bytes % block != 0 ||
        sum_bytes / block > INT32_MAX) {
        PyErr_Format(PyExc_ValueError,
                     "sums must be a DeviceArray with %d words for each block, not %zu bytes",
                     LADDER_THREADS, sum_bytes);
        return -1;
    }
    if (bytes == 0 || bytes % 16 != 0 || (memory->device | (uintptr_t)memory->host) % 16 != 0) {
        PyErr_Format(PyExc_ValueError, "memory must be vectors of 16 bytes, not %zu bytes", bytes);
        return -1;
    }
    if (launch->kernel == LADDER_SHARED_READ && bytes < LADDER_TILE) {
        PyErr_Format(PyExc_ValueError, "memory must have the %d bytes of a tile", LADDER_TILE);
        return -1;
    }
    if (memory->context != NULL && memory->context->ordinal != sums->context->ordinal) {
        PyErr_SetString(PyExc_ValueError, "memory and sums must be of one device");
        return -1;
    }
    launch->memory = memory->device;
    launch->vectors = bytes / 16;
    launch->sums = sums->device;
    launch->blocks = (unsigned)(sum_bytes / block);
    return 0;
}

/* Times `rounds` rounds of `count` launches, after an untimed one, between begin and end of the
 * context. New reference: a list of seconds per launch. */
static PyObject *launch_time(const struct ladder_launch *launch, Py_ssize_t rounds, unsigned count)
{
    struct ladder_bench *bench = NULL;
    PyObject *seconds = PyList_New(rounds);
    const char *function = "";
    float milliseconds = 0;
    CUresult result;

    if (seconds == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    result = ladder_kernels_open(launch->kernel, &bench, &function);
    if (result == CUDA_SUCCESS) {
        result = ladder_kernels_time(bench, launch, 1, &milliseconds, &function);
    }
    Py_END_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < rounds && result == CUDA_SUCCESS; i++) {
        PyObject *value;
        Py_BEGIN_ALLOW_THREADS
        result = ladder_kernels_time(bench, launch, count, &milliseconds, &function);
        Py_END_ALLOW_THREADS
        value = PyFloat_FromDouble(milliseconds / 1e3 / count);
        if (value == NULL || PyErr_CheckSignals() < 0) {
            Py_XDECREF(value);
            Py_CLEAR(seconds);
            break;
        }
        PyList_SET_ITEM(seconds, i, value);
    }
    Py_BEGIN_ALLOW_THREADS
    ladder_kernels_close(bench);
    Py_END_ALLOW_THREADS
    if (result != CUDA_SUCCESS && seconds != NULL) {
        Py_CLEAR(seconds);
        cudriver_check(result, function, "kernel %s, %u blocks, %llu bytes",
                       kernel_names[launch->kernel], launch->blocks,
                       (unsigned long long)launch->vectors * 16);
    }
    return seconds;
}

/* Times launches on the arrays that were read. New reference. */
static PyObject *ends_time(CoreState *state, struct ladder_launch *launch,
                           const struct cudriver_endpoint *memory,
                           const struct cudriver_endpoint *sums, Py_ssize_t rounds, unsigned count)
{
    CUresult result = CUDA_SUCCESS;
    PyObject *seconds = NULL;
    bool pushed;

    if (launch_make(launch, memory, sums) < 0 ||
        cudriver_context_begin(state, sums->context, &pushed) < 0) {
        return NULL;
    }
    if (memory->context == NULL) {
        result = cuda.cuMemHostGetDevicePointer_v2(&launch->memory, memory->host, 0);
    }
    if (result == CUDA_SUCCESS) {
        seconds = launch_time(launch, rounds, count);
    } else {
        cudriver_check(result, "cuMemHostGetDevicePointer_v2", "%p", (void *)memory->host);
    }
    cudriver_context_end(sums->context, pushed);
    return seconds;
}

static PyObject *module_ladder_kernel(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_endpoint memory_end, sums_end;
    PyObject *memory, *sums, *seconds = NULL;
    struct ladder_launch launch = {0};
    unsigned long long number;
    Py_ssize_t rounds, count;
    const char *name;

    if (!PyArg_ParseTuple(args, "sOOKnn:_ladder_kernel", &name, &memory, &sums, &number, &rounds,
                          &count)) {
        return NULL;
    }
    launch.kernel = kernel_find(name);
    launch.number = number;
    if (launch.kernel == LADDER_KERNELS) {
        return NULL;
    }
    if (rounds < 1 || count < 1 || count > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%zd rounds of %zd launches", rounds, count);
        return NULL;
    }
    if (cudriver_endpoint_parse(state, memory, launch.kernel == LADDER_WRITE, "memory", NULL,
                                &memory_end) < 0) {
        return NULL;
    }
    if (cudriver_endpoint_parse(state, sums, true, "sums", NULL, &sums_end) > 0) {
        seconds = ends_time(state, &launch, &memory_end, &sums_end, rounds, (unsigned)count);
        cudriver_endpoint_done(&sums_end);
    }
    cudriver_endpoint_done(&memory_end);
    return seconds;
}

PyMethodDef cudriver_ladder_functions[] = {
    {"_ladder_copy", module_ladder_copy, METH_VARARGS, DOC__ladder_copy},
    {"_ladder_kernel", module_ladder_kernel, METH_VARARGS, DOC__ladder_kernel},
    {NULL},
};

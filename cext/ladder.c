/*
 * What `cudriver bench` measures and nothing public does: the driver's own copy of pageable memory,
 * which the copy engine would otherwise take over, and memory as kernels see it. See ladder.h.
 */
#include "ladder.h"

#include "copy.h"
#include "driver.h"
#include "error.h"

/* The bytes of an end whose items lie one behind another, in C order. 0, or -1 with ValueError. */
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

/* The copy, both ends read. 0 or -1. */
static int ends_copy(CoreState *state, const struct cudriver_endpoint *dst,
                     const struct cudriver_endpoint *src)
{
    const bool up = cudriver_endpoint_is_device(dst);
    const struct cudriver_endpoint *device = up ? dst : src;
    const char *function = up ? "cuMemcpyHtoD_v2" : "cuMemcpyDtoH_v2";
    size_t bytes, other;
    CUresult result;
    bool pushed;

    if (up == cudriver_endpoint_is_device(src)) {
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
        cudriver_raise(state, result, function, "%zu bytes", bytes);
        return -1;
    }
    return 0;
}

static PyObject *module_ladder_copy(PyObject *module, PyObject *args)
{
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_endpoint to, from;
    PyObject *dst, *src;
    int failed;

    if (!PyArg_ParseTuple(args, "OO:_ladder_copy", &dst, &src) ||
        cudriver_endpoint_parse(state, dst, true, "dst", &to) < 0) {
        return NULL;
    }
    if (cudriver_endpoint_parse(state, src, false, "src", &from) < 0) {
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

static PyMethodDef functions[] = {
    {"_ladder_copy", module_ladder_copy, METH_VARARGS,
     "_ladder_copy(dst, src, /)\n--\n\n"
     "One cuMemcpyHtoD or cuMemcpyDtoH over the whole, whatever the host's memory is: the driver "
     "alone.\nBoth ends C-ordered without gaps and of one size; else ValueError."},
    {NULL},
};

int cudriver_ladder_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

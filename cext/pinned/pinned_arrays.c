/* New page-locked memory as NumPy arrays, for memory/pinned.py. */
#include "host_memory.h"

#include <string.h>

#include "hostmem/hostmem.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "docstrings.h"

/* Clearing more bytes than this releases the GIL. */
#define LONG_BYTES ((size_t)1 << 20)

static void clear(void *address, size_t bytes)
{
    if (bytes > LONG_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        memset(address, 0, bytes);
        Py_END_ALLOW_THREADS
    } else {
        memset(address, 0, bytes);
    }
}

/* _pinned(shape, dtype, fortran, node, zero) */
static PyObject *module_pinned(PyObject *module, PyObject *args)
{
    CoreState *state = cudriver_state_of_module(module);
    Py_ssize_t shape[CUDRIVER_MAX_DIMS], itemsize, bytes;
    PyObject *lengths, *type, *dtype, *array = NULL;
    HostMemoryObject *memory = NULL;
    int ndim, node, fortran, zero;
    bool zeroed;

    if (!PyArg_ParseTuple(args, "OOpip", &lengths, &type, &fortran, &node, &zero) ||
        cudriver_numpy_shape(lengths, &ndim, shape) < 0 ||
        cudriver_numpy_dtype(type, &dtype, &itemsize) < 0) {
        return NULL;
    }
    bytes = cudriver_numpy_bytes(ndim, shape, itemsize);
    if (bytes >= 0 && cudriver_require() == 0) {
        memory = cudriver_host_memory_new(state, zero ? "pinned_zeros" : "pinned_empty",
                                          (size_t)bytes, node, &zeroed);
    }
    if (memory != NULL) {
        if (zero && !zeroed) {
            clear(memory->address, (size_t)bytes);
        }
        array = cudriver_numpy_over((PyObject *)memory, memory->address, dtype, ndim, shape, NULL,
                                    fortran != 0, true);
        Py_DECREF(memory);
    }
    Py_DECREF(dtype);
    return array;
}

PyMethodDef cudriver_pinned_arrays_functions[] = {
    {"_pinned", module_pinned, METH_VARARGS, DOC__pinned},
    {NULL},
};

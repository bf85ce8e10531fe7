/* pinned_empty() and pinned_zeros(): page-locked memory as NumPy arrays. */
#include "host_memory.h"

#include <string.h>

#include "hostmem/hostmem.h"
#include "python/call.h"
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

/* Reads numa=: CUDRIVER_NODE_POLICY if it is not given. 0, or -1 with an exception. */
static int node_parse(PyObject *numa, int *node)
{
    PyObject *number;

    *node = CUDRIVER_NODE_POLICY;
    if (numa == NULL) {
        return 0;
    }
    number = cudriver_call("numa", "node_of", "(O)", numa);
    *node = number != NULL ? (int)PyLong_AsLong(number) : CUDRIVER_NODE_POLICY;
    Py_XDECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

/* Reads an order argument: "C" (also NULL or None) or "F". 0 or -1. */
static int order_parse(PyObject *argument, bool *fortran)
{
    *fortran = false;
    if (argument == NULL || argument == Py_None) {
        return 0;
    }
    if (PyUnicode_Check(argument) && PyUnicode_GET_LENGTH(argument) == 1) {
        Py_UCS4 letter = Py_TOUPPER(PyUnicode_READ_CHAR(argument, 0));
        *fortran = letter == 'F';
        if (letter == 'C' || letter == 'F') {
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "order is 'C' or 'F', not %R", argument);
    return -1;
}

/* New reference: the array that the arguments ask for; all zero if `zero`. */
static PyObject *make(PyObject *module, bool zero, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"shape", "dtype", "order", "numa", NULL};
    const char *format = zero ? "O|OO$O:pinned_zeros" : "O|OO$O:pinned_empty";
    CoreState *state = cudriver_state_of_module(module);
    PyObject *lengths, *type = NULL, *order = NULL, *numa = NULL, *dtype, *array = NULL;
    Py_ssize_t shape[CUDRIVER_MAX_DIMS], itemsize, bytes;
    HostMemoryObject *memory = NULL;
    bool fortran, zeroed;
    int ndim, node;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, format, names, &lengths, &type, &order,
                                     &numa) ||
        cudriver_numpy_shape(lengths, &ndim, shape) < 0 || order_parse(order, &fortran) < 0 ||
        node_parse(numa, &node) < 0 || cudriver_numpy_dtype(type, &dtype, &itemsize) < 0) {
        return NULL;
    }
    bytes = cudriver_numpy_bytes(ndim, shape, itemsize);
    if (bytes >= 0 && cudriver_require() == 0) {
        memory =
            cudriver_host_memory_new(state, strchr(format, ':') + 1, (size_t)bytes, node, &zeroed);
    }
    if (memory != NULL) {
        if (zero && !zeroed) {
            clear(memory->address, (size_t)bytes);
        }
        array = cudriver_numpy_over((PyObject *)memory, memory->address, dtype, ndim, shape, NULL,
                                    fortran, true);
        Py_DECREF(memory);
    }
    Py_DECREF(dtype);
    return array;
}

static PyObject *pinned_empty(PyObject *module, PyObject *args, PyObject *keywords)
{
    return make(module, false, args, keywords);
}

static PyObject *pinned_zeros(PyObject *module, PyObject *args, PyObject *keywords)
{
    return make(module, true, args, keywords);
}

PyMethodDef cudriver_pinned_arrays_functions[] = {
    {"pinned_empty", (PyCFunction)(void (*)(void))pinned_empty, METH_VARARGS | METH_KEYWORDS,
     DOC_pinned_empty},
    {"pinned_zeros", (PyCFunction)(void (*)(void))pinned_zeros, METH_VARARGS | METH_KEYWORDS,
     DOC_pinned_zeros},
    {NULL},
};

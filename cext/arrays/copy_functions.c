/* copy() and copy_async(). See copy.h. */
#include "copy.h"

#include "python/arguments.h"

PyDoc_STRVAR(copy_doc,
             "copy(dst, src, /)\n"
             "--\n"
             "\n"
             "Copy an array into another one, and wait.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "dst : array\n"
             "    Where to, with any strides: a DeviceArray, a NumPy array, or an object with\n"
             "    ``__cuda_array_interface__``, ``__dlpack__``, the buffer protocol or\n"
             "    ``__array_interface__``.\n"
             "src : array\n"
             "    Where from: any such array of the same shape and dtype.\n"
             "\n"
             "Raises\n"
             "------\n"
             "TypeError, ValueError\n"
             "    An end is not an array, or the two do not fit. Nothing was copied.\n"
             "CudaError\n"
             "    The copy failed.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "`explain_copy` names the path, and with it the CUDA function. The copy is\n"
             "ordered after the work of the enclosing ``with stream:``, else of the default\n"
             "stream, and after every call of this package in flight on a DeviceArray's\n"
             "memory. Other threads run meanwhile.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> array = cu.device_empty(3, np.int64)\n"
             ">>> cu.copy(array, np.arange(3))\n"
             ">>> array.to_numpy()\n"
             "array([0, 1, 2])");

static PyObject *module_copy(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *names)
{
    CoreState *state = cudriver_state_of_module(module);

    if (count != 2 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "copy(dst, src) takes two positional arguments");
        return NULL;
    }
    if (cudriver_copy_blocking(state, args[0], args[1]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(copy_async_doc,
             "copy_async(dst, src, /, stream)\n"
             "--\n"
             "\n"
             "Copy an array into another one in the order of a stream.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "dst : array\n"
             "    Where to: any array that `copy` takes. Do not read it before the copy is over.\n"
             "src : array\n"
             "    Where from: any such array of the same shape and dtype. Do not change it\n"
             "    before the copy is over.\n"
             "stream : Stream or None\n"
             "    None for the enclosing ``with stream:``, else the default stream.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "Transfer\n"
             "    What to wait for. It keeps both ends alive until the copy is over. If the\n"
             "    stream is being captured into a graph, the copy becomes a node of that graph,\n"
             "    which keeps both ends alive.\n"
             "\n"
             "Raises\n"
             "------\n"
             "TypeError, ValueError\n"
             "    An end is not an array, or the two do not fit. Nothing was copied.\n"
             "CudaError\n"
             "    The driver refuses the copy. Or the stream is being captured, and the copy\n"
             "    cannot be part of a graph: only copies of dense memory or of rows can,\n"
             "    between page-locked memory and a device or on one device. The capture goes\n"
             "    on.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "`explain_copy` names the path, and with it the CUDA function. The call waits\n"
             "until the copy is over if the path is ``'host'`` or ``'bounced'``, or if kernels\n"
             "in the stream's context cannot use the memory. For a ``'staged'`` copy, of\n"
             "pageable or strided memory, it waits where no thread or no page-locked memory can\n"
             "be had, and, unless the copy is small, where the driver has no stream memory\n"
             "operations.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> stream = cu.Stream()\n"
             ">>> host, there = cu.pinned_zeros(3), cu.device_empty(3)\n"
             ">>> transfer = cu.copy_async(there, host, stream)\n"
             ">>> transfer.wait()\n"
             ">>> transfer.done\n"
             "True");

static PyObject *module_copy_async(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names)
{
    CoreState *state = cudriver_state_of_module(module);
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);

    /* A keyword argument's value follows the positional ones, so it is args[2] either way. */
    if (count + named != 3 || named > 1 ||
        (named == 1 &&
         PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0)) {
        PyErr_SetString(PyExc_TypeError,
                        "copy_async(dst, src, stream) takes two arrays and a stream");
        return NULL;
    }
    return cudriver_copy_async(state, args[0], args[1], args[2]);
}

static PyMethodDef functions[] = {
    {"copy", CUDRIVER_FAST(module_copy), copy_doc},
    {"copy_async", CUDRIVER_FAST(module_copy_async), copy_async_doc},
    {NULL},
};

int cudriver_copy_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

/* Functions about page-locked memory: whose memory is, where devices see it, the pool's size. */
#include "host_memory.h"

#include "arrays/dlpack.h"
#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"
#include "python/types.h"
#include "contexts/batch.h"
#include "engine/engine.h"

/* Finds an array's memory, which is not kept: the object keeps it. 0 or -1. */
static int memory_of(CoreState *state, PyObject *object, struct cudriver_host_range *range)
{
    int failed = cudriver_host_range_find(state, object, "expected an array in host memory", range);

    cudriver_host_range_done(range);
    return failed;
}

PyDoc_STRVAR(is_pinned_doc,
             "is_pinned(array, /)\n"
             "--\n"
             "\n"
             "Return whether all of an array's memory is page-locked.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "array : array\n"
             "    Any array in host memory that `copy` takes.\n"
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
    struct cudriver_host_range range;

    if (memory_of(state, object, &range) < 0) {
        return NULL;
    }
    if (!cudriver_driver.loaded && cudriver_require_loaded(state) < 0) {
        PyErr_Clear(); /* without a driver, nothing is page-locked */
        Py_RETURN_FALSE;
    }
    if (cudriver_driver_is_forked() || cuda.cuPointerGetAttribute == NULL) {
        Py_RETURN_FALSE;
    }
    return PyBool_FromLong(
        cudriver_copy_is_page_locked(range.low, range.low + (range.bytes > 0 ? range.bytes : 1)));
}

PyDoc_STRVAR(mapped_pointer_doc,
             "mapped_pointer(array, /)\n"
             "--\n"
             "\n"
             "Return the device address of an array in mapped page-locked memory.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "array : numpy.ndarray, or what else has host memory\n"
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
    struct cudriver_host_range range;
    CUdeviceptr address = 0;
    ContextObject *context;
    CUresult result;
    bool pushed;

    if (memory_of(state, object, &range) < 0 ||
        (context = cudriver_context_begin_use(state, &pushed)) == NULL) {
        return NULL;
    }
    result = cuda.cuMemHostGetDevicePointer_v2(&address, range.low, 0);
    cudriver_context_end_use(context, pushed);
    if (result == CUDA_ERROR_INVALID_VALUE) {
        PyErr_Format(PyExc_ValueError,
                     "%zu bytes at %p are no mapped page-locked memory: make the array with "
                     "pinned_empty(..., mapped=True)",
                     range.bytes, (void *)range.low);
        return NULL;
    }
    if (cudriver_check(state, result, "cuMemHostGetDevicePointer_v2", "%p", (void *)range.low) <
        0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(address + (CUdeviceptr)(range.first - range.low));
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

    cudriver_hostmem_get_stats(&stats);
    return cudriver_tuple_new(
        state->host_stats_type, 10, PyLong_FromSize_t(stats.used_bytes),
        PyLong_FromSize_t(stats.used_blocks), PyLong_FromSize_t(stats.pooled_bytes),
        PyLong_FromSize_t(stats.registered_bytes), PyLong_FromSize_t(stats.peak_bytes),
        stats.limit_bytes == SIZE_MAX ? Py_NewRef(Py_None) : PyLong_FromSize_t(stats.limit_bytes),
        PyLong_FromSize_t(stats.pins), PyLong_FromSize_t(stats.pinned_bytes),
        PyLong_FromUnsignedLongLong(stats.hits), PyLong_FromUnsignedLongLong(stats.misses));
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
        bool idle = state->in_flight == 0;
        Py_BEGIN_ALLOW_THREADS
        cudriver_driver_relax(); /* kernels are unloaded */
        cudriver_staging_trim(idle);
        cudriver_driver_restore();
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

static PyMethodDef functions[] = {
    {"is_pinned", module_is_pinned, METH_O, is_pinned_doc},
    {"mapped_pointer", module_mapped_pointer, METH_O, mapped_pointer_doc},
    {"host_memory_stats", module_stats, METH_NOARGS, host_memory_stats_doc},
    {"trim_host_memory", (PyCFunction)(void (*)(void))module_trim, METH_VARARGS | METH_KEYWORDS,
     trim_host_memory_doc},
    {"set_host_memory_limit", module_set_limit, METH_O, set_host_memory_limit_doc},
    {NULL},
};

int cudriver_host_functions_setup(PyObject *module)
{
    if (cudriver_tuple_add(module, &cudriver_state_of_module(module)->host_stats_type,
                           &stats_desc) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}

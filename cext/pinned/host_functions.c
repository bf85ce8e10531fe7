/* Functions about page-locked memory: whose memory is, where devices see it, the pool's size. */
#include "host_memory.h"

#include "arrays/dlpack.h"
#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"
#include "contexts/work.h"
#include "engine/engine.h"
#include "docstrings.h"

/* Finds an array's memory, which is not kept: the object keeps it. 0 or -1. */
static int memory_of(CoreState *state, PyObject *object, struct cudriver_host_range *range)
{
    int failed = cudriver_host_range_find(state, object, "expected an array in host memory", range);

    cudriver_host_range_done(range);
    return failed;
}

static PyObject *module_is_pinned(PyObject *module, PyObject *object)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_host_range range;

    if (memory_of(state, object, &range) < 0) {
        return NULL;
    }
    if (!cudriver_driver.loaded && cudriver_require_loaded() < 0) {
        PyErr_Clear(); /* without a driver, nothing is page-locked */
        Py_RETURN_FALSE;
    }
    if (cudriver_driver_is_forked() || cuda.cuPointerGetAttribute == NULL) {
        Py_RETURN_FALSE;
    }
    return PyBool_FromLong(
        cudriver_copy_is_page_locked(range.low, range.low + (range.bytes > 0 ? range.bytes : 1)));
}

static PyObject *module_mapped_pointer(PyObject *module, PyObject *object)
{
    CUDRIVER_LOCK();
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
                     "%zu bytes at %p are not page-locked: make the array with pinned_empty, or "
                     "pin() it",
                     range.bytes, (void *)range.low);
        return NULL;
    }
    if (cudriver_check(result, "cuMemHostGetDevicePointer_v2", "%p", (void *)range.low) < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(address + (CUdeviceptr)(range.first - range.low));
}

/* New reference: the fields of HostMemoryStats. */
static PyObject *module_stats(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    struct cudriver_hostmem_stats stats;

    cudriver_hostmem_get_stats(&stats);
    return Py_BuildValue("(nnnnnNnnKK)", (Py_ssize_t)stats.used_bytes,
                         (Py_ssize_t)stats.used_blocks, (Py_ssize_t)stats.pooled_bytes,
                         (Py_ssize_t)stats.registered_bytes, (Py_ssize_t)stats.peak_bytes,
                         stats.limit_bytes == SIZE_MAX ? Py_NewRef(Py_None)
                                                       : PyLong_FromSize_t(stats.limit_bytes),
                         (Py_ssize_t)stats.pins, (Py_ssize_t)stats.pinned_bytes,
                         (unsigned long long)stats.hits, (unsigned long long)stats.misses);
}

static PyObject *module_trim(PyObject *module, PyObject *args, PyObject *keywords)
{
    CUDRIVER_LOCK();
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
    cudriver_works_trim(state);
    if (cudriver_driver_ready) {
        bool idle = state->works.in_flight == 0;
        Py_BEGIN_ALLOW_THREADS
        cudriver_driver_relax(); /* kernels are unloaded */
        cudriver_staging_trim(idle);
        cudriver_driver_restore();
        result = cudriver_hostmem_trim(keep, &released);
        Py_END_ALLOW_THREADS
    }
    if (result != CUDA_SUCCESS) {
        return cudriver_raise(result, "cuMemHostUnregister", "trimming to %zu bytes", keep);
    }
    return PyLong_FromSize_t(released);
}

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

PyMethodDef cudriver_host_functions[] = {
    {"is_pinned", module_is_pinned, METH_O, DOC_is_pinned},
    {"mapped_pointer", module_mapped_pointer, METH_O, DOC_mapped_pointer},
    {"_host_memory_stats", module_stats, METH_NOARGS, NULL},
    {"trim_host_memory", (PyCFunction)(void (*)(void))module_trim, METH_VARARGS | METH_KEYWORDS,
     DOC_trim_host_memory},
    {"set_host_memory_limit", module_set_limit, METH_O, DOC_set_host_memory_limit},
    {NULL},
};

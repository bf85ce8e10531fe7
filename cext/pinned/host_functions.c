/* Functions about page-locked memory: whose memory is, where devices see it, the pool's size. */
#include "host_memory.h"

#include <string.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "hostmem/hostmem.h"
#include "python/error.h"
#include "contexts/work.h"
#include "docstrings.h"

static PyObject *module_is_page_locked(PyObject *Py_UNUSED(module), PyObject *args)
{
    CUDRIVER_LOCK();
    unsigned long long low;
    Py_ssize_t bytes;

    if (!PyArg_ParseTuple(args, "Kn", &low, &bytes)) {
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
        cudriver_hostmem_is_page_locked((char *)(uintptr_t)low, (char *)(uintptr_t)low + bytes));
}

/* New reference: the fields of HostMemoryStats. */
static PyObject *module_stats(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    struct cudriver_hostmem_stats stats;

    cudriver_hostmem_get_stats(&stats);
    return Py_BuildValue(
        "(nnnnnNnnKKn)", (Py_ssize_t)stats.used_bytes, (Py_ssize_t)stats.used_blocks,
        (Py_ssize_t)stats.pooled_bytes, (Py_ssize_t)stats.registered_bytes,
        (Py_ssize_t)stats.peak_bytes,
        stats.limit_bytes == SIZE_MAX ? Py_NewRef(Py_None) : PyLong_FromSize_t(stats.limit_bytes),
        (Py_ssize_t)stats.pins, (Py_ssize_t)stats.pinned_bytes, (unsigned long long)stats.hits,
        (unsigned long long)stats.misses, (Py_ssize_t)stats.huge_given_up);
}

static PyObject *module_trim(PyObject *module, PyObject *keep)
{
    CUDRIVER_LOCK();
    size_t most = PyLong_AsSize_t(keep), released = 0;
    CUresult result = CUDA_SUCCESS;

    if (PyErr_Occurred()) {
        return NULL;
    }
    if (cudriver_driver_ready) {
        result = cudriver_memory_return(cudriver_state_of_module(module), most, &released);
    }
    return cudriver_check(result, "cuMemHostUnregister", "trimming to %zu bytes", most) < 0
               ? NULL
               : PyLong_FromSize_t(released);
}

static PyObject *module_set_limit(PyObject *Py_UNUSED(module), PyObject *limit)
{
    size_t bytes = PyLong_AsSize_t(limit);

    if (PyErr_Occurred()) {
        return NULL;
    }
    cudriver_hostmem_set_limit(bytes);
    Py_RETURN_NONE;
}

/* For memory/numa.py. */
static PyObject *module_set_nodes(PyObject *Py_UNUSED(module), PyObject *table)
{
    struct cudriver_nodes nodes;

    if (!PyBytes_Check(table) || PyBytes_GET_SIZE(table) != sizeof nodes) {
        return PyErr_Format(PyExc_ValueError, "the table of nodes is %zu bytes", sizeof nodes);
    }
    memcpy(&nodes, PyBytes_AS_STRING(table), sizeof nodes);
    cudriver_hostmem_set_nodes(&nodes);
    Py_RETURN_NONE;
}

static PyObject *module_node(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(cudriver_hostmem_node());
}

static PyObject *module_place(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long address;
    Py_ssize_t bytes;
    int node;

    if (!PyArg_ParseTuple(args, "Kni", &address, &bytes, &node)) {
        return NULL;
    }
    if (node >= CUDRIVER_NODES) {
        return PyErr_Format(PyExc_ValueError, "node %d", node);
    }
    return PyLong_FromLong(platform_place((void *)(uintptr_t)address, (size_t)bytes, node));
}

/* New reference: bytes: address and length of each range that is page-locked. */
static PyObject *module_ranges(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    size_t most = cudriver_hostmem_list(NULL, 0), count;
    PyObject *ranges = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(most * 2 * sizeof(uint64_t)));

    if (ranges != NULL) {
        count = cudriver_hostmem_list((uint64_t *)PyBytes_AS_STRING(ranges), most);
        if (count < most) { /* some have gone meanwhile */
            _PyBytes_Resize(&ranges, (Py_ssize_t)(count * 2 * sizeof(uint64_t)));
        }
    }
    return ranges;
}

PyMethodDef cudriver_host_functions[] = {
    {"_is_page_locked", module_is_page_locked, METH_VARARGS, DOC__is_page_locked},
    {"_host_memory_stats", module_stats, METH_NOARGS, NULL},
    {"_trim", module_trim, METH_O, DOC__trim},
    {"_set_limit", module_set_limit, METH_O, DOC__set_limit},
    {"_set_nodes", module_set_nodes, METH_O, DOC__set_nodes},
    {"_node", module_node, METH_NOARGS, DOC__node},
    {"_place", module_place, METH_VARARGS, DOC__place},
    {"_ranges", module_ranges, METH_NOARGS, DOC__ranges},
    {NULL},
};

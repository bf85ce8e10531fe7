/* HostMemory: a block of the page-locked pool. And the functions about page-locked memory. */
#include "host_memory.h"

#include <string.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "hostmem/hostmem.h"
#include "python/call.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "contexts/work.h"
#include "docstrings.h"

int cudriver_host_room(size_t *room)
{
    PyObject *bytes = cudriver_call(CALL_room_host_room);

    *room = bytes != NULL ? PyLong_AsSize_t(bytes) : 0;
    Py_XDECREF(bytes);
    return PyErr_Occurred() ? -1 : 0;
}

/* Page-locks new memory, unless completed copies hold the last reference to some. 0, or -1 with an
 * exception, which says which limit was met if that is known. */
static int memory_lock(CoreState *state, HostMemoryObject *self, const char *called, size_t bytes,
                       int node, bool *zeroed)
{
    CUDRIVER_LOCK();
    const char *function, *arguments;
    ContextObject *context;
    CUresult result;
    PyObject *said;
    size_t room;
    bool pushed;

    cudriver_works_reap(state, NULL);
    self->address = cudriver_hostmem_try_alloc(bytes, node);
    if (self->address != NULL) {
        return 0;
    }
    if (cudriver_host_room(&room) < 0 ||
        (context = cudriver_context_begin_use(state, &pushed)) == NULL) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cudriver_hostmem_alloc(bytes, room, node, &self->address, zeroed);
    Py_END_ALLOW_THREADS
    cudriver_context_end_use(context, pushed);
    if (result == CUDA_SUCCESS) {
        return 0;
    }
    said = cudriver_call(CALL_refusals_pool, (int)result, called, (Py_ssize_t)bytes,
                         (Py_ssize_t)cudriver_hostmem_least(bytes), (unsigned long long)room);
    if (said != NULL && PyArg_ParseTuple(said, "ss", &function, &arguments)) {
        cudriver_check(result, function, "%s", arguments);
    }
    Py_XDECREF(said);
    return -1;
}

/* New reference: `bytes` of page-locked memory of a NUMA node, or CUDRIVER_NODE_POLICY. `function`:
 * the Python function that was called, for a message. *zeroed: it is all zero. */
static HostMemoryObject *memory_new(CoreState *state, const char *function, size_t bytes, int node,
                                    bool *zeroed)
{
    HostMemoryObject *self =
        (HostMemoryObject *)state->host_memory_type->tp_alloc(state->host_memory_type, 0);

    if (self == NULL) {
        return NULL;
    }
    self->bytes = bytes;
    bytes = bytes > 0 ? bytes : 1;
    *zeroed = false;
    self->address = cudriver_hostmem_try_alloc(bytes, node);
    if (self->address == NULL && memory_lock(state, self, function, bytes, node, zeroed) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    cudriver_live_add(state, &self->live, "host memory", self->bytes, (uintptr_t)self->address, -1);
    return self;
}

static void memory_dealloc(PyObject *object)
{
    HostMemoryObject *self = (HostMemoryObject *)object;
    PyTypeObject *type = Py_TYPE(object);

    if (self->address != NULL) {
        cudriver_live_remove(cudriver_state_of(object), &self->live);
        cudriver_hostmem_free(self->address);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *memory_repr(PyObject *object)
{
    HostMemoryObject *self = (HostMemoryObject *)object;

    return PyUnicode_FromFormat("<page-locked memory: %zu bytes at %p>", self->bytes,
                                self->address);
}

static PyMemberDef memory_members[] = {
    {"nbytes", T_PYSSIZET, offsetof(HostMemoryObject, bytes), READONLY, DOC_HostMemory_nbytes},
    {NULL},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, DOC_HostMemory},
    {Py_tp_dealloc, memory_dealloc},
    {Py_tp_repr, memory_repr},
    {Py_tp_members, memory_members},
    {0, NULL},
};

PyType_Spec cudriver_host_memory_spec = {
    .name = "cudriver.HostMemory",
    .basicsize = sizeof(HostMemoryObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = memory_slots,
};

/* ---- arrays in it, for memory/pinned.py ---- */

/* Clearing more bytes than this releases the GIL. */
#define LONG_BYTES ((Py_ssize_t)1 << 20)

/* _pinned(shape, dtype, fortran, node, zero) */
static PyObject *module_pinned(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    CoreState *state = cudriver_state_of_module(module);
    Py_ssize_t shape[CUDRIVER_MAX_DIMS], itemsize, bytes;
    HostMemoryObject *memory = NULL;
    PyObject *dtype, *array = NULL;
    bool zero, zeroed;
    int ndim, node;

    if (count != 5) { /* by hand: a format string takes as long as the rest */
        PyErr_SetString(PyExc_TypeError, "_pinned() takes 5 arguments");
        return NULL;
    }
    node = (int)PyLong_AsLong(args[3]);
    zero = args[4] == Py_True;
    if (PyErr_Occurred() || cudriver_numpy_shape(args[0], &ndim, shape) < 0 ||
        cudriver_numpy_dtype(args[1], &dtype, &itemsize) < 0) {
        return NULL;
    }
    bytes = cudriver_numpy_bytes(ndim, shape, itemsize);
    if (bytes >= 0 && cudriver_require() == 0) {
        memory =
            memory_new(state, zero ? "pinned_zeros" : "pinned_empty", (size_t)bytes, node, &zeroed);
    }
    if (memory != NULL) {
        if (zero && !zeroed && bytes > LONG_BYTES) {
            Py_BEGIN_ALLOW_THREADS
            memset(memory->address, 0, (size_t)bytes);
            Py_END_ALLOW_THREADS
        } else if (zero && !zeroed) {
            memset(memory->address, 0, (size_t)bytes);
        }
        array = cudriver_numpy_over((PyObject *)memory, memory->address, dtype, ndim, shape, NULL,
                                    args[2] == Py_True, true);
        Py_DECREF(memory);
    }
    Py_DECREF(dtype);
    return array;
}

/* ---- whose memory is, where it lies, the pool's size ---- */

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

static PyObject *bytes_or_none(size_t bytes)
{
    return bytes == SIZE_MAX ? Py_NewRef(Py_None) : PyLong_FromSize_t(bytes);
}

#define HostMemoryStats_FIELDS(X)                         \
    X(used_bytes, "n", stats.used_bytes)                  \
    X(used_blocks, "n", stats.used_blocks)                \
    X(pooled_bytes, "n", stats.pooled_bytes)              \
    X(registered_bytes, "n", stats.registered_bytes)      \
    X(peak_bytes, "n", stats.peak_bytes)                  \
    X(limit_bytes, "N", bytes_or_none(stats.limit_bytes)) \
    X(pins, "n", stats.pins)                              \
    X(pinned_bytes, "n", stats.pinned_bytes)              \
    X(hits, "K", stats.hits)                              \
    X(misses, "K", stats.misses)                          \
    X(huge_given_up_bytes, "n", stats.huge_given_up)

static PyObject *module_stats(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    struct cudriver_hostmem_stats stats;

    cudriver_hostmem_get_stats(&stats);
    return CUDRIVER_TUPLE(HostMemoryStats_FIELDS);
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
    {"_pinned", (PyCFunction)(void (*)(void))module_pinned, METH_FASTCALL, DOC__pinned},
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

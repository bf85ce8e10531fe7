/* HostMemory: a block of the page-locked pool. */
#include "host_memory.h"

#include <string.h>

#include "driver/driver.h"
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

    cudriver_works_reap(state);
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
        cudriver_raise(result, function, "%s", arguments);
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
        if (zero && !zeroed) {
            clear(memory->address, (size_t)bytes);
        }
        array = cudriver_numpy_over((PyObject *)memory, memory->address, dtype, ndim, shape, NULL,
                                    args[2] == Py_True, true);
        Py_DECREF(memory);
    }
    Py_DECREF(dtype);
    return array;
}

PyMethodDef cudriver_host_memory_functions[] = {
    {"_pinned", (PyCFunction)(void (*)(void))module_pinned, METH_FASTCALL, DOC__pinned},
    {NULL},
};

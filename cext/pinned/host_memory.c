/* HostMemory: a block of the page-locked pool, or a page lock on others' memory. */
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
    PyObject *bytes = cudriver_call("room", "host_room", "()");

    *room = bytes != NULL ? PyLong_AsSize_t(bytes) : 0;
    Py_XDECREF(bytes);
    return PyErr_Occurred() ? -1 : 0;
}

/* Raises, and says which limit was met if that is known. */
static void raise_alloc(CUresult result, const char *called, size_t bytes, size_t room)
{
    PyObject *said =
        cudriver_call("refusals", "pool", "(isnnK)", (int)result, called, (Py_ssize_t)bytes,
                      (Py_ssize_t)cudriver_hostmem_least(bytes), (unsigned long long)room);
    const char *function, *arguments;

    if (said != NULL && PyArg_ParseTuple(said, "ss", &function, &arguments)) {
        cudriver_raise(result, function, "%s", arguments);
    }
    Py_XDECREF(said);
}

/* Page-locks new memory, unless completed copies hold the last reference to some. 0, or -1 with an
 * exception. */
static int memory_lock(CoreState *state, HostMemoryObject *self, const char *function, size_t bytes,
                       int node, bool *zeroed)
{
    CUDRIVER_LOCK();
    ContextObject *context;
    CUresult result;
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
    if (result != CUDA_SUCCESS) {
        raise_alloc(result, function, bytes, room);
        return -1;
    }
    return 0;
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
    self->block = true;
    cudriver_live_add(state, &self->live, "host memory", self->bytes, (uintptr_t)self->address, -1);
    return self;
}

/* Ends the page lock on others' memory, which is then in no list of what is alive. */
static CUresult memory_unlock(CoreState *state, HostMemoryObject *self)
{
    struct cudriver_pin *pin = self->pin;
    CUresult result = CUDA_SUCCESS;

    self->pin = NULL; /* first: others may end the lock meanwhile */
    cudriver_live_remove(state, &self->live);
    if (pin != NULL) {
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_pin_destroy(pin);
        Py_END_ALLOW_THREADS
    }
    return result;
}

static void memory_dealloc(PyObject *object)
{
    HostMemoryObject *self = (HostMemoryObject *)object;
    CoreState *state = cudriver_state_of(object);
    PyTypeObject *type = Py_TYPE(object);

    if (self->block) {
        cudriver_live_remove(state, &self->live);
        cudriver_hostmem_free(self->address);
    } else {
        CUDRIVER_LOCK();
        cudriver_report(state, memory_unlock(state, self), "cuMemHostUnregister", NULL);
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
    if (cudriver_numpy_shape(args[0], &ndim, shape) < 0 ||
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

/* ---- page locks on others' memory, for memory/host.py ---- */

/* Raises what became of a refused pin. `other`: the range of a pin that holds a part of the memory,
 * if there is one: by now it may be gone. */
static void raise_refusal(const HostMemoryObject *self, CUresult result,
                          struct cudriver_pin_range other)
{
    PyObject *arguments = cudriver_call(
        "refusals", "pin", "(iKnOKn)", (int)result, (unsigned long long)(uintptr_t)self->address,
        (Py_ssize_t)self->bytes, self->writable ? Py_True : Py_False,
        (unsigned long long)other.begin, (Py_ssize_t)other.bytes);

    if (arguments != NULL) {
        cudriver_raise(result, "cuMemHostRegister_v2", "%s", PyUnicode_AsUTF8(arguments));
        Py_DECREF(arguments);
    }
}

/* _pin_prepare(low, nbytes, writable) */
static PyObject *module_pin_prepare(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    HostMemoryObject *self =
        (HostMemoryObject *)state->host_memory_type->tp_alloc(state->host_memory_type, 0);
    bool initialised = cudriver_driver_ready || cudriver_driver_is_forked(), mapped;
    CUdevice device;
    int writable;

    if (self == NULL || !PyArg_ParseTuple(args, "KKp", &self->address, &self->bytes, &writable)) {
        Py_XDECREF(self);
        return NULL;
    }
    self->ordinal = -1;
    self->writable = writable != 0;
    Py_BEGIN_ALLOW_THREADS
    mapped = platform_is_mapped((uintptr_t)self->address, self->bytes);
    Py_END_ALLOW_THREADS
    if (!mapped) { /* strides may reach further than the memory */
        Py_XDECREF(cudriver_call("refusals", "unmapped", "(KK)",
                                 (unsigned long long)(uintptr_t)self->address,
                                 (unsigned long long)self->bytes));
    }
    /* cuInit takes a while: it is called when the memory is page-locked, perhaps in a thread. */
    if (!mapped || (initialised ? cudriver_require() : cudriver_require_loaded()) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (initialised && cuda.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
        self->ordinal = device;
    }
    cudriver_live_add(state, &self->live, "pin", self->bytes, (uintptr_t)self->address, -1);
    return (PyObject *)self;
}

/* _pin_lock(pin, step, fresh) */
static PyObject *module_pin_lock(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_pin_range other = {0, 0};
    struct cudriver_pin_way way;
    struct cudriver_pin *pin = NULL;
    CUresult result = CUDA_SUCCESS;
    ContextObject *context;
    HostMemoryObject *self;
    Py_ssize_t step;
    bool pushed;
    int fresh;

    if (!PyArg_ParseTuple(args, "O!np:_pin_lock", state->host_memory_type, &self, &step, &fresh) ||
        cudriver_require() < 0) {
        return NULL;
    }
    context = self->ordinal < 0 ? cudriver_context_for_use(state)
                                : cudriver_context_for_ordinal(state, self->ordinal);
    if (context == NULL || cudriver_context_begin(state, context, &pushed) < 0) {
        Py_XDECREF(context);
        return NULL;
    }
    way = (struct cudriver_pin_way){.read_only = !self->writable,
                                    .fresh = fresh != 0,
                                    .step = step > 0 ? (size_t)step : 0,
                                    .stop = step >= 0 ? &self->stop : NULL};
    if (self->bytes > 0) {
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_pin_create(self->address, self->bytes, &way, &pin, &other);
        Py_END_ALLOW_THREADS
    }
    cudriver_context_end_use(context, pushed);
    if (result == CUDRIVER_PIN_STOPPED) {
        Py_RETURN_FALSE;
    }
    if (result != CUDA_SUCCESS) {
        raise_refusal(self, result, other);
        return NULL;
    }
    self->pin = pin;
    Py_RETURN_TRUE;
}

static PyObject *module_pin_stop(PyObject *Py_UNUSED(module), PyObject *pin)
{
    cudriver_pin_stop(&((HostMemoryObject *)pin)->stop);
    Py_RETURN_NONE;
}

static PyObject *module_pin_unlock(PyObject *module, PyObject *pin)
{
    CUDRIVER_LOCK();
    HostMemoryObject *self = (HostMemoryObject *)pin;
    CUresult result = memory_unlock(cudriver_state_of_module(module), self);

    return cudriver_check(result, "cuMemHostUnregister", "%zu bytes", self->bytes) < 0
               ? NULL
               : Py_NewRef(Py_None);
}

PyMethodDef cudriver_host_memory_functions[] = {
    {"_pinned", (PyCFunction)(void (*)(void))module_pinned, METH_FASTCALL, DOC__pinned},
    {"_pin_prepare", module_pin_prepare, METH_VARARGS, DOC__pin_prepare},
    {"_pin_lock", module_pin_lock, METH_VARARGS, DOC__pin_lock},
    {"_pin_stop", module_pin_stop, METH_O, NULL},
    {"_pin_unlock", module_pin_unlock, METH_O, DOC__pin_unlock},
    {NULL},
};

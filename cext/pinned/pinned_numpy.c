/* NumPy's memory handler (NEP 49) that allocates page-locked memory, behind pinned_numpy(). */
#include "host_memory.h"

#include "python/numpy_api.h"

#include <string.h>

#include "driver/driver.h"
#include "python/error.h"
#include "hostmem/hostmem.h"
#include "python/numpy_bridge.h"
#include "docstrings.h"

/* The handler of one pinned_numpy() block. Each array that it allocated owns its capsule and so
 * keeps it alive. */
struct handler {
    PyDataMem_Handler numpy; /* what NumPy calls; first, so that a pointer to it is one to this */
    PyDataMemAllocator ordinary; /* NumPy's own */
    CoreState *state;
    PyObject *module; /* owned: the module that `state` belongs to */
    size_t min_bytes;
    atomic_bool warned;
    atomic_bool over; /* the block object died without __exit__: allocate ordinary memory */
    struct cudriver_live live; /* one entry for all its memory; listed while any is alive */
    size_t blocks;
};

/* NumPy calls handlers with the GIL held, or where there is none from a thread of Python's. */
static void handler_count(struct handler *handler, size_t bytes)
{
    CUDRIVER_LOCK();
    if (handler->blocks++ == 0) {
        cudriver_live_add(handler->state, &handler->live, "NumPy arrays of a pinned_numpy()", 0, 0,
                          -1);
    }
    handler->live.bytes += bytes;
}

static void handler_uncount(struct handler *handler, size_t bytes)
{
    CUDRIVER_LOCK();
    handler->live.bytes -= bytes;
    if (--handler->blocks == 0) {
        cudriver_live_remove(handler->state, &handler->live);
    }
}

/* The room for new memory; 0 if a signal handler raises while that is found out, for np.empty must
 * not fail. */
static size_t handler_room(void)
{
    size_t room;

    if (cudriver_host_room(&room) == 0) {
        return room;
    }
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        PyErr_Clear();
        PyErr_SetInterrupt(); /* once more, when NumPy has returned */
    } else {
        PyErr_WriteUnraisable(NULL);
    }
    return 0;
}

/* Page-locked memory, or NULL. Keeps a pending exception. */
static void *handler_lock(struct handler *handler, size_t bytes, bool *zeroed)
{
    void *address = NULL;
    CUresult result = CUDA_ERROR_INVALID_CONTEXT;
    ContextObject *context;
    PyObject *type, *value, *traceback;
    PyGILState_STATE held;
    size_t room;
    bool pushed;

    *zeroed = false;
    if (handler->over || cudriver_driver_is_forked() || Py_IsFinalizing()) {
        return NULL;
    }
    address = cudriver_hostmem_try_alloc(bytes, CUDRIVER_NODE_POLICY);
    if (address != NULL) {
        handler_count(handler, bytes);
        return address;
    }
    held = PyGILState_Ensure();
    PyErr_Fetch(&type, &value, &traceback);
    room = handler_room();
    {
        CUDRIVER_LOCK();
        context = cudriver_context_begin_use(handler->state, &pushed);
        if (context != NULL) {
            Py_BEGIN_ALLOW_THREADS
            result = cudriver_hostmem_alloc(bytes, room, CUDRIVER_NODE_POLICY, &address, zeroed);
            Py_END_ALLOW_THREADS
            cudriver_context_end_use(context, pushed);
        }
    }
    PyErr_Clear();
    if (result == CUDA_SUCCESS) {
        handler_count(handler, bytes);
    } else if (!atomic_exchange(&handler->warned, true) &&
               PyErr_WarnFormat(
                   PyExc_RuntimeWarning, 1,
                   "pinned_numpy(): %zu bytes could not be page-locked; this array, and perhaps "
                   "later ones, are in ordinary memory",
                   bytes) < 0) {
        PyErr_WriteUnraisable(NULL); /* warnings are errors, but np.empty must not fail */
    }
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(held);
    return address;
}

static void *handler_malloc(void *context, size_t size)
{
    struct handler *handler = context;
    void *address;
    bool zeroed;

    address = size >= handler->min_bytes ? handler_lock(handler, size, &zeroed) : NULL;
    return address != NULL ? address : handler->ordinary.malloc(handler->ordinary.ctx, size);
}

static void *handler_calloc(void *context, size_t count, size_t size)
{
    struct handler *handler = context;
    void *address = NULL;
    size_t bytes;
    bool zeroed = true;

    if (!__builtin_mul_overflow(count, size, &bytes) && bytes >= handler->min_bytes) {
        address = handler_lock(handler, bytes, &zeroed);
    }
    if (address == NULL) {
        return handler->ordinary.calloc(handler->ordinary.ctx, count, size);
    }
    return zeroed ? address : memset(address, 0, bytes);
}

static void handler_free(void *context, void *address, size_t size)
{
    struct handler *handler = context;
    size_t bytes = cudriver_hostmem_free_if_owned(address);

    if (bytes > 0) {
        handler_uncount(handler, bytes);
    } else {
        handler->ordinary.free(handler->ordinary.ctx, address, size);
    }
}

/* Grows an ordinary block to `size` (its old size is unknown), then moves it if possible. */
static void *realloc_ordinary(struct handler *handler, void *address, size_t size)
{
    const PyDataMemAllocator *ordinary = &handler->ordinary;
    void *grown = ordinary->realloc(ordinary->ctx, address, size), *locked;
    bool zeroed;

    if (grown == NULL || size < handler->min_bytes) {
        return grown;
    }
    locked = handler_lock(handler, size, &zeroed);
    if (locked == NULL) {
        return grown;
    }
    memcpy(locked, grown, size);
    ordinary->free(ordinary->ctx, grown, size);
    return locked;
}

static void *handler_realloc(void *context, void *address, size_t size)
{
    struct handler *handler = context;
    size_t old;
    void *moved;

    if (address == NULL) {
        return handler_malloc(context, size);
    }
    if (!cudriver_hostmem_owns(address, &old)) {
        return realloc_ordinary(handler, address, size);
    }
    moved = handler_malloc(context, size);
    if (moved != NULL) {
        memcpy(moved, address, old < size ? old : size);
        handler_uncount(handler, old);
        cudriver_hostmem_free(address);
    }
    return moved;
}

static void handler_end(PyObject *capsule)
{
    struct handler *handler = PyCapsule_GetPointer(capsule, "mem_handler");

    cudriver_live_remove(handler->state, &handler->live);
    Py_XDECREF(handler->module);
    PyMem_Free(handler);
}

/* New reference: a capsule with a new handler. */
static PyObject *handler_new(CoreState *state, PyObject *module, size_t min_bytes)
{
    PyDataMem_Handler *usual = PyCapsule_GetPointer(PyDataMem_DefaultHandler, "mem_handler");
    struct handler *handler = usual != NULL ? PyMem_Calloc(1, sizeof *handler) : NULL;
    PyObject *capsule;

    if (handler == NULL) {
        return usual != NULL ? PyErr_NoMemory() : NULL;
    }
    handler->ordinary = usual->allocator;
    memcpy(handler->numpy.name, "cudriver_page_locked", sizeof "cudriver_page_locked");
    handler->numpy.version = 1;
    handler->numpy.allocator.ctx = handler;
    handler->numpy.allocator.malloc = handler_malloc;
    handler->numpy.allocator.calloc = handler_calloc;
    handler->numpy.allocator.realloc = handler_realloc;
    handler->numpy.allocator.free = handler_free;
    handler->state = state;
    handler->min_bytes = min_bytes;
    capsule = PyCapsule_New(handler, "mem_handler", handler_end);
    if (capsule == NULL) {
        PyMem_Free(handler);
        return NULL;
    }
    handler->module = Py_NewRef(module);
    return capsule;
}

/* New reference: the capsule of a new handler. */
static PyObject *module_numpy_new(PyObject *module, PyObject *min_bytes)
{
    size_t least = PyLong_AsSize_t(min_bytes);

    return PyErr_Occurred() || cudriver_numpy_require() < 0 || cudriver_require() < 0
               ? NULL
               : handler_new(cudriver_state_of_module(module), module, least);
}

/* New reference: the handler that was in force in this context, in whose place the given one is. */
static PyObject *module_numpy_set(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, "mem_handler")) {
        return PyErr_Format(PyExc_TypeError, "expected a handler of NumPy, not %.100s",
                            Py_TYPE(capsule)->tp_name);
    }
    return cudriver_numpy_require() < 0 ? NULL : PyDataMem_SetHandler(capsule);
}

/* From here on the handler allocates ordinary memory. */
static PyObject *module_numpy_forget(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    struct handler *handler = PyCapsule_IsValid(capsule, "mem_handler")
                                  ? PyCapsule_GetPointer(capsule, "mem_handler")
                                  : NULL;

    if (handler == NULL || handler->numpy.allocator.malloc != handler_malloc) {
        return PyErr_Format(PyExc_TypeError, "expected a handler of pinned_numpy(), not %.100s",
                            Py_TYPE(capsule)->tp_name);
    }
    handler->over = true;
    Py_RETURN_NONE;
}

PyMethodDef cudriver_pinned_numpy_functions[] = {
    {"_numpy_new", module_numpy_new, METH_O, DOC__numpy_new},
    {"_numpy_set", module_numpy_set, METH_O, DOC__numpy_set},
    {"_numpy_forget", module_numpy_forget, METH_O, DOC__numpy_forget},
    {NULL},
};

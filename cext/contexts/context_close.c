/* The end of a Context: close(), the last reference, and the reset of a primary context. */
#include "work.h"
#include "context_private.h"
#include "driver/driver.h"
#include "engine/engine.h"
#include "hostmem/hostmem.h"
#include "python/call.h"
#include "python/error.h"

/* Releases what the driver holds for the context. *function: the call whose result is returned. The
 * GIL is held; the state is no longer OPEN. */
static CUresult context_release(ContextObject *self, const char **function)
{
    CUstream stream = self->allocs.stream;
    bool was_reset = self->state == CUDRIVER_CONTEXT_RESET;
    CUresult result = CUDA_SUCCESS;

    self->allocs.stream = NULL;
    *function = "cuCtxDestroy_v2";
    if (cudriver_driver_is_forked()) {
        return CUDA_SUCCESS;
    }
    Py_BEGIN_ALLOW_THREADS
    /* Destroying a manual context destroys its streams. */
    if (!was_reset && self->kind != CUDRIVER_CONTEXT_MANUAL && stream != NULL) {
        bool pushed;
        if (cudriver_context_make_current(self, &pushed) == CUDA_SUCCESS ||
            self->kind != CUDRIVER_CONTEXT_FOREIGN) {
            cuda.cuStreamDestroy_v2(stream);
        }
        cudriver_context_unmake_current(pushed);
    }
    if (!was_reset) {
        cudriver_staging_forget_context(self->handle);
    }
    if (self->kind == CUDRIVER_CONTEXT_MANUAL) {
        result = cuda.cuCtxDestroy_v2(self->handle);
    } else if (self->kind == CUDRIVER_CONTEXT_PRIMARY) {
        *function = "cuDevicePrimaryCtxRelease_v2";
        result = cuda.cuDevicePrimaryCtxRelease_v2(self->device);
    }
    Py_END_ALLOW_THREADS
    return result;
}

/* Ends a context, open or reset, that nothing uses any more. *function: as by context_release. */
static CUresult context_end(CoreState *state, ContextObject *self, const char **function)
{
    CUresult result;

    cudriver_works_forget(self);
    if (self->state == CUDRIVER_CONTEXT_OPEN) {
        self->state = CUDRIVER_CONTEXT_CLOSED;
    }
    cudriver_live_remove(state, &self->live);
    cudriver_context_unkeep(self);
    result = context_release(self, function);
    self->state = CUDRIVER_CONTEXT_CLOSED;
    return result;
}

int cudriver_context_close(CoreState *state, ContextObject *self, const char *call)
{
    const char *function;
    PyObject *holder;
    CUresult result;
    bool free;

    if (self->children > 0) {
        cudriver_works_reap(state); /* a completed copy may hold the last of them */
    }
    holder = cudriver_context_holder(state, self);
    if (holder == NULL || self->state == CUDRIVER_CONTEXT_CLOSED) {
        Py_XDECREF(holder);
        return holder == NULL ? -1 : 0;
    }
    free = !PyObject_IsTrue(holder) && self->children == 0 && self->in_use == 0;
    if (!free) {
        Py_XDECREF(cudriver_call("contexts", "refuse_end", "(OsOnO)", self, call, holder,
                                 self->children, self->in_use > 0 ? Py_True : Py_False));
    }
    Py_DECREF(holder);
    if (!free) {
        return -1;
    }
    result = context_end(state, self, &function);
    return cudriver_check(result, function, "context %llu of device %d", self->number,
                          self->ordinal);
}

void cudriver_context_dealloc(PyObject *object)
{
    CUDRIVER_LOCK();
    ContextObject *self = (ContextObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    CoreState *state = cudriver_state_of(object);
    ContextObject **link = &state->contexts;
    const char *function;

    cudriver_weak_clear(object, &self->weak);
    while (*link != self) {
        link = &(*link)->next;
    }
    *link = self->next;
    if (self->state != CUDRIVER_CONTEXT_CLOSED) {
        CUresult result = context_end(state, self, &function);
        cudriver_report(state, result, function, NULL);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

CUresult cudriver_memory_return(CoreState *state, size_t keep, size_t *released)
{
    CUresult result;
    bool idle;

    cudriver_works_reap(state);
    for (ContextObject *context = state->contexts; context != NULL; context = context->next) {
        cudriver_works_forget(context);
    }
    idle = state->works.queues == NULL;
    Py_BEGIN_ALLOW_THREADS
    cudriver_driver_relax(); /* kernels are unloaded */
    cudriver_staging_trim(idle);
    cudriver_driver_restore();
    result = cudriver_hostmem_trim(keep, released);
    Py_END_ALLOW_THREADS
    return result;
}

/* 0 if no call runs on the device, no other thread resets, and, with `memory`, no page-locked
 * memory in use is registered in the primary context; else -1 with InvalidContextError. */
static int reset_check(CoreState *state, int ordinal, CUdevice device, bool memory)
{
    ContextObject *busy = state->contexts;

    if (state->resetting != 0) {
        cudriver_context_raise_resetting(state);
        return -1;
    }
    while (busy != NULL && (busy->ordinal != ordinal || busy->in_use == 0)) {
        busy = busy->next;
    }
    if (busy != NULL || (memory && cudriver_hostmem_uses_device(device))) {
        /* The call that runs may end meanwhile: a reference. */
        Py_XDECREF(cudriver_call("contexts", "refuse_reset", "(iN)", ordinal,
                                 Py_NewRef(busy != NULL ? (PyObject *)busy : Py_None)));
        return -1;
    }
    return 0;
}

PyObject *cudriver_context_reset_primary(PyObject *module, PyObject *number)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    int ordinal = (int)PyLong_AsLong(number);
    CUcontext handle = NULL, current = NULL;
    CUresult result = CUDA_SUCCESS;
    ContextObject *self;
    size_t released;
    CUdevice device;
    int failed = 0;

    if (cudriver_device_handle(ordinal, &device) < 0) {
        return NULL;
    }
    if (reset_check(state, ordinal, device, false) < 0) {
        return NULL; /* else the return of memory would wait for them */
    }
    (void)cudriver_memory_return(state, 0, &released);
    if (reset_check(state, ordinal, device, true) < 0) {
        return NULL;
    }
    /* The driver waits for other libraries' work, and that may wait for Python code: a host
     * function. So the GIL goes, and calls on the device are refused meanwhile. */
    state->resetting = 1 + ordinal;
    self = cudriver_context_find_primary(state, ordinal);
    if (self != NULL) {
        handle = self->handle;
        failed = cudriver_context_close(state, self, "reset");
        Py_DECREF(self);
    }
    if (failed == 0) {
        Py_BEGIN_ALLOW_THREADS
        result = cuda.cuDevicePrimaryCtxReset_v2(device);
        Py_END_ALLOW_THREADS
    }
    state->resetting = 0;
    state->resets++;
    if (failed < 0) {
        return NULL;
    }
    if (handle != NULL && cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == handle) {
        cuda.cuCtxSetCurrent(NULL); /* nobody pushed it: a call made it current */
    }
    return cudriver_check(result, "cuDevicePrimaryCtxReset_v2", "device %d", ordinal) < 0
               ? NULL
               : Py_NewRef(Py_None);
}

/* The end of a Context: close(), the last reference, and the reset of a primary context. */
#include "work.h"
#include "context_private.h"
#include "driver/driver.h"
#include "engine/engine.h"
#include "hostmem/hostmem.h"
#include "python/error.h"

/* Releases what the copy engine keeps in a foreign context, while the keeper still protects the
 * handle. Without the GIL. */
static void foreign_forget(ContextObject *self)
{
    bool pushed;

    if (self->keeper == NULL) {
        return;
    }
    (void)cudriver_context_make_current(self, &pushed);
    cudriver_context_unmake_current(pushed);
    cudriver_staging_forget_context(self->handle);
}

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
    if (self->kind == CUDRIVER_CONTEXT_FOREIGN) {
        foreign_forget(self);
    } else if (self->kind == CUDRIVER_CONTEXT_MANUAL) {
        cudriver_staging_forget_context(self->handle);
        result = cuda.cuCtxDestroy_v2(self->handle);
    } else {
        *function = "cuDevicePrimaryCtxRelease_v2";
        if (!was_reset) {
            cudriver_staging_forget_context(self->handle);
        }
        result = cuda.cuDevicePrimaryCtxRelease_v2(self->device);
    }
    Py_END_ALLOW_THREADS
    return result;
}

/* Ends a context, open or reset, that nothing uses any more. As above. */
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
    cudriver_context_let_go(self);
    return result;
}

/* Closes the context, for a call of this name. 0 or -1. */
static int context_close(CoreState *state, ContextObject *self, const char *call)
{
    const char *function;
    CUresult result;
    bool pushed;

    if (self->children > 0) {
        cudriver_works_reap(state); /* a completed copy may hold the last of them */
    }
    pushed = cudriver_context_is_pushed(state, self);
    if (self->state == CUDRIVER_CONTEXT_CLOSED) {
        return 0;
    }
    if (pushed) {
        unsigned long thread = self->pushes.list[self->pushes.count - 1].thread;
        ContextObject *current = NULL;
        cudriver_context_find_current(state, &current);
        PyErr_Clear();
        cudriver_raise_plain("InvalidContextError",
                             "cannot %s %R: it is on the stack of thread %lu (here %S is current); "
                             "pop it there first",
                             call, self, thread, current != NULL ? (PyObject *)current : Py_None);
        Py_XDECREF(current);
        return -1;
    }
    if (self->children > 0) {
        cudriver_raise_plain("InvalidContextError",
                             "cannot %s %R: %zd %s in it%s (see live_allocations())", call, self,
                             self->children,
                             self->children == 1 ? "array, stream or event still lives"
                                                 : "arrays, streams or events still live",
                             self->in_use > 0 ? ", and a call is running" : "");
        return -1;
    }
    if (self->in_use > 0) {
        cudriver_raise_plain("InvalidContextError",
                             "cannot %s %R: a call is running in it; wait for that first", call,
                             self);
        return -1;
    }
    result = context_end(state, self, &function);
    return cudriver_check(result, function, "context %llu of device %d", self->number,
                          self->ordinal);
}

int cudriver_context_close(CoreState *state, ContextObject *self)
{
    return context_close(state, self, "close");
}

void cudriver_context_dealloc(PyObject *object)
{
    CUDRIVER_LOCK();
    ContextObject *self = (ContextObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    CoreState *state = cudriver_state_of(object);
    const char *function;

    cudriver_weak_clear(object, &self->weak);
    cudriver_context_unregister(state, self);
    PyMem_Free(self->pushes.list);
    if (self->state != CUDRIVER_CONTEXT_CLOSED) {
        CUresult result = context_end(state, self, &function);
        cudriver_report(state, result, function, NULL);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

/* Free memory of the engine and the pool, which is registered in primary contexts, goes back. */
static void memory_return(CoreState *state)
{
    size_t released;
    bool idle;

    cudriver_works_trim(state);
    idle = state->works.in_flight == 0;
    Py_BEGIN_ALLOW_THREADS
    cudriver_driver_relax();
    cudriver_staging_trim(idle);
    cudriver_driver_restore();
    (void)cudriver_hostmem_trim(0, &released);
    Py_END_ALLOW_THREADS
}

/* 0 if no call runs on the device, and no other thread resets; else -1 with InvalidContextError. */
static int reset_check_calls(CoreState *state, int ordinal)
{
    if (state->resetting != 0) {
        cudriver_context_raise_resetting(state);
        return -1;
    }
    for (ContextObject *context = state->contexts; context != NULL; context = context->next) {
        if (context->ordinal == ordinal && context->in_use > 0) {
            Py_INCREF(context); /* the call that runs may end meanwhile */
            cudriver_raise_plain("InvalidContextError",
                                 "cannot reset the primary context of device %d: a call is running "
                                 "in %R; wait for it first",
                                 ordinal, context);
            Py_DECREF(context);
            return -1;
        }
    }
    return 0;
}

/* The same if no page-locked memory in use is registered in the device's primary context. */
static int reset_check_memory(int ordinal, CUdevice device)
{
    if (!cudriver_hostmem_uses_device(device)) {
        return 0;
    }
    cudriver_raise_plain("InvalidContextError",
                         "cannot reset the primary context of device %d: page-locked memory of "
                         "arrays, pins or copies is registered in it; let that go first (see "
                         "live_allocations())",
                         ordinal);
    return -1;
}

int cudriver_context_reset_primary(CoreState *state, int ordinal)
{
    CUcontext handle = NULL, current = NULL;
    CUresult result = CUDA_SUCCESS;
    ContextObject *self;
    CUdevice device;
    int failed = 0;

    if (cudriver_device_handle(ordinal, &device) < 0) {
        return -1;
    }
    if (reset_check_calls(state, ordinal) < 0) {
        return -1; /* else the return of memory would wait for them */
    }
    memory_return(state);
    if (reset_check_calls(state, ordinal) < 0 || reset_check_memory(ordinal, device) < 0) {
        return -1;
    }
    /* The driver waits for other libraries' work, and that may wait for Python code: a host
     * function. So the GIL goes, and calls on the device are refused meanwhile. */
    state->resetting = 1 + ordinal;
    self = cudriver_context_find_primary(state, ordinal);
    if (self != NULL) {
        handle = self->handle;
        failed = context_close(state, self, "reset");
        Py_DECREF(self);
    }
    if (failed == 0) {
        Py_BEGIN_ALLOW_THREADS
        result = cuda.cuDevicePrimaryCtxReset_v2(device);
        Py_END_ALLOW_THREADS
    }
    state->resetting = 0;
    if (failed < 0) {
        return -1;
    }
    if (handle != NULL && cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == handle) {
        cuda.cuCtxSetCurrent(NULL); /* nobody pushed it: a call made it current */
    }
    return cudriver_check(result, "cuDevicePrimaryCtxReset_v2", "device %d", ordinal);
}

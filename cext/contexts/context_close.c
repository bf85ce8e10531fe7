/* The end of a Context: close(), the last reference, and the reset of a primary context. */
#include "batch.h"
#include "context_private.h"
#include "driver/driver.h"
#include "driver/keeper.h"
#include "engine/engine.h"
#include "hostmem/hostmem.h"
#include "python/devices.h"
#include "python/error.h"
#include "thread.h"

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
    CUstream stream = self->alloc_stream;
    bool was_reset = self->state == CUDRIVER_CONTEXT_RESET;
    CUresult result = CUDA_SUCCESS;

    self->alloc_stream = NULL;
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

int cudriver_context_close(CoreState *state, ContextObject *self)
{
    const char *function;
    CUresult result;

    if (self->children > 0) {
        cudriver_batches_reap(state, true); /* a completed copy may hold the last of them */
    }
    if (self->state == CUDRIVER_CONTEXT_CLOSED) {
        return 0;
    }
    if (self->pushes > 0) {
        cudriver_context_walk_stack(state, NULL); /* another library may have popped it */
        PyErr_Clear();
    }
    if (self->pushes > 0) {
        ContextObject *current = NULL;
        cudriver_context_find_current(state, &current);
        cudriver_raise_plain(
            state, "InvalidContextError",
            "cannot close %R: it is on the stack of thread %lu (here %S is current); "
            "pop it there first",
            self, self->pushed_by, current != NULL ? (PyObject *)current : Py_None);
        Py_XDECREF(current);
        return -1;
    }
    if (self->children > 0 || self->in_use > 0) {
        cudriver_raise_plain(state, "InvalidContextError",
                             "cannot close %R: %zd %s in it%s (see live_allocations())", self,
                             self->children,
                             self->children == 1 ? "array, stream or event still lives"
                                                 : "arrays, streams or events still live",
                             self->in_use > 0 ? ", and a call is running" : "");
        return -1;
    }
    result = context_end(state, self, &function);
    return cudriver_check(state, result, function, "context %llu of device %d", self->number,
                          self->ordinal);
}

void cudriver_context_dealloc(PyObject *object)
{
    ContextObject *self = (ContextObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    CoreState *state = cudriver_state_of(object);
    const char *function;

    if (self->weak != NULL) {
        PyObject_ClearWeakRefs(object);
    }
    cudriver_context_unregister(state, self);
    if (self->state != CUDRIVER_CONTEXT_CLOSED) {
        CUresult result = context_end(state, self, &function);
        cudriver_report(state, result, function, NULL);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

/* A primary context in which a call runs, or in which write-combined arrays live, is not reset. 0,
 * or -1 with InvalidContextError. */
static int reset_check_own(CoreState *state, ContextObject *self)
{
    if (self == NULL || (self->pinning == 0 && self->in_use == 0)) {
        return 0;
    }
    cudriver_raise_plain(state, "InvalidContextError", "cannot reset %R: %s", self,
                         self->in_use > 0 ? "a call is running in it"
                                          : "write-combined arrays live in it, and their memory "
                                            "would vanish");
    return -1;
}

/* Page-locked memory that the reset would unregister may be in use in another context of ours, and
 * the reset does not wait for that: refuses. 0, or -1 with InvalidContextError. */
static int reset_check(CoreState *state, int ordinal, CUdevice device, const ContextObject *self)
{
    if (!cudriver_hostmem_is_home(device)) {
        return 0;
    }
    cudriver_batches_reap(state, true);
    for (ContextObject *other = state->contexts; other != NULL; other = other->next) {
        if (other == self || other->state != CUDRIVER_CONTEXT_OPEN ||
            (other->in_use == 0 && !cudriver_batches_use(state, other))) {
            continue;
        }
        cudriver_raise_plain(
            state, "InvalidContextError",
            "cannot reset the primary context of device %d: %s in %R, which may "
            "use page-locked memory that is registered there; wait for it first",
            ordinal, other->in_use > 0 ? "a call is running" : "a copy is under way", other);
        return -1;
    }
    return 0;
}

/*
 * The driver waits for work in the context, and that may wait for Python code: a host function. So
 * this lets the GIL go, and meanwhile calls in the device's other contexts wait. Not where
 * page-locked memory is registered in the context: no call in any context may start to use that
 * before its loss is noted.
 */
static CUresult primary_reset(CoreState *state, int ordinal, CUdevice device)
{
    CUresult result;

    if (cudriver_hostmem_is_home(device)) {
        result = cuda.cuDevicePrimaryCtxReset_v2(device);
    } else {
        state->resetting = 1 + ordinal;
        Py_BEGIN_ALLOW_THREADS
        result = cuda.cuDevicePrimaryCtxReset_v2(device);
        Py_END_ALLOW_THREADS
        state->resetting = 0;
    }
    if (result == CUDA_SUCCESS) {
        cudriver_hostmem_forget_home(device);
        cudriver_staging_renew_slots();
    }
    return result;
}

int cudriver_context_reset_primary(CoreState *state, int ordinal)
{
    ContextObject *self = cudriver_context_find_primary(state, ordinal);
    CUcontext handle = NULL, current = NULL;
    CUdevice device;
    CUresult result;

    if (cudriver_device_handle(state, ordinal, &device) < 0) {
        return -1;
    }
    /* Checked before any copy is cancelled. The check may let other threads run, so look at the
     * context again after it. */
    Py_XINCREF(self);
    if (reset_check_own(state, self) < 0 || reset_check(state, ordinal, device, self) < 0 ||
        reset_check_own(state, self) < 0) {
        Py_XDECREF(self);
        return -1;
    }
    if (self != NULL && self->state != CUDRIVER_CONTEXT_OPEN) {
        Py_DECREF(self); /* closed meanwhile: nothing of ours is left in it */
        self = NULL;
    }
    if (self != NULL) {
        handle = self->handle;
        self->state = CUDRIVER_CONTEXT_RESET; /* no other thread starts to use it */
        Py_BEGIN_ALLOW_THREADS
        cudriver_staging_forget_context(handle);
        Py_END_ALLOW_THREADS
    }
    if (cudriver_context_await_reset(state) < 0 || reset_check(state, ordinal, device, self) < 0) {
        if (self != NULL) {
            self->state = CUDRIVER_CONTEXT_OPEN;
        }
        Py_XDECREF(self);
        return -1;
    }
    result = primary_reset(state, ordinal, device);
    if (result != CUDA_SUCCESS && self != NULL) {
        self->state = CUDRIVER_CONTEXT_OPEN; /* nothing has changed */
    } else if (self != NULL) {
        self->alloc_stream = NULL;
        cudriver_context_unkeep(self);
        if (cudriver_thread_pushed(state, handle) == NULL &&
            cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == handle) {
            cuda.cuCtxSetCurrent(NULL); /* it was made current implicitly */
        }
    }
    Py_XDECREF(self);
    return cudriver_check(state, result, "cuDevicePrimaryCtxReset_v2", "device %d", ordinal);
}

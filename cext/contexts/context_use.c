/* The context of a call. See context.h and context_private.h. */
#include "context_private.h"
#include "python/call.h"
#include "python/error.h"

void cudriver_contexts_unkeep(CoreState *state, bool all)
{
    ContextObject *self = state->contexts;

    while (self != NULL) {
        if (self->live.kept && (all || cudriver_context_is_stale(self))) {
            cudriver_context_unkeep(self);
            self = state->contexts; /* other contexts may have gone with it */
        } else {
            self = self->next;
        }
    }
}

/* Wraps a handle that is current here and that we do not know. The package keeps the object, a
 * foreign one until the context is destroyed or closed, so that not every call adopts it again. New
 * reference. */
static ContextObject *context_adopt(CoreState *state, CUcontext handle, CUdevice device)
{
    unsigned int flags;
    int active = 0, ordinal = device; /* as the driver numbers them */
    CUcontext primary;
    ContextObject *self;

    if (cuda.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active &&
        cuda.cuDevicePrimaryCtxRetain(&primary, device) == CUDA_SUCCESS) {
        if (primary == handle) {
            self = cudriver_context_find_primary(state, ordinal); /* one that others reset */
            if (self != NULL && cudriver_context_check(self) < 0) {
                cuda.cuDevicePrimaryCtxRelease_v2(device);
                Py_DECREF(self);
                return NULL;
            }
            Py_XDECREF(self);
            self = cudriver_context_new(state, handle, ordinal, device, CUDRIVER_CONTEXT_PRIMARY);
            if (self == NULL) {
                cuda.cuDevicePrimaryCtxRelease_v2(device);
            }
            return cudriver_context_keep(self);
        }
        cuda.cuDevicePrimaryCtxRelease_v2(device);
    }
    cudriver_contexts_unkeep(state, false);
    self = cudriver_context_registered(state, handle); /* another thread may have been first */
    return self != NULL ? self
                        : cudriver_context_keep(cudriver_context_new(state, handle, ordinal, device,
                                                                     CUDRIVER_CONTEXT_FOREIGN));
}

CUresult cudriver_context_find_current(CoreState *state, ContextObject **found)
{
    CUcontext handle = NULL;
    ContextObject *self;
    CUdevice device;
    unsigned version;
    CUresult result = cuda.cuCtxGetCurrent(&handle);

    *found = NULL;
    if (result != CUDA_SUCCESS || handle == NULL) {
        return result;
    }
    self = cudriver_context_registered(state, handle);
    if (self != NULL && self->kind != CUDRIVER_CONTEXT_FOREIGN) {
        *found = self;
        return CUDA_SUCCESS;
    }
    result =
        cuda.cuCtxGetApiVersion(NULL, &version); /* the driver leaves a destroyed one current */
    if (result == CUDA_SUCCESS) {
        result = cuda.cuCtxGetDevice(&device);
    }
    if (result != CUDA_SUCCESS) {
        Py_XDECREF(self);
        return result;
    }
    if (self != NULL && cudriver_context_is_stale(self)) {
        self->state = CUDRIVER_CONTEXT_CLOSED;
        Py_CLEAR(self);
    }
    *found = self != NULL ? self : context_adopt(state, handle, device);
    return CUDA_SUCCESS;
}

ContextObject *cudriver_context_of_handle(CoreState *state, CUcontext handle)
{
    ContextObject *self = cudriver_context_registered(state, handle);
    CUresult result;

    if (self != NULL && !cudriver_context_is_stale(self)) {
        return self;
    }
    Py_XDECREF(self);
    result = cuda.cuCtxPushCurrent_v2(handle);
    if (result == CUDA_SUCCESS) {
        result = cudriver_context_find_current(state, &self);
        cudriver_driver_pop();
    }
    if (result != CUDA_SUCCESS) {
        return CUDRIVER_RAISE(result, "cuCtxPushCurrent_v2", "another library's context %p",
                              (void *)handle);
    }
    return self;
}

ContextObject *cudriver_context_for_use(CoreState *state)
{
    ContextObject *self = NULL;
    CUresult result;

    if (cudriver_require() < 0) {
        return NULL;
    }
    result = cudriver_context_find_current(state, &self);
    if (self != NULL || PyErr_Occurred()) {
        return self;
    }
    if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_CONTEXT) {
        PyObject *pushed = cudriver_context_pushed_here(state);
        CUcontext current = NULL;
        /* Device 0's primary context, which was reset: start again. */
        if (cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == state->primary &&
            pushed != NULL && PyList_GET_SIZE(pushed) == 0) {
            cuda.cuCtxSetCurrent(NULL);
            result = CUDA_SUCCESS;
        }
        Py_XDECREF(pushed);
    }
    if (result != CUDA_SUCCESS) {
        return CUDRIVER_RAISE(result, "cuCtxGetCurrent",
                              "this thread's current context was destroyed");
    }
    if (cudriver_device_parse(NULL) < 0) { /* raises if there is no device */
        return NULL;
    }
    self = cudriver_context_keep(cudriver_context_primary(state, 0));
    result = self != NULL ? cuda.cuCtxSetCurrent(self->handle) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        Py_DECREF(self);
        return CUDRIVER_RAISE(result, "cuCtxSetCurrent", "device 0's primary context");
    }
    return self;
}

ContextObject *cudriver_context_begin_use(CoreState *state, bool *pushed)
{
    ContextObject *self = cudriver_context_for_use(state);

    if (self != NULL && cudriver_context_begin(state, self, pushed) < 0) {
        Py_CLEAR(self);
    }
    return self;
}

void cudriver_context_end_use(ContextObject *self, bool pushed)
{
    cudriver_context_end(self, pushed);
    Py_DECREF(self);
}

ContextObject *cudriver_context_for_device(CoreState *state, PyObject *device)
{
    int ordinal;

    if (device == NULL || device == Py_None) {
        return cudriver_context_for_use(state);
    }
    if (Py_IS_TYPE(device, state->context_type)) { /* memory/ gives the one that it means */
        return (ContextObject *)Py_NewRef(device);
    }
    ordinal = cudriver_device_parse(device);
    return ordinal < 0 ? NULL : cudriver_context_for_ordinal(state, ordinal);
}

ContextObject *cudriver_context_for_ordinal(CoreState *state, int ordinal)
{
    ContextObject *current;

    if (cudriver_context_find_current(state, &current) == CUDA_SUCCESS && current != NULL) {
        if (current->ordinal == ordinal) {
            return current;
        }
        Py_DECREF(current);
    }
    return PyErr_Occurred() ? NULL
                            : cudriver_context_keep(cudriver_context_primary(state, ordinal));
}

/* Context: the registry, creation, and the bracket around driver calls. context_use.c chooses the
 * context of a call, context_stack.c pushes and pops, context_type.c closes and resets, and has the
 * Python type. */
#include "work.h"
#include "context_private.h"

#include "driver/platform.h"
#include "python/call.h"
#include "python/error.h"

/* At the interpreter's end: how long to wait for other threads' calls (ms), and how long to hold a
 * new one, before and after Python begins to finalize (s). */
#define EXIT_LOOKS 500
#define EXIT_HOLD 2
#define EXIT_HOLD_END 30

/* Whether the context stays current in a thread that had none: device 0's primary one does. */
static bool context_is_default(const ContextObject *self)
{
    return self->kind == CUDRIVER_CONTEXT_PRIMARY && self->ordinal == 0;
}

ContextObject *cudriver_context_new(CoreState *state, CUcontext handle, int ordinal,
                                    CUdevice device, enum cudriver_context_kind kind)
{
    static const char *const kinds[] = {"context", "primary context", "foreign context"};
    ContextObject *self = (ContextObject *)state->context_type->tp_alloc(state->context_type, 0);

    if (self == NULL) {
        return NULL;
    }
    self->handle = handle;
    self->ordinal = ordinal;
    self->device = device;
    self->kind = kind;
    self->number = ++state->serial;
    cudriver_will_borrow((PyObject *)self);
    self->next = state->contexts;
    state->contexts = self;
    if (context_is_default(self)) {
        state->primary = handle;
    }
    if (cuda.cuCtxGetId != NULL) {
        cuda.cuCtxGetId(handle, &self->id);
    }
    if (kind != CUDRIVER_CONTEXT_FOREIGN) {
        cudriver_live_add(state, &self->live, kinds[kind], 0, (uintptr_t)handle, ordinal);
    }
    return self;
}

ContextObject *cudriver_context_registered(CoreState *state, CUcontext handle)
{
    for (ContextObject *item = state->contexts; item != NULL; item = item->next) {
        if (item->handle == handle && item->state == CUDRIVER_CONTEXT_OPEN &&
            cudriver_try_own((PyObject *)item)) {
            return item;
        }
    }
    return NULL;
}

ContextObject *cudriver_context_find_primary(CoreState *state, int ordinal)
{
    for (ContextObject *item = state->contexts; item != NULL; item = item->next) {
        if (item->ordinal == ordinal && item->kind == CUDRIVER_CONTEXT_PRIMARY &&
            item->state != CUDRIVER_CONTEXT_CLOSED && cudriver_try_own((PyObject *)item)) {
            return item;
        }
    }
    return NULL;
}

int cudriver_device_handle(int ordinal, CUdevice *handle)
{
    if (cudriver_require() < 0) {
        return -1;
    }
    return cudriver_check(cuda.cuDeviceGet(handle, ordinal), "cuDeviceGet", "%d", ordinal);
}

ContextObject *cudriver_context_create(CoreState *state, int ordinal, unsigned long flags)
{
    CUcontext handle = NULL, popped;
    ContextObject *self;
    CUdevice device;
    CUresult result;
    bool newer;

    if (cudriver_device_handle(ordinal, &device) < 0) {
        return NULL;
    }
    newer = cuda.cuCtxCreate_v4 != NULL;
    Py_BEGIN_ALLOW_THREADS
    result = newer ? cuda.cuCtxCreate_v4(&handle, NULL, (unsigned int)flags, device)
                   : cuda.cuCtxCreate_v2(&handle, (unsigned int)flags, device);
    Py_END_ALLOW_THREADS
    if (result != CUDA_SUCCESS) {
        return CUDRIVER_RAISE(result, newer ? "cuCtxCreate_v4" : "cuCtxCreate_v2",
                              "flags 0x%lx, device %d", flags, ordinal);
    }
    /* The driver made it current; our contexts start on no stack. */
    result = cuda.cuCtxPopCurrent_v2(&popped);
    self = result == CUDA_SUCCESS
               ? cudriver_context_new(state, handle, ordinal, device, CUDRIVER_CONTEXT_MANUAL)
               : CUDRIVER_RAISE(result, "cuCtxPopCurrent_v2", "%s", "");
    if (self == NULL) {
        cuda.cuCtxDestroy_v2(handle);
    }
    return self;
}

/* *found: the primary context's object, if there is one, as a new reference. 0, or -1 if the
 * context may not be used. */
static int primary_find(CoreState *state, int ordinal, ContextObject **found)
{
    *found = cudriver_context_find_primary(state, ordinal);
    if (state->resetting == 1 + ordinal) {
        return cudriver_do(CALL_contexts_refuse_during_reset, ordinal);
    }
    return *found == NULL ? 0 : cudriver_context_check(*found);
}

ContextObject *cudriver_context_primary(CoreState *state, int ordinal)
{
    bool retained = false;
    CUcontext handle = NULL;
    ContextObject *self;
    CUdevice device;
    CUresult result;

    if (cudriver_device_handle(ordinal, &device) < 0) {
        return NULL;
    }
    while (primary_find(state, ordinal, &self) == 0 && self == NULL && !retained) {
        unsigned long long resets = state->resets;
        Py_BEGIN_ALLOW_THREADS
        result = cuda.cuDevicePrimaryCtxRetain(&handle, device);
        Py_END_ALLOW_THREADS
        if (result != CUDA_SUCCESS) {
            return CUDRIVER_RAISE(result, "cuDevicePrimaryCtxRetain", "device %d", ordinal);
        }
        /* Another thread may have reset it since. One that was first is seen above. */
        retained = state->resets == resets;
        if (!retained) {
            cuda.cuDevicePrimaryCtxRelease_v2(device);
        }
    }
    if (self == NULL && !PyErr_Occurred()) {
        self = cudriver_context_new(state, handle, ordinal, device, CUDRIVER_CONTEXT_PRIMARY);
        retained = self == NULL; /* else the object owns it */
    }
    if (retained) {
        cuda.cuDevicePrimaryCtxRelease_v2(device);
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(self);
    }
    return self;
}

ContextObject *cudriver_context_keep(ContextObject *self)
{
    if (self != NULL && !self->live.kept) {
        self->live.kept = true;
        Py_INCREF(self);
    }
    return self;
}

void cudriver_context_unkeep(ContextObject *self)
{
    if (self->live.kept) {
        self->live.kept = false;
        Py_DECREF(self);
    }
}

/* Whether the context is current, and not ended by other code: the driver leaves an ended one
 * current. It may give an ended one's handle out again, but not the id. */
static bool context_is_here(const ContextObject *self)
{
    unsigned long long id = 0;
    CUcontext current = NULL;
    unsigned version;

    if (self->kind != CUDRIVER_CONTEXT_MANUAL && self->id != 0) {
        CUresult result = cuda.cuCtxGetId(NULL, &id);
        if (result == CUDA_SUCCESS || result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
            return id == self->id;
        }
    }
    return cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == self->handle &&
           (self->kind == CUDRIVER_CONTEXT_MANUAL || /* ours to end */
            cuda.cuCtxGetApiVersion(NULL, &version) != CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

bool cudriver_context_is_stale(ContextObject *self)
{
    unsigned long long id = 0;

    return self->kind == CUDRIVER_CONTEXT_FOREIGN && self->id != 0 &&
           (cuda.cuCtxGetId(self->handle, &id) != CUDA_SUCCESS || id != self->id);
}

CUresult cudriver_context_make_current(ContextObject *self, bool *pushed)
{
    CUcontext current = NULL;
    CUresult result;

    *pushed = false;
    if (context_is_here(self)) {
        return CUDA_SUCCESS;
    }
    result = cudriver_context_is_stale(self) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                             : cuda.cuCtxGetCurrent(&current);
    if (result == CUDA_SUCCESS && current == NULL && context_is_default(self)) {
        result = cuda.cuCtxSetCurrent(self->handle);
    } else if (result == CUDA_SUCCESS && current != self->handle) {
        result = cuda.cuCtxPushCurrent_v2(self->handle);
        *pushed = result == CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS && !context_is_here(self)) {
        if (*pushed) {
            cudriver_driver_pop();
        }
        *pushed = false;
        atomic_store(&self->ended, true);
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return result;
}

/* Notes that other code has reset a primary context. */
static void context_note(ContextObject *self)
{
    if (atomic_load(&self->ended) && self->kind == CUDRIVER_CONTEXT_PRIMARY &&
        self->state == CUDRIVER_CONTEXT_OPEN) {
        self->state = CUDRIVER_CONTEXT_RESET;
    }
}

int cudriver_context_check(ContextObject *self)
{
    if (self->state == CUDRIVER_CONTEXT_OPEN) {
        return 0;
    }
    return cudriver_do(CALL_contexts_refuse_use, self,
                       self->state == CUDRIVER_CONTEXT_RESET ? Py_True : Py_False);
}

static bool calls_run(const CoreState *state)
{
    for (const ContextObject *context = state->contexts; context != NULL; context = context->next) {
        if (cudriver_works_is_used(state, context, false)) {
            return true;
        }
    }
    return false;
}

void cudriver_context_stop_others(CoreState *state)
{
    state->exit_thread = PyThread_get_thread_ident();
    for (int i = 0; i < EXIT_LOOKS && calls_run(state); i++) {
        Py_BEGIN_ALLOW_THREADS
        platform_nap(1000000);
        Py_END_ALLOW_THREADS
    }
}

/* Holds a call of a thread that does not end the interpreter. While Python code runs, it may join
 * this thread, so the hold is short. Once Python finalizes, the hold is long: CPython before 3.14
 * ends a thread that asks for the GIL, and the driver would free what it keeps for that thread
 * while it shuts down. Even then the hold ends: a library's destructor may join the thread. */
static void exit_hold(void)
{
    const struct timespec length = {.tv_sec = 1};

    Py_BEGIN_ALLOW_THREADS
    for (int i = 0; i < (Py_IsFinalizing() ? EXIT_HOLD_END : EXIT_HOLD); i++) {
        nanosleep(&length, NULL);
    }
    Py_END_ALLOW_THREADS
}

/* Whether a call in the context may reach the driver now. 0, or -1 with an exception. Lets other
 * threads run only where it raises: what the caller has checked holds. */
static int turn_check(CoreState *state, const ContextObject *self)
{
    if (state->exit_thread != 0 && state->exit_thread != PyThread_get_thread_ident()) {
        exit_hold();
        return cudriver_do(CALL_contexts_refuse_at_exit, self);
    }
    return state->resetting == 1 + self->ordinal
               ? cudriver_do(CALL_contexts_refuse_during_reset, self->ordinal)
               : 0;
}

int cudriver_context_ready(CoreState *state, ContextObject *self)
{
    return cudriver_require() < 0 ||
                   ((state->resetting != 0 || state->exit_thread != 0) &&
                    turn_check(state, self) < 0) ||
                   (self->state != CUDRIVER_CONTEXT_OPEN && cudriver_context_check(self) < 0)
               ? -1
               : 0;
}

int cudriver_context_refused(ContextObject *self, CUresult result)
{
    context_note(self);
    if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED && self->kind == CUDRIVER_CONTEXT_FOREIGN) {
        cudriver_context_unkeep(self);
    }
    if (cudriver_context_check(self) == 0) {
        cudriver_check(result,
                       cudriver_context_is_stale(self) ? "cuCtxGetId" : "cuCtxPushCurrent_v2",
                       "context %llu of device %d", self->number, self->ordinal);
    }
    return -1;
}

int cudriver_context_begin(CoreState *state, ContextObject *self, bool *pushed)
{
    CUresult result;

    if (cudriver_context_ready(state, self) < 0) {
        return -1;
    }
    result = cudriver_context_make_current(self, pushed);
    if (result != CUDA_SUCCESS) {
        return cudriver_context_refused(self, result);
    }
    self->users.calls++;
    cudriver_driver_relax();
    return 0;
}

void cudriver_context_leave(ContextObject *self, bool pushed)
{
    if (pushed) {
        cudriver_driver_pop();
    }
    self->users.calls--;
}

void cudriver_context_end(ContextObject *self, bool pushed)
{
    cudriver_driver_restore();
    cudriver_context_leave(self, pushed);
}

bool cudriver_context_begin_free(ContextObject *self, bool *pushed)
{
    CUresult result;

    *pushed = false;
    if (self->state != CUDRIVER_CONTEXT_OPEN || cudriver_driver_is_forked()) {
        return false;
    }
    result = cudriver_context_make_current(self, pushed);
    if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
        context_note(self);
        if (self->state != CUDRIVER_CONTEXT_OPEN || self->kind == CUDRIVER_CONTEXT_FOREIGN) {
            return false;
        }
    }
    self->users.calls++;
    cudriver_driver_relax();
    return true;
}

PyObject *cudriver_context_pushed_here(const CoreState *state)
{
    PyObject *dict = PyThreadState_GetDict(); /* borrowed */
    PyObject *key = (PyObject *)state->context_type;
    PyObject *pushed =
        dict != NULL ? Py_XNewRef(PyDict_GetItemWithError(dict, key)) : PyErr_NoMemory();

    if (pushed == NULL && dict != NULL) {
        pushed = cudriver_call(CALL_stack_new);
        if (pushed != NULL && PyDict_SetItem(dict, key, pushed) < 0) {
            Py_CLEAR(pushed);
        }
    }
    return pushed;
}

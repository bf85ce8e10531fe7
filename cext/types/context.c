/* Context: creation, the registry, closing, and walking this thread's stack. context_use.c chooses
 * the context of a call; context_type.c has the Python type. */
#include "context.h"

#include "batch.h"
#include "context_private.h"
#include "device.h"
#include "driver/driver.h"
#include "python/error.h"
#include "driver/keeper.h"
#include "hostmem/hostmem.h"
#include "engine/engine.h"
#include "thread.h"

int cudriver_context_parse_flags(PyObject *object, unsigned long *flags)
{
    PyObject *index = PyNumber_Index(object);

    if (index == NULL) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "flags must be an int or a ContextFlags, not %.100s",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    *flags = PyLong_AsUnsignedLong(index);
    if (PyErr_Occurred() || *flags > 0xff) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%R are no context flags: see ContextFlags", object);
        Py_DECREF(index);
        return -1;
    }
    Py_DECREF(index);
    return 0;
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
    self->next = state->contexts;
    state->contexts = self;
    if (kind != CUDRIVER_CONTEXT_FOREIGN) {
        cudriver_live_add(state, &self->live, kinds[kind], 0, (uintptr_t)handle, ordinal);
    }
    return self;
}

static void registry_remove(CoreState *state, ContextObject *self)
{
    for (ContextObject **link = &state->contexts; *link != NULL; link = &(*link)->next) {
        if (*link == self) {
            *link = self->next;
            return;
        }
    }
}

ContextObject *cudriver_context_registered(CoreState *state, CUcontext handle)
{
    for (ContextObject *item = state->contexts; item != NULL; item = item->next) {
        if (item->handle == handle && item->state == CUDRIVER_CONTEXT_OPEN) {
            return item;
        }
    }
    return NULL;
}

static ContextObject *registry_find_primary(CoreState *state, int ordinal)
{
    for (ContextObject *item = state->contexts; item != NULL; item = item->next) {
        if (item->ordinal == ordinal && item->kind == CUDRIVER_CONTEXT_PRIMARY &&
            item->state == CUDRIVER_CONTEXT_OPEN) {
            return item;
        }
    }
    return NULL;
}

ContextObject *cudriver_context_create(CoreState *state, int ordinal, unsigned long flags)
{
    CUcontext handle = NULL, popped;
    ContextObject *self;
    CUdevice device;
    CUresult result;

    if (cudriver_device_handle(state, ordinal, &device) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    if (cuda.cuCtxCreate_v4 != NULL) {
        result = cuda.cuCtxCreate_v4(&handle, NULL, (unsigned int)flags, device);
    } else {
        result = cuda.cuCtxCreate_v2(&handle, (unsigned int)flags, device);
    }
    Py_END_ALLOW_THREADS
    if (result != CUDA_SUCCESS) {
        cudriver_raise(state, result,
                       cuda.cuCtxCreate_v4 != NULL ? "cuCtxCreate_v4" : "cuCtxCreate_v2",
                       "flags 0x%lx, device %d", flags, ordinal);
        return NULL;
    }
    /* The driver made it current; our contexts start on no stack. */
    result = cuda.cuCtxPopCurrent_v2(&popped);
    self = result == CUDA_SUCCESS
               ? cudriver_context_new(state, handle, ordinal, device, CUDRIVER_CONTEXT_MANUAL)
               : (ContextObject *)cudriver_raise(state, result, "cuCtxPopCurrent_v2", "%s", "");
    if (self == NULL) {
        cuda.cuCtxDestroy_v2(handle);
        return NULL;
    }
    if (cuda.cuCtxGetId != NULL) {
        cuda.cuCtxGetId(handle, &self->id);
    }
    return self;
}

ContextObject *cudriver_context_primary(CoreState *state, int ordinal, const unsigned long *flags)
{
    CUcontext handle = NULL;
    ContextObject *self;
    CUdevice device;
    CUresult result;

    if (cudriver_device_handle(state, ordinal, &device) < 0) {
        return NULL;
    }
    if (flags != NULL) {
        result = cuda.cuDevicePrimaryCtxSetFlags_v2(device, (unsigned int)*flags);
        if (result != CUDA_SUCCESS) {
            return (ContextObject *)cudriver_raise(state, result, "cuDevicePrimaryCtxSetFlags_v2",
                                                   "device %d, 0x%lx", ordinal, *flags);
        }
    }
    self = registry_find_primary(state, ordinal);
    if (self != NULL) {
        return (ContextObject *)Py_NewRef((PyObject *)self);
    }
    Py_BEGIN_ALLOW_THREADS
    result = cuda.cuDevicePrimaryCtxRetain(&handle, device);
    Py_END_ALLOW_THREADS
    if (result != CUDA_SUCCESS) {
        return (ContextObject *)cudriver_raise(state, result, "cuDevicePrimaryCtxRetain",
                                               "device %d", ordinal);
    }
    self = registry_find_primary(state, ordinal); /* another thread may have been first */
    if (self != NULL) {
        cuda.cuDevicePrimaryCtxRelease_v2(device);
        return (ContextObject *)Py_NewRef((PyObject *)self);
    }
    self = cudriver_context_new(state, handle, ordinal, device, CUDRIVER_CONTEXT_PRIMARY);
    if (self == NULL) {
        cuda.cuDevicePrimaryCtxRelease_v2(device);
    }
    return self;
}

CUstream cudriver_context_alloc_stream(CoreState *state, ContextObject *self)
{
    if (self->alloc_stream == NULL) {
        CUresult result =
            cuda.cuStreamCreateWithPriority(&self->alloc_stream, CU_STREAM_NON_BLOCKING, 0);
        if (result != CUDA_SUCCESS) {
            self->alloc_stream = NULL;
            cudriver_raise(state, result, "cuStreamCreateWithPriority", "for allocations");
        }
    }
    return self->alloc_stream;
}

/* Releases what the copy engine keeps in a foreign context, while the keeper still protects the
 * handle. Without the GIL. */
static void foreign_forget(ContextObject *self)
{
    CUcontext popped;
    bool pushed;

    if (self->keeper == NULL) {
        return;
    }
    (void)cudriver_context_make_current(self, &pushed);
    if (pushed) {
        cuda.cuCtxPopCurrent_v2(&popped);
    }
    cudriver_staging_forget_context(self->handle);
}

/* Releases what the driver holds for the context. *function: the call whose result is returned. The
 * GIL is held; the state is no longer OPEN. */
static CUresult context_release(ContextObject *self, const char **function)
{
    CUcontext handle = self->handle;
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
        if (pushed) {
            cuda.cuCtxPopCurrent_v2(&handle);
            handle = self->handle;
        }
    }
    if (self->kind == CUDRIVER_CONTEXT_FOREIGN) {
        foreign_forget(self);
    } else if (self->kind == CUDRIVER_CONTEXT_MANUAL) {
        cudriver_staging_forget_context(handle);
        result = cuda.cuCtxDestroy_v2(handle);
    } else {
        *function = "cuDevicePrimaryCtxRelease_v2";
        if (!was_reset) {
            cudriver_staging_forget_context(handle);
        }
        result = cuda.cuDevicePrimaryCtxRelease_v2(self->device);
    }
    Py_END_ALLOW_THREADS
    return result;
}

/* What a walk has popped. `keepers`: for contexts that have no ContextObject. */
struct walk {
    CUcontext *stack; /* the topmost first */
    struct cudriver_keeper **keepers;
    Py_ssize_t count, room;
};

/* Makes room for one more entry. 0 or -1. */
static int walk_grow(struct walk *walk)
{
    size_t room = walk->room == 0 ? 16 : (size_t)walk->room * 2;
    struct cudriver_keeper **keepers;
    CUcontext *stack;

    if (walk->count < walk->room) {
        return 0;
    }
    stack = PyMem_Realloc(walk->stack, room * sizeof *stack);
    walk->stack = stack != NULL ? stack : walk->stack;
    keepers = PyMem_Realloc(walk->keepers, room * sizeof(struct cudriver_keeper *));
    walk->keepers = keepers != NULL ? keepers : walk->keepers;
    if (stack == NULL || keepers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    walk->room = (Py_ssize_t)room;
    return 0;
}

/* Pops the topmost context and makes sure that it can be pushed again, whatever its owner does in
 * between. Its Context, if any, goes into `list`. 1, 0 at the bottom of the stack, or -1. */
static int walk_step(CoreState *state, struct walk *walk, PyObject *list)
{
    struct cudriver_keeper *keeper = NULL;
    ContextObject *context = NULL;
    CUcontext current = NULL, popped;
    CUresult result = cudriver_context_find_current(state, &context);

    if (context == NULL && !PyErr_Occurred() && cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS) {
        if (current == NULL && result == CUDA_SUCCESS) {
            return 0;
        }
        if (current != NULL) {
            Py_BEGIN_ALLOW_THREADS
            keeper = cudriver_keeper_start(current);
            Py_END_ALLOW_THREADS
        }
    }
    if (context == NULL && current != NULL && !PyErr_Occurred()) { /* a context that was reset */
        context = cudriver_thread_pushed(state, current);
        Py_XINCREF(context);
    }
    if (context != NULL) {
        PyList_Insert(list, 0, (PyObject *)context);
        Py_DECREF(context);
    }
    if (!PyErr_Occurred() && walk_grow(walk) == 0) {
        result = cuda.cuCtxPopCurrent_v2(&popped);
        if (result == CUDA_SUCCESS) {
            walk->keepers[walk->count] = keeper;
            walk->stack[walk->count++] = popped;
            return 1;
        }
        cudriver_raise(state, result, "cuCtxPopCurrent_v2", "looking at this thread's stack");
    }
    cudriver_keeper_end(keeper);
    return -1;
}

int cudriver_context_walk_stack(CoreState *state, PyObject *list)
{
    PyObject *seen = list != NULL ? Py_NewRef(list) : PyList_New(0); /* keeps the contexts alive */
    struct walk walk = {.stack = NULL};
    int step = seen != NULL ? 1 : -1;

    while (step > 0) {
        step = walk_step(state, &walk, seen);
    }
    for (Py_ssize_t i = walk.count - 1; i >= 0; i--) {
        cuda.cuCtxPushCurrent_v2(walk.stack[i]);
        cudriver_keeper_end(walk.keepers[i]);
    }
    for (Py_ssize_t i = 0; i < walk.count / 2; i++) { /* bottom first */
        CUcontext swap = walk.stack[i];
        walk.stack[i] = walk.stack[walk.count - 1 - i];
        walk.stack[walk.count - 1 - i] = swap;
    }
    if (step == 0) {
        cudriver_thread_reconcile(state, walk.stack, walk.count);
    }
    PyMem_Free(walk.stack);
    PyMem_Free(walk.keepers);
    Py_XDECREF(seen);
    return step;
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
    if (self->state == CUDRIVER_CONTEXT_OPEN) {
        self->state = CUDRIVER_CONTEXT_CLOSED;
    }
    cudriver_live_remove(state, &self->live);
    cudriver_context_unkeep(self);
    result = context_release(self, &function);
    self->state = CUDRIVER_CONTEXT_CLOSED;
    cudriver_context_let_go(self);
    if (result != CUDA_SUCCESS) {
        cudriver_raise(state, result, function, "context %llu of device %d", self->number,
                       self->ordinal);
        return -1;
    }
    return 0;
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
    registry_remove(state, self);
    cudriver_live_remove(state, &self->live);
    if (self->state != CUDRIVER_CONTEXT_CLOSED) {
        CUresult result;
        if (self->state == CUDRIVER_CONTEXT_OPEN) {
            self->state = CUDRIVER_CONTEXT_CLOSED;
        }
        result = context_release(self, &function);
        cudriver_report(state, result, function, NULL);
    }
    cudriver_context_let_go(self);
    type->tp_free(object);
    Py_DECREF(type);
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
 * Holds the GIL throughout, although it may block: no call in any context may start to use
 * page-locked memory registered here before its loss is noted. The driver waits for work in the
 * context, so work that itself waits for Python code deadlocks (for example work held by
 * cudriver_sim_hold() that another Python thread should release).
 */
static CUresult primary_reset(CUdevice device)
{
    CUresult result = cuda.cuDevicePrimaryCtxReset_v2(device);

    if (result == CUDA_SUCCESS) {
        cudriver_hostmem_forget_home(device);
        cudriver_staging_renew_slots();
    }
    return result;
}

int cudriver_context_reset_primary(CoreState *state, int ordinal)
{
    ContextObject *self = registry_find_primary(state, ordinal);
    CUcontext handle = NULL, current = NULL;
    CUdevice device;
    CUresult result;

    if (cudriver_device_handle(state, ordinal, &device) < 0) {
        return -1;
    }
    if (self != NULL && (self->pinning > 0 || self->in_use > 0)) {
        cudriver_raise_plain(state, "InvalidContextError", "cannot reset %R: %s", self,
                             self->in_use > 0
                                 ? "a call is running in it"
                                 : "write-combined arrays live in it, and their memory "
                                   "would vanish");
        return -1;
    }
    if (self != NULL) {
        Py_INCREF(self);
        handle = self->handle;
        self->state = CUDRIVER_CONTEXT_RESET; /* no other thread starts to use it */
        Py_BEGIN_ALLOW_THREADS
        cudriver_staging_forget_context(handle);
        Py_END_ALLOW_THREADS
    }
    if (reset_check(state, ordinal, device, self) < 0) {
        if (self != NULL) {
            self->state = CUDRIVER_CONTEXT_OPEN;
            Py_DECREF(self);
        }
        return -1;
    }
    result = primary_reset(device);
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
    if (result != CUDA_SUCCESS) {
        cudriver_raise(state, result, "cuDevicePrimaryCtxReset_v2", "device %d", ordinal);
    }
    Py_XDECREF(self);
    return result == CUDA_SUCCESS ? 0 : -1;
}

/* Context as a Python type: its methods and properties, its end, and the reset of a primary one. */
#include "work.h"
#include "context_private.h"
#include "hostmem/hostmem.h"
#include "python/call.h"
#include "python/error.h"
#include "docstrings.h"

static PyObject *context_create(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    CUDRIVER_LOCK();
    static char *names[] = {"device", "flags", NULL};
    CoreState *state = (CoreState *)PyType_GetModuleState(type);
    PyObject *device = Py_None, *flags = NULL, *read, *made = NULL;
    unsigned long value;
    int ordinal;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O$O:Context", names, &device, &flags)) {
        return NULL;
    }
    read = cudriver_call(CALL_devices_context_arguments, device,
                         flags != NULL ? Py_NewRef(flags) : PyLong_FromLong(0));
    if (read != NULL && PyArg_ParseTuple(read, "ik", &ordinal, &value)) {
        made = (PyObject *)cudriver_context_create(state, ordinal, value);
    }
    Py_XDECREF(read);
    return made;
}

static PyObject *context_repr(PyObject *object)
{
    CUDRIVER_LOCK();
    static const char *const kinds[] = {"Context", "primary Context", "foreign Context"};
    static const char *const states[] = {"", ", closed", ", reset"};
    ContextObject *self = (ContextObject *)object;

    return PyUnicode_FromFormat("<%s #%llu on device %d%s>", kinds[self->kind], self->number,
                                self->ordinal, states[self->state]);
}

/* ---- the end ---- */

/* Ends a context, open or reset, that nothing uses any more, and releases what the driver holds for
 * it. *function: the call whose result is returned. */
static CUresult context_end(CoreState *state, ContextObject *self, const char **function)
{
    CUstream stream = self->allocs.stream;
    bool was_reset = self->state == CUDRIVER_CONTEXT_RESET;
    CUresult result = CUDA_SUCCESS;

    cudriver_works_forget(&self->works, self);
    if (!was_reset) {
        self->state = CUDRIVER_CONTEXT_CLOSED;
    }
    cudriver_live_remove(state, &self->live);
    cudriver_context_unkeep(self);
    self->allocs.stream = NULL;
    *function = "cuCtxDestroy_v2";
    if (!cudriver_driver_is_forked()) {
        Py_BEGIN_ALLOW_THREADS
        /* Destroying a manual context destroys its streams. */
        if (!was_reset && self->kind != CUDRIVER_CONTEXT_MANUAL && stream != NULL) {
            bool pushed;
            if (cudriver_context_make_current(self, &pushed) == CUDA_SUCCESS ||
                self->kind != CUDRIVER_CONTEXT_FOREIGN) {
                cuda.cuStreamDestroy_v2(stream);
            }
            if (pushed) {
                cudriver_driver_pop();
            }
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
    }
    self->state = CUDRIVER_CONTEXT_CLOSED;
    return result;
}

/* Closes the context, for a call of this name; refuses if it is on a stack or used. 0 or -1. */
static int context_close(CoreState *state, ContextObject *self, const char *call)
{
    const char *function;
    PyObject *holder;
    CUresult result;
    int failed;

    cudriver_works_reap(state, NULL); /* a completed copy may hold the last child */
    holder = cudriver_context_holder(state, self);
    if (holder == NULL || self->state == CUDRIVER_CONTEXT_CLOSED) {
        Py_XDECREF(holder);
        return holder == NULL ? -1 : 0;
    }
    failed = PyObject_IsTrue(holder)
                 ? cudriver_do(CALL_contexts_refuse_end, self, call, holder)
                 : cudriver_users_check((PyObject *)self, call, &self->users, 0,
                                        cudriver_works_is_used(state, self,
                                                               self->users.children == 0 &&
                                                                   !cudriver_driver_is_forked()));
    Py_DECREF(holder);
    if (failed < 0) {
        return -1;
    }
    result = context_end(state, self, &function);
    return cudriver_check(result, function, "context %llu of device %d", self->number,
                          self->ordinal);
}

static void context_dealloc(PyObject *object)
{
    CUDRIVER_LOCK();
    ContextObject *self = (ContextObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    CoreState *state = cudriver_state_of(object);
    ContextObject **link = &state->contexts;
    const char *function;

    PyObject_ClearWeakRefs(object);
    while (*link != self) {
        link = &(*link)->next;
    }
    *link = self->next;
    if (self->state != CUDRIVER_CONTEXT_CLOSED) {
        CUresult result = context_end(state, self, &function);
        cudriver_report(state, result, function);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

CUresult cudriver_memory_return(CoreState *state, size_t keep, size_t *released)
{
    CUresult result;
    bool idle;

    cudriver_works_reap(state, NULL);
    for (ContextObject *context = state->contexts; context != NULL; context = context->next) {
        cudriver_works_forget(&context->works, context);
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

/* ---- the type ---- */

static PyObject *method_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    return cudriver_none(
        context_close(cudriver_state_of(object), (ContextObject *)object, "close"));
}

static PyObject *method_synchronize(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    static const char call[] = "Context.synchronize()";
    CoreState *state = cudriver_state_of(object);
    ContextObject *self = (ContextObject *)object;
    CUresult result = CUDA_SUCCESS;
    bool pushed, failed;

    if (cudriver_context_begin(state, self, &pushed) < 0) {
        return NULL;
    }
    /* Signals cannot interrupt cuCtxSynchronize(), so first waits interruptibly for our own work,
     * our streams and the default one. */
    failed = cudriver_streams_wait(state, self, call) < 0 || cudriver_works_wait(state, self) < 0 ||
             cudriver_stream_drain(state, self, NULL, call) < 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        result = cuda.cuCtxSynchronize();
        Py_END_ALLOW_THREADS
    }
    cudriver_context_end(self, pushed);
    if (failed) {
        return NULL;
    }
    cudriver_works_reap(state, NULL);
    return cudriver_none(cudriver_check(result, "cuCtxSynchronize", "context %llu", self->number));
}

static PyObject *get_device(PyObject *object, void *Py_UNUSED(closure))
{
    return cudriver_call(CALL_devices_device_at, ((ContextObject *)object)->ordinal);
}

static PyObject *get_closed(PyObject *object, void *Py_UNUSED(closure))
{
    CUDRIVER_LOCK();
    return PyBool_FromLong(((ContextObject *)object)->state != CUDRIVER_CONTEXT_OPEN);
}

static PyObject *get_is_primary(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((ContextObject *)object)->kind == CUDRIVER_CONTEXT_PRIMARY);
}

/* What is written in Python, by a function that takes the context. */
static PyObject *get_python(PyObject *object, void *function)
{
    return cudriver_call((enum cudriver_function)(uintptr_t)function, object);
}

static int set_cache_config(PyObject *object, PyObject *value, void *Py_UNUSED(closure))
{
    return cudriver_do(CALL_contexts_set_cache_config, object, value != NULL ? value : Py_None);
}

CUDRIVER_IN_PYTHON(method_memory_info, CALL_contexts_memory_info_of)

static PyGetSetDef context_getset[] = {
    {"device", get_device, NULL, DOC_Context_device, NULL},
    {"closed", get_closed, NULL, DOC_Context_closed, NULL},
    {"is_primary", get_is_primary, NULL, DOC_Context_is_primary, NULL},
    {"exists", get_python, NULL, DOC_Context_exists, (void *)CALL_contexts_exists},
    {"flags", get_python, NULL, DOC_Context_flags, (void *)CALL_contexts_flags},
    {"limits", get_python, NULL, DOC_Context_limits, (void *)CALL_contexts_limits},
    {"cache_config", get_python, set_cache_config, DOC_Context_cache_config,
     (void *)CALL_contexts_cache_config},
    {"stream_priority_range", get_python, NULL, DOC_Context_stream_priority_range,
     (void *)CALL_contexts_stream_priority_range},
    {"api_version", get_python, NULL, DOC_Context_api_version, (void *)CALL_contexts_api_version},
    {NULL},
};

static PyMethodDef context_methods[] = {
    {"push", cudriver_context_push, METH_NOARGS, DOC_Context_push},
    {"pop", cudriver_context_pop, METH_NOARGS, DOC_Context_pop},
    {"close", method_close, METH_NOARGS, DOC_Context_close},
    {"synchronize", method_synchronize, METH_NOARGS, DOC_Context_synchronize},
    {"memory_info", CUDRIVER_FAST(method_memory_info), DOC_Context_memory_info},
    {"__enter__", cudriver_context_method_enter, METH_NOARGS, DOC_Context___enter__},
    {"__exit__", cudriver_context_pop, METH_VARARGS, DOC_Context___exit__},
    {NULL},
};

static PyMemberDef context_members[] = {
    {"handle", T_ULONGLONG, offsetof(ContextObject, handle), READONLY, DOC_Context_handle},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ContextObject, weak), READONLY, NULL},
    {NULL},
};

static PyType_Slot context_slots[] = {
    {Py_tp_doc, DOC_Context},         {Py_tp_new, context_create},
    {Py_tp_dealloc, context_dealloc}, {Py_tp_repr, context_repr},
    {Py_tp_methods, context_methods}, {Py_tp_getset, context_getset},
    {Py_tp_members, context_members}, {0, NULL},
};

PyType_Spec cudriver_context_spec = {
    .name = "cudriver.Context",
    .basicsize = sizeof(ContextObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = context_slots,
};

/* 0 if no call runs on the device, no other thread resets, and, with `memory`, no page-locked
 * memory in use is registered in the primary context; else -1 with InvalidContextError. */
static int reset_check(CoreState *state, int ordinal, CUdevice device, bool memory)
{
    ContextObject *busy = state->contexts;

    if (state->resetting != 0) {
        return cudriver_do(CALL_contexts_refuse_during_reset, state->resetting - 1);
    }
    while (busy != NULL &&
           (busy->ordinal != ordinal || !cudriver_works_is_used(state, busy, false))) {
        busy = busy->next;
    }
    if (busy != NULL || (memory && cudriver_hostmem_uses_device(device))) {
        /* The call that runs may end meanwhile: a reference. */
        return cudriver_do(CALL_contexts_refuse_reset, ordinal,
                           Py_NewRef(busy != NULL ? (PyObject *)busy : Py_None));
    }
    return 0;
}

/* _reset_primary_context(ordinal) */
static PyObject *module_reset_primary(PyObject *module, PyObject *number)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    int ordinal;
    CUcontext handle = NULL, current = NULL;
    CUresult result = CUDA_SUCCESS;
    ContextObject *self;
    size_t released;
    CUdevice device;
    int failed = 0;

    if (!PyArg_Parse(number, "i", &ordinal) || cudriver_device_handle(ordinal, &device) < 0) {
        return NULL;
    }
    if (reset_check(state, ordinal, device, false) < 0) {
        return NULL; /* else the return of memory would wait for them */
    }
    result = cudriver_memory_return(state, 0, &released);
    if (cudriver_check(result, "cuMemHostUnregister", "free memory of device %d", ordinal) < 0 ||
        reset_check(state, ordinal, device, true) < 0) {
        return NULL;
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
    state->resets++;
    if (failed < 0) {
        return NULL;
    }
    if (handle != NULL && cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == handle) {
        cuda.cuCtxSetCurrent(NULL); /* nobody pushed it: a call made it current */
    }
    return cudriver_none(
        cudriver_check(result, "cuDevicePrimaryCtxReset_v2", "device %d", ordinal));
}

/* _context_for_use(device or None) */
static PyObject *module_for_use(PyObject *module, PyObject *device)
{
    CUDRIVER_LOCK();
    return (PyObject *)cudriver_context_for_device(cudriver_state_of_module(module), device);
}

/* _primary_context(ordinal) */
static PyObject *module_primary_context(PyObject *module, PyObject *ordinal)
{
    CUDRIVER_LOCK();
    int number;

    return PyArg_Parse(ordinal, "i", &number)
               ? (PyObject *)cudriver_context_primary(cudriver_state_of_module(module), number)
               : NULL;
}

PyMethodDef cudriver_context_functions[] = {
    {"_primary_context", module_primary_context, METH_O, NULL},
    {"_reset_primary_context", module_reset_primary, METH_O, NULL},
    {"_context_for_use", module_for_use, METH_O, NULL},
    {NULL},
};

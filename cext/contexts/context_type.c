/* Context as a Python type: its methods and properties. */
#include "batch.h"
#include "capture.h"
#include "context_private.h"
#include "driver/driver.h"
#include "python/devices.h"
#include "python/error.h"
#include "python/types.h"
#include "docstrings.h"

static const char *const cache_names[] = {"none", "shared", "l1", "equal"};

static ContextObject *context_of(PyObject *object)
{
    return (ContextObject *)object;
}

static PyObject *context_create(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"device", "flags", NULL};
    CoreState *state = (CoreState *)PyType_GetModuleState(type);
    PyObject *device = Py_None, *flags = NULL;
    unsigned long value = CU_CTX_SCHED_AUTO;
    int ordinal;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O$O:Context", names, &device, &flags) ||
        (flags != NULL && cudriver_context_parse_flags(flags, &value) < 0)) {
        return NULL;
    }
    ordinal = cudriver_device_parse(device);
    return ordinal < 0 ? NULL : (PyObject *)cudriver_context_create(state, ordinal, value);
}

static PyObject *context_repr(PyObject *object)
{
    static const char *const kinds[] = {"Context", "primary Context", "foreign Context"};
    static const char *const states[] = {"", ", closed", ", reset"};
    ContextObject *self = context_of(object);

    return PyUnicode_FromFormat("<%s #%llu on device %d%s>", kinds[self->kind], self->number,
                                self->ordinal, states[self->state]);
}

static PyObject *method_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    if (cudriver_context_close(cudriver_state_of(object), context_of(object)) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Ends a bracket around one driver call; raises if that failed. 0 or -1. */
static int query_end(ContextObject *self, bool pushed, CUresult result, const char *function)
{
    return cudriver_context_finish(cudriver_state_of((PyObject *)self), self, pushed, result,
                                   function, "context %llu", self->number);
}

/* cuCtxSynchronize() cannot be interrupted by signals, so first waits interruptibly for our own
 * work and the default stream's. 0, or -1 with an exception set. */
static int wait_for_known(CoreState *state, ContextObject *self)
{
    const struct cudriver_stream stream = {.context = self};

    if (cudriver_streams_refuse(state, self, "Context.synchronize()") < 0 ||
        cudriver_batches_refuse(state, self, "Context.synchronize()") < 0 ||
        cudriver_batches_wait(state, self) < 0 ||
        cudriver_capture_refuse(state, NULL, "Context.synchronize()") < 0) {
        return -1;
    }
    return cuda.cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY
               ? cudriver_batch_wait_all(state, &stream)
               : 0;
}

static PyObject *method_synchronize(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CoreState *state = cudriver_state_of(object);
    ContextObject *self = context_of(object);
    CUresult result;
    bool pushed;

    if (cudriver_context_begin(state, self, &pushed) < 0) {
        return NULL;
    }
    if (wait_for_known(state, self) < 0) {
        cudriver_context_end(self, pushed);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cuda.cuCtxSynchronize();
    Py_END_ALLOW_THREADS
    cudriver_context_end(self, pushed);
    cudriver_batches_reap(state, false);
    if (cudriver_check(state, result, "cuCtxSynchronize", "context %llu", self->number) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* New reference: MemoryInfo(free, total) of a context. */
static PyObject *context_memory_info(CoreState *state, ContextObject *self)
{
    size_t available = 0, total = 0;
    CUresult result;
    bool pushed;

    if (cudriver_context_begin(state, self, &pushed) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cuda.cuMemGetInfo_v2(&available, &total);
    Py_END_ALLOW_THREADS
    if (cudriver_context_finish(state, self, pushed, result, "cuMemGetInfo_v2", "device %d",
                                self->ordinal) < 0) {
        return NULL;
    }
    return cudriver_tuple_new(state->memory_info_type, 2, PyLong_FromSize_t(available),
                              PyLong_FromSize_t(total));
}

static PyObject *method_memory_info(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    return context_memory_info(cudriver_state_of(object), context_of(object));
}

static PyObject *get_device(PyObject *object, void *Py_UNUSED(closure))
{
    return cudriver_device_new(context_of(object)->ordinal);
}

static PyObject *get_closed(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(context_of(object)->state != CUDRIVER_CONTEXT_OPEN);
}

static PyObject *get_is_primary(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(context_of(object)->kind == CUDRIVER_CONTEXT_PRIMARY);
}

/* Works for a closed primary context too: it is the device's state. 0 or -1. */
static int primary_state(CoreState *state, ContextObject *self, unsigned int *flags, int *active)
{
    CUdevice device;

    if (cudriver_device_handle(state, self->ordinal, &device) < 0) {
        return -1;
    }
    return cudriver_check(state, cuda.cuDevicePrimaryCtxGetState(device, flags, active),
                          "cuDevicePrimaryCtxGetState", "device %d", self->ordinal);
}

static PyObject *get_active(PyObject *object, void *Py_UNUSED(closure))
{
    CoreState *state = cudriver_state_of(object);
    ContextObject *self = context_of(object);
    unsigned int flags;
    int active = 0;

    if (self->kind != CUDRIVER_CONTEXT_PRIMARY) {
        return PyBool_FromLong(self->state == CUDRIVER_CONTEXT_OPEN);
    }
    return primary_state(state, self, &flags, &active) < 0 ? NULL : PyBool_FromLong(active);
}

static PyObject *get_flags(PyObject *object, void *Py_UNUSED(closure))
{
    CoreState *state = cudriver_state_of(object);
    ContextObject *self = context_of(object);
    unsigned int flags = 0;
    int active;
    bool pushed;

    if (self->kind == CUDRIVER_CONTEXT_PRIMARY) {
        return primary_state(state, self, &flags, &active) < 0 ? NULL
                                                               : PyLong_FromUnsignedLong(flags);
    }
    if (cudriver_context_begin(state, self, &pushed) < 0 ||
        query_end(self, pushed, cuda.cuCtxGetFlags(&flags), "cuCtxGetFlags") < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(flags);
}

static PyObject *get_cache_config(PyObject *object, void *Py_UNUSED(closure))
{
    ContextObject *self = context_of(object);
    CUfunc_cache config = CU_FUNC_CACHE_PREFER_NONE;
    bool pushed;

    if (cudriver_context_begin(cudriver_state_of(object), self, &pushed) < 0 ||
        query_end(self, pushed, cuda.cuCtxGetCacheConfig(&config), "cuCtxGetCacheConfig") < 0) {
        return NULL;
    }
    return (unsigned int)config < 4 ? PyUnicode_FromString(cache_names[config])
                                    : PyLong_FromLong((long)config);
}

static int set_cache_config(PyObject *object, PyObject *value, void *Py_UNUSED(closure))
{
    CoreState *state = cudriver_state_of(object);
    ContextObject *self = context_of(object);
    bool pushed;
    int config = -1;

    for (int i = 0; value != NULL && PyUnicode_Check(value) && i < 4; i++) {
        if (PyUnicode_CompareWithASCIIString(value, cache_names[i]) == 0) {
            config = i;
        }
    }
    if (config < 0) {
        PyErr_Format(PyExc_ValueError, "cache_config is 'none', 'shared', 'l1' or 'equal', not %R",
                     value != NULL ? value : Py_None);
        return -1;
    }
    if (cudriver_context_begin(state, self, &pushed) < 0) {
        return -1;
    }
    return cudriver_context_finish(state, self, pushed,
                                   cuda.cuCtxSetCacheConfig((CUfunc_cache)config),
                                   "cuCtxSetCacheConfig", "%s", cache_names[config]);
}

static PyObject *get_priority_range(PyObject *object, void *Py_UNUSED(closure))
{
    CoreState *state = cudriver_state_of(object);
    ContextObject *self = context_of(object);
    int least = 0, greatest = 0;
    bool pushed;

    if (cudriver_context_begin(state, self, &pushed) < 0 ||
        query_end(self, pushed, cuda.cuCtxGetStreamPriorityRange(&least, &greatest),
                  "cuCtxGetStreamPriorityRange") < 0) {
        return NULL;
    }
    return cudriver_tuple_new(state->priority_range_type, 2, PyLong_FromLong(least),
                              PyLong_FromLong(greatest));
}

static PyObject *get_api_version(PyObject *object, void *Py_UNUSED(closure))
{
    ContextObject *self = context_of(object);
    unsigned int version = 0;
    bool pushed;

    if (cudriver_context_begin(cudriver_state_of(object), self, &pushed) < 0 ||
        query_end(self, pushed, cuda.cuCtxGetApiVersion(self->handle, &version),
                  "cuCtxGetApiVersion") < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(version);
}

static PyGetSetDef context_getset[] = {
    {"device", get_device, NULL, DOC_Context_device, NULL},
    {"closed", get_closed, NULL, DOC_Context_closed, NULL},
    {"is_primary", get_is_primary, NULL, DOC_Context_is_primary, NULL},
    {"active", get_active, NULL, DOC_Context_active, NULL},
    {"flags", get_flags, NULL, DOC_Context_flags, NULL},
    {"limits", cudriver_context_limits, NULL, DOC_Context_limits, NULL},
    {"cache_config", get_cache_config, set_cache_config, DOC_Context_cache_config, NULL},
    {"stream_priority_range", get_priority_range, NULL, DOC_Context_stream_priority_range, NULL},
    {"api_version", get_api_version, NULL, DOC_Context_api_version, NULL},
    {NULL},
};

static PyMethodDef context_methods[] = {
    {"push", cudriver_context_push, METH_NOARGS, DOC_Context_push},
    {"pop", cudriver_context_pop, METH_NOARGS, DOC_Context_pop},
    {"close", method_close, METH_NOARGS, DOC_Context_close},
    {"synchronize", method_synchronize, METH_NOARGS, DOC_Context_synchronize},
    {"memory_info", method_memory_info, METH_NOARGS, DOC_Context_memory_info},
    {"_limit", cudriver_context_get_limit, METH_VARARGS, DOC_Context__limit},
    {"_set_limit", cudriver_context_set_limit, METH_VARARGS, DOC_Context__set_limit},
    {"__enter__", cudriver_context_enter, METH_NOARGS, DOC_Context___enter__},
    {"__exit__", (PyCFunction)(void (*)(void))cudriver_context_exit, METH_FASTCALL,
     DOC_Context___exit__},
    {NULL},
};

static PyMemberDef context_members[] = {
    {"handle", T_ULONGLONG, offsetof(ContextObject, handle), READONLY, DOC_Context_handle},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ContextObject, weak), READONLY, NULL},
    {NULL},
};

static PyType_Slot context_slots[] = {
    {Py_tp_doc, DOC_Context},
    {Py_tp_new, context_create},
    {Py_tp_dealloc, cudriver_context_dealloc},
    {Py_tp_repr, context_repr},
    {Py_tp_methods, context_methods},
    {Py_tp_getset, context_getset},
    {Py_tp_members, context_members},
    {0, NULL},
};

static PyType_Spec context_spec = {
    .name = "cudriver.Context",
    .basicsize = sizeof(ContextObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = context_slots,
};

static PyObject *module_memory_info(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    CoreState *state = cudriver_state_of_module(module);
    ContextObject *context = cudriver_context_for_use(state);
    PyObject *info;

    if (context == NULL) {
        return NULL;
    }
    info = context_memory_info(state, context);
    Py_DECREF(context);
    return info;
}

/* _primary_context(ordinal, flags or None) */
static PyObject *module_primary_context(PyObject *module, PyObject *args)
{
    unsigned long flags = 0;
    PyObject *given;
    int ordinal;

    if (!PyArg_ParseTuple(args, "iO", &ordinal, &given) ||
        (given != Py_None && cudriver_context_parse_flags(given, &flags) < 0)) {
        return NULL;
    }
    return (PyObject *)cudriver_context_primary(cudriver_state_of_module(module), ordinal,
                                                given == Py_None ? NULL : &flags);
}

/* _reset_primary_context(ordinal) */
static PyObject *module_reset_primary(PyObject *module, PyObject *ordinal)
{
    if (cudriver_context_reset_primary(cudriver_state_of_module(module),
                                       (int)PyLong_AsLong(ordinal)) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_primary_context", module_primary_context, METH_VARARGS, NULL},
    {"_reset_primary_context", module_reset_primary, METH_O, NULL},
    {"memory_info", module_memory_info, METH_NOARGS, DOC_memory_info},
    {NULL},
};

static PyStructSequence_Field memory_info_fields[] = {
    {"free", DOC_MemoryInfo_free}, {"total", DOC_MemoryInfo_total}, {NULL, NULL}};

static PyStructSequence_Desc memory_info_desc = {
    .name = "cudriver.MemoryInfo",
    .doc = DOC_MemoryInfo,
    .fields = memory_info_fields,
    .n_in_sequence = 2,
};

static PyStructSequence_Field priority_fields[] = {{"least", DOC_StreamPriorityRange_least},
                                                   {"greatest", DOC_StreamPriorityRange_greatest},
                                                   {NULL, NULL}};

static PyStructSequence_Desc priority_desc = {
    .name = "cudriver.StreamPriorityRange",
    .doc = DOC_StreamPriorityRange,
    .fields = priority_fields,
    .n_in_sequence = 2,
};

int cudriver_context_setup(PyObject *module)
{
    CoreState *state = cudriver_state_of_module(module);

    if (cudriver_type_add(module, &state->context_type, &context_spec) < 0 ||
        cudriver_tuple_add(module, &state->memory_info_type, &memory_info_desc) < 0 ||
        cudriver_tuple_add(module, &state->priority_range_type, &priority_desc) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}

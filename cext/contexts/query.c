/* What only Python asks of the driver: `_query` calls a function by its name. */
#include "context.h"

#include <stdio.h>
#include <string.h>

#include "driver/driver.h"
#include "python/error.h"
#include "docstrings.h"

/* One call: what is given, and what the driver answers. */
struct query {
    const char *text;
    unsigned long long first, second;
    char name[256];
    int values[2];
    size_t sizes[2];
};

static CUresult device_count(struct query *q)
{
    return cuda.cuDeviceGetCount(&q->values[0]);
}

static CUresult device_get(struct query *q)
{
    return cuda.cuDeviceGet(&q->values[0], (int)q->first);
}

static CUresult device_by_bus(struct query *q)
{
    return cuda.cuDeviceGetByPCIBusId(&q->values[0], q->text);
}

static CUresult device_current(struct query *q)
{
    return cuda.cuCtxGetDevice(&q->values[0]);
}

static CUresult device_name(struct query *q)
{
    return cuda.cuDeviceGetName(q->name, sizeof q->name, (CUdevice)q->first);
}

static CUresult device_bus(struct query *q)
{
    return cuda.cuDeviceGetPCIBusId(q->name, sizeof q->name, (CUdevice)q->first);
}

/* As nvidia-smi prints it, without "GPU-". */
static CUresult device_uuid(struct query *q)
{
    const CUdevice device = (CUdevice)q->first;
    CUuuid uuid;
    CUresult result = cuda.cuDeviceGetUuid_v2 != NULL ? cuda.cuDeviceGetUuid_v2(&uuid, device)
                                                      : cuda.cuDeviceGetUuid(&uuid, device);
    char *text = q->name;

    for (int i = 0; result == CUDA_SUCCESS && i < 16; i++) {
        bool dash = i == 4 || i == 6 || i == 8 || i == 10;
        text += sprintf(text, "%s%02x", dash ? "-" : "", (unsigned char)uuid.bytes[i]);
    }
    return result;
}

static CUresult device_memory(struct query *q)
{
    return cuda.cuDeviceTotalMem_v2(&q->sizes[0], (CUdevice)q->first);
}

static CUresult device_attribute(struct query *q)
{
    return cuda.cuDeviceGetAttribute(&q->values[0], (CUdevice_attribute)q->second,
                                     (CUdevice)q->first);
}

static CUresult device_peer(struct query *q)
{
    return cuda.cuDeviceCanAccessPeer(&q->values[0], (CUdevice)q->first, (CUdevice)q->second);
}

static CUresult primary_state(struct query *q)
{
    return cuda.cuDevicePrimaryCtxGetState((CUdevice)q->first, (unsigned int *)&q->values[0],
                                           &q->values[1]);
}

/* Of the current context: a query in a context makes it so. */
static CUresult context_flags(struct query *q)
{
    return cuda.cuCtxGetFlags((unsigned int *)&q->values[0]);
}

static CUresult context_version(struct query *q)
{
    return cuda.cuCtxGetApiVersion(NULL, (unsigned int *)&q->values[0]);
}

static CUresult context_priorities(struct query *q)
{
    return cuda.cuCtxGetStreamPriorityRange(&q->values[0], &q->values[1]);
}

static CUresult context_memory(struct query *q)
{
    return cuda.cuMemGetInfo_v2(&q->sizes[0], &q->sizes[1]);
}

static CUresult context_cache(struct query *q)
{
    CUfunc_cache config = CU_FUNC_CACHE_PREFER_NONE;
    CUresult result = cuda.cuCtxGetCacheConfig(&config);

    q->values[0] = (int)config;
    return result;
}

static CUresult context_set_cache(struct query *q)
{
    return cuda.cuCtxSetCacheConfig((CUfunc_cache)q->first);
}

static CUresult context_limit(struct query *q)
{
    return cuda.cuCtxGetLimit(&q->sizes[0], (CUlimit)q->first);
}

static CUresult context_set_limit(struct query *q)
{
    return cuda.cuCtxSetLimit((CUlimit)q->first, q->second);
}

static const struct function {
    const char *name;
    CUresult (*ask)(struct query *q);
    const char *answer; /* for Py_BuildValue: "s": name, "i", "ii": values, "K", "KK": sizes */
} functions[] = {
    {"cuDeviceGetCount", device_count, "i"},
    {"cuDeviceGet", device_get, "i"},
    {"cuDeviceGetByPCIBusId", device_by_bus, "i"},
    {"cuCtxGetDevice", device_current, "i"},
    {"cuDeviceGetName", device_name, "s"},
    {"cuDeviceGetPCIBusId", device_bus, "s"},
    {"cuDeviceGetUuid", device_uuid, "s"},
    {"cuDeviceTotalMem_v2", device_memory, "K"},
    {"cuDeviceGetAttribute", device_attribute, "i"},
    {"cuDeviceCanAccessPeer", device_peer, "i"},
    {"cuDevicePrimaryCtxGetState", primary_state, "ii"},
    {"cuCtxGetFlags", context_flags, "i"},
    {"cuCtxGetApiVersion", context_version, "i"},
    {"cuCtxGetStreamPriorityRange", context_priorities, "ii"},
    {"cuMemGetInfo_v2", context_memory, "KK"},
    {"cuCtxGetCacheConfig", context_cache, "i"},
    {"cuCtxSetCacheConfig", context_set_cache, ""},
    {"cuCtxGetLimit", context_limit, "K"},
    {"cuCtxSetLimit", context_set_limit, ""},
};

static const struct function *function_find(const char *name)
{
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].name, name) == 0) {
            return &functions[i];
        }
    }
    PyErr_Format(PyExc_ValueError, "_query() knows no function %s", name);
    return NULL;
}

/* _query(context or None, function, arguments, first=0, second=0) */
static PyObject *module_query(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    const struct function *function;
    PyObject *given;
    ContextObject *context;
    struct query q = {0};
    bool pushed = false;
    const char *name;
    CUresult result;

    if (!PyArg_ParseTuple(args, "Oss|KK", &given, &name, &q.text, &q.first, &q.second) ||
        (function = function_find(name)) == NULL || cudriver_require() < 0) {
        return NULL;
    }
    context = Py_IS_TYPE(given, state->context_type) ? (ContextObject *)given : NULL;
    if (context != NULL && cudriver_context_begin(state, context, &pushed) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    result = function->ask(&q);
    Py_END_ALLOW_THREADS
    if (context != NULL) {
        cudriver_context_end(context, pushed);
    }
    if (cudriver_check(result, name, "%s", q.text) < 0) {
        return NULL;
    }
    switch (function->answer[0]) {
    case 's':
        return Py_BuildValue("s", q.name);
    case 'K':
        return Py_BuildValue(function->answer, (unsigned long long)q.sizes[0],
                             (unsigned long long)q.sizes[1]);
    default:
        return Py_BuildValue(function->answer, q.values[0], q.values[1]);
    }
}

PyMethodDef cudriver_query_functions[] = {
    {"_query", module_query, METH_VARARGS, DOC__query},
    {NULL},
};

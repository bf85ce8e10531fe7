/* What only Python asks of the driver: `_query` calls a function by its name. */
#include "query.h"

#include <stdio.h>
#include <string.h>

#include "context.h"
#include "driver/driver.h"
#include "python/error.h"
#include "docstrings.h"

/* One call: what is given, and what the driver answers. */
struct query {
    const char *text;
    unsigned long long first, second;
    char name[256];
    int value, other;
    size_t size;
};

static CUresult device_count(struct query *q)
{
    return cuda.cuDeviceGetCount(&q->value);
}

static CUresult device_get(struct query *q)
{
    return cuda.cuDeviceGet(&q->value, (int)q->first);
}

static CUresult device_by_bus(struct query *q)
{
    return cuda.cuDeviceGetByPCIBusId(&q->value, q->text);
}

static CUresult device_current(struct query *q)
{
    return cuda.cuCtxGetDevice(&q->value);
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
    return cuda.cuDeviceTotalMem_v2(&q->size, (CUdevice)q->first);
}

static CUresult device_attribute(struct query *q)
{
    return cuda.cuDeviceGetAttribute(&q->value, (CUdevice_attribute)q->second, (CUdevice)q->first);
}

static CUresult device_peer(struct query *q)
{
    return cuda.cuDeviceCanAccessPeer(&q->value, (CUdevice)q->first, (CUdevice)q->second);
}

static const struct function {
    const char *name;
    CUresult (*ask)(struct query *q);
    char answer; /* 'i': value, 'n': size, 's': name */
} functions[] = {
    {"cuDeviceGetCount", device_count, 'i'},         {"cuDeviceGet", device_get, 'i'},
    {"cuDeviceGetByPCIBusId", device_by_bus, 'i'},   {"cuCtxGetDevice", device_current, 'i'},
    {"cuDeviceGetName", device_name, 's'},           {"cuDeviceGetPCIBusId", device_bus, 's'},
    {"cuDeviceGetUuid", device_uuid, 's'},           {"cuDeviceTotalMem_v2", device_memory, 'n'},
    {"cuDeviceGetAttribute", device_attribute, 'i'}, {"cuDeviceCanAccessPeer", device_peer, 'i'},
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

/* _query(function, arguments, first=0, second=0) */
static PyObject *module_query(PyObject *module, PyObject *args)
{
    CoreState *state = cudriver_state_of_module(module);
    const struct function *function;
    struct query q = {0};
    const char *name;
    CUresult result;

    if (!PyArg_ParseTuple(args, "ss|KK", &name, &q.text, &q.first, &q.second) ||
        (function = function_find(name)) == NULL || cudriver_require(state) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    result = function->ask(&q);
    Py_END_ALLOW_THREADS
    if (cudriver_check(state, result, name, "%s", q.text) < 0) {
        return NULL;
    }
    switch (function->answer) {
    case 's':
        return PyUnicode_FromString(q.name);
    case 'n':
        return PyLong_FromSize_t(q.size);
    default:
        return PyLong_FromLong(q.value);
    }
}

static PyMethodDef methods[] = {
    {"_query", module_query, METH_VARARGS, DOC__query},
    {NULL},
};

int cudriver_query_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}

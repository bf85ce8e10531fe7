/* Device, and the functions that list devices. This file is the model for a type: a contract in the
 * header, small static functions, one table of methods, one PyType_Spec, one setup function. */
#include "device.h"

#include <string.h>

#include "context.h"
#include "driver/cuda_attributes.h"
#include "driver/driver.h"
#include "python/error.h"
#include "python/types.h"
#include "docstrings.h"

static const struct attribute {
    const char *name; /* as in cuda.h, without CU_DEVICE_ATTRIBUTE_ */
    int value;
} attributes[] = {
#define X(name, value) {#name, value},
    CUDRIVER_DEVICE_ATTRIBUTES(X)
#undef X
};

#define ATTRIBUTE_COUNT (sizeof attributes / sizeof attributes[0])

static PyObject *device_create(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"device", NULL};
    CoreState *state = (CoreState *)PyType_GetModuleState(type);
    PyObject *which = Py_None;
    int ordinal;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:Device", names, &which)) {
        return NULL;
    }
    ordinal = cudriver_device_parse(state, which);
    return ordinal < 0 ? NULL : cudriver_device_new(state, ordinal);
}

static PyObject *device_repr(PyObject *self)
{
    DeviceObject *device = (DeviceObject *)self;
    char name[256];

    if (cudriver_driver_is_forked()) {
        return PyUnicode_FromFormat("<Device %d>", device->ordinal);
    }
    cudriver_device_describe(device->ordinal, name, sizeof name);
    return PyUnicode_FromFormat("<Device %d: %s>", device->ordinal, name);
}

static PyObject *device_compare(PyObject *self, PyObject *other, int operation)
{
    if (!Py_IS_TYPE(other, Py_TYPE(self)) || (operation != Py_EQ && operation != Py_NE)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    bool same = ((DeviceObject *)self)->ordinal == ((DeviceObject *)other)->ordinal;
    return PyBool_FromLong(same == (operation == Py_EQ));
}

static Py_hash_t device_hash(PyObject *self)
{
    return ((DeviceObject *)self)->ordinal;
}

/* Starts every getter: it may be the first driver call in a forked child. 0 or -1. */
static int device_begin(PyObject *self, CoreState **state, CUdevice *device)
{
    *state = cudriver_state_of(self);
    *device = ((DeviceObject *)self)->handle;
    return cudriver_require(*state);
}

static CUresult read_name(CUdevice device, char *text, int size)
{
    return cuda.cuDeviceGetName(text, size, device);
}

static CUresult read_uuid(CUdevice device, char *text, int size)
{
    (void)size;
    return cudriver_device_uuid(device, strcpy(text, "GPU-") + 4);
}

static CUresult read_bus(CUdevice device, char *text, int size)
{
    return cuda.cuDeviceGetPCIBusId(text, size, device);
}

/* A property that is text. */
static const struct text {
    CUresult (*read)(CUdevice device, char *text, int size);
    const char *function;
} name_text = {read_name, "cuDeviceGetName"}, uuid_text = {read_uuid, "cuDeviceGetUuid"},
  bus_text = {read_bus, "cuDeviceGetPCIBusId"};

static PyObject *device_get_text(PyObject *self, void *closure)
{
    const struct text *property = closure;
    CoreState *state;
    CUdevice device;
    char text[256];

    if (device_begin(self, &state, &device) < 0 ||
        cudriver_check(state, property->read(device, text, sizeof text), property->function,
                       "device %d", device) < 0) {
        return NULL;
    }
    return PyUnicode_FromString(text);
}

static PyObject *device_get_total_memory(PyObject *self, void *Py_UNUSED(closure))
{
    CoreState *state;
    CUdevice device;
    size_t bytes;

    if (device_begin(self, &state, &device) < 0 ||
        cudriver_check(state, cuda.cuDeviceTotalMem_v2(&bytes, device), "cuDeviceTotalMem_v2",
                       "device %d", device) < 0) {
        return NULL;
    }
    return PyLong_FromSize_t(bytes);
}

/* Reads one attribute. 0, or -1 with an exception set. */
static int attribute_read(CoreState *state, CUdevice device, int attribute, int *value)
{
    return cudriver_check(state,
                          cuda.cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device),
                          "cuDeviceGetAttribute", "attribute %d, device %d", attribute, device);
}

static PyObject *device_get_multiprocessors(PyObject *self, void *Py_UNUSED(closure))
{
    CoreState *state;
    CUdevice device;
    int value;

    if (device_begin(self, &state, &device) < 0 ||
        attribute_read(state, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &value) < 0) {
        return NULL;
    }
    return PyLong_FromLong(value);
}

static PyObject *device_get_capability(PyObject *self, void *Py_UNUSED(closure))
{
    CoreState *state;
    CUdevice device;
    int major, minor;

    if (device_begin(self, &state, &device) < 0 ||
        attribute_read(state, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major) < 0 ||
        attribute_read(state, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor) < 0) {
        return NULL;
    }
    return Py_BuildValue("(ii)", major, minor);
}

/* New reference: an attribute's value; None if this driver is too old to know it. */
static PyObject *attribute_value(CoreState *state, CUdevice device,
                                 const struct attribute *attribute)
{
    int value;
    CUresult result =
        cuda.cuDeviceGetAttribute(&value, (CUdevice_attribute)attribute->value, device);

    if (result == CUDA_ERROR_INVALID_VALUE) {
        return Py_NewRef(Py_None);
    }
    return result == CUDA_SUCCESS ? PyLong_FromLong(value)
                                  : cudriver_raise(state, result, "cuDeviceGetAttribute",
                                                   "%s, device %d", attribute->name, device);
}

static PyObject *device_get_attributes(PyObject *self, void *Py_UNUSED(closure))
{
    CoreState *state;
    CUdevice device;
    PyObject *values, *proxy;

    if (device_begin(self, &state, &device) < 0) {
        return NULL;
    }
    values = PyDict_New();
    for (size_t i = 0; values != NULL && i < ATTRIBUTE_COUNT; i++) {
        PyObject *value = attribute_value(state, device, &attributes[i]);
        char name[128] = "";
        for (size_t j = 0; attributes[i].name[j] != '\0' && j < sizeof name - 1; j++) {
            name[j] = (char)Py_TOLOWER(attributes[i].name[j]);
        }
        if (value == NULL || PyDict_SetItemString(values, name, value) < 0) {
            Py_CLEAR(values);
        }
        Py_XDECREF(value);
    }
    if (values == NULL) {
        return NULL;
    }
    proxy = PyDictProxy_New(values);
    Py_DECREF(values);
    return proxy;
}

static PyObject *device_can_access_peer(PyObject *self, PyObject *other)
{
    CoreState *state;
    CUdevice device, peer;
    int ordinal, can;

    if (device_begin(self, &state, &device) < 0 ||
        (ordinal = cudriver_device_parse(state, other)) < 0 ||
        cudriver_device_handle(state, ordinal, &peer) < 0) {
        return NULL;
    }
    if (device == peer) {
        Py_RETURN_FALSE;
    }
    if (cudriver_check(state, cuda.cuDeviceCanAccessPeer(&can, device, peer),
                       "cuDeviceCanAccessPeer", "devices %d, %d", device, peer) < 0) {
        return NULL;
    }
    return PyBool_FromLong(can);
}

static PyObject *device_primary_context(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"flags", NULL};
    PyObject *flags = Py_None;
    CoreState *state;
    CUdevice device;
    unsigned long value = 0;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:primary_context", names, &flags) ||
        device_begin(self, &state, &device) < 0) {
        return NULL;
    }
    if (flags != Py_None && cudriver_context_parse_flags(flags, &value) < 0) {
        return NULL;
    }
    return (PyObject *)cudriver_context_primary(state, ((DeviceObject *)self)->ordinal,
                                                flags == Py_None ? NULL : &value);
}

static PyObject *device_reset_primary(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    CoreState *state;
    CUdevice device;

    if (device_begin(self, &state, &device) < 0 ||
        cudriver_context_reset_primary(state, ((DeviceObject *)self)->ordinal) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyGetSetDef device_getset[] = {
    {"name", device_get_text, NULL, DOC_Device_name, (void *)&name_text},
    {"uuid", device_get_text, NULL, DOC_Device_uuid, (void *)&uuid_text},
    {"pci_bus_id", device_get_text, NULL, DOC_Device_pci_bus_id, (void *)&bus_text},
    {"total_memory", device_get_total_memory, NULL, DOC_Device_total_memory, NULL},
    {"multiprocessor_count", device_get_multiprocessors, NULL, DOC_Device_multiprocessor_count,
     NULL},
    {"compute_capability", device_get_capability, NULL, DOC_Device_compute_capability, NULL},
    {"attributes", device_get_attributes, NULL, DOC_Device_attributes, NULL},
    {NULL},
};

static PyMethodDef device_methods[] = {
    {"can_access_peer", device_can_access_peer, METH_O, DOC_Device_can_access_peer},
    {"primary_context", (PyCFunction)(void (*)(void))device_primary_context,
     METH_VARARGS | METH_KEYWORDS, DOC_Device_primary_context},
    {"reset_primary_context", device_reset_primary, METH_NOARGS, DOC_Device_reset_primary_context},
    {NULL},
};

static PyMemberDef device_members[] = {
    {"ordinal", T_INT, offsetof(DeviceObject, ordinal), READONLY, DOC_Device_ordinal},
    {NULL},
};

static PyType_Slot device_slots[] = {
    {Py_tp_doc, DOC_Device},
    {Py_tp_new, device_create},
    {Py_tp_repr, device_repr},
    {Py_tp_hash, device_hash},
    {Py_tp_richcompare, device_compare},
    {Py_tp_methods, device_methods},
    {Py_tp_getset, device_getset},
    {Py_tp_members, device_members},
    {0, NULL},
};

static PyType_Spec device_spec = {
    .name = "cudriver.Device",
    .basicsize = sizeof(DeviceObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = device_slots,
};

static PyObject *module_device_count(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    int count = cudriver_device_count(cudriver_state_of_module(module));

    return count < 0 ? NULL : PyLong_FromLong(count);
}

static PyObject *module_devices(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    CoreState *state = cudriver_state_of_module(module);
    int count = cudriver_device_count(state);
    PyObject *list = count < 0 ? NULL : PyList_New(count);

    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *device = cudriver_device_new(state, i);
        if (device == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, device);
    }
    return list;
}

static PyMethodDef functions[] = {
    {"device_count", module_device_count, METH_NOARGS, DOC_device_count},
    {"devices", module_devices, METH_NOARGS, DOC_devices},
    {NULL},
};

int cudriver_device_setup(PyObject *module)
{
    if (cudriver_type_add(module, &cudriver_state_of_module(module)->device_type, &device_spec) <
        0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}

/* The devices of this process. See devices.h. */
#include "devices.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "driver/driver.h"
#include "error.h"

int cudriver_device_handle(CoreState *state, int ordinal, CUdevice *handle)
{
    CUresult result;

    if (cudriver_require(state) < 0) {
        return -1;
    }
    result = cuda.cuDeviceGet(handle, ordinal);
    if (result != CUDA_SUCCESS) {
        cudriver_raise(state, result, "cuDeviceGet", "%d", ordinal);
        return -1;
    }
    return 0;
}

PyObject *cudriver_device_new(CoreState *state, int ordinal)
{
    DeviceObject *self;
    CUdevice handle;

    if (cudriver_device_handle(state, ordinal, &handle) < 0) {
        return NULL;
    }
    self = (DeviceObject *)state->device_type->tp_alloc(state->device_type, 0);
    if (self != NULL) {
        self->handle = handle;
        self->ordinal = ordinal;
    }
    return (PyObject *)self;
}

int cudriver_device_count(CoreState *state)
{
    CUresult result;
    int count = 0;

    if (cudriver_require(state) < 0) {
        return -1;
    }
    result = cuda.cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS) {
        cudriver_raise(state, result, "cuDeviceGetCount", "%s", "");
        return -1;
    }
    return count;
}

CUresult cudriver_device_uuid(CUdevice device, char *text)
{
    CUuuid uuid;
    CUresult result = cuda.cuDeviceGetUuid_v2 != NULL ? cuda.cuDeviceGetUuid_v2(&uuid, device)
                                                      : cuda.cuDeviceGetUuid(&uuid, device);

    for (int i = 0; result == CUDA_SUCCESS && i < 16; i++) {
        bool dash = i == 4 || i == 6 || i == 8 || i == 10;
        text += sprintf(text, "%s%02x", dash ? "-" : "", (unsigned char)uuid.bytes[i]);
    }
    return result;
}

/* The ordinal of the device whose UUID starts with `wanted` (ignoring case), or -1. */
static int find_by_uuid(CoreState *state, const char *wanted)
{
    const char *digits = strncasecmp(wanted, "GPU-", 4) == 0 ? wanted + 4 : wanted;
    int count = cudriver_device_count(state), found = -1;

    for (int i = 0; i < count; i++) {
        CUdevice device;
        char uuid[37];
        if (cudriver_device_handle(state, i, &device) < 0) {
            return -1;
        }
        if (cudriver_device_uuid(device, uuid) == CUDA_SUCCESS &&
            strncasecmp(uuid, digits, strlen(digits)) == 0) {
            if (found >= 0) {
                PyErr_Format(PyExc_ValueError, "the uuid %s fits devices %d and %d", wanted, found,
                             i);
                return -1;
            }
            found = i;
        }
    }
    if (count >= 0 && found < 0) {
        PyErr_Format(PyExc_ValueError, "no device has the uuid %s; there are %d (see devices())",
                     wanted, count);
    }
    return found;
}

static int find_by_bus(CoreState *state, const char *bus)
{
    CUdevice wanted, device;
    CUresult result;
    int count = cudriver_device_count(state);

    if (count < 0) {
        return -1;
    }
    result = cuda.cuDeviceGetByPCIBusId(&wanted, bus);
    if (result != CUDA_SUCCESS) {
        PyErr_Format(PyExc_ValueError,
                     "no device has the PCI bus id %s (cuDeviceGetByPCIBusId: %s)", bus,
                     cudriver_error_name(result));
        return -1;
    }
    for (int i = 0; i < count; i++) {
        if (cudriver_device_handle(state, i, &device) < 0) {
            return -1;
        }
        if (device == wanted) {
            return i;
        }
    }
    PyErr_Format(PyExc_ValueError, "the device at PCI bus id %s is not in this process's list",
                 bus);
    return -1;
}

static int find_by_text(CoreState *state, PyObject *object)
{
    const char *text = PyUnicode_AsUTF8(object);

    if (text == NULL) {
        return -1;
    }
    if (strchr(text, ':') != NULL) {
        return find_by_bus(state, text);
    }
    if (strncasecmp(text, "GPU-", 4) == 0 ? strlen(text) >= 8 : strlen(text) == 36) {
        return find_by_uuid(state, text);
    }
    PyErr_Format(
        PyExc_ValueError,
        "'%s' names no device: expected an ordinal, a uuid (GPU-xxxxxxxx-...) or a PCI bus id "
        "(0000:41:00.0)",
        text);
    return -1;
}

int cudriver_device_parse(CoreState *state, PyObject *object)
{
    long ordinal = 0;
    int count;

    if (object != NULL && Py_IS_TYPE(object, state->device_type)) {
        return cudriver_require(state) < 0 ? -1 : ((DeviceObject *)object)->ordinal;
    }
    if (object != NULL && PyUnicode_Check(object)) {
        return cudriver_require(state) < 0 ? -1 : find_by_text(state, object);
    }
    if (object != NULL && object != Py_None) {
        PyObject *index = PyBool_Check(object) ? NULL : PyNumber_Index(object);
        if (index == NULL) {
            PyErr_Format(PyExc_TypeError,
                         "a device is an ordinal, a Device, a uuid or a PCI bus id, not %.100s",
                         Py_TYPE(object)->tp_name);
            return -1;
        }
        int overflow;
        ordinal = PyLong_AsLongAndOverflow(index, &overflow);
        Py_DECREF(index);
        if (overflow != 0) {
            ordinal = -1;
        }
    }
    count = cudriver_device_count(state);
    if (count < 0) {
        return -1;
    }
    if (ordinal < 0 || ordinal >= count) {
        if (count == 0) {
            cudriver_raise(state, CUDA_ERROR_NO_DEVICE, "cuDeviceGet", "%ld", ordinal);
        } else {
            PyErr_Format(PyExc_ValueError, "device %S does not exist: there %s %d, numbered from 0",
                         object != NULL ? object : Py_None, count == 1 ? "is" : "are", count);
        }
        return -1;
    }
    return (int)ordinal;
}

void cudriver_device_describe(int ordinal, char *text, size_t size)
{
    CUdevice device;

    if (cuda.cuDeviceGet(&device, ordinal) != CUDA_SUCCESS ||
        cuda.cuDeviceGetName(text, (int)size, device) != CUDA_SUCCESS) {
        snprintf(text, size, "device %d", ordinal);
    }
}

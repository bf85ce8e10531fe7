/* The devices of this process. See devices.h. */
#include "devices.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "driver/driver.h"
#include "error.h"

int cudriver_device_handle(CoreState *state, int ordinal, CUdevice *handle)
{
    if (cudriver_require(state) < 0) {
        return -1;
    }
    return cudriver_check(state, cuda.cuDeviceGet(handle, ordinal), "cuDeviceGet", "%d", ordinal);
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
    int count = 0;

    if (cudriver_require(state) < 0 ||
        cudriver_check(state, cuda.cuDeviceGetCount(&count), "cuDeviceGetCount", "%s", "") < 0) {
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

/* Checks that there is such a device: the ordinal, or -1. `object` is for the message. */
static int find_by_ordinal(CoreState *state, long ordinal, PyObject *object)
{
    int count = cudriver_device_count(state);

    if (count == 0) {
        cudriver_raise(state, CUDA_ERROR_NO_DEVICE, "cuDeviceGet", "%ld", ordinal);
    } else if (count > 0 && (ordinal < 0 || ordinal >= count)) {
        PyErr_Format(PyExc_ValueError, "device %S does not exist: there %s %d, numbered from 0",
                     object, count == 1 ? "is" : "are", count);
    }
    return PyErr_Occurred() ? -1 : (int)ordinal;
}

/* The device of this thread's current context; without one, the first. */
static int find_current(CoreState *state)
{
    int first = find_by_ordinal(state, 0, Py_None);
    int count = first < 0 ? -1 : cudriver_device_count(state);
    CUdevice current, device;

    if (count < 0 || cuda.cuCtxGetDevice(&current) != CUDA_SUCCESS) {
        return count < 0 ? -1 : first;
    }
    for (int i = 0; i < count; i++) {
        if (cuda.cuDeviceGet(&device, i) == CUDA_SUCCESS && device == current) {
            return i;
        }
    }
    return first;
}

/* "cuda" is the current device, "cuda:1" the second: what PyTorch calls them. */
static int find_by_kind(CoreState *state, const char *text, PyObject *object)
{
    const char *digits = text + strlen("cuda:");
    char *end;
    long ordinal;

    if (strcmp(text, "cuda") == 0) {
        return find_current(state);
    }
    errno = 0;
    ordinal = strtol(digits, &end, 10);
    if (digits[0] < '0' || digits[0] > '9' || *end != '\0') {
        PyErr_Format(PyExc_ValueError, "'%s' names no device: expected cuda or cuda:ORDINAL", text);
        return -1;
    }
    return find_by_ordinal(state, errno == ERANGE ? -1 : ordinal, object);
}

static int find_by_text(CoreState *state, PyObject *object)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(object, &length);

    if (text == NULL) {
        return -1;
    }
    if (strlen(text) != (size_t)length) {
        PyErr_Format(PyExc_ValueError, "%R names no device", object);
        return -1;
    }
    if (strcmp(text, "cuda") == 0 || strncmp(text, "cuda:", strlen("cuda:")) == 0) {
        return find_by_kind(state, text, object);
    }
    if (strchr(text, ':') != NULL) {
        return find_by_bus(state, text);
    }
    if (strncasecmp(text, "GPU-", 4) == 0 ? strlen(text) >= 8 : strlen(text) == 36) {
        return find_by_uuid(state, text);
    }
    PyErr_Format(
        PyExc_ValueError,
        "'%s' names no device: expected an ordinal, cuda:ORDINAL, a uuid (GPU-xxxxxxxx-...) or a "
        "PCI bus id (0000:41:00.0)",
        text);
    return -1;
}

/* What a device object of another library calls itself: torch.device's `type` and `index`, or
 * cuda.core.Device's `device_id`. New reference: text or an ordinal. NULL without an exception if
 * it is no such object. */
static PyObject *foreign_name(PyObject *object)
{
    PyObject *type, *index = NULL, *name = NULL;

    if (PyObject_GetOptionalAttrString(object, "device_id", &name) != 0) {
        if (name != NULL && !PyLong_Check(name)) {
            Py_CLEAR(name);
        }
        return name;
    }
    if (PyObject_GetOptionalAttrString(object, "type", &type) <= 0) {
        return NULL;
    }
    if (PyUnicode_Check(type) && PyObject_GetOptionalAttrString(object, "index", &index) > 0) {
        if (PyUnicode_CompareWithASCIIString(type, "cuda") != 0) {
            PyErr_Format(PyExc_ValueError, "%R is no CUDA device", object);
        } else {
            name = index == Py_None ? Py_NewRef(type) : PyUnicode_FromFormat("cuda:%S", index);
        }
    }
    Py_XDECREF(index);
    Py_DECREF(type);
    return name;
}

static int find_by_object(CoreState *state, PyObject *object)
{
    PyObject *name = foreign_name(object);
    int found = -1;

    if (name != NULL) {
        found = cudriver_device_parse(state, name);
    } else if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError,
                     "a device is an ordinal, a Device, a uuid or a PCI bus id, \"cuda:0\", a "
                     "torch.device or a cuda.core.Device, not %.100s",
                     Py_TYPE(object)->tp_name);
    }
    Py_XDECREF(name);
    return found;
}

int cudriver_device_parse(CoreState *state, PyObject *object)
{
    PyObject *index;
    long ordinal;
    int overflow;

    if (object == NULL || object == Py_None) {
        return find_by_ordinal(state, 0, Py_None);
    }
    if (Py_IS_TYPE(object, state->device_type)) {
        return cudriver_require(state) < 0 ? -1 : ((DeviceObject *)object)->ordinal;
    }
    if (PyUnicode_Check(object)) {
        return cudriver_require(state) < 0 ? -1 : find_by_text(state, object);
    }
    index = PyBool_Check(object) || !PyIndex_Check(object) ? NULL : PyNumber_Index(object);
    if (index == NULL) {
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError)) {
            return -1;
        }
        PyErr_Clear(); /* an array's, which has an index only if it holds one item */
        return find_by_object(state, object);
    }
    ordinal = PyLong_AsLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    return find_by_ordinal(state, overflow != 0 ? -1 : ordinal, object);
}

void cudriver_device_describe(int ordinal, char *text, size_t size)
{
    CUdevice device;

    if (cuda.cuDeviceGet(&device, ordinal) != CUDA_SUCCESS ||
        cuda.cuDeviceGetName(text, (int)size, device) != CUDA_SUCCESS) {
        snprintf(text, size, "device %d", ordinal);
    }
}

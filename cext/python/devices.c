/* See devices.h. */
#include "devices.h"

#include "call.h"
#include "driver/driver.h"
#include "error.h"

int cudriver_device_handle(int ordinal, CUdevice *handle)
{
    if (cudriver_require() < 0) {
        return -1;
    }
    return cudriver_check(cuda.cuDeviceGet(handle, ordinal), "cuDeviceGet", "%d", ordinal);
}

PyObject *cudriver_device_new(int ordinal)
{
    return cudriver_call("devices", "device_at", "(i)", ordinal);
}

int cudriver_device_parse(PyObject *object)
{
    PyObject *found =
        cudriver_call("devices", "ordinal_of", "(O)", object != NULL ? object : Py_None);
    int ordinal = found != NULL ? (int)PyLong_AsLong(found) : -1;

    Py_XDECREF(found);
    return ordinal;
}

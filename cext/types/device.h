/* Device: one GPU that this process sees. The model for the other types. */
#ifndef CUDRIVER_DEVICE_H
#define CUDRIVER_DEVICE_H

#include "state.h"

typedef struct {
    PyObject_HEAD
    CUdevice handle;
    int ordinal;
} DeviceObject;

/* New reference: the device of an ordinal that is known to exist. Initialises the driver. */
PyObject *cudriver_device_new(CoreState *state, int ordinal);

/* Reads a device argument: None (0), an ordinal, a Device, a UUID or a PCI bus ID. Returns the
 * ordinal, or -1 with an exception set. Initialises the driver. */
int cudriver_device_parse(CoreState *state, PyObject *object);

/* The driver's handle for an ordinal. 0, or -1 with an exception set. Initialises the driver. */
int cudriver_device_handle(CoreState *state, int ordinal, CUdevice *handle);

/* Writes the device's name for messages, at most `size` bytes. Never fails. */
void cudriver_device_describe(int ordinal, char *text, size_t size);

/* Adds the type Device, the types of its attributes, and the functions about devices. 0 or -1. */
int cudriver_device_setup(PyObject *module);

#endif

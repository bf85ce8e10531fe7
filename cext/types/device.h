/* Device: one GPU of this process's list. The model for the other types. */
#ifndef CUDRIVER_DEVICE_H
#define CUDRIVER_DEVICE_H

#include "state.h"

typedef struct {
    PyObject_HEAD
    CUdevice handle;
    int ordinal;
} DeviceObject;

/* New reference: the device of that ordinal, which must be known to exist. Initialises the driver.
 */
PyObject *cudriver_device_new(CoreState *state, int ordinal);

/* Reads a device argument: None (0), an ordinal, a Device, a uuid or a PCI bus id. The ordinal, or
 * -1 with an exception set. Initialises the driver. */
int cudriver_device_parse(CoreState *state, PyObject *object);

/* The driver's handle for an ordinal. 0, or -1 with an exception set. Initialises the driver. */
int cudriver_device_handle(CoreState *state, int ordinal, CUdevice *handle);

/* The name of the device for messages; `size` bytes at most. Never fails. */
void cudriver_device_describe(int ordinal, char *text, size_t size);

/* The types Device and its attributes, and the module functions about devices. 0 or -1. */
int cudriver_device_setup(PyObject *module);

#endif

/* The devices of this process. The type Device is cudriver/memory/devices.py. */
#ifndef CUDRIVER_DEVICES_H
#define CUDRIVER_DEVICES_H

#include "state.h"

/* New reference: the Device of an ordinal that is known to exist. Initialises the driver. */
PyObject *cudriver_device_new(int ordinal);

/* Reads a device argument: None (0), an ordinal, a Device, a UUID, a PCI bus ID, "cuda" (the
 * current context's), "cuda:1", a torch.device or a cuda.core.Device. Returns the ordinal, or -1
 * with an exception set. Initialises the driver. */
int cudriver_device_parse(PyObject *object);

/* The driver's handle for an ordinal. 0, or -1 with an exception set. Initialises the driver. */
int cudriver_device_handle(int ordinal, CUdevice *handle);

#endif

/* Device: one GPU that this process sees. The model for the other types. */
#ifndef CUDRIVER_DEVICE_H
#define CUDRIVER_DEVICE_H

#include "python/devices.h"

/* New reference: the device of an ordinal that is known to exist. Initialises the driver. */
PyObject *cudriver_device_new(CoreState *state, int ordinal);

/* Adds the type Device and the functions about devices. 0 or -1. */
int cudriver_device_setup(PyObject *module);

#endif

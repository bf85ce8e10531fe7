/* Device: one GPU that this process sees. The model for the other types. */
#ifndef CUDRIVER_DEVICE_H
#define CUDRIVER_DEVICE_H

#include "python/devices.h"

/* Adds the type Device and the functions about devices. 0 or -1. */
int cudriver_device_setup(PyObject *module);

#endif

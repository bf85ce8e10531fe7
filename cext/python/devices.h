/* The devices of this process, and reading an argument that names one. */
#ifndef CUDRIVER_DEVICES_H
#define CUDRIVER_DEVICES_H

#include "state.h"

/* A Device, whose type is in contexts/device.c. */
typedef struct {
    PyObject_HEAD
    CUdevice handle;
    int ordinal;
} DeviceObject;

/* New reference: the device of an ordinal that is known to exist. Initialises the driver. */
PyObject *cudriver_device_new(CoreState *state, int ordinal);

/* The number of devices, or -1 with an exception set. Initialises the driver. */
int cudriver_device_count(CoreState *state);

/* Reads a device argument: None (0), an ordinal, a Device, a UUID, a PCI bus ID, "cuda" (the
 * current context's), "cuda:1", a torch.device or a cuda.core.Device. Returns the ordinal, or -1
 * with an exception set. Initialises the driver. */
int cudriver_device_parse(CoreState *state, PyObject *object);

/* The driver's handle for an ordinal. 0, or -1 with an exception set. Initialises the driver. */
int cudriver_device_handle(CoreState *state, int ordinal, CUdevice *handle);

/* The UUID as nvidia-smi prints it, without "GPU-". `text` has 37 bytes. */
CUresult cudriver_device_uuid(CUdevice device, char *text);

/* Writes the device's name for messages, at most `size` bytes. Never fails. */
void cudriver_device_describe(int ordinal, char *text, size_t size);

#endif

/* Page-locked memory behind NumPy arrays, and the module functions about it. */
#ifndef CUDRIVER_HOST_MEMORY_H
#define CUDRIVER_HOST_MEMORY_H

#include "context.h"

/* The owner of one block: the base of a page-locked array. */
typedef struct {
    PyObject_HEAD
    struct cudriver_live live;
    void *address;
    size_t bytes;
    ContextObject
        *context; /* owned: write-combined memory is the driver's and lives in it; else NULL */
} HostMemoryObject;

int cudriver_host_memory_setup(PyObject *module);
int cudriver_pin_setup(PyObject *module);

#endif

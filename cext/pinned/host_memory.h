/* Page-locked memory behind NumPy arrays, and the module's functions about it. */
#ifndef CUDRIVER_HOST_MEMORY_H
#define CUDRIVER_HOST_MEMORY_H

#include "types/context.h"

/* Owner of one block: the base of a page-locked array. */
typedef struct {
    PyObject_HEAD
    struct cudriver_live live;
    void *address;
    size_t bytes;
    ContextObject *context; /* owned: the context of write-combined memory; else NULL */
} HostMemoryObject;

int cudriver_host_memory_setup(PyObject *module);
int cudriver_pin_setup(PyObject *module);

#endif

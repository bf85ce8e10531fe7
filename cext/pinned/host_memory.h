/* Page-locked memory behind NumPy arrays, and the module's functions about it. */
#ifndef CUDRIVER_HOST_MEMORY_H
#define CUDRIVER_HOST_MEMORY_H

#include "contexts/context.h"

/* A block of the pool of page-locked memory: the base of an array. */
typedef struct {
    PyObject_HEAD
    struct cudriver_live live;
    void *address; /* owned */
    size_t bytes;
} HostMemoryObject;

/* The bytes that may be page-locked at once, from cudriver.memory.room. 0 or -1. */
int cudriver_host_room(size_t *room);

extern PyType_Spec cudriver_host_memory_spec;
extern PyType_Spec cudriver_page_lock_spec;
extern PyMethodDef cudriver_host_functions[];
extern PyMethodDef cudriver_pinned_numpy_functions[];

#endif

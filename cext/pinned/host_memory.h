/* Page-locked memory behind NumPy arrays, pins, and the module's functions about both. */
#ifndef CUDRIVER_HOST_MEMORY_H
#define CUDRIVER_HOST_MEMORY_H

#include "contexts/context.h"

/* Page-locked memory: a block of the pool, the base of an array; or memory of somebody else, which
 * memory/host.py keeps alive. */
typedef struct {
    PyObject_HEAD
    struct cudriver_live live;
    void *address;
    size_t bytes;
    bool block; /* owned: of the pool. The rest is of others' memory */
    bool writable;
    atomic_bool stop;         /* page-locking that is under way */
    int ordinal;              /* of the device in use when it was made; -1: none was */
    struct cudriver_pin *pin; /* owned; NULL if nothing is page-locked */
} HostMemoryObject;

/* The bytes that may be page-locked at once, from cudriver.memory.room. 0 or -1. */
int cudriver_host_room(size_t *room);

extern PyType_Spec cudriver_host_memory_spec;
extern PyMethodDef cudriver_host_functions[];
extern PyMethodDef cudriver_host_memory_functions[];
extern PyMethodDef cudriver_pinned_numpy_functions[];

#endif

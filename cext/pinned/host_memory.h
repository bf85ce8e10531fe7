/* Page-locked memory behind NumPy arrays, pins, and the module's functions about both. */
#ifndef CUDRIVER_HOST_MEMORY_H
#define CUDRIVER_HOST_MEMORY_H

#include "contexts/context.h"

/* Owner of one block: the base of a page-locked array. */
typedef struct {
    PyObject_HEAD
    struct cudriver_live live;
    void *address;
    size_t bytes;
} HostMemoryObject;

/* New reference: `bytes` of page-locked memory of a NUMA node, or CUDRIVER_NODE_POLICY. `function`:
 * the Python function that was called, for a message. *zeroed: it is all zero. */
HostMemoryObject *cudriver_host_memory_new(CoreState *state, const char *function, size_t bytes,
                                           int node, bool *zeroed);

/* The bytes that may be page-locked at once, from cudriver.memory.room. 0 or -1. */
int cudriver_host_room(size_t *room);

/* Host memory of another owner, whatever kind of object that is. */
struct cudriver_host_range {
    PyObject *owner;   /* owned: the ndarray, or the object that `view` is of */
    Py_buffer view;    /* acquired if view.obj is not NULL */
    char *low, *first; /* the lowest address, and that of the first item */
    size_t bytes;
    bool writable;
};

/* Finds the memory of an ndarray, a buffer, or what NumPy's interface or DLPack lends. `refusal`:
 * what is wanted, for the message. 0 or -1; release with cudriver_host_range_done, also if it
 * fails. In pin.c. */
int cudriver_host_range_find(CoreState *state, PyObject *object, const char *refusal,
                             struct cudriver_host_range *range);
void cudriver_host_range_done(struct cudriver_host_range *range);

extern PyType_Spec cudriver_host_memory_spec;
extern PyMethodDef cudriver_pinned_arrays_functions[];
extern PyMethodDef cudriver_host_functions[];
extern PyType_Spec cudriver_pin_spec;
extern PyMethodDef cudriver_pin_functions[];
extern PyMethodDef cudriver_pinned_numpy_functions[];

#endif

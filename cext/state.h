/* What cudriver._core keeps between calls above the Python line. One per module object. */
#ifndef CUDRIVER_STATE_H
#define CUDRIVER_STATE_H

#include "compat.h"

#include <stdbool.h>

#include "driver/cuda_abi.h"

struct ContextObject;
struct TransferObject;

/* An entry in the list of what is alive, embedded in the object it describes. See live.h. */
struct cudriver_live {
    struct cudriver_live *next, *prev; /* borrowed; NULL at an end. Not listed: kind is NULL */
    const char *kind;
    size_t bytes;
    unsigned long long address;
    int device;      /* -1: none */
    bool kept;       /* of a context: the package itself holds a reference */
    PyObject *where; /* owned: "file:line" when tracing is on, else NULL */
};

/* How many events of ended work a stream keeps for later work. An event from there takes 0.2 us of
 * a 4 KiB copy's 2.3, one that is created and destroyed 0.8. */
#define CUDRIVER_SPARE_MOST 128

/* The work in flight of a stream. See contexts/work.h. */
struct cudriver_queue {
    struct TransferObject *first, *last; /* owned references, in the order of their events */
    struct cudriver_queue *next, *prev;  /* while it is not empty: in state->works.queues */
    Py_ssize_t count;                    /* pieces of work */
    size_t added;                        /* weight of what was issued since the last pass */
    size_t remained;                     /* pieces after the last pass; only of loose work */
    size_t big[2];                       /* the sum of its work's, of the same name */
    CUevent spare[CUDRIVER_SPARE_MOST];  /* owned: events of ended work, for later work */
    int spares;
};

typedef struct {
    /* First the owned references, which module.c visits and clears: see CUDRIVER_STATE_OWNED. */
    PyTypeObject *context_type;
    PyTypeObject *stream_type;
    PyTypeObject *event_type;
    PyTypeObject *device_array_type;
    PyTypeObject *transfer_type;
    PyTypeObject *host_memory_type;
    PyTypeObject *page_lock_type;

    PyObject *dlpack_words; /* names of the protocol; see dlpack_lent.c */
    PyObject *dlpack_types; /* a dict, filled as they are met; see dlpack_tensor.c */
    PyObject *stream_scope; /* the context variable of `with stream:`; see memory/streams.py */

    bool stream_scope_used; /* whether it was ever set */

    struct ContextObject *contexts; /* borrowed: every live Context, newest first */
    unsigned long long serial;      /* the last number given to a context */
    CUcontext primary;              /* device 0's primary context, as it was last known */
    int resetting; /* 1 + the device whose primary context is reset without the GIL; or 0 */
    unsigned long long resets; /* how many there were */

    struct {                          /* python/live.c: all that is alive */
        struct cudriver_live *newest; /* borrowed: the head of the list */
        bool tracing;                 /* note where each was made */
        bool reporting;               /* write what is alive to stderr at exit */
    } live;

    struct {                           /* contexts/work.c: work in flight */
        struct cudriver_queue *queues; /* borrowed: those that are not empty */
        struct cudriver_queue loose;   /* work that is in no stream's queue */
        unsigned int passes;           /* over the work of one stream */
        size_t big;                    /* bytes: those of all queues, and of blocking calls */
    } works;

    unsigned long exit_thread; /* the one that ends the interpreter; 0: it goes on */
    bool exiting;              /* at interpreter exit: failed frees are silent */
} CoreState;

/* How many references the state begins with. */
#define CUDRIVER_STATE_OWNED (offsetof(CoreState, stream_scope_used) / sizeof(PyObject *))

extern struct PyModuleDef cudriver_core_module;

/* The module state of an object of one of our types. Borrowed, never NULL. */
static inline CoreState *cudriver_state_of(PyObject *self)
{
    return (CoreState *)PyType_GetModuleState(Py_TYPE(self));
}

/* The module state of a module function's `self`. */
static inline CoreState *cudriver_state_of_module(PyObject *module)
{
    return (CoreState *)PyModule_GetState(module);
}

/* Getters of what close() changes: a bool or a pointer of the object. `offset`: where it is. */
static inline PyObject *cudriver_get_bool(PyObject *object, void *offset)
{
    CUDRIVER_LOCK();
    return PyBool_FromLong(*(bool *)((char *)object + (size_t)offset));
}

static inline PyObject *cudriver_get_pointer(PyObject *object, void *offset)
{
    CUDRIVER_LOCK();
    return PyLong_FromVoidPtr(*(void **)((char *)object + (size_t)offset));
}

#endif

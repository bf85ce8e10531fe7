/* Context: a manual context, a device's primary one, or one that another library made current. */
#ifndef CUDRIVER_CONTEXT_H
#define CUDRIVER_CONTEXT_H

#include "python/live.h"
#include "state.h"

enum cudriver_context_kind {
    CUDRIVER_CONTEXT_MANUAL,  /* ours: cuCtxCreate, destroyed with the object */
    CUDRIVER_CONTEXT_PRIMARY, /* retained once for this object */
    CUDRIVER_CONTEXT_FOREIGN, /* somebody else's: never destroyed here */
};

enum cudriver_context_state {
    CUDRIVER_CONTEXT_OPEN,
    CUDRIVER_CONTEXT_CLOSED,
    CUDRIVER_CONTEXT_RESET, /* the primary was reset: everything in it is gone */
};

typedef struct ContextObject {
    PyObject_HEAD
    struct cudriver_live live;
    struct ContextObject *next; /* borrowed: state->contexts */
    CUcontext handle;
    unsigned long long id;     /* the driver's (cuCtxGetId), or 0 where it has none */
    unsigned long long number; /* ours, for messages: never given twice */
    int ordinal;
    CUdevice device;
    enum cudriver_context_kind kind;
    enum cudriver_context_state state;
    Py_ssize_t pushes;       /* times it stands on threads' stacks, pushed through us */
    unsigned long pushed_by; /* the last thread that pushed it */
    Py_ssize_t children;     /* live arrays, streams and events in it */
    Py_ssize_t pinning;      /* of these, those that forbid a reset (write-combined memory) */
    Py_ssize_t in_use;       /* calls that are running in it, perhaps without the GIL */
    struct cudriver_keeper
        *keeper;                  /* owned: keeps a foreign handle safe; NULL: none, or no thread */
    CUstream alloc_stream;        /* owned: orders allocations only; NULL until first used */
    unsigned long long allocated; /* allocations so far on that stream */
    unsigned long long settled;   /* how many of these are known to be over */
    PyObject *weak;
} ContextObject;

/* The context for memory and stream calls: this thread's current one; where there is none, device
 * 0's primary context is made current, as the runtime API does. New reference. Initialises. */
ContextObject *cudriver_context_for_use(CoreState *state);

/* The context for a device argument: the current one where it is NULL or the device is the current
 * context's; else that device's primary context, which is kept from then on until it is closed or
 * reset, as the one above is. New reference. */
ContextObject *cudriver_context_for_device(CoreState *state, PyObject *device);

/* The context behind a handle of another library's that is alive; it need not be current, and is
 * adopted where it was not known. New reference. The driver is initialised. */
ContextObject *cudriver_context_of_handle(CoreState *state, CUcontext handle);

/* The device's primary context; `flags` (may be NULL) are set first. New reference. Initialises. */
ContextObject *cudriver_context_primary(CoreState *state, int ordinal, const unsigned long *flags);

/* Lets go of what the two above keep, and of the foreign context that is kept. */
void cudriver_context_unkeep_all(CoreState *state);

int cudriver_context_reset_primary(CoreState *state, int ordinal);

/* Reads a flags argument. 0 or -1. */
int cudriver_context_parse_flags(PyObject *object, unsigned long *flags);

/*
 * Brackets driver calls in `context`, both with the GIL held: makes it current where it is not.
 * Between them the GIL may be released. begin: 0, or -1 with InvalidContextError where the context
 * is closed, reset or destroyed, ForkedProcessError in a child. end never fails.
 */
int cudriver_context_begin(CoreState *state, ContextObject *context, bool *pushed);
void cudriver_context_end(ContextObject *context, bool pushed);

/*
 * The same for work on memory of `context` that is issued in `where`, which may be another context
 * of the device: that one is current, and both are in use. pushed[2].
 */
int cudriver_context_begin_both(CoreState *state, ContextObject *context, ContextObject *where,
                                bool *pushed);
void cudriver_context_end_both(ContextObject *context, ContextObject *where, const bool *pushed);

/* The same without an exception, for frees, queries and waits, which the driver takes whatever is
 * current: false only where the context and all in it are gone, or nothing may be called (a forked
 * child). */
bool cudriver_context_begin_free(ContextObject *context, bool *pushed);

/* The stream on which the context's memory is allocated where no other is named; made at first use,
 * within begin and end. NULL with an exception set. */
CUstream cudriver_context_alloc_stream(CoreState *state, ContextObject *context);

/* Whether the context may still be used; else raises InvalidContextError. 0 or -1. */
int cudriver_context_check(CoreState *state, ContextObject *context);

int cudriver_context_setup(PyObject *module);
int cudriver_limits_setup(PyObject *module);

/* New reference: the mapping of a context's limits. */
PyObject *cudriver_limits_new(CoreState *state, ContextObject *context);

#endif

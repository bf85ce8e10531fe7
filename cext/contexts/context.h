/* Context: a manual context, a primary context, or another library's (foreign) context. */
#ifndef CUDRIVER_CONTEXT_H
#define CUDRIVER_CONTEXT_H

#include "python/live.h"
#include "python/users.h"

enum cudriver_context_kind {
    CUDRIVER_CONTEXT_MANUAL,  /* ours: cuCtxCreate, destroyed with the object */
    CUDRIVER_CONTEXT_PRIMARY, /* retained once by this object */
    CUDRIVER_CONTEXT_FOREIGN, /* another library's: never destroyed here */
};

enum cudriver_context_state {
    CUDRIVER_CONTEXT_OPEN,
    CUDRIVER_CONTEXT_CLOSED,
    CUDRIVER_CONTEXT_RESET, /* a primary one that others reset: everything in it is gone */
};

typedef struct ContextObject {
    PyObject_HEAD
    struct cudriver_live live;
    struct ContextObject *next; /* borrowed: next in state->contexts */
    CUcontext handle;
    unsigned long long id;     /* cuCtxGetId's; 0 if the driver lacks it */
    unsigned long long number; /* our number, for messages: never reused */
    int ordinal;
    CUdevice device;
    enum cudriver_context_kind kind;
    enum cudriver_context_state state;
    unsigned pushes; /* of ours, ever; memory/stack.py has those that still count */
    struct cudriver_users users;
    size_t big[2]; /* bytes that blocking calls move, as in work.h */
    struct {
        CUmemoryPool pool; /* of the device, which it outlives; NULL: none, or not asked */
        bool asked;
        CUstream stream;            /* owned: orders allocations only; NULL until first used */
        unsigned long long number;  /* allocations so far on that stream */
        unsigned long long settled; /* how many of these are known to be complete */
    } allocs;
    struct cudriver_queue works; /* in flight on its default stream */
    atomic_bool ended;           /* other code has ended it, as a call has found */
    PyObject *weak;
} ContextObject;

/* The context for memory and stream calls: this thread's current one, else device 0's primary
 * context, which is made current as the runtime API does. Initialises the driver. New reference. */
ContextObject *cudriver_context_for_use(CoreState *state);

/* The context for a device argument: a Context itself; the current one if `device` is NULL, None or
 * the current device. Otherwise that device's primary context, which the package keeps until it is
 * closed or reset (as it does in cudriver_context_for_use). New reference. */
ContextObject *cudriver_context_for_device(CoreState *state, PyObject *device);
ContextObject *cudriver_context_for_ordinal(CoreState *state, int ordinal);

/* The context of a live handle from another library. It need not be current, and is adopted if it
 * is not known yet. The driver is initialised. New reference. */
ContextObject *cudriver_context_of_handle(CoreState *state, CUcontext handle);

/* The device's primary context. Initialises. New reference. */
ContextObject *cudriver_context_primary(CoreState *state, int ordinal);

/* Drops the references that the package itself holds: with `all`, each; else to foreign contexts
 * that are destroyed. */
void cudriver_contexts_unkeep(CoreState *state, bool all);

/* Gives back free memory of the engine and the pool, which is registered in primary contexts; the
 * pool keeps so many bytes. *released: the pool's. The driver is initialised. */
CUresult cudriver_memory_return(CoreState *state, size_t keep, size_t *released);

/* The calling thread ends the interpreter: calls of other threads are held from now on, and this
 * waits a moment for those that run. The driver may crash in a thread when the process ends. */
void cudriver_context_stop_others(CoreState *state);

/* Brackets driver calls in `context`: makes it current if it is not, and lets the calls be made
 * during a capture (cudriver_driver_relax). Call both with the GIL held; it may be released between
 * them, and by begin, which holds calls of other threads once the interpreter ends. begin: 0, or -1
 * with an exception: InvalidContextError (closed, reset, being reset, or destroyed),
 * ForkedProcessError, the driver's, or a signal handler's. end never fails. */
int cudriver_context_begin(CoreState *state, ContextObject *context, bool *pushed);
void cudriver_context_end(ContextObject *context, bool pushed);

/* The same around a call in the context for use; `begin` returns it as a new reference (NULL: an
 * exception is set), `end` drops it. */
ContextObject *cudriver_context_begin_use(CoreState *state, bool *pushed);
void cudriver_context_end_use(ContextObject *context, bool pushed);

/* `begin` in steps and without cudriver_driver_relax, which costs more than it is worth around a
 * small copy. The second step needs no GIL: it makes the context current if it is not, and *pushed
 * says whether it must be popped. `claim` raises; `refused` raises what `make_current` has
 * returned, and returns -1. After `claim`, `leave`. `ready` is `claim` for a call that has a piece
 * of work in flight while it runs, and so need not be counted: after it, if it was pushed,
 * cudriver_driver_pop. */
int cudriver_context_ready(CoreState *state, ContextObject *context);
static inline int cudriver_context_claim(CoreState *state, ContextObject *context)
{
    int failed = cudriver_context_ready(state, context);

    context->users.calls += failed == 0;
    return failed;
}
CUresult cudriver_context_make_current(ContextObject *context, bool *pushed);
int cudriver_context_refused(ContextObject *context, CUresult result);
void cudriver_context_leave(ContextObject *context, bool pushed);

/* Whether a foreign context was destroyed by its owner, as far as its id tells. The driver answers
 * cuCtxGetId for such a handle, and may crash when given it in another call. */
bool cudriver_context_is_stale(ContextObject *self);

/* begin without an exception, for frees, queries and waits, which work in any current context; then
 * `end`. False only if the context and everything in it are gone, or in a forked child. */
bool cudriver_context_begin_free(ContextObject *context, bool *pushed);

/* 0 if the context may be used; else -1 with InvalidContextError. */
int cudriver_context_check(ContextObject *context);

extern PyType_Spec cudriver_context_spec;
extern PyMethodDef cudriver_context_functions[];
extern PyMethodDef cudriver_context_stack_functions[];
extern PyMethodDef cudriver_query_functions[];
extern PyType_Spec cudriver_transfer_spec;

#endif

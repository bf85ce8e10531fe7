/* A thread's stack of contexts: push, pop, and looking at the driver's own. */
#include "context_private.h"
#include "driver/driver.h"
#include "driver/keeper.h"
#include "python/error.h"
#include "thread.h"
#include "docstrings.h"

/* What a walk has popped. `keepers`: for contexts that have no ContextObject. */
struct walk {
    CUcontext *stack; /* the topmost first */
    struct cudriver_keeper **keepers;
    Py_ssize_t count, room;
};

/* Makes room for one more entry. 0 or -1. */
static int walk_grow(struct walk *walk)
{
    size_t room = walk->room == 0 ? 16 : (size_t)walk->room * 2;
    struct cudriver_keeper **keepers;
    CUcontext *stack;

    if (walk->count < walk->room) {
        return 0;
    }
    stack = PyMem_Realloc(walk->stack, room * sizeof *stack);
    walk->stack = stack != NULL ? stack : walk->stack;
    keepers = PyMem_Realloc(walk->keepers, room * sizeof(struct cudriver_keeper *));
    walk->keepers = keepers != NULL ? keepers : walk->keepers;
    if (stack == NULL || keepers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    walk->room = (Py_ssize_t)room;
    return 0;
}

/* Pops the topmost context and makes sure that it can be pushed again, whatever its owner does in
 * between. Its Context, if any, goes into `list`. 1, 0 at the bottom of the stack, or -1. */
static int walk_step(CoreState *state, struct walk *walk, PyObject *list)
{
    struct cudriver_keeper *keeper = NULL;
    ContextObject *context = NULL;
    CUcontext current = NULL, popped;
    CUresult result = cudriver_context_find_current(state, &context);

    if (context == NULL && !PyErr_Occurred() && cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS) {
        if (current == NULL && result == CUDA_SUCCESS) {
            return 0;
        }
        if (current != NULL) {
            Py_BEGIN_ALLOW_THREADS
            keeper = cudriver_keeper_start(current);
            Py_END_ALLOW_THREADS
        }
    }
    if (context == NULL && current != NULL && !PyErr_Occurred()) { /* a context that was reset */
        context = cudriver_thread_pushed(state, current);
        Py_XINCREF(context);
    }
    if (context != NULL) {
        PyList_Insert(list, 0, (PyObject *)context);
        Py_DECREF(context);
    }
    if (!PyErr_Occurred() && walk_grow(walk) == 0) {
        result = cuda.cuCtxPopCurrent_v2(&popped);
        if (result == CUDA_SUCCESS) {
            walk->keepers[walk->count] = keeper;
            walk->stack[walk->count++] = popped;
            return 1;
        }
        cudriver_raise(state, result, "cuCtxPopCurrent_v2", "looking at this thread's stack");
    }
    cudriver_keeper_end(keeper);
    return -1;
}

int cudriver_context_walk_stack(CoreState *state, PyObject *list)
{
    PyObject *seen = list != NULL ? Py_NewRef(list) : PyList_New(0); /* keeps the contexts alive */
    struct walk walk = {.stack = NULL};
    int step = seen != NULL ? 1 : -1;

    while (step > 0) {
        step = walk_step(state, &walk, seen);
    }
    for (Py_ssize_t i = walk.count - 1; i >= 0; i--) {
        cuda.cuCtxPushCurrent_v2(walk.stack[i]);
        cudriver_keeper_end(walk.keepers[i]);
    }
    if (step == 0) {
        cudriver_thread_reconcile(state, walk.stack, walk.count);
    }
    PyMem_Free(walk.stack);
    PyMem_Free(walk.keepers);
    Py_XDECREF(seen);
    return step;
}

/* New reference: this thread's current context for a message, or None. */
static PyObject *current_or_none(CoreState *state)
{
    ContextObject *current = NULL;

    cudriver_context_find_current(state, &current);
    if (current == NULL) {
        PyErr_Clear();
        return Py_NewRef(Py_None);
    }
    return (PyObject *)current;
}

static int context_push(CoreState *state, ContextObject *self)
{
    CUresult result;

    if (cudriver_require(state) < 0 || cudriver_context_check(state, self) < 0 ||
        cudriver_thread_push(state, self) < 0) {
        return -1;
    }
    result = cuda.cuCtxPushCurrent_v2(self->handle);
    if (result != CUDA_SUCCESS) {
        cudriver_thread_pop(state, self->handle);
        cudriver_raise(state, result, "cuCtxPushCurrent_v2", "context %llu of device %d",
                       self->number, self->ordinal);
        return -1;
    }
    return 0;
}

/* Raises: names the context that is current instead of `self`. Returns -1. */
static int refuse_pop(CoreState *state, ContextObject *self)
{
    CUcontext current = NULL;
    ContextObject *pushed;
    PyObject *other;

    cuda.cuCtxGetCurrent(&current);
    pushed = current != NULL ? cudriver_thread_pushed(state, current) : NULL;
    other = current_or_none(state);
    if (other == Py_None && pushed != NULL) { /* reset, but still current and may be popped */
        Py_SETREF(other, Py_NewRef((PyObject *)pushed));
    }
    if (current == NULL) {
        cudriver_context_walk_stack(state, NULL); /* drop what has gone from the record */
        PyErr_Clear();
        cudriver_raise_plain(state, "InvalidContextError",
                             "cannot pop %R: nothing is current in this thread, so there is "
                             "nothing left to pop",
                             self);
    } else if (other == Py_None) {
        cudriver_raise_plain(state, "InvalidContextError",
                             "cannot pop %R: it was not pushed here, and current in this thread is "
                             "a context that another library has destroyed",
                             self);
    } else {
        cudriver_raise_plain(state, "InvalidContextError",
                             "cannot pop %R: current in this thread is %R%s", self, other,
                             cudriver_thread_pushed(state, self->handle) != NULL
                                 ? "; pop that first"
                                 : ", and the first was not pushed here");
    }
    Py_DECREF(other);
    return -1;
}

/* Pops destroyed contexts of other libraries that are above ours: nobody else can pop them. */
static CUresult pop_destroyed(CoreState *state, CUcontext *current)
{
    CUresult result = CUDA_SUCCESS;

    while (result == CUDA_SUCCESS && *current != NULL &&
           cudriver_thread_pushed(state, *current) == NULL) {
        ContextObject *alive = NULL;
        CUresult found = cudriver_context_find_current(state, &alive);
        Py_XDECREF(alive);
        PyErr_Clear();
        if (found != CUDA_ERROR_CONTEXT_IS_DESTROYED && found != CUDA_ERROR_INVALID_CONTEXT) {
            break;
        }
        result = cuda.cuCtxPopCurrent_v2(current);
        if (result == CUDA_SUCCESS) {
            result = cuda.cuCtxGetCurrent(current);
        }
    }
    return result;
}

static int context_pop(CoreState *state, ContextObject *self)
{
    const char *function = "cuCtxGetCurrent";
    CUcontext current = NULL;
    ContextObject *pushed;
    CUresult result;
    bool replaced;

    if (cudriver_require(state) < 0) {
        return -1;
    }
    result = cuda.cuCtxGetCurrent(&current);
    if (result == CUDA_SUCCESS && current != self->handle &&
        cudriver_thread_pushed(state, self->handle) != NULL) {
        result = pop_destroyed(state, &current);
    }
    /* The driver may have reused the handle of a context that was reset. */
    pushed = cudriver_thread_pushed(state, self->handle);
    replaced = self->state != CUDRIVER_CONTEXT_OPEN && pushed != NULL &&
               pushed->state == CUDRIVER_CONTEXT_OPEN;
    if (result == CUDA_SUCCESS && (current != self->handle || replaced)) {
        return refuse_pop(state, self);
    }
    if (result == CUDA_SUCCESS) {
        function = "cuCtxPopCurrent_v2";
        result = cuda.cuCtxPopCurrent_v2(&current);
    }
    if (result != CUDA_SUCCESS) {
        cudriver_raise(state, result, function, "context %llu of device %d", self->number,
                       self->ordinal);
        return -1;
    }
    cudriver_thread_pop(state, self->handle);
    return 0;
}

PyObject *cudriver_context_push(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    if (context_push(cudriver_state_of(object), (ContextObject *)object) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *cudriver_context_pop(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    if (context_pop(cudriver_state_of(object), (ContextObject *)object) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *cudriver_context_enter(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    return context_push(cudriver_state_of(object), (ContextObject *)object) < 0 ? NULL
                                                                                : Py_NewRef(object);
}

PyObject *cudriver_context_exit(PyObject *object, PyObject *const *Py_UNUSED(args),
                                Py_ssize_t Py_UNUSED(count))
{
    return cudriver_context_pop(object, NULL);
}

/* Whether the driver is initialised; if not, no context can be current. 1, 0 or -1. */
static int driver_in_use(CoreState *state)
{
    CUcontext current;

    if (cudriver_require_loaded(state) < 0) {
        return -1;
    }
    if (cuda.cuCtxGetCurrent(&current) == CUDA_ERROR_NOT_INITIALIZED &&
        !cudriver_driver_is_forked()) {
        return 0;
    }
    return cudriver_require(state) < 0 ? -1 : 1;
}

static PyObject *module_current_context(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    CoreState *state = cudriver_state_of_module(module);
    ContextObject *current = NULL;
    int in_use = driver_in_use(state);
    CUresult result;

    if (in_use <= 0) {
        return in_use < 0 ? NULL : Py_NewRef(Py_None);
    }
    result = cudriver_context_find_current(state, &current);
    if (current != NULL || PyErr_Occurred()) {
        return (PyObject *)current;
    }
    if (result != CUDA_SUCCESS) {
        return cudriver_raise(state, result, "cuCtxGetCurrent",
                              "this thread's current context was destroyed");
    }
    Py_RETURN_NONE;
}

static PyObject *module_context_stack(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    CoreState *state = cudriver_state_of_module(module);
    int in_use = driver_in_use(state);
    PyObject *list = in_use < 0 ? NULL : PyList_New(0);

    if (list != NULL && in_use > 0 && cudriver_context_walk_stack(state, list) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

static PyMethodDef functions[] = {
    {"current_context", module_current_context, METH_NOARGS, DOC_current_context},
    {"context_stack", module_context_stack, METH_NOARGS, DOC_context_stack},
    {NULL},
};

int cudriver_context_stack_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

/* A thread's stack of contexts: push, pop, and looking at the driver's own. */
#include "context_private.h"
#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"
#include "docstrings.h"

/* New reference: a weak reference to an object that ends with this thread's Python state. */
static PyObject *thread_weakly(void)
{
    PyObject *dict = PyThreadState_GetDict(), *token, *weak = NULL;

    token = dict != NULL ? Py_XNewRef(PyDict_GetItemString(dict, "cudriver")) : PyErr_NoMemory();
    if (token == NULL && dict != NULL) {
        token = PySet_New(NULL);
        if (token != NULL && PyDict_SetItemString(dict, "cudriver", token) < 0) {
            Py_CLEAR(token);
        }
    }
    if (token != NULL) {
        weak = PyWeakref_NewRef(token, NULL);
        Py_DECREF(token);
    }
    return weak;
}

/* Notes that this thread pushed the context, which lives on until that is undone. Takes `alive`
 * over, unless it fails. 0 or -1. */
static int push_note(ContextObject *self, PyObject *alive)
{
    int room = self->pushes.room == 0 ? 4 : self->pushes.room * 2;
    struct cudriver_push *grown;

    if (self->pushes.count == self->pushes.room) {
        grown = PyMem_Realloc(self->pushes.list, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->pushes.list = grown;
        self->pushes.room = room;
    }
    self->pushes.list[self->pushes.count].alive = alive;
    self->pushes.list[self->pushes.count].state = PyThreadState_GetID(PyThreadState_Get());
    self->pushes.list[self->pushes.count++].thread = PyThread_get_thread_ident();
    Py_INCREF(self);
    return 0;
}

/* Undoes a note; it may hold the last reference. */
static void push_forget(ContextObject *self, int index)
{
    PyObject *alive = self->pushes.list[index].alive;

    self->pushes.count--;
    for (int i = index; i < self->pushes.count; i++) {
        self->pushes.list[i] = self->pushes.list[i + 1];
    }
    Py_DECREF(alive);
    Py_DECREF(self);
}

/* Forgets one push of this thread of a context that is not on its stack any more: another library
 * popped it. Whether there was one. */
static bool push_forget_gone(CoreState *state, PyObject *stack)
{
    uint64_t here = PyThreadState_GetID(PyThreadState_Get());

    for (ContextObject *context = state->contexts; context != NULL; context = context->next) {
        Py_ssize_t gone = 0;
        for (int i = 0; i < context->pushes.count; i++) {
            gone += context->pushes.list[i].state == here;
        }
        for (Py_ssize_t i = 0; gone > 0 && i < PyList_GET_SIZE(stack); i++) {
            gone -= PyList_GET_ITEM(stack, i) == (PyObject *)context;
        }
        if (gone > 0) {
            push_forget(context, cudriver_context_push_find(context));
            return true;
        }
    }
    return false;
}

/* A list of the contexts on this thread's stack, bottom first, down to one that was destroyed. The
 * driver shows only the topmost, so all are popped, and pushed again. */
static PyObject *stack_list(CoreState *state)
{
    PyObject *list = PyList_New(0);
    ContextObject *context = NULL;
    Py_ssize_t popped = 0;
    CUcontext handle;
    CUresult result = CUDA_SUCCESS;

    while (list != NULL && !PyErr_Occurred()) {
        result = cudriver_context_find_current(state, &context);
        if (context == NULL) {
            break;
        }
        if (PyList_Append(list, (PyObject *)context) == 0 &&
            cudriver_check(cuda.cuCtxPopCurrent_v2(&handle), "cuCtxPopCurrent_v2",
                           "looking at this thread's stack") == 0) {
            popped++;
        }
        Py_DECREF(context);
    }
    for (Py_ssize_t i = popped; i > 0; i--) {
        cuda.cuCtxPushCurrent_v2(((ContextObject *)PyList_GET_ITEM(list, i - 1))->handle);
    }
    if (list != NULL && !PyErr_Occurred() && result != CUDA_ERROR_CONTEXT_IS_DESTROYED) {
        cudriver_check(result, "cuCtxGetCurrent", "looking at this thread's stack");
    }
    if (list != NULL && (PyErr_Occurred() || PyList_Reverse(list) < 0)) {
        Py_CLEAR(list);
    }
    while (list != NULL && result == CUDA_SUCCESS && push_forget_gone(state, list)) {
    }
    return list;
}

bool cudriver_context_is_pushed(CoreState *state, ContextObject *self)
{
    PyObject *list = self->pushes.count > 0 ? stack_list(state) : NULL;

    PyErr_Clear();
    for (int i = self->pushes.count - 1; i >= 0; i--) {
        if (i < self->pushes.count && PyWeakref_IsDead(self->pushes.list[i].alive)) {
            push_forget(self, i);
        }
    }
    Py_XDECREF(list);
    return self->pushes.count > 0;
}

static int context_push(ContextObject *self)
{
    PyObject *alive = cudriver_require() < 0 ? NULL : thread_weakly();
    CUresult result;

    if (alive == NULL || cudriver_context_check(self) < 0 || push_note(self, alive) < 0) {
        Py_XDECREF(alive);
        return -1;
    }
    result = cudriver_context_is_stale(self) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                             : cuda.cuCtxPushCurrent_v2(self->handle);
    if (result != CUDA_SUCCESS) {
        push_forget(self, self->pushes.count - 1);
        return cudriver_context_refused(self, result);
    }
    return 0;
}

/* Pops destroyed contexts of other libraries that are above ours: nobody else can pop them. */
static CUresult pop_destroyed(ContextObject *self, CUcontext *current)
{
    CUresult result = CUDA_SUCCESS, found;

    while (result == CUDA_SUCCESS && *current != NULL && *current != self->handle) {
        found = cudriver_context_current_check();
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

static int context_pop(ContextObject *self)
{
    const char *function = "cuCtxGetCurrent";
    int pushed = cudriver_context_push_find(self);
    CUcontext current = NULL;
    CUresult result;

    if (cudriver_require() < 0) {
        return -1;
    }
    result = cuda.cuCtxGetCurrent(&current);
    if (result == CUDA_SUCCESS && pushed >= 0) {
        result = pop_destroyed(self, &current);
    }
    /* The driver may have given the handle of a context that is gone to a new one. */
    if (result == CUDA_SUCCESS &&
        (current != self->handle || (pushed < 0 && self->state != CUDRIVER_CONTEXT_OPEN))) {
        Py_XDECREF(cudriver_call("contexts", "refuse_pop", "(OO)", self,
                                 pushed >= 0 ? Py_True : Py_False));
        return -1;
    }
    if (result == CUDA_SUCCESS) {
        function = "cuCtxPopCurrent_v2";
        result = cuda.cuCtxPopCurrent_v2(&current);
    }
    if (result != CUDA_SUCCESS) {
        cudriver_raise(result, function, "context %llu of device %d", self->number, self->ordinal);
        return -1;
    }
    if (pushed >= 0) {
        push_forget(self, pushed);
    }
    return 0;
}

PyObject *cudriver_context_push(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    if (context_push((ContextObject *)object) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *cudriver_context_pop(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    if (context_pop((ContextObject *)object) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *cudriver_context_method_enter(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    return context_push((ContextObject *)object) < 0 ? NULL : Py_NewRef(object);
}

PyObject *cudriver_context_method_exit(PyObject *object, PyObject *const *Py_UNUSED(args),
                                       Py_ssize_t Py_UNUSED(count))
{
    return cudriver_context_pop(object, NULL);
}

/* Whether the driver is initialised; if not, no context can be current. 1, 0 or -1. */
static int driver_in_use(void)
{
    CUcontext current;

    if (cudriver_require_loaded() < 0) {
        return -1;
    }
    if (cuda.cuCtxGetCurrent(&current) == CUDA_ERROR_NOT_INITIALIZED &&
        !cudriver_driver_is_forked()) {
        return 0;
    }
    return cudriver_require() < 0 ? -1 : 1;
}

static PyObject *module_current_context(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    ContextObject *current = NULL;
    int in_use = driver_in_use();
    CUresult result;

    if (in_use <= 0) {
        return in_use < 0 ? NULL : Py_NewRef(Py_None);
    }
    result = cudriver_context_find_current(state, &current);
    if (current != NULL || PyErr_Occurred()) {
        return (PyObject *)current;
    }
    if (result != CUDA_SUCCESS) {
        return cudriver_raise(result, "cuCtxGetCurrent",
                              "this thread's current context was destroyed");
    }
    Py_RETURN_NONE;
}

static PyObject *module_context_stack(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    int in_use = driver_in_use();

    return in_use < 0 ? NULL : in_use == 0 ? PyList_New(0) : stack_list(state);
}

PyMethodDef cudriver_context_stack_functions[] = {
    {"current_context", module_current_context, METH_NOARGS, DOC_current_context},
    {"context_stack", module_context_stack, METH_NOARGS, DOC_context_stack},
    {NULL},
};

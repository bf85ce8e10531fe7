/* A thread's stack of contexts: push, pop, and looking at the driver's own. */
#include "context_private.h"
#include "python/call.h"
#include "python/error.h"
#include "docstrings.h"

/* Takes the last push of a context off the list, if there is one. */
static void push_forget(PyObject *pushed, const ContextObject *self)
{
    for (Py_ssize_t i = PyList_GET_SIZE(pushed) - 1; i >= 0; i--) {
        if (PyList_GET_ITEM(pushed, i) == (const PyObject *)self) {
            PyList_SetSlice(pushed, i, i + 1, NULL);
            return;
        }
    }
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
    if (PyErr_Occurred() ||
        (result != CUDA_ERROR_CONTEXT_IS_DESTROYED &&
         cudriver_check(result, "cuCtxGetCurrent", "looking at this thread's stack") < 0) ||
        PyList_Reverse(list) < 0 ||
        (result == CUDA_SUCCESS &&
         cudriver_do(CALL_stack_correct, cudriver_context_pushed_here(state), list) < 0)) {
        Py_CLEAR(list);
    }
    return list;
}

PyObject *cudriver_context_holder(CoreState *state, ContextObject *self)
{
    PyObject *pushed = cudriver_context_pushed_here(state), *holder = NULL;
    unsigned before;

    if (pushed == NULL) {
        return NULL;
    }
    if (PySequence_Contains(pushed, (PyObject *)self) > 0) {
        Py_XDECREF(stack_list(state));
        PyErr_Clear();
    }
    do { /* again if another thread has pushed it meanwhile */
        before = self->pushes;
        Py_XSETREF(holder, cudriver_call(CALL_stack_holder, self));
    } while (holder != NULL && self->pushes != before);
    Py_DECREF(pushed);
    return holder;
}

PyObject *cudriver_context_push(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    ContextObject *self = (ContextObject *)object;
    PyObject *pushed =
        cudriver_require() < 0 ? NULL : cudriver_context_pushed_here(cudriver_state_of(object));
    CUresult result;

    if (pushed == NULL || cudriver_context_check(self) < 0 || PyList_Append(pushed, object) < 0) {
        Py_XDECREF(pushed);
        return NULL;
    }
    self->pushes++;
    result = cudriver_context_is_stale(self) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                             : cuda.cuCtxPushCurrent_v2(self->handle);
    if (result != CUDA_SUCCESS) {
        push_forget(pushed, self);
        cudriver_context_refused(self, result);
    }
    Py_DECREF(pushed);
    return result == CUDA_SUCCESS ? Py_NewRef(Py_None) : NULL;
}

/* As pop(). `pushed`: what this thread has pushed. 0 or -1. */
static int context_pop(ContextObject *self, PyObject *pushed)
{
    const char *function = "cuCtxGetCurrent";
    bool ours = PySequence_Contains(pushed, (PyObject *)self) > 0;
    CUcontext current = NULL;
    CUresult result = cuda.cuCtxGetCurrent(&current);

    /* The driver may have given the handle of a context that is gone to a new one. */
    if (result == CUDA_SUCCESS &&
        (current != self->handle || (!ours && self->state != CUDRIVER_CONTEXT_OPEN))) {
        return cudriver_do(CALL_contexts_refuse_pop, self, ours ? Py_True : Py_False);
    }
    if (result == CUDA_SUCCESS) {
        function = "cuCtxPopCurrent_v2";
        result = cuda.cuCtxPopCurrent_v2(&current);
    }
    if (result == CUDA_SUCCESS) {
        push_forget(pushed, self);
    }
    return cudriver_check(result, function, "context %llu of device %d", self->number,
                          self->ordinal);
}

PyObject *cudriver_context_pop(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    PyObject *pushed =
        cudriver_require() < 0 ? NULL : cudriver_context_pushed_here(cudriver_state_of(object));
    int failed = pushed != NULL ? context_pop((ContextObject *)object, pushed) : -1;

    Py_XDECREF(pushed);
    return cudriver_none(failed);
}

PyObject *cudriver_context_method_enter(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    PyObject *done = cudriver_context_push(object, NULL);

    Py_XDECREF(done);
    return done != NULL ? Py_NewRef(object) : NULL;
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
        return cudriver_none(in_use);
    }
    result = cudriver_context_find_current(state, &current);
    if (current != NULL || PyErr_Occurred()) {
        return (PyObject *)current;
    }
    if (result != CUDA_SUCCESS) {
        return CUDRIVER_RAISE(result, "cuCtxGetCurrent",
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

/* Streams of other libraries. See stream.h. */
#include "stream.h"

#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"

/* Reads a handle, a number from 0 to 2^64 - 1. False if it is none, perhaps with an exception. */
static bool number_read(PyObject *number, void **handle)
{
    *handle = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(number);
    return *handle != (void *)-1 || !PyErr_Occurred();
}

int cudriver_foreign_stream(PyObject *object, CUstream *handle)
{
    PyObject *value = NULL;
    int found = PyObject_GetOptionalAttrString(object, "cuda_stream", &value); /* of PyTorch */

    if (found < 0 ||
        (found > 0 && PyLong_CheckExact(value) && number_read(value, (void **)handle))) {
        Py_XDECREF(value);
        return found;
    }
    PyErr_Clear(); /* a number that is none: Python says so */
    Py_XSETREF(value, cudriver_call("foreign", "handle", "(Os)", object, "stream"));
    if (value == NULL) {
        return -1;
    }
    found = value != Py_None;
    if (found && !number_read(value, (void **)handle)) {
        found = -1;
    }
    Py_DECREF(value);
    return found;
}

/* For a green context's stream, the device's primary context: making a green context current takes
 * it from the thread that has it current. */
ContextObject *cudriver_foreign_stream_context(CoreState *state, CUstream handle)
{
    bool newer;
    CUcontext context = NULL;
    CUgreenCtx green;
    CUresult result;

    if (cudriver_require() < 0) {
        return NULL;
    }
    newer = cuda.cuStreamGetCtx_v2 != NULL;
    result = newer ? cuda.cuStreamGetCtx_v2(handle, &context, &green)
                   : cuda.cuStreamGetCtx(handle, &context);
    if (result != CUDA_SUCCESS) {
        return (ContextObject *)cudriver_raise(
            result, newer ? "cuStreamGetCtx_v2" : "cuStreamGetCtx", "stream %p", (void *)handle);
    }
    return cudriver_context_of_handle(state, context);
}

PyObject *cudriver_stream_from_handle(PyObject *type, PyObject *argument)
{
    CUDRIVER_LOCK();
    PyTypeObject *stream_type = (PyTypeObject *)type;
    CoreState *state = (CoreState *)PyType_GetModuleState(stream_type);
    ContextObject *context;
    StreamObject *self;
    PyObject *number;
    CUstream handle;
    CUresult result;
    bool pushed, named;

    if (Py_IS_TYPE(argument, stream_type)) {
        return Py_NewRef(argument);
    }
    number = cudriver_call("foreign", "stream_argument", "(O)", argument);
    if (number == NULL) {
        return NULL;
    }
    handle = (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    named = !cudriver_stream_is_default(handle);
    context =
        named ? cudriver_foreign_stream_context(state, handle) : cudriver_context_for_use(state);
    if (context == NULL) {
        return NULL;
    }
    self = (StreamObject *)stream_type->tp_alloc(stream_type, 0);
    if (self == NULL) {
        Py_DECREF(context);
        return NULL;
    }
    self->context = context; /* takes the reference */
    self->handle = handle;
    self->owner = Py_NewRef(PyLong_Check(argument) ? Py_None : argument);
    if (named && cudriver_context_begin(state, context, &pushed) == 0) {
        result = cuda.cuStreamGetPriority(handle, &self->priority);
        cudriver_context_end(context, pushed);
        cudriver_check(result, "cuStreamGetPriority", "stream %p", (void *)handle);
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

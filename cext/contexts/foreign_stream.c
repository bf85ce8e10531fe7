/* Streams and events of other libraries. See foreign_stream.h. */
#include "foreign_stream.h"

#include <string.h>

#include "driver/driver.h"
#include "python/error.h"
#include "stream.h"

/* Whether an object's class, or one that it derives from, has a name that ends so. An attribute
 * called `handle` or `ptr` says nothing by itself: memory has one, too. */
static bool is_called(PyObject *object, const char *ending)
{
    PyObject *classes = Py_TYPE(object)->tp_mro; /* borrowed */

    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); i++) {
        const char *name = ((PyTypeObject *)PyTuple_GET_ITEM(classes, i))->tp_name;
        size_t length = strlen(name), wanted = strlen(ending);
        if (length >= wanted && strcmp(name + length - wanted, ending) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether int() takes an object that is no ordinary number, such as cuda.bindings' CUstream. */
static bool is_handle(PyObject *object)
{
    const PyNumberMethods *number = Py_TYPE(object)->tp_as_number;

    return number != NULL && number->nb_int != NULL && number->nb_float == NULL;
}

/* New reference: a handle as an int. Also reads an object with int(), and a ctypes pointer, whose
 * value is None for 0. NULL with an exception set. */
static PyObject *handle_number(PyObject *value)
{
    PyObject *number = NULL;

    if (PyIndex_Check(value) && !PyBool_Check(value)) {
        return PyNumber_Index(value);
    }
    if (is_handle(value)) {
        return PyNumber_Long(value);
    }
    if (PyObject_GetOptionalAttrString(value, "value", &number) > 0 && number == Py_None) {
        Py_SETREF(number, PyLong_FromLong(0));
    }
    if (number != NULL && !PyLong_Check(number)) {
        Py_CLEAR(number);
    }
    if (number == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "no number");
    }
    return number;
}

/* Reads the handle that `object` has as its stream or event (`what`). 0, or -1. */
static int handle_read(PyObject *object, const char *what, PyObject *value, void **handle)
{
    PyObject *number = handle_number(value);
    unsigned long long read = 0;

    if (number != NULL) {
        read = PyLong_AsUnsignedLongLong(number);
        Py_DECREF(number);
    }
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError) ||
            PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(PyExc_TypeError, "%.100s says that its %s is %R, which is no handle",
                         Py_TYPE(object)->tp_name, what, value);
        }
        return -1;
    }
    *handle = (void *)(uintptr_t)read;
    return 0;
}

/* New reference: the attribute `ptr` (CuPy) or `handle` (cuda-core, Numba, PyCUDA). 1, 0 or -1. */
static int handle_attribute(PyObject *object, PyObject **value)
{
    int found = PyObject_GetOptionalAttrString(object, "ptr", value);

    return found != 0 ? found : PyObject_GetOptionalAttrString(object, "handle", value);
}

/* New reference: the handle that __cuda_stream__() gives. 1, 0 or -1. */
static int protocol_handle(PyObject *object, PyObject **value)
{
    PyObject *method, *pair;
    int found = PyObject_GetOptionalAttrString(object, "__cuda_stream__", &method);

    if (found <= 0) {
        return found;
    }
    pair = PyObject_CallNoArgs(method);
    Py_DECREF(method);
    if (pair == NULL) {
        return -1;
    }
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        PyErr_Format(PyExc_TypeError, "%.100s.__cuda_stream__() must give (version, handle)",
                     Py_TYPE(object)->tp_name);
        Py_DECREF(pair);
        return -1;
    }
    *value = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
    Py_DECREF(pair);
    return 1;
}

int cudriver_foreign_stream(PyObject *object, CUstream *handle)
{
    PyObject *value = NULL;
    void *read = NULL;
    int found = PyObject_GetOptionalAttrString(object, "cuda_stream", &value);

    if (found == 0) {
        found = protocol_handle(object, &value);
    }
    if (found == 0 && is_called(object, "Stream")) {
        found = handle_attribute(object, &value);
    }
    if (found > 0 && handle_read(object, "stream", value, &read) < 0) {
        found = -1;
    }
    Py_XDECREF(value);
    *handle = (CUstream)read;
    return found;
}

int cudriver_foreign_event(PyObject *object, CUevent *handle)
{
    PyObject *value = NULL;
    void *read = NULL;
    int found = PyObject_GetOptionalAttrString(object, "cuda_event", &value);
    bool lazy = found > 0; /* PyTorch creates an event when it is first recorded */

    if (found == 0 && is_called(object, "Event")) {
        found = handle_attribute(object, &value);
    }
    if (found > 0 && handle_read(object, "event", value, &read) < 0) {
        found = -1;
    }
    Py_XDECREF(value);
    if (found > 0 && read == NULL && !lazy) {
        PyErr_Format(PyExc_ValueError, "%.100s says that its event is 0: is it closed?",
                     Py_TYPE(object)->tp_name);
        found = -1;
    }
    *handle = (CUevent)read;
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

    if (cudriver_require(state) < 0) {
        return NULL;
    }
    newer = cuda.cuStreamGetCtx_v2 != NULL;
    result = newer ? cuda.cuStreamGetCtx_v2(handle, &context, &green)
                   : cuda.cuStreamGetCtx(handle, &context);
    if (result != CUDA_SUCCESS) {
        return (ContextObject *)cudriver_raise(state, result,
                                               newer ? "cuStreamGetCtx_v2" : "cuStreamGetCtx",
                                               "stream %p", (void *)handle);
    }
    return cudriver_context_of_handle(state, context);
}

/* Reads from_handle()'s argument. 0 or -1. */
static int argument_read(PyObject *argument, CUstream *handle)
{
    bool plain = PyIndex_Check(argument) && !PyBool_Check(argument);
    int found = plain ? 0 : cudriver_foreign_stream(argument, handle);
    PyObject *number;
    void *read;

    if (found != 0) {
        return found < 0 ? -1 : 0;
    }
    if (!plain && !(is_handle(argument) &&
                    (is_called(argument, "CUstream") || is_called(argument, "cudaStream_t")))) {
        PyErr_Format(PyExc_TypeError,
                     "a stream's handle is an int, or an object that is a stream, not %.100s",
                     Py_TYPE(argument)->tp_name);
        return -1;
    }
    number = handle_number(argument);
    if (number == NULL) {
        return -1;
    }
    read = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(number);
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Format(PyExc_ValueError, "%R is no stream's handle", number);
    }
    Py_DECREF(number);
    *handle = (CUstream)read;
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *cudriver_stream_from_handle(PyObject *type, PyObject *argument)
{
    PyTypeObject *stream_type = (PyTypeObject *)type;
    CoreState *state = (CoreState *)PyType_GetModuleState(stream_type);
    ContextObject *context;
    StreamObject *self;
    CUstream handle = NULL;
    CUresult result;
    bool pushed, named;

    if (Py_IS_TYPE(argument, stream_type)) {
        return Py_NewRef(argument);
    }
    if (argument_read(argument, &handle) < 0) {
        return NULL;
    }
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
        cudriver_context_finish(state, context, pushed, result, "cuStreamGetPriority", "stream %p",
                                (void *)handle);
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* CUresult -> exception. See error.h. */
#include "error.h"

#include <stdio.h>
#include <unistd.h>

#include "call.h"

/* What the driver says of a code; "" if nothing. */
static const char *error_text(CUresult (*say)(CUresult, const char **), CUresult code)
{
    const char *text = NULL;

    return say != NULL && say(code, &text) == CUDA_SUCCESS && text != NULL ? text : "";
}

const char *cudriver_error_name(CUresult code)
{
    return error_text(cuda.cuGetErrorName, code);
}

/* Raises what a code means. */
static void raise_va(CUresult code, const char *function, const char *format, va_list args)
{
    char arguments[768] = "";
    PyObject *exception;

    vsnprintf(arguments, sizeof arguments, format, args);
    exception = cudriver_call(CALL_failures_raised, (int)code, function, arguments,
                              cudriver_error_name(code), error_text(cuda.cuGetErrorString, code),
                              cudriver_driver_is_forked() ? Py_True : Py_False);
    if (exception != NULL && exception != Py_None) { /* None: destructors have said it */
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    }
    Py_XDECREF(exception);
}

int cudriver_check(CUresult code, const char *function, const char *format, ...)
{
    va_list args;

    if (code == CUDA_SUCCESS) {
        return 0;
    }
    va_start(args, format);
    raise_va(code, function, format, args);
    va_end(args);
    return -1;
}

PyObject *cudriver_raise(CUresult code, const char *function, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    raise_va(code, function, format, args);
    va_end(args);
    return NULL;
}

PyObject *cudriver_raise_plain(const char *class_name, const char *format, ...)
{
    PyObject *errors = PyImport_ImportModule("cudriver.errors");
    PyObject *class = errors != NULL ? PyObject_GetAttrString(errors, class_name) : NULL;
    va_list args;

    Py_XDECREF(errors);
    if (class != NULL) {
        va_start(args, format);
        PyErr_FormatV(class, format, args);
        va_end(args);
        Py_DECREF(class);
    }
    return NULL;
}

void cudriver_report(CoreState *state, CUresult code, const char *function)
{
    PyObject *type, *value, *traceback;

    if (code == CUDA_SUCCESS || state->exiting || code == CUDA_ERROR_DEINITIALIZED ||
        cudriver_driver_is_forked() || Py_IsFinalizing()) {
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    cudriver_raise(code, function, "in a destructor");
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(NULL);
    }
    PyErr_Restore(type, value, traceback);
}

int cudriver_require_loaded(void)
{
    CUDRIVER_LOCK();
    PyObject *path;
    char *name = NULL;
    bool loaded;

    if (cudriver_driver.loaded) {
        return 0;
    }
    path = cudriver_call(CALL_driver_library);
    if (path == NULL || (path != Py_None && PyBytes_AsStringAndSize(path, &name, NULL) < 0)) {
        Py_XDECREF(path);
        return -1;
    }
    loaded = cudriver_driver_load(name);
    Py_DECREF(path);
    if (!loaded) {
        Py_XDECREF(cudriver_call(CALL_driver_refuse, cudriver_driver.path, cudriver_driver.message,
                                 (int)cudriver_driver.asked, cudriver_driver.version));
    }
    return loaded ? 0 : -1;
}

int cudriver_require_slowly(void)
{
    CUDRIVER_LOCK();
    CUresult result;
    PyObject *none;

    if (cudriver_driver_is_forked()) {
        cudriver_raise_plain(
            "ForkedProcessError",
            "CUDA was initialised before this process was forked (pid %ld): the "
            "driver cannot be used here. Start the process with the 'spawn' method, "
            "or fork before the first CUDA call",
            (long)getpid());
        return -1;
    }
    if (cudriver_require_loaded() < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cudriver_driver_init();
    Py_END_ALLOW_THREADS
    if (cudriver_check(result, "cuInit", "0") < 0) {
        return -1;
    }
    none = cudriver_call(CALL_numa_prepare); /* hostmem/ is told which node is near */
    Py_XDECREF(none);
    return none != NULL ? 0 : -1;
}

/* CUresult -> exception. See error.h. */
#include "error.h"

#include <stdio.h>
#include <unistd.h>

#include "call.h"
#include "driver/driver.h"

const char *cudriver_error_name(CUresult code)
{
    const char *text = NULL;

    return cuda.cuGetErrorName != NULL && cuda.cuGetErrorName(code, &text) == CUDA_SUCCESS && text
               ? text
               : "";
}

/* The driver's description, or "". */
static const char *error_meaning(CUresult code)
{
    const char *text = NULL;

    return cuda.cuGetErrorString != NULL && cuda.cuGetErrorString(code, &text) == CUDA_SUCCESS &&
                   text
               ? text
               : "";
}

int cudriver_check_va(CUresult code, const char *function, const char *format, va_list args)
{
    char arguments[768] = "";
    PyObject *exception;

    if (code == CUDA_SUCCESS) {
        return 0;
    }
    vsnprintf(arguments, sizeof arguments, format, args);
    exception = cudriver_call("failures", "failure", "(issssO)", (int)code, function, arguments,
                              cudriver_error_name(code), error_meaning(code),
                              cudriver_driver_is_forked() ? Py_True : Py_False);
    if (exception != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
    return -1;
}

int cudriver_check(CUresult code, const char *function, const char *format, ...)
{
    va_list args;
    int failed;

    if (code == CUDA_SUCCESS) {
        return 0;
    }
    va_start(args, format);
    failed = cudriver_check_va(code, function, format, args);
    va_end(args);
    return failed;
}

PyObject *cudriver_raise(CUresult code, const char *function, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    cudriver_check_va(code, function, format, args);
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

void cudriver_report(CoreState *state, CUresult code, const char *function, PyObject *owner)
{
    PyObject *type, *value, *traceback;

    if (code == CUDA_SUCCESS || state->exiting || code == CUDA_ERROR_DEINITIALIZED ||
        cudriver_driver_is_forked() || Py_IsFinalizing()) {
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    cudriver_raise(code, function, "in a destructor");
    PyErr_WriteUnraisable(owner);
    PyErr_Restore(type, value, traceback);
}

int cudriver_require_loaded(void)
{
    CUDRIVER_LOCK();
    enum cudriver_load result;
    PyObject *path;
    char *name = NULL;
    bool chosen;

    if (cudriver_driver.loaded) {
        return 0;
    }
    path = cudriver_call("driver", "library", "()");
    chosen = path != Py_None;
    if (path == NULL || (chosen && PyBytes_AsStringAndSize(path, &name, NULL) < 0)) {
        Py_XDECREF(path);
        return -1;
    }
    result = cudriver_driver_load(name);
    Py_DECREF(path);
    if (result == CUDRIVER_LOADED) {
        return 0;
    }
    if (result == CUDRIVER_NOT_FOUND) {
        cudriver_raise_plain(
            "DriverNotFoundError", "no CUDA driver library: %s. %s", cudriver_driver.message,
            chosen ? "Correct the path, or set CUDRIVER_LIBRARY=sim for the simulated driver"
                   : "Install the NVIDIA driver, or set CUDRIVER_LIBRARY=sim for "
                     "the simulated one");
    } else {
        cudriver_raise_plain("UnsupportedDriverError", "%s", cudriver_driver.message);
    }
    return -1;
}

int cudriver_require_slowly(void)
{
    CUDRIVER_LOCK();
    CUresult result;

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
    return cudriver_check(result, "cuInit", "0");
}

/* CUresult -> exception, and waits that end in one. See error.h. */
#include "error.h"

#include <stdio.h>

#include "call.h"
#include "engine/engine.h"

/* What the driver says of a code; "" if nothing. */
static const char *error_text(CUresult (*say)(CUresult, const char **), CUresult code)
{
    const char *text = NULL;

    return say != NULL && say(code, &text) == CUDA_SUCCESS && text != NULL ? text : "";
}

int cudriver_check(CUresult code, const char *function, const char *format, ...)
{
    char arguments[768] = "";
    PyObject *exception;
    va_list args;

    if (code == CUDA_SUCCESS) {
        return 0;
    }
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    exception = cudriver_call(
        CALL_failures_raised, (int)code, function, arguments, error_text(cuda.cuGetErrorName, code),
        error_text(cuda.cuGetErrorString, code), cudriver_driver_is_forked() ? Py_True : Py_False);
    if (exception != NULL && exception != Py_None) { /* None: destructors have said it */
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    }
    Py_XDECREF(exception);
    return -1;
}

void cudriver_report(CoreState *state, CUresult code, const char *function)
{
    PyObject *type, *value, *traceback;

    if (code == CUDA_SUCCESS || state->exiting || code == CUDA_ERROR_DEINITIALIZED ||
        cudriver_driver_is_forked() || Py_IsFinalizing()) {
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    cudriver_check(code, function, "in a destructor");
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
    return loaded ? 0
                  : cudriver_do(CALL_driver_refuse, cudriver_driver.path, cudriver_driver.message,
                                (int)cudriver_driver.asked, cudriver_driver.version);
}

int cudriver_require_slowly(void)
{
    CUDRIVER_LOCK();
    CUresult result;

    if (cudriver_driver_is_forked()) {
        return cudriver_do(CALL_failures_forked);
    }
    if (cudriver_require_loaded() < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cudriver_driver_init();
    Py_END_ALLOW_THREADS
    /* hostmem/ is told which node is near. */
    return cudriver_check(result, "cuInit", "0") < 0 ? -1 : cudriver_do(CALL_numa_prepare);
}

/* ---- names of other libraries ---- */

PyObject *cudriver_getattro(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(object, name);

    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError) &&
        PyUnicode_READ_CHAR(name, 0) != '_') {
        PyErr_Clear();
        value = cudriver_call(CALL_names_missing, object, name);
    }
    return value;
}

PyObject *cudriver_keywords_refused(const char *kind, PyObject *keywords)
{
    if (keywords != NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        cudriver_do(CALL_names_keyword, kind, keywords);
    }
    return NULL;
}

/* ---- waiting ---- */

bool cudriver_signal_arrived(void *data)
{
    PyThreadState **saved = data;
    bool arrived;

    PyEval_RestoreThread(*saved);
    arrived = PyErr_CheckSignals() < 0;
    *saved = PyEval_SaveThread();
    return arrived;
}

int cudriver_wait(CUresult (*query)(void *handle), void *handle, const char *function)
{
    PyThreadState *saved = PyEval_SaveThread();
    CUresult result = cudriver_staging_poll(query, handle, cudriver_signal_arrived, &saved);

    PyEval_RestoreThread(saved);
    if (result == CUDA_SUCCESS) {
        return 0;
    }
    return result == CUDRIVER_STAGING_INTERRUPTED ? -1 : cudriver_check(result, function, "%s", "");
}

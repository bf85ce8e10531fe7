/* CUresult -> exception. See error.h. */
#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/cuda_errors.h"
#include "driver/driver.h"
#include "docstrings.h"

static const struct error {
    int code;
    const char *name;
    const char *meaning;
} errors[] = {
#define X(code, name, meaning) {code, #name, meaning},
    CUDRIVER_ERRORS(X)
#undef X
};

#define ERROR_COUNT (sizeof errors / sizeof errors[0])

/* The codes that a caller may want to catch, or can do something about. */
static const struct special {
    CUresult code;
    const char *class_name;
    const char *hint; /* or NULL */
} specials[] = {
    {CUDA_ERROR_OUT_OF_MEMORY, "OutOfMemoryError", NULL},
    {CUDA_ERROR_NOT_INITIALIZED, "NotInitializedError", NULL},
    {CUDA_ERROR_DEINITIALIZED, "NotInitializedError", NULL},
    {CUDA_ERROR_INVALID_CONTEXT, "InvalidContextError", NULL},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "InvalidContextError",
     "somebody else destroyed or reset the context; pop it where it is on this thread's stack "
     "(context_stack()), and where it was a device's primary one, Device.reset_primary_context() "
     "begins anew"},
    {CUDA_ERROR_STUB_LIBRARY, "UnsupportedDriverError",
     "take the toolkit's stubs folder off LD_LIBRARY_PATH; the driver's libcuda.so.1 comes with "
     "the NVIDIA driver"},
    {CUDA_ERROR_NO_DEVICE, "CudaError", "see `cudriver check` and CUDA_VISIBLE_DEVICES"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CudaError",
     "this range overlaps one that is page-locked already, perhaps by another library"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CudaError",
     "the loaded libcuda does not belong to the kernel's driver; see `cudriver check`"},
    {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "CudaError",
     "a cuda-compat libcuda is loaded, which this GPU does not support; see `cudriver check`"},
    {CUDA_ERROR_UNKNOWN, "CudaError",
     "after a suspend the nvidia_uvm module often needs to be loaded anew"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CudaError",
     "an earlier asynchronous operation failed; the context can only be destroyed now"},
};

static const struct error *error_find(CUresult code)
{
    for (size_t i = 0; i < ERROR_COUNT; i++) {
        if (errors[i].code == (int)code) {
            return &errors[i];
        }
    }
    return NULL;
}

const char *cudriver_error_name(CUresult code)
{
    const struct error *error = error_find(code);
    const char *text = NULL;

    if (error != NULL) {
        return error->name;
    }
    if (cuda.cuGetErrorName != NULL && cuda.cuGetErrorName(code, &text) == CUDA_SUCCESS && text) {
        return text;
    }
    return "CUDA_ERROR_UNKNOWN_CODE";
}

/* The driver's own description if it has one, else ours. */
static const char *error_meaning(CUresult code)
{
    const struct error *error = error_find(code);
    const char *text = NULL;

    if (code != CUDA_ERROR_STUB_LIBRARY && cuda.cuGetErrorString != NULL &&
        cuda.cuGetErrorString(code, &text) == CUDA_SUCCESS && text != NULL && text[0]) {
        return text;
    }
    return error != NULL ? error->meaning : "a code that this version of cudriver does not know";
}

static const struct special *special_find(CUresult code)
{
    static const struct special ordinary = {CUDA_SUCCESS, "CudaError", NULL};
    static const struct special forked = {
        CUDA_ERROR_NOT_INITIALIZED, "ForkedProcessError",
        "this process was forked from one in which CUDA was initialised; start it with the 'spawn' "
        "method instead"};

    if (code == CUDA_ERROR_NOT_INITIALIZED && cudriver_driver_is_forked()) {
        return &forked;
    }
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++) {
        if (specials[i].code == code) {
            return &specials[i];
        }
    }
    return &ordinary;
}

/* New reference: the class cudriver.errors.<name>. */
static PyObject *class_get(CoreState *state, const char *name)
{
    if (state->errors == NULL) {
        state->errors = PyImport_ImportModule("cudriver.errors");
        if (state->errors == NULL) {
            return NULL;
        }
    }
    return PyObject_GetAttrString(state->errors, name);
}

int cudriver_check_va(CoreState *state, CUresult code, const char *function, const char *format,
                      va_list args)
{
    const struct special *special;
    PyObject *class, *exception;
    char arguments[768] = "";
    char message[2048];

    if (code == CUDA_SUCCESS) {
        return 0;
    }
    special = special_find(code);
    vsnprintf(arguments, sizeof arguments, format, args);
    snprintf(message, sizeof message, "%s(%s): %s (%d): %s%s%s", function, arguments,
             cudriver_error_name(code), (int)code, error_meaning(code),
             special->hint ? ". Hint: " : "", special->hint ? special->hint : "");
    class = class_get(state, special->class_name);
    if (class != NULL) {
        exception = PyObject_CallFunction(class, "sisss", message, (int)code,
                                          cudriver_error_name(code), error_meaning(code), function);
        if (exception != NULL) {
            PyErr_SetObject(class, exception);
            Py_DECREF(exception);
        }
        Py_DECREF(class);
    }
    return -1;
}

int cudriver_check(CoreState *state, CUresult code, const char *function, const char *format, ...)
{
    va_list args;
    int failed;

    if (code == CUDA_SUCCESS) {
        return 0;
    }
    va_start(args, format);
    failed = cudriver_check_va(state, code, function, format, args);
    va_end(args);
    return failed;
}

PyObject *cudriver_raise(CoreState *state, CUresult code, const char *function, const char *format,
                         ...)
{
    va_list args;

    va_start(args, format);
    cudriver_check_va(state, code, function, format, args);
    va_end(args);
    return NULL;
}

PyObject *cudriver_raise_plain(CoreState *state, const char *class_name, const char *format, ...)
{
    PyObject *class = class_get(state, class_name);
    va_list args;

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
    cudriver_raise(state, code, function, "in a destructor");
    PyErr_WriteUnraisable(owner);
    PyErr_Restore(type, value, traceback);
}

/* New reference: the chosen library's path as bytes, or None for the system's own. */
static PyObject *choice_resolve(CoreState *state)
{
    PyObject *choice = state->choice, *path = NULL, *encoded = NULL;
    const char *environment = getenv("CUDRIVER_LIBRARY");

    if (choice == NULL && (environment == NULL || environment[0] == '\0')) {
        return Py_NewRef(Py_None);
    }
    choice = choice != NULL ? Py_NewRef(choice) : PyUnicode_DecodeFSDefault(environment);
    if (choice == NULL) {
        return NULL;
    }
    if (PyUnicode_Check(choice) && PyUnicode_CompareWithASCIIString(choice, "sim") == 0) {
        PyObject *errors = class_get(state, "simulated_driver_path");
        path = errors != NULL ? PyObject_CallNoArgs(errors) : NULL;
        Py_XDECREF(errors);
    } else {
        path = Py_NewRef(choice);
    }
    Py_DECREF(choice);
    if (path != NULL && !PyUnicode_FSConverter(path, &encoded)) {
        encoded = NULL;
    }
    Py_XDECREF(path);
    return encoded;
}

int cudriver_require_loaded(CoreState *state)
{
    enum cudriver_load result;
    PyObject *path;
    bool chosen;

    if (cudriver_driver.loaded) {
        return 0;
    }
    path = choice_resolve(state);
    if (path == NULL) {
        return -1;
    }
    chosen = path != Py_None;
    result = cudriver_driver_load(chosen ? PyBytes_AS_STRING(path) : NULL);
    Py_DECREF(path);
    if (result == CUDRIVER_LOADED) {
        return 0;
    }
    if (result == CUDRIVER_NOT_FOUND) {
        cudriver_raise_plain(
            state, "DriverNotFoundError", "no CUDA driver library: %s. %s", cudriver_driver.message,
            chosen ? "Correct the path, or set CUDRIVER_LIBRARY=sim for the simulated driver"
                   : "Install the NVIDIA driver, or set CUDRIVER_LIBRARY=sim for "
                     "the simulated one");
    } else {
        cudriver_raise_plain(state, "UnsupportedDriverError", "%s", cudriver_driver.message);
    }
    return -1;
}

int cudriver_require(CoreState *state)
{
    CUresult result;

    if (cudriver_driver_is_forked()) {
        cudriver_raise_plain(
            state, "ForkedProcessError",
            "CUDA was initialised before this process was forked (pid %ld): the "
            "driver cannot be used here. Start the process with the 'spawn' method, "
            "or fork before the first CUDA call",
            (long)getpid());
        return -1;
    }
    if (cudriver_driver_is_initialised()) {
        return 0;
    }
    if (cudriver_require_loaded(state) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cudriver_driver_init();
    Py_END_ALLOW_THREADS
    return cudriver_check(state, result, "cuInit", "0");
}

static PyObject *error_names(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    PyObject *names = PyDict_New();

    (void)module;
    for (size_t i = 0; names != NULL && i < ERROR_COUNT; i++) {
        PyObject *code = PyLong_FromLong(errors[i].code);
        PyObject *name = PyUnicode_FromString(errors[i].name);
        if (code == NULL || name == NULL || PyDict_SetItem(names, code, name) < 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(code);
        Py_XDECREF(name);
    }
    return names;
}

static PyMethodDef methods[] = {
    {"error_names", error_names, METH_NOARGS, DOC_error_names},
    {NULL},
};

int cudriver_error_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}

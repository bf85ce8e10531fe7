/* See call.h. */
#include "call.h"

#include <stdatomic.h>

static const struct {
    const char *module, *name, *format;
} functions[] = {
#define X(module, function, format) {"cudriver.memory." #module, #function, format},
    CUDRIVER_PYTHON_FUNCTIONS(X)
#undef X
};

/* New reference. Modules are kept as long as the process: to ask `import` again takes longer than
 * most calls. */
static PyObject *function_get(enum cudriver_function function)
{
    static _Atomic(PyObject *) modules[sizeof functions / sizeof functions[0]];
    PyObject *module = atomic_load(&modules[function]);

    if (module == NULL) {
        module = PyImport_ImportModule(functions[function].module);
        atomic_store(&modules[function], module);
    }
    return module != NULL ? PyObject_GetAttrString(module, functions[function].name) : NULL;
}

static PyObject *call_va(enum cudriver_function function, va_list values)
{
    PyObject *callable = function_get(function), *arguments, *result = NULL;

    if (callable != NULL) {
        arguments = Py_VaBuildValue(functions[function].format, values);
        result = arguments != NULL ? PyObject_CallObject(callable, arguments) : NULL;
        Py_XDECREF(arguments);
    }
    Py_XDECREF(callable);
    return result;
}

PyObject *cudriver_call(enum cudriver_function function, ...)
{
    PyObject *result;
    va_list values;

    va_start(values, function);
    result = call_va(function, values);
    va_end(values);
    return result;
}

int cudriver_do(enum cudriver_function function, ...)
{
    PyObject *result;
    va_list values;

    va_start(values, function);
    result = call_va(function, values);
    va_end(values);
    Py_XDECREF(result);
    return result != NULL ? 0 : -1;
}

PyObject *cudriver_call_method(enum cudriver_function function, PyObject *object,
                               PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    size_t given = (size_t)count + (keywords != NULL ? (size_t)PyTuple_GET_SIZE(keywords) : 0);
    PyObject *callable = function_get(function), *result = NULL;
    PyObject **all = PyMem_New(PyObject *, given + 1);

    if (callable != NULL && all != NULL) {
        all[0] = object;
        for (size_t i = 0; i < given; i++) {
            all[1 + i] = args[i];
        }
        result = PyObject_Vectorcall(callable, all, (size_t)count + 1, keywords);
    } else if (callable != NULL) {
        PyErr_NoMemory();
    }
    PyMem_Free(all);
    Py_XDECREF(callable);
    return result;
}

int cudriver_device_parse(PyObject *object)
{
    PyObject *found = cudriver_call(CALL_devices_ordinal_of, object != NULL ? object : Py_None);
    int ordinal = found != NULL ? (int)PyLong_AsLong(found) : -1;

    Py_XDECREF(found);
    return ordinal;
}

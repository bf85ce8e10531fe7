/* See call.h. */
#include "call.h"

PyObject *cudriver_call(const char *module, const char *function, const char *format, ...)
{
    PyObject *path = PyUnicode_FromFormat("cudriver.memory.%s", module);
    /* Without names to import, the package is returned; with some, they are looked for. */
    PyObject *package =
        path != NULL ? PyImport_ImportModuleLevelObject(path, NULL, NULL, NULL, 0) : NULL;
    PyObject *imported = package != NULL ? PyImport_GetModule(path) : NULL;
    PyObject *callable = imported != NULL ? PyObject_GetAttrString(imported, function) : NULL;
    PyObject *arguments, *result = NULL;
    va_list values;

    if (callable != NULL) {
        va_start(values, format);
        arguments = Py_VaBuildValue(format, values);
        va_end(values);
        result = arguments != NULL ? PyObject_CallObject(callable, arguments) : NULL;
        Py_XDECREF(arguments);
    }
    Py_XDECREF(path);
    Py_XDECREF(package);
    Py_XDECREF(imported);
    Py_XDECREF(callable);
    return result;
}

PyObject *cudriver_device_new(int ordinal)
{
    return cudriver_call("devices", "device_at", "(i)", ordinal);
}

int cudriver_device_parse(PyObject *object)
{
    PyObject *found =
        cudriver_call("devices", "ordinal_of", "(O)", object != NULL ? object : Py_None);
    int ordinal = found != NULL ? (int)PyLong_AsLong(found) : -1;

    Py_XDECREF(found);
    return ordinal;
}

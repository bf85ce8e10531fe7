/* See call.h. */
#include "call.h"

PyObject *cudriver_call(const char *module, const char *function, const char *format, ...)
{
    PyObject *path = PyUnicode_FromFormat("cudriver.memory.%s", module);
    /* With names to import from it, whichever they are, it is the module that is returned. */
    PyObject *imported =
        path != NULL ? PyImport_ImportModuleLevelObject(path, NULL, NULL, path, 0) : NULL;
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
    Py_XDECREF(imported);
    Py_XDECREF(callable);
    return result;
}

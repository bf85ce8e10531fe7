/* See types.h. */
#include "types.h"

int cudriver_type_add(PyObject *module, PyTypeObject **kept, PyType_Spec *spec)
{
    *kept = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *kept == NULL ? -1 : PyModule_AddType(module, *kept);
}

int cudriver_tuple_add(PyObject *module, PyTypeObject **kept, PyStructSequence_Desc *description)
{
    *kept = PyStructSequence_NewType(description);
    return *kept == NULL ? -1 : PyModule_AddType(module, *kept);
}

PyObject *cudriver_tuple_new(PyTypeObject *type, int count, ...)
{
    PyObject *tuple = PyStructSequence_New(type);
    va_list values;

    va_start(values, count);
    for (int i = 0; i < count; i++) {
        PyObject *value = va_arg(values, PyObject *);
        if (tuple != NULL && value != NULL) {
            PyStructSequence_SetItem(tuple, i, value);
        } else {
            Py_XDECREF(value);
            Py_CLEAR(tuple);
        }
    }
    va_end(values);
    return tuple;
}

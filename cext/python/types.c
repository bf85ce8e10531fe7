/* See types.h. */
#include "types.h"

int cudriver_type_add(PyObject *module, PyTypeObject **kept, PyType_Spec *spec)
{
    *kept = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *kept == NULL ? -1 : PyModule_AddType(module, *kept);
}

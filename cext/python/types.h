/* Adding types to the module. */
#ifndef CUDRIVER_TYPES_H
#define CUDRIVER_TYPES_H

#include "compat.h"

/* Creates a type, which `kept` in the module's state owns, and adds it to the module. 0 or -1. */
int cudriver_type_add(PyObject *module, PyTypeObject **kept, PyType_Spec *spec);

#endif

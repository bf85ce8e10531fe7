/* Adding types to the module, and making named tuples. */
#ifndef CUDRIVER_TYPES_H
#define CUDRIVER_TYPES_H

#include "compat.h"

/* Creates a type, which `kept` in the module's state owns, and adds it to the module. 0 or -1. */
int cudriver_type_add(PyObject *module, PyTypeObject **kept, PyType_Spec *spec);

/* The same for a type of named tuples. */
int cudriver_tuple_add(PyObject *module, PyTypeObject **kept, PyStructSequence_Desc *description);

/* New reference: a named tuple of a value for each field, all of which it takes. If one is NULL,
 * its exception is set, and so the answer is NULL. */
PyObject *cudriver_tuple_new(PyTypeObject *type, int count, ...);

#endif

/* Calling the part of the memory half that is written in Python. */
#ifndef CUDRIVER_CALL_H
#define CUDRIVER_CALL_H

#include "compat.h"
#include "functions.h"

/* Calls a function of cudriver.memory, whose module is imported at its first use, with the
 * arguments that its format says. New reference, or NULL with an exception set. */
PyObject *cudriver_call(enum cudriver_function function, ...);

/* The same of one whose result does not count: 0 or -1. Those that refuse always raise. */
int cudriver_do(enum cudriver_function function, ...);

/* New reference: the first fields of a named tuple, CLASS, by its list CLASS_FIELDS of X(field,
 * format as for Py_BuildValue, value). A test compares the list with the class. */
#define CUDRIVER_TUPLE(list) Py_BuildValue("(" list(CUDRIVER_FORMAT) ")" list(CUDRIVER_VALUE))
#define CUDRIVER_FORMAT(field, format, value) format
#define CUDRIVER_VALUE(field, format, value) , value

/* Defines a method that is written in Python: such a function, which takes the object first. For a
 * PyMethodDef of METH_FASTCALL | METH_KEYWORDS. */
#define CUDRIVER_IN_PYTHON(method, function)                                           \
    static PyObject *method(PyObject *object, PyObject *const *args, Py_ssize_t count, \
                            PyObject *keywords)                                        \
    {                                                                                  \
        return cudriver_call_method(function, object, args, count, keywords);          \
    }
PyObject *cudriver_call_method(enum cudriver_function function, PyObject *object,
                               PyObject *const *args, Py_ssize_t count, PyObject *keywords);

/* The function and flags of such a method's PyMethodDef. */
#define CUDRIVER_FAST(function) \
    (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

/* Reads a device argument: None (0), an ordinal, a Device, a UUID, a PCI bus ID, "cuda" (the
 * current context's), "cuda:1", a torch.device or a cuda.core.Device. Returns the ordinal, or -1
 * with an exception set. Initialises the driver. */
int cudriver_device_parse(PyObject *object);

#endif

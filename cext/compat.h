/* Every branch on the Python version. (numpy_bridge.c has those on NumPy's.) */
#ifndef CUDRIVER_COMPAT_H
#define CUDRIVER_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h> /* T_PYSSIZET and the like, which 3.12 renamed */

#if PY_VERSION_HEX < 0x030B0000
#error "cudriver needs CPython 3.11 or newer"
#endif

#if PY_VERSION_HEX < 0x030D0000
/* Public since 3.13. */
#define Py_IsFinalizing _Py_IsFinalizing

/* Since 3.13. An attribute that may be missing: 1 and a new reference; 0 and NULL; -1 and NULL with
 * an exception set. */
static inline int PyObject_GetOptionalAttrString(PyObject *object, const char *name,
                                                 PyObject **result)
{
    *result = PyObject_GetAttrString(object, name);
    if (*result != NULL) {
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

/* The same by a name that is an object; makes no exception for most types. */
#define PyObject_GetOptionalAttr _PyObject_LookupAttr
#endif

#if PY_VERSION_HEX >= 0x030C0000
/* Module slot that refuses subinterpreters. Before 3.12 the module refuses them itself. */
#define CUDRIVER_MAIN_INTERPRETER_ONLY \
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}
#else
#define CUDRIVER_MAIN_INTERPRETER_ONLY {0, NULL}
#endif

#endif

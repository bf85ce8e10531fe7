/* Arguments of METH_FASTCALL | METH_KEYWORDS functions that are called often, without a tuple, a
 * dict or a format string. */
#ifndef CUDRIVER_ARGUMENTS_H
#define CUDRIVER_ARGUMENTS_H

#include "compat.h"

struct cudriver_signature {
    const char *function;
    int positional;           /* how many may be given by position; all may be given by name */
    int required;             /* how many must be given: the first ones */
    const char *const *names; /* of all arguments, NULL at the end */
};

/* Puts a call's arguments into `values`, in the order of the names. Borrowed; NULL if not given. 0,
 * or -1 with TypeError. */
int cudriver_arguments(const struct cudriver_signature *signature, PyObject *const *args,
                       Py_ssize_t count, PyObject *keywords, PyObject **values);

/* The function and flags of such a function's PyMethodDef. */
#define CUDRIVER_FAST(function) \
    (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

#endif

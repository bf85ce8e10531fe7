/* Arguments of METH_FASTCALL | METH_KEYWORDS functions, for calls that are made often: no tuple, no
 * dict, no format string. */
#ifndef CUDRIVER_ARGUMENTS_H
#define CUDRIVER_ARGUMENTS_H

#include "compat.h"

#include <stdbool.h>

struct cudriver_signature {
    const char *function;
    int positional;           /* how many may be given by position; all may be given by name */
    int required;             /* how many must be given: the first ones */
    const char *const *names; /* of all, NULL at the end */
};

/* Puts the arguments of a call into `values` in the order of the names, borrowed, NULL where not
 * given. 0, or -1 with TypeError. */
int cudriver_arguments(const struct cudriver_signature *signature, PyObject *const *args,
                       Py_ssize_t count, PyObject *keywords, PyObject **values);

/* Such a function's entry in a table of methods: the function and its flags. */
#define CUDRIVER_FAST(function) \
    (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

/* Reads a flag: false where it is not given. 0, or -1 where its truth raises. */
int cudriver_argument_flag(PyObject *value, bool *flag);

#endif

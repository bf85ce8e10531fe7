/* Every branch on a Python version. (NumPy's are in numpy_bridge.c.) */
#ifndef CUDRIVER_COMPAT_H
#define CUDRIVER_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h> /* T_PYSSIZET: named otherwise from 3.12 on */

#if PY_VERSION_HEX < 0x030A0000
#error "cudriver needs CPython 3.10 or newer"
#endif

#if PY_VERSION_HEX < 0x030D0000
/* 3.13 has it public. */
#define Py_IsFinalizing _Py_IsFinalizing
#endif

#if PY_VERSION_HEX >= 0x030C0000
/* A module slot: not for subinterpreters. Before 3.12 only the module itself can refuse them. */
#define CUDRIVER_MAIN_INTERPRETER_ONLY \
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}
#else
#define CUDRIVER_MAIN_INTERPRETER_ONLY {0, NULL}
#endif

#endif

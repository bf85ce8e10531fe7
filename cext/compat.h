/* Every branch on a Python version. (NumPy's are in numpy_bridge.c, the only file that includes
 * it.) */
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

#endif

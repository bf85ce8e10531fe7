/* NumPy's C API: one table for the two files that use it. numpy_bridge.c imports it; pinned_numpy.c
 * is the other. */
#ifndef CUDRIVER_NUMPY_API_H
#define CUDRIVER_NUMPY_API_H

#define PY_ARRAY_UNIQUE_SYMBOL cudriver_numpy_table
#ifndef CUDRIVER_NUMPY_IS_IMPORTED_HERE
#define NO_IMPORT_ARRAY
#endif
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION /* the first with PyDataMem_SetHandler */
#include <numpy/arrayobject.h>

#endif

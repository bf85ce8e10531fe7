/* DLPack's data types and NumPy's dtypes. Those of ml_dtypes are looked up when they are met. */
#ifndef CUDRIVER_DLPACK_TYPES_H
#define CUDRIVER_DLPACK_TYPES_H

#include "state.h"

#include "dlpack_abi.h"

/* The data type of a dtype. *padded: its items have less than 8 bits, and take a byte each. 0, or
 * -1 with BufferError if DLPack has none. */
int cudriver_dlpack_type(CoreState *state, PyObject *dtype, struct cudriver_dl_type *type,
                         bool *padded);

/* New reference: the dtype of a data type, and its size in bytes. NULL with BufferError if NumPy
 * has none, or with ImportError if that needs ml_dtypes, which is not installed. */
PyObject *cudriver_dlpack_dtype(CoreState *state, struct cudriver_dl_type type, bool padded,
                                Py_ssize_t *itemsize);

#endif

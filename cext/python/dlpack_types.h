/* DLPack's data types as NumPy's, with those of ml_dtypes, such as bfloat16. */
#ifndef CUDRIVER_DLPACK_TYPES_H
#define CUDRIVER_DLPACK_TYPES_H

#include "state.h"

#include "dlpack_abi.h"

/* Finds the data type of a dtype. 0, or -1 with BufferError if there is none. */
int cudriver_dlpack_type(CoreState *state, PyObject *dtype, struct cudriver_dl_type *type);

/* New reference: the dtype of a data type. NULL with BufferError if there is none, or ImportError
 * if it needs an ml_dtypes that is not installed. `padded`: each item has bytes of its own. */
PyObject *cudriver_dlpack_dtype(CoreState *state, struct cudriver_dl_type type, bool padded);

#endif

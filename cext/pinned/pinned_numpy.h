/* `with pinned_numpy():`, in which NumPy allocates page-locked memory. */
#ifndef CUDRIVER_PINNED_NUMPY_H
#define CUDRIVER_PINNED_NUMPY_H

#include "state.h"

/* Adds the type to the module. 0 or -1. */
int cudriver_pinned_numpy_setup(PyObject *module);

#endif

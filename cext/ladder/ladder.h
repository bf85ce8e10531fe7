/* Measurements of `cudriver bench` that need more than the public API: private module functions. */
#ifndef CUDRIVER_LADDER_H
#define CUDRIVER_LADDER_H

#include "state.h"

int cudriver_ladder_setup(PyObject *module);

#endif

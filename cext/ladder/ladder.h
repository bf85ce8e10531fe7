/* The measurements of `cudriver bench` that nothing public makes. Private module functions. */
#ifndef CUDRIVER_LADDER_H
#define CUDRIVER_LADDER_H

#include "state.h"

int cudriver_ladder_setup(PyObject *module);

#endif

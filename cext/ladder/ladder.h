/* Measurements of `cudriver bench` that need more than the public API: private module functions. */
#ifndef CUDRIVER_LADDER_H
#define CUDRIVER_LADDER_H

#include "state.h"

extern PyMethodDef cudriver_ladder_functions[];

#endif

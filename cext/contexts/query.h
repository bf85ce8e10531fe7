/* What only Python asks of the driver. */
#ifndef CUDRIVER_QUERY_H
#define CUDRIVER_QUERY_H

#include "state.h"

/* Adds the module function _query. 0 or -1. */
int cudriver_query_setup(PyObject *module);

#endif

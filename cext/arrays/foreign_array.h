/* Other libraries' device arrays, read through __cuda_array_interface__. */
#ifndef CUDRIVER_FOREIGN_ARRAY_H
#define CUDRIVER_FOREIGN_ARRAY_H

#include "copy.h"

/* Fills an endpoint through the protocol. 1 done, 0 no such protocol, -1 an exception. */
int cudriver_foreign_endpoint(CoreState *state, PyObject *object, bool write,
                              struct cudriver_endpoint *end);

#endif

/* Other libraries' device arrays, read through __cuda_array_interface__. */
#ifndef CUDRIVER_FOREIGN_ARRAY_H
#define CUDRIVER_FOREIGN_ARRAY_H

#include "copy.h"

/* Fills an endpoint through the protocol, and waits for the stream that it names, unless `on` is
 * CUDRIVER_UNORDERED. 1 done; 0 no such protocol, or it names no stream and the object has DLPack,
 * which orders streams; -1 an exception. */
int cudriver_foreign_endpoint(CoreState *state, PyObject *object, bool write,
                              const struct cudriver_stream *on, struct cudriver_endpoint *end);

/* New reference: the context of a device end's memory, which must reach as far as its strides do.
 * The driver is initialised. `protocol` is for messages. */
ContextObject *cudriver_foreign_context(CoreState *state, const struct cudriver_endpoint *end,
                                        const char *protocol);

#endif

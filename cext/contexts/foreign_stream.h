/* Streams and events of other libraries: reading their handles, and Stream.from_handle. */
#ifndef CUDRIVER_FOREIGN_STREAM_H
#define CUDRIVER_FOREIGN_STREAM_H

#include "context.h"

/* Reads the handle of another library's stream: from `cuda_stream`, from `__cuda_stream__`, or, if
 * its class is called Stream, from `ptr` or `handle`. 1; 0 if `object` is no stream; -1 with an
 * exception set. May run any code. */
int cudriver_foreign_stream(PyObject *object, CUstream *handle);

/* The same for an event: from `cuda_event`, or, if its class is called Event, from `ptr` or
 * `handle`. The handle is NULL for an event of PyTorch's that was never recorded. */
int cudriver_foreign_event(PyObject *object, CUevent *handle);

/* New reference: the context of another library's stream, which is no default stream. */
ContextObject *cudriver_foreign_stream_context(CoreState *state, CUstream handle);

/* Stream.from_handle, a class method. */
PyObject *cudriver_stream_from_handle(PyObject *type, PyObject *argument);

#endif

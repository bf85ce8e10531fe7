/* Copies between host and device arrays: their ends, and the module's functions. */
#ifndef CUDRIVER_COPY_H
#define CUDRIVER_COPY_H

#include "contexts/stream.h"
#include "engine/engine.h"
#include "python/endpoint.h"

/* In place of a stream where no copy follows: reading an end then waits for nothing, and lets no
 * stream wait. */
extern const struct cudriver_stream cudriver_unordered;
#define CUDRIVER_UNORDERED (&cudriver_unordered)

/* Reads one end of a copy: a DeviceArray, an ndarray, another library's array with
 * __cuda_array_interface__ or __dlpack__, a buffer, or what has __array_interface__. `own`: its
 * own memory, never a copy. `on` is as in cudriver_dlpack_endpoint. 1, or -1 with an exception.
 * `name` is the argument's name for messages, and an end that is `own` is written. NULL: what is
 * none of these is 0 without an exception, and read-only memory is taken. */
int cudriver_endpoint_parse(CoreState *state, PyObject *object, bool own, const char *name,
                            const struct cudriver_stream *on, struct cudriver_endpoint *end);

/* ---- copies ---- */

/* Functions of the module. Two issue many copies as one piece of work: of two sequences (`apart`:
 * no destination overlaps another or a source), or of rows. New reference: a Transfer; of rows
 * perhaps a tuple, for memory/rows.py. Of the mode COPY_BATCH_EXPLAIN nothing is issued: a list,
 * which memory/copies_plan.py reads. The third reads files into device memory. */
PyObject *cudriver_copy_many(PyObject *module, PyObject *args);
PyObject *cudriver_copy_rows(PyObject *module, PyObject *args);
PyObject *cudriver_read_files(PyObject *module, PyObject *args);

extern PyMethodDef cudriver_copy_functions[];

#endif

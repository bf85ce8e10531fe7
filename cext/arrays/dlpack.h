/*
 * DLPack: arrays that libraries lend each other without a copy.
 *
 *   dlpack_tensor.c    another library's tensor, read and checked
 *   dlpack_lent.c      that tensor: asked for, ordered after its streams, kept, and given back
 *   dlpack_export.c    ours: __dlpack__, __dlpack_device__, and the table of C functions
 *
 * Who owns what: a tensor is given back by its deleter, once. A lent tensor belongs to its
 * `keeper`, a capsule that whatever uses the memory holds a reference to. A tensor of ours owns a
 * reference to the DeviceArray and counts in the exports of its memory, which forbids close().
 */
#ifndef CUDRIVER_DLPACK_H
#define CUDRIVER_DLPACK_H

#include "device_array.h"
#include "python/dlpack_abi.h"

/* ---- another library's tensor ---- */

/* The stream that a device's lent memory must be ready for: the enclosing `with stream:` if that is
 * on the device; NULL: the default stream. Borrowed. */
StreamObject *cudriver_dlpack_stream(CoreState *state, int ordinal);

/* Reads what a lent tensor describes: a host end's address, or a device end's address and context.
 * `padded`: each item has bytes of its own. `end` has no owner, and is the caller's to release,
 * also if this fails. 0 or -1. */
int cudriver_dlpack_read(CoreState *state, const struct cudriver_dl_tensor *tensor, bool padded,
                         struct cudriver_endpoint *end);

/* New reference: the names of the protocol's attributes, for the state. */
PyObject *cudriver_dlpack_words(void);

/* New reference: a NumPy array over an end's host memory, or a DeviceArray over its device memory,
 * either of which keeps the end's owner alive. */
PyObject *cudriver_endpoint_array(CoreState *state, const struct cudriver_endpoint *end);

/* Fills an endpoint through a tensor that another library has given us; its owner gives that back,
 * or this does if it fails. 0 or -1. */
int cudriver_dlpack_adopt(CoreState *state, struct cudriver_dl_managed *tensor,
                          struct cudriver_endpoint *end);

/* The table of C functions of an object's type; NULL if it has none that we know. Only the type's
 * own counts: the functions take what has it on trust, and a proxy or a class has the attribute
 * too. */
const struct cudriver_dl_exchange *cudriver_dlpack_table(CoreState *state, PyObject *object);

/* Fills an endpoint through the protocol. A tensor that requires grad is read-only. Device memory
 * is ready for what is queued on `on`, if that is on its device, from here on: see also the
 * endpoint's `on_default`. Otherwise it is ready now. 1 done, 0 no such protocol, -1 an exception.
 */
int cudriver_dlpack_endpoint(CoreState *state, PyObject *object, bool own,
                             const struct cudriver_stream *on, struct cudriver_endpoint *end);

/* Waits for the stream that a lent end is ready for: the default stream of its context, or, if `on`
 * is NULL, cudriver_dlpack_stream. 0 or -1. */
int cudriver_dlpack_wait(CoreState *state, const struct cudriver_endpoint *end,
                         const struct cudriver_stream *on);

/* ---- tensors of ours ---- */

/* A method of DeviceArray. */
PyObject *cudriver_device_array_dlpack_device(PyObject *object, PyObject *ignored);

/* Gives DeviceArray its own table of C functions, __dlpack_c_exchange_api__. 0 or -1. */
int cudriver_dlpack_exchange_setup(CoreState *state);

extern PyMethodDef cudriver_dlpack_from_functions[];
extern PyMethodDef cudriver_dlpack_export_functions[];

#endif

/*
 * DLPack: arrays that libraries lend each other without a copy.
 *
 *   dlpack_lent.c      another library's tensor: asked for, and kept alive
 *   dlpack_array.c     that tensor, checked: as an array, or as one end of a copy
 *   dlpack_from.c      from_dlpack()
 *   dlpack_export.c    ours: __dlpack__, __dlpack_device__
 *   dlpack_exchange.c  ours: the table of C functions, __dlpack_c_exchange_api__
 *
 * Who owns what: a tensor is given back by its deleter, once. A lent tensor belongs to its
 * `keeper`, a capsule that whatever uses the memory holds a reference to. A tensor of ours owns a
 * reference to the DeviceArray and counts in its root's `exports`, which forbids close().
 */
#ifndef CUDRIVER_DLPACK_H
#define CUDRIVER_DLPACK_H

#include "copy.h"
#include "device_array.h"
#include "python/dlpack_abi.h"

/* ---- another library's tensor ---- */

struct cudriver_dl_lent {
    PyObject *keeper;                        /* owned: gives the tensor back when it goes */
    const struct cudriver_dl_tensor *tensor; /* lives as long as the keeper */
    uint64_t flags;
};

/* The stream that a device's lent memory must be ready for: the enclosing `with stream:` if that is
 * on the device; NULL: the default stream. Borrowed. */
StreamObject *cudriver_dlpack_stream(CoreState *state, int ordinal);

/* Asks an object for its tensor. `never_copied`: it must not be a copy. 1 done, 0 no such
 * protocol, -1 an exception. */
int cudriver_dlpack_borrow(CoreState *state, PyObject *object, bool never_copied,
                           struct cudriver_dl_lent *lent);

/* Whether an object is a tensor, as PyTorch has them, that requires grad. 1, 0, or -1. */
int cudriver_dlpack_requires_grad(CoreState *state, PyObject *object, bool *is_tensor);

/* Takes a tensor over, also if this fails. 0, or -1 with an exception set. */
int cudriver_dlpack_take(struct cudriver_dl_managed *tensor, struct cudriver_dl_lent *lent);

/* New reference: a NumPy array over lent host memory, or a DeviceArray over lent device memory. */
PyObject *cudriver_dlpack_array(CoreState *state, const struct cudriver_dl_lent *lent);

/* New reference: a NumPy array over an object's host memory, by the buffer protocol, NumPy's
 * interface or DLPack. 1 done; 0 and NULL if it has none; -1 with an exception set. */
int cudriver_host_view(CoreState *state, PyObject *object, PyObject **array);

/* Fills an endpoint through the protocol. A tensor that requires grad may be read. 1 done, 0 no
 * such protocol, -1 an exception. */
int cudriver_dlpack_endpoint(CoreState *state, PyObject *object, bool write,
                             struct cudriver_endpoint *end);

/* ---- tensors of ours ---- */

/* Lends the array's memory. The caller calls the deleter. NULL with an exception set. */
struct cudriver_dl_managed *cudriver_dlpack_export(CoreState *state, DeviceArrayObject *array);

/* Methods of DeviceArray, and a docstring. */
PyObject *cudriver_device_array_dlpack(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                       PyObject *keywords);
PyObject *cudriver_device_array_dlpack_device(PyObject *object, PyObject *ignored);
extern const char cudriver_device_array_dlpack_doc[];

int cudriver_dlpack_from_setup(PyObject *module);
int cudriver_dlpack_exchange_setup(PyObject *module);

#endif

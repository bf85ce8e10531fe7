/* Lent tensors as arrays and as ends of copies. See dlpack.h. */
#include "dlpack.h"

#include "driver/driver.h"
#include "python/numpy_bridge.h"

PyObject *cudriver_dlpack_array(CoreState *state, const struct cudriver_dl_lent *lent,
                                const struct cudriver_endpoint *end)
{
    const bool read_only = (lent->flags & CUDRIVER_DL_READ_ONLY) != 0;

    return cudriver_endpoint_is_device(end)
               ? cudriver_device_array_over(state, end, lent->keeper, read_only)
               : cudriver_numpy_over(lent->keeper, end->host, end->dtype, end->ndim, end->shape,
                                     end->strides, false, !read_only);
}

int cudriver_dlpack_wait(CoreState *state, const struct cudriver_endpoint *end,
                         const struct cudriver_stream *on)
{
    StreamObject *stream = on == NULL ? cudriver_dlpack_stream(state, end->context->ordinal) : NULL;
    CUstream handle = stream != NULL ? stream->handle : NULL;
    /* The default stream that the lender was told of is that of the memory's context. */
    ContextObject *context = cudriver_stream_is_default(handle) ? end->context : stream->context;
    int failed;

    cudriver_stream_hold(stream);
    failed = cudriver_stream_drain(state, context, handle, NULL);
    cudriver_stream_let_go(stream);
    return failed;
}

/* Makes what was read of a lent tensor an end of a copy. 0 or -1. */
static int lent_endpoint(CoreState *state, const struct cudriver_dl_lent *lent,
                         const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    PyObject *array;
    int failed;

    if (!cudriver_endpoint_is_device(end)) {
        array = cudriver_dlpack_array(state, lent, end);
        cudriver_endpoint_done(end);
        failed = array == NULL ? -1 : cudriver_numpy_endpoint(array, false, end);
        Py_XDECREF(array); /* the endpoint keeps it alive */
        return failed;
    }
    end->owner = Py_NewRef(lent->keeper);
    if (on == CUDRIVER_UNORDERED) {
        return 0;
    }
    if (on == NULL || (on->context != NULL && on->context->ordinal != end->context->ordinal)) {
        return cudriver_dlpack_wait(state, end, on);
    }
    end->on_default = cudriver_stream_is_default(on->handle);
    return 0;
}

/* New reference: what to read instead of a tensor that requires grad. NULL with an exception set,
 * also if it is to be written. */
static PyObject *without_grad(PyObject *object, bool write)
{
    if (write) {
        PyErr_Format(PyExc_ValueError,
                     "the destination is a %.100s that requires grad: pass its detach()",
                     Py_TYPE(object)->tp_name);
        return NULL;
    }
    return PyObject_CallMethod(object, "detach", NULL);
}

int cudriver_dlpack_endpoint(CoreState *state, PyObject *object, bool write,
                             const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    int kind = cudriver_dlpack_kind(state, object), found;
    PyObject *plain = NULL;
    struct cudriver_dl_lent lent;

    if (kind == CUDRIVER_DL_GRAD) {
        object = plain = without_grad(object, write);
        kind = plain != NULL ? CUDRIVER_DL_TENSOR : -1;
    }
    found = cudriver_dlpack_borrow(state, object, kind, write, on, &lent, end);
    Py_XDECREF(plain);
    if (found <= 0) {
        return found;
    }
    if (write && (lent.flags & CUDRIVER_DL_READ_ONLY)) {
        PyErr_SetString(PyExc_ValueError, "the destination is read-only");
        found = -1;
    } else if (lent_endpoint(state, &lent, on, end) < 0) {
        found = -1;
    }
    if (found < 0) {
        cudriver_endpoint_done(end);
    }
    Py_DECREF(lent.keeper);
    return found;
}

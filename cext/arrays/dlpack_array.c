/* Lent tensors as arrays and as ends of copies. See dlpack.h. */
#include "dlpack.h"

#include "docstrings.h"
#include "driver/driver.h"
#include "python/call.h"
#include "python/numpy_bridge.h"

PyObject *cudriver_endpoint_array(CoreState *state, const struct cudriver_endpoint *end)
{
    return end->context != NULL
               ? cudriver_device_array_over(state, end, end->owner, end->read_only)
               : cudriver_numpy_over(end->owner, end->host, end->dtype, end->ndim, end->shape,
                                     end->strides, false, !end->read_only);
}

int cudriver_dlpack_wait(CoreState *state, const struct cudriver_endpoint *end,
                         const struct cudriver_stream *on)
{
    StreamObject *entered =
        on == NULL ? cudriver_dlpack_stream(state, end->context->ordinal) : NULL;
    struct cudriver_stream stream = {.handle = NULL};
    int failed = -1;

    if (entered == NULL || cudriver_stream_read(state, (PyObject *)entered, &stream) == 0) {
        /* The default stream that the lender was told of is that of the memory's context. */
        failed = cudriver_stream_drain(
            state, cudriver_stream_is_default(stream.handle) ? end->context : stream.context,
            stream.handle, NULL);
    }
    cudriver_stream_done(&stream);
    return failed;
}

int cudriver_dlpack_endpoint(CoreState *state, PyObject *object, bool write,
                             const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    int kind = cudriver_dlpack_kind(state, object), found;
    PyObject *plain = NULL;

    if (kind == CUDRIVER_DL_GRAD) {
        object = plain =
            cudriver_call(CALL_dlpack_without_grad, object, write ? Py_True : Py_False);
        kind = plain != NULL ? CUDRIVER_DL_TENSOR : -1;
    }
    found = cudriver_dlpack_borrow(state, object, kind, write, on, end);
    Py_XDECREF(plain);
    if (found <= 0) {
        return found;
    }
    if (write && end->read_only) {
        PyErr_SetString(PyExc_ValueError, "the destination is read-only");
        found = -1;
    } else if (end->context != NULL && on != CUDRIVER_UNORDERED) {
        if (on == NULL || (on->context != NULL && on->context->ordinal != end->context->ordinal)) {
            found = cudriver_dlpack_wait(state, end, on) < 0 ? -1 : 1;
        } else {
            end->on_default = cudriver_stream_is_default(on->handle);
        }
    }
    if (found < 0) {
        cudriver_endpoint_done(end);
    }
    return found;
}

/* _borrow(object, never_copied): an object's array where it is, without a copy of ours. */
static PyObject *module_borrow(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_endpoint end;
    PyObject *object, *array;
    int found, never_copied;

    if (!PyArg_ParseTuple(args, "Op", &object, &never_copied)) {
        return NULL;
    }
    if (Py_IS_TYPE(object, state->device_array_type)) { /* a view keeps the order of its work */
        return cudriver_device_array_check((DeviceArrayObject *)object) < 0
                   ? NULL
                   : cudriver_device_array_subscript(object, Py_Ellipsis);
    }
    found = cudriver_dlpack_borrow(state, object, cudriver_dlpack_kind(state, object),
                                   never_copied != 0, NULL, &end);
    if (found <= 0) {
        if (found == 0) {
            Py_XDECREF(cudriver_call(CALL_dlpack_refuse_lender, object));
        }
        return NULL;
    }
    array = cudriver_endpoint_array(state, &end);
    cudriver_endpoint_done(&end);
    return array;
}

PyMethodDef cudriver_dlpack_from_functions[] = {
    {"_borrow", module_borrow, METH_VARARGS, DOC__borrow},
    {NULL},
};

/* Transfer: the type. See work.h. */
#include "work.h"

#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"
#include "docstrings.h"

/* NOT_READY, or the result. */
static CUresult transfer_poll(TransferObject *self)
{
    CUresult result = cudriver_work_poll(cudriver_state_of((PyObject *)self), self);

    if (result == CUDA_SUCCESS && self->staged != NULL) {
        /* After a fault the engine lets the stream continue and reports the fault here. */
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_staging_wait(self->staged, CUDA_SUCCESS);
        Py_END_ALLOW_THREADS
    }
    return result;
}

static PyObject *transfer_raise(TransferObject *self, CUresult result)
{
    return cudriver_raise(result, "cuEventQuery", "after an asynchronous copy of %zu bytes",
                          self->bytes);
}

static PyObject *transfer_wait(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    TransferObject *self = (TransferObject *)object;
    CoreState *state = cudriver_state_of(object);
    CUresult result;

    if (cudriver_work_wait(state, self) < 0) {
        return NULL;
    }
    result = transfer_poll(self);
    if (result != CUDA_SUCCESS) {
        return transfer_raise(self, result);
    }
    cudriver_works_reap(state);
    Py_RETURN_NONE;
}

static PyObject *transfer_get_done(PyObject *object, void *Py_UNUSED(closure))
{
    CUDRIVER_LOCK();
    CUresult result = transfer_poll((TransferObject *)object);

    if (result == CUDA_ERROR_NOT_READY) {
        Py_RETURN_FALSE;
    }
    if (result != CUDA_SUCCESS) {
        return transfer_raise((TransferObject *)object, result);
    }
    Py_RETURN_TRUE;
}

static PyObject *transfer_repr(PyObject *object)
{
    CUDRIVER_LOCK();
    TransferObject *self = (TransferObject *)object;
    CUresult result = transfer_poll(self);

    return PyUnicode_FromFormat("<Transfer of %zu bytes, %s>", self->bytes,
                                result == CUDA_SUCCESS           ? "done"
                                : result == CUDA_ERROR_NOT_READY ? "in flight"
                                                                 : cudriver_error_name(result));
}

/* `await transfer`: a coroutine in Python does the polling. */
static PyObject *transfer_await(PyObject *object)
{
    return cudriver_call("waiting", "wait", "(O)", object);
}

static PyGetSetDef transfer_getset[] = {
    {"done", transfer_get_done, NULL, DOC_Transfer_done, NULL},
    {NULL},
};

static PyMemberDef transfer_members[] = {
    {"nbytes", T_PYSSIZET, offsetof(TransferObject, bytes), READONLY, DOC_Transfer_nbytes},
    {NULL},
};

static PyMethodDef transfer_methods[] = {
    {"wait", transfer_wait, METH_NOARGS, DOC_Transfer_wait},
    {NULL},
};

static PyType_Slot transfer_slots[] = {
    {Py_tp_doc, DOC_Transfer},       {Py_tp_dealloc, cudriver_work_dealloc},
    {Py_tp_repr, transfer_repr},     {Py_tp_methods, transfer_methods},
    {Py_tp_getset, transfer_getset}, {Py_tp_members, transfer_members},
    {Py_am_await, transfer_await},   {0, NULL},
};

PyType_Spec cudriver_transfer_spec = {
    .name = "cudriver.Transfer",
    .basicsize = sizeof(TransferObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = transfer_slots,
};

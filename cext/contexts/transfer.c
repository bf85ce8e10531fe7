/* Transfer: an asynchronous copy. See transfer.h. */
#include "transfer.h"

#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"
#include "python/types.h"
#include "docstrings.h"

typedef struct {
    PyObject_HEAD
    struct cudriver_work *work;               /* owned; NULL when complete */
    struct cudriver_staging_transfer *staged; /* borrowed: the engine's transfer, or NULL */
    size_t bytes;
    CUresult result;
} TransferObject;

/* A zeroed Transfer, or NULL with an exception set. */
static TransferObject *transfer_alloc(CoreState *state)
{
    TransferObject *self;

    if (state->spare_transfer_count == 0) {
        return (TransferObject *)state->transfer_type->tp_alloc(state->transfer_type, 0);
    }
    self = (TransferObject *)state->spare_transfers[--state->spare_transfer_count];
    self->work = NULL;
    self->staged = NULL;
    self->bytes = 0;
    self->result = CUDA_SUCCESS;
    return (TransferObject *)PyObject_Init((PyObject *)self, state->transfer_type);
}

PyObject *cudriver_transfer_new(CoreState *state, struct cudriver_work *work,
                                struct cudriver_staging_transfer *staged, size_t bytes)
{
    TransferObject *self = transfer_alloc(state);

    if (self == NULL) {
        if (work != NULL) {
            cudriver_work_release(work);
        }
        return NULL;
    }
    self->work = work;
    self->staged = staged;
    self->bytes = bytes;
    return (PyObject *)self;
}

PyObject *cudriver_transfer_done(CoreState *state, size_t bytes)
{
    return cudriver_transfer_new(state, NULL, NULL, bytes);
}

static void transfer_dealloc(PyObject *object)
{
    TransferObject *self = (TransferObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    CoreState *state = cudriver_state_of(object);

    if (self->work != NULL) {
        cudriver_work_release(self->work);
    }
    if (state->spare_transfer_count < CUDRIVER_SPARE_TRANSFERS) {
        state->spare_transfers[state->spare_transfer_count++] = object;
    } else {
        type->tp_free(object);
    }
    Py_DECREF(type);
}

void cudriver_transfer_free_spares(CoreState *state)
{
    while (state->spare_transfer_count > 0) {
        PyObject_Free(state->spare_transfers[--state->spare_transfer_count]);
    }
}

/* NOT_READY, or the result, which is then kept. */
static CUresult transfer_poll(TransferObject *self)
{
    CoreState *state = cudriver_state_of((PyObject *)self);
    struct cudriver_work *work = self->work;
    CUresult result;

    if (work == NULL) {
        return self->result;
    }
    cudriver_work_keep(work);
    result = cudriver_work_poll(state, work); /* other code may run and finish the transfer */
    if (result == CUDA_SUCCESS && self->work == work && self->staged != NULL) {
        /* After a fault the engine lets the stream continue and reports the fault here. */
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_staging_wait(self->staged, NULL, NULL);
        Py_END_ALLOW_THREADS
    }
    if (self->work == NULL) {
        result = self->result;
    } else if (result != CUDA_ERROR_NOT_READY &&
               !(result == CUDA_ERROR_NOT_INITIALIZED && cudriver_driver_is_forked())) {
        self->work = NULL;
        self->result = result;
        cudriver_work_release(work);
    }
    cudriver_work_release(work);
    return result;
}

static PyObject *transfer_raise(TransferObject *self, CUresult result)
{
    return cudriver_raise(result, "cuEventQuery", "after an asynchronous copy of %zu bytes",
                          self->bytes);
}

static PyObject *transfer_wait(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    TransferObject *self = (TransferObject *)object;
    CoreState *state = cudriver_state_of(object);
    CUresult result;

    result = transfer_poll(self);
    if (result == CUDA_ERROR_NOT_READY) {
        if (cudriver_work_wait(state, self->work) < 0) {
            return NULL;
        }
        result = transfer_poll(self);
    }
    if (result != CUDA_SUCCESS) {
        return transfer_raise(self, result);
    }
    cudriver_works_reap(state);
    Py_RETURN_NONE;
}

static PyObject *transfer_get_done(PyObject *object, void *Py_UNUSED(closure))
{
    CUresult result;

    result = transfer_poll((TransferObject *)object);
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
    {Py_tp_doc, DOC_Transfer},       {Py_tp_dealloc, transfer_dealloc},
    {Py_tp_repr, transfer_repr},     {Py_tp_methods, transfer_methods},
    {Py_tp_getset, transfer_getset}, {Py_tp_members, transfer_members},
    {Py_am_await, transfer_await},   {0, NULL},
};

static PyType_Spec transfer_spec = {
    .name = "cudriver.Transfer",
    .basicsize = sizeof(TransferObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = transfer_slots,
};

int cudriver_transfer_setup(PyObject *module)
{
    return cudriver_type_add(module, &cudriver_state_of_module(module)->transfer_type,
                             &transfer_spec);
}

/* Page locks on memory that somebody else owns, for memory/host.py. */
#include "host_memory.h"

#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"
#include "hostmem/hostmem.h"
#include "driver/platform.h"
#include "docstrings.h"

/* Checks that the whole range is mapped: strides may reach further. 0, or -1 with ValueError. */
static int pin_check(const HostMemoryObject *self)
{
    uintptr_t low = (uintptr_t)self->address;
    bool mapped;

    Py_BEGIN_ALLOW_THREADS
    mapped = platform_is_mapped(low, self->bytes);
    Py_END_ALLOW_THREADS
    if (!mapped) {
        Py_XDECREF(cudriver_call("refusals", "unmapped", "(KK)", (unsigned long long)low,
                                 (unsigned long long)self->bytes));
        return -1;
    }
    return 0;
}

/* Raises what became of a refused pin. */
static void raise_refusal(const HostMemoryObject *self, CUresult result)
{
    PyObject *arguments = cudriver_call(
        "refusals", "pin", "(iKnO)", (int)result, (unsigned long long)(uintptr_t)self->address,
        (Py_ssize_t)self->bytes, self->writable ? Py_True : Py_False);

    if (arguments != NULL) {
        cudriver_raise(result, "cuMemHostRegister_v2", "%s", PyUnicode_AsUTF8(arguments));
        Py_DECREF(arguments);
    }
}

/* _pin_prepare(low, nbytes, writable) */
static PyObject *module_pin_prepare(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    HostMemoryObject *self =
        (HostMemoryObject *)state->host_memory_type->tp_alloc(state->host_memory_type, 0);
    bool initialised = cudriver_driver_ready || cudriver_driver_is_forked();
    CUdevice device;
    int writable;

    if (self == NULL || !PyArg_ParseTuple(args, "KKp", &self->address, &self->bytes, &writable)) {
        Py_XDECREF(self);
        return NULL;
    }
    self->ordinal = -1;
    self->writable = writable != 0;
    /* cuInit takes a while: it is called when the memory is page-locked, perhaps in a thread. */
    if (pin_check(self) < 0 || (initialised ? cudriver_require() : cudriver_require_loaded()) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (initialised && cuda.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
        self->ordinal = device;
    }
    cudriver_live_add(state, &self->live, "pin", self->bytes, (uintptr_t)self->address, -1);
    return (PyObject *)self;
}

/* _pin_lock(pin, step, fresh) */
static PyObject *module_pin_lock(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_pin_way way;
    struct cudriver_pin *pin = NULL;
    CUresult result = CUDA_SUCCESS;
    ContextObject *context;
    HostMemoryObject *self;
    Py_ssize_t step;
    bool pushed;
    int fresh;

    if (!PyArg_ParseTuple(args, "O!np:_pin_lock", state->host_memory_type, &self, &step, &fresh) ||
        cudriver_require() < 0) {
        return NULL;
    }
    context = self->ordinal < 0 ? cudriver_context_for_use(state)
                                : cudriver_context_for_ordinal(state, self->ordinal);
    if (context == NULL || cudriver_context_begin(state, context, &pushed) < 0) {
        Py_XDECREF(context);
        return NULL;
    }
    way = (struct cudriver_pin_way){.read_only = !self->writable,
                                    .fresh = fresh != 0,
                                    .step = step > 0 ? (size_t)step : 0,
                                    .stop = step >= 0 ? &self->stop : NULL};
    if (self->bytes > 0) {
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_pin_create(self->address, self->bytes, &way, &pin);
        Py_END_ALLOW_THREADS
    }
    cudriver_context_end_use(context, pushed);
    if (result == CUDRIVER_PIN_STOPPED) {
        Py_RETURN_FALSE;
    }
    if (result != CUDA_SUCCESS) {
        raise_refusal(self, result);
        return NULL;
    }
    self->pin = pin;
    Py_RETURN_TRUE;
}

static PyObject *module_pin_stop(PyObject *Py_UNUSED(module), PyObject *pin)
{
    cudriver_pin_stop(&((HostMemoryObject *)pin)->stop);
    Py_RETURN_NONE;
}

static PyObject *module_pin_unlock(PyObject *module, PyObject *pin)
{
    CUDRIVER_LOCK();
    HostMemoryObject *self = (HostMemoryObject *)pin;
    CUresult result = cudriver_host_memory_unlock(cudriver_state_of_module(module), self);

    return cudriver_check(result, "cuMemHostUnregister", "%zu bytes", self->bytes) < 0
               ? NULL
               : Py_NewRef(Py_None);
}

PyMethodDef cudriver_pin_functions[] = {
    {"_pin_prepare", module_pin_prepare, METH_VARARGS, DOC__pin_prepare},
    {"_pin_lock", module_pin_lock, METH_VARARGS, DOC__pin_lock},
    {"_pin_stop", module_pin_stop, METH_O, NULL},
    {"_pin_unlock", module_pin_unlock, METH_O, DOC__pin_unlock},
    {NULL},
};

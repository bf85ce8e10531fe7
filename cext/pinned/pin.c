/* PageLock: memory that somebody else owns, page-locked in place. memory/pins.py and
 * memory/pinning.py make them. */
#include "host_memory.h"

#include "arrays/dlpack.h"
#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"
#include "hostmem/hostmem.h"
#include "python/numpy_bridge.h"
#include "driver/platform.h"
#include "docstrings.h"

typedef struct {
    PyObject_HEAD
    struct cudriver_live live;
    struct cudriver_host_range range; /* owned while the pin is open */
    struct cudriver_pin *pin;         /* owned; NULL if nothing is page-locked */
    int ordinal;                      /* of the device in use when it was made; -1: none was */
    atomic_bool stop;                 /* page-locking that is under way */
    bool closed;
} PinObject;

static PinObject *pin_of(PyObject *object)
{
    return (PinObject *)object;
}

int cudriver_host_range_find(CoreState *state, PyObject *object, const char *refusal,
                             struct cudriver_host_range *range)
{
    *range = (struct cudriver_host_range){.owner = NULL};
    if (cudriver_numpy_is_array(object)) {
        range->owner = Py_NewRef(object);
        range->first = cudriver_numpy_data(object);
        cudriver_numpy_extent(object, &range->low, &range->bytes, &range->writable);
        return 0;
    }
    if (!PyObject_CheckBuffer(object)) {
        PyObject *array;
        int found = cudriver_host_view(state, object, &array), failed = -1;
        if (found > 0) {
            failed = cudriver_host_range_find(state, array, refusal, range);
            Py_DECREF(array); /* the range keeps it alive */
        } else if (found == 0) {
            PyErr_Format(PyExc_TypeError, "%s, not %.100s", refusal, Py_TYPE(object)->tp_name);
        }
        return failed;
    }
    if (PyObject_GetBuffer(object, &range->view, PyBUF_WRITABLE) < 0) {
        PyErr_Clear();
        if (PyObject_GetBuffer(object, &range->view, PyBUF_SIMPLE) < 0) {
            return -1;
        }
    }
    range->owner = Py_NewRef(object);
    range->low = range->first = range->view.buf;
    range->bytes = (size_t)range->view.len;
    range->writable = !range->view.readonly;
    return 0;
}

void cudriver_host_range_done(struct cudriver_host_range *range)
{
    if (range->view.obj != NULL) {
        PyBuffer_Release(&range->view);
    }
    Py_CLEAR(range->owner);
}

/* Checks that the whole range is mapped: strides may reach further. 0, or -1 with ValueError. */
static int pin_check(const struct cudriver_host_range *range)
{
    uintptr_t low = (uintptr_t)range->low;
    bool mapped;

    Py_BEGIN_ALLOW_THREADS
    mapped = platform_is_mapped(low, range->bytes);
    Py_END_ALLOW_THREADS
    if (!mapped) {
        Py_XDECREF(cudriver_call("refusals", "unmapped", "(KK)", (unsigned long long)low,
                                 (unsigned long long)range->bytes));
        return -1;
    }
    return 0;
}

/* Raises what became of a refused pin. `other`: the range of a pin that holds a part of the memory,
 * if there is one. */
static void raise_refusal(const PinObject *self, CUresult result, struct cudriver_pin_range other)
{
    PyObject *arguments = cudriver_call(
        "refusals", "pin", "(iKnOKn)", (int)result, (unsigned long long)(uintptr_t)self->range.low,
        (Py_ssize_t)self->range.bytes, self->range.writable ? Py_True : Py_False,
        (unsigned long long)other.begin, (Py_ssize_t)other.bytes);

    if (arguments != NULL) {
        cudriver_raise(result, "cuMemHostRegister_v2", "%s", PyUnicode_AsUTF8(arguments));
        Py_DECREF(arguments);
    }
}

/* _pin_prepare(array) */
static PyObject *module_pin_prepare(PyObject *module, PyObject *array)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    PinObject *self = (PinObject *)state->pin_type->tp_alloc(state->pin_type, 0);
    bool initialised = cudriver_driver_ready || cudriver_driver_is_forked();
    CUdevice device;

    if (self == NULL) {
        return NULL;
    }
    self->closed = true;
    self->ordinal = -1;
    if (cudriver_host_range_find(state, array, "only an array in host memory can be page-locked",
                                 &self->range) < 0 ||
        (cudriver_numpy_is_array(self->range.owner) &&
         cudriver_numpy_holds_objects(self->range.owner)) ||
        pin_check(&self->range) < 0 ||
        /* cuInit takes a while: it is called when the memory is page-locked, perhaps in a thread.
         */
        (initialised ? cudriver_require() : cudriver_require_loaded()) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (initialised && cuda.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
        self->ordinal = device;
    }
    cudriver_live_add(state, &self->live, "pin", self->range.bytes, (uintptr_t)self->range.low, -1);
    return (PyObject *)self;
}

/* _pin_lock(pin, step, fresh) */
static PyObject *module_pin_lock(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_pin_range other = {0, 0};
    struct cudriver_pin_way way;
    struct cudriver_pin *pin = NULL;
    CUresult result = CUDA_SUCCESS;
    ContextObject *context;
    PinObject *self;
    Py_ssize_t step;
    bool pushed;
    int fresh;

    if (!PyArg_ParseTuple(args, "O!np:_pin_lock", state->pin_type, &self, &step, &fresh) ||
        cudriver_require() < 0) {
        return NULL;
    }
    context = self->ordinal < 0 ? cudriver_context_for_use(state)
                                : cudriver_context_for_ordinal(state, self->ordinal);
    if (context == NULL || cudriver_context_begin(state, context, &pushed) < 0) {
        Py_XDECREF(context);
        return NULL;
    }
    way = (struct cudriver_pin_way){.read_only = !self->range.writable,
                                    .fresh = fresh != 0,
                                    .step = step > 0 ? (size_t)step : 0,
                                    .stop = step >= 0 ? &self->stop : NULL};
    if (self->range.bytes > 0) {
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_pin_create(self->range.low, self->range.bytes, &way, &pin, &other);
        Py_END_ALLOW_THREADS
    }
    cudriver_context_end_use(context, pushed);
    if (result == CUDRIVER_PIN_STOPPED) {
        Py_RETURN_FALSE;
    }
    if (result != CUDA_SUCCESS) {
        raise_refusal(self, result, other);
        return NULL;
    }
    self->pin = pin;
    self->closed = false;
    Py_RETURN_TRUE;
}

static PyObject *module_pin_stop(PyObject *Py_UNUSED(module), PyObject *pin)
{
    cudriver_pin_stop(&pin_of(pin)->stop);
    Py_RETURN_NONE;
}

PyMethodDef cudriver_pin_functions[] = {
    {"_pin_prepare", module_pin_prepare, METH_O, DOC__pin_prepare},
    {"_pin_lock", module_pin_lock, METH_VARARGS, DOC__pin_lock},
    {"_pin_stop", module_pin_stop, METH_O, NULL},
    {NULL},
};

/* ---- the type ---- */

/* Shared by close() and dealloc. The page lock is released before the memory's owner. */
static CUresult pin_release(CoreState *state, PinObject *self)
{
    struct cudriver_pin *pin = self->pin;
    struct cudriver_host_range range = self->range;
    CUresult result = CUDA_SUCCESS;

    /* Take everything out first, so that another thread's close() releases nothing too early. */
    self->closed = true;
    self->pin = NULL;
    self->range.owner = NULL;
    self->range.view.obj = NULL;
    cudriver_live_remove(state, &self->live);
    if (pin != NULL) {
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_pin_destroy(pin);
        Py_END_ALLOW_THREADS
    }
    cudriver_host_range_done(&range);
    return result;
}

static void pin_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object); /* first: a wait for the lock lets the collector run */
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of(object);
    PyTypeObject *type = Py_TYPE(object);

    cudriver_report(state, pin_release(state, pin_of(object)), "cuMemHostUnregister", NULL);
    type->tp_free(object);
    Py_DECREF(type);
}

static int pin_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(pin_of(object)->range.owner);
    Py_VISIT(pin_of(object)->range.view.obj);
    return 0;
}

/* For the garbage collector: a pin in a reference cycle with its array. */
static int pin_clear(PyObject *object)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of(object);

    cudriver_report(state, pin_release(state, pin_of(object)), "cuMemHostUnregister", NULL);
    return 0;
}

static PyObject *pin_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of(object);

    if (cudriver_check(pin_release(state, pin_of(object)), "cuMemHostUnregister", "%zu bytes",
                       pin_of(object)->range.bytes) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef pin_methods[] = {
    {"close", pin_close, METH_NOARGS, DOC_PageLock_close},
    {NULL},
};

static PyObject *pin_get_array(PyObject *object, void *Py_UNUSED(closure))
{
    CUDRIVER_LOCK();
    PyObject *owner = pin_of(object)->range.owner;

    return Py_NewRef(owner != NULL ? owner : Py_None);
}

static PyGetSetDef pin_getset[] = {
    {"array", pin_get_array, NULL, DOC_PageLock_array, NULL},
    {"closed", cudriver_get_bool, NULL, DOC_PageLock_closed, (void *)offsetof(PinObject, closed)},
    {NULL},
};

static PyMemberDef pin_members[] = {
    {"nbytes", T_PYSSIZET, offsetof(PinObject, range.bytes), READONLY, DOC_PageLock_nbytes},
    {NULL},
};

static PyType_Slot pin_slots[] = {
    {Py_tp_doc, DOC_PageLock},      {Py_tp_dealloc, pin_dealloc},
    {Py_tp_traverse, pin_traverse}, {Py_tp_clear, pin_clear},
    {Py_tp_methods, pin_methods},   {Py_tp_members, pin_members},
    {Py_tp_getset, pin_getset},     {0, NULL},
};

PyType_Spec cudriver_pin_spec = {
    .name = "cudriver.PageLock",
    .basicsize = sizeof(PinObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = pin_slots,
};

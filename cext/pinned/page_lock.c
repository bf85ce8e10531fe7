/* PageLock: a page lock on memory of somebody else, behind pin(), pin_async() and SharedMemory. */
#include "host_memory.h"

#include "driver/driver.h"
#include "driver/platform.h"
#include "hostmem/hostmem.h"
#include "python/call.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "docstrings.h"

/* It owns what keeps the memory mapped, so that the lock ends first whoever drops what. */
typedef struct {
    PyObject_HEAD
    struct cudriver_live live;
    void *address;
    size_t bytes;
    bool writable;
    bool closed;
    atomic_bool stop;         /* page-locking that is under way */
    int ordinal;              /* of the device in use when it was made; -1: none was */
    struct cudriver_pin *pin; /* owned; NULL if nothing is page-locked */
    PyObject *array;          /* owned: whose memory it is; NULL once it is closed */
    PyObject *held;           /* owned: what else keeps the memory, or None; NULL likewise */
} PageLockObject;

static PageLockObject *lock_of(PyObject *object)
{
    return (PageLockObject *)object;
}

/* PageLock(array, held, low, nbytes, writable) */
static PyObject *lock_create(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    CUDRIVER_LOCK();
    CoreState *state = (CoreState *)PyType_GetModuleState(type);
    bool initialised = cudriver_driver_ready || cudriver_driver_is_forked(), mapped;
    PyObject *array, *held;
    PageLockObject *self;
    unsigned long long low;
    Py_ssize_t bytes;
    CUdevice device;
    int writable;

    if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0) {
        return PyErr_Format(PyExc_TypeError, "PageLock() takes no keyword arguments");
    }
    if (!PyArg_ParseTuple(args, "OOKnp:PageLock", &array, &held, &low, &bytes, &writable)) {
        return NULL;
    }
    held = cudriver_numpy_is_array(held) ? cudriver_numpy_hold(held) : Py_NewRef(held);
    self = held != NULL ? lock_of(type->tp_alloc(type, 0)) : NULL;
    if (self == NULL) {
        Py_XDECREF(held);
        return NULL;
    }
    self->address = (void *)(uintptr_t)low;
    self->bytes = (size_t)bytes;
    self->writable = writable != 0;
    self->closed = true;
    self->ordinal = -1;
    self->array = Py_NewRef(array);
    self->held = held;
    Py_BEGIN_ALLOW_THREADS
    mapped = platform_is_mapped((uintptr_t)self->address, self->bytes);
    Py_END_ALLOW_THREADS
    if (!mapped) { /* strides may reach further than the memory */
        cudriver_do(CALL_refusals_unmapped, low, (unsigned long long)bytes);
    }
    /* cuInit takes a while: it is called when the memory is page-locked, perhaps in a thread. */
    if (!mapped || (initialised ? cudriver_require() : cudriver_require_loaded()) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (initialised && cuda.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
        self->ordinal = device;
    }
    cudriver_live_add(state, &self->live, "pin", self->bytes, (uintptr_t)self->address, -1);
    return (PyObject *)self;
}

/* ---- the end ---- */

/* Ends the lock, which is then in no list of what is alive, and drops what kept the memory. */
static CUresult lock_end(PageLockObject *self)
{
    struct cudriver_pin *pin = self->pin;
    PyObject *array = self->array, *held = self->held; /* for another thread may end it as well */
    CUresult result = CUDA_SUCCESS;

    self->pin = NULL;
    self->array = self->held = NULL;
    self->closed = true;
    cudriver_live_remove(cudriver_state_of((PyObject *)self), &self->live);
    if (pin != NULL) {
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_pin_destroy(pin);
        Py_END_ALLOW_THREADS
    }
    Py_XDECREF(held);
    Py_XDECREF(array);
    return result;
}

static int lock_clear(PyObject *object)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of(object);

    cudriver_report(state, lock_end(lock_of(object)), "cuMemHostUnregister");
    return 0;
}

static int lock_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(lock_of(object)->array);
    Py_VISIT(lock_of(object)->held);
    return 0;
}

static void lock_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);

    PyObject_GC_UnTrack(object);
    (void)lock_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

/* ---- the methods ---- */

/* lock(step, fresh) */
static PyObject *lock_lock(PyObject *object, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of(object);
    PageLockObject *self = lock_of(object);
    struct cudriver_pin_range other = {0, 0};
    struct cudriver_pin_way way;
    CUresult result = CUDA_SUCCESS;
    ContextObject *context;
    Py_ssize_t step;
    bool pushed;
    int fresh;

    if (!PyArg_ParseTuple(args, "np:lock", &step, &fresh) || cudriver_require() < 0) {
        return NULL;
    }
    if (self->array == NULL || self->pin != NULL) {
        return PyErr_Format(PyExc_ValueError, "a PageLock locks once, before it is closed");
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
        struct cudriver_pin *pin = NULL;
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_pin_create(self->address, self->bytes, &way, &pin, &other);
        Py_END_ALLOW_THREADS
        self->pin = pin;
    }
    cudriver_context_end_use(context, pushed);
    if (result == CUDRIVER_PIN_STOPPED) {
        Py_RETURN_FALSE;
    }
    if (result != CUDA_SUCCESS) { /* `other`: a pin of a part of the memory; maybe gone by now */
        PyObject *said = cudriver_call(CALL_refusals_pin, (int)result,
                                       (unsigned long long)(uintptr_t)self->address,
                                       (Py_ssize_t)self->bytes, self->writable ? Py_True : Py_False,
                                       (unsigned long long)other.begin, (Py_ssize_t)other.bytes);
        if (said != NULL) {
            cudriver_check(result, "cuMemHostRegister_v2", "%s", PyUnicode_AsUTF8(said));
            Py_DECREF(said);
        }
        return NULL;
    }
    self->closed = false;
    Py_RETURN_TRUE;
}

static PyObject *lock_stop(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    cudriver_pin_stop(&lock_of(object)->stop);
    Py_RETURN_NONE;
}

static PyObject *lock_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    PageLockObject *self = lock_of(object);

    return cudriver_none(
        cudriver_check(lock_end(self), "cuMemHostUnregister", "%zu bytes", self->bytes));
}

static PyObject *get_array(PyObject *object, void *Py_UNUSED(closure))
{
    CUDRIVER_LOCK();
    PyObject *array = lock_of(object)->array;

    return Py_NewRef(array != NULL ? array : Py_None);
}

static PyMethodDef lock_methods[] = {
    {"lock", lock_lock, METH_VARARGS, DOC_PageLock_lock},
    {"stop", lock_stop, METH_NOARGS, DOC_PageLock_stop},
    {"close", lock_close, METH_NOARGS, DOC_PageLock_close},
    {NULL},
};

static PyGetSetDef lock_getset[] = {
    {"array", get_array, NULL, DOC_PageLock_array, NULL},
    {"closed", cudriver_get_bool, NULL, DOC_PageLock_closed,
     (void *)offsetof(PageLockObject, closed)},
    {NULL},
};

static PyMemberDef lock_members[] = {
    {"nbytes", T_PYSSIZET, offsetof(PageLockObject, bytes), READONLY, DOC_PageLock_nbytes},
    {NULL},
};

static PyType_Slot lock_slots[] = {
    {Py_tp_doc, DOC_PageLock},       {Py_tp_new, lock_create},      {Py_tp_dealloc, lock_dealloc},
    {Py_tp_traverse, lock_traverse}, {Py_tp_clear, lock_clear},     {Py_tp_methods, lock_methods},
    {Py_tp_getset, lock_getset},     {Py_tp_members, lock_members}, {0, NULL},
};

PyType_Spec cudriver_page_lock_spec = {
    .name = "cudriver.PageLock",
    .basicsize = sizeof(PageLockObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = lock_slots,
};

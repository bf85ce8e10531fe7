/* HostMemory: a block of the page-locked pool, or a lock on others' memory; pin.c makes those. */
#include "host_memory.h"

#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "python/call.h"
#include "python/error.h"
#include "contexts/work.h"
#include "docstrings.h"

int cudriver_host_room(size_t *room)
{
    PyObject *bytes = cudriver_call("room", "host_room", "()");

    *room = bytes != NULL ? PyLong_AsSize_t(bytes) : 0;
    Py_XDECREF(bytes);
    return PyErr_Occurred() ? -1 : 0;
}

/* Raises, and says which limit was met if that is known. */
static void raise_alloc(CUresult result, const char *called, size_t bytes, size_t room)
{
    PyObject *said =
        cudriver_call("refusals", "pool", "(isnnK)", (int)result, called, (Py_ssize_t)bytes,
                      (Py_ssize_t)cudriver_hostmem_least(bytes), (unsigned long long)room);
    const char *function, *arguments;

    if (said != NULL && PyArg_ParseTuple(said, "ss", &function, &arguments)) {
        cudriver_raise(result, function, "%s", arguments);
    }
    Py_XDECREF(said);
}

/* Page-locks new memory, unless completed copies hold the last reference to some. 0, or -1 with an
 * exception. */
static int memory_lock(CoreState *state, HostMemoryObject *self, const char *function, size_t bytes,
                       int node, bool *zeroed)
{
    CUDRIVER_LOCK();
    ContextObject *context;
    CUresult result;
    size_t room;
    bool pushed;

    cudriver_works_reap(state);
    self->address = cudriver_hostmem_try_alloc(bytes, node);
    if (self->address != NULL) {
        return 0;
    }
    if (cudriver_host_room(&room) < 0 ||
        (context = cudriver_context_begin_use(state, &pushed)) == NULL) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cudriver_hostmem_alloc(bytes, room, node, &self->address, zeroed);
    Py_END_ALLOW_THREADS
    cudriver_context_end_use(context, pushed);
    if (result != CUDA_SUCCESS) {
        raise_alloc(result, function, bytes, room);
        return -1;
    }
    return 0;
}

HostMemoryObject *cudriver_host_memory_new(CoreState *state, const char *function, size_t bytes,
                                           int node, bool *zeroed)
{
    HostMemoryObject *self =
        (HostMemoryObject *)state->host_memory_type->tp_alloc(state->host_memory_type, 0);

    if (self == NULL) {
        return NULL;
    }
    self->bytes = bytes;
    bytes = bytes > 0 ? bytes : 1;
    *zeroed = false;
    self->address = cudriver_hostmem_try_alloc(bytes, node);
    if (self->address == NULL && memory_lock(state, self, function, bytes, node, zeroed) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->block = true;
    cudriver_live_add(state, &self->live, "host memory", self->bytes, (uintptr_t)self->address, -1);
    return self;
}

CUresult cudriver_host_memory_unlock(CoreState *state, HostMemoryObject *self)
{
    struct cudriver_pin *pin = self->pin;
    CUresult result = CUDA_SUCCESS;

    self->pin = NULL; /* first: others may end the lock meanwhile */
    cudriver_live_remove(state, &self->live);
    if (pin != NULL) {
        Py_BEGIN_ALLOW_THREADS
        result = cudriver_pin_destroy(pin);
        Py_END_ALLOW_THREADS
    }
    return result;
}

static void memory_dealloc(PyObject *object)
{
    HostMemoryObject *self = (HostMemoryObject *)object;
    CoreState *state = cudriver_state_of(object);
    PyTypeObject *type = Py_TYPE(object);

    if (self->block) {
        cudriver_live_remove(state, &self->live);
        cudriver_hostmem_free(self->address);
    } else {
        CUDRIVER_LOCK();
        cudriver_report(state, cudriver_host_memory_unlock(state, self), "cuMemHostUnregister",
                        NULL);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *memory_repr(PyObject *object)
{
    HostMemoryObject *self = (HostMemoryObject *)object;

    return PyUnicode_FromFormat("<page-locked memory: %zu bytes at %p>", self->bytes,
                                self->address);
}

static PyMemberDef memory_members[] = {
    {"nbytes", T_PYSSIZET, offsetof(HostMemoryObject, bytes), READONLY, DOC_HostMemory_nbytes},
    {NULL},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, DOC_HostMemory},
    {Py_tp_dealloc, memory_dealloc},
    {Py_tp_repr, memory_repr},
    {Py_tp_members, memory_members},
    {0, NULL},
};

PyType_Spec cudriver_host_memory_spec = {
    .name = "cudriver.HostMemory",
    .basicsize = sizeof(HostMemoryObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = memory_slots,
};

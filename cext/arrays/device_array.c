/* DeviceArray: creation, views, checks, lifetime, and its end of a copy. See device_array.h. */
#include "device_array.h"

#include "contexts/work.h"
#include "python/call.h"
#include "python/error.h"
#include "python/numpy_bridge.h"

/* ---- the memory ---- */

/* New: memory in `context`, of no array yet and with nothing in it. NULL with MemoryError. */
static struct cudriver_device_memory *memory_new(ContextObject *context)
{
    struct cudriver_device_memory *memory = PyMem_Calloc(1, sizeof *memory);

    if (memory == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memory->context = (ContextObject *)Py_NewRef((PyObject *)context);
    context->users.children++;
    return memory;
}

/* Gives the memory back to the driver or to its lender, once. */
static CUresult memory_release(CoreState *state, struct cudriver_device_memory *memory,
                               const char **function)
{
    CUresult result;

    *function = "";
    if (memory->closed) {
        return CUDA_SUCCESS;
    }
    memory->closed = true;
    cudriver_live_remove(state, &memory->live);
    result = cudriver_device_free(memory, function);
    memory->context->users.children--;
    Py_CLEAR(memory->lender); /* runs another library's code */
    return result;
}

/* The end of memory that no array has. */
static void memory_end(CoreState *state, struct cudriver_device_memory *memory)
{
    const char *function;
    CUresult result = memory_release(state, memory, &function);

    cudriver_report(state, result, function);
    Py_DECREF(memory->context);
    PyMem_Free(memory);
}

/* ---- arrays ---- */

/* New reference: an array in `memory`, which ends if this fails and no other array has it. Takes
 * the ndarray over; NULL fails. */
static PyObject *array_wrap(CoreState *state, struct cudriver_device_memory *memory,
                            PyObject *array)
{
    PyTypeObject *type = state->device_array_type;
    DeviceArrayObject *self = array != NULL ? (DeviceArrayObject *)type->tp_alloc(type, 0) : NULL;

    if (self == NULL) {
        Py_XDECREF(array);
        if (memory->users.children == 0) {
            memory_end(state, memory);
        }
        return NULL;
    }
    self->memory = memory;
    memory->users.children++;
    self->array = array;
    return (PyObject *)self;
}

PyObject *cudriver_device_array_new(CoreState *state, ContextObject *context, PyObject *dtype,
                                    Py_ssize_t itemsize, int ndim, const Py_ssize_t *shape,
                                    bool fortran)
{
    Py_ssize_t bytes = cudriver_numpy_bytes(ndim, shape, itemsize);
    struct cudriver_device_memory *memory;
    bool pushed;
    int failed;

    if (bytes < 0 || cudriver_context_begin(state, context, &pushed) < 0) {
        return NULL;
    }
    memory = memory_new(context);
    failed = memory == NULL ? -1 : cudriver_device_alloc(state, memory, (size_t)bytes);
    cudriver_context_end(context, pushed);
    if (failed < 0) {
        if (memory != NULL) {
            memory_end(state, memory);
        }
        return NULL;
    }
    cudriver_live_add(state, &memory->live, "device array", (size_t)bytes, memory->address,
                      context->ordinal);
    return array_wrap(state, memory,
                      cudriver_numpy_over(NULL, (void *)(uintptr_t)memory->address, dtype, ndim,
                                          shape, NULL, fortran, true));
}

PyObject *cudriver_device_array_over(CoreState *state, const struct cudriver_endpoint *end,
                                     PyObject *lender, bool read_only)
{
    struct cudriver_device_memory *memory = memory_new(end->context);

    if (memory == NULL) {
        return NULL;
    }
    memory->lender = Py_NewRef(lender);
    return array_wrap(state, memory,
                      cudriver_numpy_over(NULL, (void *)(uintptr_t)end->device, end->dtype,
                                          end->ndim, end->shape, end->strides, false, !read_only));
}

PyObject *cudriver_device_array_view(DeviceArrayObject *of, PyObject *array)
{
    CUDRIVER_LOCK();
    PyObject *view = array_wrap(cudriver_state_of((PyObject *)of), of->memory, array);

    if (view != NULL) {
        ((DeviceArrayObject *)view)->is_view = true;
    }
    return view;
}

/* ---- basic indexing: integers, slices, ... and None ---- */

/* New reference: the key as a tuple with an ellipsis, for which NumPy always makes a view. For
 * arrays, lists and booleans it would read items: then IndexError. */
static PyObject *key_checked(PyObject *key)
{
    PyObject *const *items = PyTuple_Check(key) ? ((PyTupleObject *)key)->ob_item : &key;
    Py_ssize_t count = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1, length = count + 1;
    PyObject *checked;
    bool plain = true; /* NumPy makes a view for each item as it is */

    for (Py_ssize_t i = 0; i < count; i++) {
        length = items[i] == Py_Ellipsis ? count : length;
        plain &= PySlice_Check(items[i]) || PyLong_CheckExact(items[i]) || items[i] == Py_None ||
                 items[i] == Py_Ellipsis || cudriver_numpy_is_integer(items[i]);
    }
    checked = PyTuple_New(length);
    for (Py_ssize_t i = 0; checked != NULL && i < length; i++) {
        PyTuple_SET_ITEM(checked, i, Py_NewRef(i < count ? items[i] : Py_Ellipsis));
    }
    return checked == NULL || plain ? checked : cudriver_call(CALL_arrays_index, checked);
}

PyObject *cudriver_device_array_subscript(PyObject *object, PyObject *key)
{
    DeviceArrayObject *self = (DeviceArrayObject *)object;
    PyObject *checked = key_checked(key), *array;

    if (checked == NULL) {
        return NULL;
    }
    array = PyObject_GetItem(self->array, checked);
    Py_DECREF(checked);
    return cudriver_device_array_view(self, array);
}

/* ---- the end ---- */

void cudriver_device_array_dealloc(PyObject *object)
{
    CUDRIVER_LOCK();
    DeviceArrayObject *self = (DeviceArrayObject *)object;
    PyTypeObject *type = Py_TYPE(object);

    PyObject_ClearWeakRefs(object);
    Py_DECREF(self->array);
    if (--self->memory->users.children == 0) {
        memory_end(cudriver_state_of(object), self->memory);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *cudriver_device_array_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of(object);
    DeviceArrayObject *self = (DeviceArrayObject *)object;
    struct cudriver_device_memory *memory = self->memory;
    unsigned long long address = memory->address;
    const char *function;
    CUresult result;
    bool used;

    if (self->is_view) {
        return PyErr_Format(PyExc_ValueError, "%R is a view: close the array that owns the memory",
                            object);
    }
    cudriver_works_reap(state, NULL); /* a completed copy may hold the last view */
    used = (memory->users.children > 1 || !cudriver_is_sole_owner(object)) &&
           cudriver_works_use(state, cudriver_device_array_uses, memory);
    if (cudriver_users_check(object, "close", &memory->users, 1, used) < 0) {
        return NULL;
    }
    result = memory_release(state, memory, &function);
    return cudriver_none(cudriver_check(result, function, "0x%llx", address));
}

int cudriver_device_array_check(DeviceArrayObject *self)
{
    if (cudriver_open_check((PyObject *)self, self->memory->closed) < 0) {
        return -1;
    }
    return self->memory->context->state == CUDRIVER_CONTEXT_OPEN
               ? 0
               : cudriver_context_check(self->memory->context);
}

int cudriver_device_array_endpoint(PyObject *object, struct cudriver_endpoint *end)
{
    DeviceArrayObject *self = (DeviceArrayObject *)object;
    struct cudriver_device_memory *memory = self->memory;

    if (cudriver_device_array_check(self) < 0) {
        return -1;
    }
    memory->users.calls++; /* forbids close() until released */
    if (cudriver_numpy_endpoint(self->array, object, end) < 0) {
        memory->users.calls--;
        return -1;
    }
    end->context = memory->context;
    end->device = (CUdeviceptr)(uintptr_t)end->host;
    end->host = NULL;
    end->users = &memory->users;
    if (memory->number > memory->context->allocs.settled) {
        cudriver_device_settle(memory);
    }
    return 0;
}

bool cudriver_device_array_uses(CoreState *state, PyObject *owner, const void *memory)
{
    return Py_IS_TYPE(owner, state->device_array_type) &&
           ((DeviceArrayObject *)owner)->memory == memory;
}

int cudriver_device_array_await(CoreState *state, const struct cudriver_users *users)
{
    struct cudriver_device_memory *memory;

    if (users == NULL) {
        return 0;
    }
    memory = (struct cudriver_device_memory *)((char *)(uintptr_t)users -
                                               offsetof(struct cudriver_device_memory, users));
    return cudriver_works_await(state, cudriver_device_array_uses, memory);
}

/* DeviceArrays lent to other libraries. See dlpack.h. */
#include "dlpack.h"

#include "contexts/work.h"
#include "python/call.h"
#include "python/numpy_bridge.h"
#include "docstrings.h"

/* A tensor of ours. Its manager is the array: an owned reference. */
struct export {
    union {
        struct cudriver_dl_managed versioned;
        struct cudriver_dl_old old;
    } head;
    int64_t extents[]; /* shape, then strides */
};

/* Drops a tensor's array, in any thread, with or without the GIL. When the interpreter is ending,
 * only a thread that holds the GIL can have it: else the array is left to the end of the process.
 */
static void manager_release(DeviceArrayObject *array)
{
    PyGILState_STATE gil;

    if (!Py_IsInitialized() || (Py_IsFinalizing() && !PyGILState_Check())) {
        return;
    }
    gil = PyGILState_Ensure();
    {
        CUDRIVER_LOCK();
        array->memory->users.exports--;
    }
    Py_DECREF(array);
    PyGILState_Release(gil);
}

static void delete_versioned(struct cudriver_dl_managed *self)
{
    manager_release(self->manager);
    PyMem_RawFree(self);
}

static void delete_old(struct cudriver_dl_old *self)
{
    manager_release(self->manager);
    PyMem_RawFree(self);
}

static void tensor_fill(const struct cudriver_endpoint *end, struct cudriver_dl_type type,
                        int64_t *extents, struct cudriver_dl_tensor *tensor)
{
    bool empty = false;

    *tensor = (struct cudriver_dl_tensor){
        .device = {CUDRIVER_DL_CUDA, end->context->ordinal},
        .ndim = end->ndim,
        .dtype = type,
        .shape = extents,
        .strides = extents + end->ndim,
    };
    for (int i = 0; i < end->ndim; i++) {
        tensor->shape[i] = end->shape[i];
        tensor->strides[i] = end->strides[i] / (Py_ssize_t)end->itemsize;
        empty |= end->shape[i] == 0;
    }
    tensor->data = empty ? NULL : (void *)(uintptr_t)end->device;
}

/* New: a tensor in one of both kinds, which owns the array that `end` is. NULL with an exception
 * set. */
static struct export *export_new(const struct cudriver_endpoint *end, struct cudriver_dl_type type,
                                 bool old, uint64_t flags)
{
    DeviceArrayObject *array = (DeviceArrayObject *)end->owner;
    bool writable = cudriver_numpy_is_writable(array->array), padded = type.bits < 8;
    struct export *self;

    for (int i = 0; i < end->ndim; i++) {
        if (end->strides[i] % (Py_ssize_t)end->itemsize != 0) {
            PyErr_Format(PyExc_BufferError,
                         "DLPack has strides of whole items: that of axis %d is %zd bytes, and an "
                         "item has %zu",
                         i, end->strides[i], end->itemsize);
            return NULL;
        }
    }
    if (old && (!writable || padded)) {
        PyErr_Format(PyExc_BufferError,
                     "%R is %s, which only DLPack 1.0 can say: the other library asked for an "
                     "older kind of tensor",
                     array, writable ? "of items of less than a byte" : "read-only");
        return NULL;
    }
    self = PyMem_RawCalloc(1, sizeof *self + 2 * (size_t)end->ndim * sizeof self->extents[0]);
    if (self == NULL) {
        return (struct export *)PyErr_NoMemory();
    }
    flags |= (writable ? 0 : CUDRIVER_DL_READ_ONLY) | (padded ? CUDRIVER_DL_PADDED : 0);
    if (old) {
        self->head.old.manager = Py_NewRef((PyObject *)array);
        self->head.old.deleter = delete_old;
        tensor_fill(end, type, self->extents, &self->head.old.tensor);
    } else {
        self->head.versioned.version.major = CUDRIVER_DL_MAJOR;
        self->head.versioned.version.minor = CUDRIVER_DL_MINOR;
        self->head.versioned.manager = Py_NewRef((PyObject *)array);
        self->head.versioned.deleter = delete_versioned;
        self->head.versioned.flags = flags;
        tensor_fill(end, type, self->extents, &self->head.versioned.tensor);
    }
    array->memory->users.exports++;
    /* The other library's work is not ours to wait for: free the memory behind all work. */
    array->memory->shared = true;
    return self;
}

/* ---- __dlpack__ ---- */

/* A capsule that nobody took gives its tensor back. */
static void capsule_end(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        delete_versioned(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        delete_old(PyCapsule_GetPointer(capsule, "dltensor"));
    }
}

/* Lets the consumer's stream wait for our work in flight on the array's memory. `number`: 1, 2 or a
 * handle, as the standard has it. 0 or -1. */
static int consumer_follow(CoreState *state, DeviceArrayObject *array, uintptr_t number)
{
    struct cudriver_device_memory *memory = array->memory;
    CUstream stream = (CUstream)number;
    ContextObject *context;
    int failed;

    if (state->works.queues == NULL) {
        return 0;
    }
    /* A default stream is that of the consumer's context. */
    context = number > 2 ? (ContextObject *)Py_NewRef((PyObject *)memory->context)
                         : cudriver_context_for_ordinal(state, memory->context->ordinal);
    if (context == NULL) {
        return -1;
    }
    failed = cudriver_works_follow(state, cudriver_device_array_uses, memory, context, stream);
    Py_DECREF(context);
    return failed;
}

/* New: a tensor of an array, as by export_new, for a consumer's stream, or none: -1. A type of no
 * bits is read from the array. */
static struct export *array_lend(CoreState *state, DeviceArrayObject *array, long long number,
                                 struct cudriver_dl_type *type, bool old, uint64_t flags)
{
    struct cudriver_endpoint end;
    struct export *made = NULL;
    PyObject *kind = NULL;

    if (cudriver_device_array_check(array) < 0 ||
        (number != -1 && consumer_follow(state, array, (uintptr_t)number) < 0) ||
        cudriver_device_array_endpoint((PyObject *)array, &end) < 0) {
        return NULL;
    }
    if (type->bits == 0) {
        kind = cudriver_call(CALL_dlpack_type_of, end.dtype);
    }
    if (type->bits != 0 ||
        (kind != NULL && PyArg_ParseTuple(kind, "bb", &type->code, &type->bits))) {
        made = export_new(&end, *type, old, flags);
    }
    Py_XDECREF(kind);
    cudriver_endpoint_done(&end);
    return made;
}

PyObject *cudriver_device_array_dlpack_device(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("(ii)", CUDRIVER_DL_CUDA,
                         ((DeviceArrayObject *)object)->memory->context->ordinal);
}

/* _export(array, stream, old, copied, code, bits), of arguments that memory/dlpack.py has read. */
static PyObject *module_export(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_dl_type type = {.lanes = 1};
    DeviceArrayObject *array;
    struct export *self;
    PyObject *capsule;
    long long number;
    int old, copied;

    if (!PyArg_ParseTuple(args, "O!Lppbb", state->device_array_type, &array, &number, &old, &copied,
                          &type.code, &type.bits)) {
        return NULL;
    }
    self = array_lend(state, array, number, &type, old != 0, copied ? CUDRIVER_DL_IS_COPIED : 0);
    if (self == NULL) {
        return NULL;
    }
    capsule = PyCapsule_New(self, old ? "dltensor" : "dltensor_versioned", capsule_end);
    if (capsule == NULL) {
        manager_release(array);
        PyMem_RawFree(self);
    }
    return capsule;
}

/* _mark(capsule, flags, kind, code, bits): what NumPy does not know of a host tensor of its own. */
static PyObject *module_mark(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct cudriver_dl_tensor *tensor;
    PyObject *capsule;
    int flags, kind, code, bits;

    if (!PyArg_ParseTuple(args, "O!iiii", &PyCapsule_Type, &capsule, &flags, &kind, &code, &bits)) {
        return NULL;
    }
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        struct cudriver_dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        managed->flags |= (uint64_t)flags;
        tensor = &managed->tensor;
    } else { /* which has no flags; its tensor comes first */
        tensor = PyCapsule_GetPointer(capsule, "dltensor");
    }
    if (tensor == NULL) {
        return NULL;
    }
    tensor->device.type = kind;
    tensor->dtype.code = (uint8_t)code;
    tensor->dtype.bits = (uint8_t)bits;
    Py_RETURN_NONE;
}

/* ---- the exchange table ---- */

/* Of the imported module; the table's functions are given no object to find it by. */
static CoreState *imported;

/* The standard asks for no order here: a consumer queues its work on our current stream, which is
 * made to wait for our work on others. */
static int table_from_object(void *object, struct cudriver_dl_managed **out)
{
    CUDRIVER_LOCK();
    DeviceArrayObject *array = object;
    struct cudriver_dl_type type = {.lanes = 1};
    struct export *made;
    struct cudriver_stream on = {.handle = NULL};
    StreamObject *entered;

    *out = NULL;
    if (!Py_IS_TYPE(object, imported->device_array_type)) {
        PyErr_Format(PyExc_TypeError, "a DeviceArray is wanted, not %.100s",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    entered = cudriver_dlpack_stream(imported, array->memory->context->ordinal);
    if (entered != NULL && cudriver_stream_read(imported, (PyObject *)entered, &on) < 0) {
        return -1;
    }
    made = array_lend(imported, array, on.handle != NULL ? (long long)(uintptr_t)on.handle : 1,
                      &type, false, 0);
    cudriver_stream_done(&on);
    *out = made != NULL ? &made->head.versioned : NULL;
    return made != NULL ? 0 : -1;
}

static int table_to_object(struct cudriver_dl_managed *tensor, void **object)
{
    CUDRIVER_LOCK();
    struct cudriver_endpoint end;

    *object = NULL;
    if (cudriver_dlpack_adopt(imported, tensor, &end) == 0) {
        *object = cudriver_endpoint_array(imported, &end);
        cudriver_endpoint_done(&end);
    }
    return *object != NULL ? 0 : -1;
}

/* May be called without the GIL, and an exception travels as text. */
static int table_allocate(struct cudriver_dl_tensor *like, struct cudriver_dl_managed **out,
                          void *context,
                          void (*set_error)(void *context, const char *kind, const char *message))
{
    PyGILState_STATE gil = PyGILState_Ensure();
    const char *kind = "RuntimeError", *message = "the allocation failed";
    PyObject *made = cudriver_call(
        CALL_dlpack_allocate, (int)like->device.type, (int)like->device.id, like->dtype.code,
        like->dtype.bits, like->dtype.lanes,
        Py_BuildValue("y#", like->shape, (Py_ssize_t)(sizeof like->shape[0] * (size_t)like->ndim)));
    int failed = made != NULL && !PyTuple_Check(made) ? table_from_object(made, out) : -1;

    if (failed < 0) {
        (void)(made != NULL && PyArg_ParseTuple(made, "ss", &kind, &message));
        PyErr_Clear();
        *out = NULL;
        set_error(context, kind, message);
    }
    Py_XDECREF(made);
    PyGILState_Release(gil);
    return failed;
}

static int table_current_stream(int32_t device_type, int32_t device_id, void **stream)
{
    PyGILState_STATE gil = PyGILState_Ensure();

    *stream = NULL; /* the default one */
    if (device_type == CUDRIVER_DL_CUDA || device_type == CUDRIVER_DL_CUDA_MANAGED) {
        CUDRIVER_LOCK();
        const StreamObject *current = cudriver_dlpack_stream(imported, device_id);
        *stream = current != NULL ? current->handle : NULL;
    }
    PyGILState_Release(gil);
    return 0;
}

/* `borrow` is not offered: an array has its strides in bytes, and the caller gives no room for
 * those in items. */
static struct cudriver_dl_exchange table = {
    .version = {CUDRIVER_DL_MAJOR, CUDRIVER_DL_MINOR},
    .allocate = table_allocate,
    .from_object = table_from_object,
    .to_object = table_to_object,
    .current_stream = table_current_stream,
};

int cudriver_dlpack_exchange_setup(CoreState *state)
{
    PyTypeObject *type = state->device_array_type;
    PyObject *capsule = PyCapsule_New(&table, "dlpack_exchange_api", NULL);
    int failed = -1;

    imported = state;
    if (capsule != NULL) { /* Python cannot change the type, and nobody has seen it yet */
        failed = PyDict_SetItemString(type->tp_dict, "__dlpack_c_exchange_api__", capsule);
        PyType_Modified(type);
        Py_DECREF(capsule);
    }
    return failed;
}

PyMethodDef cudriver_dlpack_export_functions[] = {
    {"_mark", module_mark, METH_VARARGS, DOC__mark},
    {"_export", module_export, METH_VARARGS, DOC__export},
    {NULL},
};

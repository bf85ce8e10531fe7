/* DeviceArrays lent to other libraries. See dlpack.h. */
#include "dlpack.h"

#include "contexts/work.h"
#include "driver/driver.h"
#include "python/arguments.h"
#include "python/dlpack_types.h"
#include "python/error.h"
#include "python/numpy_bridge.h"

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
    array->memory->exports--;
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

/* Whether the strides are whole items; if not, BufferError. */
static bool strides_fit(const struct cudriver_endpoint *end)
{
    for (int i = 0; i < end->ndim; i++) {
        if (end->strides[i] % (Py_ssize_t)end->itemsize != 0) {
            PyErr_Format(PyExc_BufferError,
                         "DLPack has strides of whole items: that of axis %d is %zd bytes, and an "
                         "item has %zu",
                         i, end->strides[i], end->itemsize);
            return false;
        }
    }
    return true;
}

/* New: a tensor in one of both kinds, which owns the array that `end` is. NULL with an exception
 * set. */
static struct export *export_of(CoreState *state, const struct cudriver_endpoint *end, bool old,
                                uint64_t flags)
{
    DeviceArrayObject *array = (DeviceArrayObject *)end->owner;
    bool c_contiguous, f_contiguous, writable, padded;
    struct cudriver_dl_type type;
    struct export *self;

    cudriver_numpy_flags(array->array, &c_contiguous, &f_contiguous, &writable);
    if (cudriver_dlpack_type(state, end->dtype, &type, &padded) < 0 || !strides_fit(end)) {
        return NULL;
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
    array->memory->exports++;
    /* The other library's work is not ours to wait for: free the memory behind all work. */
    array->memory->block.shared = true;
    return self;
}

/* The same of an array. */
static struct export *export_new(CoreState *state, DeviceArrayObject *array, bool old,
                                 uint64_t flags)
{
    struct cudriver_endpoint end;
    struct export *self;

    if (cudriver_device_array_endpoint(state, (PyObject *)array, false, &end) < 0) {
        return NULL;
    }
    self = export_of(state, &end, old, flags);
    cudriver_endpoint_done(&end);
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

static PyObject *capsule_new(CoreState *state, DeviceArrayObject *array, bool old, uint64_t flags)
{
    struct export *self = export_new(state, array, old, flags);
    PyObject *capsule;

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

/* Reads max_version: whether the consumer knows only the older kind. 0 or -1. */
static int parse_version(PyObject *argument, bool *old)
{
    long major = 0;

    if (argument != NULL && argument != Py_None) {
        if (!PyTuple_Check(argument) || PyTuple_GET_SIZE(argument) != 2) {
            PyErr_Format(PyExc_TypeError, "max_version is None or a pair (major, minor), not %R",
                         argument);
            return -1;
        }
        major = PyLong_AsLong(PyTuple_GET_ITEM(argument, 0));
        if (major == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    *old = major < 1;
    return 0;
}

/* Reads dl_device. *host: it is the CPU, and not this array's device. 0 or -1. */
static int parse_device(DeviceArrayObject *array, PyObject *argument, bool *host)
{
    long type, id;

    *host = false;
    if (argument == NULL || argument == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(argument) || PyTuple_GET_SIZE(argument) != 2) {
        PyErr_Format(PyExc_TypeError, "dl_device is None or a pair (type, id), not %R", argument);
        return -1;
    }
    type = PyLong_AsLong(PyTuple_GET_ITEM(argument, 0));
    id = type == -1 && PyErr_Occurred() ? -1 : PyLong_AsLong(PyTuple_GET_ITEM(argument, 1));
    if (PyErr_Occurred()) {
        return -1;
    }
    *host = type == CUDRIVER_DL_CPU;
    if (!*host && (type != CUDRIVER_DL_CUDA || id != array->memory->context->ordinal)) {
        PyErr_Format(PyExc_BufferError,
                     "%R cannot be exported to dl_device (%ld, %ld): only to its own device, "
                     "(2, %d), or copied to the CPU, (1, 0)",
                     array, type, id, array->memory->context->ordinal);
        return -1;
    }
    return 0;
}

/* Reads `stream`. *sync: whether a stream must wait, and *number which. 0 or -1. */
static int parse_stream(PyObject *argument, bool *sync, uintptr_t *number)
{
    long long value = 1; /* None: the default stream */

    if (argument != NULL && argument != Py_None) {
        value = PyLong_AsLongLong(argument);
        if (value == -1 && PyErr_Occurred()) {
            if (PyErr_ExceptionMatches(PyExc_TypeError)) {
                PyErr_Format(PyExc_TypeError, "stream is None or an integer, not %.100s",
                             Py_TYPE(argument)->tp_name);
            }
            return -1;
        }
    }
    if (value == 0 || value < -1) {
        PyErr_Format(PyExc_ValueError,
                     "stream=%lld: DLPack has -1 (no stream waits), 1 (the legacy default stream), "
                     "2 (the default stream of the thread) or a stream's handle%s",
                     value, value == 0 ? "; 0 could be either of the default streams" : "");
        return -1;
    }
    *sync = value != -1;
    *number = (uintptr_t)value;
    return 0;
}

/* Lets the consumer's stream wait for our work in flight on the array's memory. `number`: 1, 2 or a
 * handle, as the standard has it. 0 or -1. */
static int consumer_follow(CoreState *state, DeviceArrayObject *array, uintptr_t number)
{
    struct cudriver_device_memory *memory = array->memory;
    CUstream stream = (CUstream)number;
    ContextObject *context;
    int failed;

    if (state->works == NULL && memory->block.home == NULL) {
        return 0;
    }
    if (number > 2) {
        context = (ContextObject *)Py_NewRef((PyObject *)memory->context);
    } else { /* a default stream is that of the consumer's context */
        context = cudriver_context_for_ordinal(state, array->memory->context->ordinal);
        if (context == NULL) {
            return -1;
        }
    }
    failed = cudriver_device_follow(state, memory->context, &memory->block, context, stream);
    if (failed == 0) {
        failed = cudriver_works_follow(state, cudriver_device_array_uses, memory, context, stream);
    }
    Py_DECREF(context);
    return failed;
}

/* Says that a tensor is a copy, where its kind can: NumPy does not know that ours is one. */
static void mark_copied(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        struct cudriver_dl_managed *tensor = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        tensor->flags |= CUDRIVER_DL_IS_COPIED;
    }
}

/* New reference: what a copy in host memory exports itself. */
static PyObject *host_capsule(DeviceArrayObject *array, bool old)
{
    PyObject *copy = PyObject_CallMethod((PyObject *)array, "to_numpy", NULL);
    PyObject *capsule = NULL, *method, *names, *none;

    if (copy == NULL) {
        return NULL;
    }
    method = PyObject_GetAttrString(copy, "__dlpack__");
    none = PyTuple_New(0);
    names = old ? PyDict_New()
                : Py_BuildValue("{s(ii)}", "max_version", CUDRIVER_DL_MAJOR, CUDRIVER_DL_MINOR);
    if (method != NULL && none != NULL && names != NULL) {
        capsule = PyObject_Call(method, none, names);
        if (capsule == NULL && !old && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear(); /* NumPy before 2.1 knows only the older kind */
            capsule = PyObject_Call(method, none, NULL);
        }
    }
    if (capsule != NULL) {
        mark_copied(capsule);
    }
    Py_XDECREF(method);
    Py_XDECREF(none);
    Py_XDECREF(names);
    Py_DECREF(copy);
    return capsule;
}

PyObject *cudriver_device_array_dlpack(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                       PyObject *keywords)
{
    static const char *const names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    static const struct cudriver_signature signature = {"__dlpack__", 0, 0, names};
    DeviceArrayObject *self = (DeviceArrayObject *)object;
    CoreState *state = cudriver_state_of(object);
    PyObject *values[4], *copy, *capsule;
    uintptr_t number;
    bool old, host, sync;
    int copied;

    if (cudriver_arguments(&signature, args, count, keywords, values) < 0 ||
        parse_version(values[1], &old) < 0 || parse_device(self, values[2], &host) < 0 ||
        parse_stream(host ? NULL : values[0], &sync, &number) < 0) {
        return NULL;
    }
    copied = values[3] == NULL || values[3] == Py_None ? -1 : PyObject_IsTrue(values[3]);
    if (PyErr_Occurred() || cudriver_device_array_check(state, self) < 0) {
        return NULL;
    }
    if (host) {
        if (copied == 0) {
            return PyErr_Format(PyExc_BufferError,
                                "%R is in device memory: the CPU gets it by a copy, and copy=False",
                                object);
        }
        return host_capsule(self, old);
    }
    if (copied > 0) { /* waits, so no stream has to */
        copy = cudriver_device_array_copy(state, self, NULL);
        capsule = copy != NULL
                      ? capsule_new(state, (DeviceArrayObject *)copy, old, CUDRIVER_DL_IS_COPIED)
                      : NULL;
        Py_XDECREF(copy);
        return capsule;
    }
    if (sync && consumer_follow(state, self, number) < 0) {
        return NULL;
    }
    return capsule_new(state, self, old, 0);
}

PyObject *cudriver_device_array_dlpack_device(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("(ii)", CUDRIVER_DL_CUDA,
                         ((DeviceArrayObject *)object)->memory->context->ordinal);
}

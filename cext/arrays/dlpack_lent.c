/* Tensors that other libraries lend us: asked for, put in order, kept alive and given back. See
 * dlpack.h. */
#include "dlpack.h"

#include "docstrings.h"
#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"
#include "python/numpy_bridge.h"

/* ---- the keeper of a tensor, which gives it back once ---- */

struct lent {
    PyObject *keeper;                        /* owned: gives the tensor back when it goes */
    const struct cudriver_dl_tensor *tensor; /* lives as long as the keeper */
    uint64_t flags;
};

#define KEEPER "cudriver dlpack keeper"
#define KEEPER_OLD "cudriver old dlpack keeper"

/* The end of a keeper: gives the tensor back, and keeps the exception, because the deleter may run
 * Python code. */
static void keeper_end(PyObject *capsule)
{
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback);
    if (PyCapsule_IsValid(capsule, KEEPER)) {
        struct cudriver_dl_managed *tensor = PyCapsule_GetPointer(capsule, KEEPER);
        if (tensor->deleter != NULL) {
            tensor->deleter(tensor);
        }
    } else {
        struct cudriver_dl_old *tensor = PyCapsule_GetPointer(capsule, KEEPER_OLD);
        if (tensor->deleter != NULL) {
            tensor->deleter(tensor);
        }
    }
    PyErr_Restore(type, value, traceback);
}

/* Takes a tensor over, unless this fails. 0, or -1 with an exception set. */
static int tensor_take(struct cudriver_dl_managed *tensor, struct lent *lent)
{
    lent->keeper = PyCapsule_New(tensor, KEEPER, keeper_end);
    lent->tensor = &tensor->tensor;
    lent->flags = tensor->flags;
    return lent->keeper != NULL ? 0 : -1;
}

/* 0 if we know the layout of a tensor; else -1 with BufferError. In every version of DLPack the
 * version and the deleter are at the same place. */
static int version_check(const struct cudriver_dl_managed *tensor)
{
    if (tensor->version.major == CUDRIVER_DL_MAJOR) {
        return 0;
    }
    PyErr_Format(PyExc_BufferError,
                 "a tensor of DLPack %u.%u cannot be read: this package knows %d.%d",
                 (unsigned)tensor->version.major, (unsigned)tensor->version.minor,
                 CUDRIVER_DL_MAJOR, CUDRIVER_DL_MINOR);
    return -1;
}

/* Takes a tensor over out of its capsule, unless this fails. 0, or -1 with an exception set. */
static int capsule_take(PyObject *capsule, struct lent *lent)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        struct cudriver_dl_managed *tensor = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        return version_check(tensor) < 0 || tensor_take(tensor, lent) < 0
                   ? -1
                   : PyCapsule_SetName(capsule, "used_dltensor_versioned");
    }
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        struct cudriver_dl_old *tensor = PyCapsule_GetPointer(capsule, "dltensor");
        lent->keeper = PyCapsule_New(tensor, KEEPER_OLD, keeper_end);
        lent->tensor = &tensor->tensor;
        lent->flags = 0;
        return lent->keeper == NULL ? -1 : PyCapsule_SetName(capsule, "used_dltensor");
    }
    return cudriver_do(CALL_dlpack_refuse, capsule,
                       PyCapsule_CheckExact(capsule) ? PyCapsule_GetName(capsule) : NULL);
}

/* ---- the stream ---- */

StreamObject *cudriver_dlpack_stream(CoreState *state, int ordinal)
{
    StreamObject *stream = cudriver_stream_entered(state);

    return stream != NULL && !stream->closed && stream->context->ordinal == ordinal ? stream : NULL;
}

/* Lets our stream wait for another library's; both may be default streams, which are those of
 * `context`. What cannot be ordered counts as ordered: a captured stream's work does not run now,
 * and waits for none outside its graph. False if the driver refuses. */
static bool put_behind(CoreState *state, ContextObject *context, CUstream theirs, CUstream ours)
{
    bool pushed, done, ours_captured, theirs_captured;

    if (cudriver_context_begin(state, context, &pushed) < 0) {
        PyErr_Clear(); /* then the other library's __dlpack__ is asked */
        return false;
    }
    ours_captured = cudriver_capture_forbids(ours);
    theirs_captured = cudriver_capture_forbids(theirs);
    if ((ours_captured && !cudriver_stream_is_default(ours)) ||
        (theirs_captured && !cudriver_stream_is_default(theirs))) {
        done = true;
    } else if (ours_captured || theirs_captured) {
        done = !theirs_captured && cuda.cuStreamQuery(theirs) == CUDA_SUCCESS;
    } else {
        Py_BEGIN_ALLOW_THREADS
        done = cudriver_staging_follow(NULL, theirs, NULL, ours) == CUDA_SUCCESS;
        Py_END_ALLOW_THREADS
    }
    cudriver_context_end(context, pushed);
    return done;
}

/* ---- the protocol's names ---- */

enum word { WORD_TABLE, WORD_DLPACK, WORD_GRAD, WORD_CONJ, WORD_NEG };

PyObject *cudriver_dlpack_words(void)
{
    return Py_BuildValue(
        "(NNNNN)", PyUnicode_InternFromString("__dlpack_c_exchange_api__"),
        PyUnicode_InternFromString("__dlpack__"), PyUnicode_InternFromString("requires_grad"),
        PyUnicode_InternFromString("is_conj"), PyUnicode_InternFromString("is_neg"));
}

/* Borrowed: a name. */
static PyObject *word(const CoreState *state, int which)
{
    return PyTuple_GET_ITEM(state->dlpack_words, which);
}

/* ---- PyTorch's tensors that are more than their memory ---- */

/* What an object is, as far as it says so by `requires_grad`. */
enum kind {
    KIND_OTHER,
    KIND_TENSOR, /* of PyTorch */
    KIND_GRAD,   /* one that requires grad */
};

/* An object's kind, or -1 with an exception set. */
static int kind_of(CoreState *state, PyObject *object)
{
    PyObject *grad;
    int found = PyObject_GetOptionalAttr(object, word(state, WORD_GRAD), &grad);
    int kind = KIND_OTHER;

    if (found > 0) {
        found = PyObject_IsTrue(grad);
        kind = found > 0 ? KIND_GRAD : KIND_TENSOR;
        Py_DECREF(grad);
    }
    return found < 0 ? -1 : kind;
}

/* Whether a method returns true. 1, 0, or -1; 0 if there is none. */
static int method_says(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_CallMethodNoArgs(object, name);
    int truth = value != NULL ? PyObject_IsTrue(value) : -1;

    Py_XDECREF(value);
    if (truth < 0 && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        truth = 0;
    }
    return truth;
}

/* ---- asking: the method __dlpack__ ---- */

/* Reads a tensor of `object` that was taken into an end, which gets the keeper, and gives it back
 * if that fails. 0 or -1. */
static int lent_read(CoreState *state, PyObject *object, bool never_copied, struct lent *lent,
                     struct cudriver_endpoint *end)
{
    int failed =
        cudriver_dlpack_read(state, lent->tensor, (lent->flags & CUDRIVER_DL_PADDED) != 0, end);

    end->owner = lent->keeper;
    end->read_only = (lent->flags & CUDRIVER_DL_READ_ONLY) != 0;
    if (failed == 0 && never_copied && (lent->flags & CUDRIVER_DL_IS_COPIED)) {
        PyErr_Format(
            PyExc_BufferError,
            "the %.100s lent a copy, although copy=False asked for its own memory: what is "
            "written there would be lost",
            Py_TYPE(object)->tp_name);
        failed = -1;
    }
    if (failed < 0) {
        cudriver_endpoint_done(end);
    }
    return failed;
}

/* 1 done, 0 no such method, -1 an exception. */
static int ask_method(CoreState *state, PyObject *object, bool never_copied,
                      const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    long long number = on->handle != NULL ? (long long)(uintptr_t)on->handle : 1;
    PyObject *method, *capsule = NULL;
    struct lent lent;
    int found = PyObject_GetOptionalAttr(object, word(state, WORD_DLPACK), &method), failed = -1;

    if (found <= 0) {
        return found;
    }
    if (number <= 2 || cudriver_require() == 0) {
        if (on == CUDRIVER_UNORDERED || (number > 2 && cudriver_capture_forbids(on->handle))) {
            number = -1; /* what is captured can wait for no work outside its graph */
        }
        capsule = cudriver_call(CALL_dlpack_ask, object, method, number,
                                on->context != NULL ? on->context->ordinal : -1,
                                never_copied ? Py_True : Py_False);
    }
    if (capsule != NULL) {
        failed = capsule_take(capsule, &lent);
    }
    if (failed == 0) {
        failed = lent_read(state, object, never_copied, &lent, end);
    }
    Py_DECREF(method);
    Py_XDECREF(capsule);
    return failed < 0 ? -1 : 1;
}

/* ---- asking: the exchange table ---- */

const struct cudriver_dl_exchange *cudriver_dlpack_table(CoreState *state, PyObject *object)
{
    PyObject *capsule = cudriver_type_attribute(Py_TYPE(object), word(state, WORD_TABLE));
    const struct cudriver_dl_exchange *table = NULL;

    if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    }
    Py_XDECREF(capsule); /* the table lives as long as the process */
    while (table != NULL && table->version.major != CUDRIVER_DL_MAJOR) {
        table = table->older;
    }
    return table;
}

/* Makes a tensor's memory, in `context`, ready for our stream, if need be: the table orders
 * nothing. Whether it is. */
static bool make_ready(CoreState *state, const struct cudriver_dl_exchange *table,
                       const struct cudriver_stream *on, const struct cudriver_dl_device *device,
                       ContextObject *context)
{
    bool here = on->context == NULL || on->context->ordinal == device->id;
    CUstream ours = here ? on->handle : NULL;
    void *theirs = NULL;

    if (on == CUDRIVER_UNORDERED) {
        return true;
    }
    if (table->current_stream == NULL ||
        table->current_stream(device->type, device->id, &theirs) < 0) {
        PyErr_Clear();
        return false;
    }
    /* 0 and 1 are the default stream. */
    return ours == theirs || ((uintptr_t)ours <= 1 && (uintptr_t)theirs <= 1) ||
           put_behind(state, context, theirs, ours);
}

/* Whether a table's tensor is one that we can read, and is what its memory says: PyTorch's table
 * lends lazily conjugated and negated ones, too. These are complex, or of a complex one's imaginary
 * part; to ask costs as much as the tensor, so others are not asked. 1, 0, or -1. */
static int is_plain(CoreState *state, PyObject *object, int kind,
                    const struct cudriver_dl_managed *tensor)
{
    uint8_t code;
    int odd;

    if (tensor->version.major != CUDRIVER_DL_MAJOR) { /* its dtype may lie elsewhere */
        return 0;
    }
    code = tensor->tensor.dtype.code;
    if (kind != KIND_TENSOR || (code != CUDRIVER_DL_FLOAT && code != CUDRIVER_DL_COMPLEX)) {
        return 1;
    }
    odd = method_says(object, word(state, WORD_NEG));
    if (odd == 0 && code == CUDRIVER_DL_COMPLEX) {
        odd = method_says(object, word(state, WORD_CONJ));
    }
    return odd < 0 ? -1 : !odd;
}

/* 1 done, 0 it cannot be had this way (no exception), -1 an exception. */
static int ask_table(CoreState *state, PyObject *object, int kind, bool never_copied,
                     const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    const struct cudriver_dl_exchange *table = cudriver_dlpack_table(state, object);
    struct cudriver_dl_managed *tensor = NULL;
    struct lent lent;
    int found;

    if (table == NULL || table->from_object == NULL) {
        return 0;
    }
    if (table->from_object(object, &tensor) < 0 || tensor == NULL) {
        PyErr_Clear(); /* __dlpack__ says why */
        return 0;
    }
    if (tensor_take(tensor, &lent) < 0) {
        PyErr_Clear(); /* the deleter may run Python code */
        if (tensor->deleter != NULL) {
            tensor->deleter(tensor);
        }
        PyErr_NoMemory();
        return -1;
    }
    found = is_plain(state, object, kind, tensor);
    if (found <= 0) {
        Py_DECREF(lent.keeper);
        return found;
    }
    if (lent_read(state, object, never_copied, &lent, end) < 0) {
        return -1;
    }
    if (end->context != NULL &&
        !make_ready(state, table, on, &tensor->tensor.device, end->context)) {
        cudriver_endpoint_done(end);
        return 0;
    }
    return 1;
}

/* Asks an object of a kind for its tensor, and reads that into `end`, as cudriver_dlpack_read does;
 * a kind of -1 fails. `never_copied`: it must not be a copy. Device memory is made ready for `on`
 * if that is on its device, else for the device's default stream; if `on` is NULL, for
 * cudriver_dlpack_stream. A stream that is being captured can wait for no work outside its graph,
 * and none can wait for it: then nothing is ordered, and neither if `on` is CUDRIVER_UNORDERED. 1
 * done: `end`, whose owner is the tensor's keeper, is the caller's to release. 0 no such protocol,
 * -1 an exception. */
static int tensor_borrow(CoreState *state, PyObject *object, int kind, bool never_copied,
                         const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    struct cudriver_stream entered = {.handle = NULL};
    int found = 0;

    if (kind < 0 || (on == NULL && cudriver_stream_read(state, NULL, &entered) < 0)) {
        return -1;
    }
    on = on != NULL ? on : &entered;
    if (kind != KIND_GRAD) { /* else __dlpack__ says why not */
        found = ask_table(state, object, kind, never_copied, on, end);
    }
    if (found == 0) {
        found = ask_method(state, object, never_copied, on, end);
    }
    cudriver_stream_done(&entered);
    return found;
}

/* ---- given ---- */

int cudriver_dlpack_adopt(CoreState *state, struct cudriver_dl_managed *tensor,
                          struct cudriver_endpoint *end)
{
    struct lent lent;

    if (tensor_take(tensor, &lent) < 0) {
        return -1;
    }
    if (version_check(tensor) < 0) {
        Py_DECREF(lent.keeper);
        return -1;
    }
    return lent_read(state, Py_None, false, &lent, end);
}

/* ---- as an array, or as one end of a copy ---- */

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

int cudriver_dlpack_endpoint(CoreState *state, PyObject *object, bool own,
                             const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    int kind = kind_of(state, object), found;
    PyObject *plain = NULL;

    if (kind == KIND_GRAD) {
        object = plain = PyObject_CallMethod(object, "detach", NULL);
        kind = plain != NULL ? KIND_TENSOR : -1;
    }
    found = tensor_borrow(state, object, kind, own, on, end);
    if (found <= 0) {
        Py_XDECREF(plain);
        return found;
    }
    if (plain != NULL) {
        end->read_only = true;
        Py_DECREF(plain);
    }
    if (end->context != NULL && on != CUDRIVER_UNORDERED) {
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
    found = tensor_borrow(state, object, kind_of(state, object), never_copied != 0, NULL, &end);
    if (found <= 0) {
        return found == 0 ? cudriver_call(CALL_dlpack_refuse_lender, object) : NULL;
    }
    array = cudriver_endpoint_array(state, &end);
    cudriver_endpoint_done(&end);
    return array;
}

PyMethodDef cudriver_dlpack_from_functions[] = {
    {"_borrow", module_borrow, METH_VARARGS, DOC__borrow},
    {NULL},
};

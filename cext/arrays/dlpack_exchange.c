/* The table of C functions by which other libraries take and make DeviceArrays. See dlpack.h. */
#include "dlpack.h"

#include "python/dlpack_types.h"
#include "python/shape.h"

/* Borrowed: the state of the imported module; NULL with an exception set. The table's functions are
 * given no object to find it by. */
static CoreState *state_imported(void)
{
    PyObject *module = PyImport_ImportModule("cudriver._core");
    CoreState *state = NULL;

    if (module == NULL) {
        return NULL;
    }
    if (PyModule_Check(module)) {
        state = cudriver_state_of_module(module);
    }
    if (state == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "cudriver._core has been replaced");
    }
    Py_DECREF(module); /* sys.modules holds it */
    return state;
}

/* The standard asks for no order here: a consumer queues its work on our current stream. That
 * stream is made to wait for our work on others. */
static int table_from_object(void *object, struct cudriver_dl_managed **out)
{
    DeviceArrayObject *array = object;
    CoreState *state = state_imported();
    StreamObject *stream;
    int failed;

    *out = NULL;
    if (state == NULL) {
        return -1;
    }
    if (!Py_IS_TYPE(array, state->device_array_type)) {
        PyErr_Format(PyExc_TypeError, "a DeviceArray is wanted, not %.100s",
                     Py_TYPE(array)->tp_name);
        return -1;
    }
    if (cudriver_device_array_check(state, array) < 0) {
        return -1;
    }
    stream = cudriver_dlpack_stream(state, array->context->ordinal);
    cudriver_stream_hold(stream);
    failed = cudriver_dlpack_follow(state, array, cudriver_dlpack_number(stream));
    cudriver_stream_let_go(stream);
    if (failed < 0) {
        return -1;
    }
    *out = cudriver_dlpack_export(state, array);
    return *out == NULL ? -1 : 0;
}

static int table_to_object(struct cudriver_dl_managed *tensor, void **object)
{
    CoreState *state = state_imported();
    struct cudriver_endpoint end;
    struct cudriver_dl_lent lent;

    *object = NULL;
    if (cudriver_dlpack_take(tensor, &lent) < 0) {
        return -1;
    }
    if (state == NULL || cudriver_dlpack_check_version(tensor) < 0) {
        Py_DECREF(lent.keeper);
        return -1;
    }
    if (lent.tensor->device.type != CUDRIVER_DL_CUDA &&
        lent.tensor->device.type != CUDRIVER_DL_CUDA_MANAGED) {
        PyErr_Format(PyExc_BufferError,
                     "a DeviceArray is in device memory, not of DLPack's device type %d",
                     (int)lent.tensor->device.type);
    } else {
        if (cudriver_dlpack_read(state, &lent, &end) == 0) {
            *object = cudriver_dlpack_array(state, &lent, &end);
        }
        cudriver_endpoint_done(&end);
    }
    Py_DECREF(lent.keeper);
    return *object == NULL ? -1 : 0;
}

/* New reference: an uninitialised array like a tensor without memory. */
static PyObject *array_like(CoreState *state, const struct cudriver_dl_tensor *like)
{
    Py_ssize_t shape[CUDRIVER_MAX_DIMS], itemsize;
    PyObject *dtype, *array = NULL;
    ContextObject *context;

    if (like->device.type != CUDRIVER_DL_CUDA || like->ndim < 0 || like->ndim > CUDRIVER_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError,
                     "no DeviceArray has %d dimensions in memory of DLPack's device type %d",
                     (int)like->ndim, (int)like->device.type);
        return NULL;
    }
    for (int i = 0; i < like->ndim; i++) {
        shape[i] = (Py_ssize_t)like->shape[i];
        if (shape[i] < 0) {
            PyErr_Format(PyExc_ValueError, "the length of axis %d is %zd", i, shape[i]);
            return NULL;
        }
    }
    dtype = cudriver_dlpack_dtype(state, like->dtype, false, &itemsize);
    if (dtype == NULL) {
        return NULL;
    }
    context = cudriver_context_for_ordinal(state, like->device.id);
    if (context != NULL) {
        array = cudriver_device_array_new(state, context, NULL, dtype, itemsize, like->ndim, shape);
    }
    Py_XDECREF(context);
    Py_DECREF(dtype);
    return array;
}

/* Hands the exception set to the caller's function. */
static void error_hand_over(void *context,
                            void (*set_error)(void *context, const char *kind, const char *message))
{
    PyObject *type, *value, *traceback, *text;
    const char *message, *kind;

    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    text = value != NULL ? PyObject_Str(value) : NULL;
    message = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    PyErr_Clear();
    kind = type != NULL && PyErr_GivenExceptionMatches(type, PyExc_MemoryError)   ? "MemoryError"
           : type != NULL && PyErr_GivenExceptionMatches(type, PyExc_ValueError)  ? "ValueError"
           : type != NULL && PyErr_GivenExceptionMatches(type, PyExc_BufferError) ? "BufferError"
                                                                                  : "RuntimeError";
    set_error(context, kind, message != NULL ? message : "the allocation failed");
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

/* May be called without the GIL. */
static int table_allocate(struct cudriver_dl_tensor *like, struct cudriver_dl_managed **out,
                          void *context,
                          void (*set_error)(void *context, const char *kind, const char *message))
{
    PyGILState_STATE gil = PyGILState_Ensure();
    CoreState *state = state_imported();
    PyObject *array = state != NULL ? array_like(state, like) : NULL;

    *out = array != NULL ? cudriver_dlpack_export(state, (DeviceArrayObject *)array) : NULL;
    Py_XDECREF(array);
    if (*out == NULL) {
        error_hand_over(context, set_error);
    }
    PyGILState_Release(gil);
    return *out == NULL ? -1 : 0;
}

static int table_current_stream(int32_t device_type, int32_t device_id, void **stream)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    CoreState *state = state_imported();
    const StreamObject *current;

    *stream = NULL;
    if (state != NULL && device_type != CUDRIVER_DL_CPU) {
        current = cudriver_dlpack_stream(state, device_id);
        *stream = current != NULL ? current->handle : NULL;
    }
    PyGILState_Release(gil);
    return state == NULL ? -1 : 0;
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

int cudriver_dlpack_exchange_setup(PyObject *module)
{
    PyTypeObject *type = cudriver_state_of_module(module)->device_array_type;
    PyObject *capsule = PyCapsule_New(&table, "dlpack_exchange_api", NULL);
    int failed = -1;

    if (capsule != NULL) { /* the type is immutable from Python; nobody has seen it yet */
        failed = PyDict_SetItemString(type->tp_dict, "__dlpack_c_exchange_api__", capsule);
        PyType_Modified(type);
        Py_DECREF(capsule);
    }
    return failed;
}

/* Arrays that others show without DLPack: one end of a copy. See copy_private.h. */
#include "copy_private.h"

#include "dlpack.h"
#include "python/call.h"
#include "python/error.h"
#include "python/numpy_bridge.h"

/* Fills an endpoint with what memory/foreign.py has read of an array on a device, finds its context
 * and waits for the producer. 0 or -1. */
static int endpoint_read(CoreState *state, PyObject *object, PyObject *read,
                         const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    PyObject *array, *stream;
    ContextObject *home;
    CUdeviceptr address;
    CUstream handle;
    int failed;

    if (!PyArg_ParseTuple(read, "KOO", &address, &array, &stream) ||
        cudriver_numpy_endpoint(array, object, end) < 0) {
        return -1;
    }
    end->device = address;
    end->host = NULL;
    if (end->device == 0) { /* an empty array has no memory and no work */
        return 0;
    }
    if (cudriver_require() < 0) {
        return -1;
    }
    end->context = cudriver_foreign_context(state, end, Py_TYPE(object)->tp_name);
    end->kept = (PyObject *)end->context;
    if (end->context == NULL || stream == Py_None || on == CUDRIVER_UNORDERED) {
        return end->context == NULL ? -1 : 0;
    }
    /* A default stream is that of the memory's context; another may be of another context. */
    handle = (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(stream);
    home = cudriver_stream_is_default(handle) ? (ContextObject *)Py_NewRef((PyObject *)end->context)
                                              : cudriver_stream_context(state, handle);
    failed = home != NULL ? cudriver_stream_drain(state, home, handle, NULL) : -1;
    Py_XDECREF(home);
    return failed;
}

int cudriver_interface_endpoint(CoreState *state, PyObject *object, bool write,
                                const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    PyObject *read = cudriver_call(CALL_foreign_memory_of, object, write ? Py_True : Py_False);
    int found = read == NULL ? -1 : read == Py_None ? 0 : 1;

    if (found > 0 && (PyTuple_Check(read) ? endpoint_read(state, object, read, on, end)
                                          : cudriver_numpy_endpoint(read, read, end)) < 0) {
        cudriver_endpoint_done(end);
        found = -1;
    }
    Py_XDECREF(read);
    return found;
}

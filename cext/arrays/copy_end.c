/* One end of a copy, read from whatever has memory. See copy.h. */
#include "copy.h"
#include "device_array.h"
#include "dlpack.h"
#include "python/numpy_bridge.h"

const struct cudriver_stream cudriver_unordered;

/* Reads an end that is a buffer or has NumPy's array interface: 1, 0 or -1. */
static int view_endpoint(PyObject *object, bool write, struct cudriver_endpoint *end)
{
    PyObject *array;
    int found = cudriver_numpy_view(object, &array);

    if (found > 0 && cudriver_numpy_endpoint(array, write, end) < 0) {
        found = -1;
    }
    Py_XDECREF(array); /* the endpoint keeps it alive */
    return found;
}

int cudriver_endpoint_try(CoreState *state, PyObject *object, bool write,
                          const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    int found;

    cudriver_endpoint_clear(end);
    if (Py_IS_TYPE(object, state->device_array_type)) {
        return cudriver_device_array_endpoint(object, write, end) < 0 ? -1 : 1;
    }
    if (cudriver_numpy_is_array(object)) {
        return cudriver_numpy_endpoint(object, write, end) < 0 ? -1 : 1;
    }
    found = cudriver_dlpack_has_table(state, object); /* then that is the fastest way */
    if (found < 0) {
        return -1;
    }
    found = found > 0 ? 0 : cudriver_foreign_endpoint(state, object, write, on, end);
    if (found == 0 && !PyType_Check(object)) { /* a class shows methods that need an object */
        found = cudriver_dlpack_endpoint(state, object, write, on, end);
    }
    return found == 0 ? view_endpoint(object, write, end) : found;
}

int cudriver_endpoint_parse(CoreState *state, PyObject *object, bool write, const char *name,
                            const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    int found = cudriver_endpoint_try(state, object, write, on, end);

    if (found == 0) {
        PyErr_Format(PyExc_TypeError, "%s is not an array, but a %.100s%s", name,
                     Py_TYPE(object)->tp_name,
                     write ? "" : " (np.asarray() makes an array of most things)");
    }
    return found > 0 ? 0 : -1;
}

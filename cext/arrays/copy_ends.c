/* The ends of a copy: each read from whatever has memory, both checked against each other, and
 * planned. See copy.h and copy_private.h. */
#include "copy_private.h"

#include <string.h>

#include "dlpack.h"
#include "contexts/work.h"
#include "driver/driver.h"
#include "python/call.h"
#include "python/error.h"
#include "python/numpy_bridge.h"

const struct cudriver_stream cudriver_unordered;

/* ---- __cuda_array_interface__ ---- */

/* Fills an endpoint with what memory/foreign.py has read of an object, finds its memory's context
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
        cudriver_numpy_endpoint(array, object, false, end) < 0) {
        return -1;
    }
    end->read_only = !cudriver_numpy_is_writable(array);
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

/* Fills an endpoint through __cuda_array_interface__, and waits for the stream that it names,
 * unless `on` is CUDRIVER_UNORDERED. 1 done; 0 no such protocol, or DLPack is to be asked; -1 an
 * exception. */
static int interface_endpoint(CoreState *state, PyObject *object, bool write,
                              const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    PyObject *read = cudriver_call(CALL_foreign_interface, object, write ? Py_True : Py_False);
    int found = read == NULL ? -1 : read == Py_None ? 0 : 1;

    if (found > 0 && endpoint_read(state, object, read, on, end) < 0) {
        cudriver_endpoint_done(end);
        found = -1;
    }
    Py_XDECREF(read);
    return found;
}

/* ---- any ---- */

int cudriver_endpoint_try(CoreState *state, PyObject *object, bool write,
                          const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    PyObject *array;
    int found;

    cudriver_endpoint_clear(end);
    if (Py_IS_TYPE(object, state->device_array_type)) {
        return cudriver_device_array_endpoint(object, write, end) < 0 ? -1 : 1;
    }
    if (cudriver_numpy_is_array(object)) {
        return cudriver_numpy_endpoint(object, object, write, end) < 0 ? -1 : 1;
    }
    found = cudriver_dlpack_table(state, object) != NULL /* then that is the fastest way */
                ? 0
                : interface_endpoint(state, object, write, on, end);
    if (found == 0 && !PyType_Check(object)) { /* a class shows methods that need an object */
        found = cudriver_dlpack_endpoint(state, object, write, on, end);
    }
    if (found != 0) {
        return found;
    }
    array = cudriver_call(CALL_foreign_view, object); /* a buffer, or NumPy's array interface */
    found = array == NULL ? -1 : array != Py_None;
    if (found > 0 && cudriver_numpy_endpoint(array, array, write, end) < 0) {
        found = -1;
    }
    Py_XDECREF(array); /* the endpoint keeps it alive */
    return found;
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

/* ---- both ---- */

int copy_ends_match(const struct cudriver_endpoint *dst, const struct cudriver_endpoint *src)
{
    if (dst->ndim == src->ndim &&
        memcmp(dst->shape, src->shape, (size_t)dst->ndim * sizeof dst->shape[0]) == 0 &&
        (dst->dtype == src->dtype || cudriver_numpy_same_dtype(dst->dtype, src->dtype))) {
        return 0;
    }
    return cudriver_do(CALL_refusals_ends, cudriver_numpy_tuple(dst->ndim, dst->shape),
                       cudriver_numpy_tuple(src->ndim, src->shape), dst->dtype, src->dtype);
}

void copy_ends_done(struct copy_ends *ends)
{
    cudriver_endpoint_done(&ends->dst);
    cudriver_endpoint_done(&ends->src);
}

int copy_ends_parse(CoreState *state, PyObject *dst, PyObject *src, bool match,
                    const struct cudriver_stream *on, struct copy_ends *ends)
{
    int failed = 0;

    ends->borrow = false;
    if (cudriver_endpoint_parse(state, dst, true, "dst", on, &ends->dst) < 0) {
        return -1;
    }
    if (cudriver_endpoint_parse(state, src, false, "src", on, &ends->src) < 0) {
        cudriver_endpoint_done(&ends->dst);
        return -1;
    }
    if (match) {
        failed = copy_ends_match(&ends->dst, &ends->src);
    }
    /* Items are copied whole, but for those from host memory, which NumPy copies: not into some
     * fields of records. */
    if (failed == 0 && ends->dst.context == NULL && ends->src.context != NULL &&
        cudriver_numpy_has_fields(ends->dst.dtype)) {
        failed = cudriver_do(CALL_refusals_fields, ends->dst.owner);
    }
    if (failed < 0) {
        copy_ends_done(ends);
    }
    return failed;
}

void copy_ends_layout(const struct copy_ends *ends, struct cudriver_layout *layout)
{
    const struct cudriver_endpoint *dst = &ends->dst, *src = &ends->src;

    layout->ndim = dst->ndim;
    layout->itemsize = dst->itemsize;
    layout->dst_offset = layout->src_offset = 0;
    memcpy(layout->shape, dst->shape, (size_t)dst->ndim * sizeof dst->shape[0]);
    memcpy(layout->dst_strides, dst->strides, (size_t)dst->ndim * sizeof dst->strides[0]);
    memcpy(layout->src_strides, src->strides, (size_t)src->ndim * sizeof src->strides[0]);
}

void copy_ends_plan(struct copy_ends *ends, bool blocking, bool ask,
                    struct cudriver_copy_plan *plan)
{
    const struct cudriver_endpoint *dst = &ends->dst, *src = &ends->src;

    for (int i = 0; i < 2; i++) {
        const struct cudriver_endpoint *from = i ? src : dst;
        struct cudriver_copy_end *end = i ? &plan->src : &plan->dst;
        end->on_device = from->context != NULL;
        end->host = from->host;
        end->device = from->device;
        end->context = end->on_device ? from->context->handle : NULL;
        end->ordinal = end->on_device ? from->context->ordinal : -1;
    }
    plan->blocking = blocking;
    plan->fixed = src->fixed;
    plan->borrow = ends->borrow;
    plan->ask = ask;
    copy_ends_layout(ends, &plan->layout);
    ends->home = dst->context != NULL ? dst->context : src->context;
    cudriver_copy_plan_make(plan);
}

bool copy_stream_is_near(const struct cudriver_stream *stream, const struct copy_ends *ends)
{
    const ContextObject *to = ends->dst.context, *from = ends->src.context;

    return (to != NULL && to->ordinal == stream->context->ordinal) ||
           (from != NULL && from->ordinal == stream->context->ordinal);
}

int copy_ends_near(const struct cudriver_stream *stream, const struct copy_ends *ends)
{
    const ContextObject *to = ends->dst.context, *from = ends->src.context;

    if ((to == NULL && from == NULL) || copy_stream_is_near(stream, ends)) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "the stream is on device %d, the array on device %d",
                 stream->context->ordinal, to != NULL ? to->ordinal : from->ordinal);
    return -1;
}

bool copy_is_beside(CoreState *state, const struct cudriver_stream *stream, int ordinal, bool up,
                    size_t bytes)
{
    int priority = stream->held != NULL ? stream->held->priority : 0;

    if (stream->held == NULL && !cudriver_stream_is_default(stream->handle) &&
        cuda.cuStreamGetPriority(stream->handle, &priority) != CUDA_SUCCESS) {
        priority = 0;
    }
    return bytes <= TUNING_BESIDE_MOST &&
           (priority < 0 ||
            (state->works.big >= TUNING_BIG && cudriver_works_are_big(state, ordinal, up, stream)));
}

bool copy_ends_beside(CoreState *state, const struct copy_ends *ends,
                      const struct cudriver_stream *stream)
{
    bool up = ends->dst.context != NULL;
    const ContextObject *context = up ? ends->dst.context : ends->src.context;

    return context != NULL && !(up && ends->src.context != NULL) && !ends->src.fixed &&
           (stream->context == NULL || stream->context->ordinal == context->ordinal) &&
           copy_is_beside(state, stream, context->ordinal, up, 0);
}

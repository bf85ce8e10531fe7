/* Both ends of a copy: read, checked against each other, and planned. See copy_private.h. */
#include "copy_private.h"

#include <string.h>

#include "contexts/stream.h"
#include "engine/engine.h"
#include "python/numpy_bridge.h"

int cudriver_endpoints_refuse(const char *format, const struct cudriver_endpoint *src,
                              const struct cudriver_endpoint *dst)
{
    PyObject *from = cudriver_numpy_tuple(src->ndim, src->shape);
    PyObject *to = cudriver_numpy_tuple(dst->ndim, dst->shape);

    if (from != NULL && to != NULL) {
        PyErr_Format(PyExc_ValueError, format, from, to);
    }
    Py_XDECREF(from);
    Py_XDECREF(to);
    return -1;
}

int copy_ends_match(const struct cudriver_endpoint *dst, const struct cudriver_endpoint *src)
{
    if (dst->ndim != src->ndim ||
        memcmp(dst->shape, src->shape, (size_t)dst->ndim * sizeof dst->shape[0]) != 0) {
        return cudriver_endpoints_refuse(
            "the shapes differ: %R cannot be copied into %R (nothing was copied)", src, dst);
    }
    if (dst->dtype != src->dtype && !cudriver_numpy_same_dtype(dst->dtype, src->dtype)) {
        PyErr_Format(
            PyExc_TypeError,
            "the dtypes differ: %S cannot be copied into %S (nothing was copied); cast the "
            "source first: a host array by its astype(), a device array by another library",
            src->dtype, dst->dtype);
        return -1;
    }
    return 0;
}

void copy_ends_done(struct copy_ends *ends)
{
    cudriver_endpoint_done(&ends->dst);
    cudriver_endpoint_done(&ends->src);
}

int copy_ends_read(CoreState *state, PyObject *dst, PyObject *src, const struct cudriver_stream *on,
                   struct copy_ends *ends)
{
    if (cudriver_endpoint_parse(state, dst, true, "dst", on, &ends->dst) < 0) {
        return -1;
    }
    if (cudriver_endpoint_parse(state, src, false, "src", on, &ends->src) < 0) {
        cudriver_endpoint_done(&ends->dst);
        return -1;
    }
    return 0;
}

int copy_ends_parse(CoreState *state, PyObject *dst, PyObject *src,
                    const struct cudriver_stream *on, struct copy_ends *ends)
{
    if (copy_ends_read(state, dst, src, on, ends) < 0) {
        return -1;
    }
    if (copy_ends_match(&ends->dst, &ends->src) < 0) {
        copy_ends_done(ends);
        return -1;
    }
    return 0;
}

static void end_describe(const struct cudriver_endpoint *from, struct cudriver_copy_end *end)
{
    end->on_device = from->context != NULL;
    end->host = from->host;
    end->device = from->device;
    end->context = end->on_device ? from->context->handle : NULL;
    end->ordinal = end->on_device ? from->context->ordinal : -1;
}

void copy_ends_plan(struct copy_ends *ends, bool blocking, bool ask,
                    struct cudriver_copy_plan *plan)
{
    const struct cudriver_endpoint *dst = &ends->dst, *src = &ends->src;
    struct cudriver_layout *layout = &plan->layout;

    end_describe(dst, &plan->dst);
    end_describe(src, &plan->src);
    plan->blocking = blocking;
    plan->fixed = src->fixed;
    plan->ask = ask;
    layout->ndim = dst->ndim;
    layout->itemsize = dst->itemsize;
    layout->dst_offset = layout->src_offset = 0;
    memcpy(layout->shape, dst->shape, (size_t)dst->ndim * sizeof dst->shape[0]);
    memcpy(layout->dst_strides, dst->strides, (size_t)dst->ndim * sizeof dst->strides[0]);
    memcpy(layout->src_strides, src->strides, (size_t)src->ndim * sizeof src->strides[0]);
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

/*
 * Fills a DeviceArray with a pattern of any size. The driver sets words of 1, 2 or 4 bytes, dense
 * or in rows, so every fill is reduced to that. A long pattern is split into words, each with a
 * fill of its own whose pitch is the item's stride. A dense array of long patterns is filled from
 * its first item by copies that double. A fill that would need many calls is done by the copy
 * engine's kernel, which copies the first item.
 */
#include "device_array.h"

#include <string.h>

#include "contexts/batch.h"
#include "contexts/capture.h"
#include "contexts/graph.h"
#include "driver/driver.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"
#include "python/wait.h"
#include "engine/engine.h"

/* With more driver calls than this, the kernel is faster, although its first use has to load it. */
#define MOST_CALLS 64

struct fill {
    const char *pattern;
    size_t itemsize;
    CUstream stream;
    const char **function;
    bool counting; /* only count the calls, and stop when there are too many */
    int calls;
};

/* Counts a call. False if it must not be made; *result then tells whether there were too many. */
static bool call_counts(struct fill *fill, CUresult *result)
{
    fill->calls++;
    *result = fill->counting && fill->calls > MOST_CALLS ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    return !fill->counting;
}

/* The largest pitch (bytes between rows) of the driver's fills. */
#define MAX_PITCH 0x7fffffff

/* `height` rows of `width` words of `unit` bytes, `pitch` bytes apart. */
static CUresult fill_rows(struct fill *fill, CUdeviceptr address, size_t pitch, int unit,
                          const char *word, size_t width, size_t height)
{
    unsigned char one = (unsigned char)word[0];
    unsigned short two = 0;
    unsigned int four = 0;
    CUresult result = CUDA_SUCCESS;

    if (height > 1 && pitch > MAX_PITCH) {
        for (size_t i = 0; i < height && result == CUDA_SUCCESS; i++) {
            result = fill_rows(fill, address + i * pitch, 0, unit, word, width, 1);
        }
        return result;
    }
    if (!call_counts(fill, &result)) {
        return result;
    }
    memcpy(&two, word, unit >= 2 ? 2 : 0);
    memcpy(&four, word, unit >= 4 ? 4 : 0);
    if (height == 1) {
        *fill->function = unit == 1   ? "cuMemsetD8Async"
                          : unit == 2 ? "cuMemsetD16Async"
                                      : "cuMemsetD32Async";
        return unit == 1   ? cuda.cuMemsetD8Async(address, one, width, fill->stream)
               : unit == 2 ? cuda.cuMemsetD16Async(address, two, width, fill->stream)
                           : cuda.cuMemsetD32Async(address, four, width, fill->stream);
    }
    *fill->function = unit == 1   ? "cuMemsetD2D8Async"
                      : unit == 2 ? "cuMemsetD2D16Async"
                                  : "cuMemsetD2D32Async";
    return unit == 1   ? cuda.cuMemsetD2D8Async(address, pitch, one, width, height, fill->stream)
           : unit == 2 ? cuda.cuMemsetD2D16Async(address, pitch, two, width, height, fill->stream)
                       : cuda.cuMemsetD2D32Async(address, pitch, four, width, height, fill->stream);
}

/* The shortest word of 1, 2 or 4 bytes whose repetition is the pattern; 0 if there is none. */
static size_t pattern_word(const char *pattern, size_t size)
{
    for (size_t word = 1; word <= 4 && word <= size; word *= 2) {
        if (size % word == 0 && memcmp(pattern, pattern + word, size - word) == 0) {
            return word;
        }
    }
    return 0;
}

/* The largest word, up to 4 bytes, that divides the item size and every address of the fill. */
static int word_size(size_t itemsize, CUdeviceptr address, const struct cudriver_layout *layout)
{
    unsigned long long bits = itemsize | address;

    for (int i = 0; i < layout->ndim; i++) {
        bits |= (unsigned long long)layout->dst_strides[i];
    }
    return bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
}

/* Fills one item. */
static CUresult fill_item(struct fill *fill, CUdeviceptr address)
{
    int unit = fill->itemsize % 4 == 0 && address % 4 == 0   ? 4
               : fill->itemsize % 2 == 0 && address % 2 == 0 ? 2
                                                             : 1;
    CUresult result = CUDA_SUCCESS;

    for (size_t at = 0; at < fill->itemsize && result == CUDA_SUCCESS; at += (size_t)unit) {
        result = fill_rows(fill, address + at, 0, unit, fill->pattern + at, 1, 1);
    }
    return result;
}

/* Fills a dense run of `bytes` with a pattern that is longer than a word. */
static CUresult fill_doubling(struct fill *fill, CUdeviceptr address, size_t bytes)
{
    CUresult result = fill_item(fill, address);
    size_t done = fill->itemsize;

    while (done < bytes && result == CUDA_SUCCESS) {
        size_t more = done < bytes - done ? done : bytes - done;
        if (call_counts(fill, &result)) {
            *fill->function = "cuMemcpyDtoDAsync_v2";
            result = cuda.cuMemcpyDtoDAsync_v2(address + done, address, more, fill->stream);
        }
        done += more;
    }
    return result;
}

/* Fills the dimensions from `axis` on: loops over the outer ones, leaves the last to the driver. */
static CUresult fill_axis(struct fill *fill, const struct cudriver_layout *layout, int axis,
                          CUdeviceptr address)
{
    size_t run = layout->itemsize; /* dense bytes: one item or several */
    size_t height = axis < layout->ndim ? (size_t)layout->shape[axis] : 1;
    size_t pitch = axis < layout->ndim ? (size_t)layout->dst_strides[axis] : 0;
    size_t word = pattern_word(fill->pattern, fill->itemsize);
    CUresult result = CUDA_SUCCESS;
    int unit;

    if (axis + 1 < layout->ndim || (word == 0 && run > fill->itemsize && axis < layout->ndim)) {
        for (size_t i = 0; i < height && result == CUDA_SUCCESS; i++) {
            result = fill_axis(fill, layout, axis + 1, address + i * pitch);
        }
        return result;
    }
    /* If not all addresses are multiples of the word, smaller words or copies are used below. */
    if (word != 0 && (address | pitch | run) % word == 0) {
        return fill_rows(fill, address, pitch, (int)word, fill->pattern, run / word, height);
    }
    if (run > fill->itemsize) {
        for (size_t i = 0; i < height && result == CUDA_SUCCESS; i++) {
            result = fill_doubling(fill, address + i * pitch, run);
        }
        return result;
    }
    unit = word_size(fill->itemsize, address, layout);
    for (size_t at = 0; at < fill->itemsize && result == CUDA_SUCCESS; at += (size_t)unit) {
        result = fill_rows(fill, address + at, pitch, unit, fill->pattern + at, 1, height);
    }
    return result;
}

/* Fills the first item and lets the kernel copy it to all. *refused: at most the first item was
 * set, and the driver's fills must be used. */
static CUresult fill_by_kernel(struct fill *fill, const DeviceArrayObject *self, CUcontext context,
                               bool *refused)
{
    struct cudriver_copy_plan plan = {.kind = CUDRIVER_COPY_KERNEL, .context = context};
    struct cudriver_copy_call call = {.stream = fill->stream};
    struct cudriver_staging_transfer *none; /* the copy is not waited for */
    struct cudriver_layout *layout = &plan.layout;
    CUdeviceptr first;
    CUresult result;

    layout->ndim = self->ndim;
    layout->itemsize = fill->itemsize;
    for (int i = 0; i < self->ndim; i++) {
        layout->shape[i] = self->shape[i];
        layout->dst_strides[i] = self->strides[i];
        layout->src_strides[i] = 0;
    }
    cudriver_layout_simplify(layout, true);
    first = self->address + (CUdeviceptr)layout->dst_offset;
    layout->dst_offset = layout->src_offset = 0;
    plan.dst.device = plan.src.device = first;
    *refused = !cudriver_staging_has_kernel(context, layout, first, first);
    if (*refused) {
        return CUDA_SUCCESS;
    }
    result = fill_item(fill, first);
    if (result == CUDA_SUCCESS) {
        result = cudriver_copy_follow(&plan, &call, &none);
        *refused = call.refused;
        *fill->function = call.function;
    }
    return result;
}

/* Writes `pattern` (itemsize bytes) to every item, on `stream` and between begin and end of its
 * context. NOT_SUPPORTED, and nothing is done, if the stream is captured and this takes too many
 * calls: the kernel is for no graph. The GIL is held on entry. */
static CUresult fill_issue(DeviceArrayObject *self, const char *pattern,
                           const struct cudriver_stream *stream, bool captured,
                           const char **function)
{
    struct cudriver_layout layout = {.ndim = self->ndim, .itemsize = (size_t)self->itemsize};
    struct fill fill = {pattern, (size_t)self->itemsize, stream->handle, function, true, 0};
    CUdeviceptr address = self->address;
    bool plain, refused = true; /* plain: use only the driver's fills */
    CUresult result;

    for (int i = 0; i < self->ndim; i++) {
        layout.shape[i] = self->shape[i];
        layout.dst_strides[i] = layout.src_strides[i] = self->strides[i];
    }
    if (cudriver_layout_simplify(&layout, true) == 0) {
        return CUDA_SUCCESS;
    }
    address += (CUdeviceptr)layout.dst_offset;
    result = fill_axis(&fill, &layout, 0, address);
    if (captured && result != CUDA_SUCCESS) {
        return result;
    }
    plain = layout.ndim == 0 || /* however many calls that takes */
            result == CUDA_SUCCESS ||
            (stream->context != self->context &&
             !cudriver_copy_is_usable(address, stream->context->handle));
    fill.counting = false;
    Py_BEGIN_ALLOW_THREADS
    if (!plain) {
        result = fill_by_kernel(&fill, self, stream->context->handle, &refused);
    }
    if (refused) {
        result = fill_axis(&fill, &layout, 0, address);
    }
    Py_END_ALLOW_THREADS
    return result;
}

/* The same; `wait`: until it is done. */
static CUresult fill_follow(DeviceArrayObject *self, const char *pattern,
                            const struct cudriver_stream *stream, bool wait, const char **function)
{
    CUresult result = fill_issue(self, pattern, stream, false, function), waited;

    if (result == CUDA_SUCCESS && !wait) {
        return CUDA_SUCCESS;
    }
    Py_BEGIN_ALLOW_THREADS
    waited = cuda.cuStreamSynchronize(stream->handle); /* after a failure a part may be in flight */
    Py_END_ALLOW_THREADS
    if (result == CUDA_SUCCESS) {
        *function = "cuStreamSynchronize";
        result = waited;
    }
    return result;
}

/* Makes a fill part of the graph that captures the stream, which keeps the array alive. As below.
 */
static int fill_captured(CoreState *state, DeviceArrayObject *self, const char *pattern,
                         const struct cudriver_stream *stream, CUresult *result,
                         const char **function)
{
    struct cudriver_endpoint end = {.owner = NULL};
    int failed = cudriver_device_array_endpoint(state, (PyObject *)self, &end);

    if (failed == 0) {
        failed = cudriver_graph_keep(state, stream->handle, &end, NULL);
        cudriver_endpoint_done(&end);
    }
    if (failed == 0) {
        *result = fill_issue(self, pattern, stream, true, function);
    }
    if (failed == 0 && *result == CUDA_ERROR_NOT_SUPPORTED) {
        *result = CUDA_SUCCESS;
        cudriver_capture_raise(state, stream->handle, "fill()",
                               "an array of this layout takes too many nodes");
        failed = -1;
    }
    return failed < 0 ? -1 : 1;
}

/* Fills between the brackets of a call. 0, or 1 if it is part of a graph, and *result is the
 * driver's answer; -1 with an exception set. */
static int fill_run(CoreState *state, DeviceArrayObject *self, const char *pattern,
                    const struct cudriver_stream *stream, bool given, size_t bytes,
                    CUresult *result, const char **function)
{
    int failed;

    cudriver_driver_relax();
    failed = cudriver_capture_check(state, stream->handle);
    if (failed > 0) {
        failed = fill_captured(state, self, pattern, stream, result, function);
    } else if (failed == 0) {
        cudriver_device_settle(self->context, &cudriver_device_array_root(self)->block);
        if (given && bytes >= TUNING_BATCH_ALONE) {
            cudriver_batch_close_before(state, stream);
        }
        failed = given ? 0 : cudriver_settle_stream(state, stream->handle);
        if (failed == 0) {
            *result = fill_follow(self, pattern, stream, !given, function);
        }
    }
    cudriver_driver_restore();
    return failed;
}

/* A stream on another device is an error if the caller passed it. One from a `with stream:` is
 * ignored. 0 or -1. */
static int fill_stream_check(DeviceArrayObject *self, PyObject *argument,
                             struct cudriver_stream *stream, bool *given)
{
    if (stream->context->ordinal == self->context->ordinal) {
        return 0;
    }
    if (argument != NULL && argument != Py_None) {
        PyErr_Format(PyExc_ValueError, "the stream is on device %d, the array on device %d",
                     stream->context->ordinal, self->context->ordinal);
        return -1;
    }
    stream->handle = NULL;
    Py_SETREF(stream->context, (ContextObject *)Py_NewRef((PyObject *)self->context));
    *given = false;
    return 0;
}

int cudriver_device_array_fill(CoreState *state, DeviceArrayObject *self, PyObject *value,
                               PyObject *argument)
{
    struct cudriver_stream stream;
    struct cudriver_batch *batch;
    DeviceArrayObject *root = cudriver_device_array_root(self);
    const char *function = "";
    char *pattern;
    CUresult result = CUDA_SUCCESS;
    int failed;
    Py_ssize_t bytes = cudriver_shape_bytes(self->ndim, self->shape, self->itemsize);
    bool pushed[2], given;

    if (cudriver_device_array_check(state, self) < 0) {
        return -1;
    }
    if (self->read_only) {
        PyErr_Format(PyExc_ValueError, "%R is read-only", self);
        return -1;
    }
    pattern = PyMem_Calloc(1, (size_t)self->itemsize + 1);
    if (pattern == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    root->busy++; /* reading the value may run any code, such as this array's close() */
    if ((value != NULL && cudriver_numpy_pattern(value, self->dtype, pattern) < 0) ||
        cudriver_stream_parse(state, argument, self->context, &stream, &given) < 0) {
        root->busy--;
        PyMem_Free(pattern);
        return -1;
    }
    if (fill_stream_check(self, argument, &stream, &given) < 0 ||
        (!given && cudriver_device_array_await(state, &root->busy) < 0) ||
        cudriver_context_begin_both(state, self->context, stream.context, pushed) < 0) {
        root->busy--;
        cudriver_stream_done(&stream);
        PyMem_Free(pattern);
        return -1;
    }
    failed = fill_run(state, self, pattern, &stream, given, (size_t)bytes, &result, &function);
    root->busy--;
    cudriver_context_end_both(self->context, stream.context, pushed);
    PyMem_Free(pattern);
    if (failed == 0 && result == CUDA_SUCCESS && given && bytes > 0) {
        batch = cudriver_batch_add(state, &stream, (size_t)bytes, (PyObject *)self, NULL, NULL);
        if (batch != NULL) {
            cudriver_batch_release(state, batch);
        }
    }
    cudriver_stream_done(&stream);
    if (result != CUDA_SUCCESS) {
        cudriver_raise(state, result, function, "0x%llx, %zd bytes",
                       (unsigned long long)self->address, bytes);
        return -1;
    }
    return PyErr_Occurred() ? -1 : 0;
}

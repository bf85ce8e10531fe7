/* Reading both ends, blocking and asynchronous copies, the module's functions. See copy.h. */
#include "copy.h"

#include <string.h>

#include "copy_path.h"
#include "device_array.h"
#include "driver/driver.h"
#include "python/error.h"
#include "foreign_array.h"
#include "hostmem/hostmem.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"
#include "stream.h"
#include "transfer.h"

int cudriver_endpoint_try(CoreState *state, PyObject *object, bool write,
                          struct cudriver_endpoint *end)
{
    end->owner = end->dtype = NULL;
    end->context = NULL;
    end->host = NULL;
    end->device = 0;
    end->busy = NULL;
    if (Py_IS_TYPE(object, state->device_array_type)) {
        return cudriver_device_array_endpoint(state, object, end) < 0 ? -1 : 1;
    }
    if (cudriver_numpy_is_array(object)) {
        return cudriver_numpy_endpoint(object, write, end) < 0 ? -1 : 1;
    }
    return cudriver_foreign_endpoint(state, object, write, end);
}

int cudriver_endpoint_parse(CoreState *state, PyObject *object, bool write, const char *name,
                            struct cudriver_endpoint *end)
{
    int found = cudriver_endpoint_try(state, object, write, end);

    if (found == 0) {
        PyErr_Format(PyExc_TypeError, "%s must be a numpy.ndarray or a DeviceArray, not %.100s%s",
                     name, Py_TYPE(object)->tp_name,
                     write ? "" : " (np.asarray() makes an array of most things)");
    }
    return found > 0 ? 0 : -1;
}

/* New reference: an end's shape, for messages. */
static PyObject *end_shape(const struct cudriver_endpoint *end)
{
    Py_ssize_t shape[CUDRIVER_MAX_DIMS];

    for (int i = 0; i < end->ndim; i++) {
        shape[i] = (Py_ssize_t)end->shape[i];
    }
    return cudriver_shape_tuple(end->ndim, shape);
}

/* Checks that both ends have the same shape and dtype. 0, or -1 with ValueError or TypeError. */
static int ends_match(const struct cudriver_endpoint *dst, const struct cudriver_endpoint *src)
{
    if (dst->ndim != src->ndim ||
        memcmp(dst->shape, src->shape, (size_t)dst->ndim * sizeof dst->shape[0]) != 0) {
        PyObject *to = end_shape(dst), *from = end_shape(src);
        if (to != NULL && from != NULL) {
            PyErr_Format(PyExc_ValueError,
                         "the shapes differ: %R cannot be copied into %R (nothing was copied)",
                         from, to);
        }
        Py_XDECREF(to);
        Py_XDECREF(from);
        return -1;
    }
    if (dst->dtype != src->dtype && !cudriver_numpy_same_dtype(dst->dtype, src->dtype)) {
        PyErr_Format(
            PyExc_TypeError,
            "the dtypes differ: %S cannot be copied into %S (nothing was copied); cast the "
            "source with astype() first",
            src->dtype, dst->dtype);
        return -1;
    }
    return 0;
}

/* Both ends of a copy, read and checked against each other. */
struct ends {
    struct cudriver_endpoint dst, src;
};

static void ends_done(struct ends *ends)
{
    cudriver_endpoint_done(&ends->dst);
    cudriver_endpoint_done(&ends->src);
}

static int ends_parse(CoreState *state, PyObject *dst, PyObject *src, struct ends *ends)
{
    if (cudriver_endpoint_parse(state, dst, true, "dst", &ends->dst) < 0) {
        return -1;
    }
    if (cudriver_endpoint_parse(state, src, false, "src", &ends->src) < 0) {
        cudriver_endpoint_done(&ends->dst);
        return -1;
    }
    if (ends_match(&ends->dst, &ends->src) < 0) {
        ends_done(ends);
        return -1;
    }
    return 0;
}

/* The copy engine's `interrupted`, called without the GIL. `data`: the saved thread state. */
static bool signal_arrived(void *data)
{
    PyThreadState **saved = data;
    bool arrived;

    PyEval_RestoreThread(*saved);
    arrived = PyErr_CheckSignals() < 0;
    *saved = PyEval_SaveThread();
    return arrived;
}

static void job_describe(struct cudriver_staging_job *job, const struct cudriver_copy_path *path,
                         const struct ends *ends, const struct cudriver_copy_place *place)
{
    memset(job, 0, sizeof *job);
    job->to_device = path->to_device;
    job->context = place->context->handle;
    job->stream = place->stream;
    job->device = path->to_device ? ends->dst.device : ends->src.device;
    job->host = path->to_device ? ends->src.host : ends->dst.host;
    job->layout = &path->layout;
}

static int raise_copy(CoreState *state, CUresult result, const char *function,
                      const struct cudriver_copy_path *path)
{
    if (!PyErr_Occurred()) {
        cudriver_raise(state, result, function, "%zu bytes, %s copy", path->bytes,
                       cudriver_copy_kind_name(path->kind));
    }
    return -1;
}

/* Raises for a copy by the engine: it makes several calls, so `function` is ours. Returns -1. */
static int raise_staged(CoreState *state, CUresult result, const char *function,
                        const struct cudriver_copy_path *path)
{
    if (!PyErr_Occurred()) {
        cudriver_raise(state, result, function, "%zu bytes, staged copy", path->bytes);
    }
    return -1;
}

/* A blocking copy by the copy engine, between begin and end. 0 or -1. */
static int staged_blocking(CoreState *state, const struct cudriver_copy_path *path,
                           const struct ends *ends, const struct cudriver_copy_place *place)
{
    struct cudriver_staging_job job;
    PyThreadState *saved;
    CUresult result;

    job_describe(&job, path, ends, place);
    job.interrupted = signal_arrived;
    job.data = &saved;
    saved = PyEval_SaveThread();
    result = cudriver_staging_copy(&job);
    PyEval_RestoreThread(saved);
    return result == CUDA_SUCCESS ? 0 : raise_staged(state, result, "cudriver.copy", path);
}

/* Copies one piece of a dense copy and waits. Without the GIL. *function: the call that failed. */
static CUresult piece_blocking(bool up, CUdeviceptr device, char *host, size_t bytes,
                               CUstream stream, bool given, bool locked, const char **function)
{
    CUresult result;

    if (given) {
        *function = up ? "cuMemcpyHtoDAsync_v2" : "cuMemcpyDtoHAsync_v2";
        result = up ? cuda.cuMemcpyHtoDAsync_v2(device, host, bytes, stream)
                    : cuda.cuMemcpyDtoHAsync_v2(host, device, bytes, stream);
    } else {
        *function = up ? "cuMemcpyHtoD_v2" : "cuMemcpyDtoH_v2";
        result = up ? cuda.cuMemcpyHtoD_v2(device, host, bytes)
                    : cuda.cuMemcpyDtoH_v2(host, device, bytes);
        if (!up || locked) {
            return result;
        }
        stream = NULL; /* a pageable upload may return before the device has the bytes */
    }
    if (result == CUDA_SUCCESS) {
        *function = "cuStreamSynchronize";
        result = up && bytes <= TUNING_SMALL_MOST ? cudriver_staging_ask_soon(stream)
                                                  : cuda.cuStreamSynchronize(stream);
    }
    return result;
}

/* Copies at once if the copy is small. 0 or -1; 1 if it is not. */
static int small_blocking(CoreState *state, const struct cudriver_copy_path *path,
                          const struct cudriver_small_copy *copy)
{
    const char *function = "";
    CUresult result = CUDA_SUCCESS;
    bool done;

    Py_BEGIN_ALLOW_THREADS
    done = cudriver_staging_copy_small(copy, &result, &function);
    Py_END_ALLOW_THREADS
    if (!done) {
        return 1;
    }
    return result == CUDA_SUCCESS ? 0 : raise_copy(state, result, function, path);
}

/* Copies dense memory between host and device in pieces and waits for each. 0 or -1. */
static int direct_blocking(CoreState *state, const struct cudriver_copy_path *path,
                           const struct ends *ends, const struct cudriver_copy_place *place,
                           bool given)
{
    bool up = path->to_device, cut = !path->one_run && !path->unlooked;
    CUdeviceptr device = up ? ends->dst.device + (CUdeviceptr)path->layout.dst_offset
                            : ends->src.device + (CUdeviceptr)path->layout.src_offset;
    char *host =
        up ? ends->src.host + path->layout.src_offset : ends->dst.host + path->layout.dst_offset;

    if (path->bytes <= TUNING_SMALL_MOST && (path->one_run || (!up && !path->page_locked))) {
        const struct cudriver_small_copy copy = {
            up,   path->one_run, place->context->handle, given ? place->stream : NULL, device,
            host, path->bytes};
        int failed = small_blocking(state, path, &copy);
        if (failed <= 0) {
            return failed;
        }
    }
    for (size_t at = 0, bytes; at < path->bytes; at += bytes) {
        const char *function;
        CUresult result;
        bytes = path->bytes - at < TUNING_CUT ? path->bytes - at : TUNING_CUT;
        if (cut) {
            bytes = cudriver_hostmem_run(host + at, bytes); /* split at a registration's end too */
        }
        Py_BEGIN_ALLOW_THREADS
        result = piece_blocking(up, device + at, host + at, bytes, place->stream, given,
                                path->page_locked, &function);
        Py_END_ALLOW_THREADS
        if (result == CUDA_ERROR_INVALID_VALUE && path->unlooked && !cut) {
            cut = true; /* somebody's registration may end within the range */
            bytes = 0;
            continue;
        }
        if (result != CUDA_SUCCESS) {
            return raise_copy(state, result, function, path);
        }
        if (at + bytes < path->bytes && PyErr_CheckSignals() < 0) {
            return -1;
        }
    }
    return 0;
}

/* Issues a copy on a stream and waits. 0 or -1; 1 if it was refused and may be bounced. */
static int issued_blocking(CoreState *state, const struct cudriver_copy_path *path,
                           const struct ends *ends, const struct cudriver_copy_place *place)
{
    const char *function = "";
    CUresult result, waited;
    bool refused;

    Py_BEGIN_ALLOW_THREADS
    result = cudriver_copy_issue(path, &ends->dst, &ends->src, place, &refused, &function);
    waited =
        result == CUDA_SUCCESS && path->kind == CUDRIVER_COPY_DIRECT &&
                path->bytes <= TUNING_SOON_MOST
            ? cudriver_staging_wait_soon(place->context->handle, place->stream)
            : cuda.cuStreamSynchronize(place->stream); /* a part may be in flight after a failure */
    if (result == CUDA_SUCCESS && waited != CUDA_SUCCESS) {
        result = waited;
        function = "cuStreamSynchronize";
    }
    Py_END_ALLOW_THREADS
    if (refused) {
        return 1;
    }
    return result == CUDA_SUCCESS ? 0 : raise_copy(state, result, function, path);
}

static int ends_copy(CoreState *state, struct ends *ends);

/* Device to device through a dense array in host memory, if no other path works. 0 or -1. */
static int bounced_blocking(CoreState *state, const struct ends *ends)
{
    Py_ssize_t shape[CUDRIVER_MAX_DIMS];
    struct ends down = {.src = ends->src}, up = {.dst = ends->dst};
    PyObject *between;
    int failed = -1;

    for (int i = 0; i < ends->src.ndim; i++) {
        shape[i] = (Py_ssize_t)ends->src.shape[i];
    }
    between = cudriver_numpy_empty(ends->src.dtype, ends->src.ndim, shape, false);
    if (between == NULL) {
        return -1;
    }
    if (cudriver_numpy_endpoint(between, true, &down.dst) == 0) {
        up.src = down.dst;
        failed = ends_copy(state, &down) < 0 || ends_copy(state, &up) < 0 ? -1 : 0;
        cudriver_endpoint_done(&down.dst);
    }
    Py_DECREF(between);
    return failed;
}

/* Whether the stream is on one of the copy's devices. */
static bool stream_is_near(const struct cudriver_stream *stream, const struct ends *ends)
{
    const ContextObject *to = ends->dst.context, *from = ends->src.context;

    return (to != NULL && to->ordinal == stream->context->ordinal) ||
           (from != NULL && from->ordinal == stream->context->ordinal);
}

/* Waits for a stream in its own context. 0 or -1. */
static int stream_wait_apart(CoreState *state, const struct cudriver_stream *stream)
{
    bool pushed;
    int failed;

    if (cudriver_context_begin(state, stream->context, &pushed) < 0) {
        return -1;
    }
    failed = cudriver_stream_wait(state, stream->handle);
    cudriver_context_end(stream->context, pushed);
    return failed;
}

/* Does a blocking copy along its path. 0 or -1. */
static int follow_blocking(CoreState *state, const struct cudriver_copy_path *path,
                           struct ends *ends)
{
    struct cudriver_copy_place place;
    struct cudriver_stream stream;
    bool given, pushed[2];
    int failed = 0;

    if (path->kind == CUDRIVER_COPY_EMPTY || path->kind == CUDRIVER_COPY_SAME) {
        return 0;
    }
    if (path->kind == CUDRIVER_COPY_HOST) {
        return cudriver_numpy_copy(ends->dst.owner, ends->src.owner);
    }
    if (path->kind == CUDRIVER_COPY_BOUNCED) {
        return bounced_blocking(state, ends);
    }
    if (cudriver_stream_parse(state, NULL, path->context, &stream, &given) < 0) {
        return -1;
    }
    place = (struct cudriver_copy_place){stream.context, stream.handle};
    if (stream.context->ordinal != path->context->ordinal ||
        !cudriver_copy_fits(path, &ends->dst, &ends->src, stream.context)) {
        /* A `with stream:` of another device, or whose kernels cannot use the memory. */
        if (given && stream_is_near(&stream, ends) && stream_wait_apart(state, &stream) < 0) {
            cudriver_stream_done(&stream);
            return -1;
        }
        place = (struct cudriver_copy_place){path->context, NULL};
        given = false;
    }
    if (cudriver_context_begin_both(state, path->context, place.context, pushed) < 0) {
        cudriver_stream_done(&stream);
        return -1;
    }
    if (path->kind == CUDRIVER_COPY_STAGED) {
        failed = staged_blocking(state, path, ends, &place);
    } else if (given && cudriver_stream_wait(state, place.stream) < 0) {
        failed = -1; /* Ctrl-C before anything was issued, or the stream's earlier work failed */
    } else if (path->kind == CUDRIVER_COPY_DIRECT && path->to_device != path->from_device) {
        failed = direct_blocking(state, path, ends, &place, given);
    } else {
        failed = issued_blocking(state, path, ends, &place);
    }
    cudriver_context_end_both(path->context, place.context, pushed);
    cudriver_stream_done(&stream);
    return failed > 0 ? bounced_blocking(state, ends) : failed;
}

/* Copies between matching ends and waits. 0 or -1. */
static int ends_copy(CoreState *state, struct ends *ends)
{
    struct cudriver_copy_path path;

    if (cudriver_device_array_await(state, ends->dst.busy) < 0 ||
        cudriver_device_array_await(state, ends->src.busy) < 0) {
        return -1;
    }
    cudriver_copy_decide(&ends->dst, &ends->src, &path);
    if (path.unlooked && !path.to_device && path.bytes > TUNING_LOOKED_FROM) {
        cudriver_copy_look(&path, &ends->dst, &ends->src);
    }
    return follow_blocking(state, &path, ends);
}

int cudriver_copy_blocking(CoreState *state, PyObject *dst, PyObject *src)
{
    struct ends ends;
    int failed;

    if (ends_parse(state, dst, src, &ends) < 0) {
        return -1;
    }
    failed = ends_copy(state, &ends);
    ends_done(&ends);
    return failed;
}

/* Issues a copy by the copy engine. A batch recorded afterwards completes after it. 0 or -1. */
static int staged_async(CoreState *state, const struct cudriver_copy_path *path,
                        const struct ends *ends, const struct cudriver_copy_place *place,
                        struct cudriver_staging_transfer **transfer)
{
    struct cudriver_staging_job job;
    PyThreadState *saved;
    CUresult result;

    job_describe(&job, path, ends, place);
    job.interrupted = signal_arrived;
    job.data = &saved;
    saved = PyEval_SaveThread();
    result = cudriver_staging_copy_async(&job, transfer);
    PyEval_RestoreThread(saved);
    return result == CUDA_SUCCESS ? 0 : raise_staged(state, result, "cudriver.copy_async", path);
}

/* Issues a copy on a stream. 0 or -1; 1 if it was refused and may be bounced. */
static int issued_async(CoreState *state, const struct cudriver_copy_path *path,
                        const struct ends *ends, const struct cudriver_copy_place *place)
{
    const char *function = "";
    CUresult result;
    bool refused;

    Py_BEGIN_ALLOW_THREADS
    result = cudriver_copy_issue(path, &ends->dst, &ends->src, place, &refused, &function);
    if (result != CUDA_SUCCESS && !refused) {
        /* A part may be in flight, and nobody would keep its memory alive. */
        cuda.cuStreamSynchronize(place->stream);
    }
    Py_END_ALLOW_THREADS
    if (refused) {
        return 1;
    }
    return result == CUDA_SUCCESS ? 0 : raise_copy(state, result, function, path);
}

/* For copies that cannot be issued on the stream: waits for the stream, then copies. */
static PyObject *follow_in_order(CoreState *state, const struct cudriver_copy_path *path,
                                 struct ends *ends, const struct cudriver_stream *stream)
{
    bool pushed;
    int failed;

    if (cudriver_context_check(state, stream->context) < 0) {
        return NULL;
    }
    if (path->kind != CUDRIVER_COPY_EMPTY && path->kind != CUDRIVER_COPY_SAME) {
        if (cudriver_context_begin(state, stream->context, &pushed) < 0) {
            return NULL;
        }
        failed = cudriver_stream_wait(state, stream->handle);
        cudriver_context_end(stream->context, pushed);
        if (failed < 0 || follow_blocking(state, path, ends) < 0) {
            return NULL;
        }
    }
    return cudriver_transfer_done(state, path->bytes);
}

/* Issues a copy along its path, on a stream of one of its devices. New reference: a Transfer. */
static PyObject *follow_async(CoreState *state, const struct cudriver_copy_path *path,
                              struct ends *ends, const struct cudriver_stream *stream)
{
    const struct cudriver_copy_place place = {stream->context, stream->handle};
    struct cudriver_staging_transfer *staged = NULL;
    struct cudriver_batch *batch;
    bool pushed[2];
    int failed;

    if (path->kind == CUDRIVER_COPY_EMPTY || path->kind == CUDRIVER_COPY_SAME ||
        path->kind == CUDRIVER_COPY_HOST || path->kind == CUDRIVER_COPY_BOUNCED ||
        !cudriver_copy_fits(path, &ends->dst, &ends->src, stream->context)) {
        return follow_in_order(state, path, ends, stream);
    }
    if (cudriver_context_begin_both(state, path->context, stream->context, pushed) < 0) {
        return NULL;
    }
    if (path->bytes >= TUNING_BATCH_ALONE) {
        cudriver_batch_close_before(state, stream);
    }
    failed = path->kind == CUDRIVER_COPY_STAGED ? staged_async(state, path, ends, &place, &staged)
                                                : issued_async(state, path, ends, &place);
    batch = failed ? NULL
                   : cudriver_batch_add(state, stream, path->bytes, ends->dst.owner,
                                        ends->src.owner, staged);
    cudriver_context_end_both(path->context, stream->context, pushed);
    if (failed > 0) {
        struct cudriver_copy_path bounced = *path;
        bounced.kind = CUDRIVER_COPY_BOUNCED;
        return follow_in_order(state, &bounced, ends, stream);
    }
    if (batch == NULL) {
        return NULL;
    }
    return cudriver_transfer_new(state, batch, staged, path->bytes);
}

/* Checks that the stream is on one of the copy's devices. 0, or -1 with ValueError. */
static int stream_fits(const struct cudriver_stream *stream, const struct ends *ends)
{
    const ContextObject *to = ends->dst.context, *from = ends->src.context;

    if ((to == NULL && from == NULL) || stream_is_near(stream, ends)) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "the stream is on device %d, the array on device %d",
                 stream->context->ordinal, to != NULL ? to->ordinal : from->ordinal);
    return -1;
}

/* Issues a copy between matching ends. New reference: a Transfer. */
static PyObject *ends_copy_async(CoreState *state, struct ends *ends, PyObject *argument)
{
    struct cudriver_copy_path path;
    struct cudriver_stream stream;
    PyObject *transfer = NULL;
    bool given;

    cudriver_copy_decide(&ends->dst, &ends->src, &path);
    cudriver_copy_look(&path, &ends->dst, &ends->src);
    if (path.kind == CUDRIVER_COPY_DIRECT && path.to_device != path.from_device &&
        !path.page_locked) {
        /* The driver would read or write pageable memory now, not in the stream's order. */
        path.kind = CUDRIVER_COPY_STAGED;
    }
    if (cudriver_stream_parse(state, argument, path.context, &stream, &given) == 0) {
        if (stream_fits(&stream, ends) == 0) {
            transfer = follow_async(state, &path, ends, &stream);
        }
        cudriver_stream_done(&stream);
    }
    return transfer;
}

PyObject *cudriver_copy_async(CoreState *state, PyObject *dst, PyObject *src, PyObject *argument)
{
    PyObject *transfer;
    struct ends ends;

    if (ends_parse(state, dst, src, &ends) < 0) {
        return NULL;
    }
    transfer = ends_copy_async(state, &ends, argument);
    ends_done(&ends);
    return transfer;
}

int cudriver_copy_from(CoreState *state, PyObject *dst, struct cudriver_endpoint *src,
                       PyObject *stream)
{
    struct ends ends = {.src = *src};
    PyObject *transfer;
    int failed;

    if (cudriver_endpoint_parse(state, dst, true, "dst", &ends.dst) < 0) {
        cudriver_endpoint_done(src);
        return -1;
    }
    if (ends_match(&ends.dst, &ends.src) < 0) {
        failed = -1;
    } else if (stream != NULL && stream != Py_None) {
        transfer = ends_copy_async(state, &ends, stream);
        failed = transfer == NULL ? -1 : 0;
        Py_XDECREF(transfer);
    } else {
        failed = ends_copy(state, &ends);
    }
    ends_done(&ends);
    return failed;
}

PyDoc_STRVAR(copy_doc,
             "copy(dst, src, /)\n"
             "--\n"
             "\n"
             "Copy an array into another one, and wait.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "dst : numpy.ndarray or DeviceArray\n"
             "    Where to, with any strides; another library's device array too.\n"
             "src : numpy.ndarray or DeviceArray\n"
             "    Where from, of the same shape and dtype, with any strides.\n"
             "\n"
             "Raises\n"
             "------\n"
             "TypeError, ValueError\n"
             "    An end is not an array, or the two do not fit. Nothing was copied.\n"
             "CudaError\n"
             "    The copy failed.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "`explain_copy` names the path, and with it the CUDA function. The copy is\n"
             "ordered after the work of the enclosing ``with stream:``, else of the default\n"
             "stream, and after every call of this package in flight on a DeviceArray's\n"
             "memory. Other threads run meanwhile.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> array = cu.device_empty(3, np.int64)\n"
             ">>> cu.copy(array, np.arange(3))\n"
             ">>> array.to_numpy()\n"
             "array([0, 1, 2])");

static PyObject *module_copy(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *names)
{
    CoreState *state = cudriver_state_of_module(module);

    if (count != 2 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "copy(dst, src) takes two positional arguments");
        return NULL;
    }
    if (cudriver_copy_blocking(state, args[0], args[1]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(copy_async_doc,
             "copy_async(dst, src, /, stream)\n"
             "--\n"
             "\n"
             "Copy an array into another one in the order of a stream.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "dst : numpy.ndarray or DeviceArray\n"
             "    Where to, with any strides; do not read it before the copy is over.\n"
             "src : numpy.ndarray or DeviceArray\n"
             "    Where from, of the same shape and dtype, with any strides; do not change it\n"
             "    before the copy is over.\n"
             "stream : Stream or None\n"
             "    None for the enclosing ``with stream:``, else the default stream.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "Transfer\n"
             "    What to wait for. It keeps both ends alive until the copy is over.\n"
             "\n"
             "Raises\n"
             "------\n"
             "TypeError, ValueError\n"
             "    An end is not an array, or the two do not fit. Nothing was copied.\n"
             "CudaError\n"
             "    The driver refuses the copy.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "`explain_copy` names the path, and with it the CUDA function. The call waits for\n"
             "host to host copies, for those whose path is ``'bounced'``, and for pageable\n"
             "ones where no thread, page-locked memory or stream memory operation can be had.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> stream = cu.Stream()\n"
             ">>> host, there = cu.pinned_zeros(3), cu.device_empty(3)\n"
             ">>> transfer = cu.copy_async(there, host, stream)\n"
             ">>> transfer.wait()\n"
             ">>> transfer.done\n"
             "True");

static PyObject *module_copy_async(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names)
{
    CoreState *state = cudriver_state_of_module(module);
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);

    /* A keyword argument's value follows the positional ones, so it is args[2] either way. */
    if (count + named != 3 || named > 1 ||
        (named == 1 &&
         PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0)) {
        PyErr_SetString(PyExc_TypeError,
                        "copy_async(dst, src, stream) takes two arrays and a stream");
        return NULL;
    }
    return cudriver_copy_async(state, args[0], args[1], args[2]);
}

PyDoc_STRVAR(explain_copy_doc,
             "explain_copy(dst, src, /)\n"
             "--\n"
             "\n"
             "Return which path a copy would take, and why. Copies nothing.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "dst : numpy.ndarray or DeviceArray\n"
             "    As for `copy`.\n"
             "src : numpy.ndarray or DeviceArray\n"
             "    As for `copy`.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "CopyPlan\n"
             "    A named tuple, with the path's name and the reason first.\n"
             "\n"
             "Raises\n"
             "------\n"
             "TypeError, ValueError\n"
             "    An end is not an array, or the two do not fit.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "The paths ``'kernel'`` and ``'temporary'`` become ``'bounced'`` if the driver\n"
             "refuses the kernel or has no memory left.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> there = cu.device_empty(1000)\n"
             ">>> cu.explain_copy(there, cu.pinned_zeros(1000)).path\n"
             "'direct'");

static PyObject *module_explain_copy(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_staging_plan plan;
    struct cudriver_copy_path path;
    struct ends ends;
    PyObject *row;

    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "explain_copy(dst, src) takes two arguments");
        return NULL;
    }
    if (ends_parse(state, args[0], args[1], &ends) < 0) {
        return NULL;
    }
    memset(&plan, 0, sizeof plan);
    cudriver_copy_decide(&ends.dst, &ends.src, &path);
    cudriver_copy_look(&path, &ends.dst, &ends.src);
    if (path.kind == CUDRIVER_COPY_STAGED) {
        cudriver_staging_explain(path.context->handle, &path.layout, path.to_device, true, &plan);
        if (plan.alone) {
            path.why = plan.path == CUDRIVER_STAGING_DRIVER
                           ? "dense but pageable: the driver's own copy, as this driver has no "
                             "stream memory operations (CUDA 11.7), which staging needs"
                           : "strided: packed or unpacked by the calling thread through one slot, "
                             "as this driver has no stream memory operations (CUDA 11.7)";
        }
    }
    row = PyStructSequence_New(state->copy_plan_type);
    if (row != NULL) {
        PyStructSequence_SetItem(row, 0, PyUnicode_FromString(cudriver_copy_kind_name(path.kind)));
        PyStructSequence_SetItem(row, 1, PyUnicode_FromString(path.why));
        PyStructSequence_SetItem(row, 2, PyLong_FromSize_t(path.bytes));
        PyStructSequence_SetItem(row, 3, PyBool_FromLong(path.page_locked));
        PyStructSequence_SetItem(row, 4,
                                 path.kind == CUDRIVER_COPY_STAGED
                                     ? PyUnicode_FromString(cudriver_staging_path_name(plan.path))
                                     : Py_NewRef(Py_None));
        PyStructSequence_SetItem(row, 5, PyLong_FromSize_t(plan.chunk));
        PyStructSequence_SetItem(row, 6, PyLong_FromLong(plan.threads));
        PyStructSequence_SetItem(row, 7, PyLong_FromSize_t(plan.crossover));
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(row);
    }
    ends_done(&ends);
    return row;
}

static PyStructSequence_Field plan_fields[] = {
    {"path",
     "'direct', '2D', '3D', 'staged', 'kernel', 'temporary', 'peer', 'bounced', 'host', 'same' or "
     "'empty'"},
    {"why", "the reason, in a sentence"},
    {"nbytes", "bytes to be moved"},
    {"page_locked", "whether the host side is page-locked"},
    {"staging",
     "how a staged copy travels: 'staged', 'staged, packed', 'staged, rows', 'staged, permuted', "
     "'one slot' or 'driver'; else None"},
    {"chunk", "bytes of one page-locked slot of a staged copy; else 0"},
    {"threads", "threads that may work on a staged copy; else 0"},
    {"crossover", "bytes from which on a dense pageable copy is staged; 0 where not staged"},
    {NULL, NULL},
};

static PyStructSequence_Desc plan_desc = {
    .name = "cudriver.CopyPlan",
    .doc = "Which path a copy takes, and why; see explain_copy().",
    .fields = plan_fields,
    .n_in_sequence = 8,
};

static PyMethodDef functions[] = {
    {"copy", (PyCFunction)(void (*)(void))module_copy, METH_FASTCALL | METH_KEYWORDS, copy_doc},
    {"copy_async", (PyCFunction)(void (*)(void))module_copy_async, METH_FASTCALL | METH_KEYWORDS,
     copy_async_doc},
    {"explain_copy", (PyCFunction)(void (*)(void))module_explain_copy, METH_FASTCALL,
     explain_copy_doc},
    {NULL},
};

int cudriver_copy_setup(PyObject *module)
{
    CoreState *state = cudriver_state_of_module(module);

    state->copy_plan_type = PyStructSequence_NewType(&plan_desc);
    if (state->copy_plan_type == NULL ||
        PyModule_AddObjectRef(module, "CopyPlan", (PyObject *)state->copy_plan_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}

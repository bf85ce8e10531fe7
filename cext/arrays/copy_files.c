/* _read_files(): bytes of open files into device memory, for weights/reading.py. */
#include "copy_private.h"
#include "python/error.h"

/* The engine's `interrupted`: whether *data, `ended`, is set. */
static bool files_ended(void *data)
{
    return atomic_load((_Atomic int64_t *)data) != 0;
}

/* Reads on a stream that was read. 0 or -1. */
static int files_read(CoreState *state, const struct cudriver_files *files,
                      struct cudriver_stream *stream)
{
    struct cudriver_copy_call call = {
        .stream = stream->handle, .interrupted = files_ended, .data = (void *)files->ended};
    PyThreadState *saved;
    CUresult result;
    bool pushed;

    if (cudriver_context_begin(state, stream->context, &pushed) < 0) {
        return -1;
    }
    copy_call_mark(state, stream->context, true, files->bytes, true);
    saved = PyEval_SaveThread();
    result = cudriver_files_copy(files, stream->context->handle, &call);
    PyEval_RestoreThread(saved);
    copy_call_mark(state, stream->context, true, files->bytes, false);
    cudriver_context_end(stream->context, pushed);
    if (result == CUDRIVER_STAGING_INTERRUPTED) {
        result = CUDA_SUCCESS;
    }
    return cudriver_check(result, "cudriver.load", "%zu bytes of files", files->bytes);
}

/* Whether the buffers are runs within `bytes`, and two counts. If not, TypeError. */
static bool files_are_good(const Py_buffer *runs, Py_ssize_t bytes, Py_ssize_t piece,
                           const Py_buffer *progress)
{
    const Py_ssize_t each = sizeof(struct cudriver_file_run);
    const struct cudriver_file_run *last =
        (const void *)((const char *)runs->buf + runs->len - each);

    if (runs->itemsize == each && runs->len >= each && last->begin + last->bytes <= bytes &&
        piece > 0 && progress->itemsize == sizeof(int64_t) &&
        progress->len >= 2 * progress->itemsize) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "expected runs of files within %zd bytes, a piece and two int64",
                 bytes);
    return false;
}

/* _read_files(runs, nbytes, piece, progress, stream) */
PyObject *cudriver_read_files(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    Py_buffer runs, progress;
    struct cudriver_stream stream;
    PyObject *given;
    Py_ssize_t bytes, piece;
    int failed = -1;

    if (!PyArg_ParseTuple(args, "y*nnw*O", &runs, &bytes, &piece, &progress, &given)) {
        return NULL;
    }
    if (files_are_good(&runs, bytes, piece, &progress) &&
        cudriver_stream_read(state, given, &stream) == 0) {
        _Atomic int64_t *counts = progress.buf;
        const struct cudriver_files files = {.run = runs.buf,
                                             .count = (size_t)runs.len / sizeof *files.run,
                                             .bytes = (size_t)bytes,
                                             .piece = (size_t)piece,
                                             .moved = counts,
                                             .ended = counts + 1};
        failed = cudriver_stream_settle(state, NULL, &stream) < 0 ||
                         cudriver_capture_check(stream.handle, "a copy") < 0
                     ? -1
                     : files_read(state, &files, &stream);
        cudriver_stream_done(&stream);
    }
    PyBuffer_Release(&runs);
    PyBuffer_Release(&progress);
    return cudriver_none(failed);
}

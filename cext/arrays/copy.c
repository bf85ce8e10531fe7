/* Copies, blocking and asynchronous: both ends are read, and the plan is followed. See copy.h. */
#include "copy_private.h"

#include "dlpack.h"
#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "python/call.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/wait.h"
#include "contexts/work.h"
#include "docstrings.h"

void copy_slot_free(PyObject *capsule)
{
    cudriver_hostmem_free(PyCapsule_GetPointer(capsule, NULL));
}

/* Keeps alive what an interrupted copy uses, until its stream has passed it. An exception is set.
 */
static void ends_keep(CoreState *state, PyObject *dst, PyObject *src,
                      const struct cudriver_stream *stream, void *slot)
{
    PyObject *type, *value, *trace, *kept, *owners, *work;

    PyErr_Fetch(&type, &value, &trace);
    kept = slot != NULL ? PyCapsule_New(slot, NULL, copy_slot_free) : Py_NewRef(Py_None);
    owners = kept != NULL ? PyTuple_Pack(2, kept, dst) : NULL;
    work = cudriver_work_add(state, stream, owners, src, 0, NULL);
    Py_XDECREF(kept);
    Py_XDECREF(owners);
    Py_XDECREF(work);
    PyErr_Restore(type, value, trace);
}

/* Follows a plan on a stream of its context, which may be used; waits if `transfer` is NULL. Not on
 * a stream that is being captured. `issue`, if not NULL, is recorded behind the copy. `dst` and
 * `src`: what keeps both ends alive. Takes no lock unless it fails. 0 or -1, also with *transfer
 * set, if it was interrupted and the stream goes on; 1 if the copy was refused and may be bounced.
 */
static int plan_follow(CoreState *state, const struct cudriver_copy_plan *plan, PyObject *dst,
                       PyObject *src, const struct cudriver_stream *stream,
                       struct cudriver_staging_transfer **transfer, struct cudriver_issue *issue,
                       bool *pushed)
{
    /* The driver's own copies need no cudriver_driver_relax: any thread may make them during a
     * capture. */
    bool relax =
        transfer == NULL || (plan->kind != CUDRIVER_COPY_DIRECT && plan->kind != CUDRIVER_COPY_2D &&
                             plan->kind != CUDRIVER_COPY_3D);
    PyThreadState *saved = PyEval_SaveThread();
    struct cudriver_copy_call call = {
        .stream = stream->handle, .interrupted = cudriver_signal_arrived, .data = &saved};
    bool captured = false;
    CUresult here = cudriver_context_make_current(stream->context, pushed), asked = here,
             result = CUDA_SUCCESS;

    if (here == CUDA_SUCCESS) {
        asked = cudriver_capture_ask(stream->handle, &captured);
    }
    if (asked == CUDA_SUCCESS && !captured) {
        if (relax) {
            cudriver_driver_relax();
        }
        result = cudriver_copy_follow(plan, &call, transfer);
        if (relax) {
            cudriver_driver_restore();
        }
        if (issue != NULL && !call.refused && (result == CUDA_SUCCESS || call.queued)) {
            cudriver_work_record(stream, issue);
        }
    }
    cudriver_lock_await();
    PyEval_RestoreThread(saved);
    if (here == CUDA_SUCCESS && asked == CUDA_SUCCESS && !captured && !call.refused &&
        !call.queued && result == CUDA_SUCCESS) {
        return 0;
    }
    CUDRIVER_LOCK();
    if (here != CUDA_SUCCESS) {
        return cudriver_context_refused(stream->context, here);
    }
    if (asked != CUDA_SUCCESS || captured) {
        return cudriver_capture_told(stream->handle, asked, captured,
                                     transfer == NULL ? "a blocking copy" : "a copy");
    }
    if (call.refused) {
        return 1;
    }
    if (call.queued && issue == NULL && transfer == NULL) {
        ends_keep(state, dst, src, stream, call.slot);
    }
    if (result == CUDA_SUCCESS) {
        return 0;
    }
    if (!PyErr_Occurred()) {
        const char *ours = transfer == NULL ? "cudriver.copy" : "cudriver.copy_async";
        cudriver_raise(result, call.function != NULL ? call.function : ours, "%zu bytes, %s copy",
                       plan->bytes, cudriver_copy_kind_name(plan->kind));
    }
    return -1;
}

/* Lets a function of memory/copies.py do it, between arrays over both ends: a copy on the host, or
 * from device to device by several copies. 0 or -1. */
static int copy_in_python(CoreState *state, const struct copy_ends *ends, const char *function)
{
    PyObject *done =
        cudriver_call("copies", function, "(NN)", cudriver_endpoint_array(state, &ends->dst),
                      cudriver_endpoint_array(state, &ends->src));

    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

/* A peer copy names the contexts of both ends, and the driver may crash when given one that its
 * owner has destroyed. 0 or -1. */
static int peers_check(CoreState *state, const struct copy_ends *ends)
{
    ContextObject *both[] = {ends->dst.context, ends->src.context};
    bool pushed;

    for (int i = 0; i < 2; i++) {
        if (both[i]->kind == CUDRIVER_CONTEXT_FOREIGN) {
            if (cudriver_context_enter(state, both[i], &pushed) < 0) {
                return -1;
            }
            cudriver_context_leave(both[i], pushed);
        }
    }
    return 0;
}

/* Does a blocking copy as planned. 0 or -1. */
static int follow_blocking(CoreState *state, struct cudriver_copy_plan *plan,
                           struct copy_ends *ends)
{
    ContextObject *context = ends->home;
    struct cudriver_stream stream, on;
    bool given, pushed;
    int failed;

    if (plan->kind == CUDRIVER_COPY_EMPTY || plan->kind == CUDRIVER_COPY_SAME) {
        return 0;
    }
    if (plan->kind == CUDRIVER_COPY_HOST) {
        return copy_in_python(state, ends, "on_host");
    }
    if (plan->kind == CUDRIVER_COPY_BOUNCED || plan->kind == CUDRIVER_COPY_TEMPORARY) {
        bool no_kernel = plan->kind == CUDRIVER_COPY_BOUNCED &&
                         ends->dst.context->ordinal == ends->src.context->ordinal;
        return copy_in_python(state, ends, no_kernel ? "bounce_by_host" : "bounce");
    }
    if ((plan->kind == CUDRIVER_COPY_PEER && peers_check(state, ends) < 0) ||
        cudriver_stream_read(state, NULL, &stream) < 0) {
        return -1;
    }
    given = stream.held != NULL; /* the enclosing `with stream:` */
    if (given && stream.context->ordinal == context->ordinal &&
        cudriver_copy_plan_move(plan, stream.context->handle)) {
        context = stream.context;
    } else if (given) {
        /* A `with stream:` of another device, or whose kernels cannot use the memory. */
        if (copy_stream_is_near(&stream, ends) &&
            cudriver_stream_drain(state, stream.context, stream.handle, "a blocking copy") < 0) {
            cudriver_stream_done(&stream);
            return -1;
        }
        given = false;
    }
    if (cudriver_context_claim(state, context) < 0) {
        cudriver_stream_done(&stream);
        return -1;
    }
    on =
        (struct cudriver_stream){given ? stream.handle : NULL, context, given ? stream.held : NULL};
    failed = plan_follow(state, plan, ends->dst.owner, ends->src.owner, &on, NULL, NULL, &pushed);
    cudriver_context_leave(context, pushed);
    cudriver_stream_done(&stream);
    return failed > 0 ? copy_in_python(state, ends, "bounce_by_host") : failed;
}

/* Copies between matching ends and waits. 0 or -1. */
static int ends_copy(CoreState *state, struct copy_ends *ends)
{
    struct cudriver_copy_plan plan;

    if (state->works.queues != NULL && (cudriver_device_array_await(state, ends->dst.busy) < 0 ||
                                        cudriver_device_array_await(state, ends->src.busy) < 0)) {
        return -1;
    }
    copy_ends_plan(ends, true, false, &plan);
    return follow_blocking(state, &plan, ends);
}

/* For copies that cannot be issued on the stream: waits for the stream, then copies. */
static PyObject *follow_in_order(CoreState *state, struct cudriver_copy_plan *plan,
                                 struct copy_ends *ends, const struct cudriver_stream *stream)
{
    if (cudriver_context_check(stream->context) < 0) {
        return NULL;
    }
    if (plan->kind == CUDRIVER_COPY_STAGED) {
        copy_ends_plan(ends, true, false, plan);
    }
    if (plan->kind != CUDRIVER_COPY_EMPTY && plan->kind != CUDRIVER_COPY_SAME &&
        (cudriver_stream_drain(state, stream->context, stream->handle, "a copy that waits") < 0 ||
         follow_blocking(state, plan, ends) < 0)) {
        return NULL;
    }
    return cudriver_work_over(state, plan->bytes);
}

/* Issues a copy that is a piece of work in flight by now. Takes no lock unless it fails. New
 * reference: a Transfer. NULL without an exception: the copy was refused, and may be bounced. */
static PyObject *work_issue(CoreState *state, const struct cudriver_copy_plan *plan,
                            const struct cudriver_stream *stream, struct cudriver_issue *issue)
{
    struct cudriver_staging_transfer *staged = NULL;
    PyObject *work = NULL, *const *owners = issue->work->owners;
    PyObject *type, *value, *trace;
    bool pushed;

    if (plan_follow(state, plan, owners[0], owners[1], stream, &staged, issue, &pushed) == 0) {
        work = cudriver_work_end(state, stream, issue, staged);
    } else if (staged != NULL) { /* interrupted: it is in flight, and nobody waits for it */
        PyErr_Fetch(&type, &value, &trace);
        work = cudriver_work_end(state, stream, issue, staged);
        Py_CLEAR(work);
        PyErr_Restore(type, value, trace);
    } else {
        CUDRIVER_LOCK();
        cudriver_work_cancel(state, issue);
    }
    cudriver_context_unmake_current(pushed);
    return work;
}

/* Issues a copy as planned, on a stream of one of its devices. As ends_begin. */
static PyObject *follow_async(CoreState *state, struct cudriver_copy_plan *plan,
                              struct copy_ends *ends, struct cudriver_stream *stream,
                              struct cudriver_staging_transfer **part, struct cudriver_issue *issue)
{
    PyObject *work;
    bool pushed;
    int failed;

    if (plan->kind == CUDRIVER_COPY_EMPTY || plan->kind == CUDRIVER_COPY_SAME ||
        plan->kind == CUDRIVER_COPY_HOST || plan->kind == CUDRIVER_COPY_BOUNCED ||
        plan->kind == CUDRIVER_COPY_TEMPORARY ||
        !cudriver_copy_plan_move(plan, stream->context->handle)) {
        return follow_in_order(state, plan, ends, stream);
    }
    if (plan->kind == CUDRIVER_COPY_PEER && peers_check(state, ends) < 0) {
        return NULL;
    }
    if (part != NULL) {
        if (cudriver_context_claim(state, stream->context) < 0) {
            return NULL;
        }
        failed =
            plan_follow(state, plan, ends->dst.owner, ends->src.owner, stream, part, NULL, &pushed);
        cudriver_context_leave(stream->context, pushed);
        work = failed ? NULL : Py_NewRef(Py_None);
    } else {
        if (cudriver_work_begin(state, stream, ends->dst.owner, ends->src.owner, plan->bytes,
                                issue) < 0 ||
            plan->kind == CUDRIVER_COPY_DIRECT) {
            return NULL;
        }
        work = work_issue(state, plan, stream, issue);
        failed = work == NULL && !PyErr_Occurred();
    }
    if (failed > 0) {
        plan->kind = CUDRIVER_COPY_BOUNCED;
        return follow_in_order(state, plan, ends, stream);
    }
    return work;
}

/* Waits for an end that is ready for another context's default stream. 0 or -1. */
static int end_wait(CoreState *state, const struct cudriver_endpoint *end,
                    const struct cudriver_stream *stream)
{
    return end->on_default && end->context != stream->context
               ? cudriver_dlpack_wait(state, end, stream)
               : 0;
}

/* Plans a copy between matching ends and issues it, but for one DIRECT copy: that is `issue`'s, for
 * work_issue, which needs neither the lock nor the ends. New reference: a Transfer; or NULL, with
 * an exception unless issue->work is set. */
static PyObject *ends_begin(CoreState *state, struct copy_ends *ends,
                            struct cudriver_stream *stream, struct cudriver_staging_transfer **part,
                            struct cudriver_copy_plan *plan, struct cudriver_issue *issue)
{
    issue->work = NULL;
    copy_ends_plan(ends, false, false, plan);
    if (cudriver_stream_settle(state, ends->home, stream) < 0 || copy_ends_near(stream, ends) < 0 ||
        end_wait(state, &ends->dst, stream) < 0 || end_wait(state, &ends->src, stream) < 0) {
        return NULL;
    }
    return follow_async(state, plan, ends, stream, part, issue);
}

PyObject *copy_ends_queue(CoreState *state, struct copy_ends *ends, struct cudriver_stream *stream,
                          struct cudriver_staging_transfer **part)
{
    struct cudriver_copy_plan plan;
    struct cudriver_issue issue;
    PyObject *work = ends_begin(state, ends, stream, part, &plan, &issue);

    return work == NULL && issue.work != NULL ? work_issue(state, &plan, stream, &issue) : work;
}

/* ---- functions of the module ---- */

static PyObject *module_copy(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *names)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    struct copy_ends ends;
    int failed;

    if (count != 2 || names != NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "copy(dst, src) takes two positional arguments; in a stream's order "
                        "it is copy_async(dst, src, stream)");
        return NULL;
    }
    if (copy_ends_parse(state, args[0], args[1], true, NULL, &ends) < 0) {
        return NULL;
    }
    failed = ends_copy(state, &ends);
    copy_ends_done(&ends);
    return failed < 0 ? NULL : Py_NewRef(Py_None);
}

/* Reads what copy_async() takes beside its two arrays. 0, or -1 with an exception. */
static int options_read(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **stream,
                        int *borrow)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    bool good = count == 2 || count == 3;

    *stream = count == 3 ? args[2] : NULL;
    *borrow = 0;
    for (Py_ssize_t i = 0; i < named && good && *borrow >= 0; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (PyUnicode_CompareWithASCIIString(name, "borrow") == 0) {
            *borrow = PyObject_IsTrue(args[count + i]);
        } else {
            good = *stream == NULL && PyUnicode_CompareWithASCIIString(name, "stream") == 0;
            *stream = args[count + i];
        }
    }
    if (!good) {
        PyErr_SetString(PyExc_TypeError, "copy_async(dst, src, stream=None, *, borrow=False) takes "
                                         "two arrays, and a stream or None");
    }
    return good && *borrow >= 0 ? 0 : -1;
}

static PyObject *module_copy_async(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names)
{
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_issue issue = {NULL, CUDA_SUCCESS};
    struct cudriver_copy_plan plan;
    struct cudriver_stream stream;
    PyObject *given, *transfer = NULL;
    int borrow;

    if (options_read(args, count, names, &given, &borrow) < 0) {
        return NULL;
    }
    {
        CUDRIVER_LOCK();
        struct copy_ends ends;
        if (cudriver_stream_read(state, given, &stream) < 0) {
            return NULL;
        }
        if (copy_ends_parse(state, args[0], args[1], true, &stream, &ends) == 0) {
            ends.borrow = borrow > 0;
            transfer = ends_begin(state, &ends, &stream, NULL, &plan, &issue);
            copy_ends_done(&ends);
        }
    }
    if (transfer == NULL && issue.work != NULL) {
        transfer = work_issue(state, &plan, &stream, &issue);
    }
    cudriver_stream_done(&stream);
    return transfer;
}

/* _fill(array, item, stream): a copy of one item to all places, which does not wait for an
 * enclosing `with stream:`. */
static PyObject *module_fill(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    PyObject *array, *item, *given, *done = NULL;
    struct cudriver_stream stream;
    struct copy_ends ends;

    if (!PyArg_ParseTuple(args, "O!OO", state->device_array_type, &array, &item, &given) ||
        copy_ends_parse(state, array, item, false, NULL, &ends) < 0) {
        return NULL;
    }
    ends.src.ndim = ends.dst.ndim;
    ends.src.fixed = true;
    for (int i = 0; i < ends.dst.ndim; i++) {
        ends.src.shape[i] = ends.dst.shape[i];
        ends.src.strides[i] = 0;
    }
    if (given == Py_None) {
        StreamObject *entered = cudriver_dlpack_stream(state, ends.dst.context->ordinal);
        given = entered != NULL ? (PyObject *)entered : Py_None;
    }
    if (given == Py_None) {
        done = ends_copy(state, &ends) < 0 ? NULL : Py_NewRef(Py_None);
    } else if (cudriver_stream_read(state, given, &stream) == 0) {
        done = copy_ends_queue(state, &ends, &stream, NULL);
        cudriver_stream_done(&stream);
    }
    copy_ends_done(&ends);
    return done;
}

/* New reference: the fields of a CopyPlan but `why`, and what that is made of: whether the plan is
 * for dense memory, for ends that are both on a device, that are not on the same; and so on. */
static PyObject *module_explain_copy(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    struct copy_ends ends;
    struct cudriver_copy_plan plan; /* its pointers to the ends are stale */
    struct staging_plan staged = {0};
    int path = -1;
    PyObject *dst, *src;

    if (!PyArg_ParseTuple(args, "OO", &dst, &src) ||
        copy_ends_parse(cudriver_state_of_module(module), dst, src, true, CUDRIVER_UNORDERED,
                        &ends) < 0) {
        return NULL;
    }
    copy_ends_plan(&ends, true, true, &plan);
    copy_ends_done(&ends);
    if (plan.kind == CUDRIVER_COPY_STAGED) {
        staged = plan.staged;
        path = (int)staged.path;
    }
    return Py_BuildValue(
        "(snNininNNNNNn)", cudriver_copy_kind_name(plan.kind), (Py_ssize_t)plan.bytes,
        PyBool_FromLong(plan.page_locked), path, (Py_ssize_t)staged.chunk, staged.threads,
        (Py_ssize_t)staged.crossover, PyBool_FromLong(plan.layout.ndim == 0),
        PyBool_FromLong(plan.dst.on_device && plan.src.on_device),
        PyBool_FromLong(plan.dst.ordinal != plan.src.ordinal), PyBool_FromLong(plan.coherent),
        PyBool_FromLong(plan.dst.on_device), (Py_ssize_t)TUNING_HELD);
}

static PyObject *module_copy_threads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("(ii)", cudriver_staging_get_threads(), CUDRIVER_STAGING_THREADS_MOST);
}

static PyObject *module_set_copy_threads(PyObject *Py_UNUSED(module), PyObject *count)
{
    long threads = PyLong_AsLong(count);

    if (PyErr_Occurred()) {
        return NULL;
    }
    cudriver_staging_set_threads((int)threads);
    Py_RETURN_NONE;
}

PyMethodDef cudriver_copy_functions[] = {
    {"copy", CUDRIVER_FAST(module_copy), DOC_copy},
    {"copy_async", CUDRIVER_FAST(module_copy_async), DOC_copy_async},
    {"_copy_threads", module_copy_threads, METH_NOARGS, DOC__copy_threads},
    {"_set_copy_threads", module_set_copy_threads, METH_O, DOC__set_copy_threads},
    {"_fill", module_fill, METH_VARARGS, DOC__fill},
    {"_explain_copy", module_explain_copy, METH_VARARGS, NULL},
    {NULL},
};

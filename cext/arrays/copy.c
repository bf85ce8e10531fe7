/* Copies, blocking and asynchronous: both ends are read from whatever has memory, checked against
 * each other and planned; the plan is followed. See copy.h and copy_private.h. */
#include "copy_private.h"

#include <string.h>

#include "dlpack.h"
#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "python/call.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "contexts/work.h"

const struct cudriver_stream cudriver_unordered;

/* ---- one end ---- */

int cudriver_endpoint_parse(CoreState *state, PyObject *object, bool own, const char *name,
                            const struct cudriver_stream *on, struct cudriver_endpoint *end)
{
    bool write = own && name != NULL;
    int found = 0;

    cudriver_endpoint_clear(end);
    if (Py_IS_TYPE(object, state->device_array_type)) {
        found = cudriver_device_array_endpoint(object, end) < 0 ? -1 : 1;
    } else if (cudriver_numpy_is_array(object)) {
        found = cudriver_numpy_endpoint(object, object, end) < 0 ? -1 : 1;
    } else if (!PyType_Check(object)) { /* a class shows methods that need an object */
        found = cudriver_dlpack_table(state, object) != NULL /* then that is the fastest way */
                    ? 0
                    : cudriver_interface_endpoint(state, object, write, on, end);
        if (found == 0) {
            found = cudriver_dlpack_endpoint(state, object, own, on, end);
        }
    }
    if (found == 0 && name != NULL) {
        PyErr_Format(PyExc_TypeError, "%s is not an array, but a %.100s%s", name,
                     Py_TYPE(object)->tp_name,
                     write ? "" : " (np.asarray() makes an array of most things)");
        return -1;
    }
    if (found > 0 && write && end->read_only) {
        cudriver_endpoint_done(end);
        return cudriver_do(CALL_refusals_read_only, object);
    }
    return found;
}

/* ---- both ends ---- */

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

void copy_ends_plan(struct copy_ends *ends, bool blocking, bool ask,
                    struct cudriver_copy_plan *plan)
{
    const struct cudriver_endpoint *dst = &ends->dst, *src = &ends->src;
    struct cudriver_layout *layout = &plan->layout;

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
    layout->ndim = dst->ndim;
    layout->itemsize = dst->itemsize;
    layout->dst_offset = layout->src_offset = 0;
    memcpy(layout->shape, dst->shape, (size_t)dst->ndim * sizeof dst->shape[0]);
    memcpy(layout->dst_strides, dst->strides, (size_t)dst->ndim * sizeof dst->strides[0]);
    memcpy(layout->src_strides, src->strides, (size_t)src->ndim * sizeof src->strides[0]);
    ends->home = dst->context != NULL ? dst->context : src->context;
    cudriver_copy_plan_make(plan);
}

static bool copy_stream_is_near(const struct cudriver_stream *stream, const struct copy_ends *ends)
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

/* ---- the plan is followed ---- */

void copy_slot_free(PyObject *capsule)
{
    cudriver_hostmem_free(PyCapsule_GetPointer(capsule, NULL));
}

/* Keeps alive what an interrupted copy uses, until its stream has passed it. An exception is set.
 */
static void ends_keep(CoreState *state, PyObject *dst, PyObject *src,
                      const struct cudriver_stream *stream, void *slot)
{
    PyObject *type, *value, *trace, *owners, *work;

    PyErr_Fetch(&type, &value, &trace);
    owners = slot != NULL ? Py_BuildValue("(NO)", PyCapsule_New(slot, NULL, copy_slot_free), dst)
                          : Py_NewRef(dst);
    work = cudriver_work_add(state, stream, owners, src, 0, (size_t[2]){0, 0}, NULL);
    Py_XDECREF(owners);
    Py_XDECREF(work);
    PyErr_Restore(type, value, trace);
}

/* Follows a plan on a stream of its context, which may be used; waits if `transfer` is NULL. Not on
 * a stream that is being captured. `work`, if not NULL, is recorded behind the copy. `dst` and
 * `src`: what keeps both ends alive. Takes no lock unless it fails. 0 or -1, also with *transfer
 * set, if it was interrupted and the stream goes on; 1 if the copy was refused and may be bounced.
 */
static int plan_follow(CoreState *state, const struct cudriver_copy_plan *plan, PyObject *dst,
                       PyObject *src, const struct cudriver_stream *stream,
                       struct cudriver_staging_transfer **transfer, TransferObject *work,
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
        if (work != NULL && !call.refused && (result == CUDA_SUCCESS || call.queued)) {
            cudriver_work_record(stream, work);
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
    if (call.queued && work == NULL && transfer == NULL) {
        ends_keep(state, dst, src, stream, call.slot);
    }
    if (result == CUDA_SUCCESS) {
        return 0;
    }
    if (!PyErr_Occurred()) {
        const char *ours = transfer == NULL ? "cudriver.copy" : "cudriver.copy_async";
        cudriver_check(result, call.function != NULL ? call.function : ours, "%zu bytes, %s copy",
                       plan->bytes, cudriver_copy_kind_name(plan->kind));
    }
    return -1;
}

/* Lets a function of memory/copies.py do it, between arrays over both ends: a copy on the host, or
 * from device to device by several copies. 0 or -1. */
static int copy_in_python(CoreState *state, const struct copy_ends *ends,
                          enum cudriver_function function)
{
    return cudriver_do(function, cudriver_endpoint_array(state, &ends->dst),
                       cudriver_endpoint_array(state, &ends->src));
}

/* A peer copy names the contexts of both ends, and the driver may crash when given one that its
 * owner has destroyed. 0 or -1. */
static int peers_check(const struct copy_ends *ends)
{
    ContextObject *both[] = {ends->dst.context, ends->src.context};

    for (int i = 0; i < 2; i++) {
        if (cudriver_context_is_stale(both[i])) {
            return cudriver_context_refused(both[i], CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
    }
    return 0;
}

void copy_call_mark(CoreState *state, ContextObject *context, bool up, size_t bytes, bool begins)
{
    context->big[up] += begins ? bytes : -bytes;
    state->works.big += begins ? bytes : -bytes;
}

/* Bytes of a copy that is not small, between host and device; else 0. */
static size_t plan_bus_bytes(const struct cudriver_copy_plan *plan)
{
    return plan->bytes >= TUNING_BIG_COUNTED && plan->dst.on_device != plan->src.on_device &&
                   plan->kind != CUDRIVER_COPY_FILL
               ? plan->bytes
               : 0;
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
        return copy_in_python(state, ends, CALL_copies_on_host);
    }
    if (plan->kind == CUDRIVER_COPY_BOUNCED || plan->kind == CUDRIVER_COPY_TEMPORARY) {
        bool no_kernel = plan->kind == CUDRIVER_COPY_BOUNCED &&
                         ends->dst.context->ordinal == ends->src.context->ordinal;
        return copy_in_python(state, ends,
                              no_kernel ? CALL_copies_bounce_by_host : CALL_copies_bounce);
    }
    if ((plan->kind == CUDRIVER_COPY_PEER && peers_check(ends) < 0) ||
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
    copy_call_mark(state, context, plan->dst.on_device, plan_bus_bytes(plan), true);
    failed = plan_follow(state, plan, ends->dst.owner, ends->src.owner, &on, NULL, NULL, &pushed);
    copy_call_mark(state, context, plan->dst.on_device, plan_bus_bytes(plan), false);
    cudriver_context_leave(context, pushed);
    cudriver_stream_done(&stream);
    return failed > 0 ? copy_in_python(state, ends, CALL_copies_bounce_by_host) : failed;
}

int copy_ends_copy(CoreState *state, struct copy_ends *ends)
{
    struct cudriver_copy_plan plan;

    if (state->works.queues != NULL && (cudriver_device_array_await(state, ends->dst.users) < 0 ||
                                        cudriver_device_array_await(state, ends->src.users) < 0)) {
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

PyObject *copy_work_issue(CoreState *state, const struct cudriver_copy_plan *plan,
                          const struct cudriver_stream *stream, TransferObject *begun)
{
    struct cudriver_staging_transfer *staged = NULL;
    PyObject *work = NULL, *const *owners = begun->owners;
    PyObject *type, *value, *trace;
    bool pushed;

    if (plan_follow(state, plan, owners[0], owners[1], stream, &staged, begun, &pushed) == 0) {
        work = cudriver_work_end(state, stream, begun, staged);
    } else if (staged != NULL) { /* interrupted: it is in flight, and nobody waits for it */
        PyErr_Fetch(&type, &value, &trace);
        work = cudriver_work_end(state, stream, begun, staged);
        Py_CLEAR(work);
        PyErr_Restore(type, value, trace);
    } else {
        CUDRIVER_LOCK();
        cudriver_work_cancel(state, begun);
    }
    if (pushed) {
        cudriver_driver_pop();
    }
    return work;
}

PyObject *copy_ends_begin(CoreState *state, struct copy_ends *ends, struct cudriver_stream *stream,
                          struct cudriver_staging_transfer **part, struct cudriver_copy_plan *plan,
                          TransferObject **begun)
{
    const struct cudriver_endpoint *both[] = {&ends->dst, &ends->src};
    size_t big[2] = {0, 0};
    PyObject *work;
    bool pushed;
    int failed;

    *begun = NULL;
    copy_ends_plan(ends, false, false, plan);
    if (cudriver_stream_settle(state, ends->home, stream) < 0 || copy_ends_near(stream, ends) < 0) {
        return NULL;
    }
    for (int i = 0; i < 2; i++) { /* ready for another context's default stream? */
        if (both[i]->on_default && both[i]->context != stream->context &&
            cudriver_dlpack_wait(state, both[i], stream) < 0) {
            return NULL;
        }
    }
    if (plan->kind == CUDRIVER_COPY_EMPTY || plan->kind == CUDRIVER_COPY_SAME ||
        plan->kind == CUDRIVER_COPY_HOST || plan->kind == CUDRIVER_COPY_BOUNCED ||
        plan->kind == CUDRIVER_COPY_TEMPORARY ||
        !cudriver_copy_plan_move(plan, stream->context->handle)) {
        return follow_in_order(state, plan, ends, stream);
    }
    if (plan->kind == CUDRIVER_COPY_PEER && peers_check(ends) < 0) {
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
        big[plan->dst.on_device] = plan_bus_bytes(plan);
        *begun =
            cudriver_work_begin(state, stream, ends->dst.owner, ends->src.owner, plan->bytes, big);
        if (*begun == NULL || plan->kind == CUDRIVER_COPY_DIRECT) {
            return NULL;
        }
        work = copy_work_issue(state, plan, stream, *begun);
        *begun = NULL;
        failed = work == NULL && !PyErr_Occurred();
    }
    if (failed > 0) {
        plan->kind = CUDRIVER_COPY_BOUNCED;
        return follow_in_order(state, plan, ends, stream);
    }
    return work;
}

PyObject *copy_ends_queue(CoreState *state, struct copy_ends *ends, struct cudriver_stream *stream,
                          struct cudriver_staging_transfer **part)
{
    struct cudriver_copy_plan plan;
    TransferObject *begun;
    PyObject *work = copy_ends_begin(state, ends, stream, part, &plan, &begun);

    return work == NULL && begun != NULL ? copy_work_issue(state, &plan, stream, begun) : work;
}

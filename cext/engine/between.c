/* Copies between device memory, in stream order: in one context by the kernel, between two contexts
 * packed, copied and unpacked. See private.h. */
#include "private.h"

#include "driver/driver.h"

/* One end's part of a copy: packs its memory into a dense temporary, or unpacks it from one. */
struct leg {
    struct staging_place *place; /* borrowed, entered */
    struct staging_point at;
    bool push; /* two contexts: each call makes its own current */
    CUmemoryPool pool;
    CUdeviceptr memory;
    struct cudriver_layout layout; /* pack or unpack; ndim 0: the memory itself is dense */
    CUdeviceptr temporary;         /* owned, freed in stream order; 0: none */
};

/* ---- launches ---- */

static int shortest_dimension(const struct cudriver_layout *layout)
{
    int best = 0;

    for (int d = 1; d < layout->ndim; d++) {
        best = layout->shape[d] < layout->shape[best] ? d : best;
    }
    return best;
}

/* Removes a dimension from a layout. */
static void dimension_drop(struct cudriver_layout *layout, int dropped)
{
    layout->ndim--;
    for (int d = dropped; d < layout->ndim; d++) {
        layout->shape[d] = layout->shape[d + 1];
        layout->dst_strides[d] = layout->dst_strides[d + 1];
        layout->src_strides[d] = layout->src_strides[d + 1];
    }
}

static bool launches_are_few(const struct cudriver_layout *layout, int unit)
{
    struct cudriver_layout rest = *layout;
    int64_t launches = 1;

    while (!staging_kernels_fit(&rest, unit) && launches <= TUNING_MOST_LAUNCHES) {
        int d = shortest_dimension(&rest);
        launches = rest.shape[d] > TUNING_MOST_LAUNCHES ? TUNING_MOST_LAUNCHES + 1
                                                        : launches * rest.shape[d];
        dimension_drop(&rest, d);
    }
    return launches <= TUNING_MOST_LAUNCHES;
}

static CUresult launches_queue(const struct staging_kernels *kernels, int unit,
                               const struct cudriver_layout *layout, CUdeviceptr dst,
                               CUdeviceptr src, CUstream stream)
{
    struct cudriver_layout rest;
    CUresult result = CUDA_SUCCESS;
    int d;

    if (staging_kernels_fit(layout, unit)) {
        return staging_kernels_launch(kernels, layout, dst, src, stream);
    }
    d = shortest_dimension(layout);
    rest = *layout;
    dimension_drop(&rest, d);
    for (int64_t i = 0; i < layout->shape[d] && result == CUDA_SUCCESS; i++) {
        result = launches_queue(kernels, unit, &rest, dst, src, stream);
        rest.dst_offset += layout->dst_strides[d];
        rest.src_offset += layout->src_strides[d];
    }
    return result;
}

bool cudriver_staging_has_kernel(CUcontext context, const struct cudriver_layout *layout,
                                 CUdeviceptr dst, CUdeviceptr src)
{
    int unit = staging_kernels_size(layout, dst, src, STAGING_KERNEL_UNITS - 1);
    bool none = false;

    if (!launches_are_few(layout, unit)) {
        return false;
    }
    staging_lock();
    for (struct staging_place *place = staging.places; place != NULL; place = place->next) {
        none |= place->context == context && place->no_kernels;
    }
    staging_unlock();
    return !none;
}

/* ---- legs ---- */

/* Makes the leg's context current. Between two contexts each call does, whichever is current: if a
 * pop fails, the next call must not run in the other context. */
static CUresult leg_begin(const struct leg *leg)
{
    return leg->push ? cuda.cuCtxPushCurrent_v2(leg->at.context) : CUDA_SUCCESS;
}

static void leg_end(const struct leg *leg)
{
    CUcontext popped;

    if (leg->push) {
        cuda.cuCtxPopCurrent_v2(&popped);
    }
}

/* Allocates the leg's temporary in stream order. */
static CUresult leg_allocate(struct leg *leg, size_t bytes, const char **function)
{
    CUresult result = leg->pool != NULL ? leg_begin(leg) : CUDA_ERROR_NOT_SUPPORTED;

    *function = "cuMemAllocFromPoolAsync";
    if (result == CUDA_SUCCESS) {
        result = cuda.cuMemAllocFromPoolAsync(&leg->temporary, bytes, leg->pool, leg->at.stream);
        leg->temporary = result == CUDA_SUCCESS ? leg->temporary : 0;
        leg_end(leg);
    }
    return result;
}

/* Frees the temporary in stream order. No result: the caller could do nothing about a failure. */
static void leg_free(struct leg *leg)
{
    if (leg->temporary != 0) {
        if (leg_begin(leg) == CUDA_SUCCESS) {
            cuda.cuMemFreeAsync(leg->temporary, leg->at.stream);
            leg_end(leg);
        } else {
            cuda.cuMemFree_v2(leg->temporary); /* needs no context; waits for the device */
        }
    }
    leg->temporary = 0;
}

/* Queues a copy at the leg's end: by the kernel, or by the driver if it is dense. NOT_SUPPORTED: no
 * kernel can do it. *begun: set once bytes of `dst` may change. */
static CUresult leg_copy(const struct leg *leg, const struct cudriver_layout *layout,
                         CUdeviceptr dst, CUdeviceptr src, bool *begun, const char **function)
{
    int unit = staging_kernels_size(layout, dst, src, STAGING_KERNEL_UNITS - 1);
    struct staging_kernels *kernels;
    CUresult result = leg_begin(leg);

    *function = "cuCtxPushCurrent_v2";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (layout->ndim == 0) {
        *begun = true;
        *function = "cuMemcpyDtoDAsync_v2";
        result = cuda.cuMemcpyDtoDAsync_v2(dst + (CUdeviceptr)layout->dst_offset,
                                           src + (CUdeviceptr)layout->src_offset, layout->itemsize,
                                           leg->at.stream);
    } else {
        *function = "cuModuleLoadDataEx";
        result = launches_are_few(layout, unit) ? staging_place_kernel(leg->place, unit, &kernels)
                                                : CUDA_ERROR_NOT_SUPPORTED;
        if (result == CUDA_SUCCESS) {
            *begun = true;
            *function = "cuLaunchKernel";
            result = launches_queue(kernels, unit, layout, dst, src, leg->at.stream);
        }
    }
    leg_end(leg);
    return result;
}

static void leg_wait(const struct leg *leg)
{
    if (leg_begin(leg) == CUDA_SUCCESS) {
        cuda.cuStreamSynchronize(leg->at.stream);
        leg_end(leg);
    }
}

/* ---- copies ---- */

/* Lets what is queued at `second` from now on wait for what is queued at `first`. */
static CUresult leg_follow(const struct leg *first, const struct leg *second, const char **function)
{
    *function = "cuStreamWaitEvent";
    return staging_stream_follow(first->at, second->at);
}

/* Makes the layouts of both legs: into dense memory in the order of the walk, and out of it. */
static void legs_split(const struct cudriver_layout *whole, struct cudriver_layout *pack,
                       struct cudriver_layout *unpack)
{
    int64_t stride = (int64_t)whole->itemsize;

    *pack = *unpack = *whole;
    pack->dst_offset = unpack->src_offset = 0;
    for (int d = whole->ndim - 1; d >= 0; d--) {
        pack->dst_strides[d] = unpack->src_strides[d] = stride;
        stride *= whole->shape[d];
    }
    cudriver_layout_simplify(pack, true);
    cudriver_layout_simplify(unpack, false);
}

/* Chooses where the far end's work runs: in its own context, if there is any. If the caller's is a
 * default stream it is the far context's, so that the copy comes after the default work of both. */
static CUresult leg_place(struct leg *far, const struct leg *near, const char **function)
{
    CUresult result = CUDA_SUCCESS;

    if (cudriver_stream_is_default(near->at.stream)) {
        far->at.stream = NULL;
    } else if (far->layout.ndim > 0) {
        *function = "cuStreamCreateWithPriority";
        result = leg_begin(far);
        if (result == CUDA_SUCCESS) {
            result = staging_side_get(far->place, &far->at.stream);
            leg_end(far);
        }
    } else {
        far->at = near->at;
    }
    return result;
}

/* Copies dense memory, or what is packed, to the other device. */
static CUresult peer_copy(const struct leg *src, const struct leg *dst, size_t bytes,
                          const char **function)
{
    CUdeviceptr from =
        src->temporary != 0 ? src->temporary : src->memory + (CUdeviceptr)src->layout.src_offset;
    CUdeviceptr to =
        dst->temporary != 0 ? dst->temporary : dst->memory + (CUdeviceptr)dst->layout.dst_offset;
    CUresult result = leg_begin(src);

    *function = "cuMemcpyPeerAsync";
    if (result == CUDA_SUCCESS) {
        result = cuda.cuMemcpyPeerAsync(to, dst->place->context, from, src->place->context, bytes,
                                        src->at.stream);
        leg_end(src);
    }
    return result;
}

/* Packs at the source, copies to the other device if there are two, and unpacks at the destination.
 * Dense memory on one of two devices needs neither. *begun: bytes of the destination may have
 * changed. */
static CUresult legs_queue(const struct cudriver_copy_plan *plan, struct leg *src, struct leg *dst,
                           bool *begun, const char **function)
{
    bool two = src->place != dst->place;
    struct leg *near = plan->context == src->at.context ? src : dst, *far = near == src ? dst : src;
    size_t bytes = plan->bytes;

    legs_split(&plan->layout, &src->layout, &dst->layout);
    bool packs = !two || src->layout.ndim > 0, unpacks = !two || dst->layout.ndim > 0;
    CUresult result = two ? leg_place(far, near, function) : CUDA_SUCCESS;
    bool apart = far->at.context != near->at.context;
    if (result == CUDA_SUCCESS && packs) {
        result = leg_allocate(src, bytes, function);
    }
    if (result == CUDA_SUCCESS && two && unpacks) {
        result = leg_allocate(dst, bytes, function);
    }
    if (result == CUDA_SUCCESS && apart) {
        result = leg_follow(dst, src, function);
    }
    if (result == CUDA_SUCCESS && packs) {
        result = leg_copy(src, &src->layout, src->temporary, src->memory, begun, function);
        *begun = false; /* only the temporary has changed */
    }
    if (result == CUDA_SUCCESS && two) {
        result = peer_copy(src, dst, bytes, function);
    }
    if (result == CUDA_SUCCESS && apart) {
        result = leg_follow(src, dst, function);
    }
    if (result == CUDA_SUCCESS && unpacks) {
        result = leg_copy(dst, &dst->layout, dst->memory, two ? dst->temporary : src->temporary,
                          begun, function);
    }
    if (result == CUDA_SUCCESS && apart && near == src) {
        result = leg_follow(dst, src, function);
    }
    if (result != CUDA_SUCCESS && apart) {
        /* One stream may be writing memory that the other is about to free. */
        leg_wait(near);
        leg_wait(far);
    }
    leg_free(src);
    leg_free(dst);
    return result;
}

/* Errors after which the path through the host may work. A launch answers INVALID_HANDLE if the
 * stream is of another context, as another library's may be. */
static bool is_refusal(CUresult result)
{
    return result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_OUT_OF_MEMORY ||
           result == CUDA_ERROR_INVALID_HANDLE;
}

CUresult staging_copy_between(const struct cudriver_copy_plan *plan,
                              struct cudriver_copy_call *call)
{
    bool two = plan->two_devices, begun = false;
    CUcontext dst_context = two ? plan->dst.context : plan->context;
    CUcontext src_context = two ? plan->src.context : plan->context;
    struct staging_place *to, *from;
    CUresult result = staging_place_enter(dst_context, &to);

    call->refused = false;
    call->function = "cuCtxPushCurrent_v2";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    from = to;
    result = two ? staging_place_enter(src_context, &from) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        staging_place_leave(to);
        return result;
    }
    struct leg dst = {.place = to,
                      .at = {dst_context, call->stream},
                      .push = two,
                      .pool = plan->dst_pool,
                      .memory = plan->dst.device};
    struct leg src = {.place = from,
                      .at = {src_context, call->stream},
                      .push = two,
                      .pool = plan->src_pool,
                      .memory = plan->src.device};
    result = two || plan->overlap
                 ? legs_queue(plan, &src, &dst, &begun, &call->function)
                 : leg_copy(&dst, &plan->layout, dst.memory, src.memory, &begun, &call->function);
    /* Where the ends overlap the source changes with the destination: not to be repeated. */
    call->refused = is_refusal(result) && !(begun && plan->overlap);
    if (result != CUDA_SUCCESS) {
        leg_wait(plan->context == dst_context ? &dst : &src);
    }
    if (two) {
        staging_place_leave(from);
    }
    staging_place_leave(to);
    return result;
}

/* Copies between device memory, in stream order: in one context by the kernel, between two contexts
 * packed, copied and unpacked. See engine.h. */
#include "private.h"

#include "driver/driver.h"

/* One end's part of a copy: packs its memory into a dense temporary, or unpacks it from one. */
struct leg {
    struct staging_place *place; /* borrowed, entered */
    struct staging_point at;
    CUcontext current; /* the thread's current context between calls */
    CUmemoryPool pool;
    CUdeviceptr memory;
    struct cudriver_layout layout;   /* pack or unpack; ndim 0: the memory itself is dense */
    struct staging_kernels *kernels; /* borrowed; NULL if the memory is dense */
    int unit;                        /* log2 of the kernels' item size */
    CUdeviceptr temporary;           /* owned, freed in stream order; 0: none */
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

/* Makes the leg's context current, if it is not. */
static CUresult leg_begin(const struct leg *leg)
{
    return leg->at.context == leg->current ? CUDA_SUCCESS
                                           : cuda.cuCtxPushCurrent_v2(leg->at.context);
}

static void leg_end(const struct leg *leg)
{
    CUcontext popped;

    if (leg->at.context != leg->current) {
        cuda.cuCtxPopCurrent_v2(&popped);
    }
}

/* Loads the kernel for a leg whose layout is set. `dst` and `src` must be as aligned as the
 * addresses of the launch. NOT_SUPPORTED: no kernel can do it. */
static CUresult leg_prepare(struct leg *leg, CUdeviceptr dst, CUdeviceptr src)
{
    CUresult result;
    bool none;

    leg->kernels = NULL;
    if (leg->layout.ndim == 0) {
        return CUDA_SUCCESS;
    }
    leg->unit = staging_kernels_size(&leg->layout, dst, src, STAGING_KERNEL_UNITS - 1);
    staging_lock();
    none = leg->place->no_kernels;
    staging_unlock();
    if (none || !launches_are_few(&leg->layout, leg->unit)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    result = leg_begin(leg);
    if (result == CUDA_SUCCESS) {
        result = staging_place_kernel(leg->place, leg->unit, &leg->kernels);
        leg_end(leg);
    }
    return result;
}

/* Allocates the leg's temporary in stream order. */
static CUresult leg_allocate(struct leg *leg, size_t bytes)
{
    CUresult result;

    if (leg->pool == NULL) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    result = leg_begin(leg);
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

/* Queues the leg's copy from `src` to `dst`. */
static CUresult leg_move(const struct leg *leg, CUdeviceptr dst, CUdeviceptr src,
                         const char **function)
{
    const struct cudriver_layout *layout = &leg->layout;
    CUresult result = leg_begin(leg);

    *function = "cuCtxPushCurrent_v2";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (leg->kernels == NULL) {
        *function = "cuMemcpyDtoDAsync_v2";
        result = cuda.cuMemcpyDtoDAsync_v2(dst + (CUdeviceptr)layout->dst_offset,
                                           src + (CUdeviceptr)layout->src_offset, layout->itemsize,
                                           leg->at.stream);
    } else {
        *function = "cuLaunchKernel";
        result = launches_queue(leg->kernels, leg->unit, layout, dst, src, leg->at.stream);
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

/* A copy that is being queued. */
struct between {
    const struct cudriver_staging_between *job;
    size_t bytes;
    struct leg src, dst;
    bool *refused; /* cleared once a repetition would give other bytes */
    const char **function;
};

/* Makes the layouts of both legs: into dense memory in the order of the walk, and out of it. */
static void between_split(struct between *between)
{
    const struct cudriver_layout *whole = between->job->layout;
    struct cudriver_layout *pack = &between->src.layout, *unpack = &between->dst.layout;
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

/* Splits the copy into two legs and makes their kernels ready. */
static CUresult between_prepare(struct between *between)
{
    struct leg *src = &between->src, *dst = &between->dst;
    CUresult result;

    between_split(between);
    *between->function = "cuModuleLoadDataEx";
    result = leg_prepare(src, 0, src->memory);
    return result == CUDA_SUCCESS ? leg_prepare(dst, dst->memory, 0) : result;
}

/* One context, no overlap: one copy by the kernel. */
static CUresult direct_queue(struct between *between)
{
    struct leg *leg = &between->dst;
    CUdeviceptr src = between->src.memory;
    CUresult result;

    leg->layout = *between->job->layout;
    result = leg_prepare(leg, leg->memory, src);
    if (result != CUDA_SUCCESS) {
        *between->function = "cuModuleLoadDataEx";
        return result;
    }
    return leg_move(leg, leg->memory, src, between->function); /* can be repeated */
}

/* One context, overlap: packs into a temporary, then unpacks. */
static CUresult overlapping_queue(struct between *between)
{
    struct leg *src = &between->src, *dst = &between->dst;
    CUresult result = between_prepare(between);

    if (result == CUDA_SUCCESS) {
        *between->function = "cuMemAllocFromPoolAsync";
        result = leg_allocate(src, between->bytes);
    }
    if (result == CUDA_SUCCESS) {
        result = leg_move(src, src->temporary, src->memory, between->function);
    }
    if (result == CUDA_SUCCESS) {
        *between->refused = false; /* from here on the source changes */
        result = leg_move(dst, dst->memory, src->temporary, between->function);
    }
    leg_free(src);
    return result;
}

static CUresult peer_copy(struct between *between)
{
    const struct leg *src = &between->src, *dst = &between->dst;
    bool packed = src->temporary != 0, unpacked = dst->temporary != 0;
    CUdeviceptr from = packed ? src->temporary : src->memory + (CUdeviceptr)src->layout.src_offset;
    CUdeviceptr to = unpacked ? dst->temporary : dst->memory + (CUdeviceptr)dst->layout.dst_offset;
    CUresult result = leg_begin(src);

    *between->function = "cuMemcpyPeerAsync";
    if (result == CUDA_SUCCESS) {
        result = cuda.cuMemcpyPeerAsync(to, dst->place->context, from, src->place->context,
                                        between->bytes, src->at.stream);
        leg_end(src);
    }
    return result;
}

/* Two contexts: packs at the source, copies between the devices, unpacks at the destination. */
static CUresult peers_queue(struct between *between)
{
    struct leg *src = &between->src, *dst = &between->dst;
    bool from_src = between->job->context == src->at.context;
    struct leg *near = from_src ? src : dst, *far = from_src ? dst : src;
    bool no_handle = staging_stream_is_default(near->at.stream);
    CUresult result = between_prepare(between);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    /* The far end's work needs a stream there. If the caller's is a default stream it is the far
     * context's default stream, so that the copy comes after the default work of both. */
    if (no_handle) {
        far->at.stream = NULL;
    } else if (far->kernels != NULL) {
        *between->function = "cuStreamCreateWithPriority";
        result = leg_begin(far);
        if (result == CUDA_SUCCESS) {
            result = staging_side_get(far->place, &far->at.stream);
            leg_end(far);
        }
    } else {
        far->at = near->at;
    }
    bool apart = far->at.context != near->at.context;
    *between->function = "cuMemAllocFromPoolAsync";
    if (result == CUDA_SUCCESS && src->kernels != NULL) {
        result = leg_allocate(src, between->bytes);
    }
    if (result == CUDA_SUCCESS && dst->kernels != NULL) {
        result = leg_allocate(dst, between->bytes);
    }
    if (result == CUDA_SUCCESS && apart) {
        *between->function = "cuStreamWaitEvent";
        result = staging_stream_follow(dst->at, src->at);
    }
    if (result == CUDA_SUCCESS && src->kernels != NULL) {
        result = leg_move(src, src->temporary, src->memory, between->function);
    }
    if (result == CUDA_SUCCESS) {
        result = peer_copy(between);
    }
    if (result == CUDA_SUCCESS && apart) {
        *between->function = "cuStreamWaitEvent";
        result = staging_stream_follow(src->at, dst->at);
    }
    if (result == CUDA_SUCCESS && dst->kernels != NULL) {
        result = leg_move(dst, dst->memory, dst->temporary, between->function);
    }
    if (result == CUDA_SUCCESS && apart && near == src) {
        *between->function = "cuStreamWaitEvent";
        result = staging_stream_follow(dst->at, src->at);
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

CUresult cudriver_staging_copy_between(const struct cudriver_staging_between *job, bool *refused,
                                       const char **function)
{
    bool two = job->dst.context != job->src.context;
    struct between between = {.job = job, .refused = refused, .function = function};
    struct staging_place *to, *from;
    CUresult result = staging_place_enter(job->dst.context, &to);

    *refused = false;
    *function = "cuCtxPushCurrent_v2";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    from = to;
    result = two ? staging_place_enter(job->src.context, &from) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        staging_place_leave(to);
        return result;
    }
    between.bytes = cudriver_layout_bytes(job->layout);
    between.dst = (struct leg){.place = to,
                               .at = {job->dst.context, job->stream},
                               .current = job->src.context, /* the last one entered */
                               .pool = job->dst.pool,
                               .memory = job->dst.memory};
    between.src = (struct leg){.place = from,
                               .at = {job->src.context, job->stream},
                               .current = job->src.context,
                               .pool = job->src.pool,
                               .memory = job->src.memory};
    *refused = true;
    result = two            ? peers_queue(&between)
             : job->overlap ? overlapping_queue(&between)
                            : direct_queue(&between);
    *refused = *refused && is_refusal(result);
    if (result != CUDA_SUCCESS) {
        leg_wait(job->context == job->dst.context ? &between.dst : &between.src);
    }
    if (two) {
        staging_place_leave(from);
    }
    staging_place_leave(to);
    return result;
}

/*
 * Copies.
 *
 * Every copy has one shape: rows of `width` bytes, `height` of them in a slice, `depth` slices,
 * with a pitch on either side. When it happens:
 *
 *   blocking                     during the call, when the NULL stream's turn has come
 *   blocking, from pageable to   up to 2 MiB: the source is read during the call, the rest
 *   a device                     happens on the NULL stream
 *   blocking, on devices         on the NULL stream, or during the call if that is idle
 *   asynchronous, page-locked    later, on the stream; the source is read then
 *   asynchronous, from pageable  up to 2 MiB: the source is read during the call, the rest happens
 *                                later; above: done when the call returns
 *   asynchronous, to pageable    done when the call returns
 *   on a captured stream         when the graph is launched
 *
 * Where work is late (cudriver_sim_set_late) the limit of 2 MiB is gone: the driver's documentation
 * promises no more than that the source was read.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STAGED_BYTES ((size_t)2 << 20)

struct side {
    bool host; /* a host pointer, page-locked or not; else a device address */
    uintptr_t address;
    size_t pitch;
    size_t slice;
};

struct shape {
    struct side dst, src;
    size_t width, height, depth;
};

/* Bytes from pageable memory up to which a call returns when it has read them. */
static size_t early_bytes(void)
{
    return atomic_load_explicit(&sim_knobs.late, memory_order_relaxed) != 0 ? SIZE_MAX
                                                                            : STAGED_BYTES;
}

static size_t shape_bytes(const struct shape *shape)
{
    return shape->width * shape->height * shape->depth;
}

/* Bytes from the first byte of a side to the end of its last. */
static size_t side_extent(const struct shape *shape, const struct side *side)
{
    return (shape->depth - 1) * side->slice + (shape->height - 1) * side->pitch + shape->width;
}

/* In the monitor. Pins a side; the program keeps host memory alive. */
static CUresult side_pin(const struct shape *shape, const struct side *side, struct sim_pin *pin)
{
    if (side->host) {
        pin->block = NULL;
        pin->bytes = sim_host_bytes(side->address, side_extent(shape, side));
        return CUDA_SUCCESS;
    }
    return sim_memory_pin(side->address, side_extent(shape, side), pin);
}

static CUresult shape_pin(const struct shape *shape, struct sim_pin *dst, struct sim_pin *src)
{
    CUresult result = side_pin(shape, &shape->dst, dst);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = side_pin(shape, &shape->src, src);
    if (result != CUDA_SUCCESS) {
        sim_memory_unpin(dst);
    }
    return result;
}

/* In the monitor. */
static CUresult side_check(const struct shape *shape, const struct side *side)
{
    size_t extent = side_extent(shape, side);

    if (!side->host) {
        return sim_memory_check(side->address, extent);
    }
    return sim_host_kind(side->address, extent) == HOST_TORN ? CUDA_ERROR_INVALID_VALUE
                                                             : CUDA_SUCCESS;
}

/* In the monitor. SUCCESS if a copy may use both sides' memory. */
static CUresult shape_check(const struct shape *shape)
{
    CUresult result = CUDA_SUCCESS;

    if (shape_bytes(shape) == 0) {
        return CUDA_SUCCESS;
    }
    result = side_check(shape, &shape->dst);
    return result != CUDA_SUCCESS ? result : side_check(shape, &shape->src);
}

/* Moves the bytes, without the monitor. */
static void shape_move(const struct shape *shape, char *dst, const char *src)
{
    if (shape->height == 1 && shape->depth == 1) {
        memmove(dst, src, shape->width);
        return;
    }
    for (size_t z = 0; z < shape->depth; z++) {
        for (size_t y = 0; y < shape->height; y++) {
            memmove(dst + z * shape->dst.slice + y * shape->dst.pitch,
                    src + z * shape->src.slice + y * shape->src.pitch, shape->width);
        }
    }
}

static bool side_is_pageable(const struct shape *shape, const struct side *side)
{
    return side->host && sim_host_kind(side->address, side_extent(shape, side)) != HOST_LOCKED;
}

/* A copy of pageable memory that crawls takes 1 ns a byte. */
static void shape_crawl(const struct shape *shape)
{
    size_t bytes = shape_bytes(shape);
    struct timespec pause = {(time_t)(bytes / 1000000000), (long)(bytes % 1000000000)};

    nanosleep(&pause, NULL);
}

/* Without the monitor. INVALID_VALUE if a side's memory has been freed. */
static CUresult shape_copy(const struct shape *shape)
{
    struct sim_pin dst, src;
    CUresult result;
    bool crawls;

    if (shape_bytes(shape) == 0) {
        return CUDA_SUCCESS;
    }
    sim_lock();
    result = shape_pin(shape, &dst, &src);
    crawls = atomic_load(&sim_knobs.crawls) &&
             (side_is_pageable(shape, &shape->dst) || side_is_pageable(shape, &shape->src));
    sim_unlock();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (crawls) {
        shape_crawl(shape);
    }
    shape_move(shape, dst.bytes, src.bytes);
    sim_lock();
    sim_memory_unpin(&dst);
    sim_memory_unpin(&src);
    sim_unlock();
    return CUDA_SUCCESS;
}

/* ---- on a stream ---- */

struct copy_op {
    struct sim_op op;
    struct shape shape;
    char *staged; /* owned; the source's bytes if they were read when the copy was issued */
};

static CUresult copy_run(struct sim_stream *stream, struct sim_op *op)
{
    struct copy_op *copy = (struct copy_op *)op;

    (void)stream;
    return shape_copy(&copy->shape) == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static void copy_finish(struct sim_stream *stream, struct sim_op *op, bool issued)
{
    (void)stream;
    (void)issued;
    free(((struct copy_op *)op)->staged);
}

static struct copy_op *copy_new(const struct shape *shape)
{
    struct copy_op *copy = sim_op_new(sizeof *copy);

    if (copy != NULL) {
        copy->op.run = copy_run;
        copy->op.finish = copy_finish;
        copy->op.bytes = shape_bytes(shape);
        copy->shape = *shape;
    }
    return copy;
}

/* Without the monitor. Packs the source into memory that the operation owns. */
static bool copy_stage(struct copy_op *copy)
{
    struct shape pack = copy->shape;
    size_t bytes = shape_bytes(&copy->shape);

    copy->staged = malloc(bytes);
    if (copy->staged == NULL) {
        return false;
    }
    pack.dst.pitch = pack.width;
    pack.dst.slice = pack.width * pack.height;
    shape_move(&pack, copy->staged, (const char *)copy->shape.src.address);
    copy->shape.src.address = (uintptr_t)copy->staged;
    copy->shape.src.pitch = pack.dst.pitch;
    copy->shape.src.slice = pack.dst.slice;
    return true;
}

/* In the monitor, given up meanwhile. Issues a checked copy on a stream. */
static CUresult copy_issue(struct sim_stream *stream, const struct shape *shape)
{
    struct copy_op *copy;
    bool from_pageable, to_pageable;

    if (shape_bytes(shape) == 0) {
        return CUDA_SUCCESS;
    }
    from_pageable = side_is_pageable(shape, &shape->src);
    to_pageable = side_is_pageable(shape, &shape->dst);
    copy = copy_new(shape);
    if (copy == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (stream->capture != NULL) {
        return sim_stream_issue(stream, &copy->op);
    }
    if (to_pageable || (from_pageable && copy->op.bytes > early_bytes())) {
        return sim_stream_issue_and_wait(stream, &copy->op);
    }
    if (from_pageable) {
        bool staged;
        CUresult result;
        sim_object_hold(stream);
        sim_context_work_begin(stream->context);
        sim_unlock();
        staged = copy_stage(copy);
        sim_lock();
        if (staged) {
            result = sim_stream_issue(stream, &copy->op);
        } else {
            sim_op_drop(&copy->op);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        sim_context_work_end(stream->context);
        sim_object_drop(stream);
        return result;
    }
    return sim_stream_issue(stream, &copy->op);
}

/* An asynchronous call: enters, checks, issues. */
static CUresult copy_async(enum sim_call call, const struct shape *shape, CUstream handle)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(call, handle, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = shape_check(shape);
    if (result == CUDA_SUCCESS) {
        result = copy_issue(stream, shape);
    }
    return sim_leave(result);
}

/* ---- at once ---- */

/* Begins a call that is ordered with the NULL stream. On success the monitor is held. */
static CUresult sync_enter(enum sim_call call, struct sim_context **context)
{
    CUresult result = sim_enter_current(call, context);

    if (result == CUDA_SUCCESS) {
        result = sim_capture_legacy(*context);
        if (result != CUDA_SUCCESS) {
            sim_unlock();
        }
    }
    return result;
}

/* In the monitor, given up meanwhile. */
static CUresult copy_now(struct sim_context *context, const struct shape *shape)
{
    CUresult result = shape_check(shape);

    if (result != CUDA_SUCCESS || shape_bytes(shape) == 0) {
        return result;
    }
    sim_context_work_begin(context);
    result = sim_stream_settle(context);
    if (result == CUDA_SUCCESS) {
        result = sim_context_state(context);
    }
    if (result == CUDA_SUCCESS) {
        sim_unlock();
        sim_stream_cost(shape_bytes(shape), context);
        result = shape_copy(shape);
        sim_lock();
    }
    sim_context_work_end(context);
    return result;
}

static CUresult copy_sync(enum sim_call call, const struct shape *shape)
{
    struct sim_context *context;
    CUresult result = sync_enter(call, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    return sim_leave(copy_now(context, shape));
}

/* From pageable memory, up to early_bytes(), the call returns when the source has been read. The
 * rest is issued on the NULL stream, unless it can be done at once. */
static CUresult copy_up(enum sim_call call, const struct shape *shape)
{
    struct sim_context *context;
    struct sim_stream *stream;
    CUresult result = sync_enter(call, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = shape_check(shape);
    if (result != CUDA_SUCCESS || shape_bytes(shape) > early_bytes() ||
        !side_is_pageable(shape, &shape->src)) {
        return sim_leave(copy_now(context, shape));
    }
    result = sim_stream_settle(context);
    if (result == CUDA_SUCCESS) {
        result = sim_stream_of(NULL, context, &stream);
    }
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    return sim_leave(sim_stream_is_idle(stream) ? copy_now(context, shape)
                                                : copy_issue(stream, shape));
}

/* From device to device the host does not wait: the copy is issued on the NULL stream, unless that
 * is idle and the copy can be done here. */
static CUresult copy_between(enum sim_call call, const struct shape *shape)
{
    struct sim_context *context;
    struct sim_stream *stream;
    CUresult result = sync_enter(call, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = sim_stream_of(NULL, context, &stream);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    if (sim_stream_is_idle(stream)) {
        return sim_leave(copy_now(context, shape));
    }
    result = shape_check(shape);
    if (result == CUDA_SUCCESS) {
        result = copy_issue(stream, shape);
    }
    return sim_leave(result);
}

/* ---- one dimension ---- */

static struct shape flat(bool dst_host, uintptr_t dst, bool src_host, uintptr_t src, size_t bytes)
{
    return (struct shape){
        .dst = {.host = dst_host, .address = dst, .pitch = bytes, .slice = bytes},
        .src = {.host = src_host, .address = src, .pitch = bytes, .slice = bytes},
        .width = bytes,
        .height = 1,
        .depth = 1,
    };
}

/* False for NULL and for addresses in a device's address space. */
static bool is_host_pointer(const void *pointer)
{
    return pointer != NULL && !sim_space_owns((uintptr_t)pointer);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
    struct shape shape = flat(false, dst, is_host_pointer(src), (uintptr_t)src, bytes);

    return copy_up(CALL_cuMemcpyHtoD_v2, &shape);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
    struct shape shape = flat(is_host_pointer(dst), (uintptr_t)dst, false, src, bytes);

    return copy_sync(CALL_cuMemcpyDtoH_v2, &shape);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    struct shape shape = flat(false, dst, false, src, bytes);

    return copy_between(CALL_cuMemcpyDtoD_v2, &shape);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    struct shape shape = flat(false, dst, is_host_pointer(src), (uintptr_t)src, bytes);

    return copy_async(CALL_cuMemcpyHtoDAsync_v2, &shape, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    struct shape shape = flat(is_host_pointer(dst), (uintptr_t)dst, false, src, bytes);

    return copy_async(CALL_cuMemcpyDtoHAsync_v2, &shape, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    struct shape shape = flat(false, dst, false, src, bytes);

    return copy_async(CALL_cuMemcpyDtoDAsync_v2, &shape, stream);
}

/* Many copies, which have no order among themselves: the last is issued first. Driver 580 refuses
 * default streams, empty copies and none at all, and a refused capture goes on. */
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *firsts, size_t kinds,
                               CUstream handle)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuMemcpyBatchAsync_v2, handle, &stream);
    bool sensible;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream->capture != NULL) {
        return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    sensible = count > 0 && dsts != NULL && srcs != NULL && sizes != NULL && kinds == 1 &&
               attributes != NULL && firsts != NULL && firsts[0] == 0 &&
               attributes->srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
               stream != stream->context->legacy;
    result = sensible ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (int issue = 0; issue < 2; issue++) {
        for (size_t i = count; i-- > 0 && result == CUDA_SUCCESS;) {
            const void *dst = (const void *)(uintptr_t)dsts[i];
            const void *src = (const void *)(uintptr_t)srcs[i];
            struct shape shape = flat(is_host_pointer(dst), (uintptr_t)dst, is_host_pointer(src),
                                      (uintptr_t)src, sizes[i]);
            result = sizes[i] == 0 ? CUDA_ERROR_INVALID_VALUE
                     : issue       ? copy_issue(stream, &shape)
                                   : shape_check(&shape);
        }
    }
    return sim_leave(result);
}

/* In the monitor. Whether the two contexts that a peer copy names exist. */
static CUresult peers_check(CUcontext dst, CUcontext src)
{
    struct sim_context *context;
    CUresult result = sim_context_of(dst, &context);

    return result != CUDA_SUCCESS ? result : sim_context_of(src, &context);
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                      CUcontext src_context, size_t bytes)
{
    struct shape shape = flat(false, dst, false, src, bytes);
    struct sim_context *context;
    CUresult result = sync_enter(CALL_cuMemcpyPeer, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = peers_check(dst_context, src_context);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    /* It is ordered with the work of both contexts. */
    for (int i = 0; i < 2 && result == CUDA_SUCCESS; i++) {
        struct sim_context *other;
        result = sim_context_of(i == 0 ? dst_context : src_context, &other);
        if (result == CUDA_SUCCESS) {
            sim_context_work_begin(other);
            result = sim_stream_settle(other);
            sim_context_work_end(other);
        }
    }
    if (result == CUDA_SUCCESS) {
        result = sim_context_current(&context);
    }
    return sim_leave(result != CUDA_SUCCESS ? result : copy_now(context, &shape));
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                           CUcontext src_context, size_t bytes, CUstream handle)
{
    struct shape shape = flat(false, dst, false, src, bytes);
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuMemcpyPeerAsync, handle, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = peers_check(dst_context, src_context);
    if (result == CUDA_SUCCESS) {
        result = shape_check(&shape);
    }
    if (result == CUDA_SUCCESS) {
        result = copy_issue(stream, &shape);
    }
    return sim_leave(result);
}

/* ---- two and three dimensions ---- */

/* One side of a descriptor. */
struct box_side {
    size_t x, y, z;
    CUmemorytype type;
    uintptr_t host;
    CUdeviceptr device;
    size_t pitch;
    size_t height; /* rows in a slice */
};

/* False if the side is invalid. A pitch of 0 means rows without gaps, a height of 0 slices without
 * gaps. */
static bool box_resolve(const struct box_side *box, size_t width, size_t rows, struct side *side)
{
    size_t pitch = box->pitch != 0 ? box->pitch : box->x + width;
    size_t height = box->height != 0 ? box->height : box->y + rows;

    if (pitch < box->x + width || height < box->y + rows) {
        return false;
    }
    switch (box->type) {
    case CU_MEMORYTYPE_HOST:
        side->host = is_host_pointer((const void *)box->host);
        side->address = box->host;
        break;
    case CU_MEMORYTYPE_DEVICE:
        side->host = false;
        side->address = (uintptr_t)box->device;
        break;
    case CU_MEMORYTYPE_UNIFIED:
        side->host = is_host_pointer((const void *)(uintptr_t)box->device);
        side->address = (uintptr_t)box->device;
        break;
    default:
        return false; /* CUDA arrays are not modelled */
    }
    side->pitch = pitch;
    side->slice = pitch * height;
    side->address += box->z * side->slice + box->y * pitch + box->x;
    return true;
}

static bool shape_from_2d(const CUDA_MEMCPY2D *copy, struct shape *shape)
{
    struct box_side dst, src;

    if (copy == NULL) {
        return false;
    }
    dst = (struct box_side){
        copy->dstXInBytes, copy->dstY,     0, copy->dstMemoryType, (uintptr_t)copy->dstHost,
        copy->dstDevice,   copy->dstPitch, 0};
    src = (struct box_side){
        copy->srcXInBytes, copy->srcY,     0, copy->srcMemoryType, (uintptr_t)copy->srcHost,
        copy->srcDevice,   copy->srcPitch, 0};
    shape->width = copy->WidthInBytes;
    shape->height = copy->Height;
    shape->depth = 1;
    return box_resolve(&dst, shape->width, shape->height, &shape->dst) &&
           box_resolve(&src, shape->width, shape->height, &shape->src);
}

static bool shape_from_3d(const CUDA_MEMCPY3D *copy, struct shape *shape)
{
    struct box_side dst, src;

    if (copy == NULL || copy->srcLOD != 0 || copy->dstLOD != 0 || copy->reserved0 != NULL ||
        copy->reserved1 != NULL) {
        return false;
    }
    dst = (struct box_side){
        copy->dstXInBytes,        copy->dstY,      copy->dstZ,     copy->dstMemoryType,
        (uintptr_t)copy->dstHost, copy->dstDevice, copy->dstPitch, copy->dstHeight};
    src = (struct box_side){
        copy->srcXInBytes,        copy->srcY,      copy->srcZ,     copy->srcMemoryType,
        (uintptr_t)copy->srcHost, copy->srcDevice, copy->srcPitch, copy->srcHeight};
    shape->width = copy->WidthInBytes;
    shape->height = copy->Height;
    shape->depth = copy->Depth;
    return box_resolve(&dst, shape->width, shape->height, &shape->dst) &&
           box_resolve(&src, shape->width, shape->height, &shape->src);
}

/* A blocking call. An error of sim_enter takes precedence over an invalid shape. */
static CUresult box_sync(enum sim_call call, const struct shape *shape, bool sensible)
{
    CUresult result;

    if (sensible) {
        return shape->dst.host || shape->src.host ? copy_sync(call, shape)
                                                  : copy_between(call, shape);
    }
    result = sim_enter(call);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
}

static CUresult box_async(enum sim_call call, const struct shape *shape, bool sensible,
                          CUstream stream)
{
    CUresult result;

    if (sensible) {
        return copy_async(call, shape, stream);
    }
    result = sim_enter(call);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
    struct shape shape;
    bool sensible = shape_from_2d(copy, &shape);

    return box_sync(CALL_cuMemcpy2DUnaligned_v2, &shape, sensible);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    struct shape shape;
    bool sensible = shape_from_2d(copy, &shape);

    return box_async(CALL_cuMemcpy2DAsync_v2, &shape, sensible, stream);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy)
{
    struct shape shape;
    bool sensible = shape_from_3d(copy, &shape);

    return box_sync(CALL_cuMemcpy3D_v2, &shape, sensible);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream)
{
    struct shape shape;
    bool sensible = shape_from_3d(copy, &shape);

    return box_async(CALL_cuMemcpy3DAsync_v2, &shape, sensible, stream);
}

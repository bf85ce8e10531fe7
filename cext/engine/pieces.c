/* Copies of long runs ("pieces"), each by the device's copy engines. See engine.h. */
#include "private.h"

#include <stdlib.h>

#include "driver/driver.h"

/* Pieces that were found but not yet queued. */
struct pieces {
    const struct cudriver_staging_pieces *job;
    CUstream stream;
    bool batches; /* whether the stream takes batches */
    size_t count;
    const char **function;
    CUdeviceptr dsts[TUNING_BATCH_MOST], srcs[TUNING_BATCH_MOST];
    size_t sizes[TUNING_BATCH_MOST];
};

bool cudriver_staging_has_batches(void)
{
    return cuda.cuMemcpyBatchAsync_v2 != NULL || cuda.cuMemcpyBatchAsync != NULL;
}

size_t cudriver_staging_least_piece(void)
{
    struct staging_settings settings;
    size_t least;

    staging_settings_get(&settings);
    least = TUNING_PIECE_A_THREAD * (size_t)staging_threads_wanted(SIZE_MAX, false, &settings);
    least = least < TUNING_PIECE_LEAST ? least : TUNING_PIECE_LEAST;
    return cudriver_staging_has_batches() ? least : 2 * least;
}

/* CUDA 12.8 has an argument more than CUDA 13.0. */
static CUresult batch_queue(struct pieces *pieces)
{
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t first = 0, failed = 0;

    if (cuda.cuMemcpyBatchAsync_v2 != NULL) {
        *pieces->function = "cuMemcpyBatchAsync_v2";
        return cuda.cuMemcpyBatchAsync_v2(pieces->dsts, pieces->srcs, pieces->sizes, pieces->count,
                                          &attributes, &first, 1, pieces->stream);
    }
    *pieces->function = "cuMemcpyBatchAsync";
    return cuda.cuMemcpyBatchAsync(pieces->dsts, pieces->srcs, pieces->sizes, pieces->count,
                                   &attributes, &first, 1, &failed, pieces->stream);
}

static CUresult one_queue(struct pieces *pieces, size_t i)
{
    CUdeviceptr dst = pieces->dsts[i], src = pieces->srcs[i];
    size_t bytes = pieces->sizes[i];

    if (pieces->job->to_device && pieces->job->from_device) {
        *pieces->function = "cuMemcpyDtoDAsync_v2";
        return cuda.cuMemcpyDtoDAsync_v2(dst, src, bytes, pieces->stream);
    }
    if (pieces->job->to_device) {
        *pieces->function = "cuMemcpyHtoDAsync_v2";
        return cuda.cuMemcpyHtoDAsync_v2(dst, (const void *)(uintptr_t)src, bytes, pieces->stream);
    }
    *pieces->function = "cuMemcpyDtoHAsync_v2";
    return cuda.cuMemcpyDtoHAsync_v2((void *)(uintptr_t)dst, src, bytes, pieces->stream);
}

/* Queues the pieces found so far. */
static CUresult pieces_queue(struct pieces *pieces)
{
    CUresult result = CUDA_SUCCESS;
    bool batch = pieces->batches && pieces->count >= TUNING_BATCH_LEAST;

    if (batch) {
        result = batch_queue(pieces);
        /* Refused as a whole: one by one they may succeed, or give a clearer error. */
        batch = result != CUDA_ERROR_NOT_SUPPORTED && result != CUDA_ERROR_INVALID_VALUE;
        pieces->batches = batch;
        result = batch ? result : CUDA_SUCCESS;
    }
    for (size_t i = 0; i < pieces->count && !batch && result == CUDA_SUCCESS; i++) {
        result = one_queue(pieces, i);
    }
    pieces->count = 0;
    return result;
}

/* Queues all pieces of the layout on pieces->stream. */
static CUresult layout_queue(struct pieces *pieces)
{
    const struct cudriver_layout *layout = pieces->job->layout;
    CUdeviceptr dst = pieces->job->dst + (CUdeviceptr)layout->dst_offset;
    CUdeviceptr src = pieces->job->src + (CUdeviceptr)layout->src_offset;
    int64_t index[CUDRIVER_MAX_DIMS] = {0};
    CUresult result;
    int d;

    do {
        pieces->dsts[pieces->count] = dst;
        pieces->srcs[pieces->count] = src;
        pieces->sizes[pieces->count++] = layout->itemsize;
        result = pieces->count == TUNING_BATCH_MOST ? pieces_queue(pieces) : CUDA_SUCCESS;
        for (d = layout->ndim - 1; d >= 0; d--) {
            dst += (CUdeviceptr)layout->dst_strides[d];
            src += (CUdeviceptr)layout->src_strides[d];
            if (++index[d] < layout->shape[d]) {
                break;
            }
            dst -= (CUdeviceptr)(layout->shape[d] * layout->dst_strides[d]);
            src -= (CUdeviceptr)(layout->shape[d] * layout->src_strides[d]);
            index[d] = 0;
        }
    } while (d >= 0 && result == CUDA_SUCCESS);
    return result == CUDA_SUCCESS && pieces->count > 0 ? pieces_queue(pieces) : result;
}

/* For a default stream: queues on a stream of the place's, ordered with the caller's by two
 * events. */
static CUresult beside_queue(struct pieces *pieces, struct staging_place *place)
{
    struct staging_point caller = {place->context, pieces->job->stream};
    struct staging_point side = {place->context, NULL};
    CUresult result = staging_side_get(place, &side.stream);

    *pieces->function = "cuStreamCreateWithPriority";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *pieces->function = "cuStreamWaitEvent";
    result = staging_stream_follow(caller, side);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pieces->stream = side.stream;
    result = layout_queue(pieces);
    if (result == CUDA_SUCCESS) {
        *pieces->function = "cuStreamWaitEvent";
        result = staging_stream_follow(side, caller);
    }
    if (result != CUDA_SUCCESS) {
        cuda.cuStreamSynchronize(side.stream); /* nobody else would wait for it */
    }
    return result;
}

CUresult cudriver_staging_copy_pieces(const struct cudriver_staging_pieces *job,
                                      const char **function)
{
    size_t count = cudriver_layout_bytes(job->layout) / job->layout->itemsize;
    bool beside = staging_stream_is_default(job->stream) && count >= TUNING_BATCH_BESIDE &&
                  cudriver_staging_has_batches();
    struct pieces *pieces;
    struct staging_place *place;
    CUresult result = staging_place_enter(job->context, &place);

    *function = "cuCtxPushCurrent_v2";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pieces = malloc(sizeof *pieces);
    if (pieces == NULL) {
        staging_place_leave(place);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pieces->job = job;
    pieces->stream = job->stream;
    pieces->batches =
        cudriver_staging_has_batches() && (beside || !staging_stream_is_default(job->stream));
    pieces->count = 0;
    pieces->function = function;
    result = beside ? beside_queue(pieces, place) : layout_queue(pieces);
    free(pieces);
    staging_place_leave(place);
    return result;
}

/* Lanes: the blocks of a transfer, and which transfer gets which. See private.h. */
#include "private.h"

#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"

void staging_lanes_free(struct staging_lane *lanes, bool current, bool all)
{
    while (lanes != NULL) {
        struct staging_lane *next = lanes->next;
        if (lanes->users > 0) { /* a stream may still use it: given up */
            lanes->lost = true;
            lanes->next = NULL;
            lanes = next;
            continue;
        }
        if (all && lanes->scratch != 0) {
            cuda.cuMemFree_v2(lanes->scratch);
        }
        for (int i = 0; current && i < STAGING_BLOCKS_MOST && lanes->copied[i] != NULL; i++) {
            cuda.cuEventDestroy_v2(lanes->copied[i]);
        }
        if (current && lanes->own != NULL) {
            cuda.cuStreamDestroy_v2(lanes->own);
        }
        if (lanes->block != NULL) {
            cudriver_hostmem_free(lanes->block);
        }
        free(lanes);
        lanes = next;
    }
}

/* Words, for asynchronous copies. */
static CUresult lane_words(struct staging_lane *lane)
{
    memset(lane->block, 0, STAGING_WORDS);
    lane->ready = (_Atomic uint32_t *)lane->block;
    lane->passed = (_Atomic uint32_t *)(lane->block + STAGING_WORD);
    return cuda.cuMemHostGetDevicePointer_v2(&lane->address, lane->block, 0);
}

/* A stream and events, for a blocking copy. */
static CUresult lane_stream(struct staging_lane *lane)
{
    CUresult result = cuda.cuStreamCreateWithPriority(&lane->own, CU_STREAM_NON_BLOCKING, 0);

    lane->own = result == CUDA_SUCCESS ? lane->own : NULL;
    for (int i = 0; i < STAGING_BLOCKS_MOST && result == CUDA_SUCCESS; i++) {
        result = cuda.cuEventCreate(&lane->copied[i], CU_EVENT_DISABLE_TIMING);
        lane->copied[i] = result == CUDA_SUCCESS ? lane->copied[i] : NULL;
    }
    return result;
}

/* A new lane. */
static CUresult lane_make(size_t bytes, size_t scratch, bool own, struct staging_lane **made)
{
    struct staging_lane *lane = calloc(1, sizeof *lane);
    void *memory = NULL;
    CUresult result;

    if (lane == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    lane->bytes = bytes;
    lane->scratch_bytes = scratch;
    result = staging_slot_get(STAGING_WORDS + bytes, &memory);
    lane->block = result == CUDA_SUCCESS ? memory : NULL;
    if (result == CUDA_SUCCESS && scratch > 0) {
        result = cuda.cuMemAlloc_v2(&lane->scratch, scratch);
        lane->scratch = result == CUDA_SUCCESS ? lane->scratch : 0;
    }
    if (result == CUDA_SUCCESS) {
        result = own ? lane_stream(lane) : lane_words(lane);
    }
    if (result != CUDA_SUCCESS) {
        staging_lanes_free(lane, true, true);
        return result;
    }
    *made = lane;
    return CUDA_SUCCESS;
}

/* What tells a stream from all others, also from those that have its handle before or after it;
 * else, as before CUDA 12.0, NO_ID. */
#define NO_ID (~0ull)
static unsigned long long stream_id(CUstream stream)
{
    unsigned long long id;

    return stream != CUDRIVER_STREAM_PER_THREAD && cuda.cuStreamGetId != NULL &&
                   cuda.cuStreamGetId(stream, &id) == CUDA_SUCCESS
               ? id
               : NO_ID;
}

/* Locked. A lane that fits: the one that earlier copies on the stream use, else a free one; NULL:
 * none. */
static struct staging_lane *lane_find(const struct staging_place *place, unsigned long long stream,
                                      size_t bytes, size_t scratch, bool own)
{
    struct staging_lane *found = NULL;

    for (struct staging_lane *lane = place->lanes; lane != NULL; lane = lane->next) {
        bool same =
            lane->users > 0 && !lane->issuing && lane->stream == stream && stream != NO_ID && !own;
        if ((same || lane->users == 0) && !lane->lost && lane->bytes >= bytes &&
            lane->scratch_bytes >= scratch && own == (lane->own != NULL)) {
            if (same) {
                return lane;
            }
            found = found == NULL || lane->bytes < found->bytes ? lane : found;
        }
    }
    return found;
}

CUresult staging_lane_get(struct cudriver_staging_transfer *transfer, size_t bytes, size_t scratch)
{
    struct staging_place *place = transfer->place;
    bool own = transfer->own, up = transfer->plan.up;
    size_t wanted = bytes < TUNING_LANE_LEAST ? TUNING_LANE_LEAST : bytes;
    unsigned long long stream = own ? NO_ID : stream_id(transfer->stream);
    struct staging_lane *found;
    CUresult result = CUDA_SUCCESS;

    wanted = !up && bytes >= TUNING_LANE_LEAST && wanted < TUNING_TURNED ? TUNING_TURNED : wanted;
    staging_lock();
    found = lane_find(place, stream, wanted, scratch, own);
    while (found == NULL && result == CUDA_SUCCESS) {
        staging_unlock();
        result = lane_make(wanted, scratch, own, &found);
        staging_lock();
        if (result == CUDA_SUCCESS) {
            found->next = place->lanes;
            place->lanes = found;
        } else if (result == CUDA_ERROR_OUT_OF_MEMORY && wanted > bytes) {
            wanted = bytes;
            result = CUDA_SUCCESS;
            found = lane_find(place, stream, wanted, scratch, own);
        }
    }
    if (found != NULL) {
        size_t at = 0;
        if (!up && found->users == 0) { /* others use it in the order of their stream */
            /* Each begins after the one before: TUNING_TURNED says why. Up, the memory that was
             * used last is the fastest. */
            at = found->bytes - found->turn < bytes ? 0 : found->turn;
            found->turn = at + bytes;
        }
        found->users += 2; /* the copy, and the call */
        found->issuing = true;
        found->stream = stream;
        staging.users++;
        transfer->lane = found;
        transfer->memory = found->block + STAGING_WORDS + at;
        transfer->stream = own ? found->own : transfer->stream;
        transfer->base = found->issued;
        transfer->steps = transfer->parts.count + !up;
        found->issued += transfer->words ? (uint32_t)transfer->steps : 0;
    }
    staging_unlock();
    return result;
}

void staging_lane_issued(struct staging_lane *lane)
{
    lane->issuing = false;
    lane->users--;
}

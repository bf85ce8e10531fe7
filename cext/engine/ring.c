/* Rings of page-locked slots: creation, and which transfer gets which. See private.h. */
#include "private.h"

#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"

#define COUNTER_SPACING 64 /* a cache line each */

void staging_rings_free(struct staging_ring *rings, bool current, bool all)
{
    while (rings != NULL) {
        struct staging_ring *next = rings->next;
        if (rings->users == 0) { /* else a stream may still use its slots */
            if (all && rings->scratch != 0) {
                cuda.cuMemFree_v2(rings->scratch);
            }
            if (current && rings->own != NULL) {
                cuda.cuStreamDestroy_v2(rings->own);
            }
            cudriver_hostmem_free(rings->block);
            free(rings);
        } else {
            rings->orphan = true;
        }
        rings = next;
    }
}

static CUresult ring_make(size_t slot_bytes, struct staging_ring **made)
{
    struct staging_ring *ring = calloc(1, sizeof *ring);
    CUdeviceptr address;
    CUresult result;
    void *block;
    bool zeroed;

    if (ring == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = cudriver_hostmem_alloc(STAGING_RING_COUNTERS + STAGING_RING_SLOTS * slot_bytes,
                                    SIZE_MAX, &block, &zeroed);
    if (result != CUDA_SUCCESS) {
        free(ring);
        return result;
    }
    result = cuda.cuMemHostGetDevicePointer_v2(&address, block, 0);
    if (result != CUDA_SUCCESS) {
        cudriver_hostmem_free(block);
        free(ring);
        return result;
    }
    memset(block, 0, STAGING_RING_COUNTERS);
    ring->block = block;
    ring->slot_bytes = slot_bytes;
    ring->ready = (_Atomic uint32_t *)block;
    ring->passed = (_Atomic uint32_t *)(ring->block + COUNTER_SPACING);
    ring->ready_address = address;
    ring->passed_address = address + COUNTER_SPACING;
    *made = ring;
    return CUDA_SUCCESS;
}

/* A new ring, with device memory and a stream of its own if the copy needs them. */
static CUresult ring_add(size_t slot_bytes, bool scratch, bool own, struct staging_ring **made)
{
    struct staging_ring *ring;
    CUresult result = ring_make(slot_bytes, &ring);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (scratch) {
        result = cuda.cuMemAlloc_v2(&ring->scratch, slot_bytes);
        ring->scratch = result == CUDA_SUCCESS ? ring->scratch : 0;
    }
    if (own && result == CUDA_SUCCESS) {
        result = cuda.cuStreamCreateWithPriority(&ring->own, CU_STREAM_NON_BLOCKING, 0);
        ring->own = result == CUDA_SUCCESS ? ring->own : NULL;
    }
    if (result != CUDA_SUCCESS) {
        staging_rings_free(ring, true, true);
        return result;
    }
    *made = ring;
    return CUDA_SUCCESS;
}

char *staging_ring_memory(const struct cudriver_staging_transfer *transfer, size_t chunk)
{
    return transfer->ring->block + STAGING_RING_COUNTERS + transfer->at +
           transfer->cuts[chunk].place;
}

/*
 * Locked. The offset at which a copy begins in its ring. Down, each copy begins after the one
 * before: TUNING_TURNED says why. Up, the memory that was used last is the fastest.
 */
static size_t ring_turn(struct staging_ring *ring, bool up, size_t bytes)
{
    size_t room = STAGING_RING_SLOTS * ring->slot_bytes, at = ring->turn;

    if (up) {
        return 0;
    }
    if (room - at < bytes) {
        at = 0;
    }
    ring->turn = at + bytes;
    return at;
}

/* Locked. A ring for the transfer: the one that earlier copies on its stream use, else a free one;
 * NULL: none. `stream`: the stream's id. Without it only a free ring is found. */
static struct staging_ring *ring_find(const struct cudriver_staging_transfer *transfer,
                                      unsigned long long stream, size_t slot_bytes, bool scratch)
{
    const struct staging_place *place = transfer->place;
    struct staging_ring *found = NULL;

    for (struct staging_ring *ring = place->rings; ring != NULL; ring = ring->next) {
        bool same =
            ring->users > 0 && !ring->filling && ring->stream == stream && stream != STAGING_NO_ID;
        if ((same || (ring->users == 0 && found == NULL)) && !ring->lost &&
            ring->slot_bytes >= slot_bytes && (!scratch || ring->scratch != 0) &&
            (!transfer->own || ring->own != NULL)) {
            found = ring;
            if (same) {
                break;
            }
        }
    }
    return found;
}

/*
 * Copies on one stream follow each other through one ring: none is packed before the one before has
 * passed. Others take a free ring or a new one.
 */
CUresult staging_ring_get(struct cudriver_staging_transfer *transfer, size_t slot_bytes,
                          bool scratch)
{
    struct staging_place *place = transfer->place;
    struct staging_ring *found;
    size_t wanted = slot_bytes;
    unsigned long long stream = transfer->own ? STAGING_NO_ID : staging_stream_id(transfer->stream);
    CUresult result;

    staging_lock();
    if (!transfer->up && staging.ring_users == 0 && !place->tight &&
        wanted < TUNING_TURNED / STAGING_RING_SLOTS) {
        wanted = TUNING_TURNED / STAGING_RING_SLOTS;
    }
    found = ring_find(transfer, stream, wanted, scratch);
    while (found == NULL) {
        staging_unlock();
        result = ring_add(wanted, scratch, transfer->own, &found);
        staging_lock();
        if (result == CUDA_SUCCESS) {
            found->next = place->rings;
            place->rings = found;
        } else if (result == CUDA_ERROR_OUT_OF_MEMORY && wanted > slot_bytes) {
            place->tight = true;
            wanted = slot_bytes;
            found = ring_find(transfer, stream, wanted, scratch);
        } else {
            staging_unlock();
            return result;
        }
    }
    if (transfer->own) {
        transfer->stream = found->own;
    }
    found->users++;
    found->filling = true;
    staging.ring_users++;
    found->stream = stream;
    transfer->ring = found;
    transfer->at = ring_turn(found, transfer->up, STAGING_RING_SLOTS * slot_bytes);
    transfer->base = found->issued;
    transfer->steps = transfer->chunks + (!transfer->up && !transfer->own);
    found->issued += (uint32_t)transfer->steps;
    staging_unlock();
    return CUDA_SUCCESS;
}

void staging_ring_leave(struct staging_ring *ring)
{
    if (--ring->users > 0) {
        return;
    }
    pthread_cond_broadcast(&staging.quiet);
    if (ring->orphan) {
        cudriver_hostmem_free(ring->block);
        free(ring);
    }
}

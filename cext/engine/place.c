/* Places: what the engine owns in a context, from first use to last; and which transfer gets which
 * of its lanes. See private.h. */
#include "private.h"

#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "hostmem/hostmem.h"

/* ---- lanes ---- */

/* Frees what a place has; lanes in use are given up. `current`: its context is, and this waits for
 * the device; else it is gone, and the driver's objects with it. */
static void place_clear(struct staging_place *place, bool current)
{
    struct staging_lane *lane = place->lanes, *next;

    if (current) {
        staging_kernels_unload(place->kernels);
    } else {
        free(place->kernels);
    }
    for (; lane != NULL; lane = next) {
        next = lane->next;
        if (lane->users > 0) { /* a stream may still use it */
            lane->lost = true;
            lane->next = NULL;
            continue;
        }
        if (current && lane->scratch != 0) {
            cuda.cuMemFree_v2(lane->scratch);
        }
        for (int i = 0; current && i < STAGING_BLOCKS_MOST && lane->copied[i] != NULL; i++) {
            cuda.cuEventDestroy_v2(lane->copied[i]);
        }
        if (current && lane->own != NULL) {
            cuda.cuStreamDestroy_v2(lane->own);
        }
        if (lane->block != NULL) {
            cudriver_hostmem_free(lane->block);
        }
        free(lane);
    }
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
    CUresult result = CUDA_SUCCESS;

    if (lane == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    lane->bytes = bytes;
    lane->scratch_bytes = scratch;
    if (bytes > 0 || !own) {
        result = staging_slot_get(STAGING_WORDS + bytes, &memory);
    }
    lane->block = result == CUDA_SUCCESS ? memory : NULL;
    if (result == CUDA_SUCCESS && scratch > 0) {
        result = cuda.cuMemAlloc_v2(&lane->scratch, scratch);
        lane->scratch = result == CUDA_SUCCESS ? lane->scratch : 0;
    }
    if (result == CUDA_SUCCESS && own) {
        result = lane_stream(lane);
    } else if (result == CUDA_SUCCESS) { /* words, for asynchronous copies */
        memset(lane->block, 0, STAGING_WORDS);
        lane->ready = (_Atomic uint32_t *)lane->block;
        lane->passed = (_Atomic uint32_t *)(lane->block + STAGING_WORD);
        result = cuda.cuMemHostGetDevicePointer_v2(&lane->address, lane->block, 0);
    }
    if (result != CUDA_SUCCESS) {
        place_clear(&(struct staging_place){.lanes = lane}, true);
        return result;
    }
    *made = lane;
    return CUDA_SUCCESS;
}

/* In place of a stream's id, which no stream with its handle before or after it has: before CUDA
 * 12.0. */
#define NO_ID (~0ull)

/* Locked. A lane that fits: the one that earlier copies on the stream use, else a free one; NULL:
 * none. Where 0 bytes are wanted, one that has none. */
static struct staging_lane *lane_find(const struct staging_place *place, unsigned long long stream,
                                      size_t bytes, size_t scratch, bool own)
{
    struct staging_lane *found = NULL;

    for (struct staging_lane *lane = place->lanes; lane != NULL; lane = lane->next) {
        bool same =
            lane->users > 0 && !lane->issuing && lane->stream == stream && stream != NO_ID && !own;
        if ((same || lane->users == 0) && !lane->lost && lane->bytes >= bytes &&
            (bytes > 0 || lane->bytes == 0) && lane->scratch_bytes >= scratch &&
            own == (lane->own != NULL)) {
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
    bool own = !transfer->words, up = transfer->copy.staged.up;
    size_t wanted = bytes < TUNING_LANE_LEAST ? TUNING_LANE_LEAST : bytes;
    unsigned long long stream = NO_ID;
    struct staging_lane *found;
    CUresult result = CUDA_SUCCESS;

    if (!own && transfer->stream != CUDRIVER_STREAM_PER_THREAD && cuda.cuStreamGetId != NULL &&
        cuda.cuStreamGetId(transfer->stream, &stream) != CUDA_SUCCESS) {
        stream = NO_ID;
    }
    wanted = bytes == 0                                                    ? 0
             : !up && bytes >= TUNING_LANE_LEAST && wanted < TUNING_TURNED ? TUNING_TURNED
                                                                           : wanted;
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
        } else if (staging_must_do_without(result) && own && wanted > 0 && bytes <= TUNING_ALONE) {
            transfer->plain = malloc(bytes);
            wanted = 0;
            result = transfer->plain != NULL ? CUDA_SUCCESS : result;
            found = transfer->plain != NULL ? lane_find(place, stream, 0, scratch, own) : NULL;
        }
    }
    if (found != NULL) {
        size_t at = 0;
        if (!up && found->users == 0 &&
            transfer->plain == NULL) { /* others use it in the order of their stream */
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
        for (size_t i = 0; i < transfer->blocks && bytes > 0; i++) {
            char *memory = transfer->plain != NULL ? transfer->plain : found->block + STAGING_WORDS;
            transfer->block[i].memory = memory + at + i * transfer->parts.largest;
        }
        transfer->stream = own && transfer->copy.staged.blocks > 1 ? found->own : transfer->stream;
        transfer->steps.base = found->issued + 1;
        transfer->steps.count = transfer->parts.count + !up;
        found->issued = transfer->steps.base + (uint32_t)transfer->steps.count;
    }
    staging_unlock();
    return result;
}

/* ---- places ---- */

/* Locked. */
static void place_unlink(struct staging_place *place)
{
    struct staging_place **link = &staging.places;

    while (*link != place) {
        link = &(*link)->next;
    }
    *link = place->next;
}

/* Locked. Whether copies are under way in the place; `calls`: or calls use it. */
static bool place_is_used(const struct staging_place *place, bool calls)
{
    bool used = calls && place->users > 0;

    for (const struct staging_lane *lane = place->lanes; lane != NULL; lane = lane->next) {
        used |= lane->users > 0 && !lane->lost;
    }
    return used;
}

/* Locked. The place of the current context, made if there is none. One of a context that had the
 * same handle, and was destroyed without our knowledge, is dropped: the driver may crash when given
 * its streams. */
static CUresult place_find(CUcontext context, unsigned long long id, struct staging_place **found)
{
    struct staging_place *place = staging.places, *next;

    for (; place != NULL; place = next) {
        next = place->next;
        if (place->context == context && place->id == id) {
            *found = place;
            return place->closing ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
        }
        if (place->context == context && !place->closing && place->users == 0) {
            place_unlink(place);
            place_clear(place, false);
            free(place);
        }
    }
    place = calloc(1, sizeof *place);
    if (place == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    place->context = context;
    place->id = id;
    place->next = staging.places;
    staging.places = place;
    *found = place;
    return CUDA_SUCCESS;
}

CUresult staging_place_enter(CUcontext context, struct staging_place **found)
{
    unsigned long long id = 0;
    CUresult result = CUDA_SUCCESS;

    if (!cudriver_driver_ready) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (cuda.cuCtxGetId != NULL) {
        result = cuda.cuCtxGetId(context, &id);
    }
    staging_lock();
    if (result == CUDA_SUCCESS) {
        result = staging.stopping ? CUDA_ERROR_DEINITIALIZED : place_find(context, id, found);
    }
    if (result == CUDA_SUCCESS) {
        (*found)->users++;
    }
    staging_unlock();
    return result;
}

void staging_place_leave(struct staging_place *place)
{
    staging_lock();
    place->users--;
    pthread_cond_broadcast(&staging.changed);
    staging_unlock();
}

/* Makes a place's context current. Fails if that was destroyed: a push succeeds even then where it
 * is current in some thread, and the driver may crash when given objects of that context. */
static bool place_open(const struct staging_place *place)
{
    unsigned long long id = 0;
    unsigned version;
    bool open = cuda.cuCtxGetId == NULL ||
                (cuda.cuCtxGetId(place->context, &id) == CUDA_SUCCESS && id == place->id);

    open = open && cuda.cuCtxPushCurrent_v2(place->context) == CUDA_SUCCESS;
    if (open && cuda.cuCtxGetApiVersion(NULL, &version) != CUDA_SUCCESS) {
        cudriver_driver_pop();
        open = false;
    }
    return open;
}

/* Locked; releases the lock meanwhile. Ends a place that no call uses. `wait`: for what the device
 * does with it. */
static void place_end(struct staging_place *place, bool wait)
{
    bool used = place_is_used(place, false) || place->kernels != NULL, open;

    place_unlink(place);
    staging_unlock();
    open = place_open(place);
    if (open && used && wait && cuda.cuCtxSynchronize() == CUDA_SUCCESS) {
        staging_lock();
        staging_words_look();
        staging_unlock();
    }
    place_clear(place, open);
    if (open) {
        cudriver_driver_pop();
    }
    free(place);
    staging_lock();
}

/* Locked. The first place that nothing uses, and if not `idle`, that has no kernels either, which
 * copies between device memory may yet run; NULL: none. */
static struct staging_place *place_unused(bool idle)
{
    struct staging_place *place = staging.places;

    while (place != NULL &&
           (place->closing || place_is_used(place, true) || (!idle && place->kernels != NULL))) {
        place = place->next;
    }
    return place;
}

void cudriver_staging_trim(bool idle)
{
    struct staging_place *place;

    if (!cudriver_driver_ready) {
        return;
    }
    staging_lock();
    staging_words_look();
    staging.trims++;
    while ((place = place_unused(idle)) != NULL) {
        place_end(place, false); /* a wait would break a capture */
    }
    staging.trims--;
    pthread_cond_broadcast(&staging.changed);
    staging_unlock();
}

/* Locked. The place of a context, unless another thread is closing it. */
static struct staging_place *place_of(CUcontext context)
{
    struct staging_place *place = staging.places;

    while (place != NULL && (place->context != context || place->closing)) {
        place = place->next;
    }
    return place;
}

void cudriver_staging_forget_context(CUcontext context)
{
    struct staging_place *place;

    if (!cudriver_driver_ready) {
        return;
    }
    staging_lock();
    while ((place = place_of(context)) != NULL) {
        place->closing = true;
        while (place->users > 0) {
            staging_change_wait(STAGING_POLL_NS);
        }
        place_end(place, true);
    }
    while (staging.trims > 0) { /* one may free what is in this context */
        staging_change_wait(STAGING_POLL_NS);
    }
    staging_unlock();
}

bool cudriver_staging_shutdown(unsigned milliseconds)
{
    unsigned long long until = platform_nanoseconds() + 1000000ull * milliseconds, now;
    struct staging_place *place;
    bool quiet;

    if (!cudriver_driver_ready) {
        return true;
    }
    staging_lock();
    staging.stopping = true;
    staging_threads_call(staging.idle);
    atomic_fetch_add_explicit(&staging.news, 1, memory_order_release);
    pthread_cond_broadcast(&staging.changed);
    for (;;) {
        quiet = staging.threads == 0 && staging.users == 0;
        for (place = staging.places; place != NULL && quiet; place = place->next) {
            quiet = !place_is_used(place, true);
        }
        now = platform_nanoseconds();
        if (quiet || now >= until) {
            break;
        }
        staging_change_wait(until - now);
    }
    staging_unlock();
    return quiet;
}

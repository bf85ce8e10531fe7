/* Places: what the engine owns in a context, from first use to last. See private.h. */
#include "private.h"

#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "driver/platform.h"

/* ns to wait before a context is destroyed, if a copy that was given up is still in one of its
 * streams. After that it is LOST. */
#define CANCELLED_NS 2000000000ull

/* Locked. The next transfer to wait for: one whose caller lacks its result comes before one that is
 * CANCELLED. NULL: none. */
static struct cudriver_staging_transfer *place_transfer(const struct staging_place *place)
{
    struct cudriver_staging_transfer *transfer = place->transfers;

    while (transfer != NULL && staging_transfer_ended(transfer)) {
        transfer = transfer->next;
    }
    return transfer != NULL ? transfer : place->transfers;
}

/* Locked. Nothing uses the place but copies that are CANCELLED. */
static bool place_is_quiet(const struct staging_place *place)
{
    const struct cudriver_staging_transfer *transfer = place_transfer(place);

    return place->users == 0 && (transfer == NULL || staging_transfer_ended(transfer));
}

/* Locked; the place is quiet. */
static void place_unlink(struct staging_place *place)
{
    struct staging_place **link = &staging.places;

    while (place->transfers != NULL) {
        staging_transfer_move(place->transfers, STAGING_LOST);
    }
    while (*link != place) {
        link = &(*link)->next;
    }
    *link = place->next;
}

/* Frees a place, but no driver objects. */
static void place_drop(struct staging_place *place)
{
    for (int i = 0; i < STAGING_KERNEL_UNITS; i++) {
        free(place->kernels[i]);
    }
    staging_rings_free(place->rings, false, false);
    free(place);
}

/* Locked. Drops places whose context was reset or destroyed without our knowledge: their streams
 * are gone, and the driver may crash when given them. */
static void places_bury(CUcontext context, unsigned long long id)
{
    struct staging_place *place = staging.places, *next;

    for (; place != NULL; place = next) {
        next = place->next;
        if (place->context == context && place->id != id && !place->closing &&
            place_is_quiet(place)) {
            place_unlink(place);
            place_drop(place);
        }
    }
}

/* The id of the current context, if the driver has ids; else 0. cuCtxGetId may crash in a destroyed
 * context, so a call that checks the context's state comes first. */
static CUresult context_number(CUcontext context, unsigned long long *id)
{
    unsigned flags;
    CUresult result = cuda.cuMemHostGetFlags(&flags, &flags);

    *id = 0;
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE) {
        return result;
    }
    return cuda.cuCtxGetId == NULL ? CUDA_SUCCESS : cuda.cuCtxGetId(context, id);
}

CUresult staging_place_enter(CUcontext context, struct staging_place **found)
{
    struct staging_place *place;
    unsigned long long id = 0;
    CUresult result;

    if (cudriver_driver_is_forked() || !cudriver_driver_is_initialised()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    result = cuda.cuCtxPushCurrent_v2(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = context_number(context, &id); /* a handle may be reused for another context */
    staging_lock();
    for (place = staging.places; place != NULL; place = place->next) {
        if (place->context == context && place->id == id) {
            break;
        }
    }
    if (result != CUDA_SUCCESS) {
        place = NULL;
    } else if (staging.stopping) {
        result = CUDA_ERROR_DEINITIALIZED;
    } else if (place == NULL) {
        place = calloc(1, sizeof *place);
        if (place == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            place->context = context;
            place->id = id;
            places_bury(context, id);
            place->next = staging.places;
            staging.places = place;
        }
    } else if (place->closing) {
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (result == CUDA_SUCCESS) {
        place->users++;
    }
    staging_unlock();
    if (result != CUDA_SUCCESS) {
        CUcontext popped;
        cuda.cuCtxPopCurrent_v2(&popped);
        return result;
    }
    *found = place;
    return CUDA_SUCCESS;
}

void staging_place_leave(struct staging_place *place)
{
    CUcontext popped;

    cuda.cuCtxPopCurrent_v2(&popped);
    staging_lock();
    place->users--;
    pthread_cond_broadcast(&staging.quiet);
    staging_unlock();
}

bool staging_context_counts(CUcontext context, bool *kernels)
{
    bool counts = cuda.cuStreamWaitValue32_v2 != NULL && cuda.cuStreamWriteValue32_v2 != NULL;

    *kernels = true;
    staging_lock();
    for (struct staging_place *place = staging.places; place != NULL; place = place->next) {
        counts &= place->context != context || !place->no_counters;
        *kernels &= place->context != context || !place->no_kernels;
    }
    staging_unlock();
    *kernels &= counts;
    return counts;
}

/* What a place can spare: taken out under the lock, freed without it. */
struct spare {
    struct staging_kernels *kernels[STAGING_KERNEL_UNITS];
    struct staging_ring *rings;
    bool all;
    bool idle; /* no kernel can be running */
    CUstream sides[STAGING_SIDES];
};

/* Locked. `quiet`: nothing uses the place. `all`: also what is freed only by waiting for the
 * device. Rings in use stay, those of lost copies for good. */
static struct spare spare_take(struct staging_place *place, bool quiet, bool all)
{
    struct spare spare = {.all = all};
    struct staging_ring **link = &place->rings;

    place->tight = false;
    if (all) {
        for (int i = 0; i < STAGING_KERNEL_UNITS; i++) {
            spare.kernels[i] = place->kernels[i];
            place->kernels[i] = NULL;
        }
    }
    if (quiet) {
        memcpy(spare.sides, place->sides, sizeof spare.sides);
        memset(place->sides, 0, sizeof place->sides);
    }
    while (*link != NULL) {
        struct staging_ring *ring = *link;
        if (ring->users > 0 || (ring->scratch != 0 && !all)) {
            link = &ring->next;
        } else {
            *link = ring->next;
            ring->next = spare.rings;
            spare.rings = ring;
        }
    }
    return spare;
}

/* The context is current. Results are ignored: nobody is left to tell. */
static void spare_free(struct spare *spare)
{
    bool waited = spare->idle;

    for (int i = 0; i < STAGING_KERNEL_UNITS; i++) {
        if (spare->kernels[i] != NULL && !waited) {
            cuda.cuCtxSynchronize(); /* copies between device memory may yet run them */
            waited = true;
        }
        staging_kernels_unload(spare->kernels[i]);
    }
    staging_rings_free(spare->rings, true, spare->all);
    for (int i = 0; i < STAGING_SIDES; i++) {
        if (spare->sides[i] != NULL) {
            cuda.cuStreamDestroy_v2(spare->sides[i]);
        }
    }
}

/* The same if the context is gone: frees no driver objects. */
static void spare_bury(struct spare *spare)
{
    for (int i = 0; i < STAGING_KERNEL_UNITS; i++) {
        free(spare->kernels[i]);
    }
    staging_rings_free(spare->rings, false, false);
}

/* Not locked; the place is unlinked and quiet. `all`: device memory and kernels too, which waits
 * for the device. */
static void place_free(struct staging_place *place, bool all)
{
    CUcontext popped;
    struct spare spare;

    staging_lock();
    spare = spare_take(place, true, all);
    staging_unlock();
    if (staging_place_open(place) == CUDA_SUCCESS) {
        spare_free(&spare);
        staging_rings_free(place->rings, true, false); /* those whose scratch memory stays */
        place->rings = NULL;
        cuda.cuCtxPopCurrent_v2(&popped);
    } else {
        spare_bury(&spare);
    }
    place_drop(place);
}

void cudriver_staging_trim(bool idle)
{
    if (cudriver_driver_is_forked() || !cudriver_driver_is_initialised()) {
        return;
    }
    staging_lock();
    for (struct staging_place *place = staging.places; place != NULL; place = place->next) {
        if (place->closing) {
            continue;
        }
        bool quiet = place_is_quiet(place) && place->transfers == NULL;
        struct spare spare = spare_take(place, quiet, quiet && idle);
        CUcontext popped;
        spare.idle = idle;
        place->users++; /* keeps the place */
        staging_unlock();
        if (staging_place_open(place) == CUDA_SUCCESS) {
            spare_free(&spare);
            cuda.cuCtxPopCurrent_v2(&popped);
        } else {
            spare_bury(&spare);
        }
        staging_lock();
        place->users--;
        pthread_cond_broadcast(&staging.quiet);
    }
    staging_unlock();
}

/* Locked; releases the lock. Waits for the transfers and users of a place, for those that are
 * CANCELLED at most CANCELLED_NS. In a broken context a transfer never ends, hence the checks. */
static void place_settle(struct staging_place *place)
{
    unsigned long long until = platform_nanoseconds() + CANCELLED_NS;

    while (!place_is_quiet(place) || (place->transfers != NULL && platform_nanoseconds() < until)) {
        staging_condition_wait(&staging.quiet, STAGING_POLL_NS);
        struct cudriver_staging_transfer *transfer = place_transfer(place);
        if (transfer != NULL) {
            staging_transfer_hold(transfer);
            staging_unlock();
            staging_transfer_check(transfer);
            staging_transfer_drop(transfer);
            staging_lock();
        }
    }
}

void cudriver_staging_forget_context(CUcontext context)
{
    struct staging_place *place;

    if (cudriver_driver_is_forked() || !cudriver_driver_is_initialised()) {
        return;
    }
    staging_lock();
    for (;;) {
        for (place = staging.places; place != NULL; place = place->next) {
            if (place->context == context && !place->closing) {
                break;
            }
        }
        if (place == NULL) {
            break;
        }
        place->closing = true;
        staging_place_cancel(place, CUDA_ERROR_CONTEXT_IS_DESTROYED, false);
        place_settle(place);
        place_unlink(place);
        staging_unlock();
        place_free(place, true);
        staging_lock();
    }
    staging_unlock();
}

bool cudriver_staging_shutdown(unsigned milliseconds)
{
    unsigned long long until = platform_nanoseconds() + 1000000ull * milliseconds, now;
    struct staging_place *place;
    bool quiet;

    if (cudriver_driver_is_forked() || !cudriver_driver_is_initialised()) {
        return true;
    }
    staging_lock();
    staging.stopping = true;
    staging_threads_call(staging.ring_idle);
    for (place = staging.places; place != NULL; place = place->next) {
        staging_place_cancel(place, CUDA_ERROR_DEINITIALIZED, true);
    }
    for (;;) {
        quiet = staging.ring_threads == 0;
        for (place = staging.places; place != NULL && quiet; place = place->next) {
            quiet = place_is_quiet(place) && place->transfers == NULL;
        }
        now = platform_nanoseconds();
        if (quiet || now >= until) {
            break;
        }
        staging_condition_wait(&staging.quiet, until - now);
    }
    while (quiet && staging.places != NULL) {
        place = staging.places;
        place_unlink(place);
        staging_unlock();
        place_free(place, false); /* the rest goes with the process */
        staging_lock();
    }
    staging_unlock();
    return quiet;
}

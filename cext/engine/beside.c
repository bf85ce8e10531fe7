/*
 * What is in flight to and from each device, so that small copies need not queue behind big ones: a
 * copy engine serves in the order of issue, whatever the streams' priorities, and a kernel over
 * mapped memory moves a small copy meanwhile. See private.h; tuning.h has the figures.
 *
 * The driver's own asynchronous copies are noted by an event behind them; blocking and staged ones
 * are counted while they last. Where there is neither, nobody asks the driver.
 */
#include "private.h"

#include "driver/driver.h"

/* Locked. The note to use next: one that is free, or else the oldest. */
static struct staging_note *note_next(struct staging_big *big)
{
    struct staging_note *note = &big->note[big->turn++ % STAGING_NOTES];

    for (int i = 0; i < STAGING_NOTES && note->pending; i++) {
        if (!big->note[i].pending) {
            note = &big->note[i];
        }
    }
    return note;
}

void staging_big_issued(CUcontext context, bool up, CUstream stream, size_t bytes)
{
    struct staging_place *place;
    struct staging_note *note = NULL;
    struct staging_big *big;
    CUevent over = NULL;

    if (bytes < TUNING_BIG_COUNTED || staging_place_enter(context, &place) != CUDA_SUCCESS) {
        return;
    }
    big = &place->big[up];
    staging_lock();
    big->queued += bytes;
    if (big->queued >= TUNING_BIG) {
        big->queued = 0;
        note = note_next(big);
        over = note->over;
        note->over = NULL; /* while this thread uses it */
    }
    staging_unlock();
    cudriver_driver_relax();
    if (note != NULL &&
        (over != NULL || cuda.cuEventCreate(&over, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)) {
        bool recorded = cuda.cuEventRecord(over, stream) == CUDA_SUCCESS;
        staging_lock();
        if (note->over == NULL) {
            atomic_fetch_add(&staging.big, recorded - note->pending);
            note->pending = recorded;
            note->stream = stream;
            note->over = over;
            over = NULL;
        }
        staging_unlock();
        if (over != NULL) { /* another thread was faster */
            cuda.cuEventDestroy_v2(over);
        }
    }
    cudriver_driver_restore();
    staging_place_leave(place);
}

/* Whether the copies of a note are in flight: the driver is asked, without the lock. */
static bool note_asked(struct staging_place *place, struct staging_note *note, CUevent over)
{
    bool flying;

    cudriver_driver_relax();
    flying = cuda.cuEventQuery(over) == CUDA_ERROR_NOT_READY;
    cudriver_driver_restore();
    staging_lock();
    if (!flying && note->pending && note->over == over) {
        note->pending = false;
        atomic_fetch_sub(&staging.big, 1);
    }
    place->users--;
    pthread_cond_broadcast(&staging.changed);
    staging_unlock();
    return flying;
}

/* A pending note of a device and a direction, with its place in use. Copies on `stream` itself do
 * not count: a later copy there waits for them in any case. NULL: there is none. */
static struct staging_note *note_find(int ordinal, bool up, CUstream stream,
                                      struct staging_place **found, CUevent *over)
{
    struct staging_note *note = NULL;

    staging_lock();
    for (struct staging_place *place = staging.places; place != NULL && note == NULL;
         place = place->next) {
        for (int i = 0; i < STAGING_NOTES && note == NULL; i++) {
            struct staging_note *each = &place->big[up].note[i];
            if (place->ordinal == ordinal && !place->closing && each->over != NULL &&
                each->pending && each->stream != stream) {
                note = each;
                *over = each->over;
                *found = place;
                place->users++;
            }
        }
    }
    staging_unlock();
    return note;
}

bool cudriver_copy_is_beside(int ordinal, bool up, CUstream stream)
{
    struct staging_place *place;
    struct staging_note *note;
    CUevent over;
    bool flying = false;

    if (atomic_load_explicit(&staging.big, memory_order_relaxed) == 0 || ordinal < 0 ||
        ordinal >= STAGING_DEVICES) {
        return false;
    }
    if (atomic_load(&staging.big_calls[ordinal][up]) > 0) {
        staging_lock();
        staging_words_look(); /* some may be over, and nobody looked */
        staging_unlock();
        flying = atomic_load(&staging.big_calls[ordinal][up]) > 0;
    }
    /* Each note that is over is no longer pending: this ends. */
    while (!flying && (note = note_find(ordinal, up, stream, &place, &over)) != NULL) {
        flying = note_asked(place, note, over);
    }
    return flying;
}

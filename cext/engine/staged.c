/*
 * Staged copies. A transfer goes part by part through the blocks of its lane:
 *
 *   blocking      on the lane's own stream. The calling thread issues each part's copy, with an
 *                 event behind it, and packs and unpacks too.
 *   asynchronous  on the caller's stream. It waits for a word before a part and writes one behind
 *                 it. Unless its source is borrowed, the caller packs too, until all is read.
 *
 * See private.h.
 */
#include "private.h"

#include <stdlib.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "hostmem/hostmem.h"

/* ---- transfers ---- */

/* A transfer with its lane; the caller owns *made. `words`: asynchronous. It and one of a single
 * block is on `stream`, others on the lane's own. `idle`: nothing keeps the stream from taking the
 * blocks in turn. */
static CUresult transfer_make(const struct cudriver_copy_plan *copy, CUstream stream,
                              struct staging_place *place, bool words, bool idle,
                              struct cudriver_staging_transfer **made)
{
    const struct staging_plan *plan = &copy->staged;
    bool permuted = plan->path == CUDRIVER_STAGING_PERMUTED;
    bool hold = words && plan->up && !copy->borrow; /* the source is read before the call returns */
    const struct staging_boxes parts =
        staging_boxes_make(plan, plan->chunk > 0 ? plan->chunk : SIZE_MAX);
    size_t blocks =
        (idle || !hold) && (size_t)plan->blocks < parts.count ? (size_t)plan->blocks : parts.count;
    struct cudriver_staging_transfer *transfer =
        calloc(1, sizeof *transfer + blocks * sizeof transfer->block[0]);
    CUresult result = CUDA_SUCCESS;

    if (transfer == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    atomic_init(&transfer->references, 1);
    transfer->place = place;
    transfer->stream = stream;
    transfer->words = words;
    transfer->node = cudriver_hostmem_node();
    transfer->packers = words && !hold ? plan->threads : plan->threads - 1;
    transfer->copy = *copy;
    transfer->parts = parts;
    transfer->blocks = blocks;
    if (plan->runs != NULL) {
        atomic_fetch_add(&plan->runs->users, 1);
    }
    if (permuted || plan->runs != NULL) {
        result = staging_place_kernels(place, &transfer->kernels);
    }
    if (result == CUDA_SUCCESS && hold) {
        result = staging_blocks_hold(transfer);
        if (result != CUDA_SUCCESS && transfer->held == 0) { /* those of ended copies serve, too */
            staging_lock();
            staging_words_look();
            staging_unlock();
            result = staging_blocks_hold(transfer);
        }
    }
    if (result == CUDA_SUCCESS) {
        result = staging_lane_get(transfer, hold ? 0 : blocks * parts.largest,
                                  permuted ? parts.largest : 0);
    }
    if (result != CUDA_SUCCESS) {
        staging_lock();
        staging_blocks_drop(transfer, false);
        staging_unlock();
        staging_transfer_drop(transfer);
        return result;
    }
    *made = transfer;
    return CUDA_SUCCESS;
}

/* Ends a transfer whose call failed or was interrupted, and returns the call's result. Afterwards
 * nothing of it is in use, unless its stream cannot be waited for. Then its blocks are given up,
 * and the result is one that forbids another attempt, which could race with this one. */
static CUresult transfer_undo(struct cudriver_staging_transfer *transfer, CUresult result)
{
    CUresult waited;

    staging_lock();
    staging_pack_stop(transfer); /* if listed, the threads let its stream go on */
    staging_unlock();
    waited = cuda.cuStreamSynchronize(transfer->stream);
    staging_lock();
    if (waited != CUDA_SUCCESS) {
        staging_transfer_end(transfer, result, true);
    } else if (transfer->words && !transfer->over) {
        staging_pack_close(transfer);
    }
    staging_transfer_end(transfer, result, false);
    transfer->lane->issuing = false;
    transfer->lane->users--;
    staging_unlock();
    return waited != CUDA_SUCCESS && staging_must_do_without(result) ? CUDA_ERROR_UNKNOWN : result;
}

/* ---- blocking, by parts ---- */

/* How far a blocking transfer has come: parts whose copies are issued, and are over. */
struct progress {
    size_t issued, copied;
    unsigned long long asked, idle; /* ns: the last question to the caller, the last step */
};

/* Issues the next copy, if its block is ready for it. NOT_READY: it is not. */
static CUresult step_issue(struct cudriver_staging_transfer *transfer, struct progress *at)
{
    size_t moved = atomic_load_explicit(&transfer->at.moved, memory_order_acquire);
    CUresult result;

    if (at->issued == transfer->parts.count ||
        (transfer->copy.staged.up ? moved <= at->issued : at->issued >= moved + transfer->blocks)) {
        return CUDA_ERROR_NOT_READY;
    }
    result = staging_part_issue(transfer, at->issued);
    if (result == CUDA_SUCCESS) {
        result = cuda.cuEventRecord(transfer->lane->copied[at->issued % transfer->blocks],
                                    transfer->stream);
        at->issued++;
    }
    return result;
}

/* Looks whether the oldest copy is over, and releases its block. NOT_READY: it is not. */
static CUresult step_copied(struct cudriver_staging_transfer *transfer, struct progress *at)
{
    CUresult result;

    if (at->copied == at->issued) {
        return CUDA_ERROR_NOT_READY;
    }
    result = cuda.cuEventQuery(transfer->lane->copied[at->copied % transfer->blocks]);
    if (result == CUDA_SUCCESS) {
        at->copied++;
        staging_lock();
        staging_pack_release(transfer,
                             transfer->copy.staged.up ? at->copied + transfer->blocks : at->copied);
        staging_unlock();
    }
    return result;
}

/* Packs or unpacks a piece, or waits a little. SUCCESS, or why the copy ends. */
static CUresult step_help(struct cudriver_staging_transfer *transfer,
                          const struct cudriver_copy_call *call, struct progress *at)
{
    unsigned long long now = platform_nanoseconds();
    bool helped;

    if (staging.stopping) {
        return CUDA_ERROR_DEINITIALIZED;
    }
    if (call->interrupted != NULL && now - at->asked >= STAGING_POLL_NS) {
        if (call->interrupted(call->data)) {
            return CUDRIVER_STAGING_INTERRUPTED;
        }
        at->asked = platform_nanoseconds();
    }
    staging_lock();
    helped = staging_pack_help(transfer);
    staging_unlock();
    if (helped) {
        at->idle = platform_nanoseconds();
    } else if (now - at->idle > TUNING_SPIN_NS) {
        platform_nap(TUNING_NAP_NS);
    } else {
        platform_relax();
    }
    return CUDA_SUCCESS;
}

/* The calling thread works on a transfer until it is over. */
static CUresult blocking_run(struct cudriver_staging_transfer *transfer,
                             const struct cudriver_copy_call *call)
{
    struct progress at = {.asked = platform_nanoseconds(), .idle = platform_nanoseconds()};
    CUresult result = CUDA_SUCCESS;

    staging_lock();
    staging_pack_release(transfer, transfer->copy.staged.up ? transfer->blocks : 0);
    staging_unlock();
    while (
        result == CUDA_SUCCESS &&
        (at.copied < transfer->parts.count ||
         atomic_load_explicit(&transfer->at.moved, memory_order_acquire) < transfer->parts.count)) {
        result = step_issue(transfer, &at);
        if (result == CUDA_ERROR_NOT_READY) {
            result = step_copied(transfer, &at);
        }
        if (result == CUDA_ERROR_NOT_READY) {
            result = step_help(transfer, call, &at);
        } else {
            at.idle = platform_nanoseconds();
        }
    }
    return result;
}

/* ---- in the order of the caller's stream ---- */

/* Queues a transfer. On an idle stream, or into blocks of its own, packing begins at once: a small
 * copy is packed here. */
static CUresult transfer_queue(struct cudriver_staging_transfer *transfer, bool idle)
{
    bool helped;

    staging_lock();
    transfer->arrived =
        transfer->held > 0 || (idle && transfer->lane->users == 2); /* this copy and this call */
    do {
        helped = transfer->arrived && transfer->copy.staged.path == CUDRIVER_STAGING_SMALL &&
                 staging_pack_help(transfer);
    } while (helped);
    staging_pack_list(transfer);
    staging_unlock();
    return staging_words_queue(transfer);
}

/* Whether a context is broken or gone: then its streams pass nothing any more. */
static CUresult context_probe(CUcontext context)
{
    unsigned flags;
    CUresult result = cuda.cuCtxPushCurrent_v2(context);

    if (result == CUDA_SUCCESS) {
        result = cuda.cuMemHostGetFlags(&flags, &flags); /* no page-locked memory: INVALID_VALUE */
        cudriver_driver_pop();
    }
    return result == CUDA_ERROR_INVALID_VALUE || cudriver_driver_is_capturing(result) ? CUDA_SUCCESS
                                                                                      : result;
}

/* The calling thread packs too, until all of a queued transfer's source is read. */
static CUresult transfer_read(struct cudriver_staging_transfer *transfer,
                              const struct cudriver_copy_call *call)
{
    struct progress at = {.asked = platform_nanoseconds(), .idle = platform_nanoseconds()};
    unsigned long long probed = at.asked;
    CUresult result = CUDA_SUCCESS;

    while (result == CUDA_SUCCESS &&
           atomic_load_explicit(&transfer->at.moved, memory_order_acquire) <
               transfer->parts.count) {
        result = step_help(transfer, call, &at);
        if (result == CUDA_SUCCESS && platform_nanoseconds() - probed > STAGING_POLL_NS) {
            result = context_probe(transfer->copy.context);
            probed = platform_nanoseconds();
        }
    }
    return result;
}

/* ---- any plan ---- */

CUresult staging_transfer_copy(const struct cudriver_copy_plan *copy,
                               struct cudriver_copy_call *call, struct staging_place *place,
                               struct cudriver_staging_transfer **made)
{
    struct cudriver_staging_transfer *transfer;
    const bool later = made != NULL;
    CUresult result, state;

    if (later) { /* asked first: if it fails, so would the wait that undoes what is queued */
        state = cudriver_staging_stream_ask(call->stream, false, NULL, NULL);
    } else if (copy->staged.blocks > 1) { /* on the lane's stream: nothing before may be missed */
        state = cudriver_staging_stream_ask(call->stream, true, call->interrupted, call->data);
    } else {
        state = cudriver_staging_stream_settle(call->stream, call->interrupted, call->data);
    }
    if (state != CUDA_SUCCESS && !(later && state == CUDA_ERROR_NOT_READY)) {
        return state;
    }
    if (later &&
        (cuda.cuStreamBatchMemOp_v2 == NULL || place->no_words || !staging_pack_ensure())) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    result = transfer_make(copy, call->stream, place, later, state == CUDA_SUCCESS, &transfer);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = later ? transfer_queue(transfer, state == CUDA_SUCCESS) : blocking_run(transfer, call);
    if (result == CUDA_SUCCESS && later && copy->staged.up && !copy->borrow) {
        result = transfer_read(transfer, call);
    }
    call->queued = later && result == CUDRIVER_STAGING_INTERRUPTED;
    if (result != CUDA_SUCCESS && !call->queued) {
        result = transfer_undo(transfer, result);
    } else {
        staging_lock();
        if (call->queued) { /* the stream goes on, without more of the source being read */
            staging_pack_stop(transfer);
            staging_words_look();
        }
        if (!later) {
            staging_transfer_end(transfer, CUDA_SUCCESS, false);
        }
        transfer->lane->issuing = false;
        transfer->lane->users--;
        staging_unlock();
    }
    if (later && (result == CUDA_SUCCESS || call->queued)) {
        *made = transfer;
    } else {
        staging_transfer_drop(transfer);
    }
    return result;
}

CUresult staging_copy(const struct cudriver_copy_plan *copy, struct cudriver_copy_call *call,
                      struct cudriver_staging_transfer **transfer)
{
    struct cudriver_copy_plan again;
    struct staging_place *place;
    CUresult result = staging_place_enter(copy->context, &place);

    if (transfer != NULL) {
        *transfer = NULL;
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = staging_transfer_copy(copy, call, place, transfer);
    if (staging_must_do_without(result)) { /* no kernel, words, threads or lane could be had */
        again = *copy;
        staging_plan_make(&again, true, false);
        again.staged.files = copy->staged.files;
        result = staging_transfer_copy(&again, call, place, NULL);
        if (staging_must_do_without(result)) { /* by one block, of ordinary memory if need be */
            again.staged.chunk = TUNING_ALONE;
            again.staged.blocks = 1;
            result = staging_transfer_copy(&again, call, place, NULL);
        }
    }
    staging_place_leave(place);
    return result;
}

CUresult cudriver_files_copy(const struct cudriver_files *files, CUcontext context,
                             struct cudriver_copy_call *call)
{
    struct cudriver_copy_plan plan = {.bytes = files->bytes, .context = context};

    plan.dst.on_device = true;
    plan.layout.itemsize = files->bytes;
    staging_plan_make(&plan, true, false);
    plan.staged.files = files;
    plan.staged.threads = plan.staged.most; /* the system's copies are slower than memcpy */
    call->function = NULL;
    return staging_copy(&plan, call, NULL);
}

/* ---- waiting for a transfer ---- */

CUresult cudriver_staging_wait(struct cudriver_staging_transfer *transfer, CUresult streamed)
{
    CUresult result = CUDA_SUCCESS, probed;

    if (cudriver_driver_is_forked()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    staging_lock();
    for (; transfer != NULL; transfer = transfer->also) {
        while (!transfer->over && streamed != CUDA_SUCCESS) {
            staging_change_wait(STAGING_POLL_NS);
            if (!transfer->over) {
                staging_unlock();
                probed = context_probe(transfer->copy.context);
                staging_lock();
                if (probed != CUDA_SUCCESS) {
                    staging_transfer_end(transfer, probed, true);
                }
            }
        }
        if (result == CUDA_SUCCESS) { /* the stream has passed it; a thread may yet see that */
            result = transfer->over      ? transfer->result
                     : transfer->stopped ? CUDA_ERROR_DEINITIALIZED
                                         : CUDA_SUCCESS;
        }
    }
    staging_unlock();
    return result;
}

void cudriver_staging_release(struct cudriver_staging_transfer *transfer)
{
    while (transfer != NULL && !cudriver_driver_is_forked()) {
        struct cudriver_staging_transfer *next = transfer->also;
        staging_transfer_drop(transfer);
        transfer = next;
    }
}

void cudriver_staging_join(struct cudriver_staging_transfer **all,
                           struct cudriver_staging_transfer *more)
{
    while (*all != NULL) {
        all = &(*all)->also;
    }
    *all = more;
}

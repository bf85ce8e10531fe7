/* Copies through a ring of slots, in the caller's stream. See staging_private.h. */
#define _GNU_SOURCE
#include "staging_private.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "hostmem.h"
#include "platform.h"

#define KIB ((size_t)1 << 10)
#define COUNTER_SPACING 64 /* a cache line each */
#define COUNTERS 4096      /* bytes before the first slot */
#define SLOT_LEAST (256 * KIB)
#define SLOT_SHARED (1024 * KIB)
#define CHUNK_LEAST (128 * KIB)
#define PIECE_LEAST (64 * KIB)
#define PIECE_MOST (2048 * KIB)
#define NAP_LEAST 20000l /* ns between looks at the counters */
#define NAP_MOST 500000l
#define SPIN_NS 200000ull /* a waiting caller looks at them without pause for so long */

/* ---- rings ---- */

void staging_rings_free(struct staging_ring *rings, bool current, bool all)
{
    while (rings != NULL) {
        struct staging_ring *next = rings->next;
        if (rings->users == 0) { /* else a stream may yet come to its slots */
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

static CUresult ring_make(CUcontext context, size_t slot_bytes, struct staging_ring **made)
{
    struct staging_ring *ring = calloc(1, sizeof *ring);
    CUdeviceptr address;
    CUresult result;
    void *block;
    bool zeroed;

    if (ring == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = cudriver_hostmem_alloc(context, COUNTERS + STAGING_RING_SLOTS * slot_bytes, true,
                                    &block, &zeroed);
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
    memset(block, 0, COUNTERS);
    ring->block = block;
    ring->slot_bytes = slot_bytes;
    ring->ready = (_Atomic uint32_t *)block;
    ring->passed = (_Atomic uint32_t *)(ring->block + COUNTER_SPACING);
    ring->ready_address = address;
    ring->passed_address = address + COUNTER_SPACING;
    *made = ring;
    return CUDA_SUCCESS;
}

/* A new ring with what the copy needs. */
static CUresult ring_add(struct staging_place *place, size_t slot_bytes, bool scratch, bool own,
                         struct staging_ring **made)
{
    struct staging_ring *ring;
    CUresult result = ring_make(place->context, slot_bytes, &ring);

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

/*
 * A ring for the transfer's chunks: a free one or a new one; on a caller's stream the one that
 * earlier copies on this stream are using. Copies follow each other through a ring: none is packed
 * before the one before has passed.
 */
static CUresult ring_get(struct cudriver_staging_transfer *transfer, size_t slot_bytes,
                         bool scratch)
{
    struct staging_place *place = transfer->place;
    struct staging_ring *ring, *found = NULL;
    CUresult result;

    staging_lock();
    for (ring = place->rings; ring != NULL; ring = ring->next) {
        bool same = ring->users > 0 && !transfer->own && ring->stream == transfer->stream;
        if ((same || (ring->users == 0 && found == NULL)) && ring->slot_bytes >= slot_bytes &&
            (!scratch || ring->scratch != 0) && (!transfer->own || ring->own != NULL)) {
            found = ring;
            if (same) {
                break;
            }
        }
    }
    if (found == NULL) {
        staging_unlock();
        result = ring_add(place, slot_bytes, scratch, transfer->own, &found);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        staging_lock();
        found->next = place->rings;
        place->rings = found;
    }
    if (transfer->own) {
        transfer->stream = found->own;
    }
    found->users++;
    staging.ring_users++;
    found->stream = transfer->stream;
    transfer->ring = found;
    transfer->base = found->issued;
    found->issued += (uint32_t)transfer->chunks;
    transfer->host_pending++;
    transfer->device_pending++;
    staging_unlock();
    return CUDA_SUCCESS;
}

/* ---- what the threads do ---- */

struct piece {
    struct cudriver_staging_transfer *transfer;
    size_t chunk, begin, end;
};

/* Chunks that the stream has passed; negative while a copy before is on its way through the ring.
 */
static int32_t chunks_passed(const struct cudriver_staging_transfer *transfer)
{
    return (int32_t)(atomic_load_explicit(transfer->ring->passed, memory_order_acquire) -
                     transfer->base);
}

static void publish(struct cudriver_staging_transfer *transfer, size_t chunks)
{
    transfer->published = chunks;
    transfer->packed = chunks == transfer->chunks;
    atomic_store(transfer->ring->ready, transfer->base + (uint32_t)chunks);
}

/* Locked. Lets the stream past a copy that was stopped. True when there is nothing left to do. */
static bool transfer_progress(struct cudriver_staging_transfer *transfer)
{
    int32_t passed = chunks_passed(transfer);

    if (transfer->stopped && transfer->in_flight == 0 && !transfer->packed && passed >= 0) {
        publish(transfer, transfer->chunks);
    }
    return transfer->packed && (transfer->lost || passed >= (int32_t)transfer->chunks);
}

void staging_ring_unlist(struct cudriver_staging_transfer *transfer)
{
    struct cudriver_staging_transfer **link = &staging.packing;

    if (!transfer->listed) {
        return;
    }
    while (*link != transfer) {
        link = &(*link)->packing;
    }
    *link = transfer->packing;
    transfer->listed = false;
    staging.ring_wanted -= transfer->threads;
    staging.ring_users--;
    staging.copies++;
    staging.bytes += transfer->result == CUDA_SUCCESS ? transfer->bytes : 0;
    if (!transfer->lost) { /* else nobody knows whether the device still uses the slots */
        struct staging_ring *ring = transfer->ring;
        if (--ring->users == 0 && ring->orphan) { /* the place has gone */
            cudriver_hostmem_free(ring->block);
            free(ring);
        }
    }
    staging_transfer_device_over(transfer);
    pthread_cond_broadcast(&staging.quiet);
    pthread_cond_broadcast(&staging.ring_work);
}

/* What a thread takes at once of a chunk of so many bytes. */
static size_t piece_bytes(size_t chunk)
{
    size_t share = (chunk / 8 + 4095) / 4096 * 4096;

    return share < PIECE_LEAST ? PIECE_LEAST : share > PIECE_MOST ? PIECE_MOST : share;
}

/* Locked. Takes the next piece of a transfer whose slot can take it. */
static bool piece_take(struct cudriver_staging_transfer *transfer, struct piece *piece)
{
    int32_t passed = chunks_passed(transfer);
    size_t chunk = transfer->chunk;

    if (transfer->stopped || chunk == transfer->chunks || passed < 0 ||
        (size_t)passed < (transfer->up ? transfer->cuts[chunk].needs : chunk + 1)) {
        return false;
    }
    piece->transfer = transfer;
    piece->chunk = chunk;
    piece->begin = transfer->taken;
    piece->end = transfer->starts[chunk + 1];
    size_t share = piece_bytes(piece->end - transfer->starts[chunk]);
    if (piece->end - piece->begin > share) {
        piece->end = piece->begin + share;
    }
    transfer->taken = piece->end;
    if (piece->end == transfer->starts[chunk + 1]) {
        transfer->chunk++;
    }
    transfer->in_flight++;
    transfer->begun = true;
    return true;
}

static void piece_move(const struct piece *piece)
{
    const struct cudriver_staging_transfer *transfer = piece->transfer;
    const struct staging_ring *ring = transfer->ring;
    size_t bytes = piece->end - piece->begin;
    char *slot = ring->block + COUNTERS + transfer->cuts[piece->chunk].place +
                 (piece->begin - transfer->starts[piece->chunk]);

    if (!transfer->host_dense) {
        if (transfer->up) {
            cudriver_layout_copy_part(&transfer->walk, slot, true, transfer->host, false,
                                      piece->begin, piece->end);
        } else {
            cudriver_layout_copy_part(&transfer->walk, transfer->host, false, slot, true,
                                      piece->begin, piece->end);
        }
        return;
    }
    char *host = transfer->host + piece->begin +
                 (transfer->up ? transfer->walk.src_offset : transfer->walk.dst_offset);
    char *to = transfer->up ? slot : host;
    const char *from = transfer->up ? host : slot;
    if (transfer->streaming) {
        staging_memory_stream(to, from, bytes);
    } else {
        memcpy(to, from, bytes);
    }
}

/* Locked. True where staging_transfer_tell must follow. */
static bool piece_end(const struct piece *piece)
{
    struct cudriver_staging_transfer *transfer = piece->transfer;
    size_t published = transfer->published;

    transfer->in_flight--;
    transfer->cuts[piece->chunk].left -= piece->end - piece->begin;
    while (published < transfer->chunks && transfer->cuts[published].left == 0) {
        published++;
    }
    if (published != transfer->published) {
        publish(transfer, published);
    }
    if (transfer->host_pending > 0 && transfer->in_flight == 0 &&
        (transfer->packed || transfer->stopped)) {
        staging_transfer_hold(transfer);
        staging_transfer_host_over(transfer, transfer->result);
        return true;
    }
    return false;
}

/* Locked. The next piece, of each transfer in turn; or in *ended one that is through, unlisted,
 * whose reference is the caller's to drop. */
static bool piece_find(struct piece *piece, struct cudriver_staging_transfer **ended)
{
    struct cudriver_staging_transfer **link = &staging.packing;

    *ended = NULL;
    while (*link != NULL) {
        struct cudriver_staging_transfer *transfer = *link;
        if (transfer_progress(transfer)) {
            staging_ring_unlist(transfer);
            *ended = transfer;
            return false;
        }
        if (piece_take(transfer, piece)) {
            struct cudriver_staging_transfer **end = link;
            while (*end != NULL) {
                end = &(*end)->packing;
            }
            if (end != &transfer->packing) {
                *link = transfer->packing;
                *end = transfer;
                transfer->packing = NULL;
            }
            return true;
        }
        link = &transfer->packing;
    }
    return false;
}

static void nap(long nanoseconds)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = nanoseconds};

    nanosleep(&time, NULL);
}

/* Works on a transfer until it is over; false: interrupted. */
bool staging_ring_help(struct cudriver_staging_transfer *transfer, bool (*interrupted)(void *),
                       void *data)
{
    unsigned long long asked = platform_nanoseconds(), idle = asked;
    bool go_on = true;

    staging_lock();
    while (!transfer->over && !transfer->lost && go_on) {
        struct piece piece;
        bool done = transfer->listed && transfer_progress(transfer);
        bool alone = staging.ring_users <= 2;
        if (done) {
            staging_ring_unlist(transfer);
            staging_unlock();
            staging_transfer_drop(transfer);
        } else if (transfer->listed && piece_take(transfer, &piece)) {
            staging_unlock();
            piece_move(&piece);
            staging_lock();
            bool tell = piece_end(&piece);
            staging_unlock();
            if (tell) {
                staging_transfer_tell(transfer);
            }
            idle = platform_nanoseconds();
        } else {
            staging_unlock();
            if (alone && platform_nanoseconds() - idle < SPIN_NS) {
                for (volatile int i = 0; i < 100; i++) {
                }
            } else {
                nap(NAP_LEAST);
            }
        }
        if (platform_nanoseconds() - asked > STAGING_POLL_NS) {
            staging_transfer_check(transfer);
            go_on = interrupted == NULL || !interrupted(data);
            asked = platform_nanoseconds();
        }
        staging_lock();
    }
    staging_unlock();
    return go_on;
}

/* Locked. How many threads are to be awake, given what the transfers want together. */
static int threads_allowed(void)
{
    int most = staging.settings.threads;

    return staging.ring_wanted < 1 ? 1 : staging.ring_wanted > most ? most : staging.ring_wanted;
}

/* Never calls the driver: what the streams wait for depends on these threads. */
static void *ring_main(void *unused)
{
    long pause = NAP_LEAST;

    (void)unused;
    staging_lock();
    for (;;) {
        struct cudriver_staging_transfer *ended;
        struct piece piece;
        if (piece_find(&piece, &ended)) {
            pause = NAP_LEAST;
            if (staging.ring_idle > 0 &&
                staging.ring_threads - staging.ring_idle < threads_allowed()) {
                pthread_cond_signal(&staging.ring_work); /* perhaps there is another piece */
            }
            staging_unlock();
            piece_move(&piece);
            staging_lock();
            if (piece_end(&piece)) {
                staging_unlock();
                staging_transfer_tell(piece.transfer);
                staging_lock();
            }
        } else if (ended != NULL) {
            staging_unlock();
            staging_transfer_drop(ended);
            staging_lock();
        } else if (staging.stopping && staging.ring_users == 0) {
            break;
        } else if (staging.packing == NULL || staging.watched) {
            staging.ring_idle++;
            pthread_cond_wait(&staging.ring_work, &staging.lock);
            staging.ring_idle--;
        } else {
            staging.watched = true;
            staging_unlock();
            nap(pause);
            pause = pause * 3 / 2 < NAP_MOST ? pause * 3 / 2 : NAP_MOST;
            staging_lock();
            staging.watched = false;
        }
    }
    staging.ring_threads--;
    pthread_cond_broadcast(&staging.ring_work);
    pthread_cond_broadcast(&staging.quiet);
    staging_unlock();
    return NULL;
}

/* Locked. */
static void threads_wake(void)
{
    int allowed = threads_allowed(), awake = staging.ring_threads - staging.ring_idle;

    for (int i = awake; i < allowed && i < staging.ring_threads; i++) {
        pthread_cond_signal(&staging.ring_work);
    }
    while (staging.ring_threads < allowed && staging_thread_start(ring_main, "cudriver-ring")) {
        staging.ring_threads++;
    }
}

/*
 * Locked. Takes over a reference. At least one thread packs, even where the caller would do: while
 * a call of the driver keeps the caller waiting, perhaps for the very stream that waits for these
 * bytes, the threads go on.
 */
static void transfer_list(struct cudriver_staging_transfer *transfer)
{
    struct cudriver_staging_transfer **link = &staging.packing;

    transfer->started = true;
    transfer->listed = true;
    transfer->packing = NULL;
    while (*link != NULL) {
        link = &(*link)->packing;
    }
    *link = transfer;
    transfer->threads =
        staging_threads_wanted(transfer->bytes, transfer->host_dense, &staging.settings) -
        transfer->own;
    transfer->threads += transfer->threads == 0;
    staging.ring_wanted += transfer->threads;
    threads_wake();
}

/* On the stream, where the copy has its place. */
static void transfer_arrive(void *data)
{
    staging_lock();
    transfer_list(data);
    staging_unlock();
}

void staging_ring_open(struct cudriver_staging_transfer *transfer)
{
    staging_lock();
    if (transfer->listed) {
        transfer_progress(transfer);
    }
    staging_unlock();
}

void staging_ring_close(struct cudriver_staging_transfer *transfer)
{
    bool listed;

    staging_lock();
    atomic_store(transfer->ring->passed, transfer->base + (uint32_t)transfer->chunks);
    listed = transfer->listed && transfer_progress(transfer);
    if (listed) {
        staging_ring_unlist(transfer);
    }
    staging_unlock();
    if (listed) {
        staging_transfer_drop(transfer);
    }
}

bool staging_ring_stop(struct cudriver_staging_transfer *transfer)
{
    bool tell = transfer->ring != NULL && transfer->in_flight == 0 && transfer->host_pending > 0;

    if (tell) {
        staging_transfer_hold(transfer);
        staging_transfer_host_over(transfer, transfer->result);
    }
    pthread_cond_broadcast(&staging.ring_work);
    return tell;
}

/* ---- what the stream does ---- */

/* What the commands of one copy share. */
struct queue {
    struct cudriver_staging_transfer *transfer;
    const struct cudriver_staging_job *job;
    const struct staging_plan *plan;
    const struct cudriver_layout *rows;
    const struct staging_boxes *boxes;
    const struct staging_kernels *kernels; /* NULL: not permuted */
};

/* Errors of the counters' calls that mean: not with this driver or device. */
static CUresult counters_note(const struct queue *queue, CUresult result)
{
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        staging_lock();
        queue->transfer->place->no_counters = true;
        staging_unlock();
    }
    return result;
}

static CUresult counter_wait(const struct queue *queue, size_t chunks)
{
    const struct cudriver_staging_transfer *transfer = queue->transfer;

    return counters_note(queue, cuda.cuStreamWaitValue32_v2(
                                    transfer->stream, transfer->ring->ready_address,
                                    transfer->base + (uint32_t)chunks, CU_STREAM_WAIT_VALUE_GEQ));
}

static CUresult kernel_queue(const struct queue *queue, const struct cudriver_layout *spread)
{
    CUdeviceptr scratch = queue->transfer->ring->scratch, device = queue->job->device;
    bool up = queue->plan->up;
    CUresult result = staging_kernels_launch(queue->kernels, spread, up ? device : scratch,
                                             up ? scratch : device, queue->transfer->stream);

    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        staging_lock();
        queue->transfer->place->no_kernels = true;
        staging_unlock();
    }
    return result;
}

static CUresult chunk_queue(const struct queue *queue, size_t chunk, char *slot)
{
    struct cudriver_staging_transfer *transfer = queue->transfer;
    size_t begin = transfer->starts[chunk], end = transfer->starts[chunk + 1];
    struct cudriver_layout spread;
    CUresult result;

    if (queue->kernels == NULL) {
        return staging_device_copy(queue->rows, transfer->up, queue->job->device, slot, begin, end,
                                   transfer->stream);
    }
    staging_box_find(queue->plan, queue->boxes, chunk, &begin, &end, &spread);
    if (transfer->up) {
        result =
            cuda.cuMemcpyHtoDAsync_v2(transfer->ring->scratch, slot, end - begin, transfer->stream);
        return result == CUDA_SUCCESS ? kernel_queue(queue, &spread) : result;
    }
    result = kernel_queue(queue, &spread);
    return result == CUDA_SUCCESS ? cuda.cuMemcpyDtoHAsync_v2(slot, transfer->ring->scratch,
                                                              end - begin, transfer->stream)
                                  : result;
}

/*
 * Up, for each chunk: wait until it is packed, copy, say so.
 * Down: wait until what lay in its place is unpacked, copy, say so; in the end wait for all.
 */
static CUresult commands_queue(const struct queue *queue)
{
    struct cudriver_staging_transfer *transfer = queue->transfer;
    struct staging_ring *ring = transfer->ring;
    size_t waited = 0;
    CUresult result = CUDA_SUCCESS;

    for (size_t k = 0; k < transfer->chunks && result == CUDA_SUCCESS; k++) {
        char *slot = ring->block + COUNTERS + transfer->cuts[k].place;
        if (transfer->up) {
            result = counter_wait(queue, k + 1);
        } else if (transfer->cuts[k].needs > waited) {
            waited = transfer->cuts[k].needs;
            result = counter_wait(queue, waited);
        }
        if (result == CUDA_SUCCESS) {
            result = chunk_queue(queue, k, slot);
        }
        if (result == CUDA_SUCCESS) {
            result = counters_note(
                queue, cuda.cuStreamWriteValue32_v2(transfer->stream, ring->passed_address,
                                                    transfer->base + (uint32_t)k + 1, 0));
        }
    }
    if (result == CUDA_SUCCESS && !transfer->up) {
        result = counter_wait(queue, transfer->chunks);
    }
    return result;
}

size_t staging_ring_slot(bool up, size_t bytes, size_t most)
{
    /* Down, the slots hold all of a small copy, and its stream waits for nobody. */
    size_t room = bytes / STAGING_RING_SLOTS / (up ? 2 : 1);

    while (most > SLOT_LEAST && most / 2 >= room) {
        most /= 2;
    }
    return most;
}

static int transfers_under_way(void)
{
    int users;

    staging_lock();
    users = staging.ring_users;
    staging_unlock();
    return users;
}

/*
 * Cuts a walk into chunks of whole rows. Up, small ones first, so that the first copy begins soon;
 * down, all alike, so that little is left to unpack after the last copy. Returns how many; fills
 * `starts` unless it is NULL.
 */
static size_t chunks_cut(bool up, size_t bytes, size_t slot, size_t row, size_t *starts)
{
    size_t size = slot / 8, most = up ? slot : slot / 2, count = 0;

    if (!up) {
        size = bytes / 16 < most ? bytes / 16 : most;
    }
    if (size < CHUNK_LEAST) {
        size = CHUNK_LEAST;
    }
    for (size_t at = 0; at < bytes; count++) {
        size_t length = size < slot ? size : slot;
        length -= row < length ? length % row : 0;
        at = bytes - at > length ? at + length : bytes;
        if (starts != NULL) {
            starts[count + 1] = at;
        }
        size *= up && size < most ? 2 : 1;
    }
    return count;
}

/*
 * Gives each chunk its place in the slots' memory, one after the other and from the beginning
 * again, and finds how many chunks before it must be done with for that: those up to the last one
 * that lay there.
 */
static void chunks_place(struct cudriver_staging_transfer *transfer, size_t room)
{
    size_t at = 0, done = 0;

    for (size_t k = 0; k < transfer->chunks; k++) {
        struct staging_chunk *chunk = &transfer->cuts[k];
        chunk->left = transfer->starts[k + 1] - transfer->starts[k];
        if (chunk->left > room - at) {
            at = 0;
        }
        chunk->place = at;
        at += chunk->left;
        /* Chunk `done` is the oldest that may still lie where this one goes. */
        for (size_t j = done; j < k; j++) {
            size_t begin = transfer->cuts[j].place;
            size_t end = begin + transfer->starts[j + 1] - transfer->starts[j];
            if (begin < at && chunk->place < end) {
                done = j + 1;
            }
        }
        chunk->needs = done;
    }
}

/* Cuts the walk: where it is permuted into boxes, else into chunks. Returns the bytes of a slot, or
 * 0 without memory. */
static size_t chunks_make(struct cudriver_staging_transfer *transfer,
                          const struct staging_plan *plan, const struct cudriver_layout *rows,
                          size_t most, struct staging_boxes *boxes)
{
    bool permuted = plan->path == CUDRIVER_STAGING_PERMUTED;
    size_t bytes = cudriver_layout_bytes(&plan->walk), slot;

    for (int users = transfers_under_way(); users > 1 && most > SLOT_SHARED; users /= 2) {
        most /= 2; /* many copies at once: less memory for each */
    }
    slot = staging_ring_slot(plan->up, bytes, most);
    if (permuted) {
        *boxes = staging_boxes_make(plan, slot);
        transfer->chunks = boxes->count;
    } else {
        transfer->chunks = chunks_cut(plan->up, bytes, slot, rows->itemsize, NULL);
    }
    if (transfer->chunks > INT32_MAX / 2) {
        return 0;
    }
    transfer->bytes = bytes;
    transfer->starts = calloc(transfer->chunks + 1, sizeof transfer->starts[0]);
    transfer->cuts = calloc(transfer->chunks, sizeof transfer->cuts[0]);
    if (transfer->starts == NULL || transfer->cuts == NULL) {
        return 0;
    }
    if (permuted) {
        for (size_t k = 0; k < transfer->chunks; k++) {
            struct cudriver_layout spread;
            staging_box_find(plan, boxes, k, &transfer->starts[k], &transfer->starts[k + 1],
                             &spread);
        }
        slot = boxes->largest > slot ? boxes->largest : slot;
    } else {
        chunks_cut(plan->up, bytes, slot, rows->itemsize, transfer->starts);
    }
    chunks_place(transfer, STAGING_RING_SLOTS * slot);
    return slot;
}

/* Sees that a thread for the rings lives before a stream depends on one. */
static CUresult thread_ensure(void)
{
    CUresult result;

    staging_lock();
    threads_wake();
    result = staging.ring_threads > 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
    staging_unlock();
    return result;
}

CUresult staging_ring_start(struct cudriver_staging_transfer *transfer,
                            const struct cudriver_staging_job *job, const struct staging_plan *plan)
{
    struct staging_kernels *kernels = NULL;
    struct cudriver_staging_settings settings;
    struct cudriver_layout rows;
    struct staging_boxes boxes;
    CUresult result = thread_ensure();
    size_t slot_bytes;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (plan->path == CUDRIVER_STAGING_PERMUTED) {
        result = staging_place_kernels(transfer->place, plan, job->device, &kernels);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    cudriver_staging_get_settings(&settings);
    staging_rows_make(&plan->walk, plan->up, &rows);
    transfer->up = plan->up;
    transfer->host = job->host;
    transfer->walk = plan->walk;
    transfer->host_dense = plan->host_dense;
    transfer->streaming = plan->streaming;
    slot_bytes = chunks_make(transfer, plan, &rows, settings.slot, &boxes);
    if (slot_bytes == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = ring_get(transfer, slot_bytes, kernels != NULL);
    if (result != CUDA_SUCCESS) {
        return result;
    }

    staging_transfer_hold(transfer); /* for the list */
    result = transfer->own ? CUDA_SUCCESS : staging_stream_query(job->stream);
    if (result == CUDA_SUCCESS) {
        staging_lock();
        transfer_list(transfer);
        staging_unlock();
    } else if (result == CUDA_ERROR_NOT_READY) {
        result = cuda.cuLaunchHostFunc(job->stream, transfer_arrive, transfer);
    }
    const struct queue queue = {transfer, job, plan, &rows, &boxes, kernels};
    if (result == CUDA_SUCCESS) {
        return commands_queue(&queue);
    }
    /* Not begun on the stream at all: for the threads it has come, and is stopped. */
    staging_lock();
    transfer->stopped = true;
    transfer_list(transfer);
    staging_unlock();
    return result;
}

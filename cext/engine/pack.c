/* The packing threads: they move bytes between host memory and the slots of rings, and never call
 * the driver. See private.h. */
#define _GNU_SOURCE
#include "private.h"

#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "driver/platform.h"

/* ---- pieces ---- */

/* What a thread moves at a time. */
struct piece {
    struct cudriver_staging_transfer *transfer;
    size_t chunk, begin, end;
};

/* Chunks that the stream has copied; negative while the ring still serves an earlier transfer. */
static int32_t chunks_passed(const struct cudriver_staging_transfer *transfer)
{
    return (int32_t)(atomic_load_explicit(transfer->ring->passed, memory_order_acquire) -
                     transfer->base);
}

static void publish(struct cudriver_staging_transfer *transfer, size_t chunks)
{
    transfer->published = chunks;
    atomic_store(transfer->ring->ready, transfer->base + (uint32_t)chunks);
}

/* Locked. Lets the stream pass a copy that was stopped. True: nothing is left to do. */
static bool transfer_progress(struct cudriver_staging_transfer *transfer)
{
    int32_t passed = chunks_passed(transfer);

    if (transfer->state != STAGING_MOVING && transfer->published < transfer->chunks &&
        passed >= 0) {
        publish(transfer, transfer->chunks);
    }
    return transfer->published == transfer->chunks &&
           (transfer->state == STAGING_LOST || passed >= (int32_t)transfer->steps);
}

/* Locked. Ends a transfer that its stream has passed. Takes it from the list; false if it was not
 * there. Otherwise the caller drops the list's reference, without the lock. */
static bool ring_unlist(struct cudriver_staging_transfer *transfer)
{
    struct cudriver_staging_transfer **link = &staging.packing;

    while (*link != NULL && *link != transfer) {
        link = &(*link)->packing;
    }
    bool listed = *link != NULL;
    if (listed) {
        *link = transfer->packing;
        staging.ring_wanted -= transfer->threads;
        staging.ring_unwatched -= !transfer->watched;
    }
    if (transfer->state != STAGING_LOST) { /* else the device may still use the slots */
        staging_transfer_move(transfer, STAGING_OVER);
    }
    return listed;
}

/* Locked. Takes the next piece of a transfer, if its place in the ring is ready for it. */
static bool piece_take(struct cudriver_staging_transfer *transfer, struct piece *piece)
{
    int32_t passed = chunks_passed(transfer);
    size_t chunk = transfer->chunk;

    if (chunk == transfer->chunks || passed < 0 ||
        (size_t)passed < (transfer->up ? transfer->cuts[chunk].needs : chunk + 1)) {
        return false;
    }
    piece->transfer = transfer;
    piece->chunk = chunk;
    piece->begin = transfer->taken;
    piece->end = transfer->starts[chunk + 1];
    size_t share = ((piece->end - transfer->starts[chunk]) / 8 + 4095) / 4096 * 4096;
    share = share < TUNING_SHARE_LEAST  ? TUNING_SHARE_LEAST
            : share > TUNING_SHARE_MOST ? TUNING_SHARE_MOST
                                        : share;
    if (piece->end - piece->begin > share) {
        piece->end = piece->begin + share;
    }
    transfer->taken = piece->end;
    if (piece->end == transfer->starts[chunk + 1]) {
        transfer->chunk++;
    }
    transfer->in_flight++;
    atomic_fetch_add_explicit(&staging.news, 1, memory_order_release); /* there may be another */
    return true;
}

#ifdef __x86_64__
/* The stores write whole cache lines to memory. */
__attribute__((target("avx2"))) static void stream_avx2(char *dst, const char *src, size_t bytes)
{
    size_t lead = -(uintptr_t)dst & 31;

    lead = lead < bytes ? lead : bytes;
    memcpy(dst, src, lead);
    dst += lead;
    src += lead;
    bytes -= lead;
    for (; bytes >= 128; bytes -= 128, dst += 128, src += 128) {
        __m256i a = _mm256_loadu_si256((const __m256i *)src);
        __m256i b = _mm256_loadu_si256((const __m256i *)(src + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(src + 64));
        __m256i d = _mm256_loadu_si256((const __m256i *)(src + 96));
        _mm256_stream_si256((__m256i *)dst, a);
        _mm256_stream_si256((__m256i *)(dst + 32), b);
        _mm256_stream_si256((__m256i *)(dst + 64), c);
        _mm256_stream_si256((__m256i *)(dst + 96), d);
    }
    _mm_sfence(); /* before anybody is told that the bytes are there */
    memcpy(dst, src, bytes);
}
#endif

/* memcpy that bypasses the caches if the CPU can. The bytes are visible to every thread afterwards.
 */
static void memory_stream(void *dst, const void *src, size_t bytes)
{
#ifdef __x86_64__
    if (bytes >= 4096 && __builtin_cpu_supports("avx2")) {
        stream_avx2(dst, src, bytes);
        return;
    }
#endif
    memcpy(dst, src, bytes);
}

static void piece_move(const struct piece *piece)
{
    const struct cudriver_staging_transfer *transfer = piece->transfer;
    size_t bytes = piece->end - piece->begin;
    char *slot = staging_ring_memory(transfer, piece->chunk) +
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
        memory_stream(to, from, bytes);
    } else {
        memcpy(to, from, bytes);
    }
}

/* Locked. */
static void piece_end(const struct piece *piece)
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
    if (transfer->in_flight == 0 && transfer->chunk == transfer->chunks) {
        staging_transfer_move(transfer, STAGING_PASSING);
    }
}

/* Locked. Takes the next piece, from each transfer in turn. If it finds one that is done instead,
 * it unlists that and sets *ended; the caller drops the reference. */
static bool piece_find(struct piece *piece, struct cudriver_staging_transfer **ended)
{
    struct cudriver_staging_transfer **link = &staging.packing;

    *ended = NULL;
    while (*link != NULL) {
        struct cudriver_staging_transfer *transfer = *link;
        if (transfer_progress(transfer)) {
            ring_unlist(transfer);
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

/* ---- the threads, and a caller that helps ---- */

/* Waits about half a microsecond. */
static void look_away(void)
{
    for (int i = 0; i < TUNING_PAUSES; i++) {
        platform_relax();
    }
}

/* Locked. How many threads should be awake for what the transfers want. */
static int threads_allowed(void)
{
    int most = staging.settings.threads;

    return staging.ring_wanted < 1 ? 1 : staging.ring_wanted > most ? most : staging.ring_wanted;
}

/* Locked. Brings the awake threads towards `wanted`: wakes a few, and those wake others. */
static void threads_wake(int wanted)
{
    int lacking = wanted - (staging.ring_threads - staging.ring_idle);

    staging_threads_call(lacking < TUNING_CALLED ? lacking : TUNING_CALLED);
}

/* Polls until the stream has copied another chunk or `news` has changed, for a moment at most.
 * Without the lock, which the packing threads need. */
static void ring_look(const struct staging_ring *ring, unsigned news)
{
    uint32_t passed = atomic_load_explicit(ring->passed, memory_order_acquire);

    for (int i = 0; i < TUNING_LOOKS; i++) {
        look_away();
        if (atomic_load_explicit(ring->passed, memory_order_acquire) != passed ||
            atomic_load_explicit(&staging.news, memory_order_acquire) != news) {
            break;
        }
    }
}

/* Locked. Notes whether the caller of a blocking copy polls its counters. If not, a packing thread
 * must: all of them may be asleep. */
static void transfer_watch(struct cudriver_staging_transfer *transfer, bool watched)
{
    if (staging_transfer_ended(transfer) || transfer->watched == watched) {
        return;
    }
    transfer->watched = watched;
    staging.ring_unwatched += watched ? -1 : 1;
    if (!watched) {
        threads_wake(1 + staging.watched);
    }
}

CUresult staging_ring_help(struct cudriver_staging_transfer *transfer, bool (*interrupted)(void *),
                           void *data)
{
    unsigned long long asked = platform_nanoseconds(), idle = asked;
    bool go_on = true;
    CUresult result;

    staging_lock();
    /* Polled even when the copy may be over, hence the extra user. NULL: it is over already. */
    struct staging_ring *ring = transfer->ring;
    if (ring != NULL) {
        ring->users++;
    }
    transfer_watch(transfer, true);
    while (!staging_transfer_ended(transfer) && go_on) { /* so it is listed */
        struct piece piece;
        bool alone = staging.ring_users <= 2;
        unsigned news = atomic_load_explicit(&staging.news, memory_order_acquire);
        if (transfer_progress(transfer)) {
            ring_unlist(transfer);
            staging_unlock();
            staging_transfer_drop(transfer);
        } else if (piece_take(transfer, &piece)) {
            threads_wake(threads_allowed());
            staging_unlock();
            piece_move(&piece);
            staging_lock();
            piece_end(&piece);
            staging_unlock();
            idle = platform_nanoseconds();
        } else {
            staging_unlock();
            if (alone && platform_nanoseconds() - idle < TUNING_SPIN_NS) {
                ring_look(ring, news);
            } else {
                staging_nap(TUNING_NAP_LEAST_NS);
            }
        }
        if (platform_nanoseconds() - asked > STAGING_POLL_NS) {
            /* The callback may take long, even wait for this very copy. */
            staging_lock();
            transfer_watch(transfer, false);
            staging_unlock();
            staging_transfer_check(transfer);
            go_on = interrupted == NULL || !interrupted(data);
            asked = platform_nanoseconds();
            staging_lock();
            transfer_watch(transfer, go_on);
            staging_unlock();
        }
        staging_lock();
    }
    transfer_watch(transfer, false);
    if (ring != NULL) {
        staging_ring_leave(ring);
    }
    result = go_on ? transfer->result : CUDRIVER_STAGING_INTERRUPTED;
    staging_unlock();
    return result;
}

/* Locked. Sleeps until the thread is woken. */
static void thread_sleep(void)
{
    staging.ring_idle++;
    staging_unlock();
    while (sem_wait(&staging.ring_sleep) != 0) { /* interrupted */
    }
    staging_lock();
}

/* Polls until `news` has changed, or until the time `until` (ns). */
static void thread_linger(unsigned news, unsigned long long until)
{
    do {
        look_away();
    } while (atomic_load_explicit(&staging.news, memory_order_acquire) == news &&
             platform_nanoseconds() < until);
}

/*
 * A packing thread. Never calls the driver, because streams wait for it. Without work it polls for
 * a moment, if there are CPUs to spare. Then it sleeps; but while copies are under way that no
 * caller polls, one thread polls their counters now and then.
 */
static void *ring_main(void *unused)
{
    long pause = TUNING_NAP_LEAST_NS;
    unsigned long long busy = platform_nanoseconds();

    (void)unused;
    platform_thread_name("cudriver-ring");
    platform_nap_precisely();
    staging_lock();
    for (;;) {
        struct cudriver_staging_transfer *ended;
        struct piece piece;
        unsigned news = atomic_load_explicit(&staging.news, memory_order_acquire);
        if (piece_find(&piece, &ended)) {
            pause = TUNING_NAP_LEAST_NS;
            threads_wake(threads_allowed()); /* perhaps there is another piece */
            staging_unlock();
            piece_move(&piece);
            staging_lock();
            piece_end(&piece);
            busy = platform_nanoseconds();
        } else if (ended != NULL) {
            staging_unlock();
            staging_transfer_drop(ended);
            staging_lock();
        } else if (staging.stopping && staging.ring_users == 0) {
            break;
        } else {
            bool watch = staging.ring_unwatched > 0 && !staging.watched;
            unsigned long long until = busy + (unsigned long long)staging.settings.linger;
            bool linger = platform_nanoseconds() < until;
            if (!watch && !linger) {
                thread_sleep();
                busy = platform_nanoseconds();
                continue;
            }
            staging.watched |= watch;
            staging_unlock();
            if (!linger) {
                staging_nap(pause);
                pause = pause * 3 / 2 < TUNING_NAP_MOST_NS ? pause * 3 / 2 : TUNING_NAP_MOST_NS;
            } else if (watch) {
                look_away(); /* this thread polls the counters */
            } else {
                thread_linger(news, until);
            }
            staging_lock();
            if (watch) {
                staging.watched = false;
            }
        }
    }
    staging.ring_threads--;
    staging_threads_call(staging.ring_idle);
    pthread_cond_broadcast(&staging.quiet);
    staging_unlock();
    return NULL;
}

/* Locked. Starts threads until there are as many as the transfers want. */
static void threads_provide(void)
{
    int allowed = threads_allowed();

    while (staging.ring_threads < allowed && platform_thread_start(ring_main, NULL)) {
        staging.ring_threads++;
    }
}

void staging_ring_expect(int threads)
{
    staging_lock();
    if (staging.settings.linger > 0) {
        threads_wake(threads < staging.settings.threads ? threads : staging.settings.threads);
    }
    staging_unlock();
}

/*
 * At least one thread packs, even if the caller does too: a driver call may keep the caller
 * waiting, perhaps for the very stream that waits for these bytes.
 */
void staging_ring_list(struct cudriver_staging_transfer *transfer)
{
    struct cudriver_staging_transfer **link = &staging.packing;

    if (transfer->state == STAGING_QUEUED) {
        staging_transfer_move(transfer, STAGING_MOVING);
    } else { /* given up */
        transfer->chunk = transfer->chunks;
    }
    transfer->packing = NULL;
    while (*link != NULL) {
        link = &(*link)->packing;
    }
    *link = transfer;
    staging.ring_wanted += transfer->threads;
    staging.ring_unwatched++;
    atomic_fetch_add_explicit(&staging.news, 1, memory_order_release);
    threads_provide();
    /* Waking takes a while. For an asynchronous copy wake one thread and let it wake the rest, so
     * that the caller can return at once; two if one polls the counters, since it may be
     * napping. */
    threads_wake(transfer->own ? threads_allowed() : 1 + staging.watched);
}

void staging_ring_open(struct cudriver_staging_transfer *transfer)
{
    transfer_progress(transfer);
}

void staging_ring_close(struct cudriver_staging_transfer *transfer)
{
    if (transfer->ring != NULL) {
        atomic_store(transfer->ring->passed, transfer->base + (uint32_t)transfer->steps);
    }
    if (ring_unlist(transfer)) {
        staging_transfer_drop(transfer); /* not the last reference: the caller has one */
    }
}

CUresult staging_ring_ensure(void)
{
    CUresult result;

    staging_lock();
    threads_provide();
    threads_wake(1);
    result = staging.ring_threads > 0 ? CUDA_SUCCESS : STAGING_NO_THREADS;
    staging_unlock();
    return result;
}

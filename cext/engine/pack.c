/* The packing threads, and whoever helps them: they move bytes between host memory, or files, and
 * blocks, part by part. Nobody here calls the driver. See private.h. */
#define _GNU_SOURCE
#include "private.h"

#include <stdlib.h>
#include <string.h>

#include "driver/platform.h"
#include "hostmem/hostmem.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

/* ---- the two words of a lane ---- */

/* Steps that the stream has done; negative until it comes to the copy. */
static int32_t words_passed(const struct cudriver_staging_transfer *transfer)
{
    int32_t passed = (int32_t)(atomic_load_explicit(transfer->lane->passed, memory_order_acquire) -
                               transfer->steps.base);

    return transfer->arrived && passed < 0 ? 0 : passed;
}

/* Locked. Tells the stream that so many parts are moved, unless the word says more: for a later
 * copy in the lane. */
static void words_publish(struct cudriver_staging_transfer *transfer, size_t parts)
{
    uint32_t value = transfer->steps.base + (uint32_t)parts;

    if ((int32_t)(value - atomic_load(transfer->lane->ready)) > 0) {
        atomic_store(transfer->lane->ready, value);
    }
}

/* ---- parts and pieces ---- */

/* What a thread moves at a time. */
struct piece {
    struct cudriver_staging_transfer *transfer;
    size_t part, begin, end;
};

char *staging_block(const struct cudriver_staging_transfer *transfer, size_t part)
{
    return transfer->block[part % transfer->blocks].memory;
}

/* Locked. False: it is not in the list. */
static bool transfer_unlist(struct cudriver_staging_transfer *transfer)
{
    struct cudriver_staging_transfer **link = &staging.packing;

    while (*link != NULL && *link != transfer) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        return false;
    }
    *link = transfer->next;
    staging.wanted -= transfer->packers;
    staging.words -= transfer->words;
    return true;
}

void staging_runs_drop(struct staging_runs *runs)
{
    if (atomic_fetch_sub(&runs->users, 1) == 1) {
        if (runs->table != NULL) {
            cudriver_hostmem_free(runs->table);
        }
        free(runs);
    }
}

void staging_transfer_drop(struct cudriver_staging_transfer *transfer)
{
    if (--transfer->references == 0) {
        if (transfer->copy.staged.runs != NULL) {
            staging_runs_drop(transfer->copy.staged.runs);
        }
        free(transfer->plain);
        free(transfer);
    }
}

void staging_pack_stop(struct cudriver_staging_transfer *transfer)
{
    transfer->stopped = true;
    if (!transfer->words) {
        transfer_unlist(transfer);
    }
    pthread_cond_broadcast(&staging.changed);
    while (transfer->at.moving > 0) {
        staging_change_wait(STAGING_POLL_NS);
    }
}

void staging_transfer_end(struct cudriver_staging_transfer *transfer, CUresult result, bool lost)
{
    if (transfer->over) {
        return;
    }
    if (transfer->at.moved < transfer->parts.count) {
        staging_pack_stop(transfer);
    }
    transfer->over = true;
    transfer->result = result;
    if (transfer->held > 0) {
        staging_blocks_drop(transfer, lost);
    }
    if (lost) {
        transfer->lane->lost = true;
        transfer->plain = NULL; /* given up too */
        if (transfer->copy.staged.runs != NULL) {
            transfer->copy.staged.runs->table = NULL; /* given up too */
        }
    } else {
        transfer->lane->users--;
    }
    staging.users--;
    if (staging.stopping) {
        staging_threads_call(staging.idle); /* they end with the last copy */
    }
    pthread_cond_broadcast(&staging.changed);
}

/* Locked. Ends an asynchronous copy that its stream has passed, and takes it from the list; false:
 * it has not. Lets the stream pass one that was stopped. */
static bool words_ended(struct cudriver_staging_transfer *transfer)
{
    int32_t passed = words_passed(transfer);
    bool quiet;

    /* One that is over and still listed is lost: its stream will not pass anything any more. */
    transfer->stopped |= staging.stopping || transfer->over;
    quiet = transfer->stopped && transfer->at.moving == 0 && (passed >= 0 || transfer->over);
    if (quiet) {
        words_publish(transfer, transfer->parts.count);
    }
    if (!(quiet && transfer->lane->lost) && passed < (int32_t)transfer->steps.count) {
        return false;
    }
    transfer_unlist(transfer);
    staging_transfer_end(transfer, transfer->stopped ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS,
                         false);
    staging_transfer_drop(transfer);
    return true;
}

void staging_words_look(void)
{
    struct cudriver_staging_transfer *transfer = staging.packing, *next;

    for (; transfer != NULL; transfer = next) {
        next = transfer->next;
        (void)(transfer->words && words_ended(transfer));
    }
}

/* Locked. Takes the next piece, if its part is released. */
static bool piece_take(struct cudriver_staging_transfer *transfer, struct piece *piece)
{
    const struct cudriver_files *files = transfer->copy.staged.files;
    size_t part = transfer->at.taking, released = transfer->at.released;

    if (transfer->words) { /* the stream tells how far it is */
        int32_t passed = words_passed(transfer);
        released =
            passed < 0 ? 0 : (size_t)passed + (transfer->copy.staged.up ? transfer->blocks : 0);
    }
    if (part == transfer->parts.count || transfer->stopped || staging.stopping ||
        part >= released) {
        return false;
    }
    *piece = (struct piece){transfer, part, transfer->at.taken, transfer->at.until};
    if (piece->begin == piece->end) { /* not begun */
        staging_box_find(&transfer->copy.staged, &transfer->parts, part, &piece->begin, &piece->end,
                         NULL);
        transfer->at.until = piece->end;
        transfer->block[part % transfer->blocks].left = piece->end - piece->begin;
    }
    size_t most = files != NULL ? files->piece : TUNING_PIECE;
    if (piece->end - piece->begin > most) {
        piece->end = piece->begin + most;
    }
    transfer->at.taken = piece->end;
    if (piece->end == transfer->at.until) {
        transfer->at.taking++;
        if (transfer->at.taking == transfer->parts.count && !transfer->words) {
            transfer_unlist(transfer);
        }
    }
    transfer->at.moving++;
    atomic_fetch_add_explicit(&staging.news, 1, memory_order_release); /* there may be another */
    return true;
}

#ifdef __x86_64__
/* memcpy past the caches, for CPUs that have AVX2: the stores write whole cache lines to memory. */
__attribute__((target("avx2"))) static void bytes_stream(char *dst, const char *src, size_t bytes)
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
#else
#define bytes_stream memcpy /* settings.streaming is 0 */
#endif

static void bytes_move(const struct staging_plan *plan, char *block, char *host, size_t bytes)
{
    char *to = plan->up ? block : host;
    const char *from = plan->up ? host : block;

    if (plan->streaming) {
        bytes_stream(to, from, bytes);
    } else {
        memcpy(to, from, bytes);
    }
}

/* Bytes [begin, end) of a copy of many runs. */
static void runs_move(const struct staging_plan *plan, char *block, size_t begin, size_t end)
{
    const struct staging_runs *runs = plan->runs;

    for (const struct staging_run *run =
             staging_item_at(runs->run, sizeof *run, runs->count, begin);
         begin < end; run++) {
        size_t bytes = (run[1].begin < end ? run[1].begin : end) - begin;
        bytes_move(plan, block, run->host + (begin - run->begin), bytes);
        block += bytes;
        begin += bytes;
    }
}

/* Moves bytes [begin, end) of a part between the host and its block. */
static void part_move(const struct cudriver_staging_transfer *transfer, size_t part, size_t begin,
                      size_t end)
{
    const struct staging_plan *plan = &transfer->copy.staged;
    char *host = transfer->copy.host;
    size_t first, last;

    staging_box_find(plan, &transfer->parts, part, &first, &last, NULL);
    char *block = staging_block(transfer, part) - first;
    if (plan->files != NULL) {
        staging_files_read(plan->files, block + begin, begin, end);
    } else if (plan->runs != NULL) {
        runs_move(plan, block + begin, begin, end);
    } else if (plan->walk.ndim == 0) {
        host += plan->up ? plan->walk.src_offset : plan->walk.dst_offset;
        bytes_move(plan, block + begin, host + begin, end - begin);
    } else {
        cudriver_layout_copy(&plan->walk, plan->up ? block : host, plan->up ? host : block, begin,
                             end);
    }
}

/* Locked; releases the lock meanwhile. */
static void piece_do(const struct piece *piece)
{
    struct cudriver_staging_transfer *transfer = piece->transfer;
    size_t moved;

    staging_unlock();
    part_move(transfer, piece->part, piece->begin, piece->end);
    staging_lock();
    transfer->block[piece->part % transfer->blocks].left -= piece->end - piece->begin;
    moved = transfer->at.moved;
    while (moved < transfer->at.taking && transfer->block[moved % transfer->blocks].left == 0) {
        moved++;
    }
    transfer->at.moving--;
    if (transfer->words && moved != transfer->at.moved) {
        words_publish(transfer, moved);
    }
    if (moved != transfer->at.moved || transfer->at.moving == 0) {
        atomic_store_explicit(&transfer->at.moved, moved, memory_order_release);
        pthread_cond_broadcast(&staging.changed);
    }
}

/* ---- the threads ---- */

/* Locked. How many threads should be awake for what the transfers want. */
static int threads_allowed(void)
{
    int most = staging.settings.threads;

    return staging.wanted < 1 ? 1 : staging.wanted > most ? most : staging.wanted;
}

/* Locked. Brings the awake threads towards what is wanted: wakes `most`, and those wake others. */
static void threads_wake(int most)
{
    int lacking = threads_allowed() - (staging.threads - staging.idle);

    staging_threads_call(lacking < most ? lacking : most);
}

#define EVERY_NODE CUDRIVER_NODES

/* Locked. Takes the next piece of the first transfer that has one, those of a NUMA node before the
 * others; ends those that are through. */
static bool piece_find(struct piece *piece, int node)
{
    struct cudriver_staging_transfer *transfer = staging.packing, *next;
    bool skipped = false;

    for (; transfer != NULL; transfer = next) {
        next = transfer->next;
        if (transfer->words && words_ended(transfer)) {
            continue;
        }
        if (node != EVERY_NODE && transfer->node != node) {
            skipped = true;
        } else if (piece_take(transfer, piece)) {
            return true;
        }
    }
    return skipped && piece_find(piece, EVERY_NODE);
}

/* What a packing thread without work waits by. */
struct rest {
    unsigned long long busy; /* ns; when it last had work */
    long nap;                /* ns */
};

/* Locked. Waits for work. For a moment the thread polls, if there are CPUs to spare; then it
 * sleeps, but while streams tell by words how far they are, one thread looks at these now and then.
 */
static void thread_rest(struct rest *rest)
{
    unsigned news = atomic_load_explicit(&staging.news, memory_order_acquire);
    unsigned long long until = rest->busy + (unsigned long long)staging.settings.linger;
    bool watch = staging.words > 0 && !staging.watched, linger = platform_nanoseconds() < until;

    if (!watch && !linger) {
        staging.idle++;
        staging_unlock();
        while (sem_wait(&staging.sleep) != 0) { /* interrupted */
        }
        staging_lock();
        *rest = (struct rest){platform_nanoseconds(), TUNING_NAP_NS};
        return;
    }
    staging.watched |= watch;
    staging_unlock();
    if (!linger) {
        platform_nap(rest->nap);
        rest->nap = rest->nap * 3 / 2 < TUNING_NAP_MOST_NS ? rest->nap * 3 / 2 : TUNING_NAP_MOST_NS;
    } else {
        do {
            for (int i = 0; i < TUNING_PAUSES; i++) {
                platform_relax();
            }
        } while (!watch && atomic_load_explicit(&staging.news, memory_order_acquire) == news &&
                 platform_nanoseconds() < until);
    }
    staging_lock();
    if (watch) {
        staging.watched = false;
    }
}

/* A packing thread. */
static void *thread_main(void *unused)
{
    struct rest rest = {platform_nanoseconds(), TUNING_NAP_NS};
    struct piece piece;
    int node = CUDRIVER_NODE_ANY;

    (void)unused;
    platform_thread_name("cudriver-pack");
    staging_lock();
    for (;;) {
        if (piece_find(&piece, node)) {
            threads_wake(TUNING_CALLED);        /* perhaps there is another piece */
            if (node != piece.transfer->node) { /* goes to that node's processors */
                node = piece.transfer->node;
                staging_unlock();
                cudriver_hostmem_go(node);
                staging_lock();
            }
            piece_do(&piece);
            rest = (struct rest){platform_nanoseconds(), TUNING_NAP_NS};
        } else if (staging.stopping && staging.users == 0) {
            break;
        } else {
            thread_rest(&rest);
        }
    }
    staging.threads--;
    staging_threads_call(staging.idle);
    pthread_cond_broadcast(&staging.changed);
    staging_unlock();
    return NULL;
}

/* ---- for those who give the threads work ---- */

/* Locked. Starts as many threads as should be awake. */
static void threads_start(void)
{
    while (staging.threads < threads_allowed() && platform_thread_start(thread_main, NULL, NULL)) {
        staging.threads++;
    }
}

bool staging_pack_ensure(void)
{
    bool one;

    staging_lock();
    threads_start();
    one = staging.threads > 0;
    staging_unlock();
    return one;
}

void staging_pack_list(struct cudriver_staging_transfer *transfer)
{
    struct cudriver_staging_transfer **link = &staging.packing;

    if (transfer->listed) {
        return;
    }
    transfer->listed = true;
    if (transfer->words) {
        transfer->references++;
    } else if (transfer->packers == 0 || transfer->stopped) {
        return; /* who waits for it does it alone */
    }
    while (*link != NULL) {
        link = &(*link)->next;
    }
    transfer->next = NULL;
    *link = transfer;
    staging.wanted += transfer->packers;
    staging.words += transfer->words;
    atomic_fetch_add_explicit(&staging.news, 1, memory_order_release);
    threads_start();
    /* An asynchronous call returns at once: two threads, of which one may nap, wake the rest. */
    threads_wake(transfer->words ? 2 : TUNING_CALLED);
}

void staging_pack_release(struct cudriver_staging_transfer *transfer, size_t parts)
{
    staging_pack_list(transfer);
    if (parts > transfer->at.released) {
        transfer->at.released = parts < transfer->parts.count ? parts : transfer->parts.count;
        if (transfer->packers > 0) {
            atomic_fetch_add_explicit(&staging.news, 1, memory_order_release);
            threads_wake(TUNING_CALLED);
        }
    }
}

bool staging_pack_help(struct cudriver_staging_transfer *transfer)
{
    struct piece piece;
    bool took = piece_take(transfer, &piece);

    if (took) {
        piece_do(&piece);
    }
    return took;
}

void staging_pack_close(struct cudriver_staging_transfer *transfer)
{
    words_publish(transfer, transfer->parts.count);
    atomic_store(transfer->lane->passed, transfer->steps.base + (uint32_t)transfer->steps.count);
    if (transfer_unlist(transfer)) {
        staging_transfer_drop(transfer); /* not the last reference: the caller has one */
    }
}

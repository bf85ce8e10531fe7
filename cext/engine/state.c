/* The engine's one lock, its settings, its waits for a stream or an event, and memory for blocks.
 * See private.h. */
#define _GNU_SOURCE
#include "private.h"

#include "driver/driver.h"
#include "driver/platform.h"
#include "hostmem/hostmem.h"

/* Held for moments only, so spin briefly before sleeping. */
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
#define STAGING_MUTEX PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
#else
#define STAGING_MUTEX PTHREAD_MUTEX_INITIALIZER
#endif

struct staging_engine staging = {
    .lock = STAGING_MUTEX,
};

/* ---- the lock and its condition ---- */

void staging_threads_call(int count)
{
    count = count < staging.idle ? count : staging.idle;
    if (count > 0) {
        staging.idle -= count;
        staging.calls += count;
    }
}

void staging_change_wait(unsigned long long nanoseconds)
{
    unsigned long long until = platform_nanoseconds() + nanoseconds;
    struct timespec time = {.tv_sec = (time_t)(until / 1000000000ull),
                            .tv_nsec = (long)(until % 1000000000ull)};

    for (; staging.calls > 0; staging.calls--) {
        sem_post(&staging.sleep);
    }
    pthread_cond_timedwait(&staging.changed, &staging.lock, &time);
}

/* Sets the limit of threads for all copies, and with it that of one dense copy. */
static void settings_threads(struct staging_settings *settings, int threads)
{
    settings->threads = threads;
    settings->packers = threads < TUNING_PACKERS_MOST ? threads : TUNING_PACKERS_MOST;
}

/* Whether the CPU has the stores of pack.c that bypass its caches. */
static bool can_stream(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

/* The defaults, from the process's CPUs. */
static void settings_default(struct staging_settings *settings)
{
    int processors = platform_processor_count();
    bool few = processors <= TUNING_FEW_PROCESSORS;
    int threads = few ? processors : processors - TUNING_PROCESSORS_LEFT;

    *settings = (struct staging_settings){
        .crossover = TUNING_STAGED,
        .streaming = can_stream() ? TUNING_STREAMING : 0,
        .part = TUNING_PART,
        .held = TUNING_HELD,
        .coherent = true,
        .linger = few ? 0 : TUNING_LINGER_NS,
    };
    settings_threads(settings, threads < TUNING_THREADS_MOST ? threads : TUNING_THREADS_MOST);
}

/* In a forked child no thread holds the lock, whoever held it in the parent. */
static void lock_renew(void)
{
    staging.lock = (pthread_mutex_t)STAGING_MUTEX;
}

void staging_lock(void)
{
    pthread_condattr_t attributes;

    pthread_mutex_lock(&staging.lock);
    if (!staging.ready) {
        pthread_atfork(NULL, NULL, lock_renew);
        sem_init(&staging.sleep, 0, 0);
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&staging.changed, &attributes);
        pthread_condattr_destroy(&attributes);
        settings_default(&staging.settings);
        staging.ready = true;
    }
}

/* Wakes threads after unlocking: that takes microseconds, and others may wait for the lock. */
void staging_unlock(void)
{
    int calls = staging.calls;

    staging.calls = 0;
    pthread_mutex_unlock(&staging.lock);
    for (; calls > 0; calls--) {
        sem_post(&staging.sleep);
    }
}

/* ---- settings ---- */

void staging_settings_get(struct staging_settings *settings)
{
    staging_lock();
    *settings = staging.settings;
    staging_unlock();
}

int cudriver_staging_get_threads(void)
{
    struct staging_settings settings;

    staging_settings_get(&settings);
    return settings.threads;
}

void cudriver_staging_set_coherent(bool coherent)
{
    staging_lock();
    staging.settings.coherent = coherent;
    staging_unlock();
}

bool staging_coherent_crawls(bool up, size_t bytes, unsigned long long nanoseconds)
{
    bool crawls;

    staging_lock();
    if (!staging.settings.timed[up]) {
        staging.settings.timed[up] = true;
        staging.settings.crawls[up] = bytes < TUNING_CRAWL * nanoseconds;
    }
    crawls = staging.settings.crawls[up];
    staging_unlock();
    return crawls;
}

void cudriver_staging_set_threads(int threads)
{
    struct staging_settings usual;

    settings_default(&usual);
    threads = threads <= 0 ? usual.threads : threads;
    staging_lock();
    settings_threads(&staging.settings, threads < CUDRIVER_STAGING_THREADS_MOST
                                            ? threads
                                            : CUDRIVER_STAGING_THREADS_MOST);
    staging_unlock();
}

/* ---- waits ---- */

CUresult cudriver_staging_poll(CUresult (*query)(void *handle), void *handle,
                               bool (*interrupted)(void *data), void *data)
{
    unsigned long long begin = platform_nanoseconds(), asked = begin;
    CUresult result;

    while ((result = query(handle)) == CUDA_ERROR_NOT_READY) {
        unsigned long long now = platform_nanoseconds();
        if (interrupted != NULL && now - asked > STAGING_POLL_NS) {
            if (interrupted(data)) {
                return CUDRIVER_STAGING_INTERRUPTED;
            }
            asked = platform_nanoseconds();
        } else if (now - begin > TUNING_WAIT_SPIN_NS) {
            long nap = (long)((now - begin) / TUNING_WAIT_NAPS);
            platform_nap(nap < TUNING_WAIT_NAP_NS ? nap : TUNING_WAIT_NAP_NS);
        }
    }
    return result;
}

static CUresult event_query(void *event)
{
    return cuda.cuEventQuery((CUevent)event);
}

/* An event behind all work that is queued by now. Work that other threads add later does not delay
 * it. */
static CUresult stream_mark(CUstream stream, CUevent *event)
{
    CUresult result = cuda.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);

    if (result == CUDA_SUCCESS) {
        result = cuda.cuEventRecord(*event, stream);
        if (result != CUDA_SUCCESS) {
            cuda.cuEventDestroy_v2(*event);
        }
    }
    return result;
}

CUresult cudriver_staging_stream_ask(CUstream stream, bool wait, bool (*interrupted)(void *),
                                     void *data)
{
    unsigned int flags = 0;
    /* cuStreamQuery sees the stream's own work alone; an operation of a default or blocking stream
     * waits for other streams' work, too. */
    bool apart = !cudriver_stream_is_default(stream) &&
                 cuda.cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS &&
                 (flags & CU_STREAM_NON_BLOCKING) != 0;
    CUresult result = apart ? cuda.cuStreamQuery(stream) : CUDA_ERROR_NOT_READY;
    CUevent event;

    if (result != CUDA_ERROR_NOT_READY || (apart && !wait)) {
        return result;
    }
    result = stream_mark(stream, &event);
    if (result == CUDA_SUCCESS) {
        result = wait ? cudriver_staging_poll(event_query, event, interrupted, data)
                      : cuda.cuEventQuery(event);
        cuda.cuEventDestroy_v2(event);
    }
    return result;
}

CUresult cudriver_staging_stream_settle(CUstream stream, bool (*interrupted)(void *), void *data)
{
    return stream == NULL && cuda.cuStreamQuery(stream) == CUDA_SUCCESS
               ? CUDA_SUCCESS
               : cudriver_staging_stream_ask(stream, true, interrupted, data);
}

CUresult cudriver_staging_follow(CUcontext first_context, CUstream first, CUcontext second_context,
                                 CUstream second)
{
    CUevent event;
    CUresult result =
        first_context != NULL ? cuda.cuCtxPushCurrent_v2(first_context) : CUDA_SUCCESS;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = stream_mark(first, &event);
    if (result == CUDA_SUCCESS) {
        if (second_context != NULL) { /* a default stream is this one's */
            result = cuda.cuCtxPushCurrent_v2(second_context);
        }
        if (result == CUDA_SUCCESS) {
            result = cuda.cuStreamWaitEvent(second, event, 0);
            if (second_context != NULL) {
                cudriver_driver_pop();
            }
        }
        cuda.cuEventDestroy_v2(event); /* the driver keeps it until the wait is over */
    }
    if (first_context != NULL) {
        cudriver_driver_pop();
    }
    return result;
}

bool staging_must_do_without(CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_NOT_SUPPORTED ||
           result == CUDA_ERROR_OPERATING_SYSTEM /* the system refused the driver something */;
}

/* ---- page-locked memory for blocks: of the pool, and of a transfer's own ---- */

CUresult staging_slot_get(size_t bytes, void **slot)
{
    bool zeroed;
    CUresult result = cudriver_hostmem_alloc(bytes, SIZE_MAX, CUDRIVER_NODE_POLICY, slot, &zeroed);

    /* Of memory that we map ourselves, the driver refuses the length. */
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

CUresult staging_blocks_hold(struct cudriver_staging_transfer *transfer)
{
    size_t of = TUNING_HELD_PIECE / transfer->parts.largest, piece, bytes;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    void *memory = NULL;

    of = of < transfer->blocks ? of : transfer->blocks;
    of = transfer->in_piece = of > 0 ? of : 1;
    piece = of * transfer->parts.largest;
    bytes = (transfer->blocks + of - 1) / of * piece;
    staging_lock();
    if (staging.held + bytes <= staging.settings.held) {
        staging.held += transfer->held = bytes;
        result = CUDA_SUCCESS;
    }
    staging_unlock();
    for (size_t i = 0; i < transfer->blocks && result == CUDA_SUCCESS; i++) {
        if (i % of == 0) {
            result = staging_slot_get(piece, &memory);
        }
        transfer->block[i].memory =
            memory != NULL ? (char *)memory + i % of * transfer->parts.largest : NULL;
    }
    return result;
}

void staging_blocks_drop(struct cudriver_staging_transfer *transfer, bool lost)
{
    for (size_t i = 0; i < transfer->blocks && transfer->held > 0 && !lost;
         i += transfer->in_piece) {
        if (transfer->block[i].memory != NULL) {
            cudriver_hostmem_free(transfer->block[i].memory);
        }
    }
    staging.held -= transfer->held;
    transfer->held = 0;
}

/* Mappings: reserve, place, huge pages, first touch by threads, register. See private.h. Linux. */
#define _GNU_SOURCE
#include "private.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "driver/driver.h"
#include "driver/platform.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22 /* both since Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

#define MOST_THREADS 16
#define TOUCH_UNIT ((size_t)8 << 20) /* bytes that one thread touches at a time */
#define JUDGED ((size_t)64 << 20)    /* bytes to touch before their rate is judged */
#define LEAD 2                       /* registration begins after 1/LEAD of the block */
#define PAUSE_NS 150000              /* ns between two pieces */

static atomic_int huge_page_advice; /* 0: the system's default */

void cudriver_hostmem_set_huge(int advice)
{
    atomic_store(&huge_page_advice, advice);
}

char *hostmem_map(size_t bytes, int node)
{
    const size_t whole = hostmem_round(bytes + HOSTMEM_GUARD), slack = HOSTMEM_ALIGNMENT;
    char *raw =
        mmap(NULL, whole + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (raw == MAP_FAILED) {
        return NULL;
    }
    size_t skip = (HOSTMEM_ALIGNMENT - (uintptr_t)raw % HOSTMEM_ALIGNMENT) % HOSTMEM_ALIGNMENT;
    if (skip > 0) {
        munmap(raw, skip);
    }
    if (slack > skip) {
        munmap(raw + skip + whole, slack - skip);
    }
    (void)platform_place(raw + skip, bytes, node); /* if refused, it lies elsewhere */
    return raw + skip;
}

void hostmem_unmap(char *base, size_t bytes)
{
    munmap(base, hostmem_round(bytes + HOSTMEM_GUARD));
}

struct touch {
    char *base;
    size_t bytes;
    pthread_mutex_t gate; /* held until all threads have started */
    size_t threads;       /* beside this one */
    int node;             /* on whose processors the threads run */
    atomic_size_t next;   /* the next unit to take */
    size_t alone;         /* bytes to take before the registration begins */
    atomic_bool failed;
    atomic_bool over; /* the registration: the rest need not be touched */
    atomic_bool huge; /* in huge pages, as far as the system has them */
    atomic_size_t touched;
    atomic_ullong spent; /* ns that the threads took for these, together */
};

/* Touches every page. False: out of memory. `beside`: the driver is taking pages of the block; then
 * madvise() would wait for it, stores do not. The block's user may be writing there already. */
static bool touch_range(char *base, size_t bytes, bool beside)
{
    size_t page = (size_t)getpagesize();
    int failed;

    do {
        failed = beside ? 0 : madvise(base, bytes, MADV_POPULATE_WRITE);
    } while (failed != 0 && (errno == EINTR || errno == EAGAIN));
    if (failed == 0 && !beside) {
        return true;
    }
    if (failed != 0 && errno != EINVAL && errno != ENOSYS && errno != EPERM) {
        return false;
    }
    for (size_t i = 0; i < bytes; i += page) { /* also on an older kernel */
        atomic_fetch_or_explicit((volatile atomic_char *)(base + i), 0, memory_order_relaxed);
    }
    return true;
}

/* Gives huge pages up for the rest where all threads together touch less than 1 GB/s, a byte a ns:
 * the system then compacts memory for each, and was reported to take 60 times as long. */
static void touch_judge(struct touch *touch, size_t bytes, unsigned long long nanoseconds)
{
    size_t touched = atomic_fetch_add(&touch->touched, bytes) + bytes;
    unsigned long long spent = atomic_fetch_add(&touch->spent, nanoseconds) + nanoseconds;

    if (touched < JUDGED || touched * (1 + touch->threads) >= spent ||
        !atomic_exchange(&touch->huge, false)) {
        return;
    }
    size_t begin = atomic_load(&touch->next) * TOUCH_UNIT;
    if (begin < touch->bytes &&
        madvise(touch->base + begin, touch->bytes - begin, MADV_NOHUGEPAGE) == 0) {
        pthread_mutex_lock(&hostmem_lock);
        hostmem_pool.stats.huge_given_up += touch->bytes - begin;
        pthread_mutex_unlock(&hostmem_lock);
    }
}

/* Touches units until all below `limit` are taken. */
static void touch_until(struct touch *touch, size_t limit)
{
    while (atomic_load(&touch->next) * TOUCH_UNIT < limit && !atomic_load(&touch->over)) {
        size_t begin = atomic_fetch_add(&touch->next, 1) * TOUCH_UNIT;

        if (begin >= touch->bytes) {
            break;
        }
        size_t left = touch->bytes - begin, bytes = left < TOUCH_UNIT ? left : TOUCH_UNIT;
        unsigned long long began = platform_nanoseconds();
        if (!touch_range(touch->base + begin, bytes, begin >= touch->alone)) {
            atomic_store(&touch->failed, true);
            break;
        }
        touch_judge(touch, bytes, platform_nanoseconds() - began);
    }
}

static void *touch_work(void *argument)
{
    struct touch *touch = argument;

    if (touch->node != CUDRIVER_NODE_ANY) {
        cudriver_hostmem_go(touch->node);
    }
    pthread_mutex_lock(&touch->gate);
    pthread_mutex_unlock(&touch->gate);
    touch_until(touch, touch->bytes);
    return NULL;
}

/* Bytes to take before the piece at `done` is registered. Where copies need not get in between,
 * half of all: the other threads are as fast as the driver, which takes the pages in the same order
 * and may follow them. */
static size_t touch_ahead(const struct touch *touch, const struct hostmem_range *range, size_t done,
                          size_t piece)
{
    if (touch->threads > 0 && range->step >= HOSTMEM_PIECE) {
        return range->bytes / LEAD;
    }
    return done + piece + touch->threads * TOUCH_UNIT;
}

/* Between two driver calls on small pieces. The driver's lock is not fair: without a pause the next
 * call takes it before a copy that waits for it has woken (seen on an H200). */
static void pieces_pause(const struct hostmem_range *range, size_t done)
{
    const struct timespec pause = {0, PAUSE_NS};

    if (done > 0 && range->step < HOSTMEM_PIECE) {
        nanosleep(&pause, NULL);
    }
}

/* Registers the piece at `done`. `touch`: NULL, or threads that touch the memory. */
static CUresult piece_register(struct hostmem_range *range, size_t done, size_t piece,
                               unsigned flags, const atomic_bool *stop, struct touch *touch)
{
    char *base = range->base + done;
    char *first = base - (uintptr_t)base % (uintptr_t)getpagesize();

    pieces_pause(range, done);
    if (touch != NULL) {
        touch_until(touch, touch_ahead(touch, range, done, piece));
        if (atomic_load(&touch->failed)) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    } else if (stop != NULL) {
        /* Brings pages of others' memory in, so that the driver's call does not wait for them. If
         * that fails, the call will tell. */
        madvise(first, (size_t)(base + piece - first),
                flags & CU_MEMHOSTREGISTER_READ_ONLY ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
    }
    return stop != NULL && atomic_load(stop) ? CUDRIVER_PIN_STOPPED
                                             : cuda.cuMemHostRegister_v2(base, piece, flags);
}

static CUresult range_register(struct hostmem_range *range, unsigned flags, const atomic_bool *stop,
                               struct touch *touch)
{
    CUresult result = CUDA_SUCCESS;
    size_t done = 0;

    cudriver_driver_relax();
    while (done < range->bytes && result == CUDA_SUCCESS) {
        size_t left = range->bytes - done, piece = left < range->step ? left : range->step;
        result = piece_register(range, done, piece, flags, stop, touch);
        done += result == CUDA_SUCCESS ? piece : 0;
        atomic_store(&range->locked, done);
    }
    cudriver_driver_restore();
    if (result != CUDA_SUCCESS && done > 0) {
        (void)hostmem_unregister(range);
    }
    return result;
}

/* Registers new memory, which threads touch meanwhile. */
static CUresult fresh_register(struct hostmem_range *range, unsigned flags, const atomic_bool *stop)
{
    const size_t bytes = range->bytes;
    struct touch touch = {.base = range->base,
                          .bytes = bytes,
                          .alone = bytes,
                          .node = range->node,
                          .gate = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[MOST_THREADS];
    size_t count = 1;
    CUresult result;

    int advice = bytes >= HOSTMEM_ALIGNMENT ? atomic_load(&huge_page_advice) : 0;
    if (advice != 0) {
        (void)madvise(range->base, bytes, advice);
    }
    atomic_store(&touch.huge, advice == MADV_HUGEPAGE);
    if (bytes >= 2 * TOUCH_UNIT) {
        count = (size_t)platform_processor_count();
        count -= count > 4 ? 2 : 0; /* two CPUs free: one delayed thread delays the whole touch */
        count = count < MOST_THREADS ? count : MOST_THREADS;
        count = count < bytes / TOUCH_UNIT ? count : bytes / TOUCH_UNIT;
    }
    if (count > 1) {
        /* Nobody begins before all threads have started: a new thread's stack changes the address
         * space, and the system would make it wait for the touches in progress. */
        pthread_mutex_lock(&touch.gate);
        while (touch.threads < count - 1 &&
               platform_thread_start(touch_work, &touch, &threads[touch.threads])) {
            touch.threads++;
        }
        if (touch.threads > 0) {
            touch.alone = touch_ahead(&touch, range, 0, bytes < range->step ? bytes : range->step);
        }
        pthread_mutex_unlock(&touch.gate);
    }
    result = range_register(range, flags, stop, &touch); /* this thread touches too */
    atomic_store(&touch.over, true);
    for (size_t i = 0; i < touch.threads; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_mutex_destroy(&touch.gate);
    return result;
}

CUresult hostmem_register(struct hostmem_range *range, unsigned flags, const atomic_bool *stop,
                          bool fresh)
{
    return fresh ? fresh_register(range, flags, stop) : range_register(range, flags, stop, NULL);
}

CUresult hostmem_unregister(struct hostmem_range *range)
{
    const size_t locked = atomic_exchange(&range->locked, 0);
    CUresult first = CUDA_SUCCESS;

    if (cudriver_driver_is_forked()) {
        return CUDA_SUCCESS;
    }
    cudriver_driver_relax();
    for (size_t done = 0; done < locked; done += range->step) {
        pieces_pause(range, done);
        CUresult result = cuda.cuMemHostUnregister(range->base + done);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED &&
            result != CUDA_ERROR_DEINITIALIZED && first == CUDA_SUCCESS) {
            first = result;
        }
    }
    cudriver_driver_restore();
    return first;
}

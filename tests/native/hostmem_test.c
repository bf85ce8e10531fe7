/*
 * Tests of hostmem, without Python: `hostmem_test SCENARIO [SEED]`, exit status 0 when all holds.
 * The scenarios are listed at the end. Run by test_native_hostmem.py on the simulated driver or a
 * real one, also under sanitizers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver_under_test.h"
#include "hostmem/hostmem.h"
#include "hostmem/private.h"

#define POPULATE 23 /* MADV_POPULATE_WRITE */
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static const struct cudriver_pin_way AT_ONCE = {.step = 0}, READ_ONLY = {.read_only = true};

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                        \
        }                                                                   \
    } while (0)

/* --- the system's calls that hostmem makes, counted and made to fail (the linker's --wrap) --- */

static atomic_size_t mapped_bytes;
static atomic_int system_fail_at;
static atomic_bool system_has_failed;

/* A thread that gets no memory from the system posts this each time. */
static _Thread_local sem_t *starves;

static bool system_fails(void)
{
    if (atomic_load(&system_fail_at) > 0 && atomic_fetch_sub(&system_fail_at, 1) == 1) {
        atomic_store(&system_has_failed, true);
        errno = ENOMEM;
        return true;
    }
    return false;
}

void *__real_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
int __real_munmap(void *address, size_t bytes);
int __real_madvise(void *address, size_t bytes, int advice);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    void *made = MAP_FAILED;
    if (starves != NULL) {
        sem_post(starves);
        errno = ENOMEM;
    } else if (!system_fails()) {
        made = __real_mmap(address, bytes, protection, flags, file, offset);
    }
    if (made != MAP_FAILED) {
        atomic_fetch_add(&mapped_bytes, bytes);
    }
    return made;
}

int __wrap_munmap(void *address, size_t bytes)
{
    atomic_fetch_sub(&mapped_bytes, bytes);
    return __real_munmap(address, bytes);
}

static atomic_bool populate_unknown; /* as for kernels before 5.14 */

/* While memory is touched in huge pages, 8 MiB take so long that no number of threads makes up for
 * it. */
static atomic_bool huge_slow;

int __wrap_madvise(void *address, size_t bytes, int advice)
{
    if (advice == MADV_NOHUGEPAGE) {
        atomic_store(&huge_slow, false);
    } else if (advice == POPULATE && atomic_load(&huge_slow)) {
        usleep(200000);
    }
    if (advice == POPULATE && atomic_load(&populate_unknown)) {
        errno = EINVAL;
        return -1;
    }
    return system_fails() ? -1 : __real_madvise(address, bytes, advice);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return system_fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return system_fails() ? NULL : __real_realloc(old, size);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument)
{
    return system_fails() ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}

/* --- small helpers --- */

static CUcontext context;

static uint64_t random_state = 1;

static uint64_t random_below_of(uint64_t *state, uint64_t bound)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % bound;
}

static uint64_t random_below(uint64_t bound)
{
    return random_below_of(&random_state, bound);
}

static CUcontext new_context(void)
{
    CUcontext made = NULL;

    CHECK(cuda.cuCtxCreate_v2(&made, 0, 0) == CUDA_SUCCESS);
    CHECK(cuda.cuCtxSetCurrent(made) == CUDA_SUCCESS);
    return made;
}

static struct cudriver_hostmem_stats stats_now(void)
{
    struct cudriver_hostmem_stats stats;

    cudriver_hostmem_get_stats(&stats);
    return stats;
}

/* How much of the range that begins there is registered so far. */
static size_t locked(const void *address)
{
    uint64_t list[64];
    size_t count = cudriver_hostmem_list(list, 32), at = 0;

    while (at < count && list[2 * at] != (uintptr_t)address) {
        at++;
    }
    return at < count ? list[2 * at + 1] : 0;
}

static bool is_registered(const void *address, size_t bytes)
{
    return cudriver_hostmem_registered(address, bytes) == bytes;
}

static bool is_zero(const char *bytes, size_t count)
{
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

static CUresult try_make(size_t bytes, char **block)
{
    bool zeroed;
    void *address;
    CUresult result =
        cudriver_hostmem_alloc(bytes, SIZE_MAX, CUDRIVER_NODE_POLICY, &address, &zeroed);

    CHECK((address != NULL) == (result == CUDA_SUCCESS));
    if (address != NULL) {
        size_t size;
        CHECK(cudriver_hostmem_owns(address, &size) && size == (bytes > 0 ? bytes : 1));
        size_t aligned = bytes >= 64 && (bytes & (bytes - 1)) == 0 ? bytes : 64;
        CHECK((uintptr_t)address % (bytes >= MIB || aligned > 4096 ? 4096 : aligned) == 0);
        CHECK(!zeroed || is_zero(address, bytes));
        CHECK(driver_is_registered(address, bytes));
    }
    *block = address;
    return result;
}

static char *make(size_t bytes)
{
    char *block;

    CHECK(try_make(bytes, &block) == CUDA_SUCCESS);
    return block;
}

static size_t trim_all(void)
{
    size_t released;

    CHECK(cudriver_hostmem_trim(0, &released) == CUDA_SUCCESS);
    return released;
}

/* Nothing handed out: everything can go, and all counts say so. */
static void check_clean(void)
{
    struct cudriver_hostmem_stats stats = stats_now();

    CHECK(stats.used_bytes == 0 && stats.used_blocks == 0 && stats.pins == 0);
    CHECK(stats.pinned_bytes == 0 && stats.pooled_bytes == stats.registered_bytes);
    size_t before = stats.pooled_bytes;
    CHECK(trim_all() >= before);
    stats = stats_now();
    CHECK(stats.registered_bytes == 0 && stats.pooled_bytes == 0);
    CHECK(driver_live("primary_retains") == 0 && driver_live("registrations") == 0);
    CHECK(atomic_load(&mapped_bytes) == 0);
}

static CUresult try_pin(char *address, size_t bytes, struct cudriver_pin **pin)
{
    struct cudriver_pin_range other;
    CUresult result = cudriver_pin_create(address, bytes, &AT_ONCE, pin, &other);

    CHECK((*pin != NULL) == (result == CUDA_SUCCESS));
    CHECK(other.bytes == 0 || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CHECK(result != CUDA_SUCCESS || driver_is_registered(address, bytes));
    return result;
}

static struct cudriver_pin *pin_on(char *address, size_t bytes)
{
    struct cudriver_pin *pin;

    CHECK(try_pin(address, bytes, &pin) == CUDA_SUCCESS);
    return pin;
}

static void unpin(struct cudriver_pin *pin)
{
    CHECK(cudriver_pin_destroy(pin) == CUDA_SUCCESS);
}

/* --- the pool --- */

static void fill(char *block, size_t bytes, uint64_t key)
{
    memset(block, (int)(key % 251), bytes);
}

static bool is_filled(const char *block, size_t bytes, uint64_t key)
{
    return block[0] == (char)(key % 251) && memcmp(block, block + 1, bytes - 1) == 0;
}

/* Every size up to a page and around each boundary: aligned, apart, counted, all bytes usable. */
static void test_sizes(void)
{
    static char *blocks[6000];
    static size_t sizes[6000];
    size_t count = 0, total = 0;

    for (size_t bytes = 0; bytes < 4200; bytes++) {
        sizes[count++] = bytes;
    }
    for (size_t power = 13; power < 25; power++) {
        for (size_t i = 0; i < 5; i++) {
            sizes[count++] = ((size_t)1 << power) - 2 + i;
        }
    }
    for (size_t i = 0; i < count; i++) {
        blocks[i] = make(sizes[i]);
        sizes[i] = sizes[i] > 0 ? sizes[i] : 1;
        total += sizes[i];
        fill(blocks[i], sizes[i], i);
        struct cudriver_hostmem_stats stats = stats_now();
        CHECK(stats.used_bytes == total && stats.used_blocks == i + 1);
    }
    for (size_t i = 0; i < count; i++) {
        CHECK(is_filled(blocks[i], sizes[i], i));
        cudriver_hostmem_free(blocks[i]);
        size_t bytes;
        CHECK(!cudriver_hostmem_owns(blocks[i], &bytes));
    }
    check_clean();
}

/* What is not the start of a live block is not ours: inside, stale, foreign, absurd addresses. */
static void test_owns(void)
{
    size_t bytes, sizes[] = {1, 64, 100, 3000, 4096, 65536, 5 * MIB, 20 * MIB + 5};
    int local;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *block = make(sizes[i]);
        for (size_t inner = 1; inner < sizes[i]; inner += 1 + inner / 3) {
            CHECK(!cudriver_hostmem_owns(block + inner, &bytes));
        }
        CHECK(!cudriver_hostmem_owns(block - 1, &bytes));
        CHECK(!cudriver_hostmem_owns(block + (sizes[i] + 4095) / 4096 * 4096 + (4 * MIB), &bytes));
        cudriver_hostmem_free(block);
        CHECK(!cudriver_hostmem_owns(block, &bytes));
    }
    void *foreign = malloc(100);
    CHECK(!cudriver_hostmem_owns(foreign, &bytes) && !cudriver_hostmem_owns(&local, &bytes));
    CHECK(!cudriver_hostmem_owns(NULL, &bytes) && !cudriver_hostmem_owns((void *)-1, &bytes));
    CHECK(!cudriver_hostmem_owns((void *)((uintptr_t)1 << 56), &bytes));
    CHECK(!cudriver_hostmem_free_if_owned(foreign) && !cudriver_hostmem_free_if_owned(NULL));
    char *mine = make(100), *beside = make(100);
    CHECK(!cudriver_hostmem_free_if_owned(mine + 1));
    CHECK(cudriver_hostmem_free_if_owned(mine) && !cudriver_hostmem_free_if_owned(mine));
    CHECK(cudriver_hostmem_free_if_owned(beside) && stats_now().used_blocks == 0);
    free(foreign);
    check_clean();
}

/* A large block takes its bytes and no more than a page; a small one at most an eighth. */
static void test_exact(void)
{
    const size_t large = 17 * MIB + 12345;
    size_t before = stats_now().registered_bytes;
    char *block = make(large);
    CHECK(stats_now().registered_bytes - before == hostmem_round(large));
    CHECK(stats_now().pooled_bytes == 0);
    cudriver_hostmem_free(block);
    CHECK(stats_now().pooled_bytes == hostmem_round(large));
    check_clean();

    for (size_t bytes = 513; bytes < MIB; bytes += bytes / 100 + 13) {
        block = make(bytes);
        struct cudriver_hostmem_stats stats = stats_now();
        size_t taken = stats.registered_bytes - stats.pooled_bytes;
        CHECK(taken >= bytes && (taken - bytes) * 8 <= taken);
        cudriver_hostmem_free(block);
    }
    check_clean();
}

/* Each byte right behind a block is looked at, whether or not its size is a class itself, and
 * whatever lies there; none in it is. */
static void test_guards(void)
{
    const size_t sizes[] = {1, 64, 100, 512, 4096, 30000, 61440, MIB - 1, MIB, MIB + 1, 6 * MIB};
    const size_t behind[] = {0, 1, 17, 63};
    size_t bytes;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *block = make(sizes[i]), *beside = make(sizes[i]);
        memset(block, 1, sizes[i]);
        memset(beside, 2, sizes[i]);
        CHECK(cudriver_hostmem_damaged(&bytes) == NULL);
        for (size_t j = 0; j < sizeof behind / sizeof behind[0]; j++) {
            block[sizes[i] + behind[j]] ^= 1;
            CHECK(cudriver_hostmem_damaged(&bytes) == block && bytes == sizes[i]);
            CHECK(cudriver_hostmem_damaged(&bytes) == NULL);
        }
        CHECK(is_filled(block, sizes[i], 1) && is_filled(beside, sizes[i], 2));
        cudriver_hostmem_free(block);
        cudriver_hostmem_free(beside);
    }
    check_clean();
}

/* A chunk whose last slot ends where the chunk does: the guard is looked at, no slot behind it. */
static void test_guard_behind_a_chunk(void)
{
    enum { LEAST = 64, MOST = 1 << 15 };
    static char *blocks[MOST];
    size_t count = 0, bytes;

    blocks[count++] = make(LEAST);
    blocks[count++] = make(2 * LEAST);
    while (stats_now().registered_bytes == HOSTMEM_CHUNK && count < MOST) {
        blocks[count++] = make(LEAST);
    }
    CHECK(blocks[count - 2] == blocks[0] + HOSTMEM_CHUNK - LEAST);
    CHECK(cudriver_hostmem_damaged(&bytes) == NULL);
    blocks[count - 2][LEAST] ^= 1;
    CHECK(cudriver_hostmem_damaged(&bytes) == blocks[count - 2] && bytes == LEAST);
    while (count > 0) {
        cudriver_hostmem_free(blocks[--count]);
    }
    check_clean();
}

/* A block with a byte behind it that is not as it was cannot be given back. */
static void test_guards_at_the_end(void)
{
    char *block = make(4096);
    pid_t child = fork();
    int status;

    if (child == 0) {
        block[4096] ^= 1;
        cudriver_hostmem_free(block);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGABRT);
    cudriver_hostmem_free(block);
    check_clean();
}

/* A large block serves what leaves at most an eighth of it unused; a slot serves its class; a chunk
 * without live slots serves every size again. All of it without asking the driver. */
static void test_reuse(void)
{
    char *first = make(32 * MIB), *second, *third;
    unsigned calls = driver_calls();

    for (size_t bytes = 32 * MIB; bytes >= 28 * MIB; bytes -= 4093) {
        cudriver_hostmem_free(first);
        CHECK(make(bytes) == first);
        CHECK(stats_now().registered_bytes == 32 * MIB && stats_now().pooled_bytes == 0);
    }
    cudriver_hostmem_free(first);
    CHECK(make(28 * MIB) == first); /* an eighth is lost */
    CHECK(driver_calls() == calls);
    cudriver_hostmem_free(first);
    second = make(28 * MIB - 4096);
    third = make(33 * MIB);
    CHECK(second != first && third != first);
    cudriver_hostmem_free(second);
    cudriver_hostmem_free(third);
    trim_all();

    /* Two size classes above. */
    first = make(20 * MIB + MIB / 2);
    cudriver_hostmem_free(first);
    CHECK(make(18 * MIB) == first);
    cudriver_hostmem_free(first);
    trim_all();

    /* Of several free blocks one that fits. */
    first = make(20 * MIB), second = make(21 * MIB), third = make(24 * MIB);
    cudriver_hostmem_free(first);
    cudriver_hostmem_free(second);
    cudriver_hostmem_free(third);
    calls = driver_calls();
    CHECK(make(21 * MIB - 4096) == second && make(22 * MIB) == third && make(20 * MIB) == first);
    CHECK(driver_calls() == calls);
    cudriver_hostmem_free(first);
    cudriver_hostmem_free(second);
    cudriver_hostmem_free(third);
    trim_all();

    char *slots[64];
    for (int i = 0; i < 64; i++) {
        slots[i] = make(30000);
    }
    CHECK(stats_now().misses > 0 && stats_now().registered_bytes == 2 * MIB);
    calls = driver_calls();
    cudriver_hostmem_free(slots[7]);
    CHECK(make(29000) == slots[7]); /* one class */
    for (int i = 0; i < 64; i++) {
        cudriver_hostmem_free(slots[i]);
    }
    for (int round = 0; round < 2; round++) {
        CHECK((first = make(900 * KIB)) != NULL && (second = make(900 * KIB)) != NULL);
        cudriver_hostmem_free(first);
        cudriver_hostmem_free(second);
        for (int i = 0; i < 64; i++) {
            slots[i] = make(20000 + 100 * (size_t)i);
        }
        for (int i = 0; i < 64; i++) {
            cudriver_hostmem_free(slots[i]);
        }
    }
    CHECK(driver_calls() == calls && stats_now().registered_bytes == 2 * MIB);
    check_clean();
}

static void test_try_alloc(void)
{
    unsigned calls = driver_calls();

    CHECK(cudriver_hostmem_try_alloc(100, CUDRIVER_NODE_POLICY) == NULL);
    CHECK(cudriver_hostmem_try_alloc(100 * MIB, CUDRIVER_NODE_POLICY) == NULL);
    CHECK(driver_calls() == calls);
    cudriver_hostmem_free(make(100));
    calls = driver_calls();
    unsigned long long hits = stats_now().hits;
    char *block = cudriver_hostmem_try_alloc(100, CUDRIVER_NODE_POLICY);
    CHECK(block != NULL && driver_calls() == calls && stats_now().hits == hits + 1);
    CHECK(cudriver_hostmem_try_alloc(SIZE_MAX, CUDRIVER_NODE_POLICY) == NULL);
    cudriver_hostmem_free(block);
    check_clean();
}

static void test_too_large(void)
{
    char *block;

    CHECK(try_make(SIZE_MAX, &block) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(try_make(SIZE_MAX / 2, &block) == CUDA_ERROR_OUT_OF_MEMORY);
    /* No process has so many addresses. (The system may grant less, however little memory it has:
     * then touching would take all of the machine's.) */
    CHECK(try_make((size_t)1 << 48, &block) == CUDA_ERROR_OUT_OF_MEMORY);
    check_clean();
}

static void test_limit(void)
{
    char *first, *second, *small;

    cudriver_hostmem_set_limit(20 * MIB);
    CHECK(stats_now().limit_bytes == 20 * MIB);
    first = make(12 * MIB);
    CHECK(try_make(9 * MIB, &second) == CUDA_ERROR_OUT_OF_MEMORY);
    second = make(8 * MIB);
    CHECK(stats_now().registered_bytes == 20 * MIB);
    CHECK(try_make(1, &small) == CUDA_ERROR_OUT_OF_MEMORY);
    cudriver_hostmem_free(first);
    small = make(1); /* at the limit a small block comes from wherever there is room */
    CHECK(stats_now().registered_bytes <= 20 * MIB);
    cudriver_hostmem_free(small);
    first = make(10 * MIB);
    cudriver_hostmem_free(second);
    cudriver_hostmem_free(first);
    first = make(20 * MIB); /* what is free makes room */
    CHECK(stats_now().registered_bytes == 20 * MIB);
    cudriver_hostmem_free(first);

    first = make(12 * MIB);
    cudriver_hostmem_set_limit(4 * MIB); /* less than there is */
    CHECK(try_make(2 * MIB, &second) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(try_make(1, &small) == CUDA_ERROR_OUT_OF_MEMORY);
    cudriver_hostmem_free(first);
    second = make(2 * MIB);
    CHECK(stats_now().registered_bytes == 2 * MIB);
    cudriver_hostmem_free(second);

    trim_all();
    cudriver_hostmem_set_limit(100 * KIB);
    small = make(10);
    CHECK(stats_now().registered_bytes <= 100 * KIB);
    cudriver_hostmem_free(small);
    cudriver_hostmem_set_limit(0);
    trim_all();
    CHECK(try_make(1, &small) == CUDA_ERROR_OUT_OF_MEMORY);
    cudriver_hostmem_set_limit(SIZE_MAX);
    cudriver_hostmem_free(make(1));
    check_clean();
}

/* New memory beyond the room that there is; free memory makes room, and what is free needs none. */
static void test_room(void)
{
    void *block, *small;
    bool zeroed;

    CHECK(cudriver_hostmem_alloc(6 * MIB, 6 * MIB - 1, CUDRIVER_NODE_POLICY, &block, &zeroed) ==
          CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cudriver_hostmem_alloc(6 * MIB, 6 * MIB, CUDRIVER_NODE_POLICY, &block, &zeroed) ==
          CUDA_SUCCESS);
    cudriver_hostmem_free(block);
    CHECK(cudriver_hostmem_alloc(6 * MIB, 0, CUDRIVER_NODE_POLICY, &block, &zeroed) ==
          CUDA_SUCCESS);
    cudriver_hostmem_free(block);
    CHECK(cudriver_hostmem_alloc(10 * MIB, 4 * MIB - 1, CUDRIVER_NODE_POLICY, &block, &zeroed) ==
          CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(stats_now().registered_bytes == 0);
    cudriver_hostmem_free(make(6 * MIB));
    CHECK(cudriver_hostmem_alloc(10 * MIB, 4 * MIB, CUDRIVER_NODE_POLICY, &block, &zeroed) ==
          CUDA_SUCCESS);
    cudriver_hostmem_free(block);
    CHECK(cudriver_hostmem_alloc(100, 1 * MIB, CUDRIVER_NODE_POLICY, &small, &zeroed) ==
          CUDA_SUCCESS);
    CHECK(stats_now().registered_bytes >= 10 * MIB); /* nothing had to go for it */
    CHECK(stats_now().registered_bytes < 11 * MIB);
    cudriver_hostmem_free(small);
    check_clean();
}

static void test_trim(void)
{
    char *blocks[4];
    const size_t sizes[4] = {8 * MIB, 16 * MIB, 24 * MIB, 5 * MIB};
    size_t released;

    for (int i = 0; i < 4; i++) {
        blocks[i] = make(sizes[i]);
    }
    CHECK(trim_all() == 0);
    for (int i = 0; i < 3; i++) {
        cudriver_hostmem_free(blocks[i]);
    }
    CHECK(stats_now().pooled_bytes == 48 * MIB);
    CHECK(cudriver_hostmem_trim(48 * MIB, &released) == CUDA_SUCCESS && released == 0);
    /* The smallest that does. */
    CHECK(cudriver_hostmem_trim(40 * MIB, &released) == CUDA_SUCCESS);
    CHECK(released == 8 * MIB && stats_now().pooled_bytes == 40 * MIB);
    CHECK(cudriver_hostmem_trim(30 * MIB, &released) == CUDA_SUCCESS);
    CHECK(released == 16 * MIB && stats_now().pooled_bytes == 24 * MIB);
    CHECK(trim_all() == 24 * MIB && stats_now().registered_bytes == 5 * MIB);
    CHECK(stats_now().peak_bytes >= 53 * MIB);
    cudriver_hostmem_free(blocks[3]);
    trim_all();
    for (int i = 2; i >= 0; i--) {
        blocks[i] = make(sizes[i]);
    }
    for (int i = 0; i < 3; i++) {
        cudriver_hostmem_free(blocks[i]);
    }
    CHECK(cudriver_hostmem_trim(38 * MIB, &released) == CUDA_SUCCESS);
    CHECK(released == 16 * MIB && stats_now().pooled_bytes == 32 * MIB);
    check_clean();
}

/* Where *zeroed comes back true the bytes are zero (try_make looks); where memory is fresh, it
 * does. */
static void test_zeroed(void)
{
    bool zeroed;
    void *block;

    for (int round = 0; round < 50; round++) {
        size_t bytes = (size_t)1 << (6 + random_below(18));
        char *made = make(bytes + random_below(bytes));
        memset(made, 0xAB, bytes);
        cudriver_hostmem_free(made);
    }
    trim_all();
    CHECK(cudriver_hostmem_alloc(6 * MIB, SIZE_MAX, CUDRIVER_NODE_POLICY, &block, &zeroed) ==
          CUDA_SUCCESS);
    CHECK(zeroed && is_zero(block, 6 * MIB));
    memset(block, 1, 6 * MIB);
    cudriver_hostmem_free(block);
    CHECK(cudriver_hostmem_alloc(6 * MIB, SIZE_MAX, CUDRIVER_NODE_POLICY, &block, &zeroed) ==
          CUDA_SUCCESS);
    CHECK(!zeroed);
    cudriver_hostmem_free(block);
    check_clean();
}

/* Memory that was unmapped while registered spoils its address; the pool takes another. */
static void test_spoilt_address(void)
{
    char *block;

    driver_fail(
        4, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED); /* after the calls for the primary context */
    block = make(5 * MIB);
    CHECK(driver_has_failed());
    cudriver_hostmem_free(block);
    check_clean();
}

/* A region that cannot be unregistered is kept: unmapping it would spoil its address. */
static void test_trim_refused(void)
{
    size_t released;

    cudriver_hostmem_free(make(5 * MIB));
    driver_fail(1, CUDA_ERROR_LAUNCH_FAILED);
    CHECK(cudriver_hostmem_trim(0, &released) == CUDA_ERROR_LAUNCH_FAILED && released == 0);
    CHECK(stats_now().pooled_bytes == 5 * MIB);
    char *block = cudriver_hostmem_try_alloc(5 * MIB, CUDRIVER_NODE_POLICY);
    CHECK(block != NULL);
    cudriver_hostmem_free(block);
    check_clean();
}

/* How far a copy may go. */
static void test_run(void)
{
    char *large = make(20 * MIB), plain[64];

    if (HOSTMEM_PIECE < 20 * MIB) {
        CHECK(cudriver_hostmem_run(large, 20 * MIB) == HOSTMEM_PIECE);
        CHECK(cudriver_hostmem_run(large + HOSTMEM_PIECE, 10) == 10);
        CHECK(cudriver_hostmem_run(large + HOSTMEM_PIECE - 10, 20) == 10);
    } else {
        CHECK(cudriver_hostmem_run(large, 20 * MIB) == 20 * MIB);
    }
    CHECK(cudriver_hostmem_run(large, 100) == 100);
    CHECK(cudriver_hostmem_run(plain, 64) == 64);
    cudriver_hostmem_free(large);

    struct cudriver_pin *pin, *next;
    char *buffer = aligned_alloc(4096, 65536);
    pin = pin_on(buffer + 100, 1000);
    next = pin_on(buffer + 1100, 3900);
    CHECK(cudriver_hostmem_run(buffer + 100, 4900) == 1000);
    CHECK(cudriver_hostmem_run(buffer + 1099, 3901) == 1);
    CHECK(cudriver_hostmem_run(buffer + 1100, 3900) == 3900);
    unpin(pin);
    unpin(next);
    char *huge = malloc(20 * MIB);
    pin = pin_on(huge, 20 * MIB);
    CHECK(cudriver_hostmem_run(huge, 20 * MIB) ==
          (HOSTMEM_PIECE < 20 * MIB ? HOSTMEM_PIECE : 20 * MIB));
    CHECK(cudriver_hostmem_run(huge + 19 * MIB, 20 * MIB) == 1 * MIB);
    unpin(pin);
    free(huge);
    CHECK(cuda.cuMemHostRegister_v2(buffer, 8192, 0) == CUDA_SUCCESS); /* somebody else's */
    CHECK(cudriver_hostmem_run(buffer + 10, 65526) == 8182);
    CHECK(cuda.cuMemHostUnregister(buffer) == CUDA_SUCCESS);
    free(buffer);
    check_clean();
}

/* What is known to be registered without the driver. */
static void test_is_registered(void)
{
    char *block = make(2 * MIB), plain[64];
    size_t piece = HOSTMEM_PIECE < 20 * MIB ? HOSTMEM_PIECE : 20 * MIB;
    struct cudriver_pin *pin;

    CHECK(is_registered(block, 2 * MIB));
    CHECK(is_registered(block + 2 * MIB - 1, 1));
    CHECK(!is_registered(plain, sizeof plain));
    char *large = make(20 * MIB);
    CHECK(is_registered(large, piece));
    CHECK(!is_registered(large, piece + 64 * MIB));
    CHECK(is_registered(large, 20 * MIB) == (piece == 20 * MIB));

    char *buffer = aligned_alloc(4096, 65536);
    pin = pin_on(buffer + 100, 1000);
    CHECK(is_registered(buffer + 100, 1000));
    CHECK(is_registered(buffer + 1099, 1));
    CHECK(!is_registered(buffer + 1099, 2));
    CHECK(!is_registered(buffer + 99, 2));
    unpin(pin);
    CHECK(!is_registered(buffer + 100, 1));
    free(buffer);
    cudriver_hostmem_free(large);
    cudriver_hostmem_free(block);
    check_clean();
}

/* --- the child of a fork --- */

static atomic_bool stop;

static void *churn(void *argument)
{
    (void)argument;
    CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
    while (!atomic_load(&stop)) {
        size_t released;
        char *block = make(5 * MIB), local[256];
        struct cudriver_pin *pin;
        pin = pin_on(local, 256);
        unpin(pin);
        cudriver_hostmem_free(block);
        CHECK(cudriver_hostmem_trim(0, &released) == CUDA_SUCCESS);
    }
    return NULL;
}

static void in_child(char *large, char *small, struct cudriver_pin *pin)
{
    void *block;
    bool zeroed;
    size_t bytes, released;
    struct cudriver_pin *other;
    char local[64];

    CHECK(is_filled(large, 10 * MIB, 5) && is_filled(small, 100, 6));
    CHECK(cudriver_hostmem_alloc(10, SIZE_MAX, CUDRIVER_NODE_POLICY, &block, &zeroed) ==
          CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cudriver_hostmem_try_alloc(10, CUDRIVER_NODE_POLICY) == NULL);
    CHECK(try_pin(local, 64, &other) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cudriver_hostmem_owns(large, &bytes) && bytes == 10 * MIB);
    cudriver_hostmem_free(large);
    cudriver_hostmem_free(small);
    CHECK(cudriver_pin_destroy(pin) == CUDA_SUCCESS);
    CHECK(cudriver_hostmem_trim(0, &released) == CUDA_SUCCESS);
    CHECK(stats_now().used_blocks <= 1);
    _exit(0);
}

static void test_fork(void)
{
    pthread_t threads[3];
    char buffer[1000], *large = make(10 * MIB), *small = make(100);
    struct cudriver_pin *pin;

    fill(large, 10 * MIB, 5);
    fill(small, 100, 6);
    pin = pin_on(buffer, 1000);
    for (int i = 0; i < 1; i++) {
        CHECK(pthread_create(&threads[i], NULL, churn, NULL) == 0);
    }
    for (int i = 0; i < 20; i++) {
        int status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(60); /* a lock left held shows as this signal */
            in_child(large, small, pin);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 1; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(is_filled(large, 10 * MIB, 5) && driver_is_registered(large, 10 * MIB));
    CHECK(cudriver_pin_destroy(pin) == CUDA_SUCCESS);
    cudriver_hostmem_free(large);
    cudriver_hostmem_free(small);
    check_clean();
}

/* --- pins --- */

/* A pin that shares a part with another, which is told. */
static void refuse_pin(char *address, size_t bytes, char *theirs, size_t their_bytes)
{
    size_t pins = stats_now().pins, pinned = stats_now().pinned_bytes;
    unsigned calls = driver_calls();
    struct cudriver_pin_range other;
    struct cudriver_pin *pin;

    CHECK(cudriver_pin_create(address, bytes, &AT_ONCE, &pin, &other) ==
          CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CHECK(pin == NULL && other.begin == (uintptr_t)theirs && other.bytes == their_bytes);
    CHECK(driver_calls() == calls && stats_now().pins == pins);
    CHECK(stats_now().pinned_bytes == pinned);
}

static void test_pins(void)
{
    char *buffer = aligned_alloc(4096, 1 * MIB);
    struct cudriver_pin *a, *b, *c;

    /* repeated */
    a = pin_on(buffer, 1000);
    b = pin_on(buffer, 1000);
    CHECK(stats_now().pins == 2 && stats_now().pinned_bytes == 1000);
    unpin(a);
    CHECK(driver_is_registered(buffer, 1000));
    unpin(b);
    CHECK(!driver_is_registered(buffer, 1) && stats_now().pinned_bytes == 0);

    /* two on one page, apart */
    a = pin_on(buffer + 100, 100);
    b = pin_on(buffer + 300, 100);
    CHECK(!driver_is_registered(buffer + 200, 1) && !driver_is_registered(buffer + 99, 1));
    /* over a part of one, of both, over one as a whole and more */
    refuse_pin(buffer, 101, buffer + 100, 100);
    refuse_pin(buffer + 199, 10, buffer + 100, 100);
    refuse_pin(buffer + 150, 200, buffer + 100, 100);
    refuse_pin(buffer + 250, 5000, buffer + 300, 100);
    refuse_pin(buffer + 100, 101, buffer + 100, 100);
    refuse_pin(buffer + 99, 101, buffer + 100, 100);
    c = pin_on(buffer + 200, 100); /* between them */
    unpin(a);
    unpin(b);
    unpin(c);

    /* within others, whichever ends first */
    a = pin_on(buffer, 10000);
    b = pin_on(buffer + 5000, 10);
    c = pin_on(buffer + 9000, 1000);
    unpin(a);
    CHECK(stats_now().pinned_bytes == 10000 && stats_now().pins == 2);
    unpin(c);
    CHECK(driver_is_registered(buffer, 10000));
    unpin(b);
    CHECK(!driver_is_registered(buffer + 5000, 1) && stats_now().pinned_bytes == 0);

    /* adjacent ones share nothing */
    a = pin_on(buffer, 64);
    b = pin_on(buffer + 64, 64);
    unpin(a);
    CHECK(stats_now().pinned_bytes == 64 && !driver_is_registered(buffer, 1));
    unpin(b);

    CHECK(cudriver_pin_destroy(NULL) == CUDA_SUCCESS);
    CHECK(try_pin(NULL, 0, &b) == CUDA_ERROR_INVALID_VALUE);
    CHECK(try_pin(buffer, SIZE_MAX, &b) == CUDA_ERROR_INVALID_VALUE);

    /* not with the context that was current */
    CUcontext other = new_context();
    a = pin_on(buffer, 100);
    CHECK(cudriver_hostmem_uses_device(0) && !cudriver_hostmem_uses_device(1));
    CHECK(cuda.cuCtxDestroy_v2(other) == CUDA_SUCCESS);
    CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(stats_now().pinned_bytes == 100 && driver_is_registered(buffer, 100));
    unpin(a);
    CHECK(!cudriver_hostmem_uses_device(0));

    free(buffer);
    check_clean();
}

/* At the end of a program no context may be current; the driver unregisters by address all the
 * same. */
static void test_pins_without_context(void)
{
    char *buffer = aligned_alloc(4096, 4096);
    struct cudriver_pin *pin = pin_on(buffer, 100);
    size_t released;

    cudriver_hostmem_free(make(5 * MIB));
    CHECK(cuda.cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
    CHECK(cudriver_pin_destroy(pin) == CUDA_SUCCESS);
    CHECK(cudriver_hostmem_trim(0, &released) == CUDA_SUCCESS && released == 5 * MIB);
    CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(!driver_is_registered(buffer, 100));
    free(buffer);
    check_clean();
}

/* Memory that others have page-locked: taken as it is where it covers the range, else the error. */
static void test_foreign_pins(void)
{
    char *buffer = aligned_alloc(4096, 1 * MIB);
    struct cudriver_pin *pin, *other;
    struct cudriver_pin_range none;

    CHECK(cuda.cuMemHostRegister_v2(buffer, 4096, 0) == CUDA_SUCCESS);
    CHECK(cuda.cuMemHostRegister_v2(buffer + 4096, 4096, 0) == CUDA_SUCCESS);
    pin = pin_on(buffer + 100, 8000);
    CHECK(stats_now().pins == 1 && stats_now().pinned_bytes == 0);
    CHECK(try_pin(buffer, 8193, &other) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CHECK(stats_now().pins == 1 && stats_now().pinned_bytes == 0);
    unpin(pin);
    CHECK(driver_is_registered(buffer, 8192));

    pin = pin_on(buffer, 4096);
    CHECK(cuda.cuMemHostUnregister(buffer) == CUDA_SUCCESS);
    CHECK(cuda.cuMemHostUnregister(buffer + 4096) == CUDA_SUCCESS);
    other = pin_on(buffer, 4096); /* theirs is gone, so it is ours now */
    CHECK(stats_now().pinned_bytes == 4096);
    unpin(pin);
    CHECK(driver_is_registered(buffer, 4096));
    unpin(other);

    /* ours that somebody else has unregistered: gone already */
    pin = pin_on(buffer, 4096);
    CHECK(cuda.cuMemHostUnregister(buffer) == CUDA_SUCCESS);
    unpin(pin);

    free(buffer);

    /* what the driver itself allocated */
    CUresult (*allocate)(void **, size_t, unsigned), (*release)(void *);
    void *theirs;
    *(void **)&allocate = driver_function("cuMemHostAlloc");
    *(void **)&release = driver_function("cuMemFreeHost");
    CHECK(allocate(&theirs, 8192, 0) == CUDA_SUCCESS);
    CHECK(cudriver_pin_create((char *)theirs + 10, 8000, &AT_ONCE, &pin, &none) == CUDA_SUCCESS);
    CHECK(stats_now().pinned_bytes == 0);
    unpin(pin);
    CHECK(try_pin(theirs, 9000, &pin) == CUDA_ERROR_INVALID_VALUE);
    CHECK(release(theirs) == CUDA_SUCCESS);
    check_clean();
}

static void test_read_only_pins(void)
{
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct cudriver_pin *pin, *other;
    struct cudriver_pin_range none;

    CHECK(page != MAP_FAILED);
    memset(page, 7, 8192);
    CHECK(mprotect(page, 8192, PROT_READ) == 0);
    CHECK(try_pin(page, 5000, &pin) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cudriver_pin_create(page, 5000, &READ_ONLY, &pin, &none) == CUDA_SUCCESS);
    CHECK(driver_is_registered(page, 5000));
    CHECK(cudriver_pin_create(page + 100, 4000, &READ_ONLY, &other, &none) == CUDA_SUCCESS);
    CHECK(page[0] == 7 && stats_now().pinned_bytes == 5000);
    unpin(pin);
    unpin(other);
    munmap(page, 8192);
    check_clean();
}

/* Pins on the pool's own memory hold nothing of their own. */
static void test_pooled_pins(void)
{
    char *block = make(6 * MIB), *small = make(100);
    struct cudriver_pin *pin = pin_on(block + 1000, 5 * MIB), *other = pin_on(small, 100);

    CHECK(stats_now().pins == 2 && stats_now().pinned_bytes == 0);
    unpin(pin);
    CHECK(driver_is_registered(block, 6 * MIB));
    unpin(other);
    cudriver_hostmem_free(block);
    cudriver_hostmem_free(small);
    check_clean();
}

/* --- nothing waits for another thread's registration, but for the bytes themselves --- */

static sem_t inside, leave;
static atomic_int hook_calls;

static void wait_in_driver(const void *address)
{
    (void)address;
    atomic_fetch_add(&hook_calls, 1);
    sem_post(&inside);
    sem_wait(&leave);
}

/* True within a minute; a test must not hang, and no shorter time says anything. */
static void wait_for(sem_t *semaphore)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    CHECK(sem_timedwait(semaphore, &until) == 0);
}

static void *make_large(void *argument)
{
    CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
    *(char **)argument = make(6 * MIB);
    return NULL;
}

static char *shared_buffer;

static void *pin_shared(void *argument)
{
    CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
    *(struct cudriver_pin **)argument = pin_on(shared_buffer, 1000);
    return NULL;
}

static void *unpin_in_thread(void *pin)
{
    unpin(pin);
    return NULL;
}

static void test_no_waiting(void)
{
    pthread_t threads[2];
    char *blocks[2], *small = make(100), other[64];
    struct cudriver_pin *made[2], *pin;
    size_t bytes, released;

    CHECK(sem_init(&inside, 0, 0) == 0 && sem_init(&leave, 0, 0) == 0);
    pin = pin_on(other, 64);
    driver_set_hook(wait_in_driver);

    /* Two register at once, and the pool goes on. */
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, make_large, &blocks[i]) == 0);
    }
    wait_for(&inside);
    wait_for(&inside);
    CHECK(cudriver_hostmem_uses_device(1)); /* perhaps they are there */
    char *next = cudriver_hostmem_try_alloc(200, CUDRIVER_NODE_POLICY);
    CHECK(next != NULL && cudriver_hostmem_owns(next, &bytes));
    cudriver_hostmem_free(next);
    next = make(5000);
    cudriver_hostmem_free(next);
    CHECK(stats_now().used_blocks == 1);
    CHECK(cudriver_hostmem_trim(0, &released) == CUDA_SUCCESS);
    cudriver_hostmem_set_limit(SIZE_MAX);
    unpin(pin);
    sem_post(&leave);
    sem_post(&leave);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        cudriver_hostmem_free(blocks[i]);
    }

    /* Two pin the same bytes: one registers, the other waits for it. */
    atomic_store(&hook_calls, 0);
    shared_buffer = malloc(2000);
    CHECK(pthread_create(&threads[0], NULL, pin_shared, &made[0]) == 0);
    wait_for(&inside);
    CHECK(pthread_create(&threads[1], NULL, pin_shared, &made[1]) == 0);
    usleep(20000); /* time to do it wrong */
    CHECK(atomic_load(&hook_calls) == 1 && stats_now().pins == 0);
    sem_post(&leave);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(atomic_load(&hook_calls) == 1 && stats_now().pins == 2);
    driver_set_hook(NULL);
    unpin(made[1]);

    /* One unpins, another pins the same bytes: it waits, too. */
    driver_set_unregister_hook(wait_in_driver);
    CHECK(pthread_create(&threads[0], NULL, unpin_in_thread, made[0]) == 0);
    wait_for(&inside);
    driver_set_unregister_hook(NULL);
    CHECK(pthread_create(&threads[1], NULL, pin_shared, &made[1]) == 0);
    usleep(20000); /* time to do it wrong */
    CHECK(stats_now().pins == 0);
    sem_post(&leave);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    unpin(made[1]);
    free(shared_buffer);
    cudriver_hostmem_free(small);
    check_clean();
}

static void *trim_in_thread(void *argument)
{
    (void)argument;
    CHECK(trim_all() == 6 * MIB);
    return NULL;
}

static void *starve(void *attempts)
{
    char *block;

    CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
    starves = attempts;
    CHECK(try_make(6 * MIB, &block) == CUDA_ERROR_OUT_OF_MEMORY);
    return NULL;
}

/* A request that waits for memory that is being released tries again when that is done, and not
 * with each pin that comes or goes. */
static void test_wait_for_release(void)
{
    pthread_t releasing, starving;
    sem_t attempts;
    char other[64];
    int more;

    CHECK(sem_init(&inside, 0, 0) == 0 && sem_init(&leave, 0, 0) == 0);
    CHECK(sem_init(&attempts, 0, 0) == 0);
    cudriver_hostmem_free(make(6 * MIB));
    driver_set_unregister_hook(wait_in_driver);
    CHECK(pthread_create(&releasing, NULL, trim_in_thread, NULL) == 0);
    wait_for(&inside);
    driver_set_unregister_hook(NULL);
    CHECK(pthread_create(&starving, NULL, starve, &attempts) == 0);
    wait_for(&attempts);
    for (int i = 0; i < 20; i++) {
        unpin(pin_on(other, 64));
        usleep(1000); /* time to do it wrong */
    }
    sem_post(&leave);
    pthread_join(releasing, NULL);
    pthread_join(starving, NULL);
    /* Once more after the release, and a last time after it has trimmed the pool itself. */
    CHECK(sem_getvalue(&attempts, &more) == 0 && more == 2);
    check_clean();
}

/* --- pins that are made in steps, beside other work --- */

static struct {
    char *memory;
    size_t bytes;
    atomic_bool stop;
    bool fresh;
    CUresult result;
    struct cudriver_pin *pin;
} slow;

/* In a thread: pins in steps of a MiB. */
static void *pin_slowly(void *argument)
{
    const struct cudriver_pin_way way = {.step = MIB, .stop = &slow.stop, .fresh = slow.fresh};
    struct cudriver_pin_range other;

    (void)argument;
    CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
    slow.result = cudriver_pin_create(slow.memory, slow.bytes, &way, &slow.pin, &other);
    return NULL;
}

static void stop_at_the_third(const void *address)
{
    if ((const char *)address == slow.memory + 2 * MIB) {
        cudriver_pin_stop(&slow.stop);
    }
}

static void wait_at_the_third(const void *address)
{
    if ((const char *)address == slow.memory + 2 * MIB) {
        wait_in_driver(address);
    }
}

static void slow_begin(bool fresh)
{
    slow.bytes = 5 * MIB + MIB / 2;
    slow.memory = aligned_alloc(4096, slow.bytes);
    slow.fresh = fresh;
    slow.pin = NULL;
    atomic_store(&slow.stop, false);
    fill(slow.memory, slow.bytes, 3);
}

static void slow_end(CUresult result)
{
    CHECK(slow.result == result && (slow.pin != NULL) == (result == CUDA_SUCCESS));
    CHECK(is_filled(slow.memory, slow.bytes, 3));
    unpin(slow.pin);
    CHECK(locked(slow.memory) == 0);
    free(slow.memory);
    check_clean();
}

static void test_steps(void)
{
    for (int fresh = 0; fresh < 2; fresh++) {
        slow_begin(fresh);
        pin_slowly(NULL);
        CHECK(!cudriver_driver.simulated || driver_live("registrations") == 6);
        CHECK(!cudriver_driver.simulated || driver_live("registration_bytes") == slow.bytes);
        CHECK(cudriver_hostmem_run(slow.memory + MIB - 10, 20) == 10);
        CHECK(cudriver_hostmem_run(slow.memory + MIB, slow.bytes - MIB) == MIB);
        CHECK(cudriver_hostmem_run(slow.memory + 5 * MIB, MIB / 2) == MIB / 2);
        CHECK(locked(slow.memory) == slow.bytes);
        struct cudriver_pin *part = pin_on(slow.memory + MIB - 100, 3 * MIB); /* shares it */
        CHECK(!cudriver_driver.simulated || driver_live("registrations") == 6);
        unpin(part);
        slow_end(CUDA_SUCCESS);
    }
}

static void test_steps_stopped(void)
{
    for (int fresh = 0; fresh < 2; fresh++) {
        slow_begin(fresh);
        driver_set_hook(stop_at_the_third);
        pin_slowly(NULL);
        driver_set_hook(NULL);
        slow_end(CUDRIVER_PIN_STOPPED);
        slow_begin(fresh); /* before it begins */
        cudriver_pin_stop(&slow.stop);
        pin_slowly(NULL);
        slow_end(CUDRIVER_PIN_STOPPED);
    }
}

/* Whichever of the registrations fails, nothing is left. */
static void test_steps_refused(void)
{
    for (unsigned n = 4; n < 10; n++) { /* after the calls for the primary context */
        slow_begin(n % 2);
        driver_fail(n, CUDA_ERROR_LAUNCH_FAILED);
        pin_slowly(NULL);
        CHECK(driver_has_failed());
        slow_end(CUDA_ERROR_LAUNCH_FAILED);
    }
}

static void *stop_soon(void *stop)
{
    usleep(20000); /* time to begin to wait */
    cudriver_pin_stop(stop);
    return NULL;
}

/* What is locked already can be copied from while the rest is being locked; who needs all of it
 * waits, unless it is stopped. */
static void test_steps_seen(void)
{
    pthread_t thread, second;
    atomic_bool stop = false;
    struct cudriver_pin *pin = NULL;
    struct cudriver_pin_range other;
    const struct cudriver_pin_way impatient = {.step = MIB, .stop = &stop};

    CHECK(sem_init(&inside, 0, 0) == 0 && sem_init(&leave, 0, 0) == 0);
    slow_begin(false);
    driver_set_hook(wait_at_the_third);
    CHECK(pthread_create(&thread, NULL, pin_slowly, NULL) == 0);
    wait_for(&inside);
    driver_set_hook(NULL);
    CHECK(locked(slow.memory) == 2 * MIB);
    CHECK(is_registered(slow.memory + 100, MIB - 100));
    CHECK(is_registered(slow.memory + MIB, MIB));
    CHECK(cudriver_hostmem_run(slow.memory + MIB, 2 * MIB) == MIB);
    CHECK(!is_registered(slow.memory + 2 * MIB, 1));
    CHECK(pthread_create(&second, NULL, stop_soon, &stop) == 0);
    CHECK(cudriver_pin_create(slow.memory + 10, 100, &impatient, &pin, &other) ==
          CUDRIVER_PIN_STOPPED);
    pthread_join(second, NULL);
    sem_post(&leave);
    pthread_join(thread, NULL);
    slow_end(CUDA_SUCCESS);
}

/* --- faults --- */

/* A bit of everything; failures are taken as they come, and what was had is given back. */
static void use_everything(void)
{
    char *blocks[6] = {0}, *buffer = malloc(9 * MIB);
    const size_t sizes[6] = {10, 3000, 5000, 2 * MIB, 10 * MIB, 20 * MIB};
    struct cudriver_pin *pins[4] = {0};
    size_t released;

    for (int i = 0; i < 6; i++) {
        (void)try_make(sizes[i], &blocks[i]);
        if (blocks[i] != NULL) {
            fill(blocks[i], sizes[i], (uint64_t)i);
        }
    }
    (void)try_pin(buffer + 1000, 100, &pins[0]);
    (void)try_pin(buffer + 2000, 7 * MIB, &pins[1]);
    (void)try_pin(buffer + 4000, 100, &pins[2]);
    if (blocks[3] != NULL) {
        (void)try_pin(blocks[3], 100, &pins[3]);
    }
    for (int i = 0; i < 6; i += 2) {
        if (blocks[i] != NULL) {
            CHECK(is_filled(blocks[i], sizes[i], (uint64_t)i));
            cudriver_hostmem_free(blocks[i]);
        }
        (void)try_make(sizes[i], &blocks[i]);
    }
    (void)cudriver_hostmem_trim(0, &released);
    for (int i = 0; i < 4; i++) {
        (void)cudriver_pin_destroy(pins[i]);
    }
    for (int i = 0; i < 6; i++) {
        if (blocks[i] != NULL) {
            cudriver_hostmem_free(blocks[i]);
        }
    }
    free(buffer);
}

static void test_driver_faults(void)
{
    const CUresult codes[] = {CUDA_ERROR_OUT_OF_MEMORY,
                              CUDA_ERROR_INVALID_VALUE,
                              CUDA_ERROR_LAUNCH_FAILED,
                              CUDA_ERROR_DEINITIALIZED,
                              CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                              CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED};

    for (size_t code = 0; code < sizeof codes / sizeof codes[0]; code++) {
        for (unsigned n = 1;; n++) {
            size_t released;
            CHECK(n < 1000);
            driver_fail(n, codes[code]);
            use_everything();
            bool failed = driver_has_failed();
            driver_fail(0, CUDA_SUCCESS);
            /* A refused unregistration may leave a registration of pins, and nothing else. */
            CHECK(cudriver_hostmem_trim(0, &released) == CUDA_SUCCESS);
            struct cudriver_hostmem_stats stats = stats_now();
            CHECK(stats.used_blocks == 0 && stats.used_bytes == 0 && stats.pins == 0);
            CHECK(stats.registered_bytes == 0 && stats.pinned_bytes == 0);
            CHECK(atomic_load(&mapped_bytes) == 0);
            CHECK(cuda.cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
            check_clean();
            if (!failed) {
                break;
            }
        }
    }
}

static void test_system_faults(void)
{
    for (int n = 1;; n++) {
        CHECK(n < 1000);
        atomic_store(&system_has_failed, false);
        atomic_store(&system_fail_at, n);
        use_everything();
        bool failed = atomic_load(&system_has_failed);
        atomic_store(&system_fail_at, 0);
        check_clean();
        if (!failed) {
            break;
        }
    }
}

/* --- at random, against what a simple model says --- */

static size_t random_size_of(uint64_t *state)
{
    size_t most = (size_t)1 << (4 + random_below_of(state, 20));
    return 1 + random_below_of(state, most);
}

static void test_model(void)
{
    enum { BLOCKS = 400 };
    static char *blocks[BLOCKS];
    static size_t sizes[BLOCKS];
    size_t used = 0, count = 0, limit = SIZE_MAX;

    for (int round = 0; round < 20000; round++) {
        size_t i = random_below(BLOCKS), released;
        if (blocks[i] != NULL) {
            CHECK(is_filled(blocks[i], sizes[i], i));
            cudriver_hostmem_free(blocks[i]);
            blocks[i] = NULL;
            used -= sizes[i];
            count--;
        } else {
            sizes[i] = random_size_of(&random_state);
            if (random_below(3) == 0) {
                blocks[i] = cudriver_hostmem_try_alloc(sizes[i], CUDRIVER_NODE_POLICY);
                CHECK(blocks[i] == NULL || driver_is_registered(blocks[i], sizes[i]));
            } else {
                CUresult result = try_make(sizes[i], &blocks[i]);
                CHECK(result == CUDA_SUCCESS ||
                      (result == CUDA_ERROR_OUT_OF_MEMORY && limit < SIZE_MAX));
            }
            if (blocks[i] != NULL) {
                fill(blocks[i], sizes[i], i);
                used += sizes[i];
                count++;
            }
        }
        struct cudriver_hostmem_stats stats = stats_now();
        CHECK(stats.used_bytes == used && stats.used_blocks == count);
        CHECK(stats.registered_bytes >= stats.pooled_bytes);
        CHECK(stats.peak_bytes >= stats.registered_bytes);
        CHECK(!cudriver_driver.simulated ||
              stats.registered_bytes == driver_live("registration_bytes"));
        switch (random_below(200)) {
        case 0:
            released = (size_t)random_below(8 * MIB);
            CHECK(cudriver_hostmem_trim(released, &released) == CUDA_SUCCESS);
            break;
        case 1:
            limit = random_below(2) ? SIZE_MAX : 4 * MIB + random_below(64 * MIB);
            cudriver_hostmem_set_limit(limit);
            break;
        }
    }
    cudriver_hostmem_set_limit(SIZE_MAX);
    for (size_t i = 0; i < BLOCKS; i++) {
        if (blocks[i] != NULL) {
            CHECK(is_filled(blocks[i], sizes[i], i));
            cudriver_hostmem_free(blocks[i]);
        }
    }
    check_clean();
}

/* Pins at random, some of them refused by the driver: what live pins cover is registered, nothing
 * else is, and a pin is refused where it meets a registration that does not hold all of it. */
static void test_pin_model(void)
{
    enum { PINS = 40, BYTES = 20000 };
    struct cudriver_pin *pins[PINS] = {0};
    size_t begins[PINS], ends[PINS], live = 0, refused = 0, shared = 0;
    static char state[BYTES + 1]; /* 1: in a registration; 3: and the first of it */
    char *buffer = aligned_alloc(4096, 20480);

    for (int round = 0; round < 20000; round++) {
        size_t i = random_below(PINS);
        if (pins[i] != NULL) {
            struct cudriver_pin *gone = pins[i];
            unpin(gone);
            pins[i] = NULL;
            live--;
            bool last = true;
            for (size_t k = 0; k < PINS; k++) {
                last = last && pins[k] != gone;
            }
            if (last) { /* back to the registration's first byte, and on to its end */
                size_t at = begins[i];
                while (state[at] != 3) {
                    at--;
                }
                do {
                    state[at++] = 0;
                } while (state[at] == 1);
            }
        } else {
            begins[i] = random_below(BYTES);
            size_t most = (BYTES - begins[i]) / (1 + random_below(40));
            ends[i] = begins[i] + 1 + (most > 1 ? random_below(most) : 0);
            size_t covered = 0, starts = 0;
            for (size_t at = begins[i]; at < ends[i]; at++) {
                covered += state[at] != 0;
                starts += at > begins[i] && state[at] == 3;
            }
            bool within = covered == ends[i] - begins[i] && starts == 0;
            bool fails = covered == 0 && random_below(4) == 0;
            if (fails) {
                driver_fail(1 + (unsigned)random_below(4), CUDA_ERROR_LAUNCH_FAILED);
            }
            CUresult result = try_pin(buffer + begins[i], ends[i] - begins[i], &pins[i]);
            driver_fail(0, CUDA_SUCCESS);
            CHECK(result == (covered > 0 && !within ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                             : fails                ? CUDA_ERROR_LAUNCH_FAILED
                                                    : CUDA_SUCCESS));
            refused += covered > 0 && !within;
            shared += within;
            if (result == CUDA_SUCCESS) {
                live++;
                if (!within) {
                    memset(state + begins[i], 1, ends[i] - begins[i]);
                    state[begins[i]] = 3;
                }
            }
        }
        CHECK(stats_now().pins == live);
        for (size_t k = 0; k < 40 && round % 8 == 0; k++) {
            size_t at = random_below(BYTES);
            CHECK(driver_is_registered(buffer + at, 1) == (state[at] != 0));
            CHECK(is_registered(buffer + at, 1) == (state[at] != 0));
        }
    }
    CHECK(refused > 1000 && shared > 1000);
    for (size_t i = 0; i < PINS; i++) {
        unpin(pins[i]);
    }
    free(buffer);
    check_clean();
}

#ifndef ROUNDS
#define ROUNDS 1500
#endif
enum { THREADS = 4, EXCHANGED = 64 };
static _Atomic(char *) exchanged[EXCHANGED]; /* blocks that one thread makes and another frees */
static char pinned_by_all[20000];

static void *work(void *argument)
{
    uint64_t state = 77 + 1000003 * (uint64_t)(uintptr_t)argument;
    struct cudriver_pin *pins[8] = {0};

    CHECK(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
    for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = random_size_of(&state), size, released, slot = random_below_of(&state, 8);
        char *block = NULL;
        (void)try_make(bytes, &block);
        if (block != NULL) {
            fill(block, bytes, bytes);
        }
        char *old = atomic_exchange(&exchanged[random_below_of(&state, EXCHANGED)], block);
        if (old != NULL) {
            CHECK(cudriver_hostmem_owns(old, &size) && is_filled(old, size, size));
            cudriver_hostmem_free(old);
        }
        CHECK(!cudriver_hostmem_owns(pinned_by_all + slot, &size));
        unpin(pins[slot]);
        size_t begin = random_below_of(&state, 15000), length = 1 + random_below_of(&state, 5000);
        CUresult result = try_pin(pinned_by_all + begin, length, &pins[slot]);
        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        switch (random_below_of(&state, 400)) {
        case 0:
            CHECK(cudriver_hostmem_trim(0, &released) == CUDA_SUCCESS);
            break;
        case 1:
            cudriver_hostmem_set_limit(random_below_of(&state, 2) ? SIZE_MAX : 32 * MIB);
            break;
        }
        if (round % 16 == 0) {
            struct cudriver_hostmem_stats stats = stats_now();
            CHECK(stats.registered_bytes >= stats.pooled_bytes);
        }
    }
    for (size_t i = 0; i < 8; i++) {
        CHECK(cudriver_pin_destroy(pins[i]) == CUDA_SUCCESS);
    }
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[THREADS];

    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    cudriver_hostmem_set_limit(SIZE_MAX);
    for (int i = 0; i < EXCHANGED; i++) {
        char *block = atomic_load(&exchanged[i]);
        if (block != NULL) {
            cudriver_hostmem_free(block);
        }
    }
    check_clean();
}

/* Threads touch new memory, and one of them gives huge pages up for all. */
static void test_huge(void)
{
    cudriver_hostmem_set_huge(MADV_HUGEPAGE);
    atomic_store(&huge_slow, true);
    char *block = make(512 * MIB); /* more than all threads have taken when they are judged */
    CHECK(!atomic_load(&huge_slow));
    CHECK(stats_now().huge_given_up > 0 && stats_now().huge_given_up <= 448 * MIB);
    CHECK(is_zero(block, 512 * MIB));
    cudriver_hostmem_free(block);
    check_clean();
}

/* Advice that the system may refuse: memory comes all the same. */
static void test_settings(void)
{
    const int advice[] = {MADV_NOHUGEPAGE, MADV_HUGEPAGE, 0, -1};

    for (size_t i = 0; i < sizeof advice / sizeof advice[0]; i++) {
        cudriver_hostmem_set_huge(advice[i]);
        char *block = make(40 * MIB);
        CHECK(is_zero(block, 40 * MIB));
        cudriver_hostmem_free(block);
        trim_all();
    }
    check_clean();
}

static void test_old_kernel(void)
{
    atomic_store(&populate_unknown, true);
    char *block = make(40 * MIB), *small = make(10);
    CHECK(is_zero(block, 40 * MIB));
    cudriver_hostmem_free(block);
    cudriver_hostmem_free(small);
    check_clean();
}

/* Where memory is short: what the pool keeps though free makes room for a pin. */
static void test_pin_makes_room(void)
{
    char buffer[100];

    cudriver_hostmem_free(make(6 * MIB));
    driver_fail(4, CUDA_ERROR_OUT_OF_MEMORY); /* after the calls for the primary context */
    struct cudriver_pin *pin = pin_on(buffer, 100);
    CHECK(driver_has_failed() && stats_now().registered_bytes == 0);
    unpin(pin);

    /* What cannot be had for a whole chunk is asked for the one block. */
    driver_fail(4, CUDA_ERROR_OUT_OF_MEMORY);
    char *block = make(100);
    CHECK(driver_has_failed() && stats_now().registered_bytes < 2 * MIB);
    cudriver_hostmem_free(block);
    check_clean();
}

/* --- the list --- */

static const struct scenario {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"sizes", test_sizes},
    {"owns", test_owns},
    {"exact", test_exact},
    {"guards", test_guards},
    {"guard_behind_a_chunk", test_guard_behind_a_chunk},
    {"guards_at_the_end", test_guards_at_the_end},
    {"reuse", test_reuse},
    {"try_alloc", test_try_alloc},
    {"too_large", test_too_large},
    {"limit", test_limit},
    {"room", test_room},
    {"trim", test_trim},
    {"zeroed", test_zeroed},
    {"spoilt_address", test_spoilt_address},
    {"trim_refused", test_trim_refused},
    {"run", test_run},
    {"is_registered", test_is_registered},
    {"fork", test_fork},
    {"pins", test_pins},
    {"pins_without_context", test_pins_without_context},
    {"foreign_pins", test_foreign_pins},
    {"read_only_pins", test_read_only_pins},
    {"pooled_pins", test_pooled_pins},
    {"no_waiting", test_no_waiting},
    {"wait_for_release", test_wait_for_release},
    {"steps", test_steps},
    {"steps_stopped", test_steps_stopped},
    {"steps_refused", test_steps_refused},
    {"steps_seen", test_steps_seen},
    {"driver_faults", test_driver_faults},
    {"system_faults", test_system_faults},
    {"model", test_model},
    {"pin_model", test_pin_model},
    {"threads", test_threads},
    {"settings", test_settings},
    {"huge", test_huge},
    {"old_kernel", test_old_kernel},
    {"pin_makes_room", test_pin_makes_room},
};

int main(int count, char **arguments)
{
    for (size_t i = 0; count > 1 && i < sizeof scenarios / sizeof scenarios[0]; i++) {
        if (strcmp(arguments[1], scenarios[i].name) == 0) {
            random_state = count > 2 ? strtoull(arguments[2], NULL, 10) | 1 : 12345;
            driver_start();
            context = new_context();
            scenarios[i].run();
            return 0;
        }
    }
    fprintf(stderr, "no such scenario\n");
    return 1;
}

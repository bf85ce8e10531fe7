/*
 * What page-locked host memory costs, from C: the first gigabytes by threads and page size, then
 * the pool, beside the driver's own cuMemHostAlloc. On a machine with a GPU, from the repository's
 * root:
 *
 *   gcc -std=c11 -O3 -iquote cext -o native_hostmem benchmarks/native_hostmem.c \
 *       $(find cext/hostmem -name "*.c") cext/driver/{driver,platform}.c -ldl -pthread
 *   ./native_hostmem
 *
 * CUDRIVER_LIBRARY names another driver library. Figures are the best of several rounds. Threads
 * are limited by the affinity that the pool itself looks at.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "hostmem/hostmem.h"
#include "driver/platform.h"

#define GIB ((size_t)1 << 30)

static CUcontext context;

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: error %d\n", what, (int)result);
        exit(1);
    }
}

static double now(void)
{
    return (double)platform_nanoseconds() * 1e-9;
}

static void *take(size_t bytes)
{
    void *block;
    bool zeroed;

    must(cudriver_hostmem_alloc(bytes, false, &block, &zeroed), "cudriver_hostmem_alloc");
    return block;
}

static void trim(void)
{
    size_t released;

    must(cudriver_hostmem_trim(0, &released), "cudriver_hostmem_trim");
}

/* Seconds for a first allocation, and for giving it back. */
static void first_time(size_t bytes, int rounds, double *made, double *released)
{
    *made = *released = 1e9;
    for (int i = 0; i < rounds; i++) {
        double start = now();
        void *block = take(bytes);
        double middle = now();
        cudriver_hostmem_free(block);
        trim();
        double end = now();
        *made = middle - start < *made ? middle - start : *made;
        *released = end - middle < *released ? end - middle : *released;
    }
}

/* Lets this process use `count` of the processors that it had at the start. */
static void limit_processors(const cpu_set_t *had, int count)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&set) < count; i++) {
        if (CPU_ISSET(i, had)) {
            CPU_SET(i, &set);
        }
    }
    sched_setaffinity(0, sizeof set, &set);
}

static void show_first(size_t bytes)
{
    cpu_set_t had;
    double made, released;

    sched_getaffinity(0, sizeof had, &had);
    printf("first %zu MiB\n  threads  huge pages  allocate          give back\n", bytes >> 20);
    for (int count = 1; count <= CPU_COUNT(&had); count *= 2) {
        limit_processors(&had, count);
        for (int huge = 1; huge >= 0; huge--) {
            setenv("CUDRIVER_HUGEPAGES", huge ? "1" : "0", 1);
            first_time(bytes, 3, &made, &released);
            printf("  %7d  %-10s  %7.1f ms %5.1f GB/s  %7.1f ms\n", count, huge ? "yes" : "no",
                   made * 1e3, (double)bytes / made * 1e-9, released * 1e3);
        }
    }
    unsetenv("CUDRIVER_HUGEPAGES");
    sched_setaffinity(0, sizeof had, &had);

    double best = 1e9, best_free = 1e9;
    for (int i = 0; i < 2; i++) {
        void *address;
        double start = now();
        must(cuda.cuMemHostAlloc(&address, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
        double middle = now();
        must(cuda.cuMemFreeHost(address), "cuMemFreeHost");
        double end = now();
        best = middle - start < best ? middle - start : best;
        best_free = end - middle < best_free ? end - middle : best_free;
    }
    printf("  cuMemHostAlloc       %7.1f ms %5.1f GB/s  %7.1f ms\n", best * 1e3,
           (double)bytes / best * 1e-9, best_free * 1e3);
}

static void show_first_small(void)
{
    const size_t sizes[] = {64, 4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20};

    printf("first, by size               pool        give back   cuMemHostAlloc       "
           "cuMemFreeHost\n");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double made, released, best = 1e9, best_free = 1e9;
        first_time(sizes[i], 5, &made, &released);
        for (int k = 0; k < 3; k++) {
            void *address;
            double start = now();
            must(cuda.cuMemHostAlloc(&address, sizes[i], CU_MEMHOSTALLOC_PORTABLE),
                 "cuMemHostAlloc");
            double middle = now();
            must(cuda.cuMemFreeHost(address), "cuMemFreeHost");
            double end = now();
            best = middle - start < best ? middle - start : best;
            best_free = end - middle < best_free ? end - middle : best_free;
        }
        printf("  %12zu bytes  %9.1f us  %9.1f us  %9.1f us         %9.1f us\n", sizes[i],
               made * 1e6, released * 1e6, best * 1e6, best_free * 1e6);
    }
}

static void show_pool(void)
{
    const size_t sizes[] = {64, 4096, 1 << 20, GIB};
    enum { ROUNDS = 200000 };

    printf("from the pool, reused        allocate + free   try + free if owned\n");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double best = 1e9, best_try = 1e9;
        cudriver_hostmem_free(take(sizes[i]));
        for (int round = 0; round < 5; round++) {
            double start = now();
            for (int k = 0; k < ROUNDS; k++) {
                cudriver_hostmem_free(take(sizes[i]));
            }
            double middle = now();
            for (int k = 0; k < ROUNDS; k++) {
                if (!cudriver_hostmem_free_if_owned(cudriver_hostmem_try_alloc(sizes[i], false))) {
                    abort();
                }
            }
            double end = now();
            best = middle - start < best ? middle - start : best;
            best_try = end - middle < best_try ? end - middle : best_try;
        }
        printf("  %12zu bytes  %12.1f ns    %12.1f ns\n", sizes[i], best / ROUNDS * 1e9,
               best_try / ROUNDS * 1e9);
    }

    double start = now();
    size_t bytes, mine = 0;
    char *foreign = malloc(100);
    for (int k = 0; k < 10 * ROUNDS; k++) {
        mine += cudriver_hostmem_owns(foreign + k % 100, &bytes);
    }
    printf("  owns, of foreign memory  %.1f ns%s\n", (now() - start) / (10.0 * ROUNDS) * 1e9,
           mine > 0 ? " (wrong)" : "");
    free(foreign);
    trim();
}

struct contender {
    pthread_t thread;
    double seconds;
};

static void *contend(void *argument)
{
    struct contender *self = argument;
    double start = now();

    for (int k = 0; k < 100000; k++) {
        void *block = cudriver_hostmem_try_alloc(4096, false);
        if (block != NULL) {
            cudriver_hostmem_free(block);
        }
    }
    self->seconds = now() - start;
    return NULL;
}

static void show_threads(void)
{
    struct contender contenders[16];

    cudriver_hostmem_free(take(4096));
    printf("4096 bytes, allocate + free, by threads at once:");
    for (int count = 1; count <= 16 && count <= platform_processor_count(); count *= 2) {
        double worst = 0;
        for (int i = 0; i < count; i++) {
            pthread_create(&contenders[i].thread, NULL, contend, &contenders[i]);
        }
        for (int i = 0; i < count; i++) {
            pthread_join(contenders[i].thread, NULL);
            worst = contenders[i].seconds > worst ? contenders[i].seconds : worst;
        }
        printf("  %d: %.0f ns", count, worst / 100000 * 1e9);
    }
    printf("\n");
    trim();
}

/* NumPy's own behaviour, for the scale: malloc of the same sizes. */
static void show_malloc(void)
{
    printf("malloc + free:");
    for (size_t bytes = 64; bytes <= 1 << 20; bytes *= 128) {
        double start = now();
        for (int k = 0; k < 200000; k++) {
            void *volatile block = malloc(bytes);
            free(block);
        }
        printf("  %zu bytes: %.0f ns", bytes, (now() - start) / 200000 * 1e9);
    }
    printf("\n");
}

static void show_pins(void)
{
    const size_t sizes[] = {4096, 1 << 20, 64 << 20};
    char *buffer = aligned_alloc(4096, sizes[2]);

    memset(buffer, 1, sizes[2]);
    for (int i = 0; i < 3; i++) {
        double best = 1e9, shared = 1e9;
        for (int k = 0; k < 10; k++) {
            struct cudriver_pin *pin, *again;
            double start = now();
            must(cudriver_pin_create(buffer, sizes[i], false, false, &pin), "pin");
            double middle = now();
            must(cudriver_pin_create(buffer, sizes[i], false, false, &again), "pin");
            must(cudriver_pin_destroy(again), "unpin");
            double end = now();
            must(cudriver_pin_destroy(pin), "unpin");
            best = middle - start < best ? middle - start : best;
            shared = end - middle < shared ? end - middle : shared;
        }
        printf("pin %9zu bytes: first %.1f us, again and back %.2f us\n", sizes[i], best * 1e6,
               shared * 1e6);
    }
    free(buffer);
}

int main(int count, char **arguments)
{
    size_t first = count > 1 ? strtoull(arguments[1], NULL, 10) << 20 : 2 * GIB;
    CUdevice device;

    if (cudriver_driver_load(getenv("CUDRIVER_LIBRARY")) != CUDRIVER_LOADED) {
        fprintf(stderr, "%s\n", cudriver_driver.message);
        return 1;
    }
    must(cudriver_driver_init(), "cuInit");
    must(cuda.cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuda.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    printf("%s%s, API %d, %d processors\n", cudriver_driver.path,
           cudriver_driver.simulated ? " (simulated: times of the driver mean nothing)" : "",
           cudriver_driver.version, platform_processor_count());
    show_first(first);
    show_first_small();
    show_pool();
    show_threads();
    show_malloc();
    show_pins();
    return 0;
}

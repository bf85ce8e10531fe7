/*
 * The driver's calls in a loop, as a C program would make them; `benchmarks` compiles this at its
 * start and times it beside Python. No part of the package.
 *
 * Each function returns seconds of one call, or minus the driver's code. They use the calling
 * thread's context.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef int (*call_copy_up)(uint64_t, const void *, size_t);
typedef int (*call_copy_down)(void *, uint64_t, size_t);
typedef int (*call_copy_up_async)(uint64_t, const void *, size_t, void *);
typedef int (*call_copy_down_async)(void *, uint64_t, size_t, void *);
typedef int (*call_copy_device)(uint64_t, uint64_t, size_t, void *);
typedef int (*call_handle)(void *);
typedef int (*call_pop)(void **);
typedef int (*call_alloc)(uint64_t *, size_t);
typedef int (*call_free)(uint64_t);
typedef int (*call_pool_alloc)(uint64_t *, size_t, void *, void *);
typedef int (*call_pool_free)(uint64_t, void *);
typedef int (*call_host_alloc)(void **, size_t, unsigned);

static struct {
    call_copy_up up;
    call_copy_down down;
    call_copy_up_async up_async;
    call_copy_down_async down_async;
    call_copy_device device;
    call_handle synchronize, push, host_free;
    call_pop pop;
    call_alloc alloc;
    call_free free;
    call_pool_alloc pool_alloc;
    call_pool_free pool_free;
    call_host_alloc host_alloc;
} cuda;

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Opens the driver library (NULL: the system's) and finds the functions. 0, or -1. */
int calls_open(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    const struct {
        const char *name;
        void *place;
    } wanted[] = {
        {"cuMemcpyHtoD_v2", &cuda.up},
        {"cuMemcpyDtoH_v2", &cuda.down},
        {"cuMemcpyHtoDAsync_v2", &cuda.up_async},
        {"cuMemcpyDtoHAsync_v2", &cuda.down_async},
        {"cuMemcpyDtoDAsync_v2", &cuda.device},
        {"cuStreamSynchronize", &cuda.synchronize},
        {"cuCtxPushCurrent_v2", &cuda.push},
        {"cuCtxPopCurrent_v2", &cuda.pop},
        {"cuMemAlloc_v2", &cuda.alloc},
        {"cuMemFree_v2", &cuda.free},
        {"cuMemAllocFromPoolAsync", &cuda.pool_alloc},
        {"cuMemFreeAsync", &cuda.pool_free},
        {"cuMemHostAlloc", &cuda.host_alloc},
        {"cuMemFreeHost", &cuda.host_free},
    };

    for (size_t i = 0; library != NULL && i < sizeof wanted / sizeof wanted[0]; i++) {
        void *found = dlsym(library, wanted[i].name);
        if (found == NULL) {
            return -1;
        }
        *(void **)wanted[i].place = found;
    }
    return library == NULL ? -1 : 0;
}

/* Blocking copies of pageable memory, each waited for until its bytes are in place. */
double calls_copy(int up, uint64_t device, char *host, size_t bytes, int count)
{
    double begin = seconds();

    for (int i = 0; i < count; i++) {
        int code = up ? cuda.up(device, host, bytes) : cuda.down(host, device, bytes);
        if (code == 0 && up) {
            code = cuda.synchronize(NULL); /* a small one returns before that */
        }
        if (code != 0) {
            return -code;
        }
    }
    return (seconds() - begin) / count;
}

/* Asynchronous copies; `wait`: for each, else for all of them after the clock has stopped. */
double calls_copy_async(int up, uint64_t device, char *host, size_t bytes, void *stream, int wait,
                        int count)
{
    double begin = seconds(), taken;
    int code = 0;

    for (int i = 0; i < count && code == 0; i++) {
        code = up ? cuda.up_async(device, host, bytes, stream)
                  : cuda.down_async(host, device, bytes, stream);
        if (code == 0 && wait) {
            code = cuda.synchronize(stream);
        }
    }
    taken = seconds() - begin;
    if (code == 0) {
        code = cuda.synchronize(stream);
    }
    return code != 0 ? -code : taken / count;
}

/* From device memory to device memory of one context, waited for. */
double calls_copy_device(uint64_t to, uint64_t from, size_t bytes, void *stream, int count)
{
    double begin = seconds();

    for (int i = 0; i < count; i++) {
        int code = cuda.device(to, from, bytes, stream);
        if (code == 0) {
            code = cuda.synchronize(stream);
        }
        if (code != 0) {
            return -code;
        }
    }
    return (seconds() - begin) / count;
}

double calls_context(void *context, int count)
{
    double begin = seconds();

    for (int i = 0; i < count; i++) {
        void *popped;
        int code = cuda.push(context);
        if (code == 0) {
            code = cuda.pop(&popped);
        }
        if (code != 0) {
            return -code;
        }
    }
    return (seconds() - begin) / count;
}

double calls_alloc(size_t bytes, int count)
{
    double begin = seconds();

    for (int i = 0; i < count; i++) {
        uint64_t address;
        int code = cuda.alloc(&address, bytes);
        if (code == 0) {
            code = cuda.free(address);
        }
        if (code != 0) {
            return -code;
        }
    }
    return (seconds() - begin) / count;
}

double calls_pool(void *pool, size_t bytes, void *stream, int count)
{
    double begin = seconds(), taken;
    int code = 0;

    for (int i = 0; i < count && code == 0; i++) {
        uint64_t address;
        code = cuda.pool_alloc(&address, bytes, pool, stream);
        if (code == 0) {
            code = cuda.pool_free(address, stream);
        }
    }
    taken = seconds() - begin;
    if (code == 0) {
        code = cuda.synchronize(stream);
    }
    return code != 0 ? -code : taken / count;
}

/* cuMemHostAlloc alone; the memory is freed after the clock has stopped. */
double calls_host_alloc(size_t bytes)
{
    double begin = seconds(), taken;
    void *memory;
    int code = cuda.host_alloc(&memory, bytes, 0);

    taken = seconds() - begin;
    if (code == 0) {
        code = cuda.host_free(memory);
    }
    return code != 0 ? -code : taken;
}

/* Linux (x86-64, aarch64, WSL). See platform.h. */
#define _GNU_SOURCE
#include "platform.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *const platform_driver_names[] = {
    "libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1", /* WSL: often not in the loader's cache */
    NULL,
};

void platform_describe_search(char *message, size_t size)
{
    const char *path = getenv("LD_LIBRARY_PATH");
    size_t used = strlen(message);

    if (used < size) {
        snprintf(
            message + used, size - used,
            " (searched by the dynamic loader's rules: LD_LIBRARY_PATH=%s, /etc/ld.so.cache, the "
            "default folders%s)",
            path != NULL && path[0] ? path : "unset",
            access("/dev/dxg", F_OK) == 0 ? ", and /usr/lib/wsl/lib" : "");
    }
}

const char *platform_no_library(const char *path)
{
    struct stat file;

    if (strchr(path, '/') == NULL || stat(path, &file) != 0 || S_ISREG(file.st_mode)) {
        return NULL;
    }
    return S_ISFIFO(file.st_mode)   ? "a pipe (FIFO)"
           : S_ISDIR(file.st_mode)  ? "a directory"
           : S_ISSOCK(file.st_mode) ? "a socket"
                                    : "a device";
}

/* How many of two numbers a file begins with; -1: no such file, or it is empty. */
static int numbers_read(const char *path, long long *first, long long *second)
{
    FILE *file = fopen(path, "re");
    int read = -1;

    if (file != NULL) {
        read = fscanf(file, "%lld %lld", first, second);
        fclose(file);
    }
    return read;
}

/* CPUs that cpu.max of cgroup v2, or cpu.cfs_quota_us of v1, allows; 0: no limit. */
static double cgroup_quota(void)
{
    long long quota = 0, period = 0, none;

    if (numbers_read("/sys/fs/cgroup/cpu.max", &quota, &period) < 0) {
        numbers_read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &quota, &none);
        numbers_read("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &period, &none);
    }
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

void platform_describe_lock_limit(char *message, size_t size, size_t bytes)
{
    struct rlimit limit;

    *message = '\0';
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < bytes) {
        snprintf(message, size, "; this process may lock %llu bytes (RLIMIT_MEMLOCK, `ulimit -l`)",
                 (unsigned long long)limit.rlim_cur);
    }
}

int platform_processor_count(void)
{
    long count = 0;

    /* A fixed cpu_set_t may be too small: grow until the kernel accepts it. */
    for (int size = 1024; size <= 1 << 20; size *= 4) {
        cpu_set_t *set = CPU_ALLOC(size);
        if (set == NULL) {
            break;
        }
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(size), set) == 0) {
            count = CPU_COUNT_S(CPU_ALLOC_SIZE(size), set);
        }
        CPU_FREE(set);
        if (count > 0) {
            break;
        }
    }
    if (count <= 0) {
        count = sysconf(_SC_NPROCESSORS_ONLN);
    }
    double quota = cgroup_quota();
    if (quota > 0 && quota < (double)count) {
        count = (long)(quota + 0.5);
    }
    return count < 1 ? 1 : (int)count;
}

unsigned long platform_thread_id(void)
{
    return (unsigned long)syscall(SYS_gettid);
}

/* msync with MS_ASYNC writes nothing on Linux, and fails with ENOMEM if a page is not mapped.
 * `begin` is the address of a page. */
static bool pages_are_mapped(uintptr_t begin, size_t bytes)
{
    return msync((void *)begin, bytes, MS_ASYNC) == 0 || errno != ENOMEM;
}

bool platform_is_mapped(uintptr_t begin, size_t bytes, uintptr_t *hole)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = begin & ~(page - 1);
    size_t mapped = 0, beyond;

    if (bytes == 0) {
        return true;
    }
    if (bytes <= UINTPTR_MAX - begin && pages_are_mapped(first, bytes + (begin - first))) {
        return true;
    }
    beyond =
        (bytes <= UINTPTR_MAX - begin ? begin + bytes - 1 - first : UINTPTR_MAX - first) / page;
    while (mapped < beyond) { /* the first `mapped` pages are mapped, not all up to `beyond` */
        size_t middle = beyond - (beyond - mapped) / 2;
        if (pages_are_mapped(first, middle * page)) {
            mapped = middle;
        } else {
            beyond = middle - 1;
        }
    }
    *hole = mapped == 0 ? begin : first + mapped * page;
    return false;
}

bool platform_is_of_file(uintptr_t begin, size_t bytes)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512]; /* a longer path's rest is no mapping */
    uintptr_t low, high;
    unsigned long inode;
    bool found = maps == NULL;

    while (!found && fgets(line, sizeof line, maps) != NULL) {
        found =
            sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %lu", &low, &high, &inode) == 3 &&
            low < begin + bytes && begin < high && inode != 0;
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return found;
}

bool platform_thread_start(void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    int failed;

    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed == 0;
}

void platform_thread_name(const char *name)
{
    prctl(PR_SET_NAME, name);
}

void platform_nap_precisely(void)
{
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns; the default is 50 us */
}

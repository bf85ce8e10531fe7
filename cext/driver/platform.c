/* Linux (x86-64, aarch64, WSL). See platform.h. */
#define _GNU_SOURCE
#include "platform.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *const platform_driver_names[] = {
    "libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1", /* WSL: often not in the loader's cache */
    NULL,
};

static atomic_int processors; /* 0: not told */

void platform_processors_set(int count)
{
    atomic_store(&processors, count);
}

int platform_processor_count(void)
{
    int count = atomic_load(&processors);

    return count > 0 ? count : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* msync with MS_ASYNC writes nothing on Linux, and fails with ENOMEM if a page is not mapped. */
bool platform_is_mapped(uintptr_t begin, size_t bytes)
{
    uintptr_t first = begin & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);

    return bytes == 0 ||
           (bytes <= UINTPTR_MAX - begin &&
            (msync((void *)first, bytes + (begin - first), MS_ASYNC) == 0 || errno != ENOMEM));
}

/* PROCMAP_QUERY of <linux/fs.h>, since Linux 6.11, which older headers lack. */
struct mapping_query {
    uint64_t size, flags, from;
    uint64_t begin, end, about, page, offset, inode;
    uint32_t major, minor, name_size, id_size;
    uint64_t name, id;
};

#define MAPPING_QUERY _IOWR('f', 17, struct mapping_query)
#define OR_NEXT 0x10u
#define OF_FILE 0x20u

bool platform_is_of_file(uintptr_t begin, size_t bytes)
{
    struct mapping_query query = {.size = sizeof query, .flags = OR_NEXT | OF_FILE, .from = begin};
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512]; /* a longer path's rest is no mapping */
    uintptr_t low = 0, high;
    unsigned long inode;
    bool found = false;
    int asked;

    if (maps == NULL) {
        return true;
    }
    asked = ioctl(fileno(maps), MAPPING_QUERY, &query);
    if (asked == 0 || errno == ENOENT) { /* the first of a file that ends after `begin`, or none */
        found = asked == 0 && query.begin < begin + bytes;
        fclose(maps);
        return found;
    }
    while (!found && low < begin + bytes && fgets(line, sizeof line, maps) != NULL) {
        found =
            sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %lu", &low, &high, &inode) == 3 &&
            low < begin + bytes && begin < high && inode != 0;
    }
    fclose(maps);
    return found;
}

/* Preferred, not bound: where the node is full, memory of another is better than none. */
int platform_place(void *address, size_t bytes, int node)
{
    enum { PREFERRED = 1 }; /* MPOL_PREFERRED of <numaif.h>, which comes with libnuma */
    uint64_t nodes;

    if (node < 0) {
        return 0;
    }
    nodes = (uint64_t)1 << node;
    /* The system reads one bit less than it is told. */
    return syscall(SYS_mbind, address, bytes, PREFERRED, &nodes, 65ul, 0u) == 0 ? 0 : errno;
}

void platform_run_on(const void *processors, size_t bytes)
{
    (void)sched_setaffinity(0, bytes, processors);
}

bool platform_thread_start(void *(*run)(void *), void *argument, pthread_t *thread)
{
    sigset_t all, before;
    pthread_t detached;
    bool started;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(thread != NULL ? thread : &detached, NULL, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started && thread == NULL) {
        pthread_detach(detached);
    }
    return started;
}

void platform_thread_name(const char *name)
{
    prctl(PR_SET_NAME, name);
}

void platform_nap(long nanoseconds)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = nanoseconds};
    int slack = prctl(PR_GET_TIMERSLACK); /* ns, of the calling thread; the default is 50 us */

    if (slack > 1000) {
        prctl(PR_SET_TIMERSLACK, 1000ul);
    }
    nanosleep(&time, NULL);
    if (slack > 1000) {
        prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
    }
}

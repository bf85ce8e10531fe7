/* What depends on the platform. Plain C. */
#ifndef CUDRIVER_PLATFORM_H
#define CUDRIVER_PLATFORM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Names of the driver library, in the order to try; ends with NULL. */
extern const char *const platform_driver_names[];

/* CPUs that this process may use, by affinity and cgroup, as memory/loading.py finds; until that
 * has told, those of the machine. */
int platform_processor_count(void);
void platform_processors_set(int count);

/* Whether every page of [begin, begin + bytes) is mapped. One system call, which visits mappings,
 * not pages. */
bool platform_is_mapped(uintptr_t begin, size_t bytes);

/* Whether a file is mapped anywhere in [begin, begin + bytes); true also if that cannot be read.
 * One question since Linux 6.11; before, the list of mappings is read, microseconds for each. */
bool platform_is_of_file(uintptr_t begin, size_t bytes);

/* Asks for memory that is not touched yet to lie on a NUMA node, if that has room; no node if it is
 * negative. 0, or errno. */
int platform_place(void *address, size_t bytes, int node);

/* Lets the calling thread run on a set of processors, bit by bit as for sched_setaffinity. One that
 * the system refuses, such as an empty one, changes nothing. */
void platform_run_on(const void *processors, size_t bytes);

/* Starts a thread with all signals blocked: they are for the program's own threads. *thread, unless
 * NULL, is to be joined. */
bool platform_thread_start(void *(*run)(void *), void *argument, pthread_t *thread);

/* Names the calling thread for debuggers and `top`, in at most 15 characters. */
void platform_thread_name(const char *name);

/* Monotonic time in nanoseconds. */
static inline unsigned long long platform_nanoseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

/* Sleeps for less than a second, or until a signal comes. Ends some microseconds late, where
 * nanosleep alone ends 50 late or more. */
void platform_nap(long nanoseconds);

/* The CPU's pause instruction, for loops that poll memory: some tens of nanoseconds. */
static inline void platform_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif

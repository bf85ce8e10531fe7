/* What depends on the platform. Plain C. */
#ifndef CUDRIVER_PLATFORM_H
#define CUDRIVER_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Names of the driver library, in the order to try; ends with NULL. */
extern const char *const platform_driver_names[];

/* Appends to `message` where the loader looks for the driver on this machine. */
void platform_describe_search(char *message, size_t size);

/* NULL if dlopen may open the path: a regular file, a missing one, or a name without a slash. Else
 * what it is, as text: opening a FIFO or a device may never return. */
const char *platform_no_library(const char *path);

/* If the process may lock fewer than `bytes`, writes how many; else an empty string. Not every
 * driver obeys that limit. */
void platform_describe_lock_limit(char *message, size_t size, size_t bytes);

/* CPUs that this process may use, by affinity and the cgroup's quota; at least 1. */
int platform_processor_count(void);

/* The system's number of the calling thread (gettid). */
unsigned long platform_thread_id(void);

/* Whether every page of [begin, begin + bytes) is mapped; *hole gets the first byte that is not. If
 * all is mapped it takes one system call, which visits mappings, not pages. */
bool platform_is_mapped(uintptr_t begin, size_t bytes, uintptr_t *hole);

/* Whether a file is mapped anywhere in [begin, begin + bytes); true also if that cannot be read.
 * Reads the process's list of mappings. */
bool platform_is_of_file(uintptr_t begin, size_t bytes);

/* Starts a detached thread with all signals blocked: they are for the program's own threads. */
bool platform_thread_start(void *(*run)(void *), void *argument);

/* Names the calling thread for debuggers and `top`, in at most 15 characters. */
void platform_thread_name(const char *name);

/* Monotonic time in nanoseconds. */
static inline unsigned long long platform_nanoseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

/* Lowers the calling thread's timer slack, so that short sleeps end on time. */
void platform_nap_precisely(void);

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

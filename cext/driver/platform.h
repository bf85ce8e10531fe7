/* What is particular to a platform, so that another one can follow here. Plain C. */
#ifndef CUDRIVER_PLATFORM_H
#define CUDRIVER_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Names to try for the driver library, in order; ends with NULL. */
extern const char *const platform_driver_names[];

/* Appends to `message` where the loader looks for the driver on this machine. */
void platform_describe_search(char *message, size_t size);

/* NULL where dlopen may be given a path: it is a regular file, or nothing that is there. Else what
 * it is: to open a FIFO, or a device, may never return. */
const char *platform_no_library(const char *path);

/* Writes, where the system lets this process lock fewer than `bytes`, how many those are; else an
 * empty string. Not every driver minds that limit. */
void platform_describe_lock_limit(char *message, size_t size, size_t bytes);

/* Processors that this process may use: affinity and the cgroup's quota together; at least 1. */
int platform_processor_count(void);

/* A stable number for the calling thread, as the system names it (gettid). */
unsigned long platform_thread_id(void);

/* Whether every page of [begin, begin + bytes) is mapped; *hole gets the first byte that is not.
 * One system call, which looks at mappings and not at pages, where all is mapped. */
bool platform_is_mapped(uintptr_t begin, size_t bytes, uintptr_t *hole);

/* Starts a thread that nobody joins and in which no signal is handled: those are for the program's
 * own threads. */
bool platform_thread_start(void *(*run)(void *), void *argument);

/* Names the calling thread for debuggers and `top`: at most 15 characters. */
void platform_thread_name(const char *name);

/* Monotonic time in nanoseconds. */
unsigned long long platform_nanoseconds(void);

/* Lets the calling thread's naps end on time, not when it suits the system. */
void platform_nap_precisely(void);

/* What a thread does between two looks at memory that another one will write: some tens of
 * nanoseconds. */
static inline void platform_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif

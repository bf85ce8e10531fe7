/* The lock in place of the GIL. See compat.h, and "Locks" in README.md. */
#include "compat.h"

#ifdef CUDRIVER_FREE_THREADED

#include <pthread.h>

#include "driver/platform.h"

/* Pauses of the CPU between two looks at the lock, from one, twice as many each time, to this; then
 * the thread sleeps. The lock is held for less than a microsecond, and once a thread sleeps for it,
 * all others that come have to. H200, 16 CPUs, 4 KiB copies of 8, 12 and 16 threads, us a copy with
 * one pause 400 times: 2.9, 4.4, 5.3; to 512: 2.4, 3.3, 4.8; to 4096: 2.5, 2.6, 2.9; C: 2.6. */
#define PAUSES_MOST 4096

static PyMutex lock;
/* How many sections this thread is in. With this model no function is called to find it. */
static _Thread_local int sections __attribute__((tls_model("initial-exec")));

/* In a forked child. CPython forks while no thread is in a section, but the lock may have been
 * handed to one that was about to wake. */
static void lock_renew(void)
{
    if (sections == 0) {
        lock = (PyMutex){0};
    }
}

static __attribute__((constructor)) void lock_setup(void)
{
    pthread_atfork(NULL, NULL, lock_renew);
}

void cudriver_lock_await(void)
{
    for (int pauses = 1; pauses <= PAUSES_MOST && sections > 0 && PyMutex_IsLocked(&lock);
         pauses *= 2) {
        for (int i = 0; i < pauses; i++) {
            platform_relax();
        }
    }
}

void cudriver_lock_begin(PyCriticalSection *section)
{
    if (sections++ == 0) {
        cudriver_lock_await();
    }
    PyCriticalSection_BeginMutex(section, &lock);
}

void cudriver_lock_end(PyCriticalSection *section)
{
    sections--;
    PyCriticalSection_End(section);
}

#endif

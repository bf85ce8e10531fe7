/* The lock in place of the GIL. See compat.h, and "Locks" in README.md. */
#include "compat.h"

#ifdef CUDRIVER_FREE_THREADED

#include <pthread.h>

#include "driver/platform.h"

/* Looks at the lock before a thread sleeps for it, some 10 us: it is held for less than one, and
 * once a thread sleeps, all others that come have to. */
#define LOOKS 400

static PyMutex lock;
static _Thread_local int sections; /* of this thread */

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
    for (int i = 0; i < LOOKS && PyMutex_IsLocked(&lock); i++) {
        platform_relax();
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

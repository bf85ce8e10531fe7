/* The lock of this folder: see private.h. A forked child finds it free: its blocks are ordinary
 * memory. */
#include "private.h"

pthread_mutex_t hostmem_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t hostmem_changed = PTHREAD_COND_INITIALIZER;

static void after_fork_in_child(void)
{
    pthread_cond_init(&hostmem_changed, NULL); /* the waiting threads are not in the child */
    hostmem_unlock();
}

/* When the module is loaded, so before the lock is taken for the first time. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(hostmem_lock, hostmem_unlock, after_fork_in_child);
}

/* The lock of this folder: see private.h. A forked child finds it free: its blocks are ordinary
 * memory. */
#include <pthread.h>

#include "private.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_child(void)
{
    pthread_cond_init(&changed, NULL); /* the waiting threads are not in the child */
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, hostmem_unlock, after_fork_in_child);
}

void hostmem_lock(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
}

void hostmem_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void hostmem_wait(void)
{
    pthread_cond_wait(&changed, &lock);
}

void hostmem_announce(void)
{
    pthread_cond_broadcast(&changed);
}

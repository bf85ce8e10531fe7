/* A thread that keeps another library's context current. See keeper.h. */
#include "keeper.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "driver.h"
#include "platform.h"

/* Owned by the caller of start until it calls end, then by the thread. */
struct cudriver_keeper {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    CUcontext context;
    CUresult result; /* of cuCtxSetCurrent */
    bool started;    /* `result` is set */
    bool ending;
};

static void keeper_free(struct cudriver_keeper *keeper)
{
    pthread_cond_destroy(&keeper->changed);
    pthread_mutex_destroy(&keeper->lock);
    free(keeper);
}

static void *keeper_main(void *argument)
{
    struct cudriver_keeper *keeper = argument;
    CUresult result;

    platform_thread_name("cudriver-keep");
    result = cuda.cuCtxSetCurrent(keeper->context);
    pthread_mutex_lock(&keeper->lock);
    keeper->result = result;
    keeper->started = true;
    pthread_cond_signal(&keeper->changed);
    while (!keeper->ending) {
        pthread_cond_wait(&keeper->changed, &keeper->lock);
    }
    pthread_mutex_unlock(&keeper->lock);
    if (result == CUDA_SUCCESS) {
        cuda.cuCtxSetCurrent(NULL);
    }
    keeper_free(keeper);
    return NULL;
}

struct cudriver_keeper *cudriver_keeper_start(CUcontext context)
{
    struct cudriver_keeper *keeper = calloc(1, sizeof *keeper);
    CUresult result;

    if (keeper == NULL) {
        return NULL;
    }
    keeper->context = context;
    pthread_mutex_init(&keeper->lock, NULL);
    pthread_cond_init(&keeper->changed, NULL);
    if (!platform_thread_start(keeper_main, keeper)) {
        keeper_free(keeper);
        return NULL;
    }
    pthread_mutex_lock(&keeper->lock);
    while (!keeper->started) {
        pthread_cond_wait(&keeper->changed, &keeper->lock);
    }
    result = keeper->result;
    pthread_mutex_unlock(&keeper->lock);
    if (result != CUDA_SUCCESS) {
        cudriver_keeper_end(keeper);
        return NULL;
    }
    return keeper;
}

void cudriver_keeper_end(struct cudriver_keeper *keeper)
{
    if (keeper == NULL) {
        return;
    }
    if (cudriver_driver_is_forked()) {
        free(keeper); /* the lock may have been held at the fork */
        return;
    }
    pthread_mutex_lock(&keeper->lock);
    keeper->ending = true;
    pthread_cond_signal(&keeper->changed);
    pthread_mutex_unlock(&keeper->lock);
}

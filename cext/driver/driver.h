/*
 * The CUDA driver library, opened at run time. Plain C: no Python here.
 *
 * `cuda` is the one process-wide global of this extension, because libcuda is one per process.
 * cudriver_driver_load fills it once; after that it is only read, from any thread, without a lock.
 */
#ifndef CUDRIVER_DRIVER_H
#define CUDRIVER_DRIVER_H

#include <stdbool.h>
#include <sys/types.h>

#include "cuda_abi.h"

/* A pointer per function of the list, by its exported name; NULL where the driver lacks it. */
struct cudriver_table {
#define X(name, args, since) CUresult(*name) args;
    CUDRIVER_FUNCTIONS(X)
#undef X
};

extern struct cudriver_table cuda;

enum cudriver_load {
    CUDRIVER_LOADED = 0,
    CUDRIVER_NOT_FOUND,   /* no library could be opened */
    CUDRIVER_UNSUPPORTED, /* a library was opened, but it is too old or lacks functions */
};

struct cudriver_driver {
    bool loaded;
    bool simulated;
    int version;        /* 1000 * major + 10 * minor, as cuDriverGetVersion says; 0 for a stub */
    char path[4096];    /* the file that was opened */
    char message[8192]; /* why the last load failed: where it looked and what it found */
};

extern struct cudriver_driver cudriver_driver;

/* Opens `path`, or the system's libcuda when it is NULL, and fills `cuda`. Not thread-safe: callers
 * hold the GIL. Idempotent once loaded. On failure nothing is loaded and `message` says why. */
enum cudriver_load cudriver_driver_load(const char *path);

/* cuInit(0), once per process; later calls are a flag's test. May block. */
CUresult cudriver_driver_init(void);

/* Whether cudriver_driver_init has succeeded in this process or in the one it was forked from. */
bool cudriver_driver_is_initialised(void);

/* Whether this process is a fork of one in which the driver was initialised: nothing may be called.
 */
bool cudriver_driver_is_forked(void);

#endif

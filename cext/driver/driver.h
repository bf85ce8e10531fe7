/*
 * The CUDA driver library, opened at run time. Plain C: no Python.
 *
 * `cuda` belongs to the process, as libcuda does; and so do the state of hostmem/ and of engine/.
 * cudriver_driver_load fills it. Once cudriver_driver_init has succeeded it stays as it is, and
 * every thread may read it without a lock.
 */
#ifndef CUDRIVER_DRIVER_H
#define CUDRIVER_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cuda_abi.h"

/* One pointer for each function of the list; NULL if the driver lacks it. */
struct cudriver_table {
#define X(name, args, since) CUresult(*name) args;
    CUDRIVER_CALLED(X)
#undef X
#define X(name, args, since) void *name;
    CUDRIVER_ASKED(X)
#undef X
};

extern struct cudriver_table cuda;

struct cudriver_driver {
    bool loaded;
    bool simulated;
    int version;        /* 1000 * major + 10 * minor, from cuDriverGetVersion; 0 for a stub */
    CUresult asked;     /* of one that is refused: cuDriverGetVersion's; NOT_FOUND: it has none */
    char path[4096];    /* the file that was opened; "": none could be */
    char message[8192]; /* why the last load failed: the loader's words, or what is missing */
};

extern struct cudriver_driver cudriver_driver;

/* Opens `path`, or the system's libcuda if it is NULL, and fills `cuda`. Not thread-safe: the
 * caller holds the GIL. Once loaded, does nothing. False: nothing is loaded, and `message` says
 * why: no library could be opened, or it is not a driver, is too old or lacks functions. */
bool cudriver_driver_load(const char *path);

/* The address of a function of the list; NULL if the driver lacks it, or the list does. */
void *cudriver_driver_function(const char *name);

/* Calls cuInit(0) until it has succeeded once in the process. May block. */
CUresult cudriver_driver_init(void);

/* Lets the next load choose again, unless cudriver_driver_init has succeeded. Whether nothing is
 * loaded now. The caller holds the GIL. */
bool cudriver_driver_drop(void);

/* Whether the driver may be called: cudriver_driver_init has succeeded in this process. */
extern atomic_bool cudriver_driver_ready;

/* Whether this process was forked after the driver was initialised: no driver call is allowed. */
bool cudriver_driver_is_forked(void);

/* Takes the current context off this thread's stack. */
static inline void cudriver_driver_pop(void)
{
    CUcontext popped;

    cuda.cuCtxPopCurrent_v2(&popped);
}

/* Whether a query or a wait was refused only because a stream is being captured into a graph, maybe
 * by another thread. Nothing is known about the work asked about; ask again later. */
static inline bool cudriver_driver_is_capturing(CUresult result)
{
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
           result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
           result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

/* Whether a handle is a default stream, which belongs to whichever context is current. The last one
 * is another stream in each thread. */
#define CUDRIVER_STREAM_PER_THREAD ((CUstream)2)
static inline bool cudriver_stream_is_default(CUstream handle)
{
    return handle == NULL || handle == (CUstream)1 /* CU_STREAM_LEGACY */ ||
           handle == CUDRIVER_STREAM_PER_THREAD;
}

/* During a capture a thread may not make calls whose effect a launch of the graph would miss:
 * waits, queries, allocations, frees. Such a call fails and breaks the capture: the calling
 * thread's own, or another thread's in global mode. `relax` lifts the ban from the calling thread
 * until `restore`; pairs nest. Calls on the captured stream itself are not concerned. */
void cudriver_driver_relax(void);
void cudriver_driver_restore(void);

#endif

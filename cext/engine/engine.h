/*
 * The copy engine for host memory that is not page-locked or not in one piece. Plain C: no Python.
 *
 * A few threads that sleep when idle pack the host's bytes into page-locked slots (or unpack them);
 * they never call the driver. One stream copies the slots: the caller's, or for a blocking copy the
 * engine's own. Where host and device disagree about the order of dimensions the bytes travel in
 * the host's order, and a small kernel puts them in place. That needs the driver's stream memory
 * operations (cuStreamWaitValue32: not before CUDA 11.7, and not on some WSL); where they are
 * missing the calling thread copies alone, what is dense by the driver's own copy of pageable
 * memory and the rest through one slot.
 *
 * Every function is thread-safe. None needs the GIL, and those marked "may block" must be called
 * without it. Unless said otherwise a function takes and leaves the calling thread's context as it
 * is. In a process forked from one that used the driver everything answers NOT_INITIALIZED and
 * touches nothing.
 */
#ifndef CUDRIVER_ENGINE_H
#define CUDRIVER_ENGINE_H

#include <stdbool.h>
#include <stddef.h>

#include "driver/cuda_abi.h"
#include "layout.h"
#include "tuning.h"

/* What a copy returns that its caller interrupted; no code of the driver. */
#define CUDRIVER_STAGING_INTERRUPTED ((CUresult)0x7fff0001)

/*
 * One copy between host and device. `layout` says where the bytes lie; its destination is the
 * device where `to_device`, the host otherwise. Any layout of at most CUDRIVER_MAX_DIMS dimensions
 * will do, simplified or not; it is read during the call only. Host and device memory are borrowed:
 * the caller keeps them alive until the copy is over.
 */
struct cudriver_staging_job {
    bool to_device;
    CUcontext context; /* the stream's; not NULL. A permuted copy's kernel is run in it */
    CUstream stream;   /* the copy comes after the work that is queued on it */
    CUdeviceptr device;
    void *host; /* only read where `to_device` */
    const struct cudriver_layout *layout;
    /* Asked about every 50 ms in a call that waits (small plain copies on the NULL stream do not),
     * by the waiting thread and with no lock held; true stops the copy. NULL: cannot be
     * interrupted. */
    bool (*interrupted)(void *data);
    void *data;
};

/*
 * Copies and returns when the bytes are in place. May block. After an error or an interruption no
 * part of the host's memory is in use any more, nor of the device's unless its stream cannot be
 * waited for; how much was written is undefined.
 */
CUresult cudriver_staging_copy(const struct cudriver_staging_job *job);

/* ---- in stream order ---- */

/* A copy under way; opaque. */
struct cudriver_staging_transfer;

/*
 * Queues the copy on job->stream and returns at once: what is queued on the stream before it is
 * done before the first byte is read or written, what is queued after it waits for the last. On
 * success *transfer is owned by the caller and goes to cudriver_staging_release. A copy that fails
 * later lets the stream go on, and says so through the transfer.
 *
 * Where no thread, page-locked memory or, for a copy that is not small, stream memory operations
 * can be had, it blocks until the copy is over; only then job->interrupted is asked.
 */
CUresult cudriver_staging_copy_async(const struct cudriver_staging_job *job,
                                     struct cudriver_staging_transfer **transfer);

/* Waits until the copy is over (the host's memory no longer in use, the device's bytes in place)
 * and returns its result; INTERRUPTED where the wait was, the copy going on. May block. */
CUresult cudriver_staging_wait(struct cudriver_staging_transfer *transfer,
                               bool (*interrupted)(void *data), void *data);

/* Gives the handle up. A copy that is not over goes on, and both memories must outlive it. NULL is
 * fine. Calls no driver function. */
void cudriver_staging_release(struct cudriver_staging_transfer *transfer);

/* ---- between device memory ---- */

struct cudriver_staging_end {
    CUcontext context; /* that the memory can be used in by kernels */
    CUdeviceptr memory;
    CUmemoryPool pool; /* of the device, for temporaries; NULL: there are none */
};

struct cudriver_staging_between {
    CUcontext context; /* the stream's: that of one of the ends */
    CUstream stream;
    struct cudriver_staging_end dst, src;
    const struct cudriver_layout *layout; /* simplified */
    bool overlap;                         /* the ends may share bytes */
};

/*
 * Queues a copy on the stream and returns at once. In one context a kernel puts the bytes in place,
 * and where the ends overlap it does so by way of a dense temporary. Between two contexts the bytes
 * are packed into a temporary, copied and unpacked, each step where its memory is, on streams of
 * the engine's own that wait for the caller's and that it waits for; from a default stream, on the
 * default streams of both.
 *
 * On failure nothing of it is under way, and *function is the call that failed. *refused: no kernel
 * or no temporary can be had, and another way may be taken. The first kernel of a context takes a
 * while to load. May block.
 */
CUresult cudriver_staging_copy_between(const struct cudriver_staging_between *job, bool *refused,
                                       const char **function);

/* Whether the kernel can do a layout between these addresses, by all that is known. No driver
 * function is called. */
bool cudriver_staging_has_kernel(CUcontext context, const struct cudriver_layout *layout,
                                 CUdeviceptr dst, CUdeviceptr src);

/* ---- in pieces ---- */

/* A copy whose runs the device's engines fetch one by one. Host memory is page-locked, and all that
 * is between its ends in one registration. Addresses of either kind. */
struct cudriver_staging_pieces {
    bool to_device, from_device; /* one at least */
    CUcontext context;           /* the stream's, and the device memory's */
    CUstream stream;
    CUdeviceptr dst, src;
    const struct cudriver_layout *layout; /* simplified, not empty */
};

/*
 * Queues the pieces on the stream and returns at once: as one batch where there are several and the
 * driver has batches (CUDA 12.8), else one by one. Default streams take no batches; with enough
 * pieces the batch is on a stream of the engine's own, between what is queued before and behind it.
 * After a failure a part may be under way on the stream. *function is the call that failed.
 */
CUresult cudriver_staging_copy_pieces(const struct cudriver_staging_pieces *job,
                                      const char **function);

bool cudriver_staging_has_batches(void);

/* Bytes of a piece from which on that is better than packing, by the threads there are. */
size_t cudriver_staging_least_piece(void);

/* ---- which way a copy goes ---- */

enum cudriver_staging_path {
    CUDRIVER_STAGING_EMPTY = 0,
    /* The driver's own copy of pageable memory in one piece: small, or no other thread packs. */
    CUDRIVER_STAGING_DRIVER,
    /* Strided, by the calling thread: small, or no other thread packs. */
    CUDRIVER_STAGING_ONE_SLOT,
    CUDRIVER_STAGING_DENSE,    /* staged; the host's memory in one piece */
    CUDRIVER_STAGING_PACKED,   /* staged; packed or unpacked by the threads */
    CUDRIVER_STAGING_ROWS,     /* staged; the device's side in rows, by 2D copies */
    CUDRIVER_STAGING_PERMUTED, /* staged in the host's order, put in place by a kernel */
};

struct cudriver_staging_plan {
    enum cudriver_staging_path path;
    size_t bytes;     /* in all */
    size_t chunk;     /* bytes of one slot; 0 without a slot, and for small copies */
    int threads;      /* that may work on it, the caller's included */
    size_t crossover; /* below it the driver's own path is taken */
    bool alone;       /* would be staged, but the driver has no stream memory operations */
};

/* Says which way a copy of this layout would go in a context. No driver function is called. */
void cudriver_staging_explain(CUcontext context, const struct cudriver_layout *layout,
                              bool to_device, bool blocking, struct cudriver_staging_plan *plan);

const char *cudriver_staging_path_name(enum cudriver_staging_path path);

/* ---- copies too small for threads ---- */

/* Whether the engine leaves a blocking copy of plain memory in one piece alone. */
bool cudriver_staging_is_small(bool to_device, size_t bytes);

/* A blocking copy of memory in one piece on both sides, in the stream's order; its context is
 * current. */
struct cudriver_small_copy {
    bool up, locked; /* locked: the host's memory is page-locked */
    CUcontext context;
    CUstream stream;
    CUdeviceptr device;
    char *host;
    size_t bytes;
};

/* Carries it out faster than the driver's blocking calls would: *result, and of an error the
 * function in *function. Of TUNING_SMALL_MOST bytes at most, and not up from plain memory: the
 * driver's own call alone waits for the stream before it reads that. False: no page-locked memory
 * is to be had, nothing was done. */
bool cudriver_staging_copy_small(const struct cudriver_small_copy *copy, CUresult *result,
                                 const char **function);

/* As cuStreamSynchronize, sooner where it takes only microseconds (on a device, a copy of
 * TUNING_SOON_MOST bytes): by a word that the stream writes; by questions, for copies to the
 * device that are over nearly at once. */
CUresult cudriver_staging_wait_soon(CUcontext context, CUstream stream);
CUresult cudriver_staging_ask_soon(CUstream stream);

/* ---- threads, what is kept, the end ---- */

/* The limit of threads for all copies together; CUDRIVER_STAGING_THREADS_MOST at most. Setting it
 * to 0 or less brings the usual one back. */
#define CUDRIVER_STAGING_THREADS_MOST 1024
int cudriver_staging_get_threads(void);
void cudriver_staging_set_threads(int threads);

/* What the environment variable asks for, read by the first call in the process: the number of
 * threads, 0 where it is unset or empty, -1 where it is no number from 1 to
 * CUDRIVER_STAGING_THREADS_MOST; such a wish counts for nothing. Takes no lock. */
#define CUDRIVER_STAGING_VARIABLE "CUDRIVER_COPY_THREADS"
int cudriver_staging_wish(void);

/* Gives back the streams, slots and kernels that no copy is using. May block. */
void cudriver_staging_trim(void);

/* Before `context` is destroyed: its copies that have begun are finished, those that still wait for
 * their stream are given up with CONTEXT_IS_DESTROYED, and everything the engine holds in it is
 * dropped. May block. */
void cudriver_staging_forget_context(CUcontext context);

/* Page-locked memory was lost (cudriver_hostmem_forget_home) while no copy was under way: the slots
 * that there are, in all contexts, are not used again. */
void cudriver_staging_renew_slots(void);

/*
 * At exit: copies under way are stopped, their streams let go, the threads ended, streams and slots
 * given back; kernels and scratch memory go with the process (after cudriver_staging_trim there are
 * none). Returns false where that took longer than `milliseconds`; what is left is left alone.
 * Copies answer DEINITIALIZED from then on. May block.
 */
bool cudriver_staging_shutdown(unsigned milliseconds);

#endif

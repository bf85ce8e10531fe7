/*
 * The copy engine: plans every copy, and does those to, from and between devices: by the driver's
 * own copies, by a kernel, or staged. Plain C: no Python.
 *
 * Every function is thread-safe. None needs the GIL; call those marked "may block" without it. A
 * function leaves the calling thread's current context as it was, unless it says otherwise. In a
 * child forked after the driver was initialised, copies return NOT_INITIALIZED and nothing is
 * touched.
 */
#ifndef CUDRIVER_ENGINE_H
#define CUDRIVER_ENGINE_H

#include <stdbool.h>
#include <stddef.h>

#include "driver/cuda_abi.h"
#include "layout.h"
#include "tuning.h"

/* Result of a copy that its caller interrupted. Not a driver code. */
#define CUDRIVER_STAGING_INTERRUPTED ((CUresult)0x7fff0001)

/* ---- the plan of a copy ---- */

enum cudriver_copy_kind {
    CUDRIVER_COPY_EMPTY,
    CUDRIVER_COPY_SAME,      /* both ends are the same memory */
    CUDRIVER_COPY_HOST,      /* host to host: not done here */
    CUDRIVER_COPY_FILL,      /* driver calls that set device memory to one item */
    CUDRIVER_COPY_DIRECT,    /* one driver copy of dense memory */
    CUDRIVER_COPY_2D,        /* driver copies of rows */
    CUDRIVER_COPY_3D,        /* driver copies of stacks of rows */
    CUDRIVER_COPY_STAGED,    /* packing threads and page-locked blocks */
    CUDRIVER_COPY_KERNEL,    /* on one device, by a kernel */
    CUDRIVER_COPY_TEMPORARY, /* on one device, overlapping: not done here */
    CUDRIVER_COPY_PEER,      /* device to device across devices */
    CUDRIVER_COPY_BOUNCED,   /* device to device through other memory: not done here */
};

/* How a staged copy travels. memory/copies.py has their names. */
enum cudriver_staging_path {
    CUDRIVER_STAGING_SMALL,    /* one part, packed by one thread */
    CUDRIVER_STAGING_DENSE,    /* staged; dense on both sides */
    CUDRIVER_STAGING_PACKED,   /* staged; strided on the host, dense on the device */
    CUDRIVER_STAGING_ROWS,     /* staged; strided on the device: 2D copies */
    CUDRIVER_STAGING_PERMUTED, /* staged in the host's order, permuted by a kernel */
};

struct staging_plan {
    enum cudriver_staging_path path;
    bool up;
    size_t chunk;                /* bytes of a part; 0: small */
    int blocks;                  /* at most */
    int threads, most;           /* its own and any copy's, at most, the caller's included */
    size_t crossover;            /* bytes; smaller copies are not staged, unless permuted */
    bool streaming;              /* the threads write past the CPU's caches */
    struct cudriver_layout walk; /* between the host and what travels, dense; ndim 0: one run */
    /* Between what travels, dense, and the device. PERMUTED: that travels to scratch memory on the
     * device, and the kernel does the rest; the first `repeats` dimensions are not in the walk: the
     * host's stride is 0. */
    struct cudriver_layout spread;
    int repeats;
    struct staging_runs *runs; /* borrowed: what travels is these, one behind another; or NULL */
    const struct cudriver_files *files; /* borrowed: the same */
};

struct cudriver_copy_end {
    bool on_device;
    char *host;         /* host memory: the first item */
    CUdeviceptr device; /* device memory: the first item */
    CUcontext context;  /* where kernels can use it */
    int ordinal;        /* of the device */
};

struct cudriver_copy_plan {
    /* Set by the caller. */
    struct cudriver_copy_end dst, src; /* borrowed memory and handles */
    struct cudriver_layout layout;     /* of any form; the planner simplifies it */
    bool blocking;
    bool fixed;  /* the source, one item of the host, does not change: it may be read at once */
    bool borrow; /* not blocking: pageable memory may be read until the copy is over */
    bool ask;    /* blocking: ask the driver whether host memory is page-locked, however small */
    /* Set by the planner. */
    enum cudriver_copy_kind kind;
    size_t bytes;
    CUcontext context; /* the context of the stream; NULL: host to host */
    char *host;        /* between host and device: the host end, and the device end */
    CUdeviceptr device;
    size_t word;                /* FILL: its item repeats one of so many bytes */
    bool page_locked;           /* the host end; false if the driver was not asked */
    bool one_run;               /* the host end is known to lie in one registration */
    bool coherent;              /* pageable and dense, of a device that reads the host's pages */
    bool crawls;                /* and was slow to do so */
    struct staging_plan staged; /* STAGED */
};

/* Chooses how a copy is done, on a stream of the ends' own context. Calls only queries. */
void cudriver_copy_plan_make(struct cudriver_copy_plan *plan);

/* Adapts a plan to a stream of another context, which is on the device of the copy (on either,
 * between two). False: the copy's kernels could not use the memory there. Calls only queries. */
bool cudriver_copy_plan_move(struct cudriver_copy_plan *plan, CUcontext context);

const char *cudriver_copy_kind_name(enum cudriver_copy_kind kind);

/* Whether kernels in a context can use a device's memory: pool memory in every context of its
 * device, other memory only in its own. Calls only a query. */
bool cudriver_copy_is_usable(CUdeviceptr memory, CUcontext context);

/* ---- following a plan ---- */

struct cudriver_staging_transfer; /* a staged copy under way; opaque */

/* How to follow a plan that is not EMPTY, SAME, HOST, TEMPORARY or BOUNCED. */
struct cudriver_copy_call {
    CUstream stream; /* of plan->context, which is current; NULL: the default stream */
    bool beside;     /* by the kernel, if it can: of cudriver_runs_issue */
    /* Called about every 50 ms while a blocking copy waits for the stream's earlier work, or a
     * staged or small one for its own, and between the parts of TUNING_CUT bytes of the driver's
     * own copy, by the waiting thread, without locks; true stops the copy. NULL: it cannot be
     * interrupted. */
    bool (*interrupted)(void *data);
    void *data;
    /* Set by the call. */
    bool refused; /* nothing was done, and the copy may be BOUNCED instead */
    bool queued;  /* interrupted, but the stream goes on: what it uses, but for pageable memory that
                     is read, must outlive that. *transfer may be set */
    void *slot;   /* the same: page-locked memory that is used too, or NULL; then for
                     cudriver_hostmem_free */
    bool crawls;  /* the driver's own copy did: all is staged */
    const char *function; /* after an error: the driver call that failed; NULL: several calls */
};

/*
 * If `transfer` is NULL, copies, and returns when the bytes are in place. After an error or an
 * interruption nothing is in use, unless waiting for the stream failed or call->queued is set. How
 * much was written is undefined.
 *
 * Otherwise queues the copy on the stream. Work queued before it finishes before the first byte is
 * written; work queued after it waits for the last byte. Both memories must outlive the copy. What
 * it reads it may read until then, and returns at once; but pageable memory up, unless
 * plan->borrow, was read when it returns. Of a STAGED copy the caller owns *transfer, and passes it
 * to cudriver_staging_release; if it fails later, the stream goes on and the transfer holds the
 * error. A STAGED copy blocks until it is over if no thread, memory, kernel or stream memory
 * operations can be had, or TUNING_HELD bytes are in use; *transfer is then NULL.
 *
 * The plan is for the same kind of call, blocking or not. May block.
 */
CUresult cudriver_copy_follow(const struct cudriver_copy_plan *plan,
                              struct cudriver_copy_call *call,
                              struct cudriver_staging_transfer **transfer);

/* ---- many copies at once ---- */

/* A dense copy between host memory and a device, or on one device. */
struct cudriver_run {
    uint64_t dst, src, bytes; /* addresses, of the host or the device */
    bool up, down;            /* from or to the host */
    bool pageable;            /* the host's memory is not page-locked */
    unsigned char path; /* set by cudriver_runs_choose. memory/copies_plan.py has the order: */
};

enum cudriver_run_path {
    CUDRIVER_RUN_KERNEL, /* with others, by one launch of a kernel; without it, as DIRECT */
    CUDRIVER_RUN_DIRECT, /* by a driver copy of its own */
    CUDRIVER_RUN_STAGED, /* pageable: together with others of its direction */
    CUDRIVER_RUN_APART,  /* pageable, and the only one not beside big copies: by itself */
};

/* Chooses which way each run goes; `beside`: as in cudriver_copy_call. */
void cudriver_runs_choose(struct cudriver_run *runs, size_t count, bool beside);

/*
 * Queues copies on call->stream, of `context`, which is current. They are done in any order: none
 * writes what another reads or writes. A kernel does the small ones, if it can be had; each other
 * is a copy by itself. Those of pageable memory are staged together; `borrow` as in a plan.
 *
 * *table: what the kernel reads, which the caller gives to cudriver_hostmem_free once the stream
 * has passed the copies; or NULL. *transfer: of the staged copies, as by cudriver_copy_follow.
 * After an error nothing is under way, unless the stream cannot be waited for or call->queued is
 * set. May block, as staged copies do; and loading the kernel takes a while at the first use in a
 * context.
 */
CUresult cudriver_runs_issue(struct cudriver_run *runs, size_t count, CUcontext context,
                             bool borrow, struct cudriver_copy_call *call, void **table,
                             struct cudriver_staging_transfer **transfer);

/* ---- files ---- */

/* Bytes of an open file, for device memory. */
struct cudriver_file_run {
    int64_t begin;  /* in what travels. Behind the end of the run before is a gap, which travels
                       too: the device's memory has room for it behind that run */
    int64_t bytes;  /* at least 1 */
    int64_t device; /* address */
    int64_t array;  /* its number: runs of one array lie in one allocation */
    int64_t file;   /* descriptor */
    int64_t offset;
    int64_t row, pitch; /* rows of `row` bytes, `pitch` bytes apart in the file; 0, 0: dense */
};

struct cudriver_files {
    const struct cudriver_file_run *run; /* borrowed */
    size_t count, bytes;                 /* runs; bytes that travel, at least 1 */
    size_t piece;                        /* bytes that one thread reads at once, at least 1 */
    _Atomic int64_t *moved;              /* borrowed: bytes that were read so far */
    _Atomic int64_t *ended; /* borrowed: not 0 ends the copy: the number, from 1 on, of a run that
                               could not be read, or a negative one, which others set */
};

/* Reads files into device memory of `context`, which is current; the packing threads read. Returns
 * when the bytes are in place, or SUCCESS or INTERRUPTED once *files->ended is not 0. */
CUresult cudriver_files_copy(const struct cudriver_files *files, CUcontext context,
                             struct cudriver_copy_call *call);

/* ---- staged copies ---- */

/* Returns the result of a copy: the host's memory is no longer in use. `streamed` is SUCCESS if the
 * stream has passed the copy. If it is an error, nobody knows: waits until the copy is over, or
 * gives it and its blocks up once the context proves broken. NULL is over. May block. */
CUresult cudriver_staging_wait(struct cudriver_staging_transfer *transfer, CUresult streamed);

/* Drops the handle. A copy that is not over goes on, and both memories must outlive it. NULL is
 * fine. Calls no driver function. */
void cudriver_staging_release(struct cudriver_staging_transfer *transfer);

/* Adds a handle to those of *all, which are waited for and released as one. NULL is fine. */
void cudriver_staging_join(struct cudriver_staging_transfer **all,
                           struct cudriver_staging_transfer *more);

/* ---- waiting ---- */

/* Waits while query(handle) returns NOT_READY, and returns what else it returned: polls for a
 * moment, then sleeps between two queries. INTERRUPTED if `interrupted`, called about every 50 ms,
 * said so; NULL: the wait cannot be interrupted. */
CUresult cudriver_staging_poll(CUresult (*query)(void *handle), void *handle,
                               bool (*interrupted)(void *data), void *data);

/* SUCCESS if the work that is queued on the stream by now is done, and what its next operation
 * would wait for; else NOT_READY. With `wait`, waits for that in this way. */
CUresult cudriver_staging_stream_ask(CUstream stream, bool wait, bool (*interrupted)(void *data),
                                     void *data);

/* The same before a blocking call issues anything, which cannot be interrupted afterwards. For the
 * default stream costs one query if that is idle, and so are the streams that it waits for. */
CUresult cudriver_staging_stream_settle(CUstream stream, bool (*interrupted)(void *data),
                                        void *data);

/* Lets work that is queued on `second` from here on wait for the work so far on `first`, each in
 * its context (both NULL: in the current one). Neither is being captured. May block: the driver
 * does where a stream's queue is full. */
CUresult cudriver_staging_follow(CUcontext first_context, CUstream first, CUcontext second_context,
                                 CUstream second);

/* ---- threads, what is kept, the end ---- */

/* Upper limit of packing threads for all copies together, CUDRIVER_STAGING_THREADS_MOST at most.
 * Set 0 or less for the default. */
#define CUDRIVER_STAGING_THREADS_MOST 1024
int cudriver_staging_get_threads(void);
void cudriver_staging_set_threads(int threads);

/* Whether pageable memory is left to devices that read it through the host's page tables; true at
 * first. */
void cudriver_staging_set_coherent(bool coherent);

/* Frees what the engine has in contexts in which it does nothing. Unless the caller knows that its
 * work on the devices is over (`idle`), not where kernels may run: to wait for a context before
 * would break a capture in it. May block. */
void cudriver_staging_trim(bool idle);

/* Call before `context` is destroyed. Waits for its copies, and frees everything the engine holds
 * in it. May block. */
void cudriver_staging_forget_context(CUcontext context);

/* At exit: stops the copies under way, lets their streams go on, ends the threads. What the engine
 * has in contexts goes with the process. False: not done within `milliseconds`, and the rest is
 * left as it is. Later copies return DEINITIALIZED. May block. */
bool cudriver_staging_shutdown(unsigned milliseconds);

#endif

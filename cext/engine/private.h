/*
 * The insides of the copy engine.
 *
 *   state.c       the lock and the settings
 *   blocking.c    blocking copies, and what explain_copy says of them
 *   async.c       copies in stream order
 *   issue.c       puts a transfer on its stream: through a ring, or one slot
 *   transfer.c    transfers: from making one until it is over
 *   ring.c        slots that a stream copies from or to itself, and which copy gets which
 *   pack.c        the threads that pack and unpack them         no CUDA
 *   commands.c    what the stream does for that: chunks, commands
 *   permute.c     what a permuted copy adds to that: boxes, the kernel
 *   between.c     copies between device memory, in stream order
 *   pieces.c      copies of many pieces by the device's own engines, in batches
 *   plan.c        which way a copy goes                          no CUDA
 *   stream.c      the caller's stream: waiting for it; streams of our own beside it
 *   place.c       what the engine holds in a context, from first use to last
 *   rows.c        a slot's bytes to and from the device's rows
 *   kernels.c     the kernel that permutes
 *   memory.c      memcpy with streaming stores                   no CUDA
 *
 * One lock, `staging.lock`: a leaf but for the page-locked pool's, held for moments, never while
 * calling the driver, moving bytes or asking `interrupted`. A host function on a stream may
 * therefore take it.
 *
 * Streams share hardware channels, and one that waits for a value holds up all that share its
 * channel; so what lets it go on must never depend on another stream, nor on a thread that calls
 * the driver. The copies of a transfer are therefore in one stream (the caller's, or for a blocking
 * copy the ring's own), each after a wait for the host's counter `ready`, each followed by a write
 * to the counter `passed`. (Two streams that take turns were 2 to 6 % faster, and would hold up
 * twice as many channels of the caller's.) The threads that pack and store `ready` only ever look
 * at memory. One of them is always there, even where a blocking caller packs too: a call of the
 * driver may keep that one waiting.
 */
#ifndef CUDRIVER_ENGINE_PRIVATE_H
#define CUDRIVER_ENGINE_PRIVATE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "engine.h"

#define STAGING_RING_SLOTS 4
#define STAGING_RING_COUNTERS 4096 /* bytes before the first slot */
#define STAGING_KERNEL_DIMS 6
#define STAGING_KERNEL_UNITS 5 /* item sizes: 1, 2, 4, 8, 16 bytes */
#define STAGING_SIDES 4
#define STAGING_POLL_NS 50000000ull

/* The result of what needs a thread that packs, where none can be started; no code of the driver.
 * The copy is then done by the calling thread alone. */
#define STAGING_NO_THREADS ((CUresult)0x7fff0002)

/* ---- settings ---- */

struct staging_settings {
    int packers;           /* threads that pack for one copy */
    int medium;            /* the same for a middling dense copy: TUNING_MEDIUM_BYTES */
    int threads;           /* for all copies together, and for a strided one */
    int linger;            /* ns that a thread without work looks for more before it sleeps */
    size_t crossover_up;   /* bytes from which on a copy to the device is staged */
    size_t crossover_down; /* the same for copies from it */
    size_t slot;      /* bytes of one of the four slots of a copy, at most; half, permuted up */
    size_t slot_up;   /* the same of a blocking copy to the device that is not permuted */
    size_t streaming; /* largest blocking copy up with streaming stores; 0: no copy at all */
};

void staging_settings_get(struct staging_settings *settings);

/* ---- plans ---- */

struct staging_plan {
    enum cudriver_staging_path path;
    bool up;
    struct cudriver_layout walk; /* simplified, in the order in which the bytes travel */
    bool host_dense;             /* in the order of the walk, in one piece */
    bool device_dense;           /* the same; true of what a permuted copy sends */
    size_t bytes;
    bool streaming;
    /* PERMUTED: the walk's device side is scratch memory. What the kernel does is `spread`: its
     * first `repeats` dimensions have no counterpart in the walk (the host's stride is 0), the
     * others are the walk's; the source's strides are the scratch's where `up`, else the
     * destination's. */
    struct cudriver_layout spread;
    int repeats;
};

/* `kernels`: whether the permuting kernel may be used. */
void staging_plan_make(const struct cudriver_layout *layout, bool up, CUdeviceptr device,
                       const struct staging_settings *settings, bool kernels,
                       struct staging_plan *plan);

/* Bytes of one of a copy's slots, at most. */
size_t staging_slot_most(const struct staging_plan *plan, bool blocking,
                         const struct staging_settings *settings);

/* Whether the host's bytes lie in pieces that are moved as fast as memory in one piece. */
bool staging_runs_are_long(const struct cudriver_layout *walk, bool host_dense);

/* How many threads are to work on a copy, the caller's included. */
int staging_threads_wanted(size_t bytes, bool long_runs, const struct staging_settings *settings);

/* Whether a copy failed for want of a kernel, stream memory operations, page-locked memory or
 * threads: it can be done without. */
bool staging_must_do_without(enum cudriver_staging_path path, CUresult result);

/* Whether copies on this path go through a ring, with threads that pack. */
static inline bool staging_is_staged(enum cudriver_staging_path path)
{
    return path >= CUDRIVER_STAGING_DENSE;
}

/* ---- places ---- */

struct staging_kernels; /* kernels.c */

/* Slots that one stream's copies go through, one copy after another: ring.c. */
struct staging_ring {
    struct staging_ring *next; /* in the place's list */
    CUstream stream;           /* borrowed; of the copies under way */
    CUstream own;              /* owned; NULL until a blocking copy needs it */
    int users;                 /* copies under way */
    bool orphan;               /* goes with the last of them */
    bool lost;                 /* one of them was; no other copy takes it */
    char *block;               /* owned, from the page-locked pool, mapped */
    size_t slot_bytes;
    unsigned generation;      /* of the engine's when it was made: no copy takes an older one */
    _Atomic uint32_t *ready;  /* the host's counter, in the block */
    _Atomic uint32_t *passed; /* the stream's */
    CUdeviceptr ready_address, passed_address;
    uint32_t issued;     /* the last value that a copy was given */
    size_t turn;         /* where the next small copy down begins */
    CUdeviceptr scratch; /* owned; 0: none. As large as a slot */
};

struct staging_place {
    struct staging_place *next;
    CUcontext context;
    unsigned long long id; /* of the context, where the driver has them */
    int users;             /* calls at work in it */
    bool closing;
    struct cudriver_staging_transfer *transfers; /* not over */
    struct staging_ring *rings;                  /* owned */
    bool tight;                    /* there was no memory for more than a ring needs */
    CUstream probe;                /* owned; tells whether the context is broken */
    CUstream sides[STAGING_SIDES]; /* owned: for what goes beside the caller's stream */
    int side;                      /* the next where all are busy */
    struct staging_kernels *kernels[STAGING_KERNEL_UNITS]; /* owned */
    bool no_kernels;
    bool no_counters; /* the driver cannot wait for values */
};

struct staging_engine {
    pthread_mutex_t lock;
    pthread_cond_t quiet; /* something ended: for those who close */
    struct staging_place *places;
    struct staging_settings settings;
    bool ready; /* conditions and settings are made */
    bool stopping;
    struct cudriver_staging_transfer *packing; /* started, not over: the ring threads' work */
    sem_t ring_sleep;                          /* for idle threads of the rings */
    int ring_threads, ring_idle;
    int ring_calls; /* to sleeping threads, no longer counted as idle: sent when the lock is free */
    _Atomic unsigned news; /* changes when there may be a piece to take */
    int ring_wanted;       /* threads that the transfers on the list want, together */
    int ring_users;        /* copies under way through rings */
    int ring_unwatched;    /* of those, whose counters no caller looks at */
    int strays;            /* small copies that were given up and are still in their streams */
    bool watched;          /* one of them looks at the counters now and then */
    unsigned generation;   /* slots of an older one are given back */
};

extern struct staging_engine staging;

/* Locks. The first call in the process makes what the lock protects. */
void staging_lock(void);
void staging_unlock(void);

/* A condition that waits by the monotonic clock. */
void staging_condition_init(pthread_cond_t *condition);

/* Waits at most `nanoseconds`, the lock held. */
void staging_condition_wait(pthread_cond_t *condition, unsigned long long nanoseconds);

/* ---- blocking.c ---- */

/* A blocking copy; the context is current. */
CUresult staging_copy_now(const struct cudriver_staging_job *job, struct staging_place *place);

/* ---- place.c ---- */

/* NOT_INITIALIZED in a fork, DEINITIALIZED after shutdown, else the place of `context`, with one
 * more user and the context pushed; ends with staging_place_leave. */
CUresult staging_place_enter(CUcontext context, struct staging_place **place);
void staging_place_leave(struct staging_place *place);

/* Whether streams can wait for values and write them, as rings need it: by what the driver has, and
 * by what it has refused in this context. *kernels: whether the permuting kernel, which has to be
 * fed by a ring, may be used. */
bool staging_place_counts(struct staging_place *place, bool *kernels);
bool staging_context_counts(CUcontext context, bool *kernels);

/* ---- stream.c ---- */

/* Waits until what is queued on the stream is done. INTERRUPTED. */
CUresult staging_stream_wait(CUstream stream, bool (*interrupted)(void *), void *data);

/* SUCCESS: nothing is queued on the stream; NOT_READY. */
CUresult staging_stream_query(CUstream stream);

/* Whether it is one of the default streams, which have no handle of their own. */
bool staging_stream_is_default(CUstream stream);

/* A stream of the place's, in no order with others but by staging_stream_follow; an idle one where
 * there is one. Borrowed for the time of a call: destroyed streams finish what is on them. The
 * place's context is current. */
CUresult staging_side_get(struct staging_place *place, CUstream *side);

/* One stream in its context. */
struct staging_point {
    CUcontext context;
    CUstream stream;
};

/* What is queued on `second` from now on waits for what is queued on `first`. */
CUresult staging_stream_follow(struct staging_point first, struct staging_point second);

/* ---- transfer.c ---- */

/* A chunk of a transfer through a ring. */
struct staging_chunk {
    size_t left;  /* bytes not yet packed or unpacked; under the lock */
    size_t place; /* in the transfer's part of the ring */
    size_t needs; /* chunks from the first on that must be done with before */
};

struct cudriver_staging_transfer {
    atomic_int references;
    struct staging_place *place;            /* borrowed; valid until the transfer is over */
    struct cudriver_staging_transfer *next; /* in the place's list */
    CUstream stream;
    bool own; /* blocking: on the ring's own stream */
    bool up;
    char *host;
    struct cudriver_layout walk;
    size_t bytes;
    /* Small: one slot, host functions. */
    bool small;
    char *slot; /* owned, from the page-locked pool */
    /* Through a ring. */
    bool host_dense, streaming;
    struct staging_ring *ring; /* borrowed from the place */
    size_t at;                 /* where in the ring its memory begins */
    uint32_t base;             /* the counters' value before the first chunk */
    size_t chunks;
    size_t steps;               /* values of `passed`: after the last, nothing looks at the ring */
    size_t *starts;             /* owned: chunks + 1 places in the walk */
    struct staging_chunk *cuts; /* owned */
    /* The rest under the lock. */
    struct cudriver_staging_transfer *packing; /* the next in the engine's list */
    size_t taken;                              /* up to here pieces were given out */
    size_t chunk;                              /* the chunk that `taken` is in */
    size_t published;                          /* chunks that `ready` says */
    int threads;                               /* that it wants */
    int in_flight;                             /* pieces at work */
    bool packed;                               /* the ring threads are done with it */
    bool started;                              /* the stream has come to it */
    bool listed;                               /* among the ring threads' work */
    bool watched;                              /* its caller looks at the counters */
    int host_pending;                          /* what still uses the host's memory */
    int device_pending;                        /* what follows on the stream */
    bool making;                               /* its call has not returned */
    bool begun;                                /* the host's memory was touched */
    bool stopped;
    bool stray; /* small, given up, and still in its stream */
    bool lost;  /* nobody knows whether its stream still uses its slots */
    bool over;
    CUresult result;
    pthread_cond_t done;
    unsigned long long checked; /* when it was asked whether the context still works */
    int doubts;                 /* how often in a row that failed */
};

/* One that is being made, in the place's list; NULL without memory. */
struct cudriver_staging_transfer *staging_transfer_new(struct staging_place *place,
                                                       CUstream stream);

void staging_transfer_hold(struct cudriver_staging_transfer *transfer);
void staging_transfer_drop(struct cudriver_staging_transfer *transfer);

/* Locked: the host's memory is no longer in use. */
void staging_transfer_host_over(struct cudriver_staging_transfer *transfer);

/* Locked: one thing that follows on the stream has happened. */
void staging_transfer_device_over(struct cudriver_staging_transfer *transfer);

/* Nothing more is begun; what has begun ends by itself. */
void staging_transfer_stop(struct cudriver_staging_transfer *transfer, CUresult result);

/* Waits until no thread of ours touches host memory for it. */
void staging_transfer_quiet(struct cudriver_staging_transfer *transfer);

/* Locked: what follows on the stream is not waited for any more. */
void staging_transfer_abandon(struct cudriver_staging_transfer *transfer);

/* Locked: nobody knows whether its stream still uses its slots, so that they are left to it. */
void staging_transfer_lose(struct cudriver_staging_transfer *transfer);

/* Gives up the transfers of a place that have not begun. `all`: those that have, too, and blocking
 * copies. */
void staging_place_cancel(struct staging_place *place, CUresult result, bool all);

/* Asks, now and then, whether the context still works: in a broken one copies would never end. */
void staging_transfer_check(struct cudriver_staging_transfer *transfer);

/* ---- issue.c ---- */

/* Makes a transfer and queues it; *made is the caller's. */
CUresult staging_transfer_make(const struct cudriver_staging_job *job, struct staging_place *place,
                               const struct staging_plan *plan, bool own,
                               struct cudriver_staging_transfer **made);

/* A blocking copy through a ring. NOT_SUPPORTED: the driver has no counters, or the kernel cannot
 * be had. */
CUresult staging_copy_ring(const struct cudriver_staging_job *job, struct staging_place *place,
                           const struct staging_plan *plan);

/* ---- ring.c ---- */

/* A ring for the transfer's chunks, all of which its slots can take, with device memory of a slot's
 * size if `scratch`. */
CUresult staging_ring_get(struct cudriver_staging_transfer *transfer, size_t slot_bytes,
                          bool scratch);

/* The memory of one of its chunks. */
char *staging_ring_memory(const struct cudriver_staging_transfer *transfer, size_t chunk);

/* Locked. One user of a ring less; it goes where its place has gone. */
void staging_ring_leave(struct staging_ring *ring);

/* Frees a list of rings; those in use go with their last copy. `current`: the context is, and
 * streams are destroyed; `all`: device memory is freed, which waits for the device. */
void staging_rings_free(struct staging_ring *rings, bool current, bool all);

/* ---- pack.c ---- */

/* Sees that a thread for the rings lives before a stream depends on one; else NO_THREADS. */
CUresult staging_ring_ensure(void);

/* Locked. The threads begin with a transfer; takes over a reference. */
void staging_ring_list(struct cudriver_staging_transfer *transfer);

/* For a stopped transfer that no thread works on: lets its stream go to the end of it; and, where
 * that was reached, though perhaps not by all of its commands, ends its use of the ring. */
void staging_ring_open(struct cudriver_staging_transfer *transfer);
void staging_ring_close(struct cudriver_staging_transfer *transfer);

/* A copy for so many threads is about to begin: they may wake meanwhile. */
void staging_ring_expect(int threads);

/* Locked: all threads wake. */
void staging_ring_rouse(void);

/* The calling thread works on a transfer until it is over. False: interrupted. */
bool staging_ring_help(struct cudriver_staging_transfer *transfer, bool (*interrupted)(void *),
                       void *data);

/* ---- commands.c ---- */

/* Bytes of a slot for a copy of so many, the only one under way. */
size_t staging_ring_slot(size_t bytes, size_t most);

/* Queues a copy through a ring on job->stream. NOT_SUPPORTED where the driver or the kernel cannot.
 */
CUresult staging_ring_start(struct cudriver_staging_transfer *transfer,
                            const struct cudriver_staging_job *job,
                            const struct staging_plan *plan);

/* ---- permute.c ---- */

/* How a permuted walk falls into boxes: `rows` entries of dimension `split` at a time, all that is
 * below, and the dimensions above one by one. */
struct staging_boxes {
    int split; /* -1: the walk has no dimensions */
    int64_t rows;
    size_t per_split; /* boxes along the split dimension */
    size_t row_bytes; /* below one entry of it */
    size_t largest;   /* bytes */
    size_t count;
};

/* Boxes of at most `most` bytes, or of one row. */
struct staging_boxes staging_boxes_make(const struct staging_plan *plan, size_t most);

/* Box number `index`: bytes [begin, end) of the walk, and what the kernel does with them. */
void staging_box_find(const struct staging_plan *plan, const struct staging_boxes *boxes,
                      size_t index, size_t *begin, size_t *end, struct cudriver_layout *spread);

/* The kernel for items of 1 << unit bytes; NOT_SUPPORTED where it cannot be had. The place's
 * context is current. */
CUresult staging_place_kernel(struct staging_place *place, int unit,
                              struct staging_kernels **kernels);

/* The kernel for a plan; NOT_SUPPORTED where it cannot be had. */
CUresult staging_place_kernels(struct staging_place *place, const struct staging_plan *plan,
                               CUdeviceptr device, struct staging_kernels **kernels);

/* ---- rows.c ---- */

/* Copies bytes [begin, end) of a walk between the device and `slot`, which holds only those, on
 * `stream`. `rows` comes from staging_rows_make. */
CUresult staging_device_copy(const struct cudriver_layout *rows, bool up, CUdeviceptr device,
                             char *slot, size_t begin, size_t end, CUstream stream);

/* The device's side of a walk against a dense slot, with the longest runs. */
void staging_rows_make(const struct cudriver_layout *walk, bool up, struct cudriver_layout *rows);

/* ---- kernels.c ---- */

/* log2 of the item size in which the kernel can do this layout between these addresses; -1: it
 * cannot. */
int staging_kernels_unit(const struct cudriver_layout *layout, CUdeviceptr dst, CUdeviceptr src);

/* log2 of the largest item size, of at most 1 << most bytes, that divides a layout and its
 * addresses; and whether the kernel has enough dimensions for the layout in such items. */
int staging_kernels_size(const struct cudriver_layout *layout, CUdeviceptr dst, CUdeviceptr src,
                         int most);
bool staging_kernels_fit(const struct cudriver_layout *layout, int unit);

/* Loads the module for one item size into the current context; *kernels is owned by the caller. */
CUresult staging_kernels_load(int unit, struct staging_kernels **kernels);
void staging_kernels_unload(struct staging_kernels *kernels);

/* Queues dst[layout] = src[layout], both device memory, item by item of the kernels' size, which
 * must divide the layout and the addresses. */
CUresult staging_kernels_launch(const struct staging_kernels *kernels,
                                const struct cudriver_layout *layout, CUdeviceptr dst,
                                CUdeviceptr src, CUstream stream);

/* ---- small.c ---- */

/* A block of the page-locked pool, which may have to grow for it; cudriver_hostmem_free() gives it
 * back. NULL in *slot after a failure. */
CUresult staging_slot_get(size_t bytes, void **slot);

/* ---- memory.c ---- */

/* memcpy past the caches where the processor can; the bytes are visible to all after it. */
void staging_memory_stream(void *dst, const void *src, size_t bytes);

#endif

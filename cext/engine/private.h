/*
 * The insides of the copy engine. engine.h is the public interface. README.md draws the states of a
 * transfer.
 *
 *   state.c       the lock, the settings
 *   plan.c        how a copy is done; what explain_copy tells
 *   walk.c        how a staged copy travels                      no CUDA
 *   execute.c     follows a plan: the driver's own copies, or one of the files below
 *   fill.c        the driver's fills
 *   staged.c      copies that are staged, blocking or in stream order; undoes one that failed
 *   small.c       copies too small for threads
 *   transfer.c    the life of a transfer, from its creation until it is over
 *   commands.c    what a transfer's stream does: cuts chunks, queues commands
 *   ring.c        rings: which transfer gets which
 *   pack.c        the packing threads                            no CUDA
 *   permute.c     permuted copies: boxes, the kernel of a place
 *   kernels.c     the permuting kernel: PTX, loading, launching
 *   between.c     copies between device memory
 *   place.c       places: creation, trim, closing, exit
 *   stream.c      waiting for a stream or an event; streams of the engine's own
 *   rows.c        copies between a slot and strided device memory
 *   layout.c      strided memory on the host: see layout.h       no CUDA
 *
 * The terms:
 *
 *   up, down   to the device, from the device
 *   transfer   one staged copy under way, counted by references
 *   place      what the engine owns in one context: rings, streams, kernels
 *   ring       a page-locked block of four slots and two counters: the threads store in `ready`
 *              how many chunks are packed (or unpacked), the stream in `passed` how many are copied
 *   slot       a fourth of a ring; or, for a small copy, a page-locked block
 *   chunk      what the stream copies between two waits; it may be longer than a slot
 *   piece      what one thread packs at a time
 *   walk       a layout, in the order in which its bytes travel
 *   box        the chunk of a permuted copy
 *   Locked.    the caller holds the lock
 *
 * One lock, `staging.lock`. While it is held, only the page-locked pool's lock may be taken. It is
 * held for moments, never while calling the driver, moving bytes or calling `interrupted`. So a
 * host function on a stream may take it.
 *
 * Streams share hardware channels, and a stream that waits for a value blocks its whole channel. So
 * what ends the wait must not depend on another stream or on a thread that calls the driver. All
 * copies of a transfer are therefore in one stream: each after a wait for `ready`, each followed by
 * a write of `passed`. (Two streams in turn were 2 to 6 % faster, but would block twice as many
 * channels.) The packing threads only look at memory. At least one of them is always there, even if
 * a blocking caller packs too, because a driver call may keep the caller waiting.
 *
 * Ownership: a place owns its rings, streams and kernels. A transfer owns its chunk tables and its
 * small slot, and borrows place and ring until it is over.
 */
#ifndef CUDRIVER_ENGINE_PRIVATE_H
#define CUDRIVER_ENGINE_PRIVATE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "engine.h"

#define STAGING_RING_SLOTS 4
#define STAGING_RING_COUNTERS 4096 /* bytes of a ring before its first slot; holds the counters */
#define STAGING_KERNEL_DIMS 6
#define STAGING_KERNEL_UNITS 5 /* item sizes: 1, 2, 4, 8, 16 bytes */
#define STAGING_SIDES 4
#define STAGING_POLL_NS 50000000ull

/* No packing thread can be started. Not a driver code: the calling thread then copies alone. */
#define STAGING_NO_THREADS ((CUresult)0x7fff0002)

/* ---- settings ---- */

struct staging_settings {
    int packers;           /* threads for one dense copy */
    int medium;            /* the same up to TUNING_MEDIUM_BYTES */
    int threads;           /* for all copies together, or for one strided copy */
    int linger;            /* ns that an idle thread polls before it sleeps */
    size_t crossover_up;   /* bytes from which on a copy up is staged */
    size_t crossover_down; /* the same for a copy down */
    size_t slot;           /* bytes of a slot, at most; half for a permuted copy up */
    size_t slot_up;        /* the same for a blocking copy up that is not permuted */
    size_t streaming; /* bytes of the largest blocking copy up that uses streaming stores; 0: none
                         does */
};

void staging_settings_get(struct staging_settings *settings);

/* ---- plans ---- */

/* Sets copy->staged: how the copy travels in copy->context. `kernels`: whether the permuting kernel
 * may be used. */
void staging_plan_make(struct cudriver_copy_plan *copy, bool blocking, bool kernels);

/* Bytes of a slot for a copy of `bytes` that is the only one under way. */
size_t staging_ring_slot(size_t bytes, size_t most);

/* Bytes of the slot of a strided copy by the calling thread alone. */
size_t staging_alone_chunk(size_t bytes);

/* Whether a copy failed because no kernel, stream memory operations, page-locked memory or threads
 * could be had: another way may work. */
bool staging_must_do_without(enum cudriver_staging_path path, CUresult result);

/* Whether copies on this path use a ring and packing threads. */
static inline bool staging_is_staged(enum cudriver_staging_path path)
{
    return path >= CUDRIVER_STAGING_DENSE;
}

/* ---- places ---- */

struct staging_kernels; /* kernels.c */

/* Slots that the copies of one stream use one after another: ring.c. */
struct staging_ring {
    struct staging_ring *next; /* in the place's list */
    unsigned long long stream; /* the id of the stream of the copies under way */
    CUstream own;              /* owned; NULL unless made for a blocking copy */
    int users;                 /* copies under way, and callers that use its memory or stream */
    bool filling;              /* a call queues commands, or failed to: no other copy joins */
    bool lost;                 /* one of its copies is LOST: no other copy takes it, ever */
    bool orphan;               /* the place is gone: the last user frees it */
    char *block;               /* owned, from the page-locked pool */
    size_t slot_bytes;
    _Atomic uint32_t *ready;  /* written by the threads, in the block */
    _Atomic uint32_t *passed; /* written by the stream, in the block */
    CUdeviceptr ready_address, passed_address;
    uint32_t issued;     /* the last counter value assigned to a copy */
    size_t turn;         /* bytes; where the next copy down begins */
    CUdeviceptr scratch; /* owned, one slot's bytes; 0: none */
};

struct staging_place {
    struct staging_place *next;
    CUcontext context;
    unsigned long long id; /* the context's, from cuCtxGetId; else 0 */
    int users;             /* calls that use it */
    bool closing;
    struct cudriver_staging_transfer *transfers; /* neither LOST nor OVER; borrowed */
    struct staging_ring *rings;                  /* owned */
    bool tight;                                  /* no memory for rings larger than needed */
    CUstream sides[STAGING_SIDES];               /* owned; for work beside the caller's stream */
    int side;                                    /* the next to use if all are busy */
    struct staging_kernels *kernels[STAGING_KERNEL_UNITS]; /* owned */
    bool no_kernels;
    bool no_counters; /* no stream memory operations */
};

struct staging_engine {
    pthread_mutex_t lock;
    pthread_cond_t quiet; /* signalled when something ended */
    struct staging_place *places;
    struct staging_settings settings;
    bool ready; /* the first staging_lock sets it */
    bool stopping;
    struct cudriver_staging_transfer *packing; /* the packing threads' list */
    sem_t ring_sleep;                          /* idle packing threads sleep here */
    int ring_threads, ring_idle;
    int ring_calls; /* wake-ups to post after unlocking; these threads no longer count as idle */
    _Atomic unsigned news; /* changes when there may be a piece to take */
    int ring_wanted;       /* sum of the listed transfers' `threads` */
    int ring_users;        /* copies that use a ring, without those LOST */
    int ring_unwatched;    /* listed copies whose caller does not poll the counters */
    bool watched;          /* an idle thread polls the counters */
};

extern struct staging_engine staging;

/* Takes the lock. The first call in the process initialises the rest of `staging`. */
void staging_lock(void);
void staging_unlock(void);

/* Locked. Wakes up to `count` sleeping packing threads, after unlocking. */
void staging_threads_call(int count);

/* Initialises a condition that uses the monotonic clock. */
void staging_condition_init(pthread_cond_t *condition);

/* Locked. Waits for the condition, at most `nanoseconds`. */
void staging_condition_wait(pthread_cond_t *condition, unsigned long long nanoseconds);

/* ---- staged.c ---- */

/* A STAGED copy, as by cudriver_copy_follow. */
CUresult staging_copy(const struct cudriver_copy_plan *copy, const struct cudriver_copy_call *call,
                      struct cudriver_staging_transfer **transfer);

/* ---- between.c ---- */

/*
 * Queues a copy between memory of one device on the stream and returns at once. A kernel moves the
 * items, through a dense temporary if the ends overlap.
 *
 * On failure nothing is left under way, and call->function is the call that failed. call->refused:
 * there is no kernel or no temporary, and the caller may try another path. May block: loading the
 * kernel takes a while at the first use in a context.
 */
/* Whether the driver's fills do a copy whose source does not change. */
bool staging_fill_fits(const struct cudriver_copy_plan *plan);

/* Queues them on the stream. The first failed call ends it. */
CUresult staging_fill(const struct cudriver_copy_plan *plan, CUstream stream,
                      const char **function);

CUresult staging_copy_between(const struct cudriver_copy_plan *plan,
                              struct cudriver_copy_call *call);

/* ---- place.c ---- */

/* Finds or makes the place of `context`, adds a user and pushes the context; end it with
 * staging_place_leave. NOT_INITIALIZED in a forked child, DEINITIALIZED after shutdown,
 * CONTEXT_IS_DESTROYED while the place is being closed. */
CUresult staging_place_enter(CUcontext context, struct staging_place **place);
void staging_place_leave(struct staging_place *place);

/* Whether rings can be used, which need stream memory operations: the driver has them and has not
 * refused them in this context. *kernels: whether the permuting kernel, which a ring feeds, may be
 * used too. */
bool staging_context_counts(CUcontext context, bool *kernels);

/* ---- stream.c ---- */

void staging_nap(long nanoseconds); /* less than a second */

/* SUCCESS if the stream is idle, else NOT_READY or an error. */
CUresult staging_stream_query(CUstream stream);

/* What tells a stream from all others, also from those that have its handle before or after it;
 * else, as before CUDA 12.0, STAGING_NO_ID. */
#define STAGING_NO_ID (~0ull)
unsigned long long staging_stream_id(CUstream stream);

/* Pushes a place's context. Fails if that was destroyed: the driver's push succeeds even then, but
 * it may crash when given objects of that context. */
CUresult staging_place_open(const struct staging_place *place);

/* A stream of the place's, an idle one if there is one; staging_stream_follow orders it with
 * others. Borrowed for the call. (A stream that is destroyed still finishes its work.) The place's
 * context is current. */
CUresult staging_side_get(struct staging_place *place, CUstream *side);

/* One stream in its context. */
struct staging_point {
    CUcontext context;
    CUstream stream;
};

/* Makes what is queued on `second` from now on wait for what is queued on `first`. */
CUresult staging_stream_follow(struct staging_point first, struct staging_point second);

/* ---- transfer.c ---- */

/* Where a transfer stands; README.md draws it. The caller has its result from CANCELLED on. */
enum staging_state {
    STAGING_QUEUED,    /* its stream has not reached it; the host's memory is untouched */
    STAGING_MOVING,    /* its stream has reached it; our threads may use the host's memory */
    STAGING_PASSING,   /* the host's memory is no longer used; the stream has yet to pass */
    STAGING_CANCELLED, /* the same, but it had not begun, and nobody waits for the stream */
    STAGING_LOST,      /* nobody knows whether its stream still uses its slots: kept for good */
    STAGING_OVER,      /* its stream has passed it; it holds nothing */
};

/* One chunk of a transfer through a ring. */
struct staging_chunk {
    size_t left;  /* bytes not yet packed or unpacked; under the lock */
    size_t place; /* offset in the transfer's part of the ring */
    size_t needs; /* how many of the first chunks must be done before this one may use its place */
};

struct cudriver_staging_transfer {
    atomic_int references;
    struct staging_place *place; /* borrowed: until it is LOST or OVER, and while it is made */
    struct cudriver_staging_transfer *next; /* in the place's list of transfers */
    CUstream stream;                        /* borrowed; while there is a ring or a slot */
    bool own;                               /* blocking: on the ring's own stream */
    bool up;
    char *host;
    struct cudriver_layout walk;
    size_t bytes;
    char *slot; /* small: one slot, packed by host functions; owned, from the page-locked pool */
    /* Through a ring. */
    bool host_dense, streaming;
    struct staging_ring *ring; /* borrowed from the place; NULL once it is OVER */
    size_t at;                 /* offset of its memory in the slots */
    uint32_t base;             /* the counters' value before its first chunk */
    size_t chunks;
    size_t steps;               /* at base + steps of `passed` it is done with the ring */
    size_t *starts;             /* owned: chunks + 1 offsets in the walk */
    struct staging_chunk *cuts; /* owned */
    /* The rest is guarded by the lock. */
    enum staging_state state; /* written by staging_transfer_move alone */
    CUresult result;
    struct cudriver_staging_transfer *packing; /* the next in the packing threads' list */
    size_t taken;                              /* bytes of the walk given out as pieces */
    size_t chunk;     /* the chunk that contains `taken`; `chunks`: no more is given out */
    size_t published; /* chunks counted in `ready` */
    int in_flight;    /* pieces being moved */
    int threads;      /* packing threads that it wants */
    bool watched;     /* its caller polls the counters */
    pthread_cond_t done;
    unsigned long long checked; /* ns; when the context was last probed */
    int doubts;                 /* failed probes in a row */
};

/* A new transfer, QUEUED, in the place's list; NULL: out of memory. */
struct cudriver_staging_transfer *staging_transfer_new(struct staging_place *place,
                                                       CUstream stream);

void staging_transfer_hold(struct cudriver_staging_transfer *transfer);
void staging_transfer_drop(struct cudriver_staging_transfer *transfer);

/* Locked. Changes the state, and all that follows from it. States only go forward: does nothing if
 * the transfer has reached `state` or a later one. */
void staging_transfer_move(struct cudriver_staging_transfer *transfer, enum staging_state state);

/* Whether the caller has its result. */
static inline bool staging_transfer_ended(const struct cudriver_staging_transfer *transfer)
{
    return transfer->state >= STAGING_CANCELLED;
}

/* Locked. Begins nothing more. What has begun finishes by itself: wait for it with
 * staging_transfer_quiet, which may release the lock. */
void staging_transfer_stop(struct cudriver_staging_transfer *transfer, CUresult result);
void staging_transfer_quiet(struct cudriver_staging_transfer *transfer);

/* Locked; may release the lock. Ends a transfer whose stream may still use its slots, but cannot be
 * waited for. */
void staging_transfer_lose(struct cudriver_staging_transfer *transfer, CUresult result);

/* Locked. Stops the transfers of a place that are QUEUED; `all`: those that are MOVING, too. */
void staging_place_cancel(struct staging_place *place, CUresult result, bool all);

/* Probes the context, at most every 50 ms: in a broken one a copy would never end. */
void staging_transfer_check(struct cudriver_staging_transfer *transfer);

/* ---- ring.c ---- */

/* Gives the transfer a ring with slots of at least slot_bytes, and device memory of a slot's size
 * if `scratch`. */
CUresult staging_ring_get(struct cudriver_staging_transfer *transfer, size_t slot_bytes,
                          bool scratch);

/* The host address of one of its chunks. */
char *staging_ring_memory(const struct cudriver_staging_transfer *transfer, size_t chunk);

/* Locked. Drops a user of a ring; the last one frees an orphan. */
void staging_ring_leave(struct staging_ring *ring);

/* Frees a list of rings; those in use become orphans. `current`: their context is current, so their
 * streams are destroyed. `all`: frees device memory too, which waits for the device. */
void staging_rings_free(struct staging_ring *rings, bool current, bool all);

/* ---- pack.c ---- */

/* Makes sure that a packing thread is alive, before a stream depends on one; else NO_THREADS. */
CUresult staging_ring_ensure(void);

/* Locked. The stream has reached a transfer: gives it, and a reference to it, to the packing
 * threads. */
void staging_ring_list(struct cudriver_staging_transfer *transfer);

/* Locked. For a transfer that is not MOVING. open lets its stream run to its end. close, after the
 * stream has ended, perhaps without some of its commands, ends the transfer. */
void staging_ring_open(struct cudriver_staging_transfer *transfer);
void staging_ring_close(struct cudriver_staging_transfer *transfer);

/* Announces a copy for so many threads, which wake meanwhile. */
void staging_ring_expect(int threads);

/* The calling thread works on a transfer until it is over, and returns its result. INTERRUPTED: the
 * transfer goes on. */
CUresult staging_ring_help(struct cudriver_staging_transfer *transfer, bool (*interrupted)(void *),
                           void *data);

/* ---- commands.c ---- */

/* Queues a copy through a ring on the transfer's stream. NOT_SUPPORTED: the driver or the kernel
 * cannot do it. */
CUresult staging_ring_start(struct cudriver_staging_transfer *transfer,
                            const struct cudriver_copy_plan *copy,
                            const struct cudriver_copy_call *call);

/* ---- permute.c ---- */

/* How a permuted walk is cut into boxes: each covers up to `rows` entries of dimension `split`, all
 * dimensions inside it, and one entry of each dimension outside it. */
struct staging_boxes {
    int split; /* -1: the walk has no dimensions */
    int64_t rows;
    size_t per_split; /* boxes along the split dimension */
    size_t row_bytes; /* of one entry of dimension `split` */
    size_t largest;   /* bytes of the largest box */
    size_t count;
};

/* Boxes of at most `most` bytes, but of at least one row. */
struct staging_boxes staging_boxes_make(const struct staging_plan *plan, size_t most);

/* Box number `index`: bytes [begin, end) of the walk, and the layout that the kernel copies. */
void staging_box_find(const struct staging_plan *plan, const struct staging_boxes *boxes,
                      size_t index, size_t *begin, size_t *end, struct cudriver_layout *spread);

/* Loads the kernel for items of 1 << unit bytes if the place has none. NOT_SUPPORTED: not possible
 * in this context. The place's context is current; *kernels is borrowed from the place. */
CUresult staging_place_kernel(struct staging_place *place, int unit,
                              struct staging_kernels **kernels);

/* The same for a plan. */
CUresult staging_place_kernels(struct staging_place *place, const struct staging_plan *plan,
                               CUdeviceptr device, struct staging_kernels **kernels);

/* ---- rows.c ---- */

/* Copies bytes [begin, end) of a walk between the device and `slot`, which holds only those bytes.
 * `rows` comes from staging_rows_make. */
CUresult staging_device_copy(const struct cudriver_layout *rows, bool up, CUdeviceptr device,
                             char *slot, size_t begin, size_t end, CUstream stream);

/* The layout between a dense slot and the device's side of a walk, with the longest runs. */
void staging_rows_make(const struct cudriver_layout *walk, bool up, struct cudriver_layout *rows);

/* ---- kernels.c ---- */

/* log2 of the item size with which the kernel can do this layout between these addresses; -1: it
 * cannot. */
int staging_kernels_unit(const struct cudriver_layout *layout, CUdeviceptr dst, CUdeviceptr src);

/* size: log2 of the largest item size, at most 1 << most bytes, that divides a layout and its
 * addresses. fit: whether the kernel has enough dimensions for the layout in such items. */
int staging_kernels_size(const struct cudriver_layout *layout, CUdeviceptr dst, CUdeviceptr src,
                         int most);
bool staging_kernels_fit(const struct cudriver_layout *layout, int unit);

/* Loads the module for one item size into the current context. The caller owns *kernels. */
CUresult staging_kernels_load(int unit, struct staging_kernels **kernels);
void staging_kernels_unload(struct staging_kernels *kernels);

/* Queues dst[layout] = src[layout] between device memory. The kernels' item size must divide the
 * layout and the addresses. */
CUresult staging_kernels_launch(const struct staging_kernels *kernels,
                                const struct cudriver_layout *layout, CUdeviceptr dst,
                                CUdeviceptr src, CUstream stream);

/* ---- small.c ---- */

/* A dense blocking copy between `device` and `host`, at most TUNING_SMALL_MOST bytes, faster than
 * the driver's blocking calls. Not for pageable memory up: only the driver's own call waits for the
 * stream before it reads the host. False: no page-locked memory can be had, nothing was done. */
bool staging_small_copy(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call,
                        CUdeviceptr device, char *host, CUresult *result);

/* cuStreamSynchronize with less latency, for work of microseconds. wait_soon polls a word that the
 * stream writes: for copies on a device, up to TUNING_SOON_MOST bytes. ask_soon polls
 * cuStreamQuery: for small copies to the device. */
CUresult cudriver_staging_wait_soon(CUcontext context, CUstream stream);
CUresult cudriver_staging_ask_soon(CUstream stream);

/* A copy through one slot, queued on the transfer's stream. */
CUresult staging_small_start(struct cudriver_staging_transfer *transfer,
                             const struct cudriver_copy_plan *copy,
                             const struct cudriver_copy_call *call);

/* A block of the page-locked pool, which may have to grow: owned by the caller until
 * cudriver_hostmem_free. NULL in *slot on failure. */
CUresult staging_slot_get(size_t bytes, void **slot);

#endif

/*
 * The insides of the copy engine.
 *
 *   staging.c          the calls: blocking copies, settings, life
 *   staging_async.c    copies in stream order: transfers
 *   staging_permute.c  permuted copies: waves, scratch memory
 *   staging_stream.c   the caller's stream: waiting for it, making it wait
 *   staging_place.c    what the engine holds in a context, from first use to last
 *   staging_plan.c     which way a copy goes                          no CUDA
 *   staging_engine.c   jobs, routes, worker threads
 *   staging_lane.c     lanes: streams, slots, the chunks in them
 *   staging_device.c   a slot's bytes to and from the device's rows
 *   staging_kernels.c  the kernel that permutes
 *   staging_memory.c   memcpy with streaming stores                   no CUDA
 *
 * One lock, `staging.lock`: a leaf, held for moments, never while calling the driver, moving bytes,
 * asking `interrupted` or telling `finished`. A host function on a stream may therefore take it.
 *
 * place   what the engine holds in one context: two routes, the kernel, flags, scratch memory
 * route   one direction of a place: the jobs that have chunks left, in a ring, and its lanes
 * lane    a stream and a few page-locked slots; one thread at a time uses it
 * job     one range of bytes for the lanes to move, chunk by chunk
 * transfer  what an asynchronous caller holds: one or more jobs, and what follows them on the
 * stream
 */
#ifndef CUDRIVER_STAGING_PRIVATE_H
#define CUDRIVER_STAGING_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "staging.h"

#define STAGING_SLOTS 8
#define STAGING_WAVES 3 /* pieces of scratch memory that a permuted copy goes round in */
#define STAGING_KERNEL_DIMS 6
#define STAGING_KERNEL_UNITS 5 /* item sizes: 1, 2, 4, 8, 16 bytes */
#define STAGING_POLL_NS 50000000ull

/* ---- plans ---- */

struct staging_plan {
    enum cudriver_staging_path path;
    bool up;
    struct cudriver_layout walk; /* simplified, in the order in which the bytes travel */
    bool host_dense;             /* in the order of the walk, in one piece */
    bool device_dense;           /* the same; true of what a permuted copy sends */
    size_t bytes;
    size_t chunk;
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
                       const struct cudriver_staging_settings *settings, bool kernels,
                       struct staging_plan *plan);

/* ---- places, routes, lanes ---- */

struct staging_job;
struct staging_place;

struct staging_slot {
    char *memory;            /* borrowed from the lane's block */
    CUevent event;           /* owned */
    struct staging_job *job; /* holds a reference; NULL: free */
    size_t begin, end;
};

struct staging_lane {
    struct staging_lane *next; /* among the idle ones */
    CUstream stream;           /* owned */
    struct staging_slot slots[STAGING_SLOTS];
    char *block; /* owned, from the page-locked pool */
    size_t slot_bytes;
    int depth;
    int turn;
    unsigned generation;
    bool broken;
};

struct staging_route {
    struct staging_place *place;
    bool up;
    struct staging_job *last; /* of the ring of jobs with chunks left; NULL: none */
    int active;               /* threads at work */
    int limit;                /* of them; lowered where no more slots can be had */
    struct staging_lane *idle;
};

/* A word of mapped page-locked memory that a stream waits for. */
struct staging_flag {
    struct staging_flag *next;
    _Atomic uint32_t *word;
    CUdeviceptr address;
    uint32_t value; /* the last one waited for */
};

struct staging_flags;   /* a page of them: staging_stream.c */
struct staging_kernels; /* staging_kernels.c */

/* Device memory that permuted copies go through; kept for the next one. */
struct staging_scratch {
    struct staging_scratch *next;
    CUdeviceptr address; /* owned */
    size_t bytes;
    bool busy;
};

struct staging_place {
    struct staging_place *next;
    CUcontext context;
    unsigned long long id; /* of the context, where the driver has them */
    struct staging_route routes[2];
    int jobs;  /* not over */
    int users; /* calls at work in it */
    bool closing;
    struct cudriver_staging_transfer *transfers; /* not over */
    struct staging_flag *free_flags;
    struct staging_flags *flag_pages; /* owned */
    int lost_flags;                   /* given up while a stream may yet wait for them */
    bool no_wait_value;
    CUstream probe; /* owned; tells whether the context is broken */
    struct staging_kernels *kernels[STAGING_KERNEL_UNITS]; /* owned */
    struct staging_scratch *scratch;                       /* owned */
    bool no_kernels;
};

struct staging_job {
    struct staging_job *next; /* in the route's ring */
    atomic_int references;
    struct staging_route *route;
    struct cudriver_staging_transfer *transfer; /* borrowed: outlives the job; NULL */
    /* what is moved; constant */
    bool up;
    bool host_dense, device_dense, streaming;
    struct cudriver_layout walk;
    struct cudriver_layout rows; /* where the device is not dense: slot to device, or back */
    CUdeviceptr device;
    char *host;
    size_t begin,
        end; /* bytes of the walk; `device` is where `begin` goes if the device is dense */
    size_t chunk;
    struct staging_flag *flag; /* raised when the job is over; NULL */
    /* under the lock */
    size_t taken; /* up to here chunks were given out */
    int in_flight;
    bool queued; /* in the ring */
    bool begun;
    bool over;
    CUresult result;
    pthread_cond_t done; /* initialised where `waited` */
    bool waited;
};

struct staging_engine {
    pthread_mutex_t lock;
    pthread_cond_t work;  /* for idle workers */
    pthread_cond_t quiet; /* something ended: for those who close */
    struct staging_place *places;
    struct cudriver_staging_settings settings;
    bool ready; /* conditions and settings are made */
    bool stopping;
    int threads, idle, waking;
    int lanes;
    size_t slot_bytes;
    size_t jobs;
    unsigned generation; /* slots of an older one are given back */
    unsigned long long copies, bytes;
};

extern struct staging_engine staging;

/* Locks. The first call in the process makes what the lock protects. */
void staging_lock(void);
void staging_unlock(void);

/* A condition that waits by the monotonic clock. */
void staging_condition_init(pthread_cond_t *condition);

/* Waits at most `nanoseconds`, the lock held. */
void staging_condition_wait(pthread_cond_t *condition, unsigned long long nanoseconds);

/* ---- staging_place.c ---- */

/* NOT_INITIALIZED in a fork, DEINITIALIZED after shutdown, else the place of `context`, with one
 * more user and the context pushed; ends with staging_place_leave. */
CUresult staging_place_enter(CUcontext context, struct staging_place **place);
void staging_place_leave(struct staging_place *place);

/* ---- staging_engine.c ---- */

/* A job over bytes [begin, end) of a plan's walk, not yet submitted; one reference, the caller's.
 * NULL without memory. `device` and `host` are the pointers that the walk's offsets count from. */
struct staging_job *staging_job_new(struct staging_route *route, const struct staging_plan *plan,
                                    CUdeviceptr device, char *host, size_t begin, size_t end);
void staging_job_drop(struct staging_job *job);

/* Locked. Lets the lanes have it, unless it is over. `helped`: the caller will work on it too. */
void staging_job_submit(struct staging_job *job, bool helped);

/* Locked. Gives no more chunks of it out; it is over when those in flight are. `result`: why. True
 * where staging_transfer_tell must follow. */
bool staging_job_stop(struct staging_job *job, CUresult result);

/* The calling thread, in whose context the job's is current, works on it (and on its neighbours)
 * until no chunk of it is left, if there is room for one more. False: interrupted. */
bool staging_job_help(struct staging_job *job, bool (*interrupted)(void *), void *data);

/* Locked. Sees that a worker thread lives, for jobs that no caller helps with. */
CUresult staging_threads_start(void);

/* A chunk that was taken is done with. Drops the reference that came with it. */
void staging_job_credit(struct staging_job *job, CUresult result);

/* ---- staging_lane.c: the context is current ---- */

/* A lane with slots of at least `bytes`, for one thread. */
CUresult staging_lane_open(CUcontext context, size_t bytes, struct staging_lane **lane);
void staging_lane_close(struct staging_lane *lane);
void staging_lanes_close(struct staging_lane *lanes);

/* Locked. The same where the context is gone, without a call of the driver. */
void staging_lanes_bury(struct staging_lane *lanes);

/* Gives a drained lane slots of at least `bytes`, as many as the settings say. */
CUresult staging_lane_fit(struct staging_lane *lane, CUcontext context, size_t bytes);

/* Starts the chunk that a slot was given, ends the one that it holds, ends all. A failure breaks
 * the lane and goes to the chunk's job. */
void staging_slot_begin(struct staging_lane *lane, struct staging_slot *slot);
void staging_slot_retire(struct staging_lane *lane, struct staging_slot *slot);
void staging_lane_drain(struct staging_lane *lane);

/* ---- staging_stream.c ---- */

/* Waits until what is queued on the stream is done. INTERRUPTED. */
CUresult staging_stream_wait(CUstream stream, bool (*interrupted)(void *), void *data);

/* SUCCESS: nothing is queued on the stream; NOT_READY. */
CUresult staging_stream_query(CUstream stream);

/* Hands the job to the lanes when the stream gets here; it holds a reference until then. */
CUresult staging_stream_ready(CUstream stream, struct staging_job *job);

/* Makes the stream wait here until the job is over. */
CUresult staging_stream_gate(CUstream stream, struct staging_job *job);

/* The place is quiet and has no other user. */
void staging_flags_free(struct staging_place *place);

/* Locked: the stream may go on. The flag is free again. */
void staging_flag_raise(struct staging_job *job);

/* ---- staging_async.c ---- */

struct cudriver_staging_transfer {
    atomic_int references;
    struct staging_place *place;            /* borrowed; valid until the transfer is over */
    struct cudriver_staging_transfer *next; /* in the place's list */
    CUstream stream;
    void (*finished)(void *data, CUresult result);
    void *finished_data;
    struct staging_job **jobs; /* owned, each with a reference */
    int job_count;
    struct staging_scratch *scratch; /* borrowed from the place, busy; under the lock */
    /* A copy in one slot, without the lanes. */
    bool small;
    bool up;
    char *slot; /* owned, from the page-locked pool */
    char *host;
    size_t bytes;
    struct cudriver_layout walk;
    /* Under the lock. */
    int host_pending;   /* what still uses the host's memory */
    int device_pending; /* what follows on the stream */
    bool making;        /* its call has not returned */
    bool begun;         /* a host function of ours has seen host memory */
    bool stopped;
    bool telling; /* `finished` was called, or is being */
    bool told;    /* it has returned */
    bool over;
    CUresult result;
    pthread_cond_t done;
    unsigned long long checked;
};

/* A transfer of the place, being made: one reference, and not over before
 * staging_transfer_device_over ends its making. NULL without memory. */
struct cudriver_staging_transfer *staging_transfer_new(struct staging_place *place,
                                                       CUstream stream);
void staging_transfer_hold(struct cudriver_staging_transfer *transfer);
void staging_transfer_drop(struct cudriver_staging_transfer *transfer);

/* Room for `count` jobs; false without memory. */
bool staging_transfer_make_room(struct cudriver_staging_transfer *transfer, size_t count);

/* Adds a job (NULL: OUT_OF_MEMORY); the transfer holds it, and it the transfer. After a failure the
 * job is gone. */
CUresult staging_transfer_add(struct cudriver_staging_transfer *transfer, struct staging_job *job);

/* Locked: a job of a transfer is over. staging_transfer_tell must follow, unlocked. */
void staging_transfer_job_over(struct cudriver_staging_transfer *transfer, CUresult result);
void staging_transfer_tell(struct cudriver_staging_transfer *transfer);

/* Locked: one thing that follows on the stream has happened. */
void staging_transfer_device_over(struct cudriver_staging_transfer *transfer);

/* With a reference. Nothing more is begun; what has begun ends by itself. */
void staging_transfer_stop(struct cudriver_staging_transfer *transfer, CUresult result);

/* Waits until no thread of ours touches host memory or slots for it. */
void staging_transfer_quiet(struct cudriver_staging_transfer *transfer);

/* After a failure: nothing of it is in use any more, `finished` is not called. */
void staging_transfer_undo(struct cudriver_staging_transfer *transfer, CUresult result);

/* Gives up the transfers of a place that have not begun; their streams go on. `all`: those that
 * have, too, and blocking copies. */
void staging_place_cancel(struct staging_place *place, CUresult result, bool all);

/* ---- staging_permute.c ---- */

/* Queues a permuted copy. NOT_SUPPORTED: the kernel cannot be had. */
CUresult staging_permuted_start(struct cudriver_staging_transfer *transfer,
                                const struct cudriver_staging_job *job,
                                const struct staging_plan *plan);

/* The same from start to end. */
CUresult staging_copy_permuted(const struct cudriver_staging_job *job, struct staging_place *place,
                               const struct staging_plan *plan);

/* Frees a list of scratch memory; its context is current. */
void staging_scratch_free(struct staging_scratch *scratch);

/* ---- staging_device.c ---- */

/* Copies bytes [begin, end) of a walk between the device and `slot`, which holds only those, on
 * `stream`. `rows` comes from staging_rows_make. */
CUresult staging_device_copy(const struct cudriver_layout *rows, bool up, CUdeviceptr device,
                             char *slot, size_t begin, size_t end, CUstream stream);

/* The device's side of a walk against a dense slot, with the longest runs. */
void staging_rows_make(const struct cudriver_layout *walk, bool up, struct cudriver_layout *rows);

/* ---- staging_kernels.c ---- */

/* log2 of the item size in which the kernel can do this layout between these addresses; -1: it
 * cannot. */
int staging_kernels_unit(const struct cudriver_layout *layout, CUdeviceptr dst, CUdeviceptr src);

/* Loads the module for one item size into the current context; *kernels is owned by the caller. */
CUresult staging_kernels_load(int unit, struct staging_kernels **kernels);
void staging_kernels_unload(struct staging_kernels *kernels);

/* Queues dst[layout] = src[layout], both device memory, item by item of the kernels' size, which
 * must divide the layout and the addresses. */
CUresult staging_kernels_launch(const struct staging_kernels *kernels,
                                const struct cudriver_layout *layout, CUdeviceptr dst,
                                CUdeviceptr src, CUstream stream);

/* ---- staging_memory.c ---- */

/* memcpy past the caches where the processor can; the bytes are visible to all after it. */
void staging_memory_stream(void *dst, const void *src, size_t bytes);

#endif

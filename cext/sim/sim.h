/*
 * The simulated driver's insides.
 *
 *   state.c    the monitor, handles, entering a call   fault.c    counting and failing calls
 *   control.c  knobs, environment, test functions      range.c    sorted sets of address ranges
 *   device.c   the driver, devices, attributes         space.c    a device's addresses and bytes
 *   context.c  contexts, the threads' stacks           primary.c  primary contexts
 *   memory.c   allocations, pointer attributes         pool.c     stream-ordered memory
 *   hostreg.c  page-locked host memory                 copy.c     copies
 *   worker.c   queues of operations, their threads     fill.c     fills
 *   stream.c   streams                                 event.c    events
 *   value.c    host functions, values in memory        module.c   kernels
 *
 * Locks. One: `sim.lock`, a monitor around all bookkeeping. It is held for nanoseconds: never while
 * waiting (condition variables give it up), moving bytes, sleeping, unmapping memory or calling the
 * user's function; only a stream's first operation starts its thread under it, and a device's
 * memory grows under it. fault.c and cuInit have a lock each, taken alone. A fork takes all:
 * cuInit's, fault.c's, the monitor. Knobs and counters are atomics. Whoever moves bytes without the
 * monitor first pins what they belong to: a block's `users`, a context's `calls`. Whoever takes
 * memory away waits for those.
 *
 * Objects live as long as their references: `alive` holds one, each operation or waiting thread one
 * more. Handles are numbers, not pointers: kind, generation, index. A stale or invented one is not
 * found.
 */
#ifndef CUDRIVER_SIM_INTERNAL_H
#define CUDRIVER_SIM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "driver/cuda_abi.h"
#include "cudriver_sim.h"

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_MAX_DEVICES 16
#define SIM_POISON 0xA5
#define SIM_LEAST_PRIORITY 0
#define SIM_GREATEST_PRIORITY (-5)

#define X(name, args, since) SIM_EXPORT CUresult name args;
CUDRIVER_FUNCTIONS(X)
#undef X

enum sim_call {
#define X(name, args, since) CALL_##name,
    CUDRIVER_FUNCTIONS(X)
#undef X
        SIM_CALLS
};

enum sim_kind {
    KIND_CONTEXT,
    KIND_STREAM,
    KIND_EVENT,
    KIND_POOL,
    KIND_MODULE,
    KIND_FUNCTION,
    KINDS
};

/* The head of everything that has a handle. */
struct sim_object {
    enum sim_kind kind;
    uint32_t index;
    bool alive; /* its handle finds it */
    unsigned references;
};

/* ---- range.c: sets of ranges that do not overlap, sorted by address; nodes are the caller's ----
 */

struct sim_range {
    uintptr_t start;
    size_t bytes;
    unsigned weight;
    struct sim_range *left, *right;
};

void sim_range_insert(struct sim_range **root, struct sim_range *range);
void sim_range_remove(struct sim_range **root, struct sim_range *range);
/* The range with `address` in it, or NULL. */
struct sim_range *sim_range_find(struct sim_range *root, uintptr_t address);
/* The first range at or above `address`, or NULL. */
struct sim_range *sim_range_next(struct sim_range *root, uintptr_t address);
/* Any range that shares a byte with [start, start + bytes), or NULL. */
struct sim_range *sim_range_overlap(struct sim_range *root, uintptr_t start, size_t bytes);

/* ---- devices ---- */

struct sim_block; /* a piece of a device's address space, free or allocated: space.c */

struct sim_device {
    _Atomic uintptr_t
        base; /* device addresses: reserved, never accessible; 0 until the first allocation */
    size_t reserved;             /* bytes of them */
    char *bytes;                 /* what stands behind them, at the same offsets */
    size_t ready;                /* bytes of those that are accessible */
    size_t used;                 /* allocated, as rounded */
    struct sim_block *first;     /* all blocks by address */
    struct sim_block *free;      /* the free ones */
    struct sim_range *blocks;    /* the allocated ones, by address */
    struct sim_context *primary; /* owned; made by the first retain and never given back */
    unsigned retains;
    unsigned primary_flags;
    CUresult broken; /* the sticky error of all its contexts, for good; or CUDA_SUCCESS */
};

/* ---- contexts ---- */

#define SIM_LIMITS 9

struct sim_context {
    struct sim_object object;
    int device;
    bool primary;
    bool active;  /* false: destroyed, being destroyed, or a primary context that nobody retains */
    bool closing; /* being destroyed */
    unsigned flags;
    unsigned api_version;
    unsigned long long id;
    size_t limits[SIM_LIMITS];
    CUfunc_cache cache_config;
    unsigned peers;                /* a bit per device whose memory it may use */
    struct sim_stream *streams;    /* all, the two implicit ones too; borrowed */
    struct sim_stream *legacy;     /* the NULL stream, owned; NULL until used */
    struct sim_stream *per_thread; /* CU_STREAM_PER_THREAD, owned; one for all threads */
    unsigned long long pending;    /* operations issued and not done */
    unsigned calls;                /* calls that work in it without the monitor */
    unsigned waiters;
    unsigned stacked;    /* how often it stands on threads' stacks */
    pthread_cond_t done; /* an operation or a call is over */
};

/* ---- streams ---- */

struct sim_op;

struct sim_stream {
    struct sim_object object;
    struct sim_context *context;        /* holds a reference */
    struct sim_stream *next, *previous; /* in the context */
    bool blocking;                      /* takes its turn with the NULL stream */
    bool implicit;
    int priority;
    unsigned long long issued, done; /* sequence numbers */
    struct sim_op *head, *tail;
    bool worker;   /* has its thread */
    bool closing;  /* destroyed: the thread ends with the queue */
    bool unlinked; /* out of the context's list */
    pthread_cond_t work;
};

/* Points in streams, to be waited for together. Zeroed is empty. */
struct sim_waits {
    size_t count, room;
    struct sim_wait {
        struct sim_stream *stream; /* holds a reference */
        unsigned long long sequence;
    } *items; /* owned */
};

/* One operation. A kind of operation begins with this and is one malloc'ed piece. */
struct sim_op {
    struct sim_op *next;
    unsigned long long sequence;
    struct sim_waits waits;
    size_t bytes; /* for the bandwidth */
    /* The work, without the monitor. Not called in a broken context. May be NULL. */
    CUresult (*run)(struct sim_stream *stream, struct sim_op *op);
    /* Afterwards, in the monitor and in any case, even when the operation was never issued. May be
     * NULL. */
    void (*finish)(struct sim_stream *stream, struct sim_op *op, bool issued);
};

/* ---- the monitor ---- */

struct sim_state {
    pthread_mutex_t lock;
    struct sim_device devices[SIM_MAX_DEVICES];
    struct sim_range *hosts; /* page-locked host memory: hostreg.c */
    unsigned workers;
    pthread_cond_t worker_gone;
    pthread_cond_t unpinned; /* a block lost its last user, and somebody may wait for that */
    unsigned unpin_waiters;
    bool held;
    unsigned long long steps; /* operations that may pass while held */
};

extern struct sim_state sim;

/* The knobs: set at any time, from any thread. */
struct sim_knobs {
    atomic_int devices;
    atomic_ullong memory;
    atomic_int version;
    atomic_ullong latency; /* microseconds */
    atomic_ullong bandwidth;
    atomic_ullong registration_limit;
    atomic_bool stub;
    atomic_bool no_device;
};

extern struct sim_knobs sim_knobs;

void sim_lock(void);
void sim_unlock(void);

/* Gives the monitor up and answers `result`: the last line of a call. */
CUresult sim_leave(CUresult result);

/* Begins a call: counts it, lets it fail as told, and sees that the driver may be called. */
CUresult sim_enter(enum sim_call call);

/* sim_enter, and on success the monitor is held and *context is the thread's current one, usable.
 */
CUresult sim_enter_current(enum sim_call call, struct sim_context **context);

/* sim_enter for a call on a stream, and on success the monitor is held and *stream is good. A
 * stream that a program made brings its context along; the implicit ones are those of the current
 * context. */
CUresult sim_enter_stream(enum sim_call call, CUstream handle, struct sim_stream **stream);

/* Whether the process is on its way out; operations end early then. */
bool sim_is_down(void);
bool sim_is_initialised(void);
CUresult sim_initialise(void);

/* Set while a worker is in the user's function, where no call is permitted. */
void sim_mark_callback(bool inside);

/* In the monitor. A new object, zeroed, alive, with one reference; NULL without memory. */
void *sim_object_new(enum sim_kind kind, size_t bytes);
/* In the monitor. The live object of a handle, or NULL. Borrowed. */
void *sim_object_find(enum sim_kind kind, const void *handle);
/* In the monitor. The same, or the object that is no more alive but still referred to. Borrowed. */
void *sim_object_behind(enum sim_kind kind, const void *handle);
/* In the monitor. The index-th slot's live object or NULL; index below sim_object_slots. Borrowed.
 */
void *sim_object_at(enum sim_kind kind, uint32_t index);
uint32_t sim_object_slots(enum sim_kind kind);
/* In the monitor. Whether a handle is one that this process once gave out. */
bool sim_object_was(enum sim_kind kind, const void *handle);
/* In the monitor. What to answer for a handle that finds nothing: INVALID_HANDLE, or
 * CONTEXT_IS_DESTROYED for one that went with its context. */
CUresult sim_object_missing(enum sim_kind kind, const void *handle);
void *sim_object_handle(const void *object);
void sim_object_hold(void *object);
/* Drops a reference; with the last one the object is freed. */
void sim_object_drop(void *object);
/* Its handle finds it no more; drops the reference that `alive` held. */
void sim_object_close(void *object);
/* The same for one that goes with its context. */
void sim_object_orphan(void *object);

/* ---- fault.c ---- */

void sim_fault_count(enum sim_call call);
/* CUDA_SUCCESS, or the error that this call was told to give. */
CUresult sim_fault_call(enum sim_call call);
/* The same for an operation on a stream. */
CUresult sim_fault_operation(void);
int sim_call_since(enum sim_call call);
/* Around a fork. */
void sim_fault_lock(void);
void sim_fault_unlock(void);

/* ---- device.c ---- */

bool sim_device_is_valid(CUdevice device);

/* ---- context.c ---- */

/* In the monitor. The current context, usable; else the error to answer. */
CUresult sim_context_current(struct sim_context **context);
/* In the monitor. A context of a handle: INVALID_CONTEXT or CONTEXT_IS_DESTROYED where it is none.
 */
CUresult sim_context_of(CUcontext handle, struct sim_context **context);
bool sim_context_flags_are_valid(unsigned flags);
/* In the monitor. A context object for a device, not open yet; NULL without memory. */
struct sim_context *sim_context_new(int device);
/* In the monitor. Puts a context into the state of a new one. */
void sim_context_open(struct sim_context *context, unsigned flags, unsigned api_version);
/* In the monitor, given up meanwhile. Takes away all that is in a context. From the first line on,
 * calls in it answer that it is destroyed. */
void sim_context_shut(struct sim_context *context);
/* In the monitor. CUDA_SUCCESS, or the error that broke the context's device. */
CUresult sim_context_state(const struct sim_context *context);
/* In the monitor. Breaks it, unless it is broken already. */
void sim_context_break(struct sim_context *context, CUresult error);
/* In the monitor. Waits until nothing is pending in the context and no call works in it. */
void sim_context_drain(struct sim_context *context);
/* In the monitor. Works without the monitor in `context` follow; ends with sim_context_work_end. */
void sim_context_work_begin(struct sim_context *context);
void sim_context_work_end(struct sim_context *context);
/* In the monitor, given up meanwhile: waits for the next change in `context`. */
void sim_context_wait(struct sim_context *context);
void sim_context_wake(struct sim_context *context);
/* In the monitor, given up meanwhile. Waits for all work given so far to all contexts of the
 * device, as calls that take memory away do. */
CUresult sim_context_settle_device(struct sim_context *context);
long long sim_context_live(bool retains);

/* ---- space.c ---- */

enum sim_block_state { BLOCK_FREE, BLOCK_USED, BLOCK_LEAVING };

/*
 * A block has two sizes. `asked` is what the program has: from the call that allocates to the call
 * that frees. `bytes` is what operations may touch. They differ only in stream-ordered memory,
 * where `bytes` follows when the stream reaches the allocation and the free. 0: not allocated.
 */
struct sim_block {
    struct sim_range range; /* all of it, as rounded */
    size_t asked, bytes;
    size_t written; /* the most that `bytes` was since the block was last poisoned */
    int device;
    enum sim_block_state state;
    unsigned users; /* copies in it right now */
    struct sim_context
        *context;          /* that owns it; NULL for a pool's. Borrowed: freed with the context */
    struct sim_pool *pool; /* borrowed: a pool waits for its blocks */
    unsigned under_way;    /* of a pool: allocations and frees issued and not done */
    struct sim_stream
        *freed_on; /* free in a pool: on which stream, holds a reference; NULL: free for all */
    unsigned long long freed_at;                 /* and at which point of it */
    struct sim_block *pool_next, *pool_previous; /* free in a pool */
    struct sim_block *next, *previous;           /* by address */
    struct sim_block *free_next, *free_previous; /* free on the device */
};

/* In the monitor. A block full of poison with both sizes set, owned by nobody yet; OUT_OF_MEMORY.
 */
CUresult sim_space_take(int device, size_t bytes, struct sim_block **block);
/* In the monitor, given up meanwhile. Poisons the block and gives it back to the device. */
void sim_space_give(struct sim_block *block);
/* In the monitor, given up meanwhile. Waits until no copy is in the block and fills it with poison.
 */
void sim_space_poison(struct sim_block *block);
/* In the monitor. The block with `address` in it that is not free on the device, or NULL. */
struct sim_block *sim_space_find(CUdeviceptr address);
/* Whether the address is in the part of the address space that belongs to devices. */
bool sim_space_owns(CUdeviceptr address);
/* The host's view of an address in a block. */
char *sim_space_bytes(const struct sim_block *block, CUdeviceptr address);
/* In the monitor. What a device has left. */
size_t sim_space_available(int device);

/* ---- memory.c ---- */

/* Memory that an operation works on, pinned. */
struct sim_pin {
    struct sim_block *block; /* NULL for host memory */
    char *bytes;
};

/* In the monitor. Pins [address, address + bytes) of device memory, or of page-locked host memory
 * by its device address, for the time that its bytes are used without the monitor; INVALID_VALUE
 * where that is no memory, or ends too early. */
CUresult sim_memory_pin(CUdeviceptr address, size_t bytes, struct sim_pin *pin);
void sim_memory_unpin(struct sim_pin *pin);
/* In the monitor. The same question at the time of a call: what the program has, not what streams
 * have reached. */
CUresult sim_memory_check(CUdeviceptr address, size_t bytes);
/* In the monitor, given up meanwhile. Frees what belongs to a context that ends. */
void sim_memory_forget(struct sim_context *context);
long long sim_memory_live(bool bytes);
long long sim_memory_taken(bool unused);

/* ---- hostreg.c ---- */

/* In the monitor. What [address, address + bytes) is: page-locked where it lies in one registration
 * or allocation. A range that begins in one and ends beyond it is refused, by hardware too, even
 * where the next one begins there. */
enum sim_host_kind { HOST_PAGEABLE, HOST_LOCKED, HOST_TORN };
enum sim_host_kind sim_host_kind(uintptr_t address, size_t bytes);
/* In the monitor. What the page-locked range with `address` in it is. False: none. */
struct sim_host_info {
    uintptr_t start;
    size_t bytes;
    struct sim_context *context;
    bool mapped;
};
bool sim_host_info(uintptr_t address, struct sim_host_info *info);
void sim_host_forget(struct sim_context *context);
/* How many, or how many bytes. */
long long sim_host_registered(bool bytes);
long long sim_host_allocated(bool bytes);

/* ---- worker.c, stream.c ---- */

/* In the monitor. The stream of a handle (NULL and the two special ones too) in `context`.
 * Borrowed. */
CUresult sim_stream_of(CUstream handle, struct sim_context *context, struct sim_stream **stream);
void *sim_op_new(size_t bytes);
/* In the monitor. Drops an operation that will not be issued. NULL is fine. */
void sim_op_drop(struct sim_op *op);
/* In the monitor. Adds what `stream` has been given so far, or up to `sequence`; nothing where that
 * is done already. OUT_OF_MEMORY. */
CUresult sim_waits_add(struct sim_waits *waits, struct sim_stream *stream,
                       unsigned long long sequence);
/* In the monitor, given up meanwhile. Waits for all of them and empties the set. */
void sim_waits_finish(struct sim_waits *waits);
/* In the monitor. Empties the set. */
void sim_waits_drop(struct sim_waits *waits);
/* In the monitor. Adds what an operation put on `stream` now comes after in other streams: the
 * legacy rule between the NULL stream and the blocking ones. */
CUresult sim_stream_turn(const struct sim_stream *stream, struct sim_waits *waits);
/* In the monitor. Puts the operation at the stream's end; takes `op` over, also when it fails. */
CUresult sim_stream_issue(struct sim_stream *stream, struct sim_op *op);
/* The same, and waits until it is done (given up meanwhile); runs it in this thread where it can.
 */
CUresult sim_stream_issue_and_wait(struct sim_stream *stream, struct sim_op *op);
/* In the monitor. Whether an operation issued now would come after nothing that is under way. */
bool sim_stream_is_clear(const struct sim_stream *stream);
/* In the monitor. Takes a stream out of its context's list; does nothing the second time. */
void sim_stream_unlink(struct sim_stream *stream);
/* In the monitor. Whether an operation issued now would start at once, with no latency and no hold.
 */
bool sim_stream_is_idle(const struct sim_stream *stream);
/* In the monitor, given up meanwhile. Waits until the stream is past `sequence`. */
void sim_stream_wait(struct sim_stream *stream, unsigned long long sequence);
/* In the monitor, given up meanwhile. Waits until the NULL stream's turn has come, as blocking
 * calls do. */
CUresult sim_stream_settle(struct sim_context *context);
/* The same for all streams of the context. */
CUresult sim_stream_settle_all(struct sim_context *context);
/* Without the monitor. Sleeps for what an operation of `bytes` costs by the knobs. */
void sim_stream_cost(size_t bytes, const struct sim_context *context);
/* In the monitor, given up meanwhile. Ends the streams of a context; it must be drained. */
void sim_stream_forget(struct sim_context *context);
void sim_stream_wake_all(void);
/* At exit: wakes all workers and gives them a moment to leave. */
void sim_stream_shut_down(void);
long long sim_stream_live(bool pending);

/* ---- event.c, pool.c, module.c ---- */

void sim_event_forget(struct sim_context *context);
long long sim_event_live(bool unused);
/* In the monitor, given up meanwhile. Gives back what pools hold beyond their thresholds. */
void sim_pool_settle(int device);
/* In the monitor, given up meanwhile. For an allocation that finds no memory. True where some came
 * free. */
bool sim_pool_release_unused(int device);
/* In the monitor, given up meanwhile. Frees a pool's block at once, as cuMemFree does; `asked` is
 * what it was, the block's own is 0 already. */
void sim_pool_free_now(struct sim_block *block, size_t asked);
long long sim_pool_live(bool unused);
void sim_module_forget(struct sim_context *context);
long long sim_module_live(bool unused);

#endif

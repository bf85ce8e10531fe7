/*
 * The internals of the simulated driver.
 *
 *   state.c    the monitor, handles, entering a call   fault.c    knobs, counting and failing calls
 *   control.c  environment, test functions             range.c    sorted sets of address ranges
 *   device.c   the driver, devices, attributes         space.c    a device's addresses and bytes
 *   context.c  contexts, the threads' stacks           primary.c  primary contexts
 *   memory.c   allocations, pointer attributes         pool.c     stream-ordered memory
 *   hostreg.c  page-locked host memory                 copy.c     copies
 *   worker.c   queues of operations, their threads     kernel.c   kernels, as C functions
 *   stream.c   streams, and calls that capture them    event.c    events, waiting for streams
 *   value.c    host functions, values in memory, fills module.c   modules, launches
 *   capture.c  captures of streams                     graph.c    graphs, user objects
 *
 * others/ makes of these a libcuda for libraries that call more than cudriver does.
 *
 * Locks. One lock, `sim.lock`, protects all bookkeeping: the monitor. "In the monitor" means that
 * the caller holds it, "given up meanwhile" that the function releases it and takes it again. It is
 * not held while bytes are moved, memory is unmapped, the user's function runs, or a thread sleeps
 * or waits (condition variables release it). A stream's thread is started under it, and a device's
 * memory grows under it. fault.c and cuInit have a lock each, taken alone. A fork takes all three:
 * cuInit's, fault.c's, the monitor. Knobs and counters are atomics. To move bytes without the
 * monitor, first count as a user of their owner: a block's `users` or a context's `calls`. Nothing
 * frees memory before these are 0.
 *
 * An object lives until its last reference goes: `alive` holds one, each operation or waiting
 * thread another. Handles are numbers, not pointers: kind and index. A stale or invented one finds
 * nothing, until the driver gives it out again.
 */
#ifndef CUDRIVER_SIM_INTERNAL_H
#define CUDRIVER_SIM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "cudriver_sim.h"
#include "functions.h"

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_MAX_DEVICES 16
#define SIM_POISON 0xA5
#define SIM_LEAST_PRIORITY 0
#define SIM_GREATEST_PRIORITY (-5)
#define SIM_DEFAULT_MEMORY (8ull << 30)
#define SIM_DEFAULT_VERSION 13000
#define SIM_DEFAULT_REGISTRATION_LIMIT (512ull << 30)

/* Codes that the core does not name. cuda_errors.h, which a test compares, has all of them. */
#define CUDA_ERROR_NO_DEVICE ((CUresult)100)
#define CUDA_ERROR_INVALID_DEVICE ((CUresult)101)
#define CUDA_ERROR_UNSUPPORTED_LIMIT ((CUresult)215)
#define CUDA_ERROR_PEER_ACCESS_UNSUPPORTED ((CUresult)217)
#define CUDA_ERROR_FILE_NOT_FOUND ((CUresult)301)
#define CUDA_ERROR_ILLEGAL_STATE ((CUresult)401)
#define CUDA_ERROR_ILLEGAL_ADDRESS ((CUresult)700)
#define CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ((CUresult)704)
#define CUDA_ERROR_PEER_ACCESS_NOT_ENABLED ((CUresult)705)
#define CUDA_ERROR_NOT_PERMITTED ((CUresult)800)
#define CUDA_ERROR_STREAM_CAPTURE_MERGE ((CUresult)902)
#define CUDA_ERROR_STREAM_CAPTURE_UNMATCHED ((CUresult)903)
#define CUDA_ERROR_STREAM_CAPTURE_UNJOINED ((CUresult)904)
#define CUDA_ERROR_STREAM_CAPTURE_ISOLATION ((CUresult)905)
#define CUDA_ERROR_CAPTURED_EVENT ((CUresult)907)
#define CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD ((CUresult)908)

#define X(name, args, since) SIM_EXPORT CUresult name args;
SIM_FUNCTIONS(X)
SIM_PER_THREAD(X)
#undef X

enum sim_call {
#define X(name, args, since) CALL_##name,
    SIM_FUNCTIONS(X)
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
    KIND_GRAPH,
    KIND_EXECUTABLE,
    KIND_USER,
    KINDS
};

/* The head of everything that has a handle. */
struct sim_object {
    enum sim_kind kind;
    uint32_t index;
    bool alive; /* its handle finds it */
    unsigned references;
};

/* ---- range.c: sets of disjoint ranges, sorted by address; the caller owns the nodes ---- */

struct sim_range {
    uintptr_t start;
    size_t bytes;
    unsigned weight;
    struct sim_range *left, *right;
};

void sim_range_insert(struct sim_range **root, struct sim_range *range);
void sim_range_remove(struct sim_range **root, struct sim_range *range);
/* The range that contains `address`, or NULL. */
struct sim_range *sim_range_find(struct sim_range *root, uintptr_t address);
/* The first range at or above `address`, or NULL. */
struct sim_range *sim_range_next(struct sim_range *root, uintptr_t address);
/* Any range that shares a byte with [start, start + bytes), or NULL. */
struct sim_range *sim_range_overlap(struct sim_range *root, uintptr_t start, size_t bytes);

/* ---- devices ---- */

struct sim_block; /* a piece of a device's address space, free or allocated: space.c */

struct sim_device {
    _Atomic uintptr_t
        base; /* device addresses: reserved, never accessible; 0 before the first allocation */
    size_t reserved;             /* bytes of device addresses */
    char *bytes;                 /* their contents, at the same offsets */
    size_t ready;                /* accessible bytes of the contents */
    size_t used;                 /* bytes allocated, rounding included */
    struct sim_block *first;     /* all blocks by address */
    struct sim_block *free;      /* the free ones */
    struct sim_range *blocks;    /* the allocated ones, by address */
    struct sim_context *primary; /* owned; made by the first retain, never freed */
    unsigned retains;
    unsigned primary_flags;
    CUresult broken; /* the permanent error of all its contexts, or CUDA_SUCCESS */
};

/* ---- contexts ---- */

#define SIM_LIMITS 9

struct sim_context {
    struct sim_object object;
    int device;
    bool primary;
    bool active;  /* false: destroyed, being destroyed, or primary and not retained */
    bool closing; /* being destroyed */
    unsigned flags;
    unsigned attached; /* by cuCtxAttach, and not detached yet */
    unsigned api_version;
    unsigned long long id;
    size_t limits[SIM_LIMITS];
    CUfunc_cache cache_config;
    unsigned peers;                /* a bit for each device whose memory it may use */
    struct sim_stream *streams;    /* all, including the two implicit ones; borrowed */
    struct sim_stream *legacy;     /* the NULL stream, owned; NULL until used */
    struct sim_stream *per_thread; /* CU_STREAM_PER_THREAD, owned; one for all threads */
    unsigned long long pending;    /* operations issued but not done */
    unsigned calls;                /* calls that use it without the monitor */
    unsigned waiters;
    unsigned stacked;    /* its entries on threads' stacks */
    pthread_cond_t done; /* an operation or a call has ended */
};

/* ---- streams ---- */

struct sim_op;

struct sim_stream {
    struct sim_object object;
    struct sim_context *context;        /* holds a reference */
    unsigned long long id;              /* never used twice, as handles are */
    struct sim_stream *next, *previous; /* in the context */
    bool blocking;                      /* ordered with the NULL stream */
    bool implicit;
    int priority;
    unsigned long long issued, done; /* sequence numbers */
    struct sim_op *head, *tail;
    bool worker;                 /* its thread runs */
    bool closing;                /* destroyed: the thread ends when the queue is empty */
    bool unlinked;               /* removed from the context's list */
    struct sim_capture *capture; /* holds a reference; NULL: it is not being captured */
    unsigned long long captured; /* operations and waits in the capture */
    bool unjoined;               /* of these, the last are not waited for by the capture's origin */
    pthread_cond_t work;
};

/* Points in streams to wait for together. Zeroed: empty. */
struct sim_waits {
    size_t count, room;
    struct sim_wait {
        struct sim_stream *stream; /* holds a reference */
        unsigned long long sequence;
    } *items; /* owned */
};

/* One operation: the first member of every kind of operation, each a single allocation. */
struct sim_op {
    struct sim_op *next;
    unsigned long long sequence;
    struct sim_waits waits;
    size_t bytes; /* for the bandwidth */
    bool instant; /* no work of the device: cudriver_sim_hold lets it go */
    /* Does the work, without the monitor. Not called in a broken context. May be NULL. */
    CUresult (*run)(struct sim_stream *stream, struct sim_op *op);
    /* Called afterwards in the monitor, in any case, even if the operation was never issued. May be
     * NULL. */
    void (*finish)(struct sim_stream *stream, struct sim_op *op, bool issued);
};

/* ---- the monitor ---- */

/* A user object's destructor that is to be called. */
struct sim_due {
    struct sim_due *next;
    CUhostFn destroy;
    void *data;
};

struct sim_state {
    pthread_mutex_t lock;
    struct sim_device devices[SIM_MAX_DEVICES];
    struct sim_range *hosts; /* page-locked host memory: hostreg.c */
    unsigned workers;
    void (*end_workers)(void); /* at exit; NULL: there never were any */
    pthread_cond_t worker_gone;
    pthread_cond_t unpinned; /* a block lost its last user */
    unsigned unpin_waiters;
    bool held;
    unsigned long long steps; /* operations that may run while held */
    struct sim_due *due;      /* owned: destructors to call; graph.c */
};

extern struct sim_state sim;

/* The knobs: set at any time, by any thread. */
struct sim_knobs {
    atomic_int devices;
    atomic_ullong memory;
    atomic_int version;
    atomic_ullong latency; /* microseconds */
    atomic_ullong late;    /* microseconds, of copies and fills; 0: the mode is off */
    atomic_ullong jitter;  /* microseconds, at most, of calls; 0: none is late */
    atomic_ullong bandwidth;
    atomic_ullong registration_limit;
    atomic_bool stub;
    atomic_bool no_device;
    atomic_bool crawls;   /* copies of pageable memory are slow */
    atomic_bool coherent; /* devices read pageable memory through the host's page tables */
};

extern struct sim_knobs sim_knobs;

void sim_lock(void);
/* Afterwards calls the destructors of user objects that are due. */
void sim_unlock(void);

/* Leaves the monitor and returns `result`: the last line of a call. */
CUresult sim_leave(CUresult result);

/* Begins a call: counts it, checks that the driver may be called, and applies injected faults. */
CUresult sim_enter(enum sim_call call);

/* sim_enter for a call on an object, which is returned in the monitor. NULL with *result set,
 * outside of it: the call may not be made, or INVALID_VALUE. */
void *sim_enter_object(enum sim_call call, enum sim_kind kind, const void *handle,
                       CUresult *result);

/* sim_enter for a call on a stream. On success the monitor is held and *stream is usable. A stream
 * that the program created has its own context; the implicit ones are the current context's. */
CUresult sim_enter_stream(enum sim_call call, CUstream handle, struct sim_stream **stream);

/* sim_enter_stream for a call that writes something about the stream to `answer`, which it refuses
 * if that is NULL. */
CUresult sim_ask_stream(enum sim_call call, CUstream handle, const void *answer,
                        struct sim_stream **stream);

/* Lets each call pass through `permits`, too. */
void sim_enter_through(CUresult (*permits)(enum sim_call call));

/* Whether the process is exiting; operations then end early. */
bool sim_is_down(void);
bool sim_is_initialised(void);
CUresult sim_initialise(void);

/* Around the user's function, which a worker runs, and in which few calls are permitted. Waits
 * while another worker runs one. */
void sim_mark_callback(bool inside);

/* Each kind of object registers what is to be done when the last reference goes: in the monitor. */
void sim_object_on_end(enum sim_kind kind, void (*end)(void *object));
/* In the monitor. A new object, zeroed, alive, with one reference; NULL if memory ran out. */
void *sim_object_new(enum sim_kind kind, size_t bytes);
/* In the monitor. The live object of a handle, or NULL. Borrowed. */
void *sim_object_find(enum sim_kind kind, const void *handle);
/* In the monitor. The same, or a context that is referred to but no longer alive. Borrowed. */
void *sim_object_behind(enum sim_kind kind, const void *handle);
/* In the monitor. The live object of slot `index` (below sim_object_slots), or NULL. Borrowed. */
void *sim_object_at(enum sim_kind kind, uint32_t index);
uint32_t sim_object_slots(enum sim_kind kind);
/* In the monitor. Whether this process ever returned this handle. */
bool sim_object_was(enum sim_kind kind, const void *handle);
/* In the monitor. The error for a handle that finds nothing: CONTEXT_IS_DESTROYED if the object was
 * freed with its context, else INVALID_HANDLE. */
CUresult sim_object_missing(enum sim_kind kind, const void *handle);
void *sim_object_handle(const void *object);
void sim_object_hold(void *object);
/* Drops a reference; the last one frees the object. */
void sim_object_drop(void *object);
/* The object's handle no longer finds it; drops the reference that `alive` held. */
void sim_object_close(void *object);
/* The same for an object that is freed with its context. */
void sim_object_orphan(void *object);

/* ---- fault.c ---- */

/* Prints a line on standard error that begins with the simulator's name, the first time only. */
void sim_say_once(atomic_bool *said, const char *format, ...) __attribute__((format(printf, 2, 3)));

void sim_fault_count(enum sim_call call);
/* CUDA_SUCCESS, or the error injected for this call. */
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

/* sim_enter. On success the monitor is held and *context is the thread's current one, usable. */
CUresult sim_enter_current(enum sim_call call, struct sim_context **context);
/* In the monitor. The current context if it is usable; else the error to return. */
CUresult sim_context_current(struct sim_context **context);
/* In the monitor. The context of a handle; else INVALID_CONTEXT or CONTEXT_IS_DESTROYED. */
CUresult sim_context_of(CUcontext handle, struct sim_context **context);
bool sim_context_flags_are_valid(unsigned flags);
/* In the monitor. A context object for a device, not yet open; NULL if memory ran out. */
struct sim_context *sim_context_new(int device);
/* In the monitor. Gives a context the state of a new one. */
void sim_context_open(struct sim_context *context, unsigned flags, unsigned api_version);
/* What a context frees when it ends, in this order; each registers its own function, which is
 * called in the monitor (perhaps given up meanwhile), with a drained context. */
enum sim_forget {
    FORGET_STREAMS,
    FORGET_EVENTS,
    FORGET_MODULES,
    FORGET_MEMORY,
    FORGET_HOST,
    FORGETS
};
void sim_context_on_end(enum sim_forget what, void (*forget)(struct sim_context *context));
/* In the monitor, given up meanwhile. Frees everything in a context. As soon as it begins, calls in
 * the context return CONTEXT_IS_DESTROYED. */
void sim_context_shut(struct sim_context *context);
/* In the monitor. CUDA_SUCCESS, or the error that broke the context's device. */
CUresult sim_context_state(const struct sim_context *context);
/* In the monitor. Breaks the context's device, unless it is broken already. */
void sim_context_break(struct sim_context *context, CUresult error);
/* In the monitor, given up meanwhile. Waits until no operation is pending and no call uses it. */
void sim_context_drain(struct sim_context *context);
/* In the monitor. Begins use of `context` without the monitor; sim_context_work_end ends it. */
void sim_context_work_begin(struct sim_context *context);
void sim_context_work_end(struct sim_context *context);
/* In the monitor, given up meanwhile: waits for the next change in `context`. */
void sim_context_wait(struct sim_context *context);
void sim_context_wake(struct sim_context *context);
long long sim_context_live(bool retains);

/* ---- space.c ---- */

enum sim_block_state { BLOCK_FREE, BLOCK_USED, BLOCK_LEAVING };

/*
 * A block has two sizes; 0 means not allocated. `asked` is the program's view: it changes in the
 * call that allocates or frees. `bytes` is what operations may touch. They differ only in
 * stream-ordered memory, where `bytes` changes when the stream reaches the allocation or the free.
 */
struct sim_block {
    struct sim_range range; /* the whole block, rounding included */
    size_t asked, bytes;
    size_t written; /* the maximum of `bytes` since the block was last poisoned */
    int device;
    enum sim_block_state state;
    unsigned users;              /* operations that use its bytes right now */
    struct sim_context *context; /* borrowed: its owner, which frees it; NULL for a pool's */
    struct sim_pool *pool;       /* borrowed: each block keeps its pool alive */
    unsigned under_way;          /* in a pool: allocations and frees issued but not done */
    struct sim_stream
        *freed_on; /* holds a reference; in a pool: the stream of the free; NULL: any may reuse */
    unsigned long long freed_at;                 /* the free's sequence number there */
    struct sim_block *pool_next, *pool_previous; /* the pool's free blocks */
    struct sim_block *next, *previous;           /* by address */
    struct sim_block *free_next, *free_previous; /* the device's free blocks */
};

/* In the monitor. A new block, full of poison, with both sizes set and no owner; OUT_OF_MEMORY. */
CUresult sim_space_take(int device, size_t bytes, struct sim_block **block);
/* In the monitor, given up meanwhile. Poisons the block and returns it to the device. */
void sim_space_give(struct sim_block *block);
/* In the monitor, given up meanwhile. Waits until nothing uses the block, then poisons it. */
void sim_space_poison(struct sim_block *block);
/* In the monitor. The block that contains `address` and is not free on the device, or NULL. */
struct sim_block *sim_space_find(CUdeviceptr address);
/* Whether the address is a device address, allocated or not. */
bool sim_space_owns(CUdeviceptr address);
/* The host's view of an address in a block. */
char *sim_space_bytes(const struct sim_block *block, CUdeviceptr address);
/* In the monitor. The bytes that a device has left. */
size_t sim_space_available(int device);

/* ---- memory.c ---- */

/* Memory that an operation works on, pinned. */
struct sim_pin {
    struct sim_block *block; /* NULL for host memory */
    char *bytes;
};

/* In the monitor. Pins [address, address + bytes) of device memory, or of page-locked host memory
 * by its device address, while the bytes are used without the monitor. INVALID_VALUE if the range
 * is not memory or exceeds its block. */
CUresult sim_memory_pin(CUdeviceptr address, size_t bytes, struct sim_pin *pin);
void sim_memory_unpin(struct sim_pin *pin);
/* In the monitor. The same check at the time of a call, by the program's view (`asked`). */
CUresult sim_memory_check(CUdeviceptr address, size_t bytes);
long long sim_memory_live(bool bytes);
long long sim_memory_taken(bool unused);

/* ---- hostreg.c ---- */

/* In the monitor. What kind of memory [address, address + bytes) is. HOST_LOCKED: within one
 * registration or allocation. HOST_TORN: begins in one and ends beyond it; copies of it are
 * refused, as by hardware, even if another registration begins there. */
enum sim_host_kind { HOST_PAGEABLE, HOST_LOCKED, HOST_TORN };
enum sim_host_kind sim_host_kind(uintptr_t address, size_t bytes);
/* In the monitor. Where the device sees host memory: what a registration holds are its pages. */
char *sim_host_bytes(uintptr_t address, size_t bytes);
/* In the monitor. Describes the page-locked range that contains `address`. False: none. */
struct sim_host_info {
    uintptr_t start;
    size_t bytes;
    struct sim_context *context;
    bool mapped;
};
bool sim_host_info(uintptr_t address, struct sim_host_info *info);
/* The number, or the sum of the bytes. */
long long sim_host_registered(bool bytes);
long long sim_host_allocated(bool bytes);

/* ---- worker.c, stream.c ---- */

/* In the monitor. The stream of a handle in `context`, the default streams' handles included.
 * Borrowed. */
CUresult sim_stream_of(CUstream handle, struct sim_context *context, struct sim_stream **stream);
void *sim_op_new(size_t bytes);
/* In the monitor. Drops an operation that will not be issued. NULL is fine. */
void sim_op_drop(struct sim_op *op);
/* In the monitor. Adds a wait for `stream` up to `sequence`, unless that is done already.
 * OUT_OF_MEMORY. */
CUresult sim_waits_add(struct sim_waits *waits, struct sim_stream *stream,
                       unsigned long long sequence);
/* In the monitor, given up meanwhile. Waits for all of them and empties the set. */
void sim_waits_finish(struct sim_waits *waits);
/* In the monitor. Empties the set. */
void sim_waits_drop(struct sim_waits *waits);
/* In the monitor. Adds the waits that an operation issued on `stream` now needs in other streams,
 * by the legacy rule between the NULL stream and the blocking ones. */
CUresult sim_stream_turn(const struct sim_stream *stream, struct sim_waits *waits);
/* In the monitor. Appends the operation to the stream; takes over `op`, even if it fails. */
CUresult sim_stream_issue(struct sim_stream *stream, struct sim_op *op);
/* The same, and waits until it is done (given up meanwhile); runs it in this thread if possible. */
CUresult sim_stream_issue_and_wait(struct sim_stream *stream, struct sim_op *op);
/* In the monitor. Whether an operation issued now would have nothing to wait for. */
bool sim_stream_is_clear(const struct sim_stream *stream);
/* In the monitor. Removes a stream from its context's list; does nothing the second time. */
void sim_stream_unlink(struct sim_stream *stream);
/* In the monitor. Whether an operation issued now would start at once: the stream is clear, and
 * there is neither hold nor latency, nor is work late. */
bool sim_stream_is_idle(const struct sim_stream *stream);
/* In the monitor, given up meanwhile. Waits until the stream has done `sequence`. */
void sim_stream_wait(struct sim_stream *stream, unsigned long long sequence);
/* In the monitor, given up meanwhile. Waits for the NULL stream and the blocking streams, as
 * blocking calls do. */
CUresult sim_stream_settle(struct sim_context *context);
/* The same for all streams of the context. */
CUresult sim_stream_settle_all(struct sim_context *context);
/* In the monitor, given up meanwhile. Waits for all work issued so far in all contexts of the
 * device, as calls that free memory do. */
CUresult sim_stream_settle_device(struct sim_context *context);
/* Without the monitor. Sleeps for the time that the knobs give an operation of `bytes`. */
void sim_stream_cost(size_t bytes, const struct sim_context *context);
void sim_stream_wake_all(void);
long long sim_stream_live(bool pending);

/* ---- capture.c ---- */

/* In the monitor. Whether the call may use the stream, as captures are now; if not, breaks those
 * that it would spoil. */
CUresult sim_capture_stream(enum sim_call call, struct sim_stream *stream);
/* In the monitor. The same for the NULL stream, which waits for the blocking streams. */
CUresult sim_capture_legacy(struct sim_context *context);
/* In the monitor. The same for asking about an event; `capture`: where it was recorded last. */
CUresult sim_capture_event(struct sim_capture *capture);
/* In the monitor. The same for the context as a whole. */
CUresult sim_capture_context(struct sim_context *context);
/* In the monitor. Takes the operation into the graph of the stream's capture. */
CUresult sim_capture_add(struct sim_stream *stream, struct sim_op *op);
/* In the monitor. `stream` waits for an event that was recorded in `from` when that had `position`
 * operations in `capture` (NULL: outside of captures); one of the two streams is captured. */
CUresult sim_capture_join(struct sim_stream *stream, struct sim_capture *capture,
                          struct sim_stream *from, unsigned long long position);
/* In the monitor. Breaks the capture; returns `result`. */
CUresult sim_capture_refuse(struct sim_capture *capture, CUresult result);
/* In the monitor. The stream's end: its capture is broken. */
void sim_capture_lose(struct sim_stream *stream);
/* In the monitor. Begins a capture in a stream. */
CUresult sim_capture_begin(struct sim_stream *stream, CUstreamCaptureMode mode);
/* In the monitor. Ends the capture that the stream is in; *graph: a new reference. */
CUresult sim_capture_end(struct sim_stream *stream, CUgraph *graph);
/* In the monitor. In an active capture, *id and *graph are its own; either may be NULL. */
CUstreamCaptureStatus sim_capture_status(const struct sim_stream *stream, cuuint64_t *id,
                                         CUgraph *graph);
/* Sets the thread's mode and returns the one before. */
CUstreamCaptureMode sim_capture_exchange_mode(CUstreamCaptureMode mode);
/* In the monitor. NULL is fine. */
void sim_capture_hold(struct sim_capture *capture);
void sim_capture_drop(struct sim_capture *capture);

/* ---- graph.c ---- */

/* The captured operations, in the order of their calls. */
struct sim_graph {
    struct sim_object object;
    struct sim_op *head, *tail; /* owned */
    size_t count;
    struct user_hold *holds; /* owned */
};

/* ---- pool.c ---- */

/* In the monitor, given up meanwhile. Pools return to the device what exceeds their thresholds. */
void sim_pool_settle(int device);
/* In the monitor, given up meanwhile. For an allocation that finds no memory: pools return all free
 * blocks. True if there were any. */
bool sim_pool_release_unused(int device);
/* In the monitor, given up meanwhile. Frees a pool's block at once, as cuMemFree does. `asked` is
 * the block's former value, which is 0 by now. */
void sim_pool_free_now(struct sim_block *block, size_t asked);
long long sim_pool_live(bool unused);

#endif

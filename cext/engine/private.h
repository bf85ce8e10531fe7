/*
 * The insides of the copy engine. engine.h is the public interface.
 *
 *   state.c       the lock, the settings, waiting for a stream or an event; memory for blocks
 *   plan.c        how a copy is done, which explain_copy tells; how a staged one travels, its parts
 *   execute.c     follows a plan: the driver's own copies, or one of the files below; dense ones
 *                 and their waits of microseconds
 *   staged.c      copies that are staged, blocking or in stream order; waits for one
 *   issue.c       what a stream does: the driver's own copies; the parts of a transfer
 *   pack.c        the packing threads; how far a transfer is     no CUDA
 *   runs.c        many dense copies at once
 *   files.c       what is packed from files                      no CUDA
 *   kernels.c     the kernels: loading, launching; kernels_ptx.py makes their PTX at build time
 *   place.c       places and their lanes: creation, trim, closing, exit
 *   layout.c      strided memory on the host: see layout.h       no CUDA
 *
 * The terms, beside those of README.md:
 *
 *   transfer   one staged copy under way, counted by references
 *   place      what the engine owns in one context: lanes, kernels
 *   lane       blocks; for blocking copies a stream and an event for each block, for asynchronous
 *              ones two words: the threads store in `ready` how many parts they have moved, the
 *              stream in `passed` how many it has copied. One without blocks serves copies that
 *              hold theirs
 *   to hold    an asynchronous copy of pageable memory that is not borrowed takes blocks of its
 *              own: where the stream is busy, one for each part. So packing begins at once, and the
 *              call returns when it has ended
 *   block      page-locked memory for a part
 *   part       what the stream copies at a time; the blocks take turns
 *   piece      what one thread packs at a time
 *   walk       a layout, in the order in which its bytes travel
 *   box        the shape of a part on the device
 *   Locked.    the caller holds the lock
 *
 * The threads only move bytes between the host, or files, and blocks, and sleep when idle. Where
 * host and device order their dimensions differently, the bytes travel in the host's order and a
 * kernel permutes them on the device.
 *
 * Threads may move the parts below `released`: up, those whose block the stream has copied; down,
 * those that have arrived. They have moved all below `moved`: up, those may be copied. `over`: the
 * stream has passed it too. A transfer that fails is stopped (no more pieces are taken) and over
 * once its stream was waited for. If that fails too, its blocks are given up: nothing else ever
 * uses them.
 *
 * One lock, `staging.lock`. While it is held, only the page-locked pool's lock may be taken. It is
 * held for moments, never while calling the driver, moving bytes or calling `interrupted`.
 * Streams share hardware channels, and a stream that waits for a word blocks its whole channel: so
 * all copies of a transfer are in one stream, and what ends the wait depends on no other and on no
 * thread that calls the driver: the packing threads only move bytes.
 *
 * Ownership: a place owns its lanes and kernels. A transfer is counted by references: its caller's,
 * and the list of the packing threads. It borrows its lane until it is over.
 */
#ifndef CUDRIVER_ENGINE_PRIVATE_H
#define CUDRIVER_ENGINE_PRIVATE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "engine.h"

#define STAGING_BLOCKS_MOST 16
#define STAGING_WORDS 4096 /* bytes of a lane before its blocks; hold the words */
#define STAGING_WORD 64    /* bytes from one word to the other: a cache line each */
#define STAGING_KERNEL_DIMS 6
#define STAGING_KERNEL_TILE 32 /* items, and rows of them that a tile's threads make at a time */
#define STAGING_KERNEL_TILE_ROWS 8
#define STAGING_KERNEL_UNITS 5 /* item sizes: 1, 2, 4, 8, 16 bytes */
#define STAGING_POLL_NS 50000000ull

/* ---- settings ---- */

struct staging_settings {
    int packers;      /* threads for one dense copy */
    int threads;      /* for all copies together, or for one strided copy */
    int linger;       /* ns that an idle thread polls before it sleeps */
    size_t crossover; /* bytes from which on a copy is staged */
    size_t part;      /* bytes of a part, at most */
    size_t held;      /* bytes of blocks that copies have of their own, at most, in all */
    bool coherent;    /* leave pageable memory to devices that read it through the host's tables */
    bool timed[2];    /* whether such a copy from a device was timed, and one to it */
    bool crawls[2];   /* whether that was slow: such copies are staged */
    size_t streaming; /* bytes of the largest blocking copy up that bypasses the caches; 0: none */
};

void staging_settings_get(struct staging_settings *settings);
/* Whether copies crawl that are left to devices which read pageable memory: the first big one, or
 * its first part, is judged by what it took. */
bool staging_coherent_crawls(bool up, size_t bytes, unsigned long long nanoseconds);

/* ---- plans ---- */

/* Sets copy->staged: how the copy travels in copy->context. `kernels`: whether the permuting kernel
 * may be used. */
void staging_plan_make(struct cudriver_copy_plan *copy, bool blocking, bool kernels);

/* ---- places ---- */

struct staging_kernels; /* kernels.c */

struct staging_lane {
    struct staging_lane *next; /* in the place's list */
    unsigned long long stream; /* the id of the stream of the asynchronous copies under way */
    int users;                 /* copies that are not over or were given up, and the call */
    bool issuing;              /* by a call that queues a copy: no other copy joins */
    bool lost;                 /* given up: no other copy takes it, ever */
    char *block;               /* owned: the words, then the blocks */
    size_t bytes;              /* of the blocks */
    _Atomic uint32_t *ready;   /* written by the threads, in the block; NULL: blocking copies */
    _Atomic uint32_t *passed;  /* written by the stream */
    CUdeviceptr address;       /* of `ready` */
    uint32_t issued;           /* the last value assigned to a copy */
    size_t turn;               /* bytes; where the next copy down begins */
    CUdeviceptr scratch;       /* owned, for permuted copies; 0: none */
    size_t scratch_bytes;
    CUstream own;                        /* owned; NULL unless made for blocking copies */
    CUevent copied[STAGING_BLOCKS_MOST]; /* owned; the same */
};

struct staging_place {
    struct staging_place *next;
    CUcontext context;
    unsigned long long id; /* the context's, from cuCtxGetId; else 0 */
    int users;             /* calls that use it */
    bool closing;
    struct staging_lane *lanes;      /* owned */
    struct staging_kernels *kernels; /* owned; or NULL */
    _Atomic bool no_kernels;
    _Atomic bool no_words; /* no stream memory operations */
};

struct staging_engine {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled when a part was moved or something ended */
    struct staging_place *places;
    struct staging_settings settings;
    bool ready;                                /* the first staging_lock sets it */
    _Atomic bool stopping;                     /* written under the lock */
    struct cudriver_staging_transfer *packing; /* transfers with pieces to take */
    int wanted;                                /* sum of their threads */
    int words;                                 /* listed copies whose progress words tell */
    bool watched;                              /* an idle thread looks at the words */
    int trims;   /* under way: each frees what is in the contexts of places it took off the list */
    size_t held; /* bytes of the blocks that copies have of their own */
    _Atomic int users; /* copies that are not over; written under the lock */
    int threads, idle;
    sem_t sleep; /* idle threads sleep here */
    int calls;   /* wake-ups to post after unlocking; these threads no longer count as idle */
    _Atomic unsigned news; /* changes when there may be a piece to take */
};

extern struct staging_engine staging;

/* Takes the lock. The first call in the process initialises the rest of `staging`. */
void staging_lock(void);
void staging_unlock(void);

/* Locked. Wakes up to `count` sleeping packing threads, after unlocking. */
void staging_threads_call(int count);

/* Locked. Waits for `changed`, at most `nanoseconds`. */
void staging_change_wait(unsigned long long nanoseconds);

/* ---- copies of many runs ---- */

/* What travels of a staged copy of many runs: one behind another. */
struct staging_run {
    size_t begin; /* where it begins in what travels */
    char *host;
    CUdeviceptr device;
};

struct staging_runs {
    atomic_int users;           /* the call, and the transfer */
    struct cudriver_run *table; /* owned; page-locked, for the kernel */
    size_t filled, room;        /* entries of it */
    size_t count;
    struct staging_run run[]; /* and one behind the last */
};

/* ---- staged.c ---- */

/* A copy by a transfer. `made`: asynchronous, and *made is the transfer. NULL: waits, first for the
 * stream, then for the copy. NOT_SUPPORTED and the like: it cannot be done so. */
CUresult staging_transfer_copy(const struct cudriver_copy_plan *copy,
                               struct cudriver_copy_call *call, struct staging_place *place,
                               struct cudriver_staging_transfer **made);

/* A STAGED copy, as by cudriver_copy_follow. */
CUresult staging_copy(const struct cudriver_copy_plan *copy, struct cudriver_copy_call *call,
                      struct cudriver_staging_transfer **transfer);

/* ---- place.c ---- */

/* Finds or makes the place of the current context, and adds a user; end it with
 * staging_place_leave. NOT_INITIALIZED in a forked child, DEINITIALIZED after shutdown,
 * CONTEXT_IS_DESTROYED while the place is being closed. */
CUresult staging_place_enter(CUcontext context, struct staging_place **place);
void staging_place_leave(struct staging_place *place);

/* Gives the transfer a lane with so many bytes of blocks and of device memory, and makes it and the
 * call its users. 0 bytes: the transfer has blocks of its own. */
CUresult staging_lane_get(struct cudriver_staging_transfer *transfer, size_t bytes, size_t scratch);

/* ---- state.c: results, blocks ---- */

/* Whether a copy failed because no kernel, page-locked or device memory or the like could be had:
 * another way may work. */
bool staging_must_do_without(CUresult result);

/* A block of the page-locked pool, which may have to grow: owned by the caller until
 * cudriver_hostmem_free. NULL in *slot on failure. */
CUresult staging_slot_get(size_t bytes, void **slot);

/* Gives the transfer blocks of its own. OUT_OF_MEMORY too above settings.held. */
CUresult staging_blocks_hold(struct cudriver_staging_transfer *transfer);

/* Locked. Gives them back; `lost`: nobody knows whether a stream still uses them. */
void staging_blocks_drop(struct cudriver_staging_transfer *transfer, bool lost);

/* ---- transfers ---- */

/* How the bytes of a copy are cut into boxes: each covers up to `rows` entries of dimension `split`
 * of plan->spread, all dimensions inside it, and one entry of each dimension outside it. */
struct staging_boxes {
    int split; /* its number of dimensions: the run itself is cut, and an entry is a byte */
    int64_t length, rows; /* entries of that dimension; of a box */
    size_t row_bytes;     /* of an entry */
    size_t per_split;     /* boxes along the split dimension */
    size_t largest;       /* bytes of the largest box */
    size_t count;
};

/* How far the packing is. Guarded by the lock. */
struct staging_progress {
    size_t released;      /* parts that may be moved */
    _Atomic size_t moved; /* parts that are moved; written under the lock */
    size_t taking;        /* the part whose pieces are given out */
    size_t taken, until;  /* bytes of the walk: given out, end of the part */
    int moving;           /* pieces being moved */
};

struct staging_block {
    char *memory;
    size_t left; /* bytes of its part that are not moved. Guarded by the lock */
};

struct cudriver_staging_transfer {
    atomic_int references;
    struct cudriver_staging_transfer
        *also;                   /* owned: the handle's next; see cudriver_staging_join */
    struct staging_place *place; /* borrowed; while the call lasts */
    CUstream stream;             /* borrowed; while the call lasts */
    bool words;                  /* asynchronous; else blocking */
    int packers;                 /* packing threads that it wants */
    int node;                    /* where its blocks lie, and the packing threads run */
    struct cudriver_copy_plan copy;
    struct staging_boxes parts;
    struct staging_kernels *kernels; /* borrowed from the place; NULL: it needs none */
    struct staging_lane *lane;       /* borrowed: its blocks, words, stream, events and scratch */
    size_t blocks;
    size_t held;     /* bytes of blocks of its own, for a source that is read at once; else 0 */
    size_t in_piece; /* how many of these lie in one piece of memory */
    char *plain;     /* owned: ordinary memory, where no page-locked can be had; else NULL */
    struct {
        uint32_t base; /* `passed` when the stream comes to it; `ready` before its first part */
        size_t count;  /* at base + count of `passed` the stream has passed it */
    } steps;
    /* The rest is guarded by the lock. */
    struct cudriver_staging_transfer *next; /* in the packing threads' list */
    bool arrived; /* nothing else uses the blocks: the stream need not say so */
    bool listed;  /* ever */
    bool stopped; /* no more pieces are taken */
    bool over;
    CUresult result;
    struct staging_progress at;
    struct staging_block block[]; /* borrowed from the lane, or `plain`, or owned: `held` */
};

/* ---- plan.c: parts ---- */

/* Of `count` items of `size` bytes, each of which begins with where it does in what travels, as 8
 * bytes: the one in which a byte travels, or the last before it. */
const void *staging_item_at(const void *items, size_t size, size_t count, size_t byte);

/* Cuts a plan's bytes into boxes of at most `most` bytes. */
struct staging_boxes staging_boxes_make(const struct staging_plan *plan, size_t most);

/* Box number `index`: bytes [begin, end) of the walk; and the layout between the box, dense, and
 * the device, unless that is NULL. */
void staging_box_find(const struct staging_plan *plan, const struct staging_boxes *boxes,
                      size_t index, size_t *begin, size_t *end, struct cudriver_layout *layout);

/* ---- files.c ---- */

/* Reads bytes [begin, end) of what travels into a block, or says in *files->ended why not. */
void staging_files_read(const struct cudriver_files *files, char *block, size_t begin, size_t end);

/* ---- issue.c ---- */

/* Queues the device's copy of a part. Each once, and those of runs in order. */
CUresult staging_part_issue(struct cudriver_staging_transfer *transfer, size_t part);

/* Queues a whole asynchronous copy. NOT_SUPPORTED: the driver cannot do it. */
CUresult staging_words_queue(struct cudriver_staging_transfer *transfer);

/* Queues one dense copy. Between host and device it is split at the end of a registration, because
 * the driver refuses a copy that starts in one and ends beyond it. */
CUresult staging_direct_issue(const struct cudriver_copy_plan *plan, CUstream stream,
                              const char **function);

/* Queues a copy by the driver's own copies, or only one of `bytes` bytes at these offsets. At least
 * one end is on a device, and both on the same. *function: the call made last. */
CUresult staging_rows_issue(const struct cudriver_layout *layout,
                            const struct cudriver_copy_end *dst,
                            const struct cudriver_copy_end *src, CUstream stream,
                            const char **function);
CUresult staging_bytes_issue(const struct cudriver_copy_end *dst, int64_t dst_at,
                             const struct cudriver_copy_end *src, int64_t src_at, size_t bytes,
                             CUstream stream, const char **function);

/* ---- pack.c ---- */

void staging_transfer_drop(struct cudriver_staging_transfer *transfer);

/* Locked; may release the lock. Nothing uses the host's memory any more, and the stream has passed
 * the blocks, unless they are `lost`: given up, because nobody knows. */
void staging_transfer_end(struct cudriver_staging_transfer *transfer, CUresult result, bool lost);

void staging_runs_drop(struct staging_runs *runs);

/* The block of a part. */
char *staging_block(const struct cudriver_staging_transfer *transfer, size_t part);

/* Makes sure that a packing thread is alive, before a stream depends on one. */
bool staging_pack_ensure(void);

/* Locked. Gives a transfer to the packing threads; only the first call does something. */
void staging_pack_list(struct cudriver_staging_transfer *transfer);

/* Locked. Ends the asynchronous copies that their streams have passed, as the threads do when they
 * look. */
void staging_words_look(void);

/* Locked. Takes an asynchronous copy back whose stream was waited for, and may have lacked some of
 * its commands. */
void staging_pack_close(struct cudriver_staging_transfer *transfer);

/* Locked. The same as list, and lets threads move all parts below `parts`. */
void staging_pack_release(struct cudriver_staging_transfer *transfer, size_t parts);

/* Locked; releases the lock meanwhile. help moves a piece, false: there is none to take. stop:
 * afterwards nothing uses the host's memory. */
bool staging_pack_help(struct cudriver_staging_transfer *transfer);
void staging_pack_stop(struct cudriver_staging_transfer *transfer);

/* ---- kernels.c ---- */

/* The device address of page-locked memory; 0: none. */
CUdeviceptr staging_device_address(CUcontext context, void *memory);

/* log2 of the largest item size that divides a layout and its addresses; -1: it has more than
 * STAGING_KERNEL_DIMS dimensions, one for an item of another size included. */
int staging_kernels_unit(const struct cudriver_layout *layout, CUdeviceptr dst, CUdeviceptr src);

/* The kernels; loads them if the place has none. NOT_SUPPORTED: there are none in this context. The
 * place's context is current; *kernels is borrowed from the place. */
CUresult staging_place_kernels(struct staging_place *place, struct staging_kernels **kernels);
void staging_kernels_unload(struct staging_kernels *kernels);

/* Queues the copies in a table of `count` runs, of 1 at least. */
CUresult staging_runs_launch(const struct staging_kernels *kernels, CUdeviceptr table,
                             uint64_t count, CUstream stream);

/* Queues dst[layout] = src[layout] between device memory. NOT_SUPPORTED: the layout has too many
 * dimensions. */
CUresult staging_kernels_launch(const struct staging_kernels *kernels,
                                const struct cudriver_layout *layout, CUdeviceptr dst,
                                CUdeviceptr src, CUstream stream);

/* Whether the permuting kernel may be used in a context, as far as is known. */
bool staging_context_has_kernels(CUcontext context);

#endif

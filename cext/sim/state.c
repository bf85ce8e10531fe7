/* The monitor, the handles, and the start of every call. */
#define _GNU_SOURCE
#include "sim.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct sim_state sim = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .worker_gone = PTHREAD_COND_INITIALIZER,
    .unpinned = PTHREAD_COND_INITIALIZER,
};

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER; /* taken alone */
static atomic_bool initialised;
static atomic_bool forked;
static atomic_bool down;
static _Thread_local bool in_callback;

void sim_lock(void)
{
    pthread_mutex_lock(&sim.lock);
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&sim.lock);
}

CUresult sim_leave(CUresult result)
{
    sim_unlock();
    return result;
}

bool sim_is_down(void)
{
    return atomic_load_explicit(&down, memory_order_relaxed);
}

bool sim_is_initialised(void)
{
    return atomic_load_explicit(&initialised, memory_order_acquire);
}

void sim_mark_callback(bool inside)
{
    in_callback = inside;
}

/* ---- fork and exit ---- */

/* A fork holds all locks, so that the child inherits consistent state and can release them. */
static void fork_prepare(void)
{
    pthread_mutex_lock(&init_lock);
    sim_fault_lock();
    sim_lock();
}

static void fork_parent(void)
{
    sim_unlock();
    sim_fault_unlock();
    pthread_mutex_unlock(&init_lock);
}

/* The child has no workers and may not use the device. Its copy of the state stays readable. */
static void fork_child(void)
{
    if (sim_is_initialised()) {
        atomic_store(&forked, true);
    }
    fork_parent();
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

/* At exit, if cuInit was called. Handlers that the program registered before cuInit run later. */
static void shut_down(void)
{
    if (!atomic_exchange(&down, true) && !atomic_load(&forked)) {
        sim_stream_shut_down();
    }
}

/* Workers run this library's code, so it must stay mapped, as the real driver does. */
static void stay_loaded(void)
{
    Dl_info info;

    if (dladdr((void *)&sim, &info) != 0 && info.dli_fname != NULL) {
        (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
    }
}

CUresult sim_initialise(void)
{
    if (atomic_load(&sim_knobs.no_device) || atomic_load(&sim_knobs.devices) == 0) {
        return CUDA_ERROR_NO_DEVICE;
    }
    pthread_mutex_lock(&init_lock);
    if (!sim_is_initialised()) {
        stay_loaded();
        atexit(shut_down);
        atomic_store_explicit(&initialised, true, memory_order_release);
    }
    pthread_mutex_unlock(&init_lock);
    return CUDA_SUCCESS;
}

/* ---- entering a call ---- */

/* These work before cuInit and, except cuInit, in a forked child. */
static bool call_needs_no_init(enum sim_call call)
{
    return call == CALL_cuInit || call == CALL_cuDriverGetVersion || call == CALL_cuGetErrorName ||
           call == CALL_cuGetErrorString || call == CALL_cuGetProcAddress ||
           call == CALL_cuGetProcAddress_v2;
}

/* These work even within the user's function on a stream. */
static bool call_is_permitted_inside(enum sim_call call)
{
    return call == CALL_cuDriverGetVersion || call == CALL_cuGetErrorName ||
           call == CALL_cuGetErrorString || call == CALL_cuGetProcAddress ||
           call == CALL_cuGetProcAddress_v2 || call == CALL_cuStreamQuery;
}

CUresult sim_enter(enum sim_call call)
{
    sim_fault_count(call);
    if (atomic_load_explicit(&sim_knobs.stub, memory_order_relaxed)) {
        return CUDA_ERROR_STUB_LIBRARY;
    }
    if (sim_call_since(call) > atomic_load_explicit(&sim_knobs.version, memory_order_relaxed)) {
        return CUDA_ERROR_NOT_SUPPORTED; /* a real driver of that age lacks the function */
    }
    if (in_callback && !call_is_permitted_inside(call)) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (sim_is_down()) {
        return CUDA_ERROR_DEINITIALIZED;
    }
    if (!call_needs_no_init(call)) {
        if (!sim_is_initialised()) {
            return CUDA_ERROR_NOT_INITIALIZED;
        }
        if (atomic_load_explicit(&forked, memory_order_relaxed)) {
            return CUDA_ERROR_NOT_INITIALIZED;
        }
    } else if (call == CALL_cuInit && atomic_load(&forked)) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = sim_fault_call(call);
    return result != CUDA_SUCCESS ? result : sim_capture_permits(call);
}

CUresult sim_enter_current(enum sim_call call, struct sim_context **context)
{
    CUresult result = sim_enter(call);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_lock();
    result = sim_context_current(context);
    if (result != CUDA_SUCCESS) {
        sim_unlock();
    }
    return result;
}

/* ---- handles ---- */

/*
 * A handle: bits 56-62 the kind (from 0x51 on: not a canonical address, so dereferencing it
 * faults), bits 24-55 the slot's generation, bits 0-23 its index. The slot that was freed first is
 * reused first, so that a stale handle stays stale for a long time.
 */
struct slot {
    struct sim_object *object; /* NULL: free */
    uint32_t generation;       /* of the current object, or of the next */
    uint32_t orphan;           /* the last generation that was freed with its context */
    uint32_t next;             /* free slots: index + 1 */
};

struct table {
    struct slot *slots;
    uint32_t count, room;
    uint32_t first_free, last_free; /* index + 1; 0: none */
};

#define INDEX_BITS 24
#define GENERATION_BITS 32
#define INDEX_LIMIT (1u << INDEX_BITS)

static struct table tables[KINDS];

static uint64_t handle_make(enum sim_kind kind, uint32_t generation, uint32_t index)
{
    return (uint64_t)(0x51 + kind) << (INDEX_BITS + GENERATION_BITS) |
           (uint64_t)generation << INDEX_BITS | index;
}

/* A handle's slot, and its generation; NULL if this cannot be a handle of that kind. */
static struct slot *handle_slot(enum sim_kind kind, const void *handle, uint32_t *generation)
{
    uint64_t value = (uint64_t)(uintptr_t)handle;
    uint32_t index = (uint32_t)(value & (INDEX_LIMIT - 1));

    if (value >> (INDEX_BITS + GENERATION_BITS) != 0x51u + kind || index >= tables[kind].count) {
        return NULL;
    }
    *generation = (uint32_t)(value >> INDEX_BITS);
    return &tables[kind].slots[index];
}

static bool table_grow(struct table *table)
{
    uint32_t room = table->room == 0 ? 64 : table->room * 2;
    struct slot *slots;

    if (table->room >= INDEX_LIMIT) {
        return false;
    }
    slots = realloc(table->slots, room * sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    memset(slots + table->room, 0, (room - table->room) * sizeof *slots);
    table->slots = slots;
    table->room = room;
    return true;
}

void *sim_object_new(enum sim_kind kind, size_t bytes)
{
    struct table *table = &tables[kind];
    struct sim_object *object;
    uint32_t index;

    /* A slot is reused only while another is free, so that a stale handle stays stale. */
    if (table->first_free == 0 || table->first_free == table->last_free) {
        if (table->count == table->room && !table_grow(table)) {
            return NULL;
        }
    }
    object = calloc(1, bytes);
    if (object == NULL) {
        return NULL;
    }
    if (table->first_free != 0 && table->first_free != table->last_free) {
        index = table->first_free - 1;
        table->first_free = table->slots[index].next;
    } else {
        index = table->count++;
        table->slots[index].generation = 1;
    }
    object->kind = kind;
    object->index = index;
    object->alive = true;
    object->references = 1;
    table->slots[index].object = object;
    return object;
}

void *sim_object_behind(enum sim_kind kind, const void *handle)
{
    uint32_t generation;
    struct slot *slot = handle_slot(kind, handle, &generation);

    return slot != NULL && slot->generation == generation ? slot->object : NULL;
}

void *sim_object_find(enum sim_kind kind, const void *handle)
{
    struct sim_object *object = sim_object_behind(kind, handle);

    return object != NULL && object->alive ? object : NULL;
}

bool sim_object_was(enum sim_kind kind, const void *handle)
{
    uint32_t generation;
    struct slot *slot = handle_slot(kind, handle, &generation);

    return slot != NULL && generation != 0 &&
           (generation < slot->generation ||
            (generation == slot->generation && slot->object != NULL));
}

CUresult sim_object_missing(enum sim_kind kind, const void *handle)
{
    uint32_t generation;
    struct slot *slot = handle_slot(kind, handle, &generation);

    return slot != NULL && generation != 0 && slot->orphan == generation
               ? CUDA_ERROR_CONTEXT_IS_DESTROYED
               : CUDA_ERROR_INVALID_HANDLE;
}

void *sim_object_at(enum sim_kind kind, uint32_t index)
{
    struct sim_object *object = tables[kind].slots[index].object;

    return object != NULL && object->alive ? object : NULL;
}

uint32_t sim_object_slots(enum sim_kind kind)
{
    return tables[kind].count;
}

void *sim_object_handle(const void *object)
{
    const struct sim_object *head = object;
    uint32_t generation = tables[head->kind].slots[head->index].generation;

    return (void *)(uintptr_t)handle_make(head->kind, generation, head->index);
}

void sim_object_hold(void *object)
{
    ((struct sim_object *)object)->references++;
}

static void object_free(struct sim_object *object)
{
    struct table *table = &tables[object->kind];
    struct slot *slot = &table->slots[object->index];

    slot->object = NULL;
    slot->generation++;
    slot->next = 0;
    if (table->last_free != 0) {
        table->slots[table->last_free - 1].next = object->index + 1;
    } else {
        table->first_free = object->index + 1;
    }
    table->last_free = object->index + 1;

    if (object->kind == KIND_CONTEXT) {
        pthread_cond_destroy(&((struct sim_context *)object)->done);
    } else if (object->kind == KIND_STREAM) {
        struct sim_stream *stream = (struct sim_stream *)object;
        pthread_cond_destroy(&stream->work);
        sim_object_drop(stream->context);
    } else if (object->kind == KIND_GRAPH) {
        sim_graph_clear(object);
    }
    free(object);
}

void sim_object_drop(void *object)
{
    struct sim_object *head = object;

    head->references--;
    if (head->references == 0) {
        object_free(head);
    }
}

void sim_object_orphan(void *object)
{
    struct sim_object *head = object;
    struct slot *slot = &tables[head->kind].slots[head->index];

    if (head->alive) {
        slot->orphan = slot->generation;
    }
    sim_object_close(head);
}

void sim_object_close(void *object)
{
    struct sim_object *head = object;

    if (head->alive) {
        head->alive = false;
        sim_object_drop(head);
    }
}

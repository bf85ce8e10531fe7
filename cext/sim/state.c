/* The monitor, the handles, and the start of every call. */
#define _GNU_SOURCE
#include "sim.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct sim_state sim = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .worker_gone = PTHREAD_COND_INITIALIZER,
    .unpinned = PTHREAD_COND_INITIALIZER,
};

static CUresult (*gate)(enum sim_call call); /* in sim_enter */
static void (*ends[KINDS])(void *object);    /* when an object's last reference goes */
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
    struct sim_due *due = sim.due;
    bool before = in_callback;

    sim.due = NULL;
    pthread_mutex_unlock(&sim.lock);
    while (due != NULL) {
        struct sim_due *next = due->next;
        in_callback = true;
        due->destroy(due->data);
        in_callback = before;
        free(due);
        due = next;
    }
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

/* One of the program's functions at a time: the driver "may" serialize those of independent
 * streams, so that none may wait for another. */
void sim_mark_callback(bool inside)
{
    static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
    static bool one_is_in;

    sim_lock();
    while (inside && one_is_in) {
        pthread_cond_wait(&left, &sim.lock);
    }
    one_is_in = inside;
    pthread_cond_signal(&left);
    sim_unlock();
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

static __attribute__((constructor)) void watch_forks(void)
{
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

/* At exit, if cuInit was called. Handlers that the program registered before cuInit run later. */
static void shut_down(void)
{
    if (!atomic_exchange(&down, true) && !atomic_load(&forked)) {
        sim_lock();
        void (*end_workers)(void) = sim.end_workers;
        sim_unlock();
        if (end_workers != NULL) {
            end_workers();
        }
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

void sim_enter_through(CUresult (*permits)(enum sim_call call))
{
    gate = permits;
}

/* Begins a call late, now and then: cudriver_sim_set_jitter. */
static void call_pause(void)
{
    static _Thread_local uint32_t state; /* of a linear congruential generator */
    unsigned long long most = atomic_load_explicit(&sim_knobs.jitter, memory_order_relaxed);
    struct timespec time;

    if (most == 0) {
        return;
    }
    if (state == 0) {
        clock_gettime(CLOCK_MONOTONIC, &time);
        state = (uint32_t)time.tv_nsec;
    }
    state = state * 1664525u + 1013904223u;
    if (state >> 16 < UINT16_MAX / 6) {
        time = (struct timespec){.tv_nsec = (long)(most * 1000 * (state >> 16) / (UINT16_MAX / 6))};
        nanosleep(&time, NULL);
    }
}

CUresult sim_enter(enum sim_call call)
{
    sim_fault_count(call);
    call_pause();
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
    return result != CUDA_SUCCESS ? result : gate(call);
}

/* ---- handles ---- */

/*
 * A handle: bits 56-62 the kind (from 0x51 on: not a canonical address, so dereferencing it
 * faults), below them the index of a slot. As with a real driver, the slot that was freed last is
 * the next to be used: a new stream or event gets the handle of the one destroyed last, even while
 * work is left in that one. A context keeps its slot until its last reference goes.
 */
struct slot {
    struct sim_object *object; /* NULL: free */
    bool orphan;               /* free: its object was freed with its context */
    uint32_t next;             /* free slots: index + 1 */
};

struct table {
    struct slot *slots;
    uint32_t count, room;
    uint32_t free; /* the slot that was freed last: index + 1; 0: none */
};

#define KIND_SHIFT 56
#define SLOT_LIMIT (1u << 24)

static struct table tables[KINDS];

static uint64_t handle_make(enum sim_kind kind, uint32_t index)
{
    return (uint64_t)(0x51 + kind) << KIND_SHIFT | index;
}

/* A handle's slot; NULL if there never was such a handle of that kind. */
static struct slot *handle_slot(enum sim_kind kind, const void *handle)
{
    uint64_t index = (uint64_t)(uintptr_t)handle - handle_make(kind, 0);

    return index < tables[kind].count ? &tables[kind].slots[index] : NULL;
}

static bool table_grow(struct table *table)
{
    uint32_t room = table->room == 0 ? 64 : table->room * 2;
    struct slot *slots;

    if (table->room >= SLOT_LIMIT) {
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

void sim_object_on_end(enum sim_kind kind, void (*end)(void *object))
{
    ends[kind] = end;
}

void *sim_object_new(enum sim_kind kind, size_t bytes)
{
    struct table *table = &tables[kind];
    struct sim_object *object;

    if (table->free == 0 && table->count == table->room && !table_grow(table)) {
        return NULL;
    }
    object = calloc(1, bytes);
    if (object == NULL) {
        return NULL;
    }
    if (table->free != 0) {
        object->index = table->free - 1;
        table->free = table->slots[object->index].next;
    } else {
        object->index = table->count++;
    }
    object->kind = kind;
    object->alive = true;
    object->references = 1;
    table->slots[object->index] = (struct slot){.object = object};
    return object;
}

void *sim_object_behind(enum sim_kind kind, const void *handle)
{
    struct slot *slot = handle_slot(kind, handle);

    return slot != NULL ? slot->object : NULL;
}

void *sim_object_find(enum sim_kind kind, const void *handle)
{
    struct sim_object *object = sim_object_behind(kind, handle);

    return object != NULL && object->alive ? object : NULL;
}

bool sim_object_was(enum sim_kind kind, const void *handle)
{
    return handle_slot(kind, handle) != NULL;
}

CUresult sim_object_missing(enum sim_kind kind, const void *handle)
{
    struct slot *slot = handle_slot(kind, handle);

    return slot != NULL && slot->orphan ? CUDA_ERROR_CONTEXT_IS_DESTROYED
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

    return (void *)(uintptr_t)handle_make(head->kind, head->index);
}

void sim_object_hold(void *object)
{
    ((struct sim_object *)object)->references++;
}

static void slot_free(struct sim_object *object)
{
    struct table *table = &tables[object->kind];
    struct slot *slot = &table->slots[object->index];

    slot->object = NULL;
    slot->next = table->free;
    table->free = object->index + 1;
}

static void object_free(struct sim_object *object)
{
    if (object->kind == KIND_CONTEXT) {
        slot_free(object);
    }
    if (ends[object->kind] != NULL) {
        ends[object->kind](object);
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

void sim_object_close(void *object)
{
    struct sim_object *head = object;

    if (head->alive) {
        head->alive = false;
        if (head->kind != KIND_CONTEXT) {
            slot_free(head);
        }
        sim_object_drop(head);
    }
}

void sim_object_orphan(void *object)
{
    struct sim_object *head = object;

    if (head->alive) {
        tables[head->kind].slots[head->index].orphan = true;
        sim_object_close(head);
    }
}

void *sim_enter_object(enum sim_call call, enum sim_kind kind, const void *handle, CUresult *result)
{
    void *object;

    *result = sim_enter(call);
    if (*result != CUDA_SUCCESS) {
        return NULL;
    }
    sim_lock();
    object = sim_object_find(kind, handle);
    if (object == NULL) {
        *result = sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return object;
}

/* The lock; what is registered: finds the registration of an address; and NUMA nodes: which one
 * memory goes to, and which processors are near it. See private.h. */
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "private.h"

/* --- the lock. A forked child finds it free: its blocks are ordinary memory --- */

pthread_mutex_t hostmem_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t hostmem_changed = PTHREAD_COND_INITIALIZER;
struct hostmem_pool hostmem_pool = {.stats = {.limit_bytes = SIZE_MAX}};

static void before_fork(void)
{
    pthread_mutex_lock(&hostmem_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&hostmem_lock);
}

static void after_fork_in_child(void)
{
    pthread_cond_init(&hostmem_changed, NULL); /* the waiting threads are not in the child */
    pthread_mutex_unlock(&hostmem_lock);
}

/* When the module is loaded, so before the lock is taken for the first time. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

/* --- ranges --- */

static struct {
    struct hostmem_range **list; /* sorted by address; no two overlap */
    size_t count, room;
} ranges;

/* The index of the first range that ends after `address`. */
static size_t ranges_find(uintptr_t address)
{
    size_t low = 0, high = ranges.count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)ranges.list[middle]->base + ranges.list[middle]->bytes > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

struct hostmem_range *hostmem_range_meeting(const void *address, size_t bytes)
{
    size_t at = ranges_find((uintptr_t)address);
    struct hostmem_range *range = at < ranges.count ? ranges.list[at] : NULL;

    return range != NULL && (uintptr_t)range->base < (uintptr_t)address + bytes ? range : NULL;
}

bool cudriver_hostmem_uses_device(CUdevice device)
{
    pthread_mutex_lock(&hostmem_lock);
    bool found = hostmem_pool.adding + hostmem_pool.releasing > 0; /* perhaps there */
    for (size_t i = 0; i < ranges.count; i++) {
        found |= ranges.list[i]->device == device || ranges.list[i]->device < 0; /* the same */
    }
    pthread_mutex_unlock(&hostmem_lock);
    return found;
}

bool hostmem_range_insert(struct hostmem_range *range)
{
    size_t at = ranges_find((uintptr_t)range->base);

    if (ranges.count == ranges.room) {
        size_t room = 2 * ranges.room + 8;
        struct hostmem_range **grown = realloc(ranges.list, room * sizeof(struct hostmem_range *));
        if (grown == NULL) {
            return false;
        }
        ranges.list = grown;
        ranges.room = room;
    }
    memmove(&ranges.list[at + 1], &ranges.list[at],
            (ranges.count - at) * sizeof(struct hostmem_range *));
    ranges.list[at] = range;
    ranges.count++;
    return true;
}

void hostmem_range_remove(struct hostmem_range *range)
{
    size_t at = 0;

    while (ranges.list[at] != range) {
        at++;
    }
    ranges.count--;
    memmove(&ranges.list[at], &ranges.list[at + 1],
            (ranges.count - at) * sizeof(struct hostmem_range *));
}

/* --- what is page-locked --- */

size_t cudriver_hostmem_registered(const void *address, size_t bytes)
{
    size_t run = 0;

    pthread_mutex_lock(&hostmem_lock);
    struct hostmem_range *range = hostmem_range_meeting(address, 1);
    size_t offset = range != NULL ? (uintptr_t)address - (uintptr_t)range->base : 0;
    size_t locked = range != NULL ? atomic_load(&range->locked) : 0;
    if (offset < locked) {
        run = range->step - offset % range->step;
        run = run < locked - offset ? run : locked - offset;
    }
    pthread_mutex_unlock(&hostmem_lock);
    return run < bytes ? run : bytes;
}

size_t cudriver_hostmem_run(const void *address, size_t bytes)
{
    size_t run = cudriver_hostmem_registered(address, bytes), size = 0;
    CUdeviceptr start = 0, here = (CUdeviceptr)(uintptr_t)address;

    if (run > 0) {
        return run;
    }
    if (cuda.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, here) !=
            CUDA_SUCCESS ||
        cuda.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, here) != CUDA_SUCCESS ||
        here < start || here - start >= size) {
        return bytes;
    }
    size -= (size_t)(here - start);
    return size < bytes ? size : bytes;
}

static bool is_byte_locked(const char *byte)
{
    unsigned int type = 0;

    return cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      (CUdeviceptr)(uintptr_t)byte) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_HOST;
}

bool cudriver_hostmem_is_page_locked(const char *low, const char *high)
{
    size_t run;

    /* Registrations end at any byte: look at the last byte and behind the end of each. */
    if (!is_byte_locked(low) || !is_byte_locked(high - 1)) {
        return false;
    }
    while ((run = cudriver_hostmem_run(low, (size_t)(high - low))) < (size_t)(high - low)) {
        low += run;
        if (!is_byte_locked(low)) {
            return false;
        }
    }
    return true;
}

size_t cudriver_hostmem_list(uint64_t *list, size_t most)
{
    pthread_mutex_lock(&hostmem_lock);
    size_t count = ranges.count;
    for (size_t i = 0; i < count && i < most; i++) {
        list[2 * i] = (uintptr_t)ranges.list[i]->base;
        list[2 * i + 1] = atomic_load(&ranges.list[i]->locked);
    }
    pthread_mutex_unlock(&hostmem_lock);
    return count;
}

/* --- NUMA nodes --- */

#define DIFFERENT CUDRIVER_NODES

static struct cudriver_nodes nodes;           /* under the lock */
static atomic_int common = CUDRIVER_NODE_ANY; /* of all devices; DIFFERENT: look into the table */

void cudriver_hostmem_set_nodes(const struct cudriver_nodes *given)
{
    int node = given->of_device[0];

    for (int i = 1; i < CUDRIVER_NODE_DEVICES; i++) {
        node = given->of_device[i] == node ? node : DIFFERENT;
    }
    pthread_mutex_lock(&hostmem_lock);
    nodes = *given;
    atomic_store(&common, node);
    pthread_mutex_unlock(&hostmem_lock);
}

int cudriver_hostmem_node(void)
{
    int node = atomic_load_explicit(&common, memory_order_relaxed);
    CUdevice device;

    if (node != DIFFERENT) {
        return node;
    }
    if (cudriver_driver_is_forked()) { /* the driver cannot be asked */
        return CUDRIVER_NODE_ANY;
    }
    if (cuda.cuCtxGetDevice(&device) != CUDA_SUCCESS) {
        return CUDRIVER_NODE_POLICY;
    }
    pthread_mutex_lock(&hostmem_lock);
    node =
        device >= 0 && device < CUDRIVER_NODE_DEVICES ? nodes.of_device[device] : CUDRIVER_NODE_ANY;
    pthread_mutex_unlock(&hostmem_lock);
    return node;
}

void cudriver_hostmem_go(int node)
{
    unsigned char processors[sizeof nodes.processors[0]];

    node = node < CUDRIVER_NODE_ANY ? CUDRIVER_NODE_ANY : node;
    pthread_mutex_lock(&hostmem_lock);
    memcpy(processors, nodes.processors[1 + node], sizeof processors);
    pthread_mutex_unlock(&hostmem_lock);
    platform_run_on(processors, sizeof processors);
}

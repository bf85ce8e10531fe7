/*
 * A device's address space.
 *
 * Addresses come from a reserved region that is never accessible: a device pointer that is used as
 * a host pointer faults, and no host address is a device address. The contents are in a second
 * region, at the same offsets. It is made accessible step by step, when an allocation needs more of
 * it.
 *
 * Memory that is not allocated always holds poison. The second region maps a small file of poison
 * many times, privately: it costs nothing until it is written, and pages that are returned to the
 * system hold poison again.
 */
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULE ((size_t)512)   /* sizes and addresses are multiples of it */
#define STEP ((size_t)32 << 20) /* bytes of the second region that are made accessible at once */
#define POISON_FILE ((size_t)4 << 20)
#define LEAST_REGION ((size_t)64 << 30)
#define RETURN_PAGES ((size_t)256 << 10) /* freed blocks this large return their pages */

static int poison_file = -1; /* in the monitor; -1: not made yet, -2: cannot be made */

/* ---- the region ---- */

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* In the monitor. Called once in a process. */
static void poison_file_open(void)
{
    char *bytes;

    poison_file = memfd_create("cudriver-sim-poison", MFD_CLOEXEC);
    if (poison_file < 0 || ftruncate(poison_file, (off_t)POISON_FILE) != 0) {
        poison_file = -2;
        return;
    }
    bytes = mmap(NULL, POISON_FILE, PROT_READ | PROT_WRITE, MAP_SHARED, poison_file, 0);
    if (bytes == MAP_FAILED) {
        close(poison_file);
        poison_file = -2;
        return;
    }
    memset(bytes, SIM_POISON, POISON_FILE);
    munmap(bytes, POISON_FILE);
}

static CUresult region_reserve(struct sim_device *device)
{
    size_t bytes = (size_t)atomic_load(&sim_knobs.memory) * 4;
    void *addresses, *store;

    if (bytes < LEAST_REGION) {
        bytes = LEAST_REGION;
    }
    bytes = (bytes + STEP - 1) / STEP * STEP;
    for (; bytes >= STEP; bytes = bytes / 2 / STEP * STEP) {
        addresses =
            mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (addresses == MAP_FAILED) {
            continue;
        }
        store = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (store != MAP_FAILED) {
            device->bytes = store;
            device->reserved = bytes;
            device->base = (uintptr_t)addresses; /* last, because it is read without the monitor */
            return CUDA_SUCCESS;
        }
        munmap(addresses, bytes);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Makes one more step of the second region accessible, full of poison. */
static CUresult region_grow(struct sim_device *device)
{
    char *start = device->bytes + device->ready;
    size_t done = 0;

    if (device->ready + STEP > device->reserved) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (poison_file == -1) {
        poison_file_open();
    }
    while (poison_file >= 0 && done < STEP) {
        void *piece = mmap(start + done, POISON_FILE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poison_file, 0);
        if (piece == MAP_FAILED) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        done += POISON_FILE;
    }
    if (poison_file < 0) {
        if (mprotect(start, STEP, PROT_READ | PROT_WRITE) != 0) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memset(start, SIM_POISON, STEP);
    }
    device->ready += STEP;
    return CUDA_SUCCESS;
}

/* ---- blocks ---- */

static void free_list_add(struct sim_device *device, struct sim_block *block)
{
    block->state = BLOCK_FREE;
    block->free_previous = NULL;
    block->free_next = device->free;
    if (device->free != NULL) {
        device->free->free_previous = block;
    }
    device->free = block;
}

static void free_list_remove(struct sim_device *device, struct sim_block *block)
{
    if (block->free_previous != NULL) {
        block->free_previous->free_next = block->free_next;
    } else {
        device->free = block->free_next;
    }
    if (block->free_next != NULL) {
        block->free_next->free_previous = block->free_previous;
    }
}

/* Joins `next` to its neighbour `block`; both are free, and `next` is in no list. */
static void block_join(struct sim_block *block, struct sim_block *next)
{
    block->range.bytes += next->range.bytes;
    block->next = next->next;
    if (next->next != NULL) {
        next->next->previous = block;
    }
    free(next);
}

/* A free block of at least `size`, or NULL. */
static struct sim_block *block_fit(struct sim_device *device, size_t size)
{
    struct sim_block *block = device->free;

    while (block != NULL && block->range.bytes < size) {
        block = block->free_next;
    }
    return block;
}

/* Shortens a free block to `size`; the rest becomes a free block of its own. */
static CUresult block_split(struct sim_device *device, struct sim_block *block, size_t size)
{
    struct sim_block *rest;

    if (block->range.bytes == size) {
        return CUDA_SUCCESS;
    }
    rest = calloc(1, sizeof *rest);
    if (rest == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    rest->device = block->device;
    rest->range.start = block->range.start + size;
    rest->range.bytes = block->range.bytes - size;
    rest->previous = block;
    rest->next = block->next;
    if (rest->next != NULL) {
        rest->next->previous = rest;
    }
    block->next = rest;
    block->range.bytes = size;
    free_list_add(device, rest);
    return CUDA_SUCCESS;
}

CUresult sim_space_take(int ordinal, size_t bytes, struct sim_block **out)
{
    struct sim_device *device = &sim.devices[ordinal];
    size_t size = (bytes + GRANULE - 1) & ~(GRANULE - 1);
    struct sim_block *block;
    CUresult result;

    if (size < bytes || size > sim_space_available(ordinal)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (device->base == 0) {
        result = region_reserve(device);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    block = block_fit(device, size);
    if (block == NULL && device->first == NULL) {
        block = calloc(1, sizeof *block);
        if (block == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        block->device = ordinal;
        block->range.start = device->base;
        block->range.bytes = device->reserved;
        device->first = block;
        free_list_add(device, block);
        block = block_fit(device, size);
    }
    if (block == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    while (block->range.start + size > device->base + device->ready) {
        result = region_grow(device);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    result = block_split(device, block, size);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    free_list_remove(device, block);
    block->state = BLOCK_USED;
    block->asked = bytes;
    block->bytes = bytes;
    block->written = bytes;
    block->context = NULL;
    block->pool = NULL;
    device->used += size;
    sim_range_insert(&device->blocks, &block->range);
    *out = block;
    return CUDA_SUCCESS;
}

/* Without the monitor. */
static void poison_fill(char *start, size_t bytes, bool pages)
{
    char *end = start + bytes;
    size_t page = page_bytes();
    char *first = (char *)(((uintptr_t)start + page - 1) & ~(page - 1));
    char *last = (char *)((uintptr_t)end & ~(page - 1));

    if (pages && bytes >= RETURN_PAGES &&
        madvise(first, (size_t)(last - first), MADV_DONTNEED) == 0) {
        memset(start, SIM_POISON, (size_t)(first - start));
        memset(last, SIM_POISON, (size_t)(end - last));
    } else {
        memset(start, SIM_POISON, bytes);
    }
}

void sim_space_poison(struct sim_block *block)
{
    bool pages = poison_file >= 0;

    while (block->users > 0) {
        sim.unpin_waiters++;
        pthread_cond_wait(&sim.unpinned, &sim.lock);
        sim.unpin_waiters--;
    }
    sim_unlock();
    poison_fill(sim_space_bytes(block, block->range.start), block->written, pages);
    sim_lock();
    block->written = block->bytes;
}

void sim_space_give(struct sim_block *block)
{
    struct sim_device *device = &sim.devices[block->device];
    struct sim_block *other;

    block->state = BLOCK_LEAVING;
    block->asked = 0;
    block->bytes = 0;
    sim_space_poison(block);
    sim_range_remove(&device->blocks, &block->range);
    device->used -= block->range.bytes;
    other = block->next;
    if (other != NULL && other->state == BLOCK_FREE) {
        free_list_remove(device, other);
        block_join(block, other);
    }
    other = block->previous;
    if (other != NULL && other->state == BLOCK_FREE) {
        free_list_remove(device, other);
        block_join(other, block);
        block = other;
    }
    free_list_add(device, block);
}

bool sim_space_owns(CUdeviceptr address)
{
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        if (sim.devices[i].base != 0 && address - sim.devices[i].base < sim.devices[i].reserved) {
            return true;
        }
    }
    return false;
}

struct sim_block *sim_space_find(CUdeviceptr address)
{
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        struct sim_device *device = &sim.devices[i];
        if (device->base != 0 && address - device->base < device->reserved) {
            return (struct sim_block *)sim_range_find(device->blocks, (uintptr_t)address);
        }
    }
    return NULL;
}

char *sim_space_bytes(const struct sim_block *block, CUdeviceptr address)
{
    const struct sim_device *device = &sim.devices[block->device];

    return device->bytes + (address - device->base);
}

size_t sim_space_available(int device)
{
    size_t memory = (size_t)atomic_load(&sim_knobs.memory);

    return memory > sim.devices[device].used ? memory - sim.devices[device].used : 0;
}

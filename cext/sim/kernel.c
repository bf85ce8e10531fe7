/* The kernels. See kernel.h. */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* Whether all of it is page-locked, also by several registrations: a kernel may go from one to the
 * next, which a copy by the driver may not. */
static bool host_is_locked(uint64_t address, size_t bytes)
{
    const uint64_t page = 4096;

    for (uint64_t at = address; at < address + bytes; at = (at / page + 1) * page) {
        if (sim_host_kind((uintptr_t)at, 1) != HOST_LOCKED) {
            return false;
        }
    }
    return bytes > 0;
}

/*
 * For kernels: the host's view of memory, or NULL if the kernel may not use it. Memory that is not
 * from a pool belongs to its context alone: by the CUDA programming guide each context has its own
 * address space. Our code must not depend on more, although driver 580 lets a kernel of another
 * context on the device read and write such memory.
 */
static void *launch_memory(struct launch *launch, uint64_t address, size_t bytes)
{
    struct sim_pin *pin = &launch->pins[launch->pin_count];
    CUresult result;

    sim_lock();
    result = launch->pin_count == MAX_PARAMETERS ? CUDA_ERROR_OUT_OF_MEMORY
                                                 : sim_memory_pin(address, bytes, pin);
    if (result == CUDA_ERROR_INVALID_VALUE && sim_space_find(address) == NULL &&
        host_is_locked(address, bytes)) {
        pin->bytes = sim_host_bytes((uintptr_t)address, bytes);
        result = CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) {
        const struct sim_block *block = pin->block; /* NULL: host memory */
        bool here = block == NULL || block->context == launch->context ||
                    (block->context == NULL && block->device == launch->context->device) ||
                    (launch->context->peers & 1u << block->device) != 0;
        if (!here) {
            sim_memory_unpin(pin);
            result = CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    }
    sim_unlock();
    if (result != CUDA_SUCCESS) {
        return NULL;
    }
    launch->pin_count++;
    return pin->bytes;
}

/* cudriver_sim_fill(u64 destination, u64 bytes, u8 value): the example, used by tests. */
static CUresult kernel_fill(struct launch *launch)
{
    size_t bytes = launch->parameters[1].u64;
    void *memory = launch_memory(launch, launch->parameters[0].u64, bytes);

    if (memory == NULL) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    memset(memory, launch->parameters[2].u8, bytes);
    return CUDA_SUCCESS;
}

#define PERMUTE_DIMS 6

/* The bytes that one side of cudriver_permute touches: the lowest, and how many from there. */
static void permute_extent(const struct launch *launch, int first_stride, size_t item,
                           uint64_t *low, uint64_t *bytes)
{
    *bytes = item;
    for (int d = 0; d < PERMUTE_DIMS; d++) {
        int64_t last = (int64_t)launch->parameters[3 + d].u64 - 1;
        int64_t span = last * (int64_t)launch->parameters[first_stride + d].u64;
        *low += span < 0 ? (uint64_t)span : 0;
        *bytes += (uint64_t)(span < 0 ? -span : span);
    }
}

/*
 * cudriver_permute_N and cudriver_transpose_N, the copy engine's kernels, for items of N bytes:
 * (destination, source, items, lengths of six dimensions, destination strides, source strides).
 */
static CUresult kernel_permute(struct launch *launch)
{
    size_t item = (size_t)strtoul(strrchr(launch->kernel->name, '_') + 1, NULL, 10);
    const int shape = 3, dst_stride = shape + PERMUTE_DIMS, src_stride = dst_stride + PERMUTE_DIMS;
    uint64_t dst = launch->parameters[0].u64, src = launch->parameters[1].u64;
    uint64_t dst_low = dst, src_low = src, dst_bytes, src_bytes;

    permute_extent(launch, dst_stride, item, &dst_low, &dst_bytes);
    permute_extent(launch, src_stride, item, &src_low, &src_bytes);
    char *to = launch_memory(launch, dst_low, dst_bytes);
    const char *from = launch_memory(launch, src_low, src_bytes);
    if (to == NULL || from == NULL || dst % item != 0 || src % item != 0) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    to += dst - dst_low;
    from += src - src_low;
    for (uint64_t i = 0; i < launch->parameters[2].u64; i++) {
        uint64_t rest = i;
        int64_t a = 0, b = 0;
        for (int d = PERMUTE_DIMS - 1; d >= 0; d--) {
            uint64_t length = launch->parameters[shape + d].u64;
            int64_t index = (int64_t)(rest % length);
            a += index * (int64_t)launch->parameters[dst_stride + d].u64;
            b += index * (int64_t)launch->parameters[src_stride + d].u64;
            rest /= length;
        }
        memcpy(to + a, from + b, item);
    }
    return CUDA_SUCCESS;
}

/* cudriver_runs(u64 table, u64 count): dense copies, each as destination, source, bytes, nothing.
 */
static CUresult kernel_runs(struct launch *launch)
{
    uint64_t count = launch->parameters[1].u64;
    const uint64_t *run = launch_memory(launch, launch->parameters[0].u64, count * 32);

    for (; run != NULL && count > 0; count--, run += 4) {
        void *to = launch_memory(launch, run[0], run[2]);
        const void *from = launch_memory(launch, run[1], run[2]);
        if (to == NULL || from == NULL) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        memcpy(to, from, run[2]);
        sim_lock();
        while (launch->pin_count > 1) { /* but the table */
            sim_memory_unpin(&launch->pins[--launch->pin_count]);
        }
        sim_unlock();
    }
    return run != NULL ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

#define LADDER_VECTOR 4 /* words */
#define LADDER_ROW 256  /* vectors in a row, and threads in a block */
#define LADDER_ROWS 4   /* in a tile of shared memory */
#define LADDER_STEP 0x9E3779B1u

/* The bench's kernels: (memory, vectors, number, sums); each thread stores a 32-bit sum. */
static uint64_t ladder_threads(const struct launch *launch)
{
    return (uint64_t)launch->grid[0] * launch->block[0];
}

static uint32_t *ladder_sums(struct launch *launch)
{
    return launch_memory(launch, launch->parameters[3].u64, ladder_threads(launch) * 4);
}

/* With T threads, thread t sums the vectors t, t + T, t + 2 T, ... */
static CUresult kernel_ladder_read(struct launch *launch)
{
    uint64_t vectors = launch->parameters[1].u64, threads = ladder_threads(launch);
    const uint32_t *from = launch_memory(launch, launch->parameters[0].u64, vectors * 16);
    uint32_t *sums = ladder_sums(launch);

    if (from == NULL || sums == NULL) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    memset(sums, 0, threads * 4);
    for (uint64_t i = 0; i < vectors; i++, from += LADDER_VECTOR) {
        sums[i % threads] += from[0] + from[1] + from[2] + from[3];
    }
    return CUDA_SUCCESS;
}

static CUresult kernel_ladder_write(struct launch *launch)
{
    uint64_t vectors = launch->parameters[1].u64, threads = ladder_threads(launch);
    uint32_t *to = launch_memory(launch, launch->parameters[0].u64, vectors * 16);
    uint32_t *sums = ladder_sums(launch), word = (uint32_t)launch->parameters[2].u64;

    if (to == NULL || sums == NULL) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (uint64_t i = 0; i < vectors * LADDER_VECTOR; i++, word += LADDER_STEP) {
        to[i] = word;
    }
    for (uint64_t t = 0; t < threads; t++) {
        sums[t] = (uint32_t)((vectors + threads - 1 - t) / threads);
    }
    return CUDA_SUCCESS;
}

/* The sum of thread t of any block after `number` steps around a tile: full turns and a rest. */
static uint32_t ladder_turns(const uint32_t columns[LADDER_ROW], unsigned t, uint64_t number)
{
    uint32_t whole = 0, rest = 0;

    for (unsigned i = 0; i < LADDER_ROW; i++) {
        whole += columns[i];
        rest += i < number % LADDER_ROW ? columns[(t + i) % LADDER_ROW] : 0;
    }
    return whole * (uint32_t)(number / LADDER_ROW) + rest;
}

static CUresult kernel_ladder_shared_read(struct launch *launch)
{
    const size_t bytes = (size_t)LADDER_ROWS * LADDER_ROW * LADDER_VECTOR * 4;
    const uint32_t *from = launch_memory(launch, launch->parameters[0].u64, bytes);
    uint32_t *sums = ladder_sums(launch), columns[LADDER_ROW] = {0};

    if (from == NULL || sums == NULL || launch->block[0] != LADDER_ROW) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (unsigned i = 0; i < LADDER_ROWS * LADDER_ROW * LADDER_VECTOR; i++) {
        columns[i / LADDER_VECTOR % LADDER_ROW] += from[i];
    }
    for (unsigned t = 0; t < LADDER_ROW; t++) {
        sums[t] = ladder_turns(columns, t, launch->parameters[2].u64);
    }
    for (unsigned block = 1; block < launch->grid[0]; block++) {
        memcpy(sums + (size_t)block * LADDER_ROW, sums, LADDER_ROW * 4);
    }
    return CUDA_SUCCESS;
}

/* A thread reads what the opposite thread has written: four vectors of four words. */
static CUresult kernel_ladder_shared_write(struct launch *launch)
{
    uint32_t *sums = ladder_sums(launch), turns = (uint32_t)launch->parameters[2].u64;

    if (sums == NULL || launch->block[0] != LADDER_ROW) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (uint64_t i = 0; i < ladder_threads(launch); i++) {
        uint32_t opposite = LADDER_ROW - 1 - (uint32_t)(i % LADDER_ROW);
        sums[i] = LADDER_ROWS * (4 * opposite + 1024 * (turns - 1) + 1 + 2 + 3);
    }
    return CUDA_SUCCESS;
}

#define PERMUTE {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}, kernel_permute

static const struct kernel kernels[] = {
    {"cudriver_sim_fill", {8, 8, 1}, kernel_fill},
    {"cudriver_ladder_read", {8, 8, 8, 8}, kernel_ladder_read},
    {"cudriver_ladder_write", {8, 8, 8, 8}, kernel_ladder_write},
    {"cudriver_ladder_shared_read", {8, 8, 8, 8}, kernel_ladder_shared_read},
    {"cudriver_ladder_shared_write", {8, 8, 8, 8}, kernel_ladder_shared_write},
    {"cudriver_runs", {8, 8}, kernel_runs},
    {"cudriver_permute_1", PERMUTE},
    {"cudriver_permute_2", PERMUTE},
    {"cudriver_permute_4", PERMUTE},
    {"cudriver_permute_8", PERMUTE},
    {"cudriver_permute_16", PERMUTE},
    {"cudriver_transpose_1", PERMUTE},
    {"cudriver_transpose_2", PERMUTE},
    {"cudriver_transpose_4", PERMUTE},
    {"cudriver_transpose_8", PERMUTE},
    {"cudriver_transpose_16", PERMUTE},
};

const struct kernel *sim_kernel_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            return &kernels[i];
        }
    }
    return NULL;
}

/* The kernels of `cudriver bench`, which measure how fast a kernel reads and writes memory. Plain
 * C, no Python. Every function needs a current context and not the GIL. */
#ifndef CUDRIVER_LADDER_KERNELS_H
#define CUDRIVER_LADDER_KERNELS_H

#include "driver/cuda_abi.h"

/* Threads in a block. */
#define LADDER_THREADS 256
/* Bytes of shared memory in a block of the shared-memory kernels: four vectors per thread. */
#define LADDER_TILE 16384

enum ladder_kernel {
    LADDER_READ,         /* sums all words of `memory`, once */
    LADDER_WRITE,        /* sets word j of `memory` to j * 0x9E3779B1 + number */
    LADDER_SHARED_READ,  /* reads a tile of shared memory, filled from `memory`, `number` times */
    LADDER_SHARED_WRITE, /* writes a tile of shared memory `number` times; no `memory` */
    LADDER_KERNELS
};

/* One launch. Words have 32 bits; sums wrap around. */
struct ladder_launch {
    enum ladder_kernel kernel;
    CUdeviceptr memory; /* address, a multiple of 16 */
    uint64_t vectors;   /* how many vectors of 16 bytes `memory` has */
    uint64_t number;
    CUdeviceptr sums; /* receives a word from each thread: see kernels.c */
    unsigned blocks;
};

/* One kernel, a stream and two events, in one context. */
struct ladder_bench;

/* Loads a kernel. The caller owns *made (ladder_kernels_close). *function: the call that failed. */
CUresult ladder_kernels_open(enum ladder_kernel kernel, struct ladder_bench **made,
                             const char **function);

/* Launches `count` times in a row and waits. *milliseconds: the total, by the device's clock. */
CUresult ladder_kernels_time(struct ladder_bench *bench, const struct ladder_launch *launch,
                             unsigned count, float *milliseconds, const char **function);

/* Frees a bench; NULL is fine. */
void ladder_kernels_close(struct ladder_bench *bench);

#endif

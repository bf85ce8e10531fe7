/*
 * The kernels of `cudriver bench`: memory as a kernel reads and writes it. Plain C: no Python here.
 * Every function needs a current context and no GIL.
 */
#ifndef CUDRIVER_LADDER_KERNELS_H
#define CUDRIVER_LADDER_KERNELS_H

#include "driver/cuda_abi.h"

/* Threads of a block. */
#define LADDER_THREADS 256
/* Bytes of shared memory that a block of the shared kernels works on: four vectors a thread. */
#define LADDER_TILE 16384

enum ladder_kernel {
    LADDER_READ,         /* adds up all words of `memory`, once */
    LADDER_WRITE,        /* writes word j of `memory`: j * 0x9E3779B1 + number */
    LADDER_SHARED_READ,  /* reads a tile of shared memory, filled from `memory`, `number` times */
    LADDER_SHARED_WRITE, /* writes a tile `number` times; no `memory` */
    LADDER_KERNELS
};

/* One launch. Words are 32 bits, sums wrap. */
struct ladder_launch {
    enum ladder_kernel kernel;
    CUdeviceptr memory; /* a multiple of 16 */
    uint64_t vectors;   /* of 16 bytes, in `memory` */
    uint64_t number;
    CUdeviceptr sums; /* gets a word from each thread: see kernels.c */
    unsigned blocks;
};

/* One of the kernels, a stream and two events, in one context. */
struct ladder_bench;

/* Loads a kernel. *made is owned by the caller: ladder_kernels_close. *function gets the call that
 * failed. */
CUresult ladder_kernels_open(enum ladder_kernel kernel, struct ladder_bench **made,
                             const char **function);

/* Launches `count` times in a row, waits, and gives the milliseconds of all by the device's clock.
 */
CUresult ladder_kernels_time(struct ladder_bench *bench, const struct ladder_launch *launch,
                             unsigned count, float *milliseconds, const char **function);

/* NULL is fine. */
void ladder_kernels_close(struct ladder_bench *bench);

#endif

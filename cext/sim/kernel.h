/* Kernels that the simulated driver can run: each is a C function, found by its PTX entry's name.
 */
#ifndef CUDRIVER_SIM_KERNEL_H
#define CUDRIVER_SIM_KERNEL_H

#include "sim.h"

#define MAX_PARAMETERS 24
#define MAX_PARAMETER_BYTES 8

/* A launch, for a kernel's C function. */
struct launch {
    const struct kernel *kernel;
    struct sim_context *context;
    unsigned grid[3], block[3], shared_bytes;
    union {
        uint64_t u64;
        uint32_t u32;
        uint16_t u16;
        uint8_t u8;
        float f32;
        double f64;
        char bytes[MAX_PARAMETER_BYTES];
    } parameters[MAX_PARAMETERS];
    struct sim_pin pins[MAX_PARAMETERS]; /* memory that the kernel uses; unpinned after it */
    unsigned pin_count;
};

struct kernel {
    const char *name; /* of the PTX entry */
    /* Bytes of each parameter, in the entry's order, ended by 0. */
    unsigned char parameters[MAX_PARAMETERS + 1];
    /* Runs all blocks and threads, on the stream's thread. An error breaks the device, as on
     * hardware. */
    CUresult (*run)(struct launch *launch);
};

/* NULL: the simulator cannot run it. */
const struct kernel *sim_kernel_find(const char *name);

#endif

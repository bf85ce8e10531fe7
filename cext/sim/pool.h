/* A pool, for pool.c and others/pools.c. */
#ifndef CUDRIVER_SIM_POOL_H
#define CUDRIVER_SIM_POOL_H

#include "sim.h"

struct sim_pool {
    struct sim_object object;
    int device;
    bool is_default;  /* the device's own: never destroyed, not counted */
    unsigned peers;   /* a bit for each device that may use its memory */
    size_t max_bytes; /* 0: no limit */
    uint64_t threshold;
    int follow_events, opportunistic, internal;
    uint64_t reserved, reserved_high, used, used_high;
    struct sim_block *free; /* blocks that the program has freed */
    size_t blocks;          /* all its blocks; each holds a reference to the pool */
};

/* In the monitor. A new pool with a new one's attributes; NULL if memory ran out. */
struct sim_pool *sim_pool_new(int device);

#endif

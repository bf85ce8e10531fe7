/* NUMA nodes: which one memory goes to, and which processors are near it. See hostmem.h. */
#include <stdatomic.h>
#include <string.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "private.h"

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

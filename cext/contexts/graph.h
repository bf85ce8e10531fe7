/*
 * What a graph keeps alive: the arrays that its nodes read and write.
 *
 * The driver counts who may still run the graph: the graph itself, its executables, and their
 * launches under way. When the last is gone, it says so on a thread of its own, which may call
 * neither the driver nor Python. So the references then go to a list, and later calls drop them.
 */
#ifndef CUDRIVER_GRAPH_H
#define CUDRIVER_GRAPH_H

#include "python/endpoint.h"

/* Lets the graph that captures the stream keep the ends of a copy alive and open; `src` may be
 * NULL. Call it before the work is queued: if that fails, the graph keeps them for nothing. 0, or
 * -1 with an exception set. May run any code. Between begin and end. */
int cudriver_graph_keep(CoreState *state, CUstream stream, const struct cudriver_endpoint *dst,
                        const struct cudriver_endpoint *src);

/* Drops what graphs that are gone have kept alive, which may run any code. Cheap if there is
 * nothing. The GIL is held. */
void cudriver_graphs_reap(void);

#endif

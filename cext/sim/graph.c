/*
 * Graphs: what was captured, its launch, and the user objects that it keeps.
 *
 * A graph is the list of the captured operations in the order of their calls, which respects every
 * dependency; a launch is one operation that runs them one after the other. Not modelled: memory
 * nodes, graphs built node by node, updates of executables.
 *
 * A user object is what the program frees when no graph, executable or launch needs it any more. It
 * counts its references: the program's own and those of graphs. When the last goes, its destructor
 * is due, and the next thread that leaves the monitor calls it. (The driver calls it on a thread of
 * its own.) Not modelled: retaining more references, and taking them from a graph.
 */
#include "sim.h"

#include <stdlib.h>

struct executable {
    struct sim_object object;
    struct sim_graph *graph; /* holds a reference */
};

struct user {
    struct sim_object object;
    unsigned long long references; /* all; `owned` of them by the program */
    unsigned long long owned;
    struct sim_due *due; /* owned until the last reference goes */
};

struct user_hold { /* a graph's references to one user object */
    struct user_hold *next;
    struct user *user; /* holds a reference to the object */
    unsigned count;
};

/* ---- user objects ---- */

static void user_drop(struct user *user, unsigned count)
{
    user->references -= count;
    if (user->references == 0) {
        user->due->next = sim.due;
        sim.due = user->due;
        sim_object_close(user);
    }
}

CUresult cuUserObjectCreate(CUuserObject *handle, void *data, CUhostFn destroy, unsigned int count,
                            unsigned int flags)
{
    CUresult result = sim_enter(CALL_cuUserObjectCreate);
    struct user *user;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || destroy == NULL || count == 0 || count > INT32_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    user = sim_object_new(KIND_USER, sizeof *user);
    if (user == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    user->due = malloc(sizeof *user->due);
    if (user->due == NULL) {
        sim_object_close(user);
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *user->due = (struct sim_due){.destroy = destroy, .data = data};
    user->references = user->owned = count;
    *handle = sim_object_handle(user);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned int count)
{
    CUresult result;
    struct user *user = sim_enter_object(CALL_cuUserObjectRelease, KIND_USER, handle, &result);

    if (user == NULL) {
        return result;
    }
    if (count == 0 || count > user->owned) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    user->owned -= count;
    user_drop(user, count);
    return sim_leave(CUDA_SUCCESS);
}

static CUresult user_hold(struct user_hold **holds, CUuserObject handle, unsigned count,
                          unsigned flags)
{
    struct user *user = sim_object_find(KIND_USER, handle);
    bool move = (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0;
    struct user_hold *hold;

    if (user == NULL || count == 0 || count > INT32_MAX ||
        (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) != 0 || (move && count > user->owned)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold = malloc(sizeof *hold);
    if (hold == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *hold = (struct user_hold){.next = *holds, .user = user, .count = count};
    *holds = hold;
    sim_object_hold(user);
    if (move) {
        user->owned -= count;
    } else {
        user->references += count;
    }
    return CUDA_SUCCESS;
}

static void user_drop_all(struct user_hold **holds)
{
    while (*holds != NULL) {
        struct user_hold *hold = *holds;
        *holds = hold->next;
        user_drop(hold->user, hold->count);
        sim_object_drop(hold->user);
        free(hold);
    }
}

/* ---- graphs ---- */

static void graph_clear(void *object)
{
    struct sim_graph *graph = object;

    while (graph->head != NULL) {
        struct sim_op *op = graph->head;
        graph->head = op->next;
        sim_op_drop(op);
    }
    user_drop_all(&graph->holds);
}

static __attribute__((constructor)) void join(void)
{
    sim_object_on_end(KIND_GRAPH, graph_clear);
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    CUresult result;
    struct sim_graph *graph = sim_enter_object(CALL_cuGraphGetNodes, KIND_GRAPH, handle, &result);
    size_t at = 0;

    if (graph == NULL) {
        return result;
    }
    if (count == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (nodes != NULL) {
        for (struct sim_op *op = graph->head; op != NULL && at < *count; op = op->next) {
            nodes[at++] = (CUgraphNode)op;
        }
    }
    *count = graph->count;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count,
                                 unsigned int flags)
{
    CUresult result;
    struct sim_graph *graph =
        sim_enter_object(CALL_cuGraphRetainUserObject, KIND_GRAPH, handle, &result);

    if (graph == NULL) {
        return result;
    }
    return sim_leave(user_hold(&graph->holds, object, count, flags));
}

CUresult cuGraphDestroy(CUgraph handle)
{
    CUresult result;
    struct sim_graph *graph = sim_enter_object(CALL_cuGraphDestroy, KIND_GRAPH, handle, &result);

    if (graph == NULL) {
        return result;
    }
    sim_object_close(graph); /* executables keep what they need of it */
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *handle, CUgraph graph_handle,
                                     unsigned long long flags)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuGraphInstantiateWithFlags, &context);
    struct executable *executable;
    struct sim_graph *graph;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    (void)flags;
    graph = sim_object_find(KIND_GRAPH, graph_handle);
    if (handle == NULL || graph == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    executable = sim_object_new(KIND_EXECUTABLE, sizeof *executable);
    if (executable == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    sim_object_hold(graph);
    executable->graph = graph;
    *handle = sim_object_handle(executable);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuGraphExecDestroy(CUgraphExec handle)
{
    CUresult result;
    struct executable *executable =
        sim_enter_object(CALL_cuGraphExecDestroy, KIND_EXECUTABLE, handle, &result);

    if (executable == NULL) {
        return result;
    }
    sim_object_drop(executable->graph); /* a launch under way has its own reference */
    sim_object_close(executable);
    return sim_leave(CUDA_SUCCESS);
}

/* ---- launches ---- */

struct graph_op {
    struct sim_op op;
    struct sim_graph *graph; /* holds a reference */
};

static CUresult graph_run(struct sim_stream *stream, struct sim_op *op)
{
    struct sim_op *node = ((struct graph_op *)op)->graph->head;
    CUresult result = CUDA_SUCCESS;

    for (; node != NULL && result == CUDA_SUCCESS; node = node->next) {
        sim_stream_cost(node->bytes, stream->context);
        result = sim_fault_operation();
        if (result == CUDA_SUCCESS && node->run != NULL) {
            result = node->run(stream, node);
        }
    }
    return result;
}

static void graph_finish(struct sim_stream *stream, struct sim_op *op, bool issued)
{
    (void)stream;
    (void)issued;
    sim_object_drop(((struct graph_op *)op)->graph);
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle)
{
    struct sim_stream *stream;
    CUresult result = sim_enter_stream(CALL_cuGraphLaunch, stream_handle, &stream);
    struct executable *executable;
    struct graph_op *launch;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    executable = sim_object_find(KIND_EXECUTABLE, handle);
    if (executable == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    launch = sim_op_new(sizeof *launch);
    if (launch == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    launch->op.run = graph_run;
    launch->op.finish = graph_finish;
    launch->graph = executable->graph;
    sim_object_hold(launch->graph);
    return sim_leave(sim_stream_issue(stream, &launch->op));
}

/* What a graph keeps alive. See graph.h. */
#include "graph.h"

#include <stdatomic.h>

#include "capture.h"
#include "driver/driver.h"
#include "python/error.h"

/* The ends of a copy that is a node of a graph. */
struct kept {
    struct kept *next;
    struct kept_end {
        PyObject *owner;  /* owned; NULL: no such end */
        Py_ssize_t *busy; /* counted up, so that the memory cannot be closed; or NULL */
    } ends[2];
};

/* Those of graphs that are gone. One list for the process, because the driver's thread is given no
 * module, and the driver has no subinterpreters. */
static _Atomic(struct kept *) gone;

static void end_take(struct kept_end *to, const struct cudriver_endpoint *from)
{
    to->owner = Py_NewRef(from->owner);
    to->busy = from->busy;
    if (to->busy != NULL) {
        ++*to->busy;
    }
}

static void end_drop(struct kept_end *end)
{
    if (end->busy != NULL) {
        --*end->busy;
        end->busy = NULL;
    }
    Py_CLEAR(end->owner); /* may run any code */
}

static void kept_drop(struct kept *kept)
{
    end_drop(&kept->ends[0]);
    end_drop(&kept->ends[1]);
}

static void kept_free(struct kept *kept)
{
    kept_drop(kept);
    PyMem_RawFree(kept);
}

/* The driver's callback, on any thread, with or without the GIL. */
static void kept_end(void *data)
{
    struct kept *kept = data, *first = atomic_load(&gone);

    do {
        kept->next = first;
    } while (!atomic_compare_exchange_weak(&gone, &first, kept));
}

void cudriver_graphs_reap(void)
{
    struct kept *kept;

    if (atomic_load_explicit(&gone, memory_order_relaxed) == NULL) {
        return;
    }
    kept = atomic_exchange(&gone, NULL);
    while (kept != NULL) {
        struct kept *next = kept->next;
        kept_free(kept);
        kept = next;
    }
}

/* Gives the graph that captures the stream the only reference to a new user object. On failure,
 * `kept` is still the caller's. */
static CUresult graph_own(CUstream stream, struct kept *kept, const char **function)
{
    CUstreamCaptureStatus status;
    CUuserObject object;
    CUgraph graph = NULL;
    CUresult result;

    *function = "cuStreamGetCaptureInfo_v2";
    result = cuda.cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) { /* it was, a moment ago */
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    *function = "cuUserObjectCreate";
    result = cuda.cuUserObjectCreate(&object, kept, kept_end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *function = "cuGraphRetainUserObject";
    result = cuda.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (result != CUDA_SUCCESS) {
        kept_drop(kept); /* if the release fails too, the callback that frees `kept` never comes */
        cuda.cuUserObjectRelease(object, 1);
        *function = NULL;
    }
    return result;
}

int cudriver_graph_keep(CoreState *state, CUstream stream, const struct cudriver_endpoint *dst,
                        const struct cudriver_endpoint *src)
{
    const char *function;
    struct kept *kept;
    CUresult result;

    if (cuda.cuStreamGetCaptureInfo_v2 == NULL || cuda.cuUserObjectCreate == NULL ||
        cuda.cuUserObjectRelease == NULL || cuda.cuGraphRetainUserObject == NULL) {
        cudriver_capture_raise(state, stream, "the copy",
                               "before CUDA 11.3 a graph cannot keep its arrays alive");
        return -1;
    }
    cudriver_graphs_reap(); /* else a program that only captures would let nothing go */
    kept = PyMem_RawCalloc(1, sizeof *kept);
    if (kept == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    end_take(&kept->ends[0], dst);
    if (src != NULL) {
        end_take(&kept->ends[1], src);
    }
    result = graph_own(stream, kept, &function);
    if (result == CUDA_SUCCESS) {
        return 0;
    }
    if (function == NULL) {
        function = "cuGraphRetainUserObject";
    } else {
        kept_free(kept);
    }
    cudriver_raise(state, result, function, "the graph that captures stream %p", (void *)stream);
    return -1;
}

/* One end of a copy: what an array-like of any kind is brought to. */
#ifndef CUDRIVER_ENDPOINT_H
#define CUDRIVER_ENDPOINT_H

#include "state.h"

#include "engine/layout.h"

struct cudriver_endpoint {
    PyObject *owner; /* owned: keeps the memory alive; release with cudriver_endpoint_done */
    PyObject *dtype; /* owned */
    struct ContextObject *context; /* owned: a device end's context; NULL for a host end */
    char *host;                    /* a host end's first item */
    CUdeviceptr device;            /* a device end's first item */
    Py_ssize_t *busy; /* a device end's count of running calls, this one in it; or NULL */
    size_t itemsize;
    int ndim;
    int64_t shape[CUDRIVER_MAX_DIMS];
    int64_t strides[CUDRIVER_MAX_DIMS]; /* bytes */
};

static inline bool cudriver_endpoint_is_device(const struct cudriver_endpoint *end)
{
    return end->context != NULL;
}

static inline void cudriver_endpoint_done(struct cudriver_endpoint *end)
{
    if (end->busy != NULL) {
        --*end->busy;
        end->busy = NULL;
    }
    Py_CLEAR(end->owner);
    Py_CLEAR(end->dtype);
    Py_CLEAR(end->context);
}

#endif

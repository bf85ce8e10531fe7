/* One end of a copy, whatever kind of array-like it is. */
#ifndef CUDRIVER_ENDPOINT_H
#define CUDRIVER_ENDPOINT_H

#include "state.h"
#include "users.h"

#include "engine/layout.h"

struct cudriver_endpoint {
    PyObject *owner; /* owned: keeps the memory alive and mapped, perhaps a tuple; release with
                        cudriver_endpoint_done */
    PyObject *dtype; /* owned */
    struct ContextObject *context; /* of a device end, kept alive by `owner` or `kept`; or NULL */
    PyObject *kept;                /* owned, or NULL */
    char *host;                    /* of a host end: its first item */
    CUdeviceptr device;            /* of a device end: its first item */
    struct cudriver_users *users;  /* of a device end: this call is one of them; or NULL */
    bool fixed;      /* of a host end: one item, which nobody changes, as often as the shape says */
    bool read_only;  /* not to be written */
    bool on_default; /* of a device end: ready for its context's default stream, maybe not yet */
    size_t itemsize;
    int ndim;
    Py_ssize_t shape[CUDRIVER_MAX_DIMS];
    Py_ssize_t strides[CUDRIVER_MAX_DIMS]; /* bytes */
};

/* Makes an endpoint that has nothing to release. Leaves the geometry alone: it is large. */
static inline void cudriver_endpoint_clear(struct cudriver_endpoint *end)
{
    end->owner = end->dtype = NULL;
    end->context = NULL;
    end->kept = NULL;
    end->host = NULL;
    end->device = 0;
    end->users = NULL;
    end->fixed = end->read_only = end->on_default = false;
}

static inline void cudriver_endpoint_done(struct cudriver_endpoint *end)
{
    if (end->users != NULL) {
        end->users->calls--;
        end->users = NULL;
    }
    Py_CLEAR(end->owner);
    Py_CLEAR(end->dtype);
    Py_CLEAR(end->kept);
    end->context = NULL;
}

#endif

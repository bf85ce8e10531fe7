/* How a copy is done, and the driver calls for it. Shared by copy.c and copy_path.c. */
#ifndef CUDRIVER_COPY_PATH_H
#define CUDRIVER_COPY_PATH_H

#include "copy.h"
#include "engine/engine.h"

enum cudriver_copy_kind {
    CUDRIVER_COPY_EMPTY,
    CUDRIVER_COPY_SAME,      /* both ends are the same memory */
    CUDRIVER_COPY_HOST,      /* host to host, by NumPy */
    CUDRIVER_COPY_DIRECT,    /* one driver copy of dense memory */
    CUDRIVER_COPY_2D,        /* driver copies of rows */
    CUDRIVER_COPY_3D,        /* driver copies of stacks of rows */
    CUDRIVER_COPY_STAGED,    /* the copy engine: packing threads and page-locked slots */
    CUDRIVER_COPY_KERNEL,    /* on one device, by the copy engine's kernel */
    CUDRIVER_COPY_TEMPORARY, /* device to device through dense temporaries on the devices */
    CUDRIVER_COPY_PEER,      /* device to device across devices */
    CUDRIVER_COPY_BOUNCED,   /* device to device through host memory */
};

struct cudriver_copy_path {
    enum cudriver_copy_kind kind;
    size_t bytes;
    bool to_device;
    bool from_device;
    bool page_locked;                /* of the host end; false if it was not queried */
    bool one_run;                    /* the host end is known to lie in one registration */
    bool unlooked;                   /* a small dense copy: page_locked was not queried */
    bool overlap;                    /* the device ends share memory but are not the same */
    bool two_devices;                /* device to device */
    ContextObject *context;          /* borrowed: where the copy is issued; NULL for host to host */
    struct cudriver_layout layout;   /* simplified, offsets included */
    const char *why;                 /* a sentence (string literal) */
    CUmemoryPool dst_pool, src_pool; /* TEMPORARY: pools for the temporaries */
};

/* Chooses the path. Both ends have the same shape and item size. Calls only queries, but may create
 * a device's memory pool for temporaries. The GIL is held. */
void cudriver_copy_decide(const struct cudriver_endpoint *dst, const struct cudriver_endpoint *src,
                          struct cudriver_copy_path *path);

/* Queries the host end of a path that was chosen without. Calls only queries. */
void cudriver_copy_look(struct cudriver_copy_path *path, const struct cudriver_endpoint *dst,
                        const struct cudriver_endpoint *src);

/* Where a copy is issued. */
struct cudriver_copy_place {
    ContextObject *context; /* borrowed: the stream's, and current */
    CUstream stream;
};

/* Whether kernels in a context can use a device's memory: pool memory in every context of its
 * device, other memory only in its own. Calls only a query. */
bool cudriver_copy_is_usable(CUdeviceptr memory, const ContextObject *context);

/* Whether a path can be used from a stream of this context, which is on the path's device (on
 * either, between two): the kernels of the path must be able to use the memory there. */
bool cudriver_copy_fits(const struct cudriver_copy_path *path, const struct cudriver_endpoint *dst,
                        const struct cudriver_endpoint *src, const ContextObject *context);

/* Issues a copy of kind DIRECT, 2D, 3D, KERNEL, TEMPORARY or PEER on the stream, in order,
 * and does not wait. Without the GIL. *function: the call that failed. *refused: nothing was done,
 * and the copy may be BOUNCED instead. */
CUresult cudriver_copy_issue(const struct cudriver_copy_path *path,
                             const struct cudriver_endpoint *dst,
                             const struct cudriver_endpoint *src,
                             const struct cudriver_copy_place *place, bool *refused,
                             const char **function);

/* Whether the first and the last byte of [low, high) are page-locked, as the driver knows it. */
bool cudriver_copy_is_page_locked(const char *low, const char *high);

const char *cudriver_copy_kind_name(enum cudriver_copy_kind kind);

#endif

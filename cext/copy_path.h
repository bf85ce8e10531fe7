/*
 * Which way a copy goes, and the driver calls of that way. Between copy.c and copy_path.c.
 */
#ifndef CUDRIVER_COPY_PATH_H
#define CUDRIVER_COPY_PATH_H

#include "copy.h"
#include "staging.h"

enum cudriver_copy_kind {
    CUDRIVER_COPY_EMPTY,
    CUDRIVER_COPY_SAME,    /* both ends are one and the same memory */
    CUDRIVER_COPY_HOST,    /* host to host, by NumPy */
    CUDRIVER_COPY_DIRECT,  /* one driver copy of dense memory */
    CUDRIVER_COPY_2D,      /* driver copies of rows */
    CUDRIVER_COPY_3D,      /* driver copies of stacks of rows */
    CUDRIVER_COPY_STAGED,  /* the copy engine: packing, page-locked slots, worker threads */
    CUDRIVER_COPY_PEER,    /* device to device across devices */
    CUDRIVER_COPY_BOUNCED, /* device to device through host memory, or through dense temporaries */
};

struct cudriver_copy_path {
    enum cudriver_copy_kind kind;
    size_t bytes;
    bool to_device;
    bool from_device;
    bool page_locked;              /* the host end */
    bool one_run;                  /* the host end is known to lie in one registration */
    bool overlap;                  /* device ends share memory without being the same */
    ContextObject *context;        /* borrowed: where the copy is issued; NULL for host to host */
    struct cudriver_layout layout; /* simplified: offsets included */
    const char *why;               /* a sentence; a literal */
};

/* Decides. Both ends have one shape and item size. Calls only queries. */
void cudriver_copy_decide(const struct cudriver_endpoint *dst, const struct cudriver_endpoint *src,
                          struct cudriver_copy_path *path);

/* Issues the driver copies of kinds DIRECT, 2D, 3D and PEER on `stream`, in order, without waiting.
 * No GIL; the path's context is current. *function gets the call that failed. */
CUresult cudriver_copy_issue(const struct cudriver_copy_path *path,
                             const struct cudriver_endpoint *dst,
                             const struct cudriver_endpoint *src, CUstream stream,
                             const char **function);

/* Whether all of [low, high) is page-locked for the driver. */
bool cudriver_copy_is_page_locked(const char *low, const char *high);

const char *cudriver_copy_kind_name(enum cudriver_copy_kind kind);

#endif

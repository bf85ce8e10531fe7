/* How a copy is done. See copy_path.h. */
#include "copy_path.h"

#include <string.h>

#include "device_memory.h"
#include "driver/driver.h"
#include "hostmem/hostmem.h"

/* The largest pitch (bytes between rows) of the driver's 2D copies:
 * CU_DEVICE_ATTRIBUTE_MAX_PITCH. */
#define MAX_PITCH 0x7fffffff

#define LOCKED_AND_DENSE "dense on both sides and page-locked: one copy at the bus's own speed"

const char *cudriver_copy_kind_name(enum cudriver_copy_kind kind)
{
    static const char *const names[] = {
        [CUDRIVER_COPY_EMPTY] = "empty",     [CUDRIVER_COPY_SAME] = "same",
        [CUDRIVER_COPY_HOST] = "host",       [CUDRIVER_COPY_DIRECT] = "direct",
        [CUDRIVER_COPY_2D] = "2D",           [CUDRIVER_COPY_3D] = "3D",
        [CUDRIVER_COPY_STAGED] = "staged",   [CUDRIVER_COPY_KERNEL] = "kernel",
        [CUDRIVER_COPY_PEER] = "peer",       [CUDRIVER_COPY_TEMPORARY] = "temporary",
        [CUDRIVER_COPY_BOUNCED] = "bounced",
    };

    return names[kind];
}

bool cudriver_copy_is_page_locked(const char *low, const char *high)
{
    unsigned int type = 0;

    /* Registrations end at any byte: check the last byte too. */
    return cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      (CUdeviceptr)(uintptr_t)low) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_HOST &&
           cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      (CUdeviceptr)(uintptr_t)(high - 1)) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_HOST;
}

/* Whether the items of one side lie in the gaps of the other, like the even and the odd items of an
 * array: all strides are multiples of one length, and within it the two items do not overlap. */
static bool are_interleaved(CUdeviceptr dst, CUdeviceptr src, const struct cudriver_layout *layout)
{
    uint64_t length = 0, apart;

    for (int i = 0; i < 2 * layout->ndim; i++) {
        int64_t stride = i % 2 ? layout->dst_strides[i / 2] : layout->src_strides[i / 2];
        uint64_t rest = stride < 0 ? -(uint64_t)stride : (uint64_t)stride;
        while (rest != 0) {
            uint64_t next = length % rest;
            length = rest;
            rest = next;
        }
    }
    if (length == 0) {
        return false;
    }
    dst += (CUdeviceptr)layout->dst_offset;
    src += (CUdeviceptr)layout->src_offset;
    apart = dst > src ? (dst - src) % length : (length - (src - dst) % length) % length;
    return apart >= layout->itemsize && length - apart >= layout->itemsize;
}

/* Whether the address ranges that the two sides span share a byte. */
static bool ranges_meet(CUdeviceptr dst, CUdeviceptr src, const struct cudriver_layout *layout)
{
    int64_t dst_low, dst_high, src_low, src_high;

    cudriver_layout_extent(layout, true, &dst_low, &dst_high);
    cudriver_layout_extent(layout, false, &src_low, &src_high);
    return dst + (CUdeviceptr)dst_low < src + (CUdeviceptr)src_high &&
           src + (CUdeviceptr)src_low < dst + (CUdeviceptr)dst_high;
}

static bool is_same_memory(const struct cudriver_endpoint *dst, const struct cudriver_endpoint *src)
{
    return dst->device == src->device &&
           memcmp(dst->strides, src->strides, (size_t)dst->ndim * sizeof dst->strides[0]) == 0;
}

/* Whether the driver's 2D copy can take dimension `axis` as its rows. */
static bool is_rows(const struct cudriver_layout *layout, int axis)
{
    int64_t run = (int64_t)layout->itemsize;

    return layout->dst_strides[axis] >= run && layout->src_strides[axis] >= run &&
           layout->dst_strides[axis] <= MAX_PITCH && layout->src_strides[axis] <= MAX_PITCH;
}

/* Whether `axis` stacks the rows of axis + 1 as the 3D copy needs it. */
static bool is_stack(const struct cudriver_layout *layout, int axis)
{
    int64_t height = layout->shape[axis + 1];
    int64_t dst = layout->dst_strides[axis + 1], src = layout->src_strides[axis + 1];

    return layout->dst_strides[axis] % dst == 0 && layout->src_strides[axis] % src == 0 &&
           layout->dst_strides[axis] / dst >= height && layout->src_strides[axis] / src >= height;
}

/* DIRECT, 2D or 3D if at most TUNING_MOST_CALLS driver calls copy the layout; else BOUNCED. *count:
 * how many calls. */
static enum cudriver_copy_kind shape_kind(const struct cudriver_layout *layout, int64_t *count)
{
    int64_t calls = 1;
    int rows = layout->ndim - 1, outer;

    *count = 1;
    if (layout->ndim == 0) {
        return CUDRIVER_COPY_DIRECT;
    }
    if (!is_rows(layout, rows)) {
        return CUDRIVER_COPY_BOUNCED;
    }
    outer = rows > 0 && is_stack(layout, rows - 1) ? rows - 1 : rows;
    for (int i = 0; i < outer && calls <= TUNING_MOST_CALLS; i++) {
        calls *= layout->shape[i];
    }
    *count = calls;
    if (calls > TUNING_MOST_CALLS) {
        return CUDRIVER_COPY_BOUNCED;
    }
    return outer < rows ? CUDRIVER_COPY_3D : CUDRIVER_COPY_2D;
}

/* Whether driver copies would send host bytes more than once; the copy engine does not. */
static bool host_repeats(const struct cudriver_copy_path *path)
{
    bool repeats = false;

    for (int i = 0; i < path->layout.ndim; i++) {
        repeats |= path->to_device && path->layout.src_strides[i] == 0;
    }
    return repeats;
}

void cudriver_copy_look(struct cudriver_copy_path *path, const struct cudriver_endpoint *dst,
                        const struct cudriver_endpoint *src)
{
    const struct cudriver_endpoint *host = path->to_device ? src : dst;
    int64_t low, high;

    if (!path->unlooked) {
        return;
    }
    path->unlooked = false;
    cudriver_layout_extent(&path->layout, !path->to_device, &low, &high);
    path->page_locked = cudriver_copy_is_page_locked(host->host + low, host->host + high);
    if (path->page_locked) {
        path->why = LOCKED_AND_DENSE;
    }
}

/* One end is in host memory. */
static void decide_host(struct cudriver_copy_path *path, const struct cudriver_endpoint *host)
{
    int64_t calls, low, high;
    enum cudriver_copy_kind kind = shape_kind(&path->layout, &calls);

    cudriver_layout_extent(&path->layout, !path->to_device, &low, &high);
    path->one_run = cudriver_hostmem_is_registered(host->host + low, (size_t)(high - low));
    path->kind = CUDRIVER_COPY_STAGED;
    if (kind == CUDRIVER_COPY_DIRECT && !path->one_run &&
        cudriver_staging_is_small(path->to_device, path->bytes)) {
        path->kind = CUDRIVER_COPY_DIRECT;
        path->unlooked = true; /* asking the driver would cost as much as the copy call */
        path->why = "dense and small: one driver copy, from this thread";
        return;
    }
    path->page_locked =
        path->one_run || cudriver_copy_is_page_locked(host->host + low, host->host + high);
    if (kind == CUDRIVER_COPY_DIRECT) {
        path->kind = path->page_locked ? CUDRIVER_COPY_DIRECT : CUDRIVER_COPY_STAGED;
        path->why = path->page_locked
                        ? LOCKED_AND_DENSE
                        : "dense but pageable: worker threads move it through page-locked slots";
        return;
    }
    if (kind != CUDRIVER_COPY_BOUNCED && path->page_locked && !host_repeats(path) &&
        path->layout.itemsize >= TUNING_SHORTEST_ROW &&
        (path->one_run ||
         cudriver_hostmem_run(host->host + low, (size_t)(high - low)) == (size_t)(high - low))) {
        path->kind = kind;
        path->why = "page-locked rows: the driver copies them as they lie";
    } else {
        path->why = path->page_locked
                        ? "strided in a way that the driver does not copy fast: packed into slots"
                        : "strided and pageable: worker threads pack it into page-locked slots";
    }
}

bool cudriver_copy_is_usable(CUdeviceptr memory, const ContextObject *context)
{
    CUcontext owner = NULL;
    CUresult result = cuda.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, memory);

    return result != CUDA_SUCCESS || owner == NULL || owner == context->handle;
}

/* Whether the copy engine can do the copy on the devices alone. */
static bool can_stay(const struct cudriver_copy_path *path, const struct cudriver_endpoint *dst,
                     const struct cudriver_endpoint *src)
{
    const struct cudriver_layout *layout = &path->layout;

    if (!cudriver_copy_is_usable(dst->device, dst->context) ||
        !cudriver_copy_is_usable(src->device, path->two_devices ? src->context : dst->context)) {
        return false;
    }
    if ((path->overlap && path->dst_pool == NULL) ||
        (path->two_devices && (path->dst_pool == NULL || path->src_pool == NULL))) {
        return false;
    }
    return layout->ndim == 0 ||
           (cudriver_staging_has_kernel(dst->context->handle, layout, dst->device, src->device) &&
            (!path->two_devices ||
             cudriver_staging_has_kernel(src->context->handle, layout, dst->device, src->device)));
}

/* Both ends are in device memory: not the same memory, and not dense on both sides. */
static void decide_strided(struct cudriver_copy_path *path, const struct cudriver_endpoint *dst,
                           const struct cudriver_endpoint *src)
{
    int64_t calls;
    enum cudriver_copy_kind kind = shape_kind(&path->layout, &calls);
    bool good_rows =
        path->layout.itemsize >= TUNING_SHORTEST_ROW || path->bytes <= TUNING_DEVICE_KERNEL_LEAST;

    if (kind != CUDRIVER_COPY_BOUNCED && calls == 1 && good_rows) {
        path->kind = kind;
        path->why = "rows on one device: the driver copies them";
    } else if (can_stay(path, dst, src)) {
        path->kind = CUDRIVER_COPY_KERNEL;
        path->why = kind != CUDRIVER_COPY_BOUNCED
                        ? "rows on one device, short ones or in many planes: a kernel is faster "
                          "than the driver's copies"
                        : "the two sides are strided too differently for the driver's copies: a "
                          "kernel on the device puts the items in place";
    } else {
        path->kind = kind;
        path->why = kind != CUDRIVER_COPY_BOUNCED
                        ? "rows on one device: the driver copies them"
                        : "the two sides are strided too differently for the driver's copies, and "
                          "the kernel cannot be had: through host memory";
    }
}

/* Both ends are in device memory. */
static void decide_device(struct cudriver_copy_path *path, const struct cudriver_endpoint *dst,
                          const struct cudriver_endpoint *src)
{
    if (is_same_memory(dst, src)) {
        path->kind = CUDRIVER_COPY_SAME;
        path->why = "both ends are the same memory: nothing to do";
        return;
    }
    path->overlap = ranges_meet(dst->device, src->device, &path->layout) &&
                    !are_interleaved(dst->device, src->device, &path->layout);
    path->two_devices = dst->context->ordinal != src->context->ordinal;
    if (path->overlap || path->two_devices) {
        path->dst_pool = cudriver_device_pool(dst->context->ordinal);
        path->src_pool = cudriver_device_pool(src->context->ordinal);
    }
    if (path->overlap) {
        bool stays = can_stay(path, dst, src);
        path->kind = stays ? CUDRIVER_COPY_TEMPORARY : CUDRIVER_COPY_BOUNCED;
        path->why = stays ? "the ends may overlap: through a temporary on the device"
                          : "the ends may overlap, and no temporary can be had on the device: "
                            "through host memory";
    } else if (path->two_devices && path->layout.ndim == 0) {
        path->kind = CUDRIVER_COPY_PEER;
        path->why = "dense, on two devices: a peer copy (the driver goes through the host where "
                    "the devices cannot reach each other)";
    } else if (path->two_devices) {
        bool stays = can_stay(path, dst, src);
        path->kind = stays ? CUDRIVER_COPY_TEMPORARY : CUDRIVER_COPY_BOUNCED;
        path->why = stays ? "strided, on two devices: packed on the one, copied, and unpacked on "
                            "the other"
                          : "strided, on two devices that cannot pack it: through host memory";
    } else if (path->layout.ndim == 0) {
        path->kind = CUDRIVER_COPY_DIRECT;
        path->why = "dense on both sides of one device";
    } else {
        decide_strided(path, dst, src);
    }
}

void cudriver_copy_decide(const struct cudriver_endpoint *dst, const struct cudriver_endpoint *src,
                          struct cudriver_copy_path *path)
{
    struct cudriver_layout *layout = &path->layout;

    path->to_device = cudriver_endpoint_is_device(dst);
    path->from_device = cudriver_endpoint_is_device(src);
    path->page_locked = path->one_run = path->unlooked = path->overlap = path->two_devices = false;
    path->dst_pool = path->src_pool = NULL;
    path->context = path->to_device ? dst->context : src->context;
    layout->ndim = dst->ndim;
    layout->itemsize = dst->itemsize;
    layout->dst_offset = layout->src_offset = 0;
    memcpy(layout->shape, dst->shape, (size_t)dst->ndim * sizeof dst->shape[0]);
    memcpy(layout->dst_strides, dst->strides, (size_t)dst->ndim * sizeof dst->strides[0]);
    memcpy(layout->src_strides, src->strides, (size_t)src->ndim * sizeof src->strides[0]);
    path->bytes = cudriver_layout_simplify(layout);
    if (path->bytes == 0) {
        path->kind = CUDRIVER_COPY_EMPTY;
        path->why = "there is nothing to copy";
    } else if (!path->to_device && !path->from_device) {
        path->kind = CUDRIVER_COPY_HOST;
        path->why = "both ends are in host memory: NumPy copies";
    } else if (path->to_device && path->from_device) {
        decide_device(path, dst, src);
    } else {
        decide_host(path, path->to_device ? src : dst);
    }
}

/* One dense copy. Between host and device it is split at the end of a registration, because the
 * driver refuses a copy that starts in one and ends beyond it. */
static CUresult issue_direct(const struct cudriver_copy_path *path,
                             const struct cudriver_endpoint *dst,
                             const struct cudriver_endpoint *src, CUstream stream,
                             const char **function)
{
    CUdeviceptr to = dst->device + (CUdeviceptr)path->layout.dst_offset;
    CUdeviceptr from = src->device + (CUdeviceptr)path->layout.src_offset;

    if (path->kind == CUDRIVER_COPY_PEER) {
        *function = "cuMemcpyPeerAsync";
        return cuda.cuMemcpyPeerAsync(to, dst->context->handle, from, src->context->handle,
                                      path->bytes, stream);
    }
    if (path->to_device && path->from_device) {
        *function = "cuMemcpyDtoDAsync_v2";
        return cuda.cuMemcpyDtoDAsync_v2(to, from, path->bytes, stream);
    }
    const char *host_from = path->to_device ? src->host + path->layout.src_offset : NULL;
    char *host_to = path->to_device ? NULL : dst->host + path->layout.dst_offset;
    CUresult result = CUDA_SUCCESS;

    *function = path->to_device ? "cuMemcpyHtoDAsync_v2" : "cuMemcpyDtoHAsync_v2";
    for (size_t at = 0; at < path->bytes && result == CUDA_SUCCESS;) {
        const char *host = path->to_device ? host_from : host_to;
        size_t bytes = path->bytes - at;
        bytes = path->one_run ? bytes : cudriver_hostmem_run(host + at, bytes);
        result = path->to_device
                     ? cuda.cuMemcpyHtoDAsync_v2(to + at, host_from + at, bytes, stream)
                     : cuda.cuMemcpyDtoHAsync_v2(host_to + at, from + at, bytes, stream);
        at += bytes;
    }
    return result;
}

/* The 2D or 3D copy at `dst_at` and `src_at`, in bytes from the ends' addresses. */
static CUresult issue_rows(const struct cudriver_copy_path *path,
                           const struct cudriver_endpoint *dst, const struct cudriver_endpoint *src,
                           int64_t dst_at, int64_t src_at, CUstream stream, const char **function)
{
    const struct cudriver_layout *layout = &path->layout;
    int rows = layout->ndim - 1;
    CUDA_MEMCPY3D copy;

    memset(&copy, 0, sizeof copy);
    copy.dstMemoryType = path->to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.srcMemoryType = path->from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.dstDevice = path->to_device ? dst->device + (CUdeviceptr)dst_at : 0;
    copy.srcDevice = path->from_device ? src->device + (CUdeviceptr)src_at : 0;
    copy.dstHost = path->to_device ? NULL : dst->host + dst_at;
    copy.srcHost = path->from_device ? NULL : src->host + src_at;
    copy.dstPitch = (size_t)layout->dst_strides[rows];
    copy.srcPitch = (size_t)layout->src_strides[rows];
    copy.WidthInBytes = layout->itemsize;
    copy.Height = (size_t)layout->shape[rows];
    if (path->kind == CUDRIVER_COPY_3D) {
        *function = "cuMemcpy3DAsync_v2";
        copy.Depth = (size_t)layout->shape[rows - 1];
        copy.dstHeight = (size_t)(layout->dst_strides[rows - 1] / layout->dst_strides[rows]);
        copy.srcHeight = (size_t)(layout->src_strides[rows - 1] / layout->src_strides[rows]);
        return cuda.cuMemcpy3DAsync_v2(&copy, stream);
    }
    CUDA_MEMCPY2D flat = {
        .srcMemoryType = copy.srcMemoryType,
        .srcHost = copy.srcHost,
        .srcDevice = copy.srcDevice,
        .srcPitch = copy.srcPitch,
        .dstMemoryType = copy.dstMemoryType,
        .dstHost = copy.dstHost,
        .dstDevice = copy.dstDevice,
        .dstPitch = copy.dstPitch,
        .WidthInBytes = copy.WidthInBytes,
        .Height = copy.Height,
    };
    *function = "cuMemcpy2DAsync_v2";
    return cuda.cuMemcpy2DAsync_v2(&flat, stream);
}

/* Loops over the dimensions outside those of one driver call. */
static CUresult issue_outer(const struct cudriver_copy_path *path,
                            const struct cudriver_endpoint *dst,
                            const struct cudriver_endpoint *src, int axis, int64_t dst_at,
                            int64_t src_at, CUstream stream, const char **function)
{
    const struct cudriver_layout *layout = &path->layout;
    CUresult result = CUDA_SUCCESS;

    if (axis == layout->ndim - (path->kind == CUDRIVER_COPY_3D ? 2 : 1)) {
        return issue_rows(path, dst, src, dst_at, src_at, stream, function);
    }
    for (int64_t i = 0; i < layout->shape[axis] && result == CUDA_SUCCESS; i++) {
        result = issue_outer(path, dst, src, axis + 1, dst_at + i * layout->dst_strides[axis],
                             src_at + i * layout->src_strides[axis], stream, function);
    }
    return result;
}

bool cudriver_copy_fits(const struct cudriver_copy_path *path, const struct cudriver_endpoint *dst,
                        const struct cudriver_endpoint *src, const ContextObject *context)
{
    if (context == path->context) {
        return true;
    }
    if (path->kind == CUDRIVER_COPY_STAGED) {
        struct cudriver_staging_plan plan;
        /* Asks about an asynchronous copy, which uses the kernel from fewer bytes on. */
        cudriver_staging_explain(context->handle, &path->layout, path->to_device, false, &plan);
        return plan.path != CUDRIVER_STAGING_PERMUTED ||
               cudriver_copy_is_usable(path->to_device ? dst->device : src->device, context);
    }
    if (path->kind != CUDRIVER_COPY_KERNEL && path->kind != CUDRIVER_COPY_TEMPORARY) {
        return true;
    }
    if (path->two_devices) {
        return context == dst->context || context == src->context;
    }
    return cudriver_copy_is_usable(dst->device, context) &&
           cudriver_copy_is_usable(src->device, context);
}

/* A copy between device memory by the copy engine. */
static CUresult issue_between(const struct cudriver_copy_path *path,
                              const struct cudriver_endpoint *dst,
                              const struct cudriver_endpoint *src,
                              const struct cudriver_copy_place *place, bool *refused,
                              const char **function)
{
    CUcontext here = place->context->handle;
    const struct cudriver_staging_between job = {
        .context = here,
        .stream = place->stream,
        .dst = {path->two_devices ? dst->context->handle : here, dst->device, path->dst_pool},
        .src = {path->two_devices ? src->context->handle : here, src->device, path->src_pool},
        .layout = &path->layout,
        .overlap = path->overlap,
    };

    return cudriver_staging_copy_between(&job, refused, function);
}

CUresult cudriver_copy_issue(const struct cudriver_copy_path *path,
                             const struct cudriver_endpoint *dst,
                             const struct cudriver_endpoint *src,
                             const struct cudriver_copy_place *place, bool *refused,
                             const char **function)
{
    *refused = false;
    switch (path->kind) {
    case CUDRIVER_COPY_KERNEL:
    case CUDRIVER_COPY_TEMPORARY:
        return issue_between(path, dst, src, place, refused, function);
    case CUDRIVER_COPY_PEER:
        /* A NULL stream's copy must follow the default-stream work of both devices. */
        return place->stream == NULL ? issue_between(path, dst, src, place, refused, function)
                                     : issue_direct(path, dst, src, place->stream, function);
    case CUDRIVER_COPY_DIRECT:
        return issue_direct(path, dst, src, place->stream, function);
    default:
        return issue_outer(path, dst, src, 0, path->layout.dst_offset, path->layout.src_offset,
                           place->stream, function);
    }
}

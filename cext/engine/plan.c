/* How a copy is done: one plan, which explain_copy tells and execute.c follows. See engine.h. And
 * of a staged copy how it travels: the order of its bytes, its threads, and its parts. */
#include "private.h"

#include <string.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "hostmem/hostmem.h"

const char *cudriver_copy_kind_name(enum cudriver_copy_kind kind)
{
    static const char *const names[] = {
        [CUDRIVER_COPY_EMPTY] = "empty",     [CUDRIVER_COPY_SAME] = "same",
        [CUDRIVER_COPY_HOST] = "host",       [CUDRIVER_COPY_DIRECT] = "direct",
        [CUDRIVER_COPY_2D] = "2D",           [CUDRIVER_COPY_3D] = "3D",
        [CUDRIVER_COPY_STAGED] = "staged",   [CUDRIVER_COPY_KERNEL] = "kernel",
        [CUDRIVER_COPY_PEER] = "peer",       [CUDRIVER_COPY_TEMPORARY] = "temporary",
        [CUDRIVER_COPY_BOUNCED] = "bounced", [CUDRIVER_COPY_FILL] = "fill",
    };

    return names[kind];
}

/* ---- staged: how it travels ---- */

static const int64_t *host_strides(const struct cudriver_layout *layout, bool up)
{
    return up ? layout->src_strides : layout->dst_strides;
}

/* Whether a walk visits the host's memory in order, or in runs long enough. */
static bool host_in_order(const struct cudriver_layout *walk, bool up)
{
    const int64_t *strides = host_strides(walk, up);

    if (walk->itemsize >= TUNING_GOOD_ROW) {
        return true;
    }
    for (int d = 1; d < walk->ndim; d++) {
        if (cudriver_magnitude(strides[d]) > cudriver_magnitude(strides[d - 1])) {
            return false;
        }
    }
    return true;
}

/* Whether a copy up reads host memory more than once; driver copies would send it as often. */
static bool host_repeats(const struct cudriver_layout *walk, bool up)
{
    for (int d = 0; d < walk->ndim; d++) {
        if (host_strides(walk, up)[d] == 0) {
            return up;
        }
    }
    return false;
}

/* Splits a layout into what the host's threads do, plan->walk, and what the device does,
 * plan->spread: between them the bytes travel, dense. */
static void travel_split(struct staging_plan *plan, const struct cudriver_layout *layout)
{
    plan->walk = plan->spread = *layout;
    cudriver_layout_pack(&plan->walk, plan->up);
    cudriver_layout_pack(&plan->spread, !plan->up);
}

/* The same in the host's order. Dimensions that the host repeats do not travel: the kernel has
 * them, before the others. */
static void travel_permuted(struct staging_plan *plan, const struct cudriver_layout *by_host)
{
    struct cudriver_layout travels = *by_host, *spread = &plan->spread;
    int kept = by_host->ndim, repeats;

    while (plan->up && kept > 0 && by_host->src_strides[kept - 1] == 0) { /* the last: sorted */
        kept--;
    }
    travels.ndim = kept;
    travel_split(plan, &travels);
    travels = *spread;
    repeats = plan->repeats = by_host->ndim - kept;
    spread->ndim = repeats + travels.ndim;
    for (int d = 0; d < spread->ndim; d++) {
        const struct cudriver_layout *from = d < repeats ? by_host : &travels;
        int at = d < repeats ? kept + d : d - repeats;
        spread->shape[d] = from->shape[at];
        spread->dst_strides[d] = from->dst_strides[at];
        spread->src_strides[d] = from->src_strides[at];
    }
    plan->path = CUDRIVER_STAGING_PERMUTED;
}

/* Whether a kernel should put the bytes in place. plan->spread is in the device's order. */
static bool should_permute(const struct cudriver_copy_plan *copy,
                           const struct cudriver_layout *by_host,
                           const struct cudriver_layout *by_device)
{
    size_t run = copy->staged.spread.itemsize; /* on the device */
    bool up = copy->dst.on_device, dense = copy->staged.spread.ndim == 0;

    if (copy->bytes < copy->staged.crossover) {
        return run < TUNING_GOOD_ROW / 8 && copy->bytes > TUNING_KERNEL_LEAST;
    }
    return host_repeats(by_host, up) || !host_in_order(by_device, up) ||
           (!dense && run < TUNING_GOOD_ROW);
}

/* Chooses the order in which strided memory travels: the device's, or the host's, if `kernels` may
 * be used and one is to put the bytes in place: then the path is chosen, too. */
static bool travel_order(struct staging_plan *plan, const struct cudriver_copy_plan *copy,
                         bool kernels)
{
    bool up = plan->up;
    struct cudriver_layout by_host = copy->layout, by_device;

    /* The device's side never runs backwards: driver copies cannot do that. Simplifying turns no
     * side backwards. */
    for (int d = 0; d < by_host.ndim; d++) {
        if ((up ? by_host.dst_strides : by_host.src_strides)[d] < 0) {
            cudriver_layout_flip(&by_host, d);
        }
    }
    by_device = by_host;
    cudriver_layout_simplify(&by_host, !up);
    cudriver_layout_simplify(&by_device, up);
    travel_split(plan, &by_device);
    if (kernels && staging_context_has_kernels(copy->context) &&
        staging_kernels_unit(&by_host, up ? copy->device : 0, up ? 0 : copy->device) >= 0 &&
        should_permute(copy, &by_host, &by_device)) {
        travel_permuted(plan, &by_host);
        return true;
    }
    return false;
}

/* The parts, blocks and threads of a copy. Blocking copies up have few blocks, which stay in the
 * CPU's caches; parts grow with the root of the size, as does their number. Others have room for
 * what arrives, or is wanted, before the threads are awake. */
static void plan_parts(struct staging_plan *plan, size_t bytes, bool blocking,
                       const struct staging_settings *settings)
{
    size_t travels = cudriver_layout_bytes(&plan->walk); /* less if the host's side repeats */
    size_t part = travels > TUNING_PART_LEAST ? TUNING_PART_LEAST : TUNING_PART_LEAST / 2, blocks;
    size_t parts = plan->up ? TUNING_PARTS_UP : TUNING_PARTS_DOWN, most = settings->part;
    bool few = plan->up && blocking;

    while (part < most && (few ? part / TUNING_PART_STEP * (part / TUNING_PART_STEP) < travels
                               : part * parts < travels)) {
        part *= 2;
    }
    plan->chunk = part < most ? part : most;
    blocks = few ? 0 : TUNING_ROOM / plan->chunk;
    plan->blocks = blocks < 4                     ? 4
                   : blocks < STAGING_BLOCKS_MOST ? (int)blocks
                                                  : STAGING_BLOCKS_MOST;
    plan->threads = settings->packers;
    if (plan->walk.ndim > 0 && plan->walk.itemsize < TUNING_LONG_RUN && /* others: like dense */
        settings->threads > settings->packers) {
        plan->threads = settings->threads;
    }
    /* Copies down always bypass the cache. Asynchronous copies up cycle through many blocks, so a
     * block is rarely cached: larger ones bypass it, too. */
    plan->streaming =
        settings->streaming > 0 &&
        (!plan->up || bytes <= settings->streaming * (blocking ? 1 : TUNING_STREAMING_ASYNC));
}

void staging_plan_make(struct cudriver_copy_plan *copy, bool blocking, bool kernels)
{
    struct staging_plan *plan = &copy->staged;
    struct staging_settings settings;
    bool permuted = false;

    staging_settings_get(&settings);
    plan->up = copy->dst.on_device;
    plan->most = settings.threads;
    plan->crossover = blocking ? settings.crossover : settings.crossover / 2;
    plan->repeats = 0;
    plan->runs = NULL;
    plan->files = NULL;
    if (copy->layout.ndim == 0) {
        travel_split(plan, &copy->layout);
    } else {
        permuted = travel_order(plan, copy, kernels);
    }
    if (!permuted && copy->bytes < plan->crossover) {
        plan->path = CUDRIVER_STAGING_SMALL;
        plan->chunk = 0;
        plan->blocks = plan->threads = 1;
        plan->streaming = false;
        return;
    }
    if (!permuted) {
        plan->path = plan->spread.ndim > 0 ? CUDRIVER_STAGING_ROWS
                     : plan->walk.ndim > 0 ? CUDRIVER_STAGING_PACKED
                                           : CUDRIVER_STAGING_DENSE;
    }
    plan_parts(plan, copy->bytes, blocking, &settings);
}

/* ---- parts ---- */

const void *staging_item_at(const void *items, size_t size, size_t count, size_t byte)
{
    size_t low = 0, high = count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(*(const uint64_t *)((const char *)items + middle * size) <= byte ? &low : &high) = middle;
    }
    return (const char *)items + low * size;
}

struct staging_boxes staging_boxes_make(const struct staging_plan *plan, size_t most)
{
    const struct cudriver_layout *spread = &plan->spread;
    struct staging_boxes boxes = {.row_bytes = 1};

    for (int d = spread->ndim;; d--) {
        size_t rows = boxes.row_bytes >= most ? 1 : most / boxes.row_bytes;
        boxes.split = d;
        boxes.length = boxes.rows =
            d == spread->ndim ? (int64_t)spread->itemsize : spread->shape[d];
        if (rows < (size_t)boxes.length) {
            boxes.rows = (int64_t)rows;
            break;
        }
        if (d == plan->repeats) {
            break;
        }
        boxes.row_bytes *= (size_t)boxes.length;
    }
    boxes.largest = boxes.row_bytes * (size_t)boxes.rows;
    boxes.per_split = (size_t)((boxes.length + boxes.rows - 1) / boxes.rows);
    boxes.count = boxes.per_split;
    for (int d = plan->repeats; d < boxes.split; d++) {
        boxes.count *= (size_t)spread->shape[d];
    }
    return boxes;
}

void staging_box_find(const struct staging_plan *plan, const struct staging_boxes *boxes,
                      size_t index, size_t *begin, size_t *end, struct cudriver_layout *layout)
{
    const struct cudriver_layout *spread = &plan->spread;
    const int64_t *device = plan->up ? spread->dst_strides : spread->src_strides;
    int split = boxes->split, to = plan->repeats;
    size_t above = index / boxes->per_split;
    int64_t from = (int64_t)(index % boxes->per_split) * boxes->rows;
    int64_t count = boxes->length - from < boxes->rows ? boxes->length - from : boxes->rows;

    *begin = (above * (size_t)boxes->length + (size_t)from) * boxes->row_bytes;
    *end = *begin + (size_t)count * boxes->row_bytes;
    if (layout == NULL) {
        return;
    }
    int64_t at = from * (split == spread->ndim ? 1 : device[split]);
    for (int d = split - 1; d >= plan->repeats; d--) {
        at += (int64_t)(above % (size_t)spread->shape[d]) * device[d];
        above /= (size_t)spread->shape[d];
    }
    *layout = *spread;
    *(plan->up ? &layout->dst_offset : &layout->src_offset) += at;
    /* Drop the dimensions outside the split one, and shorten that. */
    for (int d = split; d < spread->ndim; d++, to++) {
        layout->shape[to] = d == split ? count : spread->shape[d];
        layout->dst_strides[to] = spread->dst_strides[d];
        layout->src_strides[to] = spread->src_strides[d];
    }
    layout->ndim = to;
    layout->itemsize = split == spread->ndim ? (size_t)count : spread->itemsize;
}
/* ---- any ---- */

/* 2D or 3D if at most TUNING_MOST_CALLS driver calls copy the layout; else BOUNCED. *count: how
 * many calls. */
static enum cudriver_copy_kind shape_kind(const struct cudriver_layout *layout, int64_t *count)
{
    int dims = cudriver_layout_rows(layout);

    *count = 1;
    for (int i = 0; i < layout->ndim - dims && *count <= TUNING_MOST_CALLS; i++) {
        *count *= layout->shape[i];
    }
    if (dims == 0 || *count > TUNING_MOST_CALLS) {
        return CUDRIVER_COPY_BOUNCED;
    }
    return dims == 2 ? CUDRIVER_COPY_3D : CUDRIVER_COPY_2D;
}

/* Whether the device reads pageable memory through the host's page tables, as GH200, GB200 and GB10
 * do. */
static bool is_coherent(CUdevice device)
{
    int tables = 0;

    return cuda.cuDeviceGetAttribute(
               &tables, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, device) ==
               CUDA_SUCCESS &&
           tables != 0;
}

/* Dense between host and device, and not known to be page-locked. Asking the driver about small
 * memory costs as much as the copy call. */
static void plan_dense(struct cudriver_copy_plan *plan, const char *low, const char *high)
{
    struct staging_settings settings;
    bool small, looked; /* better left to the driver's own call if it is pageable; asked */

    staging_settings_get(&settings);
    small = settings.packers == 1 || plan->bytes < settings.crossover;
    if (!plan->blocking) { /* the driver would use pageable memory now, not in the stream's order */
        small = plan->dst.on_device && !plan->borrow && plan->bytes <= TUNING_READ;
    }
    looked = !small || (plan->blocking && plan->ask) ||
             (!plan->dst.on_device && plan->bytes > TUNING_LOOKED_FROM);
    plan->page_locked = looked && cudriver_hostmem_is_page_locked(low, high);
    plan->kind = plan->page_locked || small ? CUDRIVER_COPY_DIRECT : CUDRIVER_COPY_STAGED;
    if (plan->kind == CUDRIVER_COPY_STAGED && plan->blocking && settings.coherent &&
        is_coherent(plan->dst.on_device ? plan->dst.ordinal : plan->src.ordinal)) {
        plan->coherent = true;
        plan->crawls = settings.crawls[plan->dst.on_device];
        plan->kind = plan->crawls || platform_is_of_file((uintptr_t)low, (size_t)(high - low))
                         ? CUDRIVER_COPY_STAGED
                         : CUDRIVER_COPY_DIRECT;
    }
}

/* The word whose repetition is the item of a fill, as the driver sets it in dense memory: 1, 2 or 4
 * bytes; 0: it cannot. */
static size_t fill_word(const struct cudriver_copy_plan *plan)
{
    const struct cudriver_layout *layout = &plan->layout;
    CUdeviceptr address = plan->device + (CUdeviceptr)layout->dst_offset;
    size_t size = layout->itemsize;

    if (layout->ndim > 1 || (layout->ndim == 1 && (layout->src_strides[0] != 0 ||
                                                   layout->dst_strides[0] != (int64_t)size))) {
        return 0;
    }
    for (size_t word = 1; word <= 4 && word <= size; word *= 2) {
        if (size % word == 0 && memcmp(plan->host, plan->host + word, size - word) == 0) {
            return address % word == 0 ? word : 0;
        }
    }
    return 0;
}

/* One end is in host memory. */
static void plan_host(struct cudriver_copy_plan *plan)
{
    const struct cudriver_layout *layout = &plan->layout;
    bool up = plan->dst.on_device;
    const char *host = plan->host + (up ? layout->src_offset : layout->dst_offset);
    int64_t calls, low, high;
    enum cudriver_copy_kind kind;
    size_t span;

    plan->word = plan->fixed ? fill_word(plan) : 0;
    if (plan->word > 0) {
        plan->kind = CUDRIVER_COPY_FILL;
        return;
    }
    cudriver_extent(layout->ndim, layout->itemsize, layout->shape, host_strides(layout, up), &low,
                    &high);
    span = (size_t)(high - low);
    plan->one_run = cudriver_hostmem_registered(host + low, span) == span;
    if (layout->ndim == 0 && plan->one_run) {
        plan->page_locked = true;
        plan->kind = CUDRIVER_COPY_DIRECT;
    } else if (layout->ndim == 0) {
        plan_dense(plan, host + low, host + high);
    } else {
        kind = shape_kind(layout, &calls);
        plan->page_locked =
            plan->one_run || cudriver_hostmem_is_page_locked(host + low, host + high);
        plan->kind = kind != CUDRIVER_COPY_BOUNCED && plan->page_locked &&
                             !host_repeats(layout, up) && layout->itemsize >= TUNING_SHORTEST_ROW &&
                             (plan->one_run || cudriver_hostmem_run(host + low, span) == span)
                         ? kind
                         : CUDRIVER_COPY_STAGED;
    }
    if (plan->kind == CUDRIVER_COPY_STAGED) {
        plan->borrow |= plan->page_locked || plan->fixed;
        staging_plan_make(plan, plan->blocking, true);
    }
}

bool cudriver_copy_is_usable(CUdeviceptr memory, CUcontext context)
{
    CUcontext owner = NULL;
    CUresult result = cuda.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, memory);

    return result != CUDA_SUCCESS || owner == NULL || owner == context;
}

/* Both ends are in device memory: not the same memory, and not dense on both sides. */
static void plan_strided(struct cudriver_copy_plan *plan)
{
    int64_t calls;
    enum cudriver_copy_kind kind = shape_kind(&plan->layout, &calls);
    CUdeviceptr dst = plan->dst.device, src = plan->src.device;
    int unit = staging_kernels_unit(&plan->layout, dst, src);
    bool driver =
        plan->bytes <= TUNING_KERNEL_LEAST ||
        (plan->layout.itemsize >= TUNING_SHORTEST_ROW && unit < TUNING_DEVICE_KERNEL_UNIT);

    driver = driver && kind != CUDRIVER_COPY_BOUNCED && calls == 1;
    plan->kind = !driver && unit >= 0 && cudriver_copy_is_usable(dst, plan->dst.context) &&
                         cudriver_copy_is_usable(src, plan->dst.context) &&
                         staging_context_has_kernels(plan->dst.context)
                     ? CUDRIVER_COPY_KERNEL
                     : kind;
}

/* Both ends are in device memory. */
static void plan_device(struct cudriver_copy_plan *plan)
{
    bool two = plan->dst.ordinal != plan->src.ordinal;
    const struct cudriver_layout *layout = &plan->layout;
    CUdeviceptr dst = plan->dst.device + (CUdeviceptr)layout->dst_offset;
    CUdeviceptr src = plan->src.device + (CUdeviceptr)layout->src_offset;
    int64_t dst_low, dst_high, src_low, src_high;

    cudriver_extent(layout->ndim, layout->itemsize, layout->shape, layout->dst_strides, &dst_low,
                    &dst_high);
    cudriver_extent(layout->ndim, layout->itemsize, layout->shape, layout->src_strides, &src_low,
                    &src_high);
    if (dst + (CUdeviceptr)dst_low < src + (CUdeviceptr)src_high &&
        src + (CUdeviceptr)src_low < dst + (CUdeviceptr)dst_high) { /* a byte is in both */
        plan->kind = CUDRIVER_COPY_TEMPORARY;
    } else if (plan->layout.ndim == 0) {
        plan->kind = two ? CUDRIVER_COPY_PEER : CUDRIVER_COPY_DIRECT;
    } else if (two) {
        plan->kind = CUDRIVER_COPY_BOUNCED;
    } else {
        plan_strided(plan);
    }
}

void cudriver_copy_plan_make(struct cudriver_copy_plan *plan)
{
    const struct cudriver_layout *layout = &plan->layout;
    bool same; /* asked before the layout is simplified */

    plan->context = plan->dst.on_device ? plan->dst.context : plan->src.context;
    plan->host = plan->dst.on_device ? plan->src.host : plan->dst.host;
    plan->device = plan->dst.on_device ? plan->dst.device : plan->src.device;
    plan->page_locked = plan->one_run = plan->coherent = plan->crawls = false;
    same = plan->dst.on_device && plan->src.on_device && plan->dst.device == plan->src.device &&
           memcmp(layout->dst_strides, layout->src_strides,
                  (size_t)layout->ndim * sizeof layout->dst_strides[0]) == 0;
    plan->bytes = cudriver_layout_simplify(&plan->layout, true);
    if (plan->bytes == 0) {
        plan->kind = CUDRIVER_COPY_EMPTY;
    } else if (!plan->dst.on_device && !plan->src.on_device) {
        plan->kind = CUDRIVER_COPY_HOST;
    } else if (same) {
        plan->kind = CUDRIVER_COPY_SAME;
    } else if (plan->dst.on_device && plan->src.on_device) {
        plan_device(plan);
    } else {
        plan_host(plan);
    }
}

bool cudriver_copy_plan_move(struct cudriver_copy_plan *plan, CUcontext context)
{
    bool permuted =
        plan->kind == CUDRIVER_COPY_STAGED && plan->staged.path == CUDRIVER_STAGING_PERMUTED;

    if (context != plan->context &&
        ((plan->kind == CUDRIVER_COPY_KERNEL &&
          !(cudriver_copy_is_usable(plan->dst.device, context) &&
            cudriver_copy_is_usable(plan->src.device, context))) ||
         (permuted && !cudriver_copy_is_usable(plan->device, context)))) {
        return false;
    }
    plan->context = context;
    return true;
}

/* How a staged copy travels: the order of its bytes, its threads, and its parts. No CUDA. See
 * private.h. */
#include "private.h"

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

bool staging_host_repeats(const struct cudriver_layout *walk, bool up)
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
static void plan_split(struct staging_plan *plan, const struct cudriver_layout *layout)
{
    plan->walk = plan->spread = *layout;
    cudriver_layout_pack(&plan->walk, plan->up);
    cudriver_layout_pack(&plan->spread, !plan->up);
}

/* The same in the host's order. Dimensions that the host repeats do not travel: the kernel has
 * them, before the others. */
static void plan_permute(struct staging_plan *plan, const struct cudriver_layout *by_host)
{
    struct cudriver_layout travels = *by_host, *spread = &plan->spread;
    int kept = by_host->ndim, repeats;

    while (plan->up && kept > 0 && by_host->src_strides[kept - 1] == 0) { /* the last: sorted */
        kept--;
    }
    travels.ndim = kept;
    plan_split(plan, &travels);
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
    return staging_host_repeats(by_host, up) || !host_in_order(by_device, up) ||
           (!dense && run < TUNING_GOOD_ROW);
}

/* Chooses the order in which strided memory travels: the device's, or the host's, if `kernels` may
 * be used and one is to put the bytes in place: then the path is chosen, too. */
static bool plan_strided(struct staging_plan *plan, const struct cudriver_copy_plan *copy,
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
    plan_split(plan, &by_device);
    if (kernels && staging_context_has_kernels(copy->context) &&
        staging_kernels_unit(&by_host, up ? copy->device : 0, up ? 0 : copy->device) >= 0 &&
        should_permute(copy, &by_host, &by_device)) {
        plan_permute(plan, &by_host);
        return true;
    }
    return false;
}

/* Chooses the path. */
static void plan_path(struct staging_plan *plan, const struct cudriver_copy_plan *copy,
                      bool kernels)
{
    plan->repeats = 0;
    plan->runs = NULL;
    plan->files = NULL;
    if (copy->layout.ndim == 0) {
        plan_split(plan, &copy->layout);
    } else if (plan_strided(plan, copy, kernels)) {
        return;
    }
    if (copy->bytes < plan->crossover) {
        plan->path = CUDRIVER_STAGING_SMALL;
    } else if (plan->spread.ndim > 0) {
        plan->path = CUDRIVER_STAGING_ROWS;
    } else {
        plan->path = plan->walk.ndim == 0 ? CUDRIVER_STAGING_DENSE : CUDRIVER_STAGING_PACKED;
    }
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

    staging_settings_get(&settings);
    plan->up = copy->dst.on_device;
    plan->most = settings.threads;
    plan->crossover = settings.crossover;
    if (!blocking) {
        plan->crossover /= 2;
    }
    plan_path(plan, copy, kernels);
    if (plan->path != CUDRIVER_STAGING_SMALL) {
        plan_parts(plan, copy->bytes, blocking, &settings);
        return;
    }
    plan->chunk = 0;
    plan->blocks = plan->threads = 1;
    plan->streaming = false;
}

bool staging_must_do_without(CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_NOT_SUPPORTED ||
           result == CUDA_ERROR_OPERATING_SYSTEM /* the system refused the driver something */;
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

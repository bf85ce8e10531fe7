/* How a staged copy travels: the order of its bytes, its chunks and threads. No CUDA. See
 * private.h. */
#include "private.h"

#include <string.h>

const char *cudriver_staging_path_name(enum cudriver_staging_path path)
{
    static const char *const names[] = {
        [CUDRIVER_STAGING_EMPTY] = "empty",
        [CUDRIVER_STAGING_DRIVER] = "driver",
        [CUDRIVER_STAGING_ONE_SLOT] = "one slot",
        [CUDRIVER_STAGING_DENSE] = "staged",
        [CUDRIVER_STAGING_PACKED] = "staged, packed",
        [CUDRIVER_STAGING_ROWS] = "staged, rows",
        [CUDRIVER_STAGING_PERMUTED] = "staged, permuted",
    };

    return (size_t)path < sizeof names / sizeof names[0] ? names[path] : "unknown";
}

static const int64_t *host_strides(const struct cudriver_layout *layout, bool up)
{
    return up ? layout->src_strides : layout->dst_strides;
}

static const int64_t *device_strides(const struct cudriver_layout *layout, bool up)
{
    return up ? layout->dst_strides : layout->src_strides;
}

static int64_t magnitude(int64_t value)
{
    return value < 0 ? -value : value;
}

static bool is_dense(const struct cudriver_layout *layout, const int64_t *strides)
{
    int64_t stride = (int64_t)layout->itemsize;

    for (int d = layout->ndim - 1; d >= 0; d--) {
        if (strides[d] != stride) {
            return false;
        }
        stride = (int64_t)((uint64_t)stride * (uint64_t)layout->shape[d]);
    }
    return true;
}

/* Flips dimensions so that the device's side never runs backwards: driver copies cannot do that. */
static void device_forward(struct cudriver_layout *layout, bool up)
{
    for (int d = 0; d < layout->ndim; d++) {
        if (device_strides(layout, up)[d] < 0) {
            int64_t last = layout->shape[d] - 1;
            layout->dst_offset += last * layout->dst_strides[d];
            layout->src_offset += last * layout->src_strides[d];
            layout->dst_strides[d] = -layout->dst_strides[d];
            layout->src_strides[d] = -layout->src_strides[d];
        }
    }
}

/* Bytes of a run on the device, in the order of the walk. */
static size_t device_run(const struct cudriver_layout *walk, bool up)
{
    size_t run = walk->itemsize;

    for (int d = walk->ndim - 1; d >= 0 && device_strides(walk, up)[d] == (int64_t)run; d--) {
        run *= (size_t)walk->shape[d];
    }
    return run;
}

/* Whether a walk visits the host's memory in order, or in runs long enough. */
static bool host_in_order(const struct cudriver_layout *walk, bool up)
{
    const int64_t *strides = host_strides(walk, up);

    if (walk->itemsize >= TUNING_GOOD_RUN) {
        return true;
    }
    for (int d = 1; d < walk->ndim; d++) {
        if (magnitude(strides[d]) > magnitude(strides[d - 1])) {
            return false;
        }
    }
    return true;
}

static bool host_repeats(const struct cudriver_layout *walk, bool up)
{
    for (int d = 0; d < walk->ndim; d++) {
        if (host_strides(walk, up)[d] == 0) {
            return up;
        }
    }
    return false;
}

/*
 * Splits a walk in the host's order into plan->walk, which travels (without the dimensions that the
 * host repeats, the device's side dense), and plan->spread, which the kernel does.
 */
static void plan_permute(struct staging_plan *plan, const struct cudriver_layout *by_host)
{
    bool up = plan->up;
    struct cudriver_layout *walk = &plan->walk, *spread = &plan->spread;
    const int64_t *host = host_strides(by_host, up), *device = device_strides(by_host, up);
    int kept = 0, repeats = 0;

    memset(walk, 0, sizeof *walk);
    memset(spread, 0, sizeof *spread);
    walk->itemsize = spread->itemsize = by_host->itemsize;
    walk->dst_offset = up ? 0 : by_host->dst_offset;
    walk->src_offset = up ? by_host->src_offset : 0;
    spread->dst_offset = up ? by_host->dst_offset : 0;
    spread->src_offset = up ? 0 : by_host->src_offset;
    for (int d = 0; d < by_host->ndim; d++) {
        repeats += up && host[d] == 0;
    }
    plan->repeats = repeats;
    spread->ndim = by_host->ndim;
    walk->ndim = by_host->ndim - repeats;
    repeats = 0;
    for (int d = 0; d < by_host->ndim; d++) {
        bool repeat = up && host[d] == 0;
        int to = repeat ? repeats++ : plan->repeats + kept;
        spread->shape[to] = by_host->shape[d];
        *(up ? &spread->dst_strides[to] : &spread->src_strides[to]) = device[d];
        if (!repeat) {
            walk->shape[kept] = by_host->shape[d];
            *(up ? &walk->src_strides[kept] : &walk->dst_strides[kept]) = host[d];
            kept++;
        }
    }
    int64_t stride = (int64_t)walk->itemsize;
    for (int d = walk->ndim - 1; d >= 0; d--) {
        *(up ? &walk->dst_strides[d] : &walk->src_strides[d]) = stride;
        *(up ? &spread->src_strides[plan->repeats + d] : &spread->dst_strides[plan->repeats + d]) =
            stride;
        stride *= walk->shape[d];
    }
    plan->path = CUDRIVER_STAGING_PERMUTED;
    plan->host_dense = is_dense(walk, host_strides(walk, up));
    plan->device_dense = true;
}

size_t staging_ring_slot(size_t bytes, size_t most)
{
    /* The slots together hold all of a copy that is not large: then neither the stream nor a thread
     * waits for a slot. */
    size_t room = bytes / STAGING_RING_SLOTS;

    while (most > TUNING_SLOT_LEAST && most / 2 >= room) {
        most /= 2;
    }
    return most;
}

size_t staging_alone_chunk(size_t bytes)
{
    return bytes < TUNING_ALONE_CHUNK ? bytes : TUNING_ALONE_CHUNK;
}

/* How many threads should work on a copy of `bytes`, the caller's included. Long runs move like
 * dense memory. */
static int threads_wanted(const struct staging_plan *plan, size_t bytes,
                          const struct staging_settings *settings)
{
    if (!plan->host_dense && plan->walk.itemsize < TUNING_LONG_RUN) {
        return settings->threads > settings->packers ? settings->threads : settings->packers;
    }
    if (bytes <= TUNING_MEDIUM_BYTES && settings->packers > settings->medium) {
        return settings->medium;
    }
    if (bytes <= TUNING_LARGE_BYTES && settings->packers > settings->medium * 3 / 2) {
        return settings->medium * 3 / 2;
    }
    return settings->packers;
}

/* Whether a kernel should put the bytes in place. `run`: bytes of a run on the device. */
static bool should_permute(const struct staging_plan *plan, const struct cudriver_layout *by_host,
                           const struct cudriver_layout *by_device, size_t run, bool small)
{
    if (small) {
        return run < TUNING_GOOD_ROW / 8 && plan->bytes > TUNING_PERMUTED_LEAST;
    }
    return host_repeats(by_host, plan->up) || !host_in_order(by_device, plan->up) ||
           (!plan->device_dense && run < TUNING_GOOD_ROW);
}

/* Chooses the walk of strided memory. `kernels`: the kernel may be used. Whether it is to put the
 * bytes in place: then the path is chosen, too. */
static bool plan_strided(struct staging_plan *plan, const struct cudriver_copy_plan *copy,
                         bool kernels, const struct staging_settings *settings)
{
    bool up = plan->up, small = plan->bytes < plan->crossover;
    struct cudriver_layout by_host = copy->layout, by_device;

    device_forward(&by_host, up); /* simplifying turns no side backwards */
    by_device = by_host;
    cudriver_layout_simplify(&by_host, !up);
    cudriver_layout_simplify(&by_device, up);
    plan->host_dense = is_dense(&by_device, host_strides(&by_device, up));
    plan->device_dense = is_dense(&by_device, device_strides(&by_device, up));
    if (kernels && by_host.itemsize <= settings->slot &&
        staging_kernels_unit(&by_host, up ? copy->device : 0, up ? 0 : copy->device) >= 0 &&
        should_permute(plan, &by_host, &by_device, device_run(&by_device, up), small)) {
        plan_permute(plan, &by_host);
        return true;
    }
    plan->walk = by_device;
    return false;
}

/* Chooses the path, and with it the walk. */
static void plan_path(struct staging_plan *plan, const struct cudriver_copy_plan *copy,
                      bool blocking, bool kernels, const struct staging_settings *settings)
{
    bool small = plan->bytes < plan->crossover;

    if (copy->layout.ndim == 0) { /* one run */
        plan->walk = copy->layout;
        plan->host_dense = plan->device_dense = true;
    } else if (plan_strided(plan, copy, kernels, settings)) {
        return;
    }
    if (small) {
        plan->path = plan->host_dense && plan->device_dense && blocking ? CUDRIVER_STAGING_DRIVER
                                                                        : CUDRIVER_STAGING_ONE_SLOT;
    } else if (!plan->device_dense) {
        plan->path = CUDRIVER_STAGING_ROWS;
    } else {
        plan->path = plan->host_dense ? CUDRIVER_STAGING_DENSE : CUDRIVER_STAGING_PACKED;
    }
}

/* The slots and threads of a copy through a ring. */
static void plan_ring(struct staging_plan *plan, bool blocking,
                      const struct staging_settings *settings)
{
    size_t travels = cudriver_layout_bytes(&plan->walk); /* less if the host's side repeats */

    plan->slot_most = plan->up && blocking ? settings->slot_up : settings->slot;
    if (plan->up && plan->path == CUDRIVER_STAGING_PERMUTED) {
        plan->slot_most = settings->slot / 2;
    }
    plan->chunk = staging_ring_slot(travels, plan->slot_most);
    plan->threads = threads_wanted(plan, travels, settings);
    plan->streaming = plan->up ? plan->bytes <= settings->streaming : settings->streaming > 0;
    /* Asynchronous copies cycle through many slots, so a slot is rarely cached; bypass the cache.
     */
    plan->streaming |= !blocking && settings->streaming > 0 &&
                       plan->bytes <= TUNING_STREAMING_LAPS * STAGING_RING_SLOTS * settings->slot;
}

void staging_plan_make(struct cudriver_copy_plan *copy, bool blocking, bool kernels)
{
    struct staging_plan *plan = &copy->staged;
    struct staging_settings settings;
    bool up = copy->to_device, usable;
    bool counters = staging_context_counts(copy->context, &usable);

    staging_settings_get(&settings);
    plan->up = up;
    plan->repeats = 0;
    plan->chunk = 0;
    plan->threads = 1;
    plan->streaming = plan->alone = false;
    plan->bytes = copy->bytes;
    plan->crossover = up ? settings.crossover_up : settings.crossover_down;
    if (!blocking) {
        plan->crossover /= 2; /* below it a host function packs, in one thread */
    }
    if (plan->bytes == 0) {
        plan->path = CUDRIVER_STAGING_EMPTY;
        plan->walk.ndim = 0;
        return;
    }
    plan_path(plan, copy, blocking, kernels && usable, &settings);
    if (!staging_is_staged(plan->path)) {
        return;
    }
    if (plan->path == CUDRIVER_STAGING_DENSE && blocking && settings.packers == 1) {
        plan->path = CUDRIVER_STAGING_DRIVER; /* no other thread can pack */
    } else if (!counters && !blocking) {      /* the stream cannot wait for packing threads */
        staging_plan_make(copy, true, kernels);
        plan->alone = true;
    } else if (!counters) {
        bool dense = plan->path == CUDRIVER_STAGING_DENSE;
        plan->alone = true;
        plan->path = dense ? CUDRIVER_STAGING_DRIVER : CUDRIVER_STAGING_ONE_SLOT;
        plan->chunk = dense ? 0 : staging_alone_chunk(plan->bytes);
    } else {
        plan_ring(plan, blocking, &settings);
    }
}

bool staging_must_do_without(enum cudriver_staging_path path, CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY || result == STAGING_NO_THREADS ||
           result == CUDA_ERROR_OPERATING_SYSTEM /* the system refused the driver something */ ||
           (result == CUDA_ERROR_NOT_SUPPORTED && staging_is_staged(path));
}

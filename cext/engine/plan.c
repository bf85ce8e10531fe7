/* How a copy is done: one plan, which explain_copy tells and execute.c follows. See engine.h. */
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

/* 2D or 3D if at most TUNING_MOST_CALLS driver calls copy the layout; else BOUNCED. *count: how
 * many calls. */
static enum cudriver_copy_kind shape_kind(const struct cudriver_layout *layout, int64_t *count)
{
    int dims = staging_rows_dims(layout);

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
    const char *host = plan->host;
    int64_t calls, low, high;
    enum cudriver_copy_kind kind;
    size_t span;

    plan->word = plan->fixed ? fill_word(plan) : 0;
    if (plan->word > 0) {
        plan->kind = CUDRIVER_COPY_FILL;
        return;
    }
    cudriver_layout_extent(&plan->layout, !plan->dst.on_device, &low, &high);
    span = (size_t)(high - low);
    plan->one_run = cudriver_hostmem_registered(host + low, span) == span;
    if (plan->layout.ndim == 0 && plan->one_run) {
        plan->page_locked = true;
        plan->kind = CUDRIVER_COPY_DIRECT;
    } else if (plan->layout.ndim == 0) {
        plan_dense(plan, host + low, host + high);
    } else {
        kind = shape_kind(&plan->layout, &calls);
        plan->page_locked =
            plan->one_run || cudriver_hostmem_is_page_locked(host + low, host + high);
        plan->kind = kind != CUDRIVER_COPY_BOUNCED && plan->page_locked &&
                             !staging_host_repeats(&plan->layout, plan->dst.on_device) &&
                             plan->layout.itemsize >= TUNING_SHORTEST_ROW &&
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
    CUdeviceptr dst = plan->dst.device, src = plan->src.device;
    int64_t dst_low, dst_high, src_low, src_high;

    cudriver_layout_extent(&plan->layout, true, &dst_low, &dst_high);
    cudriver_layout_extent(&plan->layout, false, &src_low, &src_high);
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

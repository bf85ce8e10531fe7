/* Staged copies by the calling thread alone, through one slot. See private.h. */
#include "private.h"

#include <stdlib.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "hostmem/hostmem.h"

/* Called between two parts: SUCCESS, or why the copy ends here. *asked: ns, when `interrupted` was
 * last called or the copy began. */
static CUresult may_go_on(const struct cudriver_copy_call *call, unsigned long long *asked)
{
    bool stopping;

    staging_lock();
    stopping = staging.stopping;
    staging_unlock();
    if (stopping) {
        return CUDA_ERROR_DEINITIALIZED;
    }
    if (call->interrupted == NULL || platform_nanoseconds() - *asked < STAGING_POLL_NS) {
        return CUDA_SUCCESS;
    }
    if (call->interrupted(call->data)) {
        return CUDRIVER_STAGING_INTERRUPTED;
    }
    *asked = platform_nanoseconds();
    return CUDA_SUCCESS;
}

/* Copies a part through `slot`. *waited: whether the device no longer uses it. */
static CUresult slot_part(const struct cudriver_copy_plan *copy, const struct staging_boxes *parts,
                          size_t part, CUstream stream, char *slot, CUresult *waited)
{
    const struct staging_plan *plan = &copy->staged;
    const struct cudriver_copy_end block = {.host = slot},
                                   device = {.on_device = true, .device = copy->device};
    struct cudriver_layout layout;
    const char *function;
    size_t begin, end;
    CUresult result;

    staging_box_range(parts, part, &begin, &end);
    staging_box_layout(plan, parts, part, &layout);
    if (plan->up) {
        cudriver_layout_copy_part(&plan->walk, slot, true, copy->host, false, begin, end);
        result = staging_rows_issue(&layout, &device, &block, stream, &function);
    } else {
        result = staging_rows_issue(&layout, &block, &device, stream, &function);
    }
    *waited = cuda.cuStreamSynchronize(stream); /* after a failure earlier rows may be under way */
    result = result != CUDA_SUCCESS ? result : *waited;
    if (!plan->up && result == CUDA_SUCCESS) {
        cudriver_layout_copy_part(&plan->walk, copy->host, false, slot, true, begin, end);
    }
    return result;
}

CUresult staging_slot_copy(const struct cudriver_copy_plan *copy,
                           const struct cudriver_copy_call *call)
{
    const struct staging_boxes parts = staging_boxes_make(&copy->staged, TUNING_ALONE);
    unsigned long long asked = parts.count > 1 ? platform_nanoseconds() : 0;
    CUresult result = CUDA_SUCCESS, waited = CUDA_SUCCESS;
    void *locked, *slot;

    slot =
        staging_slot_get(parts.largest, &locked) == CUDA_SUCCESS ? locked : malloc(parts.largest);
    if (slot == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t part = 0; part < parts.count && result == CUDA_SUCCESS; part++) {
        if (part > 0) {
            result = may_go_on(call, &asked);
        }
        if (result == CUDA_SUCCESS) {
            result = slot_part(copy, &parts, part, call->stream, slot, &waited);
        }
    }
    if (waited != CUDA_SUCCESS) {
        return result; /* given up: the device may still use the slot */
    }
    if (locked != NULL) {
        cudriver_hostmem_free(locked);
    } else {
        free(slot);
    }
    return result;
}

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

/* Copies bytes [begin, end) of the walk through `slot`. *waited: whether the device no longer uses
 * it. */
static CUresult slot_part(const struct cudriver_copy_plan *copy, CUstream stream, char *slot,
                          size_t begin, size_t end, CUresult *waited)
{
    const struct staging_plan *plan = &copy->staged;
    const struct cudriver_layout *walk = &plan->walk;
    struct cudriver_layout rows;
    CUresult result;

    if (plan->up) {
        cudriver_layout_copy_part(walk, slot, true, copy->host, false, begin, end);
    }
    staging_rows_make(walk, plan->up, &rows);
    result = staging_device_copy(&rows, plan->up, copy->device, slot, begin, end, stream);
    *waited = cuda.cuStreamSynchronize(stream); /* after a failure earlier rows may be under way */
    result = result != CUDA_SUCCESS ? result : *waited;
    if (!plan->up && result == CUDA_SUCCESS) {
        cudriver_layout_copy_part(walk, copy->host, false, slot, true, begin, end);
    }
    return result;
}

CUresult staging_slot_copy(const struct cudriver_copy_plan *copy,
                           const struct cudriver_copy_call *call)
{
    size_t bytes = cudriver_layout_bytes(&copy->staged.walk);
    size_t part = bytes < TUNING_ALONE ? bytes : TUNING_ALONE;
    unsigned long long asked = part < bytes ? platform_nanoseconds() : 0;
    CUresult result = CUDA_SUCCESS, waited = CUDA_SUCCESS;
    void *locked, *slot;

    slot = staging_slot_get(part, &locked) == CUDA_SUCCESS ? locked : malloc(part);
    if (slot == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t at = 0; at < bytes && result == CUDA_SUCCESS; at += part) {
        if (at > 0) {
            result = may_go_on(call, &asked);
        }
        if (result == CUDA_SUCCESS) {
            result = slot_part(copy, call->stream, slot, at, bytes - at < part ? bytes : at + part,
                               &waited);
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

/* Asynchronous copies that are staged, in stream order. See engine.h. */
#include "private.h"

static CUresult async_copy(const struct cudriver_staging_job *job, struct staging_place *place,
                           const struct staging_plan *plan, struct cudriver_staging_transfer **made)
{
    static const struct staging_plan nothing = {.path = CUDRIVER_STAGING_EMPTY};
    struct staging_plan again;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (!plan->alone) {
        result = staging_transfer_make(job, place, plan, false, made);
    }
    if (plan->path == CUDRIVER_STAGING_PERMUTED &&
        (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_OUT_OF_MEMORY)) {
        staging_plan_make(job, false, false, &again);
        plan = &again;
        if (!plan->alone) {
            result = staging_transfer_make(job, place, plan, false, made);
        }
    }
    if (plan->alone || staging_must_do_without(plan->path, result)) {
        /* Blocking, then an empty transfer. */
        staging_plan_make(job, true, true, &again);
        result = staging_copy_now(job, place, &again);
        if (result == CUDA_SUCCESS) {
            result = staging_transfer_make(job, place, &nothing, false, made);
        }
    }
    return result;
}

CUresult cudriver_staging_copy_async(const struct cudriver_staging_job *job,
                                     const struct staging_plan *plan,
                                     struct cudriver_staging_transfer **made)
{
    struct staging_place *place;
    CUresult result = staging_place_enter(job->context, &place);

    if (result == CUDA_SUCCESS) {
        result = async_copy(job, place, plan, made);
        staging_place_leave(place);
    }
    return result;
}

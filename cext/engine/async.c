/* Asynchronous copies, in stream order. See engine.h. */
#include "private.h"

/* Plans and starts a copy; may use the permuting kernel if `kernels`. *plan gets what was tried. */
static CUresult async_attempt(const struct cudriver_staging_job *job, struct staging_place *place,
                              bool kernels, struct staging_plan *plan,
                              struct cudriver_staging_transfer **made)
{
    struct staging_settings settings;
    bool usable, counters = staging_place_counts(place, &usable);

    staging_settings_get(&settings);
    settings.crossover_up /= 2; /* below it a host function packs, in one thread */
    settings.crossover_down /= 2;
    staging_plan_make(job->layout, job->to_device, job->device, &settings, kernels && usable, plan);
    /* Without stream memory operations the stream cannot wait for packing threads. */
    return staging_is_staged(plan->path) && !counters
               ? CUDA_ERROR_NOT_SUPPORTED
               : staging_transfer_make(job, place, plan, false, made);
}

static CUresult async_copy(const struct cudriver_staging_job *job, struct staging_place *place,
                           struct cudriver_staging_transfer **made)
{
    struct staging_plan plan;
    CUresult result = async_attempt(job, place, true, &plan, made);

    if (plan.path == CUDRIVER_STAGING_PERMUTED &&
        (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_OUT_OF_MEMORY)) {
        result = async_attempt(job, place, false, &plan, made);
    }
    if (staging_must_do_without(plan.path, result)) { /* blocking, then an empty transfer */
        result = staging_copy_now(job, place);
        plan.path = CUDRIVER_STAGING_EMPTY;
        if (result == CUDA_SUCCESS) {
            result = staging_transfer_make(job, place, &plan, false, made);
        }
    }
    return result;
}

CUresult cudriver_staging_copy_async(const struct cudriver_staging_job *job,
                                     struct cudriver_staging_transfer **made)
{
    struct staging_place *place;
    CUresult result = staging_place_enter(job->context, &place);

    if (result == CUDA_SUCCESS) {
        result = async_copy(job, place, made);
        staging_place_leave(place);
    }
    return result;
}

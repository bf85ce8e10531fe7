/* Permuted copies: their boxes, and the kernel of a place. See private.h. */
#include "private.h"

#include "driver/driver.h"

struct staging_boxes staging_boxes_make(const struct staging_plan *plan, size_t most)
{
    const struct cudriver_layout *walk = &plan->walk;
    size_t below = walk->itemsize;
    struct staging_boxes boxes = {
        .split = -1, .rows = 1, .per_split = 1, .count = 1, .row_bytes = below};

    for (int d = walk->ndim - 1; d >= 0; d--) {
        boxes.split = d;
        boxes.row_bytes = below;
        boxes.rows = walk->shape[d];
        if (below * (size_t)walk->shape[d] > most) {
            int64_t rows = below >= most ? 1 : (int64_t)(most / below);
            int64_t parts = (walk->shape[d] + rows - 1) / rows;
            boxes.rows = (walk->shape[d] + parts - 1) / parts;
            boxes.per_split = (size_t)((walk->shape[d] + boxes.rows - 1) / boxes.rows);
            break;
        }
        below *= (size_t)walk->shape[d];
    }
    boxes.largest = boxes.row_bytes * (size_t)boxes.rows;
    boxes.count = boxes.per_split;
    for (int d = 0; d < boxes.split; d++) {
        boxes.count *= (size_t)walk->shape[d];
    }
    return boxes;
}

void staging_box_find(const struct staging_plan *plan, const struct staging_boxes *boxes,
                      size_t index, size_t *begin, size_t *end, struct cudriver_layout *spread)
{
    const struct cudriver_layout *walk = &plan->walk;
    int64_t *device_offset = plan->up ? &spread->dst_offset : &spread->src_offset;

    *spread = plan->spread;
    if (boxes->split < 0) {
        *begin = 0;
        *end = walk->itemsize;
        return;
    }
    const int64_t *device = (plan->up ? spread->dst_strides : spread->src_strides) + plan->repeats;
    int split = boxes->split;
    size_t above = index / boxes->per_split;
    int64_t from = (int64_t)(index % boxes->per_split) * boxes->rows;
    int64_t rows =
        walk->shape[split] - from < boxes->rows ? walk->shape[split] - from : boxes->rows;
    size_t all = boxes->row_bytes * (size_t)walk->shape[split];

    *begin = above * all + (size_t)from * boxes->row_bytes;
    *end = *begin + (size_t)rows * boxes->row_bytes;
    *device_offset += from * device[split];
    for (int d = split - 1; d >= 0; d--) {
        *device_offset += (int64_t)(above % (size_t)walk->shape[d]) * device[d];
        above /= (size_t)walk->shape[d];
    }
    /* Drop the dimensions outside the split one, and shorten that. */
    int to = plan->repeats;
    for (int d = plan->repeats + split; d < plan->spread.ndim; d++, to++) {
        spread->shape[to] = spread->shape[d];
        spread->dst_strides[to] = spread->dst_strides[d];
        spread->src_strides[to] = spread->src_strides[d];
    }
    spread->ndim = to;
    spread->shape[plan->repeats] = rows;
}

/* Errors after which the kernel is not tried again in this context. */
static bool is_final(CUresult result)
{
    return result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_IMAGE ||
           result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
           result == CUDA_ERROR_NOT_FOUND ||
           result == (CUresult)209 /* CUDA_ERROR_NO_BINARY_FOR_GPU */ ||
           result == (CUresult)221 /* CUDA_ERROR_JIT_COMPILER_NOT_FOUND */;
}

CUresult staging_place_kernel(struct staging_place *place, int unit,
                              struct staging_kernels **kernels)
{
    struct staging_kernels *loaded;
    CUresult result;
    bool none;

    staging_lock();
    *kernels = place->kernels[unit];
    none = place->no_kernels;
    staging_unlock();
    if (none || *kernels != NULL) {
        return none ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    }
    result = staging_kernels_load(unit, &loaded);
    if (result != CUDA_SUCCESS) {
        staging_lock();
        place->no_kernels |= is_final(result);
        staging_unlock();
        return is_final(result) ? CUDA_ERROR_NOT_SUPPORTED : result;
    }
    staging_lock();
    if (place->kernels[unit] == NULL) {
        place->kernels[unit] = loaded;
        loaded = NULL;
    }
    *kernels = place->kernels[unit];
    staging_unlock();
    staging_kernels_unload(loaded); /* if another thread was faster */
    return CUDA_SUCCESS;
}

CUresult staging_place_kernels(struct staging_place *place, const struct staging_plan *plan,
                               CUdeviceptr device, struct staging_kernels **kernels)
{
    CUdeviceptr dst = plan->up ? device : 0, src = plan->up ? 0 : device;

    return staging_place_kernel(place, staging_kernels_unit(&plan->spread, dst, src), kernels);
}

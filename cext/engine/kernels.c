/* The kernels: loading and launching. See private.h, and kernels_ptx.py for the kernels. */
#include "private.h"

#include <stdio.h>
#include <stdlib.h>

#include "driver/driver.h"
#include "kernels_ptx.h"

#define DIMS STAGING_KERNEL_DIMS
#define SIZES STAGING_KERNEL_UNITS
#define TILE STAGING_KERNEL_TILE
#define TILE_ROWS STAGING_KERNEL_TILE_ROWS
#define THREADS 256
#define BLOCKS_MOST 4096 /* of permute: enough for every GPU, and threads have several items */

/* The loaded module. */
struct staging_kernels {
    CUmodule module;
    CUfunction permute[SIZES], transpose[SIZES]; /* by log2 of the item size */
    CUfunction runs;
};

/* On all but old platforms it is the host's address. The last context in which that was so is
 * remembered; others ask the driver. */
CUdeviceptr staging_device_address(CUcontext context, void *memory)
{
    static _Atomic uintptr_t alike;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)memory;

    if (atomic_load_explicit(&alike, memory_order_relaxed) == (uintptr_t)context) {
        return address;
    }
    if (cuda.cuMemHostGetDevicePointer_v2(&address, memory, 0) != CUDA_SUCCESS) {
        return 0;
    }
    if (address == (CUdeviceptr)(uintptr_t)memory) {
        atomic_store_explicit(&alike, (uintptr_t)context, memory_order_relaxed);
    }
    return address;
}

/* Loads the module into the current context. The caller owns *made. */
static CUresult kernels_load(struct staging_kernels **made)
{
    struct staging_kernels *kernels = calloc(1, sizeof *kernels);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    char name[32];

    if (kernels != NULL) {
        result = cuda.cuModuleLoadDataEx(&kernels->module, kernels_ptx, 0, NULL, NULL);
        kernels->module = result == CUDA_SUCCESS ? kernels->module : NULL;
    }
    if (result == CUDA_SUCCESS) {
        result = cuda.cuModuleGetFunction(&kernels->runs, kernels->module, "cudriver_runs");
    }
    for (int i = 0; i < 2 * SIZES && result == CUDA_SUCCESS; i++) {
        CUfunction *entry = i % 2 ? &kernels->transpose[i / 2] : &kernels->permute[i / 2];
        snprintf(name, sizeof name, "cudriver_%s_%d", i % 2 ? "transpose" : "permute", 1 << i / 2);
        result = cuda.cuModuleGetFunction(entry, kernels->module, name);
    }
    if (result != CUDA_SUCCESS) {
        staging_kernels_unload(kernels);
        kernels = NULL;
    }
    *made = kernels;
    return result;
}

void staging_kernels_unload(struct staging_kernels *kernels)
{
    if (kernels != NULL && kernels->module != NULL) {
        cuda.cuModuleUnload(kernels->module);
    }
    free(kernels);
}

/* ---- launching ---- */

/* Whether a layout's items have to be split for a kernel. */
static bool is_split(const struct cudriver_layout *layout, int unit)
{
    return layout->itemsize != (size_t)1 << unit;
}

int staging_kernels_unit(const struct cudriver_layout *layout, CUdeviceptr dst, CUdeviceptr src)
{
    uint64_t bits = layout->itemsize | (uint64_t)1 << (SIZES - 1);
    int unit = 0;

    bits |= (dst + (CUdeviceptr)layout->dst_offset) | (src + (CUdeviceptr)layout->src_offset);
    for (int d = 0; d < layout->ndim; d++) {
        bits |= (uint64_t)layout->dst_strides[d] | (uint64_t)layout->src_strides[d];
    }
    while ((bits >> unit & 1) == 0) {
        unit++;
    }
    return layout->ndim + is_split(layout, unit) > DIMS ? -1 : unit;
}

/* The dimension in which the source has its smallest stride that is not 0; -1: none. */
static int source_inner(const struct cudriver_layout *units)
{
    int best = -1;

    for (int d = 0; d < units->ndim; d++) {
        if (units->src_strides[d] != 0 &&
            (best < 0 || cudriver_magnitude(units->src_strides[d]) <
                             cudriver_magnitude(units->src_strides[best]))) {
            best = d;
        }
    }
    return best;
}

bool staging_context_has_kernels(CUcontext context)
{
    bool has = true;

    staging_lock();
    for (struct staging_place *place = staging.places; place != NULL; place = place->next) {
        has &= place->context != context || !place->no_kernels;
    }
    staging_unlock();
    return has;
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

CUresult staging_place_kernels(struct staging_place *place, struct staging_kernels **kernels)
{
    struct staging_kernels *loaded;
    CUresult result;

    if (place->no_kernels) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    staging_lock();
    *kernels = place->kernels;
    staging_unlock();
    if (*kernels != NULL) {
        return CUDA_SUCCESS;
    }
    result = kernels_load(&loaded);
    if (result != CUDA_SUCCESS) {
        place->no_kernels |= is_final(result);
        return is_final(result) ? CUDA_ERROR_NOT_SUPPORTED : result;
    }
    staging_lock();
    if (place->kernels == NULL) {
        place->kernels = loaded;
        loaded = NULL;
    }
    *kernels = place->kernels;
    staging_unlock();
    staging_kernels_unload(loaded); /* if another thread was faster */
    return CUDA_SUCCESS;
}

CUresult staging_runs_launch(const struct staging_kernels *kernels, CUdeviceptr table,
                             uint64_t count, CUstream stream)
{
    void *parameters[] = {&table, &count};
    uint64_t blocks = (count + 1) / 2;

    return cuda.cuLaunchKernel(kernels->runs,
                               (unsigned)(blocks < TUNING_RUN_BLOCKS ? blocks : TUNING_RUN_BLOCKS),
                               1, 1, THREADS, 1, 1, 0, stream, parameters, NULL);
}

/* Launches a kernel for items of so many bytes. The layout is sorted by the destination. */
static CUresult units_launch(const struct staging_kernels *kernels, int unit,
                             const struct cudriver_layout *units, CUdeviceptr dst, CUdeviceptr src,
                             CUstream stream)
{
    uint64_t values[3 + 3 * DIMS];
    void *parameters[3 + 3 * DIMS];
    uint64_t count = 1;
    int x = units->ndim - 1, y = source_inner(units);
    bool tiled = y >= 0 && x != y && units->shape[x] >= TILE / 2 && units->shape[y] >= TILE / 2;

    for (int to = DIMS - 1, next = x; to >= 0; to--) { /* the innermost is the last; then y */
        bool second = tiled && to == DIMS - 2;
        next -= tiled && !second && next == y;
        int d = second ? y : next;
        values[3 + to] = d >= 0 ? (uint64_t)units->shape[d] : 1;
        values[3 + DIMS + to] = d >= 0 ? (uint64_t)units->dst_strides[d] : 0;
        values[3 + 2 * DIMS + to] = d >= 0 ? (uint64_t)units->src_strides[d] : 0;
        count *= values[3 + to];
        next -= !second;
    }
    values[0] = dst + (CUdeviceptr)units->dst_offset;
    values[1] = src + (CUdeviceptr)units->src_offset;
    values[2] = count;
    for (int i = 0; i < 3 + 3 * DIMS; i++) {
        parameters[i] = &values[i];
    }
    if (tiled) {
        uint64_t nx = values[3 + DIMS - 1], ny = values[3 + DIMS - 2];
        uint64_t blocks = (nx + TILE - 1) / TILE * ((ny + TILE - 1) / TILE) * (count / nx / ny);
        if (blocks <= 0x7fffffff) {
            return cuda.cuLaunchKernel(kernels->transpose[unit], (unsigned)blocks, 1, 1, TILE,
                                       TILE_ROWS, 1, 0, stream, parameters, NULL);
        }
    }
    uint64_t blocks = (count + THREADS - 1) / THREADS;
    return cuda.cuLaunchKernel(kernels->permute[unit],
                               (unsigned)(blocks < BLOCKS_MOST ? blocks : BLOCKS_MOST), 1, 1,
                               THREADS, 1, 1, 0, stream, parameters, NULL);
}

CUresult staging_kernels_launch(const struct staging_kernels *kernels,
                                const struct cudriver_layout *layout, CUdeviceptr dst,
                                CUdeviceptr src, CUstream stream)
{
    struct cudriver_layout units = *layout;
    int unit;

    cudriver_layout_simplify(&units, true);
    unit = staging_kernels_unit(&units, dst, src);
    if (unit < 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (is_split(&units, unit)) {
        units.shape[units.ndim] = (int64_t)(units.itemsize >> unit);
        units.dst_strides[units.ndim] = units.src_strides[units.ndim] = (int64_t)1 << unit;
        units.ndim++;
    }
    return units_launch(kernels, unit, &units, dst, src, stream);
}

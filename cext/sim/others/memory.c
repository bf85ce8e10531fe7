/* Memory: allocations with a pitch, and the copies and fills that name no stream or direction. */
#include "others.h"

#define PITCH 512 /* rows begin at multiples of it, as on recent devices */

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                            unsigned int element)
{
    CUresult result = sim_enter(CALL_cuMemAllocPitch_v2);
    size_t row;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || pitch == NULL || width == 0 || height == 0 ||
        (element != 4 && element != 8 && element != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (width > SIZE_MAX - PITCH) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    row = (width + PITCH - 1) / PITCH * PITCH;
    if (height > SIZE_MAX / row) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = cuMemAlloc_v2(address, row * height);
    if (result == CUDA_SUCCESS) {
        *pitch = row;
    }
    return result;
}

SIM_MADE_OF(cuMemAllocHost_v2, (void **address, size_t bytes), cuMemHostAlloc(address, bytes, 0))

CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr address)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuMemGetAddressRange_v2, &context);
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    CUdeviceptr found;
    size_t size;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_unlock();
    result = cuPointerGetAttributes(2, names, (void *[]){&found, &size}, address);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (size == 0) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (start != NULL) {
        *start = found;
    }
    if (bytes != NULL) {
        *bytes = size;
    }
    return CUDA_SUCCESS;
}

/* ---- copies: the addresses say which way ---- */

static CUDA_MEMCPY2D one_row(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    return (CUDA_MEMCPY2D){
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = dst,
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = src,
        .WidthInBytes = bytes,
        .Height = 1,
    };
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    CUDA_MEMCPY2D row = one_row(dst, src, bytes);
    CUresult result = sim_enter(CALL_cuMemcpy);

    return result != CUDA_SUCCESS ? result : cuMemcpy2DUnaligned_v2(&row);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    CUDA_MEMCPY2D row = one_row(dst, src, bytes);
    CUresult result = sim_enter(CALL_cuMemcpyAsync);

    return result != CUDA_SUCCESS ? result : cuMemcpy2DAsync_v2(&row, stream);
}

SIM_MADE_OF(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), cuMemcpy2DUnaligned_v2(copy))

/* ---- fills: on the NULL stream; for page-locked host memory the call waits ---- */

static CUresult filled(CUresult result, CUdeviceptr dst)
{
    CUmemorytype type;
    CUpointer_attribute name = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;

    if (result == CUDA_SUCCESS &&
        cuPointerGetAttributes(1, &name, (void *[]){&type}, dst) == CUDA_SUCCESS &&
        type == CU_MEMORYTYPE_HOST) {
        return cuStreamSynchronize(NULL);
    }
    return result;
}

SIM_MADE_OF(cuMemsetD8_v2, (CUdeviceptr dst, unsigned char value, size_t count),
            filled(cuMemsetD8Async(dst, value, count, NULL), dst))
SIM_MADE_OF(cuMemsetD16_v2, (CUdeviceptr dst, unsigned short value, size_t count),
            filled(cuMemsetD16Async(dst, value, count, NULL), dst))
SIM_MADE_OF(cuMemsetD32_v2, (CUdeviceptr dst, unsigned int value, size_t count),
            filled(cuMemsetD32Async(dst, value, count, NULL), dst))
SIM_MADE_OF(cuMemsetD2D8_v2,
            (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height),
            filled(cuMemsetD2D8Async(dst, pitch, value, width, height, NULL), dst))
SIM_MADE_OF(cuMemsetD2D16_v2,
            (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height),
            filled(cuMemsetD2D16Async(dst, pitch, value, width, height, NULL), dst))
SIM_MADE_OF(cuMemsetD2D32_v2,
            (CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height),
            filled(cuMemsetD2D32Async(dst, pitch, value, width, height, NULL), dst))

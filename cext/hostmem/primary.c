/* The primary contexts in which memory is registered: see private.h. */
#include "driver/driver.h"
#include "private.h"

CUresult hostmem_primary_enter(CUdevice *device)
{
    CUcontext context;
    CUresult result = cuda.cuCtxGetDevice(device);

    if (result == CUDA_SUCCESS) {
        result = cuda.cuDevicePrimaryCtxRetain(&context, *device);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuda.cuCtxPushCurrent_v2(context);
    if (result != CUDA_SUCCESS) {
        hostmem_primary_release(*device);
    }
    return result;
}

void hostmem_primary_leave(void)
{
    CUcontext popped;

    cuda.cuCtxPopCurrent_v2(&popped);
}

void hostmem_primary_release(CUdevice device)
{
    if (!cudriver_driver_is_forked()) {
        cuda.cuDevicePrimaryCtxRelease_v2(device);
    }
}

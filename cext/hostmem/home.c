/* The primary contexts in which memory is registered: see private.h. */
#include "driver/driver.h"
#include "private.h"

CUresult hostmem_home_enter(CUdevice *home)
{
    CUcontext context;
    CUresult result = cuda.cuCtxGetDevice(home);

    if (result == CUDA_SUCCESS) {
        result = cuda.cuDevicePrimaryCtxRetain(&context, *home);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuda.cuCtxPushCurrent_v2(context);
    if (result != CUDA_SUCCESS) {
        hostmem_home_release(*home);
    }
    return result;
}

void hostmem_home_leave(void)
{
    CUcontext popped;

    cuda.cuCtxPopCurrent_v2(&popped);
}

void hostmem_home_release(CUdevice home)
{
    if (!cudriver_driver_is_forked()) {
        cuda.cuDevicePrimaryCtxRelease_v2(home);
    }
}

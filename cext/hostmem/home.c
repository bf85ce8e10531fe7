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
        hostmem_home_release(*home, 1);
    }
    return result;
}

void hostmem_home_leave(void)
{
    CUcontext popped;

    cuda.cuCtxPopCurrent_v2(&popped);
}

CUresult hostmem_home_retain(CUdevice home)
{
    CUcontext context;

    return cuda.cuDevicePrimaryCtxRetain(&context, home);
}

void hostmem_home_release(CUdevice home, size_t count)
{
    for (; count > 0 && !cudriver_driver_is_forked(); count--) {
        cuda.cuDevicePrimaryCtxRelease_v2(home);
    }
}

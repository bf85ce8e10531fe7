/* Streams that are being captured. See capture.h. */
#include "capture.h"

#include "driver/driver.h"
#include "python/error.h"

int cudriver_capture_check(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = cuda.cuStreamIsCapturing(stream, &status);

    if (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (result != CUDA_SUCCESS) {
        cudriver_raise(result, "cuStreamIsCapturing", "stream %p", (void *)stream);
        return -1;
    }
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

void cudriver_capture_raise(CUstream stream, const char *call, const char *why)
{
    cudriver_raise_plain("CudaError",
                         "%s cannot be captured: stream %p is being captured into a graph, and %s "
                         "(nothing was done, and the capture goes on)",
                         call, (void *)stream, why);
}

int cudriver_capture_refuse(CUstream stream, const char *call)
{
    int captured = cudriver_capture_check(stream);

    if (captured > 0) {
        cudriver_capture_raise(stream, call,
                               "its work runs when the graph is launched: call it before or after "
                               "the capture, or on another stream, or queue the work with the "
                               "library that captures, which takes a DeviceArray by DLPack");
    }
    return captured == 0 ? 0 : -1;
}

bool cudriver_capture_forbids(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = cuda.cuStreamIsCapturing(stream, &status);

    return cudriver_driver_is_capturing(result) ||
           (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
}
